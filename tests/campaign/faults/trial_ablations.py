"""The guards of the crash budget, switched off: see `ablations.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from worldline.layers import work as works
from worldline.roles import lease as world_lease
from worldline.roles.effects import suspects
from worldline.roles.trials import beside, child_process, quarantine
from worldline.roles.world import trials


@contextlib.contextmanager
def patched(without: str) -> Iterator[None]:
    """Switched off for the length of a block. What is no guard of the crash budget stays on."""
    match without:
        case "returned":
            with mock.patch.object(trials.TrialJudge, "_returned", _nothing):
                yield
        case "acquittal":
            with mock.patch.object(world_lease, "alive_among", return_value=[]):
                yield
        case "last-attempt":
            with mock.patch.object(trials.Attempts, "attempt", _unasked):
                yield
        case "quarantine-ends":
            with mock.patch.object(quarantine, "end_due", _none):
                yield
        case "beside":
            unseen = mock.patch.object(beside.Beside, "has_effects", new=False)
            with unseen, mock.patch.object(suspects.Suspects, "holds_back", return_value=False):
                yield
        case "disturbed":
            with mock.patch.object(beside.Beside, "disturb", _nothing):
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
