"""Making a world of a file (`world_file`) that was checked (`world_check`): what is stored was checked before.

The blobs that something in the file refers to are put as they come, and the keys of the world, under an id that was
never used; last, in one batch, its record and its name. Until then nothing shows it, and what is left of an import that
failed or was killed is swept (`features/copies/import_batches.py`) and collected. Whether the universe may have it is
asked before the file is read, and again, with its size, before anything is stored.

An imported world is a world of its own: it has another id, so no intent, no call outside and no draw of it is ever that
of the world it was exported from, or of another import of the same file. Its first step is that of a fork: it says what
becomes of effects that were open, as a policy. It begins archived (`features/copies/dormant_worlds.py`): until it is
resumed, it takes no input, no timer of it fires and no effect is tried.

Answers that were unread when it was exported are not taken over: they are answers to the intents of the other world.
"""

from __future__ import annotations

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.codec import digest
from worldline.features.copies import import_batches, pack_file, world_export, world_file
from worldline.features.copies import records as copies
from worldline.features.copies.file_keys import FileKeys
from worldline.features.copies.world_file import Tag
from worldline.features.copies.world_file_check import CheckedFile
from worldline.layers import age, cas, universes, worlds
from worldline.layers import blobs as blob_layer
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model import world_records as model
from worldline.runtime import store_opening, universe_admission
from worldline.runtime.universe_admission import NewWorld
from worldline.store import kv, transact

SWEEP_PAGE = 1_000
ABANDONED_US = 24 * 3_600_000_000  # an import that began so long ago is not going on any more


class ImportRequest(msgspec.Struct, frozen=True):
    """What a file is imported as. `name`: empty for the one in the file. `live`: None for what it was."""

    name: str = ""
    policy: model.ForkPolicy = model.ForkPolicy.DROP
    live: bool | None = None
    source: str = "a file"


