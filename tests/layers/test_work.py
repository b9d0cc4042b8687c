"""Open work: whoever has the token may answer, once; what waits can always be found."""

from __future__ import annotations

import msgspec
import pytest

from tests.layers import desk, scenario
from tests.layers.scenario import SECOND, Store
from worldline.base import errors
from worldline.codec import tuples
from worldline.keys import work as keys
from worldline.layers import work
from worldline.model import ids
from worldline.model import inbox as inbox_model
from worldline.model.inbox import ReceiptStatus
from worldline.model.work import Work, WorkKind, WorkState
from worldline.model.world_records import Status
from worldline.store import kv, paging, transact

AT = scenario.address(0)


def a_store() -> Store:
    store = Store()
    store.create_world(0)
    return store


def receipts(store: Store) -> list[inbox_model.Item | None]:
    desk.check_reachable(store, AT)
    return store.items(AT)


# --- asking and finding ------------------------------------------------------------------------------------


def test_work_is_found_in_its_queue_once_it_is_due() -> None:
    store = a_store()
    opened = desk.open_now(store, AT, 1, desk.wanted(store, due_us=store.time_us + SECOND))
    assert desk.due(store) == []
    upcoming = store.read(work.next_range(scenario.UNIVERSE, queue=desk.QUEUE)).page(0)
    assert [found.pointer.due_us for found in work.decode_due(scenario.UNIVERSE, upcoming)] == [opened.work.due_us]
    store.env.advance_us(SECOND)
    [found] = desk.due(store)
    assert (found.pointer.at, found.pointer.intent) == (AT, opened.intent)
    assert work.matches(found, opened)
    for other in (
        desk.due(store, queue="httq"),
        desk.due(store, queue="htt"),
        desk.due(store, universe=scenario.OTHER_UNIVERSE),
    ):
        assert other == []


def test_others_work_never_hides_ours() -> None:
    """No filter after the limit: a queue's reader meets its own work first, however much there is of others'."""
    store = a_store()
    for number in range(50):
        desk.open_now(store, AT, number, desk.wanted(store, queue="aaa", due_us=1))
        desk.open_now(store, AT, 100 + number, desk.wanted(store, queue="zzz", due_us=1))
    desk.open_now(store, AT, 200, desk.wanted(store))
    [found] = desk.due(store, count_max=1)
    assert found.pointer.intent == desk.intent_id(200)


def test_pointer_with_another_number_in_the_reserved_place_is_garbage() -> None:
    store = a_store()
    opened = desk.open_now(store, AT, 1, desk.wanted(store))
    pointer = keys.due_key(AT, opened.intent, queue=desk.QUEUE, due_us=opened.work.due_us)
    queue = keys.queue_prefix(AT.universe, desk.QUEUE)
    numbered = queue[:-1] + tuples.pack((7,)) + pointer[len(queue) :]
    store.set(numbered, keys.DUES[WorkKind.EFFECT])
    [stray] = desk.garbage(store)
    assert (stray.key, stray.pointer.intent, stray.pointer.due_us) == (numbered, opened.intent, opened.work.due_us)
    batch = kv.Batch()
    work.discard(batch, stray, opened)
    store.ok(batch)
    desk.check_reachable(store, AT)


def test_ties_are_in_order_of_time_world_and_intent() -> None:
    store = Store()
    expected = []
    for age_us in (0, 1, 2):
        for world in (2, 0, 1):
            for intent in (7, 5):
                at, due_us = scenario.address(world), store.time_us - age_us
                number = 100 * age_us + 10 * world + intent  # in the order of neither time nor world
                batch = desk.stepping(number)
                work.open_work(batch, at, desk.intent_id(number), desk.wanted(store, due_us=due_us))
                store.ok(batch)
                expected.append((due_us, at.world, desk.intent_id(number)))
    found = [(each.pointer.due_us, each.pointer.at.world, each.pointer.intent) for each in desk.due(store)]
    assert found == sorted(expected)
    first = [(each.pointer.due_us, each.pointer.at.world, each.pointer.intent) for each in desk.due(store, count_max=7)]
    assert first == sorted(expected)[:7]


