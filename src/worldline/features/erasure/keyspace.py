"""The ledger of erasures.

Per what:      erasure
Changes:       never
Key:           (STORE, LEDGER, time in microseconds, the beginning of the sha256 of the value)
Value:         LedgerEntry
Present:       from the batch on that erases, for ever

It is the store's, not a universe's: it outlives what it is about. An entry that comes twice, by an export and a
restore, has one key.
"""

from __future__ import annotations

from worldline.base import limits
from worldline.codec import digest, tuples
from worldline.features.erasure.records import LedgerEntry
from worldline.keys import space

_LEDGER = tuples.pack((int(space.KeyRoot.STORE), int(space.InStore.LEDGER)))

ENTRY = space.ValueCodec(space.ValueKind.LEDGER, LedgerEntry)


def entry_key(entry: LedgerEntry) -> bytes:
    name = digest.sha256(ENTRY.pack(entry))[: limits.ID_BYTES]
    return _LEDGER + tuples.pack((entry.time_us, tuples.Uuid(name)))


def entries() -> tuple[bytes, bytes]:
    return tuples.prefix_range(_LEDGER)
