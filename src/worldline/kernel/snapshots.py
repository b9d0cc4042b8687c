"""A machine's state as bytes, and back.

A snapshot is a list of parts. The first is a header: digest, program hash, counters. The others are lists of records,
packed to a bounded size: cells by their keys; runs by their ids, each followed by what it has recorded if that is long;
then open work, work that is held back, schedules, ended runs that may be forgotten, runs that continue in the next
step, and work that is still to be closed. Every record is bounded in every state, so a busy world can always be saved.
A snapshot carries no world identity, so equal states have equal bytes, and nothing that is only a cache.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, structs
from worldline.kernel import values
from worldline.kernel.authoring.program import Program
from worldline.kernel.runs import Buffered, Held, Op, Record, Resume
from worldline.kernel.state import Cell, Machine, Pending, Schedule
from worldline.model import ids

VERSION = 1
PART_BYTES = 1 * limits.MIB
CHUNK_ITEMS = 1_000
CHUNK_BYTES = 256 * limits.KIB

T = TypeVar("T")


class Tag(enum.IntEnum):
    """What a record is. Numbers are stored and never reused."""

    CELL = 1
    RUN = 2
    OPS = 3  # of the run before, as are the next two
    LOG = 4
    BUFFER = 5
    OPEN = 6
    HELD = 7
    SCHEDULES = 8
    FORGETTABLE = 9
    LATER = 10
    RESULT = 11  # of the run before
    CLOSING = 12


class Header(msgspec.Struct, frozen=True, array_like=True):
    version: int
    state: bytes
    program_hash: bytes
    run_count: int


class CellRecord(msgspec.Struct, frozen=True, array_like=True):
    reducer: str
    key: str
    data: bytes


_KINDS: dict[Tag, Any] = {
    Tag.CELL: CellRecord,
    Tag.RUN: Record,
    Tag.OPS: list[Op],
    Tag.LOG: list[Resume],
    Tag.BUFFER: list[Buffered],
    Tag.OPEN: list[Pending],
    Tag.HELD: list[Held],
    Tag.SCHEDULES: list[Schedule],
    Tag.FORGETTABLE: list[str],
    Tag.LATER: list[str],
    Tag.RESULT: bytes,
    Tag.CLOSING: list[Pending],
}


def save(machine: Machine) -> list[bytes]:
    """The parts of a snapshot. Only between steps."""
    header = Header(VERSION, machine.state, machine.program.hash, machine.run_count)
    return [structs.encode(header), *_parts(_records(machine))]


def load(
    program: Program, parts: Sequence[bytes], address: ids.Address, *, strict: bool = False
) -> tuple[Machine, bytes]:
    """The machine that a snapshot holds, with the given address; and the hash of the program that saved it."""
    header = structs.decode(Header, parts[0])
    if header.version != VERSION:
        raise errors.DecodeError(f"snapshot version {header.version}; this release reads {VERSION}")
    machine = Machine(program, strict=strict)
    records: list[Record] = []
    for tag, record in _read(parts[1:]):
        if tag is Tag.CELL:
            reducer = program.reducers.get(record.reducer)
            value = None if reducer is None else values.load(reducer.cls, record.data)
            machine.cells[record.reducer, record.key] = Cell(value, record.data)
        elif tag is Tag.RUN:
            records.append(record)
        elif tag is Tag.RESULT:
            records[-1].load_data(record)
        elif tag in _OF_RUN:
            getattr(records[-1], _OF_RUN[tag]).extend(record)
        elif tag is Tag.SCHEDULES:
            machine.schedules.update({each.id: each for each in record})
        elif tag is Tag.OPEN:
            for each in record:
                machine.reopen(each, address)
        else:
            getattr(machine, _OF_MACHINE[tag]).extend(record)
    for run in sorted(records, key=lambda each: each.number):
        machine.add_run(run)
    machine.restored(header.state, header.run_count)
    return machine, header.program_hash


_OF_RUN = {Tag.OPS: "ops", Tag.LOG: "log", Tag.BUFFER: "buffer"}
_OF_MACHINE = {Tag.HELD: "unsent", Tag.FORGETTABLE: "forgettable", Tag.LATER: "later", Tag.CLOSING: "closing"}


def _records(machine: Machine) -> Iterator[bytes]:
    for key, cell in sorted(machine.cells.items()):
        yield _record(Tag.CELL, CellRecord(*key, cell.data))
    for _, run in sorted(machine.runs.items()):
        yield from _run(run.record)
    yield from _chunks(Tag.OPEN, [each for _, each in sorted(machine.open.items())], lambda each: len(each.params))
    yield from _chunks(Tag.HELD, machine.unsent, lambda each: len(each.params))
    yield from _chunks(
        Tag.SCHEDULES, [each for _, each in sorted(machine.schedules.items())], lambda each: len(each.spec.data)
    )
    yield from _chunks(Tag.FORGETTABLE, machine.forgettable, len)
    yield from _chunks(Tag.LATER, machine.later, len)
    yield from _chunks(Tag.CLOSING, machine.closing, lambda each: len(each.params))


def _run(record: Record) -> Iterator[bytes]:
    """A run in one record if it is short, else with the long lists apart."""
    items = len(record.ops) + len(record.log) + len(record.buffer)
    size = len(record.data) + sum(map(_op_bytes, record.ops)) + sum(map(_event_bytes, record.buffer))
    if items <= CHUNK_ITEMS and size <= CHUNK_BYTES:
        yield _record(Tag.RUN, record)
        return
    yield _record(Tag.RUN, msgspec.structs.replace(record, ops=[], log=[], buffer=[], data=b""))
    yield _record(Tag.RESULT, record.data)
    yield from _chunks(Tag.OPS, record.ops, _op_bytes)
    yield from _chunks(Tag.LOG, record.log, lambda each: len(each.reason))
    yield from _chunks(Tag.BUFFER, record.buffer, _event_bytes)


def _op_bytes(op: Op) -> int:
    return 0 if op.outcome is None else len(op.outcome.data)


def _event_bytes(event: Buffered) -> int:
    return len(event.data)


def _chunks(tag: Tag, items: Iterable[T], size_of: Any) -> Iterator[bytes]:
    chunk: list[T] = []
    size = 0
    for item in items:
        if chunk and (len(chunk) >= CHUNK_ITEMS or size + size_of(item) > CHUNK_BYTES):
            yield _record(tag, chunk)
            chunk, size = [], 0
        chunk.append(item)
        size += size_of(item)
    if chunk:
        yield _record(tag, chunk)


def _record(tag: Tag, record: object) -> bytes:
    return bytes([tag]) + structs.encode(record)


def _read(parts: Iterable[bytes]) -> Iterator[tuple[Tag, Any]]:
    for part in parts:
        found = canonical.decode(part)
        if not isinstance(found, list):
            raise errors.DecodeError("a snapshot's part is a list of records")
        for data in found:
            if not isinstance(data, bytes) or not data or data[0] not in _KINDS:
                raise errors.DecodeError("a snapshot's part has a record of no known kind")
            tag = Tag(data[0])
            yield tag, structs.decode(_KINDS[tag], data[1:])


def _parts(records: Iterable[bytes]) -> Iterator[bytes]:
    part: list[bytes] = []
    size = 0
    for record in records:
        if part and size + len(record) > PART_BYTES:
            yield canonical.encode(part)
            part, size = [], 0
        part.append(record)
        size += len(record)
    if part:
        yield canonical.encode(part)
