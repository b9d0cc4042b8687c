"""What a key is for, by the ordinals that stand at fixed places in it: for counting what is written.

This reads a key without taking it apart. It is right for every key that the files of `worldline.keys` make, and says
`other` of anything else; whether a key is well formed is for those files to say.
"""

from __future__ import annotations

from worldline.base import limits
from worldline.keys import space
from worldline.keys.space import InUniverse, InWorker, InWorld, Root

OTHER = "other"

_ORDINAL_BYTES = len(space.part(Root.UNIVERSE))
_ID_BYTES = 1 + limits.ID_BYTES  # with its type code
_FIRST = slice(0, _ORDINAL_BYTES)
_SECOND = slice(_ORDINAL_BYTES + _ID_BYTES, 2 * _ORDINAL_BYTES + _ID_BYTES)  # behind the universe or the worker
_THIRD = slice(2 * (_ORDINAL_BYTES + _ID_BYTES), 3 * _ORDINAL_BYTES + 2 * _ID_BYTES)  # behind the world

_STORE, _UNIVERSE, _WORKER = (space.part(each) for each in Root)
_WORLD = space.part(InUniverse.WORLD)
_LIFE = space.part(InWorker.LIFE)
_IN_UNIVERSE = {space.part(each): each.name.lower() for each in InUniverse if each is not InUniverse.WORLD}
_IN_WORLD = {space.part(each): each.name.lower() for each in InWorld}
_IN_UNIVERSE[space.part(InUniverse.META)] = "universe_meta"
_IN_WORLD[space.part(InWorld.META)] = "world_meta"


def kind_of(key: bytes) -> str:
    """One word: journal, inbox, seen, head, open, due, cas, ... `worker` is a heartbeat, `held` what it holds."""
    first, second = key[_FIRST], key[_SECOND]
    if first == _UNIVERSE:
        if second == _WORLD:
            return _IN_WORLD.get(key[_THIRD], OTHER)
        return _IN_UNIVERSE.get(second, OTHER)
    if first == _WORKER:
        return "worker" if second == _LIFE else "held"
    return "store" if first == _STORE else OTHER
