"""The records that a world's state consists of, each of them a row: runs and what they record, cells, open work,
schedules. `write` gives a record as the fields of its row; `state_rows.py` makes records of rows.

What changes a record is a method here; what else has to change with it, and noting the row, is up to the objects that
own records: `LiveRun`, `OpenWork` and `Machine`.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from worldline.base.failures import CancelKind
from worldline.codec import canonical, structs
from worldline.kernel.authoring.schedule_spec import Spec
from worldline.kernel.rows.row_ledger import RecordQueue, Written
from worldline.kernel.run_operations import OpKind
from worldline.model import ids
from worldline.model.cell_rows import CellKind, StoredCell
from worldline.model.inbox import ReceiptStatus
from worldline.model.work import WorkKind

UNREAD: Any = object()  # a cell's value that has to be made of its bytes first, which is user code and may fail
OWN_WORK = -1  # an operation's work that has no row of its own


class RunStatus(enum.IntEnum):
    """How a run stands."""

    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    CANCELLED = 4
    BLOCKED = 5  # the code no longer fits the record; continues when it does again


ENDED = (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.CANCELLED)


class JournaledFailure(msgspec.Struct, frozen=True, array_like=True):
    """Why something failed, as it is journaled: a code, a message and plain data, never an exception."""

    code: str
    message: str
    attempts: int = 0
    data: dict[str, Any] = {}


class Outcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to an operation: canonical data if OK, else a `JournaledFailure`. `placed`: the data says only when
    and where something came about, as the receipt of a message does, and two worlds that live the same have other ones.
    """

    status: ReceiptStatus
    data: bytes
    placed: bool = False

    def is_same(self, other: Outcome) -> bool:
        """Return whether both give the same answer, however it is kept."""
        return self.status is other.status and self.data == other.data

    def write(self) -> Written:
        # As placement it is in no state digest, which must be equal for worlds that live the same.
        if self.placed:
            return [int(self.status)], [self.data], b""
        return [int(self.status), self.data], [], self.data


class Op(msgspec.Struct, gc=False):
    """One operation: what was asked for, by which feeding of which incarnation, and in which step."""

    kind: OpKind
    name: str
    params: bytes
    fed: int = 0  # the number of the feeding that issued it; 0: the first, with which the code began
    again: int = 0  # how often the run had continued as new, or been reset, when it was issued
    step: int = 0
    work: int = 0  # the number of its work, if that outlives the run; OWN_WORK: it is `asked`, and in the same row
    asked: Pending | None = None  # its work, which is open until there is an outcome
    outcome: Outcome | None = None

    def opened(self, pending: Pending | None) -> None:
        """Its work is open; None: it was given up."""
        if pending is None:
            self.work, self.asked = 0, None
        elif pending.number:
            self.work, self.asked = pending.number, None
        else:
            self.work, self.asked = OWN_WORK, pending

    @property
    def parked(self) -> Parked | None:
        """Of an effect that is not tried any more."""
        return None if self.asked is None else self.asked.parked

    def park(self, parked: Parked | None) -> None:
        assert self.asked is not None
        self.asked.park(parked)

    def answer(self, outcome: Outcome) -> None:
        """Record its outcome, or another one."""
        self.outcome = outcome

    def issued_by(self, *, fed: int, again: int, step: int) -> None:
        """Which feeding of which incarnation asks for it now."""
        self.fed, self.again, self.step = fed, again, step

    def write(self) -> Written:
        asked = self.asked
        meaning = [int(self.kind), self.name, self.params, self.fed, self.again, self.work]
        if asked is None:
            return meaning, [self.step], self.params
        if asked.name != self.name or asked.params != self.params:  # a fork asks for something else in its place
            meaning += (int(asked.kind), asked.name, asked.params)
        return meaning, [self.step, *asked.placement()], self.params


