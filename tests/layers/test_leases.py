"""Leases: one owner for each epoch, whatever clocks, pauses, restarts and lost answers do."""

from __future__ import annotations

import itertools

import pytest

from tests.layers import scenario
from tests.layers.scenario import SECOND, Store
from worldline.base import errors
from worldline.keys import leases as keys
from worldline.layers import leases
from worldline.model import ids
from worldline.model import leases as lease
from worldline.store import kv, paging, transact

TTL_US = 15 * SECOND
AT = scenario.address(0)


def incarnation(number: int) -> ids.Incarnation:
    return ids.Incarnation(scenario.ident("life", number))


def beat(
    store: Store, worker: int, life: int, before: leases.HeartbeatRecord | None, *, proven_dead: bool = False
) -> kv.Batch:
    batch = kv.Batch()
    leases.heartbeat(
        batch,
        scenario.worker_id(worker),
        last=before,
        incarnation=incarnation(life),
        now_us=store.time_us,
        ttl_us=TTL_US,
        capacity=8,
        labels={"zone": "a"},
        proven_dead=proven_dead,
    )
    return batch


def life_of(store: Store, worker: int) -> leases.HeartbeatRecord | None:
    of = scenario.worker_id(worker)
    return leases.decode_heartbeat(of, store.read(leases.get_heartbeat(of)).value(0))


def sign(store: Store, worker: int, life: int) -> leases.HeartbeatRecord:
    """The next heartbeat of this process, committed."""
    store.ok(beat(store, worker, life, life_of(store, worker)))
    written = life_of(store, worker)
    assert written is not None
    return written


def look(store: Store, at: ids.Address = AT) -> tuple[leases.LeaseState, leases.HeartbeatRecord | None]:
    read = store.read(*leases.reads(at))
    state = leases.decode(at, read.value(0), read.value(1), read.value(2))
    if state.holder is None:
        return state, None
    holder = ids.WorkerId(state.holder.worker)
    return state, leases.decode_heartbeat(holder, store.read(leases.get_heartbeat(holder)).value(0))


def acquiring(
    store: Store, me: leases.HeartbeatRecord, *, at: ids.Address = AT, proven_dead: bool = False
) -> tuple[kv.Batch, leases.Lease]:
    state, holder_heartbeat = look(store, at)
    batch = kv.Batch()
    held = leases.acquire(
        batch, state, me=me, holder_heartbeat=holder_heartbeat, now_us=store.time_us, proven_dead=proven_dead
    )
    return batch, held


def acquire(
    store: Store, me: leases.HeartbeatRecord, *, at: ids.Address = AT, proven_dead: bool = False
) -> leases.Lease:
    batch, held = acquiring(store, me, at=at, proven_dead=proven_dead)
    store.ok(batch)
    return held


def writing(held: leases.Lease, number: int) -> kv.Batch:
    """A write of the holder, like any: fenced, with a guard of its own."""
    batch = scenario.replaced(b"\x50write" + number.to_bytes(4, "big"), None, b"")
    leases.fence(batch, held)
    return batch


def releasing(held: leases.Lease) -> kv.Batch:
    batch = kv.Batch()
    leases.release(batch, held)
    return batch


def goodbye(store: Store, life: leases.HeartbeatRecord) -> None:
    batch = kv.Batch()
    leases.goodbye(batch, life)
    store.ok(batch)


def assigning(store: Store, worker: int | None) -> kv.Batch:
    batch = kv.Batch()
    state, _ = look(store)
    if worker is None:
        leases.unassign(batch, state)
    else:
        leases.assign(batch, state, scenario.worker_id(worker), priority=1, reason="test")
    return batch


def held_by(store: Store, worker: int) -> list[tuple[ids.Address, int]]:
    of = scenario.worker_id(worker)
    return leases.decode_held(of, store.read(leases.held_range(of, count_max=100)).page(0))


def a_store(worlds: int = 1) -> Store:
    store = Store()
    for number in range(worlds):
        store.create_world(number)
    return store


def test_epoch_rises_with_every_acquire_and_survives_release() -> None:
    store = a_store()
    first, second = sign(store, 1, 1), sign(store, 2, 2)
    epochs = []
    for me in (first, first, second, first):
        held = acquire(store, me)
        epochs.append(held.epoch)
        assert look(store)[0].epoch == lease.Epoch(held.epoch, me.sign.incarnation)
        if me is not first or len(epochs) == 2:
            store.ok(releasing(held))
            assert look(store)[0].holder is None
    assert epochs == [1, 2, 3, 4]


