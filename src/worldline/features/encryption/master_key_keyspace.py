"""The store's encryption marker: what its values are encoded with, and the master keys in use.

Per what:      store
Changes:       when a master key comes into use, is retiring, or is retired
Key:           (STORE, ENCRYPTION)
Value:         Encryption(codec, changes, master keys; a probe)
Present:       from creation, in a store whose values are encoded; a store without it is plain
"""

from __future__ import annotations

import msgspec

from worldline.base import limits
from worldline.codec import tuples
from worldline.keys import space


class MasterKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A master key in use, by its id. `check` is made from the key, so that another key under this id is noticed.
    `retiring`: it is looked for in data keys, and is not to wrap another one.
    """

    id: str
    check: bytes
    retiring: bool = False

    def __post_init__(self) -> None:
        if not 0 < len(self.id.encode()) <= limits.KEY_ID_BYTES_MAX:
            raise ValueError(f"the id of a key has 1 to {limits.KEY_ID_BYTES_MAX} bytes")
        if len(self.check) != limits.KEY_CHECK_BYTES:
            raise ValueError(f"the check of a key has {limits.KEY_CHECK_BYTES} bytes")


class Encryption(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the values of a store are encoded with. `changes` makes each change a new value. `probe`, of a user's codec:
    known bytes as the codec encoded them, which another codec of that name will not decode.
    """

    codec: str
    changes: int
    masters: list[MasterKey]
    probe: bytes = b""

    def __post_init__(self) -> None:
        if not 0 < len(self.codec.encode()) <= limits.NAME_BYTES_MAX:
            raise ValueError("a codec has a name")
        if len(self.masters) > limits.MASTER_KEYS_MAX:
            raise ValueError(f"a store has at most {limits.MASTER_KEYS_MAX} master keys in use")


KEY = tuples.pack((int(space.KeyRoot.STORE), int(space.InStore.ENCRYPTION)))
VALUE = space.ValueCodec(space.ValueKind.ENCRYPTION, Encryption)
