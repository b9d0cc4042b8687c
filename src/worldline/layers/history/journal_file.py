"""A world's journal as a file: lines of JSON that carry everything a replay needs.

::

    {"worldline": "journal", "version": 4, "name": ..., "program": ..., "universe": ..., "world": ..., "start": ...}
    {"height": 1, "step": 1, "kind": "control", "time_us": ..., "payload": "<base64>", ...}
    {"blob": "<sha256>", "data": "<base64>"}                payloads that entries name by address, before their use
    {"changes_of": 1, "data": "<base64>", "digest": ...}    behind the last entry of a step: the rows it changed, if any
    {"end": {"step": ..., "height": ..., "chain": ...}}

The first line says whose journal it is; `start` is the head that the first entry follows, and `parts` the snapshot
there, if that is not the beginning of the world. The last line says where it ends, so a file cut short is noticed. What
is in the entries is as it is in the store: canonical bytes, in base64; digests and ids are hexadecimal.

Changes are as they are stored (`layers/step_changes.py`), beside the digest that the chain covers.

`read` checks all of it: every line, every blob against its address, the chain over all entries and digests, and every
change whose row it can know: those above a snapshot may be deltas of rows that only the snapshot has. Nothing here does
I/O: lines come and go as text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest, outside_json, structs
from worldline.layers import journal as journals
from worldline.layers import step_changes as stored_changes
from worldline.layers.history import step_reader
from worldline.model import ids, inbox, journal
from worldline.model.rows import Rows
from worldline.model.state_digest import NO_CHANGES, changes_digest

VERSION = 4  # 1 had other names for kinds of entries, 2 no changes, 3 other parts of snapshots


class StepChanges(msgspec.Struct, frozen=True):
    """What one step changed: as it is stored, and the digest of it that the chain covers."""

    stored: bytes = b""
    digest: bytes = NO_CHANGES


UNCHANGED = StepChanges()


class ExportedJournal(msgspec.Struct, frozen=True):
    """A journal outside its store. `parts`: the snapshot that `start` is the head of; none at a world's beginning."""

    name: str
    program: str
    program_hash: bytes
    at: ids.Address
    entries: Sequence[journal.JournalEntry]
    blobs: Mapping[bytes, bytes]
    changed: Sequence[StepChanges]  # of each step
    start: journal.Head = journal.GENESIS
    parts: Sequence[bytes] = ()

    def payload_of(self, entry: journal.JournalEntry) -> bytes:
        return self.blobs[entry.blob] if entry.blob else entry.payload

    def filled(self) -> list[journal.JournalEntry]:
        """The entries with their payloads in place, also those that were stored apart."""
        return [
            msgspec.structs.replace(each, payload=self.blobs[each.blob], blob=b"") if each.blob else each
            for each in self.entries
        ]

    def steps(self) -> list[step_reader.StoredStep]:
        """Whole steps, to be folded (`step_reader.fold`) into the rows that `parts` hold."""
        found: list[step_reader.StoredStep] = []
        step: list[journal.JournalEntry] = []
        for entry in self.entries:
            step.append(entry)
            if entry.chain:
                changes = self.changed[len(found)].stored
                address = stored_changes.apart(changes)
                found.append(step_reader.stored(step, self.blobs[address] if address else changes))
                step = []
        return found


def lines(exported: ExportedJournal) -> Iterator[str]:
    """The file, line by line, each with its newline."""
    yield _line(_header(exported))
    told: dict[bytes, None] = {}

    def tell(addresses: Iterable[bytes]) -> Iterator[str]:
        for address in addresses:
            if address not in told:
                told[address] = None
                yield _line({"blob": address.hex(), "data": _text(exported.blobs[address])})

    steps = iter(exported.steps())
    for entry in exported.entries:
        yield from tell(_addresses(exported, entry))
        yield _line(_entry(entry))
        if entry.chain:
            step = next(steps)
            if step.changes:
                yield from tell(step_reader.needed(step))
                covered = exported.changed[step.step - exported.start.step - 1].digest
                yield _line({"changes_of": step.step, "data": _text(step.changes), "digest": covered.hex()})
    # Recomputed, not copied from the head: a damaged journal raises here, and its file never gets a last line.
    end = journals.verify(exported.start, exported.entries, [each.digest for each in exported.changed])
    yield _line({"end": {"step": end.step, "height": end.height, "chain": end.chain.hex()}})


