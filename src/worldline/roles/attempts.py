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
from typing import Any, TypeVar

import msgspec

from worldline.base import errors, failures, limits
from worldline.kernel import driver, values
from worldline.kernel.calls import Effect
from worldline.roles import kernel_thread

T = TypeVar("T")

current: ContextVar[Attempt | None] = ContextVar("worldline_attempt", default=None)


class Attempt:
    """What an effect may know about itself: `wl.attempt()`."""

    def __init__(self, key: str, number: int, emit: Callable[[Any], None]) -> None:
        self.key = key
        self.number = number
        self._emit = emit
        self.cancelled = False

    def emit(self, chunk: Any) -> None:
        """Stream a piece of the answer to whoever follows the world now. It is kept nowhere."""
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


async def run(
    effect: Effect[..., Any], arguments: bytes, this: Attempt, *, timeout_us: int | None, threads: Executor
) -> Ended:
    """Run it once."""
    try:
        args, kwargs = effect.signature.unpack(arguments)
    except errors.DecodeError as error:
        return Ended(False, code="bad_input", message=f"the arguments do not fit {effect.name}(): {error}", final=True)
    token = current.set(this)
    try:
        called = _call(effect, args, kwargs, threads)
        result = await (called if timeout_us is None else within(timeout_us, called))
        return Ended(True, data=values.dump(result))
    except asyncio.CancelledError:
        this.cancelled = True
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Ended(False, code="cancelled", message=f"{effect.name}() cancelled itself")
    except TimeoutError as error:
        this.cancelled = True
        return Ended(False, code="timeout", message=_said(error) or "the attempt took too long", timed_out=True)
    except failures.Fatal as error:
        return Ended(False, code=error.failure_code, message=_said(error), final=True)
    except failures.TryAgain as error:
        after_us = int(max(0.0, min(error.after, limits.RETRY_AFTER_SECONDS_MAX)) * 1_000_000)
        return Ended(False, code=error.code, message=_said(error), after_us=after_us)
    except errors.EncodeError as error:
        return Ended(False, code="encode_error", message=f"the answer of {effect.name}(): {error}", final=True)
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises is this attempt's failure
        return Ended(False, code=driver.code_of(error), message=driver.message_of(error))
    except (SystemExit, KeyboardInterrupt) as error:  # of the user's function: it would end the process
        return Ended(False, code=type(error).__name__, message=kernel_thread.describe(error))
    finally:
        current.reset(token)


def _call(effect: Effect[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], threads: Executor) -> Awaitable[Any]:
    if effect.is_async:
        called: Awaitable[Any] = effect.function(*args, **kwargs)
        return called
    context = copy_context()
    call = functools.partial(effect.function, *args, **kwargs)
    return asyncio.get_running_loop().run_in_executor(threads, kernel_thread.contained, context.run, call)


def _said(error: Exception) -> str:
    """What an exception of the user's says. Its `__str__` is the user's too."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - see above
        return kernel_thread.describe(error)


async def within(timeout_us: int, work: Awaitable[T]) -> T:
    """What `work` gives, or `TimeoutError` when time is up."""
    async with asyncio.timeout(timeout_us / 1_000_000):
        return await work
