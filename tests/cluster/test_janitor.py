"""What has had its time is cleared away, in small turns; what has not stays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import worldline as wl
from tests import aging, aio
from tests.kits import apart, fixtures, sums
from tests.kits import kit as kits
from tests.kits.janitors import WINDOW_MS, context_of, janitor_of
from tests.kits.kit import Kit, Process
from worldline.base import env as envs
from worldline.base import errors
from worldline.cluster import janitor as janitors
from worldline.cluster.janitor import Janitor
from worldline.features.copies import import_batches
from worldline.features.deletion.universe_job import UniverseRemovalJob
from worldline.keys import inbox as inbox_keys
from worldline.keys import leases as lease_keys
from worldline.keys import space
from worldline.keys import work as work_keys
from worldline.layers import cas, chunks, leases
from worldline.layers import inbox as inboxes
from worldline.layers import work as works
from worldline.model import ids, inbox, payload
from worldline.model.roles import Role
from worldline.model.settings import JanitorSettings, WorkerSettings
from worldline.model.work import WorkKind
from worldline.observe import measures
from worldline.runtime import death_witness, operator_calls
from worldline.runtime import lease_calls as world_lease
from worldline.runtime.janitor_job import JanitorJob
from worldline.runtime.process_lock import Presence
from worldline.store import kv, transact
from worldline.store.objects import folder_objects

LATER_SECONDS = 3 * WINDOW_MS / 1000


def program() -> wl.Program:
    app = wl.Program("p")

    @app.effect
    async def call() -> None:
        pass

    @app.workflow
    async def wait() -> None:
        await call()

    return app


def janitor(process: Process, *, meter: measures.Meter | None = None, **changes: int) -> Janitor:
    settings = JanitorSettings(**{"turn_ms": 1, "round_ms": 1, "collect_ms": 0, **changes})
    return janitor_of(process.universe._connection, settings, meter=meter)


def counted(meter: measures.Meter) -> dict[str, float]:
    """What was cleared, by kind."""
    return {of[0]: value for (name, of), value in meter.counters.items() if name == "worldline_janitor_cleared_total"}


async def round_of(each: Janitor) -> int:
    """A whole round. Returns how many turns it took."""
    turns = 1
    while not await each.turn():
        turns += 1
    return turns


async def enqueue(process: Process, at: ids.Address, client_id: bytes | str) -> bool:
    """Whether this id had been seen before."""
    item = inbox.InboxEvent("Add", payload.EMPTY)
    engine, env = process.engine, process.universe._connection.store.env
    read = await engine.read(inboxes.get_seen(at, client_id))
    if read.value(0) is not None:
        return True
    batch = kv.Batch()
    inboxes.enqueue(batch, at, item, client_id=client_id, time_us=read.time_us, window_us=WINDOW_MS * 1000)
    assert isinstance((await transact.commit(engine, env, batch))[0], kv.Ok)
    return False


async def passes(kit: Kit, process: Process, seconds: float) -> None:
    """Time passes, and janitors have counted it."""
    await kit.jump(seconds)
    await aging.older(process.engine, process.universe._connection.id, int(seconds * 1_000_000))


async def seen(process: Process, at: ids.Address) -> int:
    made, chosen = inbox_keys.seen_made(at), inbox_keys.seen_chosen(at)
    read = await process.engine.read(kv.Range(*made, count_max=10_000), kv.Range(*chosen, count_max=10_000))
    return len(read.page(0).items) + len(read.page(1).items)


# --- Ids that were seen ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["memory", "lmdb"])
async def test_ids_beyond_the_window_are_forgotten(engine: str, memory_kit: Kit, lmdb_kit: Kit) -> None:
    kit = memory_kit if engine == "memory" else lmdb_kit
    process = await kit.process()
    worlds = [await (await process.universe.create(f"w{n}", program()))._handle.address() for n in range(5)]
    old = envs.new_id(kit.env)
    for at in worlds:
        for client_id in (old, envs.new_id(kit.env), "chosen", "x" * 100):
            assert not await enqueue(process, at, client_id)
    meter = measures.Meter()
    each = janitor(process, meter=meter, worlds_max=2)
    await round_of(each)
    assert counted(meter) == {}
    assert [await seen(process, at) for at in worlds] == [4] * 5, "all are within the window"
    assert each.cleared == 0
    await kit.jump(LATER_SECONDS)
    await round_of(each)
    assert [await seen(process, at) for at in worlds] == [4] * 5, "one clock proves nothing"
    await passes(kit, process, LATER_SECONDS)
    for at in worlds:
        assert not await enqueue(process, at, "new")
    assert await round_of(each) == 5, "three pages of worlds, the pointers, and the rest"
    assert [await seen(process, at) for at in worlds] == [1] * 5
    assert each.rounds == 3
    assert each.cleared == 10, "one page of either kind for each world"
    assert counted(meter) == {"made_ids": 10, "chosen_ids": 10}, "two records of either kind for each world"
    assert meter.value("worldline_janitor_round_seconds") == 3
    assert await enqueue(process, worlds[0], "new"), "a repeat within the window is still one"
    assert not await enqueue(process, worlds[0], "chosen"), "after it, an id that a client chose is new"
    with pytest.raises(errors.DedupeExpired):  # and one that we made is refused, not taken for new
        await enqueue(process, worlds[0], old)


async def test_ids_are_forgotten_on_postgresql_too(kit: Kit) -> None:
    """Its clock cannot be moved on, so the window is short: what was there is gone, what comes later stays."""
    process = await kit.process()
    at = await (await process.universe.create("w", program()))._handle.address()
    for number in range(10):
        assert not await enqueue(process, at, f"old {number}")
    each = janitor_of(process.universe._connection, JanitorSettings(round_ms=1), dedupe_window_ms=1)

    async def gone() -> bool:
        await round_of(each)
        return await seen(process, at) == 0

    await aio.until(gone)
    assert await kits.unread(process.engine, at) == 10, "what was sent is not forgotten"


async def test_many_ids_are_looked_at_a_page_at_a_time(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitors, "SEEN_MAX", 6)  # and so seven for one world
    process = await memory_kit.process()
    at = await (await process.universe.create("w", program()))._handle.address()
    for number in range(30):
        await enqueue(process, at, f"id {number:03}")
    each = janitor(process)
    assert await round_of(each) == 5 + 2, "all are found"
    await passes(memory_kit, process, LATER_SECONDS)
    assert await round_of(each) == 5 + 2, "and dropped"
    assert await seen(process, at) == 0
    assert await round_of(each) == 3, "the next round begins anew"


# --- Pointers, workers -----------------------------------------------------------------------------------------


async def test_pointers_that_lead_nowhere_are_dropped(kit: Kit) -> None:
    app = program()
    client = await kit.process()
    world = await client.universe.create("w", app)
    at = await world._handle.address()
    async with apart.host(kit, app, roles=[Role.WORLDS]):
        await kits.begin(world, app.workflows["wait"](), id="r")

        async def asked() -> bool:
            return len(await kits.opened(client.engine, at)) == 1

        await aio.until(asked)
    [real] = await kits.opened(client.engine, at)
    batch = kv.Batch()
    stray = work_keys.due_key(at, ids.IntentId(bytes(16)), queue="nobody/default/left", due_us=5)
    stale = work_keys.due_key(at, real.intent, queue=real.work.queue, due_us=real.work.due_us + 1)
    for key in (stray, stale):
        batch.absent(key)
        batch.put(key, work_keys.DUE.pack(work_keys.Due(WorkKind.EFFECT)))
    await client.engine.commit(batch)
    meter = measures.Meter()
    each = janitor(client, meter=meter)
    await round_of(each)
    assert counted(meter) == {"pointers": 2}
    page = (await client.engine.read(kv.Range(*work_keys.due_all(at.universe)))).page(0)
    [left] = works.decode_due(at.universe, page)
    assert works.matches(left, real), "the one that leads somewhere stays"
    assert each.cleared == 2


async def test_what_dead_workers_have_left_goes(kit: Kit) -> None:
    client = await kit.process()
    engine, env = client.engine, kit.env
    at = await (await client.universe.create("w", program()))._handle.address()
    settings = WorkerSettings(lease_ttl_ms=300, heartbeat_ms=75)
    worker, living = ids.WorkerId(envs.new_id(env)), ids.WorkerId(envs.new_id(env))
    me = await world_lease.beat(engine, env, worker, ids.Incarnation(envs.new_id(env)), settings)
    lease = await world_lease.acquire(engine, env, at, me, death_witness.DeathWitness(env))
    meter = measures.Meter()
    each = janitor(client, meter=meter)
    await kit.jump(1)
    await world_lease.beat(engine, env, living, ids.Incarnation(envs.new_id(env)), WorkerSettings())
    await round_of(each)
    assert [life.worker for life in await operator_calls.list_workers(engine)] == [living]
    state = leases.decode(at, *[(await engine.read(get)).value(0) for get in leases.reads(at)])
    assert (state.holder, state.epoch.number) == (None, lease.epoch)
    reaped = [meter.value(f"worldline_reaped_{what}_total") for what in ("workers", "leases")]
    assert (reaped, each.cleared) == ([1, 1], 1)
    assert await each._freer._release(me, {at: lease.epoch}) == 0, "what another process has ended is not counted"


async def test_held_records_without_a_worker_go(kit: Kit) -> None:
    """Of a world that has moved on since. One that has not is free for anybody, and whoever takes it clears it up."""
    client = await kit.process()
    engine, env = client.engine, kit.env
    first, second = [await (await client.universe.create(f"w{n}", program()))._handle.address() for n in range(2)]
    gone, living = [
        await world_lease.beat(
            engine, env, ids.WorkerId(envs.new_id(env)), ids.Incarnation(envs.new_id(env)), WorkerSettings()
        )
        for _ in range(2)
    ]
    for at in (first, second):
        await world_lease.acquire(engine, env, at, gone, death_witness.DeathWitness(env))
    await world_lease.say_goodbye(engine, env, gone)
    kept = await world_lease.acquire(engine, env, second, living, death_witness.DeathWitness(env))
    batch = kv.Batch()  # as if whoever took it had not known of the record
    stray = lease_keys.held_key(gone.worker, second)
    batch.absent(stray)
    batch.put(stray, lease_keys.HELD.pack(lease_keys.HeldRecord(1)))
    await engine.commit(batch)
    assert len(await operator_calls.list_worker_worlds(engine, gone.worker)) == 2
    meter = measures.Meter()
    each = janitor(client, meter=meter)
    await round_of(each)
    assert counted(meter) == {"held_records": 1}
    assert each.cleared == 1
    assert await operator_calls.list_worker_worlds(engine, gone.worker) == [(first, 1)]
    assert await operator_calls.list_worker_worlds(engine, living.worker) == [(second, kept.epoch)]
    await world_lease.acquire(engine, env, first, living, death_witness.DeathWitness(env))
    assert await operator_calls.list_worker_worlds(engine, gone.worker) == []


@pytest.mark.parametrize("engine", ["memory", "lmdb"])
async def test_chunks_of_abandoned_uploads_go(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before an hour, and a bounded number in a round."""
    monkeypatch.setattr(janitors, "UPLOADS_MAX", 2)
    kit = fixtures.make(engine, tmp_path)
    kit.without_objects()
    process = await kit.process()
    connection = process.universe._connection
    for number in range(3):
        data = bytes([number]) * (2 * chunks.PART)
        batch = kv.Batch()
        now_us = (await process.engine.read()).time_us
        chunks.begin(batch, connection.id, cas.address(data), bytes(16), data, time_us=now_us, age_us=1)
        assert isinstance((await process.engine.commit(batch))[0], kv.Ok)

    async def left() -> int:
        return len((await process.engine.read(chunks.uploads_range(connection.id, count_max=9))).page(0).items)

    meter = measures.Meter()
    each = janitor(process, meter=meter)
    await kit.jump(10_000)
    await passes(kit, process, 3_500)
    await round_of(each)
    assert (await left(), each.cleared) == (3, 0)
    await passes(kit, process, 200)
    await round_of(each)
    assert (await left(), each.cleared) == (1, 2)
    await round_of(each)
    assert (await left(), each.cleared) == (0, 3)
    assert counted(meter) == {"uploads": 3}
    prefix = space.universe(connection.id) + space.part(space.InUniverse.CHUNK)
    assert (await process.engine.read(kv.Range(prefix, prefix + b"\xff"))).page(0).items == []
    await kit.aclose()


