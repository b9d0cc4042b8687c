"""Reading a journal back: whole steps, with what they changed, and the state that they lead to.

`StepReader` is given the frames of a range, page by page, or blocks of segments (`segment_body.py`), and gives out
whole steps as they are stored. `fold` goes through them: the changes are resolved against the state so far and the
step's own entries, both digests are recomputed, and the rows are changed. Nothing is encoded again: the chain is over
the very bytes that were read.

What a step in a segment changed may have been dropped: then its chain can be checked (`link`), and no state can be made
of it (`NotRetained`).

A `Corrupt` that is raised here says which step and height it is about, and which row if that can be told: a change that
cannot be read is named; where the digests do not fit, the rows that the step changed are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, frame, structs, tuples
from worldline.keys import journal as keys
from worldline.keys import segments as segment_keys
from worldline.layers import journal as journals
from worldline.layers import step_changes as stored_changes
from worldline.layers.history.history_line import HistoryLine, Piece
from worldline.layers.history.row_overlay import Overlay
from worldline.layers.history.segment_body import Block
from worldline.model import ids, journal, row_keys
from worldline.model.change import Change
from worldline.model.journal import DroppedEntries, Segment
from worldline.model.rows import Rows
from worldline.model.state_digest import digests
from worldline.store import kv

# Where the fields of an entry are.
_HEIGHT, _STEP, _TIME, _PAYLOAD = 0, 1, 3, 4
_STATE, _CHAIN, _BLOB = -3, -2, -1
_COUNT: Final = len(journal.JournalEntry.__struct_fields__)
_NAMED_MAX: Final = 8  # rows in one message

Fields = list[Any]
Item = tuple[bytes, bytes] | Block  # what a journal is read in: a key and its value, or a block of a segment


class StoredStep(msgspec.Struct, frozen=True, gc=False):
    """One step as it is stored: its entries as bytes and as plain fields, and its changes (`layers/step_changes.py`).
    If these were dropped, their digest.
    """

    data: list[bytes]
    fields: list[Fields]
    changes: bytes
    dropped: bytes = b""

    @property
    def step(self) -> int:
        number: int = self.fields[-1][_STEP]
        return number

    @property
    def height(self) -> int:
        """Of its last entry."""
        number: int = self.fields[-1][_HEIGHT]
        return number

    @property
    def first_height(self) -> int:
        number: int = self.fields[0][_HEIGHT]
        return number

    def entries(self) -> list[journal.JournalEntry]:
        try:
            return msgspec.convert(self.fields, list[journal.JournalEntry], builtin_types=(bytes,), strict=True)
        except msgspec.ValidationError as error:
            raise errors.DecodeError(f"step {self.step}: not an entry: {error}") from error

    def head(self) -> journal.Head:
        """Where it leads to, by its own account."""
        last = self.fields[-1]
        try:
            return journal.Head(last[_STEP], last[_HEIGHT], last[_CHAIN], last[_STATE], last[_TIME])
        except (TypeError, ValueError) as error:
            raise errors.DecodeError(f"step {self.step}: {error}") from error

    def blob_of(self, index: int) -> bytes:
        """The address of an entry's payload, if that is stored apart. IndexError: no such entry."""
        address: bytes = self.fields[index][_BLOB]
        return address

    @property
    def needs_blobs(self) -> bool:
        """Whether its changes cannot be resolved from what is here."""
        return stored_changes.needs_blobs(self.changes)

    def with_changes(self, changes: bytes) -> StoredStep:
        """The same step, its changes loaded from where they are apart."""
        return StoredStep(self.data, self.fields, changes)


