"""Worlds whose large values are in a real S3 server, with a cache on disk: a whole life, and objects that fail, stall
and lie (a proxy stands between the host and the server).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.servers import postgres, s3
from tests.servers.s3_faults import Fault, Request, S3Proxy
from worldline.base import limits
from worldline.client.connection import Connection
from worldline.inspect import verify
from worldline.keys import segments as segment_keys
from worldline.model.settings import CacheSettings, Settings, WorkerSettings
from worldline.store import kv
from worldline.store.objects import s3_objects as objects_s3
from worldline.store.objects.objects_interface import Patience

LARGE = 40_000
PATIENCE_SECONDS = 20.0  # on a busy machine
TIMEOUT_MS, RETRIES = 400, 2
_numbers = itertools.count()

app = wl.Program("shelves")


@dataclass(frozen=True)
class Put:
    name: str
    text: str = ""


@dataclass(frozen=True)
class Held(wl.Request[dict[str, int]]):
    pass


@app.reducer()
@dataclass
class Shelf:
    sizes: dict[str, int] = field(default_factory=dict)
    last: str = ""

    @wl.on
    def put(self, event: Put) -> None:
        self.sizes[event.name] = self.sizes.get(event.name, 0) + 1
        self.last = event.text

    @wl.on
    def held(self, request: Held) -> dict[str, int]:
        return self.sizes


@app.effect
async def fetch(size: int) -> str:
    return "f" * size


@app.workflow
async def collect(size: int) -> int:
    return len(await fetch(size))


def text(number: int) -> str:
    """Large, and never the same."""
    return f"{number:08}" * (LARGE // 8)


@pytest.fixture(params=["lmdb", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lmdb":
        return str(tmp_path / "store")
    return postgres.shared().url(schema=f"s3_worlds_{next(_numbers)}", tcp=True)


@asynccontextmanager
async def proxied(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[S3Proxy, str]]:
    """A proxy to the server, which the environment leads to, and a place for objects. Timeouts are short."""
    server = s3.shared()
    proxy = await S3Proxy(server.port).start()
    settings = server.settings(endpoint=f"http://127.0.0.1:{proxy.port}", timeout_ms=TIMEOUT_MS, retries=RETRIES)
    monkeypatch.setattr(objects_s3.S3Settings, "of", classmethod(lambda _, __: settings))
    try:
        yield proxy, server.url(f"worlds/{next(_numbers)}")
    finally:
        proxy.fault = lambda _: None
        await proxy.aclose()


@asynccontextmanager
async def hosting(store: str, objects: str, cache: Path | None, **worker: Any) -> AsyncIterator[wl.Universe]:
    settings = Settings(
        worker=WorkerSettings(**worker),
        cache=CacheSettings(folder=str(cache), bytes_max=limits.CACHE_BYTES_MIN) if cache else CacheSettings(),
    )
    async with wl.open(store, host=app, objects=objects, create=True, settings=settings) as universe:
        yield universe


async def checked(universe: wl.Universe, name: str) -> verify.Verified:
    link: Connection = universe._connection
    return await verify.verify(link, await universe.world(name)._handle.address())


async def segments_of(universe: wl.Universe, world: wl.World) -> int:
    at = await world._handle.address()
    page = (await universe._connection.store.engine.read(kv.Range(*segment_keys.segments(at)))).page(0)
    return len(page.items)


async def test_a_life(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large payloads, answers, snapshots, segments and a fork; then other processes with a cold cache, one that is too
    small, and one that is damaged.
    """
    busy = {
        "snapshot_entries": 6,
        "segment_entries": 6,
        "segment_margin": 0,
        "snapshots_kept": 1,
        "snapshot_idle_ms": 100,
    }
    async with proxied(monkeypatch) as (proxy, bucket):
        async with hosting(store_url, bucket, tmp_path / "warm", **busy) as universe:
            world = await universe.ensure("w", app)
            for number in range(24):
                await world.send(Put(f"n{number % 5}", text(number)))
            assert await world.run(collect(LARGE), id="r") == LARGE
            fork = await world.fork("f")
            await fork.send(Put("own", text(99)))

            async def compacted() -> bool:
                return await segments_of(universe, world) > 0

            await aio.until(compacted)
            sizes, forked = await world.ask(Held()), await fork.ask(Held())
            before = await checked(universe, "w")
        assert proxy.seen["PUT"] > 20
        for cache, damage in ((None, False), (tmp_path / "cold", False), (tmp_path / "warm", True)):
            if damage:
                for entry in [each for each in (tmp_path / "warm").rglob("*") if each.is_file()]:
                    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
            async with hosting(store_url, bucket, cache) as universe:
                assert await universe.world("w").ask(Held()) == sizes
                assert await universe.world("f").ask(Held()) == forked
                assert (await universe.world("w").state(Shelf)).last == text(23)
                again = await checked(universe, "w")
                assert again.entries > before.entries
                await checked(universe, "f")
            if cache is not None:
                held = sum(each.stat().st_size for each in cache.rglob("*") if each.is_file())
                assert 0 < held <= limits.CACHE_BYTES_MIN
        shutil.rmtree(tmp_path / "warm")
        async with hosting(store_url, bucket, tmp_path / "warm") as universe:
            assert await universe.world("w").ask(Held()) == sizes


