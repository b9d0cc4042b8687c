"""Looking at the past of a large world: what is read follows what has changed, and not what the world holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import worldline as wl
from tests.features.forks.forking import check, until
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.worker.test_damage import change as damage
from worldline.base import errors
from worldline.features.diff.records import EffectSide, Field
from worldline.keys import cas as cas_keys
from worldline.model import ids
from worldline.runtime import world_reader
from worldline.store import kv

CELLS = 20_000
BATCH = 2_000
FEW = 100  # blobs
LONG = "long " * 1_500  # a cell that holds it is stored as a delta when it is changed


@dataclass(frozen=True)
class Put:
    key: str
    text: str = ""


@dataclass(frozen=True)
class Go:
    pass


class Work:
    """A program, and its workflows."""

    def __init__(self) -> None:
        self.program, self.talk, self.hang = program()


def program() -> tuple[wl.Program, Any, Any]:
    app = wl.Program("p")

    @app.reducer(key="key")
    @dataclass
    class Cell:
        texts: list[str] = field(default_factory=list)

        @wl.on
        def put(self, event: Put) -> None:
            self.texts.append(event.text)

    @app.effect
    async def echo(text: str) -> str:
        return text

    @app.effect
    async def never(text: str) -> str:
        await asyncio.Event().wait()
        return text

    @app.workflow
    async def talk(count: int) -> int:
        for number in range(count):
            await echo(f"{number}")
        await wl.wait(Go)
        return count

    @app.workflow
    async def hang(count: int) -> str:
        for number in range(count):
            await echo(f"{number}")
        return await never("x")

    return app, talk, hang


class Reading(kits.Around):
    """Which blobs are read."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.keys: list[bytes] = []

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self.keys += [each.key for each in requests if isinstance(each, kv.Get)]
        return await super().read(*requests)

    def blobs(self, universe: ids.UniverseId) -> int:
        """Since this was last asked."""
        begin, end = cas_keys.blobs(universe)
        keys, self.keys = self.keys, []
        return sum(begin <= key < end for key in keys)


@dataclass
class Looking:
    """A client that has no program, and sees only what is stored."""

    universe: wl.Universe
    engine: Reading

    async def blobs(self) -> int:
        return self.engine.blobs(self.universe._connection.id)


@contextlib.asynccontextmanager
async def looking(kit: Kit) -> AsyncIterator[Looking]:
    made: list[Reading] = []

    def wrap(engine: kv.Engine) -> Reading:
        made.append(Reading(engine))
        return made[-1]

    process = await kit.process(wrap=wrap)
    try:
        yield Looking(process.universe, made[0])
    finally:
        await process.close()


async def put(world: wl.World, *pairs: tuple[str, str]) -> int:
    for start in range(0, len(pairs), BATCH):
        sent = await asyncio.gather(*(world.send(Put(key, text)) for key, text in pairs[start : start + BATCH]))
        await asyncio.gather(*(each.applied(60) for each in sent))
    return (await world.head()).height


async def test_a_few_changes_of_a_large_world_are_compared_by_a_few_blobs(memory_kit: Kit) -> None:
    work = Work()
    async with memory_kit.hosting(work.program) as universe:
        world = await universe.ensure("w", work.program)
        await put(world, ("large", LONG), *((f"k{number}", "first") for number in range(CELLS)))
        await world.snapshot()
        height = await put(world, ("k0", "behind the snapshot"), ("large", "behind it"))
        left, right = await world.fork("left"), await world.fork("right")
        await put(left, ("k0", "left"), ("k1", "left"), ("large", "left"))
        await put(right, ("k1", "right"), ("new", "right"))
        async with looking(memory_kit) as other:
            found = await other.universe.world("left").diff(other.universe.world("right"))
            assert 0 < await other.blobs() < FEW
            assert (found.ancestor, found.height, found.runs, found.effects) == ("w", height, [], [])
            assert [(each.key, each.change) for each in found.cells] == [
                ("k0", "changed"),
                ("k1", "changed"),
                ("new", "added"),
                ("large", "changed"),
            ]
            assert found.cells[1].fields == (Field(("texts", 1), "changed", "left", "right"),)
            assert found.cells[3].fields == (Field(("texts", 2), "removed", "left", None),)

            cell = await other.universe.world("w")._handle.cell("Cell", "large", at=height - 1)
            assert cell is not None
            assert LONG.encode() in cell
            assert await other.universe.world("w")._handle.cell("Cell", "absent", at=height) is None
            assert 0 < await other.blobs() < FEW

        async with looking(memory_kit) as other:
            done = await other.universe.world("left").revert(height)
            assert 0 < await other.blobs() < FEW
            assert done.height == height
            assert (await left.diff(left, at=height)).cells == []
            assert (await left.diff(left, at=height)).entries.right.count > 0


