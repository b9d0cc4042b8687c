from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from worldline.sim.runtime import sim_loop as loops
from worldline.sim.runtime.sim_loop import SimLoop, SimMachine


def run(main: Callable[[SimLoop], Any], *, seed: str = "0", seconds: float = 10_000, shuffle: bool = False) -> Any:
    loop = SimLoop(seed, shuffle=shuffle)
    try:
        return loop.run(main(loop), seconds=seconds)
    finally:
        loop.finish()


def test_time_is_virtual_and_ordered() -> None:
    async def main(loop: SimLoop) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, round(loop.time())))

        await asyncio.gather(after(3600, "late"), after(5, "soon"), after(60, "between"))
        return seen

    began = time.monotonic()
    assert run(main) == [("soon", 5), ("between", 60), ("late", 3600)]
    assert time.monotonic() - began < 5


async def racers(loop: SimLoop) -> str:
    order: list[str] = []

    async def race(name: str) -> None:
        for _ in range(5):
            order.append(name)
            await asyncio.sleep(0)

    done = [loop.create_future() for _ in "abc"]

    async def on_host(name: str, end: asyncio.Future[Any]) -> None:
        await race(name)
        end.set_result(None)

    for name, end in zip("abc", done, strict=True):
        loop.start(SimMachine(name), on_host(name, end), name=name)
    await asyncio.gather(*done)
    return "".join(order)


def test_the_seed_decides_who_goes_first() -> None:
    orders = {seed: run(racers, seed=seed) for seed in map(str, range(20))}
    assert orders == {seed: run(racers, seed=seed) for seed in map(str, range(20))}
    assert len(set(orders.values())) > 10


def test_a_deadlock_names_who_waits() -> None:
    async def forgotten(loop: SimLoop) -> None:
        await loop.create_future()

    async def main(loop: SimLoop) -> None:
        await loop.create_task(forgotten(loop), name="the forgotten one")

    with pytest.raises(loops.Deadlock, match="the forgotten one"):
        run(main)


def test_a_run_that_takes_too_long_is_stuck() -> None:
    async def main(loop: SimLoop) -> None:
        while True:  # noqa: ASYNC110 - it is not to end
            await asyncio.sleep(1)

    with pytest.raises(loops.SimulationStuck, match="main"):
        run(main, seconds=10)


def test_a_crash_runs_nothing_more_of_its_host() -> None:
    seen: list[str] = []

    async def doomed() -> None:
        try:
            await asyncio.sleep(10)
            seen.append("woke up")
        finally:
            seen.append("cleaned up")

    async def main(loop: SimLoop) -> None:
        host, other = SimMachine("doomed"), SimMachine("other")
        loop.start(host, doomed(), name="doomed")
        loop.start(other, doomed(), name="other")
        await asyncio.sleep(1)
        loop.crash(host)
        await asyncio.sleep(100)
        assert seen == ["woke up", "cleaned up"]

    run(main)


def test_a_frozen_host_goes_on_later() -> None:
    async def main(loop: SimLoop) -> list[int]:
        seen: list[int] = []

        async def tick() -> None:
            for _ in range(3):
                await asyncio.sleep(1)
                seen.append(round(loop.time()))

        host = SimMachine("slow")
        loop.start(host, tick(), name="tick")
        await asyncio.sleep(1.5)
        loop.freeze(host)
        await asyncio.sleep(8.5)
        loop.thaw(host)
        await asyncio.sleep(5)
        return seen

    assert run(main) == [1, 10, 11]


def test_an_executor_is_one_lane_without_a_loop() -> None:
    order: list[int] = []

    def job(number: int) -> int:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        order.append(number)
        return number

    async def main(loop: SimLoop) -> None:
        pool = ThreadPoolExecutor(1)
        jobs = [loop.run_in_executor(pool, job, number) for number in range(20)]
        pool.submit(job, 20)
        assert await asyncio.gather(*jobs) == list(range(20))
        await asyncio.sleep(1)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(pool, lambda: 1 // 0)

    run(main, shuffle=True)
    assert order == list(range(21))


def test_sets_of_tasks_do_not_depend_on_addresses() -> None:
    async def main(loop: SimLoop) -> list[str]:
        tasks = [loop.create_task(asyncio.sleep(0, result=name), name=name) for name in "abcdefgh"]
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    first = run(main)
    junk = [object() for _ in range(1_000)]
    assert run(main) == first
    del junk


@pytest.mark.parametrize(
    "reach",
    [
        lambda loop: threading.Thread(target=print).start(),
        lambda loop: socket.socket(),
        lambda loop: subprocess.Popen(["true"]),
        lambda loop: time.sleep(0),
        lambda loop: loop.add_signal_handler(1, print),
        lambda loop: loop.call_soon_threadsafe(print),
        lambda loop: loop.add_reader(0, print),
    ],
)
def test_the_outside_is_fenced_off(reach: Callable[[SimLoop], object]) -> None:
    async def main(loop: SimLoop) -> None:
        with pytest.raises(loops.OutsideCall):
            reach(loop)

    before = threading.Thread.start, time.sleep
    run(main)
    assert (threading.Thread.start, time.sleep) == before


def test_a_job_that_waits_for_the_loop_gets_its_answer_at_once() -> None:
    """Time goes on meanwhile, and nothing else happens."""

    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []

        async def other() -> None:
            await asyncio.sleep(1)
            seen.append(f"other at {loop.time():.0f}")

        async def fetch() -> str:
            await asyncio.sleep(0)
            await asyncio.sleep(5)
            seen.append(f"fetched at {loop.time():.0f}")
            return "value"

        def job() -> str:
            return asyncio.run_coroutine_threadsafe(fetch(), loop).result(0)

        beside = asyncio.ensure_future(other())
        seen.append(await loop.run_in_executor(None, job))
        await beside
        return seen

    assert run(main) == ["fetched at 5", "value", "other at 5"]


def test_a_job_that_waits_fails_as_what_it_waits_for_does() -> None:
    async def main(loop: SimLoop) -> str:
        async def fetch() -> None:
            await asyncio.sleep(1)
            raise ValueError("no")

        async def never() -> None:
            await loop.create_future()

        def job(doing: Callable[[], Any]) -> None:
            asyncio.run_coroutine_threadsafe(doing(), loop).result(0)

        with pytest.raises(ValueError, match="no"):
            await loop.run_in_executor(None, job, fetch)
        with pytest.raises(loops.OutsideCall, match="never"):
            await loop.run_in_executor(None, job, never)
        return "goes on"

    assert run(main) == "goes on"


def test_a_host_that_dies_while_its_job_waits_does_nothing_more() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        host = SimMachine("a")

        async def fetch() -> None:
            loop.crash(host)
            await asyncio.sleep(1)
            seen.append("goes on")

        def job() -> None:
            try:
                asyncio.run_coroutine_threadsafe(fetch(), loop).result(0)
            except loops.Died:
                seen.append("died")
                raise

        async def live() -> None:
            await loop.run_in_executor(None, job)
            seen.append("answered")

        loop.start(host, live(), name="live")
        await asyncio.sleep(60)
        return seen

    assert run(main) == ["died"]
