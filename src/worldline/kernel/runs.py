"""Runs of workflows as records: what a run has asked for, the answers it got, and its status.

A run's progress is data, not a coroutine: the operations it issued, in order (`ops`), the outcome of each, and the list
of resumptions (`log`) that fed outcomes into it. A coroutine can be rebuilt from these at any time by running the code
again and feeding it the same; the warm coroutine in `Run` is a cache. Rebuilding compares every operation issued with
the one recorded, so code that no longer does the same is found at the first difference.

A run's digest chains over its operations, outcomes and end, so a step costs what it changes. Times are not in it.

Records are changed by the methods here alone: one method is one transition.
"""

from __future__ import annotations

import enum
from collections.abc import Coroutine
from typing import Any

import msgspec

from worldline.codec import canonical, digest
from worldline.kernel import context, user_errors
from worldline.kernel.operations import Await, OpKind, Scope
from worldline.model.inbox import ReceiptStatus

CHILD_ID_CHARACTERS_MAX = 160
SCOPE_TIMER = "scope:"  # the name of a timer that is a scope's timeout, before the scope's number


class RunStatus(enum.IntEnum):
    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    CANCELLED = 4
    BLOCKED = 5  # the code no longer fits the record; continues when it does again


ENDED = (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.CANCELLED)


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why something failed, as it is journaled: a code, a message and plain data, never an exception."""

    code: str
    message: str
    attempts: int = 0
    data: dict[str, Any] = {}


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The answer to an operation: canonical data if OK, else a `Failure`."""

    status: ReceiptStatus
    data: bytes


class Op(msgspec.Struct, array_like=True):
    """One operation. (step, ordinal) identifies its open work; the digest is that of its parameters."""

    kind: OpKind
    name: str
    digest: bytes
    step: int = 0
    ordinal: int = 0
    outcome: Outcome | None = None

    def opened(self, step: int, ordinal: int) -> None:
        """Its work is open, and identified by this step and ordinal."""
        self.step = step
        self.ordinal = ordinal


class Resume(msgspec.Struct, frozen=True, array_like=True):
    """One feeding of the coroutine, at a logical time: with outcomes, with the failure of an operation (`failed`), or
    with a cancellation of a scope (`scope`, 0 being the whole run) for a reason.
    """

    time_us: int
    failed: int = -1
    scope: int = -1
    reason: str = ""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """An effect, timer or start of a run that did not fit into its step: it is asked for in the next one."""

    run: str
    op: int
    kind: OpKind
    name: str
    params: bytes
    due_us: int
    id: str = ""  # of a run to be started
    seed: bytes = b""


class Parked(msgspec.Struct, frozen=True, array_like=True):
    """An effect that is not tried any more: the number of attempts, and what the last of them failed with."""

    attempts: int
    error: str


class Buffered(msgspec.Struct, frozen=True, array_like=True):
    """An event that came before the run waited for it."""

    schema: str
    data: bytes


class Interrupt(msgspec.Struct, frozen=True, array_like=True):
    """A cancellation that has not been delivered yet."""

    scope: int
    reason: str


class Follower(msgspec.Struct, frozen=True, array_like=True):
    """A START operation whose run existed already, started by another operation: it is done when that run ends."""

    run: str
    op: int


class Record(msgspec.Struct, array_like=True):
    """A run as it is kept in snapshots."""

    id: str
    workflow: str
    args: bytes
    seed: bytes
    named: bool  # its starter chose the id; other runs are forgotten some time after their end
    started_us: int
    status: RunStatus = RunStatus.RUNNING
    parent: str = ""
    parent_op: int = -1
    ops: list[Op] = []
    log: list[Resume] = []
    buffer: list[Buffered] = []
    interrupts: list[Interrupt] = []
    data: bytes = b""  # the result, or the Failure
    digest: bytes = b""
    blocked: str = ""  # the divergence, while BLOCKED
    number: int = 0  # runs of a world are counted from 1, in the order of their start
    again: int = 0  # how often it has continued as new
    origin: bytes = b""  # of a continued run: the digest of what it was first started with
    followers: list[Follower] = []  # besides its parent

    def numbered(self, number: int) -> None:
        """It is the youngest run of its world."""
        self.number = number

    def load_data(self, data: bytes) -> None:
        """The result, which a snapshot keeps apart if the run is long."""
        self.data = data


