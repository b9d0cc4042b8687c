"""Inputs that are sent without a read before them: to worlds this process has sent to just before, and to no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import worldline as wl
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add, AddUp, program
from tests.layers import scenario
from worldline.base import env as envs
from worldline.base import errors
from worldline.client import known_worlds
from worldline.layers import inbox as inboxes
from worldline.model.world_records import Status
from worldline.store import kv


class Counting(kits.Around):
    """An engine that counts the reads."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.reads = 0

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self.reads += 1
        return await self._engine.read(*requests)


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
    known[at] = known_worlds.KnownWorld(known[at].world, known[at].height, known[at].store_us, long_ago_us)
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
        if status is Status.DELETED:
            await other.world("w").delete()
        else:
            await other.world("w").change(status=status)
        with pytest.raises((errors.Closed, errors.NotFound)):
            await world.send(Add(1))
        read = await client._connection.store.engine.read(
            inboxes.read_range(await world._handle.address(), count_max=100)
        )
        assert len(read.page(0).items) == 1


@pytest.mark.usefixtures("patient")
async def test_inputs_at_once_are_not_in_each_others_way(memory_kit: Kit) -> None:
    """Each leaves a hint of its own, so none has to read for another's, and none conflicts."""
    app = program()
    process, engine = await client_of(memory_kit)
    world = await process.universe.create("w", app)
    await world.send(Add(1))
    before = engine.reads
    await asyncio.gather(*(world.send(Add(1)) for _ in range(10)))
    assert engine.reads == before
    assert len(await kits.hints(process.engine, await world._handle.address())) == 11
    await process.close()


@pytest.mark.usefixtures("patient")
async def test_an_input_without_a_read_leaves_a_hint_and_is_followed(kit: Kit) -> None:
    app = program()
    async with kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        await world.send(Add(1))
        first = await kits.hints(client._connection.store.engine, at)
        sent = await world.send(Add(1))
        assert len(first) == 1
        assert len(await kits.hints(client._connection.store.engine, at)) == 2, "one of its own"
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
        assert (known.find(world.at) is not None) is kept
    env.advance_us(known_worlds.FRESH_US)
    found = known.find(made[0].at)
    assert found is not None
    assert known.time_us(found) == 5 + known_worlds.FRESH_US
    env.advance_us(1)
    assert known.find(made[0].at) is None
