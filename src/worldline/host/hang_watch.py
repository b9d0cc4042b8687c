"""Watching a process from a thread of its own, for user code that does not return.

A step that takes longer than its time is given up (`worldline.worker.kernel_executor`): its world continues in
another thread, and the code is interrupted. Code that waits in C cannot be: `time.sleep`, a socket, a regular
expression. That, and an event loop that is held up by an effect, is said; with `on_hang="exit"` the process ends, so
that another one continues, and the crash budget decides what happens to the input.

It is a thread because the event loop may be what does not return. Code in C that keeps Python's global lock stops this
thread too. Then nothing in the process can say so; with `on_hang="exit"` a timer of `faulthandler`, which does not need
that lock, writes down where all threads are and ends the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Callable

from worldline.base import env as envs
from worldline.codec import printable
from worldline.runtime import daemon_threads
from worldline.worker.kernel_executor import LATE_US, AbandonedThread

log = printable.logger("worldline.roles")

EXIT_CODE = 75  # EX_TEMPFAIL: start it again
LOOKS_PER_TIMEOUT = 8
LOOK_SECONDS_MAX = 0.5
INTERRUPT_SECONDS = 0.02  # between two looks while code is being interrupted
REARM_US = 1_000_000
GRACE_US = 2_000_000  # for code that is being interrupted, before it is said that it cannot be


class HangWatch:
    """`look` gives up what does not return, and says which threads have not ended since."""

    def __init__(
        self,
        env: envs.Env,
        look: Callable[[], list[AbandonedThread]],
        *,
        step_timeout_ms: int,
        hang_ms: int,
        on_hang: str,
    ) -> None:
        self._env = env
        self._look = look
        self._pause = min(LOOK_SECONDS_MAX, step_timeout_ms / 1000 / LOOKS_PER_TIMEOUT)
        self._hang_us = hang_ms * 1000
        self._exits = on_hang == "exit"
        self._fuse_us = 2 * max(hang_ms, step_timeout_ms) * 1000 + GRACE_US  # when nothing else ended the process
        self._armed_us = -REARM_US
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._answered_us = 0  # when the event loop was last seen to run
        self._asked = False
        self._told = False

    def start(self) -> None:
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        # As if it had answered just now: the time before the start is no hang.
        self._answered_us = self._env.monotonic_us()
        self._arm(self._answered_us)
        # A daemon: a process that ends must not wait for the thread that watches it.
        threading.Thread(target=self._run, name="worldline-watch", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()
        # The fuse would end a process that is only shutting down.
        if self._exits:
            faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        left: list[AbandonedThread] = []
        now_us = self._env.monotonic_us()
        while not self._ended.wait(INTERRUPT_SECONDS if left else self._pause):
            left = self._look()
            before_us, now_us = now_us, self._env.monotonic_us()
            if now_us - before_us > LATE_US:  # the process was stopped, all of it
                self._answered_us = now_us
            self._arm(now_us)
            for each in left:
                if now_us - each.since_us >= GRACE_US and not each.told:
                    # Once: code that waits in C may stay there for as long as the process lives.
                    each.tell()
                    self._tell_stuck(daemon_threads.place_of(each.thread.ident or 0))
            self._ask_loop(now_us)

    def _arm(self, now_us: int) -> None:
        """End the process if this thread does not come here again in time."""
        # Not with every look: each call starts the timer's thread again.
        if self._exits and now_us - self._armed_us >= REARM_US:
            self._armed_us = now_us
            faulthandler.dump_traceback_later(self._fuse_us / 1_000_000, exit=True)

    def _tell_stuck(self, place: str) -> None:
        log.error(
            "a step was given up, and its code cannot be interrupted: %s waits in C; its thread is left behind", place
        )
        self._hung(f"the code of a step does not return and cannot be interrupted: {place}")

    # --- The event loop -----------------------------------------------------------------------------------------

    def _ask_loop(self, now_us: int) -> None:
        """See whether the event loop runs: it is asked to say so, and answers with its next turn."""
        assert self._loop is not None
        if not self._asked:
            # One question at a time: a loop that is held up for long must not find thousands of them.
            self._asked = True
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it is closed
                self._ended.set()
        elif now_us - self._answered_us >= self._hang_us and not self._told:
            self._told = True
            place = daemon_threads.place_of(self._loop_thread)
            log.error(
                "the event loop has not run for %d s: %s blocks it; use `def` instead of `async def`, or await",
                (now_us - self._answered_us) // 1_000_000,
                place,
            )
            self._hung(f"{place} blocks the event loop")

    def _answer(self) -> None:
        self._answered_us = self._env.monotonic_us()
        # Both: if it hangs again, that is said again.
        self._asked = self._told = False

    def _hung(self, why: str) -> None:
        if self._exits:
            sys.stderr.write(f'worldline: {why}; on_hang is "exit": this process ends ({EXIT_CODE})\n')
            # `os._exit` flushes nothing.
            sys.stderr.flush()
            os._exit(EXIT_CODE)
