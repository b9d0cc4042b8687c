"""Which handler or workflow is running now, if any.

The kernel sets this around every piece of user code, so that `await`, `wl.now()` and the rest find the run they belong
to. A context variable and not a global, so that two kernels in two threads do not see each other.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from worldline.base import failures

if TYPE_CHECKING:
    from worldline.kernel.user_code.workflow_calls import Handling

current: ContextVar[Handling | None] = ContextVar("worldline_current", default=None)
# Whether a signal can interrupt the code that runs: in a test's own thread, where Ctrl-C must end the test. Hosts run
# worlds in threads that get no signals.
interruptible: ContextVar[bool] = ContextVar("worldline_interruptible", default=False)


def require(what: str) -> Handling:
    """The handler running now; outside of one, `what` makes no sense."""
    handling = current.get()
    if handling is None:
        raise failures.OutsideWorkflow(f"{what} works only inside a workflow or a reducer's handler")
    return handling
