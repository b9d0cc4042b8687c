"""What the host's log says of effects that fail: one line for each attempt that did, with what happens next and what to
type. An effect that is answered says nothing.
"""

from __future__ import annotations

from worldline.codec import printable
from worldline.effects.attempt import AttemptResult
from worldline.effects.retry_policy import RetryPolicy
from worldline.layers import work as works
from worldline.runtime import facts

log = printable.logger("worldline.adapter")


def retried(claim: works.Open, policy: RetryPolicy, ended: AttemptResult, *, pause_us: int) -> None:
    """An attempt failed, and another follows after a pause."""
    limit = "" if policy.attempts is None else f" of {policy.attempts}"
    log.warning(
        "%s: attempt %d%s failed: %s; tried again in %g s, or now with `worldline effect retry %s`",
        _named(claim),
        claim.work.attempt,
        limit,
        _why(ended),
        round(pause_us / 1_000_000, 3),
        _short(claim),
        extra=_about(claim),
    )


def parked(claim: works.Open, ended: AttemptResult) -> None:
    """It waits for a person."""
    when = "when its code is fixed" if ended.mistake or ended.unfit else "when the cause is fixed"
    log.error(
        "%s is parked after attempt %d: %s; %s: `worldline effect retry %s`, or `worldline effect answer %s VALUE`",
        _named(claim),
        claim.work.attempt,
        _why(ended),
        when,
        _short(claim),
        _short(claim),
        extra=_about(claim),
    )


def failed(claim: works.Open, ended: AttemptResult, tried: int) -> None:
    """Its workflow gets the failure."""
    mistake = ", a mistake in its code, which is not tried again" if ended.mistake else ""
    log.warning(
        "%s failed after %d %s%s: %s; that is wl.EffectFailed in its workflow, an error in its domain",
        _named(claim),
        tried,
        "attempt" if tried == 1 else "attempts",
        mistake,
        _why(ended),
        extra=_about(claim),
    )


def _named(claim: works.Open) -> str:
    return f"effect {claim.work.name} {_short(claim)}"


def _short(claim: works.Open) -> str:
    return claim.intent.hex()[:12]


def _why(ended: AttemptResult) -> str:
    message = " ".join(ended.message.split())[:500]  # one line, whatever an exception says
    return f"{message} ({ended.place})" if ended.place else message


def _about(claim: works.Open) -> dict[str, object]:
    return facts.about(claim.at, step=claim.work.step)