# --- The loop --------------------------------------------------------------------------------------------------


async def test_ticks_go_on_from_round_to_round(memory_kit: Kit) -> None:
    process = await memory_kit.process()
    each = janitor(process)
    for _ in range(7):
        await each.tick()
    assert each.rounds == 2
    each.wake()
    await each.close()


class Job(JanitorJob):
    """Says when it has its turns, and needs some."""

    def __init__(self, name: str, told: list[str], *, turns: int = 1, watches: Sequence[bytes] = ()) -> None:
        self.name, self.told, self.watches, self.turns = name, told, watches, turns
        self.left = turns

    async def turn(self) -> bool:
        self.told.append(self.name)
        self.left = self.left - 1 or self.turns
        self.rest_ms = None if self.left == self.turns else 77
        return self.left == self.turns

    async def close(self) -> None:
        self.told.append(f"{self.name} closed")


async def test_jobs_have_their_turns_in_order_at_the_end_of_a_round_and_those_that_watch_in_every_tick(
    memory_kit: Kit,
) -> None:
    process = await memory_kit.process()
    told: list[str] = []
    jobs = [
        Job("first", told),
        Job("deleted", told, watches=[b"x"]),
        Job("long", told, turns=3),
        Job("last", told),
    ]
    settings = JanitorSettings(turn_ms=1, round_ms=1)
    each = Janitor(context_of(process.universe._connection, settings), jobs, dedupe_window_ms=WINDOW_MS)
    rests = [each.within_ms]
    while not await each.turn():
        rests.append(each.within_ms)
    assert told == ["first", "long", "long", "long", "last"], "one after the other, each until it is done"
    assert rests == [1, 1, 1, 77, 77]
    assert await each.remove()
    assert told.pop() == "deleted"
    told.clear()
    for _ in range(3):
        await each.tick()
    assert told == ["deleted", "deleted", "deleted", "first", "long"], "what was deleted does not wait for a round"
    await each.close()
    assert sorted(told[-4:]) == ["deleted closed", "first closed", "last closed", "long closed"]


