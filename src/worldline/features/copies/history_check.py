"""Checking the history in an exported world while it is read: nothing of it is trusted.

Every segment must lead from where the last one ended to where it says, by the chain; every state must follow from the
one before by what its step changed; every snapshot must be of this history, and of these very rows, as long as they are
known; and all blobs must be in the file. What steps changed may have been dropped before the export: there the chain is
checked, and states are known again from the next snapshot on.

The rows of the state are kept in memory, as those of a world that is restored, up to a bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from worldline.base import errors
from worldline.features.copies.copy_bounds import CopyBounds
from worldline.features.copies.file_blobs import FileBlobs
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import history_line, saved_state, segment_body, step_reader
from worldline.model import ids, journal, snapshots
from worldline.model.change import Change, Row
from worldline.model.rows import Rows
from worldline.runtime import world_restore


class Checking:
    """The history of one world, as far as it was read. `needed`: the addresses of blobs that something refers to."""

    def __init__(self, blobs: FileBlobs, at: ids.Address, bounds: CopyBounds) -> None:
        self._blobs = blobs
        self._at = at
        self._bounds = bounds
        self.needed: dict[bytes, None] = {}
        self._rows_bytes = 0  # of the rows, at most
        self._count_at = bounds.state_bytes_max  # when they seem to be so many, they are counted
        self._nodes: dict[bytes, None] = {}
        self._reader = step_reader.StepReader(history_line.HistoryLine(at), above=0)
        self._rows: Rows | None = None  # of the state at the head, if they are known
        self._waiting: dict[int, snapshots.StateSnapshot] = {}  # by height, those that were not come to
        self.head = journal.GENESIS
        self.last: snapshots.StateSnapshot | None = None
        self.segments = 0

    async def take_snapshot(self, record: snapshots.StateSnapshot) -> None:
        """A snapshot, whose history comes later. All its nodes must be there."""
        if self.last is not None and record.height <= self.last.height:
            raise errors.DecodeError(f"the snapshot of step {record.step} does not follow that of {self.last.step}")
        before = len(self._nodes)
        self._blobs.begin()
        try:
            await saved_state.check(self._blobs, record.root, self._nodes)
        except (errors.NotFound, errors.Corrupt) as error:
            raise errors.DecodeError(f"the snapshot of step {record.step}: {error}") from error
        # A dict keeps the order of insertion: behind `before` are the nodes that this snapshot has added.
        for address in itertools.islice(self._nodes, before, None):
            self.need(address)
        self.last = self._waiting[record.height] = record

    def take_dropped(self, record: journal.DroppedEntries) -> None:
        """Entries that are not kept any more: the chain continues from the head that they ended with."""
        if self.head.height or record.first_height != 1:
            raise errors.DecodeError("entries can be missing at the beginning alone")
        if any(height < record.last_height for height in self._waiting):
            raise errors.DecodeError("a snapshot is of entries that are not kept any more")
        self.head = record.end
        self._reader = step_reader.StepReader(history_line.HistoryLine(self._at), above=record.last_height)
        self._rows = None

    async def meet_first(self) -> None:
        """A snapshot that was taken where the entries that are kept begin."""
        record = self._waiting.get(self.head.height)
        if record is not None:
            await self._meet(record)

    async def take_segment(self, record: journal.Segment, data: bytes) -> None:
        """The next part of the journal."""
        if (record.first_height, record.first_step) != (self.head.height + 1, self.head.step + 1):
            raise errors.DecodeError(f"height {self.head.height + 1} should follow, not {record.first_height}")
        await self.meet_first()
        body = segment_body.Body(self._at, record, data)
        self.need(record.digest)
        # Counted by what the places say, before any block is unpacked.
        for place in body.places:
            self._bounds.unpack(place.length)
        if body.chain != self.head.chain:
            raise errors.DigestMismatch("the chain before a segment", expected=self.head.chain, actual=body.chain)
        for block in body.blocks(above=self.head.height):
            await self._take_steps(self._reader.take([block]), block.covered)
        if (self.head.height, self.head.step) != (record.last_height, record.last_step):
            raise errors.DecodeError(f"the segment up to height {record.last_height} ends at {self.head.height}")
        self.segments += 1

    async def check_end(self, head: journal.Head) -> snapshots.StateSnapshot:
        """The history leads to this head, and can be restored. Returns the snapshot that a restore begins with."""
        await self.meet_first()
        if (head.height and self.head != head) or (head.step, head.height) != (self.head.step, self.head.height):
            raise errors.DecodeError(f"the journal ends at height {self.head.height}, and not with the world's head")
        if self._waiting:
            missing = min(self._waiting)
            raise errors.DecodeError(f"the snapshot at height {missing} is of no step of the journal")
        if self.last is None or self._rows is None:
            raise errors.DecodeError("the state at the head cannot be made of what is in the file")
        return self.last

    def need(self, address: bytes) -> None:
        if address not in self._blobs:
            raise errors.DecodeError(f"the blob {address.hex()} is not in the file, or behind what refers to it")
        self.needed[address] = None

    async def _take_steps(self, steps: Sequence[step_reader.StoredStep], covered: Sequence[bytes]) -> None:
        if len(steps) != len(covered):
            raise errors.DecodeError("a block has other steps than it says")
        for index, step in enumerate(steps):
            await self._take_step(step, covered[index])
            record = self._waiting.get(self.head.height)
            if record is not None:
                await self._meet(record)

    async def _take_step(self, step: step_reader.StoredStep, covered: bytes) -> None:
        loaded: dict[bytes, bytes] = {}
        self._blobs.begin()
        self._need_all(step_reader.needed(step))
        [known] = await world_restore.load_changes(self._blobs, [step], loaded)
        # Again: changes that are stored apart name blobs of their own.
        self._need_all(step_reader.needed(known))
        for entry in step.entries():
            if entry.blob or entry.kind in journal.INPUTS:
                self._need_all([entry.blob] if entry.blob else ())
                self._need_all(await self._referenced(entry))
        if step_reader.covered(known, loaded) != covered:
            raise errors.DecodeError(f"the changes of step {step.step} are not those that its segment says")
        self.head, before = step_reader.link(self.head, step, covered), self.head
        if step.dropped:
            self._rows = None
        if self._rows is not None:
            changed = step_reader.resolve(known, self._rows, loaded)
            step_reader.follow(before, known, changed)
            self._rows.apply(changed)
            self._count(changed)

    def _count(self, changed: Sequence[Change]) -> None:
        """Rows that were put. How many bytes there are is found out when they seem too many: some have gone since."""
        self._rows_bytes += sum(_weight(each.key, each.row) for each in changed if each.row is not None)
        if self._rows_bytes > self._count_at and self._rows is not None:
            self._rows_bytes = sum(_weight(key, row) for key, row in self._rows.items())
            self._bounds.keep(self._rows_bytes)
            self._count_at = self._rows_bytes + self._bounds.state_bytes_max // 8  # so that it is not counted each time

    async def _referenced(self, entry: journal.JournalEntry) -> dict[bytes, bytes]:
        try:
            return await world_restore.load_referenced(self._blobs, [entry])
        except errors.NotFound as error:
            raise errors.DecodeError(f"the payload of height {entry.height}: {error}") from error

    def _need_all(self, addresses: Sequence[bytes] | dict[bytes, bytes]) -> None:
        for address in addresses:
            self.need(address)

    async def _meet(self, record: snapshots.StateSnapshot) -> None:
        """The head is where a snapshot was taken: it must be of this history, and of these rows if they are known."""
        del self._waiting[record.height]
        head = self.head
        self._blobs.begin()
        base = await saved_state.load(self._blobs, record.root)
        said, known = (record.step, record.chain), (head.step, head.chain)
        if said != known or (head.step and (base.state, record.time_us) != (head.state, head.time_us)):
            raise errors.DecodeError(f"the snapshot of step {record.step} was taken of another history")
        if self._rows is None:
            self._rows = Rows(base.rows())
            self._rows_bytes = sum(_weight(key, row) for key, row in self._rows.items())
            self.head = head = snapshot_layer.head_of(
                record, state=base.state
            )  # at the birth, only the snapshot has it
        # Also of rows that were just read: only so is it sure that no node lies at two places.
        made = saved_state.whole(head.state, self._rows.items())
        if made.root != record.root:
            raise errors.DigestMismatch(f"the snapshot of step {record.step}", expected=record.root, actual=made.root)


def _weight(key: bytes, row: Row) -> int:
    """More or less what a row takes in memory."""
    return saved_state.ROW_BYTES + len(key) + len(row.meaning)
