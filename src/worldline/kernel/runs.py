"""Runs of workflows as records: what a run has asked for, the answers it got, and its status.

A run's progress is data, not a coroutine: the operations it issued, in order (`ops`), the outcome of each, and the list
of resumptions (`log`) that fed outcomes into it. A coroutine can be rebuilt from these at any time by running the code
again and feeding it the same; the warm coroutine in `LiveRun` is a cache. Rebuilding compares every operation issued
with the one recorded, so code that no longer does the same is found at the first difference.

Each of these is a row of the world's state (`model/row_keys.py`), so a step costs what it changes, however long the run
is. Records are changed by the methods here alone: one method is one transition, and notes the rows that it changes.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from worldline.base import errors
from worldline.base.bounded_map import BoundedMap
from worldline.base.failures import CancelKind
from worldline.codec import canonical, digest, structs
from worldline.kernel import context, run_operations, user_errors
from worldline.kernel.rows.row_ledger import RowLedger, Write
from worldline.kernel.rows.row_records import (
    Buffered,
    Follower,
    JournaledFailure,
    Op,
    Outcome,
    Parked,
    Pending,
    PendingCancel,
    Record,
    Resume,
    RunStatus,
)
from worldline.kernel.rows.run_rows import RunRows
from worldline.kernel.run_operations import All, Await, OpKind, ScopeOperation
from worldline.model.inbox import ReceiptStatus

CHILD_ID_CHARACTERS_MAX = 160
DIFFERING_KEPT_MAX = 100
OPS_END = 2**62  # behind every operation
TRACES_MAX = 16  # of failures that a run has not been fed with yet
SCOPE_TIMER = "scope:"  # the name of a timer that is a scope's timeout, before the scope's number
_OK, _CANCELLED = ReceiptStatus.OK, ReceiptStatus.CANCELLED
_LIVE = (RunStatus.RUNNING, RunStatus.BLOCKED)


class FailureTraces:
    """Tracebacks of operations that fail, until the code is fed with the failures. A run that is rebuilt has none."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        # By operation: its failure, and the traceback beside it.
        self._kept: BoundedMap[int, tuple[bytes, str]] = BoundedMap(TRACES_MAX)

    def keep(self, number: int, data: bytes, trace: str) -> None:
        """Keep the traceback of an operation that is about to fail, for the code that is fed with the failure."""
        self._kept[number] = (data, trace)

    def take(self, number: int, outcome: Outcome | None) -> str:
        """Return the traceback that came with the failure of an operation, once."""
        data, trace = self._kept.pop(number, (b"", ""))
        # Only with the failure that it was made for: the operation may have got another outcome.
        return trace if outcome is not None and outcome.data == data else ""


