"""Resting until something may have happened: a role is told of what came after its last look, and told once."""

from __future__ import annotations

import asyncio

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.base import env as envs
from worldline.base import errors
from worldline.host import process
from worldline.model.roles import ALL
from worldline.observe import sinks
from worldline.runtime import wakeup
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, memory_engine

PREFIX = b"w/"


async def write(engine: kv.Engine, name: bytes) -> None:
    batch = kv.Batch()
    batch.absent(PREFIX + name)
    batch.put(PREFIX + name, b"")
    assert isinstance((await engine.commit(batch))[0], kv.Ok)


class Role:
    """Rests and looks, and counts how often it was woken."""

    def __init__(self, engine: kv.Engine) -> None:
        self.engine = engine
        self.watch = wakeup.Wakeup(engine, envs.FixedEnv(), [PREFIX])
        self.woken = 0

    async def look(self) -> None:
        self.watch.clear()
        self.watch.hinted = False
        self.watch.looked((await self.engine.read()).seen)

    async def rest(self) -> None:
        await self.watch.rest(60_000)
        self.woken += 1


async def settled() -> None:
    """Everything that could run has run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_news_wake_a_role_once_until_it_has_looked() -> None:
    engine = memory_engine.MemoryEngine(envs.FixedEnv())
    role = Role(engine)
    await role.look()
    resting = asyncio.create_task(role.rest())
    await settled()
    assert not role.woken, "there is nothing new"
    await write(engine, b"1")
    await resting
    assert role.watch.hinted
    role.watch.clear()
    role.watch.hinted = False
    await write(engine, b"2")
    await settled()
    assert not role.watch.hinted, "it knows, and has not looked yet"
    await role.look()
    await settled()
    assert not role.watch.hinted, "it has seen both"
    await write(engine, b"3")
    await aio.until(lambda: _is(role.watch.hinted))
    await role.watch.close()
    await engine.close()


async def test_what_is_written_while_a_role_looks_is_news() -> None:
    engine = memory_engine.MemoryEngine(envs.FixedEnv())
    role = Role(engine)
    before = (await engine.read()).seen
    await write(engine, b"1")
    role.watch.looked(before)
    await asyncio.wait_for(role.rest(), 30)
    assert role.watch.hinted
    await role.watch.close()
    await engine.close()


async def test_a_role_that_has_never_looked_is_left_alone() -> None:
    engine = memory_engine.MemoryEngine(envs.FixedEnv())
    role = Role(engine)
    resting = asyncio.create_task(role.rest())
    await write(engine, b"1")
    await settled()
    assert not role.watch.hinted
    role.watch.wake()
    await resting
    await role.watch.close()
    await engine.close()


# --- The clock that rests go by ---------------------------------------------------------------------------------


class Hasty(kits.Env):
    """Rests and pauses are over at once. Notes which tasks rest."""

    def __init__(self) -> None:
        super().__init__()
        self.rested: dict[str, float] = {}
        self.pauses: list[float] = []

    def timeout(self, seconds: float) -> asyncio.Timeout:
        task = asyncio.current_task()
        assert task is not None
        self.rested[task.get_name()] = seconds
        return super().timeout(0)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


async def test_a_rest_is_as_long_as_the_environment_says() -> None:
    engine, env = memory_engine.MemoryEngine(envs.FixedEnv()), Hasty()
    watch = wakeup.Wakeup(engine, env, [PREFIX])
    await asyncio.wait_for(watch.rest(3_600_000), 30)
    assert list(env.rested.values()) == [3_600]
    await watch.close()
    await engine.close()


async def test_a_watch_pauses_by_it_while_the_store_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, env = memory_engine.MemoryEngine(envs.FixedEnv()), Hasty()

    async def out_of_reach(prefix: bytes, seen: int, timeout_ms: int) -> bool:
        del prefix, seen, timeout_ms
        raise errors.StoreUnavailable("down")

    watch = wakeup.Wakeup(engine, env, [PREFIX])
    watch.looked(0)
    monkeypatch.setattr(engine, "wait", out_of_reach)
    await watch.rest(0)
    await aio.until(lambda: _is(len(env.pauses) > 2))
    assert set(env.pauses) == {wakeup.PAUSE_SECONDS}
    await watch.close()
    await engine.close()


@pytest.mark.parametrize("served", ["one universe", "many"])
async def test_every_role_rests_by_the_environment(memory_kit: Kit, served: str) -> None:
    """All that a process may run, and what watches it."""
    memory_kit.env = env = Hasty()
    connection = (await memory_kit.process()).universe._connection
    one, many = Universes.only(connection.id), Universes(patterns=["*"])
    with sinks.observed(wl.ops.Sinks(metrics=lambda _: None), features=()) as observed:
        host = process.ProcessHost(
            connection.store,
            one if served == "one universe" else many,
            [wl.Program("p")],
            blobs=lambda _: connection.blobs,
            settings=kits.settings(janitor={"prove_ms": 1_000}),
            roles=ALL,
            telemetry=observed.telemetry,
            watchdog=True,
        )
        assert len(host._loops) == 9 + (served == "many")
        host.start()
        await aio.until(lambda: _is({each.name for each in host._loops} <= env.rested.keys()))
        await host.close()


async def _is(value: bool) -> bool:
    return value
