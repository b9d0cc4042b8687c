"""Dropping the oldest segments of a world, by its holder: where entries are not kept for ever.

A segment goes as a whole, when it was written long enough ago and no state that is kept lies below its end. How long
ago is counted by the age of the universe and by no clock (`layers/age.py`). Its record is
deleted in one batch, which expects what moving frames expects; what stands in its place says from where on there are
entries, and the head that the chain continues from. Snapshots below that go in the same batch: no state can be made
from them any more, so a fork that was about to begin at one conflicts. The bodies are garbage from then on.
"""

from __future__ import annotations

import msgspec

from worldline.base import probes
from worldline.base.bounded_map import BoundedMap
from worldline.features.compaction import batches, retention_rules
from worldline.features.compaction.retention_rules import KnownPast, RetentionPolicy
from worldline.layers import blobs as blob_layer
from worldline.layers import leases
from worldline.layers.history import journal_pages, segment_index
from worldline.model import ids, journal
from worldline.model.age import Age
from worldline.store import kv, transact

SEGMENTS_MAX = 16  # dropped in one batch; each is read, to know when it ends
ENDS_MAX = 10_000


class Ends:
    """The heads that segments end with, as far as they were read. They never change."""

    def __init__(self, blobs: blob_layer.Blobs, known: BoundedMap[bytes, journal.Head] | None = None) -> None:
        self._blobs = blobs
        self._known = BoundedMap(ENDS_MAX) if known is None else known

    async def of(self, at: ids.Address, record: journal.Segment) -> journal.Head:
        found = self._known.get(record.digest)
        if found is None:
            body = await journal_pages.load(self._blobs, at, record)
            # The index does not say how a segment ends, so its last block is read once, and the head kept.
            [block] = body.blocks(above=body.places[-1].first_height - 1)
            last = journal_pages.entries_of(block, above=record.last_height - 1)[0]
            found = journal.Head(last.step, last.height, last.chain, last.state, last.time_us)
            self._known[record.digest] = found
        return found


class Oldest(msgspec.Struct, frozen=True):
    """The records that go, and the head that they end with."""

    records: list[segment_index.Indexed]
    end: journal.Head

    @property
    def entries(self) -> int:
        """Those that are gone with this batch."""
        first = next(each.record.first_height for each in self.records if isinstance(each.record, journal.Segment))
        return self.end.height - first + 1


async def oldest(
    engine: kv.Engine, ends: Ends, at: ids.Address, known: KnownPast, policy: RetentionPolicy, *, now: Age
) -> Oldest | None:
    """What may be dropped now of a world's index, bounded."""
    page = (await engine.read(segment_index.first_range(at, count_max=SEGMENTS_MAX))).page(0)
    records: list[segment_index.Indexed] = []
    end = None
    for each in segment_index.decode(at, page):
        if isinstance(each.record, journal.Segment):
            # What goes must be a beginning of the history, so the first that stays ends the search.
            if not retention_rules.may_expire(known, each.record, policy):
                break
            if not now.has_passed(policy.journal_us, since_us=each.record.age_us):
                break
            end = await ends.of(at, each.record)
        # What stands for earlier drops goes along: the new record covers its heights, too.
        records.append(each)
    return None if end is None else Oldest(records, end)


def write(lease: leases.Lease, expected: batches.Expected, known: KnownPast, old: Oldest) -> transact.Write[int]:
    """The batch that drops it. Its answer: how many entries have gone. If there are more snapshots below than one batch
    deletes, these go first.
    """
    batch = kv.Batch()
    below = [each for each in known.snapshots if each.record.height < old.end.height]
    if len(below) > retention_rules.DROPS_MAX:
        probes.hit("compaction.many-snapshots")
        batches.drop(batch, lease, expected, below[: retention_rules.DROPS_MAX])
        return transact.Write(batch, lambda _: 0)
    batches.expire(batch, lease, expected, old.records, old.end, snapshots=below)
    return transact.Write(batch, lambda _: old.entries)
