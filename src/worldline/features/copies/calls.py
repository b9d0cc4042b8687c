"""A world into a file and back (`worldline.features.copies`): the files, and what users may ask for.

A file is written beside its place, for its owner alone, and put there when it is whole (`base/private_files.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from worldline.base import errors, private_files
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.features.copies import copy_hold, file_blobs, pack_file, world_export, world_file_check, world_import
from worldline.features.copies.world_export import Exported, Progress, no_progress
from worldline.features.forks import calls as forks
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.model.world_records import ForkPolicy
from worldline.store import frozen_engine, kv


async def export(world: Handle, path: str | os.PathLike[str], *, progress: Progress = no_progress) -> Exported:
    """Write a world into a file, which must not be there yet."""
    file = _new(path)
    connection, at = world.connection, await world.address()
    # The hold stands before the store is frozen, so nothing that the frozen state refers to is collected.
    async with _held(connection, f"export of {world.name}") as keep, _frozen(connection) as (engine, blobs):
        exporter = world_export.Exporter(engine, blobs, at, universe=connection.name, progress=progress, keep=keep)
        with _files(file), private_files.draft(file) as draft:
            async for chunk in exporter.chunks():
                draft.write(chunk)
            await asyncio.to_thread(draft.sync)  # that takes a while: the worlds of this process go on
            draft.put_there()
    assert exporter.result is not None
    return exporter.result


class ImportedWorld(world_file_check.CheckedContents, frozen=True):
    """The world that was made of a file."""

    id: str = ""


async def import_world(
    connection: Connection,
    path: str | os.PathLike[str],
    *,
    name: str = "",
    effects: str = "drop",
    live: bool | None = None,
    bytes_max: int | None = None,
) -> ImportedWorld:
    """Make a world of a file. It begins archived, and goes on when it is resumed."""
    file = Path(path)
    policy = forks.POLICIES.get(effects)
    if policy not in (ForkPolicy.DROP, ForkPolicy.REISSUE):
        raise errors.BadInput(f"effects must be drop or reissue; not {effects!r}")
    if name:
        ids.check_name(name, "a world's name")
    store = connection.store
    # What imports of killed processes have left is removed by the next import.
    await world_import.sweep(store.engine, store.env, connection.id)
    asked = world_import.ImportRequest(name, policy, live, f"the file {file.name}")
    async with _held(connection, f"import of {file.name}") as keep:
        with _opened(file) as opened:
            world, data = world_file_check.header(opened, str(file))
            importer = world_import.Importer(
                store, connection.blobs, connection.id, asked, world=world, data=data, keep=keep
            )
            made = await importer.made_before()
            # Asked before the long check, and not for a file that was imported before.
            if made is None:
                await importer.admit()
            # All of the file is checked before any of it is written.
            checked = await world_file_check.check_file(opened, str(file), bytes_max=bytes_max, keep=keep)
            if made is None:
                made = await importer.read(
                    # Read once more from its beginning: the check has used up the first reader.
                    pack_file.PackReader(pack_file.PackKind.WORLD, file_blobs.reading(opened)),
                    checked,
                )
    contents = msgspec.structs.replace(checked.contents, name=name or world.name)
    return ImportedWorld(**msgspec.structs.asdict(contents), id=made.world.hex())


async def verify(path: str | os.PathLike[str], *, bytes_max: int | None = None) -> world_file_check.CheckedContents:
    """Check a file without a store. Nothing is written anywhere."""
    with _opened(Path(path)) as opened:
        return (await world_file_check.check_file(opened, str(path), bytes_max=bytes_max)).contents


@asynccontextmanager
async def _held(connection: Connection, what: str) -> AsyncIterator[world_export.Keep]:
    async with copy_hold.holding(connection.store.engine, connection.store.env, [connection.id], what) as held:
        yield held.keep


@asynccontextmanager
async def _frozen(connection: Connection) -> AsyncIterator[tuple[kv.Engine, blob_layer.Blobs]]:
    """The store as it is now, and its blobs."""
    store = connection.store
    engine = frozen_engine.FrozenEngine(await kv.freeze(store.engine))
    try:
        blobs = blob_layer.Blobs(
            engine,
            store.objects,
            store.env,
            connection.id,
            cache=store.cache,
            in_store_bytes_max=store.in_store_bytes_max,
        )
        yield engine, blobs
    finally:
        await engine.close()


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    """A descriptor of a file. What is wrong with the file later is a `BadCopy`, too."""
    with _files(file), file.open("rb") as opened:
        try:
            yield opened.fileno()
        except errors.Corrupt as error:
            raise error if isinstance(error, errors.BadCopy) else errors.BadCopy(f"{file}: {error}") from error


@contextmanager
def _files(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.BadInput(f"{file}: {error.strerror or error}") from error


def _new(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    # Also a link that leads nowhere: something is there under that name.
    if os.path.lexists(file):
        raise errors.Exists(f"{file} is there already; name another file, or remove it")
    return file
