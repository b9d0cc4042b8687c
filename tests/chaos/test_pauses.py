"""SIGSTOP of whoever holds a world, for three times its lease, and back: it finds itself succeeded and writes nothing.

That nothing was written under the old epoch is L3 of the simulator's auditor, over every commit there was.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests import aio
from tests.chaos import field, holders
from tests.chaos.field import Field
from tests.chaos.processes import Nursery
from tests.servers import postgres
from tests.store import postgres_kit
from worldline.layers import leases

TTL_SECONDS = 0.8
WORLD = "counter-0"
GRACE_SECONDS = 2.0
WORKERS = ("worker-1", "worker-2", "worker-3")


async def holder(chaos: Field) -> tuple[str, leases.LeaseState]:
    """The name of the process that holds the world, once one does."""
    processes = {name: chaos.roles[name][1] for name in WORKERS}
    found: list[tuple[str, leases.LeaseState]] = []

    async def held() -> bool:
        now = await holders.state(chaos.universe, WORLD)
        name = holders.holder(now, processes)
        if name is not None:
            found.append((name, now))
        return name is not None

    await aio.until(held, seconds=field.QUIET_SECONDS)
    return found[-1]


async def stands_in_the_way(chaos: Field, others: list[str]) -> bool:
    """Whether it was stopped with the folder's write lock in its hands: then nobody shows a sign of life any more."""
    workers = [holders.worker_of(chaos.roles[name][1]) for name in others]
    before = [await holders.sign_us(chaos.universe, worker) for worker in workers]

    async def one_lives() -> bool:
        return any(
            [await holders.sign_us(chaos.universe, worker) > then for worker, then in zip(workers, before, strict=True)]
        )

    try:
        await aio.until(one_lives, seconds=GRACE_SECONDS)
    except TimeoutError:
        return True
    return False


async def pause(chaos: Field) -> bool:
    """Stop the world's holder beyond its lease, see it succeeded, and let it go on. False: it had to be let go."""
    name, before = await holder(chaos)
    process = chaos.roles[name][1]
    process.signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        await process.wait_stopped()
        if await stands_in_the_way(chaos, [other for other in WORKERS if other != name]):
            return False

        async def succeeded() -> bool:
            now = await holders.state(chaos.universe, WORLD)
            return now.holder is not None and now.epoch.number > before.epoch.number

        await aio.until(succeeded, seconds=field.QUIET_SECONDS)
        await chaos.answered(10)
        await asyncio.sleep(max(0.0, began + 3 * TTL_SECONDS - time.monotonic()))
        assert process.stopped
        last_us = await holders.sign_us(chaos.universe, holders.worker_of(process))
    finally:
        process.signal(signal.SIGCONT)

    async def lives_again() -> bool:
        return await holders.sign_us(chaos.universe, holders.worker_of(process)) > last_us

    await aio.until(lives_again, seconds=field.QUIET_SECONDS)
    return True


@pytest.mark.parametrize("engine", ["lmdb", "postgres"])
async def test_the_holder_stands_still(engine: str, nursery: Nursery, tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    if engine == "postgres":
        url = postgres.shared().url(schema=postgres_kit.fresh_schema())
    chaos = await Field(nursery, url, tmp_path / "field", seed=f"pauses on {engine}").open()
    try:
        for name in WORKERS:
            await chaos.start(name, field.WORKER)
        chaos.begin("adapter", field.ADAPTER)
        chaos.begin("timer", field.TIMER)
        chaos.work()
        await chaos.answered(20)
        pauses = 0
        async for _ in chaos.for_a_while(0.1, 0.3):
            pauses += await pause(chaos)
        while not pauses:
            pauses += await pause(chaos)
        await chaos.finish()
    finally:
        await chaos.aclose()
