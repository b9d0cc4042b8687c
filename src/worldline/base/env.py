"""`Env`: the one door for time, randomness and ids.

Code that needs a clock or a random number takes an `Env` by constructor. `env_os.OsEnv` is the real one, `FixedEnv`
here is the test one; the simulator brings its own. Wall time is microseconds since 1970 as an int: what `datetime`
can hold exactly, and never a float where bytes or order matter.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable
from typing import Protocol

from worldline.base import limits


class Env(Protocol):
    """Time, randomness, ids. Implementations must be safe to call from any thread."""

    def wall_us(self) -> int:
        """Return microseconds since 1970, UTC. They may jump."""

    def monotonic_us(self) -> int:
        """Return microseconds since some instant. They never decrease; only for durations inside one process."""

    def random_bytes(self, count: int) -> bytes:
        """Draw so many random bytes."""

    def random_below(self, bound: int) -> int:
        """Draw a uniform integer in [0, bound)."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait so long."""

    def timeout(self, seconds: float) -> contextlib.AbstractAsyncContextManager[object]:
        """End what is awaited inside with `TimeoutError` after so long, as `asyncio.timeout` does. Roles rest by it: it
        costs no task, which a wait beside `sleep` would.
        """


class Entropy:
    """Bytes that only this process knows, drawn when they are first needed: most processes never need them."""

    __slots__ = ("_drawn", "_env")

    def __init__(self, env: Env) -> None:
        self._env = env
        self._drawn = b""

    def bytes(self) -> bytes:
        """The same at every call, so that a step made twice comes out the same."""
        if not self._drawn:
            self._drawn = self._env.random_bytes(limits.DIGEST_BYTES)
        return self._drawn


def new_id(env: Env) -> bytes:
    """Sixteen bytes, time-ordered (the layout of UUID version 7), so that keys made from ids arrive in order.

    Twelve of the bits that are free there tell the part of the millisecond: ids are in order to the microsecond.
    """
    millis, micros = divmod(env.wall_us(), 1000)
    assert 0 <= millis < 1 << 48
    part = micros * 4096 // 1000
    tail = bytearray(env.random_bytes(10))
    # Version and variant stand where UUIDs have them, so that other tools read these ids.
    tail[0] = 0x70 | part >> 8
    tail[1] = part & 0xFF
    tail[2] = 0x80 | (tail[2] & 0x3F)
    made = millis.to_bytes(6, "big") + bytes(tail)
    assert len(made) == limits.ID_BYTES
    return made


def id_time_us(made: bytes) -> int:
    """When `new_id` made this id, to the millisecond."""
    assert len(made) == limits.ID_BYTES
    return int.from_bytes(made[:6], "big") * 1000


def backoff_ms(env: Env, attempt: int, *, first_ms: int, most_ms: int) -> int:
    """Exponential backoff with full jitter, in [1, most_ms]; `attempt` counts from 0."""
    # The shift is bounded: the number of attempts is not, and need not make a huge number.
    ceiling = min(most_ms, first_ms << min(attempt, 20))
    return 1 + env.random_below(max(1, ceiling))


class FixedEnv:
    """A test environment: the clock stands still until `advance_us`, randomness comes from the seed."""

    def __init__(self, seed: int = 0, *, wall_us: int = 1_700_000_000_000_000) -> None:
        self._random = random.Random(seed)
        self._wall_us = wall_us
        self._monotonic_us = 0

    def advance_us(self, by: int) -> None:
        assert by >= 0
        self._wall_us += by
        self._monotonic_us += by

    def jump_wall_us(self, by: int) -> None:
        """Move the wall clock alone, backwards too, as an operator or NTP would."""
        self._wall_us += by

    def wall_us(self) -> int:
        return self._wall_us

    def monotonic_us(self) -> int:
        return self._monotonic_us

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def random_below(self, bound: int) -> int:
        return self._random.randrange(bound)

    async def sleep(self, seconds: float) -> None:
        # The clock moves and nothing waits: a test takes no time.
        self.advance_us(int(seconds * 1_000_000))

    def timeout(self, seconds: float) -> contextlib.AbstractAsyncContextManager[object]:
        """The clock stands still while something is awaited, so that nothing takes too long."""
        del seconds
        return contextlib.nullcontext()
