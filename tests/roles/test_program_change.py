"""The code of a world changes: adopted where it fits, a run that it does not fit is blocked, and nothing is lost."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.roles import conftest
from tests.roles import kit as kits
from tests.roles.crashing import DEATHS, Crashing
from tests.roles.kit import Kit
from worldline.base import errors
from worldline.client.universe import Universe
from worldline.inspect import why
from worldline.kernel.runs import RunStatus
from worldline.model.journal import Kind

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
            assert "goes on under the changed program 'p': 2 runs taken over, 0 blocked" in caplog.text
            assert (await world.describe()).program_hash == other.hash
            assert await finish(world, "talk") == "TALK"
            assert await finish(world, "steady") == "steady"
            assert await changes(world) == 1
    async with kit.hosting(other) as universe:
        world = await held(universe)
        assert await changes(world) == 1, "adopted once"
        assert await world.ask(Add(1), timeout=10) == 2


@pytest.mark.parametrize("change", [unfit, gone])
async def test_a_run_that_does_not_fit_is_blocked_and_nothing_else(
    kit: Kit, change: Callable[[wl.Program], None], caplog: pytest.LogCaptureFixture
) -> None:
    app, other = program(before), program(change)
    await begun(kit, app)
    with caplog.at_level(logging.WARNING, "worldline.worker"):
        async with kit.hosting(other) as universe:
            world = await held(universe)
            state, report = await status(world, "talk")
            assert state is RunStatus.BLOCKED
            assert report in caplog.text
            if change is unfit:
                assert "operation 1" in report
                assert "journal: effect 'echo'" in report
                assert "code:    effect 'shout'" in report
            else:
                assert "has no workflow 'talk'" in report
            assert await finish(world, "steady") == "steady"
            assert await world.ask(Add(1), timeout=10) == 2
            await world.send(Go("talk"))  # kept for it
            assert (await status(world, "talk"))[0] is RunStatus.BLOCKED
    async with kit.hosting(app) as universe:  # code that fits comes back: it goes on where it was
        world = await held(universe)
        assert await (await world.attach("talk")).result(20) == "talk"
        assert await changes(world) == 2


async def test_a_blocked_run_stays_blocked_over_restarts(memory_kit: Kit) -> None:
    app, other = program(before), program(unfit)
    await begun(memory_kit, app)
    for _ in range(2):
        async with memory_kit.hosting(other) as universe:
            world = await held(universe)
            assert (await status(world, "talk"))[0] is RunStatus.BLOCKED
            assert await changes(world) == 1


async def test_a_changed_reducer_counts_from_now_on(kit: Kit) -> None:
    """What was folded before stays as it was folded."""
    app, other = program(before), program(before, factor=10)
    assert app.hash != other.hash
    await begun(kit, app)
    async with kit.hosting(other) as universe:
        world = await held(universe)
        assert await world.ask(Add(1), timeout=10) == 11
        assert await finish(world, "talk") == "talk"
        assert await changes(world) == 1
        assert (await world.journal(above=0))[0].height == 1


async def test_a_tail_that_does_not_replay_is_refused_and_nothing_lost(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed before its state was saved, and then the code of what it did since was changed. It says where, waits for
    code that fits, and takes what is sent meanwhile.
    """
    app, other = program(before), program(before, factor=10)
    await begun(kit, app, tail=True)
    async with kit.hosting(other) as universe:
        world = universe.world("w")
        before_head = await world.head()
        with caplog.at_level(logging.WARNING, "worldline.worker"):
            with pytest.raises(errors.Closed, match="cannot go on") as refused:
                await world.ask(Add(1), timeout=10)
            assert "journal:" in str(refused.value)
            assert "code:" in str(refused.value)
            assert "wl.patched" in str(refused.value)
        assert universe._connection.host is not None
        assert universe._connection.host.worlds.refusal(await world._handle.address()) is not None
        assert await world.head() == before_head
        assert universe._connection.host.failed is None
    async with kit.hosting() as client:
        await client.world("w").send(Add(5), id="meanwhile")
    async with kit.hosting(app) as universe:
        world = await held(universe)

        async def taken() -> bool:
            return bool((await world.state(app.reducers["Sum"].cls)).total == 6)

        await aio.until(taken)
        assert await finish(world, "talk") == "talk"
        assert await finish(world, "steady") == "steady"
        assert await changes(world) == 0


async def test_a_crash_while_the_change_is_adopted(tmp_path: Path) -> None:
    """The change and its baseline are one commit: before it nothing has changed, after it everything."""
    app, other = program(before), program(clean)
    for fate in DEATHS:
        for at in range(1, 30):
            kit = conftest.make("memory", tmp_path / f"{fate.name}-{at}")
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
    """It is blocked under the very code that started it: a class of the author's refuses what was recorded."""
    app = wl.Program("p")

    @dataclass
    class Order:
        name: str

        def __post_init__(self) -> None:
            raise ValueError("never")

    @app.workflow
    async def inner(order: Order) -> None:
        raise AssertionError

    @app.workflow
    async def outer(order: Any) -> None:
        await inner(order)

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.start(outer({"name": "a"}), id="r")
        [blocked] = [each for each in (await why.why(world._handle)).reasons if each.stuck]
    assert blocked.what == "run r/0 (inner) is blocked: the code does not fit its record"
    assert "its arguments do not fit inner(): " in blocked.error
