"""Names of saved state: a snapshot in the CAS, and the baseline a restore starts from."""

from __future__ import annotations

import msgspec

from worldline.base import limits


class StateSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state at the end of `step`, as a blob in the CAS. `chain` ties it to one history. `age_us`: how old the
    universe was when it was saved; 0 if that is not known.
    """

    step: int
    height: int
    chain: bytes
    root: bytes
    size: int
    program_hash: bytes
    time_us: int
    age_us: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.step <= self.height:
            raise ValueError("a step has at least one entry, and both count from 0 at a snapshot")
        if len(self.chain) != limits.DIGEST_BYTES or len(self.root) != limits.DIGEST_BYTES:
            raise ValueError("a digest has 32 bytes")
        if self.size < 0 or self.age_us < 0:
            raise ValueError("a size and an age are not negative")
