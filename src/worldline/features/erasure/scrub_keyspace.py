"""Whether something was erased whose bytes the engine's files may still hold.

Per what:      store
Changes:       the count with every erasure and every end of a deletion; the record with every scrub that was complete
Keys:          (STORE, SCRUBS, 0) -> how often something was erased: a counter, no envelope
               (STORE, SCRUBS, 1) -> Scrubbed(that count when the last complete scrub began, when it ended)
Present:       the count from the first erasure on, the record from the first scrub on
"""

from __future__ import annotations

import msgspec

from worldline.codec import tuples
from worldline.keys import space

_SCRUBS = tuples.pack((int(space.KeyRoot.STORE), int(space.InStore.SCRUBS)))


class ScrubRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    erasures: int
    time_us: int

    def __post_init__(self) -> None:
        if self.erasures < 0 or self.time_us < 0:
            raise ValueError("times and counts are not negative")


COUNT = _SCRUBS + tuples.pack((0,))
LAST = _SCRUBS + tuples.pack((1,))
RECORD = space.ValueCodec(space.ValueKind.SCRUB, ScrubRecord)
