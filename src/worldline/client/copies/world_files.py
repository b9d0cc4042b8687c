"""A world into a file and back (`worldline.roles.copies`): the files, and what users may ask for.

A file is written beside its place, synced, and then put there by its name: a name that is there has a whole file. What
a killed process leaves is named `.partial`, and written over by the next attempt.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from worldline.base import errors, limits
from worldline.client.branches import fork as forks
from worldline.client.connection import Connection
from worldline.client.handle import Handle
from worldline.codec import pack
from worldline.host import compose
from worldline.layers import blobs as blob_layer
from worldline.layers import universes
from worldline.model import ids
from worldline.model.world import Policy
from worldline.roles.copies import holding, world_export, world_import
from worldline.roles.copies.world_export import Exported, Progress, no_progress
from worldline.roles.copies.world_import import Imported
from worldline.store import frozen, kv, transact

PARTIAL = ".partial"


async def export(world: Handle, path: str | os.PathLike[str], *, progress: Progress = no_progress) -> Exported:
    """Write a world into a file, which must not be there yet."""
    file = _new(path)
    universe, at = world.universe, await world.address()
    partial = file.with_name(file.name + PARTIAL)
    async with _held(universe, f"export of {world.name}") as keep, _frozen(universe) as (engine, blobs):
        exporter = world_export.Exporter(engine, blobs, at, universe=universe.name, progress=progress, keep=keep)
        with _files(file), partial.open("wb") as out:
            async for chunk in exporter.chunks():
                out.write(chunk)
            out.flush()
            await asyncio.to_thread(os.fsync, out.fileno())
    with _files(file):
        _put_there(partial, file)
    assert exporter.result is not None
    return exporter.result


async def import_world(
    universe: Connection, path: str | os.PathLike[str], *, name: str = "", effects: str = "drop",
    live: bool | None = None,
) -> Imported:  # fmt: skip
    """Make a world of a file. It begins archived, and goes on when it is resumed."""
    file = Path(path)
    policy = forks.POLICIES.get(effects)
    if policy not in (Policy.DROP, Policy.REISSUE):
        raise errors.BadInput(f"effects must be drop or reissue; not {effects!r}")
    if name:
        ids.check_name(name, "a world's name")
    store = universe.store
    await world_import.sweep(store.engine, store.env, universe.id)
    asked = world_import.Wanted(name, policy, live, f"the file {file.name}")
    async with _held(universe, f"import of {file.name}") as keep:
        importer = world_import.Importer(store.engine, store.env, universe.blobs, universe.id, asked, keep=keep)
        with _records(file) as records:
            return await importer.read(records)


async def verify(path: str | os.PathLike[str]) -> Imported:
    """Check a file without a store: it is imported into one that is thrown away afterwards."""
    with tempfile.TemporaryDirectory(prefix="worldline-") as folder:
        async with compose.store(str(Path(folder) / "store")) as store:
            batch = kv.Batch()
            universe = ids.UniverseId(store.env.random_bytes(limits.ID_BYTES))
            universes.create(batch, universe, name="verify", time_us=0)
            await transact.commit(store.engine, store.env, batch)
            blobs = blob_layer.Blobs(
                store.engine, store.objects, store.env, universe, in_store_bytes_max=store.in_store_bytes_max
            )
            importer = world_import.Importer(store.engine, store.env, blobs, universe, world_import.Wanted())
            with _records(Path(path)) as records:
                return await importer.read(records)


@asynccontextmanager
async def _held(universe: Connection, what: str) -> AsyncIterator[world_export.Keep]:
    async with holding.holding(universe.store.engine, universe.store.env, [universe.id], what) as held:
        yield held.keep


@asynccontextmanager
async def _frozen(universe: Connection) -> AsyncIterator[tuple[kv.Engine, blob_layer.Blobs]]:
    """The store as it is now, and its blobs."""
    store = universe.store
    engine = frozen.FrozenEngine(await kv.freeze(store.engine))
    try:
        blobs = blob_layer.Blobs(
            engine, store.objects, store.env, universe.id,
            cache=store.cache, in_store_bytes_max=store.in_store_bytes_max,
        )  # fmt: skip
        yield engine, blobs
    finally:
        await engine.close()


@contextmanager
def _records(file: Path) -> Iterator[Iterator[pack.Record]]:
    with _files(file), file.open("rb") as opened:
        try:
            yield pack.records(pack.Kind.WORLD, opened.read)
        except errors.Corrupt as error:
            raise errors.BadCopy(f"{file}: {error}") from error


@contextmanager
def _files(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.BadInput(f"{file}: {error.strerror or error}") from error


def _new(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if file.exists():
        raise errors.Exists(f"{file} is there already; name another file, or remove it")
    return file


def _put_there(partial: Path, file: Path) -> None:
    partial.replace(file)
    handle = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
