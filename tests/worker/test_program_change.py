"""The code of a world changes: adopted where it fits, a run that it does not fit is blocked, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import fixtures
from tests.kits import kit as kits
from tests.kits.crashing import DEATHS, Crashing
from tests.kits.kit import Kit
from worldline.api.universe_api import Universe
from worldline.base import errors
from worldline.client import listing
from worldline.features.proofs import calls as proof_calls
from worldline.inspect import why
from worldline.kernel import run_repair, user_values
from worldline.kernel.rows.row_records import RunStatus
from worldline.model.journal import Kind
from worldline.observe import measures, sinks
from worldline.runtime import facts

Flow = Callable[[str], Awaitable[str]]


@dataclass(frozen=True)
class Go:
    name: str


@dataclass(frozen=True)
class Add(wl.Request[int]):
    number: int


def program(flow: Callable[[wl.Program], None], *, factor: int = 1) -> wl.Program:
    """A program with one workflow of its own kind, one that never changes, and a reducer."""
    app = wl.Program("p")

    @app.effect
    async def echo(text: str) -> str:
        return text

    @app.effect
    async def shout(text: str) -> str:
        return text.upper()

    if factor == 1:

        @app.reducer()
        @dataclass
        class Sum:
            total: int = 0

            @wl.on
            def add(self, event: Add) -> int:
                self.total += event.number
                return self.total
    else:

        @app.reducer(name="Sum")
        @dataclass
        class Sum2:
            total: int = 0

            @wl.on
            def add(self, event: Add) -> int:
                self.total += 10 * event.number
                return self.total

    @app.workflow
    async def steady(name: str) -> str:
        event = await wl.wait(Go, where=lambda each: each.name == name)
        return await echo(event.name)

    flow(app)
    return app


def before(app: wl.Program) -> None:
    echo = app.effects["echo"]

    @app.workflow
    async def talk(name: str) -> str:
        first = await echo(name)
        await wl.wait(Go, where=lambda each: each.name == name)
        return str(first)


def clean(app: wl.Program) -> None:
    """The same up to where a run can be, and something else after it."""
    echo, shout = app.effects["echo"], app.effects["shout"]

    @app.workflow
    async def talk(name: str) -> str:
        first = await echo(name)
        await wl.wait(Go, where=lambda each: each.name == name)
        return str(await shout(first))


def unfit(app: wl.Program) -> None:
    """Another effect where the record has an `echo`."""
    shout = app.effects["shout"]

    @app.workflow
    async def talk(name: str) -> str:
        first = await shout(name)
        await wl.wait(Go, where=lambda each: each.name == name)
        return str(first)


def gone(app: wl.Program) -> None:
    """No such workflow any more."""


async def begun(kit: Kit, app: wl.Program, *, tail: bool = False) -> None:
    """A world with a run of each workflow in the middle of it. With `tail`, killed with entries above the baseline."""
    process = await kit.process(app)
    world = await process.universe.ensure("w", app)
    for flow in ("talk", "steady"):
        await kits.begin(world, app.workflows[flow](flow), id=flow)
    assert await world.ask(Add(1), timeout=10) == 1

    async def waiting() -> bool:
        return await kits.opened(process.engine, await world._handle.address()) == []

    await aio.until(waiting)
    if tail:
        await process.kill()
        await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    else:
        await process.close()


async def status(world: wl.World, run: str) -> tuple[RunStatus, str]:
    machine = await world._handle.machine()
    record = machine.runs[run].record
    return record.status, record.blocked


async def finish(world: wl.World, run: str) -> Any:
    await world.send(Go(run))
    return await (await world.attach(run)).result(20)


async def changes(world: wl.World) -> int:
    return (await kits.kinds(world)).count(Kind.PROGRAM_CHANGED)


async def held(universe: Universe) -> wl.World:
    """The world, taken by this host."""
    world = universe.world("w")
    assert universe._connection.host is not None
    assert await universe._connection.host.worlds.hold(await world._handle.address()) is not None
    return world


@pytest.mark.parametrize("tail", [False, True], ids=["saved", "killed"])
async def test_a_change_that_fits_is_adopted(kit: Kit, tail: bool, caplog: pytest.LogCaptureFixture) -> None:
    app, other = program(before), program(clean)
    assert app.hash != other.hash
    await begun(kit, app, tail=tail)
    with caplog.at_level(logging.WARNING, "worldline.worker"):
        async with kit.hosting(other) as universe:
            world = await held(universe)
            assert (
                "goes on under the changed program 'p', which runs get when they next continue: 2 runs" in caplog.text
            )
            assert (await world.describe()).program_hash == other.hash
            assert await finish(world, "talk") == "TALK"
            assert await finish(world, "steady") == "steady"
            assert await changes(world) == 1
    async with kit.hosting(other) as universe:
        world = await held(universe)
        assert await changes(world) == 1, "adopted once"
        assert await world.ask(Add(1), timeout=10) == 2


async def blocks(world: wl.World, run: str) -> str:
    """Let a run go on, and wait until it is blocked. Returns the report."""
    await (await world.send(Go(run), to=run)).applied(10)

    async def blocked() -> bool:
        return (await status(world, run))[0] is RunStatus.BLOCKED

    await aio.until(blocked)
    return (await status(world, run))[1]


@pytest.mark.parametrize("tail", [False, True], ids=["saved", "killed"])
@pytest.mark.parametrize("change", [unfit, gone])
async def test_a_run_that_does_not_fit_is_blocked_and_nothing_else(
    kit: Kit, change: Callable[[wl.Program], None], tail: bool
) -> None:
    app, other = program(before), program(change)
    await begun(kit, app, tail=tail)
    meter = measures.Meter()
    watched = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    async with kit.hosting(other, observed=watched) as universe:
        world = await held(universe)
        assert (await status(world, "talk"))[0] is RunStatus.RUNNING, "until it needs its code"
        report = await blocks(world, "talk")
        if change is unfit:
            assert "operation 1" in report
            assert "journal: effect 'echo' (text='talk')" in report
            assert "code:    effect 'shout' (text='talk')" in report
            assert "test_program_change.py:" in report
        else:
            assert "has no workflow 'talk'" in report
        assert await finish(world, "steady") == "steady"
        assert await world.ask(Add(1), timeout=10) == 2
        assert (await status(world, "talk"))[0] is RunStatus.BLOCKED
        assert (await kits.kinds(world)).count(Kind.RUN_BLOCKED) == 1
        assert meter.value("worldline_runs_blocked_total") == 1
        assert [each.id for each in await world.runs(status=RunStatus.BLOCKED)] == ["talk"]
    async with kit.hosting() as client:
        told = await listing.runs(client.world("w")._handle)
        assert {each.id: each.status for each in told[0]} == {
            "talk": RunStatus.BLOCKED,
            "steady": RunStatus.FINISHED,
        }
    async with kit.hosting(app) as universe:  # code that fits comes back: it goes on where it was
        world = await held(universe)
        assert await (await world.attach("talk")).result(20) == "talk"
        assert await changes(world) == 2
        assert (await proof_calls.prove(world._handle, programs=[other, app])).holds


async def test_the_count_of_an_adoption_includes_those_that_block_later(
    memory_kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """Three runs, of which two do not fit: each is blocked when it next continues. One that begins later is no part of
    it.
    """
    app, other = program(before), program(unfit)
    await begun(memory_kit, app)
    async with memory_kit.hosting(app) as universe:
        await kits.begin(await held(universe), app.workflows["talk"]("second"), id="second")

    def counts() -> list[str]:
        """How many are blocked, as the log said of the adoption and after it."""
        return re.findall(r"under the changed program 'p'.*?(\d+ (?:is |are )?blocked(?: now| by now))", caplog.text)

    async def counted(again: int) -> None:
        """What is durable can be read at once, and is logged a moment later."""

        async def enough() -> bool:
            return len(counts()) > again

        await aio.until(enough, seconds=10)

    async with memory_kit.hosting(other) as universe:
        world = await held(universe)
        assert counts() == ["0 blocked now"]
        await kits.begin(world, other.workflows["steady"]("later"), id="later")
        await blocks(world, "talk")
        await counted(1)
        assert counts()[1:] == ["1 is blocked by now"]
        assert await finish(world, "steady") == "steady"
        await blocks(world, "second")
        await counted(2)
        assert counts()[2:] == ["2 are blocked by now"]
        assert "of 3 runs that it was adopted with" in caplog.text
    async with memory_kit.hosting(other) as universe:
        await held(universe)
        assert len(counts()) == 3, "it is adopted once"


async def test_a_proof_takes_it_from_the_journal_that_a_run_was_blocked(memory_kit: Kit) -> None:
    """Whether a run's code is rebuilt, and found not to fit, depends on what was in memory. A proof has it there."""
    chosen = ["echo"]

    def wavering(app: wl.Program) -> None:
        @app.workflow
        async def talk(name: str) -> str:
            first = await app.effects[chosen[0]](name)
            await wl.wait(Go)
            return str(first)

    app = program(wavering)
    await begun(memory_kit, app)
    async with memory_kit.hosting(app) as universe:
        world = await held(universe)
        chosen[0] = "shout"
        assert "code:    effect 'shout' (text='talk')" in await blocks(world, "talk")
        chosen[0] = "echo"
        assert await changes(world) == 0
        proof = await proof_calls.prove(world._handle, programs=[app])
        assert (proof.holds, proof.proved) == (True, proof.steps), proof.difference


