"""The keys of a backup, as they are written into another store.

What a process held is given back: a claim waits again, epochs go on above those that were. Stamps are of the store that
assigned them: unread inputs, dead letters and logs are appended again, in their order, and get new ones; the ids of
unread inputs get the new stamps, too. Pointers of open work are made anew. A world that takes input or runs is
archived, and its record says what it was (`held.py`), unless the copy is to go on at once.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import inbox as inbox_keys
from worldline.keys import leases as lease_keys
from worldline.keys import space
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.layers import ready
from worldline.layers import work as works
from worldline.layers.upkeep import held
from worldline.model import ids, lease
from worldline.model.world import Status, WorldMeta
from worldline.store import kv

_STAMP = b"\x33"
_WORLD = space.part(space.InUniverse.WORLD)
_LOGS = tuple(space.part(each) + _STAMP for each in (space.InUniverse.GRANT_LOG, space.InUniverse.QUOTA_LOG))
_WORLD_BYTES = len(_WORLD) + 1 + limits.ID_BYTES
_ORDINAL_BYTES = 2


class Copy(msgspec.Struct, frozen=True):
    """How keys are copied. `token`: of new epochs; `source`: for people."""

    universe: ids.UniverseId
    token: bytes
    source: str
    time_us: int
    live: bool


class Stamps:
    """New stamps of the unread inputs of one world, by their old ones: `waiting` for the commit that assigns them."""

    def __init__(self) -> None:
        self.waiting: dict[int, bytes] = {}  # by their place among the appends of the batch
        self.known: dict[bytes, bytes] = {}
        self._world = b""

    def enter(self, world: bytes) -> None:
        if world != self._world:
            self._world, self.known = world, {}

    def assigned(self, found: kv.Ok) -> None:
        for place, before in self.waiting.items():
            if place >= len(found.stamps):
                raise errors.Conflicted("the answer to a commit was lost, and the stamps with it; restore it again")
            self.known[before] = found.stamps[place]
        self.waiting = {}


def is_seen(suffix: bytes) -> bool:
    """Whether this is the id of an input: what is unread must have its stamp before that is written."""
    return suffix.startswith(_WORLD) and suffix[_WORLD_BYTES:].startswith(space.part(space.InWorld.SEEN))


def put(batch: kv.Batch, copy: Copy, stamps: Stamps, suffix: bytes, raw: bytes) -> None:
    """Write one key. The caller has a guard, and tells `stamps` what the commit assigned."""
    key = space.universe(copy.universe) + suffix
    if suffix.startswith(_LOGS):
        batch.append(key[: -limits.STAMP_BYTES], raw)
    elif suffix.startswith(space.part(space.InUniverse.INDEX)):
        batch.put(key, _meta(copy, world_keys.INDEX, raw))
    elif suffix.startswith(space.part(space.InUniverse.OPEN)):
        _put_work(batch, copy, key, raw)
    elif suffix.startswith(_WORLD):
        _put_of_world(batch, copy, stamps, suffix, raw)
    else:
        batch.put(key, raw)


def _put_of_world(batch: kv.Batch, copy: Copy, stamps: Stamps, suffix: bytes, raw: bytes) -> None:
    key = space.universe(copy.universe) + suffix
    world = _world_of(suffix)
    stamps.enter(world)
    at = ids.Address(copy.universe, world)
    match suffix[_WORLD_BYTES : _WORLD_BYTES + _ORDINAL_BYTES]:
        case kind if kind == space.part(space.InWorld.META):
            _put_meta(batch, copy, at, key, raw)
        case kind if kind == space.part(space.InWorld.EPOCH):
            number = lease_keys.EPOCH.unpack(raw).number + 1
            batch.put(key, lease_keys.EPOCH.pack(lease.Epoch(number, copy.token)))
        case kind if kind == space.part(space.InWorld.INBOX):
            stamps.waiting[batch.append(inbox_keys.item_prefix(at), raw)] = inbox_keys.stamp_of(key)
        case kind if kind == space.part(space.InWorld.DEAD):
            batch.append(inbox_keys.dead_prefix(at), raw)
        case kind if kind == space.part(space.InWorld.SEEN):
            before = raw[-limits.STAMP_BYTES :]
            batch.put(key, raw[: -limits.STAMP_BYTES] + stamps.known.get(before, before))
        case _:
            batch.put(key, raw)


def _put_meta(batch: kv.Batch, copy: Copy, at: ids.Address, key: bytes, raw: bytes) -> None:
    meta = world_keys.META.unpack(raw)
    batch.put(key, _meta(copy, world_keys.META, raw))
    if copy.live:
        if meta.status is Status.ACTIVE:
            ready.leave(batch, at, priority=ready.NORMAL)
    elif meta.status is not Status.DELETED:
        held.hold(batch, at, status=meta.status, source=copy.source, time_us=copy.time_us)


def _meta(copy: Copy, value: space.Value[WorldMeta], raw: bytes) -> bytes:
    meta = value.unpack(raw)
    if copy.live or meta.status in (Status.DELETED, Status.ARCHIVED):
        return raw
    return value.pack(msgspec.structs.replace(meta, status=Status.ARCHIVED, revision=meta.revision + 1))


def _put_work(batch: kv.Batch, copy: Copy, key: bytes, raw: bytes) -> None:
    at, intent = work_keys.open_address(copy.universe, key)
    found = works.decode(at, intent, raw)
    assert found is not None
    works.put_copy(batch, found, now_us=copy.time_us)


def _world_of(suffix: bytes) -> ids.WorldId:
    match tuples.unpack(suffix[len(_WORLD) : _WORLD_BYTES]):
        case (tuples.Uuid(world),):
            return ids.WorldId(world)
        case _:
            raise errors.DecodeError("not a key of a world")