def test_world_that_does_not_exist_has_no_lease() -> None:
    with pytest.raises(errors.NotFound, match="no world"):
        look(Store())


def test_holder_that_does_not_belong_to_the_epoch_is_corrupt() -> None:
    store = a_store()
    acquire(store, sign(store, 1, 1))
    store.set(keys.epoch_key(AT), keys.EPOCH.pack(lease.Epoch(7, b"")))
    with pytest.raises(errors.DecodeError, match="epoch 1, the world 7"):
        look(store)


@pytest.mark.parametrize(("age_us", "taken"), [(0, False), (TTL_US - 1, False), (TTL_US, True), (3 * TTL_US, True)])
def test_lease_of_another_may_be_taken_once_its_heartbeat_has_run_out(age_us: int, taken: bool) -> None:
    store = a_store()
    held = acquire(store, sign(store, 1, 1))
    store.env.advance_us(age_us)
    other = sign(store, 2, 2)
    if not taken:
        with pytest.raises(errors.Exists, match="held by worker"):
            acquire(store, other)
        store.ok(writing(held, 1))
        return
    assert acquire(store, other).epoch == 2
    assert leases.fenced(store.conflict(writing(held, 1)), held)
    assert (held_by(store, 1), held_by(store, 2)) == ([], [(AT, 2)])


def test_heartbeat_renews_every_lease_of_the_worker() -> None:
    store = a_store(worlds=3)
    me = sign(store, 1, 1)
    for number in range(3):
        acquire(store, me, at=scenario.address(number))
    assert [epoch for _, epoch in held_by(store, 1)] == [1, 1, 1]
    store.env.advance_us(TTL_US - 1)
    sign(store, 1, 1)
    store.env.advance_us(TTL_US - 1)
    other = sign(store, 2, 2)
    for number in range(3):
        with pytest.raises(errors.Exists):
            acquire(store, other, at=scenario.address(number))


def test_held_worlds_are_listed_page_by_page() -> None:
    store = a_store(worlds=5)
    me = sign(store, 1, 1)
    for number in range(5):
        acquire(store, me, at=scenario.address(number))
    listed: list[ids.Address] = []
    rest: kv.Range | None = leases.held_range(me.worker, count_max=2)
    while rest is not None:
        page = store.read(rest).page(0)
        listed += [at for at, _ in leases.decode_held(me.worker, page)]
        rest = paging.rest_of(rest, page)
    assert listed == [scenario.address(number) for number in range(5)]


def test_heartbeat_between_read_and_acquire_keeps_the_lease() -> None:
    store = a_store()
    held = acquire(store, sign(store, 1, 1))
    store.env.advance_us(TTL_US)
    batch, _ = acquiring(store, sign(store, 2, 2))
    sign(store, 1, 1)
    store.conflict(batch)
    store.ok(writing(held, 1))


def test_acquire_between_read_and_acquire_wins() -> None:
    store = a_store()
    racers = [acquiring(store, sign(store, number, number)) for number in (1, 2)]
    store.ok(racers[1][0])
    assert leases.fenced(store.conflict(racers[0][0]), racers[0][1])
    assert look(store)[0].epoch == lease.Epoch(1, incarnation(2))


def test_release_between_read_and_acquire_means_to_look_again() -> None:
    store = a_store()
    held = acquire(store, sign(store, 1, 1))
    store.env.advance_us(TTL_US)
    other = sign(store, 2, 2)
    batch, _ = acquiring(store, other)
    store.ok(releasing(held))
    store.conflict(batch)
    assert acquire(store, other).epoch == 2


def test_worker_that_said_goodbye_is_succeeded_at_once() -> None:
    store = a_store()
    first = sign(store, 1, 1)
    held = acquire(store, first)
    goodbye(store, first)
    assert acquire(store, sign(store, 2, 2)).epoch == 2
    store.conflict(writing(held, 1))


