"""Operations: what the code of a workflow can ask for, and what it yields to the kernel to wait for them.

A run's operations are numbered from 0, in the order in which the code issues them. This is plain data, shared by the
functions that authors use (`authoring/workflow_api.py`) and by the kernel.
"""

from __future__ import annotations

import enum


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


class Scope:
    """One entered `wl.scope`: its number in the run, and the operations that end with it."""

    __slots__ = ("children", "number", "shield", "timed_out", "timer")

    def __init__(self, number: int, *, shield: bool) -> None:
        self.number = number
        self.shield = shield
        self.timer = -1
        self.timed_out = False
        self.children: list[int] = []

    def limit(self, timer: int) -> None:
        """The operation `timer` cancels the scope when its time is up."""
        self.timer = timer

    def end_cancelled(self, reason: str) -> None:
        """The block was left because the scope was cancelled."""
        self.timed_out = reason == "timeout" and self.timer >= 0


class ContinueAsNew(BaseException):
    """Ends a run's code. The call that the run continues with is recorded in the run."""
