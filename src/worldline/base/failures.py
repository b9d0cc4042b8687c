"""The errors that users catch and raise: declared here, part of the public API.

What crosses the journal is a code and a message, never an exception object.
"""

from __future__ import annotations

from worldline.base import errors


class Fatal(errors.Error):
    """Raise it in an effect: this attempt's failure is final, no retry will help."""

    code = "fatal"

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.failure_code = code or "fatal"


class TryAgain(errors.Error):
    """Raise it in an effect: this attempt failed, and the next makes no sense for `after` seconds. How many attempts
    there are is still up to the effect's `Retry`.
    """

    code = "try_again"

    def __init__(self, message: str, *, after: float = 0, code: str = "") -> None:
        super().__init__(message)
        self.after = after
        self.code = code or "try_again"


class Refused(errors.Error):
    """Raise it in a handler of a `Request`: the answer is no, and nothing was changed. The asker gets it raised."""

    code = "refused"


class Failed(errors.Error):
    """Something that was waited for ended in failure."""

    code = "failed"


class EffectFailed(Failed):
    """An effect gave up: out of attempts, fatal, timed out or cancelled. `code` tells which."""

    def __init__(self, message: str, *, code: str = "error", attempts: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.attempts = attempts


class EffectTimeout(EffectFailed, TimeoutError):
    """An effect did not answer in time."""


class RunFailed(Failed):
    """A workflow run raised. `code` is the name of what it raised."""

    def __init__(self, message: str, *, code: str = "error") -> None:
        super().__init__(message)
        self.code = code


class RunCancelled(RunFailed):
    """A workflow run was cancelled."""


class OutsideWorkflow(errors.BadInput):
    """Something that only works inside a workflow or handler was used outside."""

    code = "outside_workflow"


class NotDurable(errors.BadInput):
    """A workflow awaited something that Worldline cannot record, such as an asyncio future."""

    code = "not_durable"


class LimitExceeded(errors.BadInput):
    """A step derived more than a step may."""

    code = "limit_exceeded"


class Diverged(errors.Error):
    """Code and journal disagree. `report` shows where and how."""

    code = "diverged"

    def __init__(self, report: str) -> None:
        super().__init__(report)
        self.report = report


class Cancelled(BaseException):
    """Thrown into a workflow where it waits, when it or a scope around it is cancelled. Not an `Exception`: code
    that catches everything should still let it pass.
    """

    def __init__(self, reason: str = "", *, scope: int = -1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.scope = scope  # the number of the scope that is cancelled, 0 being the whole run
