"""Snapshots by policy, restoring from them, letting worlds go, and the end of a host."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.crashing import Counting
from tests.kits.kit import Kit
from worldline.api.universe_api import Universe
from worldline.kernel import user_values
from worldline.keys import leases as lease_keys
from worldline.layers import inbox as inboxes
from worldline.layers import leases
from worldline.layers import snapshots as snapshot_layer
from worldline.model import ids, inbox, payload
from worldline.model import snapshots as snapshot_model
from worldline.model.journal import Kind
from worldline.model.settings import Settings
from worldline.runtime import store_opening
from worldline.store import kv


@dataclass(frozen=True)
class Put:
    key: str
    text: str = ""


@dataclass(frozen=True)
class Go:
    name: str


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer(key="key")
    @dataclass
    class Cell:
        count: int = 0
        texts: list[str] = field(default_factory=list)

        @wl.on
        def put(self, event: Put) -> None:
            self.count += 1
            self.texts.append(event.text)

    @app.effect
    async def echo(text: str) -> str:
        return text

    @app.workflow
    async def wait(name: str) -> str:
        first = await echo(name)
        event = await wl.wait(Go, where=lambda each: each.name == name)
        return f"{first} and {event.name} at {wl.uuid()}"

    @app.workflow
    async def sleep(seconds: float) -> str:
        await wl.sleep(seconds)
        return await echo("awake")

    return app


async def baseline(universe: Universe, at: ids.Address) -> snapshot_model.StateSnapshot:
    raw = (await universe._connection.store.engine.read(snapshot_layer.get_baseline(at))).value(0)
    return snapshot_layer.decode_baseline(raw)


async def until_saved(universe: Universe, at: ids.Address, step: int) -> None:
    async def saved() -> bool:
        return (await baseline(universe, at)).step >= step

    await aio.until(saved)


@pytest.mark.parametrize(
    ("policy", "live"),
    [
        ({"snapshot_entries": 10}, False),
        ({"snapshot_ms": 200}, False),
        ({"snapshot_idle_ms": 200}, True),
    ],
    ids=["entries", "time", "idle"],
)
async def test_a_snapshot_is_taken_when_the_policy_says_so(kit: Kit, policy: dict[str, int], live: bool) -> None:
    never = {"snapshot_entries": 10**9, "snapshot_ms": 10**9, "snapshot_idle_ms": 10**9}
    app = program()
    async with kit.hosting(app, settings=kits.settings(worker=never | policy)) as universe:
        world = await universe.ensure("w", app)
        at = await world._handle.address()
        if live:
            await kits.begin(world, app.workflows["wait"]("x"), id="r")
        for number in range(12):
            await world.send(Put(f"k{number}"))
        head = await world.head()
        await until_saved(universe, at, 1)
        if live or "snapshot_ms" in policy:
            await until_saved(universe, at, head.step)
            assert (await baseline(universe, at)).height == head.height


async def test_without_a_reason_nothing_is_saved(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app, settings=kits.settings(worker={"snapshot_idle_ms": 50})) as universe:
        world = await universe.ensure("w", app)
        await world.send(Put("k"))  # no live run: the journal is short, and nothing has to be judged
        await asyncio.sleep(0.8)
        assert (await baseline(universe, await world._handle.address())).step == 0


async def test_saving_leaves_no_trace_in_the_journal(kit: Kit) -> None:
    """When a state is saved is policy, and no policy may change a history."""
    app = program()
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        for _ in range(3):
            await (await world.send(Put("k"))).applied()
            before = await world.head()
            assert await world.snapshot() == before.step
            assert await world.head() == before
        assert [kind for kind in await kits.kinds(world) if kind in (Kind.SNAPSHOT, Kind.BASELINE)] == []
        await kits.prove(world, app)


async def test_a_busy_world_is_saved_too(memory_kit: Kit) -> None:
    """One that always has something to do must not grow its journal for ever."""
    app = program()
    settings = kits.settings(worker={"snapshot_entries": 200})
    process = await memory_kit.process(app, settings=settings)
    world = await process.universe.ensure("w", app)
    at = await world._handle.address()
    stopping = asyncio.Event()

    async def keep_busy() -> None:
        while not stopping.is_set():
            await asyncio.gather(*(world.send(Put(f"k{number % 10}")) for number in range(20)))

    busy = [asyncio.ensure_future(keep_busy()) for _ in range(3)]
    await until_saved(process.universe, at, 500)
    stopping.set()
    await asyncio.gather(*busy)
    await process.close()


async def test_restored_is_the_same_as_live(kit: Kit) -> None:
    """Baseline plus tail, with work open on both sides of the baseline: byte for byte what was in memory."""
    app = program()
    first = await kit.process(app)
    world = await first.universe.ensure("w", app)
    for name in ("a", "b"):
        await kits.begin(world, app.workflows["wait"](name), id=name)
    await kits.begin(world, app.workflows["sleep"](1_000), id="s")
    for number in range(20):
        await world.send(Put(f"k{number % 7}", "x" * 2_000))
    await world.snapshot()
    await kits.begin(world, app.workflows["wait"]("c"), id="c")
    for number in range(20):
        await world.send(Put(f"k{number % 7}", "y"))

    async def answered() -> bool:
        return len(await kits.opened(first.engine, await world._handle.address())) == 1  # only the timer

    await aio.until(answered)
    live = kits.parts(await world._handle.machine())
    assert (await baseline(first.universe, await world._handle.address())).step < (await world.head()).step
    await first.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    async with kit.hosting(app) as universe:
        world = universe.world("w")
        await (await world.send(Put("wake"))).applied()  # takes the world
        assert universe._connection.host is not None
        held = universe._connection.host.worlds.peek(await world._handle.address())
        assert held is not None
        async with kit.hosting() as client:  # a reader of its own, at the height where the first was killed
            client._connection.programs["p"] = app
            before = await client.world("w")._handle.machine(at=(await world.head()).height - 1)
            assert kits.parts(before) == live
        for name in ("a", "b", "c"):
            await world.send(Go(name))
            run = await world.attach(name)
            assert (await run.result(20)).startswith(f"{name} and {name} at ")
        await kits.prove(world, app)


async def test_an_idle_world_is_let_go_and_comes_back(kit: Kit) -> None:
    app = program()
    process = await kit.process(app, settings=kits.settings(worker={"idle_release_ms": 100}))
    world = await process.universe.ensure("w", app)
    await kits.begin(world, app.workflows["wait"]("x"), id="r")
    at = await world._handle.address()

    async def free() -> bool:
        read = await process.engine.read(*leases.reads(at))
        return leases.decode(at, read.value(0), read.value(1), read.value(2)).holder is None

    await aio.until(free)
    assert not process.host.worlds.holds(at)
    assert (await baseline(process.universe, at)).step == (await world.head()).step
    await world.send(Go("x"))
    assert (await (await world.attach("r")).result(20)).startswith("x and x")
    await aio.until(free)
    await process.close()


async def test_too_many_worlds_are_let_go_the_longest_idle_first(memory_kit: Kit) -> None:
    app = program()
    process = await memory_kit.process(app, settings=kits.settings(worker={"max_worlds_warm": 5}))
    worlds = [await process.universe.ensure(f"w{number}", app) for number in range(20)]
    for world in worlds:
        await world.send(Put("k"))

    async def fewer() -> bool:
        return len(process.host.worlds.held) <= 5

    await aio.until(fewer)
    kept = [process.host.worlds.holds(await world._handle.address()) for world in worlds]
    assert kept == [False] * 15 + [True] * 5
    for world in worlds:
        assert (await world.state(app.reducers["Cell"].cls, "k")).count == 1
    await process.close()


async def test_a_host_that_closes_leaves_nothing_behind(kit: Kit) -> None:
    """Worlds saved, leases free, no life sign, no lock; what is unread has a hint. The next starts at once."""
    app = program()
    process = await kit.process(app)
    worlds = [await process.universe.ensure(f"w{number}", app) for number in range(5)]
    for world in worlds:
        await world.send(Put("k"))
        await kits.begin(world, app.workflows["wait"]("x"), id="r")
    heads = [await world.head() for world in worlds]
    await process.close()
    engine = await kit.engine()
    assert (await engine.read(kv.Range(*lease_keys.workers()))).page(0).items == []
    for world, head in zip(worlds, heads, strict=True):
        at = await world._handle.address()
        read = await engine.read(*leases.reads(at), snapshot_layer.get_baseline(at))
        state = leases.decode(at, read.value(0), read.value(1), read.value(2))
        assert (state.holder, state.epoch.number) == (None, 1)
        assert snapshot_layer.decode_baseline(read.value(3)).height >= head.height
    if kit.name == "lmdb":
        assert list((Path(kit.url) / "workers").iterdir()) == []
    async with kit.hosting(app, settings=Settings()) as universe:
        assert universe._connection.host is not None
        held = await universe._connection.host.worlds.hold(await worlds[0]._handle.address())
        assert held is not None
        assert held.lease.epoch == 2
        assert held.entries_since == 0


async def test_what_is_unread_at_the_end_has_a_hint(memory_kit: Kit) -> None:
    """A host closes in the middle of a long inbox. The next one knows without being told."""
    app = program()
    made: list[Counting] = []

    def wrap(engine: Any) -> Counting:
        made.append(Counting(engine))
        return made[-1]

    settings = kits.settings(worker={"max_inbox_batch": 1})
    process = await memory_kit.process(app, settings=settings, wrap=wrap)
    async with memory_kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        for number in range(200):
            await world.send(Put("k", str(number)))
        await process.close()
        left = await kits.unread(client._connection.store.engine, at)
        assert left > 0
        assert await kits.hints(client._connection.store.engine, at)
        async with memory_kit.hosting(app) as universe:

            async def drained() -> bool:
                return await kits.unread(universe._connection.store.engine, at) == 0

            await aio.until(drained)
            assert (await universe.world("w").state(app.reducers["Cell"].cls, "k")).texts == [
                str(n) for n in range(200)
            ]


async def test_a_released_world_is_hinted_at_if_anything_is_unread(memory_kit: Kit) -> None:
    """Its own hint was gone already when something came that left none."""
    app = program()
    settings = kits.settings(worker={"scan_ms": 10**7})
    process = await memory_kit.process(app, settings=settings)
    world = await process.universe.ensure("w", app)
    await world.send(Put("k"))
    at = await world._handle.address()
    batch = kv.Batch()
    inboxes.enqueue_once(batch, at, inbox.InboxEvent("Put", payload.inline(user_values.dump(Put("k")))))
    batch.absent(b"guard")
    batch.put(b"guard", b"")
    await process.engine.commit(batch)
    await process.close()
    engine = await memory_kit.engine()
    assert await kits.unread(engine, at) == 1
    assert await kits.hints(engine, at)


async def test_a_world_that_has_something_to_do_again_is_kept(memory_kit: Kit) -> None:
    app = program()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    await world.send(Put("k"))
    worker = process.host.worlds
    hosted = worker.peek(await world._handle.address())
    await world.snapshot()
    await hosted.quiet()
    hosted.look()
    await worker._keeper.let_go(hosted)
    assert worker.holds(hosted.at)
    await process.close()


async def test_a_run_with_a_long_record_is_warned_of_once(memory_kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    app = program()

    @app.workflow
    async def long() -> None:
        for number in range(20):
            await app.effects["echo"](str(number))
        await wl.wait(Go)

    async with memory_kit.hosting(app, settings=kits.settings(worker={"run_outcomes_warn": 15})) as universe:
        world = await universe.ensure("w", app)
        await kits.begin(world, long(), id="long")

        async def waiting() -> bool:
            return (await kits.kinds(world)).count(Kind.EFFECT_RESULT) == 20

        await aio.until(waiting)
        with caplog.at_level(logging.WARNING, "worldline.worker"):
            for _ in range(2):
                await world.send(Put("k"))
                await world.snapshot()
        assert caplog.text.count("run 'long'") == 1
        assert "wl.continue_as_new()" in caplog.text


async def test_a_world_that_cannot_be_saved_goes_on(memory_kit: Kit) -> None:
    """There is nowhere to put a large snapshot. That is said, and costs nothing but a longer restore."""
    app = program()
    memory_kit._objects = store_opening.NoObjects()
    process = await memory_kit.process(app, settings=kits.settings(worker={"snapshot_entries": 5}))
    world = await process.universe.ensure("w", app)
    for number in range(20):
        await world.send(Put(f"k{number}", "x" * 3_000))
    await asyncio.sleep(0.7)  # an upkeep or two
    await world.send(Put("k0"))
    assert (await world.state(app.reducers["Cell"].cls, "k0")).count == 2
    await process.close()
    async with memory_kit.hosting(app) as universe:
        assert (await universe.world("w").state(app.reducers["Cell"].cls, "k0")).count == 2
