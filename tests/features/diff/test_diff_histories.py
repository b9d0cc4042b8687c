"""Drawn histories with a common beginning: what `compare` says of two sides, applied to the left one, gives the right
one. The lives are those of random programs in memory, twins up to where their acts differ; each is also compared with
itself at another height.
"""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis import strategies as st

import worldline as wl
from tests import options
from tests.codec.fields import applied
from tests.features.diff import lives
from tests.kernel import test_random_programs as programs
from worldline import testing
from worldline.codec import canonical
from worldline.features.diff import effect_history
from worldline.features.diff.diff_side import Side
from worldline.features.diff.records import Diff, EffectSide, RunSide
from worldline.features.forks import revert_calls
from worldline.kernel import run_operations
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import ENDED, Record, RunStatus
from worldline.kernel.run_operations import OpKind

EXAMPLES = options.number("examples")
ACTS = st.lists(programs.ACTS, max_size=4)


def lived(acts: list[Any], *, seed: int, until: int) -> lives.Lived:
    script = wl.Script().on(programs.outside, programs.answer)
    with testing.world(programs.app, script, seed=seed, drops=False, twice=False) as world:
        programs.live(world, acts, until=until)
        return lives.Lived(programs.app, world)


def common(left: lives.Lived, right: lives.Lived) -> int:
    """How many steps both have gone through."""
    count = 0
    for one, other in zip(left.steps, right.steps, strict=False):
        if one.head() != other.head():
            break
        count += 1
    return count


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(st.data(), st.integers(0, 1_000), ACTS, ACTS, ACTS)
def test_applied_to_the_left_side_it_gives_the_right_one(
    data: st.DataObject, seed: int, both: list[Any], mine: list[Any], theirs: list[Any]
) -> None:
    until = st.sampled_from([0, 3, 300])
    left, right = (lived([*both, *acts], seed=seed, until=data.draw(until)) for acts in (mine, theirs))
    since = common(left, right)
    check(left, right, since, len(left.steps), len(right.steps))
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(left.steps))] * 2)))
    check(left, left, first, first, last)
    check(left, left, first, last, first)


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(st.data(), st.integers(0, 1_000), ACTS, ACTS, ACTS)
def test_rows_that_are_looked_up_say_the_same_as_all_rows(
    data: st.DataObject, seed: int, both: list[Any], mine: list[Any], theirs: list[Any]
) -> None:
    """A saved state at or before the common ancestor, and of that only what the steps above it name."""
    until = st.sampled_from([0, 3, 300])
    left, right = (lived([*both, *acts], seed=seed, until=data.draw(until)) for acts in (mine, theirs))
    since = common(left, right)
    saved = data.draw(st.integers(0, since))
    ends = {"at": len(left.steps), "to": len(right.steps)}
    known = lives.diff(left, right, since=since, saved=saved, **ends)
    assert known == lives.diff(left, right, since=since, **ends)
    saved, first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(left.steps))] * 3)))
    found = lives.diff(left, left, since=first, at=first, to=last, saved=saved)
    assert found == lives.diff(left, left, since=first, at=first, to=last)
    check_different(left, (saved, first), (data.draw(st.integers(0, last)), last))


def check_different(life: lives.Lived, one: tuple[int, int], other: tuple[int, int]) -> None:
    """What a revert needs to know: by the rows that may differ, and by all rows. Each state is that at the end of a
    step, and of a step before that which was saved.
    """
    then, now = lives.Known(life, *one), lives.Known(life, *other)
    keys = then.fetch_unlike(now)
    before, rows = life.at(one[1])[1], life.at(other[1])[1]
    expected = [[key, row.meaning, row.placement] for key, row in before.items() if rows.get(key) != row]
    expected += [[key] for key, _ in rows.items() if before.get(key) is None]
    assert revert_calls.different(keys, then.rows, now.rows) == expected


def check(left: lives.Lived, right: lives.Lived, since: int, at: int, to: int) -> None:
    """Compare the left life at one step with the right one at another, from a step that both have gone through."""
    start = left.at(since)[0]
    found = lives.diff(left, right, since=since, at=at, to=to)
    machines = left.machine(at), right.machine(to)
    check_cells(found, *machines)
    check_runs(found, *machines)
    check_effects(found, left.side(0, at), right.side(0, to))
    for side, life, step in ((found.entries.left, left, at), (found.entries.right, right, to)):
        height = life.at(step)[0].height
        assert (side.step, side.height, side.count) == (step, height, height - start.height)
        assert sum(side.kinds.values()) == side.count
        assert side.first == (start.height + 1 if side.count else None)
    assert (found.ancestor, found.step, found.height) == ("w", since, start.height)


def check_cells(found: Diff, left: Machine, right: Machine) -> None:
    before, after = ({name: canonical.decode(cell.data) for name, cell in each.cells.items()} for each in (left, right))
    for cell in found.cells:
        name = cell.reducer, cell.key
        match cell.change:
            case "added":
                assert name not in before
                before[name] = cell.right
            case "removed":
                assert before.pop(name) == cell.left
            case "changed":
                assert cell.fields
                before[name] = applied(before[name], cell.fields)
    assert before == after


def check_runs(found: Diff, left: Machine, right: Machine) -> None:
    before, after = ({name: run_side(run.record) for name, run in each.runs.items()} for each in (left, right))
    for run in found.runs:
        assert before.get(run.id) == run.left
        assert run.left != run.right
        assert bool(run.fields) == (run.change == "changed")
        if run.right is None:
            del before[run.id]
        else:
            before[run.id] = run.right
    assert before == after


def run_side(record: Record) -> RunSide:
    """The same of a machine's record."""
    ended = record.status in ENDED
    done = sum(op.outcome is not None for op in record.ops)
    waits = [
        run_operations.describe(op.kind, op.name, run=record.id, number=number)
        for number, op in enumerate(record.ops)
        if op.outcome is None and op.kind is not OpKind.AFTER
    ]
    finished = record.status is RunStatus.FINISHED
    return RunSide(
        record.workflow,
        record.status.name.lower(),
        canonical.decode(record.data) if finished else None,
        effect_history.failure(record.data) if ended and not finished else None,
        None if ended else len(record.ops),
        None if ended else done,
        [] if ended else waits,
        record.again,
    )


def check_effects(found: Diff, left: Side, right: Side) -> None:
    """The sides have all steps from the beginning on: no effect was open before."""
    expected: list[tuple[str, int, EffectSide | None, EffectSide | None]] = []
    for place in sorted({**left.effects.seen, **right.effects.seen}):
        both = [[each.side(side.rows.get) for each in side.effects.seen.get(place, [])] for side in (left, right)]
        for index in range(max(map(len, both))):
            before, after = (side[index] if index < len(side) else None for side in both)
            if before != after:
                expected.append((place[0], place[1] + 1, before, after))
    assert [(each.run, each.operation, each.left, each.right) for each in found.effects] == expected
