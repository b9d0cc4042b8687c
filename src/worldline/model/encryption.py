"""What is stored of encryption: the codec and the master keys of a store, and data keys that are wrapped by them."""

from __future__ import annotations

import msgspec

from worldline.base import limits

CHECK_BYTES = 16


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
        if len(self.check) != CHECK_BYTES:
            raise ValueError(f"the check of a key has {CHECK_BYTES} bytes")


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


class DataKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A data key, wrapped by the master key of this id. Without `wrapped`: destroyed, at `destroyed_us`."""

    master: str
    wrapped: bytes
    made_us: int
    destroyed_us: int = 0

    def __post_init__(self) -> None:
        if bool(self.wrapped) == bool(self.destroyed_us):
            raise ValueError("a data key is wrapped, or destroyed")
