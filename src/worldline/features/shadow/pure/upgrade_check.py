"""Would a world do the same under other code? Its recorded life is tried again with it, and the two are compared.

Two questions are asked. What would have been otherwise, had the world continued under this code where the recording
begins (`shadow_machine.py`)? And what would not fit if it continued under this code now: runs that would be blocked,
cells that their class does not take?

User code runs here: it belongs into a thread that can be left behind. Nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from worldline.base import errors, failures
from worldline.codec import structs
from worldline.features.shadow.pure import history_comparison, shadow_report, step_requests
from worldline.features.shadow.pure.recording import Recording
from worldline.features.shadow.pure.shadow_machine import Begin, Endless, ShadowMachine
from worldline.features.shadow.pure.shadow_report import BlockedRun, CellOtherwise, RunEnd, RunOtherwise, ShadowReport
from worldline.kernel import state_rows
from worldline.kernel.authoring import reducers
from worldline.kernel.authoring.program import Program
from worldline.kernel.execution import coroutines, divergence_report
from worldline.kernel.machine import Machine, RunFinished
from worldline.kernel.parts import StepParts
from worldline.kernel.personal.vault_interface import TrialVault, Vault, in_memory
from worldline.kernel.rows.row_records import ENDED, JournaledFailure, Record, RunStatus
from worldline.kernel.runs import LiveRun
from worldline.model import row_keys
from worldline.model.journal import Kind

WAITS_SHOWN_MAX = 3

_BLOCKED = RunStatus.BLOCKED
_NOT_STARTED = "not started"
_KIND_OF = {step_requests.EFFECT: "effects", step_requests.TIMER: "timers", step_requests.MESSAGE: "messages"}


def would_differ(
    program: Program, recording: Recording, begin: Begin, parts: StepParts, vault: Vault | None = None
) -> ShadowReport:
    """Try a program on a recording. `begin` is told before each part that runs user code. `vault`: where the world's
    personal values are.
    """
    kept = TrialVault(in_memory.get() if vault is None else vault)
    after = recording.after
    head = state_rows.machine_of(program, after.state, recording.rows_after.items(), recording.at)
    try:
        head.keep_in(kept)
        trial = ShadowMachine(program, recording, kept, parts)
    # Whatever it was: the machine would stay open.
    except BaseException:
        head.close()
        raise
    try:
        trial.run(begin)
        return _compared(recording, head, trial, begin)
    except (Endless, errors.CannotStep) as error:
        return of(program, recording, head.origin.program_hash, stopped=str(error))
    finally:
        trial.machine.close()
        head.close()


def of(program: Program, recording: Recording, old_code: bytes, *, stopped: str = "") -> ShadowReport:
    """A report without differences. `stopped`: why the trial could not be brought to its end."""
    after = recording.after
    return ShadowReport(
        program.name,
        old_code.hex(),
        program.hash.hex(),
        len(recording.steps),
        recording.before.step + 1,
        after.step,
        after.height,
        stopped=stopped,
    )


def _compared(recording: Recording, head: Machine, trial: ShadowMachine, begin: Begin) -> ShadowReport:
    program = head.program
    blocked = _blocked(recording, head, trial, begin)
    silent = {run.record.id: None for run in trial.machine.live_runs() if run.record.status is _BLOCKED}
    kept: dict[str, list[Any]] = {
        "blocked": blocked,
        "effects": [],
        "timers": [],
        "messages": [],
        "cells": _cells(recording, head, trial, begin),
        "runs": list(_runs(recording, head, trial, silent)),
        "inputs": trial.inputs,
    }
    for each in history_comparison.asks(trial.pairs, trial.script.left(), trial.added, silent):
        side = each.new or each.old
        assert side is not None
        kept[_KIND_OF[side.what]].append(each)
    listed = {kind: found[: shadow_report.LISTED_MAX] for kind, found in kept.items()}
    unlisted = {
        kind: len(found) - shadow_report.LISTED_MAX
        for kind, found in kept.items()
        if len(found) > shadow_report.LISTED_MAX
    }
    tried = of(program, recording, head.origin.program_hash)
    found: ShadowReport = msgspec.structs.replace(tried, **listed, unlisted=unlisted, skipped=trial.skipped)
    return found


# --- Runs ----------------------------------------------------------------------------------------------------------


def _blocked(recording: Recording, head: Machine, trial: ShadowMachine, begin: Begin) -> list[BlockedRun]:
    """The runs that the code blocks, and that are not blocked as it is."""
    now = {run.record.id: found for run, found in _misfits(head, begin)}
    before = (recording.before.step, recording.before.height)
    after = (recording.after.step, recording.after.height)
    found: dict[str, BlockedRun] = {}
    for run in trial.machine.live_runs():
        record = run.record
        known = head.runs.get(record.id)
        if record.status is _BLOCKED and (known is None or known.record.status is not _BLOCKED):
            place = trial.blocked.get(record.id, before)
            said = now.get(record.id, record.blocked)
            found[record.id] = BlockedRun(record.id, record.workflow, said, record.id in now, *place)
    for run_id, said in now.items():
        if run_id not in found:
            found[run_id] = BlockedRun(run_id, head.runs[run_id].record.workflow, said, True, *after)
    return sorted(found.values(), key=lambda each: (each.height, each.run))


def _misfits(head: Machine, begin: Begin) -> Iterator[tuple[LiveRun, str]]:
    """The live runs that the code does not fit as they are now, and the reports."""
    for run in head.live_runs():
        if run.record.status is _BLOCKED:
            continue
        begin()
        try:
            coroutines.rebuild(head, run)
        except failures.Diverged as error:
            yield run, error.report
        except MemoryError as error:
            raise errors.CannotStep("the process has no memory left to try the program", lasting=False) from error
        finally:  # as many coroutines as runs must not stay in memory
            run.cool()


def _runs(recording: Recording, head: Machine, trial: ShadowMachine, silent: dict[str, None]) -> Iterator[RunOtherwise]:
    """The runs that end otherwise, are started by one of the two alone, or stop being blocked."""
    ended: dict[str, RunFinished] = {}
    for step in recording.steps:
        for entry in step.entries:
            if entry.kind is Kind.RUN_FINISHED:
                ended[entry.correlation] = structs.decode(RunFinished, entry.payload)
    theirs = {run: each for run, (each, _) in trial.ended.items()}
    for run in sorted({**ended, **theirs, **head.runs, **trial.machine.runs}):
        known, other = head.runs.get(run), trial.machine.runs.get(run)
        old, new = _standing(known, ended.get(run)), _standing(other, theirs.get(run))
        if run in silent or old == new or _is_forgotten(recording, run, old, new):
            continue
        record = known.record if known is not None else None if other is None else other.record
        workflow = "" if record is None else record.workflow
        waits = _waits(other.record) if other is not None and new[0] == "running" else ""
        yield RunOtherwise(run, workflow, _end(*old), _end(*new), waits)


def _standing(run: LiveRun | None, ended: RunFinished | None) -> tuple[str, bytes]:
    """How a run stands. One that has ended may be forgotten; its end is known from the journal."""
    if run is not None:
        record = run.record
        return record.status.name.lower(), record.data if record.status in ENDED else b""
    return (_NOT_STARTED, b"") if ended is None else (ended.status.name.lower(), ended.data)


def _is_forgotten(recording: Recording, run: str, *standing: tuple[str, bytes]) -> bool:
    """Whether a run had ended before the recording, and one of the two has forgotten it since."""
    start = row_keys.RUN + row_keys.text(run) + row_keys.START
    return any(each[0] == _NOT_STARTED for each in standing) and recording.rows_before.get(start) is not None


def _end(status: str, data: bytes) -> RunEnd:
    if status not in ("failed", "cancelled"):
        return RunEnd(status, shadow_report.value_of(data))
    try:
        found = structs.decode(JournaledFailure, data)
    except errors.DecodeError:
        return RunEnd(status, shadow_report.value_of(data))
    return RunEnd(status, {"code": found.code, "message": found.message})


def _waits(record: Record) -> str:
    waiting = [divergence_report.describe(op) for op in record.ops if op.outcome is None]
    more = len(waiting) - WAITS_SHOWN_MAX
    return ", ".join(waiting[:WAITS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


# --- Cells ---------------------------------------------------------------------------------------------------------


def _cells(recording: Recording, head: Machine, trial: ShadowMachine, begin: Begin) -> list[CellOtherwise]:
    old = history_comparison.cells_of(recording.rows_after)
    new = {name: cell.data for name, cell in trial.machine.cells.items()}
    # Under the same code, every cell was made by these very classes.
    is_same = head.origin.program_hash == head.program.hash
    unfit = {} if is_same else _unfit(head.program, old, begin)
    found = [each for each in history_comparison.cells(old, new) if (each.reducer, each.key) not in unfit]
    return [*(CellOtherwise(*name, unfit=why) for name, why in unfit.items()), *found]


def _unfit(program: Program, cells: history_comparison.Cells, begin: Begin) -> dict[tuple[str, str], str]:
    """The cells as they are now that the program's classes do not take."""
    found: dict[tuple[str, str], str] = {}
    for (name, key), data in cells.items():
        reducer = program.reducers.get(name)
        if reducer is None:
            continue
        begin()
        try:
            reducers.value_of(reducer.cls, name, key, data)
        except errors.CellUnfit as error:
            found[name, key] = str(error)
    return found