class LiveRun:
    """A run in memory: its record, and the warm coroutine with what belongs to it."""

    __slots__ = (
        "_rows",
        "alarmed",
        "checked",
        "continuing",
        "coroutine",
        "counters",
        "differing",
        "done",
        "issued",
        "made",
        "patches",
        "rebuilding",
        "record",
        "salts",
        "scope_count",
        "scopes",
        "strayed",
        "time_us",
        "traces",
        "turning",
        "unfit",
        "waiting",
        "wheres",
    )

    def __init__(self, record: Record, ledger: RowLedger, *, is_new: bool = False) -> None:
        self.record = record
        self._rows = RunRows(record, ledger, is_new=is_new)
        self.traces = FailureTraces()
        self.cool()

    def cool(self) -> None:
        """Drop the warm coroutine and everything that running it again brings back."""
        # In the first call, from `__init__`, there is no coroutine yet.
        context.close(getattr(self, "coroutine", None))
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.waiting: Await | None = None
        self.done = -1  # the first operations of `waiting` that are known to be done; -1: not checked yet
        self.issued = 0
        self.alarmed = False  # an operation has failed since `waiting` was last checked
        self.checked = False  # no operation has failed since its scopes were last checked
        self.rebuilding = False
        self.time_us, self.salts = self.record.started_us, self.record.salts
        self.scopes: list[ScopeOperation] = []
        self.scope_count = 0
        self.counters: dict[tuple[str, str], int] = {}
        self.wheres: dict[int, Any] = {}
        self.patches: dict[str, bool] = {}
        self.made: list[Any] = []
        self.continuing: tuple[str, bytes] | None = None  # the workflow and arguments it continues with as new
        self.strayed = ""  # how its code departs from the record, found while rebuilding; or which answer does not fit
        self.unfit = False  # the last feeding was with an answer that does not fit the code
        self.differing: dict[int, bytes] = {}  # operations that the code asks for with other arguments now
        self.turning = False  # the last feeding is made again, and turns live where its operations end

    def abandon(self) -> None:
        """Leave the warm coroutine as it is, without closing it: not even its `finally` blocks may run."""
        context.abandon(self.coroutine)
        self.coroutine = None

    def __del__(self) -> None:
        # Python closes a coroutine that is freed, and its `finally` blocks would run with all their effects.
        context.close(self.coroutine)

    @property
    def live(self) -> bool:
        return self.record.status in _LIVE

    def forgotten(self) -> None:
        """Drop its rows: the world forgets it."""
        self._rows.forgotten()

    def rows(self) -> Iterator[tuple[bytes, Write]]:
        """Yield all its rows."""
        return self._rows.all()

    # --- Its coroutine ---------------------------------------------------------------------------------

    def warm(self, coroutine: Coroutine[Any, Any, Any], *, rebuilding: bool) -> None:
        """A new coroutine of its code, which must be fed everything that the record has."""
        self.coroutine = coroutine
        self.rebuilding = rebuilding

    def begin(self, time_us: int, salts: int) -> None:
        """Note when the code runs for the first time."""
        self.time_us, self.salts = time_us, salts
        self.record.begin(time_us, salts)
        self._rows.started()

    def at(self, resume: Resume | None, *, turning: bool = False) -> None:
        """Make a feeding again; None: its code begins. `turning`: it is the last one that a reset has kept."""
        made = (self.record.started_us, self.record.salts) if resume is None else (resume.time_us, resume.salts)
        self.time_us, self.salts, self.turning = *made, turning

    def resumed(self, resume: Resume) -> None:
        """Record a feeding, before it happens."""
        self.record.log.append(resume)
        self._rows.fed()
        self.time_us, self.salts = resume.time_us, resume.salts

    def wait_for(self, waiting: Await) -> None:
        """Set what the coroutine waits for now."""
        self.waiting = waiting
        self.done = -1

    def rebuilt(self) -> None:
        """Note that the coroutine was fed everything that the record has."""
        self.rebuilding = False

    def turned(self) -> None:
        """Turn live: the code has asked for everything that a reset has kept."""
        self.rebuilding = self.turning = False
        self.record.turned()
        self._rows.started()

    def differ(self, number: int, params: bytes) -> None:
        """Note that the code asks for an operation with other arguments than were recorded."""
        # Bounded, because it is only shown to people.
        if len(self.differing) < DIFFERING_KEPT_MAX:
            self.differing[number] = params

    def stray(self, report: str, *, unfit: bool) -> str:
        """The code departs from the record, or cannot take the answer it is fed. Returns the first report of that."""
        # What follows the first departure is its consequence.
        self.unfit = unfit and not self.strayed
        self.strayed = self.strayed or report
        return self.strayed

    def continue_with(self, workflow: str, args: bytes) -> None:
        """What it continues with as new, when its code ends."""
        self.continuing = workflow, args

    def is_pending(self, ops: tuple[int, ...]) -> bool:
        """Whether some of the operations it waits for are not done, and none can have failed since the last check. A
        check continues where the last one ended, so thousands of operations are not looked at each time. The first
        check, and one after a failure, is left to the caller.
        """
        if self.alarmed or self.done < 0:
            self.alarmed = False
            self.done = max(self.done, 0)
            return False
        recorded = self.record.ops
        while self.done < len(ops) and recorded[ops[self.done]].outcome is not None:
            self.done += 1
        return self.done < len(ops)

    # --- Its operations --------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Count one more operation. Returns its number."""
        self.issued += 1
        return self.issued - 1

    def issue(self, op: Op) -> None:
        """Record an operation that the code issued."""
        self.record.ops.append(op)
        number = len(self.record.ops) - 1
        self._rows.issued()
        if op.outcome is not None:  # a value that was read, or a patch: it is done at once
            self._rows.done(number)

    def opened(self, number: int, pending: Pending | None) -> None:
        """An operation's work is open; None: it was given up, and the operation gets no outcome by that."""
        self.record.ops[number].opened(pending)
        self._rows.opened(number)

    def park(self, number: int, parked: Parked | None) -> None:
        """An operation's effect is not tried any more; None: it is tried again, or has an outcome."""
        self.record.ops[number].park(parked)
        self._rows.parked(number)

    def answer(self, number: int, outcome: Outcome) -> None:
        """An operation is done, or gets another answer. If it is a scope's timer, the scope is interrupted."""
        op = self._done(number, outcome)
        # A failure may end the wait before its other operations are done.
        if outcome.status is not _OK:
            self.alarmed, self.checked = True, False
        scope = timed_scope(op)
        # A scope is interrupted once.
        if scope and all(each.scope != scope for each in self.record.interrupts):
            self.record.interrupts.append(timed_out(scope))

    def give_up(self, number: int, outcome: Outcome) -> None:
        """Cancel an operation that the code does not wait for any more."""
        self._done(number, outcome)
        self.alarmed, self.checked = True, False

    def _done(self, number: int, outcome: Outcome) -> Op:
        op = self.record.ops[number]
        is_new = op.outcome is None
        op.answer(outcome)
        self._rows.done(number, is_new=is_new)
        # It has an outcome, so nothing waits for a person any more.
        if op.parked is not None:
            self.park(number, None)
        return op

    def buffer(self, schema: str, data: bytes) -> None:
        """Keep an event until a wait takes it."""
        self.record.buffer.append(Buffered(schema, data))

    def take_buffered(self, index: int) -> None:
        """Remove an event of the buffer that a wait has got."""
        self.record.buffer.remove_at(index)

    # --- Scopes and cancellations ----------------------------------------------------------------------

    def new_scope(self, *, shield: bool) -> ScopeOperation:
        self.scope_count += 1
        return ScopeOperation(self.scope_count, shield=shield)

    def shielded(self, scope: int) -> bool:
        """Return whether a cancellation of this scope has to wait for a shield inside it."""
        return run_operations.is_shielded(self.scopes, scope)

    def inside(self, scope: int) -> bool:
        return scope == 0 or any(each.number == scope for each in self.scopes)

    def interrupt(self, scope: int, reason: str, kind: CancelKind) -> None:
        """Cancel a scope, or the whole run (0), when no shield is in the way."""
        self.record.interrupts.append(PendingCancel(scope, storable(reason), kind))

    def interrupted(self, interrupt: PendingCancel) -> None:
        """Remove a cancellation that is delivered."""
        self.record.interrupts.remove(interrupt)

    def find_failure(self) -> tuple[int, int] | None:
        """The outermost scope with an operation that has failed, and that operation's number: where neither the block
        got the failure, nor waits for the operation now, nor has cancelled it, nor a shield is in the way. A scope is
        cancelled so once.
        """
        found, hidden = _find_failure(self)
        self.checked = found is None and not hidden
        return found

    def fail_scope(self, scope: int, number: int) -> None:
        """Tell the code of a scope's block that this operation has failed."""
        for each in (one for one in self.scopes if one.number == scope):
            each.fail(number)

    def forget_interrupts(self, scope: int) -> None:
        """Drop the cancellations of a scope that was left."""
        self.record.interrupts.keep(lambda each: None if each.scope == scope else each)

    # --- Its status ------------------------------------------------------------------------------------

    def block(self, report: str) -> bool:
        """The code does not fit the record: keep the run as it is until the program has code that fits. A feeding with
        an answer that does not fit is taken back. Returns whether there was one.
        """
        # Taken back, to be made again with code that takes the answer.
        unfit = self.unfit
        if unfit:
            self._rows.drop_from(len(self.record.ops), len(self.record.log) - 1)
            self.record.log.pop()
        self.cool()
        self.record.stand(RunStatus.BLOCKED, blocked=storable(report))
        self._rows.stands()
        return unfit

    def unblock(self) -> None:
        """Let a blocked run continue. Its coroutine is rebuilt then."""
        self.record.stand(RunStatus.RUNNING)
        self._rows.stands()
        self.cool()

    def interested(self, interests: list[str] | None) -> None:
        """Set the events that its code waits for, which may have changed with the code."""
        self.record.interested(interests)
        self._rows.started()

    def follow(self, run: str, op: int) -> None:
        """A START operation of another run waits for this one, too."""
        self.record.followers.append(Follower(run, op))

    def detach(self, parent: str, first: int = 0, end: int = OPS_END) -> None:
        """None of these operations of run `parent` waits for this run any more."""
        if self.record.detach(parent, first, end):
            self._rows.started()

    def start_over(self, workflow: str, args: bytes, *, time_us: int, number: int, interests: list[str] | None) -> None:
        """Continue as new: the same id, maybe another workflow, nothing recorded yet."""
        record = self.record
        # Through all restarts: the call that first started it must still find it.
        first = record.origin or origin(record.workflow, record.args)
        record.start_over(
            workflow,
            args,
            origin=first,
            # With the same seed it would draw the same again.
            seed=digest.hash_parts(b"again", record.seed),
            number=number,
            interests=interests,
            time_us=time_us,
        )
        self._clear_progress()
        self._rows.started()
        self.cool()

    def reset(self, first: int, *, returned: list[Buffered], interrupts: list[PendingCancel]) -> None:
        """Drop the operations from this one on, and what the code was fed behind them (`Record.reset`)."""
        self.cool()
        fed = feedings_kept(self.record, first)
        self._rows.drop_from(first, fed)
        self.record.reset(first, fed, returned=returned, interrupts=interrupts)
        self._rows.stands()
        self._rows.started()

    def end(self, status: RunStatus, data: bytes, *, time_us: int) -> None:
        self.record.stand(status, data, ended_us=time_us)
        self._rows.stands()

    def clear(self) -> list[Follower]:
        """It has ended: keep the result alone. Returns the operations that waited for it, its parent's first."""
        record = self.record
        self.cool()
        self.traces = FailureTraces()  # of failures that its code was not fed with
        followers = [Follower(record.parent, record.parent_op), *record.followers]
        self._clear_progress()
        self._rows.drop_arrived()
        record.buffer.forget()
        record.followers.forget()
        return followers

    def _clear_progress(self) -> None:
        self._rows.drop_progress()
        self.record.forget_progress()


