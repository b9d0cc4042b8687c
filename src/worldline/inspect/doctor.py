"""`worldline doctor`: is everything in a store as it should be? `--repair` fixes what can be fixed.

Looked at, for every world: its records, its lease, its whole stored history (`worldline.inspect.verify`), and
whether the derived queues agree with journal and snapshot (`worldline.inspect.queue_check`). Then the queues as a
whole: keys that belong to nothing. And all records that none of this reads (`worldline.inspect.record_check`). Which
check reads which keyspace, the table of keyspaces says (`keys/keyspace_table.py`).

A *finding* is something that should not be. What ordinary work leaves behind and clears away itself is counted as *left
over* and is no finding: pointers of work that was cancelled, what deleted worlds have left and is not removed yet, the
lease of a worker that was killed, temporary objects and chunks of killed uploads. A healthy store has no findings.
Queues can be repaired, stored history cannot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.cluster import janitor
from worldline.inspect import queue_check, record_check, store_queries, verify
from worldline.kernel import user_values
from worldline.keys import cas as cas_keys
from worldline.keys import ready as ready_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.layers import leases, worlds
from worldline.layers import work as works
from worldline.model import ids, journal
from worldline.model import world_records as world_model
from worldline.model.journal import Kind
from worldline.runtime import hint_scan, quarantine, store_opening, world_reader, world_restore
from worldline.runtime.feature_checks import UniverseCheck, UniverseExam
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, paging, transact

WORLD_PAGE = 500
RESTORE = "restore the store from a backup"

Progress = Callable[[int, int, str], None]


class DoctorFinding(msgspec.Struct, frozen=True):
    """Something that should not be. `advice`: what to do about it, where `--repair` does not help."""

    universe: str
    world: str
    kind: str
    what: str
    repaired: bool = False
    advice: str = ""


class DoctorReport(msgspec.Struct):
    """What a look at one universe found."""

    universe: str
    worlds: int = 0
    entries: int = 0
    findings: list[DoctorFinding] = []
    left_over: int = 0
    cleaned: int = 0  # of what was left over
    uploads: int = 0  # of blobs whose process died before they were whole: temporary objects, chunks
    uploads_cleaned: int = 0
    deletions: int = 0  # of worlds, that are not finished
    deletions_finished: int = 0

    @property
    def healthy(self) -> bool:
        return all(each.repaired for each in self.findings)


def no_progress(done: int, total: int, name: str) -> None:
    """For callers that show no progress."""
    del done, total, name


async def examine(
    connection: Connection, *, repair: bool, store_too: bool = False, progress: Progress = no_progress
) -> DoctorReport:
    """Look at a universe. With `repair`, write its queues again where they are wrong. `store_too`: look as well at what
    is in the store of no universe.
    """
    doctor = Doctor(connection, repair=repair)
    found = [each async for each in _worlds(connection)]  # all before the first is looked at: progress needs the total
    for number, (at, raw) in enumerate(found):
        progress(number, len(found), at.world.hex())
        await doctor.world(at, raw)
    # After the worlds: their damage is named with the world, which says more than a key of a queue.
    await doctor.records(store_too=store_too)
    for check in (doctor.open_keys, doctor.due_keys, doctor.ready_keys, doctor.uploads):
        try:
            await check()
        except errors.Corrupt as error:  # the others are made all the same
            doctor.not_made(check.__name__.replace("_", " "), error)
    for each in (check for feature in connection.store.features for check in feature.checks):
        await doctor.feature_check(each)
    progress(len(found), len(found), "")
    return doctor.report


async def _worlds(connection: Connection) -> AsyncIterator[tuple[ids.Address, bytes]]:
    begin, end = world_keys.index(connection.id)
    async for key, raw in paging.RangeItems(connection.store.engine, kv.Range(begin, end, count_max=WORLD_PAGE)):
        yield ids.Address(connection.id, world_keys.index_world(connection.id, key)), raw


class Doctor:
    def __init__(self, connection: Connection, *, repair: bool) -> None:
        self._universe = connection
        self._engine = connection.store.engine
        self._repair = repair
        self._hints = hint_scan.HintScan(self._engine, connection.store.env, Universes.only(connection.id))
        self._pointers: dict[ids.IntentId, list[works.DuePointer]] | None = None
        self.report = DoctorReport(connection.name, findings=[])

    def _find(self, world: str, kind: str, what: str, *, repaired: bool = False, advice: str = "") -> None:
        self.report.findings.append(DoctorFinding(self._universe.name, world, kind, what, repaired, advice))

    # --- One world -----------------------------------------------------------------------------------------------

    async def world(self, at: ids.Address, raw: bytes) -> None:
        self.report.worlds += 1
        name = at.world.hex()
        try:
            listed = world_keys.INDEX.unpack(raw)
            name = listed.name
            read = await self._engine.read(worlds.get(at), *leases.reads(at))
            # One commit writes both, so they can differ by damage only; listings show the copy.
            if worlds.decode(at, read.value(0)).meta != listed:
                self._find(name, "meta", "the listing differs from the world's own record")
            leases.decode(at, read.value(1), read.value(2), read.value(3))
            self.report.entries += (await verify.verify(self._universe, at)).entries
        except errors.KeyDestroyed:
            return  # a person has erased it: there is nothing to be found
        except (errors.Corrupt, errors.NotFound) as error:
            status = await self._status({}, at)  # without the cache: the status of now is asked for
            if status is not world_model.Status.DELETED:  # else it was deleted while it was looked at
                self._find(name, "damaged", str(error), advice=RESTORE)
            return
        found = await store_queries.quarantined(self._universe, at, listed.status)
        if found is not None:
            advice = f"fix the cause, then worldline resume {name}"
            self._find(name, "quarantined", f"it is quarantined: {quarantine.reason(found)}", advice=advice)
        await self._records(name, record_check.of_world(self._universe, at))
        await self._queues(at, listed)

    async def _queues(self, at: ids.Address, meta: world_model.WorldMeta) -> None:
        try:
            wrong = await queue_check.faults(self._universe, at, meta.program, self._hints)
            if wrong is None:
                self._find(meta.name, "busy", "it changed each time it was read", advice="stop its host and try again")
                return
            # What is repaired is looked at again under the lease; what was seen without it may have been a step under
            # way.
            if wrong and self._repair:
                await self._mend(at, meta)
                return
        except errors.Corrupt as error:
            self._find(meta.name, "damaged", str(error), advice=RESTORE)
            return
        for each in wrong:
            self._find(meta.name, each.fault.name.lower(), str(each))

    async def _mend(self, at: ids.Address, meta: world_model.WorldMeta) -> None:
        if self._pointers is None:
            # Read once for all worlds: pointers are ordered by queue and time, so those of one world stand everywhere.
            self._pointers = await self._all_pointers()
        try:
            mended, left = await queue_check.repair(self._universe, at, meta.program, self._pointers)
        # A live worker holds the world, or it changed: its queues are still wrong, so the finding stays.
        except (errors.Exists, errors.Conflicted) as error:
            self._find(meta.name, "held", f"its queues are wrong: {error}", advice="stop its host and try again")
            return
        for each in mended:
            self._find(meta.name, each.fault.name.lower(), str(each), repaired=True)
        advice = f"to write it anew, name program {meta.program!r} with --app FILE"
        for each in left:
            self._find(meta.name, each.fault.name.lower(), str(each), advice=advice)

    async def _all_pointers(self) -> dict[ids.IntentId, list[works.DuePointer]]:
        found: dict[ids.IntentId, list[works.DuePointer]] = {}
        begin, end = work_keys.due_all(self._universe.id)
        async for key, raw in paging.RangeItems(self._universe.store.engine, kv.Range(begin, end)):
            try:
                pointer = work_keys.pointer(self._universe.id, key)
            except errors.DecodeError:
                continue  # it is found by `due_keys`, as a key that cannot be read
            found.setdefault(pointer.intent, []).append(works.DuePointer(key, raw, pointer))
        return found

    # --- The queues as a whole -----------------------------------------------------------------------------------

    async def open_keys(self) -> None:
        """Find open work of worlds that do not exist."""
        begin, end = work_keys.open_all(self._universe.id)
        known: dict[ids.Address, world_model.Status | None] = {}
        async for key, raw in paging.RangeItems(self._universe.store.engine, kv.Range(begin, end)):
            try:
                at, intent = work_keys.open_address(self._universe.id, key)
            except errors.DecodeError as error:
                await self._stray("garbage_open", f"an open key {key.hex()}: {error}", key, raw)
                continue
            status = await self._status(known, at)
            what = f"an open key {intent.hex()} of world {at.world.hex()}, which does not exist"
            if status is None:
                await self._stray("garbage_open", what, key, raw)
            elif status is world_model.Status.DELETED:
                await self._leftover(key, raw)

    async def due_keys(self) -> None:
        """Find pointers that match no open work."""
        begin, end = work_keys.due_all(self._universe.id)
        known: dict[ids.Address, world_model.Status | None] = {}
        async for key, raw in paging.RangeItems(self._universe.store.engine, kv.Range(begin, end)):
            try:
                pointer = work_keys.pointer(self._universe.id, key)
            except errors.DecodeError as error:
                await self._stray("garbage_due", f"a due key {key.hex()}: {error}", key, raw)
                continue
            if await self._matches(works.DuePointer(key, raw, pointer)):
                continue
            status = await self._status(known, pointer.at)
            # The journal is read last: it is long, and most pointers are explained without it.
            if status is world_model.Status.DELETED or (status is not None and await self._was_asked_for(pointer)):
                await self._leftover(key, raw)
            else:
                what = f"a due key for {pointer.intent.hex()} of world {pointer.at.world.hex()}, which has no such work"
                await self._stray("garbage_due", what, key, raw)

    async def _matches(self, pointer: works.DuePointer) -> bool:
        """Read both at once: an effect worker may just have moved them."""
        at, intent = pointer.pointer.at, pointer.pointer.intent
        read = await self._engine.read(kv.Get(pointer.key), works.get(at, intent))
        if read.value(0) is None:
            return True
        try:
            return works.matches(pointer, works.decode(at, intent, read.value(1)))
        except errors.DecodeError:
            return True  # the open key is what is wrong; it was found with its world

    async def _was_asked_for(self, pointer: work_keys.Pointer) -> bool:
        """Whether the world has ever asked for this: then its pointer is left over from work since given up. It may be
        in entries that are not kept any more.
        """
        top = await world_reader.head(self._engine, pointer.at)
        above = (await world_reader.kept(self._engine, pointer.at)).above
        for entry in await world_restore.read_entries(
            self._engine, self._universe.blobs, pointer.at, above=above, up_to=top.height
        ):
            if (
                entry.kind in (Kind.EFFECT_REQUESTED, Kind.TIMER_SET)
                and await self._intent(pointer.at, entry) == pointer.intent
            ):
                return True
        return above > 0  # entries were dropped: this pointer may be from there, and what is uncertain is no finding

    async def _intent(self, at: ids.Address, entry: journal.JournalEntry) -> ids.IntentId:
        payload = await self._universe.blobs.get(entry.blob) if entry.blob else entry.payload
        ordinal, name, _, _, params, _ = user_values.load(tuple[int, str, str, int, bytes, int], payload)
        return ids.intent_id(at, step=entry.step, ordinal=ordinal, kind=name, params=params)

    async def ready_keys(self) -> None:
        """Find hints for worlds that are not there. One for a world with nothing to do is harmless."""
        known: dict[ids.Address, world_model.Status | None] = {}
        async for key, raw in paging.RangeItems(
            self._universe.store.engine, kv.Range(*ready_keys.every_hint(self._universe.id))
        ):
            try:
                world = ready_keys.hint_world(raw)
            except errors.DecodeError as error:
                await self._stray("garbage_ready", f"a ready key {key.hex()}: {error}", key, raw)
                continue
            status = await self._status(known, ids.Address(self._universe.id, world))
            if status is None:
                await self._stray("garbage_ready", f"a ready key of world {world.hex()}, which is not there", key, raw)
            elif status is world_model.Status.DELETED:
                await self._leftover(key, raw)
        async for key, raw in paging.RangeItems(
            self._universe.store.engine, kv.Range(*ready_keys.former_hints(self._universe.id))
        ):
            await self._leftover(key, raw)

    # --- The objects ---------------------------------------------------------------------------------------------

    async def uploads(self) -> None:
        """Temporary objects, and blobs half written into the store, that are too old for an upload under way."""
        store = self._universe.store
        blobs = self._universe.blobs
        # Counted before anything is removed: the report says what there was, with and without `--repair`.
        self.report.uploads = await blobs.abandoned(period_us=janitor.UPLOAD_US_MAX, remove=False)
        if self._repair and self.report.uploads:
            self.report.uploads_cleaned = await blobs.abandoned(period_us=janitor.UPLOAD_US_MAX, remove=True)
        folder = store_opening.folder_of_objects(store.objects)
        if folder is None:  # only in a folder can uploads of killed processes leave temporary files
            return
        before_us = store.env.wall_us() - janitor.UPLOAD_US_MAX
        under = cas_keys.object_folder(self._universe.id)
        self.report.uploads += await folder.count_temporary(before_us, under=under)
        if self._repair:
            self.report.uploads_cleaned += await folder.sweep_temporary(before_us, under=under)

    # --- Records that nothing else reads -------------------------------------------------------------------------

    async def records(self, *, store_too: bool) -> None:
        """Those that are of no world."""
        await self._records("", record_check.of_universe(self._universe))
        if store_too:
            await self._records("", record_check.of_store(self._universe))

    def not_made(self, check: str, error: errors.Corrupt) -> None:
        """Note that a check could not be made, because something that it needs is damaged."""
        self._find("", "damaged", f"{check} cannot be looked at: {error}", advice=RESTORE)

    async def _records(self, world: str, faults: AsyncIterator[record_check.DamagedRecord]) -> None:
        async for each in faults:
            self._find(world, "damaged", each.what, advice=RESTORE)

    # --- What features look at -----------------------------------------------------------------------------------

    async def feature_check(self, check: UniverseCheck) -> None:
        store = self._universe.store
        exam = UniverseExam(store.engine, store.env, self._universe.id, self._repair)
        try:
            await check.look(exam)
        except errors.Corrupt as error:
            self.not_made(check.what, error)
        for each in exam.findings:
            self._find(each.world, each.kind, each.what, advice=each.advice)
        self.report.deletions += exam.deletions
        self.report.deletions_finished += exam.deletions_finished

    # --- What all of them use ------------------------------------------------------------------------------------

    async def _status(
        self, known: dict[ids.Address, world_model.Status | None], at: ids.Address
    ) -> world_model.Status | None:
        """The status of a world, DELETED for a deleted one; None if there never was one."""
        if at not in known:
            raw = (await self._engine.read(worlds.get(at))).value(0)
            try:
                # One read for each world, however many keys it has in the queues.
                known[at] = None if raw is None else world_keys.META.unpack(raw).status
            except errors.DecodeError:
                known[at] = world_model.Status.ACTIVE  # there, and damaged: that was found with the world itself
        return known[at]

    async def _stray(self, kind: str, what: str, key: bytes, raw: bytes) -> None:
        self._find("", kind, what, repaired=self._repair and await self._delete(key, raw))

    async def _leftover(self, key: bytes, raw: bytes) -> None:
        self.report.left_over += 1
        if self._repair and await self._delete(key, raw):
            self.report.cleaned += 1

    async def _delete(self, key: bytes, raw: bytes) -> bool:
        """Delete a key that belongs to nothing, if it is still as it was read. One that was changed since is in use."""
        batch = kv.Batch()
        batch.expect(key, raw)
        batch.delete(key)
        return await transact.applied(self._engine, self._universe.store.env, batch)