def only(fault: Fault, *methods: str, times: int = 10**9) -> Callable[[Request], Fault | None]:
    """This fault for so many requests of these methods; listings pass, but for stale ones."""
    left = itertools.count()

    def decide(request: Request) -> Fault | None:
        if request.is_listing != (fault is Fault.STALE) or (methods and request.method not in methods):
            return None
        return fault if next(left) < times else None

    return decide


def marked(names: Iterable[str], part: str, probe: pytest.MarkDecorator) -> list[Any]:
    """Those whose name has this part take the rare branch."""
    return [pytest.param(each, marks=probe if part in each else ()) for each in names]


# What is done to requests, and whether a sender is told that it failed while that lasts.
FAULTS = {
    "503": (only(Fault.UNAVAILABLE), True),
    "stall": (only(Fault.STALL), True),
    "slow": (only(Fault.SLOW), False),
    "put-untold": (only(Fault.UNTOLD, "PUT"), True),
    "put-undone": (only(Fault.UNDONE, "PUT"), True),
    "put-undone-once": (only(Fault.UNDONE, "PUT", times=1), False),
    "put-untold-once": (only(Fault.UNTOLD, "PUT", times=1), False),
    "stale-list": (only(Fault.STALE), False),
}


@pytest.mark.parametrize("name", marked(FAULTS, "undone", pytest.mark.probe("s3.put-not-there")))
async def test_objects_that_fail_stall_and_lie_when_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender is told, or waits; small inputs go on beside it; once it heals, the same input is taken, once."""
    fault, fails = FAULTS[name]
    async with proxied(monkeypatch) as (proxy, bucket):
        async with hosting(str(tmp_path / "store"), bucket, tmp_path / "cache") as universe:
            large, small = await universe.ensure("large", app), await universe.ensure("small", app)
            await large.send(Put("before", text(0)))
            proxy.fault = fault
            sending = asyncio.ensure_future(_outcome(large, Put("during", text(1)), id="during"))
            for number in range(10):  # while that is under way
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await small.send(Put(f"s{number}"))
                    await large.send(Put(f"s{number}"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                failed = await sending
            assert failed == fails
            proxy.fault = fault if name == "stale-list" else lambda _: None
            await (await large.send(Put("during", text(1)), id="during")).applied()
            sizes = await large.ask(Held())
            assert (sizes["before"], sizes["during"]) == (1, 1)
            assert sizes == {"before": 1, "during": 1} | {f"s{number}": 1 for number in range(10)}
        async with hosting(str(tmp_path / "store"), bucket, None) as universe:
            assert await universe.world("large").ask(Held()) == sizes
            await checked(universe, "large")
        assert proxy.done


async def _outcome(world: wl.World, event: Put, *, id: str) -> bool:
    """Whether it was refused for now."""
    try:
        await (await world.send(event, id=id)).applied()
    except wl.errors.StoreError:
        return True
    return False


READS = {
    "wrong-once": (only(Fault.WRONG, "GET", times=2), True),
    "short-once": (only(Fault.SHORT, "GET", times=2), True),
    "truncated": (only(Fault.TRUNCATED, "GET", times=2), True),
    "missing-once": (only(Fault.MISSING, "GET", times=1), True),
    "slow": (only(Fault.SLOW, "GET"), True),
    "503-twice": (only(Fault.UNAVAILABLE, times=2), True),
    "stall-once": (only(Fault.STALL, times=1), True),
    "wrong": (only(Fault.WRONG, "GET"), False),
    "short": (only(Fault.SHORT, "GET"), False),
    "missing": (only(Fault.MISSING, "GET"), False),
    "503": (only(Fault.UNAVAILABLE), False),
    "stall": (only(Fault.STALL), False),
}


@pytest.mark.parametrize("name", marked(READS, "missing", pytest.mark.probe("blobs.missing-for-now")))
async def test_objects_that_fail_stall_and_lie_when_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes the world over with nothing in its cache. It has the right state, or none so far; the world
    beside it, which needs no objects, is not held up; and it is there when the fault has healed.
    """
    fault, goes_on = READS[name]
    async with proxied(monkeypatch) as (proxy, bucket):
        async with hosting(str(tmp_path / "store"), bucket, None) as universe:
            large, small = await universe.ensure("large", app), await universe.ensure("small", app)
            await large.send(Put("one", text(1)))
            await small.send(Put("one"))
            await large.snapshot()
        proxy.fault = fault
        async with hosting(str(tmp_path / "store"), bucket, tmp_path / "cache", scan_ms=100) as universe:
            asking = asyncio.ensure_future(_asked(universe.world("large")))
            for _ in range(5):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert await universe.world("small").ask(Held()) == {"one": 1}
            if goes_on:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert await asking == {"one": 1}
            else:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert await asking is None
            proxy.fault = lambda _: None

            async def healed() -> bool:
                return await _asked(universe.world("large")) == {"one": 1}

            await aio.until(healed)
            assert (await universe.world("large").state(Shelf)).last == text(1)
            await checked(universe, "large")
            assert proxy.done