class Resume(msgspec.Struct, frozen=True, gc=False):
    """One feeding of the coroutine, at a logical time: with outcomes, with the failure of an operation (`failed`), or
    with a cancellation of a scope (`scope`, 0 being the whole run) of a kind and for a reason; then `failed` is the
    operation whose failure cancels the scope, if one does. `waited`: cancelled operations have not all ended yet.
    `salts`: how many salts the world had (`origin.py`).
    """

    time_us: int
    failed: int = -1
    scope: int = -1
    reason: str = ""
    kind: CancelKind = CancelKind.USER
    waited: bool = False
    salts: int = 0

    def write(self) -> Written:
        if self.failed < 0 and self.scope < 0 and not (self.reason or self.waited or self.salts) and self.kind is _USER:
            return _FED, [self.time_us], b""
        meaning = [self.failed, self.scope, self.reason, int(self.kind), self.waited]
        return [*meaning, self.salts] if self.salts else meaning, [self.time_us], b""


_USER = CancelKind.USER
_FED = canonical.encode_flat([-1, -1, "", int(_USER), False])  # with outcomes, as nearly always


class DeferredOperation(msgspec.Struct, frozen=True, gc=False):
    """An effect, timer, intent or start of a run that did not fit into its step: it is asked for in the next one."""

    run: str
    op: int
    kind: OpKind
    name: str
    params: bytes
    due_us: int
    # Of a run to be started; of an intent whose caller gives it none; of an effect of a flow domain, its requirement.
    id: str = ""
    seed: bytes = b""
    attached: bytes = b""  # as `Pending.attached`

    def write(self) -> Written:
        meaning: list[Any] = [self.run, self.op, int(self.kind), self.name, self.params, self.id, self.seed]
        if self.attached:
            return [*meaning, self.attached], [self.due_us], self.attached
        return meaning, [self.due_us], self.params


class Parked(msgspec.Struct, frozen=True):
    """An effect that is not tried any more: the number of attempts, and what the last of them failed with."""

    attempts: int
    error: str

    def write(self) -> Written:
        return [self.attempts, self.error], [], b""


class Buffered(msgspec.Struct, frozen=True):
    """An event that came before the run waited for it."""

    schema: str
    data: bytes

    def write(self) -> Written:
        return [self.schema, self.data], [], self.data


class PendingCancel(msgspec.Struct, frozen=True):
    """A cancellation that has not been delivered yet."""

    scope: int
    reason: str
    kind: CancelKind = CancelKind.USER

    def write(self) -> Written:
        return [self.scope, self.reason, int(self.kind)], [], b""


class Follower(msgspec.Struct, frozen=True):
    """A START operation whose run existed already, started by another operation: it is done when that run ends."""

    run: str
    op: int

    def write(self) -> Written:
        return [self.run, self.op], [], b""


class RunId(msgspec.Struct, frozen=True):
    """A run in a queue of runs."""

    id: str

    def write(self) -> Written:
        return [self.id], [], b""


