"""World files and backups that were made to do harm: records changed, moved and doubled under right checksums."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, digest, structs
from worldline.features.copies import backup_folder, pack_file
from worldline.features.copies.backup_records import BackupFile, FileKind
from worldline.features.copies.world_file import Tag, blob_records

HOSTILE: list[Any] = [
    None,
    -1,
    0,
    2**63,
    2**64 - 1,
    -(2**64),
    1.5,
    True,
    "",
    "../../etc/passwd",
    "a" * 200,
    "\x1b]0;x\x07",
    "a\nb",
    b"",
    bytes(32),
    b"\xff" * 16,
    [],
    {},
    [[]],
    {"": ""},
]


def repacked(records: list[pack_file.Record], kind: pack_file.PackKind = pack_file.PackKind.WORLD) -> bytes:
    packer = pack_file.Packer(kind)
    return b"".join([packer.add(*each) for each in records]) + packer.finish()


def mutations(data: bytes, kind: pack_file.PackKind, seed: int, count: int) -> Iterator[bytes]:
    """Files that this one becomes by a few changes, most of them with right checksums."""
    rng = random.Random(seed)
    records = list(pack_file.of_bytes(kind, data))
    for _ in range(count):
        if rng.random() < 0.15:
            yield _bytes(rng, data)
            continue
        changed = list(records)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            _change(rng, changed)
        yield repacked(changed, kind)


def _change(rng: random.Random, records: list[pack_file.Record]) -> None:
    if not records:
        return
    place, other = rng.randrange(len(records)), rng.randrange(len(records))
    tag, body = records[place]
    match rng.randrange(8):
        case 0:
            del records[place]
        case 1:
            records.insert(other, (tag, body))
        case 2:
            records[place], records[other] = records[other], records[place]
        case 3:
            records[place] = (rng.randrange(14), body)
        case 4:
            records[place] = (tag, _bytes(rng, body))
        case 5:
            records[place] = (tag, records[other][1])
        case _:
            records[place] = (tag, _fields(rng, body))


def _bytes(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    match rng.randrange(4):
        case 0 if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        case 1:
            del changed[rng.randrange(len(changed) + 1) :]
        case 2:
            place = rng.randrange(len(changed) + 1)
            changed[place:place] = rng.randbytes(rng.randrange(1, 40))
        case _:
            changed[:] = rng.randbytes(rng.randrange(64))
    return bytes(changed)


def _fields(rng: random.Random, body: bytes) -> bytes:
    """A canonical record with another value somewhere inside; other bytes, if it is none."""
    try:
        plain: Any = canonical.decode(body)
    except errors.DecodeError:
        return _bytes(rng, body)
    if not isinstance(plain, list) or not plain:
        return canonical.encode(rng.choice(HOSTILE))
    inside = plain
    while True:
        place = rng.randrange(len(inside))
        if not isinstance(inside[place], list) or not inside[place] or rng.random() < 0.3:
            inside[place] = rng.choice(HOSTILE)
            return canonical.encode(plain)
        inside = inside[place]


def bomb(file: Path, into: Path, *, mib: int) -> None:
    """A file of some kilobytes with one large blob behind its first record, and then all that was there."""
    first, *others = pack_file.of_bytes(pack_file.PackKind.WORLD, file.read_bytes())
    blobs = [each for number in range(mib) for each in blob_records(bytes(limits.MIB - 8) + number.to_bytes(8, "big"))]
    assert all(tag == Tag.BLOB for tag, _ in blobs)
    into.write_bytes(repacked([first, *blobs, *others]))


# --- Backups ---------------------------------------------------------------------------------------------------------


class _Backup:
    """A backup in memory: its manifest, and the bytes of each file."""

    def __init__(self, folder: Path) -> None:
        [name] = [each.name for each in (folder / "backups").iterdir()]
        records = list(pack_file.of_bytes(pack_file.PackKind.MANIFEST, (folder / "backups" / name).read_bytes()))
        self.id = name
        self.records = [each for each in records if each[0] != backup_folder.FILE]
        files = [structs.decode(BackupFile, data) for tag, data in records if tag == backup_folder.FILE]
        self.files = [(each, (folder / backup_folder._name(each, name)).read_bytes()) for each in files]

    def write(
        self, folder: Path, place: int | None, data: bytes, manifest: list[pack_file.Record] | None = None
    ) -> None:
        """With other bytes for one file, which the manifest names."""
        shutil.rmtree(folder, ignore_errors=True)
        records = list(self.records if manifest is None else manifest)
        for index, (file, body) in enumerate(self.files):
            kept, named = body, file
            if index == place:
                kept = data
                named = msgspec.structs.replace(file, digest=digest.sha256(data), size=len(data))
            path = folder / backup_folder._name(named, self.id)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(kept)
            records.append((backup_folder.FILE, structs.encode(named)))
        (folder / "backups").mkdir(exist_ok=True)
        (folder / "backups" / self.id).write_bytes(repacked(records, pack_file.PackKind.MANIFEST))


def backups(folder: Path, into: Path, count: int) -> Iterator[str]:
    """Backups that this one becomes, each written `into` a folder. What was changed."""
    found = _Backup(folder)
    each = max(1, count // (len(found.files) + 1))
    for place, (file, data) in enumerate(found.files):
        for number, changed in enumerate(mutations(data, pack_file.PackKind(data[11]), place, each)):
            found.write(into, place, changed)
            yield f"{file.kind.name} {place}, {number}"
    manifest = next((folder / "backups").iterdir()).read_bytes()
    for number, changed in enumerate(mutations(manifest, pack_file.PackKind.MANIFEST, 99, each)):
        found.write(into, None, b"")
        (into / "backups" / found.id).write_bytes(changed)
        yield f"manifest {number}"


def backup_bomb(folder: Path, into: Path, *, mib: int) -> None:
    """A backup with blobs that compress well, which none of its worlds has."""
    found = _Backup(folder)
    place = next(index for index, (file, _) in enumerate(found.files) if file.kind is FileKind.BLOBS)
    records = list(pack_file.of_bytes(pack_file.PackKind.BLOBS, found.files[place][1]))
    more = [each for number in range(mib) for each in blob_records(bytes(limits.MIB - 8) + number.to_bytes(8, "big"))]
    found.write(into, place, repacked([*records, *more], pack_file.PackKind.BLOBS))
