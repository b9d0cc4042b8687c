"""Which values are sealed with what: what the beginning of a key says is what its parts say."""

from __future__ import annotations

import pytest

from tests.keys.golden_keys import KEYS
from tests.keys.samples import AT, UNIVERSE
from worldline.base import errors
from worldline.codec import tuples
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.keys import cas, keyspace_table
from worldline.keys.keyspace_table import Sealed
from worldline.keys.space import InUniverse, InWorld

EXPECTED = {
    Sealed.PLAIN: None,
    Sealed.UNIVERSE_KEY: encryption_keyspace.universe_key(UNIVERSE),
    Sealed.WORLD_KEY: encryption_keyspace.world_key(AT),
}


@pytest.mark.parametrize("key", [build() for _, build, _ in KEYS], ids=[f"{row[0]} {row[2][-8:]}" for row in KEYS])
def test_the_data_key_of_a_value(key: bytes) -> None:
    """By taking the key apart, which `sealing` does not."""
    try:
        items = tuples.unpack(key)
    except errors.DecodeError:
        items = tuples.unpack(key[:-1]) if key[-1:] == b"\x33" else ()  # what an append takes
    expected: bytes | None = None
    match items:
        case (2, tuples.Uuid(), 6, tuples.Uuid(), int(inside), *_):
            expected = EXPECTED[keyspace_table.row(InWorld(inside)).sealed]
        case (2, tuples.Uuid(), int(inside), *rest):
            sealed = keyspace_table.row(InUniverse(inside)).sealed
            # Of a beginning that has no world yet, it cannot be told which key it is.
            is_told = sealed is not Sealed.WORLD_KEY or (rest and isinstance(rest[0], tuples.Uuid))
            expected = EXPECTED[sealed] if is_told else None
    assert encryption_keyspace.sealing(key) == expected
    whose = (b"", b"") if expected is None else (UNIVERSE, AT.world if encryption_keyspace.is_world(expected) else b"")
    assert encryption_keyspace.whose(key) == whose


def test_the_data_key_of_an_object() -> None:
    name = cas.object_name(UNIVERSE, bytes(32), b"\x01")
    assert encryption_keyspace.of_object(name) == encryption_keyspace.universe_key(UNIVERSE)
    assert encryption_keyspace.whose_object(name) == UNIVERSE
    for other in ("", "a/b", "zz" * 16 + "/b", UNIVERSE.hex()[:-2] + "/b"):
        assert encryption_keyspace.whose_object(other) == b""
        with pytest.raises(errors.BadInput, match="not named for a universe"):
            encryption_keyspace.of_object(other)


def test_what_may_have_a_stamp() -> None:
    """Values that engines put stamps behind, or under."""
    for name, build, _ in KEYS:
        stamped = name.split(".")[1].startswith(("item_", "seen_", "grant_log_"))
        if encryption_keyspace.sealing(build()) is not None:
            assert encryption_keyspace.is_unstamped(build()) != stamped, name
