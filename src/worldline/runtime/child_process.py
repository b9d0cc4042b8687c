"""A last attempt, alone, in a child process: whether the process that makes it dies of it.

The child is a fork: it has the restored world, or what was read of it, and needs neither store nor program. It makes
one call that does no I/O, says how that ended through a pipe, and ends by `os._exit`: nothing of the parent's is
flushed, closed or finalized there. A call that raises has survived, unless what it raised counts like a death
(`counts`): what an exception leads to is decided where the step is made in earnest.

What a fork of a process with threads can break, and what is done about it:

- A lock that another thread held stays locked in the child, and a call that needs it hangs. So a hang is no proof by
  itself: a second child is forked later, and only if that one hangs too is it held against the call.
- Finalizers of inherited objects would speak for the parent (a connection says goodbye to its server). What exists at
  the fork is taken out of garbage collection, and `os._exit` runs none.
- Signals of a terminal or a service manager reach the child as well. It ignores those that ask a process to end: it
  would count as its death.
- It must not outlive its parent: the system kills it with the parent where that can be asked for, and an alarm does
  everywhere. It has the worst score for the system's own choice when memory runs out, so that the parent is spared.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import math
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, Protocol

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.kernel import user_errors
from worldline.runtime import cold_cells

LOOK_SECONDS_FIRST: Final = 0.001
LOOK_SECONDS_MOST: Final = 0.05
ALARM_SECONDS: Final = 5  # after its time, should there be no parent to end it
SAID_BYTES_MAX: Final = 32 * 1024  # less than any pipe takes at once
PR_SET_PDEATHSIG: Final = 1
IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

SURVIVED: Final = "+"
UNDECIDED: Final = "?"
COUNTED: Final = "-"
WANTED: Final = "<"

Counts = Callable[[BaseException], str]  # how an exception counts like a death, for people; "" if it does not


class LastAttemptOutcome(msgspec.Struct, frozen=True):
    """How a last attempt ended. `how`: of one that did not survive, for people; of one that decided nothing, why."""

    survived: bool
    how: str = ""
    decided: bool = True
    hung: bool = False
    lived: bool = False  # it did not survive what counts like a death, such as memory that ran out, and did not die
    wanted: bytes = b""  # it decided nothing, because it could not read this


class Child(Protocol):
    async def ended(self) -> LastAttemptOutcome:
        """Wait for it, as long as it may take."""


class ChildProcesses(Protocol):
    """Where last attempts are made. The simulator has its own."""

    def begin(self, do: Callable[[], object], counts: Counts) -> Child | None:
        """Begin one. The caller sees to it that what it touches stands still now. None: there are no children here."""

    def close(self) -> None:
        """End those that are under way: they decide nothing."""


class ForkedChildren:
    """Children of this process. `seconds`: how long one may take. `prepare`: called in each, before what it is for."""

    def __init__(self, env: envs.Env, *, seconds: float, prepare: Callable[[], None]) -> None:
        self._env = env
        self._prepare = prepare
        self._seconds = seconds
        self._running: dict[int, None] = {}  # by process id
        self._closed = False

    def begin(self, do: Callable[[], object], counts: Counts) -> ForkedChild | None:
        if not hasattr(os, "fork") or self._closed:
            return None
        # Before the fork, so that both have it; each closes the end that it does not use.
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads in the parent: see above
            try:
                pid = os.fork()
            except OSError:  # there is no memory, or there are too many processes
                os.close(reading)
                os.close(writing)
                return None
        if pid == 0:
            self._live(do, writing, counts)
        os.close(writing)
        self._running[pid] = None
        return ForkedChild(self, self._env, pid, reading, self._seconds)

    def _live(self, do: Callable[[], object], writing: int, counts: Counts) -> NoReturn:
        """In the child: all that it ever does."""
        try:
            try:
                _settle_in(self._seconds)
                self._prepare()
            except Exception as error:  # noqa: BLE001 - it is no fault of what would be tried
                said = f"{UNDECIDED}a child process could not be set up: {user_errors.message_of(error)}"
            else:
                said = _said(do, counts)
            # In one write: the parent reads only after the child has ended, so all of it must fit into the pipe.
            os.write(writing, said.encode(errors="replace")[:SAID_BYTES_MAX])
        finally:
            os._exit(0)

    def forget(self, pid: int) -> bool:
        """It has ended. Whether it was left to itself until then."""
        del self._running[pid]
        return not self._closed

    def close(self) -> None:
        self._closed = True
        for pid in self._running:  # not reaped yet, so the number is still its own
            os.kill(pid, signal.SIGKILL)


class ForkedChild:
    def __init__(self, children: ForkedChildren, env: envs.Env, pid: int, reading: int, seconds: float) -> None:
        self._children = children
        self._env = env
        self._pid = pid
        self._reading = reading
        self._seconds = seconds

    async def ended(self) -> LastAttemptOutcome:
        status: int | None = None
        try:
            status = await self._status()
        finally:
            ended = self._conclude(status)  # also if this is cancelled: no child stays, and none is a zombie
        return ended

    def wait(self) -> LastAttemptOutcome:
        """The same, for a caller that has nothing else to do. An alarm ends one that hangs."""
        return self._conclude(_wait(self._pid, 0))

    def _conclude(self, status: int | None) -> LastAttemptOutcome:
        hung = status is None
        if hung:
            os.kill(self._pid, signal.SIGKILL)
            _wait(self._pid, 0)
        # At once after it is reaped: from here on its number may be another process's.
        alone = self._children.forget(self._pid)
        said = os.read(self._reading, SAID_BYTES_MAX)
        os.close(self._reading)
        if not alone:
            return LastAttemptOutcome(False, "its process was closed meanwhile", decided=False)
        if hung:
            return LastAttemptOutcome(False, f"it did not return within {self._seconds:g} s", hung=True)
        return _verdict(said.decode(errors="replace"), status or 0)

    async def _status(self) -> int | None:
        """Wait until it has ended; None: its time is over."""
        ends_us = self._env.monotonic_us() + int(self._seconds * 1_000_000)
        pause = LOOK_SECONDS_FIRST
        while (status := _wait(self._pid, os.WNOHANG)) is None:
            if self._env.monotonic_us() > ends_us:
                return None
            await self._env.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS_MOST)
        return status


def _wait(pid: int, options: int) -> int | None:
    """The exit status of a child; None if it runs; 0 if another part of this process has reaped it."""
    try:
        ended, status = os.waitpid(pid, options)
    except ChildProcessError:
        # How it ended is lost with that, and what it has said decides.
        return 0
    return status if ended else None


def _verdict(said: str, status: int) -> LastAttemptOutcome:
    """What a child that has ended proves. One that says nothing has died, whatever its exit code is."""
    # What it said decides, not its exit status: it says something only after its call has ended.
    if said.startswith(SURVIVED):
        return LastAttemptOutcome(True)
    if said.startswith(UNDECIDED):
        return LastAttemptOutcome(False, said[1:], decided=False)
    if said.startswith(WANTED):
        return LastAttemptOutcome(
            False, "it needs more than it can read", decided=False, wanted=bytes.fromhex(said[1:])
        )
    if said.startswith(COUNTED):
        return LastAttemptOutcome(False, said[1:], lived=True)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return LastAttemptOutcome(False, f"signal {number}, {signal.strsignal(number) or 'unknown'}")
    return LastAttemptOutcome(False, f"it ended its process with exit code {os.waitstatus_to_exitcode(status)}")


# --- In the child ---------------------------------------------------------------------------------------------------


def _said(do: Callable[[], object], counts: Counts) -> str:
    try:
        do()
    except errors.CannotRead as error:  # nothing can be read here: whether it would survive is not known
        asked = WANTED + error.wanted.hex()
        return asked if error.wanted and len(asked) <= SAID_BYTES_MAX else UNDECIDED + user_errors.message_of(error)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        how = counts(error)
        return COUNTED + how if how else SURVIVED
    return SURVIVED


def _settle_in(seconds: float) -> None:
    gc.freeze()  # what the parent made is not finalized here
    # The pipe behind it is shared with the parent's event loop.
    signal.set_wakeup_fd(-1)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(seconds) + ALARM_SECONDS)
    logging.disable(logging.CRITICAL)  # the step says it again where it is made in earnest; so for what it prints
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # A death is expected here, and a core file of each would fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # where there is such a score
        Path("/proc/self/oom_score_adj").write_text("1000")
    if _PRCTL is not None:
        _PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)
    cold_cells.cut_off()


_PRCTL: Final = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # found before any fork