class StepReader:
    """Puts frames, and the parts behind them, together to whole steps above a height, which is the end of one.

    Pages are read one after the other: `wanted_segment` and `wanted` are read at once, and what is `take`n is the
    segment, if one is `covering` what comes next, else the frames. So each height comes from exactly one place, also if
    frames are moved into a segment between two pages. A history that stands in several worlds' journals
    (`history_line.py`) is read piece by piece.
    """

    def __init__(self, line: HistoryLine, *, above: int) -> None:
        self._pieces = line.pieces(above)
        self.height = above  # of the last entry that was read
        self._given = above  # of the last entry of the last step that was given out
        self._enter(next(self._pieces))
        self._data: list[bytes] = []  # of the step that has not ended
        self._fields: list[Fields] = []
        self._ended: list[tuple[list[bytes], list[Fields]]] = []  # of the last frame, while parts of it are missing
        self._skipped = 0  # steps that end in the frame at or below the height
        self._beyond = 0  # steps that end in the frame behind the piece
        self._section = b""
        self._parts = self._part = 0

    def _enter(self, piece: Piece) -> None:
        """Read on in another world's journal."""
        self._piece = piece
        self._prefix = keys.frame_prefix(piece.at)
        self._next, self._end = keys.frames(piece.at, above=piece.above)
        self._first = True

    def wanted(self, *, bytes_max: int = 4 * limits.MIB, count_max: int = 10_000) -> kv.Range:
        return kv.Range(self._next, self._end, count_max=count_max, bytes_max=bytes_max)

    def wanted_segment(self) -> kv.Range:
        """Where it shows whether what comes next is in a segment."""
        return kv.Range(*segment_keys.segments(self._piece.at, above=self._given), count_max=1)

    def covering(self, page: kv.Page) -> Segment | DroppedEntries | None:
        """The segment that has what comes next, if there is one: its blocks are to be taken, behind the last step that
        was given out. What was read of a step that has not ended is forgotten: its frames are gone. `DroppedEntries` if
        what comes next is not kept any more.
        """
        record = covering(self._piece.at, page, above=self._given)
        if record is not None:
            self._data, self._fields, self._ended = [], [], []
            self._skipped = self._beyond = self._part = self._parts = 0
            self.height = self._given
            self._enter(Piece(self._piece.at, self._given, self._piece.up_to))
        return record

    def take(self, items: Iterable[Item], *, checked: bool = True) -> list[StoredStep]:
        """The steps that end in these values, which follow those that were given before."""
        found: list[StoredStep] = []
        for item in items:
            if isinstance(item, Block):
                # Blocks that were read ahead may lie behind the end of a piece, where the next world's journal follows.
                if item.at == self._piece.at:
                    self._add_block(item, found)
                continue
            key, raw = item
            if not key.startswith(self._prefix):
                continue  # behind the end of a piece
            read = keys.unpack_frame(raw, checked=checked)
            if self._part < self._parts:
                self._add_part(key, read)
            else:
                self._add_frame(key, read)
            self._next = key + b"\x00"
            if self._part == self._parts:
                self._end_frame(found)
        return found

    @property
    def at(self) -> ids.Address:
        """The world in whose journal it reads now."""
        return self._piece.at

    @property
    def is_whole(self) -> bool:
        """No part of the last frame is missing."""
        return self._part == self._parts

    @property
    def is_between_steps(self) -> bool:
        """Whatever was read has been given out."""
        return self.is_whole and not self._data

    def check_end(self) -> None:
        """Nothing follows: the last step is whole."""
        if self._part < self._parts:
            raise errors.DecodeError(f"part {self._part + 1} of the frame of height {self.height} is missing")
        if self._data:
            raise errors.DecodeError(f"the journal ends inside step {self._fields[0][_STEP]}")

    def _add_frame(self, key: bytes, read: keys.Frame) -> None:
        if not read.entries:
            raise errors.DecodeError(f"part {read.parts} of a frame where the frame of {self.height + 1} belongs")
        above, up_to = self._piece.above, self._piece.up_to
        # A frame may begin below the height asked for: its first entry says where, and steps up to the height are
        # skipped.
        if self._first:
            self._first = False
            self.height = _fields(read.entries[0])[_HEIGHT] - 1
            if self.height > above:
                raise errors.DecodeError(
                    f"height {above + 1} should follow; the next frame begins at {self.height + 1}"
                )
        for data in read.entries:
            fields = _fields(data)
            self.height += 1
            if fields[_HEIGHT] != self.height:
                raise errors.DecodeError(f"height {self.height} should follow, not {fields[_HEIGHT]}")
            if self.height <= above:
                self._skipped += bool(fields[_CHAIN])
                continue
            if up_to is not None and self.height > up_to:
                self._beyond += bool(fields[_CHAIN])
                continue
            self._data.append(data)
            self._fields.append(fields)
            if fields[_CHAIN]:
                self._ended.append((self._data, self._fields))
                self._data, self._fields = [], []
        if key != self._prefix + tuples.pack((self.height,)):
            raise errors.DecodeError(f"the frame of height {self.height} is filed elsewhere")
        self._section, self._part, self._parts = read.changes, 0, read.parts

    def _add_part(self, key: bytes, read: keys.Frame) -> None:
        self._part += 1
        expected = self._prefix + tuples.pack((self.height, self._part))
        if read.entries or read.parts != self._part or key != expected:
            raise errors.DecodeError(f"part {self._part} of the frame of height {self.height} is missing")
        self._section += read.changes

    def _end_frame(self, steps: list[StoredStep]) -> None:
        ended = self._ended
        changes, end = frame.take(self._section, self._skipped + len(ended) + self._beyond, start=0)
        if end != len(self._section):
            raise errors.DecodeError(f"the frame of height {self.height} has changes of more steps than end in it")
        if self._skipped:
            del changes[: self._skipped]
            self._skipped = 0
        for index, (data, fields) in enumerate(ended):
            steps.append(StoredStep(data, fields, changes[index]))
        self._ended = []
        self._end_value(steps)

    def _add_block(self, block: Block, steps: list[StoredStep]) -> None:
        """Add whole steps of a segment, which continues behind the last one that was given out."""
        above, up_to = self._piece.above, self._piece.up_to
        # Segments have whole steps: while a step is half read, no block can follow.
        if block.last_height <= self.height or block.first_height > self.height + 1 or self._data:
            raise errors.DecodeError(f"height {self.height + 1} should follow; a block begins at {block.first_height}")
        data: list[bytes] = []
        fields: list[Fields] = []
        height, ended = block.first_height - 1, 0
        for each in block.entries:
            decoded = _fields(each)
            height += 1
            if decoded[_HEIGHT] != height:
                raise errors.DecodeError(f"height {height} should follow, not {decoded[_HEIGHT]}")
            data.append(each)
            fields.append(decoded)
            if not decoded[_CHAIN]:
                continue
            if ended == len(block.covered):
                raise errors.DecodeError(f"the block up to height {block.last_height} has more steps than it says")
            if above < height and (up_to is None or height <= up_to):
                dropped = block.covered[ended] if block.changes is None else b""
                steps.append(StoredStep(data, fields, b"" if block.changes is None else block.changes[ended], dropped))
            ended += 1
            data, fields = [], []
        if data or ended != len(block.covered):
            raise errors.DecodeError(f"the block up to height {block.last_height} does not end with a step")
        self.height = height
        self._next = keys.frames(self._piece.at, above=height)[0]
        self._piece, self._first = Piece(self._piece.at, height, up_to), True
        self._end_value(steps)

    def _end_value(self, steps: list[StoredStep]) -> None:
        """A frame with its parts, or a block, was taken."""
        if steps:
            self._given = steps[-1].height
        up_to = self._piece.up_to
        if up_to is not None and self.height >= up_to:
            if self._data:
                raise errors.DecodeError(
                    f"height {up_to}, where a fork begins, is inside step {self._fields[0][_STEP]}"
                )
            self.height, self._beyond = up_to, 0
            self._given = up_to
            self._enter(next(self._pieces))


