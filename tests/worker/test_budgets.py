"""Budgets end a cycle early and change nothing else; what does not fit into a commit stops one world at most."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.crashing import Counting
from tests.kits.kit import Kit
from worldline.api.universe_api import Universe
from worldline.base import errors, limits
from worldline.kernel import user_values
from worldline.keys import journal as journal_keys
from worldline.layers import inbox as inboxes
from worldline.layers import ready
from worldline.model import ids, inbox, payload
from worldline.store import kv, transact


@dataclass(frozen=True)
class Put:
    number: int
    text: str = ""


@dataclass(frozen=True)
class Slow:
    milliseconds: int


@dataclass(frozen=True)
class Burst:
    count: int
    text: str


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Log:
        numbers: list[int] = field(default_factory=list)  # the last hundred and fifty
        count: int = 0
        size: int = 0
        ordered: bool = True

        @wl.on
        def put(self, event: Put) -> None:
            self.ordered = self.ordered and event.number == self.count
            self.numbers = [*self.numbers[-150:], event.number]
            self.count += 1
            self.size += len(event.text)

        @wl.on
        def slow(self, event: Slow) -> None:
            time.sleep(event.milliseconds / 1000)

    @app.reducer()
    @dataclass
    class Bursts:
        count: int = 0

        @wl.on
        def burst(self, event: Burst) -> None:
            self.count += event.count
            for number in range(event.count):
                wl.emit(Put(number, event.text))

    return app


async def numbers(world: wl.World, app: wl.Program) -> list[int]:
    found: list[int] = (await world.state(app.reducers["Log"].cls)).numbers
    return found


async def fill(universe: Universe, at: ids.Address, events: list[Any], *, hinted: bool = True) -> None:
    """Put events straight into an inbox, in order, a batch of them in each commit."""
    engine = universe._connection.store.engine
    time_us = (await engine.read()).time_us
    for start in range(0, len(events), 200):
        batch = kv.Batch()
        for number, event in enumerate(events[start : start + 200], start):
            item = inbox.InboxEvent(user_values.schema_name(type(event)), payload.inline(user_values.dump(event)))
            inboxes.enqueue(batch, at, item, client_id=f"fill-{number}", time_us=time_us, window_us=10**12)
        if hinted:
            hint(batch, at)
        [outcome] = await transact.commit(engine, universe._connection.store.env, batch)
        assert isinstance(outcome, kv.Ok)


def hint(batch: kv.Batch, at: ids.Address) -> None:
    ready.leave(batch, at, priority=ready.NORMAL)


async def drained(universe: Universe, at: ids.Address) -> None:
    async def empty() -> bool:
        return await kits.unread(universe._connection.store.engine, at) == 0

    await aio.until(empty, seconds=60)


async def test_a_long_inbox_drains_in_order(kit: Kit) -> None:
    """Five thousand items that came while nobody was there."""
    app = program()
    async with kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        await fill(client, at, [Put(number) for number in range(5_000)])
    async with kit.hosting(app) as universe:
        await drained(universe, at)
        log = await universe.world("w").state(app.reducers["Log"].cls)
        assert (log.count, log.ordered) == (5_000, True)
        assert (await universe.world("w").head()).step == 5_000
        assert not await kits.hints(universe._connection.store.engine, at) or await gone(universe, at)


async def gone(universe: Universe, at: ids.Address) -> bool:
    async def cleared() -> bool:
        return not await kits.hints(universe._connection.store.engine, at)

    await aio.until(cleared)
    return True


@pytest.mark.parametrize(
    "budget",
    [
        {"max_inbox_batch": 1},
        {"max_inbox_batch": 7},
        {"max_tick_steps_per_cycle": 1},
        {"max_tick_steps_per_cycle": 3},
        {"max_cycle_wall_ms": 0},
        {"max_worlds_per_cycle": 1},
    ],
    ids=lambda budget: "-".join(f"{name}-{value}" for name, value in budget.items()),
)
async def test_a_small_budget_changes_nothing_but_the_number_of_cycles(memory_kit: Kit, budget: dict[str, int]) -> None:
    """The same inputs, by inbox and by hand-over, under the defaults and under a tight budget."""
    ends = []
    cycles = []
    for name, settings in (("wide", kits.SETTINGS), ("tight", kits.settings(worker=budget))):
        app = program()
        process = await memory_kit.process(app, settings=settings)
        worlds = [await process.universe.ensure(f"{name}-{number}", app) for number in range(2)]
        for world in worlds:
            await fill(process.universe, await world._handle.address(), [Put(number) for number in range(40)])
            await drained(process.universe, await world._handle.address())
            await asyncio.gather(*(world.send(Put(number)) for number in range(40, 80)))
        for world in worlds:
            assert await numbers(world, app) == list(range(80))
        ends.append([(await world.head()).state for world in worlds])
        cycles.append(process.host.worlds.cycles)
        for world in worlds:
            await kits.prove(world, app)
        await process.close()
    assert ends[0] == ends[1]
    assert cycles[1] > cycles[0] * 2 or "max_worlds_per_cycle" in budget


async def test_effects_beyond_the_budget_leave_with_the_next_cycle(memory_kit: Kit) -> None:
    app = wl.Program("p")

    @app.effect
    async def touch(number: int) -> int:
        return number

    @app.workflow
    async def go() -> int:
        return len(await wl.gather(*(touch(number) for number in range(300))))

    process = await memory_kit.process(app, settings=kits.settings(worker={"max_effects_per_cycle": 64}))
    world = await process.universe.ensure("w", app)
    assert await world.run(go(), timeout=30) == 300
    await kits.prove(world, app)
    await process.close()


async def test_a_slow_world_does_not_keep_others_from_their_turn(memory_kit: Kit) -> None:
    app = program()
    process = await memory_kit.process(app, settings=kits.settings(worker={"max_cycle_wall_ms": 20}))
    slow = await process.universe.ensure("slow", app)
    quick = await process.universe.ensure("quick", app)
    at = await slow._handle.address()
    await fill(process.universe, at, [Slow(10) for _ in range(100)])

    async def begun() -> bool:
        return await kits.unread(process.engine, at) < 100

    await aio.until(begun)
    for number in range(3):
        await quick.send(Put(number))
    assert await kits.unread(process.engine, at) > 10, "a second of work, and it was not waited for"
    assert await numbers(quick, app) == [0, 1, 2]
    await drained(process.universe, at)
    await process.close()


async def test_no_ready_world_waits_for_more_than_one_turn_of_each_other(memory_kit: Kit) -> None:
    """Starvation, as a bound: one world and one input in each cycle, and every world always has more."""
    app = program()
    settings = kits.settings(worker={"max_worlds_per_cycle": 1, "max_inbox_batch": 1, "max_tick_steps_per_cycle": 1})
    client = (await memory_kit.process()).universe
    worlds = [await client.ensure(f"w{number}", app) for number in range(4)]
    places = [await world._handle.address() for world in worlds]
    for at in places:
        await fill(client, at, [Put(number) for number in range(15)])
    process = await memory_kit.process(app, settings=settings)
    chosen: list[ids.Address] = []
    choose = process.host.worlds._holdings.choose

    def watched(most: int) -> list[Any]:
        found: list[Any] = choose(most)
        chosen.extend(held.at for held in found if held.unread)
        return found

    process.host.worlds._holdings.choose = watched
    for at in places:
        await drained(process.universe, at)
    await process.close()
    begun = max(chosen.index(at) for at in places)  # all of them are held from here on
    turns = chosen[begun : len(chosen) - len(places)]
    assert len(turns) > 40
    windows = [turns[start : start + 5] for start in range(len(turns) - 4)]
    assert all(set(window) == set(places) for window in windows), "a turn of each other, and then its own"


async def test_a_cycle_stays_within_a_batch(kit: Kit) -> None:
    """Two hundred items of fifteen kilobytes, read at once: cut into commits that fit."""
    app = program()
    made: list[Counting] = []

    def wrap(engine: Any) -> Counting:
        made.append(Counting(engine))
        return made[-1]

    process = await kit.process(app, wrap=wrap)
    world = await process.universe.ensure("w", app)
    at = await world._handle.address()
    await fill(process.universe, at, [Put(number, "x" * 15_000) for number in range(200)])
    await drained(process.universe, at)
    assert (await world.state(app.reducers["Log"].cls)).ordered
    steps = [batch for batch in made[0].batches if journal_keys.head_key(at) in batch.puts]
    assert 2 < len(steps) < 50
    assert max(kv.check(batch) for batch in steps) < limits.BATCH_BYTES_MAX
    await process.close()


async def test_a_step_at_its_limits_fits(kit: Kit) -> None:
    """As many effects as a step may ask for, each with the largest parameters that travel along."""
    app = program()

    @app.effect
    async def measure(text: str) -> int:
        return len(text)

    @app.workflow
    async def go(count: int, size: int) -> int:
        return sum(await wl.gather(*(measure("x" * size) for _ in range(count))))

    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        size = limits.INLINE_BYTES_MAX - 100
        assert await world.run(go(limits.STEP_EFFECTS_MAX, size), timeout=60) == limits.STEP_EFFECTS_MAX * size
        await (await world.send(Burst(250, "x" * 900))).applied()
        state = await world.state(app.reducers["Log"].cls)
        assert (state.count, state.size) == (250, 225_000)
        await kits.prove(world, app)


async def test_ten_thousand_effects_in_one_gather(memory_kit: Kit) -> None:
    app = wl.Program("p")

    @app.effect
    async def touch(number: int) -> int:
        return number

    @app.workflow
    async def go() -> int:
        return sum(await wl.gather(*(touch(number) for number in range(10_000))))

    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    started = time.monotonic()
    assert await world.run(go(), timeout=100) == sum(range(10_000))
    assert time.monotonic() - started < 60
    assert await kits.opened(process.engine, await world._handle.address()) == []
    await process.close()


async def test_steps_that_do_not_fit_together_are_taken_one_by_one(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the estimate says, the store has the last word; nothing is lost, and nobody else notices."""
    app = program()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    other = await process.universe.ensure("other", app)
    at = await world._handle.address()
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 40_000)
    await asyncio.gather(
        *(world.send(Put(number, "x" * 5_000)) for number in range(30)),
        *(other.send(Put(number)) for number in range(9)),
    )
    assert sorted(await numbers(world, app)) == list(range(30))
    assert await numbers(other, app) == list(range(9))
    await fill(process.universe, at, [Put(100 + number, "x" * 100) for number in range(30)])
    await drained(process.universe, at)
    assert (await numbers(world, app))[30:] == list(range(100, 130))
    assert process.host.worlds.refusal(at) is None
    await process.close()


