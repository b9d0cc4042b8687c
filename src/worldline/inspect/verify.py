"""Walking a world's stored journal and checking every byte of it, without running any code.

Frames are read one by one, so that damage has an address: the checksum of each frame, the heights, the chain of digests
over whole steps, the rows that they change and the digest of the state, the large payloads and rows behind their
addresses, every snapshot and the head. What this proves is that the history is the one that was written; that the code
does what it says is for `worldline.inspect.prove`.
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
from worldline.layers.stored import history, lines, saved_state
from worldline.layers.stored.export import Changed
from worldline.model import ids, journal, row_keys, snapshot
from worldline.model.change import changes_digest
from worldline.model.rows import Rows
from worldline.roles import restore
from worldline.store import kv

PAGE_BYTES = 1 * limits.MIB
PINS_PAGE = 1_000
NAMED_MAX = 8  # rows in one message

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
    """One walk from a snapshot to the head, through everything that a fork has of its parent. Entries come in whole
    steps, their chain checked, their changes folded.
    """

    def __init__(self, universe: Connection, line: lines.Line, start: snapshot.Snapshot, head: journal.Head) -> None:
        self._universe = universe
        self._line = line
        self._start = start
        self._head = head
        self._last = journal.GENESIS
        self._rows = Rows()
        self.frames = 0
        self.entries = 0
        self.loaded: dict[bytes, bytes] = {}  # the large payloads and rows of the steps given out last
        self.stored: list[history.Stored] = []  # those steps as they are stored, their changes in place
        self.changed: list[Changed] = []  # what those steps changed
        self.blobs = 0

    async def steps(self, progress: Progress = no_progress) -> AsyncIterator[Steps]:
        """All steps up to the head, a page at a time. `Damaged` at the first thing that is wrong."""
        await self._begin()
        total = self._head.height - self._start.height
        frames = history.Reader(self._line, above=self._start.height)
        progress(0, total)
        while self._last.height < self._head.height:
            page = (await self._universe.store.engine.read(frames.wanted(bytes_max=PAGE_BYTES))).page(0)
            if not page.items:
                raise Damaged(frames.height + 1, _missing(frames, self._head))
            ended: list[history.Stored] = []
            for index in range(len(page.items)):
                ended += await self._take(frames, page.items, index, ended)
                self.frames += 1
            # What is above the head was written since the walk began.
            steps = await self._fold([each for each in ended if each.height <= self._head.height])
            self.entries += sum(map(len, steps))
            progress(self._last.height - self._start.height, total)
            yield steps
        if self._last.chain != self._head.chain or (self.entries and self._last.state != self._head.state):
            raise Damaged(self._head.height, "the head does not name the journal's last entry")

    async def _begin(self) -> None:
        try:
            base = await saved_state.load(self._universe.blobs, self._start.root)
            self._last, self._rows = restore.standing(self._start, base)
        except (errors.Corrupt, errors.NotFound) as error:
            raise _bad_snapshot(self._start, error) from error

    @property
    def rows(self) -> Rows:
        """The state at the end of the steps given out last."""
        return self._rows

    async def _take(
        self, frames: history.Reader, items: Sequence[tuple[bytes, bytes]], index: int, ended: Sequence[history.Stored]
    ) -> list[history.Stored]:
        """The steps that end in one of these values. `ended`: those of the page before it."""
        try:
            return frames.take([items[index]])
        except errors.Corrupt as error:
            await self._fold([each for each in ended if each.height <= self._head.height])
            height = self._last.height + 1
            why = await restore.explain(self._universe.blobs, frames, items[index:], self._last, self._rows)
            said = f"{history.frame_name(frames.at, items[index][0])}: {error}"
            raise Damaged(height, f"{said}; {why}" if why else said) from error

    async def _fold(self, ended: Sequence[history.Stored]) -> Steps:
        """Check steps that follow each other, and take over what they changed. Returns their entries."""
        self.loaded, self.changed, self.stored = {}, [], []
        steps: Steps = []
        for each in ended:
            try:
                [step] = await restore.load_changes(self._universe.blobs, [each], self.loaded)
                changed = history.resolve(step, self._rows, self.loaded)
                self._last = history.follow(self._last, step, changed)
                self._rows.apply(changed)
                entries = step.entries()
            except errors.Corrupt as error:
                raise Damaged(each.first_height, str(error)) from error
            steps.append(entries)
            self.stored.append(step)
            self.changed.append(Changed(step.changes, changes_digest(changed)))
            await self._load(entries)
        self.blobs += len(self.loaded)
        return steps

    async def _load(self, entries: Sequence[journal.Entry]) -> None:
        for entry in entries:
            try:
                self.loaded |= await restore.load_referenced(self._universe.blobs, [entry])
            except (errors.Corrupt, errors.NotFound) as error:
                raise Damaged(entry.height, str(error)) from error


def _missing(frames: history.Reader, head: journal.Head) -> str:
    try:
        frames.check_end()
    except errors.DecodeError as error:
        return str(error)
    return f"no frame holds it; the head says {head.height}"


def _bad_snapshot(saved: snapshot.Snapshot, error: Exception) -> Damaged:
    return Damaged(saved.height, f"the snapshot of step {saved.step}: {error}")


def _range(at: ids.Address, above: int) -> kv.Range:
    return journals.read_range(at, above=above, bytes_max=PAGE_BYTES)


async def records(universe: Connection, line: lines.Line) -> list[snapshot.Snapshot]:
    """Every snapshot of a history that is kept, earliest first."""
    found: list[snapshot.Snapshot] = []
    for piece in line.owners():
        found += [
            each
            for each in await _records_of(universe, piece.at)
            if each.height > piece.above and (piece.up_to is None or each.height <= piece.up_to)
        ]
    return found


async def _records_of(universe: Connection, at: ids.Address) -> list[snapshot.Snapshot]:
    begin, end = snapshot_keys.snapshots(at)
    found: list[snapshot.Snapshot] = []
    request = kv.Range(begin, end)
    while True:
        page = (await universe.store.engine.read(request)).page(0)
        found += [saved.record for saved in snapshot_layer.decode(at, page)]
        if not page.more:
            return found
        request = kv.Range(page.items[-1][0] + b"\x00", end)


async def first(universe: Connection, line: lines.Line, kept: Sequence[snapshot.Snapshot]) -> snapshot.Snapshot:
    """The earliest snapshot above which the whole journal is there: that of the world's birth, unless compacted."""
    at = next(line.pieces(0)).at
    page = (await universe.store.engine.read(msgspec.structs.replace(_range(at, 0), count_max=1))).page(0)
    height = _first_height(at, page) if page.items else 1
    for each in kept:
        if each.height >= height - 1:
            return each
    raise Damaged(height, "no snapshot is kept to start from")