def covering(at: ids.Address, page: kv.Page, *, above: int) -> Segment | DroppedEntries | None:
    """The segment that has the height above this one, if the first segment behind it has; or what says that this height
    is not kept any more.
    """
    for key, raw in page.items:
        record = segment_keys.unpack(raw)
        if segment_keys.segment_height(at, key) != record.last_height:
            raise errors.DecodeError(f"the segment up to height {record.last_height} is filed elsewhere")
        if record.first_height <= above + 1:
            return record
    return None


def item_name(at: ids.Address, item: Item) -> str:
    """A stored value of the journal, for people."""
    if isinstance(item, Block):
        return f"the block of a segment that ends at height {item.last_height}"
    return frame_name(at, item[0])


def frame_name(at: ids.Address, key: bytes) -> str:
    """The same of a frame."""
    try:
        height, part = keys.frame_place(at, key)
    except errors.DecodeError:
        return f"a frame under the key {key.hex()}"
    return f"{f'part {part} of ' if part else ''}the frame that ends at height {height}"


def stored(entries: Sequence[journal.JournalEntry], changes: bytes) -> StoredStep:
    """A step that was read from elsewhere, as it would be stored."""
    data = [structs.encode(entry) for entry in entries]
    return StoredStep(data, [_fields(each) for each in data], changes)


