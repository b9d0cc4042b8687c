from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.layers import engines, scenario
from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import digest, frame, structs
from worldline.keys import inbox as keys
from worldline.keys import worlds as world_keys
from worldline.layers import inbox, worlds
from worldline.model import ids, payload
from worldline.model import inbox as model
from worldline.model import world_records as world_model
from worldline.model.age import Age
from worldline.store import kv, transact

AT = scenario.address()
WINDOW_US = scenario.WINDOW_US
GARBAGE = [b"", b"garbage", frame.wrap(16, b"garbage"), frame.wrap(16, b"\x82\x09\x01"), frame.wrap(17, b"\x80")]


class Desk:
    """One world and its inbox, in a plain store."""

    def __init__(self) -> None:
        self.store = scenario.Store()
        self.world = self.store.create_world()

    def batch(self, item: model.Item, client_id: bytes | str) -> kv.Batch:
        batch = kv.Batch()
        worlds.expect_open(batch, self.world)
        inbox.enqueue(batch, AT, item, client_id=client_id, time_us=self.store.time_us, window_us=WINDOW_US)
        return batch

    def send(self, text: str, client_id: bytes | str) -> kv.Stamp:
        [stamp] = self.store.ok(self.batch(scenario.event(text), client_id)).stamps
        return stamp

    def throw_in(self, raw: bytes) -> kv.Stamp:
        """Append bytes that no `enqueue` made."""
        key = b"once" + self.new_id()
        batch = kv.Batch()
        batch.absent(key)
        batch.put(key, b"")
        batch.append(keys.item_prefix(AT), raw)
        [stamp] = self.store.ok(batch).stamps
        self.store.erase([key])
        return stamp

    def new_id(self) -> bytes:
        return envs.new_id(self.store.env)

    def unread(self) -> list[inbox.UnreadItem]:
        return self.store.unread(AT)

    def letters(self) -> list[inbox.DeadLetterRecord]:
        return inbox.decode_dead(self.store.read(inbox.dead_range(AT, count_max=1000)).page(0).items)

    def step(self, batch: kv.Batch) -> kv.Ok:
        """Commit what a step does with the inbox; another guard stands for the head."""
        key = b"once" + self.new_id()
        batch.absent(key)
        batch.put(key, b"")
        outcome = self.store.ok(batch)
        self.store.erase([key])
        return outcome

    def bury(self, unread: inbox.UnreadItem, reason: str = "no good") -> inbox.DeadLetterRecord:
        batch = kv.Batch()
        inbox.bury(batch, AT, unread, reason=reason, step=3, time_us=9)
        self.step(batch)
        return self.letters()[-1]


def test_an_item_is_stored_with_its_id_and_its_stamp() -> None:
    desk = Desk()
    item = scenario.event("a")
    before = desk.store.everything()
    stamp = desk.send("a", "order-1")
    raw = keys.ITEM.pack(item)
    seen = keys.SEEN.pack(model.SeenId(digest.sha256(raw), desk.store.time_us))
    added = {keys.item_key(AT, stamp): raw, keys.seen_key(AT, "order-1"): seen + stamp}
    assert desk.store.everything() == before | added
    assert desk.unread() == [inbox.UnreadItem(stamp, raw, item)]


IDS: list[bytes | str] = ["order-1", "a" * 64, "a" * 65, "\x00", "ä", envs.new_id(envs.FixedEnv(7))]


@pytest.mark.parametrize("client_id", IDS, ids=repr)
def test_the_same_id_is_one_item_and_the_first_stamp(client_id: bytes | str) -> None:
    desk = Desk()
    item = scenario.event("a")
    stamp = desk.send("a", client_id)
    desk.send("between", "other")
    desk.store.env.advance_us(1)
    conflict = desk.store.conflict(desk.batch(item, client_id))
    assert scenario.first_stamp(conflict, AT, item, client_id=client_id) == stamp
    other = scenario.event("b")
    conflict = desk.store.conflict(desk.batch(other, client_id))
    shown = client_id.hex() if isinstance(client_id, bytes) else client_id
    with pytest.raises(errors.IdReused) as caught:
        scenario.first_stamp(conflict, AT, other, client_id=client_id)
    assert caught.value.client_id == shown


