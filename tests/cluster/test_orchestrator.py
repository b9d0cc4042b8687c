"""Worlds are where they are wanted: spread by hash and load, drained, failed over, pinned. Nothing is lost by it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from tests.kits.sums import Add, program
from worldline.base import errors
from worldline.cluster import orchestrator as orchestrators
from worldline.cluster.orchestrator import Orchestrator
from worldline.layers import leases
from worldline.model import ids
from worldline.model.leases import Epoch, Worker
from worldline.model.settings import OrchestratorSettings, Settings
from worldline.observe import measures, sinks
from worldline.runtime import facts, operator_calls, placement
from worldline.runtime.universes.served_universes import Universes

REAPED = ("worldline_reaped_workers_total", "worldline_reaped_leases_total")
LEASE_TTL_MS = 60_000  # no worker is to be taken for dead because the machine is busy
SHORT_TTL_MS = 3_000  # of those that die: PostgreSQL's clock cannot be moved on


def named(name: str, *, capacity: int = 4_096, ttl_ms: int = LEASE_TTL_MS, **labels: str) -> Settings:
    return kits.settings(
        worker={"labels": {"name": name, **labels}, "max_worlds_warm": capacity, "lease_ttl_ms": ttl_ms}
    )


def orchestrator(process: Process, *, moves_max: int = 1_000, meter: measures.Meter | None = None) -> Orchestrator:
    universe = process.universe
    return Orchestrator(
        universe._connection.store.engine,
        universe._connection.store.env,
        Universes.only(universe._connection.id),
        settings=OrchestratorSettings(turn_ms=20, moves_max=moves_max),
        telemetry=facts.NOTHING if meter is None else facts.Telling([("meter", meter.tell)]),
    )


def counted(meter: measures.Meter, name: str) -> dict[str, float]:
    """A counter by its label."""
    return {labels[0]: value for (each, labels), value in meter.counters.items() if each == name}


async def joined(kit: Kit, app: wl.Program, settings: Settings, *, observed: sinks.Observed | None = None) -> Process:
    """A worker that others can see."""
    process = await kit.process(app, settings=settings, observed=observed)

    async def ready() -> bool:
        return bool(process.host.ready)

    await aio.until(ready)
    return process


async def make(client: Process, app: wl.Program, count: int, **labels: str) -> list[wl.World]:
    return [await client.universe.create(f"w{number}", app, labels=dict(labels)) for number in range(count)]


async def tell(worlds: list[wl.World], number: int = 1) -> None:
    """An event for each, and wait until all have it."""
    for world in worlds:
        sent = await world.send(Add(number))
        await sent.applied(30)


async def state(process: Process, world: wl.World) -> leases.LeaseState:
    at = await world._handle.address()
    read = await process.engine.read(*leases.reads(at))
    return leases.decode(at, read.value(0), read.value(1), read.value(2))


async def holders(process: Process, worlds: list[wl.World]) -> list[ids.WorkerId | None]:
    found = [(await state(process, world)).holder for world in worlds]
    return [None if holder is None else ids.WorkerId(holder.worker) for holder in found]


async def assignees(process: Process, worlds: list[wl.World]) -> list[ids.WorkerId | None]:
    found = [(await state(process, world)).assignment for world in worlds]
    return [None if each is None else ids.WorkerId(each.worker) for each in found]


async def settle(each: Orchestrator, process: Process, worlds: list[wl.World]) -> list[ids.WorkerId | None]:
    """Turns until there is nothing to choose, and whoever has a world is the one that it is assigned to."""

    async def settled() -> bool:
        if await each.turn():
            return False
        held, wanted = await holders(process, worlds), await assignees(process, worlds)
        return all(one in (None, to) for one, to in zip(held, wanted, strict=True))

    await aio.until(settled, seconds=60)
    return await assignees(process, worlds)


async def totals(worlds: list[wl.World], app: wl.Program) -> list[int]:
    return [(await world.state(app.reducers["Sum"].cls)).total for world in worlds]


# --- Spreading -------------------------------------------------------------------------------------------------


async def test_worlds_are_spread_and_keep_their_place(kit: Kit) -> None:
    app = program()
    first = await joined(kit, app, named("a"))
    client = await kit.process()
    worlds = await make(client, app, 12)
    await tell(worlds)
    assert await holders(client, worlds) == [first.host.worker] * 12
    meter = measures.Meter()
    placing = orchestrator(client, meter=meter)
    assert await settle(placing, client, worlds) == [first.host.worker] * 12
    second = await joined(kit, app, named("b"))
    spread = await settle(placing, client, worlds)
    old, new = first.host.worker, second.host.worker
    addresses = [await world._handle.address() for world in worlds]
    won = [at for at in addresses if placement.score(new, at.world) > placement.score(old, at.world)]
    moved = [at for at, where in zip(addresses, spread, strict=True) if where == new]
    assert all(at in won for at in moved), "nothing moves but to the winner"
    assert len(moved) == min(len(won), 6), "and only as long as the other has clearly more"
    assert counted(meter, "worldline_placements_total") == {"held": 12, **({"balance": len(moved)} if moved else {})}
    assert counted(meter, "worldline_moves_total") == ({"balance": len(moved)} if moved else {})
    assert meter.value("worldline_orchestrator_turn_seconds") == placing.turns > 0
    await tell(worlds)
    assert await holders(client, worlds) == spread, "the next input finds them where they are wanted"
    assert await totals(worlds, app) == [2] * 12
    assert await placing.turn() == []


async def test_a_worker_that_joins_is_given_so_many_a_turn(memory_kit: Kit) -> None:
    app = program()
    await joined(memory_kit, app, named("a"))
    client = await memory_kit.process()
    worlds = await make(client, app, 20)
    await tell(worlds)
    placing = orchestrator(client, moves_max=2)
    while await placing.turn():
        pass
    joining = await joined(memory_kit, app, named("b"))
    old = (await holders(client, worlds))[0]
    assert old is not None
    ids_of = [(await world._handle.address()).world for world in worlds]
    won = [world for world in ids_of if placement.score(joining.host.worker, world) > placement.score(old, world)]
    choices = await placing.turn()
    assert [choice.reason for choice in choices] == ["balance"] * min(2, len(won))


async def test_several_orchestrators_need_no_leader(kit: Kit) -> None:
    app = program()
    await joined(kit, app, named("a"))
    await joined(kit, app, named("b"))
    client = await kit.process()
    worlds = await make(client, app, 8)
    await tell(worlds)
    several = [orchestrator(await kit.process()) for _ in range(3)]
    for _ in range(5):
        await asyncio.gather(*(each.turn() for each in several))
    await settle(several[0], client, worlds)
    assert sum(each.assigned for each in several) >= 8
    for each in several:
        assert await each.turn() == []
    await tell(worlds)
    assert await totals(worlds, app) == [2] * 8


async def test_a_turn_looks_at_so_many_and_the_next_goes_on(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrators, "LOOK_MAX", 3)
    app = program()
    first = await joined(memory_kit, app, named("a"))
    client = await memory_kit.process()
    worlds = await make(client, app, 8)
    await tell(worlds)

    async def clear() -> bool:  # a world with a hint is looked at in any case
        return not any([await kits.hints(client.engine, await world._handle.address()) for world in worlds])

    await aio.until(clear)
    placing = orchestrator(client)
    assert [len(await placing.turn()) for _ in range(4)] == [3, 3, 2, 0]
    assert await assignees(client, worlds) == [first.host.worker] * 8
    held = {first.host.worker: [await world._handle.address() for world in worlds]}
    assert len(placing._urgent(held, [])) == 8, "those of a worker that does not stand are all looked at"
    assert placing._urgent(held, [placement.Site(first.host.worker, 1, {})]) == []


# --- Draining --------------------------------------------------------------------------------------------------


async def test_a_drained_worker_gives_its_worlds_to_the_others(kit: Kit) -> None:
    app = program()
    first = await joined(kit, app, named("a"))
    client = await kit.process()
    worlds = await make(client, app, 6)
    await tell(worlds)
    second = await joined(kit, app, named("b"))
    await operator_calls.drain_worker(client.engine, kit.env, first.host.worker, draining=True)
    meter = measures.Meter()
    placing = orchestrator(client, meter=meter)
    assert await settle(placing, client, worlds) == [second.host.worker] * 6
    assert set(counted(meter, "worldline_moves_total")) <= {"drain"}, "the worker may have been quicker itself"

    async def empty() -> bool:
        return await operator_calls.list_worker_worlds(client.engine, first.host.worker) == []

    await aio.until(empty)
    await tell(worlds)
    assert await holders(client, worlds) == [second.host.worker] * 6
    assert await totals(worlds, app) == [2] * 6
    assert await first.host.worlds.hold(await worlds[0]._handle.address()) is None
    await operator_calls.drain_worker(client.engine, kit.env, first.host.worker, draining=False)
    await operator_calls.drain_worker(client.engine, kit.env, second.host.worker, draining=True)
    await settle(placing, client, worlds)
    await tell(worlds)
    assert await holders(client, worlds) == [first.host.worker] * 6


async def test_draining_needs_no_orchestrator(kit: Kit) -> None:
    """Also with assignments to the drained worker that nobody changes: it does not stand, so they say nothing."""
    app = program()
    first = await joined(kit, app, named("a"))
    client = await kit.process()
    worlds = await make(client, app, 3)
    await tell(worlds)
    for world in worlds:
        await operator_calls.assign_world(client.engine, kit.env, await world._handle.address(), first.host.worker)
    second = await joined(kit, app, named("b"))
    await operator_calls.drain_worker(client.engine, kit.env, first.host.worker, draining=True)

    async def empty() -> bool:
        return await operator_calls.list_worker_worlds(client.engine, first.host.worker) == []

    await aio.until(empty)
    await tell(worlds)
    assert await holders(client, worlds) == [second.host.worker] * 3
    assert await totals(worlds, app) == [2] * 3
    [life] = [each for each in await operator_calls.list_workers(client.engine) if each.worker == first.host.worker]
    assert life.sign.draining, "its own heartbeats leave that alone"


# --- Failing over ----------------------------------------------------------------------------------------------


async def test_the_worlds_of_a_dead_worker_are_given_to_a_living_one(kit: Kit) -> None:
    app = program()
    first = await joined(kit, app, named("a", ttl_ms=SHORT_TTL_MS))
    client = await kit.process()
    worlds = await make(client, app, 4)
    await tell(worlds)
    reaping, taking = measures.Meter(), measures.Meter()
    placing = orchestrator(client, meter=reaping)
    await settle(placing, client, worlds)
    epochs = [(await state(client, world)).epoch.number for world in worlds]
    watched = sinks.Observed(facts.Telling([("meter", taking.tell)]))
    second = await joined(kit, app, named("b"), observed=watched)
    await first.kill()
    await kit.jump(1.1 * SHORT_TTL_MS / 1000)

    async def failed_over() -> bool:
        await placing.turn()
        return first.host.worker not in [each.worker for each in await operator_calls.list_workers(client.engine)]

    await aio.until(failed_over)
    await tell(worlds)
    assert await holders(client, worlds) == [second.host.worker] * 4
    assert [(await state(client, world)).epoch.number for world in worlds] == [epoch + 1 for epoch in epochs]
    assert await totals(worlds, app) == [2] * 4
    assert taking.value("worldline_failovers_total") == taking.value("worldline_leases_acquired_total") == 4
    workers, ended = [sum(meter.value(name) for meter in (reaping, taking)) for name in REAPED]
    assert ended <= 4, "each once at most: one that is taken over first has no lease of the dead worker to end"
    assert workers in (1, 2), "after the clock's jump the other may look dead too, until its next heartbeat"


@pytest.mark.parametrize(
    ("reason", "draining", "alive", "why"),
    [
        ("balance", False, True, "balance"),
        ("moved", True, True, "drain"),
        ("moved", False, False, "failover"),
        ("nowhere to go", True, False, "failover"),
        ("moved", False, True, "needs"),
    ],
)
def test_a_move_has_a_reason(reason: placement.Reason, draining: bool, alive: bool, why: str) -> None:
    at = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(16)))
    holder, other = ids.WorkerId(b"h" * 16), ids.WorkerId(b"o" * 16)
    lives = [
        leases.HeartbeatRecord(worker, Worker(bytes(16), 1, 0, 1, 1, {}, is_draining), b"")
        for worker, is_draining in ((other, not draining), (holder, draining))
    ]
    seen = orchestrators.WorldView(
        placement.Active(at, {}, holder, None), leases.LeaseState(at, Epoch(1, b""), b"", None, None, None, None)
    )
    choice = placement.Choice(at, other, reason)
    assert orchestrators._why_moved(choice, seen, lives if alive else lives[:1]) == why


# --- Assignments and pins --------------------------------------------------------------------------------------


async def test_a_world_assigned_to_another_is_not_taken_as_long_as_that_one_stands(kit: Kit) -> None:
    app = program()
    first = await joined(kit, app, named("a"))
    second = await joined(kit, app, named("b", ttl_ms=SHORT_TTL_MS))
    client = await kit.process()
    [world] = await make(client, app, 1)
    at = await world._handle.address()
    await operator_calls.assign_world(client.engine, kit.env, at, second.host.worker)
    assert await first.host.worlds.hold(at) is None
    await tell([world])
    assert await holders(client, [world]) == [second.host.worker]
    await operator_calls.assign_world(client.engine, kit.env, at, first.host.worker)

    async def moved() -> bool:
        return await holders(client, [world]) == [first.host.worker]

    await aio.until(moved)
    await tell([world])
    await operator_calls.assign_world(client.engine, kit.env, at, second.host.worker)
    await second.kill()
    await kit.jump(1.1 * SHORT_TTL_MS / 1000)
    await tell([world])
    assert await holders(client, [world]) == [first.host.worker], "the dead cannot claim anything"
    with pytest.raises(errors.NotFound):
        await operator_calls.assign_world(client.engine, kit.env, at, second.host.worker)
    assert await totals([world], app) == [3]


async def test_pins_and_needs_hold_without_anybody_who_places(memory_kit: Kit) -> None:
    kit, app = memory_kit, program()
    first = await joined(kit, app, named("a", zone="eu"))
    client = await kit.process()
    pinned = await client.universe.create("pinned", app, labels={"pin": "b"})
    far = await client.universe.create("far", app, labels={"needs:zone": "us"})
    free = await client.universe.create("free", app)
    for world in (pinned, far):
        await world.send(Add(1))
        assert await first.host.worlds.hold(await world._handle.address()) is None
    await tell([free])
    assert await holders(client, [pinned, far]) == [None, None]
    second = await joined(kit, app, named("b", zone="us"))
    await tell([pinned, far])
    assert await holders(client, [pinned, far, free]) == [second.host.worker, second.host.worker, first.host.worker]
    assert await totals([pinned, far, free], app) == [2, 2, 1]


async def test_a_pin_that_changes_moves_the_world(kit: Kit) -> None:
    app = program()
    first = await joined(kit, app, named("a"))
    client = await kit.process()
    worlds = await make(client, app, 2, pin="a")
    await tell(worlds)
    second = await joined(kit, app, named("b"))
    placing = orchestrator(client)
    assert await settle(placing, client, worlds) == [first.host.worker] * 2
    await worlds[0].change(labels={"pin": "b"})
    assert await settle(placing, client, worlds) == [second.host.worker, first.host.worker]
    await tell(worlds)
    assert await holders(client, worlds) == [second.host.worker, first.host.worker]


async def test_workers_of_other_programs_are_given_nothing(memory_kit: Kit) -> None:
    kit, app = memory_kit, program()
    first = await joined(kit, app, named("a"))
    await joined(kit, program("other"), named("b"))
    client = await kit.process()
    worlds = await make(client, app, 10)
    await tell(worlds)
    assert await settle(orchestrator(client), client, worlds) == [first.host.worker] * 10


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("how", ["assigned", "pinned"])
async def test_a_world_that_was_thrown_out_of_memory_is_not_kept_from_others(
    memory_kit: Kit, how: str, again: bool
) -> None:
    """Its step failed, and the lease is still there; meanwhile it is wanted elsewhere. Found by simulation."""
    kit, app = memory_kit, program()
    first = await joined(kit, app, named("a"))
    client = await kit.process()
    [world] = await make(client, app, 1)
    at = await world._handle.address()
    await tell([world])
    second = await joined(kit, app, named("b"))
    worker: Any = first.host.worlds
    if how == "pinned":
        await world.change(labels={"pin": "b"})
    worker._holdings.drop(worker.peek(at), again=again)
    if how == "assigned":
        await operator_calls.assign_world(client.engine, kit.env, at, second.host.worker)
    await tell([world])  # it may be the first once more that takes this

    async def moved() -> bool:
        return await holders(client, [world]) == [second.host.worker]

    await aio.until(moved)
    assert await totals([world], app) == [2]


# --- Capacity --------------------------------------------------------------------------------------------------


async def test_a_worker_holds_no_more_than_it_can(kit: Kit) -> None:
    """One that is full lets go of idle worlds before it takes another; all get their turn."""
    app = program()
    process = await joined(kit, app, named("a", capacity=3))
    most = _watch_held(process)
    client = await kit.process()
    worlds = await make(client, app, 9)
    for world in worlds:
        await world.send(Add(1))

    async def done() -> bool:
        return await totals(worlds, app) == [1] * 9

    await aio.until(done, seconds=60)
    assert max(most) <= 3


def _watch_held(process: Process) -> list[int]:
    """How many worlds a worker held after each that it took."""
    worker: Any = process.host.worlds
    seen: list[int] = [0]
    worker._holdings.on_taken.append(lambda _: seen.append(len(worker.held)))
    return seen


async def test_capacity_is_what_is_placed_by(memory_kit: Kit) -> None:
    kit, app = memory_kit, program()
    client = await kit.process()
    worlds = await make(client, app, 10)
    for world in worlds:
        await world.send(Add(1))
    first = await joined(kit, app, named("a", capacity=4))
    second = await joined(kit, app, named("b", capacity=100))

    async def done() -> bool:
        return await totals(worlds, app) == [1] * 10

    await aio.until(done)
    spread = Counter(await settle(orchestrator(client), client, worlds))
    assert spread[first.host.worker] <= 4
    assert sum(spread[each.host.worker] for each in (first, second)) <= 10


# --- The loop --------------------------------------------------------------------------------------------------


async def test_a_turn_after_another_until_it_is_closed(memory_kit: Kit) -> None:
    app = program()
    process = await joined(memory_kit, app, named("a"))
    client = await memory_kit.process()
    worlds = await make(client, app, 1)
    await tell(worlds)
    placing = orchestrator(client)
    await placing.tick()
    assert (placing.turns, placing.assigned, placing.moved) == (1, 1, 0)
    assert await assignees(client, worlds) == [process.host.worker]
    placing.wake()
    await placing.tick()
    assert (placing.turns, placing.assigned) == (2, 1)
    await placing.close()
