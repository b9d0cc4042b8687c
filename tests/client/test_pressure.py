"""Backpressure: outside producers are refused while there is too much to do; what worlds need to get free passes."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.client import backpressure
from worldline.kernel import control_commands, user_values
from worldline.keys import work as keys
from worldline.layers import work as works
from worldline.model import ids, inbox, payload
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.settings import PressureSettings, Settings
from worldline.model.world_records import Status
from worldline.observe import measures, sinks
from worldline.runtime import facts, queue_names
from worldline.store import kv

BOUND = 6
OFF = PressureSettings(inbox_items_max=0, open_effects_max=0, waiting_world_max=0, waiting_max=0)


def settings(**bounds: Any) -> Settings:
    """Patient roles, and these bounds alone; estimates are made anew each time."""
    chosen = {"inbox_items_max": 0, "open_effects_max": 0, "waiting_world_max": 0, "waiting_max": 0, "sample_ms": 0}
    quick = kits.settings(
        worker={"lease_ttl_ms": 10_000, "heartbeat_ms": 2_500}, adapter={"claim_ttl_ms": 15_000, "renew_ms": 5_000}
    )
    return Settings(
        worker=quick.worker, adapter=quick.adapter, timer=quick.timer, pressure=PressureSettings(**{**chosen, **bounds})
    )


@dataclass(frozen=True)
class Note:
    number: int


@dataclass(frozen=True)
class Total(wl.Request[int]):
    pass


class App:
    """Worlds that count notes, pass them on, and wait for an outside that is under the test's control."""

    def __init__(self) -> None:
        self.program = app = wl.Program("p")
        self.gate = asyncio.Event()
        self.started = 0

        @app.reducer()
        @dataclass
        class Notes:
            seen: int = 0

            @wl.on
            def note(self, event: Note) -> None:
                self.seen += 1

            @wl.on
            def total(self, event: Total) -> int:
                return self.seen

        @app.effect(concurrency=1_000)
        async def outside() -> str:
            self.started += 1
            await self.gate.wait()
            return "in"

        @app.workflow
        async def work() -> str:
            return await outside()

        @app.workflow
        async def nap() -> str:
            await wl.sleep(0.5)
            return "up"

        @app.workflow
        async def pass_on(to: str, number: int) -> None:
            await wl.send(to, Note(number))

        self.notes = Notes
        self.work, self.nap, self.pass_on = work, nap, pass_on


async def refused(send: Any) -> wl.Overloaded:
    with pytest.raises(wl.Overloaded) as caught:
        await send
    assert caught.value.retry_after > 0
    assert "try again in" in str(caught.value)
    return caught.value


async def until_refused(send: Any) -> None:
    """Until a producer is refused: one may be let in by an older count, after which effects are counted anew."""
    for _ in range(3):
        try:
            await send()
        except wl.Overloaded:
            return
    pytest.fail("nobody is refused")


async def passes(send: Any) -> None:
    """Until a producer that tries again, as it was told to, is let in."""

    async def tried() -> bool:
        try:
            await send()
        except wl.Overloaded:
            return False
        return True

    await aio.until(tried, seconds=60)


async def test_a_full_inbox_refuses_outside_producers_alone(kit: Kit) -> None:
    app = App()
    host = await kit.process(app.program, settings=settings())
    full = await host.universe.ensure("full", app.program)
    _ = await full.start(app.work(), id="effect")
    await aio.until(lambda: _equal(lambda: app.started, 1))
    timer = await paused_before_its_timer(full, app)
    client = await kit.process(settings=settings(inbox_items_max=BOUND))
    at, world = await full._handle.address(), client.universe.world("full")

    async def unread() -> int:
        return await kits.unread(client.engine, at)

    async def timer_is_in() -> bool:
        return await unread() >= 1

    await aio.until(timer_is_in)
    for number in range(BOUND - await unread()):
        await world.send(Note(number))
    assert await unread() == BOUND
    await refused(world.send(Note(100)))
    await refused(world.ask(Total(), timeout=10))
    await refused(world.start(app.work(), id="another"))
    await refused(world.run(app.work(), timeout=10))
    assert await unread() == BOUND, "nothing of what was refused is in"

    other = await host.universe.ensure("other", app.program)
    await other.run(app.pass_on("full", 1), timeout=30)
    assert await unread() == BOUND + 1, "a message passes"
    app.gate.set()

    async def receipt_is_in() -> bool:
        return await unread() == BOUND + 2

    await aio.until(receipt_is_in)
    cancelling = asyncio.ensure_future(
        world._handle.command(control_commands.CANCEL, control_commands.CancelRun("effect", "no more"))
    )

    async def control_is_in() -> bool:
        return await unread() == BOUND + 3

    await aio.until(control_is_in)
    await full.change(status=Status.ACTIVE)
    await passes(lambda: world.send(Note(101)))
    await asyncio.gather(cancelling, return_exceptions=True)

    async def drained() -> bool:
        return await unread() == 0

    await aio.until(drained)
    assert await timer.result(30) == "up"


