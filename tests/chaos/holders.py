"""Which process holds a world, and when a worker has last shown that it lives."""

from __future__ import annotations

import msgspec

from tests.chaos.processes import Process
from worldline.api.universe_api import Universe
from worldline.layers import leases
from worldline.model import ids


def worker_of(process: Process) -> ids.WorkerId:
    """The id a worker has said it has."""
    [line] = [line for line in (process.folder / "out").read_bytes().splitlines() if b'"ready"' in line]
    return ids.WorkerId(bytes.fromhex(msgspec.json.decode(line)["worker"]))


async def state(universe: Universe, world: str) -> leases.LeaseState:
    at = await universe.world(world)._handle.address()
    read = await universe._connection.store.engine.read(*leases.reads(at))
    return leases.decode(at, *(read.value(index) for index in range(3)))


async def sign_us(universe: Universe, worker: ids.WorkerId) -> int:
    """When a worker has last shown that it lives."""
    read = await universe._connection.store.engine.read(leases.get_heartbeat(worker))
    life = leases.decode_heartbeat(worker, read.value(0))
    return 0 if life is None else life.sign.heartbeat_us


def holder(now: leases.LeaseState, processes: dict[str, Process]) -> str | None:
    """The name of the process that holds the world, if one of these does."""
    if now.holder is None:
        return None
    named = {worker_of(process): name for name, process in processes.items()}
    return named.get(ids.WorkerId(now.holder.worker))
