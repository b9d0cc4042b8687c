"""One attempt at an effect: running the user's function, with a deadline, in the right place.

`async def` runs on the event loop, `def` in a thread. Inside, `wl.attempt()` knows the attempt. What comes out is
data: an answer, or a failure that says whether another attempt may help. Exceptions end here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from typing import Any, NoReturn, TypeVar

import msgspec

from worldline.base import errors, failures
from worldline.kernel import failure, user_errors, values
from worldline.kernel.authoring.calls import Effect
from worldline.roles.effects.open_resources import Resources
from worldline.roles.effects.policy import Policy

T = TypeVar("T")

current: ContextVar[Attempt | None] = ContextVar("worldline_attempt", default=None)


class Attempt:
    """What an effect may know about itself: `wl.attempt()`."""

    def __init__(
        self, key: str, number: int, emit: Callable[[Any], None], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.key = key
        self.number = number
        self._emit = emit
        self.stopped = stopped  # whether the adapter has ended it; else only its own code can have cancelled it
        self.cancelled = False

    def emit(self, chunk: Any) -> None:
        """Stream a piece of the answer to those that follow the world now. It is not stored."""
        self._emit(chunk)


def attempt() -> Attempt:
    """The attempt that this effect is running in: its idempotency key and number."""
    found = current.get()
    if found is None:
        return Attempt("outside", 1, lambda _: None)
    return found


class Ended(msgspec.Struct, frozen=True):
    """How an attempt ended. `final`: no other attempt will help."""

    ok: bool
    data: bytes = b""
    code: str = ""
    message: str = ""
    final: bool = False
    timed_out: bool = False
    after_us: int = 0  # the next attempt makes no sense sooner
    failed_with: dict[str, Any] = {}  # fields of the exception

    @staticmethod
    def of(verdict: failure.Verdict) -> Ended:
        return Ended(
            False, code=verdict.code, message=verdict.message, final=verdict.final, timed_out=verdict.timed_out,
            after_us=verdict.after_us, failed_with=verdict.data,
        )  # fmt: skip


async def run(
    effect: Effect[..., Any], arguments: bytes, this: Attempt, policy: Policy, *, threads: Executor,
    resources: Resources,
) -> Ended:  # fmt: skip
    """Run it once."""
    try:
        args, kwargs = effect.signature.unpack(arguments)
    except (errors.DecodeError, errors.BadInput) as error:
        return Ended(False, code="bad_input", message=f"the arguments do not fit {effect.name}(): {error}", final=True)
    token = current.set(this)
    try:
        ended = await _judged(effect, args, kwargs, this, policy, threads=threads, resources=resources)
    finally:
        current.reset(token)
    task = asyncio.current_task()
    if task is not None and task.cancelling() and not this.stopped():
        await _take_back(task, this)
    return ended


async def _take_back(task: asyncio.Task[Any], this: Attempt) -> None:
    """The effect has cancelled the task that it runs in, which is the adapter's: what follows must not be cut short."""
    while task.cancelling():
        task.uncancel()
    try:
        await asyncio.sleep(0)  # a cancellation that was asked for and not delivered yet arrives here
    except asyncio.CancelledError:
        if this.stopped():
            raise


async def _judged(
    effect: Effect[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], this: Attempt, policy: Policy, *,
    threads: Executor, resources: Resources,
) -> Ended:  # fmt: skip
    """What becomes of the call, as data. Raises only if the adapter itself has cancelled it."""
    timeout_us = policy.timeout_us
    try:
        if effect.signature.uses:
            kwargs = {**kwargs, **await resources.fill(effect.signature.uses)}
        called = _call(effect, args, kwargs, threads)
        result = await (called if timeout_us is None else within(timeout_us, called))
        if type(result) is _Raised:
            _raise(result.error)
        return Ended(True, data=values.dump(result))
    except asyncio.CancelledError:
        this.cancelled = True
        if this.stopped():
            raise
        return Ended(False, code="cancelled", message=f"{effect.name}() cancelled itself")
    except errors.EncodeError as error:
        message = f"the answer of {effect.name}(): {user_errors.text_of(error)}"
        return Ended(False, code="encode_error", message=message, final=True)
    except failures.ResourceFailed as error:
        return Ended(False, code=error.code, message=f"{effect.name}(): {user_errors.text_of(error)}")
    except BaseException as error:  # noqa: BLE001 - whatever the user's function raises is this attempt's failure
        # Also SystemExit and KeyboardInterrupt: raised by an effect, they would end the process for all others.
        verdict = policy.judge(error)
        this.cancelled = this.cancelled or verdict.timed_out
        return Ended.of(verdict)


def _call(effect: Effect[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], threads: Executor) -> Awaitable[Any]:
    if effect.is_async:
        called: Awaitable[Any] = effect.function(*args, **kwargs)
        return called
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
