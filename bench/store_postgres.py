"""The PostgreSQL engine against hand-written tables on one server: `python -m bench.store_postgres --json`.

Starts a server of its own with default durability. The hand-written side has the same planner settings as ours, which
make it quicker: without them, plans made on empty tables read whole ones. Every case has its sides take turns, a short
round each, for the given time; a rate is the median over the rounds, a ratio that of two medians.

* `tick`: check a lease, read 100 inbox items of 300 bytes, append 100 entries in frames, delete the items, put 5 keys.
  Both sides read from a mark, as the consumers of queues do, and not through what they deleted.
  `native` has a table for each thing (lease, head, journal, inbox, misc); it reads in one round trip and writes by one
  call of a function, as ours does. `native_one_trip` does even the reading inside that one call, which a program that
  must see the items before it knows what to append cannot do: the upper bound.
* `single`: one guarded commit of a small value after the other, against `UPDATE ... WHERE value = old`.
* `producers`: 64 tasks that enqueue guarded items of 300 bytes, against a function call for each item by a pool of as
  many connections as ours has for commits, and by one of 16.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import asyncpg

from tests.servers import postgres as servers
from worldline.base import env_os
from worldline.store import kv, postgres
from worldline.store.postgres import sql
from worldline.store.postgres.settings import DEFAULTS

Round = Callable[[], Awaitable[float]]  # the operations of one round, in operations per second
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

SINGLES = 40
TICKS = 10
PRODUCERS = 64
PRODUCED = 20
ITEMS = 100
ITEM = b"i" * 300
FRAMES = 3
NAMES = [b"key/%d" % index for index in range(5)]
WORLD = bytes(range(16))
PREFIX = b"\x01u\x00\x01" + bytes(16) + b"\x01w\x00\x01" + WORLD + b"\x00"

NATIVE = """
CREATE SCHEMA native;
SET search_path = native;
CREATE TABLE lease (world bytea PRIMARY KEY, epoch bytea NOT NULL);
CREATE TABLE head (world bytea PRIMARY KEY, value bytea NOT NULL) WITH (fillfactor = 90);
CREATE TABLE journal (world bytea, height bigint, frame bytea NOT NULL, PRIMARY KEY (world, height));
ALTER TABLE journal ALTER COLUMN frame SET STORAGE EXTERNAL;
CREATE TABLE inbox (world bytea, stamp bytea, item bytea NOT NULL, PRIMARY KEY (world, stamp));
CREATE TABLE misc (world bytea, name bytea, value bytea NOT NULL, PRIMARY KEY (world, name)) WITH (fillfactor = 90);
CREATE TABLE seen (world bytea, id bytea, stamp bytea NOT NULL, PRIMARY KEY (world, id));

