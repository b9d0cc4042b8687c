"""What is the embedded engine's own: its map, its thread, and other processes on its folder."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import lmdb
import pytest

from tests import aio
from tests.store.lmdb_child import VALUE, Child, create, names
from worldline.base import env as envs
from worldline.base import env_os, errors, limits
from worldline.store import kv
from worldline.store.lmdb import lmdb_driver as engines
from worldline.store.lmdb import lmdb_engine, own_key
from worldline.store.lmdb import store_folder as lmdb_folder

TINY = 1 * limits.MIB


@contextlib.asynccontextmanager
async def opened(
    folder: Path, *, map_bytes: int = limits.LMDB_MAP_BYTES, env: envs.Env | None = None
) -> AsyncIterator[lmdb_engine.LmdbEngine]:
    engine = await engines.open(folder, env or env_os.OsEnv(), create=True, map_bytes=map_bytes)
    try:
        yield engine
    finally:
        await engine.close()


def store_of(engine: lmdb_engine.LmdbEngine) -> engines._Store:
    store = engine._store
    assert isinstance(store, engines._Store)
    return store


def map_bytes_of(engine: lmdb_engine.LmdbEngine) -> int:
    return store_of(engine)._db.info()["map_size"]


async def count(engine: kv.Engine, prefix: bytes) -> int:
    page = (await engine.read(kv.Range(prefix or b"\x00", prefix + b"\xff", 100_000, 1 << 30))).page(0)
    assert not page.more
    return len(page.items)


def append(name: bytes, prefix: bytes) -> kv.Batch:
    batch = create(name)
    batch.append(prefix, b"x")
    return batch


# --- Durability ---


async def test_the_live_environment_syncs_everything(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        durability = await engine.durability()
        assert durability.full
        assert durability.settings == {
            "engine": "lmdb",
            "sync": "true",
            "metasync": "true",
            "map_async": "false",
            "writemap": "false",
        }
        flags = store_of(engine)._db.flags()
        assert (flags["sync"], flags["metasync"], flags["writemap"], flags["map_async"]) == (True, True, False, False)


async def test_less_durability_is_said_loudly(tmp_path: Path) -> None:
    with pytest.warns(errors.DurabilityWarning, match="without sync"):
        engine = await engines.open(tmp_path, env_os.OsEnv(), create=True, sync=False)
    durability = await engine.durability()
    assert not durability.full
    assert durability.settings["sync"] == "false"
    assert await engine.commit(create(b"a")) == [kv.Ok()]
    with pytest.raises(errors.StoreUnavailable, match="sync=False"):
        await engines.open(tmp_path, env_os.OsEnv(), create=True)
    await engine.close()
    async with opened(tmp_path) as again:
        assert (await again.durability()).full
        assert await count(again, b"a") == 1


# --- The key of its own, stamps and time ---


async def test_no_range_shows_or_deletes_the_engines_own_key(tmp_path: Path) -> None:
    last = b"\xff" * limits.KEY_BYTES_MAX
    async with opened(tmp_path) as engine:
        [before] = await engine.commit(append(b"a", b"log/"))
        await engine.commit(create(last))
        everything = kv.Range(b"\x00", b"\xff" * (limits.KEY_BYTES_MAX + 1))
        forward = (await engine.read(everything)).page(0)
        backward = (await engine.read(kv.Range(everything.begin, everything.end, reverse=True))).page(0)
        assert [key for key, _ in forward.items][::2] == [b"a", last]
        assert backward.items == forward.items[::-1]
        batch = create(b"\x00")
        batch.delete_range(b"\x00\x00", last)
        batch.delete(last)
        await engine.commit(batch)
        assert [key for key, _ in (await engine.read(everything)).page(0).items] == [b"\x00"]
        [after] = await engine.commit(append(b"b", b"log/"))
        assert isinstance(before, kv.Ok)
        assert isinstance(after, kv.Ok)
        assert after.stamps > before.stamps


async def test_a_copied_and_compacted_file_goes_on_counting(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir(0o700)
    async with opened(tmp_path / "store") as engine:
        for turn in range(20):
            await engine.commit(append(b"id/%d" % turn, b"log/"))
        stable = (await engine.read(kv.Range(b"log/", b"log0"))).page(0).stable
        store_of(engine)._db.copy(str(copy), compact=True)
    async with opened(copy) as engine:
        assert (await engine.read(kv.Range(b"log/", b"log0"))).page(0).stable == stable
        [outcome] = await engine.commit(append(b"id/more", b"log/"))
        assert isinstance(outcome, kv.Ok)
        assert outcome.stamps[0] >= stable


async def test_only_groups_with_appends_use_a_version(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        stables = []
        for batch in (create(b"a"), append(b"b", b"log/"), append(b"b", b"log/"), create(b"c"), append(b"d", b"log/")):
            await engine.commit(batch)
            stables.append((await engine.read(kv.Range(b"log/", b"log0"))).page(0).stable)
        assert stables == [kv.stamp(version, 0) for version in (1, 2, 2, 2, 3)]
    assert kv.stamps(7, 3, 2) == (kv.stamp(7, 3), kv.stamp(7, 4))


async def test_the_stores_time_follows_the_clock_back(tmp_path: Path) -> None:
    env = envs.FixedEnv()
    async with opened(tmp_path, env=env) as engine:
        first = (await engine.read()).time_us
        env.jump_wall_us(3_600_000_000)
        assert (await engine.read()).time_us == first + 3_600_000_000
        env.jump_wall_us(-3_600_000_000)
        assert (await engine.read()).time_us == first, "it must not wait until the clock is there again"


# --- One process ---


async def test_one_folder_opened_twice_is_one_store(tmp_path: Path) -> None:
    folder, alias = tmp_path / "store", tmp_path / "alias"
    folder.mkdir()
    alias.symlink_to(folder)
    async with opened(folder) as first:
        async with opened(alias) as second:
            assert store_of(first) is store_of(second)
            results = await asyncio.gather(*(each.commit(create(b"a")) for each in (first, second) * 4))
            assert sum(outcome == [kv.Ok()] for outcome in results) == 1
        assert await first.commit(create(b"b")) == [kv.Ok()]
    async with opened(folder) as third:
        assert await count(third, b"") == 2


async def test_one_folder_in_two_loops_at_once(tmp_path: Path) -> None:
    """Each loop has its own answers, and hears of what the other wrote."""
    wrote: list[kv.Outcome] = []

    async def other() -> None:
        async with opened(tmp_path) as second:
            for turn in range(50):
                wrote.extend(await second.commit(create(b"other/%d" % turn)))

    async with opened(tmp_path) as first:
        seen = (await first.read()).seen
        thread = threading.Thread(target=lambda: asyncio.run(other()))
        thread.start()
        for turn in range(50):
            assert await first.commit(create(b"first/%d" % turn)) == [kv.Ok()]
        assert await first.wait(b"other/", seen, 10_000)
        await asyncio.to_thread(thread.join)
        assert wrote == [kv.Ok()] * 50
        assert await count(first, b"other/") == await count(first, b"first/") == 50


async def test_a_lost_version_is_told_and_nothing_is_appended(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        with store_of(engine)._db.begin(write=True) as txn:
            txn.delete(own_key.KEY)
        batch = create(b"appended")
        batch.append(b"log/", b"1")
        with pytest.raises(errors.Corrupt, match="restore the folder from a backup"):
            await engine.commit(create(b"beside"), batch)
        assert (await engine.read(kv.Get(b"beside"), kv.Get(b"appended"))).answers == [None, None]


async def test_a_bug_of_the_writer_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: seen.append(given.exc_type.__name__))
    async with opened(tmp_path) as engine:
        bug = create(b"a")
        bug.puts[b"a"] = kv.Put(b"a", "text")  # type: ignore[arg-type]
        calls = [asyncio.ensure_future(engine.commit(batch)) for batch in (bug, create(b"b"))]
        outcomes = [await call for call in calls[:1]]
        assert isinstance(outcomes[0][0], kv.CommitUnknown)
        with contextlib.suppress(errors.StoreFailed):
            [outcome] = await calls[1]
            assert isinstance(outcome, kv.CommitUnknown)
        with pytest.raises(errors.StoreFailed, match="open it again"):
            await engine.commit(create(b"c"))
        assert seen == ["TypeError"]
        async with opened(tmp_path) as again:
            assert await count(again, b"") == 0


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    files = len(names(Path("/proc/self/fd")))
    for _ in range(3):
        async with opened(tmp_path) as engine:
            assert names(tmp_path / "hints") != []
            await engine.commit(create(b"a"))
    assert names(tmp_path / "hints") == []
    assert len(names(Path("/proc/self/fd"))) == files
    mine = [thread.name for thread in threading.enumerate() if str(tmp_path) in thread.name]
    assert mine == []
    assert not engines._REGISTRY


# --- While another process has the write lock ---


async def test_a_cancelled_call_leaves_its_group_alone_and_close_waits(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.commit(create(b"a"))
        holder = await Child.start("hold", tmp_path, "writer")
        assert await holder.line() == "held"
        calls = [asyncio.ensure_future(engine.commit(create(b"q/%d" % index))) for index in range(6)]
        await asyncio.sleep(0.05)
        calls[2].cancel()
        closing = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        assert [call.done() for call in calls] == [False, False, True, False, False, False]
        assert names(tmp_path / "hints") != []
        await holder.end()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[:2] + results[3:] == [[kv.Ok()]] * 5
        assert isinstance(results[2], asyncio.CancelledError)
        await closing
    async with opened(tmp_path) as again:
        assert await count(again, b"q/") == 6, "what was accepted was done"


async def test_a_call_cancelled_twice_is_cancelled_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        holder = await Child.start("hold", tmp_path, "writer")
        assert await holder.line() == "held"
        early, late = (asyncio.ensure_future(engine.commit(create(name))) for name in (b"early", b"late"))
        early.cancel()  # before it has begun
        await asyncio.sleep(0.01)
        late.cancel()
        late.cancel()
        results = await asyncio.gather(early, late, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        await holder.end()
        assert await engine.commit(create(b"after")) == [kv.Ok()]
        assert (await engine.read(kv.Get(b"early"), kv.Get(b"late"))).answers == [None, b""]


def test_a_task_that_ends_the_loop_takes_no_answer_with_it(tmp_path: Path) -> None:
    """All of a group are answered in one turn; one of them exits there."""

    async def exits(engine: kv.Engine, key: bytes) -> None:
        await engine.commit(create(key))
        raise SystemExit(3)

    loop = asyncio.new_event_loop()
    engine = loop.run_until_complete(engines.open(tmp_path, env_os.OsEnv(), create=True))
    try:
        for turn in range(10):
            names = [b"%d/%d" % (turn, index) for index in range(6)]
            before = [loop.create_task(engine.commit(create(name))) for name in names[:3]]
            exiting = loop.create_task(exits(engine, b"exits/%d" % turn))
            after = [loop.create_task(engine.commit(create(name))) for name in names[3:]]
            with pytest.raises(SystemExit):
                loop.run_until_complete(asyncio.gather(exiting, *before, *after, return_exceptions=True))
            answered = asyncio.wait_for(asyncio.gather(*before, *after), 20)
            assert loop.run_until_complete(answered) == [[kv.Ok()]] * 6
            assert isinstance(exiting.exception(), SystemExit)
    finally:
        loop.run_until_complete(engine.close())
        loop.close()


async def test_a_cancelled_close_can_be_finished(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        holder = await Child.start("hold", tmp_path, "writer")
        assert await holder.line() == "held"
        call = asyncio.ensure_future(engine.commit(create(b"a")))
        await asyncio.sleep(0)
        closers = [asyncio.ensure_future(engine.close()) for _ in range(2)]
        await asyncio.sleep(0.02)
        closers[0].cancel()
        await asyncio.wait(closers[:1])
        await holder.end()
        assert await call == [kv.Ok()]
        await closers[1]
        await engine.close()


async def test_reads_do_not_wait_for_writers(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.commit(create(b"a", b"1"))
        holder = await Child.start("hold", tmp_path, "writer")
        assert await holder.line() == "held"
        call = asyncio.ensure_future(engine.commit(create(b"b")))
        await asyncio.sleep(0.05)
        for _ in range(20):
            assert (await engine.read(kv.Get(b"a"))).answers == [b"1"]
            await asyncio.sleep(0)
        assert not call.done()
        await holder.end()
        assert await call == [kv.Ok()]


# --- The map ---


@pytest.mark.probe("lmdb.map-full")
async def test_the_map_grows_under_commits_and_reads(tmp_path: Path) -> None:
    async with opened(tmp_path, map_bytes=limits.LMDB_MAP_BYTES_MIN) as engine:
        for turn in range(4):
            batch = create(b"guard/%d" % turn)
            for index in range(100):
                batch.put(b"value/%d/%03d" % (turn, index), VALUE)
            call = asyncio.ensure_future(engine.commit(batch))
            while not call.done():
                assert await count(engine, b"value/") in (turn * 100, (turn + 1) * 100)
                await asyncio.sleep(0)
            assert await call == [kv.Ok()]
        assert await count(engine, b"value/") == 400
        assert map_bytes_of(engine) > 400 * len(VALUE)


@pytest.mark.probe("lmdb.frozen-lost")
async def test_a_frozen_state_is_lost_when_the_map_has_to_grow(tmp_path: Path) -> None:
    async with opened(tmp_path, map_bytes=limits.LMDB_MAP_BYTES_MIN) as engine:
        assert await engine.commit(create(b"guard")) == [kv.Ok()]
        frozen = await kv.freeze(engine)
        batch = create(b"more")
        for index in range(100):
            batch.put(b"value/%03d" % index, VALUE)
        assert await engine.commit(batch) == [kv.Ok()]
        with pytest.raises(errors.StoreUnavailable, match="begin again"):
            await frozen.read(kv.Get(b"guard"))
        await frozen.close()
        again = await kv.freeze(engine)
        assert len((await again.read(kv.Range(b"value/", b"value0", bytes_max=1 << 30))).page(0).items) == 100
        await again.close()


async def test_a_store_that_is_closed_takes_its_frozen_states_along(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        frozen = await kv.freeze(engine)
    with pytest.raises(errors.StoreError):
        await frozen.read(kv.Get(b"guard"))
    await frozen.close()


@pytest.mark.probe("lmdb.pages-dropped")
async def test_pages_that_were_read_do_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that reads all of a file again and again, and writes a little."""
    monkeypatch.setattr(limits, "LMDB_MAPPED_CHECK_GROUPS", 1)
    async with opened(tmp_path) as engine:
        for number in range(16):
            batch = create(b"%03d" % number)
            for part in range(16):
                batch.put(b"p%03d%03d" % (number, part), bytes(60_000))
            await engine.commit(batch)
        before = lmdb_folder.mapped_bytes()
        assert await count(engine, b"p") == 256
        assert lmdb_folder.mapped_bytes() - before > 8 * limits.MIB
        monkeypatch.setattr(limits, "LMDB_MAPPED_BYTES_MAX", 4 * limits.MIB)
        numbers = itertools.count()

        async def are_few() -> bool:
            await engine.commit(create(b"again %d" % next(numbers)))  # its thread looks when the call has its answer
            return lmdb_folder.mapped_bytes() - before < 4 * limits.MIB

        for _ in range(3):
            await aio.until(are_few)
            assert await count(engine, b"p") == 256


