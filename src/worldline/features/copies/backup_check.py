"""Checking a backup without a store: every file is there and what the manifest says, every blob is in one, and every
key can be restored.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, grammar, limits
from worldline.features.copies import backup_folder, backup_writer, restore_batches, world_file
from worldline.features.copies.backup_records import BackedUniverse, FileKind
from worldline.features.copies.copy_bounds import CopyBounds
from worldline.features.copies.world_export import Progress, no_progress
from worldline.model import ids
from worldline.store import kv

STAMPS_END = b"\x40" + bytes(limits.STAMP_BYTES - 1)  # no store gets there; a restored one must go on above its stamps
_GUARD = b"guard"  # every batch needs one


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
    folder: backup_folder.BackupFolder,
    manifest: backup_folder.Manifest,
    progress: Progress = no_progress,
    *,
    bytes_max: int | None = None,
) -> Checked:
    """`BadCopy` names the first thing that is wrong. `bytes_max`: how much it may unpack to, if the caller says so."""
    bounds = CopyBounds(f"backup {manifest.id}", manifest.size, bytes_max)
    keys = blobs = 0
    # Read only to be checked: what it says is for a restore.
    await folder.ledger(manifest)
    for place, universe in enumerate(manifest.universes):
        progress(place, len(manifest.universes))
        keys += await _check_keys(folder, manifest, universe, bounds)
        # Shard by shard, so that a part of all addresses is in memory at a time.
        for shard in range(limits.BACKUP_SHARDS):
            blobs += await _check_shard(folder, manifest, universe, shard, bounds)
    names = [each.name for each in manifest.universes]
    return Checked(manifest.id, manifest.head.time_us, names, keys, blobs, len(manifest.files), manifest.size)


async def _check_keys(
    folder: backup_folder.BackupFolder, manifest: backup_folder.Manifest, universe: BackedUniverse, bounds: CopyBounds
) -> int:
    count = 0
    last = b""
    # Copied to nowhere: its batches are built to be checked, and thrown away.
    copy = restore_batches.KeyCopy(ids.UniverseId(universe.id), bytes(limits.ID_BYTES), "", 0, live=False)
    for number, file in enumerate(manifest.of(universe.id, FileKind.KEYS)):
        with backup_folder.bad(f"keys of universe {universe.name!r}"):
            for tag, data in await folder.records(file, backup=manifest.id, bounds=bounds):
                suffix, raw = backup_writer.key_of(tag, data)
                # Rising keys are different keys, so no record replaces another.
                if suffix <= last:
                    raise errors.DecodeError("its keys are not in order")
                _check_key(copy, suffix, raw)
                last = suffix
                count += 1
            if file.number != number:
                raise errors.DecodeError(f"file {number} is missing")
    if count != universe.keys:
        has = grammar.count(count, "key")
        raise errors.BadCopy(f"universe {universe.name!r} has {has}; the manifest says {universe.keys}")
    return count


def _check_key(copy: restore_batches.KeyCopy, suffix: bytes, raw: bytes) -> None:
    """A restore can write it: what would fail there is found before anything is written."""
    stamp = restore_batches.stamp_of(suffix)
    if stamp is not None and stamp >= STAMPS_END:
        raise errors.DecodeError("a stamp that no store has assigned")
    batch = kv.Batch()
    restore_batches.put(batch, copy, suffix, raw)
    batch.put(_GUARD, b"")
    batch.absent(_GUARD)
    kv.check(batch)


async def _check_shard(
    folder: backup_folder.BackupFolder,
    manifest: backup_folder.Manifest,
    universe: BackedUniverse,
    shard: int,
    bounds: CopyBounds,
) -> int:
    wanted: dict[bytes, None] = {}
    with backup_folder.bad(f"blobs of universe {universe.name!r}"):
        for file in manifest.of(universe.id, FileKind.ADDRESSES, shard):
            found = await folder.records(file, backup=manifest.id, bounds=bounds)
            wanted.update(dict.fromkeys(backup_folder.addresses_of(found)))
        count = len(wanted)
        for file in manifest.of(universe.id, FileKind.BLOBS, shard):
            for address in world_file.addresses(await folder.records(file, backup=manifest.id, bounds=bounds)):
                # The file may have blobs of other backups, too.
                wanted.pop(address, None)
    for address in wanted:
        # The first one is enough to say
        raise errors.BadCopy(f"blob {address.hex()} of universe {universe.name!r} is in no file of the backup")
    return count
