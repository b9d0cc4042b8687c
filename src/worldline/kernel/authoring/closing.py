"""Ending what was started: operations are cancelled, and runs among them are waited for, within a grace period.

An effect that is cancelled is given up at once. A run may still have to put things right, so the code that cancelled it
waits until it has ended, at most for the grace period. It continues then, and what has not ended continues too,
cancelled as it is, and is waited for no more.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from worldline.base import errors, failures, limits
from worldline.base.failures import CancelKind
from worldline.kernel import context, user_errors
from worldline.kernel.authoring.calls import Seconds, to_us
from worldline.kernel.run_operations import OpKind, ScopeClosing

GRACE_TIMER = "grace"
GRACE_SECONDS = limits.GRACE_SECONDS
GRACE_US = limits.GRACE_SECONDS * 1_000_000


def grace_us(grace: Seconds | None, what: str) -> int | None:
    return None if grace is None else to_us(grace, what)


def kind_for_children(why: BaseException) -> CancelKind:
    """What cancels the operations of a block that is left by this exception."""
    if isinstance(why, failures.Cancelled):
        # User code can make or change the exception, so neither of its attributes is certain to be there.
        kind = getattr(why, "kind", None)
        return kind if kind in (CancelKind.TIMEOUT, CancelKind.FAILURE) else CancelKind.PARENT
    return CancelKind.FAILURE if isinstance(why, Exception) else CancelKind.PARENT


def reason_for_children(why: BaseException, what: str) -> str:
    """Return the reason that the operations of a block get when it is left by this exception."""
    if isinstance(why, failures.Cancelled):
        reason = getattr(why, "reason", "")
        return reason if type(reason) is str and reason else f"{what} was cancelled"
    return (
        f"{what} has failed: {user_errors.message_in_step(why)}" if isinstance(why, Exception) else f"{what} has ended"
    )


def close(numbers: Sequence[int], why: BaseException, grace_us: int | None, what: str) -> Generator[Any, Any, None]:
    """Cancel these operations because `what` is left by an exception, and wait for the runs among them. Refused while a
    coroutine is only dropped.
    """
    run = context.require("wl.scope()").workflow("wl.scope()")
    kind, reason = kind_for_children(why), reason_for_children(why, what)
    # Effects and timers are given up at once; what `end_op` reports are runs, which may still clean up.
    children = tuple(number for number in numbers if run.end_op(number, reason, kind))
    if not children:
        return
    # First without a timer: runs that end within this step need none.
    if grace_us != 0 and not (yield ScopeClosing(children, brief=True)):
        yield from _wait(children, grace_us)
    # Asked for again, because each resumption of the run has its own `WorkflowCalls`.
    run = context.require("wl.scope()").workflow("wl.scope()")
    for number in children:
        run.cancel_op(number, f"it did not end within the grace period: {reason}")


def _wait(children: tuple[int, ...], grace_us: int | None) -> Generator[Any, Any, None]:
    if grace_us is None:
        yield ScopeClosing(children)
        return
    hands = context.require("wl.scope()")
    try:
        timer = hands.issue(OpKind.TIMER, GRACE_TIMER, grace_us.to_bytes(8, "big"), delay_us=grace_us)
    except errors.BadInput:  # the run may not ask for anything more: it does not wait
        return
    yield ScopeClosing(children, timer=timer)
    context.require("wl.scope()").workflow("wl.scope()").cancel_op(timer, "all have ended")