class ChildRuns:
    """How many live runs were started by each run. Counted from the records alone, so that a world that was restored
    counts the same.
    """

    __slots__ = ("_of", "count")

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self.count = 0  # of all runs together

    def of(self, parent: str) -> int:
        return self._of.get(parent, 0)

    def add(self, parent: str) -> None:
        """A run that this one has started is live; none: no run has."""
        if not parent:
            return
        self._of[parent] = self._of.get(parent, 0) + 1
        self.count += 1

    def remove(self, parent: str) -> None:
        """It has ended, or is no child any more."""
        if not parent:
            return
        self.count -= 1
        left = self._of[parent] - 1
        if left:
            self._of[parent] = left
        else:
            del self._of[parent]

    def detach(self, run: LiveRun, parent: str, first: int = 0, end: int = OPS_END) -> None:
        """None of these operations of run `parent` waits for this live run any more: it is no child of it, either."""
        # Read before `detach` clears it.
        owner = run.record.parent
        run.detach(parent, first, end)
        if not run.record.parent:
            self.remove(owner)


def _find_failure(run: LiveRun) -> tuple[tuple[int, int] | None, bool]:
    """`Run.find_failure`; and whether there is a failure that may be found later."""
    waiting = run.waiting
    awaited = waiting.ops if type(waiting) is All else ()
    ops = run.record.ops
    hidden = False
    for scope in run.scopes:
        # It was cancelled for a failure already: the rest has no part in that.
        if scope.failing >= 0:
            continue
        for number in scope.children:
            outcome = ops[number].outcome
            if outcome is None or outcome.status is _OK or number in scope.heard:
                continue
            if outcome.status is _CANCELLED and number in scope.given_up:
                continue
            if number not in awaited and not run.shielded(scope.number):
                return (scope.number, number), hidden
            hidden = True
    return None, hidden


