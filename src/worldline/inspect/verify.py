"""Walking a world's stored journal and checking every byte of it, without running any code.

Frames are read one by one, so that damage has an address: the checksum of each frame, the heights, the chain of digests
over whole steps, the large payloads behind their addresses, every snapshot and the head. What this proves is that the
history is the one that was written; that the code does what it says is for `worldline.inspect.prove`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from worldline.base import errors, limits
from worldline.client.connection import Connection
from worldline.keys import journal as journal_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import journal as journals
from worldline.layers import snapshots as snapshot_layer
from worldline.model import ids, journal, snapshot
from worldline.roles import restore
from worldline.store import kv

PAGE_BYTES = 1 * limits.MIB

Steps = list[list[journal.Entry]]
Progress = Callable[[int, int], None]


class Damaged(errors.Corrupt):
    """Stored bytes are not what was written. `height`: the first entry that cannot be trusted."""

    code = "damaged"

    def __init__(self, height: int, what: str) -> None:
        super().__init__(f"damaged at height {height}: {what}")
        self.height = height


class Verified(msgspec.Struct, frozen=True):
    """What was read and found to be as it was written."""

    height: int
    step: int
    entries: int
    frames: int
    blobs: int
    snapshots: int
    chain: str
    state: str


def no_progress(done: int, total: int) -> None:
    """No progress is shown."""
    del done, total


class Walk:
    """One walk from a snapshot to the head. Entries come in whole steps, their chain checked."""

    def __init__(self, universe: Connection, at: ids.Address, start: snapshot.Snapshot, head: journal.Head) -> None:
        self._universe = universe
        self._at = at
        self._start = start
        self._head = head
        self._last = snapshot_layer.head_of(start, state=bytes(limits.DIGEST_BYTES))
        self.frames = 0
        self.entries = 0
        self.loaded: dict[bytes, bytes] = {}  # the large payloads of the steps given out last
        self.blobs = 0

    async def steps(self, progress: Progress = no_progress) -> AsyncIterator[Steps]:
        """All steps up to the head, a page at a time. `Damaged` at the first thing that is wrong."""
        total = self._head.height - self._start.height
        above = self._start.height
        partial: list[journal.Entry] = []
        progress(0, total)
        while above < self._head.height:
            page = (await self._universe.store.engine.read(_range(self._at, above))).page(0)
            if not page.items:
                raise Damaged(above + 1, f"no frame holds it; the head says {self._head.height}")
            ended: Steps = []
            for key, raw in page.items:
                entries = _frame(self._at, key, raw, above)
                above = entries[-1].height
                self.frames += 1
                partial = self._cut(partial + entries, ended)
            await self._load(ended)
            self.entries += sum(map(len, ended))
            progress(min(above, self._head.height) - self._start.height, total)
            yield ended
        if self._last.chain != self._head.chain or (self.entries and self._last.state != self._head.state):
            raise Damaged(self._head.height, "the head does not name the journal's last entry")

    def _cut(self, entries: list[journal.Entry], ended: Steps) -> list[journal.Entry]:
        """Take whole steps off, up to the head. Returns what is left."""
        step: list[journal.Entry] = []
        for entry in entries:
            if entry.height > self._head.height:
                break  # written since the walk began
            step.append(entry)
            if entry.chain:
                self._last = _follow(self._last, step)
                ended.append(step)
                step = []
        return step

    async def _load(self, steps: Steps) -> None:
        self.loaded = {}
        for entry in (entry for step in steps for entry in step):
            try:
                self.loaded |= await restore.load_referenced(self._universe.blobs, [entry])
            except (errors.Corrupt, errors.NotFound) as error:
                raise Damaged(entry.height, str(error)) from error
        self.blobs += len(self.loaded)


def _range(at: ids.Address, above: int) -> kv.Range:
    return journals.read_range(at, above=above, bytes_max=PAGE_BYTES)


def _frame(at: ids.Address, key: bytes, raw: bytes, above: int) -> list[journal.Entry]:
    try:
        return journals.decode(at, [(key, raw)], above=above)
    except errors.Corrupt as error:
        raise Damaged(above + 1, f"{_frame_name(at, key)}: {error}") from error


def _frame_name(at: ids.Address, key: bytes) -> str:
    try:
        return f"the frame that ends at height {journal_keys.frame_height(at, key)}"
    except errors.DecodeError:
        return f"a frame under the key {key.hex()}"


def _follow(before: journal.Head, step: Sequence[journal.Entry]) -> journal.Head:
    try:
        return journals.verify(before, step)
    except errors.Corrupt as error:
        raise Damaged(step[0].height, f"step {step[0].step}: {error}") from error


async def records(universe: Connection, at: ids.Address) -> list[snapshot.Snapshot]:
    """Every snapshot that is kept, earliest first."""
    begin, end = snapshot_keys.snapshots(at)
    found: list[snapshot.Snapshot] = []
    request = kv.Range(begin, end)
    while True:
        page = (await universe.store.engine.read(request)).page(0)
        found += [saved.record for saved in snapshot_layer.decode(at, page)]
        if not page.more:
            return found
        request = kv.Range(page.items[-1][0] + b"\x00", end)


async def first(universe: Connection, at: ids.Address, kept: Sequence[snapshot.Snapshot]) -> snapshot.Snapshot:
    """The earliest snapshot above which the whole journal is there: that of the world's birth, unless compacted."""
    page = (await universe.store.engine.read(msgspec.structs.replace(_range(at, 0), count_max=1))).page(0)
    height = journals.decode(at, page.items, above=_below(at, page))[0].height if page.items else 1
    for each in kept:
        if each.height >= height - 1:
            return each
    raise Damaged(height, "no snapshot is kept to start from")