async def _asked(world: wl.World) -> dict[str, int] | None:
    try:
        return await world.ask(Held())
    except (wl.errors.StoreError, wl.errors.Corrupt, wl.errors.Closed, wl.NotHosted):
        return None


async def test_a_server_that_dies_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of things, and connections refused for a while: nothing is lost, and what waited is done.
    Snapshots and segments that could not be saved are saved later. Closing while it is gone does not hang.
    """
    server = s3.Server()
    server.start()
    settings = server.settings(timeout_ms=TIMEOUT_MS, retries=RETRIES)
    monkeypatch.setattr(objects_s3.S3Settings, "of", classmethod(lambda _, __: settings))
    bucket, store = server.url("dies"), str(tmp_path / "store")
    try:
        async with hosting(store, bucket, None, snapshot_entries=4, segment_entries=4, segment_margin=0) as universe:
            world = await universe.ensure("w", app)
            await world.send(Put("before", text(0)))
            await asyncio.to_thread(server.stop)
            assert await _outcome(world, Put("during", text(1)), id="during")
            for number in range(12):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await world.send(Put(f"s{number}"))
            await asyncio.to_thread(server.start)
            await (await world.send(Put("during", text(1)), id="during")).applied()
            await world.snapshot()
            sizes = await world.ask(Held())
            assert (sizes["before"], sizes["during"], len(sizes)) == (1, 1, 14)
            await asyncio.to_thread(server.stop)
            sending = asyncio.ensure_future(_outcome(world, Put("last", text(2)), id="last"))
            await asyncio.sleep(0)
            closing = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - closing < PATIENCE_SECONDS
        await asyncio.gather(sending, return_exceptions=True)
        await asyncio.to_thread(server.start)
        async with hosting(store, bucket, None) as universe:
            found = await universe.world("w").ask(Held())
            assert {name: times for name, times in found.items() if name != "last"} == sizes
            await checked(universe, "w")
    finally:
        server.close()


@pytest.mark.probe("s3.call-cut-short")
@pytest.mark.parametrize("what", ["restore", "compact", "leave", "send"])
async def test_closing_does_not_wait_for_a_server_that_stalls(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is under way: calls of objects have little time left. The next process goes on where this one ended."""
    end = Patience.end
    monkeypatch.setattr(Patience, "end", lambda self: end(self, in_ms=300))
    store = str(tmp_path / "store")
    async with proxied(monkeypatch) as (proxy, bucket):
        async with hosting(store, bucket, None) as universe:
            world = await universe.ensure("w", app)
            for number in range(30):
                await world.send(Put(f"n{number}", text(number)))
        patient = objects_s3.S3Settings.of({})
        patient = msgspec.structs.replace(patient, timeout_ms=60_000)
        monkeypatch.setattr(objects_s3.S3Settings, "of", classmethod(lambda _, __: patient))
        compacting = {"segment_entries": 2, "segment_margin": 0, "snapshots_kept": 1} if what == "compact" else {}
        async with hosting(store, bucket, None, **compacting) as universe:
            world = universe.world("w")
            if what != "restore":
                await world.ask(Held())
            if what == "leave":
                await world.send(Put("n0", text(100)))
            proxy.fault = only(Fault.STALL)
            under_way = asyncio.ensure_future(_under_way(world, what))

            async def stalled() -> bool:
                return what == "leave" or proxy.done[Fault.STALL] > 0

            await aio.until(stalled)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < PATIENCE_SECONDS
        await under_way
        proxy.fault = lambda _: None
        async with hosting(store, bucket, None) as universe:
            sizes = await universe.world("w").ask(Held())
            assert {name: times for name, times in sizes.items() if name not in ("n0", "last")} == {
                f"n{number}": 1 for number in range(1, 30)
            }
            await checked(universe, "w")


async def _under_way(world: wl.World, what: str) -> None:
    with contextlib.suppress(wl.errors.StoreError, wl.errors.Closed, wl.errors.Corrupt):
        match what:
            case "restore":
                await world.ask(Held())
            case "compact":
                await world.snapshot()
            case "send":
                await world.send(Put("last", text(500)))


def test_nothing_waits_for_ever() -> None:
    """With the settings that are used unless others are said, a call of objects ends, however the server behaves."""
    usual = objects_s3.S3Settings()
    longest_ms = (usual.retries + 1) * (usual.timeout_ms + objects_s3.RETRY_MOST_MS)
    assert longest_ms <= 120_000
    assert msgspec.structs.replace(usual, timeout_ms=1).timeout_ms == 1
