"""The thread in which machines are run: one call after the other, and what it is busy with.

Whatever a call raises comes back as an `Exception`. User code may raise `SystemExit`, `KeyboardInterrupt` or
`CancelledError`; in the event loop these would end the process or look like a caller's own cancellation, so they come
back as `Escaped`. A signal is never meant here: Python delivers signals to the main thread alone.

`doing` says which world the thread is busy with, and since when: a step that does not return can be seen from outside.

`alone` gives the thread to one caller: nothing else runs in it meanwhile, so if the process dies, it died of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec

from worldline.base import env as envs
from worldline.base import limits
from worldline.kernel import user_errors
from worldline.model import ids
from worldline.worker import kernel_executor

T = TypeVar("T")

TRACE_FRAMES_MAX = -20  # the innermost ones


class Escaped(Exception):
    """Something that is no `Exception` came out of a call in the kernel's thread; it is the cause."""


class Doing(msgspec.Struct, frozen=True, gc=False):
    """A call under way: the world it is about, and since when."""

    at: ids.Address | None
    since_us: int


class KernelThread:
    """`timeout_us`: how long a step may take before it is given up, if the thread is watched (`look`)."""

    def __init__(self, env: envs.Env, *, timeout_us: int) -> None:
        self._env = env
        self._timeout_us = timeout_us
        self._executor = kernel_executor.KernelExecutor()
        self._running = 0  # calls in the thread, or in line for it
        self._solo = asyncio.Lock()
        self._gate: asyncio.Future[None] | None = None  # ends when the thread is for all again
        self._quiet: asyncio.Future[None] | None = None  # ends when no call is there any more
        self._submitted: list[tuple[ids.Address, Callable[[], object]]] = []  # while the thread was for one caller
        self.begin = self._executor.begin_part
        self.progress = self._executor.progress
        self.keep = self._executor.finish_part
        self.doing: Doing | None = None

    async def run(self, at: ids.Address | None, do: Callable[..., T], *args: Any) -> T:
        """Run something about a world, or about several that it names by `now`."""
        # A loop: another caller may have the thread for itself by the time that the gate opens.
        while self._gate is not None:
            # One gate for all that wait: a caller that is cancelled must not open it for the others.
            await asyncio.shield(self._gate)
        return await self._run(at, do, *args)

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[Callable[..., Any]]:
        """Have the thread for one caller. What this gives runs something in it, as `run` does."""
        async with self._solo:
            gate = self._gate = asyncio.get_running_loop().create_future()
            try:
                # Calls that are in line already come first; none is added, because the gate is shut.
                while self._running:
                    self._quiet = asyncio.get_running_loop().create_future()
                    await self._quiet
                yield self._run
            except GeneratorExit:  # its event loop has ended, and nothing can be run any more
                self._submitted.clear()
                raise
            finally:
                self._gate = None
                gate.set_result(None)
                # What came meanwhile was kept back; `submit` takes it now that there is no gate.
                submitted, self._submitted = self._submitted, []
                for at, do in submitted:
                    self.submit(at, do)

    async def _run(self, at: ids.Address | None, do: Callable[..., T], *args: Any) -> T:
        self._running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._contained, at, do, *args)
        finally:
            self._running -= 1
            if not self._running and self._quiet is not None and not self._quiet.done():
                self._quiet.set_result(None)

    def submit(self, at: ids.Address, do: Callable[[], object]) -> None:
        """Run something that is not waited for, and that may be given up like a step."""
        if self._gate is not None:
            self._submitted.append((at, do))
            return
        done = asyncio.get_running_loop().run_in_executor(self._executor, self._contained, at, self._part, do)
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # whatever it is, nothing waits

    def now(self, at: ids.Address, since_us: int) -> None:
        """Called in the thread: the steps that follow are about this world."""
        self.doing = Doing(at, since_us)

    def look(self, now_us: int) -> list[kernel_executor.AbandonedThread]:
        """Called in a thread that watches: give up what does not get on. Returns the threads that were given up and
        have not ended.
        """
        if self._executor.look(now_us, self._timeout_us):
            self.doing = None
        return self._executor.left

    def shutdown(self) -> None:
        self._executor.shutdown()

    def _part(self, do: Callable[[], object]) -> None:
        self.begin()
        do()

    def _contained(self, at: ids.Address | None, do: Callable[..., T], *args: Any) -> T:
        self.doing = Doing(at, self._env.monotonic_us())
        try:
            return contained(do, *args)
        finally:
            if self._executor.is_current:  # one that was given up says nothing of what its successor does
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