def _below(at: ids.Address, page: kv.Page) -> int:
    """A height that lies below the first frame, whatever that begins with."""
    key, raw = page.items[0]
    try:
        return journal_keys.frame_height(at, key) - len(journal_keys.unpack_frame(raw))
    except errors.DecodeError as error:
        raise Damaged(1, f"{_frame_name(at, key)}: {error}") from error


async def head(universe: Connection, at: ids.Address) -> journal.Head:
    try:
        return journals.decode_head((await universe.store.engine.read(journals.get_head(at))).value(0))
    except errors.DecodeError as error:
        raise Damaged(0, f"the head: {error}") from error


async def verify(universe: Connection, at: ids.Address, progress: Progress = no_progress) -> Verified:
    """Check everything that is stored of a world's history. `Damaged` names the first thing that is wrong."""
    top = await head(universe, at)
    kept = await _readable_records(universe, at)
    walk = Walk(universe, at, await first(universe, at, kept), top)
    wanted = {each.height: each for each in kept}
    async for steps in walk.steps(progress):
        for last in (step[-1] for step in steps):
            check_record(wanted.get(last.height), last)
    parts = 0
    for each in kept:
        parts += await _check_parts(universe, each)
    return Verified(
        top.height, top.step, walk.entries, walk.frames, walk.blobs + parts, len(kept), top.chain.hex(), top.state.hex()
    )


def check_record(record: snapshot.Snapshot | None, last: journal.Entry) -> None:
    """A snapshot must name the very history it was taken of."""
    if record is not None and (record.chain, record.step) != (last.chain, last.step):
        raise Damaged(last.height, f"the snapshot of step {record.step} was taken of another history")


async def _readable_records(universe: Connection, at: ids.Address) -> list[snapshot.Snapshot]:
    try:
        kept = await records(universe, at)
        baseline = snapshot_layer.decode_baseline(
            (await universe.store.engine.read(snapshot_layer.get_baseline(at))).value(0)
        )
    except errors.DecodeError as error:
        raise Damaged(0, f"a snapshot's record: {error}") from error
    if baseline not in kept:
        raise Damaged(baseline.height, "the baseline is none of the snapshots")
    return kept


async def _check_parts(universe: Connection, record: snapshot.Snapshot) -> int:
    try:
        return len(await restore.load_parts(universe.blobs, record.root))
    except (errors.Corrupt, errors.NotFound) as error:
        raise Damaged(record.height, f"the snapshot of step {record.step}: {error}") from error
