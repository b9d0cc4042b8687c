"""Which keyspaces are sealed: each is in one table, and what a key says is what its parts say."""

from __future__ import annotations

import pytest

from tests.keys.golden_keys import KEYS
from tests.keys.samples import AT, UNIVERSE
from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import cas, space
from worldline.keys.space import InUniverse, InWorld
from worldline.keys.upkeep import data_keys


def test_every_keyspace_has_chosen() -> None:
    """A new one goes to a table of `keys/upkeep/data_keys.py`: sealed if it holds users' data."""
    in_universe = (data_keys.SHARED_IN_UNIVERSE, data_keys.OWN_IN_UNIVERSE, data_keys.PLAIN_IN_UNIVERSE)
    in_world = (data_keys.SHARED_IN_WORLD, data_keys.OWN_IN_WORLD, data_keys.PLAIN_IN_WORLD)
    assert sorted(each for table in in_universe for each in table) == sorted({*InUniverse} - {InUniverse.WORLD})
    assert sorted(each for table in in_world for each in table) == sorted(InWorld)


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
            if inside in data_keys.OWN_IN_WORLD:
                expected = data_keys.world_key(AT)
            elif inside in data_keys.SHARED_IN_WORLD:
                expected = data_keys.universe_key(UNIVERSE)
        case (2, tuples.Uuid(), int(inside), tuples.Uuid(), *_) if inside in data_keys.OWN_IN_UNIVERSE:
            expected = data_keys.world_key(AT)
        case (2, tuples.Uuid(), int(inside), *_) if inside in data_keys.SHARED_IN_UNIVERSE:
            expected = data_keys.universe_key(UNIVERSE)
    assert data_keys.sealing(key) == expected
    whose = (b"", b"") if expected is None else (UNIVERSE, AT.world if data_keys.is_world(expected) else b"")
    assert data_keys.whose(key) == whose


def test_the_data_key_of_an_object() -> None:
    name = cas.object_name(UNIVERSE, bytes(32), b"\x01")
    assert data_keys.of_object(name) == data_keys.universe_key(UNIVERSE)
    assert data_keys.whose_object(name) == UNIVERSE
    for other in ("", "a/b", "zz" * 16 + "/b", UNIVERSE.hex()[:-2] + "/b"):
        assert data_keys.whose_object(other) == b""
        with pytest.raises(errors.BadInput, match="not named for a universe"):
            data_keys.of_object(other)


def test_what_may_have_a_stamp() -> None:
    """Values that engines put stamps behind, or under."""
    for name, build, _ in KEYS:
        stamped = name.split(".")[1].startswith(("item_", "seen_", "grant_log_"))
        if data_keys.sealing(build()) is not None:
            assert data_keys.is_unstamped(build()) != stamped, name


def test_ordinals_of_keyspaces_have_two_bytes() -> None:
    """Which is what `sealing` counts on."""
    assert {len(space.part(each)) for kind in (InUniverse, InWorld, space.Root) for each in kind} == {2}
