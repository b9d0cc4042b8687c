"""Backups of a whole store, and stores made of them (`worldline.features.copies`), by their URLs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from worldline.base import env_os, errors, limits
from worldline.features.copies import backup_check, backup_folder, store_restore
from worldline.features.copies import backup_writer as backups
from worldline.features.copies.backup_check import Checked
from worldline.features.copies.backup_writer import Made
from worldline.features.copies.store_restore import RestoredStore
from worldline.features.copies.world_export import Progress, no_progress
from worldline.features.encryption import sealed_backup_files
from worldline.features.erasure import ledger_file as ledgers
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.runtime.store_wrapping import StoreCodec


class BackupListing(msgspec.Struct, frozen=True):
    """A backup of a folder. `size`: of all that it consists of, also if others share it."""

    id: str
    time_us: int
    universes: list[str]
    keys: int
    blobs: int
    size: int


async def backup(
    store: store_opening.Store,
    folder: str,
    *,
    universes: Sequence[str] = (),
    keep: int = 0,
    progress: Progress = no_progress,
) -> Made:
    """Back up a store, which may run, into a folder or a bucket (`s3://...`). `keep`: so many backups stay there."""
    if not 0 <= keep <= limits.BACKUPS_MAX:
        raise errors.BadInput(f"a folder keeps 1 to {limits.BACKUPS_MAX} backups, not {keep}")
    async with opened(folder, create=True, codec=store.codec) as found:
        source = backups.BackupSource(store.engine, store.objects, store.env)
        return await backups.backup(source, found, names=universes, keep=keep, progress=progress)


async def restore(
    folder: str,
    store: store_opening.Store,
    *,
    id: str = "",
    live: bool = False,
    ledger: Path | None = None,
    progress: Progress = no_progress,
    bytes_max: int | None = None,
) -> RestoredStore:
    """Make a store, which must be empty, of a backup: the last one, or one by its id. A backup of an encrypted store is
    restored into one with the same codec. `ledger`: a file that says what was erased since then.
    """
    # Read first: a ledger that cannot be read must stop the restore before anything is written.
    erased = None if ledger is None else ledgers.read(ledger)

    def blobs(universe: ids.UniverseId) -> blob_layer.Blobs:
        return blob_layer.Blobs(
            store.engine, store.objects, store.env, universe, in_store_bytes_max=store.in_store_bytes_max
        )

    async with opened(folder, codec=store.codec) as found:
        manifest = await found.manifest(id) if id else await found.latest()
        target = store_restore.RestoreTarget(store.engine, store.env, blobs)
        return await store_restore.restore(
            target, found, manifest, live=live, erased=erased, progress=progress, bytes_max=bytes_max
        )


async def verify(
    folder: str,
    *,
    id: str = "",
    codec: StoreCodec | None = None,
    progress: Progress = no_progress,
    bytes_max: int | None = None,
) -> list[Checked]:
    """Check all backups of a folder, or one. No store is needed. `BadCopy` names the first thing that is wrong."""
    async with opened(folder, codec=codec) as found:
        wanted = [id] if id else await found.ids()
        return [
            await backup_check.check(found, await found.manifest(each), progress, bytes_max=bytes_max)
            for each in wanted
        ]


async def list_all(folder: str, *, codec: StoreCodec | None = None) -> list[BackupListing]:
    """The backups of a folder, the oldest first."""
    async with opened(folder, codec=codec) as found:
        manifests = [await found.manifest(each) for each in await found.ids()]
    return [
        BackupListing(
            each.id,
            each.head.time_us,
            [one.name for one in each.universes],
            sum(one.keys for one in each.universes),
            sum(one.blobs for one in each.universes),
            each.size,
        )
        for each in manifests
    ]


@asynccontextmanager
async def opened(
    folder: str, *, create: bool = False, codec: StoreCodec | None = None
) -> AsyncIterator[backup_folder.BackupFolder]:
    """The backups of a folder. `codec`: of the store that they are of, if that is encrypted."""
    bodies = await store_opening.open_objects(folder, env_os.OsEnv(), create=create)
    try:
        yield backup_folder.BackupFolder(sealed_backup_files.SealedFiles(bodies, codec), folder)
    finally:
        await bodies.close()
