"""Noticing what hangs: a cycle that does not come back, and an event loop that is held up.

A cycle hangs if a handler or a workflow never returns: its worlds get no further, while the process looks alive. The
loop is held up by an effect that blocks it instead of awaiting: then everything in the process is late. Both are told,
each hang once, and nothing is done about them here. How a worker gives its other worlds away meanwhile is in
`worldline.worker.stalled_step`; how a step is given up, in `worldline.host.hang_watch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from worldline.base import env as envs
from worldline.codec import printable
from worldline.runtime import facts as telemetry

log = printable.logger("worldline.roles")

TURN_MS = 1_000
NAMED_MAX = 5


class UnderWay(msgspec.Struct, frozen=True):
    """A cycle that has not come back yet."""

    began_us: int
    worlds: list[str]


class Watchdog:
    """A role of its own: `cycles` are those under way, by a number that none of them shares with another."""

    def __init__(
        self,
        env: envs.Env,
        cycles: Callable[[], Mapping[int, UnderWay]],
        *,
        hang_ms: int,
        telemetry: telemetry.Telemetry,
    ) -> None:
        self._env = env
        self._cycles = cycles
        self._hang_us = hang_ms * 1000
        self._telemetry = telemetry
        self._told: dict[int, None] = {}
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def tick(self) -> None:
        """One turn: rest, see how late it got, and look for cycles that are older than they should be."""
        began_us = self._env.monotonic_us()
        try:
            async with self._env.timeout(TURN_MS / 1000):
                await self._woken.wait()
        except TimeoutError:
            # Only a rest that was not cut short tells how late the event loop is.
            now_us = self._env.monotonic_us()
            self._telemetry.tell(telemetry.Lagged(max(0, now_us - began_us - TURN_MS * 1000)))
            self._look(now_us)

    def _look(self, now_us: int) -> None:
        cycles = dict(self._cycles())
        # Forgotten with their cycles, so that this stays as small as what is under way.
        self._told = {number: None for number in self._told if number in cycles}
        for number, cycle in cycles.items():
            age_us = now_us - cycle.began_us
            if age_us >= self._hang_us and number not in self._told:
                self._told[number] = None
                named = ", ".join(cycle.worlds[:NAMED_MAX])
                more = f" and {len(cycle.worlds) - NAMED_MAX} more" if len(cycle.worlds) > NAMED_MAX else ""
                log.warning(
                    "a cycle has not come back for %d s: a handler or workflow of %s%s does not return",
                    age_us // 1_000_000,
                    named,
                    more,
                )
                self._telemetry.tell(telemetry.Hung(cycle.worlds, age_us))
