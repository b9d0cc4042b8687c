"""What of a world's past may go: pure rules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from worldline.features.compaction import retention_rules
from worldline.features.compaction.retention_rules import KnownPast, RetentionPolicy
from worldline.layers.snapshots import StoredSnapshot
from worldline.model.age import Age
from worldline.model.journal import Segment
from worldline.model.snapshots import StateSnapshot


def taken(step: int, program: bytes = b"p") -> StoredSnapshot:
    return StoredSnapshot(StateSnapshot(step, 2 * step, bytes(32), bytes(32), 1, program, 1_000 * step), b"raw")


def segment(last_step: int, first_step: int = 1) -> Segment:
    return Segment(2 * first_step - 1, 2 * last_step, first_step, last_step, bytes(32), 1, False)


def known(steps: Sequence[int], *, compacted: int = 0, pinned: tuple[int, ...] = (), forked_at: int = 0) -> KnownPast:
    snapshots = [taken(step) for step in steps]
    last = segment(compacted) if compacted else None
    return KnownPast(snapshots[-1].record, snapshots, last, forked_at, pinned)


def policy(*, margin: int = 0, kept: int = 1, entries: int = 10, age_us: int = 10**9) -> RetentionPolicy:
    return RetentionPolicy(entries, age_us, margin, kept)


def step_of(found: StateSnapshot | None) -> int | None:
    return None if found is None else found.step


def test_how_far() -> None:
    """Up to the snapshot that is the last of those kept, behind the margin, and below what is pinned."""
    for steps, given_policy, pinned, expected in (
        ([0], policy(), (), None),
        ([0, 5], policy(), (), 5),
        ([0, 5, 9], policy(kept=2), (), 5),
        ([0, 5, 9], policy(kept=3), (), None),
        ([0, 5, 9], policy(kept=9), (), None),
        ([0, 5, 9], policy(margin=8), (), 5),
        ([0, 5, 9], policy(margin=9), (), None),
        ([0, 5, 9], policy(), (5,), 5),
        ([0, 5, 9], policy(), (7,), 5),
        ([0, 5, 9], policy(), (9, 5), 5),
        ([0, 5, 9], policy(), (3,), None),
    ):
        assert step_of(retention_rules.limit(known(steps, pinned=pinned), given_policy)) == expected, (steps, pinned)
    assert retention_rules.limit(known([0, 5, 9], compacted=9), policy()) is None
    assert step_of(retention_rules.limit(known([0, 5, 9], compacted=5), policy())) == 9
    assert retention_rules.is_held_back(known([0, 5, 9], pinned=(5,)), policy())
    assert not retention_rules.is_held_back(known([0, 5, 9], pinned=(9,)), policy())


def test_when() -> None:
    found = known([0, 5])
    target = found.baseline
    assert retention_rules.is_due(found, target, policy(entries=10), first_us=0)
    assert not retention_rules.is_due(found, target, policy(entries=11), first_us=0)
    assert retention_rules.is_due(found, target, policy(entries=11, age_us=4_000), first_us=1_000)
    assert not retention_rules.is_due(found, target, policy(entries=11, age_us=4_001), first_us=1_000)


def test_what_was_decided_may_not_hold_any_more() -> None:
    assert retention_rules.allows(known([0, 5, 9]), segment(9))
    assert not retention_rules.allows(known([0, 5]), segment(9))
    assert retention_rules.allows(known([0, 5, 9], pinned=(9,)), segment(9))
    assert not retention_rules.allows(known([0, 5, 9], pinned=(8, 9)), segment(9))


def test_snapshots_that_go() -> None:
    """Those below what is compacted: but the first of each program, the last ones, and what is pinned."""
    programs = [b"a", b"a", b"a", b"b", b"b", b"b", b"a", b"a", b"a"]
    snapshots = [taken(step, program) for step, program in enumerate(programs)]
    found = KnownPast(snapshots[-1].record, snapshots, segment(8), 0, (4,))
    gone = [each.record.step for each in retention_rules.droppable(found, policy(kept=1))]
    assert gone == [1, 2, 5, 7]
    assert [each.record.step for each in retention_rules.droppable(found, policy(kept=3))] == [1, 2, 5]
    nothing = KnownPast(snapshots[-1].record, snapshots, None, 0, ())
    assert retention_rules.droppable(nothing, policy()) == []
    assert [each.record.step for each in retention_rules.droppable(nothing, policy(), compacted=4)] == [1]


def test_of_snapshots_close_to_each_other_few_stay() -> None:
    """Above what is compacted: the last ones, the first, and one for each margin of entries. None, or for ever: all."""
    found = known(list(range(0, 101, 2)))  # heights 0, 4, ..., 200
    left = [each for each in found.snapshots if each not in retention_rules.droppable(found, policy(kept=2, margin=50))]
    assert [each.record.height for each in left] == [0, 48, 96, 144, 192, 196, 200]
    assert retention_rules.droppable(found, policy(kept=2, margin=0)) == []  # each is a place to compact up to
    assert retention_rules.droppable(found, policy(kept=0, margin=50)) == []
    assert retention_rules.limit(found, policy(kept=0)) is None
    whole = RetentionPolicy(10, 10**9, 0, 0, changes=True)  # what steps changed stays in segments
    assert step_of(retention_rules.limit(found, whole)) == 100
    assert not retention_rules.may_expire(found, segment(9), RetentionPolicy(10, 10**9, 0, 0, journal_us=5))


def aged(ages: Sequence[int]) -> KnownPast:
    saved = [
        StoredSnapshot(msgspec.structs.replace(taken(step).record, age_us=age_us), b"raw")
        for step, age_us in enumerate(ages)
    ]
    return KnownPast(saved[-1].record, saved, None, 0, ())


def test_snapshots_that_are_young_enough_count_among_the_last() -> None:
    """By the age of the universe, less what may be behind. One that says no age counts from the next that does."""
    for ages, kept, now, expected in (
        ([1, 201, 250, 300], 1, Age(300), 3),
        ([1, 201, 250, 300], 1, Age(301), 2),  # 100 has certainly passed since the second
        ([1, 201, 250, 300], 1, Age(301, step_us=1), 3),
        ([1, 100, 200, 300], 3, Age(10_000), 3),
        ([0, 0, 350, 360], 1, Age(400), 4),
        ([0, 0, 250, 360], 1, Age(400), 1),
        ([300, 0, 0, 350], 1, Age(400), 3),
        ([1, 0, 0, 0], 1, Age(10_000), 3),  # nothing is known of the last ones
    ):
        found = retention_rules.aged(RetentionPolicy(10, 10**9, 0, kept, kept_us=100), aged(ages), now)
        assert found.kept == expected, (ages, kept, now)
    for never in (RetentionPolicy(10, 10**9, 0, 0, kept_us=100), RetentionPolicy(10, 10**9, 0, 2)):
        assert retention_rules.aged(never, aged([1, 2, 3]), Age(10_000)) == never  # all for ever; by number alone


def test_states_above_a_young_snapshot_are_kept() -> None:
    """Nothing is moved into segments above the oldest that is kept, and no entry goes."""
    found, wanted = aged([1, 100, 200, 300]), RetentionPolicy(10, 10**9, 0, 1, journal_us=5, kept_us=150)
    for now, step in ((Age(310), 2), (Age(10_000), 3)):
        policy = retention_rules.aged(wanted, found, now)
        assert step_of(retention_rules.limit(found, policy)) == step
        assert [each.record.step for each in retention_rules.droppable(found, policy, compacted=6)] == [1, 2][
            : step - 1
        ]
        assert retention_rules.may_expire(found, segment(3), policy) == (step == 3)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 4), st.integers(0, 30), st.integers(0, 40))
def test_however_often_a_world_is_saved(gaps: list[int], kept: int, margin: int, compacted: int) -> None:
    """As it grows, a snapshot at a time: what is left is bounded by entries, goes on being compacted, and states can
    be made from the first snapshot at or above what is compacted.
    """
    steps = [0]
    for gap in gaps:
        steps.append(steps[-1] + gap)
        end = 2 * compacted if compacted <= steps[-1] else 0
        found = known(steps, compacted=end // 2)
        gone = [each.record.step for each in retention_rules.droppable(found, policy(kept=kept, margin=margin))]
        base = next(step for step in steps if 2 * step >= end)
        steps = [step for step in steps if step not in gone]
        assert base in steps
        above = [2 * step for step in steps if 2 * step > end]
        if margin:
            assert len(above) <= kept + 1 + 2 * ((above[-1] - end) // margin + 1) if above else True
        spaced = [2 * step for step in steps[: max(1, len(steps) - kept + 1)] if 2 * step >= 2 * base]
        assert all(later - earlier <= max(margin, 18) for earlier, later in itertools.pairwise(spaced))


def test_entries_that_may_go() -> None:
    """If the policy says so, and no state below their end is kept: the last snapshots, the baseline, what is pinned."""
    keeping = RetentionPolicy(10, 10**9, 0, 1, journal_us=5)
    for steps, kept, pinned, last, expected in (
        ([0, 5, 9], 1, (), 9, True),
        ([0, 5, 9], 2, (), 9, False),
        ([0, 5, 9], 2, (), 5, True),
        ([0, 5, 9], 1, (5,), 9, False),
        ([0, 5, 9], 1, (9,), 9, True),
        ([0, 5], 1, (), 9, False),
    ):
        wanted = RetentionPolicy(10, 10**9, 0, kept, journal_us=5)
        assert retention_rules.may_expire(known(steps, pinned=pinned), segment(last), wanted) == expected, (
            steps,
            kept,
            last,
        )
    assert not retention_rules.may_expire(known([0, 5, 9]), segment(9), policy())
    assert retention_rules.may_expire(known([0, 5, 9]), segment(9), keeping)
    saved = known([0, 5, 9])
    behind = KnownPast(saved.snapshots[1].record, saved.snapshots, None, 0, ())  # the baseline is not the last
    assert not retention_rules.may_expire(behind, segment(9), keeping)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12, unique=True),
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(1, 5),
    st.integers(0, 30),
    st.integers(0, 40),
)
def test_states_can_be_made_from_there_on(
    steps: list[int], pinned: list[int], kept: int, margin: int, compacted: int
) -> None:
    """Whatever goes: the snapshot that is compacted up to stays, so do the last ones and the pinned, and no pinned
    change is dropped.
    """
    all_steps = [0, *sorted(steps)]
    wanted = policy(kept=kept, margin=margin)
    before = known(all_steps, compacted=compacted if compacted <= all_steps[-1] else 0, pinned=tuple(pinned))
    target = retention_rules.limit(before, wanted)
    if target is None:
        return
    assert all(step >= target.step for step in pinned)
    assert target.height <= before.baseline.height - margin
    after = KnownPast(before.baseline, before.snapshots, segment(target.step), 0, tuple(pinned))
    gone = [each.record.step for each in retention_rules.droppable(after, wanted)]
    left = [step for step in all_steps if step not in gone]
    assert target.step in left
    assert left[-kept:] == all_steps[-kept:]
    assert all(step in left for step in pinned if step in all_steps)
