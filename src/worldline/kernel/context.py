"""Which handler or workflow is running now, if any, and what it can call.

The kernel sets `current` around every piece of user code, so that `await`, `wl.now()` and the other functions of
`authoring/workflow_api.py` find the run they belong to. It belongs to the thread, so that two kernels in two threads do
not see each other. It is no `ContextVar`: before Python 3.12, a garbage collection inside `ContextVar.set` that closes
a coroutine whose last lines set one, too, reads freed memory, and the process dies of it.

`Running` is the interface between those functions and the kernel. `execution/handler_calls.py` and
`execution/workflow_calls.py` implement it. Two stand-ins are here, `ClosingRun` and `Nowhere`, for code that must not
have any effect any more.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Coroutine, Generator
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import msgspec

from worldline.base import errors, failures, limits
from worldline.base.failures import CancelKind
from worldline.kernel.run_operations import All, OpKind, ScopeOperation
from worldline.model import inbox
from worldline.model import step_records as steps

CLOSINGS_MAX = 10

T = TypeVar("T")


class Running(Protocol):
    """The handler or workflow that is running. A call is a `Call` of `authoring/calls.py`, which imports this file.

    A handler refuses what needs a workflow with `OutsideWorkflow`.
    """

    @property
    def time_us(self) -> int:
        """The logical time."""

    @property
    def store_us(self) -> int:
        """The store's time of this step."""

    @property
    def where(self) -> steps.StepContext | None:
        """The step that is running, if there is one."""

    @property
    def run_id(self) -> str:
        """Empty in a handler."""

    @property
    def is_silent(self) -> bool:
        """Whether this has happened before (a replay, a run being rebuilt), so that nothing is logged."""

    @property
    def handler(self) -> RunningHandler | None:
        """What only a handler can do, if this is one."""

    def workflow(self, what: str) -> RunningWorkflow:
        """What only a workflow can do. `OutsideWorkflow` names `what` if this is a handler."""

    def sender(self) -> inbox.Message | None:
        """Return the message whose event the handler takes, if it is one of another world's."""

    def drop_step(self, why: errors.CannotStep) -> None: ...
    def made_call(self, call: Any) -> None: ...
    def emit(self, event: object) -> None: ...
    def schedule(self, schedule_id: str, spec: Any) -> None: ...
    def read_state(self, cls: type, key: str) -> Any: ...
    def random(self, label: str) -> random.Random: ...
    def random_id(self, label: str) -> bytes: ...

    def issue(self, kind: OpKind, name: str, params: bytes, *, delay_us: int = 0) -> int:
        """Issue the next operation of the run. Returns its number."""

    def issue_call(self, call: Any, kind: OpKind, *, run_id: str = "") -> int: ...
    def await_call(self, call: Any) -> Generator[Any, Any, Any]: ...
    def wait_event(self, kind: type, where: Any, timeout_us: int | None) -> Generator[Any, Any, Any]: ...
    def continue_with(self, call: Any) -> None: ...
    def patched(self, name: str) -> bool: ...


class RunningHandler(Protocol):
    """What a handler asks for, to be done if the handler succeeds."""

    def start(self, call: Any, run_id: str) -> None: ...

    def after(self, delay_us: int, event: object) -> list[bool]:
        """Raise an event later. Setting the item of the returned list to True cancels that, in the same handler."""


class RunningWorkflow(Protocol):
    """Operations that a run has issued, and its scopes."""

    def child_id(self, number: int) -> str: ...
    def cancel_op(self, number: int, reason: str) -> None: ...

    def end_op(self, number: int, reason: str, kind: CancelKind) -> bool:
        """Cancel an operation. True if it is a run, which may take its time to end."""

    def unfit(self, number: int, error: errors.DecodeError) -> BaseException:
        """An operation's answer does not fit the type that the code has for it. Returns what is raised for that: what
        stops the run, which is blocked then.
        """

    def failed_in(self, scope: ScopeOperation) -> list[tuple[int, str]]:
        """The operations of a scope that failed and whose failure its block did not get: their numbers, and why."""

    def new_scope(self, *, shield: bool) -> ScopeOperation: ...
    def enter_scope(self, scope: ScopeOperation) -> None: ...
    def leave_scope(self, scope: ScopeOperation) -> None: ...
    def cancel_scope(self, scope: ScopeOperation, reason: str) -> None: ...


class OfThread(threading.local, Generic[T]):
    """A value that each thread has for itself."""

    def __init__(self, value: T) -> None:
        self._value = value

    def get(self) -> T:
        return self._value

    def set(self, value: T) -> T:
        """Set it. Returns what it was, for `reset`."""
        before, self._value = self._value, value
        return before

    def reset(self, before: T) -> None:
        self._value = before


