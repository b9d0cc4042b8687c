"""Elapsed time that no single reading of a clock decides: the age of a universe.

Whatever is forgotten after a time (ids of clients, old segments, condemned blobs, holds, uploads and imports of killed
processes) is forgotten by this age, never by the difference of two readings of the store's clock. That clock may be a
day ahead for some seconds, or wrong from the start of a process on, or another one in each process of a folder.

**How it grows.** A janitor notes the age that it has read together with its own monotonic clock and the store's
(`AgeAnchor`). At its next look it adds what *both* clocks say has passed since, `STEP_US_MAX` at most (`grown`):

* A clock that jumps ahead adds nothing: the monotonic clock has not moved. One that is set back adds nothing either,
  and what passed since the look before is lost.
* Any number of janitors count, with whatever clocks: each adds to the age that it has noted, not to the one it finds,
  so the same minute is not counted twice.
* Nothing is counted while no janitor runs. An age is behind the real time that has passed, never ahead of it.

**What an age proves** (`Age.has_passed`). Something that was there when the age `since_us` was read has been there for
`age_us - since_us - step_us` at least. For the last age was counted from an anchor. If that is younger than the read,
the same holds of the anchor's own age, and what was counted since is real. If it is older, its age was `since_us` at
most, and what was counted from it is the time since the read, and `step_us` at most of the time before. So a record
needs an age that was read when it was there, or before; it does not matter that this one was behind.
"""

from __future__ import annotations

from typing import Final

import msgspec

from worldline.keys import age as keys
from worldline.model import ids
from worldline.model.age import Age
from worldline.store import kv

STEP_US_MAX: Final = 15 * 60_000_000  # what two looks of one janitor add at most, however far they are apart


class AgeRecord(msgspec.Struct, frozen=True):
    """An age as it was read."""

    universe: ids.UniverseId
    age: Age
    raw: bytes | None


class AgeAnchor(msgspec.Struct, frozen=True):
    """An age, and what both clocks of a process said when it was read or written."""

    age_us: int
    monotonic_us: int
    time_us: int


def get(universe: ids.UniverseId) -> kv.Get:
    return kv.Get(keys.age_key(universe))


def decode(raw: bytes | None) -> Age:
    return keys.decode(raw)


def state(universe: ids.UniverseId, raw: bytes | None) -> AgeRecord:
    return AgeRecord(universe, decode(raw), raw)


def grown(since: AgeAnchor, *, monotonic_us: int, time_us: int) -> int:
    """The age that this process vouches for now."""
    # What both clocks agree on: either one alone may jump.
    agreed_us = min(monotonic_us - since.monotonic_us, time_us - since.time_us)
    return since.age_us + min(max(0, agreed_us), STEP_US_MAX)


def advance(batch: kv.Batch, record: AgeRecord, since: AgeAnchor, to_us: int) -> AgeRecord:
    """Let the universe be as old as was counted from an anchor. Guard: the age as it was read, which rises."""
    assert to_us > record.age.age_us, "an age only rises"
    # The largest step of all janitors is kept, since `has_passed` subtracts it whatever anchor was counted from.
    after = Age(to_us, max(record.age.step_us, to_us - since.age_us))
    key, raw = keys.age_key(record.universe), keys.AGE.pack(after)
    if record.raw is None:
        batch.absent(key)
    else:
        batch.expect(key, record.raw)
    batch.put(key, raw)
    return AgeRecord(record.universe, after, raw)