async def paused_before_its_timer(world: wl.World, app: App) -> wl.Run[str]:
    """Pause a world that sleeps. If it woke up before it was paused, it sleeps once more."""
    for number in itertools.count():
        run: wl.Run[str] = await world.start(app.nap(), id=f"timer-{number}")
        await world.change(status=Status.PAUSED)
        if (await kits.kinds(world)).count(Kind.TIMER_FIRED) == number:
            return run
        await world.change(status=Status.ACTIVE)
    raise AssertionError("counting does not end")


async def _equal(left: Any, right: Any) -> bool:
    return bool(left() == right)


async def test_a_repeat_is_answered_also_when_the_inbox_is_full(kit: Kit) -> None:
    app = App()
    client = await kit.process(settings=settings(inbox_items_max=BOUND))
    world = await client.universe.ensure("w", app.program)
    for number in range(BOUND):
        await world.send(Note(number), id=f"note-{number}")
    await refused(world.send(Note(100), id="new"))
    await world.send(Note(3), id="note-3")
    assert await kits.unread(client.engine, await world._handle.address()) == BOUND


async def test_bytes_count_too(memory_kit: Kit) -> None:
    app = App()
    client = await memory_kit.process(settings=settings(inbox_items_max=1_000, inbox_bytes_max=30_000))
    world = await client.universe.ensure("w", app.program)

    async def fill() -> None:
        for _ in range(10):
            await world._handle.send("Note", b"\x59\x27\x10" + bytes(10_000))

    await refused(fill())
    assert 3 <= await kits.unread(client.engine, await world._handle.address()) <= 4


async def test_inboxes_are_looked_into_now_and_then_only(memory_kit: Kit) -> None:
    """With a bound of 10,000 a thousand sends cost a read or two more, not a thousand."""
    reads: list[kv.Range] = []

    class Counting:
        def __init__(self, engine: Any) -> None:
            self.engine = engine
            self.commit, self.wait = engine.commit, engine.wait
            self.durability, self.close = engine.durability, engine.close

        async def read(self, *requests: kv.Request) -> kv.ReadResult:
            reads.extend(each for each in requests if isinstance(each, kv.Range))
            found: kv.ReadResult = await self.engine.read(*requests)
            return found

    app = App()
    bounds = settings(inbox_items_max=10_000, open_effects_max=10_000, sample_ms=600_000)
    client = await memory_kit.process(settings=bounds, wrap=Counting)
    world = await client.universe.ensure("w", app.program)
    reads.clear()
    for number in range(1_000):
        await world.send(Note(number))
    assert len(reads) == 3, "the inbox once, the queues of effects once"


async def test_too_many_open_effects_refuse_outside_producers_alone(kit: Kit) -> None:
    app = App()
    meter = measures.Meter()
    observed = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    host = await kit.process(app.program, settings=settings())
    client = await kit.process(settings=settings(open_effects_max=3), observed=observed)
    for name in ("a", "b"):
        await host.universe.ensure(name, app.program)
    a, b = client.universe.world("a"), client.universe.world("b")
    _ = await a.start(app.nap(), id="timers do not count")
    for number in range(3):
        _ = await b.start(app.work(), id=f"work-{number}")
    await aio.until(lambda: _equal(lambda: app.started, 3))
    await until_refused(lambda: a.send(Note(1)))
    await refused(a.send(Note(1)))
    await refused(b.start(app.work(), id="work-3"))
    assert meter.value("worldline_inputs_refused_total", "effects") == 3
    unbounded = host.universe.world("a")
    await unbounded.run(app.pass_on("b", 1), timeout=30)
    assert await b._handle.command(control_commands.CANCEL, control_commands.CancelRun("work-0", "no more")) is not None
    app.gate.set()
    await passes(lambda: a.send(Note(2)))
    assert await (await unbounded.attach("timers do not count")).result(30) == "up"
    await unbounded.ask(Total(), timeout=30)


async def test_a_process_that_hosts_counts_effects_too(kit: Kit) -> None:
    app = App()
    process = await kit.process(app.program, settings=settings(open_effects_max=2))
    world = await process.universe.ensure("w", app.program)
    for number in range(2):
        _ = await world.start(app.work(), id=f"work-{number}")
    await aio.until(lambda: _equal(lambda: app.started, 2))
    await until_refused(lambda: world.send(Note(1)))
    await refused(world.run(app.work(), timeout=10))
    app.gate.set()
    await passes(lambda: world.send(Note(2)))
    assert [await (await world.attach(f"work-{number}")).result(30) for number in range(2)] == ["in", "in"]


async def test_a_process_that_gives_one_input_only_counts_first(kit: Kit) -> None:
    app = App()
    host = await kit.process(app.program, settings=settings())
    world = await host.universe.ensure("w", app.program)
    _ = await world.start(app.work(), id="r")
    await aio.until(lambda: _equal(lambda: app.started, 1))
    client = await kit.process(settings=settings(open_effects_max=1))
    await refused(client.universe.world("w").send(Note(1)))