def test_an_id_belongs_to_its_world() -> None:
    desk = Desk()
    other = desk.store.create_world(1)
    desk.send("a", "order-1")
    batch = kv.Batch()
    worlds.expect_open(batch, other)
    inbox.enqueue(batch, other.at, scenario.event("b"), client_id="order-1", time_us=0, window_us=WINDOW_US)
    desk.store.ok(batch)


def test_a_repeat_is_told_also_when_the_world_has_closed() -> None:
    """The item is in; that the world takes nothing more does not undo that."""
    desk = Desk()
    item = scenario.event("a")
    stamp = desk.send("a", "order-1")
    again, fresh = desk.batch(item, "order-1"), desk.batch(item, "order-2")
    desk.store.set_status(AT, world_model.Status.ARCHIVED)
    conflict = desk.store.conflict(again)
    assert len(conflict.found) == 2
    assert scenario.first_stamp(conflict, AT, item, client_id="order-1") == stamp
    conflict = desk.store.conflict(fresh)
    assert scenario.first_stamp(conflict, AT, item, client_id="order-2") is None
    assert [key for key, _ in conflict.found] == [world_keys.meta_key(AT)]


@pytest.mark.parametrize(
    ("age_us", "fate"),
    [
        (0, None),
        (WINDOW_US, None),
        (WINDOW_US + 1_000, errors.DedupeExpired),
        (10 * WINDOW_US, errors.DedupeExpired),
        (-WINDOW_US, None),
        (-WINDOW_US - 1_000, errors.BadInput),
    ],
)
def test_made_ids_must_be_of_this_time(age_us: int, fate: type[errors.Error] | None) -> None:
    """Too old: its record may be gone. Too far ahead: its record would never go."""
    desk = Desk()
    made = envs.new_id(envs.FixedEnv(wall_us=desk.store.time_us - age_us))
    batch = kv.Batch()
    if fate is None:
        desk.send("a", made)
        return
    with pytest.raises(fate) as caught:
        inbox.enqueue(batch, AT, scenario.event("a"), client_id=made, time_us=desk.store.time_us, window_us=WINDOW_US)
    assert type(caught.value) is fate
    assert "3600 s" in str(caught.value)
    assert not batch.appends


@pytest.mark.parametrize("client_id", [b"", bytes(15), bytes(17), ""])
def test_what_is_no_id_is_refused(client_id: bytes | str) -> None:
    with pytest.raises(errors.BadInput):
        Desk().batch(scenario.event("a"), client_id)


def sized(size: int) -> model.InboxEvent:
    """An event whose stored value has this many bytes."""
    bare = len(keys.ITEM.pack(model.InboxEvent("e", payload.EMPTY, correlation="x" * 30_000))) - 30_000
    return model.InboxEvent("e", payload.EMPTY, correlation="x" * (size - bare))


def test_items_are_bounded_so_that_each_can_be_journaled_and_buried() -> None:
    desk = Desk()
    largest, too_large = sized(limits.ITEM_BYTES_MAX), sized(limits.ITEM_BYTES_MAX + 1)
    desk.store.ok(desk.batch(largest, "largest"))
    for enqueue in (
        lambda: desk.batch(too_large, "too large"),
        lambda: inbox.enqueue_once(kv.Batch(), AT, too_large),
    ):
        with pytest.raises(errors.TooLarge, match="inbox item is 49153 bytes; the limit is 49152"):
            enqueue()
    [unread] = desk.unread()
    letter = desk.bury(unread, "\U0001f30d" * 5_000)
    assert letter.dead.item == unread.raw == keys.ITEM.pack(largest)
    assert letter.dead.reason == "\U0001f30d" * limits.REASON_CHARACTERS_MAX


