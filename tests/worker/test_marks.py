"""Where scans of an inbox start: behind what was consumed, and never above something that may still appear."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import asyncpg

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add, AddUp, program
from tests.layers import scenario
from tests.servers import postgres as servers
from tests.store.postgres_kit import Raw
from worldline.base import env as envs
from worldline.kernel import user_values
from worldline.keys import inbox as inbox_keys
from worldline.layers import inbox as inboxes
from worldline.layers import ready, worlds
from worldline.model import inbox, payload
from worldline.store import kv
from worldline.store.postgres import groups, postgres_settings, sql

SELDOM = kits.settings(worker={"scan_ms": 600_000, "lease_ttl_ms": 60_000, "heartbeat_ms": 5_000})


class Recording(kits.Around):
    """An engine that notes where the scans of an inbox start."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.starts: list[bytes] = []
        self.prefix = b"-"

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        for request in requests:
            if isinstance(request, kv.Range) and request.begin.startswith(self.prefix) and request.count_max > 1:
                self.starts.append(request.begin)
        return await self._engine.read(*requests)


async def _host(kit: Kit, app: wl.Program, settings: Any = SELDOM) -> tuple[kits.Process, Recording]:
    made: list[Recording] = []

    def wrap(engine: Any) -> Recording:
        made.append(Recording(engine))
        return made[-1]

    return await kit.process(app, settings=settings, wrap=wrap), made[0]


async def test_scans_start_behind_what_was_consumed(kit: Kit) -> None:
    app = program()
    host, recording = await _host(kit, app)
    client = await kit.process()
    world = await client.universe.create("w", app)
    recording.prefix = inbox_keys.item_prefix(await world._handle.address())
    numbers = itertools.count(1)

    async def behind() -> bool:
        """Not before every transaction has ended that another test on the same server has begun before."""
        sent = await world.send(Add(1))
        assert await sent.applied(30) == next(numbers)
        return recording.starts[-1] > recording.prefix

    await aio.until(behind)
    first = recording.starts[0]
    assert first == recording.prefix, "the first scan after a lease was taken reads the whole inbox"
    assert recording.starts == sorted(recording.starts)
    await host.close()


async def test_a_mark_is_dropped_at_every_scan_period_and_with_the_lease(memory_kit: Kit) -> None:
    app = program()
    settings = kits.settings(worker={"scan_ms": 100, "lease_ttl_ms": 60_000, "heartbeat_ms": 5_000})
    host, recording = await _host(memory_kit, app, settings)
    client = await memory_kit.process()
    world = await client.universe.create("w", app)
    at = await world._handle.address()
    recording.prefix = inbox_keys.item_prefix(at)
    await (await world.send(Add(1))).applied(30)

    async def dropped() -> bool:
        held = host.host.worlds.peek(at)
        return held is not None and not held.busy and held.mark == b""

    await aio.until(dropped)
    await host.close()


class Open:
    """A producer's commit on a connection of its own, as far as one likes."""

    def __init__(self, raw: Raw, schema: str) -> None:
        self._raw = raw
        self._schema = schema

    @classmethod
    async def begin(cls, kit: Kit) -> Open:
        address = postgres_settings.parse(kit.url)
        raw = await asyncpg.connect(servers.shared().url())
        await raw.execute(sql.SESSION)
        await raw.execute("BEGIN")
        await raw.fetchval("SELECT pg_current_xact_id()::text")
        return cls(raw, address.schema)

    async def write(self, batch: kv.Batch) -> None:
        entry = groups.WaitingBatch(batch, asyncio.get_running_loop().create_future())
        row = await self._raw.fetchrow(sql.commit_call(self._schema), *groups.encode(0, [entry], hasty=False))
        assert row is not None
        assert row["found_batches"] is None

    async def waited_for(self) -> None:
        """Until another session waits for what this one has locked."""

        async def waiting() -> bool:
            query = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
            await self._raw.execute("SELECT pg_stat_clear_snapshot()")
            return bool(await self._raw.fetchval(query))

        await aio.until(waiting)

    async def commit(self) -> None:
        await self._raw.execute("COMMIT")
        await self._raw.close()