def test_open_work_is_listed_page_by_page() -> None:
    store = a_store()
    for number in range(5):
        desk.open_now(store, AT, number, desk.wanted(store))
    listed: list[ids.IntentId] = []
    rest: kv.Range | None = work.open_range(AT, count_max=2)
    while rest is not None:
        page = store.read(rest).page(0)
        listed += [opened.intent for opened in work.decode_open(AT, page)]
        rest = paging.rest_of(rest, page)
    assert listed == [desk.intent_id(number) for number in range(5)]


@pytest.mark.parametrize(
    "change",
    [
        {"state": WorkState.CLAIMED},
        {"state": WorkState.SETTLED},
        {"attempt": 1},
        {"token": b"t" * 16},
        {"kind": WorkKind.MESSAGE},
    ],
)
def test_work_is_asked_for_in_its_first_state(change: dict[str, object]) -> None:
    store = a_store()
    wanted = msgspec.structs.replace(desk.wanted(store), **change)
    with pytest.raises(AssertionError):
        work.open_work(kv.Batch(), AT, desk.intent_id(1), wanted)
    with pytest.raises(AssertionError):
        open_claimed(kv.Batch(), wanted, until_us=store.time_us + 1)


def open_claimed(batch: kv.Batch, wanted: Work, *, until_us: int, token: bytes = scenario.token(1)) -> work.Open:
    return work.open_claimed(
        batch, AT, desk.intent_id(1), wanted, worker=scenario.worker_id(1), token=ids.Token(token), until_us=until_us
    )


def test_work_can_be_born_claimed() -> None:
    store = a_store()
    batch = desk.stepping(1)
    held = open_claimed(batch, desk.wanted(store), until_us=store.time_us + desk.CLAIM_US)
    store.ok(batch)
    assert desk.authority(store, AT, 1) == held
    assert desk.states(store, AT) == [(WorkState.CLAIMED, 1)]
    assert desk.due(store) == []
    desk.check_reachable(store, AT)
    store.ok(desk.settling(held, store.world(AT)))
    assert len(receipts(store)) == 1


def test_work_born_claimed_is_taken_over_like_any_other() -> None:
    store = a_store()
    batch = desk.stepping(1)
    held = open_claimed(batch, desk.wanted(store), until_us=store.time_us + desk.CLAIM_US)
    store.ok(batch)
    store.env.advance_us(desk.CLAIM_US)
    assert [found.pointer.intent for found in desk.due(store)] == [held.intent]
    desk.claim(store, held, 2)
    assert desk.states(store, AT) == [(WorkState.CLAIMED, 2)]
    store.conflict(desk.settling(held, store.world(AT)))


# --- claims ------------------------------------------------------------------------------------------------


def test_claim_takes_the_work_out_of_reach_for_a_while() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    assert desk.authority(store, AT, 1) == held
    assert (held.work.token, held.work.worker) == (scenario.token(1), scenario.worker_id(1))
    assert desk.due(store) == []
    with pytest.raises(errors.Exists, match="not due"):
        desk.claiming(store, held, 2)
    store.env.advance_us(desk.CLAIM_US)
    assert len(desk.due(store)) == 1


@pytest.mark.parametrize("lasts_us", [0, -1])
def test_claim_lasts_some_time(lasts_us: int) -> None:
    store = a_store()
    opened = desk.open_now(store, AT, 1, desk.wanted(store))
    now_us = store.time_us
    with pytest.raises(AssertionError):
        work.claim(
            kv.Batch(),
            opened,
            worker=scenario.worker_id(1),
            token=scenario.token(1),
            now_us=now_us,
            until_us=now_us + lasts_us,
        )