def needed(step: StoredStep) -> list[bytes]:
    """The addresses of the blobs that the step's changes cannot be resolved without. If that is the changes themselves,
    ask again `with_changes`.
    """
    if not step.changes:
        return []
    try:
        address = stored_changes.apart(step.changes)
        return [address] if address else stored_changes.needed(step.changes, step.blob_of)
    except errors.Corrupt as error:
        raise _at(step, error) from error


def is_apart(step: StoredStep) -> bool:
    """Whether the step's changes are a blob as a whole."""
    return bool(step.changes) and bool(stored_changes.apart(step.changes))


def knows_bases(step: StoredStep, rows: Rows) -> bool:
    """Whether every row is known that a delta of this step starts from."""
    try:
        return all(rows.get(key) is not None for key in stored_changes.bases(step.changes))
    except errors.Corrupt as error:
        raise _at(step, error) from error


def bases(steps: Sequence[StoredStep]) -> list[bytes]:
    """The keys of rows that deltas of these steps start from, as they were before the first of them, or became."""
    found: dict[bytes, None] = {}
    for step in steps:
        if step.changes:
            try:
                found |= dict.fromkeys(stored_changes.bases(step.changes))
            except errors.Corrupt as error:
                raise _at(step, error) from error
    return list(found)


class NamedChanges(msgspec.Struct, frozen=True):
    """What steps change, by name: rows, dropped groups, and rows that deltas start from. Each once."""

    keys: dict[bytes, None]
    groups: dict[bytes, None]
    bases: dict[bytes, None]


def named(steps: Sequence[StoredStep]) -> NamedChanges:
    """What these steps change, without resolving it."""
    found = NamedChanges({}, {}, {})
    for step in steps:
        if step.changes:
            try:
                keys, groups, starts = stored_changes.named(step.changes)
            except errors.Corrupt as error:
                raise _at(step, error) from error
            found.keys.update(dict.fromkeys(keys))
            found.groups.update(dict.fromkeys(groups))
            found.bases.update(dict.fromkeys(starts))
    return found


def fold(
    head: journal.Head,
    steps: Sequence[StoredStep],
    rows: Rows | Overlay,
    blobs: stored_changes.Blobs,
    note: Callable[[list[Change]], None] | None = None,
) -> journal.Head:
    """Apply the steps that follow a head to the rows as they were there. Returns the head they lead to.

    `blobs`: what `needed` has named. `note` is told what each step changed. If something is wrong, the rows are those
    before the step that it is wrong in.
    """
    before: list[Any] = [head.step, head.height, head.time_us, head.state, head.chain]
    for step in steps:
        changed = resolve(step, rows, blobs)
        before = _follow(before, step, changed)
        # Only now, when both digests fit: on an error the rows are those before the step.
        rows.apply(changed)
        if note is not None:
            note(changed)
    return journal.Head(before[0], before[1], before[4], before[3], before[2])


def follow(head: journal.Head, step: StoredStep, changed: Sequence[Change]) -> journal.Head:
    """Recompute the digests of one step. Returns the head that it leads to."""
    after = _follow([head.step, head.height, head.time_us, head.state, head.chain], step, changed)
    return journal.Head(after[0], after[1], after[4], after[3], after[2])


def covered(step: StoredStep, blobs: stored_changes.Blobs) -> bytes:
    """The digest of what a step changed, as its chain covers it. The rows before it need not be known."""
    if step.dropped:
        return step.dropped
    try:
        return stored_changes.covered(step.changes, _payloads(step, blobs), blobs)
    except errors.Corrupt as error:
        raise _at(step, error) from error


def link(head: journal.Head, step: StoredStep, covered: bytes) -> journal.Head:
    """Recompute the chain of one step from the digest of its changes. Returns the head that it leads to: that its state
    follows from the one before is not checked.
    """
    _check_place(step, number=head.step + 1, height=head.height, before_us=head.time_us)
    last = step.fields[-1]
    chain = journals.chain_of(head.chain, hashed(step), covered)
    if chain != last[_CHAIN]:
        _refuse(step, [], last[_STATE], chain)
    return step.head()


