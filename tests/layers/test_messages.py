"""Messages: sent exactly when the sender's step is, taken once whatever is repeated, never mixed up between senders."""

from __future__ import annotations

import dataclasses

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from tests.layers import scenario
from tests.layers.scenario import Store
from worldline.base import errors, limits
from worldline.layers import inbox, messages, worlds
from worldline.model import ids, payload
from worldline.model.inbox import Message, MessageMode
from worldline.model.world_records import Status
from worldline.store import kv, transact

SENDER = scenario.address(1)
TO = scenario.address(2)


def a_store() -> Store:
    store = Store()
    store.create_world(1)
    store.create_world(2)
    return store


def message(
    number: int = 1, *, text: str = "hello", mode: MessageMode = MessageMode.TYPED, sender: ids.Address = SENDER
) -> Message:
    return Message(
        message=scenario.ident("message", number),
        from_universe=sender.universe,
        from_world=sender.world,
        from_step=7,
        mode=mode,
        name="shop/Paid@1" if mode is MessageMode.TYPED else "orders",
        payload=payload.inline(text.encode()),
        headers={"trace": "abc"},
        correlation="order 7",
    )


def stepping(number: int) -> kv.Batch:
    return scenario.replaced(b"\x50step" + number.to_bytes(4, "big"), None, b"")


def posting(store: Store, sent: Message, *, step: int = 1) -> kv.Batch:
    batch = stepping(step)
    messages.post(batch, store.world(TO), sent)
    return batch


def delivering(store: Store, sent: Message) -> kv.Batch:
    batch = kv.Batch()
    messages.deliver(batch, store.world(TO), sent, time_us=store.time_us, window_us=scenario.WINDOW_US)
    return batch


def already(conflict: kv.Conflict, sent: Message) -> kv.Stamp | None:
    """The stamp under which this message was taken before; None if its id was not what conflicted."""
    failed, found = conflict.at(messages.get_seen(TO, sent).key)
    if not failed:
        return None
    assert found is not None
    return messages.seen_stamp(found, sent)


@pytest.mark.parametrize("mode", list(MessageMode))
@pytest.mark.parametrize("by_step", [True, False])
def test_message_arrives_as_it_was_sent(mode: MessageMode, by_step: bool) -> None:
    store = a_store()
    sent = message(mode=mode)
    ok = store.ok(posting(store, sent) if by_step else delivering(store, sent))
    [unread] = store.unread(TO)
    assert unread.item == sent
    assert (unread.stamp,) == ok.stamps
    assert store.unread(SENDER) == []


def test_message_is_sent_with_the_senders_step_or_not_at_all() -> None:
    store = a_store()
    batch = posting(store, message())
    store.ok(stepping(1))  # the step's guard is gone: somebody else has moved the sender on
    store.conflict(batch)
    assert store.unread(TO) == []


@pytest.mark.parametrize("fates", [["lost"], ["applied"], ["late"], ["applied", "lost"]])
def test_lost_answer_to_a_step_sends_once(fates: list[str]) -> None:
    store = a_store()
    engine = scenario.Unsure(store.engine, fates)
    [outcome] = scenario.now(transact.commit(engine, store.env, posting(store, message())))
    assert isinstance(outcome, kv.Ok)
    for number in (8, 9):
        scenario.now(engine.commit(stepping(number)))
    assert store.items(TO) == [message()]


def test_messages_to_one_destination_are_taken_in_the_order_sent() -> None:
    store = a_store()
    for step in range(3):
        batch = stepping(step)
        for number in (2, 0, 1):
            messages.post(batch, store.world(TO), message(10 * step + number))
        store.ok(batch)
    numbers = [2, 0, 1, 12, 10, 11, 22, 20, 21]
    assert store.items(TO) == [message(number) for number in numbers]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.ACTIVE, None),
        (Status.PAUSED, None),
        (Status.ARCHIVED, "world 'world 2' is archived"),
        (Status.DELETED, "no such world"),
    ],
)
def test_destination_that_takes_no_input_is_the_senders_to_handle(status: Status, reason: str | None) -> None:
    store = a_store()
    before = store.world(TO)
    builds = (posting(store, message()), delivering(store, message()))
    if status is not Status.ACTIVE:
        store.set_status(TO, status)
        for batch in builds:  # it was open when it was read
            store.conflict(batch)
    found = worlds.find(TO, store.read(worlds.get(TO)).value(0))
    assert messages.check_destination(found) == reason
    if status is Status.ARCHIVED:
        closed = store.world(TO)
        with pytest.raises(errors.Closed, match="archived"):
            messages.post(stepping(1), closed, message())
        with pytest.raises(errors.Closed, match="archived"):
            messages.deliver(kv.Batch(), closed, message(), time_us=store.time_us, window_us=scenario.WINDOW_US)
    assert before.meta.status is Status.ACTIVE
    assert store.unread(TO) == []


def test_unknown_destination() -> None:
    assert messages.check_destination(None) == "no such world"


def test_repeated_delivery_is_one_item_and_the_first_stamp() -> None:
    store = a_store()
    first = store.ok(delivering(store, message())).stamps[0]
    store.env.advance_us(5 * scenario.SECOND)
    for _ in range(3):
        conflict = store.conflict(delivering(store, message()))
        assert already(conflict, message()) == first
    assert [unread.stamp for unread in store.unread(TO)] == [first]
    # It is still known after it was consumed.
    batch = stepping(1)
    inbox.consume(batch, TO, [first])
    store.ok(batch)
    assert already(store.conflict(delivering(store, message())), message()) == first
    assert store.unread(TO) == []


