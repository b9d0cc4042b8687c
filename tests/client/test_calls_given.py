"""What callers give a world in the place of a call, and arguments that cannot be passed: refused, and named, at once.

And waits that take too long: what has not come, and how to wait on.
"""

from __future__ import annotations

import asyncio
import gc
import math
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.kernel.authoring.calls import Call

app, other_app = wl.Program("app"), wl.Program("other")
asked: list[object] = []


@dataclass
class Order:
    amount: int
    note: str = ""


@dataclass
class Total(wl.Request[int]):
    pass


@dataclass
class Placed:
    order: Order


@app.effect
def charge(amount: int, note: Any = "", order: Order | None = None) -> str:
    asked.append((amount, note, order))
    return f"ch_{amount}"


@app.workflow
async def pay(amount: int, *notes: int, order: Order | None = None) -> str:
    return await charge(amount, notes, order=order)


@app.workflow
async def pay_text() -> str:
    return await charge("5")  # type: ignore[arg-type]


@app.workflow
async def pay_order(amount: Any) -> str:
    return await charge(1, order=Order(amount))


@app.workflow
async def pay_noted(kind: str) -> str:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    notes = {"nan": math.nan, "large": 2**80, "cyclic": cyclic, "huge": "x" * 17_000_000}
    return await charge(1, notes[kind])


@app.workflow
async def starts(kind: str) -> str:
    given: Any = {"workflow": pay, "text": "pay"}[kind]
    started: Any = wl.start(given)
    return str(await started)


@app.workflow
async def wrong_child() -> str:
    return await pay("5")  # type: ignore[arg-type]


@app.workflow
async def waits() -> str:
    return (await wl.wait(Placed)).order.note


@other_app.workflow
async def elsewhere() -> str:
    return "elsewhere"


async def plain() -> None: ...


def one() -> None: ...


@app.reducer
@dataclass
class Orders:
    total: int = 0

    @wl.on
    def placed(self, event: Placed) -> None:
        self.total += event.order.amount


GIVEN: dict[str, tuple[Any, str]] = {
    "workflow": (lambda: pay, "not pay itself: write pay\\(...\\), with its arguments"),
    "effect": (lambda: charge, "not charge itself"),
    "text": (lambda: "pay", "not text: pass pay\\(...\\); a workflow is run by its name with `worldline run`"),
    "coroutine": (plain, "not a coroutine: declare `async def plain` with @program.workflow above it"),
    "function": (lambda: one, "not a function: declare one with @program.workflow above it"),
    "object": (object, "not object"),
    "effect call": (lambda: charge(1), "is an effect; a world runs workflows"),
    "another program's": (
        elsewhere,
        "elsewhere\\(\\) is a call of program 'other', and world '.*' has program 'app'; call a workflow of 'app'",
    ),
}


@pytest.mark.parametrize("kind", GIVEN)
async def test_what_is_no_call_of_the_world_s_workflows(kind: str) -> None:
    make, message = GIVEN[kind]
    with warnings.catch_warnings(record=True) as seen, testing.world(app) as kit:
        warnings.simplefilter("always")
        async with wl.open("memory://", host=app) as universe:
            world = await universe.ensure("w", app)
            with pytest.raises(wl.BadInput, match=message):
                await world.run(make())
            with pytest.raises(wl.BadInput, match=message):
                _ = await world.start(make())
            assert await world.runs() == []
        with pytest.raises(wl.BadInput, match=message):
            kit.run(make())
        gc.collect()
    assert not [each for each in seen if "never awaited" in str(each.message)]


async def test_a_call_of_another_program_is_found_without_hosting_it() -> None:
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        assert await world._handle.program() == "app"
        await world.pause()
        with pytest.raises(wl.BadInput, match="call of program 'other'"):
            await universe.world("w").run(elsewhere())


@pytest.mark.parametrize(("kind", "message"), [("workflow", "not pay itself"), ("text", "not text: pass pay")])
def test_the_same_in_a_workflow(kind: str, message: str) -> None:
    with testing.world(app) as world, pytest.raises(wl.RunFailed, match=f"wl.start\\(\\) takes a call.*{message}"):
        world.run(starts(kind))


FIT = "argument {} is not of its declared type, {}: Expected `int`, got `str`"
OUTSIDE: dict[str, tuple[Call[Any], str]] = {
    "one": (pay("5"), FIT.format("amount", "int")),  # type: ignore[arg-type]
    "by name": (pay(amount="5"), FIT.format("amount", "int")),  # type: ignore[arg-type]
    "of many": (pay(1, 2, "3"), FIT.format("notes", "int")),  # type: ignore[arg-type]
    "inside": (pay(1, order=Order("5")), "argument order is not of its declared type, .*got `str` - at `\\$.amount`"),  # type: ignore[arg-type]
    "nan": (pay(math.nan), "argument amount cannot be stored: no canonical form: NaNs are not allowed; use None"),  # type: ignore[arg-type]
    "large": (pay(2**80), "argument amount cannot be stored: .*integer out of range; an int has 64 bits: use text"),
}


