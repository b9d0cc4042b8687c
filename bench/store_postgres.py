"""The PostgreSQL engine against hand-written tables on one server: `python -m bench.store_postgres --json`.

Starts a server of its own with default durability. The hand-written side has the same planner settings as ours, which
make it quicker, except where a case says otherwise. Every case has its sides take turns, a short
round each, for the given time; a rate is the median over the rounds, a ratio that of two medians.

* `tick`: check a lease, read 100 inbox items of 300 bytes, append 100 entries in frames, delete the items, put 5 keys.
  Both sides read from a mark, as the consumers of queues do, and not through what they deleted.
  `native` has a table for each thing (lease, head, journal, inbox, misc); it reads in one round trip and writes by one
  call of a function, as ours does. `native_defaults` does the same with the planner as the server comes, on analysed
  tables. `native_one_trip` does even the reading inside the one call, which a program that must see the items before it
  knows what to append cannot do: the upper bound.
* `cycle`: ticks of 8 worlds, as a worker runs them: ours by one read and one commit for all, `native` one by one.
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
from worldline.store.postgres.postgres_settings import DEFAULTS

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
CYCLE_WORLDS = 8

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


class World:
    """One world on both sides, and how far each has come."""

    def __init__(self, number: int) -> None:
        self.id = number.to_bytes(16, "big")
        self.prefix = b"\x01u\x00\x01" + bytes(16) + b"\x01w\x00\x01" + self.id + b"\x00"
        self.ours_at = 0
        self.native_at = 0
        self.ours_mark: bytes = kv.ZERO_STAMP
        self.native_mark: bytes = kv.ZERO_STAMP

    def ask(self) -> list[kv.Request]:
        inbox = kv.Range(self.prefix + b"inbox/" + self.ours_mark, self.prefix + b"inbox0", ITEMS)
        return [kv.Get(self.prefix + b"lease"), kv.Get(self.prefix + b"head"), inbox]

    def step(self, lease: bytes | None, head: bytes | None, page: kv.Page) -> kv.Batch:
        assert lease is not None
        assert head is not None
        assert len(page.items) == ITEMS
        self.ours_mark = min(page.items[-1][0][-12:], page.stable)
        self.ours_at += 1
        batch = kv.Batch()
        batch.expect(self.prefix + b"lease", lease)
        batch.expect(self.prefix + b"head", head)
        batch.put(self.prefix + b"head", number(self.ours_at))
        for key, _ in page.items:
            batch.delete(key)
        for index, frame in enumerate(frames([value for _, value in page.items])):
            batch.put(self.prefix + b"journal/" + number(self.ours_at * FRAMES + index), frame)
        for name in NAMES:
            batch.put(self.prefix + name, number(self.ours_at))
        return batch

    def refill(self) -> kv.Batch:
        batch = kv.Batch()
        batch.absent(self.prefix + b"refill/" + number(self.ours_at))
        batch.put(self.prefix + b"refill/" + number(self.ours_at), b"")
        for _ in range(ITEMS):
            batch.append(self.prefix + b"inbox/", ITEM)
        return batch

    def appended(self, items: list[bytes]) -> tuple[list[int], list[bytes], list[bytes], list[bytes]]:
        heights = [self.native_at * FRAMES + index for index in range(FRAMES)]
        return heights, frames(items), NAMES, [number(self.native_at)] * len(NAMES)


class Native:
    """The hand-written side on one connection."""

    async def start(self, connection: Connection) -> Native:
        self.read = await connection.prepare(NATIVE_READ)
        self.write = await connection.prepare("SELECT native.tick($1, $2, $3, $4, $5, $6, $7, $8, $9)")
        self.whole = await connection.prepare("SELECT * FROM native.whole_tick($1, $2, $3, $4, $5, $6, $7, $8, $9)")
        self.fill = await connection.prepare(
            "INSERT INTO native.inbox SELECT $1, stamp, $3 FROM unnest($2::bytea[]) AS t(stamp)"
        )
        return self

    async def refill(self, world: World) -> None:
        stamps = [kv.stamp(world.native_at + 1, index) for index in range(ITEMS)]
        await self.fill.fetch(world.id, stamps, ITEM)

    async def tick(self, world: World) -> None:
        row = await self.read.fetchrow(world.id, world.native_mark)
        assert row is not None
        lease, head, stamps, items = row
        assert len(items) == ITEMS
        world.native_mark = stamps[-1]
        world.native_at += 1
        assert await self.write.fetchval(world.id, lease, head, number(world.native_at), stamps, *world.appended(items))

    async def tick_in_one_trip(self, world: World) -> None:
        head = number(world.native_at)
        world.native_at += 1
        row = await self.whole.fetchrow(
            world.id, number(0), head, number(world.native_at), world.native_mark, *world.appended([ITEM] * ITEMS)
        )
        assert row is not None
        assert len(row[1]) == ITEMS
        world.native_mark = row[0][-1]


class Ticks:
    """Ticks of some worlds. A rate is that of whole rounds through all of them."""

    def __init__(self, engine: kv.Engine, numbers: range, native: Native, defaults: Native) -> None:
        self.engine = engine
        self.worlds = [World(each) for each in numbers]
        self.by_hand = native
        self.by_hand_with_defaults = defaults

    async def start(self, connection: Connection) -> None:
        for world in self.worlds:
            batch = kv.Batch()
            for name in (b"lease", b"head", b"meta"):
                batch.absent(world.prefix + name)
                batch.put(world.prefix + name, number(0))
            await self.engine.commit(batch)
            await connection.execute("INSERT INTO native.lease VALUES ($1, $2)", world.id, number(0))
            await connection.execute("INSERT INTO native.head VALUES ($1, $2)", world.id, number(0))
            for _ in range(TICKS):
                await self.by_hand.refill(world)
                await self.by_hand.tick(world)
        await connection.execute("ANALYZE")

    async def ours(self) -> float:
        async def refill() -> None:
            await self.engine.commit(*(world.refill() for world in self.worlds))

        return await self.round(refill, self.tick_ours)

    async def tick_ours(self) -> None:
        snapshot = await self.engine.read(*(request for world in self.worlds for request in world.ask()))
        steps = []
        for index, world in enumerate(self.worlds):
            lease, head, page = (snapshot.answers[3 * index + place] for place in range(3))
            assert not isinstance(lease, kv.Page)
            assert not isinstance(head, kv.Page)
            assert isinstance(page, kv.Page)
            steps.append(world.step(lease, head, page))
        assert all(isinstance(outcome, kv.Ok) for outcome in await self.engine.commit(*steps))

    async def native(self) -> float:
        return await self.round_by_hand(self.by_hand, self.by_hand.tick)

    async def native_defaults(self) -> float:
        return await self.round_by_hand(self.by_hand_with_defaults, self.by_hand_with_defaults.tick)

    async def native_one_trip(self) -> float:
        return await self.round_by_hand(self.by_hand, self.by_hand.tick_in_one_trip)

    async def round_by_hand(self, side: Native, tick: Callable[[World], Awaitable[None]]) -> float:
        async def refill() -> None:
            for world in self.worlds:
                await side.refill(world)

        async def ticks() -> None:
            for world in self.worlds:
                await tick(world)

        return await self.round(refill, ticks)

    async def round(self, refill: Callable[[], Awaitable[None]], tick: Callable[[], Awaitable[None]]) -> float:
        """By the median tick: a disk that others use as well makes single ones many times slower."""
        took: list[float] = []
        for _ in range(TICKS):
            await refill()
            began = time.perf_counter()
            await tick()
            took.append(time.perf_counter() - began)
        return len(self.worlds) / statistics.median(took)


# --- single -----------------------------------------------------------------------------------------------------


class Singles:
    def __init__(self, engine: kv.Engine) -> None:
        self.engine = engine
        self.ours_at = 0
        self.native_at = 0

    async def start(self, connection: Connection) -> None:
        batch = kv.Batch()
        batch.absent(b"single")
        batch.put(b"single", number(0))
        await self.engine.commit(batch)
        await connection.execute("INSERT INTO native.head VALUES ('single', $1)", number(0))
        self.update = await connection.prepare(
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
    def __init__(self, engine: kv.Engine, world: World, few: Few, many: Few) -> None:
        self.engine = engine
        self.world = world
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
        batch.expect(self.world.prefix + b"meta", number(0))
        batch.absent(self.world.prefix + b"seen/" + name)
        batch.put(self.world.prefix + b"seen/" + name, b"", stamp=batch.append(self.world.prefix + b"produced/", ITEM))
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
    tuned: Connection = await asyncpg.connect(server.url())
    plain: Connection = await asyncpg.connect(server.url())
    await plain.execute(NATIVE)
    await plain.execute("INSERT INTO native.lease VALUES ('produced', '')")
    await tuned.execute(sql.SESSION)
    engine = await postgres.open(server.url(schema="ours"), env_os.OsEnv(), create=True)
    few = await Few().fill(server.url(), DEFAULTS.commit_connections)
    many = await Few().fill(server.url(), 16)
    try:
        by_hand, defaults = await Native().start(tuned), await Native().start(plain)
        ticks = Ticks(engine, range(1), by_hand, defaults)
        cycles = Ticks(engine, range(1, 1 + CYCLE_WORLDS), by_hand, defaults)
        singles = Singles(engine)
        producers = Producers(engine, ticks.worlds[0], few, many)
        for case in (ticks, cycles, singles):
            await case.start(tuned)
        sides: dict[str, dict[str, Round]] = {
            "tick": {
                "ours": ticks.ours,
                "native": ticks.native,
                "native_defaults": ticks.native_defaults,
                "native_one_trip": ticks.native_one_trip,
            },
            "cycle": {"ours": cycles.ours, "native": cycles.native},
            "single": {"ours": singles.ours, "native": singles.native},
            "producers": {"ours": producers.ours, "native": producers.native, "native_16": producers.native_16},
        }
        machine = {
            "python": platform.python_version(),
            "postgresql": str(await tuned.fetchval("SHOW server_version")),
            "asyncpg": asyncpg.__version__,
            "cpus": os.cpu_count(),
        }
        cases = {name: ratios(await take_turns(seconds, each)) for name, each in sides.items()}
        return {"machine": machine, "durability": (await engine.durability()).settings, **cases}
    finally:
        await engine.close()
        await few.close()
        await many.close()
        await tuned.close()
        await plain.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each case")
    arguments = parser.parse_args()
    server = servers.start()
    try:
        result = asyncio.run(run(server, arguments.seconds))
    finally:
        server.close()
    print(json.dumps(result, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