@pytest.mark.parametrize("fates", [["lost"], ["applied"], ["late"], ["lost", "applied"], ["applied", "lost"]])
def test_lost_answer_to_a_delivery_is_resolved_with_its_stamp(fates: list[str]) -> None:
    store = a_store()
    engine = scenario.Unsure(store.engine, fates)
    [outcome] = scenario.now(transact.commit(engine, store.env, delivering(store, message())))
    assert isinstance(outcome, kv.Ok)
    for number in (8, 9):
        scenario.now(engine.commit(stepping(number)))
    assert outcome.stamps == tuple(unread.stamp for unread in store.unread(TO))


def test_same_id_with_another_content_is_refused() -> None:
    store = a_store()
    store.ok(delivering(store, message()))
    conflict = store.conflict(delivering(store, message(text="other")))
    with pytest.raises(errors.IdReused):
        already(conflict, message(text="other"))


def test_conflict_of_the_destination_is_not_a_repeat() -> None:
    store = a_store()
    batch = delivering(store, message())
    store.set_status(TO, Status.PAUSED)
    assert already(store.conflict(batch), message()) is None


@pytest.mark.parametrize(
    "other",
    [
        scenario.address(3),
        scenario.address(1, universe=scenario.OTHER_UNIVERSE),
        ids.Address(ids.UniverseId(SENDER.world), ids.WorldId(SENDER.universe)),
    ],
)
def test_senders_never_take_each_others_messages_for_repeats(other: ids.Address) -> None:
    store = a_store()
    store.ok(delivering(store, message()))
    store.ok(delivering(store, message(sender=other)))
    assert store.items(TO) == [message(), message(sender=other)]


def test_message_ids_and_client_ids_do_not_meet() -> None:
    store = a_store()
    for client_id in (message().message.hex(), f"message:{message().message.hex()}", "message"):
        batch = kv.Batch()
        event = scenario.event("by a client")
        inbox.enqueue(batch, TO, event, client_id=client_id, time_us=store.time_us, window_us=scenario.WINDOW_US)
        store.ok(batch)
    store.ok(delivering(store, message()))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"message": b"short"}, "a message id"),
        ({"from_universe": b""}, "the sender's universe id"),
        ({"from_world": b"x" * 17}, "the sender's world id"),
        ({"name": ""}, "a message's schema or inbox"),
        ({"name": " padded "}, "a message's schema or inbox"),
        ({"name": "x" * (limits.NAME_BYTES_MAX + 1)}, "a message's schema or inbox"),
        ({"from_step": 0}, "steps count from 1"),
    ],
)
def test_malformed_messages_are_refused(change: dict[str, object], what: str) -> None:
    store = a_store()
    bad = msgspec.structs.replace(message(), **change)
    with pytest.raises(errors.BadInput, match=what):
        posting(store, bad)
    with pytest.raises(errors.BadInput, match=what):
        delivering(store, bad)


def test_first_step_may_send() -> None:
    store = a_store()
    first = msgspec.structs.replace(message(), from_step=1)
    store.ok(posting(store, first))
    assert store.items(TO) == [first]


@dataclasses.dataclass(frozen=True)
class Send:
    sender: int
    number: int
    text: str
    by_step: bool
    fates: tuple[str, ...]


SENDS = st.builds(
    Send,
    sender=st.sampled_from([1, 3]),
    number=st.integers(0, 2),
    text=st.sampled_from(["a", "b"]),
    by_step=st.sampled_from([False, False, True]),
    fates=st.lists(st.sampled_from(["lost", "applied", "late"]), max_size=2).map(tuple),
)


@hypothesis.given(st.lists(SENDS, max_size=12))
@hypothesis.settings(max_examples=150)
def test_any_mix_of_sends_against_a_model(sends: list[Send]) -> None:
    """F1, F2, F3: the first delivery under (sender, id) counts; what a step posts is there once for every step."""
    store = a_store()
    store.create_world(3)
    engine = scenario.Unsure(store.engine)
    taken: dict[tuple[int, int], tuple[str, kv.Stamp]] = {}
    expected: list[Message] = []
    for step, send in enumerate(sends):
        sent = message(send.number, text=send.text, sender=scenario.address(send.sender))
        engine.plan.extend(send.fates)
        batch = posting(store, sent, step=step) if send.by_step else delivering(store, sent)
        [outcome] = scenario.now(transact.commit(engine, store.env, batch))
        engine.plan.clear()
        known = taken.get((send.sender, send.number))
        if send.by_step:
            assert isinstance(outcome, kv.Ok)
            expected.append(sent)
        elif known is None:
            assert isinstance(outcome, kv.Ok)
            taken[send.sender, send.number] = (send.text, outcome.stamps[0])
            expected.append(sent)
        elif isinstance(outcome, kv.Ok):
            # The repeat lost an answer and then found its own bytes: also that names the first stamp.
            assert send.fates
            assert (send.text, outcome.stamps[0]) == known
        elif known[0] == send.text:
            assert already(outcome, sent) == known[1]
        else:
            with pytest.raises(errors.IdReused):
                already(outcome, sent)
        assert store.items(TO) == expected
