"""Every call of operators may be made twice: the second time it says what the first has done, and does nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import worldline as wl
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit, Process
from worldline.base import env as envs
from worldline.base import errors
from worldline.layers import leases, worlds
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.runtime import death_witness, operator_calls, placement
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv

SETTINGS = WorkerSettings(lease_ttl_ms=60_000, heartbeat_ms=15_000, max_worlds_warm=7, labels={"zone": "eu"})
WINDOW_US = 3_600_000_000
SECOND_US = 1_000_000


def program() -> wl.Program:
    app = sums.program()

    @app.effect
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def work() -> int:
        doubled = await double(4)
        await wl.sleep(0.01)
        return doubled

    return app


class Desk:
    """A store with a world that nobody runs, and a worker that is not one of ours."""

    def __init__(self, process: Process, env: envs.Env, world: wl.World, at: ids.Address) -> None:
        self.engine: kv.Engine = process.engine
        self.env = env
        self.world = world
        self.at = at
        self.worker = ids.WorkerId(envs.new_id(env))
        self.incarnation = ids.Incarnation(envs.new_id(env))
        # What a worker says that can run the world.
        self.labels = placement.labels_of(SETTINGS.labels, universes=at.universe.hex(), programs={"p": b"\0" * 32})

    async def beat(self) -> leases.HeartbeatRecord:
        return await world_lease.beat(
            self.engine, self.env, self.worker, self.incarnation, SETTINGS, labels=self.labels
        )

    async def other(self) -> leases.HeartbeatRecord:
        """Another worker that lives."""
        worker, incarnation = ids.WorkerId(envs.new_id(self.env)), ids.Incarnation(envs.new_id(self.env))
        return await world_lease.beat(self.engine, self.env, worker, incarnation, SETTINGS, labels=self.labels)

    async def acquire(self, me: leases.HeartbeatRecord) -> leases.Lease:
        return await world_lease.acquire(self.engine, self.env, self.at, me, death_witness.DeathWitness(self.env))

    async def state(self) -> leases.LeaseState:
        read = await self.engine.read(*leases.reads(self.at))
        return leases.decode(self.at, read.value(0), read.value(1), read.value(2))

    async def found(self) -> tuple[worlds.WorldRecord, leases.LeaseState]:
        return worlds.decode(self.at, (await self.engine.read(worlds.get(self.at))).value(0)), await self.state()

    async def unread(self) -> int:
        return await kits.unread(self.engine, self.at)


async def desk(kit: Kit) -> Desk:
    process = await kit.process()
    world = await process.universe.create("w", program())
    return Desk(process, kit.env, world, await world._handle.address())


# --- Workers -----------------------------------------------------------------------------------------------------


async def test_a_worker_comes_is_drained_and_goes(kit: Kit) -> None:
    at = await desk(kit)
    for beat in (1, 2):
        life = await at.beat()
        assert (life.sign.beat, life.sign.capacity, life.sign.labels) == (beat, 7, at.labels)
    life = await at.beat()
    for draining in (True, True, False, False):
        life = await operator_calls.drain_worker(at.engine, at.env, at.worker, draining=draining)
        assert life.sign.draining is draining
        assert (await at.beat()).sign.draining is draining, "a heartbeat does not end it"
    assert [each.worker for each in await operator_calls.list_workers(at.engine)] == [at.worker]
    for _ in range(2):
        await world_lease.say_goodbye(at.engine, at.env, life)
        assert await operator_calls.list_workers(at.engine) == []
    with pytest.raises(errors.NotFound):
        await operator_calls.drain_worker(at.engine, at.env, at.worker, draining=True)


async def test_a_drained_worker_gets_no_lease(kit: Kit) -> None:
    at = await desk(kit)
    me = await at.beat()
    await operator_calls.drain_worker(at.engine, at.env, at.worker, draining=True)
    with pytest.raises(errors.Exists, match="which is draining"):
        await at.acquire(me)


# --- Leases ------------------------------------------------------------------------------------------------------


async def test_a_lease_is_taken_and_released(kit: Kit) -> None:
    at = await desk(kit)
    me, other = await at.beat(), await at.other()
    lease = await at.acquire(me)
    assert lease.epoch == 1
    with pytest.raises(errors.Exists, match="held by worker"):
        await at.acquire(other)
    assert await operator_calls.list_worker_worlds(at.engine, at.worker) == [(at.at, 1)]
    assert await world_lease.release(at.engine, at.env, lease)
    assert await operator_calls.list_worker_worlds(at.engine, at.worker) == []
    assert (await at.acquire(other)).epoch == 2
    assert not await world_lease.release(at.engine, at.env, lease), "so nothing is told of it"
    assert (await at.state()).holder is not None, "what has moved on is left alone"


async def test_a_lease_is_revoked_once(kit: Kit) -> None:
    at = await desk(kit)
    me = await at.beat()
    assert await operator_calls.revoke_lease(at.engine, at.env, at.at) == 0, "nobody has it"
    lease = await at.acquire(me)
    for _ in range(2):
        assert await operator_calls.revoke_lease(at.engine, at.env, at.at, epoch=lease.epoch) == 2
    assert (await at.state()).holder is None
    assert await kits.hints(at.engine, at.at), "somebody is to go on with it"
    batch = kv.Batch()
    leases.fence(batch, lease)
    leases.release(batch, lease)
    [outcome] = await at.engine.commit(batch)
    assert isinstance(outcome, kv.Conflict), "the one that had it is fenced"
    again = await at.acquire(await at.other())
    assert await operator_calls.revoke_lease(at.engine, at.env, at.at, epoch=lease.epoch) == again.epoch == 3
    assert (await at.state()).holder is not None, "the repeat of an old call hits nobody else"


async def test_a_world_is_assigned_and_free_again(kit: Kit) -> None:
    at = await desk(kit)
    me, other = await at.beat(), await at.other()
    for _ in range(2):
        await operator_calls.assign_world(at.engine, at.env, at.at, at.worker, reason="so")
    assignment = (await at.state()).assignment
    assert assignment is not None
    assert (assignment.worker, assignment.reason, assignment.revision) == (at.worker, "so", 1)
    with pytest.raises(errors.Exists, match="assigned to worker"):
        await at.acquire(other)
    for _ in range(2):
        await operator_calls.unassign_world(at.engine, at.env, at.at)
    assert (await at.state()).assignment is None
    assert (await at.acquire(other)).epoch == 1
    await operator_calls.drain_worker(at.engine, at.env, at.worker, draining=True)
    with pytest.raises(errors.NotFound):
        await operator_calls.assign_world(at.engine, at.env, at.at, me.worker)


# --- Looking before a try ---------------------------------------------------------------------------------------------


async def test_only_worlds_that_may_be_had_are_tried_for(kit: Kit) -> None:
    """One look tells the same of each world as a try at it would."""
    at = await desk(kit)
    me, other, gone = await at.beat(), await at.other(), await at.other()

    async def may_take(life: leases.HeartbeatRecord | None = me, *, dead: Sequence[bytes] = ()) -> bool:
        others = death_witness.DeathWitness(kit.env, lambda worker: worker in dead)
        return await world_lease.may_take(at.engine, [await at.found()], life, others) == [at.at]

    assert await may_take()
    lease = await at.acquire(other)
    assert not await may_take()
    assert await may_take(other), "it is its own"
    assert await may_take(dead=[other.worker])
    assert await may_take(None), "whoever has no life sign yet finds out by trying"
    await world_lease.release(at.engine, at.env, lease)
    await operator_calls.assign_world(at.engine, at.env, at.at, other.worker)
    assert not await may_take()
    assert await may_take(dead=[other.worker])
    await operator_calls.drain_worker(at.engine, at.env, other.worker, draining=True)
    assert await may_take(), "what is being emptied wants nothing"
    await operator_calls.drain_worker(at.engine, at.env, other.worker, draining=False)
    await operator_calls.unassign_world(at.engine, at.env, at.at)
    await at.acquire(gone)
    await world_lease.say_goodbye(at.engine, at.env, gone)
    assert await may_take(), "its holder has no life sign"
