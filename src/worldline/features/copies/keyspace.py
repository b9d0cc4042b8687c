"""Copies that are being made.

Per what:      store (a restore into it, a backup of it); of an import, the key is in `keys/imports.py`
Changes:       with every batch that is written of it; the time of a backup is renewed
Keys:          (STORE, RESTORING)  -> Copying: a backup is being restored into this store
               (STORE, BACKUP)     -> Copying: a backup of this store is being made
Present:       while it is made, and after a process that made it was killed, until it is made again or swept
"""

from __future__ import annotations

from worldline.codec import tuples
from worldline.features.copies import records
from worldline.keys import space

COPYING = space.ValueCodec(space.ValueKind.COPYING, records.Copying)


def restoring_key() -> bytes:
    return tuples.pack((int(space.KeyRoot.STORE), int(space.InStore.RESTORING)))


def backup_key() -> bytes:
    return tuples.pack((int(space.KeyRoot.STORE), int(space.InStore.BACKUP)))