def test_two_claims_in_one_group_have_one_winner() -> None:
    store = a_store()
    opened = desk.open_now(store, AT, 1, desk.wanted(store))
    first, held = desk.claiming(store, opened, 1)
    second, refused = desk.claiming(store, opened, 2)
    outcomes = scenario.now(store.engine.commit(first, second))
    assert isinstance(outcomes[0], kv.Ok)
    assert isinstance(outcomes[1], kv.Conflict)
    assert work.lost(outcomes[1], refused)
    assert desk.authority(store, AT, 1) == held
    desk.check_reachable(store, AT)


def test_conflict_elsewhere_is_not_a_lost_claim() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    world = store.world(AT)
    store.set_status(AT, Status.PAUSED)
    assert not work.lost(store.conflict(desk.settling(held, world)), held)


@pytest.mark.parametrize("token", [b"", b"short", b"t" * 17])
def test_token_is_an_id(token: bytes) -> None:
    store = a_store()
    opened = desk.open_now(store, AT, 1, desk.wanted(store))
    timer = desk.open_now(store, AT, 2, desk.wanted(store, kind=WorkKind.TIMER))
    given = ids.Token(token)
    worker = scenario.worker_id(1)
    with pytest.raises(errors.BadInput, match="token"):
        work.claim(kv.Batch(), opened, worker=worker, token=given, now_us=store.time_us, until_us=store.time_us + 1)
    with pytest.raises(errors.BadInput, match="token"):
        work.fire(kv.Batch(), timer, worker=worker, token=given, now_us=store.time_us)
    with pytest.raises(errors.BadInput, match="token"):
        open_claimed(kv.Batch(), desk.wanted(store), until_us=store.time_us + 1, token=token)


def test_renewing_keeps_a_slow_effect() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    for _ in range(5):
        store.env.advance_us(desk.CLAIM_US - 1)
        assert desk.due(store) == []
        batch = kv.Batch()
        renewed = work.renew(batch, held, until_us=store.time_us + desk.CLAIM_US)
        store.ok(batch)
        store.conflict(desk.settling(held, store.world(AT)))  # the claim as it was before the renewal
        held = renewed
        desk.check_reachable(store, AT)
    assert desk.states(store, AT) == [(WorkState.CLAIMED, 1)]
    store.ok(desk.settling(held, store.world(AT)))
    assert len(receipts(store)) == 1


def test_renewal_follows_a_clock_that_was_set_back_and_always_changes_the_claim() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    for until_us in (held.work.due_us, held.work.due_us - 3_600_000_000):
        batch = kv.Batch()
        renewed = work.renew(batch, held, until_us=until_us)
        store.ok(batch)
        assert renewed.raw != held.raw
        assert abs(renewed.work.due_us - until_us) <= 1
        desk.check_reachable(store, AT)
        held = renewed


def test_expired_claim_is_taken_over_and_everything_late_loses() -> None:
    store = a_store()
    late = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    store.env.advance_us(desk.CLAIM_US)
    [found] = desk.due(store)
    assert work.matches(found, late)
    held = desk.claim(store, late, 2)
    assert held.work.attempt == 2
    moves = [kv.Batch() for _ in range(4)]
    work.renew(moves[0], late, until_us=store.time_us + desk.CLAIM_US)
    work.back_off(moves[1], late, due_us=store.time_us, now_us=store.time_us, error="")
    work.park(moves[2], late, now_us=store.time_us, error="")
    moves[3] = desk.settling(late, store.world(AT))
    for batch in moves:
        assert work.lost(store.conflict(batch), late)
    assert receipts(store) == []
    store.ok(desk.settling(held, store.world(AT)))
    for batch in moves:
        store.conflict(batch)
    [receipt] = receipts(store)
    assert isinstance(receipt, inbox_model.EffectReceipt)
    assert (receipt.intent, receipt.status, receipt.attempt) == (held.intent, ReceiptStatus.OK, 2)


