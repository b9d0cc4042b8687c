"""The journal: entries in steps, steps in frames, one chain of digests.

A step's entries get contiguous heights and are appended together with the head that names the last of them; the old
head's bytes are the guard. Frames cut a step only at entry boundaries and have no meaning of their own. The chain
digest of a step is H(previous chain, entries), over the entries' canonical bytes with the chain field still empty, and
is carried by the step's last entry.

Who finds what: `decode` finds what is wrong in the frames that were read (damage, a gap, a frame that is missing in
between, there twice, or not where it belongs); `verify` finds entries that are not of this history; that the last
frames are missing is found by comparing what `verify` returns with the stored head.

Only `layers/commit.py` appends; restoring, proving and following read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, digest, frame, structs
from worldline.keys import journal as keys
from worldline.model import ids, journal
from worldline.store import kv

_STATE = journal.Entry.__struct_fields__.index("state")
_CHAIN = journal.Entry.__struct_fields__.index("chain")


def get_head(at: ids.Address) -> kv.Get:
    return kv.Get(keys.head_key(at))


def decode_head(raw: bytes | None) -> journal.Head:
    if raw is None:
        raise errors.NotFound("no journal: the world does not exist")
    return keys.HEAD.unpack(raw)


def pack_head(head: journal.Head) -> bytes:
    return keys.HEAD.pack(head)


class Sealed(msgspec.Struct, frozen=True):
    """Steps as they will stand in the journal: what they follow, their entries, the same as bytes, the head after."""

    before: journal.Head
    entries: list[journal.Entry]
    data: list[bytes]
    after: journal.Head


def seal(before: journal.Head, drafts: Sequence[journal.Draft], *, state: bytes, time_us: int) -> Sealed:
    """Give a step's drafts their heights, logical time and digests.

    `time_us` is the store's time, or the due time of what the step consumes if that is later; the logical time is not
    below that of the step before. A payload too large for an entry is named by its address (`journal.blob_of`): the
    caller puts it into the CAS before the entries are committed.
    """
    assert drafts, "a step has at least the input it consumed"
    assert len(state) == limits.DIGEST_BYTES
    logical_us = max(before.time_us, time_us)
    step, height, size = before.step + 1, before.height, 0
    rows: list[list[Any]] = []  # the fields of each entry, in their order
    for draft in drafts:
        height += 1
        blob = journal.blob_of(draft.payload)
        carried = b"" if blob else draft.payload
        size += len(carried)
        rows.append(
            [height, step, int(draft.kind), logical_us, carried, draft.stamp, draft.correlation, b"", b"", blob]
        )
    if size > limits.STEP_BYTES_MAX:
        raise errors.TooLarge("a step's payloads", size=size, limit=limits.STEP_BYTES_MAX)
    last = rows[-1]
    last[_STATE] = state
    data = [canonical.encode_flat(row) for row in rows]
    last[_CHAIN] = chain = digest.hash_parts(b"chain", before.chain, *data)
    data[-1] = canonical.encode_flat(last)
    entries = [
        journal.Entry(row[0], step, draft.kind, logical_us, row[4], draft.stamp, draft.correlation, *row[_STATE:])
        for row, draft in zip(rows, drafts, strict=True)
    ]
    return Sealed(before, entries, data, journal.Head(step, height, chain, state, logical_us))


def chain_digest(previous: bytes, entries: Sequence[journal.Entry]) -> bytes:
    """H(previous, entries of one step); the last entry's own chain field does not count."""
    *others, last = entries
    open_ended = [*others, msgspec.structs.replace(last, chain=b"")]
    return digest.hash_parts(b"chain", previous, *(structs.encode(entry) for entry in open_ended))