def _first_height(at: ids.Address, page: kv.Page) -> int:
    """Where the first frame begins. If it is damaged, the walk that begins at the first snapshot says how."""
    key, raw = page.items[0]
    try:
        return journal_keys.frame_height(at, key) - len(journal_keys.unpack_frame(raw).entries) + 1
    except errors.DecodeError:
        return 1


async def head(universe: Connection, at: ids.Address) -> journal.Head:
    try:
        return journals.decode_head((await universe.store.engine.read(journals.get_head(at))).value(0))
    except errors.DecodeError as error:
        raise Damaged(0, f"the head: {error}") from error


async def verify(universe: Connection, at: ids.Address, progress: Progress = no_progress) -> Verified:
    """Check everything that is stored of a world's history. `Damaged` names the first thing that is wrong."""
    top = await head(universe, at)
    line = await _whole_line(universe, at)
    kept = await _readable_records(universe, line)
    await _check_pins(universe, at)
    walk = Walk(universe, line, await first(universe, line, kept), top)
    wanted = {each.height: each for each in kept}
    async for steps in walk.steps(progress):
        for last in (step[-1] for step in steps):
            check_record(wanted.get(last.height), last)
    known: dict[bytes, None] = {}
    for each in kept:
        await _check_nodes(universe, each, known, walk.rows)
    blobs = walk.blobs + len(known)
    return Verified(top.height, top.step, walk.entries, walk.frames, blobs, len(kept), top.chain.hex(), top.state.hex())