class Record(msgspec.Struct):
    """A run as data."""

    id: str
    workflow: str
    args: bytes
    seed: bytes
    named: bool  # its starter chose the id; other runs are forgotten some time after their end
    started_us: int
    status: RunStatus = RunStatus.RUNNING
    parent: str = ""
    parent_op: int = -1
    number: int = 0  # runs of a world are counted from 1, in the order of their start
    again: int = 0  # how often it has continued as new, or was reset
    origin: bytes = b""  # of a continued run: the digest of what it was first started with
    turning: bool = False  # it was reset: its code turns live where its operations end
    salts: int = 0  # how many salts the world had when its code began
    correlation_id: str = ""  # what its starter calls what it belongs to; its children have the same
    interests: list[str] | None = None  # the events that its code waits for; None: unknown, so it gets every event
    ended_us: int = 0
    data: bytes = b""  # the result, or the Failure
    blocked: str = ""  # the divergence, while BLOCKED
    ops: list[Op] = []
    log: list[Resume] = []
    buffer: RecordQueue[Buffered] = msgspec.field(default_factory=RecordQueue)
    interrupts: RecordQueue[PendingCancel] = msgspec.field(default_factory=RecordQueue)
    followers: RecordQueue[Follower] = msgspec.field(default_factory=RecordQueue)  # besides its parent

    def numbered(self, number: int) -> None:
        """Give it its number, as the youngest run of its world."""
        self.number = number

    def started_with(self, meaning: list[Any], started_us: int) -> None:
        """Read the fields that `write` wrote."""
        (
            self.workflow,
            self.args,
            self.seed,
            self.named,
            self.parent,
            self.parent_op,
            self.number,
            self.again,
            self.origin,
            self.interests,
            self.turning,
            *rest,
        ) = meaning
        # What was added later is left out where it says nothing, so rows from before read the same.
        self.started_us, self.salts = started_us, rest[0] if rest else 0
        self.correlation_id = rest[1] if len(rest) > 1 else ""

    def correlate(self, correlation_id: str) -> None:
        """Set the correlation id of what it belongs to."""
        self.correlation_id = correlation_id

    def begin(self, time_us: int, salts: int) -> None:
        """Its code runs for the first time."""
        self.started_us, self.salts = time_us, salts

    def start_over(
        self,
        workflow: str,
        args: bytes,
        *,
        origin: bytes,
        seed: bytes,
        number: int,
        interests: list[str] | None,
        time_us: int,
    ) -> None:
        """It continues as new."""
        self.workflow, self.args, self.origin, self.seed = workflow, args, origin, seed
        self.number, self.interests, self.started_us = number, interests, time_us
        self.again += 1

    @property
    def was_cancelled(self) -> bool:
        """Whether a cancellation of the whole run was delivered, or is about to be."""
        return any(each.scope == 0 for each in self.interrupts) or any(each.scope == 0 for each in self.log)

    def waited_for_by(self, parent: str, first: int, end: int) -> bool:
        """Return whether one of these operations of run `parent` waits for this run."""
        waiting = [(self.parent, self.parent_op), *((each.run, each.op) for each in self.followers)]
        return any(run == parent and first <= op < end for run, op in waiting)

    def detach(self, parent: str, first: int, end: int) -> bool:
        """None of these operations of run `parent` waits for it any more. Returns whether it was started by one."""
        owned = self.parent == parent and first <= self.parent_op < end
        if owned:
            self.parent = ""
        self.followers.keep(lambda each: None if each.run == parent and first <= each.op < end else each)
        return owned

    def reset(self, first: int, fed: int, *, returned: list[Buffered], interrupts: list[PendingCancel]) -> None:
        """It runs again, with the operations before this one and so many feedings. `returned`: events that come first
        again; `interrupts`: the cancellations that wait.
        """
        del self.ops[first:], self.log[fed:]
        self.interrupts.replace(interrupts)
        if returned:
            self.buffer.replace([*returned, *self.buffer])
        self.again += 1
        # Reset to its start it simply begins: there is nothing behind which it would turn live.
        self.turning = bool(first)
        self.stand(RunStatus.RUNNING)

    def turned(self) -> None:
        """Its code has asked for everything that a reset has kept."""
        self.turning = False

    def stand(self, status: RunStatus, data: bytes = b"", *, blocked: str = "", ended_us: int = 0) -> None:
        """Its status, with its result or the divergence; and when it ended, if it has."""
        self.status, self.data, self.blocked, self.ended_us = status, data, blocked, ended_us

    def interested(self, interests: list[str] | None) -> None:
        self.interests = interests

    def forget_progress(self) -> None:
        """Its operations, their outcomes, the feedings and the cancellations are gone."""
        self.ops, self.log = [], []
        self.interrupts.forget()

    def write(self) -> Written:
        meaning = [
            self.workflow,
            self.args,
            self.seed,
            self.named,
            self.parent,
            self.parent_op,
            self.number,
            self.again,
            self.origin,
            self.interests,
            self.turning,
        ]
        # Places are fixed, so with a correlation id the salts are written even if there are none.
        if self.correlation_id:
            meaning += (self.salts, self.correlation_id)
        elif self.salts:
            meaning.append(self.salts)
        return meaning, [self.started_us], self.args

    def write_status(self) -> Written:
        return [int(self.status), self.data, self.blocked], [self.ended_us], self.data


