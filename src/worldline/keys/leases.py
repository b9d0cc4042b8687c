"""Leases: the fencing epoch, the holder, where the world is wanted, and the workers.

Per what:      world (epoch, holder, assignment), worker (life, held worlds)
Changes:       epoch at every acquire; holder at acquire and release; a worker's life at every heartbeat
Keys:          (UNIVERSE, u, WORLD, w, EPOCH)      -> Epoch
               (UNIVERSE, u, WORLD, w, HOLDER)     -> Holder
               (UNIVERSE, u, WORLD, w, ASSIGNMENT) -> Assignment
               (WORKER, worker, LIFE)              -> Worker
               (WORKER, worker, WORLD, u, w)       -> Held(epoch)
Present:       epoch from creation and never deleted, so no number ever comes twice; holder and held while a lease is
               held; a worker's life from its first heartbeat until it says goodbye or is swept
"""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import ids, leases

_EPOCH = space.part(space.InWorld.EPOCH)
_HOLDER = space.part(space.InWorld.HOLDER)
_ASSIGNMENT = space.part(space.InWorld.ASSIGNMENT)
_WORKERS = space.part(space.KeyRoot.WORKER)


class HeldRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    epoch: int


EPOCH = space.ValueCodec(space.ValueKind.EPOCH, leases.Epoch)
HOLDER = space.ValueCodec(space.ValueKind.HOLDER, leases.Holder)
ASSIGNMENT = space.ValueCodec(space.ValueKind.ASSIGNMENT, leases.Assignment)
WORKER = space.ValueCodec(space.ValueKind.WORKER, leases.Worker)
HELD = space.ValueCodec(space.ValueKind.HELD, HeldRecord)


def epoch_key(at: ids.Address) -> bytes:
    return space.world(at) + _EPOCH


def holder_key(at: ids.Address) -> bytes:
    return space.world(at) + _HOLDER


def assignment_key(at: ids.Address) -> bytes:
    return space.world(at) + _ASSIGNMENT


def worker_key(worker: ids.WorkerId) -> bytes:
    # LIFE sorts before WORLD: the first key of a worker is its heartbeat, if it has one.
    return _worker(worker) + space.part(space.InWorker.LIFE)


def held_key(worker: ids.WorkerId, at: ids.Address) -> bytes:
    # Under the worker, not the world: a clean-up walks through what one worker has held.
    return _held(worker) + tuples.pack((tuples.Uuid(at.universe), tuples.Uuid(at.world)))


def held(worker: ids.WorkerId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(_held(worker))


def held_in(worker: ids.WorkerId, universe: ids.UniverseId) -> tuple[bytes, bytes]:
    """The worlds of one universe that a worker holds."""
    return tuples.prefix_range(_held(worker) + tuples.pack((tuples.Uuid(ids.check_id(universe, "a universe id")),)))


def held_address(worker: ids.WorkerId, key: bytes) -> ids.Address:
    match space.inside(_held(worker), key, "a held-world key of this worker"):
        case (tuples.Uuid(universe), tuples.Uuid(world)):
            return ids.Address(ids.UniverseId(universe), ids.WorldId(world))
        case _:
            raise errors.DecodeError("not a held-world key")


def workers() -> tuple[bytes, bytes]:
    """Every key of every worker; `worker_of` tells lives from held worlds."""
    return tuples.prefix_range(_WORKERS)


def worker_of(key: bytes) -> ids.WorkerId | None:
    """The worker whose heartbeat this key is, or None for another key of a worker."""
    match space.inside(_WORKERS, key, "a key of a worker"):
        case (tuples.Uuid(worker), space.InWorker.LIFE):
            return ids.WorkerId(worker)
        case _:
            return None


def owner_of(key: bytes) -> ids.WorkerId:
    """The worker that a key belongs to, of any kind of key."""
    match space.inside(_WORKERS, key, "a key of a worker"):
        case (tuples.Uuid(worker), *_):
            return ids.WorkerId(worker)
        case _:
            raise errors.DecodeError("not a key of a worker")


def _worker(worker: ids.WorkerId) -> bytes:
    return _WORKERS + tuples.pack((tuples.Uuid(ids.check_id(worker, "a worker id")),))


def _held(worker: ids.WorkerId) -> bytes:
    return _worker(worker) + space.part(space.InWorker.WORLD)
