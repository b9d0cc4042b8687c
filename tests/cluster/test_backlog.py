"""The backlog as it is counted: what waits, for how long, in turns that are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import worldline as wl
from tests import aio
from tests.kits.kit import Kit, Process
from worldline.base import env as envs
from worldline.base import env_os
from worldline.cluster import backlog_count as backlogs
from worldline.cluster import stamp_ages
from worldline.cluster.backlog_count import Backlog
from worldline.keys import inbox as inbox_keys
from worldline.keys import leases as lease_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.layers import inbox as inboxes
from worldline.layers import work as works
from worldline.model import ids, inbox, payload
from worldline.model.settings import JanitorSettings, WorkerSettings
from worldline.model.work import Work, WorkKind, WorkState
from worldline.observe import measures
from worldline.runtime import death_witness, facts
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv

SECOND_US = 1_000_000


class Clock(env_os.OsEnv):
    """The real environment, with a monotonic clock that can be moved on."""

    ahead_us = 0

    def monotonic_us(self) -> int:
        return super().monotonic_us() + self.ahead_us


class Counting:
    """A backlog, its clock, and what it has told."""

    def __init__(self, process: Process, *, worlds_max: int = 256, backlog_ms: int = 1_000) -> None:
        self.meter, self.clock = measures.Meter(), Clock()
        self.told: list[facts.Fact] = []
        telling = facts.Telling([("meter", self.meter.tell), ("list", self.told.append)])
        self.backlog = Backlog(
            process.engine,
            self.clock,
            process.universe._connection.id,
            name="u",
            telemetry=telling,
            settings=JanitorSettings(turn_ms=1, backlog_ms=backlog_ms, worlds_max=worlds_max),
        )

    async def walk(self, *, seconds: int = 2) -> int:
        """Some seconds later, turns until all three walks have ended once. Returns how many turns that took."""
        self.clock.ahead_us += seconds * SECOND_US
        self.told.clear()
        for turn in range(1, 100):
            await self.backlog.turn()
            if len(self.told) >= 3:
                assert len(self.told) == 3, "each rests after its end"
                return turn
        raise AssertionError("a walk does not end")

    def __getitem__(self, name: str) -> dict[tuple[str, ...], float]:
        """A gauge's values by its labels but the universe, without those that are 0."""
        found = {
            of[1:]: value for (each, of), value in self.meter.gauges.items() if each == f"worldline_backlog_{name}"
        }
        return {of: value for of, value in found.items() if value}


async def make(client: Process, name: str, *, unread: int = 0) -> ids.Address:
    at = await (await client.universe.create(name, wl.Program("p")))._handle.address()
    for number in range(unread):
        batch = kv.Batch()
        guard = inbox_keys.seen_key(at, f"{number}")
        batch.absent(guard)
        batch.put(guard, b"", stamp=inboxes.enqueue_once(batch, at, inbox.InboxEvent("Add", payload.EMPTY)))
        assert isinstance((await client.engine.commit(batch))[0], kv.Ok)
    return at


async def open_some(client: Process, at: ids.Address, wanted: Sequence[tuple[WorkKind, WorkState, int]]) -> None:
    """Open work, due so many seconds from now, each in a queue of its own."""
    now_us = (await client.engine.read()).time_us
    for number, (kind, state, seconds) in enumerate(wanted):
        intent = ids.IntentId(bytes([number]) * 16)
        work = Work(
            kind,
            state,
            f"p/{kind.name}/{number}",
            0,
            "call",
            payload.EMPTY,
            1,
            number,
            now_us,
            now_us + seconds * SECOND_US,
        )
        batch = kv.Batch()
        batch.absent(work_keys.open_key(at, intent))
        works.open_work(batch, at, intent, work)
        assert isinstance((await client.engine.commit(batch))[0], kv.Ok)


async def bury(client: Process, at: ids.Address, *, seconds_ago: int) -> None:
    read = await client.engine.read(inboxes.read_range(at, count_max=1))
    [unread] = inboxes.decode(read.page(0).items)
    batch = kv.Batch()
    batch.absent(inbox_keys.dead_key(at, unread.stamp))
    inboxes.bury(batch, at, unread, reason="no", step=1, time_us=read.time_us - seconds_ago * SECOND_US)
    assert isinstance((await client.engine.commit(batch))[0], kv.Ok)


