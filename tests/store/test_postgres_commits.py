"""Commits that meet other transactions, each in an order that the test forces by a connection of its own."""

from __future__ import annotations

import asyncio
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from tests import aio
from tests.conformance import batches
from tests.servers import postgres as servers
from tests.store.postgres_kit import Place, Raw
from worldline.base import errors
from worldline.store import kv
from worldline.store.postgres import groups, sql


@pytest.fixture
def place() -> Place:
    return Place(servers.shared())


async def _begin(raw: Raw, *statements: str) -> None:
    await raw.execute("BEGIN")
    for statement in statements:
        await raw.execute(statement)


async def _meet(place: Place, raw: Raw, engine: kv.Engine, batch: kv.Batch, end: str) -> kv.Outcome:
    """Commit the batch while the raw connection's transaction is open; end that once the batch waits for it."""
    committing = asyncio.ensure_future(engine.commit(batch))
    await place.blocked(raw)
    await raw.execute(end)
    [outcome] = await committing
    return outcome


async def test_a_conflict_is_told_by_one_view_taken_after_the_wait(place: Place) -> None:
    """The other transaction changes one expected row and adds another. A conflict must show both, or a repeated commit
    would not recognise its own first run.
    """
    engine, raw = await place.open(), await place.raw()
    await batches.ok(engine, batches.create(b"head", b"1"))
    batch = batches.replace(b"head", b"1", b"2")
    batch.absent(b"id")
    batch.put(b"id", b"token")
    await _begin(raw, "UPDATE kv SET value = '2' WHERE key = 'head'", "INSERT INTO kv VALUES ('id', 'token')")
    outcome = await _meet(place, raw, engine, batch, "COMMIT")
    assert outcome == kv.Conflict(((b"head", b"2"), (b"id", b"token")))
    assert kv.applied_before(batch, outcome)


async def test_what_a_rolled_back_transaction_did_is_not_seen(place: Place) -> None:
    engine, raw = await place.open(), await place.raw()
    await batches.ok(engine, batches.create(b"head", b"1"))
    batch = batches.replace(b"head", b"1", b"2")
    batch.absent(b"id")
    batch.put(b"id", b"token")
    await _begin(raw, "UPDATE kv SET value = 'x' WHERE key = 'head'", "INSERT INTO kv VALUES ('id', 'x')")
    assert await _meet(place, raw, engine, batch, "ROLLBACK") == kv.Ok(())
    assert await batches.get(engine, b"head") == b"2"


Case = tuple[list[str], str, dict[bytes, bytes] | kv.Conflict]

