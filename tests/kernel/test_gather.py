"""`wl.gather(return_exceptions=True)`: one failure is one result, and nothing else is cancelled for it."""

from __future__ import annotations

from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.kernel.rows.row_records import RunStatus

app = wl.Program("gather")


@app.effect(retry=wl.Retry(attempts=1))
async def fetch(name: str) -> str:
    return name


@app.workflow
async def child(name: str) -> str:
    await wl.sleep(1)
    if name == "bad":
        raise ValueError("bad child")
    return name


def shown(results: list[Any]) -> list[str]:
    return [f"{type(each).__name__} {each.code}" if isinstance(each, wl.Error) else each for each in results]


@app.workflow
async def each_by_itself(names: list[str]) -> list[str]:
    return shown(await wl.gather(*[fetch(name) for name in names], return_exceptions=True))


@app.workflow
async def mixed() -> list[str]:
    a, b, c = await wl.gather(fetch("x"), child("bad"), child("good"), return_exceptions=True)
    return shown([a, b, c])


@app.workflow
async def first_failure(names: list[str]) -> list[str]:
    return await wl.gather(*[fetch(name) for name in names])


@app.workflow
async def limited() -> str:
    async with wl.scope(timeout=5) as scope:
        await wl.gather(fetch("now"), fetch("never"), child("good"), fetch("never"), return_exceptions=True)
    return "too slow" if scope.timed_out else "done"


def answer(name: str) -> str:
    if name == "down":
        raise ConnectionError("no route")
    if name == "fatal":
        raise wl.Fatal("declined", code="declined")
    return name.upper()


def script() -> wl.Script:
    return wl.Script().on(fetch, answer)


@pytest.mark.parametrize("seed", range(5))
def test_failures_stand_in_their_places(seed: int) -> None:
    with testing.world(app, script(), seed=seed, shuffle=True) as world:
        names = ["a", "down", "b", "fatal", "c"]
        expected = ["A", "EffectFailed ConnectionError", "B", "EffectFailed declined", "C"]
        assert world.run(each_by_itself(names)) == expected
        assert world.run(each_by_itself([])) == []
        assert world.run(each_by_itself(["a", "b"])) == ["A", "B"]
        world.prove()


def test_without_it_the_first_failure_is_raised_and_cancels_the_others() -> None:
    slow = wl.Script().on(fetch, lambda name: answer(name), wl.Script.never())
    with testing.world(app, slow) as world:
        with pytest.raises(wl.RunFailed, match="no route") as caught:
            world.run(first_failure(["down", "never"]))
        assert caught.value.code == "ConnectionError"
        assert len(world.machine.work.open) == 0


def test_children_too() -> None:
    with testing.world(app, script()) as world:
        assert world.run(mixed()) == ["X", "RunFailed ValueError", "good"]
        world.prove()


def test_a_cancellation_ends_them_all() -> None:
    slow = wl.Script().on(fetch, "now", wl.Script.never())
    with testing.world(app, slow) as world:
        assert world.run(limited()) == "too slow"
        assert len(world.machine.work.open) == 0
        run = world.start(limited(), id="cut")
        run.cancel("enough")
        assert run.status is RunStatus.CANCELLED
        assert len(world.machine.work.open) == 0
        world.prove()


def test_a_crash_at_every_entry_changes_nothing() -> None:
    def scenario(world: testing.TestWorld) -> None:
        assert world.run(mixed(), id="r") == ["X", "RunFailed ValueError", "good"]

    assert testing.crash_everywhere(scenario, app, script()) > 5