async def test_what_waits_is_counted(kit: Kit) -> None:
    client = await kit.process()
    busy = await make(client, "busy", unread=4)
    await make(client, "asleep", unread=1)
    await make(client, "quiet")
    await client.universe.world("asleep").pause()
    await bury(client, busy, seconds_ago=50)
    effect, timer = WorkKind.EFFECT, WorkKind.TIMER
    await open_some(
        client,
        busy,
        [
            (effect, WorkState.PARKED, 0),
            (effect, WorkState.WAITING, -20),
            (effect, WorkState.WAITING, -10),
            (effect, WorkState.WAITING, 600),
            (timer, WorkState.WAITING, -5),
            (timer, WorkState.WAITING, 600),
        ],
    )
    counting = Counting(client)
    assert await counting.walk() == 1
    assert counting["worlds"] == {("active",): 2, ("paused",): 1}
    assert counting["unread"] == {("active",): 3, ("paused",): 1}
    assert counting["unread_worlds"] == {("active",): 1, ("paused",): 1}
    assert counting["dead_letters"] == {(): 1}
    assert 50 <= counting["dead_letter_age_seconds"][()] < 50 + 60
    assert counting["open"] == {
        ("effect", "parked"): 1,
        ("effect", "waiting"): 3,
        ("timer", "waiting"): 2,
    }
    assert counting["overdue"] == {("effect",): 2, ("timer",): 1}
    assert 20 <= counting["overdue_age_seconds"]["effect",] < 20 + 60, "the oldest of two queues"
    assert 5 <= counting["overdue_age_seconds"]["timer",] < 5 + 60
    measured = counting["measured_timestamp_seconds"]
    assert list(measured) == [("worlds",), ("open",), ("due",)]
    assert all(abs(each - kit.env.wall_us() / SECOND_US) < 60 for each in measured.values())
    before = counting.meter.gauges
    for _ in range(3):
        await counting.backlog.turn()
    assert len(counting.told) == 3, "they rest"
    assert counting.meter.gauges == before


async def test_ages_grow_and_end_with_what_is_taken(kit: Kit) -> None:
    client = await kit.process()
    at = await make(client, "busy", unread=2)
    await make(client, "asleep", unread=1)
    await client.universe.world("asleep").pause()
    counting = Counting(client)
    await counting.walk()
    assert counting["unread_age_seconds"].get(("active",), 0) < 30, "no item is known to be older than the process"
    assert counting["unhosted_worlds"] == {}, "it may be about to be taken"
    await counting.walk(seconds=100)
    assert 100 <= counting["unread_age_seconds"]["active",] < 100 + 60
    assert counting["unread_age_seconds"]["paused",] >= 100
    assert counting["unhosted_worlds"] == {(): 1}, "no worker is to hold the one that is paused"
    other = await make(client, "other", unread=1)
    batch = kv.Batch()
    inboxes.consume(batch, at, [each.stamp for each in await items(client, at)])
    batch.absent(b"guard")
    batch.put(b"guard", b"")
    await client.engine.commit(batch)
    await counting.walk(seconds=40)
    assert 0 <= counting["unread_age_seconds"].get(("active",), 0) < 40, "the one that is left came later"
    await counting.walk(seconds=40)
    assert 40 <= counting["unread_age_seconds"]["active",] < 80 + 60
    assert counting["unhosted_worlds"] == {(): 1}
    worker, incarnation = ids.WorkerId(envs.new_id(kit.env)), ids.Incarnation(envs.new_id(kit.env))
    me = await world_lease.beat(client.engine, kit.env, worker, incarnation, WorkerSettings())
    await world_lease.acquire(client.engine, kit.env, other, me, death_witness.DeathWitness(kit.env))
    await counting.walk(seconds=3)
    assert counting["unhosted_worlds"] == {}, "a live worker holds it"
    assert counting["workers"] == {("alive",): 1}
    await counting.walk(seconds=30)
    assert counting["unhosted_worlds"] == {(): 1}, "its heartbeat was not renewed for three TTLs"
    assert counting["workers"] == {("dead",): 1}


async def items(client: Process, at: ids.Address) -> list[inboxes.UnreadItem]:
    return inboxes.decode((await client.engine.read(inboxes.read_range(at, count_max=100))).page(0).items)