def test_restarted_worker_takes_back_its_worlds_and_fences_its_zombie() -> None:
    store = a_store(worlds=2)
    zombie = sign(store, 1, 1)
    held = acquire(store, zombie)
    decided_before, _ = acquiring(store, zombie, at=scenario.address(1))
    store.env.advance_us(TTL_US)
    restarted = sign(store, 1, 2)
    again = acquire(store, restarted)
    assert (held.epoch, again.epoch) == (1, 2)
    assert leases.fenced(store.conflict(writing(held, 1)), held)
    store.conflict(releasing(held))
    store.ok(writing(again, 2))
    # The zombie wakes up: nothing it decided before, and nothing it reads now, gives it a lease or a life sign.
    store.conflict(decided_before)
    with pytest.raises(errors.Exists, match="held by worker"):
        leases.acquire(kv.Batch(), look(store)[0], me=sign_as_of(zombie, store), holder_heartbeat=restarted, now_us=0)
    store.conflict(beat(store, 1, 1, zombie))
    assert held_by(store, 1) == [(AT, 2)]


def sign_as_of(life: leases.HeartbeatRecord, store: Store) -> leases.HeartbeatRecord:
    """What a paused process believes of itself: that its sign is fresh."""
    fresh = lease.Worker(life.sign.incarnation, 9, store.time_us, TTL_US, 8, {})
    return leases.HeartbeatRecord(life.worker, fresh, keys.WORKER.pack(fresh))


def test_worker_whose_own_sign_has_run_out_gets_no_lease() -> None:
    store = a_store()
    me = sign(store, 1, 1)
    batch, _ = acquiring(store, me)
    store.env.advance_us(TTL_US)
    with pytest.raises(errors.Exists, match="whose own heartbeat has expired"):
        acquire(store, me)
    sign(store, 1, 1)
    store.conflict(batch)
    acquire(store, sign(store, 1, 1))


def test_life_sign_of_another_worker_proves_nothing() -> None:
    store = a_store()
    acquire(store, sign(store, 1, 1))
    me = sign(store, 2, 2)
    with pytest.raises(AssertionError, match="another worker"):
        leases.acquire(kv.Batch(), look(store)[0], me=me, holder_heartbeat=me, now_us=store.time_us)


def test_stale_renewal_and_release_change_nothing() -> None:
    store = a_store()
    first = sign(store, 1, 1)
    held = acquire(store, first)
    newer = acquire(store, sign(store, 1, 1))
    assert leases.fenced(store.conflict(releasing(held)), held)
    store.conflict(beat(store, 1, 1, first))
    store.ok(releasing(newer))
    assert held_by(store, 1) == []
    # Released twice, and released after somebody else has it.
    assert not leases.fenced(store.conflict(releasing(newer)), newer)
    acquire(store, sign(store, 2, 2))
    store.conflict(releasing(newer))


def test_a_holder_that_is_fenced_off_stays_the_holder_and_writes_only_after_it_has_acquired_again() -> None:
    store = a_store()
    held = acquire(store, sign(store, 1, 1))
    state, _ = look(store)
    batch = kv.Batch()
    leases.fence_off(batch, state, token=incarnation(9))
    store.ok(batch)
    assert leases.fenced(store.conflict(writing(held, 1)), held)
    assert held_by(store, 1) == [(AT, held.epoch + 1)]
    state, heartbeat = look(store)
    other = sign(store, 2, 2)
    assert leases.may_acquire(state, me=other, holder_heartbeat=heartbeat, now_us=other.sign.heartbeat_us) is not None
    again = acquire(store, sign(store, 1, 1))
    assert again.epoch == held.epoch + 2
    store.ok(writing(again, 1))


def test_conflict_elsewhere_is_not_a_fence() -> None:
    store = a_store()
    held = acquire(store, sign(store, 1, 1))
    store.ok(writing(held, 1))
    assert not leases.fenced(store.conflict(writing(held, 1)), held)


def test_live_duplicate_of_a_worker_id_is_refused() -> None:
    store = a_store()
    first = sign(store, 1, 1)
    store.env.advance_us(TTL_US - 1)
    with pytest.raises(errors.Exists, match="alive in another process"):
        beat(store, 1, 2, first)
    store.env.advance_us(1)
    second = sign(store, 1, 2)
    assert (second.sign.incarnation, second.sign.beat) == (incarnation(2), 1)
    store.conflict(beat(store, 1, 1, first))
    # Two processes that start at the same instant under one id: one lives.
    store = a_store()
    one, two = beat(store, 1, 1, None), beat(store, 1, 2, None)
    store.ok(one)
    store.conflict(two)


