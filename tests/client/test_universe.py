"""A universe from outside: its worlds by filter, and their dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests.roles.kit import Kit
from tests.roles.sums import Add, program


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
                await (await world.send(Unknown(number))).applied(20)
            await (await world.send(Add(1))).applied(20)
        found = [letter async for letter in universe.dead()]
        assert [(letter.world, letter.what) for letter in found] == [("b", "Unknown")] * 2 + [("a", "Unknown")] * 2
        assert all("Unknown" in letter.reason for letter in found)
        assert [letter.world async for letter in universe.dead(prefix="a")] == ["a", "a"]
        assert [letter async for letter in universe.dead(status=wl.Status.PAUSED)] == []
