"""The environments of a simulation: one true time, and what each host makes of it.

The loop's virtual clock is the truth, and the store's clock. A host's wall clock is skewed against it, drifts and may
be made to jump; its monotonic clock drifts, and starts anew with each life. Every stream of random numbers is seeded by
a text of its own, so that one draw more in one place changes nothing in another.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

from worldline.sim.runtime.sim_loop import SimLoop

EPOCH_US = 1_700_000_000_000_000


class SimEnv:
    """What one life of a host has for a clock and for randomness. Without skew and drift: the truth."""

    def __init__(self, loop: SimLoop, seed: str, *, skew_us: int = 0, drift_ppm: int = 0) -> None:
        self._loop = loop
        self._random = random.Random(seed)
        self._born_us = loop.now_us  # a monotonic clock begins with its process: no two lives can compare theirs
        self._drift_ppm = drift_ppm
        self.skew_us = skew_us

    def jump(self, by_us: int) -> None:
        """The wall clock is set forward or back."""
        self.skew_us += by_us

    def wall_us(self) -> int:
        now_us = self._loop.now_us
        return EPOCH_US + now_us + now_us * self._drift_ppm // 1_000_000 + self.skew_us

    def monotonic_us(self) -> int:
        passed_us = self._loop.now_us - self._born_us
        return passed_us + passed_us * self._drift_ppm // 1_000_000

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def random_below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds)
