"""Operations: what the code of a workflow can ask for, and what it yields to the kernel to wait for them.

A run's operations are numbered from 0, in the order in which the code issues them. This is plain data, shared by the
functions that authors use (`authoring/workflow_api.py`) and by the kernel.
"""

from __future__ import annotations

import enum

from worldline.base.failures import CancelKind

_TIMEOUT = CancelKind.TIMEOUT


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
    ACT = 11  # an intent for a flow domain of the same world


def describe(kind: OpKind, name: str, *, run: str, number: int) -> str:
    """What a run waits for with an operation of this number."""
    match kind:
        case OpKind.WAIT:
            return f"event {name}"
        case OpKind.ASK:
            return f"an answer of world {name}"
        case OpKind.SEND:
            return f"world {name} to take a message"
        case OpKind.CHILD | OpKind.START:
            return f"run {run}/{number} ({name})"
        case OpKind.ACT:
            return f"the end of action {name}"
        case OpKind.EFFECT:
            return f"effect {name}"
        case _:
            return f"timer {name}"


OUTLIVE = (OpKind.START, OpKind.AFTER)  # operations that continue after the run that asked for them has ended


class Await:
    """What a coroutine yields to the kernel. Anything else it yields is refused."""

    __slots__ = ()


class All(Await):
    """Resume when all these operations are done, or one has failed."""

    __slots__ = ("ops",)

    def __init__(self, ops: tuple[int, ...]) -> None:
        self.ops = ops


class First(Await):
    """Resume when either of two operations is done: a wait and its timeout."""

    __slots__ = ("ops",)

    def __init__(self, ops: tuple[int, ...]) -> None:
        self.ops = ops


class Joined(Await):
    """Resume when all these operations are done, however they ended: the end of a scope."""

    __slots__ = ("ops",)

    def __init__(self, ops: tuple[int, ...]) -> None:
        self.ops = ops


class ScopeClosing(Await):
    """Resume when all these operations, which were cancelled, have ended, or when the operation `timer` is done. With
    `brief`, resume as soon as nothing else can happen in this step. No cancellation interrupts it.
    """

    __slots__ = ("brief", "ops", "timer")

    def __init__(self, ops: tuple[int, ...], *, timer: int = -1, brief: bool = False) -> None:
        self.ops = ops
        self.timer = timer
        self.brief = brief


class ScopeOperation:
    """One entered `wl.scope`: its number in the run, and the operations that end with it.

    The first failure among these operations that the block does not wait for at that moment cancels the block:
    `failing` is its number. `heard` are the failures that the block itself got, `given_up` what it cancelled itself.
    """

    __slots__ = ("children", "failing", "given_up", "heard", "number", "shield", "timed_out", "timer")

    def __init__(self, number: int, *, shield: bool) -> None:
        self.number = number
        self.shield = shield
        self.timer = -1
        self.timed_out = False
        self.failing = -1
        self.children: list[int] = []
        self.heard: dict[int, None] = {}
        self.given_up: dict[int, None] = {}

    def limit(self, timer: int) -> None:
        """Set the operation `timer`, which cancels the scope when its time is up."""
        self.timer = timer

    def fail(self, number: int) -> None:
        """Note that the block is cancelled because this operation has failed."""
        self.failing = number

    def hear(self, number: int) -> None:
        """Note that the block got the failure of this operation where it waited for it."""
        self.heard[number] = None

    def give_up(self, number: int) -> None:
        """Note that the block has cancelled this operation: that it ends as cancelled is no failure."""
        self.given_up[number] = None

    def end_cancelled(self, kind: CancelKind) -> None:
        """Note that the block was left because the scope was cancelled."""
        # A scope without a timer cannot time out, whatever the cancellation says of itself.
        self.timed_out = kind is _TIMEOUT and self.timer >= 0


def is_shielded(scopes: list[ScopeOperation], number: int) -> bool:
    """Whether a cancellation of one of these scopes, or of the whole run (0), has to wait for a shield inside it."""
    inner = scopes
    # The whole run is around every scope, so any shield is inside of it.
    if number > 0:
        position = next((index for index, each in enumerate(scopes) if each.number == number), None)
        if position is None:
            return False  # the scope was left
        inner = scopes[position + 1 :]
    return any(each.shield for each in inner)


class ContinueAsNew(BaseException):
    """Ends a run's code. The call that the run continues with is recorded in the run."""