def read(text: Iterable[str]) -> ExportedJournal:
    """The journal that such lines hold. `DecodeError` or `DigestMismatch`, with the line, for anything else."""
    header: ExportedJournal | None = None
    entries: list[journal.JournalEntry] = []
    blobs: dict[bytes, bytes] = {}
    changed: dict[int, StepChanges] = {}
    end: tuple[int, int, bytes] | None = None
    for number, line in enumerate(text, 1):
        record = _record(line, number)
        if end is not None:
            raise errors.DecodeError(f"line {number} follows the end of the exported journal")
        try:
            if header is None:
                header = _read_header(record)
            elif "end" in record:
                end = (record["end"]["step"], record["end"]["height"], digest.from_hex(record["end"]["chain"]))
            elif "blob" in record:
                address, data = digest.from_hex(record["blob"]), _bytes(record["data"])
                digest.check(data, address, f"the blob in line {number}")
                blobs[address] = data
            elif "changes_of" in record:
                _read_changes(record, changed)
            else:
                entries.append(_read_entry(record))
        except (KeyError, TypeError, ValueError, binascii.Error, msgspec.ValidationError) as error:
            raise errors.DecodeError(f"line {number} is not one of an exported journal: {error!r}") from error
    if header is None or end is None:
        raise errors.DecodeError("the exported journal is cut short: its last line is missing")
    count = sum(1 for entry in entries if entry.chain)
    # A step without a line of changes has changed nothing; what is left over belongs to no step of the file.
    steps = [changed.pop(header.start.step + number, UNCHANGED) for number in range(1, count + 1)]
    if changed:
        raise errors.DecodeError(f"changes of step {min(changed)}, which is not in the exported journal")
    return _check(msgspec.structs.replace(header, entries=entries, blobs=blobs, changed=steps), end)


def _check(exported: ExportedJournal, end: tuple[int, int, bytes]) -> ExportedJournal:
    entries, blobs = exported.entries, exported.blobs
    found = journals.verify(exported.start, entries, [each.digest for each in exported.changed])
    if (found.step, found.height, found.chain) != end:
        raise errors.DecodeError(f"the exported journal ends at height {found.height}, but says {end[1]}")
    for entry in entries:
        for address in _addresses(exported, entry):
            if address not in blobs:
                raise errors.DecodeError(f"the payload {address.hex()} of height {entry.height} is missing")
    rows = Rows()
    for step, changed in zip(exported.steps(), exported.changed, strict=True):
        _check_changes(step, changed, rows, blobs)
    return exported


def _check_changes(
    step: step_reader.StoredStep, changed: StepChanges, rows: Rows, blobs: Mapping[bytes, bytes]
) -> None:
    for address in step_reader.needed(step):
        if address not in blobs:
            raise errors.DecodeError(f"the blob {address.hex()} of the changes of step {step.step} is missing")
    # Above a snapshot not every row is known. The chain still covers the digest of these changes.
    if not step_reader.knows_bases(step, rows):
        return
    found = step_reader.resolve(step, rows, blobs)
    actual = changes_digest(found)
    if actual != changed.digest:
        raise errors.DigestMismatch(f"the changes of step {step.step}", expected=changed.digest, actual=actual)
    rows.apply(found)


def _addresses(exported: ExportedJournal, entry: journal.JournalEntry) -> Iterator[bytes]:
    """The blobs that an entry needs: its own payload if that is stored apart, and the one its input refers to."""
    if entry.blob:
        yield entry.blob
    # A payload that is missing is reported by `_check`; decoding it here first would be a KeyError.
    if entry.kind in journal.INPUTS and (not entry.blob or entry.blob in exported.blobs):
        item: inbox.Item = structs.decode(inbox.Item, exported.payload_of(entry))  # type: ignore[arg-type]
        carried = getattr(item, "payload", None)
        if carried is not None and carried.ref is not None:
            yield carried.ref


