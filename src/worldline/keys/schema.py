"""The store's format marker.

Per what:      store
Changes:       only by a migration
Key:           (STORE, SCHEMA)
Value:         Schema(major, minor)
Present:       from creation; a store without it is not one of ours
"""

from __future__ import annotations

from worldline.codec import tuples
from worldline.keys import space
from worldline.model import world_records as worlds

KEY = tuples.pack((int(space.KeyRoot.STORE), int(space.InStore.SCHEMA)))
VALUE = space.ValueCodec(space.ValueKind.SCHEMA, worlds.Schema)
