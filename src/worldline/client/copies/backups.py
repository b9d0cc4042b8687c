"""Backups of a whole store, and stores made of them (`worldline.roles.copies`), by their URLs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from worldline.base import env_os, errors, limits
from worldline.client.personal import ledger as ledgers
from worldline.host import compose
from worldline.host.encryption import opening, sealed_files
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.roles.copies import backup as backups
from worldline.roles.copies import backup_files, check_backup, store_restore
from worldline.roles.copies.backup import Made
from worldline.roles.copies.check_backup import Checked
from worldline.roles.copies.store_restore import RestoredStore
from worldline.roles.copies.world_export import Progress, no_progress


class BackupListing(msgspec.Struct, frozen=True):
    """A backup of a folder. `size`: of all that it consists of, also if others share it."""

    id: str
    time_us: int
    universes: list[str]
    keys: int
    blobs: int
    size: int


async def backup(
    store: compose.Store,
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
    store: compose.Store,
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
    codec: opening.AnyCodec | None = None,
    progress: Progress = no_progress,
    bytes_max: int | None = None,
) -> list[Checked]:
    """Check all backups of a folder, or one. No store is needed. `BadCopy` names the first thing that is wrong."""
    async with opened(folder, codec=codec) as found:
        wanted = [id] if id else await found.ids()
        return [
            await check_backup.check(found, await found.manifest(each), progress, bytes_max=bytes_max)
            for each in wanted
        ]


async def list_all(folder: str, *, codec: opening.AnyCodec | None = None) -> list[BackupListing]:
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
    folder: str, *, create: bool = False, codec: opening.AnyCodec | None = None
) -> AsyncIterator[backup_files.BackupFolder]:
    """The backups of a folder. `codec`: of the store that they are of, if that is encrypted."""
    bodies = await compose.open_objects(folder, env_os.OsEnv(), create=create)
    try:
        yield backup_files.BackupFolder(sealed_files.SealedFiles(bodies, codec), folder)
    finally:
        await bodies.close()
