"""One step, one batch: fenced, guarded, whole, and within the limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.layers import desk, engines, scenario, test_leases
from tests.layers.scenario import Store
from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.keys import journal as journal_keys
from worldline.layers import inbox, journal, leases, ready, step_commit, work, worlds
from worldline.layers.history import history_line, step_reader
from worldline.model import change, ids, payload, state_digest
from worldline.model import inbox as inbox_model
from worldline.model import journal as journal_model
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import EntryDraft, Kind
from worldline.model.rows import Rows
from worldline.model.work import WorkKind, WorkState
from worldline.model.world_records import Status
from worldline.store import kv, transact

AT, PEER = scenario.address(0), scenario.address(1)
CONTINUE = inbox_model.Control("continue", payload.EMPTY)


def a_store() -> Store:
    store = Store()
    store.create_world(0)
    store.create_world(1)
    return store


def hold(store: Store, number: int) -> leases.Lease:
    """The lease of `AT`, taken by a worker of this number."""
    return test_leases.acquire(store, test_leases.sign(store, number, number), at=AT)


def enqueue(store: Store, *texts: str) -> list[inbox.UnreadItem]:
    """Events in the world's inbox, as they are read."""
    batch = scenario.replaced(b"\x51" + ":".join(texts).encode(), None, b"")
    for text in texts:
        inbox.enqueue_once(batch, AT, scenario.event(text))
    store.ok(batch)
    return store.unread(AT)


def sealed(store: Store, *drafts: EntryDraft) -> journal.SealedSteps:
    return journal.seal(store.head(AT), list(drafts), [], state=bytes(limits.DIGEST_BYTES), time_us=store.time_us)


def a_step(store: Store, **parts: Any) -> step_commit.Steps:
    """A step of one entry, that did this besides."""
    return step_commit.Steps(store.head_raw(AT), sealed(store, EntryDraft(Kind.EVENT, b"input")), **parts)


def adding(held: leases.Lease, steps: step_commit.Steps) -> kv.Batch:
    batch = kv.Batch()
    step_commit.add(batch, held, steps)
    return batch


def a_message(number: int) -> inbox_model.Message:
    mode = inbox_model.MessageMode.INBOX
    message_id = scenario.ident("message", number)
    return inbox_model.Message(message_id, AT.universe, AT.world, 1, mode, "letters", payload.EMPTY)


def a_receipt(number: int, status: ReceiptStatus = ReceiptStatus.OK) -> inbox_model.EffectReceipt:
    return inbox_model.EffectReceipt(desk.intent_id(number), status, payload.EMPTY, 1)


def hints(store: Store) -> list[ready.Hint]:
    """The hints that messages have left."""
    page = store.read(ready.read_range(scenario.UNIVERSE, priority=ready.NORMAL, count_max=10)).page(0)
    return ready.decode(scenario.UNIVERSE, page, priority=ready.NORMAL)


def everything(store: Store) -> step_commit.Steps:
    """A step that does all there is to do."""
    first, second = enqueue(store, "one", "two")
    timer = desk.wanted(store, kind=WorkKind.TIMER, due_us=store.time_us + scenario.SECOND)
    claim = step_commit.Claim(scenario.worker_id(1), scenario.token(1), store.time_us + desk.CLAIM_US)
    return a_step(
        store,
        consumed=[first.stamp],
        buried=[step_commit.Buried(second, "no such event", step=1, time_us=store.time_us)],
        seen=[
            step_commit.SeenInput(scenario.event("three"), "id-3", kv.Stamp(b"s" * limits.STAMP_BYTES), store.time_us)
        ],
        opened=[
            step_commit.OpenedWork(desk.intent_id(1), desk.wanted(store)),
            step_commit.OpenedWork(desk.intent_id(2), timer),
            step_commit.OpenedWork(desk.intent_id(3), desk.wanted(store), claim),
        ],
        sent=[
            step_commit.AddressedMessage(a_message(1), store.world(PEER), a_receipt(4)),
            step_commit.AddressedMessage(a_message(2), None, a_receipt(5, ReceiptStatus.ERROR)),
        ],
        unfinished=CONTINUE,
    )


