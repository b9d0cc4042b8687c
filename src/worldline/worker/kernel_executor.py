"""The kernel's thread as an executor whose thread can be replaced while it is busy.

A job is timed if user code runs in it. `progress` says that it has got on; one that has not for longer than its time is
given up: its future gets `KernelOverdue`, another thread continues with the jobs behind it, and the old thread is
interrupted until it ends. Nothing that the old thread still does is used: it can finish no job and begin no other part
of one.

The lock decides between a job that gets on and one that is given up. It is taken in functions alone, so that an
interrupt, which is only sent to a thread that is given up, finds that thread before it has the lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import get_ident
from typing import Any

import msgspec

from worldline.codec import printable
from worldline.runtime import daemon_threads
from worldline.worker import no_asyncio

log = printable.logger("worldline.worker")

NOBODY = -1  # the thread that takes over does not run yet
LATE_US = 2_000_000  # between two looks: the process did not run
JOIN_SECONDS = 10.0  # for a job that is under way at the end


class KernelOverdue(Exception):
    """A job in the kernel's thread did not get on, and was given up. `place`: where its code was."""

    def __init__(self, place: str) -> None:
        super().__init__(f"its code did not return in time: it was in {place}")
        self.place = place


class Replaced(BaseException):
    """Another thread has taken over: what this one does is not used."""


class AbandonedThread(msgspec.Struct, eq=False):
    """A thread that was given up and has not ended yet."""

    thread: threading.Thread
    interrupt: daemon_threads.ThreadInterrupt
    since_us: int
    told: bool = False

    def tell(self) -> None:
        """Note that a log line says that it does not end."""
        self.told = True


_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class KernelExecutor(Executor):
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ident = 0  # of that thread, when it runs; 0: there was none yet
        self._job: Future[Any] | None = None  # under way
        self._timed = False
        self._parts = 0  # how often a job has got on
        self._seen = (0, 0)  # how often it had, when that was last seen to change, and when that was
        self._looked_us = 0
        self._over = False
        self.left: list[AbandonedThread] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs, "no call here has keywords"
        if self._over:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._jobs.put((future, function, args))
        if self._thread is None:
            self._start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What is under way is waited for, for a while. Its thread is a daemon: the process can end without it."""
        del cancel_futures
        self._over = True
        thread = self._thread
        self._jobs.put(None)
        if wait and thread is not None:
            thread.join(JOIN_SECONDS)

    # --- In the thread ----------------------------------------------------------------------------------------

    def begin_part(self) -> None:
        """Start the clock of the job: user code runs from here on, in its first part. `Replaced` if the job was given
        up.
        """
        with self._lock:
            self.progress()
            self._timed = True

    def finish_part(self, keep: Callable[..., None], *args: Any) -> None:
        """A part of the job is done: keep what came of it. What follows is the next. `Replaced` if the job was given up
        before.
        """
        with self._lock:
            if self._ident and get_ident() != self._ident:
                raise Replaced
            self._parts += 1
            keep(*args)

    def progress(self) -> None:
        """The job has got on. `Replaced` if it was given up."""
        if self._ident and get_ident() != self._ident:
            raise Replaced
        self._parts += 1

    @property
    def is_current(self) -> bool:
        """Whether the thread that asks has not been given up."""
        return not self._ident or get_ident() == self._ident

    def _run(self) -> None:
        no_asyncio.refuse_asyncio()
        self._ident = get_ident()
        quell = daemon_threads.quell()
        while True:
            job = self._jobs.get()
            if job is None or not self._do(*job, quell=quell):
                return
            del job  # while it waits for the next, the thread keeps nothing of this one

    def _do(
        self, future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...], *, quell: Callable[[], None]
    ) -> bool:
        """Do one job. False if another thread has taken over."""
        if not future.set_running_or_notify_cancel():
            return True
        self._begin(future)
        try:
            result, error = function(*args), None
            # Inside the `try`: an interrupt that comes between the call and its end is caught like one in the call.
            is_current = self._end()
        except BaseException as raised:  # noqa: BLE001 - it belongs to the caller that waits for it
            # First of all: an interrupt may be raised at every other instruction.
            quell()
            result, error = None, raised
            is_current = self._end()
        if not is_current:
            return False
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        return True

    def _begin(self, future: Future[Any]) -> None:
        with self._lock:
            self._job = future

    def _end(self) -> bool:
        with self._lock:
            if not self.is_current:
                return False
            self._job, self._timed = None, False
            self._parts += 1
            return True

    # --- In the thread that watches -----------------------------------------------------------------------------

    def look(self, now_us: int, timeout_us: int) -> bool:
        """Give up a timed job that has not got on for too long, and interrupt the threads that were given up. Whether
        one was given up now. A process that was stopped for a while, all of it, is no fault of its job.
        """
        parts = self._parts
        given_up = False
        late = now_us - self._looked_us > LATE_US
        self._looked_us = now_us
        if parts != self._seen[0] or not self._timed or late:
            self._seen = (parts, now_us)
        elif now_us - self._seen[1] >= timeout_us:
            given_up = self._give_up(parts, now_us)
        self.left = [each for each in self.left if each.thread.is_alive()]
        for each in self.left:
            each.interrupt.send()
        return given_up

    def _give_up(self, parts: int, now_us: int) -> bool:
        with self._lock:
            job, thread = self._job, self._thread
            # Under the lock once more: it may have got on since the look.
            if job is None or thread is None or not self._timed or self._parts != parts:
                return False
            # From here on the old thread is not the current one, even before the new one runs.
            self._job, self._timed, self._ident = None, False, NOBODY
            self._parts += 1
            self._start()
        place = daemon_threads.place_of(thread.ident or 0)
        self.left.append(AbandonedThread(thread, daemon_threads.ThreadInterrupt(thread), now_us))
        # Outside the lock, because callbacks of the future are run here.
        job.set_exception(KernelOverdue(place))
        return True

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="worldline-kernel", daemon=True)
        self._thread.start()
