"""Backing up a store while it runs: all universes of one moment, in files that share their blobs with earlier backups.

The store is frozen (`kv.freeze`), so a message that one world has sent and another one has in its inbox is on the same
side of the cut, whichever worlds they are. Holds keep what the frozen state refers to from being collected. What is
derived, or of a process, is not copied: queues, hints, leases, workers, collections and imports under way.

A backup that fails or is killed leaves files that no manifest names. The next one uses the blobs that are there.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.codec import digest, frame, structs, tuples
from worldline.features.copies import (
    backup_folder,
    copy_hold,
    copy_lease,
    copy_lease_job,
    pack_file,
    universe_choice,
    world_file,
)
from worldline.features.copies.backup_records import BackedUniverse, BackupFile, BackupHead, FileKind
from worldline.features.copies.world_export import Keep, Progress, no_progress
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.features.erasure import ledger_entries
from worldline.keys import cas as cas_keys
from worldline.keys import keyspace_table, space
from worldline.keys.keyspace_table import InBackup
from worldline.keys.space import InUniverse
from worldline.layers import blobs as blob_layer
from worldline.layers import cas
from worldline.model import ids
from worldline.runtime.universes.served_universes import Served
from worldline.store import frozen_engine, kv, paging
from worldline.store.objects import objects_interface as objects

ATTEMPTS_MAX = 3  # if the frozen state is lost
PAGE = 1_000
_COPIED = (InBackup.COPIED, InBackup.REWRITTEN)
# The ranges that are not read: what is derived, of a process, or of blobs, which have files of their own.
_NOT_COPIED = keyspace_table.in_universe(lambda each: each.backup not in _COPIED)
_WORLD_KEY = keyspace_table.row(InUniverse.WORLD_KEY)


class Made(msgspec.Struct, frozen=True):
    """A backup that was made. `bytes`: that were written for it; `size`: of all that it consists of."""

    id: str
    time_us: int
    universes: int
    keys: int
    blobs: int
    new_blobs: int
    bytes: int
    size: int
    pruned: int = 0


class BackupSource(msgspec.Struct, frozen=True):
    """The store that is backed up."""

    engine: kv.Engine
    objects: objects.Objects
    env: envs.Env


async def backup(
    source: BackupSource,
    folder: backup_folder.BackupFolder,
    *,
    names: Sequence[str] = (),
    keep: int = 0,
    progress: Progress = no_progress,
) -> Made:
    """Back up all universes, or those that are named. `keep`: so many backups stay, the oldest others go; 0: all."""
    turn = copy_lease_job.CopyLeaseKeeper(
        source.engine, source.env, copy_lease.get_backup(), f"a backup into {folder.shown}"
    )
    await turn.take()
    try:
        await _check_own(folder, await universe_choice.universes(source.engine))
        made = await _again(lambda: _attempt(source, folder, turn, names, progress))
        # Within the turn: another backup of this store might use the files that go.
        return msgspec.structs.replace(made, pruned=await prune(folder, keep=keep, turn=turn)) if keep else made
    finally:
        await turn.give_back()


async def _again(attempt: Callable[[], Awaitable[Made]]) -> Made:
    """Freeze again if the frozen state is lost: blobs that were copied are there."""
    for _ in range(1, ATTEMPTS_MAX):
        with contextlib.suppress(errors.StoreUnavailable):
            return await attempt()
        probes.hit("copies.frozen-again")
    return await attempt()


async def prune(
    folder: backup_folder.BackupFolder, *, keep: int, turn: copy_lease_job.CopyLeaseKeeper | None = None
) -> int:
    """Delete all but the last backups, and files that no backup names. Returns how many backups were deleted."""
    assert keep > 0
    found = await folder.ids()
    gone, left = found[:-keep], found[-keep:]
    # Manifests first: cut off here, there are files that no backup names, and no backup that lacks one.
    for each in gone:
        await folder.delete(f"backups/{each}")
    needed: dict[str, None] = {}
    for each in left:
        manifest = await folder.manifest(each)
        needed.update(dict.fromkeys(file.digest.hex() for file in manifest.files if file.kind is FileKind.BLOBS))
    for prefix in ("index/", "blobs/"):  # the index first: what is in no index is not used by the next backup
        for name in await folder.names(prefix):
            if name.rpartition("/")[2] not in needed:
                await folder.delete(name)
            if turn is not None:
                await turn.keep()
    for name in await folder.names("keys/"):
        if name.split("/")[1] not in left:
            await folder.delete(name)
    return len(gone)


async def _check_own(folder: backup_folder.BackupFolder, universes: Sequence[Served]) -> None:
    """A folder has backups of one store: pruning it for one would delete what another needs."""
    found = await folder.ids()
    if found:
        known = dict.fromkeys(each.id for each in (await folder.manifest(found[-1])).universes)
        if known and not any(each.id in known for each in universes):
            raise errors.BadInput(f"{folder.shown} has backups of another store; name a folder for this one")


async def _attempt(
    source: BackupSource,
    folder: backup_folder.BackupFolder,
    turn: copy_lease_job.CopyLeaseKeeper,
    names: Sequence[str],
    progress: Progress,
) -> Made:
    universes = await universe_choice.universes(source.engine, names)
    held = [each.id for each in universes]
    async with copy_hold.holding(source.engine, source.env, held, f"backup into {folder.shown}") as holds:
        # Frozen behind the holds: nothing that the frozen state refers to was collected before they stood.
        engine = frozen_engine.FrozenEngine(await kv.freeze(source.engine))
        try:
            keep = (turn.keep, holds.keep)
            return await _Copy(source, folder, engine, keep, progress).run(universes)
        finally:
            await engine.close()


class _Copy:
    """One backup, from one frozen state."""

    def __init__(
        self,
        source: BackupSource,
        folder: backup_folder.BackupFolder,
        engine: frozen_engine.FrozenEngine,
        keep: Sequence[Keep],
        progress: Progress,
    ) -> None:
        self._source = source
        self._folder = folder
        self._engine = engine
        self._keeping = keep
        self._progress = progress
        self._id = envs.new_id(source.env)
        self._files: list[BackupFile] = []
        self._keys = self._blobs = self._new_blobs = self._written = 0

    async def run(self, universes: Sequence[Served]) -> Made:
        time_us = (await self._engine.read()).time_us
        backed: list[BackedUniverse] = []
        total = len(universes) * (1 + limits.BACKUP_SHARDS)
        for place, universe in enumerate(universes):
            keys, blobs = self._keys, self._blobs
            await self._universe(universe.id)
            for shard in range(limits.BACKUP_SHARDS):
                self._progress(place * (1 + limits.BACKUP_SHARDS) + 1 + shard, total)
                await self._shard(universe.id, shard)
            backed.append(BackedUniverse(universe.id, universe.name, self._keys - keys, self._blobs - blobs))
        await self._ledger()
        head = BackupHead(self._id, time_us, space.FORMAT_MAJOR, space.FORMAT_MINOR)
        manifest = backup_folder.Manifest(head, backed, self._files)
        # The last look at turn and holds: a backup whose blobs may be gone gets no manifest.
        await self._keep()
        self._written += await self._folder.put_manifest(manifest)
        self._progress(total, total)
        return Made(
            manifest.id, time_us, len(backed), self._keys, self._blobs, self._new_blobs, self._written, manifest.size
        )

    async def _ledger(self) -> None:
        """What was erased before: a restore of this backup does again what came later."""
        writer = _Writer(FileKind.LEDGER, pack_file.PackKind.KEYS, ids.UniverseId(backup_folder.NO_UNIVERSE))
        for entry in await ledger_entries.read_all(self._engine):
            writer.add(backup_folder.ERASURE, structs.encode(entry))
        if writer.count:
            await self._put(writer)

    async def _keep(self) -> None:
        for each in self._keeping:
            await each()

    async def _universe(self, universe: ids.UniverseId) -> None:
        """The keys of a universe, in files that follow each other."""
        writer = _Writer(FileKind.KEYS, pack_file.PackKind.KEYS, universe)
        prefix = space.universe(universe)
        async for key, raw in self._items(ranges_between(prefix, _NOT_COPIED)):
            suffix = key[len(prefix) :]
            if is_copied(suffix) and is_readable(suffix, raw):
                writer.add(backup_folder.KEY, len(suffix).to_bytes(2, "big") + suffix + raw)
                self._keys += 1
            if writer.is_full:
                await self._put(writer)
                writer = writer.next()
        if writer.count:
            await self._put(writer)

    async def _items(self, between: Sequence[tuple[bytes, bytes]]) -> AsyncIterator[tuple[bytes, bytes]]:
        for begin, end in between:
            async for page in paging.RangePages(self._engine, kv.Range(begin, end, count_max=PAGE)):
                for each in page.items:
                    yield each
                await self._keep()

    async def _shard(self, universe: ids.UniverseId, shard: int) -> None:
        """The blobs of a shard: those that no file has yet, and the addresses of all."""
        known = await self._folder.index(universe, shard)
        used: dict[bytes, BackupFile] = {}
        addresses: list[bytes] = []
        store = blob_layer.Blobs(self._engine, self._source.objects, self._source.env, universe)
        writer, new = _Writer(FileKind.BLOBS, pack_file.PackKind.BLOBS, universe, shard), []
        async for key, raw in self._items([shard_range(universe, shard)]):
            address = cas_keys.blob_address(universe, key)
            addresses.append(address)
            if address in known:
                used[known[address].digest] = known[address]
                continue
            record = cas.decode(address, raw)
            # Small bodies are in the record that was just read
            body = record.inline if record.inline is not None else await store.get(address)
            new.append(address)
            for each in world_file.blob_records(body):
                writer.add(*each)
            if writer.is_full:
                await self._put_blobs(writer, new)
                writer, new = _Writer(FileKind.BLOBS, pack_file.PackKind.BLOBS, universe, shard), []
        if new:
            await self._put_blobs(writer, new)
        # Files of earlier backups are named as well: each backup is whole by itself.
        self._files += used.values()
        self._blobs += len(addresses)
        if addresses:
            listed = _Writer(FileKind.ADDRESSES, pack_file.PackKind.KEYS, universe, shard)
            listed.write(backup_folder.add_addresses(listed.packer, addresses))
            await self._put(listed)

    async def _put_blobs(self, writer: _Writer, addresses: list[bytes]) -> None:
        self._new_blobs += len(addresses)
        # The index behind its file, so that what an index names is there.
        await self._folder.put_index(await self._put(writer), addresses)

    async def _put(self, writer: _Writer) -> BackupFile:
        data = writer.finish()
        await self._keep()
        file = BackupFile(
            writer.kind, writer.universe, writer.number, digest.sha256(data), len(data), writer.packer.count
        )
        await self._folder.put(file, data, backup=self._id.hex())
        self._files.append(file)
        self._written += len(data)
        return file


class _Writer:
    """A file that is being written, in memory."""

    def __init__(self, kind: FileKind, of: pack_file.PackKind, universe: ids.UniverseId, number: int = 0) -> None:
        self.kind = kind
        self.universe = universe
        self.number = number
        self.packer = pack_file.Packer(of)
        self._of = of
        self._data: list[bytes] = []

    def add(self, tag: int, data: bytes) -> None:
        self.write(self.packer.add(tag, data))

    def write(self, data: bytes) -> None:
        self._data.append(data)

    @property
    def count(self) -> int:
        return self.packer.count

    @property
    def is_full(self) -> bool:
        return self.packer.written >= limits.BACKUP_PACK_BYTES

    def finish(self) -> bytes:
        return b"".join(self._data) + self.packer.finish()

    def next(self) -> _Writer:
        return _Writer(self.kind, self._of, self.universe, self.number + 1)


def ranges_between(prefix: bytes, kinds: Sequence[InUniverse]) -> list[tuple[bytes, bytes]]:
    """The keys of a universe between those of some kinds."""
    begin, end = tuples.prefix_range(prefix)
    found: list[tuple[bytes, bytes]] = []
    for left_out in sorted(kinds):
        first, last = tuples.prefix_range(prefix + space.part(left_out))
        found.append((begin, first))
        begin = last
    return [each for each in (*found, (begin, end)) if each[0] < each[1]]


def is_copied(suffix: bytes) -> bool:
    """Whether a key that ends so goes into a backup."""
    row = keyspace_table.of_suffix(suffix)
    return row is None or row.backup in _COPIED


def is_readable(suffix: bytes, raw: bytes) -> bool:
    """Whether a value goes into a backup. Of an encrypted store, values are opened; those of a world whose key was
    destroyed are gone, and the record that says so is all that is copied of keys: another store has its own.
    """
    if keyspace_table.of_suffix(suffix) is _WORLD_KEY:
        return bool(encryption_keyspace.VALUE.unpack(raw).destroyed_us)
    if isinstance(raw, frame.UnreadableBytes):
        if isinstance(raw.why, errors.KeyDestroyed):
            return False
        raise raw.why
    return True


def key_of(tag: int, data: bytes) -> tuple[bytes, bytes]:
    """The end of a key in a file, and its value: it can be none but one of its universe, of those that are copied."""
    length = int.from_bytes(data[:2], "big")
    suffix = data[2 : 2 + length]
    # Raises unless these bytes are a key: a file must not become any bytes in a store.
    tuples.unpack(suffix)
    if tag != backup_folder.KEY or len(suffix) != length or not is_copied(suffix):
        raise errors.DecodeError("not a key of a backup")
    return suffix, data[2 + length :]


def shard_range(universe: ids.UniverseId, shard: int) -> tuple[bytes, bytes]:
    """The records of blobs whose addresses begin with a digit."""
    begin, end = cas_keys.blobs(universe)
    first = begin + b"\x01"  # the tuple layer's type code of bytes
    step = 256 // limits.BACKUP_SHARDS
    last = shard + 1 == limits.BACKUP_SHARDS
    # The last shard ends with the range: there is no byte behind 255.
    return first + bytes([shard * step]), end if last else first + bytes([(shard + 1) * step])