def feedings_kept(record: Record, first: int) -> int:
    """Say how many feedings are left if the operations from this one on are dropped: up to the one that issued it."""
    if not first:
        return 0
    return record.ops[first].fed if first < len(record.ops) else len(record.log)


def timed_scope(op: Op) -> int:
    """Return the number of the scope that a timer limits; 0 if it limits none."""
    timed = op.kind is OpKind.TIMER and op.name.startswith(SCOPE_TIMER)
    return int(op.name.removeprefix(SCOPE_TIMER)) if timed else 0


def timed_out(scope: int) -> PendingCancel:
    """Make the cancellation of a scope whose time is up."""
    return PendingCancel(scope, "timeout", CancelKind.TIMEOUT)


def child_id(run: LiveRun, number: int) -> str:
    """Unique in the world: by the operation, by how often the parent had continued as new, by the parent's own id."""
    record = run.record
    parent, again = record.id, record.ops[number].again if number < len(record.ops) else record.again
    # Ids of nested runs grow with their depth; a digest keeps them short.
    if len(parent) > CHILD_ID_CHARACTERS_MAX:
        parent = digest.sha256(parent.encode()).hex()[:32]
    return f"{parent}/{again}.{number}" if again else f"{parent}/{number}"


def failure(code: str, message: str, *, attempts: int = 0, data: dict[str, Any] | None = None) -> bytes:
    """A `JournaledFailure` as bytes. Without data it is written as it was before there was any."""
    said = [storable(code), storable(message), attempts]
    return canonical.encode([*said, data] if data else said)