# --- all or nothing -----------------------------------------------------------------------------------------


def test_step_does_everything_at_once() -> None:
    store = a_store()
    held = hold(store, 1)
    batch = kv.Batch()
    [claimed], _ = step_commit.add(batch, held, everything(store))
    store.ok(batch)
    assert store.head(AT).step == 1
    assert (claimed.intent, claimed.work.state) == (desk.intent_id(3), WorkState.CLAIMED)
    assert sorted(desk.states(store, AT)) == [(WorkState.WAITING, 0), (WorkState.WAITING, 0), (WorkState.CLAIMED, 1)]
    desk.check_reachable(store, AT)
    assert store.items(PEER) == [a_message(1)]
    assert store.items(AT) == [a_receipt(4), a_receipt(5, ReceiptStatus.ERROR), CONTINUE]
    assert [hint.at for hint in hints(store)] == [PEER]
    [letter] = inbox.decode_dead(store.read(inbox.dead_range(AT, count_max=10)).page(0).items)
    assert (letter.dead.reason, letter.dead.step) == ("no such event", 1)
    assert store.read(inbox.get_seen(AT, "id-3")).value(0) is not None


def test_fenced_holder_changes_nothing() -> None:
    """Also while the head stands still: the epoch alone must stop the old holder."""
    store = a_store()
    zombie = hold(store, 1)
    steps = everything(store)
    store.env.advance_us(test_leases.TTL_US)
    hold(store, 2)
    conflict = store.conflict(adding(zombie, steps))
    lost = step_commit.lost(conflict, zombie)
    assert isinstance(lost, errors.Fenced)
    assert "moved on from epoch 1" in str(lost)
    assert leases.reads(AT)[0].key in [key for key, _ in conflict.found]


def test_head_that_moved_is_a_conflict_and_names_the_key() -> None:
    store = a_store()
    held = hold(store, 1)
    one, two = adding(held, a_step(store)), adding(held, a_step(store))
    store.ok(one)
    lost = step_commit.lost(store.conflict(two), held)
    assert isinstance(lost, errors.Conflicted)
    assert journal_keys.head_key(AT).hex() in str(lost)


def test_destination_that_changed_takes_the_whole_step_back() -> None:
    store = a_store()
    held = hold(store, 1)
    batch = adding(held, a_step(store, sent=[step_commit.AddressedMessage(a_message(1), store.world(PEER))]))
    store.set_status(PEER, Status.PAUSED)
    lost = step_commit.lost(store.conflict(batch), held)
    assert isinstance(lost, errors.Conflicted)
    assert (store.head(AT).step, store.items(PEER)) == (0, [])
    store.set_status(PEER, Status.ARCHIVED)
    with pytest.raises(errors.Closed):
        adding(held, a_step(store, sent=[step_commit.AddressedMessage(a_message(1), store.world(PEER))]))


@pytest.mark.parametrize("fates", [["lost"], ["applied"], ["late"], ["lost", "applied"], ["applied", "lost"]])
def test_lost_answer_to_a_step_is_resolved(fates: list[str]) -> None:
    store = a_store()
    batch = adding(hold(store, 1), everything(store))
    [outcome] = scenario.now(transact.commit(scenario.Unsure(store.engine, fates), store.env, batch))
    assert isinstance(outcome, kv.Ok)
    assert (store.head(AT).step, len(store.items(PEER)), len(desk.states(store, AT))) == (1, 1, 3)


def test_lost_answer_of_a_fenced_holder_is_not_taken_for_success() -> None:
    store = a_store()
    held = hold(store, 1)
    batch = adding(held, a_step(store))
    store.env.advance_us(test_leases.TTL_US)
    hold(store, 2)
    [outcome] = scenario.now(transact.commit(scenario.Unsure(store.engine, ["lost"]), store.env, batch))
    assert isinstance(outcome, kv.Conflict)
    assert isinstance(step_commit.lost(outcome, held), errors.Fenced)


