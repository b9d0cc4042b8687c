"""A machine's state as bytes, and back.

A snapshot is a list of parts: a header with the digest, the program's hash and the open work, then cells and runs in
the order of their keys, packed into parts of bounded size. It carries no world identity, so equal states have equal
bytes, and nothing that is only a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, structs
from worldline.kernel import values
from worldline.kernel.machine import Cell, Machine, Pending
from worldline.kernel.program import Program
from worldline.kernel.runs import Held, Record
from worldline.kernel.schedules import Schedule
from worldline.model import ids

VERSION = 1
PART_BYTES = 1 * limits.MIB


class Header(msgspec.Struct, frozen=True, array_like=True):
    version: int
    state: bytes
    program_hash: bytes
    cells: int
    open: list[Pending]
    unsent: list[Held]
    forgettable: list[str]
    run_count: int
    schedules: list[Schedule] = []
    later: list[str] = []


class CellRecord(msgspec.Struct, frozen=True, array_like=True):
    reducer: str
    key: str
    data: bytes


def save(machine: Machine) -> list[bytes]:
    """The parts of a snapshot. Only between steps."""
    cells = [CellRecord(*key, cell.data) for key, cell in sorted(machine.cells.items())]
    records = [run.record for _, run in sorted(machine.runs.items())]
    header = Header(
        VERSION,
        machine.state,
        machine.program.hash,
        len(cells),
        [pending for _, pending in sorted(machine.open.items())],
        list(machine.unsent),
        list(machine.forgettable),
        machine.run_count,
        [schedule for _, schedule in sorted(machine.schedules.items())],
        list(machine.later),
    )
    return [structs.encode(header), *_parts(structs.encode(each) for each in [*cells, *records])]


def load(
    program: Program, parts: Sequence[bytes], address: ids.Address, *, strict: bool = False
) -> tuple[Machine, bytes]:
    """The machine that a snapshot holds, at home under an address; and the hash of the program that saved it."""
    header = structs.decode(Header, parts[0])
    if header.version != VERSION:
        raise errors.DecodeError(f"snapshot version {header.version}; this release reads {VERSION}")
    machine = Machine(program, strict=strict)
    machine.state = header.state
    records = [record for part in parts[1:] for record in _records(part)]
    for data in records[: header.cells]:
        cell = structs.decode(CellRecord, data)
        reducer = program.reducers.get(cell.reducer)
        value = None if reducer is None else values.load(reducer.cls, cell.data)
        machine.cells[cell.reducer, cell.key] = Cell(value, cell.data)
    for record in sorted(
        (structs.decode(Record, data) for data in records[header.cells :]), key=lambda each: each.number
    ):
        machine.add_run(record)
    for pending in header.open:
        key = (pending.step, pending.ordinal)
        machine.open[key] = pending
        intent = ids.intent_id(address, step=key[0], ordinal=key[1], kind=pending.name, params=pending.params)
        machine.by_intent[intent] = key
    machine.unsent.extend(header.unsent)
    machine.later.extend(header.later)
    machine.run_count = header.run_count
    machine.schedules = {schedule.id: schedule for schedule in header.schedules}
    machine.forgettable.extend(header.forgettable)
    return machine, header.program_hash


def _records(part: bytes) -> list[bytes]:
    found = canonical.decode(part)
    if not isinstance(found, list):
        raise errors.DecodeError("a snapshot's part is a list of records")
    return [each for each in found if isinstance(each, bytes)]


def _parts(records: Iterable[bytes]) -> Iterable[bytes]:
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