class Run:
    """A run in memory: its record, and the warm coroutine with what belongs to it."""

    __slots__ = (
        "alarmed", "continuing", "coroutine", "counters", "done", "issued", "made", "patches", "rebuilding", "record",
        "scope_count", "scopes", "strayed", "time_us", "waiting", "wheres",
    )  # fmt: skip

    def __init__(self, record: Record) -> None:
        self.record = record
        self.cool()

    def cool(self) -> None:
        """Drop the warm coroutine and everything that running it again brings back."""
        context.close(getattr(self, "coroutine", None))
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.waiting: Await | None = None
        self.done = -1  # the first operations of `waiting` that are known to be done; -1: not checked yet
        self.issued = 0
        self.alarmed = False  # an operation has failed since `waiting` was last checked
        self.rebuilding = False
        self.time_us = self.record.started_us
        self.scopes: list[Scope] = []
        self.scope_count = 0
        self.counters: dict[tuple[str, str], int] = {}
        self.wheres: dict[int, Any] = {}
        self.patches: dict[str, bool] = {}
        self.made: list[Any] = []
        self.continuing: tuple[str, bytes] | None = None  # the workflow and arguments it continues with as new
        self.strayed = ""  # how its code departs from the record, found while rebuilding

    def __del__(self) -> None:
        context.close(self.coroutine)

    @property
    def live(self) -> bool:
        return self.record.status in (RunStatus.RUNNING, RunStatus.BLOCKED)

    def touch(self, what: bytes, *parts: bytes) -> None:
        """Chain a change into the run's digest."""
        self.record.digest = digest.hash_parts(b"run", self.record.digest, what, *parts)

    # --- Its coroutine ---------------------------------------------------------------------------------

    def warm(self, coroutine: Coroutine[Any, Any, Any], *, rebuilding: bool) -> None:
        """A new coroutine of its code, which must be fed everything that the record has."""
        self.coroutine = coroutine
        self.rebuilding = rebuilding

    def begin(self, time_us: int) -> None:
        """The code runs for the first time."""
        self.time_us = self.record.started_us = time_us

    def at(self, time_us: int) -> None:
        """Continue at this logical time."""
        self.time_us = time_us

    def resumed(self, resume: Resume) -> None:
        """Record a feeding, before it happens."""
        self.record.log.append(resume)
        self.time_us = resume.time_us

    def wait_for(self, waiting: Await) -> None:
        """The coroutine has yielded this, and was fed to here."""
        self.waiting = waiting
        self.done = -1

    def rebuilt(self) -> None:
        """The coroutine was fed everything that the record has."""
        self.rebuilding = False

    def stray(self, report: str) -> str:
        """The code departs from the record. Returns the first report of that."""
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

    def issue(self, op: Op, label: bytes) -> None:
        """Record an operation that the code issued."""
        self.record.ops.append(op)
        self.touch(b"issue", bytes([op.kind]), label, op.digest)

    def note(self, op: Op, what: bytes, *parts: bytes) -> None:
        """Record an operation that is done at once: a value that was read, or a patch."""
        self.record.ops.append(op)
        self.touch(what, *parts)

    def answer(self, number: int, outcome: Outcome) -> None:
        """An operation is done. If it is a scope's timer, the scope is interrupted."""
        op = self.record.ops[number]
        op.outcome = outcome
        if outcome.status is not ReceiptStatus.OK:
            self.alarmed = True
        self.touch(b"outcome", number.to_bytes(4, "big"), bytes([outcome.status]), outcome.data)
        if op.kind is OpKind.TIMER and op.name.startswith(SCOPE_TIMER):
            scope = int(op.name.removeprefix(SCOPE_TIMER))
            if all(each.scope != scope for each in self.record.interrupts):
                self.record.interrupts.append(Interrupt(scope, "timeout"))

    def give_up(self, number: int, outcome: Outcome) -> None:
        """An operation is cancelled: the code does not wait for it any more."""
        self.record.ops[number].outcome = outcome
        self.alarmed = True
        self.touch(b"cancel", number.to_bytes(4, "big"))

    def buffer(self, schema: str, data: bytes) -> None:
        """Keep an event until a wait takes it."""
        self.record.buffer.append(Buffered(schema, data))
        self.touch(b"event", schema.encode(), data)

    def take_buffered(self, index: int) -> None:
        """A wait has taken this event of the buffer."""
        del self.record.buffer[index]

    # --- Scopes and cancellations ----------------------------------------------------------------------

    def new_scope(self, *, shield: bool) -> Scope:
        self.scope_count += 1
        return Scope(self.scope_count, shield=shield)

    def shielded(self, scope: int) -> bool:
        """Whether a cancellation of this scope has to wait for a shield inside it."""
        inner = self.scopes
        if scope > 0:
            position = next((index for index, each in enumerate(inner) if each.number == scope), None)
            if position is None:
                return False
            inner = inner[position + 1 :]
        return any(each.shield for each in inner)

    def inside(self, scope: int) -> bool:
        return scope == 0 or any(each.number == scope for each in self.scopes)

    def interrupt(self, scope: int, reason: str) -> None:
        """Cancel a scope, or the whole run (0), when no shield is in the way."""
        text = storable(reason)
        self.record.interrupts.append(Interrupt(scope, text))
        self.touch(b"interrupt", scope.to_bytes(4, "big"), text.encode())

    def interrupted(self, scope: int, reason: str) -> None:
        """The cancellation is delivered."""
        self.record.interrupts.remove(Interrupt(scope, reason))

    def forget_interrupts(self, scope: int) -> None:
        """The scope was left: cancellations of it have no meaning any more."""
        self.record.interrupts = [each for each in self.record.interrupts if each.scope != scope]

    # --- Its status ------------------------------------------------------------------------------------

    def block(self, report: str) -> None:
        """The code does not fit the record: keep the run as it is until the program has code that fits."""
        self.cool()
        self.record.status = RunStatus.BLOCKED
        self.record.blocked = storable(report)

    def unblock(self) -> None:
        """The program has code that fits again. The coroutine is rebuilt when the run continues."""
        self.record.status, self.record.blocked = RunStatus.RUNNING, ""
        self.cool()

    def follow(self, run: str, op: int) -> None:
        """A START operation of another run waits for this one, too."""
        self.record.followers.append(Follower(run, op))
        self.touch(b"follow", run.encode(), op.to_bytes(4, "big"))

    def detach(self, parent: str) -> None:
        """Run `parent` continues as new: none of its operations waits for this run any more."""
        record = self.record
        if record.parent == parent:
            record.parent = ""
        record.followers = [each for each in record.followers if each.run != parent]

    def start_over(self, workflow: str, args: bytes, *, time_us: int, number: int) -> None:
        """Continue as new: the same id, maybe another workflow, nothing recorded yet."""
        record = self.record
        record.origin = record.origin or origin(record.workflow, record.args)
        record.workflow = workflow
        record.args = args
        record.number = number
        record.seed = digest.hash_parts(b"again", record.seed)
        record.again += 1
        record.ops, record.log, record.interrupts = [], [], []
        record.started_us = time_us
        self.cool()
        record.digest = b""
        self.touch(b"start", record.id.encode(), workflow.encode(), args, record.seed)

    def end(self, status: RunStatus, data: bytes) -> None:
        self.record.status = status
        self.record.data = data
        self.touch(b"end", bytes([status]), data)

    def clear(self) -> list[Follower]:
        """It has ended: keep the result alone. Returns the operations that waited for it, its parent's first."""
        record = self.record
        self.cool()
        record.ops, record.log, record.buffer, record.interrupts = [], [], [], []
        followers = [Follower(record.parent, record.parent_op), *record.followers]
        record.followers = []
        return followers