def test_step_applied_before_its_holder_was_fenced_counts() -> None:
    store = a_store()
    batch = adding(hold(store, 1), a_step(store))
    store.ok(batch)
    store.env.advance_us(test_leases.TTL_US)
    hold(store, 2)
    [outcome] = scenario.now(transact.commit(scenario.Unsure(store.engine, ["lost"]), store.env, batch))
    assert isinstance(outcome, kv.Ok)


# --- the parts ----------------------------------------------------------------------------------------------


def test_dead_letter_names_the_step_that_buried_it() -> None:
    """Several steps in one commit: each letter belongs to its own."""
    store = a_store()
    held = hold(store, 1)
    first, second, third = enqueue(store, "poison", "event", "poison again")
    buried = [step_commit.Buried(each, "no", step=step, time_us=1) for each, step in ((first, 1), (third, 3))]
    store.ok(adding(held, a_step(store, consumed=[second.stamp], buried=buried)))
    page = store.read(inbox.dead_range(AT, count_max=10)).page(0)
    assert [letter.dead.step for letter in inbox.decode_dead(page.items)] == [1, 3]
    assert store.unread(AT) == []


def test_claimed_work_is_handed_over_ready_to_be_answered() -> None:
    store = a_store()
    batch = kv.Batch()
    [claimed], _ = step_commit.add(batch, hold(store, 1), everything(store))
    store.ok(batch)
    store.ok(desk.settling(claimed, store.world(AT)))
    assert sorted(desk.states(store, AT)) == [(WorkState.WAITING, 0), (WorkState.WAITING, 0), (WorkState.SETTLED, 1)]


def test_work_opened_and_closed_by_one_commit_is_a_mistake() -> None:
    store = a_store()
    held = hold(store, 1)
    what, intent = desk.wanted(store), desk.intent_id(1)
    opened = [step_commit.OpenedWork(intent, what)]
    for closing in ({"closed": [intent]}, {"cancelled": [step_commit.CancelledWork(intent, what)]}):
        with pytest.raises(AssertionError, match="never opened"):
            adding(held, a_step(store, opened=opened, **closing))


def test_cancelled_timer_leaves_no_pointer_behind() -> None:
    store = a_store()
    held = hold(store, 1)
    timer = desk.wanted(store, kind=WorkKind.TIMER)
    store.ok(adding(held, a_step(store, opened=[step_commit.OpenedWork(desk.intent_id(1), timer)])))
    assert len(desk.pointers(store)) == 1
    store.ok(adding(held, a_step(store, cancelled=[step_commit.CancelledWork(desk.intent_id(1), timer)])))
    assert (desk.states(store, AT), desk.pointers(store)) == ([], [])


@pytest.mark.parametrize("kind", [WorkKind.EFFECT, WorkKind.TIMER])
def test_answer_that_came_without_the_inbox_settles_its_work(kind: WorkKind) -> None:
    store = a_store()
    held = hold(store, 1)
    opened = desk.open_now(store, AT, 1, desk.wanted(store, kind=kind))
    answered = desk.claim(store, opened, 1) if kind is WorkKind.EFFECT else opened
    store.ok(adding(held, a_step(store, closed=[answered.intent], settled=[answered])))
    assert (desk.states(store, AT), desk.pointers(store)) == ([], [])


def test_step_over_an_answer_whose_claim_was_lost_changes_nothing() -> None:
    store = a_store()
    held = hold(store, 1)
    first = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    store.env.advance_us(desk.CLAIM_US)
    second = desk.claim(store, first, 2)
    steps = a_step(store, closed=[first.intent], settled=[first])
    conflict = store.conflict(adding(held, steps))
    assert work.lost(conflict, first)
    store.ok(adding(held, msgspec.structs.replace(steps, settled=[second])))


def test_work_settled_and_not_closed_is_a_mistake() -> None:
    store = a_store()
    held = hold(store, 1)
    claimed = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    with pytest.raises(AssertionError, match="closed by it"):
        adding(held, a_step(store, settled=[claimed]))