@pytest.mark.parametrize("first", ["read", "commit"])
@pytest.mark.probe("lmdb.map-resized-by-another")
async def test_a_map_that_another_process_outgrew_is_adopted(tmp_path: Path, first: str) -> None:
    async with opened(tmp_path, map_bytes=TINY) as engine:
        await engine.commit(create(b"a"))
        child = await Child.start("write_once", tmp_path, "big", 3 * TINY)
        assert await child.line() == "open"
        child.go()
        assert await child.line() == "Ok"
        assert map_bytes_of(engine) == TINY
        if first == "commit":
            assert await engine.commit(create(b"b")) == [kv.Ok()]
        else:
            reads = await asyncio.gather(*(engine.read(kv.Get(b"big"), kv.Get(b"a")) for _ in range(5)))
            assert [read.answers for read in reads] == [[b"", b""]] * 5
        assert map_bytes_of(engine) > 3 * TINY
        assert await count(engine, b"big/") == 3 * TINY // len(VALUE)
        await child.end()


async def test_four_processes_grow_one_folder_and_none_starves(tmp_path: Path) -> None:
    children = [await Child.start("write_for", tmp_path, f"w{index}", 2.5, TINY) for index in range(4)]
    for child in children:
        assert await child.line() == "open"
    for child in children:
        child.go()
    counts = [int(await child.line()) for child in children]
    for child in children:
        await child.end()
    assert min(counts) * 2 >= statistics.median(counts), counts
    async with opened(tmp_path, map_bytes=TINY) as engine:
        for index, wrote in enumerate(counts):
            assert await count(engine, b"w%d/" % index) == wrote
        assert map_bytes_of(engine) > 2 * TINY, "the map was outgrown"


