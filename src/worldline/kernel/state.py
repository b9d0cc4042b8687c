"""A world's state: all the data that a step works on, and the transitions that change it.

`Machine` holds the cells, the runs, the open work and the schedules of one world. Other files of the kernel decide what
happens (`step.py` begins there); they change the state by calling the methods here and those of `Run`. Nothing here
calls user code.

State is defined only between steps. Its digest is H(previous, sorted digests of the changed cells), so a step costs
what it changes. A step that changes nothing (a late receipt) leaves the digest as it was.

What a step may derive is bounded. Effects and timers beyond the bound are not refused but held back (`unsent`) and
leave with later steps; so does work that is given up (`closing`: no operation waits for it, and it is still in the
queues). A step that raises too many events or writes too much fails.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest
from worldline.kernel import runs, values
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.schedule_spec import Spec
from worldline.kernel.operations import OUTLIVE, OpKind
from worldline.kernel.runs import Held, Parked, Record, Run, RunStatus
from worldline.model import ids, journal
from worldline.model import step as steps
from worldline.model.journal import Kind
from worldline.model.work import WorkKind

FINISHED_KEPT_MAX = 1_000
ENTRY_BYTES = 64  # of an entry without payload, about
EVENTS_BYTES_MAX = limits.STEP_BYTES_MAX * 3 // 4  # of a step, from which on no event is raised
SCHEDULE_TIMER = "schedule:"  # the name of a schedule's timer, before the schedule's id
UNREAD: Any = object()  # a cell's value that has to be made of its bytes first, which is user code and may fail


class Cell:
    """One reducer instance: the live object, and the bytes that represent it."""

    __slots__ = ("data", "value")

    def __init__(self, value: Any, data: bytes) -> None:
        self.value = value
        self.data = data

    def keep(self, value: Any, data: bytes) -> None:
        self.value = value
        self.data = data

    def read(self, value: Any) -> None:
        """The bytes were read: this is their value."""
        self.value = value


class Pending(msgspec.Struct, array_like=True):
    """Open work, as the world knows it: whose operation it is, and everything needed to ask for it again."""

    kind: WorkKind
    name: str
    params: bytes
    step: int
    ordinal: int
    opened_us: int
    due_us: int
    deadline_us: int
    run: str  # empty: asked for by a handler
    op: int
    event: str = ""  # of an AFTER timer: the schema of the event that `params` holds
    parked: Parked | None = None  # an effect that is not tried until a person retries it

    def park(self, parked: Parked) -> None:
        self.parked = parked

    def retry(self) -> None:
        self.parked = None


class Schedule(msgspec.Struct, array_like=True):
    """A schedule as it is kept in snapshots. (step, ordinal) identifies its open timer; 0 while that is held back."""

    id: str
    spec: Spec
    since_us: int
    due_us: int = 0
    fired: int = 0
    step: int = 0
    ordinal: int = 0

    def fire(self) -> None:
        self.fired += 1

    def arm(self, due_us: int) -> None:
        """Its next timer is asked for."""
        self.due_us = due_us
        self.step = self.ordinal = 0

    def armed(self, step: int, ordinal: int) -> None:
        """Its timer is open, and identified by this step and ordinal."""
        self.step = step
        self.ordinal = ordinal


class CurrentStep:
    """What the current step has derived so far."""

    __slots__ = (
        "bytes",
        "cancelled",
        "changed",
        "closed",
        "context",
        "counters",
        "drafts",
        "dropped",
        "events",
        "half_done",
        "ordinal",
        "outgoing",
        "overflowed",
        "raised",
        "ready",
        "turns",
        "wanted",
    )

    def __init__(self, context: steps.Context) -> None:
        self.context = context
        self.drafts: list[journal.Draft] = []
        self.wanted: list[steps.Wanted] = []
        self.closed: list[ids.IntentId] = []
        self.cancelled: list[steps.Wanted] = []
        self.outgoing: list[steps.Outgoing] = []
        self.changed: dict[bytes, bytes] = {}
        self.raised: deque[tuple[str, bytes]] = deque()
        self.ready: deque[str] = deque()
        self.counters: dict[tuple[str, str], int] = {}  # of the handlers' draws
        self.ordinal = 0
        self.events = 0
        self.overflowed = False
        self.turns = 0
        self.bytes = 0
        self.dropped: errors.CannotStep | None = None  # why nothing of this step may be journaled
        self.half_done = 0  # changes that have begun; an exception inside one, of a full stack for example, leaves it

    @property
    def full(self) -> bool:
        """Whether what can wait continues in the next step. The rest of the bytes are for what cannot."""
        return (
            self.bytes > limits.STEP_BYTES_MAX // 2
            or len(self.drafts) >= limits.STEP_ENTRIES_MAX
            or self.turns >= limits.STEP_TURNS_MAX
        )

    @property
    def has_room(self) -> bool:
        """Whether this step may ask for another effect, timer or run."""
        return len(self.wanted) < limits.STEP_EFFECTS_MAX and not self.full

    def begin_change(self) -> None:
        """From here to `end_change` the state is inconsistent: if an exception comes between, the step is dropped."""
        self.half_done += 1

    def end_change(self) -> None:
        self.half_done -= 1

    def take_turn(self) -> None:
        """A run continues once more."""
        self.turns += 1

    def next_event(self) -> bool:
        """Count an event that was raised. False if the step has no room for it."""
        self.events += 1
        return self.events <= limits.STEP_EVENTS_MAX and self.bytes <= EVENTS_BYTES_MAX

    def overflow(self) -> bool:
        """An event was not raised. True the first time."""
        first = not self.overflowed
        self.overflowed = True
        return first

    def next_key(self) -> tuple[int, int]:
        """The (step, ordinal) of the next open work."""
        key = (self.context.step, self.ordinal)
        self.ordinal += 1
        return key


class Machine:
    """The state of one world."""

    def __init__(self, program: Program, *, strict: bool = False) -> None:
        assert program.routes is not None, "what is wrong with a program shows here, before the first step"
        self.program = program
        self.strict = strict  # also refuse calls that are never awaited
        self.cells: dict[tuple[str, str], Cell] = {}
        self.runs: dict[str, Run] = {}
        self.live: dict[str, dict[str, None]] = {}  # workflow -> its live runs, in order of start
        self.open: dict[tuple[int, int], Pending] = {}
        self.by_intent: dict[ids.IntentId, tuple[int, int]] = {}
        self.unsent: deque[Held] = deque()
        self.closing: deque[Pending] = deque()  # given up when the step was full
        self.later: deque[str] = deque()  # runs that could continue when the step was full
        self.forgettable: deque[str] = deque()
        self.schedules: dict[str, Schedule] = {}
        self.state = bytes(limits.DIGEST_BYTES)
        self.run_count = 0
        self.replaying = False
        self._now: CurrentStep | None = None

    @property
    def unfinished(self) -> bool:
        """Whether a step left something for the next: the host makes that step without waiting for an input."""
        return bool(self.unsent) or bool(self.later) or bool(self.closing)

    def close(self) -> None:
        """Drop every warm coroutine. The machine must not be used any more."""
        for run in self.runs.values():
            run.cool()

    def restored(self, state: bytes, run_count: int) -> None:
        """Everything else was loaded from a snapshot: these are its digest and its count of runs."""
        self.state = state
        self.run_count = run_count

    def begin_replay(self) -> None:
        """The steps that follow have happened before: nothing is logged."""
        self.replaying = True

    def end_replay(self) -> None:
        self.replaying = False

    # --- The current step ------------------------------------------------------------------------------

    def begin_step(self, context: steps.Context) -> CurrentStep:
        self._now = now = CurrentStep(context)
        return now

    def end_step(self) -> None:
        """`CannotStep` if nothing of this step may be journaled. Then the machine must not be used any more."""
        now = self.now
        if now.dropped is not None:
            raise now.dropped
        if now.half_done:
            raise errors.CannotStep("a change of the world's state was interrupted half-way", lasting=False)
        self._now = None
        if now.changed:
            parts = sorted(digest.hash_parts(b"cell", key, value) for key, value in now.changed.items())
            self.state = digest.hash_parts(b"state", self.state, *parts)

    @property
    def now(self) -> CurrentStep:
        assert self._now is not None, "only while a step runs"
        return self._now

    @property
    def where(self) -> steps.Context | None:
        """The step that runs now, if one does."""
        return None if self._now is None else self._now.context

    def drop_step(self, why: errors.CannotStep) -> None:
        """The step depends on something that is no part of the world: it must not be journaled, however it ends."""
        if self._now is not None:
            self._now.dropped = why

    def draft(self, kind: Kind, data: bytes, *, stamp: bytes = b"", correlation: str = "") -> None:
        now = self.now
        # A payload that is too large for an entry is stored apart, and only named in it.
        now.bytes += ENTRY_BYTES + len(correlation) + (len(data) if len(data) <= limits.INLINE_BYTES_MAX else 0)
        now.drafts.append(journal.Draft(kind, data, stamp, correlation))

    def continue_later(self) -> None:
        """The step is full: the runs that are ready continue in the next one."""
        ready = self.now.ready
        self.later.extend(dict.fromkeys(ready))
        ready.clear()

    def resume_later(self) -> None:
        """The runs that had to wait for this step are ready."""
        self.now.ready.extend(self.later)
        self.later.clear()

    # --- Open work -------------------------------------------------------------------------------------

    def want(
        self,
        kind: WorkKind,
        name: str,
        params: bytes,
        *,
        due_us: int,
        deadline_us: int,
        run: str,
        op: int,
        event: str = "",
    ) -> tuple[int, int]:
        """Ask for an effect or timer now. Returns the (step, ordinal) that identifies it."""
        now = self.now
        context = now.context
        key = now.next_key()
        intent = ids.intent_id(context.address, step=key[0], ordinal=key[1], kind=name, params=params)
        self.open[key] = Pending(kind, name, params, *key, context.store_us, due_us, deadline_us, run, op, event)
        self.by_intent[intent] = key
        self.draft(
            Kind.EFFECT_REQUESTED if kind is WorkKind.EFFECT else Kind.TIMER_SET,
            values.pack([key[1], name, run, op, params, max(0, due_us - context.store_us)]),
        )
        now.wanted.append(steps.Wanted(intent, kind, *key, name, params, context.store_us, due_us, deadline_us, run))
        return key

    def want_message(self, name: str, params: bytes, *, run: str, op: int) -> tuple[tuple[int, int], ids.IntentId]:
        """Record a message that leaves with this step, so that its receipt or reply finds the operation."""
        context = self.now.context
        key = self.now.next_key()
        intent = ids.intent_id(context.address, step=key[0], ordinal=key[1], kind=name, params=params)
        self.open[key] = Pending(WorkKind.MESSAGE, name, params, *key, context.store_us, 0, 0, run, op)
        self.by_intent[intent] = key
        return key, intent

    def reopen(self, pending: Pending, address: ids.Address) -> None:
        """Open work that was loaded from a snapshot, in the world of this address."""
        key = (pending.step, pending.ordinal)
        self.open[key] = pending
        intent = ids.intent_id(address, step=key[0], ordinal=key[1], kind=pending.name, params=pending.params)
        self.by_intent[intent] = key

    def find_open(self, intent: ids.IntentId) -> Pending | None:
        key = self.by_intent.get(intent)
        return None if key is None else self.open[key]

    def settle(self, intent: ids.IntentId) -> Pending:
        """Open work was answered: remove it. The role deletes its record with this step."""
        self.now.closed.append(intent)
        return self.open.pop(self.by_intent.pop(intent))

    def take_question(self, intent: ids.IntentId) -> Pending | None:
        """Remove a question that another world has answered. Effects are not answered by messages."""
        key = self.by_intent.get(intent)
        if key is None or self.open[key].kind is not WorkKind.MESSAGE:
            return None
        del self.by_intent[intent]
        return self.open.pop(key)

    def give_up(self, step: int, ordinal: int) -> None:
        """Cancel open work: no operation waits for it from here on, and the role deletes its record, with this step or
        one of the next.
        """
        pending = self.open.pop((step, ordinal), None)
        if pending is None:
            return
        self.by_intent.pop(self.wanted_again(pending, self.now.context.address).intent, None)
        if pending.kind is WorkKind.MESSAGE:
            return
        if self.closing or self.now.full:
            self.closing.append(pending)
        else:
            self._close(pending)

    def close_given_up(self) -> None:
        """Close the work that was given up when a step was full, as far as this step has room."""
        while self.closing and not self.now.full:
            self._close(self.closing.popleft())

    def _close(self, pending: Pending) -> None:
        self.now.cancelled.append(self.wanted_again(pending, self.now.context.address))
        kind = Kind.EFFECT_CANCELLED if pending.kind is WorkKind.EFFECT else Kind.TIMER_CANCELLED
        self.draft(kind, values.dump([pending.step, pending.ordinal, pending.name]))

    @staticmethod
    def wanted_again(pending: Pending, address: ids.Address) -> steps.Wanted:
        """Open work as it was asked for."""
        intent = ids.intent_id(
            address, step=pending.step, ordinal=pending.ordinal, kind=pending.name, params=pending.params
        )
        return steps.Wanted(
            intent, pending.kind, pending.step, pending.ordinal, pending.name, pending.params, pending.opened_us,
            pending.due_us, pending.deadline_us, pending.run,
        )  # fmt: skip

    def forget_held_timer(self, name: str) -> None:
        """A schedule's timer that is held back is not wanted any more."""
        self.unsent = deque(each for each in self.unsent if each.run or each.op >= 0 or each.name != name)

    def release_held(self, run: Run) -> None:
        """A run has ended or starts over: of what it asked for and is held back, only what outlives it stays."""
        if not self.unsent:
            return
        kept: deque[Held] = deque()
        for held in self.unsent:
            if held.run != run.record.id:
                kept.append(held)
            elif held.kind in OUTLIVE and run.record.ops[held.op].outcome is None:
                kept.append(msgspec.structs.replace(held, run=""))
        self.unsent = kept

    # --- Cells and schedules ---------------------------------------------------------------------------

    def new_cell(self, key: tuple[str, str], value: Any) -> Cell:
        cell = self.cells[key] = Cell(value, values.dump(value))
        return cell

    def read_cell(self, cls: type, key: str) -> Any:
        """A copy of a cell's value; a cell that does not exist yet is a fresh instance."""
        cell = self.cells.get((self.reducer_of(cls), key))
        return cls() if cell is None else values.load(cls, cell.data)

    def reducer_of(self, cls: type) -> str:
        """The name under which a class is a reducer here."""
        name = next((each.name for each in self.program.reducers.values() if each.cls is cls), None)
        if name is None:
            raise errors.BadInput(f"{values.name_of(cls)} is not a reducer of program {self.program.name!r}")
        return name

    def mark_cell(self, reducer: str, key: str, data: bytes) -> None:
        self.now.changed[b"c" + reducer.encode() + b"\x00" + key.encode()] = digest.sha256(data)

    def mark_schedule(self, schedule_id: str, content: bytes) -> None:
        self.now.changed[b"s" + schedule_id.encode()] = content

    def schedule_of(self, timer: str) -> Schedule:
        """The schedule that a timer of this name belongs to."""
        return self.schedules[schedule_id(timer)]

    # --- Runs ------------------------------------------------------------------------------------------

    def mark_run(self, run: Run) -> None:
        self.now.changed[b"r" + run.record.id.encode()] = run.record.digest

    def live_runs(self) -> list[Run]:
        """In the order of their start."""
        return sorted((run for run in self.runs.values() if run.live), key=lambda run: run.record.number)

    def add_run(self, record: Record) -> Run:
        if not record.number:
            self.run_count += 1
            record.numbered(self.run_count)
        run = self.runs[record.id] = Run(record)
        if run.live:
            self.live.setdefault(record.workflow, {})[record.id] = None
        return run

    def child_of(self, run: Run, number: int) -> Run | None:
        """The run that an operation has started, if the world still has it."""
        found = self.runs.get(runs.child_id(run, number))
        if found is None and run.record.ops[number].kind is OpKind.START:  # it may have an id of its own
            mine = (run.record.id, number)
            started = (each for each in self.runs.values() if (each.record.parent, each.record.parent_op) == mine)
            found = next(started, None)
        return found

    def start_over(self, run: Run, workflow: str, args: bytes) -> None:
        """A run continues as new, maybe as another workflow: it is the youngest of them."""
        record = run.record
        del self.live[record.workflow][record.id]
        self.live.setdefault(workflow, {})[record.id] = None
        self.runs[record.id] = self.runs.pop(record.id)
        self.run_count += 1
        run.start_over(workflow, args, time_us=self.now.context.time_us, number=self.run_count)

    def end_run(self, run: Run) -> None:
        """A run is not live any more. The oldest ended runs without a chosen id are forgotten."""
        record = run.record
        del self.live[record.workflow][record.id]
        if not record.named:
            self.forgettable.append(record.id)
            while len(self.forgettable) > FINISHED_KEPT_MAX:
                self.runs.pop(self.forgettable.popleft(), None)


def schedule_id(timer: str) -> str:
    """The id of the schedule that a timer of this name belongs to."""
    assert timer.startswith(SCHEDULE_TIMER)
    return timer.removeprefix(SCHEDULE_TIMER)


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a RUN_FINISHED entry."""

    run: str
    status: RunStatus
    data: bytes
