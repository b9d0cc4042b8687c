"""An assignment that its worker cannot follow stops no world; `why` and `show` name it; its priority counts."""

from __future__ import annotations

import pytest

from tests import aio
from tests.cluster import test_orchestrator as cluster
from tests.kits.kit import Kit, Process
from tests.kits.sums import Add, program
from worldline.base import env as envs
from worldline.base import errors
from worldline.inspect import store_queries, why
from worldline.layers import leases, ready, worlds
from worldline.model import ids
from worldline.runtime import death_witness, operator_calls, placement, world_holders
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv


async def assigned_anyway(client: Process, at: ids.Address, worker: ids.WorkerId, *, priority: int = 1) -> None:
    """As an assignment stands whose worker has been started again without the program: nobody was asked."""
    read = await client.engine.read(*leases.reads(at))
    batch = kv.Batch()
    leases.assign(batch, leases.decode(at, *map(read.value, range(3))), worker, priority=priority, reason="by hand")
    ready.leave(batch, at, priority=ready.LATER)
    [outcome] = await client.engine.commit(batch)
    assert isinstance(outcome, kv.Ok)


@pytest.mark.parametrize("label", ["program", "needs"])
async def test_a_worker_that_cannot_run_a_world_is_not_assigned_it(memory_kit: Kit, label: str) -> None:
    kit, app = memory_kit, program()
    await cluster.joined(kit, app, cluster.named("a", disk="fast"))
    other = await cluster.joined(kit, program("other") if label == "program" else app, cluster.named("b"))
    client = await kit.process()
    [world] = await cluster.make(client, app, 1, **({} if label == "program" else {"needs:disk": "fast"}))
    why_not = "does not have its program 'p'" if label == "program" else "does not have the label disk=fast"
    with pytest.raises(errors.BadInput, match=f"worker 'b' cannot run world 'w0': it {why_not}"):
        await operator_calls.assign_world(client.engine, kit.env, await world._handle.address(), other.host.worker)
    await cluster.tell([world])


@pytest.mark.parametrize("is_held", [True, False])
async def test_an_assignment_that_cannot_be_followed_is_void(memory_kit: Kit, is_held: bool) -> None:
    kit, app = memory_kit, program()
    first = await cluster.joined(kit, app, cluster.named("a"))
    other = await cluster.joined(kit, program("other"), cluster.named("b"))
    client = await kit.process()
    [world] = await cluster.make(client, app, 1)
    at = await world._handle.address()
    if is_held:
        await cluster.tell([world])
    await assigned_anyway(client, at, other.host.worker)
    first.host.worlds.wake()
    await cluster.tell([world])
    assert await cluster.holders(client, [world]) == [first.host.worker]
    [reason] = [each for each in (await why.why(world._handle)).reasons if each.kind == "assigned"]
    assert reason.what == (
        "it is assigned to worker b (by hand), which does not have its program 'p': any other may run it"
    )
    assert (reason.stuck, reason.command) == (False, "worldline lease unassign w0")
    shown = (await store_queries.show_world(client.universe._connection, at)).assigned
    assert shown.startswith(f"worker b ({other.host.worker.hex()}), by hand, priority 1; void: it does not have")


async def test_why_says_that_a_world_waits_for_the_worker_it_is_assigned_to(memory_kit: Kit) -> None:
    """The worker stands and does nothing: no other may take the world, and nothing else says why."""
    kit, app = memory_kit, program()
    await cluster.joined(kit, app, cluster.named("willing"))
    client = await kit.process()
    [world] = await cluster.make(client, app, 1)
    at = await world._handle.address()
    worker, incarnation = ids.WorkerId(envs.new_id(kit.env)), ids.Incarnation(envs.new_id(kit.env))
    idle = cluster.named("idle").worker
    labels = placement.labels_of(idle.labels, universes=at.universe.hex(), programs={"p": app.hash})
    await world_lease.beat(client.engine, kit.env, worker, incarnation, idle, labels=labels)
    await operator_calls.assign_world(client.engine, kit.env, at, worker)
    await world.send(Add(1))
    [reason] = [each for each in (await why.why(world._handle)).reasons if each.kind == "assigned"]
    assert reason.what == "it is assigned to worker idle (by hand), and no other takes it"
    assert reason.stuck
    await operator_calls.unassign_world(client.engine, kit.env, at)
    await cluster.tell([world])
    assert not [each for each in (await why.why(world._handle)).reasons if each.kind == "assigned"]


async def test_worlds_of_a_lower_priority_are_taken_first(memory_kit: Kit) -> None:
    kit, app = memory_kit, program()
    host = await cluster.joined(kit, app, cluster.named("a"))
    client = await kit.process()
    made = await cluster.make(client, app, 4)
    addresses = [await world._handle.address() for world in made]
    found: list[tuple[worlds.WorldRecord, leases.LeaseState]] = []
    for at, priority in zip(addresses, (None, 5, 0, 1), strict=True):
        if priority is not None:
            await operator_calls.assign_world(client.engine, kit.env, at, host.host.worker, priority=priority)
        read = await client.engine.read(worlds.get(at), *leases.reads(at))
        found.append((worlds.decode(at, read.value(0)), leases.decode(at, *map(read.value, range(1, 4)))))
    life = host.host.worlds.life
    taken = await world_lease.may_take(client.engine, found, life, death_witness.DeathWitness(kit.env))
    first, second, third, fourth = addresses
    assert taken == [third, first, fourth, second], "one without an assignment is as urgent as the others"


async def test_an_assignment_is_told_as_dead_or_draining(memory_kit: Kit) -> None:
    kit, app = memory_kit, program()
    host = await cluster.joined(kit, app, cluster.named("a"))
    client = await kit.process()
    [world] = await cluster.make(client, app, 1)
    at, store = await world._handle.address(), client.universe._connection.store
    assert await world_holders.assigned(store, at) is None
    await operator_calls.assign_world(client.engine, kit.env, at, host.host.worker, priority=0)
    assert await world_holders.assigned(store, at) == world_holders.Assigned(host.host.worker, "a", "by hand", 0)
    await operator_calls.drain_worker(client.engine, kit.env, host.host.worker, draining=True)

    async def void() -> str:
        found = await world_holders.assigned(store, at)
        assert found is not None
        return found.void

    assert await void() == "is draining"
    await host.host.worlds.close()

    async def dead() -> bool:
        return await void() == "is dead"

    await aio.until(dead)