@pytest.mark.parametrize("raw", GARBAGE, ids=repr)
def test_an_undecodable_item_does_not_block_the_next(raw: bytes) -> None:
    desk = Desk()
    desk.send("before", "1")
    stamp = desk.throw_in(raw)
    desk.send("after", "2")
    first, bad, last = desk.unread()
    assert (first.item, last.item) == (scenario.event("before"), scenario.event("after"))
    assert (bad.stamp, bad.raw, bad.item) == (stamp, raw, None)
    assert bad.error
    batch = kv.Batch()
    inbox.consume(batch, AT, [first.stamp, last.stamp])
    inbox.bury(batch, AT, bad, reason=bad.error, step=1, time_us=5)
    desk.step(batch)
    assert desk.unread() == []
    [letter] = desk.letters()
    assert (letter.stamp, letter.dead) == (stamp, model.DeadItem(raw, bad.error, 1, 5))


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("", ""),
        ("plain", "plain"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        ("\udfff" * 5_000, ("\\udfff" * 200)[: limits.REASON_CHARACTERS_MAX]),
        ("x" * 5_000, "x" * limits.REASON_CHARACTERS_MAX),
        ("\x00\n", "\x00\n"),
    ],
    ids=["empty", "plain", "surrogate", "surrogates", "long", "control"],
)
def test_any_reason_can_be_buried_with(reason: str, kept: str) -> None:
    desk = Desk()
    desk.send("a", "1")
    assert desk.bury(desk.unread()[0], reason).dead.reason == kept


@pytest.mark.parametrize("size", [limits.ITEM_BYTES_MAX + 1, 60_416, 60_417, limits.VALUE_BYTES_MAX])
def test_even_a_value_no_enqueue_made_is_buried(size: int) -> None:
    """Whatever is in the inbox, it never blocks the world: what does not fit into a letter is cut, and says so."""
    desk = Desk()
    desk.throw_in(b"x" * size)
    letter = desk.bury(desk.unread()[0], "y" * 5_000)
    assert letter.dead.item == b"x" * min(size, 60_416)
    assert letter.dead.reason.startswith(f"cut from {size} bytes: y") == (size > 60_416)
    if size > limits.ITEM_BYTES_MAX:
        with pytest.raises(errors.TooLarge):
            inbox.retry_dead(kv.Batch(), AT, letter, client_id=desk.new_id(), time_us=0)


def test_a_letter_is_put_back_as_a_new_input() -> None:
    desk = Desk()
    desk.send("a", "1")
    letter = desk.bury(desk.unread()[0])
    desk.send("b", "2")
    batch = kv.Batch()
    worlds.expect_open(batch, desk.world)
    index = inbox.retry_dead(batch, AT, letter, client_id=desk.new_id(), time_us=desk.store.time_us)
    stamp = desk.store.ok(batch).stamps[index]
    assert desk.letters() == []
    assert [each.item for each in desk.unread()] == [scenario.event("b"), scenario.event("a")]
    assert desk.unread()[-1].stamp == stamp > letter.stamp
    desk.store.conflict(batch)


def test_a_letter_is_taken_out_by_one_only() -> None:
    desk = Desk()
    desk.send("a", "1")
    letter = desk.bury(desk.unread()[0])
    batches = [kv.Batch() for _ in range(4)]
    for batch in batches[:2]:
        inbox.drop_dead(batch, AT, letter)
    for batch in batches[2:]:
        inbox.retry_dead(batch, AT, letter, client_id=desk.new_id(), time_us=0)
    outcomes = scenario.now(desk.store.engine.commit(*reversed(batches)))
    assert [isinstance(outcome, kv.Ok) for outcome in outcomes] == [True, False, False, False]
    assert len(desk.unread()) == 1


def test_a_retry_that_lost_to_a_drop_is_told_so_also_after_a_lost_answer() -> None:
    """That the letter is gone does not prove that the retry took it; its own id does."""
    desk = Desk()
    desk.send("a", "1")
    letter = desk.bury(desk.unread()[0])
    retry, drop = kv.Batch(), kv.Batch()
    inbox.retry_dead(retry, AT, letter, client_id=desk.new_id(), time_us=0)
    inbox.drop_dead(drop, AT, letter)
    slow = engines.Meddled(desk.store.engine, lambda: desk.store.engine.commit(drop), lost=True)
    [outcome] = scenario.now(transact.commit(slow, desk.store.env, retry))
    assert isinstance(outcome, kv.Conflict)
    assert (desk.unread(), desk.letters()) == ([], [])


