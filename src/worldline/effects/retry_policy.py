"""How one call is tried: its effect's declaration, with what the call overrides. Pure."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from worldline.codec import digest
from worldline.kernel import failure_data
from worldline.kernel.authoring.calls import GROWTH, Effect, Options

_MILLION = 1_000_000


class RetryPolicy(msgspec.Struct, frozen=True):
    """`fatal` and `fatal_names`: exceptions that end the attempts, by type where declared, by name where overridden."""

    attempts: int | None
    timeout_us: int | None
    park: bool
    initial_delay_us: int
    max_delay_us: int
    jitter_ppm: int
    fatal: tuple[type[Exception], ...] = ()
    fatal_names: tuple[str, ...] = ()

    def delay_us(self, attempt: int, intent: bytes) -> int:
        """The pause after an attempt. Its jitter is drawn from the intent, so it is the same on every host."""
        # The exponent is bounded, because the number of attempts may not be.
        pause_us = int(min(self.max_delay_us, self.initial_delay_us * GROWTH ** min(attempt - 1, 64)))
        if not self.jitter_ppm:
            return pause_us
        drawn = int.from_bytes(digest.hash_parts(b"jitter", intent, attempt.to_bytes(8, "big"))[:4], "big")
        return pause_us - (pause_us * self.jitter_ppm * drawn) // (_MILLION << 32)

    def is_last(self, attempt: int, *, mistake: bool) -> bool:
        """Whether no other attempt follows. A mistake in the code is not tried again."""
        return mistake or (self.attempts is not None and attempt >= self.attempts)

    def parks(self, *, mistake: bool) -> bool:
        """Whether it waits for a person then. What may be tried without end does not fail because of a mistake in the
        code: that can be fixed.
        """
        return self.park or (mistake and self.attempts is None)

    def judge(self, error: BaseException) -> failure_data.Verdict:
        """What an exception of an attempt comes to."""
        return failure_data.judge(error, self.fatal, self.fatal_names)


@functools.lru_cache(maxsize=1024)
def policy_of(effect: Effect[..., Any], options: Options) -> RetryPolicy:
    timeout_us = effect.timeout_us if options.timeout_us is None else options.timeout_us
    retry = effect.retry
    # A call that names its attempts replaces the declared policy as a whole, not single parts of it.
    if options.attempts is None:
        return RetryPolicy(
            retry.attempts,
            timeout_us,
            retry.on_exhausted == "park",
            retry.initial_delay_us,
            retry.max_delay_us,
            retry.jitter_ppm,
            fatal=retry.fatal,
        )
    return RetryPolicy(
        options.attempts or None,
        timeout_us,
        bool(options.park),
        options.initial_delay_us or 0,
        options.max_delay_us or 0,
        options.jitter_ppm or 0,
        fatal_names=options.fatal or (),
    )
