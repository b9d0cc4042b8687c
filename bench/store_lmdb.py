"""The embedded engine against LMDB driven bare from Python, in one run: `python -m bench.store_lmdb --json`.

Every case has its sides take turns, a short round each, for the given time; a rate is the median over the rounds, a
ratio that of two medians. All sides sync fully, each on a folder of its own beside the others.

* `single`: one guarded commit of a small value after the other.
* `tick`: check a lease, read 100 inbox items of 300 bytes, append 100 entries in frames, delete the items, put 5 keys.
* `producers`: 64 tasks that enqueue guarded items of 300 bytes, against bare groups of 64 in one transaction, and
  against the plainest asyncio loop that groups: a list of futures and one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import queue
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import lmdb

from worldline.base import env_os, limits
from worldline.store import kv
from worldline.store.lmdb import lmdb_driver as engines

Round = Callable[[], Awaitable[float]]  # the operations of one round, in operations per second

SINGLES = 40
TICKS = 10
PRODUCERS = 64
PRODUCED = 20
ITEMS = 100
ITEM = b"i" * 300
FRAMES = 3
BATCH_KEYS = [b"tick/key/%d" % index for index in range(5)]


def bare_db(folder: Path) -> lmdb.Environment:
    return lmdb.open(str(folder), map_size=limits.LMDB_MAP_BYTES, max_spare_txns=1)


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


# --- single -----------------------------------------------------------------------------------------------------


class Singles:
    def __init__(self, engine: kv.Engine, db: lmdb.Environment) -> None:
        self.engine = engine
        self.db = db
        self.ours_at = 0
        self.bare_at = 0

    async def start(self) -> None:
        batch = kv.Batch()
        batch.absent(b"head")
        batch.put(b"head", number(0))
        await self.engine.commit(batch)
        with self.db.begin(write=True) as txn:
            txn.put(b"head", number(0))

    async def ours(self) -> float:
        began = time.perf_counter()
        for _ in range(SINGLES):
            batch = kv.Batch()
            batch.expect(b"head", number(self.ours_at))
            self.ours_at += 1
            batch.put(b"head", number(self.ours_at))
            [outcome] = await self.engine.commit(batch)
            assert isinstance(outcome, kv.Ok)
        return SINGLES / (time.perf_counter() - began)

    async def bare(self) -> float:
        began = time.perf_counter()
        for _ in range(SINGLES):
            txn = self.db.begin(write=True)
            assert txn.get(b"head") == number(self.bare_at)
            self.bare_at += 1
            txn.put(b"head", number(self.bare_at))
            txn.commit()
        return SINGLES / (time.perf_counter() - began)


# --- tick -------------------------------------------------------------------------------------------------------


class Ticks:
    def __init__(self, engine: kv.Engine, db: lmdb.Environment) -> None:
        self.engine = engine
        self.db = db
        self.ours_at = 0
        self.bare_at = 0

    async def start(self) -> None:
        batch = kv.Batch()
        for key in (b"tick/lease", b"tick/head"):
            batch.absent(key)
            batch.put(key, number(0))
        await self.engine.commit(batch)
        with self.db.begin(write=True) as txn:
            txn.put(b"tick/lease", number(0))
            txn.put(b"tick/head", number(0))

    async def ours(self) -> float:
        took = 0.0
        for _ in range(TICKS):
            await self.refill_ours()
            began = time.perf_counter()
            await self.tick_ours()
            took += time.perf_counter() - began
        return TICKS / took

    async def tick_ours(self) -> None:
        snapshot = await self.engine.read(
            kv.Get(b"tick/lease"), kv.Get(b"tick/head"), kv.Range(b"tick/inbox/", b"tick/inbox0")
        )
        lease, head, items = snapshot.value(0), snapshot.value(1), snapshot.page(2).items
        assert lease is not None
        assert head is not None
        assert len(items) == ITEMS
        self.ours_at += 1
        batch = kv.Batch()
        batch.expect(b"tick/lease", lease)
        batch.expect(b"tick/head", head)
        for key, _ in items:
            batch.delete(key)
        for index in range(FRAMES):
            frame = b"".join([value for _, value in items[index::FRAMES]])
            batch.put(b"tick/journal/" + number(self.ours_at * FRAMES + index), frame)
        batch.put(b"tick/head", number(self.ours_at))
        for key in BATCH_KEYS:
            batch.put(key, number(self.ours_at))
        [outcome] = await self.engine.commit(batch)
        assert isinstance(outcome, kv.Ok)

    async def refill_ours(self) -> None:
        batch = kv.Batch()
        batch.absent(b"tick/refill/" + number(self.ours_at))
        batch.put(b"tick/refill/" + number(self.ours_at), b"")
        for _ in range(ITEMS):
            batch.append(b"tick/inbox/", ITEM)
        await self.engine.commit(batch)

    async def bare(self) -> float:
        took = 0.0
        for _ in range(TICKS):
            self.refill_bare()
            began = time.perf_counter()
            self.tick_bare()
            took += time.perf_counter() - began
        return TICKS / took

    def tick_bare(self) -> None:
        with self.db.begin() as txn:
            lease, head = txn.get(b"tick/lease"), txn.get(b"tick/head")
            items = []
            cursor = txn.cursor()
            cursor.set_range(b"tick/inbox/")
            for key, value in cursor.iternext():
                if not key.startswith(b"tick/inbox/"):
                    break
                items.append((key, value))
        assert len(items) == ITEMS
        self.bare_at += 1
        write = self.db.begin(write=True)
        assert write.get(b"tick/lease") == lease
        assert write.get(b"tick/head") == head
        for key, _ in items:
            write.delete(key)
        for index in range(FRAMES):
            frame = b"".join([value for _, value in items[index::FRAMES]])
            write.put(b"tick/journal/" + number(self.bare_at * FRAMES + index), frame)
        write.put(b"tick/head", number(self.bare_at))
        for key in BATCH_KEYS:
            write.put(key, number(self.bare_at))
        write.commit()

    def refill_bare(self) -> None:
        with self.db.begin(write=True) as txn:
            for index in range(ITEMS):
                txn.put(b"tick/inbox/" + kv.stamp(self.bare_at + 1, index), ITEM)


# --- producers --------------------------------------------------------------------------------------------------


class Producers:
    def __init__(self, engine: kv.Engine, db: lmdb.Environment, loop_db: lmdb.Environment) -> None:
        self.engine = engine
        self.db = db
        self.loop_db = loop_db
        self.count = 0

    async def ours(self) -> float:
        return await self.produce(self.enqueue_ours)

    async def produce(self, enqueue: Callable[[bytes], Awaitable[None]]) -> float:
        self.count += 1

        async def producer(name: int) -> None:
            for turn in range(PRODUCED):
                await enqueue(b"id/" + number(self.count) + number(name) + number(turn))

        began = time.perf_counter()
        await asyncio.gather(*(producer(name) for name in range(PRODUCERS)))
        return PRODUCERS * PRODUCED / (time.perf_counter() - began)

    async def enqueue_ours(self, key: bytes) -> None:
        batch = kv.Batch()
        batch.absent(key)
        batch.append(b"inbox/", ITEM)
        batch.put(key, b"", stamp=0)
        [outcome] = await self.engine.commit(batch)
        assert isinstance(outcome, kv.Ok)

    async def bare_groups(self) -> float:
        self.count += 1
        began = time.perf_counter()
        for turn in range(PRODUCED):
            keys = [b"id/" + number(self.count) + number(name) + number(turn) for name in range(PRODUCERS)]
            txn = self.db.begin(write=True)
            for index, key in enumerate(keys):
                self.apply(txn, key, kv.stamp(self.count * PRODUCED + turn, index))
            txn.commit()
        return PRODUCERS * PRODUCED / (time.perf_counter() - began)

    @staticmethod
    def apply(txn: lmdb.Transaction[bytes], key: bytes, stamp: kv.Stamp) -> None:
        assert txn.get(key) is None
        txn.put(b"inbox/" + stamp, ITEM)
        txn.put(key, stamp)

    async def bare_loop(self) -> float:
        """Futures, a queue, one thread, one transaction for whatever waits: what one would write first."""
        jobs: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()
        loop = asyncio.get_running_loop()

        def answer(futures: list[asyncio.Future[None]]) -> None:
            for future in futures:
                future.set_result(None)

        def write() -> None:
            version = self.count << 32
            while (job := jobs.get()) is not None:
                group = [job]
                while not jobs.empty() and (more := jobs.get()) is not None:
                    group.append(more)
                version += 1
                txn = self.loop_db.begin(write=True)
                for index, (key, _) in enumerate(group):
                    self.apply(txn, key, kv.stamp(version, index))
                txn.commit()
                loop.call_soon_threadsafe(answer, [future for _, future in group])

        async def enqueue(key: bytes) -> None:
            future: asyncio.Future[None] = loop.create_future()
            jobs.put((key, future))
            await future

        thread = threading.Thread(target=write)
        thread.start()
        rate = await self.produce(enqueue)
        jobs.put(None)
        thread.join()
        return rate


# --- Taking turns -------------------------------------------------------------------------------------------------


async def take_turns(seconds: float, sides: dict[str, Round]) -> dict[str, float]:
    """The median rate of each side."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        await side()  # warm
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for name, side in sides.items():
            rates[name].append(await side())
    return {name: statistics.median(found) for name, found in rates.items()}