# With `head` = 1 and `old` = 1 in the store: what the other transaction does, how it ends, and what must come of a
# batch that expects `head` and absent `id`, sets `head` to 2, puts `id` and `blind`, deletes `old` and `late`, sweeps
# `s/` and counts `c`. The other one holds `head`, so the batch waits for it.
HOLD = "SELECT FROM kv WHERE key = 'head' FOR SHARE"
APPLIED = {b"blind": b"ours", b"c": kv.counter_add(None, 1), b"head": b"2", b"id": b"ours"}
MEETINGS: dict[str, Case] = {
    "nothing": ([HOLD], "COMMIT", APPLIED),
    "a key that the batch deletes": ([HOLD, "INSERT INTO kv VALUES ('late', '')"], "COMMIT", APPLIED),
    "a key inside the range": ([HOLD, "INSERT INTO kv VALUES ('s/1', ''), ('s/2', '')"], "COMMIT", APPLIED),
    "a change of what is deleted": ([HOLD, "UPDATE kv SET value = '2' WHERE key = 'old'"], "COMMIT", APPLIED),
    "the deleted key": ([HOLD, "DELETE FROM kv WHERE key = 'old'"], "COMMIT", APPLIED),
    "a key that the batch puts": ([HOLD, "INSERT INTO kv VALUES ('blind', 'theirs')"], "COMMIT", APPLIED),
    "a key that the batch creates": (
        [HOLD, "INSERT INTO kv VALUES ('id', 'theirs')"],
        "COMMIT",
        kv.Conflict(((b"id", b"theirs"),)),
    ),
    "a key that the batch creates, undone": ([HOLD, "INSERT INTO kv VALUES ('id', 'theirs')"], "ROLLBACK", APPLIED),
    "the same value again": (["UPDATE kv SET value = '1' WHERE key = 'head'"], "COMMIT", APPLIED),
    "another value": (
        ["UPDATE kv SET value = '3' WHERE key = 'head'"],
        "COMMIT",
        kv.Conflict(((b"head", b"3"),)),
    ),
    "the expected key, deleted": (["DELETE FROM kv WHERE key = 'head'"], "COMMIT", kv.Conflict(((b"head", None),))),
    "deleted and made again": (
        ["DELETE FROM kv WHERE key = 'head'", "INSERT INTO kv VALUES ('head', '1')"],
        "COMMIT",
        APPLIED,
    ),
    "deleted and made anew": (
        ["DELETE FROM kv WHERE key = 'head'", "INSERT INTO kv VALUES ('head', '3')"],
        "COMMIT",
        kv.Conflict(((b"head", b"3"),)),
    ),
    "a counter": (
        [HOLD, "INSERT INTO kv VALUES ('c', '\\x0500000000000000')"],
        "COMMIT",
        APPLIED | {b"c": kv.counter_add(None, 6)},
    ),
}


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
@pytest.mark.parametrize("name", MEETINGS)
async def test_a_batch_that_waited_acts_on_what_it_waited_for(place: Place, name: str, isolation: str) -> None:
    """Whatever the server's default isolation is, and with many deletes too, which begin before all locks are held."""
    hasty = isolation == "serializable"
    engine = await place.open(f"{place.url}&default_transaction_isolation={isolation.replace(' ', '%20')}")
    raw = await place.raw()
    statements, end, expected = MEETINGS[name]
    await batches.fill(engine, {b"head": b"1", b"old": b"1"})
    batch = batches.replace(b"head", b"1", b"2")
    batch.absent(b"id")
    batch.put(b"id", b"ours")
    batch.put(b"blind", b"ours")
    batch.delete(b"old")
    batch.delete(b"late")
    if hasty:
        for index in range(groups.BLOCK_MIN):
            batch.delete(b"late/%d" % index)
    batch.delete_range(b"s/", b"s0")
    batch.add(b"c", 1)
    await _begin(raw, *statements)
    outcome = await _meet(place, raw, engine, batch, end)
    found = dict((await engine.read(kv.Range(b"\x00", b"\xff"))).page(0).items)
    if isinstance(expected, kv.Conflict):
        assert outcome == expected
        assert b"blind" not in found
        assert found[b"old"] == b"1"
    else:
        assert outcome == kv.Ok(())
        assert found == expected


MANY = [b"gone/%02d" % index for index in range(3 * groups.BLOCK_MIN)]


async def test_many_deletes_in_a_batch_that_does_not_hold_are_undone(place: Place) -> None:
    """They are deleted before the expectations are looked at; the others of the group have their way all the same."""
    engine, raw = await place.open(), await place.raw()
    await batches.fill(engine, dict.fromkeys(MANY, b"1") | {b"zz": b"1"})
    lost = batches.replace(b"zz", b"2", b"3")
    held = batches.create(b"new", b"1")
    for index, key in enumerate(MANY):
        (lost if index % 24 < 12 else held).delete(key)
    assert await engine.commit(lost, held) == [kv.Conflict(((b"zz", b"1"),)), kv.Ok(())]
    assert list(await batches.scan(engine, b"gone/")) == MANY[:12]
    assert await raw.fetchval("SELECT count(*) FROM kv WHERE key = 'new'") == 1


