"""Ready hints: appended next to their items, deleted by whoever has read the inbox after seeing them."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.layers import scenario
from tests.layers.scenario import Store
from worldline.keys import ready as keys
from worldline.layers import inbox, ready
from worldline.model import ids
from worldline.store import kv

AT = scenario.address(0)


def producing(number: int, *, at: ids.Address = AT, priority: int = ready.NORMAL) -> kv.Batch:
    """An enqueue with its hint, as producers do it."""
    batch = scenario.replaced(b"\x50item" + number.to_bytes(4, "big"), None, b"")
    inbox.enqueue_once(batch, at, scenario.event(str(number)))
    ready.leave(batch, at, priority=priority)
    return batch


def hints(store: Store, *, universe: ids.UniverseId = scenario.UNIVERSE) -> list[ready.Hint]:
    found: list[ready.Hint] = []
    for each in ready.PRIORITIES:
        page = store.read(ready.read_range(universe, priority=each, count_max=100)).page(0)
        found += ready.decode(universe, page, priority=each)
    return found


def clearing(*found: ready.Hint) -> kv.Batch:
    batch = kv.Batch()
    ready.clear(batch, found)
    return batch


def test_a_hint_has_the_greatest_stamp_of_its_batch() -> None:
    store = Store()
    ok = store.ok(producing(1))
    [hint] = hints(store)
    assert (hint.at, hint.priority, hint.stamp) == (AT, ready.NORMAL, ok.stamps[1])
    assert hint.stamp > ok.stamps[0]


def test_every_item_leaves_one_of_its_own() -> None:
    """No key is written twice, so no producer waits for another, and none counts on another's."""
    store = Store()
    for number in range(3):
        store.ok(producing(number))
    found = hints(store)
    assert len({hint.key for hint in found}) == 3
    assert [hint.stamp for hint in found] == sorted(hint.stamp for hint in found)


def test_a_step_deletes_those_it_has_seen() -> None:
    store = Store()
    store.ok(producing(1))
    seen = hints(store)
    store.ok(producing(2))
    batch = scenario.replaced(b"\x50step", None, b"")
    ready.remove(batch, seen)
    store.ok(batch)
    [left] = hints(store)
    assert left not in seen


def test_clearing_is_certain() -> None:
    """Committed again after a lost answer, it meets its own success; what came meanwhile stays."""
    store = Store()
    store.ok(producing(1))
    store.ok(producing(2))
    batch = clearing(*hints(store))
    store.ok(producing(3))
    store.ok(batch)
    assert kv.applied_before(batch, store.conflict(batch))
    assert len(hints(store)) == 1


def test_compacting_keeps_the_newest() -> None:
    store = Store()
    for number in range(5):
        store.ok(producing(number))
    found = hints(store)
    batch = kv.Batch()
    kept = ready.compact(batch, found)
    store.ok(batch)
    assert hints(store) == [kept] == [found[-1]]


def test_compacting_deletes_nothing_if_the_newest_is_gone() -> None:
    """Its world was looked at meanwhile, and something may have come since."""
    store = Store()
    for number in range(3):
        store.ok(producing(number))
    found = hints(store)
    batch = kv.Batch()
    ready.compact(batch, found)
    store.ok(clearing(found[-1]))
    store.conflict(batch)
    assert hints(store) == found[:-1]


def test_the_most_urgent_hints_come_first() -> None:
    store = Store()
    acts = [(2, 1), (1, 0), (0, 1), (3, 0), (1, 2)]
    for number, (world, priority) in enumerate(acts):
        store.ok(producing(number, at=scenario.address(world), priority=priority))
    expected = [(1, 0), (3, 0), (2, 1), (0, 1), (1, 2)]
    assert [(hint.at, hint.priority) for hint in hints(store)] == [
        (scenario.address(world), priority) for world, priority in expected
    ]
    assert hints(store, universe=scenario.OTHER_UNIVERSE) == []


def test_a_scan_starts_at_a_mark() -> None:
    store = Store()
    store.ok(producing(1))
    first = store.read(ready.read_range(scenario.UNIVERSE, priority=1, count_max=10)).page(0)
    store.ok(producing(2))
    page = store.read(ready.read_range(scenario.UNIVERSE, priority=1, start=first.stable, count_max=10)).page(0)
    assert len(page.items) == 1
    assert page.items[0] not in first.items


def test_a_damaged_hint_hides_no_other() -> None:
    store = Store()
    store.ok(producing(1))
    store.ok(producing(2, at=scenario.address(1)))
    damaged, other = hints(store)
    store.set(damaged.key, scenario.flipped(damaged.raw, at=0))
    assert hints(store) == [other]


def test_a_hint_is_of_its_universe() -> None:
    with pytest.raises(AssertionError):
        keys.hint_key(scenario.UNIVERSE, 1, b"short")
    key = keys.hint_key(scenario.UNIVERSE, 1, bytes(12))
    begin, end = keys.every_hint(scenario.UNIVERSE)
    assert begin < key < end
    other = keys.every_hint(scenario.OTHER_UNIVERSE)
    assert not other[0] <= key < other[1]


@hypothesis.given(
    st.lists(
        st.tuples(st.sampled_from(["look", "produce", "clear", "take", "compact"]), st.integers(0, 1)), max_size=30
    )
)
@hypothesis.settings(max_examples=150)
def test_an_unread_item_has_a_hint_after_any_acts(acts: list[tuple[str, int]]) -> None:
    """A worker acts on what it saw some time ago. It reads the inbox after it has looked, and takes what is there."""
    store = Store()
    seen: dict[int, list[ready.Hint]] = {0: [], 1: []}
    for number, (act, world) in enumerate(acts):
        at = scenario.address(world)
        if act == "look":
            seen[world] = [hint for hint in hints(store) if hint.at == at]
        elif act == "produce":
            store.ok(producing(number, at=at))
        elif act == "take":
            items = store.unread(at)
            batch = scenario.replaced(b"\x50take" + number.to_bytes(4, "big"), None, b"")
            inbox.consume(batch, at, [each.stamp for each in items])
            ready.remove(batch, seen[world])
            store.ok(batch)
        elif act == "clear" and seen[world] and not store.items(at):
            store.commit(clearing(*seen[world]))
        elif act == "compact" and len(seen[world]) > 1:
            batch = kv.Batch()
            ready.compact(batch, seen[world])
            store.commit(batch)
        for each in (0, 1):
            unread = store.items(scenario.address(each))
            assert not unread or any(hint.at == scenario.address(each) for hint in hints(store))


def test_a_world_with_a_blocked_run_has_one_hint_that_no_input_takes_away() -> None:
    store = Store()
    for number in range(2):
        batch = producing(number)
        ready.mark_blocked(batch, AT)
        store.ok(batch)
    store.ok(clearing(*hints(store)))
    [hint] = blocked(store)
    assert (hint.at, hint.priority) == (AT, ready.BLOCKED)
    batch = kv.Batch()
    ready.mark_unmarked(batch, AT)
    assert isinstance(store.commit(batch), kv.Conflict), "it has one"
    batch = producing(3)
    ready.unmark_blocked(batch, AT)
    store.ok(batch)
    assert blocked(store) == []
    batch = kv.Batch()
    ready.mark_unmarked(batch, AT)
    store.ok(batch)
    assert len(blocked(store)) == 1


def blocked(store: Store) -> list[ready.Hint]:
    page = store.read(ready.read_range(scenario.UNIVERSE, priority=ready.BLOCKED, count_max=100)).page(0)
    return ready.decode(scenario.UNIVERSE, page, priority=ready.BLOCKED)
