"""When a role looks into which universe: for a role that looks for due work in many of them.

A universe in which nothing is known to be due has no place here, and costs nothing. One that may have something due is
looked into at a time, and again after as long a rest as that look says; with nothing due before the next scan, it is
left to the scan. Universes that are due at once take turns: the one that was looked into last comes last.
"""

from __future__ import annotations

from worldline.base import env as envs
from worldline.model import ids


class Looks:
    def __init__(self, env: envs.Env, *, scan_us: int) -> None:
        self._env = env
        self._scan_us = scan_us
        self._when: dict[ids.UniverseId, int] = {}  # the one looked into last stands last

    def soon(self, universe: ids.UniverseId) -> None:
        """Something may be due there."""
        self._when[universe] = self._env.monotonic_us()

    def forget(self, universe: ids.UniverseId) -> None:
        self._when.pop(universe, None)

    def take_due(self) -> list[ids.UniverseId]:
        """Where to look now. Hints of them from here on are for the next look."""
        now_us = self._env.monotonic_us()
        due = [universe for universe, at_us in self._when.items() if at_us <= now_us]
        for universe in due:
            del self._when[universe]
        return due

    def looked(self, universe: ids.UniverseId, *, rest_us: int) -> None:
        """Nothing is due there for so long."""
        # If it was touched since, it has an earlier time already, which stays.
        if rest_us < self._scan_us and universe not in self._when:
            self._when[universe] = self._env.monotonic_us() + rest_us

    def rest_us(self) -> int:
        """How long until the next look."""
        if not self._when:
            return self._scan_us
        return min(self._scan_us, max(0, min(self._when.values()) - self._env.monotonic_us()))