async def test_a_group_of_very_many_runs_is_decided_batch_by_batch(place: Place) -> None:
    engine = await place.open(commit_connections=1)
    worlds = [b"w/%03d/" % index for index in range(2 * groups.RUNS_MAX)]
    values = {b"epoch": b"1", b"head": b"0", b"item/1": b"", b"item/2": b"", b"swept/1": b""}
    await engine.commit(*(batches.create(world + name, value) for world in worlds for name, value in values.items()))
    calls = []
    for index, world in enumerate(worlds):
        batch = batches.replace(world + b"head", b"0", b"1")
        batch.expect(world + b"epoch", b"1" if index % 3 else b"2")
        batch.delete(world + b"item/1")
        batch.delete(world + b"item/2")
        batch.delete_range(world + b"swept/", world + b"swept0")
        calls.append(batch)
    outcomes = await engine.commit(*calls)
    for index, world in enumerate(worlds):
        left = await batches.scan(engine, world)
        if index % 3:
            assert outcomes[index] == kv.Ok(())
            assert left == {world + b"epoch": b"1", world + b"head": b"1"}
        else:
            assert outcomes[index] == kv.Conflict(((world + b"epoch", b"1"),))
            assert len(left) == len(values)


@pytest.mark.parametrize("held", [b"a", b"zz"], ids=["waits before", "waits after"])
async def test_many_deletes_find_what_appeared_while_the_batch_waited(place: Place, held: bytes) -> None:
    """Somebody holds a row that the batch writes, and makes some of the keys that it deletes."""
    engine, raw = await place.open(), await place.raw()
    await batches.fill(engine, dict.fromkeys(MANY[::2], b"1") | {held: b"1"})
    batch = batches.replace(held, b"1", b"2")
    for key in MANY:
        batch.delete(key)
    await _begin(raw, f"SELECT FROM kv WHERE key = '{held.decode()}' FOR SHARE")
    await raw.executemany("INSERT INTO kv VALUES ($1, 'late')", [(key,) for key in MANY[1::2]])
    assert await _meet(place, raw, engine, batch, "COMMIT") == kv.Ok(())
    assert await batches.scan(engine, b"gone/") == {}


async def test_creators_wait_for_an_insert_that_is_not_decided(place: Place) -> None:
    engine, raw = await place.open(), await place.raw()
    for end, expected in (("ROLLBACK", kv.Ok(())), ("COMMIT", kv.Conflict(((b"k", b"theirs"),)))):
        key = b"k" if end == "COMMIT" else b"j"
        await _begin(raw, f"INSERT INTO kv VALUES ('{key.decode()}', 'theirs')")
        assert await _meet(place, raw, engine, batches.create(key, b"ours"), end) == expected


async def test_one_lost_race_in_a_group_leaves_the_others_unharmed(place: Place) -> None:
    engine, raw = await place.open(), await place.raw()
    rivals = [batches.create(b"k/%d" % index, b"ours") for index in range(10)]
    await _begin(raw, "INSERT INTO kv VALUES ('k/3', 'theirs'), ('k/7', 'theirs')")
    committing = asyncio.ensure_future(engine.commit(*rivals))
    await place.blocked(raw)
    await raw.execute("COMMIT")
    outcomes = await committing
    lost = {3: kv.Conflict(((b"k/3", b"theirs"),)), 7: kv.Conflict(((b"k/7", b"theirs"),))}
    assert outcomes == [lost.get(index, kv.Ok(())) for index in range(10)]


async def test_shared_guards_do_not_wait_for_each_other(place: Place) -> None:
    """Somebody else holds the guard as producers do, FOR SHARE, and does not end; producers get through."""
    engine, other, raw = await place.open(), await place.open(), await place.raw()
    await batches.ok(engine, batches.create(b"meta", b"open"))
    await _begin(raw, "SELECT FROM kv WHERE key = 'meta' FOR SHARE")
    for index, each in enumerate((engine, other, engine)):
        batch = batches.once(index)
        batch.expect(b"meta", b"open")
        batch.append(b"inbox/", b"x")
        async with asyncio.timeout(10):
            await batches.ok(each, batch)
    # Whoever changes the guard waits for all of them.
    assert await _meet(place, raw, engine, batches.replace(b"meta", b"open", b"closed"), "COMMIT") == kv.Ok(())