def _header(exported: ExportedJournal) -> dict[str, object]:
    start = exported.start
    return {
        "worldline": "journal",
        "version": VERSION,
        "name": exported.name,
        "program": exported.program,
        "program_hash": exported.program_hash.hex(),
        "universe": exported.at.universe.hex(),
        "world": exported.at.world.hex(),
        "start": {
            "step": start.step,
            "height": start.height,
            "chain": start.chain.hex(),
            "state": start.state.hex(),
            "time_us": start.time_us,
        },
        "parts": [_text(part) for part in exported.parts],
    }


def _read_header(record: dict[str, Any]) -> ExportedJournal:
    if record.get("worldline") != "journal":
        raise ValueError("the first line does not say that this is a journal")
    if record["version"] != VERSION:
        raise ValueError(f"version {record['version']}; this release reads {VERSION}")
    start = record["start"]
    at = ids.Address(
        ids.UniverseId(_id(record["universe"])),
        ids.WorldId(_id(record["world"])),
    )
    head = journal.Head(
        start["step"], start["height"], bytes.fromhex(start["chain"]), bytes.fromhex(start["state"]), start["time_us"]
    )
    return ExportedJournal(
        name=str(record["name"]),
        program=str(record["program"]),
        program_hash=bytes.fromhex(str(record["program_hash"])),
        at=at,
        entries=(),
        blobs={},
        changed=(),
        start=head,
        parts=[_bytes(part) for part in record["parts"]],
    )


def _entry(entry: journal.JournalEntry) -> dict[str, object]:
    made: dict[str, object] = {
        "height": entry.height,
        "step": entry.step,
        "kind": entry.kind.name.lower(),
        "time_us": entry.time_us,
        "payload": _text(entry.payload),
    }
    digests = {"stamp": entry.stamp, "state": entry.state, "chain": entry.chain, "blob_of": entry.blob}
    made |= {name: value.hex() for name, value in digests.items() if value}
    return made | ({"correlation": entry.correlation} if entry.correlation else {})


def _read_entry(record: dict[str, Any]) -> journal.JournalEntry:
    height, step, time_us = record["height"], record["step"], record["time_us"]
    # `isinstance` would let `true` pass, which is an int in Python.
    if type(height) is not int or type(step) is not int or type(time_us) is not int:
        raise ValueError("heights, steps and times are numbers")
    fields = {name: bytes.fromhex(str(record.get(name, ""))) for name in ("stamp", "state", "chain")}
    return journal.JournalEntry(
        height=height,
        step=step,
        kind=journal.Kind[str(record["kind"]).upper()],
        time_us=time_us,
        payload=_bytes(record["payload"]),
        correlation=str(record.get("correlation", "")),
        blob=bytes.fromhex(str(record.get("blob_of", ""))),
        **fields,
    )


def _read_changes(record: dict[str, Any], changed: dict[int, StepChanges]) -> None:
    step = record["changes_of"]
    if type(step) is not int or step in changed:
        raise ValueError("a step's changes stand here once")
    changed[step] = StepChanges(_bytes(record["data"]), digest.from_hex(record["digest"]))


def _record(line: str, number: int) -> dict[str, Any]:
    try:
        found = outside_json.decode(line, what=f"line {number}")
    except errors.BadInput as error:
        raise errors.DecodeError(str(error)) from error
    if not isinstance(found, dict):
        raise errors.DecodeError(f"line {number} is not an object")
    return found


def _line(record: dict[str, Any]) -> str:
    return msgspec.json.encode(record).decode() + "\n"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: object) -> bytes:
    # Without `validate`, characters outside of the alphabet are skipped, and damage may pass.
    return base64.b64decode(str(text), validate=True)


def _id(text: object) -> bytes:
    found = bytes.fromhex(str(text))
    if len(found) != limits.ID_BYTES:
        raise ValueError(f"an id has {limits.ID_BYTES} bytes")
    return found