def test_back_off_gives_the_work_back_for_later() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    batch = kv.Batch()
    waiting = work.back_off(batch, held, due_us=store.time_us + SECOND, now_us=store.time_us, error="refused")
    store.ok(batch)
    assert desk.authority(store, AT, 1) == waiting
    assert (waiting.work.state, waiting.work.attempt, waiting.work.error) == (WorkState.WAITING, 1, "refused")
    assert (waiting.work.token, waiting.work.worker) == (b"", b"")
    assert desk.due(store) == []
    desk.check_reachable(store, AT)
    store.env.advance_us(SECOND)
    assert desk.claim(store, waiting, 2).work.attempt == 2


def test_back_off_to_the_very_end_of_the_claim_keeps_the_pointer() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    batch = kv.Batch()
    work.back_off(batch, held, due_us=held.work.due_us, now_us=store.time_us, error="")
    store.ok(batch)
    desk.check_reachable(store, AT)


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        ("x" * 5000, "x" * work.ERROR_CHARACTERS_MAX),
        ("caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600"),
        ("\udcff", "\\udcff"),
    ],
)
def test_any_error_text_can_be_stored(error: str, stored: str) -> None:
    for give_up in (False, True):
        store = a_store()
        held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
        batch = kv.Batch()
        if give_up:
            work.park(batch, held, now_us=store.time_us, error=error)
        else:
            work.back_off(batch, held, due_us=1, now_us=store.time_us, error=error)
        store.ok(batch)
        assert desk.authority(store, AT, 1).work.error == stored


def test_parked_work_waits_for_a_retry_by_hand() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    batch = kv.Batch()
    parked = work.park(batch, held, now_us=store.time_us, error="no such host")
    store.ok(batch)
    assert desk.pointers(store) == []
    assert (parked.work.token, parked.work.worker, parked.work.error) == (b"", b"", "no such host")
    store.env.advance_us(3_600 * SECOND)
    assert desk.due(store) == []
    with pytest.raises(errors.Closed, match="parked, not claimable"):
        desk.claiming(store, parked, 2)
    one, two = kv.Batch(), kv.Batch()
    work.retry(one, parked, due_us=store.time_us)
    work.retry(two, parked, due_us=store.time_us + 1)
    store.ok(one)
    store.conflict(two)
    again = desk.authority(store, AT, 1)
    assert (again.work.state, again.work.attempt) == (WorkState.WAITING, 0)
    desk.check_reachable(store, AT)
    with pytest.raises(errors.Closed, match="waiting, not parked"):
        work.retry(kv.Batch(), again, due_us=1)


def test_retry_at_the_very_time_the_work_was_parked_with() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    parking, retrying = kv.Batch(), kv.Batch()
    parked = work.park(parking, held, now_us=store.time_us, error="gave up")
    store.ok(parking)
    work.retry(retrying, parked, due_us=parked.work.due_us)
    store.ok(retrying)
    desk.check_reachable(store, AT)


def test_answer_and_settlement_are_one() -> None:
    """E6: a world that no longer takes input gets no receipt, and the work stays open for its claimant."""
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    before = store.world(AT)
    store.set_status(AT, Status.ARCHIVED)
    store.conflict(desk.settling(held, before))
    assert (receipts(store), desk.states(store, AT)) == ([], [(WorkState.CLAIMED, 1)])
    with pytest.raises(errors.Closed):
        desk.settling(held, store.world(AT))


@pytest.mark.parametrize("fates", [["lost"], ["applied"], ["late"], ["lost", "applied"], ["applied", "applied"]])
def test_lost_answer_to_a_settlement_leaves_one_receipt(fates: list[str]) -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    engine = scenario.Unsure(store.engine, fates)
    [outcome] = scenario.now(transact.commit(engine, store.env, desk.settling(held, store.world(AT))))
    assert isinstance(outcome, kv.Ok)
    scenario.now(engine.commit(desk.stepping(8)))
    scenario.now(engine.commit(desk.stepping(9)))
    assert len(receipts(store)) == 1