# --- Processes that die ---


async def test_a_killed_writer_costs_nobody_anything(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        for turn in range(5):
            child = await Child.start("write_for_ever", tmp_path, f"child{turn}")
            acked = [await child.line() for _ in range(10 + turn)]
            assert await engine.commit(create(b"mine/%d" % turn)) == [kv.Ok()]
            await child.kill()
            acked += await child.lines()
            async with asyncio.timeout(10):
                assert await engine.commit(create(b"mine too/%d" % turn)) == [kv.Ok()]
            wrote = await count(engine, b"child%d/" % turn)
            assert wrote >= len(acked), "an acked commit is gone"


async def test_dead_readers_are_removed_on_open(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.commit(create(b"a"))
    # Somebody must be there all the time: the first process to open the files begins the table anew.
    bystander = await Child.start("hold", tmp_path, "reader")
    assert await bystander.line() == "held"
    holder = await Child.start("hold", tmp_path, "reader")
    assert await holder.line() == "held"
    with lmdb.open(str(tmp_path)) as db:
        assert str(holder.process.pid) in db.readers()
        await holder.kill()
        assert str(holder.process.pid) in db.readers()
    async with opened(tmp_path) as engine:
        readers = store_of(engine)._db.readers()
        assert str(holder.process.pid) not in readers
        assert str(bystander.process.pid) in readers
    await bystander.end()


@pytest.mark.probe("lmdb.readers-full")
async def test_a_table_full_of_dead_readers_is_cleared(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.commit(create(b"a"))
        holder = await Child.start("hold", tmp_path, "all readers")
        assert await holder.line() == "held"
        await holder.kill()
        with store_of(engine)._begin_read(), store_of(engine)._begin_read():
            assert str(holder.process.pid) not in store_of(engine)._db.readers()
        assert (await engine.read(kv.Get(b"a"))).value(0) is not None


@pytest.mark.parametrize("when", ["before growing", "now and then"])
async def test_dead_readers_do_not_make_the_store_grow(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead reader pins the pages of its snapshot; the writer notices before it takes more space."""
    if when == "now and then":
        monkeypatch.setattr(limits, "LMDB_READER_CHECK_GROUPS", 2)
    async with opened(tmp_path, map_bytes=TINY) as engine:
        await engine.commit(create(b"a", VALUE))
        holder = await Child.start("hold", tmp_path, "reader")
        assert await holder.line() == "held"
        await holder.kill()
        assert str(holder.process.pid) in store_of(engine)._db.readers()
        rewrites = 8 if when == "now and then" else 2 * TINY // len(VALUE)
        for turn in range(rewrites):
            batch = kv.Batch()
            batch.expect(b"a", VALUE if turn == 0 else b"%06d" % (turn - 1) + VALUE)
            batch.put(b"a", b"%06d" % turn + VALUE)
            assert await engine.commit(batch) == [kv.Ok()]
        assert map_bytes_of(engine) == TINY
        assert str(holder.process.pid) not in store_of(engine)._db.readers()
