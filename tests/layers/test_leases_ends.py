"""Leases that others end: revoked by an operator, released for the dead; and finding the workers that are there."""

from __future__ import annotations

import pytest

from tests.layers import scenario, test_leases
from tests.layers.scenario import Store
from tests.layers.test_leases import AT, TTL_US, acquire, held_by, look, releasing, sign, writing
from worldline.base import errors
from worldline.keys import leases as keys
from worldline.layers import leases
from worldline.model import ids
from worldline.model import leases as lease
from worldline.store import kv


def revoking(store: Store, number: int) -> kv.Batch:
    batch = kv.Batch()
    leases.revoke(batch, look(store)[0], token=scenario.token(number))
    return batch


@pytest.mark.parametrize("is_held", [False, True])
def test_revoking_fences_the_holder_at_once(is_held: bool) -> None:
    store = test_leases.a_store()
    me = sign(store, 1, 1)
    held = acquire(store, me)
    if not is_held:
        store.ok(releasing(held))
    store.ok(revoking(store, 1))
    state, _ = look(store)
    assert (state.epoch, state.holder) == (lease.Epoch(2, scenario.token(1)), None)
    assert held_by(store, 1) == []
    assert leases.fenced(store.conflict(writing(held, 1)), held)
    store.conflict(releasing(held))
    assert acquire(store, me).epoch == 3


def test_revoking_is_done_by_one_and_not_after_a_change() -> None:
    store = test_leases.a_store()
    me = sign(store, 1, 1)
    held = acquire(store, me)
    one, two, three = revoking(store, 1), revoking(store, 2), revoking(store, 3)
    store.ok(releasing(held))
    store.conflict(one)
    newer = acquire(store, me)
    store.conflict(two)
    store.ok(revoking(store, 4))
    store.conflict(three)
    assert leases.fenced(store.conflict(writing(newer, 1)), newer)


@pytest.mark.parametrize("token", [b"", b"t" * 15])
def test_token_of_a_revocation_is_an_id(token: bytes) -> None:
    with pytest.raises(errors.BadInput, match="token"):
        leases.revoke(kv.Batch(), look(test_leases.a_store())[0], token=token)


def releasing_for(store: Store, dead: leases.HeartbeatRecord, *, epoch: int) -> kv.Batch:
    batch = kv.Batch()
    leases.release_for(batch, look(store)[0], dead, epoch=epoch)
    return batch


def test_lease_of_the_dead_is_released_and_its_epoch_stays() -> None:
    store = test_leases.a_store()
    dead = sign(store, 1, 1)
    acquire(store, dead)
    store.env.advance_us(TTL_US)
    one, two = releasing_for(store, dead, epoch=1), releasing_for(store, dead, epoch=1)
    store.ok(one)
    store.conflict(two)
    state, _ = look(store)
    assert (state.epoch.number, state.holder, held_by(store, 1)) == (1, None, [])
    assert acquire(store, sign(store, 2, 2)).epoch == 2


def test_one_who_turns_out_to_live_keeps_its_lease() -> None:
    store = test_leases.a_store()
    dead = sign(store, 1, 1)
    held = acquire(store, dead)
    store.env.advance_us(TTL_US)
    batch = releasing_for(store, dead, epoch=1)
    sign(store, 1, 1)
    store.conflict(batch)
    store.ok(writing(held, 1))
    assert held_by(store, 1) == [(AT, 1)]


def test_lease_that_moved_on_is_not_released_for_its_former_holder() -> None:
    store = test_leases.a_store()
    dead = sign(store, 1, 1)
    acquire(store, dead)
    store.env.advance_us(TTL_US)
    batch = releasing_for(store, dead, epoch=1)
    held = acquire(store, sign(store, 2, 2))
    store.conflict(batch)
    store.ok(writing(held, 1))
    assert held_by(store, 2) == [(AT, 2)]


def test_lease_of_an_earlier_life_is_released_with_the_worker() -> None:
    """Restarted under the same id, died before it took its world back."""
    store = test_leases.a_store()
    acquire(store, sign(store, 1, 1))
    store.env.advance_us(TTL_US)
    dead = sign(store, 1, 2)
    store.env.advance_us(TTL_US)
    store.ok(releasing_for(store, dead, epoch=1))
    assert (look(store)[0].holder, held_by(store, 1)) == (None, [])


def test_held_record_without_a_lease_just_goes() -> None:
    store = test_leases.a_store()
    dead = sign(store, 1, 1)
    held = acquire(store, sign(store, 2, 2))
    store.set(keys.held_key(dead.worker, AT), keys.HELD.pack(keys.HeldRecord(7)))
    store.conflict(releasing_for(store, dead, epoch=6))
    store.ok(releasing_for(store, dead, epoch=7))
    assert (held_by(store, 1), held_by(store, 2)) == ([], [(AT, 1)])
    store.ok(writing(held, 1))


def test_workers_are_found_one_after_the_other_whatever_they_hold() -> None:
    store = test_leases.a_store(worlds=4)
    for number in (3, 1, 2):
        me = sign(store, number, number)
        for world in range(number):
            acquire(store, me, at=scenario.address(world), proven_dead=True)
    second = scenario.worker_id(2)
    life_sign = leases.decode_heartbeat(second, store.read(leases.get_heartbeat(second)).value(0))
    assert life_sign is not None
    goodbye = kv.Batch()
    leases.goodbye(goodbye, life_sign)
    store.ok(goodbye)
    found: list[ids.WorkerId] = []
    while True:
        after = found[-1] if found else None
        seen = leases.decode_worker(store.read(leases.workers_range(after=after)).page(0))
        if seen is None:
            break
        worker, life = seen
        assert life == leases.decode_heartbeat(worker, store.read(leases.get_heartbeat(worker)).value(0))
        found.append(worker)
    # The second said goodbye and left held records behind: it hides nobody.
    assert found == [scenario.worker_id(number) for number in (1, 2, 3)]
