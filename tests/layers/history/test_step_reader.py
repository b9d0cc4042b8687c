"""Steps with their changes, through frames and back: any of them, and whatever is damaged is found and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layers import scenario
from tests.layers.histories import AT, LARGE, History, drafts, forms, histories, noise, read
from worldline.base import errors, limits
from worldline.codec import frame
from worldline.keys import journal as keys
from worldline.layers import journal as journals
from worldline.layers import step_changes as stored_changes
from worldline.layers.history import history_line, step_reader
from worldline.model import change as model
from worldline.model import journal, row_keys, state_digest
from worldline.model.change import Row
from worldline.model.rows import Rows


@settings(max_examples=60)
@given(histories(), st.sampled_from([1, 2, 1_000]))
def test_any_changes_are_read_back(made: History, page: int) -> None:
    """Entries, changes, rows and both digests, through frames and parts, whatever pages cut."""
    head, rows, steps = made.read(page=page)
    assert head == made.head
    assert list(rows.items()) == list(made.rows.items())
    assert [each.entries() for each in steps] == [entries for entries, _ in made.steps]
    assert journals.decode(AT, made.items, above=0) == [entry for entries, _ in made.steps for entry in entries]
    covered = [state_digest.changes_digest(changes) for _, changes in made.steps]
    entries = [entry for each in steps for entry in each.entries()]
    assert journals.verify(journal.GENESIS, entries, covered) == made.head


@settings(max_examples=60)
@given(histories(), st.data())
def test_reading_may_start_at_any_step(made: History, data: st.DataObject) -> None:
    """The first frame may hold steps below, and their changes."""
    start = data.draw(st.integers(0, len(made.steps) - 1))
    _, _, steps = made.read()
    above = made.steps[start - 1][0][-1].height if start else 0
    reader = step_reader.StepReader(history_line.HistoryLine(AT), above=above)
    wanted = reader.wanted()
    found = reader.take([each for each in made.items if wanted.begin <= each[0] < wanted.end])
    reader.check_end()
    assert [each.entries() for each in found] == [entries for entries, _ in made.steps[start:]]
    inlined = [each for each in found if not step_reader.is_apart(each)]
    assert all(each.changes == other.changes for each in inlined for other in steps if other.step == each.step)


@settings(max_examples=100)
@given(histories(), st.data())
def test_any_flipped_bit_is_found(made: History, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(made.items) - 1))
    key, raw = made.items[index]
    position = data.draw(st.integers(0, len(raw) - 1))
    flipped = scenario.flipped(raw, at=position)
    with pytest.raises(errors.Corrupt):
        read([*made.items[:index], (key, flipped), *made.items[index + 1 :]], made.blobs)
    with pytest.raises(errors.Corrupt):
        _same_head(made, [*made.items[:index], *made.items[index + 1 :]])
    with pytest.raises(errors.Corrupt):
        read([*made.items[:index], (key, raw[:-1]), *made.items[index + 1 :]], made.blobs)


def _same_head(made: History, items: list[tuple[bytes, bytes]]) -> None:
    """If the last frame is missing, only the head tells."""
    if read(items, made.blobs)[0] != made.head:
        raise errors.DecodeError("another head")


def forged(made: History, change: Callable[[bytes], bytes]) -> list[tuple[bytes, bytes]]:
    """The history with the joined changes of its only frame changed, and the checksum mended."""
    [(key, raw)] = made.items
    read = keys.unpack_frame(raw)
    return [(key, keys.pack_frame(read.entries, change(read.changes)))]


def test_changes_that_were_forged_are_named() -> None:
    """The checksum is right. Whatever bit of the changes is flipped, the step and the rows are named."""
    made = History()
    key = row_keys.cell("Orders", "alice")
    made.commit(([b"one"], []), ([b"two", b"three"], [model.put(key, Row(b"meaning", b"place"))]))
    [(_, raw)] = made.items
    size = len(keys.unpack_frame(raw).changes)
    assert made.read()[0] == made.head
    for position in range(size):
        items = forged(made, lambda changes, position=position: scenario.flipped(changes, at=position))  # type: ignore[misc]
        with pytest.raises(errors.Corrupt) as caught:
            read(items, {})
        if position >= 2 * frame.CHUNK_OVERHEAD_BYTES:
            assert "step 2, which ends at height 3" in str(caught.value), position
    items = forged(made, lambda changes: changes.replace(b"meaning", b"leaning"))
    with pytest.raises(errors.DigestMismatch, match=r"step 2, which ends at height 3: .*\(cell Orders\['alice'\]\)"):
        read(items, {})
    items = forged(made, lambda changes: changes.replace(b"place", b"plate"))
    with pytest.raises(errors.DigestMismatch, match="chain of step 2, which ends at height 3"):
        read(items, {})


def test_a_state_that_the_changes_do_not_lead_to_is_refused() -> None:
    """The chain fits, because the step was written with a wrong state."""
    changes = [model.put(row_keys.cell("Orders", "alice"), Row(b"meaning"))]
    sealed = journals.seal(journal.GENESIS, drafts(b"one"), changes, state=bytes(range(32)), time_us=5)
    step = step_reader.stored(sealed.entries, sealed.changes[0])
    rows = Rows()
    with pytest.raises(errors.DigestMismatch, match=r"changes of step 1, .*\(cell Orders\['alice'\]\)"):
        step_reader.fold(journal.GENESIS, [step], rows, {})
    assert list(rows.items()) == []


@pytest.mark.parametrize(("count", "parts"), [(1, 0), (60, 0), (62, 1), (200, 3)])
def test_changes_overflow_into_parts(count: int, parts: int) -> None:
    """Rows of a step that a frame has no room for follow it. Readers of entries do not see them."""
    made = History()
    made.commit(([b"first"], []))
    changes = [model.put(index.to_bytes(2, "big"), Row(noise(990, index))) for index in range(count)]
    made.commit(([b"input", b"more"], changes))
    made.commit(([b"last"], [model.gone(bytes(2))]))
    places = [keys.frame_place(AT, key) for key, _ in made.items]
    assert places == [(1, 0), *((3, part) for part in range(parts + 1)), (4, 0)]
    assert all(len(raw) <= limits.VALUE_BYTES_MAX for _, raw in made.items)
    head, rows, _ = made.read(page=1)
    assert (head, list(rows.items())) == (made.head, list(made.rows.items()))
    for above in range(5):
        items = [each for each in made.items if each[0] >= keys.frames(AT, above=above)[0]]
        assert [entry.height for entry in journals.decode(AT, items, above=above)] == list(range(above + 1, 5))


def test_a_part_out_of_place_is_refused() -> None:
    made = History()
    made.commit(([b"input"], [model.put(bytes([index]), Row(noise(16_000, index))) for index in range(12)]))
    made.commit(([b"next"], []))
    frame_of_1, *parts, last = made.items
    assert len(parts) == 3
    for wrong, why in (
        ([frame_of_1, parts[1], parts[2], last], "part 1 of the frame of height 1 is missing"),
        ([frame_of_1, parts[0], parts[2], last], "part 2 of the frame of height 1 is missing"),
        ([frame_of_1, parts[0], parts[1], last], "part 3 of the frame of height 1 is missing"),
        ([frame_of_1, parts[0], parts[1]], "part 3 of the frame of height 1 is missing"),
        ([*parts, last], "part 1 of a frame where the frame of 1 belongs"),
        ([frame_of_1, (parts[0][0], parts[1][1]), *parts[1:]], "part 1 of the frame of height 1 is missing"),
    ):
        with pytest.raises(errors.DecodeError, match=why):
            read(wrong, {})
    [(key, raw)] = made.items[-1:]
    more = keys.pack_frame(keys.unpack_frame(raw).entries, frame.join([b"", b""]))
    with pytest.raises(errors.DecodeError, match="changes of more steps than end in it"):
        read([*made.items[:-1], (key, more)], {})


def test_deltas_are_folded_across_steps() -> None:
    """A row that grows, in and out of the CAS, and once dropped with its group and written again in the same step."""
    made = History()
    meaning = noise(50_000)
    made.commit(([b"first"], [model.put(b"gk", Row(meaning))]))
    seen: list[int] = []
    for number in range(40):
        grown = meaning + noise(20, number)
        changes = [model.put(b"gk", Row(grown), base=meaning)]
        made.commit(([b"more"], [model.drop(b"g"), *changes] if number == 20 else changes))
        meaning = grown
    head, rows, steps = made.read()
    assert head == made.head
    assert rows.get(b"gk") == Row(meaning)
    for each in steps:
        seen += forms(each.changes)
    assert seen.count(stored_changes.IMAGE_AT) == 3
    assert seen.count(stored_changes.DELTA) == 38
    assert sum(len(raw) for _, raw in made.items) < 40 * 500


def test_a_blob_that_is_not_that_of_the_row_is_named() -> None:
    made = History()
    made.commit(([b"input"], [model.put(b"k", Row(noise(LARGE)))]))
    [of] = made.blobs
    with pytest.raises(errors.DecodeError, match=r"changes of step 1, which ends at height 1: the row 6b: the blob"):
        read(made.items, {of: b"another"})
