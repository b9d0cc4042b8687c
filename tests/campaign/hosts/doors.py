"""One client with two doors: a handle of its own that hosts nothing, and that of a process that hosts worlds.

It makes one operation after the other, by turns through the one and the other, each begun only after the one before has
ended. The client itself never fails, so it knows what it was told; a process that dies takes the operation it had with
it, and another one is the door from then on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from tests.campaign.load import workloads
from worldline.client.connection import Connection
from worldline.sim.hosts.sim_machines import ClusterMember
from worldline.sim.load.history import ClientOp, ClientOutcome, History
from worldline.sim.runtime.sim_loop import SimLoop

LOOK_SECONDS = 0.3
PAUSE_SECONDS = (0, 0, 0.01, 0.3)


async def client(
    own: Connection, name: str, ops: list[ClientOp], history: History, *, seed: int, members: Sequence[ClusterMember]
) -> None:
    """Work through a plan. `members`: the processes that may be the other door."""
    draws = random.Random(f"{seed}:{name}")
    door: ClusterMember | None = None
    for number, op in enumerate(ops):
        if door is None or not _is_open(door):
            door = await _another(draws, members)
        history.begin(op, name)
        if number % 2:
            history.answer(op, await _through(door, op, history))
        else:
            history.answer(op, await workloads.once(own, op, history))
        await asyncio.sleep(draws.choice(PAUSE_SECONDS))


def _is_open(member: ClusterMember) -> bool:
    return member.alive and member.universe is not None and not member.steady and member.away is None


async def _another(draws: random.Random, members: Sequence[ClusterMember]) -> ClusterMember:
    while True:
        found = [each for each in members if _is_open(each)]
        hosting = [each for each in found if each.universe is not None and each.universe.host is not None]
        if found:
            return draws.choice(hosting or found)
        await asyncio.sleep(LOOK_SECONDS)


async def _through(door: ClusterMember, op: ClientOp, history: History) -> ClientOutcome:
    """Let a process make an operation. If it dies, how that ended stays unknown."""
    host, universe = door.host, door.universe
    assert host is not None
    assert universe is not None
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    ended: asyncio.Future[ClientOutcome] = loop.create_future()

    async def inside() -> None:
        outcome = await workloads.once(universe, op, history)
        ended.set_result(outcome)

    loop.start(host, inside(), name=f"door of {op.id}")
    while host.alive:
        done, _ = await asyncio.wait([ended], timeout=LOOK_SECONDS)
        if done:
            return ended.result()
    return ClientOutcome.UNCERTAIN
