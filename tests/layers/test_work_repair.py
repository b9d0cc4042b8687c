"""Pointers that mean nothing, and work whose keys were lost: what finders and the repair may and may not do."""

from __future__ import annotations

import msgspec
import pytest

from tests.layers import desk, scenario
from tests.layers.scenario import SECOND, Store
from worldline.keys import journal as journal_keys
from worldline.keys import work as keys
from worldline.layers import work
from worldline.model.work import Work, WorkKind, WorkState
from worldline.store import kv

AT = scenario.address(0)


def a_store() -> Store:
    store = Store()
    store.create_world(0)
    return store


@pytest.mark.parametrize("kind", [WorkKind.EFFECT, WorkKind.TIMER])
def test_cancelled_work_leaves_no_pointer_if_nobody_moved_it(kind: WorkKind) -> None:
    store = a_store()
    what = desk.wanted(store, kind=kind, due_us=store.time_us + 3_600 * SECOND)
    desk.open_now(store, AT, 1, what)
    store.ok(desk.cancelling(AT, 1, what, step=2))
    assert (desk.states(store, AT), desk.pointers(store)) == ([], [])


def test_pointer_of_cancelled_work_that_was_moved_is_garbage_for_its_finder() -> None:
    store = a_store()
    what = desk.wanted(store)
    held = desk.claim(store, desk.open_now(store, AT, 1, what), 1)
    store.ok(desk.cancelling(AT, 1, what, step=2))
    store.conflict(desk.settling(held, store.world(AT)))
    store.env.advance_us(desk.CLAIM_US)
    [found] = desk.due(store)
    assert not work.matches(found, desk.find(store, AT, held.intent))
    one, two = kv.Batch(), kv.Batch()
    work.discard(one, found, None)
    work.discard(two, found, None)
    store.ok(one)
    store.conflict(two)
    assert desk.pointers(store) == []


def stray(store: Store, opened: work.Open, *, due_us: int) -> work.DuePointer:
    """A pointer that its authority does not know of."""
    key = keys.due_key(AT, opened.intent, queue=opened.work.queue, due_us=due_us)
    store.set(key, keys.DUE.pack(keys.Due(opened.work.kind)))
    [found] = [each for each in desk.pointers(store) if each.key == key]
    return found


def test_garbage_is_kept_if_its_authority_has_come_to_mean_it() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    found = stray(store, held, due_us=store.time_us + 7)
    batch = kv.Batch()
    work.discard(batch, found, held)
    moving = kv.Batch()
    work.back_off(moving, held, due_us=store.time_us + 7, now_us=store.time_us, error="")
    store.ok(moving)
    store.conflict(batch)
    desk.check_reachable(store, AT)


@pytest.mark.parametrize("state", ["parked", "settled", "claimed"])
def test_garbage_with_an_authority_is_discarded(state: str) -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    if state == "parked":
        batch = kv.Batch()
        work.park(batch, held, now_us=store.time_us, error="")
        store.ok(batch)
    elif state == "settled":
        store.ok(desk.settling(held, store.world(AT)))
    authority = desk.authority(store, AT, 1)
    due_us = store.time_us if state == "claimed" else authority.work.due_us
    found = stray(store, held, due_us=due_us)
    assert not work.matches(found, authority)
    batch = kv.Batch()
    work.discard(batch, found, authority)
    store.ok(batch)
    assert found.key not in store.everything()
    desk.check_reachable(store, AT)


def test_pointer_that_matches_is_never_discarded() -> None:
    store = a_store()
    opened = desk.open_now(store, AT, 1, desk.wanted(store))
    other = desk.open_now(store, AT, 2, desk.wanted(store))
    [found] = desk.pointing_to(store, AT, 1)
    with pytest.raises(AssertionError):
        work.discard(kv.Batch(), found, opened)
    with pytest.raises(AssertionError, match="another intent"):
        work.discard(kv.Batch(), found, other)


# --- repair ------------------------------------------------------------------------------------------------


def repairing(store: Store, number: int, what: Work, *, head_raw: bytes | None = None) -> tuple[bool, kv.Batch]:
    batch = kv.Batch()
    changed = work.repair(
        batch,
        AT,
        desk.intent_id(number),
        what,
        head_raw=store.head_raw(AT) if head_raw is None else head_raw,
        now_us=store.time_us,
        authority=desk.find(store, AT, desk.intent_id(number)),
        pointers=desk.pointing_to(store, AT, number),
    )
    return changed, batch


def test_repair_finds_nothing_on_a_healthy_store() -> None:
    store = a_store()
    what = desk.wanted(store)
    opened = [desk.open_now(store, AT, number, what) for number in range(4)]
    held = [desk.claim(store, each, 1) for each in opened[1:]]
    batch = kv.Batch()
    work.park(batch, held[1], now_us=store.time_us, error="")
    store.ok(batch)
    store.ok(desk.settling(held[2], store.world(AT)))
    assert [state for state, _ in desk.states(store, AT)] == [
        WorkState.WAITING,
        WorkState.CLAIMED,
        WorkState.PARKED,
        WorkState.SETTLED,
    ]
    for number in range(4):
        changed, batch = repairing(store, number, what)
        assert not changed
        assert repr(batch) == repr(kv.Batch())


