"""The worlds that this process has sent something to lately.

An input into an inbox costs a read and a commit. The read tells whether the world takes input, whether a hint is there
already, and where its journal ends. For a short while after it, the next input can do without: the commit expects the
world's meta as it was read, and leaves a hint, whether there is one or not. Whoever is wrong about the meta meets a
conflict, and reads.

Not while another input to the same world is under way: two that write the same hint would have to wait for each other,
while those that have seen it go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from worldline.base import env as envs
from worldline.layers import worlds
from worldline.model import ids

FRESH_US = 1_000_000
WORLDS_MAX = 4_096


class Known(msgspec.Struct, frozen=True):
    """A world as it was read, where its journal ended, and when that was."""

    world: worlds.World
    height: int
    store_us: int
    ours_us: int


class Recent:
    def __init__(self, env: envs.Env) -> None:
        self._env = env
        self._known: dict[ids.Address, Known] = {}
        self._under_way: dict[ids.Address, int] = {}

    def note(self, world: worlds.World, *, height: int, time_us: int) -> None:
        self._known.pop(world.at, None)
        self._known[world.at] = Known(world, height, time_us, self._env.monotonic_us())
        if len(self._known) > WORLDS_MAX:
            del self._known[next(iter(self._known))]

    @contextmanager
    def sending(self, at: ids.Address) -> Iterator[Known | None]:
        """What is known of a world, if that is enough to send it something now."""
        known = None if at in self._under_way else self._known.get(at)
        if known is not None and self._env.monotonic_us() - known.ours_us > FRESH_US:
            known = None
        self._under_way[at] = self._under_way.get(at, 0) + 1
        try:
            yield known
        finally:
            self._under_way[at] -= 1
            if not self._under_way[at]:
                del self._under_way[at]

    def time_us(self, known: Known) -> int:
        """The store's time now, by our own clock since it was read."""
        return known.store_us + (self._env.monotonic_us() - known.ours_us)
