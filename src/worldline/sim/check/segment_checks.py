"""What must hold of compaction, with every batch: each height is in one place, and what forks have pinned stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from worldline.codec import structs
from worldline.keys import journal as journal_keys
from worldline.keys import lineage as lineage_keys
from worldline.keys import segments as segment_keys
from worldline.keys import space
from worldline.layers.history import history_line
from worldline.model import ids, journal
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import AppliedBatch


class Segments:
    """`broken` is told of what does not hold; `contents` is the store as it is."""

    def __init__(self, broken: Callable[[str, str], None], contents: Callable[[], dict[bytes, bytes]]) -> None:
        self._broken = broken
        self._contents = contents
        self.written = 0

    def look(self, applied: AppliedBatch) -> None:
        moved = [where.at for where in map(keyspaces.place, applied.batch.puts) if where.what == "segment"]
        for begin, _ in applied.batch.ranges:
            # In the same batch: between two, each height would be in no place, or in two.
            if keyspaces.is_journal(begin) and keyspaces.place(begin).at not in moved:
                self._broken("R1", "frames were deleted, and no segment has their entries")
        for at in moved:
            if at is not None:
                self.written += 1
                self._one_place(at)
                self._pins_stay(at)

    def _under(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self._contents()
        for key in sorted(each for each in found if each.startswith(prefix)):
            yield key, found[key]

    def _segments(self, at: ids.Address) -> list[journal.Segment]:
        begin, _ = segment_keys.segments(at)
        return [segment_keys.SEGMENT.unpack(raw) for _, raw in self._under(begin[:-2])]

    def _one_place(self, at: ids.Address) -> None:
        # All of them, with every compaction: a gap or an overlap shows at the batch that made it.
        heights = [height for each in self._segments(at) for height in range(each.first_height, each.last_height + 1)]
        for _, raw in self._under(journal_keys.frame_prefix(at)):
            heights += [
                structs.decode(journal.JournalEntry, each).height for each in journal_keys.unpack_frame(raw).entries
            ]
        contents = self._contents()
        line = history_line.decode(at, contents.get(lineage_keys.lineage_key(at)))
        top = journal_keys.HEAD.unpack(contents[journal_keys.head_key(at)]).height
        if heights != list(range(line.forked_at + 1, top + 1)):
            self._broken("R1", f"heights {line.forked_at + 1} to {top} are not each in one place: {heights[:50]}")

    def _pins_stay(self, at: ids.Address) -> None:
        last = self._segments(at)[-1]
        begin, _ = lineage_keys.pins(at)
        for key, raw in self._under(begin):
            # A segment without changes cannot lead from the pinned snapshot to the state that the fork begins with.
            if lineage_keys.PIN.unpack(raw).snapshot < last.last_step and not last.changes:
                fork = lineage_keys.pin_fork(at, key).hex()
                self._broken("FORK", f"what fork {fork} has pinned was dropped, up to step {last.last_step}")


assert space.FORMAT_MAJOR == 2, "the auditor reads format 2"
