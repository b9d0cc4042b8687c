"""Warm coroutines are a cache: dropping them, at any time and by any way, changes nothing and runs nothing."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.kernel import state_rows

ran: list[str] = []
app = wl.Program("drops")


@app.effect
async def work(text: str) -> str:
    ran.append(f"work {text}")
    return text


@app.effect
def undo(text: str) -> str:
    ran.append(f"undo {text}")
    return text


@app.workflow
async def tidy(text: str) -> str:
    """Does everything in its finally blocks that must not happen when it is only dropped."""
    timer = wl.after(100, shop.Rejected(text))
    try:
        async with wl.scope() as scope:
            _ = scope.start(nap(100))
            await work(text)
    finally:
        timer.cancel()
        wl.emit(shop.Approved(text))
        wl.log.warning("leaving")
        _ = wl.start(nap(1))
        await undo(text)
        await wl.sleep(5)
    return text


@app.workflow
async def nap(seconds: int) -> int:
    await wl.sleep(seconds)
    return seconds


@app.workflow
async def raises_when_closed() -> str:
    try:
        await wl.sleep(10)
    except BaseException as error:
        raise ValueError("at the end") from error
    return "done"


class Stubborn:
    def __await__(self) -> Any:
        yield "foreign"


@app.workflow
async def clings() -> str:
    while True:
        try:
            await wl.sleep(10)
            return "done"
        except GeneratorExit:
            await Stubborn()


@app.workflow
async def generates() -> int:
    async def numbers() -> Any:
        try:
            for number in range(3):
                await wl.sleep(1)
                yield number
        finally:
            await undo("generator")

    total = 0
    async for number in numbers():
        total += number
        await wl.sleep(1)
    return total


def script() -> wl.Script:
    return wl.Script().on(work, wl.Script.later(10, "x")).on(undo, "y")


def scenario(world: testing.TestWorld) -> list[Any]:
    runs = [world.start(tidy("a"), id="a"), world.start(generates(), id="g"), world.start(nap(3), id="n")]
    world.advance(200)
    return [run.result() for run in runs]


@pytest.mark.parametrize("seed", range(5))
def test_dropping_at_random_changes_nothing(seed: int) -> None:
    with testing.world(app, script(), drops=False) as warm, testing.world(app, script(), seed=seed) as dropped:
        assert scenario(warm) == scenario(dropped)
        assert warm.head == dropped.head
        assert warm.journal() == dropped.journal()
        assert state_rows.save(warm.machine) == state_rows.save(dropped.machine)


@pytest.mark.parametrize("way", ["cool", "close"])
def test_no_finally_block_does_anything_when_a_coroutine_is_dropped(way: str, caplog: pytest.LogCaptureFixture) -> None:
    ran.clear()
    with testing.world(app, script(), drops=False) as world:
        for call in (tidy("a"), raises_when_closed(), clings(), generates()):
            world.start(call)
        world.advance(2)  # generates() is now between two of its numbers
        before, work_before = state_rows.save(world.machine), dict(world.machine.work.open)
        runs = list(world.machine.runs.values())
        assert sum(run.coroutine is not None for run in runs) == 5
        if way == "cool":
            for run in runs:
                run.cool()
        else:
            world.machine.close()
        del runs
        gc.collect()
        assert state_rows.save(world.machine) == before
        assert world.machine.work.open == work_before
    assert ran == []
    assert caplog.records == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_coroutine_that_nobody_closes_runs_no_effect_either() -> None:
    ran.clear()
    with testing.world(app, script(), drops=False) as world:
        for call in (tidy("a"), generates()):
            world.start(call)
        world.advance(2)
        for run in world.machine.runs.values():
            run.coroutine = None  # as if it were lost: it is just garbage now
        gc.collect()
    assert ran == []


def test_a_machine_that_is_garbage_runs_nothing() -> None:
    ran.clear()
    with testing.world(app, script(), drops=False, twice=False) as world:
        world.start(tidy("a"))
        machine = world.machine
        world._actor.life.machine = type(machine)(app)
        machine.runs["self"] = machine  # type: ignore[assignment]  # a cycle, so that only the collector finds it
        del machine
        gc.collect()
    assert ran == []


def test_stubborn_coroutines_end_with_their_run() -> None:
    with testing.world(app, script()) as world:
        first, second = world.start(raises_when_closed()), world.start(clings())
        assert first.result() == "done"
        assert second.result() == "done"


def test_two_kernels_in_two_threads_do_not_see_each_other() -> None:
    done: dict[int, Any] = {}

    def live(number: int) -> None:
        with testing.world(app, script(), seed=number) as world:
            said = [[world.run(tidy("a")), world.run(generates())] for _ in range(5)]
            done[number] = (said, world.head.chain)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 4
    assert len({str(each) for each in done.values()}) == 1