class Watching(Job):
    """Says what its look has seen."""

    def __init__(self, engine: kv.Engine, prefix: bytes, told: list[str]) -> None:
        super().__init__(prefix.decode(), told, watches=[prefix])
        self.engine = engine

    async def turn(self) -> bool:
        self.seen = (await self.engine.read()).seen
        return await super().turn()


@pytest.mark.parametrize("prefix", [b"first", b"second"])
async def test_what_is_written_where_a_job_watches_wakes_the_janitor(memory_kit: Kit, prefix: bytes) -> None:
    process = await memory_kit.process()
    told: list[str] = []
    jobs = [Watching(process.engine, each, told) for each in (b"first", b"second")]
    context = context_of(process.universe._connection, JanitorSettings(round_ms=10**9))
    each = Janitor(context, jobs, dedupe_window_ms=WINDOW_MS)
    each._next_us += 10**15  # no round
    resting = asyncio.get_running_loop().create_task(each.tick())
    await asyncio.sleep(0.2)
    assert told == ["first", "second"]
    assert not resting.done()
    batch = kv.Batch()
    batch.absent(prefix)
    batch.put(prefix, b"")
    await process.engine.commit(batch)
    await asyncio.wait_for(resting, 10)
    await each.close()


async def test_all_is_removed_when_each_job_that_watches_says_so(memory_kit: Kit) -> None:
    process = await memory_kit.process()
    told: list[str] = []
    jobs = [Job("long", told, turns=3, watches=[b"x"]), Job("short", told, watches=[b"y"])]
    context = context_of(process.universe._connection, JanitorSettings())
    each = Janitor(context, jobs, dedupe_window_ms=WINDOW_MS)
    assert [await each.remove() for _ in range(3)] == [False, False, True]
    assert told == ["long", "short"] * 3, "one that has much to do keeps no other waiting"
    await each.close()


