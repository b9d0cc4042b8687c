"""The age of a universe, by which everything in it is forgotten that is forgotten after a time.

Per what:      universe
Changes:       every now and then, while a janitor has the universe open; it only rises
Key:           (UNIVERSE, u, AGE)
Value:         Age(age, the most that was counted before it was stored)
Present:       from the first time that was counted; absent means an age of 1
"""

from __future__ import annotations

from worldline.keys import space
from worldline.model import age, ids

_AGE = space.part(space.InUniverse.AGE)

AGE = space.ValueCodec(space.ValueKind.AGE, age.Age)


def age_key(universe: ids.UniverseId) -> bytes:
    return space.universe(universe) + _AGE


def decode(raw: bytes | None) -> age.Age:
    return AGE.get(raw) or age.Age()
