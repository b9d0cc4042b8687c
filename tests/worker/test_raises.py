"""No exception stops a world for good: an input over which the kernel's own code raises is settled without user code,
and if that raises too, it is a dead letter. Its caller is told, and the next input is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit, Process
from tests.kits.sums import AddUp
from worldline.base import errors, limits
from worldline.features.forks.pure import part as fork_part
from worldline.inspect import why as reasons
from worldline.kernel import control_commands, run_repair, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.machine import Machine
from worldline.kernel.parts import DomainsPart, StepParts
from worldline.layers import inbox as inboxes
from worldline.model import ids, inbox, step_records
from worldline.model.journal import Kind
from worldline.observe import measures, sinks
from worldline.runtime import facts
from worldline.worker import step_contents, world_refusals

BUDGET = 3
FIRST_MS = 20

When = Callable[[step_records.Input], bool]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_refusals, "PAUSE_FIRST_MS", FIRST_MS)


def breaking(monkeypatch: pytest.MonkeyPatch, when: When, escape: Callable[[], BaseException]) -> None:
    """The kernel raises in its steps over such inputs."""
    whole = kernel_step.step

    def broken(
        machine: Machine, given: step_records.Input, context: step_records.StepContext, parts: StepParts
    ) -> step_records.Stepped:
        if when(given):
            raise escape()
        return whole(machine, given, context, parts)

    monkeypatch.setattr(kernel_step, "step", broken)


def seven(given: step_records.Input) -> bool:
    return isinstance(given.item, inbox.InboxEvent) and given.data == user_values.dump(AddUp(7))


async def hosted(kit: Kit, app: wl.Program, **options: Any) -> tuple[Process, wl.World, ids.Address]:
    """A process that runs a world, and the world as another process sees it: all that it sends goes by the inbox."""
    client = await kit.process()
    client.universe._connection.knows(app)
    world = await client.universe.ensure("w", app)
    settings = kits.settings(worker={"scan_ms": 50})
    return await kit.process(app, settings=settings, **options), world, await world._handle.address()


ESCAPES: list[Callable[[], BaseException]] = [
    lambda: KeyError("no such row"),
    lambda: RecursionError("too deep"),
    lambda: errors.DecodeError("no record"),
    lambda: errors.NotFound("nothing there"),
    lambda: SystemExit(3),
    lambda: StopIteration(1),
]


@pytest.mark.probe("trial.settled-raised")
@pytest.mark.parametrize("escape", ESCAPES, ids=lambda make: type(make()).__name__)
async def test_an_input_whose_step_raises_is_settled_without_user_code(
    memory_kit: Kit,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    escape: Callable[[], BaseException],
) -> None:
    app, meter = sums.program(), measures.Meter()
    observed = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    breaking(monkeypatch, lambda given: seven(given) and not given.poison, escape)
    host, world, at = await hosted(memory_kit, app, observed=observed)
    assert await world.ask(AddUp(1), timeout=20) == 1
    bad, behind = await asyncio.gather(
        world.ask(AddUp(7), timeout=20), world.ask(AddUp(2), timeout=20), return_exceptions=True
    )
    assert behind == 3, "the inputs around it are taken"
    assert isinstance(bad, wl.RunFailed)
    [letter] = await kits.dead(host.engine, at)
    name = type(escape()).__name__
    for said in (letter.dead.reason, str(bad), caplog.text):
        assert f"raised {BUDGET} times in a row" in said
        assert "please report it" in said
        assert name in said
        assert "worker/step_run.py" in said, "the innermost place in the package"
    assert (await kits.kinds(world)).count(Kind.POISON) == 1
    assert meter.value("worldline_step_deaths_total", "raised") == BUDGET
    assert host.host.worlds.refusal(at) is None
    monkeypatch.undo()
    await kits.prove(world, app)
    await host.close()


@pytest.mark.probe("trial.not-taken")
async def test_an_input_that_cannot_even_be_settled_is_dropped(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = sums.program()
    breaking(monkeypatch, seven, lambda: KeyError("no such row"))
    host, world, at = await hosted(memory_kit, app)
    bad, behind = await asyncio.gather(
        world.ask(AddUp(7), timeout=20), world.ask(AddUp(2), timeout=20), return_exceptions=True
    )
    assert behind == 2
    assert isinstance(bad, errors.StepFailed), bad
    [letter] = await kits.dead(host.engine, at)
    assert f"raised {BUDGET + 1} times in a row, so it was not processed" in letter.dead.reason
    await kits.prove(world, app)  # what a replay does is what was done, though the kernel still raises
    monkeypatch.undo()
    await kits.prove(world, app)
    assert inboxes.item_of(letter.dead.item) is not None, "it can be retried, with a kernel that is mended"
    await host.close()


async def test_a_command_that_raises_is_refused_and_its_caller_told(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = sums.program()

    @app.workflow
    async def sleeps() -> None:
        await wl.sleep(3_600)

    def broken(machine: Machine, data: bytes) -> bytes:
        raise RecursionError("maximum recursion depth exceeded")

    host, world, at = await hosted(memory_kit, app)
    run = await world.start(sleeps(), id="r")
    monkeypatch.setitem(control_commands._COMMANDS, run_repair.TERMINATE, broken)
    terminating = asyncio.ensure_future(run.terminate("enough"))
    assert await world.ask(AddUp(2), timeout=20) == 2, "the next input is taken"
    with pytest.raises(errors.StepFailed, match="RecursionError"):
        await terminating
    [letter] = await kits.dead(host.engine, at)
    assert "not processed" in letter.dead.reason
    monkeypatch.undo()
    await kits.prove(world, app)
    await run.terminate("enough")
    await host.close()


def answered(given: step_records.Input) -> bool:
    return isinstance(given.item, inbox.EffectReceipt)


@pytest.mark.parametrize("settles", [True, False])
async def test_the_answer_of_an_effect_whose_step_raises(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, settles: bool
) -> None:
    """It is handed over by the effect worker of the same process, and it is nobody's to take back."""
    app = sums.program()

    @app.effect
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def doubles(number: int) -> int:
        return await double(number)

    breaking(
        monkeypatch, lambda given: answered(given) and not (settles and given.poison), lambda: KeyError("no such row")
    )
    host, world, at = await hosted(memory_kit, app)
    run = await world.start(doubles(4), id="r")
    assert await world.ask(AddUp(2), timeout=20) == 2

    async def settled() -> bool:
        return Kind.POISON in await kits.kinds(world) or bool(await kits.dead(host.engine, at))

    await aio.until(settled)
    monkeypatch.undo()
    if settles:
        why = await reasons.why(world._handle)
        assert any(each.run == "r" and "raised 3 times in a row" in each.error for each in why.reasons), why
        await run.retry()
        assert await run.result(timeout=20) == 8
    else:
        [letter] = await kits.dead(host.engine, at)
        assert "not processed" in letter.dead.reason
        await run.reset()
        assert await run.result(timeout=20) == 8
    await kits.prove(world, app)
    await host.close()


