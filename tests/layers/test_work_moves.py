"""Moves of open work outside an adapter's usual round: by hand, for the dead, in the world's own step."""

from __future__ import annotations

import pytest

from tests.layers import desk, scenario
from tests.layers.scenario import SECOND, Store
from worldline.base import errors
from worldline.layers import work
from worldline.model.work import WorkKind, WorkState
from worldline.store import kv

AT = scenario.address(0)


def a_store() -> Store:
    store = Store()
    store.create_world(0)
    return store


def a_claim(store: Store) -> work.Open:
    return desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)


# --- by hand -----------------------------------------------------------------------------------------------


def setting_aside(store: Store, opened: work.Open) -> tuple[kv.Batch, work.Open]:
    batch = kv.Batch()
    return batch, work.set_aside(batch, opened, now_us=store.time_us, error="by hand")


@pytest.mark.parametrize("expired", [False, True])
def test_work_is_set_aside_unless_somebody_is_at_it(expired: bool) -> None:
    store = a_store()
    opened = desk.open_now(store, AT, 1, desk.wanted(store))
    if expired:
        opened = desk.claim(store, opened, 1)
        store.env.advance_us(desk.CLAIM_US - 1)
        with pytest.raises(errors.Closed, match="claimed, not waiting"):
            setting_aside(store, opened)
        store.env.advance_us(1)
    batch, parked = setting_aside(store, opened)
    other, _ = desk.claiming(store, opened, 2)
    store.ok(batch)
    store.conflict(other)
    assert desk.authority(store, AT, 1) == parked
    assert (parked.work.state, parked.work.token, parked.work.worker) == (WorkState.PARKED, b"", b"")
    assert (parked.work.error, desk.pointers(store)) == ("by hand", [])
    with pytest.raises(errors.Closed, match="parked, not waiting"):
        setting_aside(store, parked)


def test_setting_aside_loses_to_a_claim_and_keeps_the_last_error() -> None:
    store = a_store()
    held = a_claim(store)
    backing = kv.Batch()
    waiting = work.back_off(backing, held, due_us=store.time_us, now_us=store.time_us, error="refused")
    store.ok(backing)
    batch, parked = setting_aside(store, waiting)
    assert parked.work.error == "refused"
    desk.claim(store, waiting, 2)
    store.conflict(batch)
    desk.check_reachable(store, AT)


def test_timer_is_not_parked() -> None:
    store = a_store()
    timer = desk.open_now(store, AT, 1, desk.wanted(store, kind=WorkKind.TIMER))
    with pytest.raises(AssertionError, match="not parked"):
        setting_aside(store, timer)


@pytest.mark.parametrize("kind", [WorkKind.EFFECT, WorkKind.TIMER])
@pytest.mark.parametrize("by_us", [-SECOND, SECOND])
def test_waiting_work_is_moved_to_another_time(kind: WorkKind, by_us: int) -> None:
    store = a_store()
    opened = desk.open_now(store, AT, 1, desk.wanted(store, kind=kind))
    one, two = kv.Batch(), kv.Batch()
    moved = work.move_due(one, opened, now_us=store.time_us, due_us=opened.work.due_us + by_us)
    work.move_due(two, opened, now_us=store.time_us, due_us=opened.work.due_us + 2 * by_us)
    store.ok(one)
    store.conflict(two)
    assert desk.authority(store, AT, 1) == moved
    assert [found.pointer.due_us for found in desk.pointers(store)] == [opened.work.due_us + by_us]
    with pytest.raises(errors.Exists, match="already"):
        work.move_due(kv.Batch(), moved, now_us=store.time_us, due_us=moved.work.due_us)


def test_claim_is_moved_only_once_it_has_run_out() -> None:
    store = a_store()
    held = a_claim(store)
    later_us = store.time_us + 100 * SECOND
    store.env.advance_us(desk.CLAIM_US - 1)
    with pytest.raises(errors.Closed, match="claimed, not waiting"):
        work.move_due(kv.Batch(), held, now_us=store.time_us, due_us=later_us)
    store.env.advance_us(1)
    batch = kv.Batch()
    moved = work.move_due(batch, held, now_us=store.time_us, due_us=later_us)
    store.ok(batch)
    assert (moved.work.state, moved.work.token, moved.work.worker) == (WorkState.WAITING, b"", b"")
    assert [found.pointer.due_us for found in desk.pointers(store)] == [later_us]
    store.conflict(desk.settling(held, store.world(AT)))


