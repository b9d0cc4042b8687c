from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.layers import engines, scenario
from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import frame, structs
from worldline.keys import journal as keys
from worldline.layers import journal
from worldline.model import ids
from worldline.model import journal as model
from worldline.model.state_digest import NO_CHANGES
from worldline.store import kv, transact

AT = scenario.address()
STATE = bytes(range(32))
FRAME_VALUE_BYTES = limits.FRAME_BYTES_MAX + keys.HEADER_BYTES + frame.OVERHEAD_BYTES
assert FRAME_VALUE_BYTES <= limits.VALUE_BYTES_MAX
Row = tuple[bytes, bytes]

sizes = st.one_of(st.integers(0, 40), st.sampled_from([8_000, 16_384, 16_385, 70_000]))
drafts = st.builds(
    lambda kind, size, fill, stamp, correlation: model.EntryDraft(kind, bytes([fill]) * size, stamp, correlation),
    st.sampled_from(model.Kind),
    sizes,
    st.integers(0, 255),
    st.sampled_from([b"", b"stampstamp12"]),
    st.sampled_from(["", "trace", "ä"]),
)
steps = st.lists(drafts, min_size=1, max_size=6)


def draft(text: str = "", *, size: int = 0) -> model.EntryDraft:
    return model.EntryDraft(model.Kind.EVENT, text.encode() + bytes(size))


def sealed(
    before: model.Head, many: Sequence[Sequence[model.EntryDraft]], *, time_us: int = 5
) -> tuple[list[model.JournalEntry], model.Head]:
    """Several steps, one after the other."""
    entries: list[model.JournalEntry] = []
    head = before
    for number, each in enumerate(many):
        made = journal.seal(head, each, [], state=STATE, time_us=time_us + number)
        assert made.before == head
        assert made.data == [structs.encode(entry) for entry in made.entries]
        head = made.after
        entries += made.entries
    return entries, head


def append(batch: kv.Batch, at: ids.Address, raw: bytes, entries: list[model.JournalEntry], after: model.Head) -> None:
    """Entries as they are, whatever is wrong with them, after the head that these bytes are."""
    data = [structs.encode(entry) for entry in entries]
    changes = [b"" for entry in entries if entry.chain]
    journal.append(
        batch, at, journal.SealedSteps(journal.decode_head(raw), entries, data, after, changes), before_raw=raw
    )


def verify(before: model.Head, entries: Sequence[model.JournalEntry]) -> model.Head:
    """Steps that changed nothing."""
    return journal.verify(before, entries, [NO_CHANGES] * sum(1 for entry in entries if entry.chain))


class Writer:
    """A world's journal, written and read in a plain store."""

    def __init__(self) -> None:
        self.store = scenario.Store()
        self.store.create_world()

    def add(self, *many: Sequence[model.EntryDraft]) -> list[model.JournalEntry]:
        raw = self.store.head_raw(AT)
        entries, after = sealed(journal.decode_head(raw), many, time_us=self.store.time_us)
        batch = kv.Batch()
        append(batch, AT, raw, entries, after)
        self.store.ok(batch)
        return entries

    def frames(self, *, above: int = 0) -> list[Row]:
        return self.store.read(journal.read_range(AT, above=above, bytes_max=1 << 30)).page(0).items

    def head(self) -> model.Head:
        return self.store.head(AT)

    def read_paged(self, *, above: int, bytes_max: int) -> list[model.JournalEntry]:
        entries: list[model.JournalEntry] = []
        more = True
        while more:
            last = entries[-1].height if entries else above
            page = self.store.read(journal.read_range(AT, above=last, bytes_max=bytes_max)).page(0)
            entries += journal.decode(AT, page.items, above=last)
            more = page.more
        return entries


def four_frames() -> Writer:
    """Steps of one, four and two entries, in frames [1], [2, 3, 4], [5] and [6, 7]."""
    writer = Writer()
    writer.add([draft("one")])
    writer.add([draft(text, size=16_000) for text in ("two", "three", "four", "five")])
    writer.store.env.advance_us(10)
    writer.add([draft("six"), draft("seven")])
    assert [keys.frame_height(AT, key) for key, _ in writer.frames()] == [1, 4, 5, 7]
    return writer


