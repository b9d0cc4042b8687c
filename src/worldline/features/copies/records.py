"""Copies of worlds and of stores: what is known of one that is being made, and of one that is not used yet."""

from __future__ import annotations

import msgspec

from worldline.base import limits
from worldline.model.journal import Head
from worldline.model.world_records import Origin, Status


class DormantCopy(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A world is a copy of one that may be running elsewhere, and is archived until a person lets it go on.

    `status`: what it was, and becomes then. `source`: what it was made from, for people.
    """

    status: Status
    source: str
    since_us: int


class Copying(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A copy is being made: of a file or a backup into a store, or of a store into a backup.

    `token`: of the process that makes it. `what`: from where, or to where, for people. `time_us`: when it began, or
    until when no other may begin. `batches`: how many were written of it, so that each changes the record. `age_us`: of
    an import, the age of its universe when it began.
    """

    token: bytes
    what: str
    time_us: int
    batches: int = 0
    age_us: int = 0

    def __post_init__(self) -> None:
        if len(self.token) != limits.ID_BYTES:
            raise ValueError(f"a token has {limits.ID_BYTES} bytes")


class ExportedWorld(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the first record of an exported world says: everything that is not in its history.

    `origins`: who made its steps; the last one ends at the head.
    """

    name: str
    program: str
    program_hash: bytes
    status: Status
    labels: dict[str, str]
    created_us: int
    dry: bool
    universe: str  # its name
    exported_us: int
    head: Head
    origins: list[Origin]

    def __post_init__(self) -> None:
        if self.status is Status.DELETED:
            raise ValueError("a deleted world is not exported")
        # Checked with the decoding, because a file of any origin is decoded into this.
        heights = [each.height for each in self.origins]
        if not heights or heights != sorted(heights) or heights[-1] != self.head.height:
            raise ValueError("the origins of a history rise to its head")


class CopiedInput(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An unread input, as it is stored, and under which id it was seen: the end of that key, and the record."""

    item: bytes
    seen: bytes = b""
    record: bytes = b""


class Apart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A record that a lineage has apart from its journals: the end of its key, and the record."""

    key: bytes
    record: bytes


class CopiedSeenId(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An id that was seen: the end of its key, and the record with the stamp of the input."""

    seen: bytes
    record: bytes
