"""One step, one batch: fenced, guarded, whole, and within the limits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.layers import desk, engines, host, scenario
from tests.layers.scenario import SECOND, Store
from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.keys import journal as journal_keys
from worldline.layers import commit, inbox, journal, leases, ready, work, worlds
from worldline.model import ids, payload
from worldline.model import inbox as inbox_model
from worldline.model import journal as journal_model
from worldline.model.journal import Draft, Kind
from worldline.model.work import WorkState
from worldline.model.world import Status
from worldline.store import kv, transact

AT, PEER = scenario.address(0), scenario.address(1)


def a_store() -> Store:
    store = Store()
    store.create_world(0)
    store.create_world(1)
    return store


def started(store: Store, number: int, *, at: ids.Address = AT) -> tuple[host.Worker, leases.Lease]:
    """A worker that holds the world."""
    worker = host.Worker(store.engine, store.env, scenario.worker_id(number))
    scenario.now(worker.beat())
    held = scenario.now(worker.acquire(at))
    assert held is not None
    return worker, held


def enqueue(store: Store, *texts: str) -> None:
    for text in texts:
        scenario.now(host.Producer(store.engine, store.env, [(AT, text)]).turn())


def turn(store: Store, worker: host.Worker) -> bool:
    return scenario.now(worker.turn(AT, PEER))


def sealed(store: Store, drafts: list[Draft], *, before: journal_model.Head | None = None) -> journal.Sealed:
    head = store.head(AT) if before is None else before
    return journal.seal(head, drafts, state=bytes(limits.DIGEST_BYTES), time_us=store.time_us)


def a_step(store: Store) -> commit.Steps:
    return commit.Steps(store.head_raw(AT), sealed(store, [Draft(Kind.EVENT, b"input")]))


def adding(held: leases.Lease, steps: commit.Steps) -> kv.Batch:
    batch = kv.Batch()
    commit.add(batch, held, steps)
    return batch


def a_message(number: int) -> inbox_model.Message:
    mode = inbox_model.MessageMode.INBOX
    message_id = scenario.ident("message", number)
    return inbox_model.Message(message_id, AT.universe, AT.world, 1, mode, "letters", payload.EMPTY)


# --- all or nothing -----------------------------------------------------------------------------------------


def test_step_does_everything_at_once() -> None:
    store = a_store()
    worker, _ = started(store, 1)
    enqueue(store, "effect:1", "timer:2", "send:3")
    assert turn(store, worker)
    assert store.unread(AT) == []
    assert store.head(AT).step == 3
    assert [state for state, _ in desk.states(store, AT)] == [WorkState.WAITING] * 2
    desk.check_reachable(store, AT)
    [message] = store.items(PEER)
    assert isinstance(message, inbox_model.Message)
    assert (message.from_world, message.from_step) == (AT.world, 3)
    assert not turn(store, worker)


def test_fenced_holder_changes_nothing() -> None:
    store = a_store()
    zombie, held = started(store, 1)
    enqueue(store, "effect:1", "timer:2")
    turn(store, zombie)
    store.env.advance_us(host.TTL_US)
    heir, _ = started(store, 2)
    enqueue(store, "cancel:3", "poison:4", "send:5", "claimed:6")
    before = store.everything()
    with pytest.raises(errors.Fenced, match="moved on from epoch 1"):
        turn(store, zombie)
    assert store.everything() == before
    assert AT not in zombie.held
    assert zombie.claimed == []
    while turn(store, heir):
        pass
    store.conflict(adding(held, a_step(store)))
    assert store.head(AT).step == 6


def test_fence_holds_while_the_head_stands_still() -> None:
    """The new holder has not written yet: the epoch alone must stop the old one."""
    store = a_store()
    _, held = started(store, 1)
    step = a_step(store)
    store.env.advance_us(host.TTL_US)
    started(store, 2)
    conflict = store.conflict(adding(held, step))
    lost = commit.lost(conflict, held)
    assert isinstance(lost, errors.Fenced)
    assert [key for key, _ in conflict.found] == [leases.reads(AT)[0].key]


def test_head_that_moved_is_a_conflict_and_names_the_key() -> None:
    store = a_store()
    _, held = started(store, 1)
    one, two = adding(held, a_step(store)), adding(held, a_step(store))
    store.ok(one)
    lost = commit.lost(store.conflict(two), held)
    assert isinstance(lost, errors.Conflicted)
    assert journal_keys.head_key(AT).hex() in str(lost)


def test_destination_that_changed_takes_the_whole_step_back() -> None:
    store = a_store()
    worker, held = started(store, 1)
    destination = store.world(PEER)
    steps = msgspec.structs.replace(a_step(store), sent=[commit.Sent(destination, a_message(1))])
    batch = adding(held, steps)
    store.set_status(PEER, Status.PAUSED)
    lost = commit.lost(store.conflict(batch), held)
    assert isinstance(lost, errors.Conflicted)
    assert (store.head(AT).step, store.items(PEER)) == (0, [])
    store.set_status(PEER, Status.ARCHIVED)
    with pytest.raises(errors.Closed):
        adding(held, msgspec.structs.replace(steps, sent=[commit.Sent(store.world(PEER), a_message(1))]))
    enqueue(store, "send:1")
    assert turn(store, worker)
    assert store.items(PEER) == []


@pytest.mark.parametrize("fates", [["lost"], ["applied"], ["late"], ["lost", "applied"], ["applied", "lost"]])
def test_lost_answer_to_a_step_is_resolved(fates: list[str]) -> None:
    store = a_store()
    worker, _ = started(store, 1)
    enqueue(store, "effect:1", "send:2", "poison:3")
    worker.engine = scenario.Unsure(store.engine, fates)
    assert turn(store, worker)
    assert (store.head(AT).step, len(store.items(PEER)), len(desk.states(store, AT))) == (3, 1, 1)
    scenario.now(host.read_journal(store.engine, AT))


def test_lost_answer_of_a_fenced_holder_is_not_taken_for_success() -> None:
    store = a_store()
    _, held = started(store, 1)
    batch = adding(held, a_step(store))
    store.env.advance_us(host.TTL_US)
    started(store, 2)
    [outcome] = scenario.now(transact.commit(scenario.Unsure(store.engine, ["lost"]), store.env, batch))
    assert isinstance(outcome, kv.Conflict)
    assert isinstance(commit.lost(outcome, held), errors.Fenced)


def test_step_applied_before_its_holder_was_fenced_counts() -> None:
    store = a_store()
    _, held = started(store, 1)
    batch = adding(held, a_step(store))
    store.ok(batch)
    store.env.advance_us(host.TTL_US)
    started(store, 2)
    [outcome] = scenario.now(transact.commit(scenario.Unsure(store.engine, ["lost"]), store.env, batch))
    assert isinstance(outcome, kv.Ok)


# --- the parts ----------------------------------------------------------------------------------------------


def test_dead_letter_names_the_step_that_buried_it() -> None:
    """Several steps in one commit: each letter belongs to its own."""
    store = a_store()
    worker, _ = started(store, 1)
    enqueue(store, "poison:1", "effect:2", "poison:3")
    assert turn(store, worker)
    page = store.read(inbox.dead_range(AT, count_max=10)).page(0)
    assert [letter.dead.step for letter in inbox.decode_dead(page.items)] == [1, 3]
    assert store.head(AT).step == 3


def test_claimed_work_is_handed_over_ready_to_be_answered() -> None:
    store = a_store()
    worker, _ = started(store, 1)
    enqueue(store, "claimed:1", "effect:2")
    turn(store, worker)
    [held] = worker.claimed
    assert sorted(desk.states(store, AT)) == [(WorkState.WAITING, 0), (WorkState.CLAIMED, 1)]
    assert (held.work.token, held.work.worker) == (held.work.token, scenario.worker_id(1))
    scenario.now(host.Adapter(store.engine, store.env, scenario.worker_id(1), []).answer(held))
    assert turn(store, worker)
    assert desk.states(store, AT) == [(WorkState.WAITING, 0)]


def test_work_opened_and_closed_by_one_commit_is_a_mistake() -> None:
    store = a_store()
    _, held = started(store, 1)
    what, intent = desk.wanted(store), desk.intent_id(1)
    opened = [commit.Opened(intent, what)]
    for closing in ({"closed": [intent]}, {"cancelled": [commit.Cancelled(intent, what)]}):
        steps = msgspec.structs.replace(a_step(store), opened=opened, **closing)
        with pytest.raises(AssertionError, match="never opened"):
            adding(held, steps)


def test_cancelled_timer_leaves_no_pointer_behind() -> None:
    store = a_store()
    worker, _ = started(store, 1)
    enqueue(store, "timer:1")
    turn(store, worker)
    assert len(desk.pointers(store)) == 1
    enqueue(store, "cancel:2")
    turn(store, worker)
    assert (desk.states(store, AT), desk.pointers(store)) == ([], [])


def test_message_may_leave_a_hint_for_its_destination() -> None:
    store = a_store()
    _, held = started(store, 1)
    destination = store.world(PEER)
    sent = [commit.Sent(destination, a_message(number), hint_priority=2) for number in range(3)]
    sent.append(commit.Sent(store.world(AT), a_message(9)))
    store.ok(adding(held, msgspec.structs.replace(a_step(store), sent=sent)))
    page = store.read(ready.read_range(scenario.UNIVERSE, priority=2, count_max=10)).page(0)
    assert [hint.at for hint in ready.decode(scenario.UNIVERSE, page, priority=2)] == [PEER] * 3
    assert (len(store.items(PEER)), len(store.items(AT))) == (3, 1)


# --- limits -------------------------------------------------------------------------------------------------

ENTRIES_MAX = limits.STEP_EVENTS_MAX


def at_the_limits(store_us: int, before: journal_model.Head, peer: worlds.World, *, effects: bool) -> commit.Steps:
    """A step of as many entries and bytes as one may have, all of them also in queues or in the other's inbox."""
    params = bytes(limits.STEP_BYTES_MAX // limits.STEP_EFFECTS_MAX - 64)
    assert len(params) <= limits.INLINE_BYTES_MAX
    kind = Kind.INTENT if effects else Kind.MESSAGE_SENT
    drafts = [Draft(Kind.EVENT, b"input", bytes(limits.STAMP_BYTES))]
    drafts += [Draft(kind, params, correlation="order 7") for _ in range(limits.STEP_EFFECTS_MAX)]
    rest = limits.STEP_BYTES_MAX - sum(len(draft.payload) for draft in drafts)
    count = ENTRIES_MAX - len(drafts)
    drafts += [Draft(Kind.EVENT_RAISED, bytes(rest // count)) for _ in range(count)]
    steps = journal.seal(before, drafts, state=bytes(limits.DIGEST_BYTES), time_us=store_us)
    assert len(steps.entries) == ENTRIES_MAX
    carried = payload.inline(params)
    wanted = desk.wanted(Store(), queue="q" * limits.NAME_BYTES_MAX)
    wanted = msgspec.structs.replace(wanted, params=carried, name="n" * limits.NAME_BYTES_MAX)
    numbers = range(limits.STEP_EFFECTS_MAX)
    return commit.Steps(
        journal.pack_head(before),
        steps,
        consumed=[bytes(limits.STAMP_BYTES)],
        opened=[commit.Opened(desk.intent_id(number), wanted) for number in numbers] if effects else [],
        sent=[]
        if effects
        else [commit.Sent(peer, msgspec.structs.replace(a_message(number), payload=carried)) for number in numbers],
    )


@pytest.mark.parametrize("effects", [True, False], ids=["effects", "messages"])
@pytest.mark.parametrize("name", engines.NAMES)
async def test_step_at_the_limits_fits_one_batch(name: str, effects: bool, tmp_path: Path) -> None:
    env = envs.FixedEnv()
    async with engines.opened(name, tmp_path, env) as engine:
        await scenario.create_world(engine, env, 0)
        peer = await scenario.create_world(engine, env, 1)
        worker = host.Worker(engine, env, scenario.worker_id(1))
        await worker.beat()
        held = await worker.acquire(AT)
        assert held is not None
        steps = at_the_limits(env.wall_us(), journal_model.GENESIS, peer, effects=effects)
        batch = adding(held, steps)
        [outcome] = await transact.commit(engine, env, batch)
        assert isinstance(outcome, kv.Ok)
        assert await host.read_journal(engine, AT) == steps.sealed.entries
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


def test_clock_that_stands_back_does_not_turn_the_journals_time() -> None:
    store = a_store()
    worker, _ = started(store, 1)
    enqueue(store, "send:1")
    turn(store, worker)
    first = store.head(AT).time_us
    store.env.jump_wall_us(-3 * SECOND)
    enqueue(store, "send:2")
    turn(store, worker)
    assert (store.head(AT).step, store.head(AT).time_us) == (2, first)
