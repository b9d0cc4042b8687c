"""One attempt at an effect: running the user's function, with a deadline, in the right place.

`async def` runs on the event loop, `def` in a thread. Inside, `wl.attempt()` knows the attempt. What comes out is
data: an answer, or a failure that says whether another attempt may help. Exceptions end here.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from typing import Any, NoReturn, TypeVar

import msgspec

from worldline.base import errors, failures
from worldline.base.secret import KNOWN, SecretSource, shown
from worldline.effects.open_resources import Resources
from worldline.effects.retry_policy import RetryPolicy
from worldline.flow_core.flow_records import Snapshot
from worldline.kernel import failure_data, user_errors, user_values
from worldline.kernel.authoring.calls import Effect
from worldline.kernel.execution import tracebacks
from worldline.model import ids
from worldline.model.payload import Payload
from worldline.model.personal_records import New
from worldline.runtime.personal.outside_desk import CollectingDesk

T = TypeVar("T")

current: ContextVar[Attempt | None] = ContextVar("worldline_attempt", default=None)


class Attempt:
    """What an effect may know about itself: `wl.attempt()`."""

    def __init__(
        self,
        key: str,
        number: int,
        emit: Callable[[Any], None],
        stopped: Callable[[], bool] = lambda: False,
        *,
        claim: object = None,
        secrets: SecretSource | None = None,
        correlation: str = "",
    ) -> None:
        self.key = key
        self.correlation = correlation  # the correlation id of what the effect was called in the course of
        self.secrets = secrets  # for `wl.secret`: where this host has them from
        self.claim = claim  # for built-in effects: whose effect it is
        self.number = number
        self._emit = emit
        self.stopped = stopped  # whether the effect worker has ended it; else only its own code can have cancelled it
        self.cancelled = False

    def emit(self, chunk: Any) -> None:
        """Stream a piece of the answer to those that follow the world now. It is not stored."""
        self._emit(_clean_chunk(chunk) if KNOWN else chunk)


def attempt() -> Attempt:
    """Return the attempt that this effect is running in: its idempotency key and number."""
    found = current.get()
    if found is None:
        return Attempt("outside", 1, lambda _: None)
    return found


class AnsweredElsewhere(msgspec.Struct, frozen=True):
    """What a built-in effect returns that was performed, and whose answer will come from another world."""

    asked: ids.Address


class AttemptResult(msgspec.Struct, frozen=True):
    """How an attempt ended. `final`: no other attempt will help. `unfit`: the effect was not called, because it does
    not take the arguments that were recorded; code that takes them will help.
    """

    ok: bool
    data: bytes = b""
    code: str = ""
    message: str = ""
    final: bool = False
    timed_out: bool = False
    after_us: int = 0  # the next attempt makes no sense sooner
    failed_with: dict[str, Any] = {}  # fields of the exception
    carried: Payload | None = None  # where a large answer is stored
    trace: str = ""  # where in its code it failed, for people
    unfit: bool = False
    sealed: list[New] = []  # personal values of the answer, to be kept apart before it is given
    asked: ids.Address | None = None  # the world whose answer is the effect's
    mistake: bool = False  # in the effect's code: until that is edited, no other attempt will help
    place: str = ""  # the file and line where it raised, for the log

    @staticmethod
    def of(verdict: failure_data.Verdict, trace: str, place: str) -> AttemptResult:
        return AttemptResult(
            False,
            code=verdict.code,
            message=verdict.message,
            final=verdict.final,
            timed_out=verdict.timed_out,
            after_us=verdict.after_us,
            failed_with=verdict.data,
            trace=trace,
            mistake=verdict.mistake,
            place=place,
        )


async def run(
    effect: Effect[..., Any],
    arguments: bytes,
    this: Attempt,
    policy: RetryPolicy,
    *,
    threads: Executor,
    resources: Resources,
    desk: CollectingDesk | None = None,
    snapshot: Snapshot | None = None,
) -> AttemptResult:
    """Run it once. `desk`: where the personal values in its arguments are opened, and those of its answer sealed.
    `snapshot`: of the flow domain that has asked for it.
    """
    try:
        args, kwargs = _at(desk, functools.partial(effect.signature.unpack, arguments))
        kwargs |= effect.signature.given(snapshot)
    except (errors.DecodeError, errors.BadInput) as error:
        why = f"the arguments do not fit {effect.name}(): {error}"
        return AttemptResult(False, code="bad_input", message=why, final=True, unfit=True)
    token = current.set(this)
    try:
        ended = await _judged(effect, args, kwargs, this, policy, threads=threads, resources=resources, desk=desk)
    finally:
        current.reset(token)
    task = asyncio.current_task()
    if task is not None and task.cancelling() and not this.stopped():
        await _take_back(task, this)
    return clean(effect, ended) if KNOWN else ended


async def _take_back(task: asyncio.Task[Any], this: Attempt) -> None:
    """The effect has cancelled the task that it runs in, which is the effect worker's: what follows must not be cut
    short.
    """
    # All of them: `asyncio.timeout` compares how many requests are left, so none may be.
    while task.cancelling():
        task.uncancel()
    try:
        await asyncio.sleep(0)  # a cancellation that was asked for and not delivered yet arrives here
    except asyncio.CancelledError:
        if this.stopped():
            raise


async def _judged(
    effect: Effect[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    this: Attempt,
    policy: RetryPolicy,
    *,
    threads: Executor,
    resources: Resources,
    desk: CollectingDesk | None,
) -> AttemptResult:
    """How the call ends, as data. Raises only if the effect worker itself has cancelled it."""
    timeout_us = policy.timeout_us
    try:
        # Inside the `try`: a resource that cannot be opened is a failure of this attempt.
        if effect.signature.uses:
            kwargs = {**kwargs, **await resources.fill(effect.signature.uses)}
        called = _call(effect, args, kwargs, threads)
        result = await (called if timeout_us is None else within(timeout_us, called))
        if type(result) is _Raised:
            _raise(result.error)
    except asyncio.CancelledError:
        this.cancelled = True
        if this.stopped():
            raise
        return AttemptResult(False, code="cancelled", message=f"{effect.name}() cancelled itself")
    except failures.ResourceFailed as error:
        text = user_errors.text_of(error)
        trace = tracebacks.of_attempt(error, text)
        return AttemptResult(False, code=error.code, message=f"{effect.name}(): {text}", trace=trace)
    except BaseException as error:  # noqa: BLE001 - whatever the user's function raises is this attempt's failure
        # Also SystemExit and KeyboardInterrupt: raised by an effect, they would end the process for all others.
        verdict = policy.judge(error)
        this.cancelled = this.cancelled or verdict.timed_out
        return AttemptResult.of(verdict, tracebacks.of_attempt(error, verdict.message), user_errors.place_of(error))
    return _answered(effect, result, desk)


def _answered(effect: Effect[..., Any], result: object, desk: CollectingDesk | None) -> AttemptResult:
    """The answer as bytes. One that cannot be stored, or is not of the effect's own declared type, is a failure for
    good: what was done must not be done again.
    """
    if type(result) is AnsweredElsewhere:
        return AttemptResult(True, asked=result.asked)
    try:
        # At the desk: personal values in the answer are sealed while it is written.
        data = _at(desk, functools.partial(user_values.dump, result))
        # Read back now: an answer that its workflow could not read must not be stored.
        effect.signature.result(data)
        return AttemptResult(True, data=data, sealed=[] if desk is None else desk.new)
    except errors.DecodeError as error:
        message = f"{effect.name}() was performed, and its answer is not what it declares: {user_errors.text_of(error)}"
        return AttemptResult(False, code=error.code, message=message, final=True)
    except errors.EncodeError as error:
        return not_storable(effect, error.code, user_errors.text_of(error))
    except MemoryError:
        return not_storable(effect, errors.ValueTooLarge.code, "this process has too little memory for it")
    except BaseException as error:  # noqa: BLE001 - values have code of their own, and may raise anything
        return not_storable(effect, errors.EncodeError.code, user_errors.message_of(error))


def clean(effect: Effect[..., Any], ended: AttemptResult) -> AttemptResult:
    """How it ended, without values of secrets. A failure shows their names; an answer cannot be changed, and is one."""
    if ended.ok:
        stored = (ended.data, *(each.kept.data for each in ended.sealed))
        name = next(filter(None, map(KNOWN.inside, stored)), "")
        if not name:
            return ended
        message = f"{effect.name}() was performed, and its answer holds the secret {name!r}, which is never stored"
        return AttemptResult(False, code="secret_in_answer", message=message, final=True)
    return msgspec.structs.replace(
        ended,
        code=KNOWN.text(ended.code),
        message=KNOWN.text(ended.message),
        failed_with=KNOWN.plain(ended.failed_with),
        trace=KNOWN.text(ended.trace),
    )


def _clean_chunk(chunk: Any) -> Any:
    """A piece that is streamed, without values of secrets. An object of a user's own is shown as a whole or not."""
    plain = KNOWN.plain(chunk)
    if plain is not chunk or type(chunk) in (str, bytes):
        return plain
    try:
        name = KNOWN.inside(user_values.dump(chunk))
    except BaseException:  # noqa: BLE001 - it is not stored, so it may be anything, with code of its own
        return chunk
    return shown(name) if name else chunk


