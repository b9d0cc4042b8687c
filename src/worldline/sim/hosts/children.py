"""Last attempts of a simulated host: a real child process, which is waited for at once.

The child has the whole simulation, and makes the step on the copy that it has of its host. If that ends the host, the
child ends as well. Time stands still meanwhile, so nothing depends on how long it takes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from worldline.base import env as envs
from worldline.runtime import child_process
from worldline.sim.runtime.sim_loop import SimMachine

SECONDS = 60.0


class _Ended:
    def __init__(self, attempted: child_process.LastAttemptOutcome) -> None:
        self._attempted = attempted

    async def ended(self) -> child_process.LastAttemptOutcome:
        return self._attempted


class SimChildren:
    """Those of one life of a host."""

    def __init__(self, host: SimMachine, env: envs.Env) -> None:
        self._host = host
        self._forked = child_process.ForkedChildren(env, seconds=SECONDS, prepare=_without_loop)

    def begin(self, do: Callable[[], object], counts: child_process.Counts) -> child_process.Child | None:
        def trying() -> None:
            try:
                do()
            finally:
                if not self._host.alive:
                    os._exit(1)  # as a real child that the step has ended: without any clean-up

        forked = self._forked.begin(trying, counts)
        return None if forked is None else _Ended(forked.wait())

    def close(self) -> None:
        """None is ever under way."""


def _without_loop() -> None:
    asyncio._set_running_loop(None)  # noqa: SLF001 - as in what runs as in a thread