async def test_a_blocked_run_stays_blocked_over_restarts(memory_kit: Kit) -> None:
    app, other = program(before), program(unfit)
    await begun(memory_kit, app)
    async with memory_kit.hosting(other) as universe:
        await blocks(await held(universe), "talk")
    for _ in range(2):
        async with memory_kit.hosting(other) as universe:
            world = await held(universe)
            assert (await status(world, "talk"))[0] is RunStatus.BLOCKED
            assert await changes(world) == 1


async def test_ways_out_of_a_blocked_run(kit: Kit) -> None:
    """By the handle of a run: retry, reset, answer, terminate; and what is refused."""
    app, other = program(before), program(unfit)
    await begun(kit, app)
    async with kit.hosting(other) as universe:
        world = await held(universe)
        await blocks(world, "talk")
        run = await world.attach("talk")
        assert await run.retry() is RunStatus.BLOCKED
        await run.cancel("later")
        assert await run.status() is RunStatus.BLOCKED, "the cancellation waits"
        with pytest.raises(errors.NotFound, match="has no operation 7"):
            await run.reset(to=7)
        with pytest.raises(errors.Exists, match="has an answer"):
            await run.answer(1, "x")
        await run.terminate("too old")
        with pytest.raises(wl.RunCancelled, match="too old"):
            await run.result(60)
        assert await run.reset() is RunStatus.RUNNING
        assert await finish(world, "talk") == "TALK", "from its start, under the code now"
        fresh = await world.start(other.workflows["talk"]("x"), id="x")

        async def waits() -> bool:
            return len((await world._handle.machine()).runs["x"].record.ops) == 2

        await aio.until(waits)
        await fresh.answer(2, Go("x"))
        assert await fresh.result(60) == "X"
        assert (await proof_calls.prove(world._handle, programs=[app, other])).holds