def test_settled_work_is_not_moved() -> None:
    store = a_store()
    store.ok(desk.settling(a_claim(store), store.world(AT)))
    settled = desk.authority(store, AT, 1)
    store.env.advance_us(desk.CLAIM_US)
    with pytest.raises(errors.Closed, match="settled, not waiting"):
        work.move_due(kv.Batch(), settled, now_us=store.time_us, due_us=1)


# --- for the dead ------------------------------------------------------------------------------------------


def test_claim_of_the_dead_is_due_again_at_once() -> None:
    store = a_store()
    held = a_claim(store)
    store.env.advance_us(SECOND)
    one, two = kv.Batch(), kv.Batch()
    waiting = work.take_back(one, held, now_us=store.time_us, died=True)
    work.take_back(two, held, now_us=store.time_us + 1, died=True)
    store.ok(one)
    store.conflict(two)
    store.conflict(desk.settling(held, store.world(AT)))  # it was not dead after all: it has lost the claim
    assert (waiting.work.state, waiting.work.token, waiting.work.worker) == (WorkState.WAITING, b"", b"")
    [found] = desk.due(store)
    assert work.matches(found, desk.authority(store, AT, 1))
    assert desk.claim(store, waiting, 2).work.attempt == 2


def test_only_claims_are_taken_back() -> None:
    store = a_store()
    waiting = desk.open_now(store, AT, 1, desk.wanted(store))
    with pytest.raises(errors.Closed, match="waiting, not claimed"):
        work.take_back(kv.Batch(), waiting, now_us=store.time_us, died=True)


@pytest.mark.parametrize("claimed", [False, True])
def test_work_of_a_world_that_is_gone_is_forgotten(claimed: bool) -> None:
    store = a_store()
    opened = a_claim(store) if claimed else desk.open_now(store, AT, 1, desk.wanted(store))
    one, two = kv.Batch(), kv.Batch()
    work.close_gone(one, opened)
    work.close_gone(two, opened)
    store.ok(one)
    store.conflict(two)
    assert (desk.states(store, AT), desk.pointers(store)) == ([], [])


def test_work_that_changed_is_not_forgotten() -> None:
    store = a_store()
    opened = desk.open_now(store, AT, 1, desk.wanted(store))
    batch = kv.Batch()
    work.close_gone(batch, opened)
    desk.claim(store, opened, 1)
    store.conflict(batch)
    desk.check_reachable(store, AT)


# --- in the world's own step -------------------------------------------------------------------------------


def answering(held: work.Open, *, step: int) -> kv.Batch:
    """A step that takes the answer of an adapter in its own process and closes the work."""
    batch = desk.stepping(step)
    work.close(batch, AT, held.intent)
    work.settle_in_step(batch, held)
    return batch


@pytest.mark.parametrize("kind", [WorkKind.EFFECT, WorkKind.TIMER])
def test_answer_taken_in_the_step_leaves_nothing_open(kind: WorkKind) -> None:
    store = a_store()
    held = a_claim(store) if kind is WorkKind.EFFECT else desk.open_now(store, AT, 1, desk.wanted(store, kind=kind))
    store.ok(answering(held, step=2))
    assert (desk.states(store, AT), desk.pointers(store), store.items(AT)) == ([], [], [])


def test_answer_in_the_step_loses_to_whoever_has_the_claim_now() -> None:
    store = a_store()
    late = a_claim(store)
    store.env.advance_us(desk.CLAIM_US)
    held = desk.claim(store, late, 2)
    assert work.lost(store.conflict(answering(late, step=2)), late)
    store.ok(desk.settling(held, store.world(AT)))
    store.conflict(answering(late, step=3))
    assert len(store.items(AT)) == 1
