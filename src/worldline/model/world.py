"""What a world is, apart from its journal: program, status, labels, where it came from."""

from __future__ import annotations

import enum

import msgspec


class Status(enum.IntEnum):
    """What a world takes and does. Numbers are stored and never reused.

    ======== ============ ======== ========
    status   takes input  runs     readable
    ======== ============ ======== ========
    ACTIVE   yes          yes      yes
    PAUSED   yes          no       yes
    ARCHIVED no           no       yes
    DELETED  no           no       no
    ======== ============ ======== ========
    """

    ACTIVE = 1
    PAUSED = 2
    ARCHIVED = 3
    DELETED = 4


TRANSITIONS: dict[Status, tuple[Status, ...]] = {
    Status.ACTIVE: (Status.PAUSED, Status.ARCHIVED, Status.DELETED),
    Status.PAUSED: (Status.ACTIVE, Status.ARCHIVED, Status.DELETED),
    Status.ARCHIVED: (Status.ACTIVE, Status.DELETED),
    Status.DELETED: (),
}

TAKES_INPUT = (Status.ACTIVE, Status.PAUSED)


class UniverseMeta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    created_us: int


class WorldMeta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Rarely changes: producers expect these very bytes, so nothing that counts or moves belongs here.

    `revision` makes every change a new value, also one that goes back to an earlier status.
    """

    name: str
    program: str
    program_hash: bytes
    status: Status
    labels: dict[str, str]
    created_us: int
    revision: int = 0


class Schema(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The store's format. A reader refuses another major, and a minor above its own."""

    major: int
    minor: int

    def __post_init__(self) -> None:
        if self.major < 1 or self.minor < 0:
            raise ValueError("majors count from 1, minors from 0")
