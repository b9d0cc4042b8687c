"""Workflow runs as records: what a run has asked for, what it was told, and where it stands.

A run's progress is data, not a coroutine: the operations it issued, in order (`ops`), the outcome of each, and the list
of resumptions (`log`) that fed outcomes into it. A coroutine can be rebuilt from these at any time by running the code
again and feeding it the same; the warm coroutine in `Run` is a cache. Rebuilding compares every operation issued with
the one recorded, so code that no longer does the same is found at the first difference.

A run's digest chains over its issues, outcomes and end, so a step costs what changed. Times are not in it.
"""

from __future__ import annotations

import contextlib
import enum
import random
from collections.abc import Coroutine, Generator
from typing import Any, Self

import msgspec

from worldline.base import limits
from worldline.codec import canonical, digest
from worldline.kernel import context, user_errors
from worldline.model.inbox import ReceiptStatus

CLOSINGS_MAX = 10
REFUSALS_MAX = 100


class OpKind(enum.IntEnum):
    """What a run can ask for. Numbers are stored and never reused."""

    EFFECT = 1
    TIMER = 2
    WAIT = 3
    CHILD = 4
    START = 5  # a child that outlives the run
    SEND = 6
    ASK = 7
    VALUE = 8  # something read at once and recorded
    PATCH = 9
    AFTER = 10


OUTLIVE = (OpKind.START, OpKind.AFTER)  # what goes on when the run that asked for it has ended


class RunStatus(enum.IntEnum):
    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    CANCELLED = 4
    BLOCKED = 5  # the code no longer fits the record; goes on when it does again


ENDED = (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.CANCELLED)


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why something did not end well, as it is journaled: a code, a message and plain data, never an exception."""

    code: str
    message: str
    attempts: int = 0
    data: dict[str, Any] = {}


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The answer to an operation: canonical data if OK, else a `Failure`."""

    status: ReceiptStatus
    data: bytes


class Op(msgspec.Struct, array_like=True):
    """One operation. (step, ordinal) names its open work; the digest is that of its parameters."""

    kind: OpKind
    name: str
    digest: bytes
    step: int = 0
    ordinal: int = 0
    outcome: Outcome | None = None


class Resume(msgspec.Struct, frozen=True, array_like=True):
    """One feeding of the coroutine, at a logical time: with outcomes, with the failure of an operation (`failed`), or
    with a cancellation of a scope (`scope`, 0 being the whole run) for a reason.
    """

    time_us: int
    failed: int = -1
    scope: int = -1
    reason: str = ""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """An effect, timer or start of a run that a step had no room for: it leaves with the next."""

    run: str
    op: int
    kind: OpKind
    name: str
    params: bytes
    due_us: int
    id: str = ""  # of a run to be started
    seed: bytes = b""


class Parked(msgspec.Struct, frozen=True, array_like=True):
    """That an effect was set aside: after how many attempts, and what the last of them failed with."""

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
    """A run's START operation that has found its run under way already, and is done when that run is."""

    run: str
    op: int


class Record(msgspec.Struct, array_like=True):
    """A run as it is kept in snapshots."""

    id: str
    workflow: str
    args: bytes
    seed: bytes
    named: bool  # by its starter; runs that were not are forgotten some time after their end
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


class Await:
    """What a coroutine yields to the kernel. Anything else it yields is refused."""

    __slots__ = ()


class All(Await):
    """Go on when all these operations are done, or one has failed. The first `done` of them are known to be."""

    __slots__ = ("done", "ops")

    def __init__(self, ops: tuple[int, ...]) -> None:
        self.ops = ops
        self.done = -1  # not looked at yet


class First(Await):
    """Go on when either of two operations is done: a wait and its timeout."""

    __slots__ = ("ops",)

    def __init__(self, ops: tuple[int, ...]) -> None:
        self.ops = ops


class Scope:
    """One entered `wl.scope`, as the kernel sees it."""

    __slots__ = ("children", "number", "shield", "timed_out", "timer")

    def __init__(self, number: int, *, shield: bool) -> None:
        self.number = number
        self.shield = shield
        self.timer = -1
        self.timed_out = False
        self.children: list[int] = []


class Run:
    """A run in memory: its record, and the warm coroutine with what belongs to it."""

    __slots__ = (
        "alarmed", "continuing", "coroutine", "counters", "issued", "made", "patches", "rebuilding", "record",
        "scope_count", "scopes", "strayed", "time_us", "waiting", "wheres",
    )  # fmt: skip

    def __init__(self, record: Record) -> None:
        self.record = record
        self.cool()

    def cool(self) -> None:
        """Forget the warm coroutine and everything that running it again brings back."""
        close(getattr(self, "coroutine", None))
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.waiting: Await | None = None
        self.issued = 0
        self.alarmed = False  # an operation has failed since anybody looked
        self.rebuilding = False
        self.time_us = self.record.started_us
        self.scopes: list[Scope] = []
        self.scope_count = 0
        self.counters: dict[tuple[str, str], int] = {}
        self.wheres: dict[int, Any] = {}
        self.patches: dict[str, bool] = {}
        self.made: list[Any] = []
        self.continuing: tuple[str, bytes] | None = None  # what it goes on with as new
        self.strayed = ""  # how its code departs from the record, found while rebuilding

    def __del__(self) -> None:
        close(self.coroutine)

    @property
    def live(self) -> bool:
        return self.record.status in (RunStatus.RUNNING, RunStatus.BLOCKED)

    def touch(self, what: bytes, *parts: bytes) -> None:
        """Chain a change into the run's digest."""
        self.record.digest = digest.hash_parts(b"run", self.record.digest, what, *parts)

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


