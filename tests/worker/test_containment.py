"""Whatever goes wrong with one world is that world's concern alone: no exception out of it ends a role, and the others
of its worker go on in the same cycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.base import errors
from worldline.client import send_door
from worldline.kernel import control_commands, user_values
from worldline.kernel import state_rows as kernel_snapshots
from worldline.kernel import step as kernel_step
from worldline.kernel.machine import Machine
from worldline.kernel.parts import StepParts
from worldline.model import ids, inbox, payload, step_records
from worldline.model.change import Row
from worldline.model.world_records import Status
from worldline.observe import measures, sinks
from worldline.runtime import facts, world_holders, world_restore
from worldline.worker import step_contents, step_losses, world_refusals
from worldline.worker.waiting_input import WaitingInput


@dataclass(frozen=True)
class Add(wl.Request[int]):
    number: int


@dataclass(frozen=True)
class Poison:
    pass


def program(factor: int = 1) -> wl.Program:
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Sums:
        total: int = 0
        poisons: int = 0

        @wl.on
        def add(self, event: Add) -> int:
            self.total += event.number * factor
            return self.total

        @wl.on
        def poison(self, event: Poison) -> None:
            self.poisons += 1

    return app


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


ESCAPES: list[Callable[[], BaseException]] = [
    lambda: AssertionError("this cannot be"),
    lambda: errors.EncodeError("no form"),
    lambda: RecursionError("too deep"),
    lambda: SystemExit(3),
    lambda: KeyboardInterrupt(),
    lambda: GeneratorExit(),
    lambda: asyncio.CancelledError(),
    lambda: StopIteration(1),
    lambda: BaseException("anything"),
    lambda: BaseExceptionGroup("several", [SystemExit(1)]),
    lambda: Unspeakable(),
    lambda: ValueError("\udcff"),
    lambda: errors.NotFound("nothing there"),
]

every_escape = pytest.mark.parametrize("escape", ESCAPES, ids=lambda make: type(make()).__name__)
some_escapes = pytest.mark.parametrize(
    "escape", [ESCAPES[0], ESCAPES[3], ESCAPES[6], ESCAPES[7], ESCAPES[10]], ids=lambda make: type(make()).__name__
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first pause that a test can wait for."""
    quickly(monkeypatch, 300)


def quickly(monkeypatch: pytest.MonkeyPatch, first_ms: int) -> None:
    """What is refused is tried again after so long, then after twice as long, and so on."""
    monkeypatch.setattr(world_refusals, "PAUSE_FIRST_MS", first_ms)


def is_poison(item: inbox.Item | None) -> bool:
    return isinstance(item, inbox.InboxEvent) and item.schema == "Poison"


def broken_step(monkeypatch: pytest.MonkeyPatch, escape: Callable[[], BaseException]) -> None:
    """The kernel itself breaks on one kind of input."""
    whole = kernel_step.step

    def broken(
        machine: Machine, given: step_records.Input, context: step_records.StepContext, parts: StepParts
    ) -> step_records.Stepped:
        if is_poison(given.item):
            raise escape()
        return whole(machine, given, context, parts)

    monkeypatch.setattr(kernel_step, "step", broken)


def event(name: str, value: Any) -> inbox.InboxEvent:
    return inbox.InboxEvent(name, payload.inline(user_values.dump(value)))


def metered() -> tuple[measures.Meter, sinks.Observed]:
    meter = measures.Meter()
    return meter, sinks.Observed(facts.Telling([("meter", meter.tell)]))


async def until_refused(process: Process, at: ids.Address) -> str:
    async def refused() -> bool:
        return process.host.worlds.refusal(at) is not None

    await aio.until(refused)
    why = process.host.worlds.refusal(at)
    assert isinstance(why, str)
    return why


async def well(process: Process, *worlds: wl.World) -> None:
    """These worlds answer, and no role has ended."""
    for world in worlds:
        assert await world.ask(Add(0), timeout=10) >= 0
    assert process.host.failed is None