async def test_an_unwritten_guard_is_held_until_the_commit(place: Place) -> None:
    """A producer's batch is stopped behind the guard; the guard cannot change before that batch is decided."""
    engine, raw, changer = await place.open(), await place.raw(), await place.raw()
    await batches.fill(engine, {b"meta": b"open", b"z": b"1"})
    batch = batches.replace(b"z", b"1", b"2")
    batch.expect(b"meta", b"open")
    await _begin(raw, "SELECT FROM kv WHERE key = 'z' FOR UPDATE")
    committing = asyncio.ensure_future(engine.commit(batch))
    await place.blocked(raw)
    with pytest.raises(asyncio.TimeoutError):
        await changer.execute("UPDATE kv SET value = 'closed' WHERE key = 'meta'", timeout=0.3)
    await raw.execute("COMMIT")
    assert await committing == [kv.Ok(())]
    assert await changer.execute("UPDATE kv SET value = 'closed' WHERE key = 'meta'") == "UPDATE 1"


async def test_a_slow_writer_holds_stable_back_and_is_never_skipped(place: Place) -> None:
    """It took its transaction id first and writes last. A scanner that marks at min(last, stable) still finds it."""
    engine, raw = await place.open(), await place.raw()
    await raw.execute("BEGIN")
    version = int(await raw.fetchval("SELECT pg_current_xact_id()::text"))
    slow = kv.stamp(version, 0)
    seen: dict[bytes, bytes] = {}
    mark: bytes = kv.ZERO_STAMP

    async def scan() -> kv.Page:
        nonlocal mark
        page = (await engine.read(kv.Range(b"q/" + mark, b"q0"))).page(0)
        seen.update(page.items)
        if page.items:
            mark = max(mark, min(page.items[-1][0][2:], page.stable))
        return page

    for turn in range(5):
        batch = batches.once(turn)
        batch.append(b"q/", b"%d" % turn)
        [stamp] = (await batches.ok(engine, batch)).stamps
        assert stamp > slow
        page = await scan()
        assert page.items[-1][0] == b"q/" + stamp
        assert page.stable <= slow
    await raw.execute("INSERT INTO kv VALUES ($1, 'slow')", b"q/" + slow)
    await scan()
    assert b"q/" + slow not in seen
    await raw.execute("COMMIT")
    await scan()
    assert seen[b"q/" + slow] == b"slow"

    async def settled() -> bool:
        return (await scan()).stable > stamp

    await aio.until(settled)
    assert len(seen) == 6


KEYS = [b"k/%02d" % index for index in range(12)]


async def test_overlapping_batches_never_deadlock(place: Place) -> None:
    """Random batches over few rows, in every role, from three engines with many connections each."""
    engines = [await place.open(commit_connections=6) for _ in range(3)]
    raw = await place.raw()
    await batches.fill(engines[0], dict.fromkeys(KEYS, kv.counter_add(None, 0)))

    async def writer(name: int) -> list[kv.Outcome]:
        choose, engine, outcomes = random.Random(name), engines[name % 3], []
        for turn in range(20):
            batch = batches.once(f"{name}.{turn}")
            for key in choose.sample(KEYS, 6):
                match choose.randrange(4):
                    case 0:
                        batch.put(key, kv.counter_add(None, turn))
                    case 1:
                        batch.add(key, 1)
                    case 2:
                        batch.expect(key, kv.counter_add(None, choose.randrange(3)))
                    case _:
                        batch.expect(key, kv.counter_add(None, choose.randrange(3)))
                        batch.put(key, kv.counter_add(None, 0))
            outcomes += await engine.commit(batch)
        return outcomes

    found = [
        outcome for outcomes in await asyncio.gather(*(writer(name) for name in range(12))) for outcome in outcomes
    ]
    kinds = {type(outcome) for outcome in found}
    assert kinds == {kv.Ok, kv.Conflict}
    assert await _deadlocks(place, raw) == 0


