"""How a process that hosts ends: the first signal ends it in order, the second at once.

The handlers are Python's own and not the event loop's: they run also while user code blocks the loop. The first SIGINT
or SIGTERM sets `asked`, and what the process waits for is named until it ends. The second ends the process where it
stands, with 128 plus the signal's number, as a shell reports it.

A synchronous effect runs in a thread, which is not interrupted. Its claim is given back like any other; when all else
is closed, `leave` ends the process without waiting for such threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread as pools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from worldline.base import grammar
from worldline.kernel import user_errors
from worldline.runtime import daemon_threads as threads
from worldline.worker import kernel_executor

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNAL_EXIT = 128  # plus the number: what a shell reports for a process that a signal ended
WAITING_SECONDS = 2.0
IDLE_SECONDS = 0.5
LISTED_MAX = 5
OURS = ("worldline-effect", "worldline-kernel", "worldline-reader")
IDLE = ((pools.__name__, "_worker"), (threads.__name__, "_run"), (kernel_executor.__name__, "_run"))

Say = Callable[[str, str], None]


class Shutdown:
    """One process and the signals that end it. `say(what, detail)` writes a line about the process itself."""

    def __init__(self, say: Say, *, as_json: bool) -> None:
        self._say = say
        self._as_json = as_json
        self.doing: Callable[[], Sequence[str]] = lambda: ()  # names what is under way
        self.asked = asyncio.Event()
        self.number: signal.Signals | None = None
        self._telling: asyncio.Task[None] | None = None

    def watch(self, doing: Callable[[], Sequence[str]]) -> None:
        """What names the work that is under way."""
        self.doing = doing

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Take the signals over for as long as the block lasts."""
        loop = asyncio.get_running_loop()

        def received(number: int, frame: FrameType | None) -> None:
            # The second signal: without any clean-up, because the clean-up may be what hangs.
            if self.number is not None:
                os._exit(SIGNAL_EXIT + number)
            self.number = signal.Signals(number)
            # A handler runs between two bytecodes of anything: the loop is told, and does the work itself.
            loop.call_soon_threadsafe(self._begin)
            at = _user_code(frame)
            if at is not None and not self._as_json:
                line = f"[waiting] for {_place(at)}, which blocks the event loop; Ctrl-C again ends at once\n"
                os.write(sys.stderr.fileno(), line.encode())  # the loop cannot say it, and a handler must not use print

        before = {each: signal.signal(each, received) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)  # the caller's own handlers are back: in tests the process lives on
            if self._telling is not None:
                self._telling.cancel()

    def _begin(self) -> None:
        self.asked.set()
        self._say("stopping", "saving worlds, giving back leases and effects; Ctrl-C again ends at once")
        self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        """Name what the end waits for, each time that it has changed."""
        told: list[str] = []
        while True:
            await asyncio.sleep(WAITING_SECONDS)
            # Work has names that a person knows; threads are named only when nothing else is left.
            under_way = [*self.doing()] or busy()
            if under_way and under_way != told:
                self._say("waiting", f"for {listed(under_way)}; Ctrl-C again ends at once")
                told = under_way


def listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def abandoned() -> str:
    """Return what is said of threads that do not end by themselves; nothing if there are none."""
    found = _settled()
    if not found:
        return ""
    threads = grammar.clause(len(found), "thread", "is", "are")
    return f"; {threads} not waited for: {listed(found)} (a synchronous effect is tried again)"


def leave(code: int) -> int:
    """The exit code, if Python can end by itself; else the process ends here. All that is stored must be closed."""
    if busy():
        sys.stdout.flush()  # `_exit` writes no buffers
        sys.stderr.flush()
        os._exit(code)
    return code


def _settled() -> list[str]:
    """The threads that are busy after those that only had to end have ended."""
    for each in threading.enumerate():
        if not _matters(each) or each is threading.current_thread() or not busy():
            continue
        # A thread that was told to end needs a moment; one that runs user code may never end, so this is bounded.
        each.join(IDLE_SECONDS)
    return busy()


def busy() -> list[str]:
    """Where the threads are that have not done their work: file, line and function. Idle pool threads are not."""
    frames = sys._current_frames()  # noqa: SLF001 - documented, and there is no other way to ask
    found = []
    for each in threading.enumerate():
        frame = frames.get(each.ident or 0)
        if not _matters(each) or each is threading.main_thread() or frame is None or _is_idle(frame):
            continue
        found.append(_place(_user_code(frame) or frame))
    return found


def _matters(thread: threading.Thread) -> bool:
    """Whether a thread would keep the process alive, or runs user code for this package."""
    return not thread.daemon or thread.name.startswith(OURS)


def _is_idle(frame: FrameType) -> bool:
    """Whether a thread of a pool waits for work: nothing runs above the pool's own loop."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in IDLE


def _user_code(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of user code. The script that started the process is none."""
    while frame is not None and (
        not user_errors.is_user_code(frame.f_code.co_filename) or frame.f_globals.get("__name__") == "__main__"
    ):
        frame = frame.f_back
    return frame


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