async def test_the_jobs_of_the_features_clear_imports_then_scrub_then_collect(memory_kit: Kit) -> None:
    """What is owed is overwritten before a collection, which takes long; deleted worlds wait for neither."""
    process = await memory_kit.process()
    each = janitor(process)
    assert [type(job).__name__ for job in each._in_rounds] == ["ImportSweepJob", "ScrubJob", "CollectionJob"]
    assert [type(job).__name__ for job in each._at_once] == ["WorldRemovalJob"]
    made = [make for feature in process.universe._connection.store.features for make in feature.store_jobs]
    assert made == [UniverseRemovalJob]


async def test_the_janitor_sweeps_what_killed_hosts_have_left_beside_the_store(lmdb_kit: Kit) -> None:
    """The lock file not before the worker's worlds are free, and of temporary files those that were there unchanged for
    an hour of this process, whatever the machine's clock says.
    """
    app = sums.program()
    first = await lmdb_kit.process(app)
    world = await first.universe.create("w", app)
    assert await world.ask(sums.AddUp(1), timeout=30) == 1
    worker = first.host.worker
    await first.kill()
    looking = await lmdb_kit.process()
    store = looking.universe._connection.store
    folder = Path(lmdb_kit.url)
    locks = Presence(folder)
    assert locks.dead() == [worker]
    old, new = lmdb_kit.folder / "objects" / ".tmp-1-0", lmdb_kit.folder / "objects" / ".tmp-1-1"
    for path in (old, new):
        path.write_bytes(b"x")
        os.utime(path, (0, 0))  # very old, by the machine's clock
    passed_us, meter = 0, measures.Meter()

    async def sweep_uploads(monotonic_us: int, period_us: int) -> int:
        assert isinstance(store.objects, folder_objects.FolderObjects)
        return await store.objects.sweep_unchanged(monotonic_us + passed_us, period_us)

    def janitor(*, proven: bool) -> Janitor:
        return janitor_of(
            looking.universe._connection,
            JanitorSettings(turn_ms=1, round_ms=1),
            meter=meter,
            is_dead=locks.is_dead if proven else lambda _: False,
            locks=locks,
            sweep_uploads=sweep_uploads,
        )

    async def a_round(each: Janitor) -> None:
        while not await each.turn():
            pass

    await a_round(janitor(proven=False))
    assert (await store.engine.read(leases.get_heartbeat(worker))).value(0) is not None
    assert locks.dead() == [worker], "its death is still to be proven to those who take its worlds"
    assert old.exists(), "this process has not seen it for an hour"
    passed_us += janitors.UPLOAD_US_MAX
    new.write_bytes(b"xy")
    await a_round(janitor(proven=True))
    assert not old.exists()
    assert new.exists(), "it is still being written"
    await a_round(janitor(proven=True))
    assert locks.dead() == []
    assert list((folder / "workers").iterdir()) == []
    assert counted(meter) == {"temporary_files": 1, "lock_files": 1}


