"""The journal: entries in steps, steps in frames, one chain of digests.

A step's entries get contiguous heights and are appended together with the head that names the last of them; the old
head's bytes are the guard. Behind the entries of a frame stands what the steps that end in it have changed. Frames cut
a step only at entry boundaries and have no meaning of their own; changes that a frame has no room for stand in parts
behind it. The digest of a step is H(entries, digest of the changes), over the entries' canonical bytes with the chain
field still empty; its chain digest is H(previous chain, digest of the step), and is carried by the step's last entry.
So a proof that an entry is of this history needs its own step, and 32 bytes of each later one. Changes are hashed as
what they mean, not as they are stored (`worldline.model.change`, `worldline.layers.step_changes`).

Who finds what: `decode` finds what is wrong in the frames that were read (damage, a gap, a frame that is missing in
between, there twice, or not where it belongs); `verify` finds entries that are not of this history; that the last
frames are missing is found by comparing what `verify` returns with the stored head. Here are the entries alone: whole
steps, with their changes, are read by `worldline.layers.history.step_reader`.

Only `layers/step_commit.py` appends; restoring, proving and following read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, digest, frame, structs
from worldline.codec.canonical import encode_flat
from worldline.keys import journal as keys
from worldline.layers import step_changes as stored_changes
from worldline.model import ids, journal
from worldline.model.change import Change
from worldline.model.journal import JournalEntry
from worldline.model.state_digest import changes_digest
from worldline.store import kv

# The last fields of an entry are digests, or empty: they can be put in and taken out without encoding the rest again.
assert journal.JournalEntry.__struct_fields__[-3:] == ("state", "chain", "blob")
_EMPTY: Final = canonical.encode(b"")
# `digest.hash_parts`, its constant parts worked out: the domain, and the lengths of digests.
_LENGTH_BYTES: Final = digest.LENGTH_BYTES
_LENGTHS_END: Final = 1_024  # nearly all entries are shorter
_LENGTHS: Final = tuple(length.to_bytes(_LENGTH_BYTES, "big") for length in range(_LENGTHS_END))
_INLINE_BYTES_MAX: Final = limits.INLINE_BYTES_MAX
_DIGEST_LENGTH: Final = limits.DIGEST_BYTES.to_bytes(_LENGTH_BYTES, "big")
_CHAIN: Final = digest.counted(b"chain") + _DIGEST_LENGTH
_STEP: Final = digest.counted(b"step")
_DIGEST_HEAD: Final = canonical.encode(bytes(limits.DIGEST_BYTES))[: -limits.DIGEST_BYTES]
_DIGEST_FIELD_BYTES: Final = len(_DIGEST_HEAD) + limits.DIGEST_BYTES


def get_head(at: ids.Address) -> kv.Get:
    return kv.Get(keys.head_key(at))


def decode_head(raw: bytes | None) -> journal.Head:
    if raw is None:
        raise errors.NotFound("no journal: the world does not exist, or is deleted")
    return keys.HEAD.unpack(raw)


def pack_head(head: journal.Head) -> bytes:
    return keys.HEAD.pack(head)


class SealedSteps(msgspec.Struct, frozen=True):
    """Steps as they will stand in the journal: what they follow, their entries, the same as bytes, the head after, and
    the changes of each step as they are stored. `large` must be in the CAS before the commit: what entries and changes
    refer to.
    """

    before: journal.Head
    entries: list[journal.JournalEntry]
    data: list[bytes]
    after: journal.Head
    changes: list[bytes]
    large: list[bytes] = []


def seal(
    head: journal.Head,
    drafts: Sequence[journal.EntryDraft],
    changes: Sequence[Change],
    *,
    state: bytes,
    time_us: int,
    covered: bytes | None = None,
    plain: bytes = b"",
    book: stored_changes.Book | None = None,
) -> SealedSteps:
    """Give a step's drafts their heights, logical time and digests, and its changes their stored form.

    `time_us` is the store's time, or the due time of what the step consumes if that is later; the logical time is not
    below that of the step before. A payload too large for an entry is named by its address (`journal.blob_of`).
    `covered`: the digest of the changes, and `plain`: their plain form, if these are known. `book`: of the world, for
    the deltas of large rows.
    """
    assert drafts, "a step has at least the input it consumed"
    assert len(state) == limits.DIGEST_BYTES
    # The store's clock may be set back; logical time never is.
    logical_us = max(head.time_us, time_us)
    step, height, size = head.step + 1, head.height, 0
    last, last_height, blob = drafts[-1], height + len(drafts), b""
    entries: list[journal.JournalEntry] = []
    data: list[bytes] = []
    large: list[bytes] = []
    for draft in drafts:
        height += 1
        kind, carried, stamp, correlation = draft.kind, draft.payload, draft.stamp, draft.correlation
        if len(carried) <= _INLINE_BYTES_MAX:
            size += len(carried)
        else:
            blob = digest.sha256(carried)
            large.append(carried)
            carried = b""
        # The bytes of the record without making it: its fields in their order.
        data.append(encode_flat([height, step, int(kind), logical_us, carried, stamp, correlation, b"", b"", blob]))
        # The last entry is made below, when its digests are known.
        if height < last_height:
            entries.append(JournalEntry(height, step, kind, logical_us, carried, stamp, correlation, b"", b"", blob))
            blob = b""
    if size > limits.STEP_BYTES_MAX:
        raise errors.TooLarge("a step's payloads", size=size, limit=limits.STEP_BYTES_MAX)
    raw = data[-1]
    end = len(raw) - (_DIGEST_FIELD_BYTES if blob else 1)  # of state and chain, which are empty, before the blob
    with_state, behind = raw[: end - 2] + _DIGEST_HEAD + state, raw[end:]
    data[-1] = with_state + _EMPTY + behind
    chain = chain_of(head.chain, data, changes_digest(changes) if covered is None else covered)
    data[-1] = with_state + _DIGEST_HEAD + chain + behind
    carried = b"" if blob else last.payload
    entries.append(
        JournalEntry(height, step, last.kind, logical_us, carried, last.stamp, last.correlation, state, chain, blob)
    )
    stored = stored_changes.encode(changes, drafts, book, large, plain=plain)
    return SealedSteps(head, entries, data, journal.Head(step, height, chain, state, logical_us), [stored], large)


def opened(data: bytes, *, has_blob: bool) -> bytes:
    """The bytes of an entry that has a chain, with the chain field empty, as they are hashed."""
    end = len(data) - (_DIGEST_FIELD_BYTES if has_blob else 1)
    return data[: end - _DIGEST_FIELD_BYTES] + _EMPTY + data[end:]


def chain_of(previous: bytes, data: Sequence[bytes], changed: bytes) -> bytes:
    """H(previous, digest of the step): see `step_digest`."""
    return linked(previous, step_digest(data, changed))


def linked(previous: bytes, step: bytes) -> bytes:
    """The chain after a step, of which only the digest is known."""
    return sha256(_CHAIN + previous + _DIGEST_LENGTH + step).digest()


def step_digest(data: Sequence[bytes], changed: bytes) -> bytes:
    """H(entries of one step, digest of its changes), over bytes in which the last entry has no chain."""
    pieces = [_STEP]
    for each in data:
        length = len(each)
        pieces += (_LENGTHS[length] if length < _LENGTHS_END else length.to_bytes(_LENGTH_BYTES, "big"), each)
    pieces += (_DIGEST_LENGTH, changed)
    return sha256(b"".join(pieces)).digest()


def chain_digest(previous: bytes, entries: Sequence[journal.JournalEntry], changed: bytes) -> bytes:
    """The same of decoded entries; the last one's own chain field does not count."""
    *others, last = entries
    open_ended = [*others, msgspec.structs.replace(last, chain=b"")]
    return chain_of(previous, [structs.encode(entry) for entry in open_ended], changed)


