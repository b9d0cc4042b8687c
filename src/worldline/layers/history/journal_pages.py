"""Journals as they are read: frames and segments, as one.

Old frames are moved into segments (`worldline.features.compaction`): one batch writes the index record of a segment
and deletes its frames. Whatever reads a journal reads the index and the frames in one snapshot of the store, so each
height comes from exactly one place, also while that happens. A segment's body never changes: it is read behind the
snapshot.

Where entries are not kept for ever, the index begins with a record that says which are gone: whatever reads them meets
`NotRetained` (`gone`), and `kept` says from where on there are some.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from worldline.base import errors, limits, probes
from worldline.codec import structs
from worldline.keys import journal as journal_keys
from worldline.keys import segments as segment_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.layers import worlds
from worldline.layers.history import history_line, segment_body, step_reader
from worldline.model import ids, journal
from worldline.model.journal import GENESIS, DroppedEntries, Head, Segment
from worldline.store import kv, paging

PAGE_BYTES = 4 * limits.MIB
SEGMENTS_PAGE = 100


class Pages:
    """What a `step_reader.StepReader` wants next, page by page."""

    def __init__(
        self, engine: kv.Engine, blobs: blob_layer.Blobs, line: history_line.HistoryLine, *, above: int
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self.reader = step_reader.StepReader(line, above=above)
        self._at: ids.Address | None = None  # whose blocks these are
        self._blocks: Iterator[segment_body.Block] = iter(())
        self._in_segments = False  # the last page was of a segment; the next may well be

    async def items(self, *, bytes_max: int = PAGE_BYTES) -> list[step_reader.Item]:
        """The next values, at least one; none if the journal ends."""
        page = self._next_blocks(bytes_max)
        while not page:
            # Between segments, frames are read only to see whether they follow: a page of them would be thrown away.
            frames = self.reader.wanted(bytes_max=bytes_max, count_max=1 if self._in_segments else 10_000)
            # One read, one snapshot: compaction moves frames into segments, and between two reads a height could
            # vanish.
            read = await self._engine.read(self.reader.wanted_segment(), frames)
            at = self.reader.at
            record = self.reader.covering(read.page(0))
            if record is None:
                # The segments end here: the one frame was only a look, and a whole page is asked for.
                if self._in_segments and read.page(1).more:
                    self._in_segments = False
                    continue
                self._in_segments = False
                return list(read.page(1).items)
            body = await load(self._blobs, at, record)
            self._in_segments = True
            self._at, self._blocks = at, body.blocks(above=self.reader.height)
            page = self._next_blocks(bytes_max)
        return page

    def _next_blocks(self, bytes_max: int) -> list[step_reader.Item]:
        found: list[step_reader.Item] = []
        size = 0
        # The reader may have entered another world's journal: blocks that were read ahead end there.
        while size < bytes_max and self._at == self.reader.at:
            block = next(self._blocks, None)
            if block is None:
                self._at = None
                break
            found.append(block)
            size += sum(map(len, block.entries))
        return found


async def load(blobs: blob_layer.Blobs, at: ids.Address, record: Segment | DroppedEntries) -> segment_body.Body:
    """A segment, checked against its record. `NotRetained` if it was dropped."""
    if isinstance(record, DroppedEntries):
        raise gone(record.first_height, record.last_height)
    try:
        return segment_body.Body(at, record, await blobs.get(record.digest))
    except (errors.Corrupt, errors.NotFound) as error:
        raise errors.Corrupt(
            f"the segment of heights {record.first_height} to {record.last_height}: {error}"
        ) from error


def segment_range(at: ids.Address, *, above: int) -> kv.Range:
    """The segment that has the height above this one, if one has (`step_reader.covering`)."""
    return kv.Range(*segment_keys.segments(at, above=above), count_max=1)


async def entries(
    engine: kv.Engine, blobs: blob_layer.Blobs, at: ids.Address, *, above: int, up_to: int, bytes_max: int = PAGE_BYTES
) -> list[journal.JournalEntry]:
    """Entries in (above, up_to], page by page. `bytes_max`: of a page, smaller where few are wanted."""
    found: list[journal.JournalEntry] = []
    pieces: Iterator[history_line.Piece] | None = None
    piece = history_line.Piece(at, above, None)
    body: segment_body.Body | None = None
    page: list[journal.JournalEntry] = []
    while above < up_to:
        if body is None or body.at != piece.at or above >= body.record.last_height:
            frames = journals.read_range(piece.at, above=above, bytes_max=bytes_max)
            read = await engine.read(history_line.get(at), segment_range(piece.at, above=above), frames)
            if pieces is None:
                pieces = history_line.decode(at, read.value(0)).pieces(above)
                piece = next(pieces)
                # A fork: these heights stand in another world's journal, and this read was of its own.
                if piece.at != at:
                    continue
            record = step_reader.covering(piece.at, read.page(1), above=above)
            body = None if record is None else await load(blobs, piece.at, record)
            page = journals.decode(piece.at, read.page(2).items, above=above) if body is None else []
        if body is not None:
            page = entries_of(next(body.blocks(above=above)), above=above)
        if not page:
            raise await missing(engine, at, piece.at, above + 1, up_to)
        end = up_to if piece.up_to is None else min(up_to, piece.up_to)
        found += [entry for entry in page if entry.height <= end]
        above = page[-1].height
        # A parent's journal goes further than the fork: what stands there above the fork is another history.
        if above >= end and end < up_to:
            above, piece = end, next(pieces or iter(()))
    return found


async def missing(engine: kv.Engine, at: ids.Address, owner: ids.Address, height: int, up_to: int) -> errors.Error:
    """What it means that a height is in no frame and in no segment: its world was deleted, or something is damaged."""
    read = await engine.read(worlds.get(at), worlds.get(owner))
    # Asked first: in a deleted world, entries that are missing are no damage.
    if worlds.find(at, read.value(0)) is None:
        return worlds.gone(at, read.value(0))
    if worlds.is_deleted(read.value(1)):
        probes.hit("journal.owner-deleted")
        line = history_line.decode(at, (await engine.read(history_line.get(at))).value(0))
        return gone(height, (await kept(engine, line)).above)
    return errors.DecodeError(f"height {height} is missing: the head says {up_to}")


def entries_of(block: segment_body.Block, *, above: int) -> list[journal.JournalEntry]:
    """The entries of a block above a height."""
    first = max(0, above + 1 - block.first_height)
    found = [structs.decode(journal.JournalEntry, data) for data in block.entries[first:]]
    if any(entry.height != block.first_height + first + index for index, entry in enumerate(found)):
        raise errors.DecodeError(f"the block up to height {block.last_height} does not hold the entries up to there")
    return found


async def changes_above(engine: kv.Engine, line: history_line.HistoryLine) -> int:
    """The height above which a history has what its steps changed; 0 if nothing was dropped of it."""
    found = max((piece.up_to or 0 for piece in await _deleted(engine, line)), default=0)
    for piece in line.owners():
        dropped = await _dropped_up_to(engine, piece.at)
        if dropped > piece.above:
            found = max(found, dropped if piece.up_to is None else min(dropped, piece.up_to))
    return found


async def _dropped_up_to(engine: kv.Engine, at: ids.Address) -> int:
    # From the newest on: the oldest are dropped first, so the first one found without changes is the highest.
    newest_first = kv.Range(*segment_keys.segments(at), count_max=SEGMENTS_PAGE, reverse=True)
    async for _, raw in paging.RangeItems(engine, newest_first):
        record = segment_keys.unpack(raw)
        if not record.changes:
            return record.last_height
    return 0


class RetainedRange(msgspec.Struct, frozen=True):
    """The height above which the entries of a history are kept, and the head there, if that is known."""

    above: int
    head: Head | None


async def kept(engine: kv.Engine, line: history_line.HistoryLine) -> RetainedRange:
    """From where on there are entries of a history: those of a parent may go further than where a fork begins, and go
    with a parent that is deleted.
    """
    found = RetainedRange(0, GENESIS)
    pieces = list(line.pieces(0))
    deleted = await _deleted(engine, line)
    read = await engine.read(
        *(kv.Range(*segment_keys.segments(piece.at), count_max=1) for piece in pieces),
        *(history_line.get(piece.at) for piece in pieces),
    )
    for index, piece in enumerate(pieces):
        records = [segment_keys.unpack(raw) for _, raw in read.page(index).items]
        dropped = [each for each in records if isinstance(each, DroppedEntries) and each.last_height > piece.above]
        # Nothing of this piece is left: the history begins at the fork, whose head its lineage has kept.
        if piece.up_to is not None and (piece in deleted or any(each.last_height > piece.up_to for each in dropped)):
            fork = history_line.decode_lineage(read.value(len(pieces) + index + 1))
            found = RetainedRange(piece.up_to, history_line.forked_head(fork))
        elif dropped:
            found = RetainedRange(dropped[0].last_height, dropped[0].end)
    return found


async def _deleted(engine: kv.Engine, line: history_line.HistoryLine) -> list[history_line.Piece]:
    """The parts of a history that stood in worlds that are deleted."""
    pieces = [piece for piece in line.pieces(0) if piece.up_to is not None]
    read = await engine.read(*(worlds.get(piece.at) for piece in pieces)) if pieces else None
    return [] if read is None else [each for index, each in enumerate(pieces) if worlds.is_deleted(read.value(index))]


def gone(height: int, up_to: int) -> errors.NotRetained:
    """The error for an entry that is not kept any more."""
    return errors.NotRetained(height, f"its entry is not kept any more: entries are kept above height {up_to}")


async def first_frames(
    engine: kv.Engine, line: history_line.HistoryLine, *, above: int, up_to: int
) -> list[tuple[bytes, bytes]]:
    """The first frame of each journal that the changes in (above, up_to] stand in, and the first segment. The oldest
    frames are compacted first, and the oldest segments dropped first, so as long as these are there, all of the changes
    are. `NotRetained` if some were dropped.
    """
    found: list[tuple[bytes, bytes]] = []
    for piece in line.pieces(above):
        height = piece.above
        needs_segment = False
        while height < (up_to if piece.up_to is None else min(up_to, piece.up_to)):
            frames = kv.Range(*journal_keys.frames(piece.at, above=height), count_max=1)
            read = await engine.read(segment_range(piece.at, above=height), frames)
            record = step_reader.covering(piece.at, read.page(0), above=height)
            if record is None:
                found += read.page(1).items
                break
            if not record.changes:
                raise dropped(height + 1)
            if not needs_segment:
                found += read.page(0).items
                needs_segment = True
            height = record.last_height
    return found


def dropped(height: int) -> errors.NotRetained:
    return errors.NotRetained(height, "what its step changed was dropped when the journal was compacted")