async def test_a_turn_is_bounded_and_so_is_what_is_counted(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await memory_kit.process()
    addresses = [await make(client, f"w{number}", unread=4) for number in range(5)]
    await open_some(
        client,
        addresses[0],
        [(WorkKind.EFFECT, WorkState.WAITING, -1)] * 6 + [(WorkKind.EFFECT, WorkState.PARKED, 0)] * 4,
    )
    monkeypatch.setattr(backlogs, "ITEMS_MAX", 3)
    monkeypatch.setattr(backlogs, "OPEN_MAX", 1)
    monkeypatch.setattr(backlogs, "QUEUES_MAX", 1)
    counting = Counting(client, worlds_max=2)
    seen = measured_reads(client, monkeypatch)
    assert await counting.walk() == 10, "ten effects, one in a turn"
    assert max(seen) <= 4, "a turn asks for two worlds at a time: an inbox and the dead letters of each"
    assert counting["worlds"] == {("active",): 5}
    assert counting["unread"] == {("active",): 15}, "of each world so many"
    assert counting["open"] == {("effect", "waiting"): 6, ("effect", "parked"): 4}
    assert counting["overdue"] == {("effect",): 6}
    monkeypatch.setattr(backlogs, "OPEN_MAX", 100)
    assert await counting.walk() == 7, "six queues, one in a turn, and the end"
    monkeypatch.setattr(backlogs, "QUEUES_MAX", 100)
    assert await counting.walk() == 3, "five worlds, two in a turn"


def measured_reads(client: Process, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ranges and keys each read of an engine asks for, from now on."""
    seen: list[int] = []
    plain = client.engine.read

    async def read(*requests: kv.Request) -> kv.ReadResult:
        seen.append(len(requests))
        return await plain(*requests)

    monkeypatch.setattr(client.engine, "read", read)
    return seen


async def damage(client: Process, key: bytes) -> None:
    batch = kv.Batch()
    batch.expect(key, (await client.engine.read(kv.Get(key))).value(0) or b"")
    batch.put(key, b"damaged")
    assert isinstance((await client.engine.commit(batch))[0], kv.Ok)


async def test_a_damaged_record_hides_no_other(memory_kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    client = await memory_kit.process()
    lost = await make(client, "lost", unread=1)
    at = await make(client, "w", unread=3)
    await bury(client, at, seconds_ago=50)
    await bury(client, at, seconds_ago=20)
    await open_some(client, at, [(WorkKind.EFFECT, WorkState.PARKED, 0)] * 2)
    letters = (await client.engine.read(inboxes.dead_range(at, count_max=9))).page(0).items
    for key in (world_keys.index_key(lost), work_keys.open_key(at, ids.IntentId(bytes(16))), letters[0][0]):
        await damage(client, key)
    counting = Counting(client)
    await counting.walk(seconds=2)
    assert "not counted" in caplog.text
    assert counting["worlds"] == {("active",): 1}
    assert counting["unread"] == {("active",): 1}
    assert counting["open"] == {("effect", "parked"): 1}
    assert counting["dead_letters"] == {(): 2}
    assert 20 <= counting["dead_letter_age_seconds"][()] < 50, "of the one that can be read"
    await damage(client, lease_keys.epoch_key(at))
    await counting.walk(seconds=60)
    assert counting["unhosted_worlds"] == {}, "whether it is held cannot be said"


async def test_a_tick_rests_shortly_within_a_walk_and_for_the_next_mark_after_it(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await memory_kit.process()
    for number in range(3):
        await make(client, f"w{number}")
    counting = Counting(client, worlds_max=1, backlog_ms=60_000)
    rests: list[int] = []

    async def rest(ms: int) -> None:
        rests.append(ms)

    monkeypatch.setattr(counting.backlog._watch, "rest", rest)
    for _ in range(4):
        await counting.backlog.tick()
    assert rests == [1, 1, backlogs.MARK_MS, backlogs.MARK_MS]
    counting.clock.ahead_us += 58 * SECOND_US
    await counting.backlog.tick()
    assert 1 <= rests[-1] <= 2_000, "until the next count is due"
    assert len(counting.told) == 3


async def test_ticks_end_when_they_are_woken(memory_kit: Kit) -> None:
    counting = Counting(await memory_kit.process(), backlog_ms=60_000)
    ticking = asyncio.create_task(counting.backlog.tick())
    await aio.until(lambda: asyncio.sleep(0, len(counting.told) == 3))
    counting.backlog.wake()
    await asyncio.wait_for(ticking, 5)
    await counting.backlog.close()


# --- Ages ------------------------------------------------------------------------------------------------------


def stamp(number: int) -> kv.Stamp:
    return kv.stamp(number, 0)


def test_an_age_is_known_from_the_first_mark_above_a_stamp() -> None:
    ages = stamp_ages.StampAges()
    assert ages.age_us(stamp(1), now_us=0) == 0
    for number, now_us in [(10, 100), (10, 200), (20, 300), (30, 400)]:
        ages.mark(stamp(number), now_us=now_us)
    found = [ages.age_us(stamp(number), now_us=1_000) for number in (1, 9, 10, 19, 20, 29, 30, 99)]
    assert found == [900, 900, 700, 700, 600, 600, 0, 0]


def test_marks_are_bounded_and_old_ages_get_coarser() -> None:
    ages = stamp_ages.StampAges()
    count = 3 * stamp_ages.MARKS_MAX
    for number in range(1, count + 1):
        ages.mark(stamp(number), now_us=number)
        assert len(ages._marks) == len(ages._read_us) <= stamp_ages.MARKS_MAX
    assert ages.age_us(stamp(0), now_us=count) == count - 1, "the first is kept"
    true = [count - number - 1 for number in range(count - 1)]
    found = [ages.age_us(stamp(number), now_us=count) for number in range(count - 1)]
    assert all(one <= other for one, other in zip(found, true, strict=True)), "a lower bound"
    assert found[-1000:] == true[-1000:], "exact for what is young"


def test_a_store_that_goes_back_begins_anew() -> None:
    ages = stamp_ages.StampAges()
    ages.mark(stamp(10), now_us=100)
    ages.mark(stamp(5), now_us=200)
    ages.mark(stamp(20), now_us=300)
    assert [ages.age_us(stamp(number), now_us=1_000) for number in (4, 5, 15, 20)] == [800, 700, 700, 0]
