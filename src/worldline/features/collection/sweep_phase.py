"""Sweeping: blobs that were not marked are condemned, and deleted after a grace, if another mark has not found them
either; objects without a record go, too.

Each act is a batch of its own that expects what was read (`features/collection/batches.py`), so a sweep can be cut off
anywhere, and any number of them may run at once. What conflicts is left to the next collection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.codec import tuples
from worldline.features.collection import batches
from worldline.features.collection.address_set import Marked
from worldline.keys import cas as cas_keys
from worldline.layers import age, cas
from worldline.model import ids
from worldline.model.age import Age
from worldline.store import kv, transact
from worldline.store.objects import objects_interface as objects

T = TypeVar("T")

PAGE = 500
PAGE_BYTES = limits.MIB
BATCH_MAX = 64  # blobs of one batch, which expects their records
EXAMPLES_MAX = 5
NONCE_CHARACTERS = 2 * limits.ID_BYTES


class SweepTally(msgspec.Struct):
    """Blobs or objects of one kind: how many, their bytes, and the addresses or names of some."""

    count: int = 0
    bytes: int = 0
    examples: list[str] = msgspec.field(default_factory=list)

    def add(self, name: str, size: int) -> None:
        self.count += 1
        self.bytes += size
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(name)

    def join(self, other: SweepTally) -> None:
        """Count those of another sweep, too."""
        self.count += other.count
        self.bytes += other.bytes
        self.examples = [*other.examples, *self.examples][:EXAMPLES_MAX]


class SweepResult(msgspec.Struct):
    """What a sweep has found and done.

    `unreferenced`: condemned now; `waiting`: condemned, and their grace has not passed; `deleted`: gone; `spared`:
    condemned once, and used again since; `orphans`: objects that no record names, gone; `held`: why nothing was
    deleted.
    """

    blobs: SweepTally = msgspec.field(default_factory=SweepTally)
    unreferenced: SweepTally = msgspec.field(default_factory=SweepTally)
    waiting: SweepTally = msgspec.field(default_factory=SweepTally)
    deleted: SweepTally = msgspec.field(default_factory=SweepTally)
    spared: SweepTally = msgspec.field(default_factory=SweepTally)
    orphans: SweepTally = msgspec.field(default_factory=SweepTally)
    held: str = ""


class Orphans:
    """Objects that no record names. They are looked for before the mark begins: a record of an object that was there by
    then can only be published before it, too, because that expects the generation in which the upload began.
    """

    def __init__(
        self, engine: kv.Engine, store: objects.Objects, universe: ids.UniverseId, swept: SweepResult, *, grace_ms: int
    ) -> None:
        self._engine = engine
        self._store = store
        self._universe = universe
        self._swept = swept
        self._grace_us = grace_ms * 1000
        self._after = ""
        self.found: list[objects.ListedObject] = []

    async def look(self) -> bool:
        """One page. Returns whether it was the last."""
        prefix = f"{cas_keys.object_folder(self._universe)}/cas/"
        page = await self._store.list(prefix, after=self._after, count_max=PAGE)
        self.found += await self._unnamed(page)
        # Bounded memory: what is left is found by a later collection, when these are gone.
        if len(page) < PAGE or len(self.found) >= limits.ORPHANS_MAX:
            return True
        self._after = page[-1].name
        return False

    async def delete(self, *, write: bool) -> bool:
        """Delete some that no record names still. Returns whether those were the last."""
        # Looked up again before the delete: a record may have been published since the first look.
        some = self.found[-PAGE:]
        del self.found[-PAGE:]
        for each in await self._unnamed(some):
            if write:  # a dry run counts them only
                await self._store.delete(each.name)
            self._swept.orphans.add(each.name, each.size)
        return not self.found

    async def _unnamed(self, page: Sequence[objects.ListedObject]) -> list[objects.ListedObject]:
        """Those of them that no record names. What is not named as ours is left alone."""
        ours = [(each, address) for each in page if (address := _address(self._universe, each.name)) is not None]
        if not ours:
            return []
        read = await self._engine.read(*(cas.get(self._universe, address) for _, address in ours))
        return [
            each
            for index, (each, _) in enumerate(ours)
            if self._is_old(each, read.time_us) and not _names(read.value(index), each.name)
        ]

    def _is_old(self, each: objects.ListedObject, time_us: int) -> bool:
        """Without a grace, whatever the clocks say."""
        return not self._grace_us or each.modified_us <= time_us - self._grace_us


def _names(raw: bytes | None, name: str) -> bool:
    found = cas_keys.BLOB.get(raw)
    return found is not None and found.object == name


def _address(universe: ids.UniverseId, name: str) -> bytes | None:
    """The address of the blob whose body an object is; None if it is none of ours."""
    _, _, last = name.rpartition("/")
    text, _, nonce = last.partition("-")
    try:
        address, random = bytes.fromhex(text), bytes.fromhex(nonce)
    except ValueError:
        return None
    if len(address) != limits.DIGEST_BYTES or len(nonce) != NONCE_CHARACTERS:
        return None
    # The whole name must be one that this package makes: an object that only looks alike is left alone.
    return address if name == cas_keys.object_name(universe, address, random) else None


class Condemning:
    """Every record that is judged is looked at: those that were not marked are condemned."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        state: batches.CollectionState,
        marked: Marked,
        swept: SweepResult,
        *,
        write: bool = True,
    ) -> None:
        self._engine = engine
        self._env = env
        self._state = state
        self._universe = state.universe
        self._marked = marked
        self._swept = swept
        self._write = write
        begin, self._end = cas_keys.blobs(self._universe)
        self._next = max(begin, cas_keys.blob_key(self._universe, marked.begins))
        # Of addresses beyond it, the table does not say whether they are marked.
        if marked.above:
            self._end = cas_keys.blob_key(self._universe, marked.above)

    async def turn(self) -> bool:
        """One page. Returns whether it was the last."""
        wanted = kv.Range(self._next, self._end, count_max=PAGE, bytes_max=PAGE_BYTES)
        page = (await self._engine.read(wanted)).page(0)
        if page.items:
            await self._take({cas_keys.blob_address(self._universe, key): raw for key, raw in page.items})
            self._next = tuples.successor(page.items[-1][0])
        return not page.more

    async def _take(self, raws: dict[bytes, bytes]) -> None:
        read = await self._engine.read(
            *(batches.get_condemned(self._universe, each) for each in raws), age.get(self._universe)
        )
        condemned: list[tuple[bytes, bytes]] = []
        spared: list[batches.CondemnedRecord] = []
        for index, (address, raw) in enumerate(raws.items()):
            record = cas_keys.BLOB.unpack(raw)
            self._swept.blobs.add(address.hex(), record.size)
            before = batches.decode_condemned_at(address, read.value(index))
            # Published since the mark began: the mark need not have seen it.
            if address in self._marked or record.generation >= self._state.generation.number:
                spared += [before] if before is not None else []
            elif before is None:
                condemned.append((address, raw))
        if self._write:
            time_us, age_us = read.time_us, age.decode(read.value(len(raws))).age_us
            condemned = await committed(
                self._engine,
                self._env,
                condemned,
                lambda batch, each: batches.condemn(batch, self._state, *each, since_us=time_us, age_us=age_us),
            )
            # A mark has found these again: if a later one does not, their grace begins from the start.
            await spare(self._engine, self._env, self._universe, spared)
        for address, raw in condemned:
            self._swept.unreferenced.add(address.hex(), cas_keys.BLOB.unpack(raw).size)
        for each in spared:
            self._swept.spared.add(each.address.hex(), cas_keys.BLOB.unpack(raws[each.address]).size)


