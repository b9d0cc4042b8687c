"""What is said of a run that is blocked and of an effect that is parked: one line each, with the command to type. The
same in a host's log, in a caller's log and in its exception.

`option`: what the commands need besides their own words, to find the store.
"""

from __future__ import annotations

import shlex

from worldline.codec import printable

REASON_CHARACTERS_MAX = 500


def blocked(world: str, run: str, report: str, *, option: str = "") -> str:
    """A run whose code does not fit its record."""
    named = shlex.quote(world)
    return (
        f"run {run!r} is blocked: {_first_line(report)}; it is tried again at once when code that fits is hosted; see "
        f"`worldline why {named}{option}`, or type `worldline runs retry {named} {shlex.quote(run)}{option}`"
    )


def parked(effect: str, intent: bytes, why: str, *, attempts: int = 0, option: str = "") -> str:
    """An effect that is not tried any more."""
    short = intent.hex()[:12]
    after = f" after attempt {attempts}" if attempts else ""
    return (
        f"effect {effect} {short} is parked{after}: {_first_line(why)}; type `worldline effect retry {short}{option}`, "
        f"or `worldline effect answer {short} VALUE{option}`"
    )


def retried(effect: str, intent: bytes, why: str, *, attempts: int, option: str = "") -> str:
    """An effect that has failed and is tried again by itself."""
    short = intent.hex()[:12]
    return (
        f"attempt {attempts} of effect {effect} {short} failed: {_first_line(why)}; it is tried again by itself, or "
        f"now with `worldline effect retry {short}{option}`"
    )


def _first_line(text: str) -> str:
    """One line, whatever an exception says."""
    lines = text.strip().splitlines()
    return printable.shown((" ".join(lines[0].split()) if lines else "no reason was given")[:REASON_CHARACTERS_MAX])
