"""What a key is for, read at fixed places: the same as taking the key apart says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.keys import golden_keys
from worldline.codec import tuples
from worldline.keys import space
from worldline.observe import key_kinds


def by_taking_apart(key: bytes) -> str:
    items = [item for item in tuples.unpack(key) if isinstance(item, int)]
    ordinals = [*items, 0, 0]
    match space.Root(ordinals[0]):
        case space.Root.STORE:
            return "store"
        case space.Root.WORKER:
            return "worker" if ordinals[1] == space.InWorker.LIFE else "held"
        case space.Root.UNIVERSE:
            part = space.InUniverse(ordinals[1])
            if part is not space.InUniverse.WORLD:
                return "universe_meta" if part is space.InUniverse.META else part.name.lower()
            inside = space.InWorld(ordinals[2])
            return "world_meta" if inside is space.InWorld.META else inside.name.lower()


WHOLE = [(name, build) for name, build, _ in golden_keys.KEYS if not name.endswith("prefix")]


@pytest.mark.parametrize(("name", "build"), WHOLE, ids=[f"{i}-{name}" for i, (name, _) in enumerate(WHOLE)])
def test_every_key_has_its_kind(name: str, build: Callable[[], bytes]) -> None:
    assert key_kinds.kind_of(build()) == by_taking_apart(build()) != key_kinds.OTHER


def test_kinds_are_told_apart() -> None:
    found = {key_kinds.kind_of(build()) for _, build in WHOLE}
    assert {"journal", "inbox", "seen", "dead", "open", "due", "cas", "chunk", "worker", "held", "store"} <= found
    assert {"world_meta", "universe_meta"} <= found, "two kinds of meta"


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x15", b"\x15\x02", bytes(64), b"\xff" * 64])
def test_anything_else_is_other(key: bytes) -> None:
    assert key_kinds.kind_of(key) == key_kinds.OTHER