class Deleting:
    """Condemned blobs whose grace has passed are deleted, unless a hold stands or they were used again: those that an
    earlier mark has condemned, and that this one has judged and not found either.
    """

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        store: objects.Objects,
        state: batches.CollectionState,
        marked: Marked,
        *,
        swept: SweepResult,
        grace_ms: int,
        write: bool = True,
    ) -> None:
        self._engine = engine
        self._env = env
        self._store = store
        self._state = state
        self._universe = state.universe
        self._marked = marked
        self._swept = swept
        self._grace_us = grace_ms * 1000
        self._write = write
        self._above = b""

    async def turn(self) -> bool:
        """One page. Returns whether it was the last, or nothing may be deleted now."""
        wanted = batches.condemned_range(self._universe, above=self._above, count_max=PAGE)
        read = await self._engine.read(wanted, batches.get_holds(self._universe), age.get(self._universe))
        holds, now = batches.decode_holds(self._universe, read.value(1)), age.decode(read.value(2))
        standing = holds.standing(read.time_us, now)
        self._swept.held = standing[0].what if standing else ""
        # A dry run reads on in spite of the hold, to say what would go without it.
        if standing and self._write:
            probes.hit("collection.hold-stands")
            return True
        page = read.page(0)
        found = batches.decode_condemned(self._universe, page)
        if found and holds.raw is None and self._write:
            batch = kv.Batch()
            batches.expect_no_hold(batch, holds)  # from now on there is a record that deletes expect
            await transact.commit(self._engine, self._env, batch)
            return False
        if found:
            await self._take(found, holds, now)
            self._above = found[-1].address
        return not page.more

    async def _take(self, condemned: list[batches.CondemnedRecord], holds: batches.HoldsRecord, now: Age) -> None:
        """Their records are read again: that is the re-check, and the batch that deletes one expects what was read."""
        read = await self._engine.read(*(cas.get(self._universe, each.address) for each in condemned))
        spared: list[batches.CondemnedRecord] = []
        ripe: list[tuple[batches.CondemnedRecord, bytes]] = []
        for index, each in enumerate(condemned):
            raw = read.value(index)
            record = cas_keys.BLOB.get(raw)
            # Put again, or gone: its record is not the one that was condemned.
            if raw is None or record is None or record.generation != each.record.generation:
                self._swept.spared.add(each.address.hex(), 0 if record is None else record.size)
                spared.append(each)
            elif self._is_ripe(each, now):
                ripe.append((each, raw))
            else:
                self._swept.waiting.add(each.address.hex(), record.size)
        if self._write:
            await spare(self._engine, self._env, self._universe, spared)
            ripe = await committed(
                self._engine, self._env, ripe, lambda batch, each: batches.delete(batch, self._state, holds, *each)
            )
        for each, raw in ripe:
            record = cas_keys.BLOB.unpack(raw)
            self._swept.deleted.add(each.address.hex(), record.size)
            # After the commit: an object without a record is found later as an orphan, but a record without its object
            # is a loss.
            if record.object is not None and self._write:
                await self._delete_object(record.object)

    def _is_ripe(self, condemned: batches.CondemnedRecord, now: Age) -> bool:
        """Two marks have not found it, and its grace has passed. What this mark left to the next is judged there."""
        twice = condemned.record.mark < self._state.generation.number
        # Addresses that this mark did not judge are not in its table either, so they need a test of their own.
        if not twice or not self._marked.judges(condemned.address) or condemned.address in self._marked:
            return False
        return not self._grace_us or now.has_passed(self._grace_us, since_us=condemned.record.age_us)

    async def _delete_object(self, name: str) -> None:
        """One that cannot be deleted now has no record any more: a later collection finds it."""
        try:
            await self._store.delete(name)
        except errors.StoreError:
            probes.hit("collection.object-left")


async def spare(
    engine: kv.Engine, env: envs.Env, universe: ids.UniverseId, condemned: Sequence[batches.CondemnedRecord]
) -> None:
    await committed(engine, env, condemned, lambda batch, each: batches.spare(batch, universe, each))


async def committed(
    engine: kv.Engine, env: envs.Env, items: Sequence[T], add: Callable[[kv.Batch, T], object]
) -> list[T]:
    """Do something to many, some in each batch. Where one has changed, each is tried alone. Returns those that it was
    done to.
    """
    done: list[T] = []
    for start in range(0, len(items), BATCH_MAX):
        some = items[start : start + BATCH_MAX]
        # One that changed makes the whole batch conflict; the others need not wait for the next collection.
        if await _commit(engine, env, some, add):
            done += some
            continue
        probes.hit("collection.one-by-one")
        # One that was alone has just been tried
        done += [each for each in some if len(some) > 1 and await _commit(engine, env, [each], add)]
    return done


async def _commit(engine: kv.Engine, env: envs.Env, some: Sequence[T], add: Callable[[kv.Batch, T], object]) -> bool:
    batch = kv.Batch()
    for each in some:
        add(batch, each)
    return await transact.applied(engine, env, batch)
