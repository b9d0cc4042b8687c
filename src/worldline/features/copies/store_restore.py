"""Making a store of a backup: an empty one, of any kind.

Blobs are put first, each checked against its address; then the keys of each universe; last, in one batch, the names of
all universes. Until then no process finds any of them. A restore that was killed is made again: it finds its marker,
deletes what keys it has written, and puts the blobs that are not there.

What was erased after the backup was made is erased again before any process finds it, as far as a ledger says it
(`features/erasure/ledger_file.py`): that of the target, which may have had universes before, and one that is given.

Universes and worlds keep their ids: intents, idempotency keys and proofs are those of the store that was backed up. So
two copies must never both act: worlds are archived until a person lets them continue (`dormant_worlds.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors, grammar, limits
from worldline.codec import tuples
from worldline.features.copies import (
    backup_check,
    backup_folder,
    backup_writer,
    copy_lease,
    copy_lease_job,
    restore_batches,
    world_file,
)
from worldline.features.copies.backup_records import BackedUniverse, BackupHead, FileKind
from worldline.features.copies.world_export import Progress, no_progress
from worldline.features.copies.world_file import Tag
from worldline.features.deletion import ledger_replay
from worldline.features.erasure import ledger_entries, scrub_job
from worldline.features.erasure.records import ErasedKind, LedgerEntry
from worldline.keys import keyspace_table, space
from worldline.keys import universes as universe_keys
from worldline.keys.space import InUniverse
from worldline.layers import blobs as blob_layer
from worldline.layers import cas
from worldline.model import ids
from worldline.store import kv, paging

PAGE = 1_000
_WITH_LEDGER = (2, 2)  # the first format whose backups have one
# What a restore that is made again keeps: blobs, and the key that they are sealed with in an encrypted store.
_KEPT = (
    *keyspace_table.in_universe(lambda each: each.backup is keyspace_table.InBackup.BLOBS),
    InUniverse.DATA_KEY,
    InUniverse.SEALS,
)


class RestoredStore(msgspec.Struct, frozen=True):
    """The store that was made."""

    backup: str
    time_us: int
    universes: list[str]
    keys: int
    blobs: int
    live: bool
    # Of what was erased after the backup was made: how many erasures were known, and what of them is left to do, in
    # words. None: no ledger was given, and what was erased since then is there again.
    erased_again: int | None = None
    left: list[str] = []


class RestoreTarget(msgspec.Struct, frozen=True):
    """The store that a backup is restored into. `blobs`: those of one of its universes."""

    engine: kv.Engine
    env: envs.Env
    blobs: Callable[[ids.UniverseId], blob_layer.Blobs]


async def restore(
    target: RestoreTarget,
    folder: backup_folder.BackupFolder,
    manifest: backup_folder.Manifest,
    *,
    live: bool = False,
    erased: Sequence[LedgerEntry] | None = None,
    progress: Progress = no_progress,
    bytes_max: int | None = None,
) -> RestoredStore:
    """`Exists` if the store is not empty. `live`: worlds go on at once as what they were. `erased`: the ledger of the
    store that was backed up, as it is now; that of the target, and that of the backup, are known. `bytes_max`: how much
    it may unpack to, if the caller says so.
    """
    head = manifest.head
    if (head.major, head.minor) > (space.FORMAT_MAJOR, space.FORMAT_MINOR) or head.major != space.FORMAT_MAJOR:
        raise errors.StoreVersion(
            f"backup {manifest.id} has format {head.major}.{head.minor}, this release speaks "
            f"{space.FORMAT_MAJOR}.{space.FORMAT_MINOR}; use a matching release"
        )
    what = f"the restore of backup {manifest.id}"
    await _check_empty(target.engine, what)
    await backup_check.check(folder, manifest, bytes_max=bytes_max)  # all of it, before anything is written
    turn = copy_lease_job.CopyLeaseKeeper(target.engine, target.env, copy_lease.get_restoring(), what)
    await turn.take()
    later = await _Later.of(target.engine, await folder.ledger(manifest), head, erased)
    return await _Restore(target, folder, manifest, turn, later, live=live, progress=progress).run()


class _Later(msgspec.Struct, frozen=True):
    """What was erased after a backup was made, as far as it is known; and all that is known to be erased."""

    entries: list[LedgerEntry]
    known: list[LedgerEntry]
    is_told: bool

    @classmethod
    async def of(
        cls,
        engine: kv.Engine,
        of_backup: Sequence[LedgerEntry],
        head: BackupHead,
        of_caller: Sequence[LedgerEntry] | None,
    ) -> _Later:
        own = await ledger_entries.read_all(engine)
        known = ledger_entries.merged(of_backup, own, of_caller or ())
        if (head.major, head.minor) >= _WITH_LEDGER:
            entries = [each for each in known if each not in of_backup]  # by what they are: no clock decides
        else:
            # Older backups have no ledger to compare with, so their time must decide.
            entries = [each for each in known if each.time_us > head.time_us]
        return cls(entries, known, of_caller is not None or bool(own))

    def is_gone(self, universe: BackedUniverse) -> bool:
        return any(each.kind is ErasedKind.UNIVERSE and each.universe == universe.id for each in self.entries)


async def _check_empty(engine: kv.Engine, what: str) -> None:
    wanted = copy_lease.get_restoring()
    everything = kv.Range(*tuples.prefix_range(space.part(space.KeyRoot.UNIVERSE)), count_max=1)
    read = await engine.read(wanted, everything, kv.Range(*universe_keys.names(), count_max=1))
    found = copy_lease.decode(wanted, read.value(0))
    # A restore of the same backup is made again; one of another backup would mix two stores.
    if found is not None and found.record.what != what:
        raise errors.Exists(f"{found.record.what} was not finished here: do that again, or name an empty store")
    if read.page(2).items or (read.page(1).items and found is None):
        raise errors.Exists("the store is not empty: a backup is restored into one that is; name another")


class _Restore:
    def __init__(
        self,
        target: RestoreTarget,
        folder: backup_folder.BackupFolder,
        manifest: backup_folder.Manifest,
        turn: copy_lease_job.CopyLeaseKeeper,
        later: _Later,
        *,
        live: bool,
        progress: Progress,
    ) -> None:
        self._target = target
        self._later = later
        self._universes = [each for each in manifest.universes if not later.is_gone(each)]
        self._folder = folder
        self._manifest = manifest
        self._turn = turn
        self._live = live
        self._progress = progress
        self._done = 0
        self._keys = self._blobs = 0
        self._batch = kv.Batch()
        self._batch_bytes = 0
        self._last_stamp = kv.ZERO_STAMP

    async def run(self) -> RestoredStore:
        """Make the store. What cannot be made of the backup is taken back; what a killed process leaves, the next run
        takes back.
        """
        for universe in self._manifest.universes:
            await self._clear(universe, *_KEPT)
        try:
            return await self._run()
        # The backup is bad and stays so: nothing of it is kept, blobs included.
        except errors.Corrupt:
            for universe in self._manifest.universes:
                await self._clear(universe)
            await self._turn.give_back()
            raise

    async def _run(self) -> RestoredStore:
        for universe in self._universes:
            for shard in range(limits.BACKUP_SHARDS):
                await self._restore_blobs(universe, shard)
        for universe in self._universes:
            await self._restore_keys(universe)
        # Before the names: from now on processes may find the universes, and append.
        await kv.raise_stamps(self._target.engine, self._last_stamp)
        applied = await self._erase_again()
        batch = kv.Batch()
        for universe in self._universes:
            key = universe_keys.name_key(universe.name)
            batch.absent(key)
            batch.put(key, universe_keys.NAME.pack(universe_keys.UniverseName(universe.id)))
        # The end of the turn and all names are one batch: universes are found when all of them are whole.
        await self._turn.end(batch)
        head = self._manifest.head
        names = [each.name for each in self._universes]
        again = len(self._later.entries) if self._later.is_told else None
        return RestoredStore(
            self._manifest.id, head.time_us, names, self._keys, self._blobs, self._live, again, applied.left
        )

    async def _erase_again(self) -> ledger_replay.ErasuresApplied:
        """What was erased since goes before a process can find any of it, and out of the files, too. What is left to do
        is taken up by no ledger here, so that it is not forgotten.
        """
        engine, env = self._target.engine, self._target.env
        applied = await ledger_replay.apply(engine, env, self._later.entries)
        before = [each for each in self._later.known if each not in self._later.entries]
        await ledger_entries.add(engine, env, before if applied.left else self._later.known)
        if self._later.entries:
            await self._turn.keep()  # renewed before it: a scrub may take a while
            await scrub_job.scrub(engine, env)
        return applied

    async def _clear(self, universe: BackedUniverse, *kept: InUniverse) -> None:
        """Delete the keys of a universe but those of some kinds. Blobs that were put are those that are wanted."""
        prefix = space.universe(ids.UniverseId(universe.id))
        for begin, end in backup_writer.ranges_between(prefix, kept):
            async for page in paging.RangePages(self._target.engine, kv.Range(begin, end, count_max=PAGE)):
                if page.items:
                    batch = kv.Batch()
                    for key, _ in page.items:
                        batch.delete(key)
                    await self._turn.commit(batch)

    async def _restore_blobs(self, universe: BackedUniverse, shard: int) -> None:
        """The blobs of a shard that this backup has. Files may have others, of other backups."""
        wanted: dict[bytes, None] = {}
        for file in self._manifest.of(universe.id, FileKind.ADDRESSES, shard):
            with backup_folder.bad("the addresses of blobs"):
                found = await self._folder.records(file, backup=self._manifest.id)
                wanted.update(dict.fromkeys(backup_folder.addresses_of(found)))
            self._step()
        blobs = self._target.blobs(ids.UniverseId(universe.id))
        waiting: list[bytes] = []
        size = 0
        for file in self._manifest.of(universe.id, FileKind.BLOBS, shard):
            with backup_folder.bad("a file of blobs"):
                for tag, data in world_file.whole(await self._folder.records(file, backup=self._manifest.id)):
                    address = cas.address(data)
                    if tag != Tag.BLOB:
                        raise errors.DecodeError("not a blob")
                    if address not in wanted:
                        continue
                    # Once: another file may have it as well.
                    del wanted[address]
                    waiting.append(data)
                    size += len(data)
                    self._blobs += 1
                    if size >= limits.COPY_KEYS_BYTES:
                        await blobs.put_many(waiting)
                        waiting, size = [], 0
                        await self._turn.keep()
            self._step()
        if waiting:
            await blobs.put_many(waiting)
        for missing in wanted:
            raise errors.BadCopy(f"blob {missing.hex()} of universe {universe.name!r} is in no file of the backup")

    async def _restore_keys(self, universe: BackedUniverse) -> None:
        id = ids.UniverseId(universe.id)
        time_us = (await self._target.engine.read()).time_us
        source = f"backup {self._manifest.id}"
        copy = restore_batches.KeyCopy(id, envs.new_id(self._target.env), source, time_us, self._live)
        before = self._keys
        for file in self._manifest.of(universe.id, FileKind.KEYS):
            with backup_folder.bad(f"keys of universe {universe.name!r}"):
                for tag, data in await self._folder.records(file, backup=self._manifest.id):
                    suffix, raw = backup_writer.key_of(tag, data)
                    stamp = restore_batches.stamp_of(suffix) or restore_batches.stamp_in(suffix, raw) or b""
                    self._last_stamp = max(self._last_stamp, kv.Stamp(stamp))
                    restore_batches.put(self._batch, copy, suffix, raw)
                    self._keys += 1
                    self._batch_bytes += len(data)
                    if self._batch_bytes >= limits.COPY_KEYS_BYTES or len(self._batch.appends) >= PAGE:
                        await self._commit()
            self._step()
        await self._commit()
        if self._keys - before != universe.keys:
            keys = grammar.count(universe.keys, "key")
            raise errors.BadCopy(f"universe {universe.name!r} has {self._keys - before} of {keys}")

    async def _commit(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, kv.Batch(), 0
        if batch.puts or batch.appends:
            await self._turn.commit(batch)

    def _step(self) -> None:
        self._done += 1
        self._progress(self._done, len(self._manifest.files))