def child_id(run: Run, number: int) -> str:
    """Unique in the world: by the operation, by how often the parent has continued as new, by the parent's own id."""
    parent, again = run.record.id, run.record.again
    if len(parent) > CHILD_ID_CHARACTERS_MAX:
        parent = digest.sha256(parent.encode()).hex()[:32]
    return f"{parent}/{again}.{number}" if again else f"{parent}/{number}"


def failure(code: str, message: str, *, attempts: int = 0, data: dict[str, Any] | None = None) -> bytes:
    """A `Failure` as bytes. Without data it is written as it was before there was any."""
    said = [storable(code), storable(message), attempts]
    return canonical.encode([*said, data] if data else said)


def failed(
    code: str, message: str, *, status: ReceiptStatus = ReceiptStatus.ERROR, data: dict[str, Any] | None = None
) -> Outcome:
    return Outcome(status, failure(code, message, data=data))


def storable(text: str) -> str:
    """Text for the journal: bounded and well-formed."""
    return user_errors.plain_text(text)


def origin(workflow: str, args: bytes) -> bytes:
    """What a run was started with, as a digest."""
    return digest.hash_parts(b"origin", workflow.encode(), args)


def is_same(record: Record, workflow: str, args: bytes) -> bool:
    """Whether a run was first started with exactly this."""
    return (record.origin or origin(record.workflow, record.args)) == origin(workflow, args)


def describe(op: Op) -> str:
    """An operation, for people."""
    detail = f" with parameters {op.digest.hex()[:12]}" if op.digest else ""
    where = f" (step {op.step})" if op.step else ""
    return f"{op.kind.name.lower()} {op.name!r}{detail}{where}"


def outcome_of(record: Record) -> Outcome:
    """A run that has ended, as the outcome of the operation that started it."""
    return Outcome(_OUTCOMES[record.status], record.data)


_OUTCOMES = {
    RunStatus.FINISHED: ReceiptStatus.OK,
    RunStatus.FAILED: ReceiptStatus.ERROR,
    RunStatus.CANCELLED: ReceiptStatus.CANCELLED,
}