def append(batch: kv.Batch, at: ids.Address, sealed: Sealed, *, before_raw: bytes) -> None:
    """Write a sealed step (or several, one after the other) and move the head. Guard: the head as it was read."""
    before, entries, after = sealed.before, sealed.entries, sealed.after
    assert entries
    assert before.chain in before_raw, "these steps follow another head"
    first, last = entries[0], entries[-1]
    assert first.height == before.height + 1
    assert first.step == before.step + 1
    assert last.step == after.step
    assert last.height == after.height
    assert len(entries) == len(sealed.data) == after.height - before.height
    assert last.chain == after.chain
    if sum(map(len, sealed.data)) + frame.CHUNK_OVERHEAD_BYTES * len(entries) <= limits.FRAME_BYTES_MAX:
        batch.put(keys.frame_key(at, after.height), keys.pack_frame(sealed.data))
    else:
        for chunk, last_height in list(_cut(sealed.data, before.height)):
            batch.put(keys.frame_key(at, last_height), keys.pack_frame(chunk))
    head_key = keys.head_key(at)
    batch.expect(head_key, before_raw)
    batch.put(head_key, keys.HEAD.pack(after))


def read_range(at: ids.Address, *, above: int = 0, bytes_max: int = limits.RANGE_BYTES_DEFAULT) -> kv.Range:
    """The frames with entries above a height. If the page says `more`, go on above the last entry decoded."""
    begin, end = keys.frames(at, above=above)
    return kv.Range(begin, end, bytes_max=bytes_max)


def decode(at: ids.Address, items: Iterable[tuple[bytes, bytes]], *, above: int) -> list[journal.Entry]:
    """The entries above a height, from frames that were read. A gap, a repeat or a misfiled frame is corruption."""
    entries: list[journal.Entry] = []
    expected: int | None = None
    for key, raw in items:
        found = _decode_frame(at, key, raw)
        first = found[0].height
        if first > above + 1 if expected is None else first != expected:
            raise errors.DecodeError(f"height {expected or above + 1} should follow; the next frame begins at {first}")
        entries += found if first > above else [entry for entry in found if entry.height > above]
        expected = found[-1].height + 1
    return entries


def verify(before: journal.Head, entries: Sequence[journal.Entry]) -> journal.Head:
    """Recompute the chain over whole steps that follow `before`. Returns the head they lead to.

    `DecodeError` for entries that do not follow each other, `DigestMismatch` for a chain that is not theirs.
    """
    head = before
    step: list[journal.Entry] = []
    for entry in entries:
        if entry.height != head.height + len(step) + 1 or entry.step != head.step + 1:
            raise errors.DecodeError(f"entry {entry.height} of step {entry.step} does not follow step {head.step}")
        step.append(entry)
        if entry.time_us < head.time_us or entry.time_us != step[0].time_us:
            raise errors.DecodeError(f"time goes back, or changes within a step, at height {entry.height}")
        if not entry.chain:
            continue
        actual = chain_digest(head.chain, step)
        if actual != entry.chain:
            raise errors.DigestMismatch(f"chain of step {entry.step}", expected=entry.chain, actual=actual)
        if not entry.state:
            raise errors.DecodeError(f"the last entry of step {entry.step} has no state digest")
        head = journal.Head(entry.step, entry.height, entry.chain, entry.state, entry.time_us)
        step = []
    if step:
        raise errors.DecodeError(f"the journal ends inside step {step[0].step}")
    return head


def _decode_frame(at: ids.Address, key: bytes, raw: bytes) -> list[journal.Entry]:
    """The entries of one frame: contiguous, and up to the height the frame is filed under."""
    last_height = keys.frame_height(at, key)
    found = [structs.decode(journal.Entry, data) for data in keys.unpack_frame(raw)]
    first = last_height - len(found) + 1
    if not found or any(entry.height != first + index for index, entry in enumerate(found)):
        raise errors.DecodeError(f"the frame filed under height {last_height} does not hold the entries up to there")
    return found


def _cut(entries: Sequence[bytes], height: int) -> Iterable[tuple[list[bytes], int]]:
    """Encoded entries, which follow this height, in chunks that fit into a frame, each with its last height."""
    chunk: list[bytes] = []
    size = 0
    for data in entries:
        length = len(data) + frame.CHUNK_OVERHEAD_BYTES
        if length > limits.FRAME_BYTES_MAX:
            raise errors.TooLarge("journal entry", size=length, limit=limits.FRAME_BYTES_MAX)
        if chunk and size + length > limits.FRAME_BYTES_MAX:
            yield chunk, height
            chunk, size = [], 0
        chunk.append(data)
        size += length
        height += 1
    yield chunk, height
