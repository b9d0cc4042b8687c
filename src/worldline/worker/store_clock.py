"""The store's time between two reads."""

from __future__ import annotations

from worldline.base import env as envs


class StoreClock:
    """The store's time, carried on by our own clock since it was last read: with every heartbeat at the latest."""

    def __init__(self, env: envs.Env) -> None:
        self._env = env
        self._read = (0, 0)

    def set(self, store_us: int) -> None:
        self._read = (store_us, self._env.monotonic_us())

    def now_us(self) -> int:
        store_us, ours_us = self._read
        return store_us + (self._env.monotonic_us() - ours_us)