async def test_what_is_logged_of_an_exception_can_be_written_anywhere(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own text may have no bytes; where it was raised is said all the same."""
    app = program()
    process = await memory_kit.process(app)
    bad = await process.universe.ensure("w", app)
    broken_step(monkeypatch, lambda: ValueError("\udcff"))
    at = await bad._handle.address()
    await send_door.enqueue(process.universe._connection, at, event("Poison", Poison()))
    await until_refused(process, at)
    assert "in broken" in caplog.text.encode().decode()
    assert "\\udcff" in caplog.text


@every_escape
async def test_a_step_that_breaks_on_an_input_from_the_inbox_stops_its_world_alone(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, escape: Callable[[], BaseException]
) -> None:
    app = program()
    meter, observed = metered()
    process = await memory_kit.process(app, observed=observed)
    bad, *others = [await process.universe.ensure(f"w{number}", app) for number in range(4)]
    await well(process, bad, *others)
    broken_step(monkeypatch, escape)
    at = await bad._handle.address()
    for item in (event("Add", Add(1)), event("Poison", Poison()), event("Add", Add(2))):
        await send_door.enqueue(process.universe._connection, at, item)
    assert "cannot be made" in await until_refused(process, at)
    await well(process, *others)
    assert meter.value("worldline_worlds_refused_total", "step") >= 1
    assert await kits.unread(process.engine, at) == 2, "what was before it is taken; it and what follows wait"
    monkeypatch.undo()

    async def taken() -> bool:
        return await kits.unread(process.engine, at) == 0

    await aio.until(taken)  # with code that works, it goes on by itself
    assert await bad.ask(Add(0), timeout=10) == 3
    assert process.host.worlds.refusal(at) is None
    await process.close()


@some_escapes
async def test_an_input_that_was_handed_over_comes_back_to_its_producer_alone(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, escape: Callable[[], BaseException]
) -> None:
    app = program()
    process = await memory_kit.process(app)
    bad, other = await process.universe.ensure("bad", app), await process.universe.ensure("other", app)
    await well(process, bad, other)
    broken_step(monkeypatch, escape)
    results = await asyncio.gather(
        bad.ask(Add(1), timeout=20),
        bad.send(Poison()),
        bad.ask(Add(1), timeout=20),
        other.ask(Add(5), timeout=20),
        return_exceptions=True,
    )
    assert sorted([results[0], results[2]]) == [1, 2]  # type: ignore[type-var]
    assert isinstance(results[1], errors.StepFailed | errors.BadInput)
    assert results[3] == 5
    assert process.host.worlds.refusal(await bad._handle.address()) is None, "it goes on without the input"
    await well(process, bad, other)
    monkeypatch.undo()
    await process.close()


async def test_the_others_of_a_cycle_are_committed_with_it(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cycle over twenty worlds, one of which breaks: the others need no second."""
    app = program()
    process = await memory_kit.process(app)
    worlds = [await process.universe.ensure(f"w{number}", app) for number in range(20)]
    await well(process, *worlds)
    broken_step(monkeypatch, lambda: AssertionError("this cannot be"))
    worker = process.host.worlds
    held = [worker.peek(await world._handle.address()) for world in worlds]
    for number, hosted in enumerate(held):
        hosted.begin_cycle()
        item = event("Poison", Poison()) if number == 7 else event("Add", Add(1))
        hosted.handed.append(WaitingInput(item, user_values.dump(Poison() if number == 7 else Add(1))))
    heights = [hosted.head.height for hosted in held]
    await worker._runner.run(held)
    moved = [hosted.head.height > height for hosted, height in zip(held, heights, strict=True)]
    assert moved == [number != 7 for number in range(20)]
    monkeypatch.undo()
    await process.close()


@pytest.mark.parametrize("error", [AssertionError("no batch"), MemoryError(), errors.EncodeError("no form")], ids=repr)
async def test_a_batch_that_cannot_be_built_stops_its_world_alone(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    app = program()
    process = await memory_kit.process(app)
    bad, other = await process.universe.ensure("bad", app), await process.universe.ensure("other", app)
    await well(process, bad, other)
    at = await bad._handle.address()
    whole = step_contents.build

    def broken(hosted: Any, *args: Any, **options: Any) -> step_contents.Built:
        if hosted.at == at:
            raise error
        return whole(hosted, *args, **options)

    monkeypatch.setattr(step_contents, "build", broken)
    await send_door.enqueue(process.universe._connection, at, event("Add", Add(1)))
    await until_refused(process, at)
    await well(process, other)
    monkeypatch.undo()
    assert await bad.ask(Add(0), timeout=20) == 1
    await process.close()


async def test_what_fails_after_the_commit_is_made_good_by_a_restore(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = program()
    meter, observed = metered()
    process = await memory_kit.process(app, observed=observed)
    bad, other = await process.universe.ensure("bad", app), await process.universe.ensure("other", app)
    await well(process, bad, other)
    at = await bad._handle.address()

    def broken(hosted: Any, done: Any, built: Any) -> None:
        del done, built
        if hosted.at == at:
            raise AssertionError("this cannot be")

    process.host.worlds.on_act.append(broken)
    assert await bad.ask(Add(1), timeout=10) == 1, "it is durable, and so it is answered"
    assert await bad.ask(Add(1), timeout=10) == 2
    await well(process, other)
    process.host.worlds.on_act.remove(broken)
    assert await bad.ask(Add(1), timeout=10) == 3
    assert meter.value("worldline_worlds_dropped_total", "act") == 2
    await process.close()


@some_escapes
async def test_a_restore_that_breaks_stops_its_world_alone(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, escape: Callable[[], BaseException]
) -> None:
    app = program()
    async with memory_kit.hosting() as client:
        bad, _ = await client.create("bad", app), await client.create("other", app)
        at = await bad._handle.address()
        await send_door.enqueue(client._connection, at, event("Add", Add(1)))
        whole = world_restore.build

        def broken(material: world_restore.Material, *args: Any) -> world_restore.RestoredWorld:
            if material.at == at:
                raise escape()
            return whole(material, *args)

        monkeypatch.setattr(world_restore, "build", broken)
        process = await memory_kit.process(app)
        await until_refused(process, at)
        await well(process, process.universe.world("other"))
        assert (await kits.unread(process.engine, at)) == 1
        monkeypatch.undo()
        assert await process.universe.world("bad").ask(Add(1), timeout=20) == 2
        await process.close()


@some_escapes
async def test_a_change_of_code_that_cannot_be_adopted_stops_its_world_alone(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, escape: Callable[[], BaseException]
) -> None:
    async with memory_kit.hosting(program()) as universe:
        for name in ("bad", "other"):
            assert await (await universe.ensure(name, program())).ask(Add(1), timeout=10) == 1
        at = await universe.world("bad")._handle.address()
    whole = control_commands._COMMANDS[control_commands.PROGRAM]

    def broken(machine: Machine, data: bytes) -> bytes:
        if machine.now.context.address == at:
            raise escape()
        changed: bytes = whole(machine, data)
        return changed

    monkeypatch.setitem(control_commands._COMMANDS, control_commands.PROGRAM, broken)
    process = await memory_kit.process(program(factor=10))
    await send_door.enqueue(process.universe._connection, at, event("Add", Add(1)))
    await until_refused(process, at)
    assert await process.universe.world("other").ask(Add(1), timeout=10) == 11
    assert process.host.failed is None
    monkeypatch.undo()
    assert await process.universe.world("bad").ask(Add(1), timeout=20) == 21
    await process.close()


@some_escapes
async def test_a_state_that_cannot_be_saved_is_in_no_other_worlds_way(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, escape: Callable[[], BaseException]
) -> None:
    """By policy it is tried again later; when the world is let go, it goes without."""
    app = program()
    meter, observed = metered()
    settings = kits.settings(worker={"snapshot_entries": 1, "idle_release_ms": 200})
    process = await memory_kit.process(app, settings=settings, observed=observed)

    world = await process.universe.create("w", app)
    at = await world._handle.address()

    def broken(machine: Machine) -> list[tuple[bytes, Row]]:
        raise escape()

    monkeypatch.setattr(kernel_snapshots, "rows_of", broken)
    assert await world.ask(Add(1), timeout=10) == 1

    async def told() -> bool:
        return meter.value("worldline_snapshots_failed_total") >= 1

    async def gone() -> bool:
        return not process.host.worlds.holds(at)

    await aio.until(told)
    await aio.until(gone)
    assert process.host.failed is None
    monkeypatch.undo()
    assert await world.ask(Add(1), timeout=10) == 2
    await process.close()


# --- What the process lacks ----------------------------------------------------------------------------------------


async def test_a_step_that_this_process_cannot_make_for_the_moment_is_made_later(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = program()
    meter, observed = metered()
    process = await memory_kit.process(app, observed=observed)
    world, other = await process.universe.ensure("w", app), await process.universe.ensure("other", app)
    await well(process, world, other)
    before = await world.head()
    broken_step(monkeypatch, lambda: errors.CannotStep("no memory", lasting=False))
    sent = asyncio.ensure_future(world.send(Poison()))
    at = await world._handle.address()
    assert "no memory" in await until_refused(process, at)
    assert process.host.worlds._holdings.keeps(at), "nobody else need try"
    await well(process, other)
    assert await world.head() == before, "nothing of it is history"
    monkeypatch.undo()
    await sent

    async def taken() -> bool:
        return (await world.head()).step > before.step

    await aio.until(taken)
    assert process.host.worlds.refusal(at) is None
    assert meter.value("worldline_worlds_refused_total", "cannot_step") >= 1
    await process.close()


async def test_what_this_process_lacks_for_too_long_is_for_another(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = program()
    monkeypatch.setattr(step_losses, "CANNOT_STEP_TRIES_MAX", 1)
    first = await memory_kit.process(app)
    world = await first.universe.ensure("w", app)
    await well(first, world)
    at = await world._handle.address()
    broken_step(monkeypatch, MemoryError)
    await send_door.enqueue(first.universe._connection, at, event("Poison", Poison()))
    await until_refused(first, at)

    async def free() -> bool:
        return not await world_holders.is_hosted(first.universe._connection.store, at)

    await aio.until(free)
    monkeypatch.undo()
    second = await memory_kit.process(app)

    async def elsewhere() -> bool:
        return bool(second.host.worlds.holds(at)) or bool(first.host.worlds.holds(at))

    await aio.until(elsewhere)
    await first.close()
    assert await second.universe.world("w").ask(Add(1), timeout=20) == 1
    await second.close()


async def test_what_this_process_will_always_lack_is_for_another_at_once(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first never tries it again, and does not run hot over it."""
    app = program()
    first = await memory_kit.process(app)
    world, other = await first.universe.ensure("w", app), await first.universe.ensure("other", app)
    await well(first, world, other)
    at = await world._handle.address()
    broken_step(monkeypatch, lambda: errors.CannotStep("no such time zone", lasting=True))
    await send_door.enqueue(first.universe._connection, at, event("Poison", Poison()))
    assert "no such time zone" in await until_refused(first, at)
    monkeypatch.undo()
    takes = []
    monkeypatch.setattr(first.host.worlds._holdings, "_take", lambda at: takes.append(at))
    for number in range(20):
        await send_door.enqueue(first.universe._connection, at, event("Add", Add(number)))
        await well(first, other)
    assert takes == []
    second = await memory_kit.process(app)
    assert await second.universe.world("w").ask(Add(0), timeout=20) == sum(range(20))
    await first.close()
    await second.close()


async def test_three_workers_do_not_pass_a_poisoned_world_round(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tries it now and then, with pauses that double, however many hints it has; together they count what their
    steps raise, and the input is set aside.
    """
    app = program()
    quickly(monkeypatch, 200)
    broken_step(monkeypatch, lambda: AssertionError("this cannot be"))
    processes = [await memory_kit.process(app) for _ in range(3)]
    world = await processes[0].universe.create("w", app)
    at = await world._handle.address()
    tries: list[int] = []
    whole = world_refusals.Refusals.refuse

    def counted(self: world_refusals.Refusals, *given: Any, **options: Any) -> int:
        tries.append(whole(self, *given, **options))
        return tries[-1]

    monkeypatch.setattr(world_refusals.Refusals, "refuse", counted)
    await send_door.enqueue(processes[0].universe._connection, at, event("Poison", Poison()))
    for number in range(50):
        await send_door.enqueue(processes[number % 3].universe._connection, at, event("Add", Add(1)))
        await asyncio.sleep(0.02)

    async def all_taken() -> bool:
        return await kits.unread(processes[0].engine, at) == 0

    await aio.until(all_taken)
    assert len(tries) == 4, "a budget of three, and once to settle it: none more, whoever tries"
    [letter] = await kits.dead(processes[0].engine, at)
    assert "raised 4 times in a row, so it was not processed" in letter.dead.reason
    assert await world.ask(Add(0), timeout=20) == 50
    assert all(process.host.failed is None for process in processes)
    monkeypatch.undo()
    for process in processes:
        await process.close()


async def test_a_person_has_a_refused_world_tried_at_once(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    app = program()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    await well(process, world)
    at = await world._handle.address()
    broken_step(monkeypatch, lambda: errors.CannotStep("no such time zone", lasting=True))
    await send_door.enqueue(process.universe._connection, at, event("Poison", Poison()))
    await until_refused(process, at)
    monkeypatch.undo()
    await asyncio.sleep(0.5)  # it has been looked at since
    await world.change(status=Status.PAUSED)
    await world.change(status=Status.ACTIVE)
    assert await world.ask(Add(1), timeout=20) == 1
    await process.close()