async def test_a_changed_reducer_counts_from_now_on(kit: Kit) -> None:
    """What was folded before stays as it was folded, also if it was never saved."""
    app, other = program(before), program(before, factor=10)
    assert app.hash != other.hash
    await begun(kit, app, tail=True)
    async with kit.hosting(other) as universe:
        world = await held(universe)
        assert await world.ask(Add(1), timeout=10) == 11
        assert await finish(world, "talk") == "talk"
        assert await changes(world) == 1
        assert (await world.journal(above=0))[0].height == 1


async def test_a_crash_while_the_change_is_adopted(tmp_path: Path) -> None:
    """The change and the world's record are one commit: before it nothing has changed, after it everything."""
    app, other = program(before), program(clean)
    for fate in DEATHS:
        for at in range(1, 30):
            kit = fixtures.make("memory", tmp_path / f"{fate.name}-{at}")
            await begun(kit, app)
            made: list[Crashing] = []

            def wrap(engine: Any, at: int = at, fate: Any = fate, made: list[Crashing] = made) -> Crashing:
                made.append(Crashing(engine, at, fate))
                return made[-1]

            process = await kit.process(other, wrap=wrap)
            try:
                await held(process.universe)
            except errors.StoreUnavailable:
                assert made[0].dead.is_set()
            await process.kill()
            await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
            async with kit.hosting(other) as universe:
                world = await held(universe)
                assert await finish(world, "talk") == "TALK"
                assert await changes(world) == 1
            await kit.aclose()
            if not made[0].dead.is_set():
                break


