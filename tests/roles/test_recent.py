"""Inputs that are sent without a read before them: to worlds this process has sent to just before, and to no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.layers import scenario
from tests.roles import kit as kits
from tests.roles.kit import Kit
from tests.roles.sums import Add, AddUp, program
from worldline.base import env as envs
from worldline.base import errors
from worldline.client import known_worlds
from worldline.layers import inbox as inboxes
from worldline.layers import ready
from worldline.model.world import Status
from worldline.roles.world import step_batch
from worldline.store import kv


class Counting(kits.Around):
    """An engine that counts the reads, and keeps commits waiting as long as it is told to."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.reads = 0
        self.open = asyncio.Event()
        self.open.set()

    async def read(self, *requests: kv.Request) -> kv.Snapshot:
        self.reads += 1
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        await self.open.wait()
        return await self._engine.commit(*batches)


async def client_of(kit: Kit) -> tuple[kits.Process, Counting]:
    made: list[Counting] = []

    def wrap(engine: Any) -> Counting:
        made.append(Counting(engine))
        return made[-1]

    return await kit.process(wrap=wrap), made[0]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read stays fresh, however slow the machine is."""
    monkeypatch.setattr(known_worlds, "FRESH_US", 10**12)


async def unread(process: kits.Process, world: wl.World) -> int:
    read = await process.engine.read(inboxes.read_range(await world._handle.address(), count_max=100))
    return len(read.page(0).items)


@pytest.mark.usefixtures("patient")
async def test_only_the_first_of_several_inputs_is_read_for(memory_kit: Kit) -> None:
    app = program()
    process, engine = await client_of(memory_kit)
    world, other = await process.universe.create("w", app), await process.universe.create("other", app)
    await world.send(Add(1))
    before = engine.reads
    for _ in range(5):
        await world.send(Add(1))
    assert engine.reads == before
    await other.send(Add(1))
    assert engine.reads > before, "another world is another matter"
    before = engine.reads
    await world.send(Add(1), id="chosen")
    assert engine.reads == before + 1, "whether an id was used before has to be read"
    assert await unread(process, world) == 7
    await process.close()


async def test_what_was_read_is_not_trusted_for_long(memory_kit: Kit) -> None:
    app = program()
    process, engine = await client_of(memory_kit)
    world = await process.universe.create("w", app)
    await world.send(Add(1))
    known = process.universe._connection.recent._known
    at = await world._handle.address()
    long_ago_us = known[at].ours_us - known_worlds.FRESH_US - 1
    known[at] = known_worlds.Known(known[at].world, known[at].height, known[at].store_us, long_ago_us)
    before = engine.reads
    await world.send(Add(1))
    assert engine.reads == before + 1
    await process.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("status", [Status.ARCHIVED, Status.DELETED])
async def test_a_world_that_was_closed_meanwhile_takes_nothing(kit: Kit, status: Status) -> None:
    app = program()
    async with kit.hosting() as client, kit.hosting() as other:
        world = await client.create("w", app)
        await world.send(Add(1))
        await other.world("w").change(status=status)
        with pytest.raises((errors.Closed, errors.NotFound)):
            await world.send(Add(1))
        read = await client._connection.store.engine.read(
            inboxes.read_range(await world._handle.address(), count_max=100)
        )
        assert len(read.page(0).items) == 1


@pytest.mark.usefixtures("patient")
async def test_inputs_at_once_see_each_others_hint(memory_kit: Kit) -> None:
    """While one is under way, those that come to the same world read: they must not all write the same hint."""
    app = program()
    process, engine = await client_of(memory_kit)
    world = await process.universe.create("w", app)
    await world.send(Add(1))
    engine.open.clear()
    first = asyncio.create_task(world.send(Add(1)))
    await asyncio.sleep(0)
    before = engine.reads
    second = asyncio.create_task(world.send(Add(1)))

    async def has_read() -> bool:
        return engine.reads > before

    await aio.until(has_read)
    engine.open.set()
    await asyncio.gather(first, second)
    before = engine.reads
    await world.send(Add(1))
    assert engine.reads == before, "both are through"
    await process.close()


@pytest.mark.usefixtures("patient")
async def test_an_input_without_a_read_leaves_a_hint_and_is_followed(kit: Kit) -> None:
    app = program()
    async with kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        await world.send(Add(1))
        hint = ready.get(at, priority=step_batch.READY_PRIORITY)
        first = (await client._connection.store.engine.read(hint)).value(0)
        sent = await world.send(Add(1))
        second = (await client._connection.store.engine.read(hint)).value(0)
        assert first is not None
        assert second is not None
        assert first != second, "one of its own, in case the other has just been taken away"
        async with kit.hosting(app):
            assert await sent.applied(30) == 2
            later = await world.send(Add(1))
            assert await later.applied(30) == 3
            assert await world.ask(AddUp(1), timeout=30) == 4


def test_as_many_worlds_are_known_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_worlds, "WORLDS_MAX", 2)
    env = envs.FixedEnv()
    known = known_worlds.Recent(env)
    store = scenario.Store()
    made = [store.create_world(number) for number in range(3)]
    for world in [*made[:2], made[0], made[2]]:
        known.note(world, height=1, time_us=5)
    for world, kept in zip(made, (True, False, True), strict=True):
        with known.sending(world.at) as found:
            assert (found is not None) is kept
    env.advance_us(known_worlds.FRESH_US)
    with known.sending(made[0].at) as found:
        assert found is not None
        assert known.time_us(found) == 5 + known_worlds.FRESH_US
    env.advance_us(1)
    with known.sending(made[0].at) as found:
        assert found is None
