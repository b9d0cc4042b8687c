"""What waits for a person from this step on: a run that is blocked, an effect that is parked.

Told to the host with what the step derived, so that it says so as soon as the step is durable. Nothing of it is
journaled: entries and rows say the same.
"""

from __future__ import annotations

from collections import deque

from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import RunStatus
from worldline.model import step_records

WAITING_FOR_MAX = 64  # runs that are told, at most, that one they wait for waits for a person


def halt(machine: Machine, why: str, run_id: str, *, effect: str = "", intent: bytes = b"") -> None:
    """A run, or an effect of it, waits for a person. Without a run: what a flow domain requires."""
    runs = waiting_for(machine, run_id) if run_id else ()
    machine.now.halted.append(step_records.Halted(why, runs, effect, intent))


def waiting_for(machine: Machine, run_id: str) -> tuple[str, ...]:
    """A run, and the live runs that wait for it, directly or through others: the nearest first."""
    found, nearest = {run_id: None}, deque([run_id])
    while nearest and len(found) < WAITING_FOR_MAX:
        run = machine.runs.get(nearest.popleft())
        if run is not None:
            above = [run.record.parent, *(follower.run for follower in run.record.followers)]
            new = [each for each in dict.fromkeys(above) if each in machine.live and each not in found]
            found |= dict.fromkeys(new)
            nearest.extend(new)
    return tuple(found)


def count_blocked(machine: Machine, *, up_to: int | None = None) -> int:
    """Say how many runs are blocked; of those that were started up to the run of this number, if it is given."""
    blocked = (run.record for run in machine.live.values() if run.record.status is RunStatus.BLOCKED)
    return sum(up_to is None or record.number <= up_to for record in blocked)


def has_blocked(machine: Machine) -> bool:
    """Return whether a run is blocked."""
    return any(run.record.status is RunStatus.BLOCKED for run in machine.live.values())
