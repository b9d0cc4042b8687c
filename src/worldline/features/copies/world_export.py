"""Writing a world into a file (`world_file`), from a frozen state of its store.

All of it is of one moment: the head, the journal up to it, and what was unread. The worker that runs the world is not
asked and does not wait. The chain is recomputed on the way, so what is damaged is not exported.

Memory does not grow with the journal or with blobs that are small: a part of the journal, one blob, and 32 bytes for
the address of each blob that was written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from worldline.base import errors, limits
from worldline.codec import frame, structs
from worldline.features.copies import pack_file
from worldline.features.copies import records as copies
from worldline.features.copies.world_file import Contents, Tag, blob_records
from worldline.keys import inbox as inbox_keys
from worldline.keys import personal_records as sealed_keys
from worldline.keys import personal_subjects as subject_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import cas, worlds
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import personal_records as sealed_layer
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import history_line, journal_pages, saved_state, segment_body, step_reader
from worldline.model import ids, journal, snapshots
from worldline.model.trie import nodes
from worldline.runtime import world_reader, world_restore
from worldline.store import kv, paging

PAGE_BYTES = 256 * limits.KIB  # of the journal, read at once
NODES = 200  # of saved states, read at once
ITEMS = 1_000  # unread inputs and ids, read at once

Progress = Callable[[int, int], None]  # how much is done, and of how much
Keep = Callable[[], Awaitable[None]]  # called often, while it goes on


def no_progress(done: int, total: int) -> None:
    """No progress is shown."""
    del done, total


class Exported(Contents, frozen=True):
    """What was written."""

    records: int
    bytes: int


class Exporter:
    """Writes one world. `engine` and `blobs` are those of a frozen state."""

    def __init__(
        self,
        engine: kv.Engine,
        blobs: blob_layer.Blobs,
        at: ids.Address,
        *,
        universe: str,
        progress: Progress = no_progress,
        keep: Keep | None = None,
    ) -> None:
        self._keep = keep
        self._engine = engine
        self._blobs = blobs
        self._at = at
        self._universe = universe
        self._progress = progress
        self._packer = pack_file.Packer(pack_file.PackKind.WORLD)
        self._told: dict[bytes, None] = {}  # addresses of blobs that were written
        self._walked: dict[bytes, None] = {}  # and of nodes whose references were followed
        self._segments = self._snapshots = self._unread = self._dead = 0
        self.result: Exported | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The file, piece by piece. `result` is set behind the last one."""
        at = self._at
        read = await self._engine.read(worlds.get(at), journals.get_head(at), history_line.get(at))
        meta, head = worlds.decode(at, read.value(0)).meta, journals.decode_head(read.value(1))
        line = history_line.decode(at, read.value(2))
        yield self._add(
            Tag.WORLD,
            structs.encode(
                copies.ExportedWorld(
                    meta.name,
                    meta.program,
                    meta.program_hash,
                    meta.status,
                    meta.labels,
                    meta.created_us,
                    meta.dry,
                    self._universe,
                    read.time_us,
                    head,
                    line.all_origins(step=head.step, height=head.height),
                )
            ),
        )
        for record in await world_reader.records(self._engine, line):
            async for data in self._state(record):
                yield data
        async for data in self._journal(line, head):
            yield data
        async for data in self._inputs():
            yield data
        async for data in self._personal(line):
            yield data
        yield self._packer.finish()
        self.result = Exported(
            meta.name,
            meta.program,
            head.height,
            head.step,
            head.chain.hex(),
            head.state.hex(),
            len(self._told),
            self._segments,
            self._snapshots,
            self._unread,
            self._dead,
            self._packer.count,
            self._packer.written,
        )

    def _add(self, tag: Tag, data: bytes) -> bytes:
        return self._packer.add(tag, data)

    def _blob(self, data: bytes) -> bytes:
        return b"".join([self._packer.add(*record) for record in blob_records(data)])

    async def _needed(self, addresses: Iterable[bytes]) -> AsyncIterator[bytes]:
        """Blobs that what comes next refers to, those that were not written before."""
        for address in dict.fromkeys(addresses):
            if address not in self._told:
                self._told[address] = None
                yield self._blob(await self._blobs.get(address))

    # --- Saved states ----------------------------------------------------------------------------------------------

    async def _state(self, record: snapshots.StateSnapshot) -> AsyncIterator[bytes]:
        """The nodes of a state that were not written before, then its record. Large meanings of rows may have any
        bytes, also those of a node, and are not looked into.
        """
        waiting = self._not_walked([record.root])
        while waiting:
            # From the end, so that what waits grows with the depth of a state and not with its size.
            page = waiting[-NODES:]
            del waiting[-NODES:]
            found = await self._blobs.get_many(page)
            await self._still()
            meanings: list[bytes] = []
            for address in page:
                below = nodes.references(found[address])
                waiting += self._not_walked(below.nodes)
                meanings += below.blobs
                # Its bytes may have been written as a value of a user, whose references were not followed.
                if address not in self._told:
                    self._told[address] = None
                    yield self._blob(found[address])
            async for data in self._needed(meanings):
                yield data
        self._snapshots += 1
        yield self._add(Tag.SNAPSHOT, structs.encode(record))

    def _not_walked(self, addresses: Iterable[bytes]) -> list[bytes]:
        found = [each for each in addresses if each not in self._walked]
        self._walked.update(dict.fromkeys(found))
        return found

    # --- The journal -----------------------------------------------------------------------------------------------

    async def _journal(self, line: history_line.HistoryLine, head: journal.Head) -> AsyncIterator[bytes]:
        """All steps up to the head, as segments. Where changes were dropped before, there are none here either."""
        start = await self._start(line)
        if start.height:
            yield self._add(Tag.DROPPED, structs.encode(journal.DroppedEntries(1, start)))
        pages = journal_pages.Pages(self._engine, self._blobs, line, above=start.height)
        building = _Building(start)
        self._progress(0, head.height)
        while pages.reader.height < head.height or not pages.reader.is_whole:
            items = await pages.items(bytes_max=PAGE_BYTES)
            if not items:
                pages.reader.check_end()
                raise errors.DecodeError(f"height {pages.reader.height + 1} is missing: the head says {head.height}")
            for step in pages.reader.take(items):
                if not building.has_room_for(step):
                    yield self._segment(building)
                    building = _Building(building.head)
                async for data in self._of_step(building, step):
                    yield data
            self._progress(building.head.height, head.height)
            await self._still()
        if building.count:
            yield self._segment(building)
        if building.head.chain != head.chain:
            raise errors.DigestMismatch("the journal's head", expected=head.chain, actual=building.head.chain)

    async def _start(self, line: history_line.HistoryLine) -> journal.Head:
        """From where on there are entries. If the head there is not known, from the next snapshot on."""
        kept = await journal_pages.kept(self._engine, line)
        if kept.head is not None:
            return kept.head
        for record in await world_reader.records(self._engine, line):
            if record.height >= kept.above:
                header = await saved_state.header_of(self._blobs, record.root)
                return snapshot_layer.head_of(record, state=header.state)
        raise journal_pages.gone(kept.above, kept.above)

    async def _still(self) -> None:
        if self._keep is not None:
            await self._keep()

    async def _of_step(self, building: _Building, step: step_reader.StoredStep) -> AsyncIterator[bytes]:
        """The blobs that a step refers to; and the step, into the segment that is being made."""
        loaded: dict[bytes, bytes] = {}
        [known] = await world_restore.load_changes(self._blobs, [step], loaded)
        addresses = [*step_reader.needed(step), *step_reader.needed(known)]
        for entry in step.entries():
            if entry.blob or entry.kind in journal.INPUTS:
                addresses += await world_restore.load_referenced(self._blobs, [entry])
        async for data in self._needed(addresses):
            yield data
        building.add(step, step_reader.covered(known, loaded))

    def _segment(self, building: _Building) -> bytes:
        body, record = building.end()
        self._segments += 1
        # The body stands before the record that refers to it: a reader checks that it is there.
        written = self._blob(body)
        return written + self._add(Tag.SEGMENT, structs.encode(record))

    # --- What was not taken ----------------------------------------------------------------------------------------

    async def _inputs(self) -> AsyncIterator[bytes]:
        """Dead letters, ids that were seen, unread inputs. The id of an unread one goes with it: it gets another stamp
        where it is imported.
        """
        async for _, raw in _items(self._engine, inbox_keys.dead(self._at)):
            async for data in self._needed(refs(inbox_keys.DEAD.unpack(raw).item)):
                yield data
            self._dead += 1
            yield self._add(Tag.DEAD, raw)
        # The stamps of unread inputs first: their ids are written with them, and not among those that were seen.
        waiting = {inbox_keys.stamp_of(key): copies.CopiedSeenId(b"", b"") for key in await self._unread_keys()}
        prefix = inbox_keys.seen_prefix(self._at)
        async for key, raw in _items(self._engine, (prefix, prefix + b"\xff")):
            found = copies.CopiedSeenId(key[len(prefix) :], raw)
            if raw[-limits.STAMP_BYTES :] in waiting:
                waiting[raw[-limits.STAMP_BYTES :]] = found
            else:
                yield self._add(Tag.SEEN, structs.encode(found))
        async for key, raw in _items(self._engine, inbox_keys.items(self._at)):
            async for data in self._needed(refs(raw)):
                yield data
            seen = waiting[inbox_keys.stamp_of(key)]
            self._unread += 1
            unread = copies.CopiedInput(raw, seen.seen, seen.record[: -limits.STAMP_BYTES])
            yield self._add(Tag.UNREAD, structs.encode(unread))

    async def _personal(self, line: history_line.HistoryLine) -> AsyncIterator[bytes]:
        """Personal values, which journals refer to. Those of a lineage are in one place: all of them are written."""
        root = sealed_layer.root_of(line)
        for tag, between in ((Tag.SEALED, sealed_keys.all_values(root)), (Tag.SUBJECT, subject_keys.records(root))):
            async for key, raw in _items(self._engine, between):
                yield self._add(tag, structs.encode(copies.Apart(key[len(between[0]) :], raw)))

    async def _unread_keys(self) -> list[bytes]:
        return [key async for key, _ in _items(self._engine, inbox_keys.items(self._at))]