def append(batch: kv.Batch, at: ids.Address, sealed: SealedSteps, *, before_raw: bytes) -> bytes:
    """Write a sealed step (or several, one after the other) and move the head. Guard: the head as it was read. Returns
    the bytes of the new head.
    """
    before, entries, after = sealed.before, sealed.entries, sealed.after
    assert entries
    # Cheaper than packing the head again, and a digest does not stand in other bytes by chance.
    assert before.chain in before_raw, "these steps follow another head"
    first, last = entries[0], entries[-1]
    assert first.height == before.height + 1
    assert first.step == before.step + 1
    assert last.step == after.step
    assert last.height == after.height
    assert len(entries) == len(sealed.data) == after.height - before.height
    assert len(sealed.changes) == after.step - before.step
    assert last.chain == after.chain
    chunks = [*sealed.data, *sealed.changes]
    # Nearly every step is one frame: it is packed without working out cuts.
    if stored_bytes(chunks) <= limits.FRAME_BYTES_MAX:
        batch.put(keys.frame_key(at, after.height), keys.pack_whole(chunks, entries=len(entries)))
    else:
        # A list first: an entry that is too large raises before anything of the step is in the batch.
        for cut in list(_cut(sealed)):
            _put(batch, at, cut)
    head_key, head_raw = keys.head_key(at), keys.HEAD.pack(after)
    batch.expect(head_key, before_raw)
    batch.put(head_key, head_raw)
    return head_raw


def stored_bytes(chunks: Sequence[bytes]) -> int:
    """What entries, and the changes of the steps that end with them, take in frames."""
    return sum(map(len, chunks)) + frame.CHUNK_OVERHEAD_BYTES * len(chunks)


def read_range(at: ids.Address, *, above: int = 0, bytes_max: int = limits.RANGE_BYTES_DEFAULT) -> kv.Range:
    """The frames with entries above a height. If the page says `more`, continue above the last entry decoded."""
    begin, end = keys.frames(at, above=above)
    return kv.Range(begin, end, bytes_max=bytes_max)