@pytest.mark.parametrize("kind", OUTSIDE)
async def test_arguments_are_checked_where_the_call_is_given(kind: str) -> None:
    call, message = OUTSIDE[kind]
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(wl.BadInput, match=f"pay\\(\\): {message}"):
            await world.run(call)
        with pytest.raises(wl.BadInput, match=f"pay\\(\\): {message}"):
            await world.schedule("nightly", call, every=60)
        assert await world.runs() == []


INSIDE: dict[str, tuple[Call[Any], str]] = {
    "text": (pay_text(), "BadInput: charge\\(\\): " + FIT.format("amount", "int")),
    "inside": (pay_order("5"), "BadInput: charge\\(\\): argument order is not of its declared type.*`\\$.amount`"),
    "nan": (pay_noted("nan"), "charge\\(\\): argument note cannot be stored: .*NaNs"),
    "large": (pay_noted("large"), "charge\\(\\): argument note cannot be stored: .*integer out of range"),
    "cyclic": (pay_noted("cyclic"), "charge\\(\\): argument note cannot be stored: it contains itself"),
    "huge": (pay_noted("huge"), "charge\\(\\): argument note cannot be stored: .*; keep large data outside"),
    "child": (wrong_child(), "BadInput: pay\\(\\): " + FIT.format("amount", "int")),
}


@pytest.mark.parametrize("kind", INSIDE)
async def test_an_effect_s_arguments_are_checked_at_its_call(kind: str) -> None:
    call, message = INSIDE[kind]
    asked.clear()
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(wl.RunFailed, match=message) as failed:
            await world.run(call, timeout=20)
        assert await world.effects() == []
    [note] = failed.value.__notes__
    line = {"child": 'await pay("5")', "text": 'await charge("5")'}.get(kind, "await charge(1, ")
    assert "test_calls_given.py" in note
    assert line in note
    assert asked == []
    with testing.world(app) as kit, pytest.raises(wl.RunFailed, match=message):
        kit.run(call)


def test_what_was_asked_before_is_not_checked_again() -> None:
    """An effect's type was edited under way; or an older release asked for it, and a person has answered."""
    old, new = wl.Program("typed"), wl.Program("typed")
    answers: list[Any] = []
    for program, kind in ((old, str), (new, int)):

        async def take(value) -> str:  # type: ignore[no-untyped-def]
            return str(value)

        take.__annotations__ = {"value": kind, "return": str}
        taken = program.effect(name="take")(take)

        def made(taken: Any) -> Any:
            async def flow() -> str:
                answers.append(await taken("5"))
                await wl.sleep(60)
                return "done"

            return flow

        program.workflow(name="flow")(made(taken))
    with testing.world(old, wl.Script().on(old.effects["take"], "taken")) as world:
        run: Any = world.start(old.workflows["flow"](), id="r")
        assert world.adopt(new) == {}
        assert run.result() == "done"


# --- Waits -----------------------------------------------------------------------------------------------------


async def test_a_wait_that_takes_too_long_says_what_for_and_how_to_go_on() -> None:
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(TimeoutError) as late:
            await world.run(waits(), timeout=0.1)
        [run] = await world.runs()
        said = f"run '{run.id}' of world 'w' has not ended within 0.1 s and continues; wait for it with "
        assert str(late.value).startswith(f"{said}`await (await world.attach('{run.id}')).result()`; `worldline why w")
        with pytest.raises(TimeoutError, match=r"has not ended within 0\.1 s"):
            await run.result(0.1)
        await world.send(Placed(Order(1, "done")))
        assert await (await world.attach(run.id)).result() == "done"
        await world.pause()
        sent = await world.send(Placed(Order(1)))
        with pytest.raises(TimeoutError, match=f"the event {sent.id} was not processed within 0.1 s; it is durable"):
            await sent.applied(0.1)
        with pytest.raises(TimeoutError, match=r"world 'w' has not answered Total within 0\.1 s.*again with id='t'"):
            await world.ask(Total(), id="t", timeout=0.1)
        with pytest.raises(TimeoutError, match="an id= of your own"):
            await world.ask(Total(), timeout=0.1)


async def test_a_timeout_around_it_is_the_caller_s_own() -> None:
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(TimeoutError) as late:
            async with asyncio.timeout(0.1):
                await world.run(waits(), timeout=60)
        assert str(late.value) == ""
