"""The shell around every role: start, stop, join, and what happens when a turn goes wrong.

A role is a `tick`: one bounded turn that says how long it may rest. The shell calls it again and again, never sooner
than it must. Losses and outside faults are reported and tried again with a growing pause; a bug (any other exception)
stops the role, and `join` raises it. What concerns one world alone does not come this far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import printable
from worldline.runtime import facts as telemetry

log = printable.logger("worldline.roles")

PAUSE_FIRST_MS = 20
PAUSE_MOST_MS = 2_000
STOP_SECONDS = 10


class Loop:
    """Runs one role's `tick` until it is stopped. `tick` returns after at most a bounded wait of its own."""

    def __init__(
        self,
        name: str,
        tick: Callable[[], Awaitable[None]],
        env: envs.Env,
        *,
        wake: Callable[[], None] = lambda: None,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self.name = name
        self._tick = tick
        self._wake = wake
        self._env = env
        self._telemetry = telemetry
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._bugs: list[Exception] | None = None
        self.last_error: BaseException | None = None
        self.ticks = 0

    def start(self, bugs: list[Exception] | None = None) -> None:
        """`bugs` gets what stops it."""
        assert self._task is None, "a loop is started once"
        self._bugs = bugs
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    async def join(self) -> None:
        """Wait until the role has ended. Raises what ended it, if that was a bug."""
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        """End the role: a tick that rests is woken, one that works is allowed to finish, within reason."""
        self._stopping = True
        if self._task is None or self._task.done():
            return
        # Else a tick that rests would end only with its rest.
        self._wake()
        await asyncio.wait([self._task], timeout=STOP_SECONDS)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def failed(self) -> BaseException | None:
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    async def _run(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                await self._tick()
                self.ticks += 1
                failures = 0
            except asyncio.CancelledError:
                raise
            # Expected losses and outside faults may pass by themselves; anything else is a bug, and ends the role.
            except errors.Error as error:
                failures += 1
                self.last_error = error
                log.warning("%s: %s (%s); trying again", self.name, error, error.code)
                self._telemetry.tell(telemetry.Troubled(self.name, error.code, str(error), bug=False))
                # A store that is out of reach must not be asked in a tight loop by every role.
                pause_ms = envs.backoff_ms(self._env, failures, first_ms=PAUSE_FIRST_MS, most_ms=PAUSE_MOST_MS)
                await self._env.sleep(pause_ms / 1000)
            except Exception as error:
                self.last_error = error
                if self._bugs is not None:
                    self._bugs.append(error)
                log.exception("%s: stopped by a bug", self.name)
                self._telemetry.tell(telemetry.Troubled(self.name, type(error).__name__, str(error), bug=True))
                raise