class Cell:
    """One reducer instance, or a cell of a flow domain: the live object, and the bytes that represent it."""

    __slots__ = ("data", "folds", "key", "kind", "value")

    def __init__(self, key: bytes, value: Any, data: bytes, folds: int = 0, kind: CellKind = CellKind.REDUCER) -> None:
        self.key = key  # of its row
        self.value = value
        self.data = data
        self.folds = folds  # how many events have changed it, or drawn something
        self.kind = kind  # as its row says it

    def keep(self, value: Any, data: bytes, kind: CellKind = CellKind.REDUCER) -> None:
        """Take what an event has made of it. A cell that one kind of code leaves becomes that of the code that writes
        it, so the kind is set each time.
        """
        self.value = value
        self.data = data
        self.kind = kind

    def folded(self) -> None:
        self.folds += 1

    def roll_back(self, folds: int, data: bytes, kind: CellKind) -> None:
        """Bring it back to what it was before an event."""
        self.folds, self.data, self.kind, self.value = folds, data, kind, UNREAD

    def read(self, value: Any) -> None:
        """Keep the value that the bytes were read as."""
        self.value = value

    def write(self) -> Written:
        # Most cells are reducers': their rows are made without another call.
        meaning = StoredCell(self.folds, self.data, self.kind).fields if self.kind else [self.folds, self.data]
        return meaning, [], b""


class Pending(msgspec.Struct, gc=False):
    """Open work, as the world knows it: whose operation it is, and everything needed to ask for it again."""

    number: int  # of its row, counted from 1; 0: it belongs to an operation, and is in that one's row
    kind: WorkKind
    name: str
    params: bytes
    step: int
    ordinal: int
    opened_us: int
    due_us: int
    deadline_us: int
    run: str  # empty: asked for by a handler or a schedule, or by a run that it outlives
    op: int
    event: str = ""  # of an AFTER timer: the schema of the event that `params` holds; of an effect that a flow domain
    # requires: which of its requirements it answers
    parked: Parked | None = None  # an effect that is not tried until a person retries it
    attached: bytes = b""  # the snapshot that goes with an effect of a flow domain: it leaves the world, and no entry
    # has it; a large one is one blob
    secret: bytes = b""  # of a question: what its name is made with; no part of its row

    @property
    def leaving(self) -> bytes:
        """The parameters as they leave the world."""
        if not self.attached:
            return self.params
        fields: Any = canonical.decode(self.params)
        return canonical.encode([*fields, self.attached])

    def intent(self, address: ids.Address) -> ids.IntentId:
        """Its name outside the world of this address."""
        made = ids.intent_id(address, step=self.step, ordinal=self.ordinal, kind=self.name, params=self.params)
        return ids.question_id(made, self.secret) if self.secret else made

    def keep_secret(self, secret: bytes) -> None:
        """It is a question, and this is what its name is made with; nothing: it was asked before there were secrets."""
        self.secret = secret

    def renamed(self, step: int, ordinal: int) -> None:
        """Give it the name that it has when this step asks for it again."""
        self.step, self.ordinal = step, ordinal

    def park(self, parked: Parked | None) -> None:
        self.parked = parked

    def write(self) -> Written:
        parked = [] if self.parked is None else [self.parked.attempts, self.parked.error]
        if self.attached:
            return [*self.meaning(), *parked, self.attached], self.placement(), self.attached
        return [*self.meaning(), *parked], self.placement(), self.params

    def meaning(self) -> list[Any]:
        return [int(self.kind), self.name, self.params, self.run, self.op, self.event]

    def placement(self) -> list[int]:
        return [self.step, self.ordinal, self.opened_us, self.due_us, self.deadline_us]


class GivenUp(msgspec.Struct, frozen=True):
    """Work that no operation waits for any more, and that is still in the queues."""

    pending: Pending

    def write(self) -> Written:
        return [*self.pending.meaning(), self.pending.number], self.pending.placement(), self.pending.params


class Schedule(msgspec.Struct):
    """A schedule. `work` is the number of its open timer; 0 while that is held back."""

    id: str
    spec: Spec
    since_us: int
    due_us: int = 0
    fired: int = 0
    work: int = 0

    def fire(self) -> None:
        self.fired += 1

    def arm(self, due_us: int) -> None:
        """Its next timer is asked for."""
        self.due_us = due_us
        self.work = 0

    def armed(self, work: int) -> None:
        """Its timer is open."""
        self.work = work

    def write(self) -> Written:
        spec = structs.encode(self.spec)
        return [spec, self.fired, self.work], [self.since_us, self.due_us], spec