class JournalMachine(RuleBasedStateMachine):
    """The journal against a list of entries."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = Writer()
        self.entries: list[model.JournalEntry] = []
        self.ends = [model.GENESIS]

    @rule(many=st.lists(steps, min_size=1, max_size=3))
    def add(self, many: list[list[model.EntryDraft]]) -> None:
        added = self.writer.add(*many)
        wanted = [each for step in many for each in step]
        assert [(e.kind, e.payload or e.blob, e.stamp, e.correlation) for e in added] == [
            (d.kind, model.blob_of(d.payload) or d.payload, d.stamp, d.correlation) for d in wanted
        ]
        self.entries += added
        for entry in added:
            if entry.chain:
                self.ends.append(model.Head(entry.step, entry.height, entry.chain, entry.state, entry.time_us))
        assert len(self.ends) == 1 + self.ends[-1].step

    @rule(by_us=st.integers(-(10**7), 10**7))
    def move_the_clock(self, by_us: int) -> None:
        self.writer.store.env.jump_wall_us(by_us)

    @rule(many=st.lists(steps, min_size=1, max_size=2), behind=st.integers(1, 3))
    def add_late(self, many: list[list[model.EntryDraft]], behind: int) -> None:
        """A writer that read an earlier head loses, whatever it writes."""
        if len(self.ends) > behind:
            before = self.ends[-1 - behind]
            entries, after = sealed(before, many)
            batch = kv.Batch()
            append(batch, AT, journal.pack_head(before), entries, after)
            assert [key for key, _ in self.writer.store.conflict(batch).found] == [keys.head_key(AT)]

    @rule(above=st.integers(0, 40), bytes_max=st.sampled_from([1, 70_000, 1 << 20]))
    def read(self, above: int, bytes_max: int) -> None:
        assert self.writer.read_paged(above=above, bytes_max=bytes_max) == self.entries[above:]

    @invariant()
    def the_head_names_the_last_entry(self) -> None:
        assert self.writer.head() == self.ends[-1]
        assert self.ends[-1].height == len(self.entries)

    @invariant()
    def heights_steps_and_times_are_in_order(self) -> None:
        assert [entry.height for entry in self.entries] == list(range(1, len(self.entries) + 1))
        for before, after in itertools.pairwise(self.entries):
            assert after.step == before.step + bool(before.chain)
            assert after.time_us >= before.time_us

    @invariant()
    def the_chain_holds_from_every_step_end(self) -> None:
        for end in self.ends:
            assert verify(end, self.entries[end.height :]) == self.ends[-1]

    @invariant()
    def frames_fit_and_are_filled(self) -> None:
        for key, raw in self.writer.frames():
            assert len(raw) <= FRAME_VALUE_BYTES
            last = journal.decode(AT, [(key, raw)], above=keys.frame_height(AT, key) - 1)
            assert [entry.height for entry in last] == [keys.frame_height(AT, key)]


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=40, stateful_step_count=15)


@settings(max_examples=40)
@given(st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=4))
def test_every_height_is_read_from_one_place(commits: list[list[list[model.EntryDraft]]]) -> None:
    """decode(above=h), for every h, from the frames of that range and from all frames: exactly the entries above."""
    writer = Writer()
    entries = [entry for many in commits for entry in writer.add(*many)]
    everything = writer.frames()
    for above in range(len(entries) + 1):
        assert journal.decode(AT, writer.frames(above=above), above=above) == entries[above:]
        assert journal.decode(AT, everything, above=above) == entries[above:]
    assert verify(model.GENESIS, entries) == writer.head()
    packed = [len(structs.encode(entry)) + frame.CHUNK_OVERHEAD_BYTES for entry in entries]
    commit_ends = {sum(len(step) for many in commits[: n + 1] for step in many) for n in range(len(commits))}
    for (key, raw), (following, _) in itertools.pairwise(everything):
        last = keys.frame_height(AT, key)
        assert keys.frame_height(AT, following) > last
        if last not in commit_ends:
            assert len(raw) + packed[last] + frame.CHUNK_OVERHEAD_BYTES > FRAME_VALUE_BYTES, "cut before it was full"


@settings(max_examples=30)
@given(st.data())
def test_any_damage_to_the_frames_is_found(data: st.DataObject) -> None:
    """A flipped byte, a frame removed, doubled, swapped, cut, or filed elsewhere."""
    writer = Writer()
    for many in data.draw(st.lists(st.lists(steps, min_size=1, max_size=2), min_size=2, max_size=5)):
        writer.add(*many)
    rows = writer.frames()
    head = writer.head()
    assert found_good(rows, head)
    index = data.draw(st.integers(0, len(rows) - 1))
    key, raw = rows[index]
    position = data.draw(st.integers(0, len(raw) - 1))
    damaged = [
        [*rows[:index], (key, scenario.flipped(raw, at=position)), *rows[index + 1 :]],
        [*rows[:index], (key, raw[:position]), *rows[index + 1 :]],
        [*rows[:index], *rows[index + 1 :]],
        [*rows[: index + 1], *rows[index:]],
        [*rows[:index], (keys.frame_key(AT, head.height + 1), raw), *rows[index + 1 :]],
        [*rows, rows[index]],
    ]
    other = data.draw(st.integers(0, len(rows) - 1))
    if other != index:
        swapped = list(rows)
        swapped[index], swapped[other] = rows[other], rows[index]
        damaged.append(swapped)
        misfiled = list(rows)
        misfiled[index], misfiled[other] = (key, rows[other][1]), (rows[other][0], raw)
        damaged.append(misfiled)
    for bad in damaged:
        assert not found_good(bad, head)


def found_good(rows: list[Row], head: model.Head) -> bool:
    """What a reader does: decode, verify, and compare with the head."""
    try:
        return verify(model.GENESIS, journal.decode(AT, rows, above=0)) == head
    except errors.Corrupt:
        return False


CHANGES: list[dict[str, Any]] = [
    {"payload": b"other"},
    {"kind": model.Kind.CONTROL},
    {"stamp": b"anotherstamp"},
    {"correlation": "other"},
    {"time_us": 1},
    {"step": 9},
    {"height": 9},
    {"state": bytes(32)},
    {"chain": bytes(32)},
    {"payload": b"", "blob": bytes(32)},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(change))
@pytest.mark.parametrize("height", [1, 2, 4, 5, 6, 7])
def test_a_changed_entry_in_a_sound_frame_is_found(height: int, change: dict[str, Any]) -> None:
    """The checksum is right, the history is not."""
    writer = four_frames()
    entries = journal.decode(AT, writer.frames(), above=0)
    forged = list(entries)
    forged[height - 1] = msgspec.structs.replace(entries[height - 1], **change)
    assert forged != entries
    with pytest.raises((errors.DigestMismatch, errors.DecodeError)):
        assert verify(model.GENESIS, forged) == writer.head()


def test_a_forged_history_is_told_by_the_head() -> None:
    """Whoever forges the chain as well makes another history, and that has another head."""
    writer = four_frames()
    forged, head = sealed(model.GENESIS, [[draft("one")], [draft("2")], [draft("five"), draft("six")]])
    assert verify(model.GENESIS, forged) == head
    assert head != writer.head()


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        ([0, 1, 2, 3, 4, 5], "the journal ends inside step 3"),
        ([1, 2, 3, 4], "entry 2 of step 2 does not follow step 0"),
        ([0, 2, 3, 4], "entry 3 of step 2 does not follow step 1"),
        ([0, 1, 1, 2, 3], "entry 2 of step 2 does not follow step 1"),
        ([0, 5, 6], "entry 6 of step 3 does not follow step 1"),
        ([0, 0], "entry 1 of step 1 does not follow step 1"),
    ],
)
def test_entries_that_do_not_follow_each_other_are_refused(keep: list[int], why: str) -> None:
    entries = journal.decode(AT, four_frames().frames(), above=0)
    with pytest.raises(errors.DecodeError, match=why):
        verify(model.GENESIS, [entries[index] for index in keep])


def resealed(entries: list[model.JournalEntry]) -> list[model.JournalEntry]:
    """One step whose chain is right, whatever else is wrong."""
    chain = journal.chain_digest(model.GENESIS.chain, entries, NO_CHANGES)
    return [*entries[:-1], msgspec.structs.replace(entries[-1], chain=chain)]


def test_time_stands_still_in_a_step_and_never_goes_back() -> None:
    entries, head = sealed(model.GENESIS, [[draft("a"), draft("b")]], time_us=100)
    uneven = resealed([entries[0], msgspec.structs.replace(entries[1], time_us=101, chain=b"")])
    with pytest.raises(errors.DecodeError, match="time goes back, or changes within a step, at height 2"):
        verify(model.GENESIS, uneven)
    later = msgspec.structs.replace(model.GENESIS, time_us=101)
    with pytest.raises(errors.DecodeError, match="time goes back, or changes within a step, at height 1"):
        verify(later, entries)
    assert verify(msgspec.structs.replace(model.GENESIS, time_us=100), entries) == head


def test_no_step_is_left_out() -> None:
    """The chain is right, the number is not."""
    entries, _ = sealed(model.GENESIS, [[draft("a")]])
    with pytest.raises(errors.DecodeError, match="entry 1 of step 2 does not follow step 0"):
        verify(model.GENESIS, resealed([msgspec.structs.replace(entries[0], step=2, chain=b"")]))


def test_a_step_without_a_state_digest_is_refused() -> None:
    entries, _ = sealed(model.GENESIS, [[draft("a")]])
    with pytest.raises(errors.DecodeError, match="no state digest"):
        verify(model.GENESIS, resealed([msgspec.structs.replace(entries[0], state=b"", chain=b"")]))


def test_nothing_after_a_head_is_that_head() -> None:
    head = four_frames().head()
    assert verify(head, []) == head
    assert journal.decode(AT, [], above=7) == []


def entry_at(height: int) -> bytes:
    return structs.encode(model.JournalEntry(height, 1, model.Kind.EVENT, 0, b""))


@pytest.mark.parametrize(
    ("rows", "above", "why"),
    [
        ([(keys.frame_key(AT, 2), [2])], 0, "height 1 should follow; the next frame begins at 2"),
        ([(keys.frame_key(AT, 1), [1]), (keys.frame_key(AT, 3), [3])], 0, "height 2 should follow"),
        ([(keys.frame_key(AT, 1), [1]), (keys.frame_key(AT, 3), [3])], 2, "height 2 should follow"),
        ([(keys.frame_key(AT, 2), [1, 2]), (keys.frame_key(AT, 3), [2, 3])], 0, "height 3 should follow"),
        ([(keys.frame_key(AT, 2), [1, 2]), (keys.frame_key(AT, 2), [1, 2])], 0, "height 3 should follow"),
        ([(keys.frame_key(AT, 5), [5])], 3, "height 4 should follow; the next frame begins at 5"),
        ([(keys.frame_key(AT, 3), [1, 3])], 2, "filed under height 3 does not hold the entries up to there"),
        ([(keys.frame_key(AT, 3), [1, 2])], 0, "filed under height 3"),
        ([(keys.frame_key(AT, 3), [])], 0, "filed under height 3"),
        ([(keys.frame_key(AT, 3), [3, 2])], 0, "filed under height 3"),
        ([(keys.frame_key(scenario.address(1), 1), [1])], 0, "not a frame key of this world"),
        ([(keys.head_key(AT), [1])], 0, "not a frame key of this world"),
    ],
)
def test_frames_that_do_not_belong_are_refused(rows: list[tuple[bytes, list[int]]], above: int, why: str) -> None:
    packed = [(key, keys.pack_frame([entry_at(height) for height in heights])) for key, heights in rows]
    with pytest.raises(errors.DecodeError, match=why):
        journal.decode(AT, packed, above=above)


@pytest.mark.parametrize("raw", [b"", b"garbage", frame.wrap(12, b""), keys.pack_frame([b"\xf6"])])
def test_what_is_no_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(errors.DecodeError):
        journal.decode(AT, [(keys.frame_key(AT, 1), raw)], above=0)


def test_golden_chain() -> None:
    """Worked out by hand from the definition: lengths in eight bytes, the domain first, the last chain left empty."""
    entries, head = sealed(
        model.GENESIS, [[draft("a"), model.EntryDraft(model.Kind.EFFECT_REQUESTED, b"b", b"stampstamp12", "c")]]
    )
    first = bytes.fromhex("8a010101054161" + "4060404040")
    last = bytes.fromhex("8a020118210541624c" + b"stampstamp12".hex() + "61635820" + STATE.hex() + "4040")
    nothing = hashlib.sha256((7).to_bytes(8, "big") + b"changes").digest()

    def hashed(*parts: bytes) -> bytes:
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()

    step = hashed(b"step", first, last, nothing)
    expected = hashed(b"chain", bytes(32), step)
    assert step.hex() == "11ba7023d852cfa61b47993a98bfe8df4daeff0acebe6e706fde3844baa6df82"
    assert expected.hex() == "514b4187d67d3e6a92e800d07a759607bf96141aa8c62b283aa508328c6bec48"
    assert head == model.Head(1, 2, expected, STATE, 5)
    assert entries[-1].chain == expected


def test_a_step_is_sealed_with_the_later_of_both_times() -> None:
    before = model.Head(4, 9, STATE, STATE, 100)
    for time_us, expected in ((50, 100), (100, 100), (150, 150)):
        entries, head = sealed(before, [[draft("a"), draft("b")]], time_us=time_us)
        assert [entry.time_us for entry in entries] == [expected] * 2
        assert (head.step, head.height, head.time_us) == (5, 11, expected)
        assert [bool(entry.chain) for entry in entries] == [False, True]


def test_a_step_is_bounded() -> None:
    """What stands in the entries counts; what is in the CAS does not."""
    largest = [draft(size=limits.INLINE_BYTES_MAX)] * (limits.STEP_BYTES_MAX // limits.INLINE_BYTES_MAX)
    elsewhere = [draft(size=limits.STEP_BYTES_MAX)] * 2
    entries, after = sealed(model.GENESIS, [[*largest, *elsewhere]])
    batch = kv.Batch()
    append(batch, AT, journal.pack_head(model.GENESIS), entries, after)
    kv.check(batch)
    with pytest.raises(errors.TooLarge, match="a step's payloads"):
        journal.seal(model.GENESIS, [*largest, draft("x")], [], state=STATE, time_us=0)


@pytest.mark.parametrize(("size", "named"), [(0, False), (limits.INLINE_BYTES_MAX, False), (70_000, True)])
def test_a_large_payload_is_named_by_its_address(size: int, named: bool) -> None:
    entries, head = sealed(model.GENESIS, [[draft(size=size)]])
    assert entries[0].payload == (b"" if named else bytes(size))
    assert entries[0].blob == (hashlib.sha256(bytes(size)).digest() if named else b"")
    assert verify(model.GENESIS, entries) == head


def fitting(extra: int) -> model.EntryDraft:
    """A draft whose entry, the only one of a step that changes nothing, fills a frame to the last byte, and `extra`
    bytes more.
    """
    wide = model.EntryDraft(model.Kind.EVENT, b"", correlation="x" * 50_000)
    bare = len(structs.encode(sealed(model.GENESIS, [[wide]])[0][0])) - 50_000
    room = limits.FRAME_BYTES_MAX - 2 * frame.CHUNK_OVERHEAD_BYTES - bare + extra
    return msgspec.structs.replace(wide, correlation="x" * room)


def test_an_entry_must_fit_into_a_frame() -> None:
    raw = journal.pack_head(model.GENESIS)
    entries, after = sealed(model.GENESIS, [[fitting(0)]])
    batch = kv.Batch()
    append(batch, AT, raw, entries, after)
    assert len(batch.puts[keys.frame_key(AT, 1)].value) == FRAME_VALUE_BYTES
    assert keys.part_key(AT, 1, 1) not in batch.puts
    entries, after = sealed(model.GENESIS, [[fitting(4)]])
    batch = kv.Batch()
    append(batch, AT, raw, entries, after)
    assert len(batch.puts[keys.frame_key(AT, 1)].value) == FRAME_VALUE_BYTES
    assert keys.part_key(AT, 1, 1) in batch.puts
    entries, after = sealed(model.GENESIS, [[draft(size=16_000)] * 5, [fitting(5)]])
    batch = kv.Batch()
    with pytest.raises(errors.TooLarge, match="journal entry is 61441 bytes; the limit is 61440"):
        append(batch, AT, raw, entries, after)
    assert not batch.puts


@pytest.mark.parametrize(("extra", "frames"), [(-1, [2]), (0, [2]), (1, [1, 2])])
def test_a_frame_is_filled_to_the_last_byte(extra: int, frames: list[int]) -> None:
    first = draft(size=10_000)
    used = len(structs.encode(sealed(model.GENESIS, [[first, first]])[0][0])) + frame.CHUNK_OVERHEAD_BYTES
    entries, after = sealed(model.GENESIS, [[first, fitting(extra - used)]])
    batch = kv.Batch()
    append(batch, AT, journal.pack_head(model.GENESIS), entries, after)
    assert [keys.frame_height(AT, key) for key in batch.puts if key != keys.head_key(AT)] == frames


def test_only_whole_sealed_steps_are_appended() -> None:
    raw = journal.pack_head(model.GENESIS)
    entries, after = sealed(model.GENESIS, [[draft("a"), draft("b")], [draft("c")]])
    later, _ = sealed(after, [[draft("d")]])
    wrong: list[tuple[list[model.JournalEntry], model.Head]] = [
        ([], after),
        (entries[1:], after),
        (entries[:-1], after),
        ([entries[0], entries[2]], after),
        (later, after),
        (entries, msgspec.structs.replace(after, chain=bytes(32))),
        (entries, msgspec.structs.replace(after, step=1)),
        ([msgspec.structs.replace(entries[0], step=2), *entries[1:]], after),
        ([msgspec.structs.replace(entries[0], height=2), *entries[1:]], after),
    ]
    for bad, head in wrong:
        with pytest.raises(AssertionError):
            append(kv.Batch(), AT, raw, bad, head)
    good = journal.seal(model.GENESIS, [draft("a")], [], state=STATE, time_us=0)
    with pytest.raises(AssertionError, match="another head"):
        journal.append(kv.Batch(), AT, good, before_raw=journal.pack_head(after))
    with pytest.raises(AssertionError):
        journal.append(kv.Batch(), AT, msgspec.structs.replace(good, data=good.data * 2), before_raw=raw)
    with pytest.raises(AssertionError, match="at least the input"):
        journal.seal(model.GENESIS, [], [], state=STATE, time_us=0)
    with pytest.raises(AssertionError):
        journal.seal(model.GENESIS, [draft("a")], [], state=b"", time_us=0)


def test_a_world_that_does_not_exist_has_no_journal() -> None:
    with pytest.raises(errors.NotFound):
        journal.decode_head(None)
    for bad in (b"", b"garbage", scenario.flipped(journal.pack_head(model.GENESIS))):
        with pytest.raises(errors.DecodeError):
            journal.decode_head(bad)


def test_a_journal_shows_no_frame_of_its_neighbours() -> None:
    writer = Writer()
    writer.add([draft("mine")])
    for number in (1, 2):
        at = scenario.address(number)
        writer.store.create_world(number)
        entries, after = sealed(model.GENESIS, [[draft("theirs")]])
        batch = kv.Batch()
        append(batch, at, writer.store.head_raw(at), entries, after)
        writer.store.ok(batch)
    assert [entry.payload for entry in journal.decode(AT, writer.frames(), above=0)] == [b"mine"]


@pytest.mark.parametrize("plan", [["lost"], ["applied"], ["late"], ["applied", "late", "lost"]])
def test_lost_answers_append_once(plan: list[str]) -> None:
    writer = Writer()
    raw = writer.store.head_raw(AT)
    entries, after = sealed(model.GENESIS, [[draft("a")]])
    batch = kv.Batch()
    append(batch, AT, raw, entries, after)
    [outcome] = scenario.now(transact.commit(scenario.Unsure(writer.store.engine, plan), writer.store.env, batch))
    assert isinstance(outcome, kv.Ok)
    assert journal.decode(AT, writer.frames(), above=0) == entries
    assert writer.head() == after


def test_a_writer_that_lost_is_told_so_also_after_a_lost_answer() -> None:
    """Both write step 1, height 1; the chain in the head tells whose it is."""
    writer = Writer()
    raw = writer.store.head_raw(AT)
    batches = []
    for text in ("mine", "theirs"):
        entries, after = sealed(model.GENESIS, [[draft(text)]])
        batches.append(kv.Batch())
        append(batches[-1], AT, raw, entries, after)
    mine, theirs = batches
    slow = engines.Meddled(writer.store.engine, lambda: writer.store.engine.commit(theirs), lost=True)
    [outcome] = scenario.now(transact.commit(slow, writer.store.env, mine))
    assert isinstance(outcome, kv.Conflict)
    assert [entry.payload for entry in journal.decode(AT, writer.frames(), above=0)] == [b"theirs"]


@pytest.mark.parametrize("name", engines.NAMES)
async def test_of_many_writers_on_one_head_one_wins(name: str, tmp_path: Path) -> None:
    env = envs.FixedEnv()
    async with engines.opened(name, tmp_path, env) as engine:
        await scenario.create_world(engine, env)
        for turn in range(3):
            raw = (await engine.read(journal.get_head(AT))).value(0)
            assert raw is not None
            batches = []
            for number in range(6):
                entries, after = sealed(
                    journal.decode_head(raw), [[draft(f"{turn}/{number}"), *[draft(size=16_000)] * 4]]
                )
                batches.append(kv.Batch())
                append(batches[-1], AT, raw, entries, after)
            outcomes = [each for [each] in await asyncio.gather(*(engine.commit(batch) for batch in batches))]
            assert [isinstance(each, kv.Ok) for each in outcomes].count(True) == 1
        read = await engine.read(journal.get_head(AT), journal.read_range(AT, bytes_max=1 << 30))
        entries = journal.decode(AT, read.page(1).items, above=0)
        assert verify(model.GENESIS, entries) == journal.decode_head(read.value(0))
        assert (len(read.page(1).items), len(entries)) == (6, 15)
