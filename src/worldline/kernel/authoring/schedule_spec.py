"""What a schedule does and when: `every=` so many seconds, or by a `cron=` expression. Checked where it is declared.

When the next firing is due depends on the specification and on the two times given here, and on nothing else. `every`
keeps its phase, counted from when the schedule was made. Cron times are UTC unless a zone is named. In a zone, a time
that the clock skips happens right after the gap, and one that it shows twice happens once; the zone's rules are the
system's, or tzdata's where the system has none, so a world that names a zone replays where the same rules are
installed. A zone that is unknown is refused where a schedule is declared.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import cronsim
import msgspec

from worldline.base import errors, limits
from worldline.kernel import user_values
from worldline.kernel.authoring import calls

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORM = "minute hour day month weekday, such as '0 9 * * 1-5'"
_REPEATS_MAX = 1_000  # times that a clock set back shows again


class Spec(msgspec.Struct, frozen=True, array_like=True):
    """When something happens, and what. Two schedules with equal specifications are the same."""

    every_us: int  # 0: by `cron`
    cron: str
    zone: str  # empty: UTC
    starts: bool  # a workflow; else an event is raised
    name: str  # the workflow, or the event's schema
    data: bytes  # its arguments, or the event


def spec_of(what: object, *, every: calls.Seconds | None, cron: str | None, tz: str | None) -> Spec:
    """Check what a user asks for. Every mistake in it is one clear error."""
    if (every is None) == (cron is None):
        raise errors.BadInput("a schedule needs every= or cron=, and not both")
    if tz is not None and cron is None:
        raise errors.BadInput("tz= belongs to cron=; every= counts seconds, which are the same everywhere")
    every_us = 0 if every is None else calls.to_us(every, "every=")
    if every is not None and every_us < limits.SCHEDULE_EVERY_US_MIN:
        raise errors.BadInput(f"every= must be at least {limits.SCHEDULE_EVERY_US_MIN / 1_000_000:g} s, not {every!r}")
    starts, name, data = _target(what)
    # Blanks must not tell two specifications apart.
    cron = "" if cron is None else " ".join(user_values.text(cron, "cron=").split())
    spec = Spec(every_us, cron, "" if tz is None else user_values.text(tz, "tz="), starts, name, data)
    # Tried now, so that an expression that never happens is refused where it is declared.
    next_us(spec, since_us=0, after_us=0)
    return spec


def next_us(spec: Spec, *, since_us: int, after_us: int) -> int:
    """Return the first time after another one, in microseconds. `BadInput` for an expression that has none."""
    if spec.every_us:
        periods = (after_us - since_us) // spec.every_us + 1  # also before it was made, if the clock is set back
        return since_us + periods * spec.every_us
    # The fields of an expression are about the zone's local time.
    after = (EPOCH + timedelta(microseconds=after_us)).astimezone(_zone(spec.zone))
    try:
        for found in itertools.islice(cronsim.CronSim(spec.cron, after), _REPEATS_MAX):
            due_us = (found.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
            if due_us > after_us:  # a clock that was set back shows earlier times again
                return due_us
    except cronsim.CronSimError as error:
        raise errors.BadInput(f"cron={spec.cron!r}: {str(error).lower()}; it is {_FORM}") from error
    raise errors.BadInput(f"cron={spec.cron!r} never happens; it is {_FORM}")


def has_zones() -> bool:
    """Whether this process knows any time zone. If so, an unknown zone is a mistake of the code that named it."""
    try:
        ZoneInfo("Etc/UTC")
    except (KeyError, ValueError, OSError):
        return False
    return True


def lacking(error: errors.UnknownZone) -> errors.CannotStep:
    """Say why a process cannot make a step that needs the zone."""
    return errors.CannotStep(f"this host has no time zone {error.zone!r}; install tzdata", lasting=True)


def _target(what: object) -> tuple[bool, str, bytes]:
    if not isinstance(what, calls.Call):
        return False, user_values.schema_name(type(what)), user_values.dump(what)
    if what.target.kind != "workflow":
        raise errors.BadInput(f"{what!r} is an effect; schedule a workflow that calls it, or an event")
    what.use()  # scheduled, so not forgotten
    return True, what.target.name, what.pack_checked()


def _zone(name: str) -> Any:
    if not name:
        return UTC
    try:
        return ZoneInfo(name)
    # An unknown zone is a KeyError, a malformed name a ValueError, and the name of a folder of zones an OSError.
    except (KeyError, ValueError, OSError) as error:
        raise errors.UnknownZone(name) from error