def test_client_id_is_recorded_once_with_the_stamp_of_its_input() -> None:
    store = a_store()
    held = hold(store, 1)
    item, stamp = scenario.event("one"), kv.Stamp(b"s" * limits.STAMP_BYTES)
    seen = [step_commit.SeenInput(item, "id-1", stamp, store.time_us)]
    store.ok(adding(held, a_step(store, seen=seen)))
    raw = store.read(inbox.get_seen(AT, "id-1")).value(0)
    assert raw is not None
    assert inbox.seen_stamp(raw, item, client_id="id-1") == stamp
    conflict = store.conflict(adding(held, a_step(store, seen=seen)))
    assert scenario.first_stamp(conflict, AT, item, client_id="id-1") == stamp


def test_messages_leave_one_hint_behind_them_for_each_other_world() -> None:
    store = a_store()
    held = hold(store, 1)
    sent = [step_commit.AddressedMessage(a_message(number), store.world(PEER)) for number in range(3)]
    sent.insert(1, step_commit.AddressedMessage(a_message(9), store.world(AT)))
    store.ok(adding(held, a_step(store, sent=sent)))
    [hint] = hints(store)
    assert hint.at == PEER
    assert hint.stamp > max(each.stamp for each in store.unread(PEER)), "a scan of hints finds items before them"
    assert (len(store.items(PEER)), len(store.items(AT))) == (3, 1)
    store.ok(adding(held, a_step(store, sent=[step_commit.AddressedMessage(a_message(10), store.world(PEER))])))
    assert [each.at for each in hints(store)] == [PEER, PEER]


def test_hints_go_with_the_step_that_took_their_items() -> None:
    store = a_store()
    batch = scenario.replaced(b"\x51", None, b"")
    inbox.enqueue_once(batch, AT, scenario.event("one"))
    ready.leave(batch, AT, priority=ready.NORMAL)
    store.ok(batch)
    held = hold(store, 1)
    [unread], [hint] = store.unread(AT), hints(store)
    store.ok(adding(held, a_step(store, consumed=[unread.stamp], hints=[hint])))
    assert (store.unread(AT), hints(store)) == ([], [])


def test_own_inbox_has_messages_and_receipts_in_the_order_of_sending() -> None:
    store = a_store()
    held = hold(store, 1)
    own = store.world(AT)
    sent = [step_commit.AddressedMessage(a_message(number), own, a_receipt(number)) for number in (1, 2)]
    sent.insert(1, step_commit.AddressedMessage(a_message(3), None, a_receipt(3, ReceiptStatus.ERROR)))
    store.ok(adding(held, a_step(store, sent=sent, unfinished=CONTINUE)))
    failed = a_receipt(3, ReceiptStatus.ERROR)
    assert store.items(AT) == [a_message(1), a_receipt(1), failed, a_message(2), a_receipt(2), CONTINUE]


# --- limits -------------------------------------------------------------------------------------------------

ENTRIES_MAX = limits.STEP_EVENTS_MAX