@pytest.mark.parametrize("plan", [["lost"], ["applied"], ["late"], ["applied", "late", "lost"], ["lost", "applied"]])
def test_lost_answers_enqueue_and_retry_once_and_know_the_stamp(plan: list[str]) -> None:
    desk = Desk()
    batch = desk.batch(scenario.event("a"), desk.new_id())
    [outcome] = scenario.now(transact.commit(scenario.Unsure(desk.store.engine, plan), desk.store.env, batch))
    assert isinstance(outcome, kv.Ok)
    assert [each.stamp for each in desk.unread()] == [*outcome.stamps]
    letter = desk.bury(desk.unread()[0])
    batch = kv.Batch()
    inbox.retry_dead(batch, AT, letter, client_id=desk.new_id(), time_us=0)
    [outcome] = scenario.now(transact.commit(scenario.Unsure(desk.store.engine, plan), desk.store.env, batch))
    assert isinstance(outcome, kv.Ok)
    assert [each.stamp for each in desk.unread()] == [*outcome.stamps]
    assert desk.letters() == []


def test_dead_letters_are_read_in_pages() -> None:
    desk = Desk()
    stamps = []
    for number in range(5):
        stamps.append(desk.send("a", str(number)))
        desk.bury(desk.unread()[0])
    found: list[kv.Stamp] = []
    more = True
    while more:
        after = found[-1] if found else b""
        page = desk.store.read(inbox.dead_range(AT, after=after, count_max=2)).page(0)
        found += [letter.stamp for letter in inbox.decode_dead(page.items)]
        more = page.more
    assert found == stamps


def test_a_scan_may_start_at_a_mark() -> None:
    desk = Desk()
    stamps = [desk.send(str(number), str(number)) for number in range(4)]
    page = desk.store.read(inbox.read_range(AT, start=stamps[2], count_max=10)).page(0)
    assert [each.stamp for each in inbox.decode(page.items)] == stamps[2:]
    empty = desk.store.read(inbox.read_range(AT, start=page.stable, count_max=10)).page(0)
    assert empty.items == []
    fresh = desk.send("late", "late")
    again = desk.store.read(inbox.read_range(AT, start=page.stable, count_max=10)).page(0)
    assert [each.stamp for each in inbox.decode(again.items)] == [fresh]


def test_an_item_handed_over_without_the_inbox_is_seen_all_the_same() -> None:
    desk = Desk()
    item = scenario.event("a")
    stamp = kv.stamp(7, 2**32 - 1)
    batch = kv.Batch()
    inbox.record_seen(batch, AT, item, client_id="order-1", stamp=stamp, time_us=desk.store.time_us)
    desk.store.ok(batch)
    assert desk.unread() == []
    conflict = desk.store.conflict(desk.batch(item, "order-1"))
    assert scenario.first_stamp(conflict, AT, item, client_id="order-1") == stamp
    other = scenario.event("b")
    with pytest.raises(errors.IdReused):
        scenario.first_stamp(desk.store.conflict(desk.batch(other, "order-1")), AT, other, client_id="order-1")
    assert scenario.first_stamp(desk.store.conflict(batch), AT, item, client_id="order-1") == stamp


def forget(desk: Desk, age_us: int, *, step_us: int = 0) -> int:
    """As a janitor does, in a universe that is so old: how many ids it has dropped."""
    before_us = desk.store.time_us - WINDOW_US
    read = desk.store.read(
        inbox.made_range(AT, before_us=before_us, count_max=100), inbox.chosen_range(AT, count_max=100)
    )
    batch = kv.Batch()
    items = [*read.page(0).items, *read.page(1).items]
    gone = inbox.forget(batch, items, now=Age(age_us, step_us), window_us=WINDOW_US)
    if batch.expects:
        desk.store.ok(batch)
    return gone


def known(desk: Desk, *client_ids: bytes | str) -> list[bool]:
    return [desk.store.value(keys.seen_key(AT, each)) is not None for each in client_ids]