def test_proof_of_death_replaces_a_fresh_sign_but_not_a_changed_one() -> None:
    store = a_store()
    first = sign(store, 1, 1)
    batch = beat(store, 1, 2, first, proven_dead=True)
    other = beat(store, 1, 3, first, proven_dead=True)
    store.ok(batch)
    store.conflict(other)


@pytest.mark.parametrize("life", [b"", b"short", b"x" * 17])
def test_incarnation_is_an_id(life: bytes) -> None:
    with pytest.raises(errors.BadInput, match="incarnation"):
        leases.heartbeat(
            kv.Batch(),
            scenario.worker_id(1),
            last=None,
            incarnation=ids.Incarnation(life),
            now_us=1,
            ttl_us=1,
            capacity=1,
            labels={},
        )


def test_life_sign_lasts_some_time() -> None:
    life = ids.Incarnation(scenario.ident("life", 1))
    for ttl_us in (0, -1):
        with pytest.raises(AssertionError):
            leases.heartbeat(
                kv.Batch(),
                scenario.worker_id(1),
                last=None,
                incarnation=life,
                now_us=1,
                ttl_us=ttl_us,
                capacity=1,
                labels={},
            )


def test_goodbye_of_a_process_that_was_replaced_changes_nothing() -> None:
    store = a_store()
    first = sign(store, 1, 1)
    store.env.advance_us(TTL_US)
    sign(store, 1, 2)
    batch = kv.Batch()
    leases.goodbye(batch, first)
    store.conflict(batch)


def test_proof_of_death_gives_the_lease_at_once() -> None:
    store = a_store()
    held = acquire(store, sign(store, 1, 1))
    other = sign(store, 2, 2)
    # The dead process's sign needs not stay as it was: its death is proven, whatever the sign says.
    batch, taken = acquiring(store, other, proven_dead=True)
    sign(store, 1, 1)
    store.ok(batch)
    assert taken.epoch == 2
    store.conflict(writing(held, 1))


def test_assignment_refuses_others_also_with_proof_of_death() -> None:
    store = a_store()
    acquire(store, sign(store, 1, 1))
    store.ok(assigning(store, 3))
    me = sign(store, 2, 2)
    for proven_dead in (False, True):
        with pytest.raises(errors.Exists, match="assigned to worker"):
            acquire(store, me, proven_dead=proven_dead)
    with pytest.raises(errors.Exists, match="held by worker"):
        acquire(store, sign(store, 3, 3))
    assert acquire(store, sign(store, 3, 3), proven_dead=True).epoch == 2
    store.ok(assigning(store, None))
    assert acquire(store, me, proven_dead=True).epoch == 3


def test_assignments_are_changed_by_one_at_a_time() -> None:
    store = a_store()
    one, two = assigning(store, 1), assigning(store, 2)
    store.ok(one)
    store.conflict(two)
    one, two, three = assigning(store, 3), assigning(store, 1), assigning(store, None)
    store.ok(one)
    store.conflict(two)
    store.conflict(three)
    assignment = look(store)[0].assignment
    assert assignment == lease.Assignment(scenario.worker_id(3), 1, "test", 2)
    store.ok(assigning(store, None))
    with pytest.raises(errors.NotFound, match="not assigned"):
        assigning(store, None)


FATES: list[list[str]] = [
    [],
    ["lost"],
    ["applied"],
    ["late"],
    ["lost", "applied"],
    ["applied", "lost"],
    ["late", "lost"],
]


@pytest.mark.parametrize(("mine", "yours"), list(itertools.product(FATES, FATES)))
def test_lost_answers_never_give_an_epoch_two_owners(mine: list[str], yours: list[str]) -> None:
    store = a_store()
    racers = [acquiring(store, sign(store, number, number)) for number in (1, 2)]
    owners = []
    for (batch, held), plan in zip(racers, (mine, yours), strict=True):
        engine = scenario.Unsure(store.engine, plan)
        [outcome] = scenario.now(transact.commit(engine, store.env, batch))
        if isinstance(outcome, kv.Ok):
            owners.append(held)
        # A batch that was late comes through at last: it must not take effect a second time, or after having lost.
        scenario.now(engine.commit(writing(held, 100 + len(owners))))
        scenario.now(engine.commit(writing(held, 200 + len(owners))))
    state, _ = look(store)
    assert [held.epoch for held in owners] == [1]
    assert (state.raw_epoch, state.raw_holder) == (owners[0].raw_epoch, owners[0].raw_holder)


