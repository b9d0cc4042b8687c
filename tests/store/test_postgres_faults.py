"""Lost answers, broken connections and restarts: every commit ends with a certain answer, applied exactly once.

The proxy cuts the connection at the moment that a case is about. The three ways in which a lost answer can end are
DESIGN's: applied before, applied now, lost to somebody else; and a fourth, where the first statement arrives last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from tests import aio
from tests.conformance import batches
from tests.servers import postgres as servers
from tests.servers.proxy import Proxy
from tests.store.postgres_kit import ENV, Place
from worldline.base import errors, limits, probes
from worldline.store import kv, postgres, transact
from worldline.store.postgres import postgres_connections, postgres_settings, postgres_store

MARKER = b"marked/"


class Faulty(Place):
    """A place whose engines connect through a proxy; raw connections go straight to the server."""

    def __init__(self, server: servers.Server) -> None:
        super().__init__(server)
        self.proxy = Proxy(server.port)

    async def engine(self, **changes: int) -> postgres.PostgresEngine:
        if not self.proxy.port:
            await self.proxy.start()
        url = self.server.url(schema=self.schema, port=self.proxy.port) + "&sslmode=disable"
        return await self.open(url, create=True, **changes)

    async def aclose(self) -> None:
        await super().aclose()
        await self.proxy.aclose()


@pytest.fixture
def place() -> Faulty:
    return Faulty(servers.shared())


@pytest.fixture(scope="module")
def own() -> Iterator[servers.Server]:
    server = servers.start(tcp=True)
    yield server
    server.close()


@pytest.fixture
def own_place(own: servers.Server) -> Faulty:
    return Faulty(own)


def _item(name: int | str) -> kv.Batch:
    """A producer's batch: expects the world, takes an id, appends; the id's value records the stamp."""
    batch = kv.Batch()
    key = MARKER + str(name).encode()
    batch.expect(b"meta", b"open")
    batch.absent(key)
    batch.put(key, b"token of %s " % str(name).encode(), stamp=batch.append(b"inbox/", str(name).encode()))
    return batch


async def _ready(place: Faulty, **changes: int) -> postgres.PostgresEngine:
    engine = await place.engine(**changes)
    await batches.ok(engine, batches.create(b"meta", b"open"))
    return engine


async def _inbox(engine: kv.Engine) -> list[bytes]:
    return list((await batches.scan(engine, b"inbox/")).values())


@pytest.mark.probe("postgres.commit-unknown")
async def test_applied_but_the_answer_was_lost(place: Faulty) -> None:
    engine = await _ready(place)
    trap = place.proxy.trap(MARKER, "swallow")
    [outcome] = await engine.commit(_item(1))
    assert isinstance(outcome, kv.CommitUnknown)
    assert trap.sprung.is_set()
    assert await _inbox(engine) == [b"1"]
    again = await batches.conflict(engine, _item(1))
    assert kv.applied_before(_item(1), again)

    trap = place.proxy.trap(MARKER, "swallow")
    [certain] = await transact.commit(engine, ENV, _item(2))
    assert trap.sprung.is_set()
    assert isinstance(certain, kv.Ok)
    items = await batches.scan(engine, b"inbox/")
    assert list(items.values()) == [b"1", b"2"]
    assert [b"inbox/" + stamp for stamp in certain.stamps] == [list(items)[1]], "the first run's own stamp"


async def test_the_statement_was_lost_on_its_way(place: Faulty) -> None:
    engine = await _ready(place)
    trap = place.proxy.trap(MARKER, "drop")
    [outcome] = await engine.commit(_item(1))
    assert isinstance(outcome, kv.CommitUnknown)
    assert trap.sprung.is_set()
    assert await _inbox(engine) == []
    trap = place.proxy.trap(MARKER, "drop")
    [certain] = await transact.commit(engine, ENV, _item(1))
    assert trap.sprung.is_set()
    assert isinstance(certain, kv.Ok)
    assert await _inbox(engine) == [b"1"]
    assert len(certain.stamps) == 1


async def test_the_statement_was_lost_and_somebody_else_was_quicker(place: Faulty) -> None:
    engine = await _ready(place)
    other = await place.open()
    trap = place.proxy.trap(MARKER, "drop")
    [outcome] = await engine.commit(_item(1))
    assert isinstance(outcome, kv.CommitUnknown)
    assert trap.sprung.is_set()
    rival = batches.create(MARKER + b"1", b"theirs")
    await batches.ok(other, rival)
    [certain] = await transact.commit(engine, ENV, _item(1))
    assert certain == kv.Conflict(((MARKER + b"1", b"theirs"),))
    assert not kv.applied_before(_item(1), certain)
    assert await _inbox(engine) == []


async def test_all_three_in_one_call(place: Faulty) -> None:
    """Batches that share a statement share its fate, and each is resolved by itself."""
    engine = await _ready(place, commit_connections=1)
    trap = place.proxy.trap(MARKER + b"5", "swallow")
    certain = await transact.commit(engine, ENV, *(_item(name) for name in range(10)))
    assert trap.sprung.is_set()
    assert all(isinstance(outcome, kv.Ok) for outcome in certain)
    assert sorted(await _inbox(engine)) == [b"%d" % name for name in range(10)]


async def test_a_statement_that_arrives_after_its_repeat_does_nothing(place: Faulty) -> None:
    """The first run sleeps in the network; the client gave it up and committed again. Then it wakes up."""
    engine = await _ready(place, statement_timeout_ms=1_000)
    trap = place.proxy.trap(MARKER, "hold")
    [outcome] = await engine.commit(_item(1))
    assert isinstance(outcome, kv.CommitUnknown)
    [certain] = await transact.commit(engine, ENV, _item(1))
    assert isinstance(certain, kv.Ok)
    before = await _statements(place)
    trap.release()

    async def arrived() -> bool:
        return await _statements(place) > before

    await aio.until(arrived)
    assert await _inbox(engine) == [b"1"]


async def _statements(place: Faulty) -> int:
    """How many rows were locked or written or tried so far; a late statement looks at the primary key."""
    raw = await place.raw()
    await raw.execute("SELECT pg_stat_force_next_flush()")
    count: int = await raw.fetchval("SELECT idx_scan FROM pg_stat_user_tables WHERE relid = 'kv'::regclass")
    await raw.close()
    return count


@pytest.mark.parametrize("bytes_max", [1, 20, 40, 55])
async def test_an_answer_cut_short_is_no_answer(place: Faulty, bytes_max: int) -> None:
    engine = await _ready(place)
    trap = place.proxy.trap(MARKER, "cut", bytes_max=bytes_max)
    [outcome] = await engine.commit(_item(1))
    assert trap.sprung.is_set()
    assert isinstance(outcome, kv.CommitUnknown)
    [certain] = await transact.commit(engine, ENV, _item(1))
    assert isinstance(certain, kv.Conflict), "the engine's own call was the first run"
    assert kv.applied_before(_item(1), certain)
    assert await _inbox(engine) == [b"1"]


@pytest.mark.probe("postgres.commit-undone")
async def test_a_batch_that_was_not_sent_is_not_unknown(place: Faulty) -> None:
    """Idle connections that the server ended are noticed before anything is sent by them, once the news is there."""
    engine, raw = await place.open(), await place.raw()
    await batches.ok(engine, batches.create(b"meta", b"open"))
    with probes.collect() as seen:
        for turn in range(150):
            before = await place.sessions(raw)
            await raw.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS t(pid)", before)

            async def gone(before: list[int] = before) -> bool:
                return not [pid for pid in await place.sessions(raw) if pid in before]

            await aio.until(gone)
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            await batches.ok(engine, _item(turn))
            await batches.ok(engine, batches.once(turn))
            if turn >= 11 and seen["postgres.commit-undone"]:  # when the news comes is up to the server
                break
    assert len(await _inbox(engine)) == turn + 1


async def test_a_backend_ended_in_the_middle_leaves_it_unknown(place: Faulty) -> None:
    engine = await _ready(place)
    raw, holder = await place.raw(), await place.raw()
    await holder.execute("BEGIN; SELECT FROM kv WHERE key = 'meta' FOR UPDATE")
    committing = asyncio.ensure_future(engine.commit(_item(1)))
    await place.blocked(raw)
    await raw.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND application_name = $1",
        f"worldline {place.schema}",
    )
    [outcome] = await committing
    assert isinstance(outcome, kv.CommitUnknown)
    await holder.execute("ROLLBACK")
    [certain] = await transact.commit(engine, ENV, _item(1))
    assert isinstance(certain, kv.Ok)
    assert await _inbox(engine) == [b"1"]


async def test_an_error_that_ends_the_session_may_come_after_the_commit(place: Faulty) -> None:
    """The driver drops most of these itself. One that it hands on is no refusal."""
    await place.open()
    session = await postgres_store.connect(postgres_settings.parse(place.url), postgres_settings.DEFAULTS, ENV)

    async def ended() -> None:
        fields = {"S": "FATAL", "V": "FATAL", "C": "57P01", "M": "terminating connection"}
        raise asyncpg.PostgresError.new(fields)

    with pytest.raises(postgres_connections.BrokenConnection):
        await session._run(ended)
    assert session.closed


async def test_a_connection_that_ended_before_the_statement_was_sent_is_certain(place: Faulty) -> None:
    """It may end between being handed over and being used: nothing was sent, so nothing was applied."""
    engine = await _ready(place)
    session = await engine._sessions.take()
    session._connection.terminate()
    with pytest.raises(postgres_connections.Again):
        await session.commit(())
    engine._sessions.give(session)
    await batches.ok(engine, _item(1))


async def test_a_commit_that_waits_too_long_is_refused_by_the_server(place: Faulty) -> None:
    """The server's own limit ends it before the client's: certainly not applied."""
    engine = await _ready(place, statement_timeout_ms=400)
    raw = await place.raw()
    await raw.execute("BEGIN; SELECT FROM kv WHERE key = 'meta' FOR UPDATE")
    with pytest.raises(errors.StoreUnavailable, match="took too long"):
        await engine.commit(_item(1))
    await raw.execute("ROLLBACK")
    [certain] = await transact.commit(engine, ENV, _item(1))
    assert isinstance(certain, kv.Ok)
    assert await _inbox(engine) == [b"1"]


async def test_a_silent_network_ends_reads_and_commits_in_time(place: Faulty) -> None:
    engine = await _ready(place, statement_timeout_ms=300, read_attempts=2, connect_attempts=1, connect_timeout_ms=300)
    place.proxy.set_mode("blackhole")
    async with asyncio.timeout(20):
        [outcome] = await engine.commit(_item(1))
        assert isinstance(outcome, kv.CommitUnknown)
        with pytest.raises(errors.StoreUnavailable):
            await engine.commit(_item(2))
        with pytest.raises(errors.StoreUnavailable):
            await engine.read(kv.Get(b"meta"))
    place.proxy.set_mode("pass")
    assert await batches.get(engine, b"meta") == b"open"
    for name in (1, 2):
        await transact.commit(engine, ENV, _item(name))
    assert sorted(await _inbox(engine)) == [b"1", b"2"]


async def test_a_slow_network_is_only_slow(place: Faulty) -> None:
    engine = await _ready(place)
    place.proxy.delay_seconds = 0.05
    assert await batches.get(engine, b"meta") == b"open"
    await batches.ok(engine, _item(1))


async def test_reads_go_on_when_connections_are_reset(place: Faulty) -> None:
    engine = await _ready(place)
    counts = [0] * 4
    stop = False

    async def reader(name: int) -> None:
        while not stop:
            assert await batches.get(engine, b"meta") == b"open"
            counts[name] += 1

    reading = [asyncio.ensure_future(reader(name)) for name in range(4)]
    for _ in range(8):
        before = list(counts)

        async def all_read(before: list[int] = before) -> bool:
            return all(now > then for now, then in zip(counts, before, strict=True))

        await aio.until(all_read)
        place.proxy.reset()
    stop = True
    await asyncio.gather(*reading)


async def test_an_unreachable_server_is_certain_and_the_engine_recovers(place: Faulty) -> None:
    engine = await _ready(place, connect_attempts=2)
    await place.proxy.refuse()
    with pytest.raises(errors.StoreUnavailable, match="check that the server runs"):
        await engine.read(kv.Get(b"meta"))
    with pytest.raises(errors.StoreUnavailable, match="check that the server runs"):
        await engine.commit(_item(1))
    await place.proxy.start()
    await batches.ok(engine, _item(1))
    assert await _inbox(engine) == [b"1"]


@pytest.mark.probe("postgres.listener-reopened")
async def test_hints_come_back_after_the_connection_was_lost(place: Faulty) -> None:
    engine = await _ready(place)
    other = await place.open()
    seen = (await engine.read()).seen
    waiting = asyncio.ensure_future(engine.wait(b"w/", seen, 60_000))
    await asyncio.sleep(0.02)
    place.proxy.reset()
    async with asyncio.timeout(20):
        assert await waiting, "what was told meanwhile is unknown, so everybody looks"
    for turn in range(3):
        seen = (await engine.read()).seen
        waiting = asyncio.ensure_future(engine.wait(b"w/", seen, 60_000))
        await batches.ok(other, batches.create(b"w/%d" % turn, b""))
        async with asyncio.timeout(20):
            assert await waiting


async def test_a_silent_connection_for_hints_is_noticed_and_replaced(place: Faulty) -> None:
    """Nothing is told, nothing is heard: only a question now and then shows that nobody is there any more."""
    engine = await _ready(place, ping_ms=50, statement_timeout_ms=100)
    seen = (await engine.read()).seen
    waiting = asyncio.ensure_future(engine.wait(b"w/", seen, 60_000))
    before = place.proxy.accepted
    place.proxy.set_mode("blackhole")

    async def tried_again() -> bool:
        return place.proxy.accepted > before

    await aio.until(tried_again)
    place.proxy.set_mode("pass")
    async with asyncio.timeout(20):
        assert await waiting


async def test_an_engine_alone_tells_nobody_until_somebody_greets(place: Faulty) -> None:
    engine = await _ready(place, alone_after_ms=1)
    raw = await place.raw()
    heard: list[str] = []
    await raw.add_listener(f"worldline_{place.schema}", lambda *event: heard.append(str(event[-1])))
    await asyncio.sleep(0.01)
    for index in range(5):
        await batches.ok(engine, batches.once(index))
    await raw.execute("SELECT pg_notify($1, 'somebody hello')", f"worldline_{place.schema}")

    async def answered() -> bool:
        return any(payload.endswith(" *") for payload in heard)

    await aio.until(answered)
    assert [payload.partition(" ")[2] for payload in heard] == ["hello", "*"]
    await batches.ok(engine, batches.once("now"))

    async def told() -> bool:
        return any(b"once/now".hex() in payload for payload in heard)

    await aio.until(told)
    await raw.close()


async def test_a_newcomer_looks_again_when_it_hears_of_others(place: Faulty) -> None:
    """What another engine wrote while it believed to be alone was told to nobody. From then on both are told."""
    first = await _ready(place, alone_after_ms=1)
    await asyncio.sleep(0.01)
    second = await place.open()
    async with asyncio.timeout(20):
        assert await second.wait(b"w/", 0, 60_000)
    for name, writer, reader in ((b"w/1", first, second), (b"w/2", second, first)):
        waiting = asyncio.ensure_future(reader.wait(b"w/", (await reader.read()).seen, 60_000))
        await batches.ok(writer, batches.create(name, b""))
        async with asyncio.timeout(20):
            assert await waiting


async def test_a_strange_notification_wakes_and_harms_nobody(place: Faulty) -> None:
    engine, raw = await _ready(place), await place.raw()
    for payload in ("", "x", "somebody zz,qq", "somebody *"):
        seen = (await engine.read()).seen
        await raw.execute("SELECT pg_notify($1, $2)", f"worldline_{place.schema}", payload)
        async with asyncio.timeout(20):
            assert await engine.wait(b"w/", seen, 60_000)


async def test_one_notification_tells_of_many_commits(place: Faulty) -> None:
    engine = await _ready(place, notify_pause_ms=50)
    raw = await place.raw()
    heard: list[str] = []
    await raw.add_listener(f"worldline_{place.schema}", lambda *event: heard.append(str(event[-1])))
    await asyncio.gather(*(engine.commit(batches.once(index)) for index in range(200)))

    async def all_told() -> bool:
        told = {bytes.fromhex(name) for payload in heard for name in payload.split(" ")[1].split(",")}
        return {b"once/%d" % index for index in range(200)} <= told

    await aio.until(all_told)
    assert len(heard) < 50
    await raw.close()


async def test_what_is_written_while_a_notification_is_on_its_way_is_told_by_the_next(place: Faulty) -> None:
    """Even if it is too much to name."""
    engine = await _ready(place)
    raw = await place.raw()
    heard: list[str] = []
    await raw.add_listener(f"worldline_{place.schema}", lambda *event: heard.append(str(event[-1])))
    trap = place.proxy.trap(b"once/first".hex().encode(), "hold")
    await batches.ok(engine, batches.once("first"))
    await trap.sprung.wait()
    await engine.commit(*(batches.once(index) for index in range(limits.HINT_KEYS_MAX + 1)))
    trap.release()

    async def all_told() -> bool:
        return any(payload.endswith(" *") for payload in heard)

    await aio.until(all_told)
    await raw.close()


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
async def test_a_restart_of_the_server_is_a_pause(own: servers.Server, own_place: Faulty, how: str) -> None:
    """Readers and producers go on; every producer has a certain answer; what was acked is there, once."""
    engine = await _ready(own_place, connect_attempts=60)
    stop = False
    acked: list[bytes] = []

    async def producer(name: int) -> None:
        count = 0
        while not stop:
            item = f"{name}.{count}"
            [outcome] = await transact.commit(engine, ENV, _item(item))
            assert isinstance(outcome, kv.Ok)
            acked.append(item.encode())
            count += 1

    async def reader() -> None:
        while not stop:
            assert await batches.get(engine, b"meta") == b"open"

    async def more(count: int) -> None:
        async def enough() -> bool:
            return len(acked) >= count

        await aio.until(enough)

    def restart() -> None:
        if how == "kill":
            own.kill()
            own.start()
        else:
            own.restart("fast" if how == "fast" else "immediate")

    running = [asyncio.ensure_future(each) for each in (reader(), reader(), *(producer(name) for name in range(4)))]
    for turn in range(2):
        await more(len(acked) + 30)
        await asyncio.to_thread(restart)
        await more(len(acked) + 30 + turn)
    stop = True
    await asyncio.gather(*running)
    assert sorted(await _inbox_of_any_size(engine)) == sorted(acked)


async def _inbox_of_any_size(engine: kv.Engine) -> list[bytes]:
    page = (await engine.read(kv.Range(b"inbox/", b"inbox0", 1_000_000, 1 << 30))).page(0)
    assert not page.more
    return [value for _, value in page.items]


async def test_a_caller_that_goes_away_harms_nobody(place: Faulty) -> None:
    """Cancelled in the queue: its batch is not sent. Cancelled under way: it is decided, and the connection is kept."""
    engine = await _ready(place, commit_connections=1)
    raw, holder = await place.raw(), await place.raw()
    await holder.execute("BEGIN; SELECT FROM kv WHERE key = 'meta' FOR UPDATE")
    calls = [asyncio.ensure_future(engine.commit(_item(0)))]
    await place.blocked(raw)
    calls += [asyncio.ensure_future(engine.commit(_item(name))) for name in range(1, 5)]
    await asyncio.sleep(0)
    for index in (0, 2, 4):
        calls[index].cancel()
    await asyncio.sleep(0)
    before = await place.sessions(raw)
    await holder.execute("COMMIT")
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [
        asyncio.CancelledError,
        list,
        asyncio.CancelledError,
        list,
        asyncio.CancelledError,
    ]
    assert sorted(await _inbox(engine)) == [b"0", b"1", b"3"]
    assert await place.sessions(raw) == before


async def test_closing_lets_go_of_every_connection(place: Faulty) -> None:
    engine, raw = await _ready(place), await place.raw()
    calls = [asyncio.ensure_future(engine.commit(_item(name))) for name in range(20)]
    reads = [asyncio.ensure_future(engine.read(kv.Get(b"meta"))) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(engine.close(), engine.close())
    assert all(isinstance(outcome, kv.Ok) for [outcome] in await asyncio.gather(*calls))
    assert [snapshot.value(0) for snapshot in await asyncio.gather(*reads)] == [b"open"] * 20

    async def gone() -> bool:
        return not await place.sessions(raw)

    await aio.until(gone)