def decode(at: ids.Address, items: Iterable[tuple[bytes, bytes]], *, above: int) -> list[journal.JournalEntry]:
    """The entries above a height, from frames that were read. A gap, a repeat or a misfiled frame is corruption."""
    entries: list[journal.JournalEntry] = []
    expected: int | None = None
    for key, raw in items:
        last_height, part = keys.frame_place(at, key)
        # A part has only changes. It is skipped where it belongs; elsewhere it is read as a frame, and refused.
        if part and expected == last_height + 1:
            continue
        found = _decode_frame(last_height, raw)
        first = found[0].height
        if first > above + 1 if expected is None else first != expected:
            raise errors.DecodeError(f"height {expected or above + 1} should follow; the next frame begins at {first}")
        entries += found if first > above else [entry for entry in found if entry.height > above]
        expected = found[-1].height + 1
    return entries


def verify(last: journal.Head, entries: Sequence[journal.JournalEntry], changed: Sequence[bytes]) -> journal.Head:
    """Recompute the chain over whole steps that follow `last`. Returns the head they lead to. `changed`: the digest
    of each step's changes (`state_digest.changes_digest`).

    `DecodeError` for entries that do not follow each other, `DigestMismatch` for a chain that is not theirs.
    """
    head = last
    step: list[journal.JournalEntry] = []
    for entry in entries:
        if entry.height != head.height + len(step) + 1 or entry.step != head.step + 1:
            raise errors.DecodeError(f"entry {entry.height} of step {entry.step} does not follow step {head.step}")
        step.append(entry)
        if entry.time_us < head.time_us or entry.time_us != step[0].time_us:
            raise errors.DecodeError(f"time goes back, or changes within a step, at height {entry.height}")
        if not entry.chain:
            continue
        index = head.step - last.step
        if index >= len(changed):
            raise errors.DecodeError(f"the changes of step {entry.step} are missing")
        actual = chain_digest(head.chain, step, changed[index])
        if actual != entry.chain:
            raise errors.DigestMismatch(f"chain of step {entry.step}", expected=entry.chain, actual=actual)
        if not entry.state:
            raise errors.DecodeError(f"the last entry of step {entry.step} has no state digest")
        head = journal.Head(entry.step, entry.height, entry.chain, entry.state, entry.time_us)
        step = []
    if step:
        raise errors.DecodeError(f"the journal ends inside step {step[0].step}")
    if len(changed) > head.step - last.step:
        raise errors.DecodeError(f"changes of step {head.step + 1}, which has no entries")
    return head


def _decode_frame(last_height: int, raw: bytes) -> list[journal.JournalEntry]:
    """The entries of one frame: contiguous, and up to the height the frame is filed under."""
    found = [structs.decode(journal.JournalEntry, data) for data in keys.unpack_frame(raw).entries]
    first = last_height - len(found) + 1
    if not found or any(entry.height != first + index for index, entry in enumerate(found)):
        raise errors.DecodeError(f"the frame filed under height {last_height} does not hold the entries up to there")
    return found


class _Cut(msgspec.Struct):
    """What goes into one frame, and into the parts behind it."""

    height: int
    data: list[bytes] = []
    changes: list[bytes] = []
    size: int = 0


def _cut(sealed: SealedSteps) -> Iterator[_Cut]:
    """Entries, each step's last one with the step's changes, in frames as full as can be. Changes that no frame has
    room for go with their entry all the same: what is too much stands in parts.
    """
    cut = _Cut(sealed.before.height)
    changes = iter(sealed.changes)
    for entry, data in zip(sealed.entries, sealed.data, strict=True):
        length = len(data) + frame.CHUNK_OVERHEAD_BYTES
        if length > limits.FRAME_BYTES_MAX:
            raise errors.TooLarge("journal entry", size=length, limit=limits.FRAME_BYTES_MAX)
        ended = [next(changes)] if entry.chain else []
        whole = length + stored_bytes(ended)
        # Changes that fit into no frame go into parts anyway: then only the entry decides whether a new frame begins.
        if cut.data and cut.size + (whole if whole <= limits.FRAME_BYTES_MAX else length) > limits.FRAME_BYTES_MAX:
            yield cut
            cut = _Cut(cut.height)
        cut.height = entry.height
        cut.data.append(data)
        cut.changes += ended
        cut.size += whole
    yield cut


def _put(batch: kv.Batch, at: ids.Address, cut: _Cut) -> None:
    section = b"".join(map(frame.chunk, cut.changes))
    room = limits.FRAME_BYTES_MAX - stored_bytes(cut.data)
    rest = [
        section[start : start + limits.FRAME_BYTES_MAX] for start in range(room, len(section), limits.FRAME_BYTES_MAX)
    ]
    batch.put(keys.frame_key(at, cut.height), keys.pack_frame(cut.data, section[:room], parts=len(rest)))
    for number, part in enumerate(rest, 1):
        batch.put(keys.part_key(at, cut.height, number), keys.pack_part(part, part=number))
