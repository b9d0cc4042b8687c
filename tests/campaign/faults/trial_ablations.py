"""The guards of the crash budget, switched off: see `ablations.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from worldline.effects import suspects
from worldline.layers import work as works
from worldline.runtime import child_process, quarantine, trial_neighbours
from worldline.runtime import lease_calls as world_lease
from worldline.worker import crash_trials


@contextlib.contextmanager
def patched(without: str) -> Iterator[None]:
    """Switched off for the length of a block. What is no guard of the crash budget stays on."""
    match without:
        case "returned":
            with mock.patch.object(crash_trials.TrialJudge, "_returned", _nothing):
                yield
        case "acquittal":
            with mock.patch.object(world_lease, "alive_among", return_value=[]):
                yield
        case "last-attempt":
            with mock.patch.object(crash_trials.Attempts, "attempt", _unasked):
                yield
        case "quarantine-ends":
            with mock.patch.object(quarantine, "end_due", _none):
                yield
        case "beside":
            unseen = mock.patch.object(trial_neighbours.Beside, "has_effects", new=False)
            with unseen, mock.patch.object(suspects.Suspects, "holds_back", return_value=False):
                yield
        case "disturbed":
            with mock.patch.object(trial_neighbours.Beside, "disturb", _nothing):
                yield
        case "death-pause":
            with mock.patch.object(works, "pause_after", return_value=0):
                yield
        case _:
            yield


async def _nothing(*_: object) -> None:
    pass


async def _none(*_: object) -> list[object]:
    return []


async def _unasked(*_: object) -> child_process.LastAttemptOutcome:
    return child_process.LastAttemptOutcome(False, "no child was asked")