@pytest.mark.parametrize("fate", ["lost", "applied", "late"])
def test_lost_answer_to_a_release_is_resolved(fate: str) -> None:
    store = a_store()
    me = sign(store, 1, 1)
    held = acquire(store, me)
    [outcome] = scenario.now(transact.commit(scenario.Unsure(store.engine, [fate]), store.env, releasing(held)))
    assert isinstance(outcome, kv.Ok)
    assert look(store)[0].holder is None


def test_an_abandoned_acquire_is_not_taken_for_the_next_one() -> None:
    """A caller that gave up waiting and asks again later must end with the holder record it can release."""
    store = a_store()
    me = sign(store, 1, 1)
    abandoned, _ = acquiring(store, me)
    store.env.advance_us(SECOND)
    batch, held = acquiring(store, me)
    store.ok(abandoned)
    [outcome] = scenario.now(transact.commit(scenario.Unsure(store.engine, ["lost"]), store.env, batch))
    assert isinstance(outcome, kv.Conflict)
    held = acquire(store, me)
    store.ok(releasing(held))


def lives(store: Store) -> list[ids.WorkerId]:
    """Every worker that has a life sign, one by one."""
    found: list[ids.WorkerId] = []
    after: ids.WorkerId | None = None
    while True:
        worker = leases.decode_worker(store.read(leases.workers_range(after=after)).page(0))
        if worker is None:
            return found
        after, life = worker
        if life is not None:
            assert life == leases.decode_heartbeat(after, life.raw)
            found.append(after)


def test_workers_are_found_one_by_one_past_what_they_hold() -> None:
    store = a_store(worlds=30)
    assert lives(store) == []
    for number in (3, 1, 2):
        life = sign(store, number, number)
        for world in range((number - 1) * 10, number * 10):
            acquire(store, life, at=scenario.address(world))
    assert lives(store) == sorted(scenario.worker_id(number) for number in (1, 2, 3))
    gone = life_of(store, 2)
    assert gone is not None
    goodbye(store, gone)  # its held records are left over; they are not taken for a worker
    assert lives(store) == sorted(scenario.worker_id(number) for number in (1, 3))


def freeing(store: Store, dead: leases.HeartbeatRecord, epoch: int) -> kv.Batch:
    batch = kv.Batch()
    leases.release_for(batch, look(store)[0], dead, epoch=epoch)
    return batch


def test_a_lease_is_ended_for_a_worker_that_cannot() -> None:
    store = a_store()
    dead, other = sign(store, 1, 1), sign(store, 2, 2)
    held = acquire(store, dead)
    store.ok(freeing(store, dead, held.epoch))
    state, _ = look(store)
    assert (state.holder, state.epoch.number) == (None, held.epoch), "the epoch stays"
    assert held_by(store, 1) == []
    assert acquire(store, other).epoch == held.epoch + 1
    store.conflict(writing(held, 1))


def test_one_who_turns_out_to_live_keeps_its_lease() -> None:
    store = a_store()
    dead = sign(store, 1, 1)
    held = acquire(store, dead)
    batch = freeing(store, dead, held.epoch)
    sign(store, 1, 1)  # a heartbeat in between
    store.conflict(batch)
    store.ok(writing(held, 1))
    assert held_by(store, 1) == [(AT, held.epoch)]


def test_a_lease_that_moved_on_is_not_ended_for_its_old_holder() -> None:
    """What the old holder's records still say is taken away, and nothing else."""
    store = a_store()
    dead = sign(store, 1, 1)
    held = acquire(store, dead)
    before = freeing(store, dead, held.epoch)
    store.env.advance_us(2 * TTL_US)
    other = sign(store, 2, 2)
    taken = acquire(store, other)
    store.conflict(before)
    left = scenario.replaced(
        keys.held_key(scenario.worker_id(1), AT), None, keys.HELD.pack(keys.HeldRecord(held.epoch))
    )
    store.ok(left)
    store.ok(freeing(store, dead, held.epoch))
    assert (held_by(store, 1), held_by(store, 2)) == ([], [(AT, taken.epoch)])
    store.ok(writing(taken, 1))
