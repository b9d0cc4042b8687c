"""Records of exports and backups: golden bytes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keys.samples import DIGEST, TIME_US, UNIVERSE, WORLD, counted
from worldline.base import errors
from worldline.codec import canonical, structs
from worldline.features.copies import backup_records
from worldline.features.copies import records as copy_records
from worldline.features.copies.world_file import Tag
from worldline.model.journal import Head
from worldline.model.world_records import Origin, Status

HEAD = Head(3, 7, DIGEST, bytes(32), TIME_US)
RECORDS: list[tuple[Any, str]] = [
    (
        copy_records.ExportedWorld(
            "alice",
            "greeter",
            b"hash",
            Status.PAUSED,
            {"tier": "1"},
            TIME_US,
            True,
            "main",
            TIME_US + 1,
            HEAD,
            [Origin(UNIVERSE, WORLD, 3, 7)],
        ),
        (
            "8b65616c6963656767726565746572446861736802a1647469657261311b00060a24181e4000f5646d61696e1b00060a2418"
            "1e40018503075820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f58200000000000000000"
            "0000000000000000000000000000000000000000000000001b00060a24181e4000818450101112131415161718191a1b1c1d"
            "1e1f50202122232425262728292a2b2c2d2e2f0307"
        ),
    ),
    (copy_records.CopiedInput(b"item", b"id", b"record"), "83446974656d426964467265636f7264"),
    (copy_records.CopiedSeenId(b"id", b"record"), "82426964467265636f7264"),
    (copy_records.Apart(b"key", b"record"), "82436b6579467265636f7264"),
    (
        backup_records.BackupHead(counted(0x30), TIME_US, 2, 1),
        "8450303132333435363738393a3b3c3d3e3f1b00060a24181e40000201",
    ),
    (backup_records.BackedUniverse(UNIVERSE, "main", 12, 5), "8450101112131415161718191a1b1c1d1e1f646d61696e0c05"),
    (
        backup_records.BackupFile(backup_records.FileKind.BLOBS, UNIVERSE, 15, DIGEST, 4096, 9),
        (
            "860350101112131415161718191a1b1c1d1e1f0f5820606162636465666768696a6b6c6d6e6f707172737475767778797a7b"
            "7c7d7e7f19100009"
        ),
    ),
]


@pytest.mark.parametrize(("record", "expected"), RECORDS, ids=[type(row[0]).__name__ for row in RECORDS])
def test_golden(record: Any, expected: str) -> None:
    data = structs.encode(record)
    assert data.hex() == expected
    assert structs.decode(type(record), data) == record
    plain: Any = canonical.decode(data)
    for other in ([*plain, 1], [], [None, *plain[1:]]):
        with pytest.raises(errors.DecodeError):
            structs.decode(type(record), canonical.encode(other))


def world(status: Status, origins: list[Origin]) -> copy_records.ExportedWorld:
    return copy_records.ExportedWorld("a", "b", b"", status, {}, 0, False, "", 0, HEAD, origins)


def test_ordinals_stand() -> None:
    assert {each.name: int(each) for each in Tag} == {
        "WORLD": 1,
        "PIECE": 2,
        "BLOB": 3,
        "SNAPSHOT": 4,
        "SEGMENT": 5,
        "DEAD": 6,
        "SEEN": 7,
        "UNREAD": 8,
        "DROPPED": 9,
        "SEALED": 10,
        "SUBJECT": 11,
    }
    assert [int(each) for each in backup_records.FileKind] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: copy_records.Copying(b"short", "", 0),
        lambda: backup_records.BackupHead(b"short", 0, 2, 1),
        lambda: backup_records.BackedUniverse(b"short", "main", 0, 0),
        lambda: backup_records.BackupFile(backup_records.FileKind.BLOBS, UNIVERSE, 16, DIGEST, 1, 1),
        lambda: backup_records.BackupFile(backup_records.FileKind.KEYS, UNIVERSE, -1, DIGEST, 1, 1),
        lambda: backup_records.BackupFile(backup_records.FileKind.KEYS, UNIVERSE, 0, b"short", 1, 1),
        lambda: world(Status.DELETED, [Origin(UNIVERSE, WORLD, 3, 7)]),
        lambda: world(Status.ACTIVE, [Origin(UNIVERSE, WORLD, 3, 6)]),
        lambda: world(Status.ACTIVE, []),
        lambda: Origin(b"short", WORLD, 1, 1),
    ],
)
def test_records_that_cannot_be(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        wrong()