def test_made_ids_are_forgotten_a_window_after_they_were_found_too_old() -> None:
    desk = Desk()
    made = []
    for _ in range(3):
        made.append(desk.new_id())
        desk.send("a", made[-1])
        desk.store.env.advance_us(WINDOW_US // 2)
    desk.store.env.advance_us(1_000)
    assert forget(desk, 5) == 0, "two of them are too old to be sent again, and found now"
    assert forget(desk, 5 + WINDOW_US - 1) == 0
    assert known(desk, *made) == [True, True, True]
    assert forget(desk, 5 + WINDOW_US) == 2
    assert known(desk, *made) == [False, False, True]
    assert len(desk.unread()) == 3


def test_a_producer_held_up_for_a_window_still_meets_its_record() -> None:
    """The first attempt was taken, its answer was lost, and the repeat comes very late: it is still one item."""
    desk = Desk()
    item = scenario.event("a")
    made = desk.new_id()
    stamp = desk.send("a", made)
    desk.store.env.advance_us(WINDOW_US)
    late = desk.batch(item, made)
    desk.store.env.advance_us(WINDOW_US)
    forget(desk, 1 + WINDOW_US)
    forget(desk, 1 + 2 * WINDOW_US - 1)
    assert scenario.first_stamp(desk.store.conflict(late), AT, item, client_id=made) == stamp
    with pytest.raises(errors.DedupeExpired):
        desk.batch(item, made)


def test_chosen_ids_are_forgotten_a_window_after_they_were_found() -> None:
    desk = Desk()
    desk.send("a", "a")
    assert forget(desk, 1) == 0
    desk.send("b", "b" * 100)
    stamp = desk.send("c", "c")
    assert forget(desk, 1 + WINDOW_US // 2) == 0
    assert forget(desk, 1 + WINDOW_US - 1) == 0
    assert forget(desk, 1 + WINDOW_US, step_us=1) == 0, "so much may have been counted before it was found"
    assert forget(desk, 1 + WINDOW_US) == 1
    assert known(desk, "a", "b" * 100, "c") == [False, True, True]
    again = desk.batch(scenario.event("a"), "a")
    desk.store.ok(again)
    item = scenario.event("c")
    assert scenario.first_stamp(desk.store.conflict(desk.batch(item, "c")), AT, item, client_id="c") == stamp


@pytest.mark.parametrize("hours", [26, 24 * 365 * 100, -26, -24 * 365 * 30])
def test_no_clock_makes_an_id_old(hours: int) -> None:
    """Whenever it is that wrong: when an id was taken, when it was found, or when it is looked at again."""
    desk = Desk()
    made = desk.new_id()
    desk.send("a", "before")
    desk.send("a", made)
    desk.store.env.jump_wall_us(hours * 3_600_000_000)
    desk.send("a", "meanwhile")
    assert forget(desk, 1) == 0
    assert forget(desk, WINDOW_US) == 0
    desk.store.env.jump_wall_us(-hours * 3_600_000_000)
    assert forget(desk, WINDOW_US) == 0
    assert known(desk, "before", "meanwhile", made) == [True] * 3
    assert forget(desk, 1 + WINDOW_US) >= 2
    assert known(desk, "before", "meanwhile") == [False] * 2, "nor does one keep it for ever"


def test_a_record_made_anew_is_not_forgotten() -> None:
    desk = Desk()
    desk.send("a", "a")
    forget(desk, 1)
    items = desk.store.read(inbox.chosen_range(AT, count_max=10)).page(0).items
    batches = [kv.Batch(), kv.Batch()]
    for batch in batches:
        assert inbox.forget(batch, items, now=Age(1 + WINDOW_US), window_us=WINDOW_US) == 1
    desk.store.ok(batches[0])
    desk.send("a", "a")
    desk.store.conflict(batches[1])


def test_chosen_ids_are_read_in_pages() -> None:
    desk = Desk()
    for number in range(5):
        desk.send("a", f"{number}" * (70 if number % 2 else 1))
    found: list[bytes] = []
    more = True
    while more:
        start = found[-1] + b"\x00" if found else b""
        page = desk.store.read(inbox.chosen_range(AT, start=start, count_max=2)).page(0)
        found += [key for key, _ in page.items]
        more = page.more
    assert len({*found}) == len(found) == 5


def test_damage_is_noticed() -> None:
    desk = Desk()
    desk.send("a", "1")
    seen = desk.store.value(keys.seen_key(AT, "1"))
    assert seen is not None
    for bad in (scenario.flipped(seen, at=7), seen[:-13], b"", b"garbage"):
        with pytest.raises(errors.DecodeError):
            inbox.seen_stamp(bad, scenario.event("a"), client_id="1")
        with pytest.raises(errors.DecodeError):
            inbox.forget(kv.Batch(), [(b"key", bad)], now=Age(), window_us=0)
    letter = desk.bury(desk.unread()[0])
    key = keys.dead_key(AT, letter.stamp)
    for row in [(key, scenario.flipped(letter.raw)), (key, seen), (b"short", letter.raw)]:
        with pytest.raises(errors.DecodeError):
            inbox.decode_dead([row])
    with pytest.raises(errors.DecodeError, match="not a stamped key"):
        inbox.decode([(b"short", b"")])


def test_every_kind_of_item_comes_back() -> None:
    desk = Desk()
    items: list[model.Item] = [
        model.InboxEvent("e", payload.EMPTY),
        model.EffectReceipt(bytes(16), model.ReceiptStatus.OK, payload.EMPTY, 1),
        model.TimerFired(bytes(16), 7),
        model.Message(bytes(16), bytes(16), bytes(16), 1, model.MessageMode.TYPED, "n", payload.EMPTY),
        model.Control("c", payload.EMPTY),
    ]
    for number, item in enumerate(items):
        desk.store.ok(desk.batch(item, str(number)))
    assert desk.store.items(AT) == items
    for unread in desk.unread():
        assert structs.decode(model.Item, frame.unwrap(16, unread.raw)) == unread.item  # type: ignore[arg-type]


@pytest.mark.parametrize("name", engines.NAMES)
async def test_of_many_producers_with_one_id_one_is_taken(name: str, tmp_path: Path) -> None:
    env = envs.FixedEnv()
    async with engines.opened(name, tmp_path, env) as engine:
        world = await scenario.create_world(engine, env)
        made = [ids.check_id(envs.new_id(env), "an id") for _ in range(4)]

        async def produce(client_id: bytes) -> kv.Stamp | None:
            batch = kv.Batch()
            worlds.expect_open(batch, world)
            item = scenario.event(client_id.hex())
            inbox.enqueue(batch, AT, item, client_id=client_id, time_us=env.wall_us(), window_us=WINDOW_US)
            [outcome] = await transact.commit(engine, env, batch)
            if isinstance(outcome, kv.Ok):
                return outcome.stamps[0]
            return scenario.first_stamp(outcome, AT, item, client_id=client_id)

        stamps = await asyncio.gather(*(produce(made[number % 4]) for number in range(16)))
        for number in range(4):
            assert len({*stamps[number::4]}) == 1
        page = (await engine.read(inbox.read_range(AT, count_max=100))).page(0)
        unread = inbox.decode(page.items)
        assert {each.stamp for each in unread} == {*stamps}
        assert sorted(each.stamp for each in unread) == [each.stamp for each in unread]
        assert all(each.stamp < page.stable for each in unread)


@pytest.mark.parametrize(
    ("stamps", "stable", "mark"),
    [
        ((), 7, 7),  # empty: all that may still appear
        ((5, 6), 7, 5),  # unread items stay in sight
        ((7, 9), 7, 7),
        ((8, 9), 7, 7),  # something may still appear before the first of them
    ],
)
def test_the_next_scan_starts_at_what_is_unread_or_may_still_appear(
    stamps: tuple[int, ...], stable: int, mark: int
) -> None:
    items = [(keys.item_key(AT, kv.stamp(version, 3)), b"") for version in stamps]
    expected = kv.stamp(mark, 3) if mark in stamps and mark < stable else kv.stamp(mark, 0)
    assert inbox.next_mark(kv.Page(items, more=False, stable=kv.stamp(stable, 0))) == expected