def _at(desk: CollectingDesk | None, work: Callable[[], T]) -> T:
    return work() if desk is None else desk.at(work)


def not_storable(effect: Effect[..., Any], code: str, why: str) -> AttemptResult:
    """Of an effect that was performed, and whose answer can never be stored."""
    message = f"{effect.name}() was performed, and its answer cannot be stored: {why}"
    return AttemptResult(False, code=code, message=message, final=True)


def _call(effect: Effect[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], threads: Executor) -> Awaitable[Any]:
    if effect.is_async:
        called: Awaitable[Any] = effect.function(*args, **kwargs)
        return called
    # A thread does not inherit context variables, and `wl.attempt()` is one.
    context = copy_context()
    return asyncio.get_running_loop().run_in_executor(threads, context.run, _in_thread, effect, args, kwargs)


class _Raised:
    """What a function raised in its thread. A future does not carry every exception, and some mean something to it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _in_thread(effect: Effect[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return effect.function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - raised again where the attempt is judged
        return _Raised(error)


def _raise(error: BaseException) -> NoReturn:
    raise error


async def within(timeout_us: int, work: Awaitable[T]) -> T:
    """What `work` gives, or `TimeoutError` when time is up."""
    async with asyncio.timeout(timeout_us / 1_000_000):
        return await work