def failed(
    code: str, message: str, *, status: ReceiptStatus = ReceiptStatus.ERROR, data: dict[str, Any] | None = None
) -> Outcome:
    return Outcome(status, failure(code, message, data=data))


def message_of(outcome: Outcome) -> str:
    """Say why an operation failed, for people."""
    try:
        return structs.decode(JournaledFailure, outcome.data).message
    except errors.DecodeError:
        return "no reason was given"


def storable(text: str) -> str:
    """Text for the journal: bounded and well-formed."""
    return user_errors.plain_text(text)


def origin(workflow: str, args: bytes) -> bytes:
    """Make a digest of what a run was started with."""
    return digest.hash_parts(b"origin", workflow.encode(), args)


def is_same(record: Record, workflow: str, args: bytes) -> bool:
    """Return whether a run was first started with exactly this."""
    return origin_of(record) == origin(workflow, args)


def origin_of(record: Record) -> bytes:
    """What a run was first started with, as a digest."""
    return record.origin or origin(record.workflow, record.args)


def outcome_of(record: Record) -> Outcome:
    """A run that has ended, as the outcome of the operation that started it."""
    return Outcome(_OUTCOMES[record.status], record.data)


_OUTCOMES = {
    RunStatus.FINISHED: ReceiptStatus.OK,
    RunStatus.FAILED: ReceiptStatus.ERROR,
    RunStatus.CANCELLED: ReceiptStatus.CANCELLED,
}