class Strayed(BaseException):
    """Stops code that does something else than was recorded. Not an `Exception`, so that workflows do not catch it. It
    is raised once: code that catches it all the same goes on under `Closing` until it awaits something.
    """


class Dropped(GeneratorExit):
    """Thrown at whatever a coroutine tries to do while it is being dropped. Python takes it for the end of closing."""


class Closing:
    """Stands in for a run's `Handling` while its coroutine is dropped, or has strayed from its record and is stopped:
    its `finally` blocks must not do anything any more. Code that catches what is thrown at it, again and again, gets a
    `Nowhere` instead.
    """

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        self.refused += 1
        if self.refused >= CLOSINGS_MAX:
            context.current.set(Nowhere())  # type: ignore[arg-type]
        raise Dropped(name)


class Nowhere:
    """Stands in for the `Handling` of code that catches everything. If all it asks for were refused, it would go on for
    ever; so all is taken, nothing of it happens, and what it awaits never comes: it gets as far as that, and is left.
    """

    time_us = 0
    replaying = True  # nothing is logged either
    where = None

    def __init__(self) -> None:
        self.run = Run(Record("", "", b"", b"", False, 0))
        self.run.rebuilding = True

    @property
    def machine(self) -> Self:
        return self

    def workflow(self, what: str) -> Run:  # noqa: ARG002
        return self.run

    def issue(self, *given: Any, **details: Any) -> int:  # noqa: ARG002
        return 0

    issue_call = issue

    def await_call(self, *given: Any) -> Generator[Any, Any, Any]:  # noqa: ARG002
        yield All((0,))

    wait_event = await_call

    def nothing(self, *given: Any, **details: Any) -> None:
        pass

    made_call = continue_with = emit = start = schedule = cancel_op = look_in_buffer = drop_step = nothing

    def after(self, *given: Any) -> list[bool]:  # noqa: ARG002
        return [False]

    def read_state(self, cls: Any, key: str) -> Any:  # noqa: ARG002
        return cls()

    def random(self, label: str) -> random.Random:
        return random.Random(label)

    def random_id(self, label: str) -> bytes:  # noqa: ARG002
        return bytes(limits.ID_BYTES)

    def patched(self, name: str) -> bool:  # noqa: ARG002
        return False


class _Abandoned(msgspec.Struct, gc=False):
    """Keeps a coroutine for ever: it holds itself, and the garbage collector does not look into it. Freeing a coroutine
    closes it first, and this one does not let itself be closed.
    """

    coroutine: Any
    itself: Any = None


def close(coroutine: Coroutine[Any, Any, Any] | None) -> None:
    """End a coroutine, so that nothing it still does has any effect. One that will not end is abandoned as it is."""
    if coroutine is None or getattr(coroutine, "cr_frame", None) is None:
        return
    token = context.current.set(Closing())  # type: ignore[arg-type]
    try:
        for _ in range(CLOSINGS_MAX):
            with contextlib.suppress(BaseException):  # whatever its `finally` blocks raise has no effect
                coroutine.close()
            if coroutine.cr_frame is None:  # type: ignore[attr-defined]
                return
        abandoned = _Abandoned(coroutine)
        abandoned.itself = abandoned
    finally:
        context.current.reset(token)


def failure(code: str, message: str, *, attempts: int = 0, data: dict[str, Any] | None = None) -> bytes:
    """A `Failure` as bytes. Without data it is written as it was before there was any."""
    said = [storable(code), storable(message), attempts]
    return canonical.encode([*said, data] if data else said)


def storable(text: str) -> str:
    """Text for the journal: bounded and well-formed."""
    return user_errors.plain_text(text)


def origin(workflow: str, args: bytes) -> bytes:
    """What a run was started with, as a digest."""
    return digest.hash_parts(b"origin", workflow.encode(), args)


def is_same(record: Record, workflow: str, args: bytes) -> bool:
    """Whether a run was first started with just this."""
    return (record.origin or origin(record.workflow, record.args)) == origin(workflow, args)


def outcome_of(record: Record) -> Outcome:
    """A run that has ended, as the outcome of the operation that started it."""
    return Outcome(_OUTCOMES[record.status], record.data)


_OUTCOMES = {
    RunStatus.FINISHED: ReceiptStatus.OK,
    RunStatus.FAILED: ReceiptStatus.ERROR,
    RunStatus.CANCELLED: ReceiptStatus.CANCELLED,
}


def failed(
    code: str, message: str, *, status: ReceiptStatus = ReceiptStatus.ERROR, data: dict[str, Any] | None = None
) -> Outcome:
    return Outcome(status, failure(code, message, data=data))