def goes_on(given: step_records.Input) -> bool:
    return isinstance(given.item, inbox.Control) and given.item.command == control_commands.CONTINUE


@pytest.mark.parametrize("settles", [True, False])
async def test_what_a_full_step_has_left_never_blocks_the_next_input(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, settles: bool
) -> None:
    app = sums.program()

    @app.workflow
    async def little(number: int) -> int:
        return number

    @app.workflow
    async def much() -> int:
        return sum(await wl.gather(*(little(number) for number in range(3))))

    monkeypatch.setattr(limits, "STEP_TURNS_MAX", 2)
    breaking(
        monkeypatch,
        lambda given: goes_on(given) and not ((settles and given.poison) or given.discard),
        lambda: KeyError("no such row"),
    )
    host, world, at = await hosted(memory_kit, app)
    await kits.begin(world, much(), id="r")
    assert await world.ask(AddUp(2), timeout=60) == 2
    assert await world.ask(AddUp(2), timeout=60) == 4
    assert await kits.dead(host.engine, at) == [], "it is no input"
    assert Kind.POISON in await kits.kinds(world)
    await kits.prove(world, app)
    await host.close()


async def test_a_step_that_cannot_be_stored_is_not_taken(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    app = sums.program()
    whole = step_contents.build

    def broken(held: Any, done: Any, *args: Any, **options: Any) -> step_contents.Built:
        if any(entry.kind is Kind.EVENT and b"Trap" in entry.payload for entry in done.entries):
            raise AssertionError("a batch that breaks a rule")
        return whole(held, done, *args, **options)

    monkeypatch.setattr(step_contents, "build", broken)
    host, world, at = await hosted(memory_kit, app)
    await world.send(sums.Trap(7))
    assert await world.ask(AddUp(2), timeout=20) == 2
    [letter] = await kits.dead(host.engine, at)
    assert "a batch that breaks a rule" in letter.dead.reason
    monkeypatch.undo()
    await kits.prove(world, app)
    await host.close()


async def test_what_a_fork_cannot_settle_never_blocks_the_next_input(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No user code is in that, so settling it without any would raise as well."""
    app = sums.program()

    @app.workflow
    async def sleeps() -> None:
        await wl.sleep(3_600)

    def broken(machine: Machine, domains: DomainsPart) -> None:
        raise KeyError("no such row")

    host, world, _ = await hosted(memory_kit, app)
    await kits.begin(world, sleeps(), id="r")
    monkeypatch.setattr(fork_part, "settle_inherited", broken)
    forked = await world.fork("f")
    assert await forked.ask(AddUp(2), timeout=20) == 2
    await host.close()