async def test_a_deadlock_with_a_stranger_is_survived(place: Place) -> None:
    """Somebody who locks in another order: the server ends one of the two; if it is ours, the batch is run again."""
    engine, raw = await place.open(), await place.raw()
    await raw.execute("SET deadlock_timeout = '60s'")  # so that ours is the one that finds it
    await batches.fill(engine, {b"a": b"1", b"b": b"1"})
    batch = batches.replace(b"a", b"1", b"2")
    batch.expect(b"b", b"1")
    await _begin(raw, "SELECT FROM kv WHERE key = 'b' FOR UPDATE")
    committing = asyncio.ensure_future(engine.commit(batch))
    await place.blocked(raw)
    await raw.execute("SELECT FROM kv WHERE key = 'a' FOR UPDATE")
    await raw.execute("COMMIT")
    assert await committing == [kv.Ok(())]
    assert await _deadlocks(place, raw) >= 1


async def _deadlocks(place: Place, raw: Raw) -> int:
    """Those that this store's sessions have met, by the server's log: it is written before the session is told. The
    server's counter is of the whole database, and other tests use that at the same time.
    """
    log = place.server.log
    return sum(log.count(f"[{session}] ERROR:  deadlock detected") for session in await place.sessions(raw))


async def _refusing(raw: Raw, state: str) -> None:
    await raw.execute(
        f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'refused by the test'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON kv FOR EACH ROW EXECUTE FUNCTION refuse();
        """
    )


REFUSALS: dict[str, type[errors.StoreError]] = {
    "53100": errors.StoreFull,
    "53200": errors.StoreUnavailable,
    "25006": errors.StoreUnavailable,
    "57014": errors.StoreUnavailable,
    "55P03": errors.StoreUnavailable,
    "40001": errors.StoreUnavailable,
    "23505": errors.StoreUnavailable,
    "42501": errors.StoreUnavailable,
    "42P01": errors.StoreMissing,
    "XX001": errors.StoreFailed,
}


@pytest.mark.parametrize("state", REFUSALS)
async def test_a_refused_commit_is_one_clear_error_and_applies_nothing(place: Place, state: str) -> None:
    engine = await place.open(commit_attempts=3)
    raw = await place.raw()
    await _refusing(raw, state)
    batch = batches.create(b"k", b"1")
    batch.append(b"log/", b"x")
    with pytest.raises(errors.StoreError) as caught:
        await engine.commit(batch)
    assert type(caught.value) is REFUSALS[state]
    assert "\n" not in str(caught.value)
    await raw.execute("DROP TRIGGER refuse ON kv")
    assert await batches.get(engine, b"k") is None
    await batches.ok(engine, batch)


async def test_a_call_that_was_applied_in_part_raises_nothing(place: Place) -> None:
    """One statement succeeds, the next is refused: an error would say that nothing was applied."""
    engine = await place.open(commit_attempts=2, group_batches_max=1, commit_connections=1)
    raw = await place.raw()
    await raw.execute(
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION USING ERRCODE = '53100'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON kv FOR EACH ROW WHEN (NEW.key = 'b') EXECUTE FUNCTION refuse();
        """
    )
    first, second = await engine.commit(batches.create(b"a", b""), batches.create(b"b", b""))
    assert first == kv.Ok(())
    assert isinstance(second, kv.CommitUnknown)


