"""The map of the key space, and the ordinals that are stored in every key and value.

A key is a tuple of small ordinals, ids and names (`codec/tuples.py`); a value is a record (`codec/structs.py`) in a
checked envelope (`codec/frame.py`). This folder *is* the storage format: one file per keyspace, each saying per what
it is, whether it changes, its key, its value and when it is present. Ordinals are never changed or reused.

Keys are built from ids by these functions alone, and every key of a universe starts with `universe(...)`: no layer can
reach into another universe by mistake.
"""

from __future__ import annotations

import enum
import functools
from typing import Generic, TypeVar

from worldline.base import errors
from worldline.codec import frame, structs, tuples
from worldline.model import ids

T = TypeVar("T")

FORMAT_MAJOR = 2  # a step's changes travel in its frame; snapshots are rows
FORMAT_MINOR = 4  # the row of a flow domain's cell says that it is one


class KeyRoot(enum.IntEnum):
    STORE = 1
    UNIVERSE = 2
    WORKER = 3


class InStore(enum.IntEnum):
    SCHEMA = 1
    UNIVERSE_NAME = 2
    UNIVERSE_DELETION = 20
    ENCRYPTION = 22
    RESTORING = 24
    BACKUP = 25
    SCRUBS = 26
    LEDGER = 27


class InUniverse(enum.IntEnum):
    META = 1
    GENERATION = 2
    NAME = 3
    INDEX = 4
    CAS = 5
    WORLD = 6
    OPEN = 7
    DUE = 8
    READY = 9  # ready hints until format 1.1; nothing reads or writes it now
    HINT = 10
    CHUNK = 15
    UPLOAD = 16
    COLLECTION = 17
    HOLDS = 18
    CONDEMNED = 19
    SEALED = 22
    SUBJECT = 23
    DATA_KEY = 25
    WORLD_KEY = 26
    IMPORT = 27
    QUOTAS = 29
    QUOTA_LOG = 30
    SEALS = 31
    AGE = 37
    SETTINGS = 38
    DELETION = 20
    GRANTS = 60
    GRANT_LOG = 61


class InWorld(enum.IntEnum):
    META = 1
    EPOCH = 2
    HOLDER = 3
    ASSIGNMENT = 4
    HEAD = 5
    JOURNAL = 6
    BASELINE = 7
    SNAPSHOT = 8
    SEGMENT = 9
    LINEAGE = 10
    RETAIN = 11
    INBOX = 12
    SEEN = 13
    DEAD = 14
    TRIAL = 15
    TRACE = 20
    HELD = 31
    BROUGHT = 35


class InWorker(enum.IntEnum):
    LIFE = 1
    WORLD = 2


class ValueKind(enum.IntEnum):
    """The kind byte of every stored value's envelope."""

    SCHEMA = 1
    UNIVERSE_NAME = 2
    UNIVERSE_META = 3
    GENERATION = 4
    NAME = 5
    INDEX = 6
    BLOB = 7
    WORLD_META = 8
    EPOCH = 9
    HOLDER = 10
    ASSIGNMENT = 11
    HEAD = 12
    JOURNAL = 13
    BASELINE = 14
    SNAPSHOT = 15
    INBOX = 16
    SEEN = 17
    DEAD = 18
    WORK = 19
    DUE = 20
    READY = 21  # until format 1.1
    WORKER = 22
    HELD = 23
    HINT = 24
    TRIAL = 25
    LINEAGE = 26
    PIN = 27
    SEGMENT = 28
    CHUNK = 30
    UPLOAD = 31
    TRACE = 40
    COLLECTION = 41
    HOLDS = 42
    CONDEMNED = 43
    SEALED = 48
    SUBJECT = 49
    ENCRYPTION = 52
    DATA_KEY = 53
    HELD_COPY = 55
    COPYING = 56
    QUOTAS = 58
    QUOTA_CHANGE = 59
    DELETION = 45
    UNIVERSE_DELETION = 46
    GRANTS = 60
    GRANT_CHANGE = 61
    USAGE = 62
    DROPPED = 64
    AGE = 70
    SETTINGS = 71
    BROUGHT = 77
    SCRUB = 81
    LEDGER = 82


class ValueCodec(Generic[T]):
    """How one keyspace's values are stored: the record's type in an envelope of its kind."""

    __slots__ = ("_kind", "_type")

    def __init__(self, kind: ValueKind, record: type[T]) -> None:
        self._kind = int(kind)
        self._type = record

    @property
    def kind(self) -> int:
        """What its envelopes say they hold."""
        return self._kind

    def pack(self, record: T) -> bytes:
        return frame.wrap(self._kind, structs.encode(record))

    def unpack(self, data: bytes) -> T:
        return structs.decode(self._type, frame.unwrap(self._kind, data))

    def get(self, data: bytes | None) -> T | None:
        return None if data is None else self.unpack(data)


@functools.lru_cache(maxsize=1024)
def universe(of: ids.UniverseId) -> bytes:
    """The prefix of everything in a universe."""
    return tuples.pack((int(KeyRoot.UNIVERSE), tuples.Uuid(ids.check_id(of, "a universe id"))))


# Every key of a world begins with this, and each step makes several of them.
@functools.lru_cache(maxsize=65536)
def world(at: ids.Address) -> bytes:
    """The prefix of a world's own keys."""
    inside = tuples.pack((int(InUniverse.WORLD), tuples.Uuid(ids.check_id(at.world, "a world id"))))
    return universe(at.universe) + inside


def part(ordinal: enum.IntEnum) -> bytes:
    """The piece of a key that an ordinal becomes."""
    return tuples.pack((int(ordinal),))


def inside(prefix: bytes, key: bytes, what: str) -> tuple[tuples.Item, ...]:
    """The items of a key that follow its prefix. Every parser of keys starts here.

    No key of ours holds a truth value, and Python would take one for the number 0 or 1.
    """
    if not key.startswith(prefix):
        raise errors.DecodeError(f"not {what}")
    items = tuples.unpack(key[len(prefix) :])
    if any(isinstance(item, bool) for item in items):
        raise errors.DecodeError(f"not {what}")
    return items
