"""Backups of a store: what the manifest of one says. A manifest has no names: where a file is follows from these."""

from __future__ import annotations

import enum

import msgspec

from worldline.base import limits


class FileKind(enum.IntEnum):
    """What a file of a backup holds. Numbers are stored and never reused."""

    KEYS = 1  # of a universe, in order; `number` counts them
    ADDRESSES = 2  # of the blobs that a universe has, those of one shard; `number` is the shard
    BLOBS = 3  # of one shard, for any number of backups; `number` is the shard
    LEDGER = 4  # of erasures, all of the store; of no universe


_SHARDED = (FileKind.ADDRESSES, FileKind.BLOBS)


class BackupFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One file: sha256 and size of its bytes, and how many records it has."""

    kind: FileKind
    universe: bytes
    number: int
    digest: bytes
    size: int
    records: int

    def __post_init__(self) -> None:
        if len(self.universe) != limits.ID_BYTES or len(self.digest) != limits.DIGEST_BYTES:
            raise ValueError("an id has 16 bytes, a digest 32")
        if self.number < 0 or (self.kind in _SHARDED and self.number >= limits.BACKUP_SHARDS):
            raise ValueError("files and shards are counted from 0")


class BackedUniverse(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One universe, and what there is of it."""

    id: bytes
    name: str
    keys: int
    blobs: int

    def __post_init__(self) -> None:
        if len(self.id) != limits.ID_BYTES:
            raise ValueError("a universe id has 16 bytes")


class BackupHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first record of a manifest. `major`, `minor`: the format of the store."""

    id: bytes
    time_us: int
    major: int
    minor: int

    def __post_init__(self) -> None:
        if len(self.id) != limits.ID_BYTES:
            raise ValueError("the id of a backup has 16 bytes")