def at_the_limits(
    store_us: int, before: journal_model.Head, peer: worlds.WorldRecord, *, effects: bool
) -> step_commit.Steps:
    """A step of as many entries and bytes as one may have, all of them also in queues or in the other's inbox."""
    params = bytes(limits.STEP_BYTES_MAX // limits.STEP_EFFECTS_MAX - 64)
    assert len(params) <= limits.INLINE_BYTES_MAX
    kind = Kind.EFFECT_REQUESTED if effects else Kind.MESSAGE_SENT
    drafts = [EntryDraft(Kind.EVENT, b"input", bytes(limits.STAMP_BYTES))]
    drafts += [EntryDraft(kind, params, correlation="order 7") for _ in range(limits.STEP_EFFECTS_MAX)]
    rest = limits.STEP_BYTES_MAX - sum(len(draft.payload) for draft in drafts)
    count = ENTRIES_MAX - len(drafts)
    drafts += [EntryDraft(Kind.EVENT_RAISED, bytes(rest // count)) for _ in range(count)]
    fill = bytes(limits.INLINE_BYTES_MAX - 64)  # a row of which fits into a change
    changes = [change.put(bytes([index]), change.Row(fill)) for index in range(16)]
    state = state_digest.digests(before.state, changes)[0]
    steps = journal.seal(before, drafts, changes, state=state, time_us=store_us)
    assert limits.STEP_CHANGES_BYTES_MAX * 0.99 < len(steps.changes[0]) <= limits.STEP_CHANGES_BYTES_MAX
    assert len(steps.entries) == ENTRIES_MAX
    carried = payload.inline(params)
    wanted = desk.wanted(Store(), queue="q" * limits.NAME_BYTES_MAX)
    wanted = msgspec.structs.replace(wanted, params=carried, name="n" * limits.NAME_BYTES_MAX)
    numbers = range(limits.STEP_EFFECTS_MAX)
    return step_commit.Steps(
        journal.pack_head(before),
        steps,
        consumed=[bytes(limits.STAMP_BYTES)],
        opened=[step_commit.OpenedWork(desk.intent_id(number), wanted) for number in numbers] if effects else [],
        sent=[]
        if effects
        else [
            step_commit.AddressedMessage(msgspec.structs.replace(a_message(number), payload=carried), peer)
            for number in numbers
        ],
    )


@pytest.mark.parametrize("effects", [True, False], ids=["effects", "messages"])
@pytest.mark.parametrize("name", engines.NAMES)
async def test_step_at_the_limits_fits_one_batch(name: str, effects: bool, tmp_path: Path) -> None:
    env = envs.FixedEnv()
    async with engines.opened(name, tmp_path, env) as engine:
        await scenario.create_world(engine, env, 0)
        peer = await scenario.create_world(engine, env, 1)
        held = await take(engine, env)
        steps = at_the_limits(env.wall_us(), journal_model.GENESIS, peer, effects=effects)
        batch = adding(held, steps)
        [outcome] = await transact.commit(engine, env, batch)
        assert isinstance(outcome, kv.Ok)
        assert await stored(engine) == steps.sealed.entries
        size = sum(len(put.value) for put in batch.puts.values()) + sum(len(each.value) for each in batch.appends)
        assert 2 * limits.STEP_BYTES_MAX < size < limits.BATCH_BYTES_MAX * 3 // 4
        snapshot = await engine.read(
            whole(work.open_range(AT, count_max=1000)), whole(inbox.read_range(PEER, count_max=1000))
        )
        assert len(work.decode_open(AT, snapshot.page(0))) == len(steps.opened)
        assert len(snapshot.page(1).items) == len(steps.sent)
        assert len(steps.opened) + len(steps.sent) == limits.STEP_EFFECTS_MAX


def whole(of: kv.Range) -> kv.Range:
    return kv.Range(of.begin, of.end, count_max=of.count_max, bytes_max=limits.BATCH_BYTES_MAX)


async def take(engine: kv.Engine, env: envs.Env) -> leases.Lease:
    """The lease of a world that has had none yet."""
    batch = kv.Batch()
    life = leases.heartbeat(
        batch,
        scenario.worker_id(1),
        last=None,
        incarnation=ids.Incarnation(scenario.ident("life", 1)),
        now_us=env.wall_us(),
        ttl_us=test_leases.TTL_US,
        capacity=8,
        labels={},
    )
    await engine.commit(batch)
    read = await engine.read(*leases.reads(AT))
    state = leases.decode(AT, read.value(0), read.value(1), read.value(2))
    batch = kv.Batch()
    held = leases.acquire(batch, state, me=life, holder_heartbeat=None, now_us=read.time_us)
    await engine.commit(batch)
    return held


async def stored(engine: kv.Engine) -> list[journal_model.JournalEntry]:
    """The world's whole journal, checked against its head."""
    reader = step_reader.StepReader(history_line.HistoryLine(AT), above=0)
    steps: list[step_reader.StoredStep] = []
    while True:
        read = await engine.read(reader.wanted(), journal.get_head(AT))
        steps += reader.take(read.page(0).items)
        if not read.page(0).more:
            reader.check_end()
            assert step_reader.fold(journal_model.GENESIS, steps, Rows(), {}) == journal.decode_head(read.value(1))
            return [entry for step in steps for entry in step.entries()]