def ratios(rates: dict[str, float]) -> dict[str, float]:
    ours = rates["ours"]
    shown = {f"{name}_per_second": round(rate, 1) for name, rate in rates.items()}
    return shown | {f"ours_to_{name}": round(ours / rate, 3) for name, rate in rates.items() if name != "ours"}


async def run(folder: Path, seconds: float) -> dict[str, object]:
    engine = await engines.open(folder / "ours", env_os.OsEnv(), create=True)
    bare, looped = bare_db(folder / "bare"), bare_db(folder / "loop")
    try:
        singles = Singles(engine, bare)
        await singles.start()
        ticks = Ticks(engine, bare)
        await ticks.start()
        producers = Producers(engine, bare, looped)
        return {
            "machine": {"python": platform.python_version(), "lmdb": lmdb.version(), "cpus": os.cpu_count()},
            "durability": (await engine.durability()).settings,
            "single": ratios(await take_turns(seconds, {"ours": singles.ours, "bare": singles.bare})),
            "tick": ratios(await take_turns(seconds, {"ours": ticks.ours, "bare": ticks.bare})),
            "producers": ratios(
                await take_turns(
                    seconds,
                    {"ours": producers.ours, "bare_groups": producers.bare_groups, "bare_loop": producers.bare_loop},
                )
            ),
        }
    finally:
        await engine.close()
        bare.close()
        looped.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each of the three cases")
    parser.add_argument("--folder", type=Path, default=None, help="where to put the stores: which disk is measured")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="worldline-bench-", dir=arguments.folder))
    try:
        result = asyncio.run(run(folder, arguments.seconds))
    finally:
        shutil.rmtree(folder)
    print(json.dumps(result, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