async def test_inputs_do_not_overtake_each_other_while_effects_are_counted(memory_kit: Kit) -> None:
    app = App()
    process = await memory_kit.process(app.program, settings=settings(open_effects_max=100))
    world = await process.universe.ensure("w", app.program)
    await asyncio.gather(*(world.send(Note(number)) for number in range(50)))
    notes = [kits.item(entry) for entry in await kits.entries(world)]
    numbers = [
        user_values.load(Note, each.payload.inline or b"").number
        for each in notes
        if isinstance(each, inbox.InboxEvent)
    ]
    assert numbers == list(range(50))


async def test_inputs_that_wait_in_a_process_are_bounded(kit: Kit) -> None:
    app = App()
    process = await kit.process(app.program, settings=settings(waiting_world_max=4, waiting_max=6))
    worlds = [await process.universe.ensure(name, app.program) for name in ("a", "b")]
    held = []
    for world in worlds:
        await world.ask(Total(), timeout=30)
        hosted = process.host.worlds.peek(await world._handle.address())
        await hosted.quiet()
        hosted.begin_cycle()  # as while a step takes long
        held.append(hosted)
    first = [asyncio.ensure_future(worlds[0].send(Note(number))) for number in range(4)]
    await aio.until(lambda: _equal(lambda: held[0].waiting, 4))
    assert "for world 'a'" in str(await refused(worlds[0].send(Note(4))))
    second = [asyncio.ensure_future(worlds[1].send(Note(number))) for number in range(2)]
    await aio.until(lambda: _equal(lambda: process.universe._connection.pressure.waiting, 6))
    assert "in this process" in str(await refused(worlds[1].send(Note(2))))
    cancelling = asyncio.ensure_future(
        worlds[0]._handle.command(control_commands.CANCEL, control_commands.CancelRun("r", "no more"))
    )
    await aio.until(lambda: _equal(lambda: process.universe._connection.pressure.waiting, 7))
    for hosted in held:
        hosted.end_cycle()
        process.host.worlds.poke(hosted.at)
    await asyncio.gather(*first, *second)
    await asyncio.gather(cancelling, return_exceptions=True)
    assert process.universe._connection.pressure.waiting == 0, "it clears when it is drained"
    await worlds[0].send(Note(5))
    assert [await world.ask(Total(), timeout=30) for world in worlds] == [5, 2], "the oldest waited, the newest went"


async def test_what_could_not_be_handed_over_does_not_count_for_ever(memory_kit: Kit) -> None:
    app = App()
    process = await memory_kit.process(app.program, settings=settings(waiting_max=10))
    world = await process.universe.ensure("w", app.program)
    await world.ask(Total(), timeout=30)
    hosted = process.host.worlds.peek(await world._handle.address())
    await hosted.quiet()
    hosted.begin_cycle()
    sending = asyncio.ensure_future(world.send(Note(1)))
    await aio.until(lambda: _equal(lambda: process.universe._connection.pressure.waiting, 1))
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    pressure = process.universe._connection.pressure
    assert (pressure.waiting, hosted.waiting) == (0, 0)
    hosted.end_cycle()
    process.host.worlds.poke(hosted.at)
    assert await world.ask(Total(), timeout=30) == 1


async def test_bounds_of_zero_are_none(memory_kit: Kit) -> None:
    app = App()
    client = await memory_kit.process(settings=Settings(pressure=OFF))
    world = await client.universe.ensure("w", app.program)
    for number in range(50):
        await world.send(Note(number))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (inbox.InboxEvent("Note", payload.EMPTY), True),
        (inbox.Control(control_commands.RUN, payload.EMPTY), True),
        (inbox.Control(control_commands.CANCEL, payload.EMPTY), False),
        (inbox.Control(control_commands.SCHEDULE, payload.EMPTY), False),
        (inbox.EffectReceipt(bytes(16), ReceiptStatus.OK, payload.EMPTY, 1), False),
        (inbox.TimerFired(bytes(16), 0), False),
    ],
)
def test_only_what_asks_for_new_work_is_refused(item: inbox.Item, expected: bool) -> None:
    assert backpressure.is_refusable(item) is expected


def test_effects_are_counted_without_timers() -> None:
    universe = ids.UniverseId(bytes(16))
    at = ids.Address(universe, ids.WorldId(bytes(16)))
    ranges = works.effects_ranges(universe, timers=queue_names.TIMER_QUEUE, count_max=10)
    for queue, inside in [
        ("a/default/x", True),
        (queue_names.TIMER_QUEUE, False),
        ("zoo/default/x", True),
        ("worldline/timer", True),
        ("worldline/timersx", True),
    ]:
        key = keys.due_key(at, ids.IntentId(bytes(16)), queue=queue, due_us=5)
        assert sum(each.begin <= key < each.end for each in ranges) == inside, queue
