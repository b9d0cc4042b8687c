"""Resting until something may have happened: a role is told of what came after its last look, and told once."""

from __future__ import annotations

import asyncio

from tests import aio
from worldline.base import env as envs
from worldline.roles import wakeup
from worldline.store import kv, memory

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
        self.watch = wakeup.Watch(engine, [PREFIX])
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
    engine = memory.MemoryEngine(envs.FixedEnv())
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
    engine = memory.MemoryEngine(envs.FixedEnv())
    role = Role(engine)
    before = (await engine.read()).seen
    await write(engine, b"1")
    role.watch.looked(before)
    await asyncio.wait_for(role.rest(), 30)
    assert role.watch.hinted
    await role.watch.close()
    await engine.close()


async def test_a_role_that_has_never_looked_is_left_alone() -> None:
    engine = memory.MemoryEngine(envs.FixedEnv())
    role = Role(engine)
    resting = asyncio.create_task(role.rest())
    await write(engine, b"1")
    await settled()
    assert not role.watch.hinted
    role.watch.wake()
    await resting
    await role.watch.close()
    await engine.close()


async def _is(value: bool) -> bool:
    return value
