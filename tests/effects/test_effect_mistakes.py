"""Effects that fail say so in the host's log, one line for each attempt; mistakes in their code are not tried again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import worldline as wl
from tests import aio
from worldline import testing

app = wl.Program("mistakes")
FAST = wl.Retry(initial_delay=0.001, max_delay=0.001)
calls: list[str] = []


class OwnError(NameError):
    """A class of the user's own, which may help itself."""


def two(first: int, second: int) -> int:
    return first + second


def _name() -> None:
    return undefined  # type: ignore[name-defined,no-any-return]  # noqa: F821


def _attribute() -> Any:
    return "text".shout()  # type: ignore[attr-defined]


def _module() -> None:
    import worldline.no_such_module  # type: ignore[import-not-found] # noqa: F401, PLC0415


def _syntax() -> None:
    compile("def (", "made.py", "exec")


def _too_few() -> int:
    return two(1)  # type: ignore[call-arg]


def _by_name() -> int:
    return two(1, second=2, third=3)  # type: ignore[call-arg]


def _own() -> None:
    raise OwnError("busy")


def _type() -> None:
    raise TypeError("the answer was a list")


def _library() -> None:
    logging.Formatter("%(name)s").format("no record")  # type: ignore[arg-type]


def _network() -> None:
    raise ConnectionError("down")


MISTAKES: dict[str, Callable[[], object]] = {
    "NameError": _name,
    "AttributeError": _attribute,
    "ModuleNotFoundError": _module,
    "SyntaxError": _syntax,
    "TypeError": _too_few,
    "TypeError, by name": _by_name,
}
OTHERS: dict[str, Callable[[], object]] = {
    "of one's own": _own,
    "raised": _type,
    "in a library": _library,
    "network": _network,
}


@app.effect(retry=FAST)
def fails(kind: str) -> None:
    calls.append(kind)
    (MISTAKES | OTHERS)[kind]()


@app.effect(retry=wl.Retry(attempts=None, initial_delay=0.001, max_delay=0.001))
def insists() -> str:
    calls.append("insists")
    return undefined if len(calls) == 1 else "mended"  # type: ignore[name-defined]  # noqa: F821


@app.workflow
async def flow(kind: str) -> int:
    try:
        await fails(kind)
    except wl.EffectFailed as failed:
        return failed.attempts
    return 0


@app.workflow
async def insisting() -> str:
    return await insists()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "worldline.adapter"]


@pytest.mark.parametrize("kind", MISTAKES)
async def test_a_mistake_in_the_code_is_said_at_once_and_not_tried_again(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls.clear()
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        assert await world.run(flow(kind), timeout=20) == 1
    assert calls == [kind]
    [line] = lines(caplog)
    assert "failed after 1 attempt, a mistake in its code, which is not tried again: " in line
    assert kind.partition(",")[0] in line
    assert "(test_effect_mistakes.py:" in line
    assert "that is wl.EffectFailed in its workflow, an error in its domain" in line
    calls.clear()
    with testing.world(app, wl.Script().on(fails, fails)) as kit:
        assert kit.run(flow(kind)) == 1


@pytest.mark.parametrize("kind", OTHERS)
async def test_other_failures_are_tried_again_and_each_is_one_line(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    calls.clear()
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        assert await world.run(flow(kind), timeout=20) == 5
    assert len(calls) == 5
    said = lines(caplog)
    assert len(said) == 5
    for number, line in enumerate(said[:4], 1):
        assert f"attempt {number} of 5 failed: " in line
        assert "; tried again in 0.001 s, or now with `worldline effect retry " in line
    assert "failed after 5 attempts: " in said[4]


@app.effect(retry=wl.Retry(initial_delay=3600, max_delay=3600))
def slow() -> None:
    _network()


@app.workflow
async def slowly() -> None:
    await slow()


async def test_a_long_pause_is_said_in_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        _ = await world.start(slowly())

        async def is_said() -> bool:
            return bool(lines(caplog))

        await aio.until(is_said)
        assert "; tried again in 3600 s, or now with `worldline effect retry " in lines(caplog)[0]


async def test_where_attempts_have_no_limit_it_is_parked_until_the_code_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls.clear()
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(insisting())

        async def is_parked() -> bool:
            return bool(await world.effects(state=wl.WorkState.PARKED))

        await aio.until(is_parked)
        parked = await world.effects(state=wl.WorkState.PARKED)
        [line] = lines(caplog)
        assert "is parked after attempt 1: NameError: name 'undefined' is not defined (test_effect_mistakes.py:" in line
        assert f"; when its code is fixed: `worldline effect retry {parked[0].id[:12]}`" in line
        await parked[0].retry()
        assert await run.result(20) == "mended"
    assert len(calls) == 2
