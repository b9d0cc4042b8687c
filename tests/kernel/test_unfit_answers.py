"""An edit narrows a type, and an answer under way does not fit it any more: the answer is kept, and the run blocked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.base import errors
from worldline.kernel.execution import divergence_report
from worldline.model.journal import Kind

BLOCKED, RUNNING = wl.RunStatus.BLOCKED, wl.RunStatus.RUNNING


@dataclass(frozen=True)
class Rated:
    by: str


Await = Callable[[Any], Awaitable[Any]]


async def plainly(call: Any) -> Any:
    return await call


async def gathered(call: Any) -> Any:
    return (await wl.gather(call))[0]


async def settled(call: Any) -> Any:
    [found] = await wl.gather(call, return_exceptions=True)
    return found


async def started(call: Any) -> Any:
    return await wl.start(call)


async def scoped(call: Any) -> Any:
    async with wl.scope(timeout=1_000) as scope:
        found = await scope.start(call)
    return found  # noqa: RET504 - behind the block


async def clinging(call: Any) -> Any:
    """Catches everything, and would go on some other way."""
    try:
        return await call
    except BaseException:  # noqa: BLE001
        await wl.sleep(1)
        return "caught"
    finally:
        wl.emit(Rated("finally"))


def version(kind: Any, how: Await = plainly, *, child: bool = False) -> wl.Program:
    """Before and after an edit: an effect, or a workflow around it, that returns another type."""
    app = wl.Program("rating")

    @app.reducer
    @dataclass
    class Count:
        number: int = 0

        @wl.on
        def rated(self, _: Rated) -> None:
            self.number += 1

    def rate(text: str) -> Any:
        raise NotImplementedError(text)

    rate.__annotations__["return"] = Any if child else kind
    effect = app.effect(rate)

    async def rated(text: str) -> Any:
        return await effect(text)

    rated.__annotations__["return"] = kind
    flow = app.workflow(rated)

    @app.workflow
    async def order(text: str) -> list[Any]:
        await wl.sleep(1)
        said = [await how((flow if child else effect)(text))]
        await wl.sleep(1)
        return said

    @app.workflow
    async def beside() -> str:
        await wl.sleep(500)
        return "beside"

    return app


def blocked(world: testing.TestWorld, before: wl.Program, after: wl.Program) -> testing.TestRun[Any]:
    """A run whose answer arrives under the code after the edit."""
    run = world.start(before.workflows["order"]("x"), id="r")
    world.start(before.workflows["beside"](), id="b")
    world.advance(50)
    assert world.adopt(after) == {}, "up to here the code fits"
    assert run.status is RUNNING
    world.advance(100)
    assert run.status is BLOCKED
    return run


def playing(app: wl.Program, *more: Any) -> wl.Script:
    return wl.Script().on(app.effects["rate"], wl.Script.later(100, 5), *more)


@pytest.mark.parametrize("child", [False, True])
@pytest.mark.parametrize("how", [plainly, gathered, settled, started, scoped, clinging])
def test_an_answer_that_does_not_fit_any_more_blocks_its_run_alone(how: Await, child: bool) -> None:
    """Before, the workflow got `DecodeError`, and failed of the edit."""
    before, after = version(int, how, child=child), version(str, how, child=child)
    with testing.world(before, playing(before)) as world:
        run = blocked(world, before, after)
        number = 3 if how is scoped else 2
        said = world.why("r")
        assert f"run 'r' (order), operation {number}: {divergence_report.UNFIT}" in said
        assert "        answer:  (5)\n        code:    not a str" in said
        assert "        at:      test_unfit_answers.py:" in said
        assert [entry.kind for entry in world.journal()].count(Kind.RUN_BLOCKED) == 1
        world.prove()
        world.crash()
        run.retry()
        assert run.status is BLOCKED, "the code has not changed"
        world.prove()
        world.adopt(version(int, how, child=child))
        world.advance(50)
        assert run.result() == [5]
        world.advance(1_000)
        assert world.attach("b").result() == "beside"
        assert world.state().get("Count", {}).get("", {"number": 0})["number"] == (1 if how is clinging else 0)
        world.prove()


def test_other_ways_out() -> None:
    before, after = version(int), version(str)
    with testing.world(before, playing(before)) as world:
        run = blocked(world, before, after)
        with pytest.raises(wl.BadInput, match="does not fit"):
            run.answer(2, 7)
        with pytest.raises(errors.Exists, match="give another value, or reset"):
            run.answer(2, error="no")
        run.answer(2, "five")
        world.advance(10)
        assert run.result() == ["five"]
        with pytest.raises(errors.Closed):
            run.answer(2, "six")
        world.prove()

    with testing.world(before, playing(before)) as world:
        run = blocked(world, before, after)
        run.terminate("enough")
        assert run.status is wl.RunStatus.CANCELLED
        world.prove()

    with testing.world(before, playing(before, wl.Script.never())) as world:
        run = blocked(world, before, after)
        run.reset(to=2)
        assert run.status is RUNNING
        assert [each.name for each in world.machine.work.open.values() if each.run == "r"] == ["rate"], "asked again"
        world.prove()


def test_an_answer_that_fits_is_not_replaced() -> None:
    before = version(int)
    with testing.world(before, playing(before)) as world:
        run = world.start(before.workflows["order"]("x"), id="r")
        world.advance(101.5)
        with pytest.raises(errors.Exists):
            run.answer(2, 6)


def test_an_answer_that_was_taken_before_and_does_not_fit_now() -> None:
    """The run is found to be so when it is rebuilt; the report is the same, and so are the ways out."""
    before, after = version(int), version(str)
    with testing.world(before, playing(before)) as world:
        run = world.start(before.workflows["order"]("x"), id="r")
        world.advance(101.5)
        assert list(world.adopt(after)) == ["r"]
        world.advance(10)
        assert run.status is BLOCKED
        assert f"operation 2: {divergence_report.UNFIT}" in world.why("r")
        world.prove()
        run.answer(2, "five")
        world.advance(10)
        assert run.result() == ["five"]
        world.prove()


def test_a_feeding_before_it_in_the_same_step_stays() -> None:
    """Where a run is blocked in a step is not taken from the journal by a proof: what it did before is done."""

    def version(kind: Any) -> wl.Program:
        app = wl.Program("two")

        def early(text: str) -> Any:
            raise NotImplementedError(text)

        early.__annotations__["return"] = kind
        first = app.effect(early)

        @app.effect
        def late(text: str) -> str:
            raise NotImplementedError(text)

        @app.workflow
        async def order() -> list[Any]:
            waits = wl.start(first("x"))
            said: list[Any] = [await late("y")]
            wl.start(late("z"))
            return [*said, await waits]

        return app

    before, after = version(int), version(str)
    script = wl.Script().on(before.effects["early"], wl.Script.later(60, 5))
    script = script.on(before.effects["late"], wl.Script.later(100, "late"))
    with testing.world(before, script) as world:
        run = world.start(before.workflows["order"](), id="r")
        world.advance(50)
        assert world.adopt(after) == {}
        world.advance(20)
        assert run.status is RUNNING, "it has not been given the answer yet"
        world.advance(31)
        assert run.status is BLOCKED
        record = world.machine.runs["r"].record
        assert (len(record.ops), len(record.log)) == (3, 1)
        world.prove()
        world.adopt(version(int))
        assert run.result() == ["late", 5]
        world.prove()


# --- Events and questions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    stars: int


@dataclass(frozen=True)
class GivenText:
    """The same event after an edit."""

    __schema__ = "Given"
    stars: str


def waiting(kind: Any, *, where: bool = False) -> wl.Program:
    app = wl.Program("waiting")

    @app.workflow
    async def order() -> list[Any]:
        await wl.sleep(100)
        found = await wl.wait(kind, where=(lambda given: bool(given.stars)) if where else None, timeout=1_000)
        return [found.stars]

    return app


@pytest.mark.parametrize("where", [False, True])
def test_an_event_that_was_kept_and_does_not_fit_any_more(where: bool) -> None:
    """Before, the wait failed. Now the run is blocked; with a condition, which cannot be asked, the event stays."""
    before, after = waiting(Given, where=where), waiting(GivenText, where=where)
    with testing.world(before) as world:
        run = world.start(before.workflows["order"](), id="r")
        world.send(Given(5), to="r")
        assert world.adopt(after) == {}
        world.advance(200)
        assert run.status is (RUNNING if where else BLOCKED)
        world.prove()
        world.adopt(before)
        world.advance(1)
        assert run.result() == [5]
        world.prove()


@dataclass(frozen=True)
class Stars(wl.Request[int]):
    of: str


@dataclass(frozen=True)
class StarsText(wl.Request[str]):
    """The same question after an edit."""

    __schema__ = "Stars"
    of: str


def asking(kind: Any) -> wl.Program:
    app = wl.Program("asking")

    @app.workflow
    async def order() -> Any:
        found = await wl.ask("sky", kind("x"), timeout=500)
        await wl.sleep(1)
        return found

    return app


def sky() -> wl.Program:
    app = wl.Program("sky")

    @app.reducer
    @dataclass
    class Sky:
        seen: int = 0

        @wl.on
        def count(self, _: Stars) -> int:
            self.seen += 1
            return 5

    return app


def test_the_answer_of_another_world() -> None:
    with testing.world(asking(StarsText)) as world:
        world.also("sky", sky())
        run = world.start(asking(StarsText).workflows["order"](), id="r")
        assert run.status is BLOCKED
        assert f"operation 2: {divergence_report.UNFIT}" in world.why("r")
        world.prove()
        world.adopt(asking(Stars))
        world.advance(5)
        assert run.result() == 5
        world.prove()