current: Final[OfThread[Running | None]] = OfThread(None)
# Whether a signal can interrupt the code that runs: in a test's own thread, where Ctrl-C must end the test. Hosts run
# worlds in threads that get no signals.
interruptible: Final[OfThread[bool]] = OfThread(False)


def require(what: str) -> Running:
    """Return the handler or workflow that is running; `what` is refused outside of one."""
    running = current.get()
    if running is None:
        raise failures.OutsideWorkflow(f"{what} works only inside a workflow or a reducer's handler")
    return running


# --- Code that must not have any effect any more -----------------------------------------------------------------


class Strayed(BaseException):
    """Stops code that does something else than was recorded. Not an `Exception`, so that workflows do not catch it. It
    is raised once: code that catches it all the same continues under `ClosingRun` until it awaits something.
    """


class Interrupted(BaseException):
    """Raised in user code by the host, because its step does not return. Nothing of the step is journaled."""


class Dropped(GeneratorExit):
    """Raised by every function that a coroutine calls while it is being dropped. Python takes it for the end of
    closing.
    """


class ClosingRun:
    """Stands in for a run's `Running` while its coroutine is dropped, or is stopped because it strayed from its record:
    its `finally` blocks must not have any effect. Code that catches `Dropped` again and again gets a `Nowhere` instead.
    """

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        self.refused += 1
        # From here on calls succeed and do nothing: code that catches every refusal would never end.
        if self.refused >= CLOSINGS_MAX:
            current.set(Nowhere())
        raise Dropped(name)


class Nowhere:
    """Stands in for the `Running` of code that catches everything. If every call were refused, the code could continue
    for ever. So every call is accepted, none has an effect, and what the code awaits never happens: it is left there.
    """

    time_us = 0
    store_us = 0
    where = None
    run_id = ""
    is_silent = True
    handler = None

    def __init__(self) -> None:
        self._scopes: list[ScopeOperation] = []
        self._scope_count = 0

    def workflow(self, what: str) -> Self:  # noqa: ARG002
        return self

    def issue(self, *given: Any, **details: Any) -> int:  # noqa: ARG002
        return 0

    issue_call = issue

    def await_call(self, *given: Any) -> Generator[Any, Any, Any]:  # noqa: ARG002
        yield All((0,))

    wait_event = await_call

    def nothing(self, *given: Any, **details: Any) -> None:
        pass

    made_call = continue_with = emit = schedule = drop_step = cancel_op = cancel_scope = nothing

    def read_state(self, cls: Any, key: str) -> Any:  # noqa: ARG002
        return cls()

    def random(self, label: str) -> random.Random:
        return random.Random(label)

    def random_id(self, label: str) -> bytes:  # noqa: ARG002
        return bytes(limits.ID_BYTES)

    def patched(self, name: str) -> bool:  # noqa: ARG002
        return False

    def sender(self) -> None:
        return None

    def child_id(self, number: int) -> str:
        return f"/{number}"

    def end_op(self, *given: Any) -> bool:  # noqa: ARG002
        return False

    def unfit(self, number: int, error: errors.DecodeError) -> BaseException:  # noqa: ARG002
        return error

    def failed_in(self, scope: ScopeOperation) -> list[tuple[int, str]]:  # noqa: ARG002
        return []

    def new_scope(self, *, shield: bool) -> ScopeOperation:
        self._scope_count += 1
        return ScopeOperation(self._scope_count, shield=shield)

    def enter_scope(self, scope: ScopeOperation) -> None:
        self._scopes.append(scope)

    def leave_scope(self, scope: ScopeOperation) -> None:
        self._scopes.remove(scope)


class _Abandoned(msgspec.Struct, gc=False):
    """Keeps a coroutine for ever: it refers to itself, and the garbage collector does not look into it. Freeing a
    coroutine closes it first, and this one cannot be closed.
    """

    coroutine: Any
    itself: Any = None


def close(coroutine: Coroutine[Any, Any, Any] | None) -> None:
    """End a coroutine, so that nothing it still does has any effect. One that does not end is abandoned as it is."""
    # Ended already, or no coroutine: the user's function can return anything.
    if coroutine is None or getattr(coroutine, "cr_frame", None) is None:
        return
    closing: Any = ClosingRun()
    before = current.set(closing)
    try:
        # Code that awaits something while it is closed ignores `close`, so that is tried a few times.
        for _ in range(CLOSINGS_MAX):
            with contextlib.suppress(BaseException):  # whatever its `finally` blocks raise has no effect
                coroutine.close()
            if coroutine.cr_frame is None:  # type: ignore[attr-defined]
                return
        abandon(coroutine)
    finally:
        current.reset(before)


def abandon(coroutine: Coroutine[Any, Any, Any] | None) -> None:
    """Leave a coroutine as it is, for ever."""
    if coroutine is not None:
        abandoned = _Abandoned(coroutine)
        # The circle keeps it: nothing else refers to it from here on.
        abandoned.itself = abandoned