async def test_a_run_whose_arguments_cannot_be_read_is_not_said_to_have_changed(memory_kit: Kit) -> None:
    """It is blocked under the very code that started it: a class of the author's takes the arguments where they are
    given, and refuses them where they are read.
    """
    app = wl.Program("p")
    made: list[str] = []

    @dataclass
    class Order:
        name: str

        def __post_init__(self) -> None:
            made.append(self.name)
            if len(made) > 1:
                raise ValueError("never again")

    @app.workflow
    async def inner(order: Order) -> None:
        raise AssertionError

    @app.workflow
    async def outer(order: Any) -> None:
        await inner(order)

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        _ = await world.start(outer({"name": "a"}), id="r")
        [blocked] = [each for each in (await why.why(world._handle)).reasons if each.stuck]
    assert blocked.what == "run r/0 (inner) is blocked: the code does not fit its record"
    assert "its arguments do not fit inner(): " in blocked.error


async def test_an_open_effect_that_takes_other_arguments_is_parked_and_fails_no_run(kit: Kit) -> None:
    def paying(version: int) -> wl.Program:
        app = wl.Program("p")

        async def one(amount: int) -> str:
            await asyncio.Event().wait()
            return "never"

        async def two(amount: int, to: str) -> str:
            return f"{amount} to {to}"

        async def three(amount: int, to: str = "all") -> str:
            return f"{amount} to {to}"

        versions: list[Callable[..., Any]] = [one, two, three]
        pay = app.effect(name="pay")(versions[version])

        @app.workflow
        async def flow() -> Any:
            return await pay(5)

        return app

    first = await kit.process(paying(0))
    world = await first.universe.create("w", first.universe._connection.programs["p"])
    _ = await world.start(first.universe._connection.programs["p"].workflows["flow"](), id="r")
    await first.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    async with kit.hosting(paying(1)) as universe:
        world = universe.world("w")

        async def parked() -> bool:
            reasons = (await why.why(world._handle)).reasons
            return any(each.kind == "parked" and "do not fit pay()" in each.error for each in reasons)

        await aio.until(parked)
        assert (await status(world, "r"))[0] is RunStatus.RUNNING
        [opened] = await kits.opened(universe._connection.store.engine, await world._handle.address())
    async with kit.hosting(paying(2)) as universe:
        world = await held(universe)
        wanted = run_repair.AnswerEffect(opened.intent, user_values.dump("by hand"))
        await world._handle.command(run_repair.ANSWER_EFFECT, wanted)
        assert await (await world.attach("r")).result(20) == "by hand"
