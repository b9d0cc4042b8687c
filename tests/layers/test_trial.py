"""What an acquire counts: the rules of the crash budget, one by one."""

from __future__ import annotations

import pytest

from worldline.keys import journal as journal_keys
from worldline.keys import trial as keys
from worldline.layers import leases, trial
from worldline.model import ids, journal, lease
from worldline.model.lease import Running, Trial
from worldline.store import kv

AT = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
ME, OTHER = ids.Incarnation(b"m" * 16), ids.Incarnation(b"o" * 16)
HEAD = journal.Head(7, 9, bytes(32), bytes(32), 0)
GIVEN = b"g" * 32


def known(before: Trial | None) -> trial.Known:
    raw = None if before is None else keys.TRIAL.pack(before)
    return trial.decode(AT, raw, journal_keys.HEAD.pack(HEAD))


def state(holder: ids.Incarnation | None) -> leases.State:
    held = None if holder is None else lease.Holder(b"x" * 16, holder, 4, 0)
    return leases.State(AT, lease.Epoch(4, b""), b"e", held, None if held is None else b"h", None, None)


NOTHING, RESTORE, STEP = Running.NOTHING, Running.RESTORE, Running.STEP


@pytest.mark.parametrize(
    ("before", "holder", "expected"),
    [
        (None, None, None),  # released
        (None, ME, None),  # our own memory was lost, and nothing else
        (None, OTHER, (b"", 0, 0)),  # it died in an ordinary step, or idle: nothing is counted
        (Trial(4, 7, NOTHING), OTHER, (b"", 0, 0)),
        (Trial(4, 7, NOTHING), None, (b"", 0, 0)),  # freed on behalf of a dead holder
        (Trial(4, 7, RESTORE), OTHER, (b"", 0, 1)),
        (Trial(4, 7, RESTORE, b"", 0, 2), None, (b"", 0, 3)),
        (Trial(4, 7, RESTORE, b"", 0, 2), ME, (b"", 0, 2)),
        (Trial(4, 7, STEP, GIVEN), OTHER, (GIVEN, 1, 0)),
        (Trial(4, 7, STEP, GIVEN, 2), None, (GIVEN, 3, 0)),
        (Trial(4, 7, STEP, GIVEN, 2), ME, (GIVEN, 2, 0)),  # it lives, so no step of it has killed it
        (Trial(4, 6, STEP, GIVEN, 2), OTHER, (b"", 0, 0)),  # the world has got on since
        (Trial(4, 7, NOTHING, GIVEN, 2), OTHER, (GIVEN, 2, 0)),
        (Trial(4, 7, RESTORE, GIVEN, 2), OTHER, (GIVEN, 2, 1)),  # both are kept apart
    ],
)
def test_what_an_acquire_counts(
    before: Trial | None, holder: ids.Incarnation | None, expected: tuple[bytes, int, int] | None
) -> None:
    found = trial.after(known(before), state(holder), ME)
    assert found == (None if expected is None else Trial(5, 7, RESTORE, *expected))


def test_deaths_are_those_of_one_input_at_one_head() -> None:
    held = leases.Lease(AT, ids.WorkerId(b"x" * 16), 5, b"e", b"h")
    before = Trial(5, 7, NOTHING, GIVEN, 2)
    for step, given, deaths in [(7, GIVEN, 2), (7, b"?" * 32, 0), (8, GIVEN, 0)]:
        marked = trial.mark(kv.Batch(), held, before, step=step, given=given)
        assert marked == Trial(5, step, STEP, given, deaths)
        counted = trial.hold_against(kv.Batch(), held, marked, step=step, given=given)
        assert counted == Trial(5, step, NOTHING, given, deaths + 1)


def test_a_release_for_a_dead_holder_shows_that_it_was_none() -> None:
    batch = kv.Batch()
    trial.left_behind(batch, known(None), epoch=4)
    assert keys.TRIAL.unpack(batch.puts[keys.trial_key(AT)].value) == Trial(4, 7, NOTHING)
    batch = kv.Batch()
    trial.left_behind(batch, known(Trial(4, 7, STEP, GIVEN)), epoch=4)
    assert batch.puts == {}, "what it was doing stays"
