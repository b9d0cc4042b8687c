"""Processes that serve many universes, for tests: on the store of a kit, with an engine of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import worldline as wl
from tests.kits import kit as kits
from tests.kits.kit import Cut, Kit, Wrap
from worldline.api.hosting import Hosting
from worldline.base import errors
from worldline.client import connection
from worldline.host import process
from worldline.host.feature_list import FEATURES
from worldline.layers import store_format as formats
from worldline.model.roles import EMBEDDED, Role
from worldline.model.settings import Settings
from worldline.observe import sinks
from worldline.runtime import facts, peer_stores, store_opening
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv


class Served:
    """One process."""

    def __init__(self, hosting: Hosting, cut: Cut) -> None:
        self.hosting = hosting
        self.host: Any = hosting.host
        self._cut = cut
        self._over = False

    async def universe(self, name: str) -> wl.Universe:
        return await self.hosting.universe(name, create=True)

    async def kill(self) -> None:
        """End it as kill -9 would."""
        self._cut.off = True
        self.host.abandon()
        tasks = [loop._task for loop in self.host._loops if loop._task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.close()

    async def close(self) -> None:
        if not self._over:
            self._over = True
            with contextlib.suppress(errors.StoreError) if self._cut.off else contextlib.nullcontext():
                await self.hosting.close()
            await self._cut.close()


@asynccontextmanager
async def serving(
    kit: Kit,
    *programs: wl.Program,
    universes: Sequence[str] = ("*",),
    settings: Settings = kits.SETTINGS,
    roles: Sequence[Role] = EMBEDDED,
    wrap: Wrap = lambda engine: engine,
    hints: bool = True,
) -> AsyncIterator[Served]:
    """Another process on this store. `hints`: whether it hears of what is written; else it has its scans alone."""
    engine = await kit.engine()
    await formats.ensure(engine, kit.env, create=True)
    cut = Cut(wrap(engine))
    heard = store_opening.hints_of(engine) if hints else None
    store = store_opening.Store(kit.url, cut, await kit._bodies(), kit.env, FEATURES, hints=heard)
    host = process.ProcessHost(
        store,
        Universes(patterns=universes),
        programs,
        settings=settings,
        roles=roles,
        blobs=lambda universe: peer_stores.blobs_of(store, universe),
    )
    observed = sinks.Observed(facts.Telling([]))
    made = Served(Hosting(store, host, settings, observed=observed, programs=programs), cut)
    for name in universes:
        if "*" not in name:
            await connection.find_universe(store, name, create=True)
    await host.look_for_universes()
    host.start()
    try:
        yield made
    finally:
        await made.close()


class Counts(NamedTuple):
    """What was asked of a store: calls, the requests in them and the keys that they found, commits, waits."""

    reads: int = 0
    requests: int = 0
    found: int = 0
    commits: int = 0
    waits: int = 0


class Counting(kits.Around):
    """Counts what is asked of the store."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.reads = self.requests = self.found = self.commits = self.waits = 0

    def counts(self) -> Counts:
        return Counts(self.reads, self.requests, self.found, self.commits, self.waits)

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        read = await super().read(*requests)
        self.reads += 1
        self.requests += len(requests)
        self.found += sum(len(each.items) if isinstance(each, kv.Page) else each is not None for each in read.answers)
        return read

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self.commits += 1
        return await super().commit(*batches)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        self.waits += 1
        return await super().wait(prefix, seen, timeout_ms)


@dataclass(frozen=True)
class Add:
    number: int


@dataclass(frozen=True)
class Total(wl.Request[int]):
    pass


class App:
    """Worlds that add up, sleep, and call an outside that is under the test's control."""

    def __init__(self, name: str = "many", *, concurrency: int = 100) -> None:
        self.program = app = wl.Program(name)
        self.permits = asyncio.Semaphore(1_000_000)
        self.started: list[str] = []

        @app.reducer()
        @dataclass
        class Sum:
            total: int = 0

            @wl.on
            def add(self, event: Add) -> None:
                self.total += event.number

            @wl.on
            def asked(self, event: Total) -> int:
                return self.total

        @app.effect(concurrency=concurrency)
        async def outside(label: str, size: int) -> str:
            self.started.append(label)
            await self.permits.acquire()
            return label * size

        @app.workflow
        async def work(label: str, size: int, seconds: float) -> str:
            if seconds:
                await wl.sleep(seconds)
            return await outside(label, size)

        @app.workflow
        async def work_again(label: str, times: int) -> None:
            for _ in range(times):
                await outside(label, 1)

        self.sum, self.work, self.work_again = Sum, work, work_again
