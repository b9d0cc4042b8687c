"""A world with work in flight, and what must be the same of it behind a compaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import worldline as wl
from tests.kits import kit as kits
from tests.kits.kit import Process
from worldline.api.universe_api import Universe
from worldline.codec import structs
from worldline.features.compaction.compactor import CompactionResult
from worldline.keys import journal as journal_keys
from worldline.keys import segments as segment_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import snapshots as snapshot_layer
from worldline.model import ids, journal
from worldline.model.settings import Settings
from worldline.store import kv

# Nothing happens by itself.
BY_HAND = {
    "snapshot_entries": 10**9,
    "snapshot_ms": 10**9,
    "snapshot_idle_ms": 10**9,
    "segment_entries": 10**9,
    "segment_ms": 10**9,
    "segment_margin": 0,
    "snapshots_kept": 1,
}


def by_hand(**more: Any) -> Settings:
    return kits.settings(worker=BY_HAND | more)


@dataclass(frozen=True)
class Added:
    key: str
    amount: int = 1


@dataclass(frozen=True)
class Total(wl.Request[int]):
    key: str


@dataclass(frozen=True)
class Go:
    name: str


def program(name: str = "sums", *, by: int = 1) -> wl.Program:
    app = wl.Program(name)

    @app.reducer(key="key")
    @dataclass
    class Sum:
        total: int = 0

        @wl.on
        def added(self, event: Added) -> None:
            self.total += event.amount * by

        @wl.on
        def asked(self, request: Total) -> int:
            return self.total

    @app.effect(name="echo")
    async def echo(text: str) -> str:
        return text

    @app.workflow(name="wait")
    async def wait(name: str) -> str:
        first = await echo(name * 5_000)
        event = await wl.wait(Go, where=lambda each: each.name == name)
        return f"{len(first)} and {event.name}"

    return app


async def busy(process: Process, app: wl.Program, *, rounds: int = 3, each: int = 8) -> wl.World:
    """A world with open work, saved a few times."""
    world = await process.universe.ensure("w", app)
    await kits.begin(world, app.workflows["wait"]("x"), id="r")
    for number in range(rounds):
        for step in range(each):
            await world.send(Added(f"k{step % 3}", number + 1))
        await world.snapshot()
    await world.send(Added("k0"))
    return world


async def compact(process: Process, world: wl.World) -> CompactionResult:
    held = process.host.worlds.peek(await world._handle.address())
    found: CompactionResult = await process.host.worlds._keeper.compactions.compact(held, now=True)
    return found


class Stored:
    """What is stored of a world's past."""

    def __init__(self, engine: kv.Engine, at: ids.Address) -> None:
        self._engine = engine
        self._at = at

    @classmethod
    async def of(cls, universe: Universe, world: wl.World) -> Stored:
        return cls(universe._connection.store.engine, await world._handle.address())

    async def _page(self, bounds: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        return (await self._engine.read(kv.Range(*bounds, count_max=10**6, bytes_max=1 << 30))).page(0).items

    async def frames(self) -> list[int]:
        """The heights that are in frames, in their order."""
        found: list[int] = []
        for _, raw in await self._page(journal_keys.frames(self._at)):
            found += [
                structs.decode(journal.JournalEntry, each).height for each in journal_keys.unpack_frame(raw).entries
            ]
        return found

    async def index(self) -> list[journal.Segment | journal.DroppedEntries]:
        return [segment_keys.unpack(raw) for _, raw in await self._page(segment_keys.segments(self._at))]

    async def segments(self) -> list[journal.Segment]:
        return [each for each in await self.index() if isinstance(each, journal.Segment)]

    async def snapshots(self) -> list[int]:
        """Their heights."""
        items = await self._page(snapshot_keys.snapshots(self._at))
        return [snapshot_keys.SNAPSHOT.unpack(raw).height for _, raw in items]

    async def baseline(self) -> int:
        raw = (await self._engine.read(snapshot_layer.get_baseline(self._at))).value(0)
        return snapshot_layer.decode_baseline(raw).height

    async def check(self, top: int, *, above: int = 0) -> None:
        """Each height is in exactly one place, or the index says that it is gone."""
        moved = [height for each in await self.index() for height in range(each.first_height, each.last_height + 1)]
        assert moved + await self.frames() == list(range(above + 1, top + 1))
