"""The errors that users catch and raise: declared here, part of the public API.

What crosses the journal is a code, a message and plain data, never an exception object. `kernel/failure_data.py`
decides which.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

from worldline.base import errors, exit_codes


class CancelKind(enum.IntEnum):
    """What cancelled a run or a scope. Numbers are stored and never reused."""

    USER = 1  # a person or a program: `run.cancel()`, `scope.cancel()`, `worldline runs cancel`
    TIMEOUT = 2  # time was up, here or in the workflow that started the run
    FAILURE = 3  # something beside it failed: in the same scope or the same `wl.gather`
    PARENT = 4  # the workflow that started the run was cancelled, has cancelled it, or has ended
    HOST = 5  # the application that had started it goes away: `run.cancel(kind=...)`. No process does so by itself when
    # it ends: runs go on in another
    POLICY = 6  # a rule of its operators does not let it go on: `run.cancel(kind=...)`


class Fatal(errors.Error):
    """Raise it in an effect: this attempt's failure is final, no retry will help. `code` is what the workflow sees."""

    code = "fatal"

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


class TryAgain(errors.Error):
    """Raise it in an effect: this attempt failed, and the next makes no sense for `after` seconds. How many attempts
    there are is still up to the effect's `Retry`.
    """

    code = "try_again"

    def __init__(self, message: str = "", *, after: float = 0, code: str = "") -> None:
        super().__init__(message)
        self.after = after
        if code:
            self.code = code


class Refused(errors.Error):
    """Raise it in a handler of a `Request`: the answer is no, and nothing was changed. The asker gets it raised.

    Fields of a class derived from it are the asker's `data`.
    """

    code = "refused"
    exit_code = exit_codes.REFUSED

    def __init__(self, message: str = "", *, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.data: dict[str, Any] = dict(data or {})


class Erased(errors.Error):
    """A `wl.Personal` whose value was erased was read. Plain data has `Erased.TEXT` in its place."""

    code = "erased"
    TEXT: Final[str] = bytes.decode(b"erased")  # an object of its own: `is` tells it from a user's text

    def __init__(self, message: str = "a personal value was erased") -> None:
        super().__init__(message)


class Failed(errors.Error):
    """Something that was waited for ended in failure.

    `code` says which failure: the `code` of the exception that caused it, or the name of its class. `data` has the
    other fields of that exception, as plain values.
    """

    code = "failed"

    def __init__(self, message: str = "", *, code: str = "", data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        if code:
            self.code = code
        self.data: dict[str, Any] = dict(data or {})


class EffectFailed(Failed):
    """An effect gave up: out of attempts, fatal, timed out or cancelled. `code` tells which."""

    code = "error"

    def __init__(
        self, message: str = "", *, code: str = "", attempts: int = 0, data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, code=code, data=data)
        self.attempts = attempts


class PolicyDenied(EffectFailed):
    """An effect was not tried: a rule of its universe says that this world, or this program, may not use it."""

    code = "policy_denied"


class Undeliverable(EffectFailed):
    """A message was not taken: `code` is `undeliverable` if there is no such world or it takes no input, `not_allowed`
    if its universe does not take this from here, or a rule of the sender's universe is against it, `expired` if the
    message was on its way for too long, `reserved_name` if its event has a name of the runtime's own, `overloaded` if
    messages of the sender's universe have filled their share of the other world's inbox for too long.
    """


class EffectTimeout(EffectFailed, TimeoutError):
    """An effect did not answer in time."""


class RunFailed(Failed):
    """A workflow run raised."""

    code = "error"


class RunCancelled(RunFailed):
    """A workflow run was cancelled. `kind` says what cancelled it."""

    @property
    def kind(self) -> CancelKind:
        """What cancelled it."""
        found = self.data.get("kind")
        return CancelKind.__members__.get(found.upper(), CancelKind.USER) if type(found) is str else CancelKind.USER


class TooManyRuns(RunFailed):
    """A workflow asked for a run, and too many wait for one another or run already. No run was started."""

    code = "too_many_runs"


class RunReverted(RunFailed):
    """A run that was waited for is not there any more: its world was reverted to a height before its start.

    `to`: that height. `height`: where the journal says so.
    """

    code = "reverted"

    def __init__(self, message: str = "", *, to: int = 0, height: int = 0) -> None:
        super().__init__(message, data={"to": to, "height": height})
        self.to = to
        self.height = height


class OutsideWorkflow(errors.BadInput):
    """Something that only works inside a workflow or handler was used outside."""

    code = "outside_workflow"


class OutsideEffect(errors.BadInput):
    """Something that only works where an effect runs was used outside: `wl.secret` in a workflow, for example."""

    code = "outside_effect"


class SecretMissing(errors.Error):
    """The process that performs the effect has no secret of this name. The attempt has failed, and the next one looks
    again.
    """

    code = "secret_missing"


class ResourceFailed(errors.Error):
    """A resource that an effect uses could not be opened. The attempt has failed, and the next one tries it again."""

    code = "resource_failed"


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
    """Thrown into a workflow where it waits, when it or a scope around it is cancelled. `kind` says what cancelled it,
    `reason` is a text for people. Not an `Exception`: code that catches everything should still let it pass.
    """

    def __init__(self, reason: str = "", *, scope: int = -1, kind: CancelKind = CancelKind.USER) -> None:
        super().__init__(reason)
        self.reason = reason
        self.scope = scope  # the number of the scope that is cancelled, 0 being the whole run
        self.kind = kind
