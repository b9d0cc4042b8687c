"""How runs end: what they raise and return, what they are given, and what is refused before they start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.kernel import control_commands, user_values


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ValueError("no"), "ValueError"),
        (AssertionError(), "AssertionError"),
        (SystemExit(3), "SystemExit"),
        (RecursionError("deep"), "RecursionError"),
        (wl.Refused("no"), "refused"),
        (ValueError("\ud800"), "ValueError"),
    ],
    ids=lambda each: repr(each)[:30],
)
def test_whatever_a_workflow_raises_is_its_result(raised: BaseException, code: str) -> None:
    app = wl.Program("raises")

    @app.workflow
    async def bad() -> None:
        raise raised

    with testing.world(app) as world:
        with pytest.raises(wl.RunFailed) as caught:
            world.run(bad())
        assert caught.value.code == code


@pytest.mark.parametrize("use", ["send", "patched", "state", "uuid"])
def test_text_that_has_no_bytes_is_refused_before_anything_is_recorded(use: str) -> None:
    app = wl.Program("odd")
    app.reducers.update(shop.app.reducers)

    @app.workflow
    async def bad() -> str:
        try:
            if use == "send":
                await wl.send("\ud800", shop.Approved("o"))
            elif use == "patched":
                wl.patched("\ud800")
            elif use == "state":
                wl.state(shop.Account, "\ud800")
            else:
                wl.uuid("\ud800")
        except (ValueError, wl.BadInput):
            await wl.sleep(1)
            return "refused"
        return "taken"

    with testing.world(app) as world:
        assert world.run(bad()) == "refused"
        world.prove()


def cyclic() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    "make",
    [object, cyclic, lambda: float("nan"), lambda: "\ud800", lambda: 2**70],
    ids=["object", "cyclic", "nan", "surrogate", "large"],
)
def test_a_result_that_cannot_be_stored_fails_the_run(make: Callable[[], Any]) -> None:
    app = wl.Program("raises")

    @app.workflow
    async def bad() -> Any:
        return make()

    with testing.world(app) as world, pytest.raises(wl.RunFailed, match="result"):
        world.run(bad())


def test_arguments_by_name_defaults_and_rest_come_back_typed() -> None:
    app = wl.Program("arguments")

    @app.workflow
    async def shapes(order: shop.Approved, *rest: int, flag: bool = True, **others: float) -> str:
        return f"{order.order} {rest} {flag} {sorted(others.items())}"

    with testing.world(app) as world:
        assert world.run(shapes(shop.Approved("o"), 1, 2, x=1.5)) == "o (1, 2) True [('x', 1.5)]"
        assert world.run(shapes(order=shop.Approved("o"), flag=False)) == "o () False []"


@pytest.mark.parametrize("args", [{}, {"name": 5}, {"name": "x", "more": 1}, {"more": 1}], ids=str)
def test_arguments_that_do_not_fit_are_refused_before_anything_starts(args: dict[str, Any]) -> None:
    with testing.world(shop.app) as world:
        wanted = control_commands.StartRun("r", "greet", user_values.dump(args), b"s" * 16, named=True)
        with pytest.raises(wl.BadInput, match=r"greet\(\)|not a str"):
            world.command(control_commands.RUN, wanted)
        assert not world.machine.runs


def test_calls_of_another_program_are_refused() -> None:
    app = wl.Program("other")

    @app.workflow
    async def foreign() -> str:
        return await shop.shout("x")

    with testing.world(app) as world, pytest.raises(wl.RunFailed, match="not one of program"):
        world.run(foreign())


async def test_outside_a_workflow_effects_are_plain_and_workflows_refuse() -> None:
    assert await shop.shout("x") == "X"
    with pytest.raises(wl.errors.OutsideWorkflow, match=r"world\.run"):
        await shop.greet("x")
    for use in (lambda: wl.now(), lambda: wl.random(), lambda: wl.emit(1), lambda: wl.start(shop.greet("x"))):
        with pytest.raises(wl.errors.OutsideWorkflow):
            use()
    assert str(wl.attempt().key) == "outside"


@pytest.mark.parametrize("value", [-1, float("nan"), 1e12, timedelta(seconds=-1)], ids=repr)
def test_durations_are_checked(value: Any) -> None:
    app = wl.Program("durations")

    @app.workflow
    async def naps() -> None:
        await wl.sleep(value)

    with testing.world(app) as world, pytest.raises(wl.RunFailed, match="seconds"):
        world.run(naps())


def test_gather_says_what_it_takes() -> None:
    app = wl.Program("gathers")

    @app.workflow
    async def naps() -> None:
        nap = wl.sleep(1)
        try:
            await wl.gather(nap)  # type: ignore[call-overload]
        finally:
            nap.close()

    @app.workflow
    async def nothing() -> list[int]:
        return await wl.gather()

    with testing.world(app) as world:
        with pytest.raises(wl.RunFailed, match="takes calls"):
            world.run(naps())
        assert world.run(nothing()) == []


def test_a_call_that_is_never_awaited_fails_in_strict_mode_wherever_it_was_made() -> None:
    app = wl.Program("strict")
    app.effects["shout"] = shop.shout

    @app.workflow
    async def forgets() -> str:
        shop.shout("lost")  # type: ignore[unused-awaitable]
        await wl.sleep(1)
        return "done"

    @app.workflow
    async def remembers() -> str:
        call = shop.shout("kept")
        await wl.sleep(1)
        return await call

    with testing.world(app, shop.script_of(shop.shout)) as world:
        with pytest.raises(wl.RunFailed, match="never awaited"):
            world.run(forgets())
        assert world.run(remembers()) == "KEPT"
    with testing.world(app, strict=False) as world:
        assert world.run(forgets()) == "done"
