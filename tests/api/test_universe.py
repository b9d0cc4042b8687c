"""A universe from outside: its worlds by filter, and their dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits.kit import Kit
from tests.kits.sums import Add, program


@dataclass(frozen=True)
class Unknown:
    number: int


async def names(universe: wl.Universe, **wanted: Any) -> list[str]:
    return [meta.name async for meta in universe.worlds(**wanted)]


async def test_worlds_by_filter(memory_kit: Kit) -> None:
    one, two = program("one"), program("two")
    client = await memory_kit.process()
    universe = client.universe
    await universe.create("a-1", one, labels={"team": "red"})
    await universe.create("a-2", one, labels={"team": "blue", "urgent": ""})
    await universe.create("b-1", two)
    await universe.world("b-1").pause()
    assert await names(universe) == ["b-1", "a-2", "a-1"]
    assert await names(universe, prefix="a-") == ["a-2", "a-1"]
    assert await names(universe, program="two") == ["b-1"]
    assert await names(universe, status=wl.Status.PAUSED) == ["b-1"]
    assert await names(universe, labels={"team": ""}) == ["a-2", "a-1"]
    assert await names(universe, labels={"team": "red"}) == ["a-1"]
    assert await names(universe, labels={"team": "blue", "urgent": ""}, prefix="a", program="one") == ["a-2"]
    assert await names(universe, status=wl.Status.ACTIVE, program="two") == []
    for wrong in ({"status": "paused"}, {"labels": "team=red"}, {"program": one}, {"prefix": 1}):
        with pytest.raises(wl.BadInput, match=" must be "):
            await names(universe, **wrong)


async def test_dead_letters_of_all_worlds(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        for name in ("a", "b"):
            world = await universe.create(name, app)
            for number in range(2):
                await aio.journaled(await world.send(Unknown(number)), 20)
            await (await world.send(Add(1))).applied(20)
        found = [letter async for letter in universe.dead()]
        assert [(letter.world, letter.what) for letter in found] == [("b", "Unknown")] * 2 + [("a", "Unknown")] * 2
        assert all("Unknown" in letter.reason for letter in found)
        assert [letter.world async for letter in universe.dead(prefix="a")] == ["a", "a"]
        assert [letter async for letter in universe.dead(status=wl.Status.PAUSED)] == []


async def test_dead_letters_are_put_back_dropped_and_drained_in_order(memory_kit: Kit) -> None:
    app, taking = program(), program()
    taken: list[int] = []

    @taking.workflow
    async def take() -> list[int]:
        for _ in range(4):
            taken.append((await wl.wait(Unknown)).number)
        return taken

    process = await memory_kit.process(app)
    world = await process.universe.create("a", app)
    for number in range(5):
        await aio.journaled(await world.send(Unknown(number)), 20)
    newest, *_ = [each async for each in world.dead()]
    assert newest.data.endswith(b"\x04")
    assert "Unknown" in repr(newest)
    await newest.drop()
    for again in (newest.drop, newest.retry):
        with pytest.raises(wl.errors.Conflicted, match="is gone already"):
            await again()
    async for letter in world.drain_dead():
        if letter.data.endswith(b"\x01"):
            break  # it stays
    assert [each.data[-1] async for each in world.dead(oldest_first=True)] == [1, 2, 3]  # the first was done with
    await process.close()
    async with memory_kit.hosting(taking) as universe:
        world = universe.world("a")
        run = await world.start(take())
        [first, *_] = [each async for each in world.dead(oldest_first=True)]
        await first.retry()
        await world.send(Unknown(9))
        assert await world.retry_dead() == 2
        assert await run.result(20) == [1, 9, 2, 3]
        assert [each async for each in world.dead()] == []


async def test_names_are_set_listed_moved_and_deleted(memory_kit: Kit) -> None:
    app = program()
    universe = (await memory_kit.process()).universe
    for name in ("a", "b"):
        await universe.create(name, app)
    await universe.set_ref("main", "a")
    await universe.set_ref("main", "main")  # as it is
    assert [(each.name, each.world, each.own) async for each in universe.refs()] == [
        ("a", "a", True),
        ("b", "b", True),
        ("main", "a", False),
    ]
    await universe.set_ref("main", "b")
    assert (await universe.world("main").describe()).name == "b"
    with pytest.raises(wl.errors.Closed, match="own name"):
        await universe.delete_ref("b")
    with pytest.raises(wl.NotFound):
        await universe.set_ref("new", "nowhere")
    with pytest.raises(wl.Exists, match="is in use"):
        await universe.rename("b", "main")
    await universe.delete_ref("main")
    with pytest.raises(wl.NotFound):
        await universe.delete_ref("main")
    assert (await (await universe.rename("b", "c")).describe()).name == "c"
    assert [each.name async for each in universe.refs()] == ["a", "c"]
