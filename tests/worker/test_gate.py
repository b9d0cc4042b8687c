"""The output gate: nothing leaves a world before the commit that says so is known to have happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit
from tests.kits.sums import AddUp
from worldline.base import errors
from worldline.keys import journal as journal_keys
from worldline.keys import work as work_keys
from worldline.model import ids
from worldline.model.journal import JournalEntry
from worldline.store import kv


class Watched:
    """Takes its time with every commit, and knows what has been committed so far."""

    def __init__(self, engine: kv.Engine) -> None:
        self._engine = engine
        self.written: dict[bytes, bytes] = {}  # by batches whose `Ok` was given out
        self.fail: type[errors.StoreError] | None = None
        self.going = asyncio.Event()
        self.going.set()

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        await asyncio.sleep(0.01)
        await self.going.wait()
        if self.fail is not None:
            raise self.fail("scripted")
        outcomes = await self._engine.commit(*batches)
        await asyncio.sleep(0.01)
        note(self.written, batches, outcomes)
        return outcomes

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()


def note(into: dict[bytes, bytes], batches: Sequence[kv.Batch], outcomes: list[kv.Outcome]) -> None:
    for batch, outcome in zip(batches, outcomes, strict=True):
        if isinstance(outcome, kv.Ok):
            into.update({key: put.value for key, put in batch.puts.items()})


def height(written: dict[bytes, bytes], at: ids.Address) -> int:
    raw = written.get(journal_keys.head_key(at))
    return 0 if raw is None else journal_keys.HEAD.unpack(raw).height


def program(called: list[str], look: Callable[[str], None] = lambda _: None) -> wl.Program:
    app = sums.program()

    @app.effect
    async def touch(number: int) -> int:
        look(wl.attempt().key)
        called.append(wl.attempt().key)
        return number

    @app.workflow
    async def go(count: int) -> int:
        return sum(await wl.gather(*(touch(number) for number in range(count))))

    return app


async def hosted(kit: Kit, app: wl.Program) -> tuple[kits.Process, Watched]:
    made: list[Watched] = []

    def wrap(engine: Any) -> Watched:
        made.append(Watched(engine))
        return made[-1]

    return await kit.process(app, wrap=wrap), made[0]


async def test_no_effect_is_called_before_its_commit(kit: Kit) -> None:
    called: list[str] = []
    early: list[str] = []

    def look(key: str) -> None:
        if work_keys.open_key(at, ids.IntentId(bytes.fromhex(key))) not in watched.written:
            early.append(key)

    app = program(called, look)
    process, watched = await hosted(kit, app)
    world = await process.universe.ensure("w", app)
    at = await world._handle.address()
    assert await world.run(app.workflows["go"](20), timeout=20) == sum(range(20))
    assert (len(called), early) == (20, [])
    await process.close()


async def test_no_caller_and_no_follower_is_told_before_the_commit(kit: Kit) -> None:
    app = program([])
    process, watched = await hosted(kit, app)
    world = await process.universe.ensure("w", app)
    at = await world._handle.address()
    seen: list[JournalEntry] = []
    early: list[int] = []

    async def follow() -> None:
        async for each in world.follow(above=0):
            if isinstance(each, JournalEntry):
                seen.append(each)
                if each.height > (await world.head()).height:
                    early.append(each.height)

    following = asyncio.ensure_future(follow())

    async def ask(number: int) -> None:
        await world.ask(AddUp(number), timeout=20)
        heights.append(height(watched.written, at))

    heights: list[int] = []
    await asyncio.gather(*(ask(number) for number in range(10)))
    for number in range(3):
        sent = await world.send(AddUp(number))
        assert await sent.applied() <= height(watched.written, at)
    assert all(heights)

    async def all_seen() -> bool:
        return len(seen) == (await world.head()).height

    await aio.until(all_seen)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert early == []
    assert [each.height for each in seen] == list(range(1, len(seen) + 1))
    await process.close()


async def test_what_is_not_committed_has_not_happened(memory_kit: Kit) -> None:
    """A step was computed and could not be written: its effect is not called, its caller is not answered."""
    called: list[str] = []
    app = program(called)
    process, watched = await hosted(memory_kit, app)
    world = await process.universe.ensure("w", app)
    assert await world.ask(AddUp(1), timeout=10) == 1
    watched.going.clear()
    starting = asyncio.ensure_future(world.start(app.workflows["go"](5), id="r"))
    await asyncio.sleep(0.05)
    asked = asyncio.ensure_future(world.ask(AddUp(10)))
    await asyncio.sleep(0.05)
    assert len(process.host.effects._promised) == 5, "its effects are as good as claimed"
    assert called == []
    assert not asked.done()
    assert not starting.done()
    watched.fail = errors.StoreUnavailable
    watched.going.set()
    results = await asyncio.gather(asked, starting, return_exceptions=True)
    assert [type(each) for each in results] == [errors.StoreUnavailable, errors.StoreUnavailable]
    assert called == []
    assert process.host.effects._promised == {}, "what was set aside for its effects is free again"
    watched.fail = None
    assert await world.ask(AddUp(100), timeout=10) == 101
    assert called == []
    await process.close()


async def test_what_is_lost_to_another_host_has_not_happened_here(memory_kit: Kit) -> None:
    """The commit comes too late: another has the world. The effect is called there, once, and not here."""
    called: list[str] = []
    app = program(called)
    process, watched = await hosted(memory_kit, app)
    world = await process.universe.ensure("w", app)
    assert await world.ask(AddUp(1), timeout=10) == 1
    watched.going.clear()
    running = asyncio.ensure_future(world.run(app.workflows["go"](5), id="r"))
    await asyncio.sleep(0.05)
    await memory_kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)
    other = await memory_kit.process(app)
    assert await other.universe.world("w").ask(AddUp(10), timeout=10) == 11
    watched.going.set()
    assert await running == 10
    assert len(called) == 5
    assert process.host.effects._promised == {}
    assert process.host.effects.performed == 0
    await process.close()
    await other.close()


async def test_an_answer_that_nobody_can_know_is_an_error(memory_kit: Kit) -> None:
    """The store cannot say whether the step was written: the caller hears that, and is not silently served twice."""
    app = program([])
    process, watched = await hosted(memory_kit, app)
    world = await process.universe.ensure("w", app)
    assert await world.ask(AddUp(1), timeout=10) == 1
    watched.fail = errors.StoreUncertain
    with pytest.raises(errors.StoreUncertain):
        await world.ask(AddUp(10), timeout=10)
    watched.fail = None
    assert await world.ask(AddUp(100), timeout=10) == 101
    await process.close()
