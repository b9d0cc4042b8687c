"""The worlds that this process has sent something to lately.

An input into an inbox costs a read and a commit. The read tells whether the world takes input and where its journal
ends. For a short while after it, the next input needs no read: the commit expects the world's meta as it was read.
Stale meta conflicts; the retry reads it.
"""

from __future__ import annotations

import msgspec

from worldline.base import env as envs
from worldline.layers import worlds
from worldline.model import ids

FRESH_US = 1_000_000
WORLDS_MAX = 4_096


class KnownWorld(msgspec.Struct, frozen=True):
    """A world as it was read, where its journal ended, and when that was."""

    world: worlds.WorldRecord
    height: int
    store_us: int
    ours_us: int


class Recent:
    def __init__(self, env: envs.Env) -> None:
        self._env = env
        self._known: dict[ids.Address, KnownWorld] = {}

    def note(self, world: worlds.WorldRecord, *, height: int, time_us: int) -> None:
        self._known.pop(world.at, None)  # so that it moves to the end: the oldest is dropped first
        self._known[world.at] = KnownWorld(world, height, time_us, self._env.monotonic_us())
        if len(self._known) > WORLDS_MAX:
            del self._known[next(iter(self._known))]

    def find(self, at: ids.Address) -> KnownWorld | None:
        """Return what is known of a world, if that is enough to send it something now."""
        known = self._known.get(at)
        if known is not None and self._env.monotonic_us() - known.ours_us > FRESH_US:
            return None
        return known

    def time_us(self, known: KnownWorld) -> int:
        """The store's time now, by our own clock since it was read."""
        # The difference of one monotonic clock: this process's wall clock may be far from the store's.
        return known.store_us + (self._env.monotonic_us() - known.ours_us)