async def test_every_statement_walks_the_primary_key(place: Place) -> None:
    """On a table that was empty when the plans were made, and on a large one."""
    engine, raw = await place.open(commit_connections=1, read_connections=1), await place.raw()
    await _one_of_everything(engine, 0)
    await raw.execute("INSERT INTO kv SELECT int8send(n), '' FROM generate_series(1, 20000) n")
    for turn in range(1, 8):
        await _one_of_everything(engine, turn)
    await engine.close()
    scans = await raw.fetchrow("SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relid = 'kv'::regclass")
    assert scans is not None
    assert scans[0] <= 1, "the primary key's making reads the empty table"
    assert scans[1] > 50


async def _one_of_everything(engine: kv.Engine, turn: int) -> None:
    batch = batches.once(turn)
    batch.put(b"put", b"%d" % turn)
    batch.put(b"put/%d" % turn, b"%d" % turn)
    batch.delete(b"put/%d" % (turn - 1))
    batch.add(b"count", 1)
    batch.delete_range(b"s/", b"s0")
    batch.append(b"log/", b"x")
    lost = batches.replace(b"put", b"never", b"")
    await engine.commit(batch, lost)
    reverse = kv.Range(b"\x00", b"\xff", 5, reverse=True)
    await engine.read(kv.Get(b"put"), kv.Range(b"put", b"q", 5), reverse)


async def test_a_page_is_read_by_the_index_and_in_its_order(place: Place) -> None:
    await place.open()
    raw = await place.raw()
    await raw.execute(sql.SESSION)
    one = "array['\\x01'::bytea]"
    for backwards in (False, True):
        await raw.execute(f"PREPARE page_{backwards} AS {sql.read(place.schema, backwards=backwards)}")
        rows = await raw.fetch(f"EXPLAIN EXECUTE page_{backwards}({one}, {one}, {one}, array[10], array[9], array[0])")
        plan = "\n".join(row[0] for row in rows)
        assert plan.count("Index Scan using kv_pkey") == 1, plan
        assert plan.count("Index Scan Backward using kv_pkey") == (2 if backwards else 1), plan
        for bad in ("Seq Scan", "Sort", "Bitmap"):
            assert bad not in plan


integers = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**32, 2**32 - 1])


async def test_counters_add_as_the_reference_does(place: Place) -> None:
    await place.open()
    raw = await place.raw()
    name = sql.commit_name().replace("commit_", "counter_add_")
    pairs: list[tuple[int, int]] = []

    @hypothesis.settings(max_examples=300)
    @hypothesis.given(integers, integers)
    def collect(a: int, b: int) -> None:
        pairs.append((a, b))

    collect()
    lefts = [kv.counter_add(None, a) for a, _ in pairs]
    rights = [kv.counter_add(None, b) for _, b in pairs]
    rows = await raw.fetch(f"SELECT {name}(a, b) FROM unnest($1::bytea[], $2::bytea[]) AS t(a, b)", lefts, rights)
    assert [row[0] for row in rows] == [kv.counter_add(left, b) for left, (_, b) in zip(lefts, pairs, strict=True)]


async def test_the_layout_of_a_store(place: Place) -> None:
    """Values are not compressed, keys never leave the row, and appended keys end in the transaction's id."""
    engine, raw = await place.open(), await place.raw()
    rows = await raw.fetch(
        "SELECT attname, attstorage FROM pg_attribute WHERE attrelid = 'kv'::regclass AND attnum > 0"
    )
    assert {row[0]: row[1] for row in rows} == {"key": b"p", "value": b"e"}
    batch = batches.create(b"k", b"\x00" * 60_000)
    batch.append(b"log/", b"1")
    batch.append(b"log/", b"2")
    first, second = (await batches.ok(engine, batch)).stamps
    row = await raw.fetchrow(
        "SELECT xmin::text::bigint, pg_column_size(value) FROM kv WHERE key = $1", b"log/" + second
    )
    assert row is not None
    assert (first, second) == (kv.stamp(row[0], 0), kv.stamp(row[0], 1))
    assert await raw.fetchval("SELECT pg_column_size(value) FROM kv WHERE key = 'k'") == 60_000
