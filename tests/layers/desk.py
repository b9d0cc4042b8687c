"""Open work in tests: asking for it, finding it, and reading the whole store to see what there is."""

from __future__ import annotations

from tests.layers import scenario
from tests.layers.scenario import Store
from worldline.keys import work as keys
from worldline.layers import inbox, work, worlds
from worldline.model import ids, payload
from worldline.model import inbox as inbox_model
from worldline.model.inbox import ReceiptStatus
from worldline.model.work import Work, WorkKind, WorkState
from worldline.store import kv

QUEUE = "http"
CLAIM_US = 30 * scenario.SECOND


def intent_id(number: int) -> ids.IntentId:
    return ids.IntentId(scenario.ident("intent", number))


def wanted(
    store: Store,
    *,
    kind: WorkKind = WorkKind.EFFECT,
    queue: str = QUEUE,
    due_us: int | None = None,
) -> Work:
    """Work as a step asks for it: due now unless said otherwise."""
    return Work(
        kind=kind,
        state=WorkState.WAITING,
        queue=queue,
        reserved=0,
        name="http.get",
        params=payload.inline(b"params"),
        step=1,
        ordinal=0,
        opened_us=store.time_us,
        due_us=store.time_us if due_us is None else due_us,
        correlation="order 7",
    )


def stepping(number: int) -> kv.Batch:
    """The batch of a world's step, with a guard that is the step's own."""
    return scenario.replaced(b"\x50step" + number.to_bytes(4, "big"), None, b"")


def open_now(store: Store, at: ids.Address, number: int, what: Work) -> work.Open:
    batch = stepping(number)
    work.open_work(batch, at, intent_id(number), what)
    store.ok(batch)
    return authority(store, at, number)


def authority(store: Store, at: ids.Address, number: int) -> work.Open:
    opened = find(store, at, intent_id(number))
    assert opened is not None
    return opened


def find(store: Store, at: ids.Address, intent: ids.IntentId) -> work.Open | None:
    return work.decode(at, intent, store.read(work.get(at, intent)).value(0))


def due(
    store: Store,
    *,
    queue: str = QUEUE,
    count_max: int = 1000,
    universe: ids.UniverseId = scenario.UNIVERSE,
) -> list[work.DuePointer]:
    """What a worker of this queue finds now."""
    wanted_range = work.due_range(universe, queue=queue, now_us=store.time_us, count_max=count_max)
    return work.decode_due(universe, store.read(wanted_range).page(0))


def pointers(store: Store, universe: ids.UniverseId = scenario.UNIVERSE) -> list[work.DuePointer]:
    """Every pointer there is, due or not, of all queues."""
    return work.decode_due(universe, kv.Page(store.under(*keys.due_all(universe)), more=False, stable=kv.ZERO_STAMP))


def pointing_to(store: Store, at: ids.Address, number: int) -> list[work.DuePointer]:
    return [found for found in pointers(store) if (found.pointer.at, found.pointer.intent) == (at, intent_id(number))]


def claim(store: Store, opened: work.Open, number: int) -> work.Open:
    batch, held = claiming(store, opened, number)
    store.ok(batch)
    return held


def claiming(store: Store, opened: work.Open, number: int) -> tuple[kv.Batch, work.Open]:
    batch = kv.Batch()
    held = work.claim(
        batch,
        opened,
        worker=scenario.worker_id(number),
        token=scenario.token(number),
        now_us=store.time_us,
        until_us=store.time_us + CLAIM_US,
    )
    return batch, held


def settling(held: work.Open, world: worlds.WorldRecord) -> kv.Batch:
    """The answer of an adapter: receipt and settlement in one batch."""
    batch = kv.Batch()
    work.settle(batch, held)
    worlds.expect_open(batch, world)
    receipt = inbox_model.EffectReceipt(
        held.intent, ReceiptStatus.OK, payload.inline(held.work.token), held.work.attempt
    )
    inbox.enqueue_once(batch, held.at, receipt)
    return batch


def firing(store: Store, timer: work.Open, number: int, world: worlds.WorldRecord) -> kv.Batch:
    batch = kv.Batch()
    fired = work.fire(
        batch, timer, token=scenario.token(number), worker=scenario.worker_id(number), now_us=store.time_us
    )
    worlds.expect_open(batch, world)
    inbox.enqueue_once(batch, timer.at, fired)
    return batch


def cancelling(at: ids.Address, number: int, what: Work | None, *, step: int) -> kv.Batch:
    batch = stepping(step)
    work.close(batch, at, intent_id(number), opened=what)
    return batch


def states(store: Store, at: ids.Address) -> list[tuple[WorkState, int]]:
    """State and attempt of everything a world has open."""
    opened = work.decode_open(at, store.read(work.open_range(at, count_max=100_000)).page(0))
    return [(each.work.state, each.work.attempt) for each in opened]


def check_reachable(store: Store, at: ids.Address) -> None:
    """Every authority that somebody must still act on has exactly one pointer, and it is the one that matches."""
    opened = work.decode_open(at, store.read(work.open_range(at, count_max=100_000)).page(0))
    authorities = {each.intent: each for each in opened}
    matching: dict[ids.IntentId, int] = dict.fromkeys(authorities, 0)
    for found in pointers(store, at.universe):
        intent = found.pointer.intent
        if found.pointer.at == at and work.matches(found, authorities.get(intent)):
            matching[intent] += 1
    for intent, each in authorities.items():
        assert matching[intent] == (1 if each.work.state in work.CLAIMABLE else 0), (each, matching[intent])


def garbage(store: Store) -> list[work.DuePointer]:
    """Pointers that match nothing."""
    return [
        found
        for found in pointers(store)
        if not work.matches(found, find(store, found.pointer.at, found.pointer.intent))
    ]