async def test_a_single_step_that_does_not_fit_stops_its_world_alone(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = program()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    other = await process.universe.ensure("other", app)
    at = await world._handle.address()
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 20_000)
    with pytest.raises(errors.TooLarge):
        await world.send(Burst(20, "x" * 2_000))
    await world.send(Put(1))
    await fill(process.universe, at, [Burst(20, "x" * 2_000), Put(2)])

    async def refused() -> bool:
        return process.host.worlds.refusal(at) is not None

    await aio.until(refused)
    assert "cannot be stored" in (process.host.worlds.refusal(at) or "")
    await other.send(Put(1))
    assert await numbers(other, app) == [1]
    monkeypatch.undo()
    await process.close()
    async with memory_kit.hosting(app) as universe:  # nothing is lost: with room, it goes on where it stopped
        await drained(universe, at)
        assert (await numbers(universe.world("w"), app))[-1] == 2


async def test_an_item_whose_payload_is_gone_is_a_dead_letter(kit: Kit) -> None:
    """It would be tried for ever otherwise, and every world of its cycle with it."""
    app = program()
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        at, engine = await world._handle.address(), universe._connection.store.engine
        batch = kv.Batch()
        missing = payload.Payload(size=20_000, ref=bytes(32))
        time_us = (await engine.read()).time_us
        inboxes.enqueue(batch, at, inbox.InboxEvent("Put", missing), client_id="x", time_us=time_us, window_us=10**12)
        hint(batch, at)
        assert isinstance((await transact.commit(engine, kit.env, batch))[0], kv.Ok)
        await drained(universe, at)
        [letter] = await kits.dead(engine, at)
        assert "payload" in letter.dead.reason
        await world.send(Put(1))
        assert await numbers(world, app) == [1]
        await kits.prove(world, app)
