"""The store's clock far off: hours ahead or behind for a while and back again, or set back permanently.

What was set to a time waits for that time on the store's clock. So a timer, or the next attempt of an effect, that was
set while the clock was ahead is late by as much once it is right again, and that is as it should be: `is_excused`.
Nothing else is: not what is begun after the return, and no lease.
"""

from __future__ import annotations

import asyncio
import random

from worldline.model.work import Work
from worldline.sim.faults.faulty_store import Faults
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.sim_loop import SimLoop
from worldline.sim.runtime.truth import AppliedBatch, Truth

HOUR = 3_600
# The last ones are beyond the time that ids are remembered for, and entries kept.
SECONDS = (600, HOUR, 3 * HOUR, -600, -HOUR, 26 * HOUR, 99 * HOUR, -26 * HOUR)
LASTS_SECONDS = (0.3, 2, 6)
CHANCE_SECONDS = 4
STALE_SECONDS = 15  # how long a process may go on by a time of the store that it read before the clock was set


class Excursions:
    def __init__(self, loop: SimLoop, seed: int, truth: Truth, faults: Faults) -> None:
        self._loop = loop
        self._truth = truth
        self._faults = faults
        self._draws = random.Random(f"{seed}:excursions")
        self._ahead: dict[bytes, int] = {}  # of open work: how far the clock may have been ahead when it was written
        self._away_seconds = 0
        self.count = 0

    async def wander(self) -> None:
        """Set the clock at times of its own, until the faults end."""
        while self._faults.active:
            await asyncio.sleep(self._draws.random() * CHANCE_SECONDS)
            if self._draws.random() * 100 < self._faults.profile.excursion:
                await self._go()

    async def _go(self) -> None:
        seconds, lasts = self._draws.choice(SECONDS), self._draws.choice(LASTS_SECONDS)
        for_good = seconds < 0 and self._draws.random() < 0.5
        if not self._faults.active:
            return
        how = "for good" if for_good else f"for {lasts} s"
        if not self._faults.allow(self._loop.root, f"store's clock is off by {seconds} s {how}"):
            return
        self.count += 1
        self._jump(seconds)
        if not for_good:
            self._away_seconds = seconds
            await asyncio.sleep(lasts)
            self.come_back()

    def come_back(self) -> None:
        """End the excursion that is under way, if one is."""
        # Set back first: healing and the excursion's own end may both come here.
        away, self._away_seconds = self._away_seconds, 0
        if away:
            self._jump(-away)

    def _jump(self, seconds: int) -> None:
        self._truth.jump(seconds)
        self._truth.trace.note(self._loop.root, "off")

    # --- What is excused ------------------------------------------------------------------------------------

    def look(self, applied: AppliedBatch) -> None:
        """Remember, for open work that is written, how far the clock was ahead, or is thought to be still."""
        since_us = self._loop.now_us - STALE_SECONDS * 1_000_000
        ahead_us = max([self._truth.skew_us, *(skew for skew, until_us in self._truth.was_set if until_us > since_us)])
        for key in applied.batch.puts:
            if keyspaces.place(key).what == "open":
                self._ahead[key] = ahead_us

    def is_excused(self, key: bytes, work: Work) -> bool:
        """Whether open work waits only because the clock was set back since it was written, or since the parent of a
        fork has opened it.
        """
        now_us = self._truth.time_us()
        return work.due_us > now_us and (self._ahead[key] > self._truth.skew_us or work.opened_us > now_us)

    def catch_up(self) -> None:
        """Set the clock to the furthest that it has ever been, so that everything it was excused for is due."""
        furthest_us = max([self._truth.skew_us, *(skew for skew, _ in self._truth.was_set)])
        # A second beyond: what is due exactly then must be due as well.
        self._jump(max(0, furthest_us - self._truth.skew_us) // 1_000_000 + 1)