async def test_imports_of_killed_processes_go(memory_kit: Kit) -> None:
    process = await memory_kit.process()
    universe = process.universe._connection.id
    at = ids.Address(universe, ids.WorldId(bytes(16)))
    batch = kv.Batch()
    now_us = (await process.engine.read()).time_us
    begun = import_batches.begin(batch, at, token=bytes(16), source="a file", time_us=now_us, age_us=1)
    assert isinstance((await process.engine.commit(batch))[0], kv.Ok)
    batch = kv.Batch()
    import_batches.put_dead(batch, at, b"letter", number=1)
    import_batches.advance(batch, begun)
    assert isinstance((await process.engine.commit(batch))[0], kv.Ok)
    meter = measures.Meter()
    each = janitor(process, meter=meter)
    await memory_kit.jump(100 * 3_600)
    await passes(memory_kit, process, 23 * 3_600)
    await round_of(each)
    assert counted(meter) == {}
    await passes(memory_kit, process, 2 * 3_600)
    await round_of(each)
    assert counted(meter) == {"imports": 1}
    prefix = space.universe(universe)
    left = (await process.engine.read(kv.Range(prefix, prefix + b"\xff"))).page(0).items
    assert [key for key, _ in left if key.startswith(space.world(at))] == []
    assert (await process.engine.read(import_batches.imports_range(universe, count_max=9))).page(0).items == []