def test_settled_work_stays_until_it_is_closed_and_takes_nothing_more() -> None:
    store = a_store()
    held = desk.claim(store, desk.open_now(store, AT, 1, desk.wanted(store)), 1)
    store.ok(desk.settling(held, store.world(AT)))
    settled = desk.authority(store, AT, 1)
    assert (settled.work.state, settled.work.token) == (WorkState.SETTLED, scenario.token(1))
    assert desk.pointers(store) == []
    with pytest.raises(errors.Closed, match="settled, not claimable"):
        desk.claiming(store, settled, 2)
    with pytest.raises(errors.Closed, match="settled, not claimed"):
        work.settle(kv.Batch(), settled)
    with pytest.raises(errors.Closed, match="settled, not claimed"):
        work.renew(kv.Batch(), settled, until_us=1)
    with pytest.raises(errors.Closed, match="settled, not claimed"):
        work.back_off(kv.Batch(), settled, due_us=1, now_us=store.time_us, error="")
    with pytest.raises(errors.Closed, match="settled, not claimed"):
        work.park(kv.Batch(), settled, now_us=1, error="")
    store.ok(desk.cancelling(AT, 1, None, step=2))
    assert desk.states(store, AT) == []


def test_waiting_work_has_no_claimant() -> None:
    store = a_store()
    waiting = desk.open_now(store, AT, 1, desk.wanted(store))
    with pytest.raises(errors.Closed, match="waiting, not claimed"):
        work.settle(kv.Batch(), waiting)


# --- timers ------------------------------------------------------------------------------------------------


def test_timer_fires_once_and_not_early() -> None:
    store = a_store()
    world = store.world(AT)
    timer = desk.open_now(store, AT, 1, desk.wanted(store, kind=WorkKind.TIMER, due_us=store.time_us + SECOND))
    store.env.advance_us(SECOND - 1)
    with pytest.raises(errors.Exists, match="not due"):
        desk.firing(store, timer, 1, world)
    store.env.advance_us(1)
    one, two = desk.firing(store, timer, 1, world), desk.firing(store, timer, 2, world)
    outcomes = scenario.now(store.engine.commit(one, two))
    assert [type(outcome) for outcome in outcomes] == [kv.Ok, kv.Conflict]
    assert receipts(store) == [inbox_model.TimerFired(timer.intent, timer.work.due_us, "order 7")]
    assert (desk.states(store, AT), desk.pointers(store)) == ([(WorkState.SETTLED, 1)], [])
    with pytest.raises(errors.Closed, match="settled"):
        desk.firing(store, desk.authority(store, AT, 1), 3, world)


@pytest.mark.parametrize("fire_first", [True, False])
def test_fire_and_cancel_race_to_one_outcome(fire_first: bool) -> None:
    store = a_store()
    what = desk.wanted(store, kind=WorkKind.TIMER)
    fire = desk.firing(store, desk.open_now(store, AT, 1, what), 1, store.world(AT))
    cancel = desk.cancelling(AT, 1, what, step=2)
    if fire_first:
        store.ok(fire)
        store.ok(cancel)
        assert len(receipts(store)) == 1
    else:
        store.ok(cancel)
        store.conflict(fire)
        assert receipts(store) == []
    assert (desk.states(store, AT), desk.pointers(store)) == ([], [])


def test_timers_are_never_claimed() -> None:
    store = a_store()
    timer = desk.open_now(store, AT, 1, desk.wanted(store, kind=WorkKind.TIMER))
    with pytest.raises(AssertionError, match="not claimed"):
        desk.claiming(store, timer, 1)
    with pytest.raises(AssertionError, match="not claimed"):
        open_claimed(kv.Batch(), timer.work, until_us=store.time_us + 1)
    effect = desk.open_now(store, AT, 2, desk.wanted(store))
    with pytest.raises(AssertionError):
        desk.firing(store, effect, 1, store.world(AT))
