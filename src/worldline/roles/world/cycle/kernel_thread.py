"""The thread in which machines are run: one call after the other, and what it is busy with.

Whatever a call raises comes back as an `Exception`. User code may raise `SystemExit`, `KeyboardInterrupt` or
`CancelledError`; in the event loop these would end the process or look like a caller's own cancellation, so they come
back as `Escaped`. A signal is never meant here: Python delivers signals to the main thread alone.

`doing` says which world the thread is busy with, and since when: a step that does not return can be seen from outside.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from worldline.base import env as envs
from worldline.base import limits
from worldline.kernel import user_errors
from worldline.model import ids
from worldline.roles.world.cycle import no_asyncio

T = TypeVar("T")

TRACE_FRAMES_MAX = -20  # the innermost ones


class Escaped(Exception):
    """Something that is no `Exception` came out of a call in the kernel's thread; it is the cause."""


class Doing(msgspec.Struct, frozen=True, gc=False):
    """A call under way: the world it is about, and since when."""

    at: ids.Address | None
    since_us: int


class KernelThread:
    def __init__(self, env: envs.Env) -> None:
        self._env = env
        self._thread = ThreadPoolExecutor(1, "worldline-kernel", no_asyncio.refuse_asyncio)
        self.doing: Doing | None = None

    async def run(self, at: ids.Address | None, do: Callable[..., T], *args: Any) -> T:
        """Run something about a world, or about several that it names by `now`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._contained, at, do, *args)

    def submit(self, at: ids.Address, do: Callable[[], object]) -> None:
        """Run something that is not waited for."""
        self._thread.submit(self._contained, at, do)

    def now(self, at: ids.Address, since_us: int) -> None:
        """Called in the thread: what follows is about this world."""
        self.doing = Doing(at, since_us)

    def shutdown(self) -> None:
        self._thread.shutdown(wait=True)

    def _contained(self, at: ids.Address | None, do: Callable[..., T], *args: Any) -> T:
        self.doing = Doing(at, self._env.monotonic_us())
        try:
            return contained(do, *args)
        finally:
            self.doing = None


def contained(do: Callable[..., T], *args: Any) -> T:
    """Call user code in a thread: whatever it raises comes back as an exception that a future takes."""
    try:
        return do(*args)
    except BaseException as error:
        # A future does not take a StopIteration, and a coroutine that meets one ends as if it had returned.
        if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
            raise
        raise Escaped(describe(error)) from error


def describe(error: BaseException) -> str:
    """An exception in one line, whatever it is, and whatever describing it raises."""
    try:
        return user_errors.message_of(error)[: limits.REASON_CHARACTERS_MAX]
    except BaseException:  # noqa: BLE001 - there may be no memory for more than its name
        return user_errors.name_of(type(error))


def trace(error: BaseException) -> str:
    """Where an exception was raised, and what it says: for logs, whatever its own text does to them."""
    lines = [line.rstrip() for line in traceback.format_tb(error.__traceback__, limit=TRACE_FRAMES_MAX)]
    return "\n".join([*lines, describe(error)])
