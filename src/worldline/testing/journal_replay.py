"""Replaying a journal that was exported from a store, or by a test, on the code as it is now."""

from __future__ import annotations

from pathlib import Path

from worldline.base import errors
from worldline.host.feature_list import PARTS
from worldline.kernel import replay as replays
from worldline.kernel import state_rows
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.layers.history import journal_file
from worldline.model import payload
from worldline.testing import loopless


def replay(path: str | Path, program: Program, /) -> int:
    """Run every step of an exported journal on this program's code. `Diverged` at the first difference.

    Returns the number of steps. A file that is damaged or cut short is refused before anything runs.
    """
    with Path(path).open(encoding="utf-8") as file:
        exported = journal_file.read(file)
    # Another program's code would differ at the first step, and say nothing useful.
    if exported.program != program.name:
        raise errors.BadInput(f"{path} is the journal of a world of {exported.program!r}, not of {program.name!r}")
    machine = Machine(program)
    if exported.parts:  # a journal that was exported from a height begins with a snapshot
        machine = state_rows.load(program, exported.parts, exported.at)

    def load(carried: payload.Payload) -> bytes:
        return carried.inline if carried.inline is not None else exported.blobs[carried.ref or b""]

    count = 0
    try:
        for entries in replays.steps(exported.filled()):
            with loopless.loopless():
                replays.check(machine, entries, exported.at, load, PARTS)
            count += 1
    finally:
        machine.close()
    return count
