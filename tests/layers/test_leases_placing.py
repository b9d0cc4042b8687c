"""Where worlds are wanted, and workers that are being emptied: what that means for who may try."""

from __future__ import annotations

import pytest

from tests.layers import scenario, test_leases
from tests.layers.scenario import Store
from tests.layers.test_leases import AT, TTL_US, acquire, assigning, goodbye, held_by, life_of, look, sign
from worldline.base import errors
from worldline.keys import leases as keys
from worldline.layers import leases
from worldline.store import kv


def draining(life: leases.HeartbeatRecord, wanted: bool) -> kv.Batch:
    batch = kv.Batch()
    leases.drain(batch, life, draining=wanted)
    return batch


def drained(store: Store, life: leases.HeartbeatRecord, wanted: bool = True) -> leases.HeartbeatRecord:
    store.ok(draining(life, wanted))
    found = life_of(store, 1)
    assert found is not None
    return found


# --- Emptying a worker -----------------------------------------------------------------------------------------


def test_draining_changes_nothing_else() -> None:
    store = test_leases.a_store()
    before = sign(store, 1, 1)
    after = drained(store, before)
    assert (after.sign.draining, after.sign.beat) == (True, before.sign.beat + 1)
    assert after.sign.heartbeat_us == before.sign.heartbeat_us, "it lives no longer by it"
    assert (after.alive(store.time_us), after.stands(store.time_us)) == (True, False)
    back = drained(store, after, wanted=False)
    assert back.stands(store.time_us)
    assert not back.stands(store.time_us + TTL_US)


def test_draining_expects_the_life_sign_as_it_was_read() -> None:
    store = test_leases.a_store()
    before = sign(store, 1, 1)
    late = draining(before, wanted=True)
    sign(store, 1, 1)
    store.conflict(late)


def test_a_worker_that_is_emptied_gets_nothing() -> None:
    store = test_leases.a_store()
    me = drained(store, sign(store, 1, 1))
    with pytest.raises(errors.Exists, match="which is draining"):
        acquire(store, me)


# --- Assignments -----------------------------------------------------------------------------------------------


def test_an_assignment_says_nothing_if_its_worker_does_not_stand() -> None:
    store = test_leases.a_store()
    me = sign(store, 1, 1)
    store.ok(assigning(store, 2))
    state, _ = look(store)
    batch = kv.Batch()
    with pytest.raises(errors.Exists, match="assigned to worker"):
        leases.acquire(batch, state, me=me, holder_heartbeat=None, now_us=store.time_us)
    leases.acquire(batch, state, me=me, holder_heartbeat=None, now_us=store.time_us, assignment_void=True)
    store.ok(batch)
    assert held_by(store, 1) == [(AT, 1)]


def test_an_assignment_read_by_itself() -> None:
    store = test_leases.a_store()
    assert leases.assignee(store.read(leases.get_assignment(AT)).value(0)) is None
    store.ok(assigning(store, 2))
    assert leases.assignee(store.read(leases.get_assignment(AT)).value(0)) == scenario.worker_id(2)


def test_one_that_has_lost_its_memory_may_take_its_own_again() -> None:
    """Wherever the world is wanted: as long as it has the lease, nobody else may try."""
    store = test_leases.a_store()
    me = sign(store, 1, 1)
    first = acquire(store, me)
    store.ok(assigning(store, 2))
    assert acquire(store, drained(store, me)).epoch == first.epoch + 1


def test_the_lease_of_an_incarnation() -> None:
    store = test_leases.a_store()
    me = sign(store, 1, 1)
    mine, other = test_leases.incarnation(1), test_leases.incarnation(2)
    assert leases.lease_of(look(store)[0], me.worker, mine) is None
    held = acquire(store, me)
    assert leases.lease_of(look(store)[0], me.worker, mine) == held
    assert leases.lease_of(look(store)[0], me.worker, other) is None
    assert leases.lease_of(look(store)[0], scenario.worker_id(2), mine) is None


# --- Records that nobody owns ----------------------------------------------------------------------------------


def forgetting(store: Store, life: leases.HeartbeatRecord, *, epoch: int) -> kv.Batch | None:
    batch = kv.Batch()
    return batch if leases.forget_held(batch, look(store)[0], life.worker, epoch=epoch) else None


def test_what_is_held_is_not_forgotten() -> None:
    store = test_leases.a_store()
    me = sign(store, 1, 1)
    acquire(store, me)
    goodbye(store, me)
    assert forgetting(store, me, epoch=1) is None


def test_a_record_of_a_world_that_moved_on_goes() -> None:
    store = test_leases.a_store()
    gone, other = sign(store, 1, 1), sign(store, 2, 2)
    acquire(store, other)
    key = keys.held_key(gone.worker, AT)
    store.ok(scenario.replaced(key, None, keys.HELD.pack(keys.HeldRecord(7))))
    late = forgetting(store, gone, epoch=6)
    assert late is not None
    store.conflict(late)
    now = forgetting(store, gone, epoch=7)
    assert now is not None
    store.ok(now)
    assert (held_by(store, 1), held_by(store, 2)) == ([], [(AT, 1)])
    store.conflict(now)