@pytest.mark.parametrize("lost", ["due", "open", "both"])
@pytest.mark.parametrize("kind", [WorkKind.EFFECT, WorkKind.TIMER])
@pytest.mark.parametrize("due_in_us", [-SECOND, 0, SECOND])
def test_repair_restores_what_was_lost(lost: str, kind: WorkKind, due_in_us: int) -> None:
    store = a_store()
    what = desk.wanted(store, kind=kind, due_us=store.time_us + due_in_us)
    opened = desk.open_now(store, AT, 1, what)
    if lost in ("due", "both"):
        store.erase(found.key for found in desk.pointers(store))
    if lost in ("open", "both"):
        store.erase([keys.open_key(AT, opened.intent)])
    changed, batch = repairing(store, 1, what)
    _, again = repairing(store, 1, what)
    assert changed
    store.ok(batch)
    store.conflict(again)
    desk.check_reachable(store, AT)
    restored = desk.authority(store, AT, 1).work
    assert restored.due_us >= what.due_us
    assert msgspec.structs.replace(restored, due_us=what.due_us) == what
    assert not repairing(store, 1, what)[0]
    store.env.advance_us(2 * SECOND)
    assert any(work.matches(found, desk.authority(store, AT, 1)) for found in desk.due(store))


def test_repair_keeps_a_claim_whose_pointer_was_lost() -> None:
    store = a_store()
    what = desk.wanted(store)
    held = desk.claim(store, desk.open_now(store, AT, 1, what), 1)
    store.erase(found.key for found in desk.pointers(store))
    changed, batch = repairing(store, 1, what)
    assert changed
    moving = kv.Batch()
    work.renew(moving, held, until_us=store.time_us + 2 * desk.CLAIM_US)
    store.ok(moving)
    store.conflict(batch)
    assert not repairing(store, 1, what)[0]
    desk.check_reachable(store, AT)


def test_repair_does_not_bring_back_what_the_world_has_closed() -> None:
    store = a_store()
    what = desk.wanted(store)
    head_raw = store.head_raw(AT)
    desk.open_now(store, AT, 1, what)
    store.ok(desk.cancelling(AT, 1, what, step=2))
    store.set(journal_keys.head_key(AT), journal_keys.HEAD.pack(msgspec.structs.replace(store.head(AT), time_us=9)))
    changed, batch = repairing(store, 1, what, head_raw=head_raw)
    assert changed
    store.conflict(batch)
    assert desk.states(store, AT) == []


@pytest.mark.parametrize("kind", [WorkKind.EFFECT, WorkKind.TIMER])
@pytest.mark.parametrize("passes_us", [pytest.param(0, marks=pytest.mark.probe("work.due-time-taken")), SECOND])
def test_finder_of_garbage_cannot_delete_what_was_restored_meanwhile(kind: WorkKind, passes_us: int) -> None:
    """Two batches built from one reading: the finder of an orphaned pointer, and the repair of its authority."""
    store = a_store()
    what = desk.wanted(store, kind=kind)
    opened = desk.open_now(store, AT, 1, what)
    store.erase([keys.open_key(AT, opened.intent)])
    [found] = desk.due(store)
    discarding = kv.Batch()
    work.discard(discarding, found, None)
    store.env.advance_us(passes_us)
    changed, batch = repairing(store, 1, what)
    assert changed
    store.ok(batch)
    store.commit(discarding)
    desk.check_reachable(store, AT)
    assert len(desk.states(store, AT)) == 1


def test_repair_that_missed_a_pointer_loses() -> None:
    store = a_store()
    what = desk.wanted(store)
    opened = desk.open_now(store, AT, 1, what)
    store.erase([keys.open_key(AT, opened.intent)])
    batch = kv.Batch()
    work.repair(batch, AT, opened.intent, what, head_raw=store.head_raw(AT), now_us=store.time_us, authority=None)
    store.conflict(batch)


def test_two_repairs_at_different_times_restore_one_authority() -> None:
    store = a_store()
    what = desk.wanted(store)
    desk.open_now(store, AT, 1, what)
    store.erase([keys.open_key(AT, desk.intent_id(1)), *(found.key for found in desk.pointers(store))])
    _, first = repairing(store, 1, what)
    store.env.advance_us(SECOND)
    _, second = repairing(store, 1, what)
    store.ok(first)
    store.conflict(second)
    desk.check_reachable(store, AT)
    assert len(desk.pointers(store)) == 1


def test_slow_finder_of_garbage_that_somebody_else_deleted_cannot_delete_what_was_restored() -> None:
    """The orphan is gone when the repair looks, so nothing tells it which key to avoid but the time."""
    store = a_store()
    what = desk.wanted(store)
    opened = desk.open_now(store, AT, 1, what)
    store.erase([keys.open_key(AT, opened.intent)])
    [found] = desk.due(store)
    quick, slow = kv.Batch(), kv.Batch()
    work.discard(quick, found, None)
    work.discard(slow, found, None)
    store.ok(quick)
    store.env.advance_us(1)
    changed, batch = repairing(store, 1, what)
    assert changed
    store.ok(batch)
    store.conflict(slow)
    desk.check_reachable(store, AT)