CREATE FUNCTION tick(
    w bytea, old_epoch bytea, old_head bytea, new_head bytea, stamps bytea[],
    heights bigint[], frames bytea[], names bytea[], contents bytea[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM native.lease WHERE world = w AND epoch = old_epoch FOR SHARE;
    IF NOT FOUND THEN RETURN false; END IF;
    UPDATE native.head SET value = new_head WHERE world = w AND value = old_head;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM native.inbox WHERE world = w AND stamp = ANY (stamps);
    INSERT INTO native.journal SELECT w, height, frame FROM unnest(heights, frames) AS t(height, frame);
    INSERT INTO native.misc SELECT w, name, value FROM unnest(names, contents) AS t(name, value)
    ON CONFLICT (world, name) DO UPDATE SET value = EXCLUDED.value;
    RETURN true;
END $$;

CREATE FUNCTION whole_tick(
    w bytea, old_epoch bytea, old_head bytea, new_head bytea, mark bytea,
    heights bigint[], frames bytea[], names bytea[], contents bytea[], OUT stamps bytea[], OUT items bytea[]
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM native.lease WHERE world = w AND epoch = old_epoch FOR SHARE;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE native.head SET value = new_head WHERE world = w AND value = old_head;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT array_agg(t.stamp), array_agg(t.item) INTO stamps, items
    FROM (SELECT stamp, item FROM native.inbox WHERE world = w AND stamp >= mark ORDER BY stamp LIMIT 100) AS t;
    DELETE FROM native.inbox WHERE world = w AND stamp = ANY (stamps);
    INSERT INTO native.journal SELECT w, height, frame FROM unnest(heights, frames) AS t(height, frame);
    INSERT INTO native.misc SELECT w, name, value FROM unnest(names, contents) AS t(name, value)
    ON CONFLICT (world, name) DO UPDATE SET value = EXCLUDED.value;
END $$;

CREATE FUNCTION enqueue(w bytea, name bytea, content bytea) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE made bytea := int8send(pg_current_xact_id()::text::bigint) || int4send(0);
BEGIN
    PERFORM FROM native.lease WHERE world = w FOR SHARE;
    INSERT INTO native.seen VALUES (w, name, made);
    INSERT INTO native.inbox VALUES (w, made, content);
    RETURN made;
END $$;
"""

NATIVE_READ = """
SELECT (SELECT epoch FROM native.lease WHERE world = $1), (SELECT value FROM native.head WHERE world = $1),
       array_agg(t.stamp), array_agg(t.item)
FROM (SELECT stamp, item FROM native.inbox WHERE world = $1 AND stamp >= $2 ORDER BY stamp LIMIT 100) AS t
"""


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def frames(items: list[bytes]) -> list[bytes]:
    return [b"".join(items[index::FRAMES]) for index in range(FRAMES)]


# --- tick -------------------------------------------------------------------------------------------------------


class Ticks:
    def __init__(self, engine: kv.Engine, native: Connection) -> None:
        self.engine = engine
        self.native_connection = native
        self.ours_at = 0
        self.native_at = 0
        self.ours_mark: bytes = kv.ZERO_STAMP
        self.native_mark: bytes = kv.ZERO_STAMP
        self.statements: dict[str, Any] = {}

    async def start(self) -> None:
        batch = kv.Batch()
        for key in (PREFIX + b"lease", PREFIX + b"head", PREFIX + b"meta"):
            batch.absent(key)
            batch.put(key, number(0))
        await self.engine.commit(batch)
        connection = self.native_connection
        await connection.execute("INSERT INTO native.lease VALUES ($1, $2)", WORLD, number(0))
        await connection.execute("INSERT INTO native.head VALUES ($1, $2)", WORLD, number(0))
        for name, text in {
            "read": NATIVE_READ,
            "tick": "SELECT native.tick($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            "whole": "SELECT * FROM native.whole_tick($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            "refill": "INSERT INTO native.inbox SELECT $1, stamp, $3 FROM unnest($2::bytea[]) AS t(stamp)",
        }.items():
            self.statements[name] = await connection.prepare(text)

    async def ours(self) -> float:
        return await self.round(self.refill_ours, self.tick_ours)

    async def native(self) -> float:
        return await self.round(self.refill_native, self.tick_native)

    async def native_one_trip(self) -> float:
        return await self.round(self.refill_native, self.tick_native_one_trip)

    async def round(self, refill: Callable[[], Awaitable[None]], tick: Callable[[], Awaitable[None]]) -> float:
        """By the median tick: a disk that others use as well makes single ones many times slower."""
        took: list[float] = []
        for _ in range(TICKS):
            await refill()
            began = time.perf_counter()
            await tick()
            took.append(time.perf_counter() - began)
        return 1 / statistics.median(took)

    async def tick_ours(self) -> None:
        inbox = kv.Range(PREFIX + b"inbox/" + self.ours_mark, PREFIX + b"inbox0", ITEMS)
        snapshot = await self.engine.read(kv.Get(PREFIX + b"lease"), kv.Get(PREFIX + b"head"), inbox)
        lease, head, items = snapshot.value(0), snapshot.value(1), snapshot.page(2).items
        self.ours_mark = min(items[-1][0][-12:], snapshot.page(2).stable)
        assert lease is not None
        assert head is not None
        assert len(items) == ITEMS
        self.ours_at += 1
        batch = kv.Batch()
        batch.expect(PREFIX + b"lease", lease)
        batch.expect(PREFIX + b"head", head)
        batch.put(PREFIX + b"head", number(self.ours_at))
        for key, _ in items:
            batch.delete(key)
        for index, frame in enumerate(frames([value for _, value in items])):
            batch.put(PREFIX + b"journal/" + number(self.ours_at * FRAMES + index), frame)
        for name in NAMES:
            batch.put(PREFIX + name, number(self.ours_at))
        [outcome] = await self.engine.commit(batch)
        assert isinstance(outcome, kv.Ok)

    async def tick_native(self) -> None:
        lease, head, stamps, items = await self.statements["read"].fetchrow(WORLD, self.native_mark)
        assert len(items) == ITEMS
        self.native_mark = stamps[-1]
        self.native_at += 1
        done = await self.statements["tick"].fetchval(
            WORLD, lease, head, number(self.native_at), stamps, *self.appended(items)
        )
        assert done

    async def tick_native_one_trip(self) -> None:
        head = number(self.native_at)
        self.native_at += 1
        stamps, items = await self.statements["whole"].fetchrow(
            WORLD, number(0), head, number(self.native_at), self.native_mark, *self.appended([ITEM] * ITEMS)
        )
        assert len(items) == ITEMS
        self.native_mark = stamps[-1]

    def appended(self, items: list[bytes]) -> tuple[list[int], list[bytes], list[bytes], list[bytes]]:
        heights = [self.native_at * FRAMES + index for index in range(FRAMES)]
        return heights, frames(items), NAMES, [number(self.native_at)] * len(NAMES)

    async def refill_ours(self) -> None:
        batch = kv.Batch()
        batch.absent(PREFIX + b"refill/" + number(self.ours_at))
        batch.put(PREFIX + b"refill/" + number(self.ours_at), b"")
        for _ in range(ITEMS):
            batch.append(PREFIX + b"inbox/", ITEM)
        await self.engine.commit(batch)

    async def refill_native(self) -> None:
        stamps = [kv.stamp(self.native_at + 1, index) for index in range(ITEMS)]
        await self.statements["refill"].fetch(WORLD, stamps, ITEM)


# --- single -----------------------------------------------------------------------------------------------------


class Singles:
    def __init__(self, engine: kv.Engine, native: Connection) -> None:
        self.engine = engine
        self.native_connection = native
        self.ours_at = 0
        self.native_at = 0

    async def start(self) -> None:
        batch = kv.Batch()
        batch.absent(b"single")
        batch.put(b"single", number(0))
        await self.engine.commit(batch)
        await self.native_connection.execute("INSERT INTO native.head VALUES ('single', $1)", number(0))
        self.update = await self.native_connection.prepare(
            "UPDATE native.head SET value = $2 WHERE world = 'single' AND value = $1 RETURNING true"
        )

    async def ours(self) -> float:
        began = time.perf_counter()
        for _ in range(SINGLES):
            batch = kv.Batch()
            batch.expect(b"single", number(self.ours_at))
            self.ours_at += 1
            batch.put(b"single", number(self.ours_at))
            [outcome] = await self.engine.commit(batch)
            assert isinstance(outcome, kv.Ok)
        return SINGLES / (time.perf_counter() - began)

    async def native(self) -> float:
        began = time.perf_counter()
        for _ in range(SINGLES):
            assert await self.update.fetchval(number(self.native_at), number(self.native_at + 1))
            self.native_at += 1
        return SINGLES / (time.perf_counter() - began)


# --- producers --------------------------------------------------------------------------------------------------


class Few:
    """A plain pool: asyncpg's own resets a connection after each use, which would cost the other side a round trip."""

    def __init__(self) -> None:
        self.idle: asyncio.LifoQueue[tuple[Connection, Any]] = asyncio.LifoQueue()

    async def fill(self, url: str, count: int) -> Few:
        for _ in range(count):
            connection: Connection = await asyncpg.connect(url)
            await connection.execute(sql.SESSION)
            await self.idle.put((connection, await connection.prepare("SELECT native.enqueue($1, $2, $3)")))
        return self

    async def enqueue(self, name: bytes) -> None:
        connection, statement = await self.idle.get()
        assert await statement.fetchval(b"produced", name, ITEM)
        self.idle.put_nowait((connection, statement))

    async def close(self) -> None:
        while not self.idle.empty():
            await self.idle.get_nowait()[0].close()


class Producers:
    def __init__(self, engine: kv.Engine, few: Few, many: Few) -> None:
        self.engine = engine
        self.few = few
        self.many = many
        self.count = 0

    async def produce(self, enqueue: Callable[[bytes], Awaitable[None]]) -> float:
        self.count += 1

        async def producer(name: int) -> None:
            for turn in range(PRODUCED):
                await enqueue(number(self.count) + number(name) + number(turn))

        began = time.perf_counter()
        await asyncio.gather(*(producer(name) for name in range(PRODUCERS)))
        return PRODUCERS * PRODUCED / (time.perf_counter() - began)

    async def ours(self) -> float:
        return await self.produce(self.enqueue_ours)

    async def enqueue_ours(self, name: bytes) -> None:
        batch = kv.Batch()
        batch.expect(PREFIX + b"meta", number(0))
        batch.absent(PREFIX + b"seen/" + name)
        batch.put(PREFIX + b"seen/" + name, b"", stamp=batch.append(PREFIX + b"produced/", ITEM))
        [outcome] = await self.engine.commit(batch)
        assert isinstance(outcome, kv.Ok)

    async def native(self) -> float:
        return await self.produce(self.few.enqueue)

    async def native_16(self) -> float:
        return await self.produce(self.many.enqueue)


# --- Taking turns -------------------------------------------------------------------------------------------------


async def take_turns(seconds: float, sides: Mapping[str, Round]) -> dict[str, float]:
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


async def run(server: servers.Server, seconds: float) -> dict[str, object]:
    native: Connection = await asyncpg.connect(server.url())
    await native.execute(NATIVE)
    await native.execute(sql.SESSION)
    await native.execute("INSERT INTO native.lease VALUES ('produced', '')")
    engine = await postgres.open(server.url(schema="ours"), env_os.OsEnv(), create=True)
    few = await Few().fill(server.url(), DEFAULTS.commit_connections)
    many = await Few().fill(server.url(), 16)
    try:
        ticks, singles, producers = Ticks(engine, native), Singles(engine, native), Producers(engine, few, many)
        await ticks.start()
        await singles.start()
        tick_sides = {"ours": ticks.ours, "native": ticks.native, "native_one_trip": ticks.native_one_trip}
        sides = {"ours": producers.ours, "native": producers.native, "native_16": producers.native_16}
        return {
            "machine": {
                "python": platform.python_version(),
                "postgresql": str(await native.fetchval("SHOW server_version")),
                "asyncpg": asyncpg.__version__,
                "cpus": os.cpu_count(),
            },
            "durability": (await engine.durability()).settings,
            "tick": ratios(await take_turns(seconds, tick_sides)),
            "single": ratios(await take_turns(seconds, {"ours": singles.ours, "native": singles.native})),
            "producers": ratios(await take_turns(seconds, sides)),
        }
    finally:
        await engine.close()
        await few.close()
        await many.close()
        await native.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each of the three cases")
    arguments = parser.parse_args()
    server = servers.start()
    try:
        result = asyncio.run(run(server, arguments.seconds))
    finally:
        server.close()
    print(json.dumps(result, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