class Importer:
    """Makes one world. `world`: what its file says in its first record, and `data`: that record."""

    def __init__(
        self,
        store: store_opening.Store,
        blobs: blob_layer.Blobs,
        universe: ids.UniverseId,
        asked: ImportRequest,
        *,
        world: copies.ExportedWorld,
        data: bytes,
        keep: world_export.Keep | None = None,
    ) -> None:
        self._keep = keep
        self._engine = store.engine
        self._env = store.env
        self._admissions = store.admissions
        self._blobs = blobs
        self._at = ids.Address(universe, ids.WorldId(envs.new_id(store.env)))
        self._asked = asked
        self._world = world
        self._name = asked.name or world.name
        self._live = not world.dry if asked.live is None else asked.live
        self._request = digest.hash_parts(b"import", data, self._name.encode(), bytes([asked.policy, self._live]))
        self._generation_raw: bytes | None = None
        self._under_way: import_batches.Import | None = None
        self._put: dict[bytes, None] = {}  # addresses of blobs
        self._waiting: list[bytes] = []  # blobs that are to be put
        self._waiting_bytes = 0
        self._keys = FileKeys(self._at)
        self._batch = kv.Batch()  # keys that are to be written
        self._batch_bytes = 0

    async def made_before(self) -> ids.Address | None:
        """The world that this very import has made before. `Exists` if the name is another world's."""
        at = worlds.named(
            self._at.universe, (await self._engine.read(worlds.get_name(self._at.universe, self._name))).value(0)
        )
        if at is None:
            return None
        lineage = history_line.decode_lineage((await self._engine.read(history_line.get(at))).value(0))
        if lineage is None or lineage.request != self._request:
            raise errors.Exists(f"there is a world named {self._name!r} already; import it under another name (--as)")
        return at

    async def admit(self, size: int = 0) -> None:
        """Raises if the universe may not have one world more, of this size."""
        universe = self._at.universe
        read = await self._engine.read(*universe_admission.reads(self._admissions, universe))
        # Nothing is made yet, so the batch is thrown away.
        await self._admitted(kv.Batch(), NewWorld(universe, bytes=size), read, first=0)

    async def _admitted(self, batch: kv.Batch, world: NewWorld, read: kv.ReadResult, *, first: int) -> None:
        await universe_admission.admit(
            self._admissions, world, batch, read, first=first, engine=self._engine, env=self._env
        )

    async def read(self, reader: pack_file.PackReader, checked: CheckedFile) -> ids.Address:
        """Make the world of a file that was checked. `BadCopy` if it is not that file any more."""
        records = ((each.tag, each.data) for each in reader.placed())
        await self.admit(checked.size)
        await self._begin()
        try:
            for tag, data in world_file.whole(records, blob_bytes_max=world_file.WORLD_BLOB_BYTES_MAX):
                await self._take(tag, data, checked)
            return await self._finish(checked, reader.digest)
        except BaseException:
            if self._under_way is not None:
                await _sweep(self._engine, self._env, self._under_way)
            raise

    async def _begin(self) -> None:
        batch = kv.Batch()
        universe = self._at.universe
        read = await self._engine.read(
            universes.get_generation(universe), universes.get_meta(universe), age.get(universe)
        )
        self._generation_raw = read.value(0)  # before any blob is put
        universes.expect_there(batch, universe, read.value(1))
        begun = import_batches.begin(
            batch,
            self._at,
            token=envs.new_id(self._env),
            source=self._asked.source[:256],
            time_us=read.time_us,
            age_us=age.decode(read.value(2)).age_us,
        )
        await self._commit(batch)
        self._under_way = begun

    async def _take(self, tag: int, data: bytes, checked: CheckedFile) -> None:
        """One record. Blobs that nothing refers to are not stored."""
        if tag == Tag.BLOB:
            address = cas.address(data)
            if address in checked.needed and address not in self._put:
                self._put[address] = None
                await self._put_blob(data)
            return
        kind = self._keys.order(tag)
        if kind != Tag.WORLD:
            assert self._under_way is not None
            self._keys.put(self._batch, kind, data, age_us=self._under_way.age_us)
            await self._written(len(data))

    async def _put_blob(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= limits.COPY_KEYS_BYTES:
            await self._put_blobs()

    async def _put_blobs(self) -> None:
        if self._keep is not None:
            await self._keep()
        if self._waiting:
            await self._blobs.put_many(self._waiting)
            self._waiting, self._waiting_bytes = [], 0

    async def _written(self, size: int) -> None:
        """Commit what is waiting, if it is much."""
        self._batch_bytes += size
        if self._batch_bytes >= limits.COPY_KEYS_BYTES or len(self._batch.appends) >= SWEEP_PAGE:
            await self._put_keys()

    async def _put_keys(self) -> None:
        assert self._under_way is not None
        await self._put_blobs()
        batch, self._batch, self._batch_bytes = self._batch, kv.Batch(), 0
        if batch.puts or batch.appends:
            after = import_batches.advance(batch, self._under_way)
            await self._commit(batch)
            self._under_way = after

    async def _commit(self, batch: kv.Batch) -> None:
        if not await transact.applied(self._engine, self._env, batch):
            raise errors.Conflicted("the import was given up by a sweep, because it took too long; import it again")

    async def _finish(self, checked: CheckedFile, read: bytes) -> ids.Address:
        """Everything is there: the world is made, if what was read are the bytes that were checked."""
        if read != checked.digest:
            raise errors.DecodeError("the file was changed while it was imported")
        await self._put_keys()
        assert self._under_way is not None
        world, under_way, last = self._world, self._under_way, self._world.origins[-1]

        async def attempt() -> transact.NothingToWrite[ids.Address] | transact.Write[ids.Address]:
            made = await self.made_before()
            if made is not None:
                return transact.NothingToWrite(made)
            generation_raw, time_us = await self._raised()
            meta = model.WorldMeta(
                self._name, world.program, world.program_hash, world.status, world.labels, time_us, dry=not self._live
            )
            lineage = model.Lineage(
                last.world,
                world.name,
                world.head.step,
                world.head.height,
                [],
                self._asked.policy,
                self._live,
                time_us,
                self._request,
                origins=list(world.origins),
            )
            batch = kv.Batch()
            universe = self._at.universe
            admission_reads = universe_admission.reads(self._admissions, universe)
            read = await self._engine.read(universes.get_meta(universe), *admission_reads)
            universes.expect_there(batch, universe, read.value(0))
            await self._admitted(batch, NewWorld(universe), read, first=1)
            import_batches.finish(
                batch,
                under_way,
                meta=meta,
                lineage=lineage,
                head=world.head,
                baseline=checked.baseline,
                source=self._asked.source[:256],
                time_us=time_us,
                generation_raw=generation_raw,
            )
            return transact.Write(batch, lambda _: self._at)

        found = await transact.run(self._engine, self._env, attempt)
        if found == self._at:
            self._under_way = None
        return found

    async def _raised(self) -> tuple[bytes | None, int]:
        """The present generation, as it is stored, with all blobs raised to it; and the store's time."""
        read = await self._engine.read(universes.get_generation(self._at.universe))
        if read.value(0) != self._generation_raw:
            probes.hit("copies.collected-meanwhile")
            await self._blobs.touch_many(list(self._put))
            self._generation_raw = read.value(0)
        return read.value(0), read.time_us


async def sweep(engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, *, period_us: int = ABANDONED_US) -> int:
    """Delete what is left of imports that began so long ago. Returns how many are gone now."""
    read = await engine.read(import_batches.imports_range(universe, count_max=SWEEP_PAGE), age.get(universe))
    now = age.decode(read.value(1))
    old = [
        each
        for each in import_batches.decode_imports(universe, read.page(0))
        if not period_us or now.has_passed(period_us, since_us=each.age_us)
    ]
    return sum([await _sweep(engine, env, each) for each in old])


async def _sweep(engine: kv.Engine, env: envs.Env, under_way: import_batches.Import) -> bool:
    """Delete what was written of an import. False: nothing was left of it, or it is swept later."""
    while True:
        ranges = import_batches.keys_ranges(under_way.at, count_max=SWEEP_PAGE)
        read = await engine.read(worlds.get(under_way.at), *ranges)
        if read.value(0) is not None:
            return False  # it was made after all: only the answer was lost
        found = [key for index in range(len(ranges)) for key, _ in read.page(index + 1).items]
        batch = kv.Batch()
        after = import_batches.sweep(batch, under_way, found)
        [outcome] = await transact.commit(engine, env, batch)
        if not found or not isinstance(outcome, kv.Ok):
            return isinstance(outcome, kv.Ok)
        under_way = after