async def _whole_line(universe: Connection, at: ids.Address) -> lines.Line:
    """In whose journals the history stands. The script of a fork can be read, and the worlds that a restore of it reads
    are pinned.
    """
    engine = universe.store.engine
    try:
        lineage = lines.decode_lineage((await engine.read(lines.get(at))).value(0))
    except errors.DecodeError as error:
        raise Damaged(0, f"the lineage: {error}") from error
    if lineage is None:
        return lines.line_of(at, None)
    if lineage.script:
        try:
            await universe.blobs.get(lineage.script)
        except (errors.Corrupt, errors.NotFound) as error:
            raise Damaged(lineage.height, f"the script that it was forked with: {error}") from error
    owners = [ids.Address(at.universe, ids.WorldId(each.world)) for each in lineage.sections]
    pins = [snapshot_layer.get_pin(owner, at.world) for owner in owners]
    read = await engine.read(snapshot_layer.get_baseline(at), *pins)
    try:
        saved = snapshot_layer.decode_baseline(read.value(0))
    except errors.DecodeError as error:
        raise Damaged(0, f"a snapshot's record: {error}") from error
    for index, section in enumerate(lineage.sections):
        leans = saved.height <= lineage.height and section.height >= saved.height
        if leans and read.value(index + 1) is None:
            raise Damaged(section.height, f"no pin keeps what it needs of world {section.world.hex()}")
    return lines.line_of(at, lineage)


async def _check_pins(universe: Connection, at: ids.Address) -> None:
    """Whether the pins of its forks can be read."""
    after = b""
    while True:
        wanted = snapshot_layer.pins_range(at, count_max=PINS_PAGE)
        if after:
            wanted = msgspec.structs.replace(wanted, begin=after + b"\x00")
        page = (await universe.store.engine.read(wanted)).page(0)
        for key, raw in page.items:
            try:
                snapshot_layer.decode_pins(at, msgspec.structs.replace(page, items=[(key, raw)]))
            except errors.DecodeError as error:
                raise Damaged(0, f"the pin under {key.hex()}: {error}") from error
        if not page.more:
            return
        after = page.items[-1][0]


def check_record(record: snapshot.Snapshot | None, last: journal.Entry) -> None:
    """A snapshot must name the very history it was taken of."""
    if record is not None and (record.chain, record.step) != (last.chain, last.step):
        raise Damaged(last.height, f"the snapshot of step {record.step} was taken of another history")


async def _readable_records(universe: Connection, line: lines.Line) -> list[snapshot.Snapshot]:
    try:
        kept = await records(universe, line)
        baseline = snapshot_layer.decode_baseline(
            (await universe.store.engine.read(snapshot_layer.get_baseline(line.at))).value(0)
        )
    except errors.DecodeError as error:
        raise Damaged(0, f"a snapshot's record: {error}") from error
    if baseline not in kept:
        raise Damaged(baseline.height, "the baseline is none of the snapshots")
    return kept


async def _check_nodes(universe: Connection, record: snapshot.Snapshot, known: dict[bytes, None], rows: Rows) -> None:
    """Read every node of a snapshot that is not `known` yet. `rows`: the state at the head, for the names of rows."""
    try:
        await saved_state.check(universe.blobs, record.root, known)
    except saved_state.BadNode as error:
        raise Damaged(record.height, f"the snapshot of step {record.step}: {error}{_below(error, rows)}") from error
    except (errors.Corrupt, errors.NotFound) as error:
        raise _bad_snapshot(record, error) from error


def _below(error: saved_state.BadNode, rows: Rows) -> str:
    """Which rows lie below a node that cannot be read, as far as they are still there."""
    keys = [key for key in sorted(rows.keys()) if error.place is not None and error.place.holds(key)]
    if not keys:
        return ""
    more = f" and {len(keys) - NAMED_MAX} more" if len(keys) > NAMED_MAX else ""
    return f"; now there are below it {', '.join(map(row_keys.describe, keys[:NAMED_MAX]))}{more}"