class _Building:
    """A segment under way, from a head on."""

    def __init__(self, head_before: journal.Head) -> None:
        self._before = self.head = head_before
        self._writer: segment_body.SegmentBuilder | None = None
        self._with_changes = True
        self._bytes = 0
        self.count = 0

    def has_room_for(self, step: step_reader.StoredStep) -> bool:
        """A segment has the changes of all its steps, or of none."""
        return not self.count or (
            self._bytes < limits.EXPORT_SEGMENT_BYTES and self._with_changes is not bool(step.dropped)
        )

    def add(self, step: step_reader.StoredStep, covered: bytes) -> None:
        if self._writer is None:
            self._with_changes = not step.dropped
            self._writer = segment_body.SegmentBuilder(
                above=self._before.height,
                step=self._before.step,
                chain=self._before.chain,
                with_changes=self._with_changes,
            )
        self.head = step_reader.link(self.head, step, covered)
        self._writer.add(segment_body.SegmentStep(step.step, step.height, step.data, covered, step.changes))
        self._bytes += sum(map(len, step.data)) + len(step.changes)
        self.count += 1

    def end(self) -> tuple[bytes, journal.Segment]:
        assert self._writer is not None
        body = self._writer.body()
        address = cas.address(body)
        record = journal.Segment(
            self._before.height + 1,
            self.head.height,
            self._before.step + 1,
            self.head.step,
            address,
            len(body),
            self._with_changes,
        )
        return body, record


def refs(raw: bytes) -> list[bytes]:
    """The blob that a stored input refers to. What cannot be decoded, or was cut, refers to none."""
    item = inboxes.item_of(raw)
    address = None if item is None else inboxes.item_refers_to(item)
    return [] if address is None else [address]


async def _items(engine: kv.Engine, between: tuple[bytes, bytes]) -> AsyncIterator[tuple[bytes, bytes]]:
    """What stands between two keys. A value that cannot be opened ends the export: the file would lack it."""
    async for key, raw in paging.RangeItems(engine, kv.Range(*between, count_max=ITEMS)):
        yield key, frame.plain(raw)
