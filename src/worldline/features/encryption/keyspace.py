"""Data keys: what values are sealed with, wrapped by a master key. And which values are sealed.

Per what:      universe, and world
Changes:       when it is wrapped by another master key; when another key follows it; when it is destroyed, for the last
               time; the count with every 65,536 values that are sealed, by chance
Keys:          (UNIVERSE, u, DATA_KEY)         -> DataKey, for what the worlds of a universe share
               (UNIVERSE, u, WORLD_KEY, world) -> DataKey
               (UNIVERSE, u, SEALS, 0)         -> how many values were sealed with the key, / 65,536: a counter
               (UNIVERSE, u, SEALS, 1, world)  -> likewise
Present:       in an encrypted store, from before the first value that is sealed with it; for ever, also when destroyed;
               the count from the first such value on, until another key follows, or it is destroyed

Which keyspaces are sealed is said in the table of all (`keys/keyspace_table.py`), and read here by the ordinals that
stand at fixed places in a key: `sealing` also takes the beginning of one.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import keyspace_table, space
from worldline.keys.keyspace_table import Sealed, Stamped
from worldline.keys.space import InUniverse
from worldline.model import ids


class DataKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A data key, wrapped by the master key of this id. Without `wrapped`: destroyed, at `destroyed_us`. `older`: keys
    that values may still be sealed with, the newest first. `rewriting`: these values are being sealed anew.
    """

    master: str
    wrapped: bytes
    made_us: int
    destroyed_us: int = 0
    older: list[bytes] = []
    rewriting: bool = False

    def __post_init__(self) -> None:
        if bool(self.wrapped) == bool(self.destroyed_us):
            raise ValueError("a data key is wrapped, or destroyed")
        if len(self.older) > limits.OLDER_KEYS_MAX or (self.older and not self.wrapped):
            raise ValueError(f"a data key follows at most {limits.OLDER_KEYS_MAX} others")


_DATA_KEY = space.part(InUniverse.DATA_KEY)
_WORLD_KEY = space.part(InUniverse.WORLD_KEY)
_SEALS = space.part(InUniverse.SEALS)
_OF_UNIVERSE, _OF_WORLD = tuples.pack((0,)), tuples.pack((1,))
_ROOT = space.part(space.KeyRoot.UNIVERSE)
_WORLD = space.part(InUniverse.WORLD)
_PART = len(_WORLD)
_ID = 1 + limits.ID_BYTES  # with its type code
_UNIVERSE_END = _PART + _ID  # of what all keys of a universe begin with
_SECOND_END = _UNIVERSE_END + _PART
_WORLD_END = _SECOND_END + _ID
# Keyspaces of a universe whose values are sealed with the keys of worlds: the world comes first in their keys.
_OF_WORLDS = tuple(map(space.part, keyspace_table.in_universe(lambda each: each.sealed is Sealed.WORLD_KEY)))
_BY_ENGINE = (Stamped.APPENDED, Stamped.IN_VALUE)  # and not what it has assigned before

VALUE = space.ValueCodec(space.ValueKind.DATA_KEY, DataKey)


def universe_key(universe: ids.UniverseId) -> bytes:
    return space.universe(universe) + _DATA_KEY


def world_key(at: ids.Address) -> bytes:
    return space.universe(at.universe) + _WORLD_KEY + tuples.pack_uuid(ids.check_id(at.world, "a world id"))


def world_keys(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    """Those of all worlds of a universe."""
    return tuples.prefix_range(space.universe(universe) + _WORLD_KEY)


def seals_key(scope: bytes) -> bytes:
    """The count of a data key, which is under `scope`."""
    kind = _OF_WORLD if is_world(scope) else _OF_UNIVERSE
    return scope[:_UNIVERSE_END] + _SEALS + kind + scope[_SECOND_END:]


def sealed_ranges(scope: bytes) -> list[tuple[bytes, bytes]]:
    """Where all values are that may be sealed with the data key under `scope`, and others."""
    universe = scope[:_UNIVERSE_END]
    if not is_world(scope):
        return [tuples.prefix_range(universe)]
    world = scope[_SECOND_END:]
    return [tuples.prefix_range(universe + each + world) for each in (_WORLD, *_OF_WORLDS)]


def owner(key: bytes) -> tuple[ids.UniverseId, ids.WorldId | None]:
    """Whose data key is under this key."""
    match space.inside(_ROOT, key, "the key of a data key"):
        case (tuples.Uuid(universe), int(part)) if part == InUniverse.DATA_KEY:
            return ids.UniverseId(universe), None
        case (tuples.Uuid(universe), int(part), tuples.Uuid(world)) if part == InUniverse.WORLD_KEY:
            return ids.UniverseId(universe), ids.WorldId(world)
        case _:
            raise errors.DecodeError("not the key of a data key")


def is_world(key: bytes) -> bool:
    """Whether this data key is that of a world."""
    return len(key) == _WORLD_END


def sealing(key: bytes) -> bytes | None:
    """The key of the data key that the value under this key is sealed with; None if it is not sealed. Of the beginning
    of a key, as ranges have it: that of keys which begin so, if it can be told.
    """
    row = keyspace_table.of(key)
    if row is None or row.sealed is Sealed.PLAIN:
        return None
    if row.sealed is Sealed.UNIVERSE_KEY:
        return key[:_UNIVERSE_END] + _DATA_KEY
    if len(key) < _WORLD_END:
        return None  # a range over the open work of many worlds
    return key[:_UNIVERSE_END] + _WORLD_KEY + key[_SECOND_END:_WORLD_END]


def is_unstamped(key: bytes) -> bool:
    """Whether a value under this key is not sealed, or has nothing to do with a stamp of the engine's."""
    row = keyspace_table.of(key)
    return row is None or row.sealed is Sealed.PLAIN or row.stamped not in _BY_ENGINE


def whose(key: bytes) -> tuple[bytes, bytes]:
    """The ids of the universe and the world that the value under this key is sealed for; empty where there is none."""
    found = sealing(key)
    if found is None:
        return b"", b""
    return found[_PART + 1 : _UNIVERSE_END], found[_SECOND_END + 1 :]


def of_object(name: str) -> bytes:
    """The key of the data key that an object's body is sealed with: that of the universe its name begins with."""
    universe = whose_object(name)
    if not universe:
        raise errors.BadInput(f"object {name[:200]!r} is not named for a universe")
    return universe_key(ids.UniverseId(universe))


def whose_object(name: str) -> bytes:
    """The id of the universe that an object's name begins with, or nothing."""
    try:
        raw = bytes.fromhex(name.partition("/")[0])
    except ValueError:
        return b""
    return raw if len(raw) == limits.ID_BYTES else b""
