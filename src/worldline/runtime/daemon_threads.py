"""Threads that run user code: they can be left behind, and never keep a process from ending.

The pools of the standard library join their threads when Python exits, so one function that does not return keeps the
process alive for ever. The threads here are daemons, and none is joined.

`ThreadInterrupt` ends Python code in another thread by an exception that is raised in it, again and again until the
thread's own loop has it back, so code that catches everything does not win. It is first sent while the innermost frame
is neither this package's own nor one that may hold a lock of the process (logging, imports): a thread gets it in the
frame where it stands. What waits in C (`time.sleep`, a socket, a regular expression) does not get it before it returns
to Python.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from worldline.kernel import context

T = TypeVar("T")

JOIN_SECONDS: Final = 10.0
INTERRUPT_SECONDS: Final = 0.01  # between two interrupts of code that is overdue
INTERRUPTS_MAX: Final = 50

_OWN: Final = str(Path(__file__).parents[1])
_LOCKING: Final = (logging.__file__.rpartition("/")[0], threading.__file__, "<frozen importlib", "<frozen zipimport")


class Overdue(Exception):
    """User code did not return in time. `place`: where it was."""

    def __init__(self, place: str, seconds: float) -> None:
        super().__init__(f"the code did not return within {seconds:g} s: it was in {place}")
        self.place = place


class DaemonPool(Executor):
    """At most so many threads, made when they are needed. None of them keeps the process alive."""

    def __init__(self, threads_max: int, name: str, initializer: Callable[[], None] = lambda: None) -> None:
        self._threads_max = threads_max
        self._name = name
        self._initializer = initializer
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        # Around the count of idle threads: without it two jobs could take one thread for theirs, and start no other.
        self._lock = threading.Lock()
        self._idle = 0  # threads that wait for a job, less the jobs that wait for a thread
        self._threads: list[threading.Thread] = []
        self._over = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs, "no call here has keywords"
        future: Future[Any] = Future()
        with self._lock:
            if self._over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._jobs.put((future, function, args))
            # Below zero only if more jobs wait than threads are free: then one more thread is needed.
            self._idle -= 1
            if self._idle < 0 and len(self._threads) < self._threads_max:
                self._idle += 1
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
        return future

    def _run(self) -> None:
        self._initializer()
        while True:
            job = self._jobs.get()
            if job is None:
                return
            future, function, args = job
            # Here and below: while it waits for the next job, an idle thread must not keep this one's values alive.
            del job
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args)
                except BaseException as error:  # noqa: BLE001 - it belongs to the caller that waits for it
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, function, args
            with self._lock:
                self._idle += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Threads end when they are done. `wait` is for a while: a process can end without them."""
        with self._lock:
            self._over = True
            threads = list(self._threads)
        if cancel_futures:
            self._cancel_waiting()
        for _ in threads:
            self._jobs.put(None)
        if wait:
            for each in threads:
                each.join(JOIN_SECONDS)

    def _cancel_waiting(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job[0].cancel()


async def run_within(
    seconds: float, do: Callable[..., T], *given: Any, initializer: Callable[[], None] = lambda: None
) -> T:
    """Run user code in a thread of its own. `Overdue` if it does not return in time: it is interrupted, and its thread
    left behind if that does not help.
    """
    outcome: Future[T] = Future()
    thread = threading.Thread(
        target=_run_alone, args=(outcome, initializer, do, given), name="worldline-alone", daemon=True
    )
    thread.start()
    waiting = asyncio.wrap_future(outcome)
    await asyncio.wait([waiting], timeout=seconds)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    # Before the interrupts: they move the thread away from where it hung.
    place = place_of(thread.ident or 0)
    interrupt = ThreadInterrupt(thread)
    for _ in range(INTERRUPTS_MAX):
        interrupt.send()
        await asyncio.sleep(INTERRUPT_SECONDS)
        if not thread.is_alive():
            break
    raise Overdue(place, seconds)


def _run_alone(
    outcome: Future[Any], initializer: Callable[[], None], do: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    quelled = quell()
    initializer()
    outcome.set_running_or_notify_cancel()
    try:
        outcome.set_result(do(*arguments))
    except BaseException as error:  # noqa: BLE001 - it belongs to the caller that waits for it
        # First of all: an interrupt may be raised at every other instruction.
        quelled()
        outcome.set_exception(error)


class ThreadInterrupt:
    """Raises `Interrupted` in one thread, at every instruction that can be interrupted, until that thread quells it."""

    def __init__(self, thread: threading.Thread) -> None:
        self._id = thread.ident or 0
        # Making the exception arms it again, by C alone: a function of Python's would be interrupted itself.
        self._kind = type("Interrupted", (context.Interrupted,), {})
        again = functools.partial(_raise_in, ctypes.c_ulong(self._id), ctypes.py_object(self._kind))
        self._kind.__init__ = staticmethod(again)  # type: ignore[misc]

    def send(self) -> None:
        """Interrupt the thread, if the code that it runs now may be interrupted."""
        frame = sys._current_frames().get(self._id)  # noqa: SLF001 - documented, and there is no other way to ask
        if frame is not None and not _is_ours(frame):
            _raise_in(ctypes.c_ulong(self._id), ctypes.py_object(self._kind))


def quell() -> Callable[[], None]:
    """For this thread: what ends the interrupts that it gets. The first call in an `except` clause, and nothing else,
    comes before the next one.
    """
    return functools.partial(_clear_in, ctypes.c_ulong(threading.get_ident()), None)


def place_of(thread_id: int) -> str:
    """Where a thread is: the innermost frame that is not this package's, for people."""
    frame = sys._current_frames().get(thread_id)  # noqa: SLF001
    inner = frame
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    found = frame or inner
    if found is None:
        return "nowhere"
    return f"{found.f_code.co_name} ({Path(found.f_code.co_filename).name}:{found.f_lineno})"


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((_OWN, *_LOCKING))


_SET: Final = ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
_raise_in: Final = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.py_object)(_SET)
_clear_in: Final = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.c_void_p)(_SET)
