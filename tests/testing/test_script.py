"""Scripts: what they take, in which order they answer, and that wrong answers are found early."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.kernel.authoring import scripts

app = wl.Program("scripts")


@dataclass(frozen=True)
class Parcel:
    number: int
    tags: list[str]


@app.effect
async def ship(order: str, fast: bool = False) -> Parcel:
    return Parcel(1, [order, str(fast)])


@app.effect(retry=wl.Retry(attempts=3, initial_delay=1, max_delay=1))
async def name() -> str:
    return "x"


@app.effect
async def nothing() -> None: ...


@app.effect
async def anything() -> Any:
    return 1


@app.effect(retry=wl.Retry(attempts=2, on_exhausted="park"))
async def precious() -> str:
    return "x"


@app.workflow
async def names(count: int) -> list[str]:
    return [await name() for _ in range(count)]


@app.workflow
async def ships(order: str) -> list[Any]:
    return [await ship(order), await ship(order, fast=True)]


@app.workflow
async def keeps() -> str:
    return await precious()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["a"], ["a", "a", "a"]),
        (["a", "b"], ["a", "b", "b"]),
        ([ConnectionError, "a", ConnectionError("down"), "b"], ["a", "b", "b"]),
        ([lambda: "made"], ["made"] * 3),
        ([lambda: f"attempt {wl.attempt().number}"], ["attempt 1"] * 3),
        ([scripts.Script.later(5, "slow"), "fast"], ["slow", "fast", "fast"]),
        ([scripts.Script.later(5, ConnectionError), "b"], ["b"] * 3),
    ],
    ids=["one", "two", "failures", "function", "attempt", "later", "later failure"],
)
def test_answers_are_used_up_and_the_last_one_stays(answers: list[Any], expected: list[str]) -> None:
    with testing.world(app, wl.Script().on(name, *answers)) as world:
        assert world.run(names(3)) == expected
        world.prove()


def test_functions_are_given_the_calls_arguments() -> None:
    seen: list[Any] = []

    def shipped(order: str, fast: bool = False) -> Parcel:
        seen.append((order, fast, wl.attempt().key))
        return Parcel(len(seen), [])

    with testing.world(app, wl.Script().on(ship, shipped)) as world:
        assert world.run(ships("o1")) == [{"number": 1, "tags": []}, {"number": 2, "tags": []}]
    assert [each[:2] for each in seen] == [("o1", False), ("o1", True)]
    assert len({each[2] for each in seen}) == 2


@pytest.mark.parametrize(
    ("effect", "answers", "message"),
    [
        (name, [5], r"script of name\(\): 5 is not its answer, str"),
        (name, ["fine", None], r"None is not its answer, str"),
        (ship, [{"number": 1}], "is not its answer, Parcel"),
        (nothing, ["something"], "is not its answer"),
        (anything, [object()], "is not its answer"),
        (name, [], "at least one answer"),
        (name, [wl.Script.later(5, 7)], "7 is not its answer"),
    ],
    ids=["type", "none", "record", "something", "object", "no answer", "later"],
)
def test_wrong_answers_are_found_when_the_script_is_written(
    effect: wl.Effect[..., Any], answers: list[Any], message: str
) -> None:
    with pytest.raises(wl.BadInput, match=message):
        wl.Script().on(effect, *answers)


def test_coroutine_functions_and_other_things_are_refused() -> None:
    async def answer() -> str:
        return "x"

    with pytest.raises(wl.BadInput, match="plain function"):
        wl.Script().on(name, answer)  # type: ignore[arg-type]
    with pytest.raises(wl.BadInput, match="script an effect"):
        wl.Script().on(names, "x")  # type: ignore[arg-type]


def test_a_function_that_answers_wrongly_fails_the_test_and_not_the_effect() -> None:
    script = wl.Script().on(name, lambda: 5)  # type: ignore[arg-type, return-value]
    with testing.world(app, script) as world, pytest.raises(wl.BadInput, match="5 is not its answer, str"):
        world.run(names(1))
    script = wl.Script().on(name, lambda: wl.Script.later(1, "x"))  # type: ignore[arg-type, return-value]
    with testing.world(app, script) as world, pytest.raises(wl.BadInput, match="outside, around the function"):
        world.run(names(1))


def test_an_effect_without_a_script_is_named_with_what_to_write() -> None:
    with testing.world(app) as world, pytest.raises(testing.Unscripted) as caught:
        world.run(ships("o1"))
    assert "effect ship('o1') was called" in str(caught.value)
    assert "wl.Script().on(ship, " in str(caught.value)


def test_a_script_of_another_program_is_refused() -> None:
    other = wl.Program("other")
    with pytest.raises(wl.BadInput, match="'other' does not have"), testing.world(other, wl.Script().on(name, "x")):
        pass


def test_the_last_script_of_an_effect_counts_and_one_script_serves_many_worlds() -> None:
    script = wl.Script().on(name, "a").on(name, "b", "c")
    for _ in range(2):
        with testing.world(app, script) as world:
            assert world.run(names(2)) == ["b", "c"]
    assert repr(script) == "Script(name: ['b', 'c'])"


def test_parked_effects_are_named() -> None:
    with testing.world(app, wl.Script().on(precious, ConnectionError("down"))) as world:
        with pytest.raises(testing.Stuck, match="effect precious is parked: ConnectionError: down"):
            world.run(keeps())
        assert world.machine.work.open


def test_try_again_says_how_long_to_wait() -> None:
    with testing.world(app, wl.Script().on(name, wl.TryAgain("busy", after=100), "x")) as world:
        started = world.now
        assert world.run(names(1)) == ["x"]
        assert (world.now - started).total_seconds() == 100


def test_never_is_ended_by_timeouts_alone() -> None:
    slow = wl.Program("slow")

    @slow.effect(timeout=10, retry=wl.Retry(attempts=2, initial_delay=5))
    async def hangs() -> str:
        return "x"

    @slow.workflow
    async def tries() -> str:
        try:
            return await hangs()
        except TimeoutError as error:
            return str(error)

    with testing.world(slow, wl.Script().on(hangs, wl.Script.never())) as world:
        started = world.now
        assert world.run(tries()) == "hangs: the attempt took too long"
        assert (world.now - started).total_seconds() == 25


def test_the_built_in_http_effect_can_be_scripted() -> None:
    web = wl.Program("web")

    @web.workflow
    async def fetches() -> int:
        return (await wl.http.request("GET", "https://example.com")).status

    script = wl.Script().on(
        wl.http.request, wl.http.Response(status=204, url="https://example.com", headers={}, body=b"")
    )
    with testing.world(web, script) as world:
        assert world.run(fetches()) == 204


# --- Effects' own functions ------------------------------------------------------------------------------------

waiting = wl.Program("waiting")


@waiting.effect(timeout=0.2, retry=wl.Retry(attempts=2, initial_delay=1))
async def slow(kind: str) -> str:
    if kind == "hangs":
        await asyncio.Event().wait()
    async with asyncio.timeout(5):
        answer = await asyncio.to_thread(threading.active_count)  # a loop that works as loops do
    if kind == "raises" and wl.attempt().number == 1:
        raise ConnectionError("down")
    return f"{kind} {answer > 0} {wl.attempt().number}"


@waiting.workflow
async def waits(kind: str) -> str:
    try:
        return await slow(kind)
    except wl.EffectTimeout as late:
        return f"{late} ({late.attempts})"


SLOW = {"answers": "answers True 1", "raises": "raises True 2", "hangs": "slow: the attempt took too long (2)"}


@pytest.mark.parametrize("kind", SLOW)
def test_an_effect_that_awaits_asyncio_answers_for_itself(kind: str) -> None:
    with testing.world(waiting, wl.Script().on(slow, slow)) as world:
        assert world.run(waits(kind)) == SLOW[kind]
        world.prove()


@pytest.mark.parametrize("kind", SLOW)
async def test_also_where_a_loop_is_running(kind: str) -> None:
    loop = asyncio.get_running_loop()
    with testing.world(waiting, wl.Script().on(slow, slow)) as world:
        assert world.run(waits(kind)) == SLOW[kind]
        fork = world.fork("other", script=wl.Script().on(slow, slow), live=True)
        assert fork.run(waits(kind)) == SLOW[kind]
    assert asyncio.get_running_loop() is loop


def test_where_there_is_no_loop_an_effect_that_waits_is_refused() -> None:
    """As in the simulator, whose time is its own."""
    empty = wl.Program("empty")

    @empty.effect
    async def yields() -> None:
        await asyncio.sleep(0)

    reading = scripts.ScriptProgress(wl.Script().on(yields, yields))
    with pytest.raises(testing.Unscripted, match=r"script of yields\(\): its function waits for something, and there"):
        reading.attempt(yields, yields().pack())
