"""The store's encryption marker: what its values are encoded with, and the master keys in use.

Per what:      store
Changes:       when a master key comes into use, is retiring, or is retired
Key:           (STORE, ENCRYPTION)
Value:         Encryption(codec, changes, master keys; a probe)
Present:       from creation, in a store whose values are encoded; a store without it is plain
"""

from __future__ import annotations

from worldline.codec import tuples
from worldline.keys import space
from worldline.model import encryption

KEY = tuples.pack((int(space.Root.STORE), int(space.InStore.ENCRYPTION)))
VALUE = space.Value(space.ValueKind.ENCRYPTION, encryption.Encryption)
