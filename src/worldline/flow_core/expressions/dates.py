"""Milliseconds as the text of a date, without the calendar of this machine."""

from __future__ import annotations

_DAY_MS = 86_400_000


def iso(timestamp_ms: int) -> str:
    """Milliseconds since 1970 as `2024-01-01T00:00:00.000Z`."""
    days, rest = divmod(int(timestamp_ms), _DAY_MS)
    year, month, day = _civil(days)
    seconds, ms = divmod(rest, 1_000)
    return (
        f"{year:04d}-{month:02d}-{day:02d}T{seconds // 3_600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}Z"
    )


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a number of days since 1970, in the Gregorian calendar."""
    # Years are counted from March here, so that a leap day is the last of its year.
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    return year + era * 400 + (month >= 10), month + 3 if month < 10 else month - 9, day
