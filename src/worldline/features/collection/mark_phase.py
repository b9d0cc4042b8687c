"""Marking: every reference of a universe is found, and what it leads to.

In turns: each reads one page of what there is, or some of the blobs that were found, and does a bounded amount of work.
Memory is bounded, too: by the table of marked addresses (`address_set.py`), and by what is found and not looked at yet.
That is gone through from its end, so it grows with the depth of tries and not with their size.

What cannot be read ends the mark: it may refer to anything. `Unreadable` says what it is. So does what can be read and
is not what was written. A segment, a state and a blob are checked by their addresses, and the steps in frames by the
chain, which is recomputed for each: the envelope of a value shows what a disk has damaged, not what memory has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from worldline.base import errors, limits, probes
from worldline.base.bounded_map import BoundedMap
from worldline.features.collection import references as roots
from worldline.features.collection.address_set import Marked
from worldline.features.collection.references import BlobKind, Reference, ReferenceRange
from worldline.keys import worlds as world_keys
from worldline.layers import blobs as blob_layer
from worldline.layers.history import journal_pages, segment_body, step_reader
from worldline.model import ids, journal
from worldline.runtime import world_restore
from worldline.store import kv

# One page of each place in one read: a small world costs one round trip.
FIRST_BYTES = 64 * limits.KIB  # of the first page of each place of a world, which are read together
PAGE_BYTES = 512 * limits.KIB  # of those behind it
NODES_AT_ONCE = 200
STEPS_AT_ONCE = 200
# Bounds memory only: a segment that is forgotten here is read once more.
PLAIN_MAX = 100_000  # segments that are known to refer to nothing


class Unreadable(errors.Corrupt):
    """Something that may refer to blobs cannot be read."""

    code = "unreadable"


READERS: Final[dict[BlobKind, Callable[[bytes], Iterator[Reference]]]] = {
    BlobKind.STATE: roots.of_state,
    BlobKind.CHANGES: roots.of_changes,
    BlobKind.INPUT: roots.of_input,
}


class Plain:
    """Segments that refer to nothing: they never change, and need not be read again by the next collection."""

    def __init__(self) -> None:
        self._known: BoundedMap[bytes, None] = BoundedMap(PLAIN_MAX)

    def __contains__(self, address: bytes) -> bool:
        return address in self._known

    def add(self, address: bytes) -> None:
        self._known[address] = None


class _Scan(msgspec.Struct):
    """A place of a world that is being read."""

    at: ids.Address
    place: ReferenceRange
    read: Callable[[roots.Items], Iterator[Reference]]
    begin: bytes
    end: bytes


class Marker:
    """One mark. `places`: all, but for tests."""

    def __init__(
        self,
        engine: kv.Engine,
        blobs: blob_layer.Blobs,
        universe: ids.UniverseId,
        marked: Marked,
        *,
        plain: Plain | None = None,
        places: Iterable[ReferenceRange] = roots.PLACES,
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._universe = universe
        self._plain = plain or Plain()
        self._places = tuple(places)
        self._next: bytes | None = world_keys.all_worlds(universe)[0]  # None: every world was begun
        self._scans: list[_Scan] = []
        self._nodes: list[Reference] = []  # to be read; their addresses are marked
        self._segments: list[tuple[ids.Address, Reference]] = []
        self._steps: list[tuple[ids.Address, step_reader.StoredStep]] = []  # to be checked, in order
        self._before: tuple[ids.Address, journal.Head] | None = None  # the world and the head behind the last of them
        self._body: segment_body.Body | None = None
        self._blocks: Iterator[segment_body.Block] = iter(())
        self._refers = False  # the segment that is read
        self.marked = marked
        self.worlds = 0

    async def turn(self) -> bool:
        """One part of the mark. Returns whether that was the last."""
        # What is nearest to its end comes first, so the lists are emptied before more is found.
        if self._body is not None:
            self._read_block()
        elif self._steps:
            await self._check_steps()
        elif self._nodes:
            await self._read_nodes()
        elif self._segments:
            await self._open_segment()
        elif self._scans:
            await self._scan()
        elif self._next is not None:
            await self._begin_world(self._next)
        else:
            return True
        return False

    # --- What stands in the store --------------------------------------------------------------------------------

    async def _begin_world(self, begin: bytes) -> None:
        """Find the next world, and read the first page of everything that it has."""
        _, end = world_keys.all_worlds(self._universe)
        page = (await self._engine.read(kv.Range(begin, end, count_max=1))).page(0)
        if not page.items:
            self._next = None
            return
        at = ids.Address(self._universe, world_keys.world_of(self._universe, page.items[0][0]))
        # A world that is made before this place meanwhile is not missed: what it publishes has the new generation.
        self._next = world_keys.behind(at)
        self.worlds += 1
        scans = [_Scan(at, place, place.reader(), *place.range(at)) for place in self._places]
        read = await self._engine.read(*(kv.Range(each.begin, each.end, bytes_max=FIRST_BYTES) for each in scans))
        for index, each in enumerate(scans):
            self._take_page(each, read.page(index))
        self._scans.reverse()  # they are taken from the end

    async def _scan(self) -> None:
        scan = self._scans.pop()
        self._take_page(scan, (await self._engine.read(kv.Range(scan.begin, scan.end, bytes_max=PAGE_BYTES))).page(0))

    def _take_page(self, scan: _Scan, page: kv.Page) -> None:
        try:
            self._found(scan.at, scan.read(page.items))
            if isinstance(scan.read, roots.Frames):
                self._steps += [(scan.at, each) for each in scan.read.take_steps()]
        except errors.KeyDestroyed:
            probes.hit("collection.key-destroyed")  # what it refers to can be found by no one any more
        except errors.Corrupt as error:
            # What cannot be read may refer to anything, so a sweep after it could delete what is in use.
            raise Unreadable(f"world {scan.at.world.hex()}, {scan.place.name}: {error}") from error
        if page.more:
            scan.begin = page.items[-1][0] + b"\x00"
            self._scans.append(scan)

    def _found(self, at: ids.Address, references: Iterable[Reference]) -> int:
        """Mark what is referred to. What may refer to more is read later, once. Returns how many there were."""
        count = 0
        for each in references:
            count += 1
            # A blob that is marked was read before, or waits in the lists: none is read twice.
            is_new = self.marked.add(each.address)
            if each.kind is BlobKind.SEGMENT:
                if is_new and each.address not in self._plain:
                    self._segments.append((at, each))
            elif is_new and each.kind is not BlobKind.DATA:  # data refers to nothing, so it is marked and not read
                self._nodes.append(each)
        return count

    async def _check_steps(self) -> None:
        """Recompute the chain of some steps: `Unreadable` if they are not those that were written."""
        some, self._steps = self._steps[:STEPS_AT_ONCE], self._steps[STEPS_AT_ONCE:]
        for at, step in some:
            try:
                before = await self._head_before(at, step)
                if before is not None:
                    loaded: dict[bytes, bytes] = {}
                    [whole] = await world_restore.load_changes(self._blobs, [step], loaded)
                    step_reader.link(before, whole, step_reader.covered(whole, loaded))
            except errors.KeyDestroyed:
                pass  # no process can read it any more, and it refers to nothing that one could
            except errors.Corrupt as error:
                raise Unreadable(f"world {at.world.hex()}, journal: {error}") from error
            # The next step of the same world links to this one without another read.
            self._before = (at, step.head())

    async def _head_before(self, at: ids.Address, step: step_reader.StoredStep) -> journal.Head | None:
        """The head that a step follows. None if that is not kept any more: it went with a deleted parent."""
        height = step.first_height - 1
        if self._before is not None and self._before[0] == at:
            return self._before[1]
        if not height:
            return journal.GENESIS
        # The first step in frames: what comes before it is in a segment, or in the parent of a fork.
        try:
            [last] = await journal_pages.entries(self._engine, self._blobs, at, above=height - 1, up_to=height)
        except (errors.NotRetained, errors.NotFound):
            return None
        return journal.Head(last.step, last.height, last.chain, last.state, last.time_us)

    # --- Blobs that refer to others ------------------------------------------------------------------------------

    async def _read_nodes(self) -> None:
        """Nodes of saved states; changes of steps, and inputs, that are stored apart."""
        some = self._nodes[-NODES_AT_ONCE:]
        del self._nodes[-NODES_AT_ONCE:]
        # Nodes are shared by worlds, and refer to no segment, which alone needs the world.
        at = ids.Address(self._universe, ids.WorldId(bytes(limits.ID_BYTES)))
        try:
            bodies = await self._blobs.get_many([each.address for each in some])
            for each in some:
                self._found(at, READERS[each.kind](bodies[each.address]))
        except errors.Corrupt as error:
            raise Unreadable(f"a part of a saved state, a large input, or what a step changed: {error}") from error

    async def _open_segment(self) -> None:
        at, found = self._segments.pop()
        assert found.segment is not None
        try:
            # It is loaded whole and read block by block: a turn does a bounded amount of work.
            self._body = await journal_pages.load(self._blobs, at, found.segment)
        except errors.Corrupt as error:
            raise Unreadable(f"world {at.world.hex()}: {error}") from error
        self._blocks = self._body.blocks(above=0)
        self._refers = False

    def _read_block(self) -> None:
        assert self._body is not None
        try:
            block = next(self._blocks, None)
            if block is not None:
                self._refers |= self._found(self._body.at, roots.of_block(block)) > 0
                return
        except errors.Corrupt as error:
            raise Unreadable(f"world {self._body.at.world.hex()}, a segment: {error}") from error
        if not self._refers:
            # Only behind its last block: a segment that was read in part may refer to something further on.
            self._plain.add(self._body.record.digest)
        self._body = None
