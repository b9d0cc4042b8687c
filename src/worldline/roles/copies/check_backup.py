"""Checking a backup without a store: every file is there and what the manifest says, and every blob is in one."""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.layers import cas
from worldline.model.upkeep.backups import BackedUniverse, FileKind
from worldline.roles.copies import backup, backup_files, world_file
from worldline.roles.copies.world_export import Progress, no_progress


class Checked(msgspec.Struct, frozen=True):
    """A backup that is whole."""

    id: str
    time_us: int
    universes: list[str]
    keys: int
    blobs: int
    files: int
    size: int


async def check(
    folder: backup_files.Folder, manifest: backup_files.Manifest, progress: Progress = no_progress
) -> Checked:
    """`BadCopy` names the first thing that is wrong."""
    keys = blobs = 0
    for place, universe in enumerate(manifest.universes):
        progress(place, len(manifest.universes))
        keys += await _check_keys(folder, manifest, universe)
        for shard in range(limits.BACKUP_SHARDS):
            blobs += await _check_shard(folder, manifest, universe, shard)
    names = [each.name for each in manifest.universes]
    return Checked(manifest.id, manifest.head.time_us, names, keys, blobs, len(manifest.files), manifest.size)


async def _check_keys(
    folder: backup_files.Folder, manifest: backup_files.Manifest, universe: BackedUniverse
) -> int:  # fmt: skip
    count = 0
    for number, file in enumerate(manifest.of(universe.id, FileKind.KEYS)):
        with backup_files.bad(f"keys of universe {universe.name!r}"):
            for tag, data in await folder.records(file, backup=manifest.id):
                backup.key_of(tag, data)
                count += 1
            if file.number != number:
                raise errors.DecodeError(f"file {number} is missing")
    if count != universe.keys:
        raise errors.BadCopy(f"universe {universe.name!r} has {count} keys; the manifest says {universe.keys}")
    return count


async def _check_shard(
    folder: backup_files.Folder, manifest: backup_files.Manifest, universe: BackedUniverse, shard: int
) -> int:
    wanted: dict[bytes, None] = {}
    with backup_files.bad(f"blobs of universe {universe.name!r}"):
        for file in manifest.of(universe.id, FileKind.ADDRESSES, shard):
            found = await folder.records(file, backup=manifest.id)
            wanted.update(dict.fromkeys(backup_files.addresses_of(found)))
        count = len(wanted)
        for file in manifest.of(universe.id, FileKind.BLOBS, shard):
            for _, data in world_file.whole(await folder.records(file, backup=manifest.id)):
                wanted.pop(cas.address(data), None)
    for address in wanted:
        raise errors.BadCopy(f"blob {address.hex()} of universe {universe.name!r} is in no file of the backup")
    return count
