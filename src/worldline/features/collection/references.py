"""Where references to blobs stand, and how they are found there. Which keyspaces have some is said by the table of all
(`keys/keyspace_table.py`), by the name of their reader: without that reader here, this file is not imported.

`PLACES` are those of one world, in the order in which they are read. Inputs come first: a step takes them from there
and puts what it keeps of them into the others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, frame, structs
from worldline.keys import inbox as inbox_keys
from worldline.keys import journal as journal_keys
from worldline.keys import keyspace_table
from worldline.keys import lineage as lineage_keys
from worldline.keys import segments as segment_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.keys import work as work_keys
from worldline.layers import inbox as inboxes
from worldline.layers import step_changes
from worldline.layers.history import step_reader
from worldline.layers.history.segment_body import Block
from worldline.model import ids, inbox, journal
from worldline.model.trie import nodes

_KIND, _PAYLOAD, _CHAIN, _BLOB = 2, 4, -2, -1  # fields of an entry
_SHA256: Final = canonical.encode(bytes(limits.DIGEST_BYTES))[: -limits.DIGEST_BYTES]  # what an address begins with


class BlobKind(enum.IntEnum):
    """What a blob is, as far as it refers to others."""

    DATA = 1  # refers to nothing
    STATE = 2  # a saved state, or a node of one
    CHANGES = 3  # what a step changed
    SEGMENT = 4
    INPUT = 5  # an input, too large for its entry


class Reference(msgspec.Struct, frozen=True, gc=False):
    """A blob that is referred to. `segment`: what its record says."""

    kind: BlobKind
    address: bytes
    segment: journal.Segment | None = None


Items = Iterable[tuple[bytes, bytes]]


class ReferenceRange(msgspec.Struct, frozen=True):
    """A range of keys with references. `reader` is made for each world: it is given the items of page after page."""

    name: str
    keyspace: keyspace_table.Ordinal
    range: Callable[[ids.Address], tuple[bytes, bytes]]
    reader: Callable[[], Callable[[Items], Iterator[Reference]]]


# --- Readers ----------------------------------------------------------------------------------------------------------


def _inputs(items: Items) -> Iterator[Reference]:
    """Bytes that are no item refer to nothing that anything could read."""
    for unread in inboxes.decode(items):
        address = None if unread.item is None else inboxes.item_refers_to(unread.item)
        if address is not None:
            yield Reference(BlobKind.DATA, address)


def _dead_letters(items: Items) -> Iterator[Reference]:
    for letter in inboxes.decode_dead(items):
        address = inboxes.refers_to(letter.dead)
        if address is not None:
            yield Reference(BlobKind.DATA, address)


def _lineages(items: Items) -> Iterator[Reference]:
    for _, raw in items:
        script = lineage_keys.LINEAGE.unpack(raw).script
        if script:
            yield Reference(BlobKind.DATA, script)


def _baselines(items: Items) -> Iterator[Reference]:
    for _, raw in items:
        yield Reference(BlobKind.STATE, snapshot_keys.BASELINE.unpack(raw).root)


def _snapshots(items: Items) -> Iterator[Reference]:
    for _, raw in items:
        yield Reference(BlobKind.STATE, snapshot_keys.SNAPSHOT.unpack(raw).root)


def _segments(items: Items) -> Iterator[Reference]:
    for _, raw in items:
        record = segment_keys.unpack(raw)
        if isinstance(record, journal.Segment):  # and not what stands for those that were dropped
            yield Reference(BlobKind.SEGMENT, record.digest, record)


def _open_work(items: Items) -> Iterator[Reference]:
    for _, raw in items:
        address = work_keys.WORK.unpack(raw).params.ref
        if address is not None:
            yield Reference(BlobKind.DATA, address)


class Frames:
    """Frames, and the parts behind them: entries, and the changes of the steps that end in a frame. What a step changed
    is covered by its chain, not by the envelope of a value alone: the steps are given out to be checked (`take_steps`).
    """

    def __init__(self) -> None:
        self._section = b""
        self._parts = 0
        self._data: list[bytes] = []  # of the step that has not ended
        self._ended: list[list[bytes]] = []  # steps that end in the frame, while parts of it are missing
        self._steps: list[step_reader.StoredStep] = []

    def __call__(self, items: Items) -> Iterator[Reference]:
        for _, raw in items:
            read = journal_keys.unpack_frame(raw)
            if read.entries:
                # The first value of a frame has its entries; the parts behind it continue the section of changes.
                self._section, self._ended, self._parts = b"", [], read.parts
                for data in read.entries:
                    fields = _fields(data)
                    self._data.append(data)
                    if fields[_CHAIN]:
                        self._ended.append(self._data)
                        self._data = []
                    yield from _of_entry(fields)
            self._section += read.changes
            # The last part completes the section: only then can the changes of its steps be told apart.
            if (0 if read.entries else read.parts) == self._parts:
                found = frame.take(self._section, len(self._ended), start=0)[0]
                for data_of, stored in zip(self._ended, found, strict=True):
                    self._steps.append(step_reader.StoredStep(data_of, [_fields(each) for each in data_of], stored))
                    yield from of_changes(stored)

    def take_steps(self) -> list[step_reader.StoredStep]:
        """The steps that were read and not given out so far."""
        taken, self._steps = self._steps, []
        return taken


def _fields(data: bytes) -> list[Any]:
    fields = canonical.decode_flat(data)
    if type(fields) is not list or len(fields) != len(journal.JournalEntry.__struct_fields__):
        raise errors.DecodeError("not an entry")
    if type(fields[_BLOB]) is not bytes or type(fields[_PAYLOAD]) is not bytes:
        raise errors.DecodeError("not an entry")
    return fields


def _of_entry(fields: list[Any]) -> Iterator[Reference]:
    """Its payload, if that is apart, and what it carries, if it is an input."""
    address, is_input = fields[_BLOB], fields[_KIND] in journal.INPUTS
    if address:
        yield Reference(BlobKind.INPUT if is_input else BlobKind.DATA, address)
    # A cheap test first: an input without the encoding of any address needs no decoding.
    elif is_input and _SHA256 in fields[_PAYLOAD]:
        yield from of_input(fields[_PAYLOAD])


def of_input(data: bytes) -> Iterator[Reference]:
    """What an input carries, if that is large."""
    item: inbox.Item = structs.decode(inbox.Item, data)  # type: ignore[arg-type]
    address = inboxes.item_refers_to(item)
    if address is not None:
        yield Reference(BlobKind.DATA, address)


def of_changes(stored: bytes) -> Iterator[Reference]:
    """What the changes of a step refer to. Payloads of its entries, which they may share, are found with these."""
    apart = step_changes.apart(stored)
    if apart:
        yield Reference(BlobKind.CHANGES, apart)
    elif step_changes.needs_blobs(stored):
        for address in step_changes.named_blobs(stored):
            yield Reference(BlobKind.DATA, address)


def of_state(data: bytes) -> Iterator[Reference]:
    """What a saved state, or a node of it, refers to."""
    found = nodes.references(data)
    for address in found.nodes:
        yield Reference(BlobKind.STATE, address)
    for address in found.blobs:
        yield Reference(BlobKind.DATA, address)


def of_block(block: Block) -> Iterator[Reference]:
    """What the steps in a block of a segment refer to."""
    for data in block.entries:
        yield from _of_entry(_fields(data))
    for stored in block.changes or []:
        yield from of_changes(stored)


# --- Every keyspace ---------------------------------------------------------------------------------------------------


def _one(key: bytes) -> tuple[bytes, bytes]:
    return key, key + b"\x00"


def _place(
    name: str,
    between: Callable[[ids.Address], tuple[bytes, bytes]],
    reader: Callable[[], Callable[[Items], Iterator[Reference]]],
) -> ReferenceRange:
    return ReferenceRange(name, keyspace_table.REFERRING[name], between, reader)


PLACES: Final = (
    _place("inbox", inbox_keys.items, lambda: _inputs),
    _place("dead letters", inbox_keys.dead, lambda: _dead_letters),
    _place("open work", work_keys.open_work, lambda: _open_work),
    _place("scripts of forks", lambda at: _one(lineage_keys.lineage_key(at)), lambda: _lineages),
    _place("journal", journal_keys.frames, Frames),
    _place("baselines", lambda at: _one(snapshot_keys.baseline_key(at)), lambda: _baselines),
    _place("snapshots", snapshot_keys.snapshots, lambda: _snapshots),
    _place("segments", segment_keys.segments, lambda: _segments),
)
# A keyspace that is forgotten here would lose its blobs to the first collection.
assert sorted(each.name for each in PLACES) == sorted(keyspace_table.REFERRING), (
    "a keyspace with references has no reader"
)
