"""Walking a world's stored journal and checking every byte of it, without running any code.

Frames are read one by one, so that damage has an address: the checksum of each frame, the heights, the chain of digests
over whole steps, the rows that they change and the digest of the state, the large payloads and rows behind their
addresses, every snapshot and the head. What this proves is that the history is the one that was written; that the code
does what it says is for `worldline.features.proofs.calls`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

import msgspec

from worldline.base import errors, limits
from worldline.client.connection import Connection
from worldline.layers import journal as journals
from worldline.layers import personal_records
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import history_line, journal_pages, saved_state, step_reader
from worldline.layers.history.journal_file import StepChanges
from worldline.model import ids, journal, row_keys
from worldline.model import snapshots as snapshot
from worldline.model.rows import Rows
from worldline.model.state_digest import changes_digest
from worldline.runtime import world_reader, world_restore
from worldline.runtime.personal import value_check
from worldline.store import kv, paging

PAGE_BYTES = 1 * limits.MIB
PINS_PAGE = 1_000
NAMED_MAX = 8  # rows in one message

Steps = list[list[journal.JournalEntry]]
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
    states_above: int = 0  # below, states cannot be made again: what steps changed there was dropped
    entries_above: int = 0  # below, entries are not kept any more: the chain was checked from there on
    personal: int = 0  # values that are kept apart, and are as they were written or were erased
    erased: int = 0  # of these
    signed: int = 0  # receipts with a signature


def no_progress(done: int, total: int) -> None:
    """No progress is shown."""
    del done, total


class VerifyWalk:
    """One walk from a snapshot to the head, through everything that a fork has of its parent. Entries come in whole
    steps, their chain checked, their changes folded. Where changes were dropped, the chain alone is checked, up to the
    next of the snapshots that are `kept`, by height. So it is if the walk starts at a head, where no state is known.
    """

    def __init__(
        self,
        connection: Connection,
        line: history_line.HistoryLine,
        start: snapshot.StateSnapshot | journal.Head,
        head: journal.Head,
        *,
        kept: Mapping[int, snapshot.StateSnapshot] | None = None,
    ) -> None:
        self._kept = kept or {}
        self._whole = isinstance(start, snapshot.StateSnapshot)  # the rows are those of the last step
        self.states_above = 0  # the last height at which they were not
        self._universe = connection
        self._line = line
        self._start = start
        self._head = head
        self._last = journal.GENESIS
        self._rows = Rows()
        self.frames = 0
        self.entries = 0
        self.loaded: dict[bytes, bytes] = {}  # the large payloads and rows of the steps given out last
        self.stored: list[step_reader.StoredStep] = []  # those steps as they are stored, their changes in place
        self.changed: list[StepChanges] = []  # what those steps changed
        self.blobs = 0

    async def steps(self, progress: Progress = no_progress) -> AsyncIterator[Steps]:
        """All steps up to the head, a page at a time. `Damaged` at the first thing that is wrong."""
        await self._begin()
        total = self._head.height - self._start.height
        pages = journal_pages.Pages(
            self._universe.store.engine, self._universe.blobs, self._line, above=self._start.height
        )
        frames = pages.reader
        progress(0, total)
        while self._last.height < self._head.height:
            try:
                items = await pages.items(bytes_max=PAGE_BYTES)
            except errors.Corrupt as error:  # a segment
                raise Damaged(frames.height + 1, str(error)) from error
            # The head names a height that no frame reaches: entries are missing at the end, which no checksum shows.
            if not items:
                raise Damaged(frames.height + 1, _missing(frames, self._head))
            ended: list[step_reader.StoredStep] = []
            # One item at a time, so that damage is named with its own key and not with its page.
            for index in range(len(items)):
                ended += await self._take(frames, items, index, ended)
                self.frames += 1
            # What is above the head was written since the walk began.
            steps = await self._fold([each for each in ended if each.height <= self._head.height])
            self.entries += sum(map(len, steps))
            progress(self._last.height - self._start.height, total)
            yield steps
        # Without an entry read, the state of the last step is not known, and only the chain can be compared.
        if self._last.chain != self._head.chain or (self.entries and self._last.state != self._head.state):
            raise Damaged(self._head.height, "the head does not name the journal's last entry")

    async def _begin(self) -> None:
        if isinstance(self._start, journal.Head):
            self._last = self._start
            return
        try:
            base = await saved_state.load(self._universe.blobs, self._start.root)
            self._last, self._rows = world_restore.standing(self._start, base)
        except (errors.Corrupt, errors.NotFound) as error:
            raise _bad_snapshot(self._start, error) from error

    @property
    def rows(self) -> Rows:
        """The state at the end of the steps given out last."""
        return self._rows

    async def _take(
        self,
        frames: step_reader.StepReader,
        items: Sequence[step_reader.Item],
        index: int,
        ended: Sequence[step_reader.StoredStep],
    ) -> list[step_reader.StoredStep]:
        """The steps that end in one of these values. `ended`: those of the page before it."""
        try:
            return frames.take([items[index]])
        except errors.Corrupt as error:
            # First the steps before it: if one of those is damaged too, the lower height is the one to name.
            await self._fold([each for each in ended if each.height <= self._head.height])
            height = self._last.height + 1
            why = ""
            if self._whole:
                why = await world_restore.explain(self._universe.blobs, frames, items[index:], self._last, self._rows)
            said = f"{step_reader.item_name(frames.at, items[index])}: {error}"
            raise Damaged(height, f"{said}; {why}" if why else said) from error

    async def _fold(self, ended: Sequence[step_reader.StoredStep]) -> Steps:
        """Check steps that follow each other, and take over what they changed. Returns their entries."""
        # Bodies of one page only: a whole journal's would not fit into memory.
        self.loaded, self.changed, self.stored = {}, [], []
        steps: Steps = []
        for each in ended:
            try:
                [step] = await world_restore.load_changes(self._universe.blobs, [each], self.loaded)
                self.changed.append(await self._follow(step))
                entries = step.entries()
            except errors.Corrupt as error:
                raise error if isinstance(error, Damaged) else Damaged(each.first_height, str(error)) from error
            steps.append(entries)
            self.stored.append(step)
            await self._load(entries)
        self.blobs += len(self.loaded)
        return steps

    async def _follow(self, step: step_reader.StoredStep) -> StepChanges:
        """Check one step: its chain, and the state that it leads to, if its changes and the rows before are known."""
        # The first step behind dropped ones: from here on changes are known, if there are rows to apply them to.
        if not self._whole and not step.dropped:
            await self._stand()
        if step.dropped or not self._whole:
            covered = step_reader.covered(step, self.loaded)
            self._last = step_reader.link(self._last, step, covered)
            # Rows that miss one change prove nothing about the next state.
            self._rows, self._whole, self.states_above = Rows(), False, step.height
            return StepChanges(step.changes, covered)
        changed = step_reader.resolve(step, self._rows, self.loaded)
        self._last = step_reader.follow(self._last, step, changed)
        self._rows.apply(changed)
        return StepChanges(step.changes, changes_digest(changed))

    async def _stand(self) -> None:
        """Continue with the rows of the snapshot that was saved here, if one is kept."""
        record = self._kept.get(self._last.height)
        if record is None:
            return
        try:
            base = await saved_state.load(self._universe.blobs, record.root)
        except (errors.Corrupt, errors.NotFound) as error:
            raise _bad_snapshot(record, error) from error
        if base.state != self._last.state:  # a snapshot whose bytes are right may still be another step's
            raise Damaged(record.height, f"the snapshot of step {record.step} is of another state")
        self._rows, self._whole = Rows(base.rows()), True

    async def _load(self, entries: Sequence[journal.JournalEntry]) -> None:
        for entry in entries:
            try:
                self.loaded |= await world_restore.load_referenced(self._universe.blobs, [entry])
            except (errors.Corrupt, errors.NotFound) as error:
                raise Damaged(entry.height, str(error)) from error


def _missing(frames: step_reader.StepReader, head: journal.Head) -> str:
    try:
        frames.check_end()
    except errors.DecodeError as error:
        return str(error)
    return f"no frame holds it; the head says {head.height}"


def _bad_snapshot(saved: snapshot.StateSnapshot, error: Exception) -> Damaged:
    return Damaged(saved.height, f"the snapshot of step {saved.step}: {error}")


async def records(connection: Connection, line: history_line.HistoryLine) -> list[snapshot.StateSnapshot]:
    """Every snapshot of a history that is kept, earliest first."""
    return await world_reader.records(connection.store.engine, line)


async def first(
    connection: Connection, line: history_line.HistoryLine, kept: Sequence[snapshot.StateSnapshot]
) -> snapshot.StateSnapshot:
    """The earliest snapshot above which every state can be made: that of the world's birth, unless changes were dropped
    when the journal was compacted.
    """
    above = await journal_pages.changes_above(connection.store.engine, line)
    for each in kept:
        if each.height >= above:
            return each
    raise Damaged(above, "no snapshot is kept to start from")


async def head(connection: Connection, at: ids.Address) -> journal.Head:
    try:
        return journals.decode_head((await connection.store.engine.read(journals.get_head(at))).value(0))
    except errors.DecodeError as error:
        raise Damaged(0, f"the head: {error}") from error


async def verify(
    connection: Connection, at: ids.Address, progress: Progress = no_progress, *, receipt_keys: Collection[bytes] = ()
) -> Verified:
    """Check everything that is stored of a world's history. `Damaged` names the first thing that is wrong;
    `KeyDestroyed` if the whole world was erased. Signatures of receipts are checked where there are some;
    `receipt_keys`: one of these must have signed the receipt of every effect.
    """
    checks = [each for feature in connection.store.features for each in feature.history_checks]
    # First: an erased world's bytes cannot be read, which is no damage.
    for each in checks:
        await each.begin(connection.store.engine, at)
    # Before everything else: what a running world writes after this is above it, and not judged.
    top = await head(connection, at)
    line = await _whole_line(connection, at)
    kept = await _readable_records(connection, line)
    await _check_pins(connection, at)
    wanted = {each.height: each for each in kept}
    begin = await _begin(connection, line, kept)
    walk = VerifyWalk(connection, line, begin, top, kept=wanted)
    personal = value_check.TokenHeights()
    begun = (each.steps(line, receipt_keys) for each in checks)
    step_checks = [each for each in begun if each is not None]
    async for steps in walk.steps(progress):
        for step in steps:
            for check in step_checks:
                if wrong := check.see(step):
                    raise Damaged(step[0].height, wrong)
            check_record(wanted.get(step[-1].height), step[-1])
            personal.see(step[0].height, [entry.payload for entry in step])
        # Large payloads are known by page only, so a wrong value in one is named with the page's first height.
        personal.see(steps[0][0].height if steps else 1, walk.loaded.values())
    await _check_personal(connection, line, personal, walk.rows, top.height)
    known: dict[bytes, None] = {}  # snapshots share nodes: each is read once
    for record in kept:
        await _check_nodes(connection, record, known, walk.rows)
    blobs = walk.blobs + len(known)
    return Verified(
        top.height,
        top.step,
        walk.entries,
        walk.frames,
        blobs,
        len(kept),
        top.chain.hex(),
        top.state.hex(),
        walk.states_above,
        begin.height,
        len(personal),
        personal.erased,
        sum(each.signed for each in step_checks),
    )


async def _check_personal(
    connection: Connection, line: history_line.HistoryLine, heights: value_check.TokenHeights, rows: Rows, height: int
) -> None:
    """Every personal value that entries, large payloads and the state refer to."""
    heights.see(height, (row.meaning for _, row in rows.items()))
    try:
        await heights.check(connection.store.engine, personal_records.root_of(line))
    except value_check.WrongValue as error:
        raise Damaged(error.height, str(error)) from error


async def _begin(
    connection: Connection, line: history_line.HistoryLine, kept: Sequence[snapshot.StateSnapshot]
) -> snapshot.StateSnapshot | journal.Head:
    """Where the first entry that is kept follows. If the chain there is not known, because a parent has dropped more
    than what a fork has of it, the earliest snapshot from there on.
    """
    found = await entries_kept(connection, line)
    usable = [each for each in kept if each.height >= found.above]
    if not usable:
        raise Damaged(found.above, "no snapshot is kept to start from")
    return usable[0] if found.head is None or found.above == usable[0].height else found.head


async def entries_kept(connection: Connection, line: history_line.HistoryLine) -> journal_pages.RetainedRange:
    """From where on there are entries. A snapshot below leads nowhere: a world in between may be deleted."""
    try:
        return await journal_pages.kept(connection.store.engine, line)
    except errors.DecodeError as error:
        raise Damaged(0, f"the index of segments: {error}") from error


async def _whole_line(connection: Connection, at: ids.Address) -> history_line.HistoryLine:
    """In whose journals the history stands. The script of a fork can be read, and the worlds that a restore of it reads
    are pinned.
    """
    engine = connection.store.engine
    try:
        lineage = history_line.decode_lineage((await engine.read(history_line.get(at))).value(0))
    except errors.DecodeError as error:
        raise Damaged(0, f"the lineage: {error}") from error
    if lineage is None:
        return history_line.line_of(at, None)
    if lineage.script:
        try:
            await connection.blobs.get(lineage.script)
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
        # Only what a restore would read has to be pinned: a fork with a baseline of its own needs nothing below it.
        leans = saved.height <= lineage.height and section.height >= saved.height
        if leans and read.value(index + 1) is None:
            raise Damaged(section.height, f"no pin keeps what it needs of world {section.world.hex()}")
    return history_line.line_of(at, lineage)


async def _check_pins(connection: Connection, at: ids.Address) -> None:
    """Whether the pins of its forks can be read."""
    pins = paging.RangeItems(connection.store.engine, snapshot_layer.pins_range(at, count_max=PINS_PAGE))
    async for key, raw in pins:
        try:
            snapshot_layer.decode_pins(at, kv.Page([(key, raw)], more=False, stable=kv.ZERO_STAMP))
        except errors.DecodeError as error:
            raise Damaged(0, f"the pin under {key.hex()}: {error}") from error


def check_record(record: snapshot.StateSnapshot | None, last: journal.JournalEntry) -> None:
    """Check that a snapshot names the very history whose state it has."""
    if record is not None and (record.chain, record.step) != (last.chain, last.step):
        raise Damaged(last.height, f"the snapshot of step {record.step} was taken of another history")


async def _readable_records(connection: Connection, line: history_line.HistoryLine) -> list[snapshot.StateSnapshot]:
    try:
        baseline = snapshot_layer.decode_baseline(
            (await connection.store.engine.read(snapshot_layer.get_baseline(line.at))).value(0)
        )
        kept = await records(connection, line)  # read later: a world that runs may save another state meanwhile
    except errors.DecodeError as error:
        raise Damaged(0, f"a snapshot's record: {error}") from error
    if baseline not in kept:
        raise Damaged(baseline.height, "the baseline is none of the snapshots")
    return kept


async def _check_nodes(
    connection: Connection, record: snapshot.StateSnapshot, known: dict[bytes, None], rows: Rows
) -> None:
    """Read every node of a snapshot that is not `known` yet. `rows`: the state at the head, for the names of rows."""
    try:
        await saved_state.check(connection.blobs, record.root, known)
    except saved_state.BadNode as error:
        raise Damaged(record.height, f"the snapshot of step {record.step}: {error}{_below(error, rows)}") from error
    except (errors.Corrupt, errors.NotFound) as error:
        raise _bad_snapshot(record, error) from error


def _below(error: saved_state.BadNode, rows: Rows) -> str:
    """Return which rows lie below a node that cannot be read, as far as they are still there."""
    keys = [key for key in sorted(rows.keys()) if error.place is not None and error.place.holds(key)]
    if not keys:
        return ""
    more = f" and {len(keys) - NAMED_MAX} more" if len(keys) > NAMED_MAX else ""
    return f"; now there are below it {', '.join(map(row_keys.describe, keys[:NAMED_MAX]))}{more}"
