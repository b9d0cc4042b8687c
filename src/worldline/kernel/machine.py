"""A world's state: all the data that a step works on, and the transitions that change it.

`Machine` holds the cells, the runs, the open work and the schedules of one world. Other files of the kernel decide what
happens (`step.py` begins there); they change the state by calling the methods here and those of `LiveRun`. Nothing here
calls user code.

State is data: a map of small rows (`model/row_keys.py`), of which the objects here are the form that steps work on.
Each transition notes the rows that it changes; a step ends by writing those out (`worldline.model.change`), so it costs
what it changes, and a world can be brought back from its rows without any user code (`state_rows.py`).

What a step may derive is bounded (`rows/current_step.py`). Effects and timers beyond the bound are not refused but held
back (`unsent`) and leave with later steps; so does work that is given up (`closing`: no operation waits for it, and it
is still in the queues). A step that raises too many events or writes too much fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.kernel import runs, user_values
from worldline.kernel.authoring.program import Program
from worldline.kernel.personal.vault_interface import Vault, in_memory
from worldline.kernel.rows.branch_rows import Branch, ScriptRule
from worldline.kernel.rows.cells import Cells, Fetch
from worldline.kernel.rows.current_step import CurrentStep
from worldline.kernel.rows.domain_rows import Domains
from worldline.kernel.rows.origin import OriginRows
from worldline.kernel.rows.pending_work import OpenWork
from worldline.kernel.rows.row_ledger import RecordQueue, RowLedger, Write, Written
from worldline.kernel.rows.row_records import Cell, Record, RunId, RunStatus, Schedule
from worldline.kernel.run_operations import OpKind
from worldline.kernel.runs import LiveRun
from worldline.model import change, ids, state_digest
from worldline.model import row_keys as keys
from worldline.model import step_records as steps
from worldline.model.journal import Kind

FINISHED_KEPT_MAX = 1_000
SCHEDULE_TIMER = "schedule:"  # the name of a schedule's timer, before the schedule's id

# Of a machine. A cycle touches many worlds, each for a moment: with slots, there is less memory to fetch for each.
_SLOTS = (
    "__weakref__",
    "_exact",
    "_waiting",
    "branch",
    "cells",
    "children",
    "domains",
    "forgettable",
    "later",
    "ledger",
    "live",
    "now",
    "origin",
    "program",
    "replaying",
    "run_count",
    "runs",
    "schedules",
    "state",
    "strict",
    "vault",
    "work",
)


class Machine:
    """The state of one world."""

    __slots__ = _SLOTS
    now: CurrentStep  # only while a step runs

    def __init__(
        self, program: Program, *, strict: bool = False, exact: bool = False, fetch: Fetch | None = None
    ) -> None:
        assert program.routes is not None, "what is wrong with a program shows here, before the first step"
        self.program = program
        self.strict = strict  # also refuse calls that are never awaited, and other arguments than were recorded
        self._exact = exact  # refuse other arguments, where this very program had asked
        self.cells = Cells(fetch)
        self.runs: dict[str, LiveRun] = {}
        self.live: dict[str, LiveRun] = {}  # in order of start
        self._waiting: dict[
            str | None, dict[str, LiveRun]
        ] = {}  # by the schema of events; None: those that get every one
        self.ledger = RowLedger()
        self.work, self.domains = OpenWork(self.ledger), Domains(self.ledger)
        self.later: RecordQueue[RunId] = RecordQueue(
            self.ledger.top, keys.LATER
        )  # they could continue when a step was full
        self.forgettable: RecordQueue[RunId] = RecordQueue(self.ledger.top, keys.FORGETTABLE)
        self.schedules: dict[str, Schedule] = {}
        self.state = bytes(limits.DIGEST_BYTES)
        self.run_count, self.children = 0, runs.ChildRuns()
        self.origin = OriginRows(self.ledger, program.hash)
        self.branch: Branch | None = None  # of a fork
        self.replaying = False
        self.vault: Vault = in_memory.get()  # of personal values

    @property
    def unfinished(self) -> bool:
        """Whether a step left something for the next: the host makes that step without waiting for an input."""
        unsettled = self.branch is not None and self.branch.unsettled
        return unsettled or bool(self.later.items or self.work.unsent.items or self.work.closing.items)

    def keep_in(self, vault: Vault) -> None:
        self.vault = vault

    def close(self) -> None:
        """Drop every warm coroutine. The machine must not be used any more."""
        for run in self.runs.values():
            run.cool()

    def restored(self, state: bytes) -> None:
        """Set the digest of the rows, which were loaded."""
        self.state = state

    def counted(self, run_count: int) -> None:
        """What the row of the count says."""
        self.run_count = run_count

    def _count_row(self) -> Written:
        return [self.run_count], [], b""

    def is_exact(self, step: int) -> bool:
        """Return whether an operation of this step must have the same arguments: not what earlier code asked for."""
        return self.strict or (self._exact and step >= self.origin.since_step)

    @property
    def seed(self) -> bytes:
        """What the draws of handlers are made from, besides where they are made."""
        return self.origin.seed(self.now.context.address)

    def branched(self, branch: Branch) -> None:
        """Set what the world is a fork of, as its row says."""
        self.branch = branch

    def fork(self, branch: Branch, rules: list[ScriptRule], parent: ids.Address, *, salt: bytes) -> None:
        """Let the world begin as a fork."""
        if self.branch is not None:
            self.branch.forget()
        self.branch = branch
        branch.begin(rules)
        self.origin.forked(parent, salt=salt)

    def become(self, other: Machine) -> None:
        """Everything is as it is there, except the digest and the current step. The other one must not be used."""
        # The warm coroutines here belong to runs that go.
        self.close()
        other.cells.continue_from(self.cells)
        self.ledger, self.work, self.origin, self.branch = other.ledger, other.work, other.origin, other.branch
        self.cells, self.runs, self.live, self._waiting = other.cells, other.runs, other.live, other._waiting
        self.later, self.forgettable, self.schedules = other.later, other.forgettable, other.schedules
        self.run_count, self.domains, self.children = other.run_count, other.domains, other.children
        self.work.begin_step(self.now)
        self.now.go_back()

    def rows(self) -> Iterator[tuple[bytes, Write]]:
        """Yield every row of the state, save those of cells that are not in memory."""
        for cell in self.cells.values():
            yield cell.key, cell.write
        yield from self.rows_beside_cells()

    def rows_beside_cells(self) -> Iterator[tuple[bytes, Write]]:
        """Yield every row that is no cell."""
        yield keys.RUN_COUNT, self._count_row
        yield keys.PROGRAM, self.origin.write
        if self.branch is not None:
            yield from self.branch.rows()
        for run in self.runs.values():
            yield from run.rows()
        yield from self.work.rows()
        yield from self.later.rows()
        yield from self.forgettable.rows()
        for schedule in self.schedules.values():
            yield keys.SCHEDULE + keys.text(schedule.id), schedule.write
        yield from self.domains.rows()

    def begin_replay(self) -> None:
        """Note that the steps that follow have happened before: nothing is logged."""
        self.replaying = True

    def end_replay(self) -> None:
        self.replaying = False

    # --- The current step ------------------------------------------------------------------------------

    def begin_step(self, context: steps.StepContext, given: steps.Input) -> CurrentStep:
        self.now = now = CurrentStep(context, given.blocks, given.erased, given.secret)
        self.work.begin_step(now)
        return now

    def end_step(self) -> tuple[list[change.Change], bytes, bytes]:
        """The rows that the step has changed, their digest, and their plain form (`state_digest.digests`). `CannotStep`
        if nothing of this step may be journaled. Then the machine must not be used any more.
        """
        now = self.now
        # Asked again at the end: user code may have caught what dropped the step.
        if now.dropped is not None:
            raise now.dropped
        if now.half_done:
            raise errors.CannotStep("a change of the world's state was interrupted half-way", lasting=False)
        del self.now
        self.work.end_step()
        changes = self.ledger.collect()
        self.state, covered, plain = state_digest.digests(self.state, changes)
        return changes, covered, plain

    @property
    def where(self) -> steps.StepContext | None:
        """The step that runs now, if one does."""
        return self.now.context if hasattr(self, "now") else None

    def drop_step(self, why: errors.CannotStep) -> None:
        """The step depends on something that is no part of the world: it must not be journaled, however it ends."""
        if self.where is not None:
            self.now.drop(why)

    def draft(self, kind: Kind, data: bytes, *, stamp: bytes = b"", correlation: str = "") -> None:
        self.now.draft(kind, data, stamp=stamp, correlation=correlation)

    def continue_later(self) -> None:
        """Leave the runs that are ready to the next step, because this one is full."""
        now = self.now
        # A run can be ready more than once: its first place in line counts.
        self.later.extend(map(RunId, dict.fromkeys([*now.ready, *now.patient])))
        now.ready.clear()
        now.patient.clear()

    def resume_later(self) -> None:
        """Make the runs ready that had to wait for this step."""
        self.now.ready.extend(each.id for each in self.later)
        self.later.clear()

    # --- Cells and schedules ---------------------------------------------------------------------------

    def find_cell(self, key: tuple[str, str]) -> Cell | None:
        """A cell, fetched if it is not in memory. If that fails, so does the step, and nothing of it is journaled."""
        try:
            return self.cells.find(key)
        except errors.CannotStep as error:
            self.drop_step(error)
            raise

    def read_cell(self, cls: type, key: str) -> Any:
        """A copy of a cell's value; a cell that does not exist yet is a fresh instance."""
        cell = self.find_cell((self.reducer_of(cls), key))
        return cls() if cell is None else user_values.load(cls, cell.data)

    def reducer_of(self, cls: type) -> str:
        """Return the name under which a class is a reducer here."""
        name = next((each.name for each in self.program.reducers.values() if each.cls is cls), None)
        if name is None:
            raise errors.BadInput(f"{user_values.name_of(cls)} is not a reducer of program {self.program.name!r}")
        return name

    def put_schedule(self, schedule: Schedule) -> None:
        """Make a schedule, or change it."""
        self.schedules[schedule.id] = schedule
        self.ledger.top.put(keys.SCHEDULE + keys.text(schedule.id), schedule.write)

    def remove_schedule(self, schedule_id: str) -> Schedule | None:
        removed = self.schedules.pop(schedule_id, None)
        if removed is not None:
            self.ledger.top.gone(keys.SCHEDULE + keys.text(schedule_id))
        return removed

    def arm_schedule(self, timer: str, work: int) -> None:
        """Note the number of a schedule's timer, which is open now."""
        schedule = self.schedules[schedule_id(timer)]
        schedule.armed(work)
        self.put_schedule(schedule)

    # --- Runs ------------------------------------------------------------------------------------------

    def interested(self, schema: str) -> list[LiveRun]:
        """Return the live runs that may wait for an event, in the order of their start."""
        some, others = self._waiting.get(schema), self._waiting.get(None)
        if not others:
            return list(some.values()) if some else []
        # The runs that get every event are merged in, because the order of start decides which run gets it first.
        return sorted([*(some or {}).values(), *others.values()], key=lambda run: run.record.number)

    def _count_in(self, run: LiveRun) -> None:
        """A live run: the events it may wait for, and the run that has started it."""
        of = run.record.interests
        for schema in (None,) if of is None else of:
            self._waiting.setdefault(schema, {})[run.record.id] = run
        self.children.add(run.record.parent)

    def _count_out(self, run: LiveRun) -> None:
        of = run.record.interests
        for schema in (None,) if of is None else of:
            del self._waiting[schema][run.record.id]
        self.children.remove(run.record.parent)

    def rebuilt(self, run: LiveRun) -> None:
        """Ask again which events a run waits for that was rebuilt: its code may have changed."""
        of = self.program.interests(run.record.workflow)
        if of != run.record.interests:
            self._count_out(run)
            run.interested(of)
            self._count_in(run)
            for schema in (None,) if of is None else of:  # it is younger than some that were there before
                others = self._waiting[schema]
                self._waiting[schema] = dict(sorted(others.items(), key=lambda each: each[1].record.number))

    def live_runs(self) -> list[LiveRun]:
        """List the live runs, in the order of their start."""
        return list(self.live.values())

    def add_run(self, record: Record) -> LiveRun:
        """Add a new run, as the youngest."""
        record.numbered(self._next_run())
        run = self.runs[record.id] = self.live[record.id] = LiveRun(record, self.ledger, is_new=True)
        self._count_in(run)
        return run

    def load_run(self, record: Record) -> None:
        """Add a run that was loaded. Runs are loaded in the order of their start."""
        run = self.runs[record.id] = LiveRun(record, self.ledger)
        if run.live:
            self.live[record.id] = run
            self._count_in(run)

    def _next_run(self) -> int:
        self.run_count += 1
        self.ledger.top.put(keys.RUN_COUNT, self._count_row)
        return self.run_count

    def child_of(self, run: LiveRun, number: int) -> LiveRun | None:
        """Return the run that an operation has started, if the world still has it."""
        found = self.runs.get(runs.child_id(run, number))
        if found is None and run.record.ops[number].kind is OpKind.START:  # it may have an id of its own
            mine = (run.record.id, number)
            started = (each for each in self.runs.values() if (each.record.parent, each.record.parent_op) == mine)
            found = next(started, None)
        return found

    def start_over(self, run: LiveRun, workflow: str, args: bytes) -> None:
        """A run continues as new, maybe as another workflow: it is the youngest of them."""
        record = run.record
        # Moved to the end: these maps are in the order of start.
        self.runs[record.id] = self.runs.pop(record.id)
        self.live[record.id] = self.live.pop(record.id)
        self._count_out(run)
        run.start_over(
            workflow,
            args,
            time_us=self.now.context.time_us,
            number=self._next_run(),
            interests=self.program.interests(workflow),
        )
        self._count_in(run)

    def revive(self, run: LiveRun) -> None:
        """A run that has ended is live again, as the youngest. No operation waits for it."""
        record = run.record
        self.forgettable.keep(lambda each: None if each.id == record.id else each)
        record.numbered(self._next_run())
        run.detach(record.parent)
        run.interested(self.program.interests(record.workflow))
        self.runs[record.id] = self.live[record.id] = self.runs.pop(record.id)
        self._count_in(run)

    def end_run(self, run: LiveRun) -> None:
        """Note that a run has ended. The oldest ended runs without a chosen id are forgotten."""
        record = run.record
        del self.live[record.id]
        self._count_out(run)
        # A chosen id is kept for ever: starting it again must find the run.
        if not record.named:
            self.forgettable.append(RunId(record.id))
            while len(self.forgettable) > FINISHED_KEPT_MAX:
                forgotten = self.runs.pop(self.forgettable.popleft().id, None)
                if forgotten is not None:
                    forgotten.forgotten()


def schedule_id(timer: str) -> str:
    """Return the id of the schedule that a timer of this name belongs to."""
    assert timer.startswith(SCHEDULE_TIMER)
    return timer.removeprefix(SCHEDULE_TIMER)


class Blocked(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a RUN_BLOCKED entry. `unfit`: the run got an answer that does not fit the code now. That follows
    from state and code alone. Anything else is found when a run is rebuilt, which depends on what was in memory.
    """

    run: str
    report: str
    unfit: bool = False


class RunFinished(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a RUN_FINISHED entry."""

    run: str
    status: RunStatus
    data: bytes
