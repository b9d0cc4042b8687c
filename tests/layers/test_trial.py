"""What an acquire counts: the rules of the crash budget, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from worldline.keys import journal as journal_keys
from worldline.keys import trial as keys
from worldline.layers import leases, trial
from worldline.model import ids, journal
from worldline.model import leases as lease
from worldline.model.leases import Blamed, CrashTrial, HolderActivity
from worldline.store import kv

AT = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
MY_WORKER, OTHER_WORKER = ids.WorkerId(b"M" * 16), ids.WorkerId(b"O" * 16)
ME, OTHER, THIRD = ids.Incarnation(b"m" * 16), ids.Incarnation(b"o" * 16), ids.Incarnation(b"t" * 16)
HEAD = journal.Head(7, 9, bytes(32), bytes(32), 0)
GIVEN = b"g" * 32
HELD = leases.Lease(AT, MY_WORKER, 5, b"e", b"h", incarnation=ME)


def known(before: CrashTrial | None) -> trial.TrialAndHead:
    raw = None if before is None else keys.TRIAL.pack(before)
    return trial.decode(AT, raw, journal_keys.HEAD.pack(HEAD))


def state(holder: ids.Incarnation | None) -> leases.LeaseState:
    held = None if holder is None else lease.Holder(OTHER_WORKER, holder, 4, 0)
    return leases.LeaseState(AT, lease.Epoch(4, b""), b"e", held, None if held is None else b"h", None, None)


def me() -> leases.HeartbeatRecord:
    return leases.HeartbeatRecord(MY_WORKER, lease.Worker(ME, 1, 0, 1, 1, {}), b"")


def after(
    before: CrashTrial | None, holder: ids.Incarnation | None = OTHER, *, living: Sequence[bytes] = ()
) -> CrashTrial | None:
    return trial.after(known(before), state(holder), me(), living=living)


NOTHING, RESTORE, STEP = HolderActivity.NOTHING, HolderActivity.RESTORE, HolderActivity.STEP


@pytest.mark.parametrize(
    ("before", "holder", "expected"),
    [
        (None, None, None),  # released
        (None, ME, None),  # our own memory was lost, and nothing else
        (None, OTHER, (b"", 0, 0)),  # it died in an ordinary step, or idle: nothing is counted
        (CrashTrial(4, 7, NOTHING), OTHER, (b"", 0, 0)),
        (CrashTrial(4, 7, NOTHING), None, (b"", 0, 0)),  # freed on behalf of a dead holder
        (CrashTrial(4, 7, RESTORE), OTHER, (b"", 0, 1)),
        (CrashTrial(4, 7, RESTORE, b"", 0, 2), None, (b"", 0, 3)),
        (CrashTrial(4, 7, RESTORE, b"", 0, 2), ME, (b"", 0, 2)),
        (CrashTrial(4, 7, STEP, GIVEN), OTHER, (GIVEN, 1, 0)),
        (CrashTrial(4, 7, STEP, GIVEN, 2), None, (GIVEN, 3, 0)),
        (CrashTrial(4, 7, STEP, GIVEN, 2), ME, (GIVEN, 2, 0)),  # it lives, so no step of it has killed it
        (CrashTrial(4, 6, STEP, GIVEN, 2), OTHER, (b"", 0, 0)),  # the world has got on since
        (CrashTrial(4, 7, NOTHING, GIVEN, 2), OTHER, (GIVEN, 2, 0)),
        (CrashTrial(4, 7, RESTORE, GIVEN, 2), OTHER, (GIVEN, 2, 1)),  # both are kept apart
    ],
)
def test_what_an_acquire_counts(
    before: CrashTrial | None, holder: ids.Incarnation | None, expected: tuple[bytes, int, int] | None
) -> None:
    """Of records that do not say who wrote them, as those of format 2.1."""
    found = after(before, holder)
    assert found == (None if expected is None else CrashTrial(5, 7, RESTORE, *expected, MY_WORKER, ME))


def by_other(running: HolderActivity, deaths: int = 0, **more: Any) -> CrashTrial:
    """What another holder says."""
    return CrashTrial(4, 7, running, GIVEN, deaths, worker=OTHER_WORKER, incarnation=OTHER, **more)


@pytest.mark.parametrize("running", [RESTORE, STEP])
def test_who_is_counted_is_kept(running: HolderActivity) -> None:
    found = after(by_other(running))
    assert found is not None
    assert (found.step_deaths, found.restore_deaths) == (running is STEP, running is RESTORE)
    assert found.blamed == [Blamed(OTHER_WORKER, OTHER, running)]


@pytest.mark.parametrize("running", [RESTORE, STEP])
def test_a_holder_that_lives_is_not_counted(running: HolderActivity) -> None:
    """Its lease was revoked, or it was cut off and its heartbeat is back."""
    found = after(by_other(running), living=[OTHER])
    assert found is not None
    assert (found.step_deaths, found.restore_deaths, found.blamed) == (0, 0, [])


def test_a_death_beside_an_effect_that_processes_die_of_is_not_counted() -> None:
    for running in (RESTORE, STEP):
        found = after(by_other(running, beside=True))
        assert found is not None
        assert (found.step_deaths, found.restore_deaths, found.blamed, found.beside) == (0, 0, [], False)


def test_one_whose_heartbeat_comes_back_is_taken_off() -> None:
    first = after(by_other(STEP, 1, blamed=[Blamed(b"?" * 16, THIRD, STEP)]))
    assert first is not None
    assert first.step_deaths == 2
    assert trial.workers_of(first) == [MY_WORKER, b"?" * 16, OTHER_WORKER]
    later = trial.acquitted_by(first, [OTHER])
    assert (later.step_deaths, later.blamed) == (1, [Blamed(b"?" * 16, THIRD, STEP)])
    assert trial.acquitted_by(later, [OTHER]) is later


def test_one_takes_itself_off_once() -> None:
    before = CrashTrial(5, 7, RESTORE, GIVEN, 1, 1, blamed=[Blamed(OTHER_WORKER, OTHER, RESTORE)])
    batch = kv.Batch()
    assert trial.acquit(batch, AT, keys.TRIAL.pack(before), OTHER)
    written = keys.TRIAL.unpack(batch.puts[keys.trial_key(AT)].value)
    assert (written.step_deaths, written.restore_deaths, written.blamed) == (1, 0, [])
    for raw in (None, keys.TRIAL.pack(written)):
        assert not trial.acquit(kv.Batch(), AT, raw, OTHER)


def test_who_is_kept_is_bounded() -> None:
    found = by_other(RESTORE)
    for _ in range(trial.BLAMED_MAX + 3):
        counted = after(found)
        assert counted is not None
        found = msgspec.structs.replace(counted, worker=OTHER_WORKER, incarnation=OTHER)
    assert (len(found.blamed), found.restore_deaths) == (trial.BLAMED_MAX, trial.BLAMED_MAX + 3)


def test_deaths_are_those_of_one_input_at_one_head() -> None:
    before = CrashTrial(5, 7, NOTHING, GIVEN, 2)
    for step, given, deaths in [(7, GIVEN, 2), (7, b"?" * 32, 0), (8, GIVEN, 0)]:
        marked = trial.mark(kv.Batch(), HELD, before, step=step, input_digest=given)
        assert marked == CrashTrial(5, step, STEP, given, deaths, 0, MY_WORKER, ME)
        counted = trial.hold_against(kv.Batch(), HELD, marked, step=step, input_digest=given)
        assert counted == CrashTrial(5, step, NOTHING, given, deaths + 1, 0, MY_WORKER, ME)


def test_code_that_has_returned_is_not_blamed_for_what_comes_then() -> None:
    marked = trial.mark(kv.Batch(), HELD, None, step=7, input_digest=GIVEN)
    found = after(trial.returned(kv.Batch(), HELD, marked))
    assert found is not None
    assert (found.step_deaths, found.blamed) == (0, [])


def test_what_a_child_survives_counts_no_more() -> None:
    blamed = [Blamed(OTHER_WORKER, OTHER, STEP), Blamed(OTHER_WORKER, OTHER, RESTORE)]
    before = CrashTrial(5, 7, NOTHING, GIVEN, 3, 2, blamed=blamed, verdict="signal 9", quarantines=2)
    step = trial.innocent(kv.Batch(), HELD, before, STEP)
    assert (step.step_deaths, step.restore_deaths, step.blamed, step.acquitted) == (0, 2, blamed[1:], 1)
    restore = trial.innocent(kv.Batch(), HELD, before, RESTORE)
    assert (restore.step_deaths, restore.restore_deaths, restore.blamed) == (3, 0, blamed[:1])
    assert (restore.verdict, restore.quarantines) == ("", 0)


def test_a_quarantine_is_over_at_its_time_and_not_by_a_clock_that_was_ahead() -> None:
    found = trial.quarantined(CrashTrial(5, 7, RESTORE, b"", 0, 3), until_us=100, verdict="signal 9")
    assert (found.running, found.quarantines, found.verdict) == (NOTHING, 1, "signal 9")
    assert [trial.is_over(found, now_us=now, longest_us=50) for now in (60, 99, 100, 101)] == [False, False, True, True]
    assert trial.is_over(found, now_us=20, longest_us=50), "no quarantine is so long"
    assert not trial.is_over(CrashTrial(5, 7, NOTHING), now_us=2**60, longest_us=50)


def test_a_release_for_a_dead_holder_shows_that_it_was_none() -> None:
    batch = kv.Batch()
    trial.left_behind(batch, known(None), epoch=4)
    assert keys.TRIAL.unpack(batch.puts[keys.trial_key(AT)].value) == CrashTrial(4, 7, NOTHING)
    batch = kv.Batch()
    trial.left_behind(batch, known(CrashTrial(4, 7, STEP, GIVEN)), epoch=4)
    assert batch.puts == {}, "what it was doing stays"