async def test_runs_of_a_saved_state_are_compared(memory_kit: Kit) -> None:
    """Their rows lie in the snapshot alone: many operations, an open effect, and runs that have not changed."""
    work = Work()
    async with memory_kit.hosting(work.program) as universe:
        world = await universe.ensure("w", work.program)
        for number in range(40):
            _ = await world.start(work.talk(1), id=f"idle{number}")
        _ = await world.start(work.talk(30), id="talks")
        _ = await world.start(work.hang(9), id="hangs")

        async def waits() -> bool:
            runs = (await world._handle.machine()).runs
            return len(runs["talks"].record.ops) == 31 and len(runs["hangs"].record.ops) == 10

        await until(waits)
        await world.snapshot()
        height = (await world.head()).height
        await world.send(Go(), to="talks")
        await next(each for each in await world.runs() if each.id == "hangs").cancel()
        fork = await world.fork("f", at=height)
        await put(fork, ("k", "v"))
        async with looking(memory_kit) as other:
            found = await other.universe.world("w").diff(other.universe.world("f"))
            few = await other.blobs()
        talks, hangs = (next(each for each in found.runs if each.id == run) for run in ("talks", "hangs"))
        assert talks.left is not None
        assert talks.right is not None
        assert (talks.left.status, talks.left.result) == ("finished", 30)
        assert (talks.right.status, talks.right.operations, talks.right.done) == ("running", 31, 30)
        assert hangs.left is not None
        assert [(each.run, each.operation, each.left) for each in found.effects] == [
            ("hangs", 10, EffectSide("never", {"text": "x"}, "cancelled"))
        ]
        assert few < FEW
        await world.revert(height)
        again = await world.diff(world, at=height)
        assert [each.id for each in again.runs] == ["hangs"], "its effect is dropped; all else is as it was"
        await check(universe, "w")


async def test_a_height_that_is_not_there_is_refused(memory_kit: Kit) -> None:
    work = Work()
    async with memory_kit.hosting(work.program) as universe:
        world = await universe.ensure("w", work.program)
        height = await put(world, ("k", "v"))
        with pytest.raises(errors.BadInput, match=f"no height {height + 1}: the journal's head is at height {height}"):
            await world._handle.cell("Cell", "k", at=height + 1)
        assert await world._handle.cell("Cell", "k", at=0) is None


async def test_many_changes_are_looked_up_a_few_at_a_time(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the trie: each leaf is read by one lookup, or by two."""
    monkeypatch.setattr(world_reader, "LOOKUPS_MAX", 50)
    work = Work()
    async with memory_kit.hosting(work.program) as universe:
        world = await universe.ensure("w", work.program)
        names = [f"k{number}" for number in range(1_000)]
        height = await put(world, *((name, "first") for name in names))
        await world.snapshot()
        await put(world, *((name, "second") for name in names))
        async with looking(memory_kit) as other:
            found = await other.universe.world("w").diff(other.universe.world("w"), at=height)
            assert sorted(each.key for each in found.cells) == sorted(names)
            assert {each.fields for each in found.cells} == {(Field(("texts", 1), "added", None, "second"),)}
            assert await other.blobs() < FEW


async def test_a_damaged_snapshot_is_named(memory_kit: Kit) -> None:
    work = Work()
    async with memory_kit.hosting(work.program) as universe:
        world = await universe.ensure("w", work.program)
        height = await put(world, *((f"k{number}", "first") for number in range(200)))
        await world.snapshot()
        async with looking(memory_kit) as other:
            handle = other.universe.world("w")._handle
            assert await handle.cell("Cell", "k1", at=height) is not None
            begin, end = cas_keys.blobs(universe._connection.id)
            leaf = [key for key in other.engine.keys if begin <= key < end][-1]
            await damage(other.engine, leaf)
            with pytest.raises(errors.Corrupt, match=f"the snapshot at height {height}: node [0-9a-f]+, .*k1"):
                await handle.cell("Cell", "k1", at=height)
