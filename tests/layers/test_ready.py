"""Ready hints: written only where none was seen, cleared only if nothing newer is there."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.layers import scenario
from tests.layers.scenario import Store
from worldline.base import errors
from worldline.keys import ready as keys
from worldline.layers import inbox, ready
from worldline.model import ids
from worldline.store import kv

AT = scenario.address(0)


def producing(store: Store, number: int, *, at: ids.Address = AT, priority: int = 1, seen: bytes | None) -> kv.Batch:
    """An enqueue with its hint, as producers do it."""
    batch = scenario.replaced(b"\x50item" + number.to_bytes(4, "big"), None, b"")
    index = inbox.enqueue_once(batch, at, scenario.event(str(number)))
    ready.mark(batch, at, priority=priority, seen=seen, append=index)
    return batch


def seen(store: Store, *, at: ids.Address = AT, priority: int = 1) -> bytes | None:
    return store.read(ready.get(at, priority=priority)).value(0)


def hints(store: Store, *, count_max: int = 100) -> list[tuple[ids.Address, int, bytes]]:
    page = store.read(ready.read_range(scenario.UNIVERSE, count_max=count_max)).page(0)
    return ready.decode(scenario.UNIVERSE, page)


def clearing(at: ids.Address, priority: int, raw: bytes) -> kv.Batch:
    batch = kv.Batch()
    ready.clear(batch, at, priority=priority, raw=raw)
    return batch


def test_a_step_takes_any_hint_along_but_its_own() -> None:
    store = Store()
    store.ok(producing(store, 1, seen=None))
    for number, left in ((2, False), (3, True)):
        batch = scenario.replaced(b"\x50step" + number.to_bytes(4, "big"), None, b"")
        if left:
            ready.mark(batch, AT, priority=1, seen=None, append=inbox.enqueue_once(batch, AT, scenario.event("mine")))
        assert ready.consume(batch, AT, priority=1) is not left
        store.ok(batch)
        assert (seen(store) is not None) is left


def test_hint_carries_the_stamp_of_its_item() -> None:
    store = Store()
    ok = store.ok(producing(store, 1, seen=None))
    [(at, priority, raw)] = hints(store)
    assert (at, priority) == (AT, 1)
    assert raw.endswith(ok.stamps[0])
    assert raw == seen(store)


def test_hint_is_written_only_if_none_was_seen() -> None:
    store = Store()
    store.ok(producing(store, 1, seen=None))
    first = seen(store)
    batch = producing(store, 2, seen=first)
    assert keys.ready_key(AT, 1) not in batch.puts
    store.ok(batch)
    assert seen(store) == first
    assert len(store.unread(AT)) == 2


def test_two_items_in_one_batch_leave_one_hint() -> None:
    store = Store()
    batch = producing(store, 1, seen=None)
    second = inbox.enqueue_once(batch, AT, scenario.event("second"))
    ready.mark(batch, AT, priority=1, seen=None, append=second)
    ok = store.ok(batch)
    [(_, _, raw)] = hints(store)
    assert raw.endswith(ok.stamps[0])


def test_clearing_keeps_a_newer_hint() -> None:
    store = Store()
    unaware = producing(store, 2, seen=None)  # a second producer that saw none either
    store.ok(producing(store, 1, seen=None))
    [(at, priority, old)] = hints(store)
    store.ok(unaware)
    store.conflict(clearing(at, priority, old))
    [(at, priority, new)] = hints(store)
    assert new != old
    store.ok(clearing(at, priority, new))
    assert hints(store) == []
    store.conflict(clearing(at, priority, new))


def test_hint_written_again_is_another_value() -> None:
    """Cleared and written again: whoever still means to clear the first one must not take the second."""
    store = Store()
    store.ok(producing(store, 1, seen=None))
    [(_, _, first)] = hints(store)
    slow = clearing(AT, 1, first)
    store.ok(clearing(AT, 1, first))
    store.ok(producing(store, 2, seen=None))
    store.conflict(slow)
    assert len(hints(store)) == 1


def test_most_urgent_hints_come_first() -> None:
    store = Store()
    for number, (world, priority) in enumerate([(2, 1), (1, 0), (0, 1), (3, 0), (1, 2)]):
        store.ok(producing(store, number, at=scenario.address(world), priority=priority, seen=None))
    found = [(priority, at) for at, priority, _ in hints(store)]
    expected = [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1)]
    assert found == [(priority, scenario.address(world)) for priority, world in expected]
    assert [(priority, at) for at, priority, _ in hints(store, count_max=2)] == found[:2]
    assert ready.decode(
        scenario.OTHER_UNIVERSE,
        store.read(ready.read_range(scenario.OTHER_UNIVERSE, count_max=100)).page(0),
    ) == []  # fmt: skip


def test_hint_left_by_itself_replaces_none() -> None:
    store = Store()
    stamps = [kv.stamp(7, 0), kv.stamp(8, 0)]
    one, two = kv.Batch(), kv.Batch()
    ready.leave(one, AT, priority=1, stamp=stamps[0])
    ready.leave(two, AT, priority=1, stamp=stamps[1])
    store.ok(one)
    store.conflict(two)
    [(at, priority, raw)] = hints(store)
    assert (at, priority, raw[-12:]) == (AT, 1, stamps[0])
    store.ok(clearing(at, priority, raw))
    store.ok(two)
    store.conflict(clearing(at, priority, raw))


def test_a_hint_taken_away_meanwhile_is_noticed_by_the_producer_that_saw_it() -> None:
    store = Store()
    store.ok(producing(store, 1, seen=None))
    view = seen(store)
    assert view is not None
    late = producing(store, 2, seen=view)
    store.ok(clearing(AT, 1, view))
    store.conflict(late)


def test_a_hint_can_be_written_anew() -> None:
    store = Store()
    store.ok(producing(store, 1, seen=None))
    view = seen(store)
    batch = kv.Batch()
    ready.leave(batch, AT, priority=1, stamp=kv.stamp(9, 0), seen=view)
    store.ok(batch)
    store.conflict(batch)
    assert (seen(store) or b"")[-12:] == kv.stamp(9, 0)


def test_hints_are_read_page_by_page() -> None:
    store = Store()
    for number in range(5):
        store.ok(producing(store, number, at=scenario.address(number), priority=number % 2, seen=None))
    found: list[tuple[ids.Address, int]] = []
    more = True
    while more:
        after = found[-1] if found else None
        page = store.read(ready.read_range(scenario.UNIVERSE, after=after, count_max=2)).page(0)
        found += [(at, priority) for at, priority, _ in ready.decode(scenario.UNIVERSE, page)]
        more = page.more
    assert found == [(at, priority) for at, priority, _ in hints(store)]
    assert len(found) == 5


def test_damaged_hint_is_noticed() -> None:
    store = Store()
    store.ok(producing(store, 1, seen=None))
    store.set(keys.ready_key(AT, 1), scenario.flipped(seen(store) or b"", at=0))
    with pytest.raises(errors.DecodeError):
        hints(store)


@hypothesis.given(
    st.lists(
        st.tuples(st.sampled_from(["look", "produce", "clear"]), st.integers(0, 1), st.integers(0, 3)), max_size=30
    )
)
@hypothesis.settings(max_examples=150)
def test_any_order_of_producing_and_clearing_against_a_model(acts: list[tuple[str, int, int]]) -> None:
    """Producers and workers act on what they saw at some time; the model knows which writing is there now."""
    store = Store()
    present: dict[int, bytes] = {}
    views: list[list[bytes | None]] = [[None], [None]]
    for number, (act, world, pick) in enumerate(acts):
        at = scenario.address(world)
        view = views[world][pick % len(views[world])]
        if act == "look":
            views[world].append(seen(store, at=at))
        elif act == "produce":
            batch = producing(store, number, at=at, seen=view)
            if view is None:
                present[world] = store.ok(batch).stamps[0]
            elif view.endswith(present.get(world, b"none")):
                store.ok(batch)
            else:
                store.conflict(batch)
        elif view is not None:
            batch = clearing(at, 1, view)
            if view.endswith(present.get(world, b"none")):
                store.ok(batch)
                del present[world]
            else:
                store.conflict(batch)
        found = {each.world: raw[-12:] for each, _, raw in hints(store)}
        assert found == {scenario.address(each).world: stamp for each, stamp in present.items()}