async def _add_one(client: kits.Process, world: wl.World, *, hinted: bool = False) -> kv.Batch:
    """What `world.send(Add(1))` would commit; `hinted`: with a hint."""
    at = await world._handle.address()
    read = await client.engine.read(worlds.get(at))
    batch = kv.Batch()
    worlds.expect_open(batch, worlds.decode(at, read.value(0)))
    new_id = envs.new_id(client.universe._connection.store.env)
    item = inbox.InboxEvent(user_values.schema_name(Add), payload.inline(user_values.dump(Add(1))))
    inboxes.enqueue(batch, at, item, client_id=new_id, time_us=read.time_us, window_us=scenario.WINDOW_US)
    if hinted:
        ready.leave(batch, at, priority=ready.NORMAL)
    return batch


async def test_what_a_slow_producer_commits_late_is_taken(postgres_kit: Kit) -> None:
    """Its transaction id is older than those of the items that were consumed meanwhile, and so is its stamp."""
    app = program()
    host, recording = await _host(postgres_kit, app)
    client = await postgres_kit.process()
    world = await client.universe.create("w", app)
    at = await world._handle.address()
    recording.prefix = inbox_keys.item_prefix(at)
    assert await world.ask(AddUp(1), timeout=30) == 1
    slow = await Open.begin(postgres_kit)
    await slow.write(await _add_one(client, world))
    for number in range(2, 5):
        assert await world.ask(AddUp(1), timeout=30) == number
    await slow.commit()
    host.host.worlds.poke(at)

    async def taken() -> bool:
        return await kits.unread(client.engine, at) == 0

    async def behind() -> bool:
        assert await world.ask(AddUp(0), timeout=30) == 5
        return any(start > recording.prefix for start in recording.starts)

    await aio.until(taken)
    await aio.until(behind)
    await host.close()


async def test_a_hint_that_a_slow_producer_commits_late_is_found(postgres_kit: Kit) -> None:
    """Its stamp is older than those of hints that were scanned, and cleared, meanwhile."""
    app = program()
    client = await postgres_kit.process()
    slowly = await client.universe.create("slowly", app)
    other = await client.universe.create("other", app)
    scan = kits.scan(client.universe)
    slow = await Open.begin(postgres_kit)
    await slow.write(await _add_one(client, slowly, hinted=True))
    for _ in range(3):
        await other.send(Add(1))
        await scan.read()
    assert scan.take_fresh() == [await other._handle.address()]
    await slow.commit()
    await scan.read()
    assert scan.take_fresh() == [await slowly._handle.address()]
    last = max(hint.stamp for hint in scan.take(await slowly._handle.address()))

    async def behind() -> bool:
        """Nothing older can come, when the transactions of other tests on the same server have ended, too."""
        await other.send(Add(1))
        await scan.read()
        return scan._marks[client.universe._connection.id, ready.NORMAL] > last

    await aio.until(behind)


async def test_a_scan_of_hints_reads_what_is_new(kit: Kit) -> None:
    """Whatever was deleted or stands below its mark is not walked again."""
    client = (await kit.process()).universe
    worlds_ = [await client.create(f"w{number}", program()) for number in range(3)]
    scan = kits.scan(client)
    addresses = [await world._handle.address() for world in worlds_]
    for at in addresses[:2]:
        await kits.leave_hint(client, at)

    async def behind() -> bool:
        """When the transactions of other tests on the same server have ended."""
        await scan.read()
        mark = scan._marks[client._connection.id, ready.NORMAL]
        return mark > max(hint.stamp for at in addresses[:2] for hint in scan._known[at].values())

    await aio.until(behind)
    await kits.leave_hint(client, addresses[2], priority=ready.URGENT)
    recording = Recording(client._connection.store.engine)
    recording.prefix = ready.prefix(client._connection.id)
    again = kits.scan(client)
    again._engine, again._marks = recording, dict(scan._marks)
    await again.read()
    assert again.worlds == addresses[2:], "the others are below the mark"
    assert all(start > recording.prefix for start in recording.starts)
    again.restart()
    await again.read()
    assert sorted(again.worlds) == sorted(addresses)
    await again.check(addresses)
    assert sorted(again.worlds) == sorted(addresses)
    batch = kv.Batch()
    ready.clear(batch, again.take(addresses[0]))
    await client._connection.store.engine.commit(batch)
    await scan.check(addresses)
    assert sorted(scan.worlds) == [addresses[1]]