def hashed(step: StoredStep) -> list[bytes]:
    """The bytes of a step's entries as the chain covers them: the chain field of the last one is empty."""
    *others, last = step.data
    return [*others, journals.opened(last, has_blob=bool(step.fields[-1][_BLOB]))]


def resolve(step: StoredStep, rows: Rows | Overlay, blobs: stored_changes.Blobs) -> list[Change]:
    """What a step changed, against the rows before it."""
    if step.dropped:
        raise errors.NotRetained(step.height, "what the step changed was dropped when the journal was compacted")
    if not step.changes:
        return []
    try:
        return stored_changes.resolve(step.changes, rows.get, _payloads(step, blobs), blobs)
    except errors.Corrupt as error:
        raise _at(step, error) from error


def _payloads(step: StoredStep, blobs: stored_changes.Blobs) -> Callable[[int], bytes]:
    """The payloads of its entries, by their places in it."""

    def payload_of(index: int) -> bytes:
        fields = step.fields[index]
        payload = blobs[fields[_BLOB]] if fields[_BLOB] else fields[_PAYLOAD]
        # Fields are decoded without a schema: damaged ones may have anything here.
        if type(payload) is bytes:
            return payload
        raise errors.DecodeError(f"the step's entry {index} has no payload")

    return payload_of


def _follow(head: list[Any], step: StoredStep, changed: Sequence[Change]) -> list[Any]:
    """The same for a head as a list of step, height, time, state and chain: a head for each step would cost as much as
    its digests do.
    """
    number, height, before_us, state, previous = head
    number += 1
    last = step.fields[-1]
    height = _check_place(step, number=number, height=height, before_us=before_us)
    time_us = last[_TIME]
    meant, covered, _ = digests(state, changed)
    chain = journals.chain_of(previous, hashed(step), covered)
    if chain != last[_CHAIN] or meant != last[_STATE]:
        _refuse(step, changed, meant, chain)
    return [number, height, time_us, meant, chain]


def _check_place(step: StoredStep, *, number: int, height: int, before_us: int) -> int:
    """Its entries have this number, follow a height, and are of one time that is not before this. Returns the height of
    the last.
    """
    time_us = step.fields[-1][_TIME]
    if time_us < before_us:
        raise errors.DecodeError(f"time goes back at height {height + 1}")
    for fields in step.fields:
        height += 1
        if fields[_HEIGHT] != height or fields[_STEP] != number or fields[_TIME] != time_us:
            raise errors.DecodeError(
                f"entry {fields[_HEIGHT]} of step {fields[_STEP]} does not follow step {number - 1} at its time"
            )
    return height


def _refuse(step: StoredStep, changed: Sequence[Change], state: bytes, chain: bytes) -> NoReturn:
    last = step.fields[-1]
    where = f"step {step.step}, which ends at height {step.height}"
    # The state first: where changes are wrong both digests are, and the rows say more than a chain.
    if state != last[_STATE]:
        names = [row_keys.describe(each.key) for each in changed[:_NAMED_MAX]]
        more = f" and {len(changed) - _NAMED_MAX} more" if len(changed) > _NAMED_MAX else ""
        raise errors.DigestMismatch(
            f"changes of {where}: they are not those that were written ({', '.join(names)}{more})",
            expected=last[_STATE],
            actual=state,
        )
    raise errors.DigestMismatch(f"chain of {where}", expected=last[_CHAIN], actual=chain)


def _fields(data: bytes) -> Fields:
    fields = canonical.decode_flat(data)
    if type(fields) is list and len(fields) == _COUNT and type(fields[_HEIGHT]) is type(fields[_TIME]) is int:
        return fields
    raise errors.DecodeError("not an entry")


def _at(step: StoredStep, error: errors.Corrupt) -> errors.Corrupt:
    """The same error, with the step it is about."""
    where = f"changes of step {step.step}, which ends at height {step.height}"
    if isinstance(error, errors.DigestMismatch):
        what = str(error).partition(": expected")[0]
        return errors.DigestMismatch(f"{where}: {what}", expected=error.expected, actual=error.actual)
    return errors.DecodeError(f"{where}: {error}")
