"""How changed rows are stored and read back: every form, every bound, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layers.histories import LARGE, address, drafts, forms, noise
from worldline.base import errors, limits
from worldline.codec import canonical, delta
from worldline.layers import step_changes as stored_changes
from worldline.model import change as model
from worldline.model import row_keys, state_digest
from worldline.model.change import Change, Row


def encoded(
    changes: Sequence[Change], *payloads: bytes, book: stored_changes.Book | None = None
) -> tuple[bytes, dict[bytes, bytes]]:
    """The stored form of changes, and what it puts into the CAS."""
    large: list[bytes] = []
    stored = stored_changes.encode(changes, drafts(*payloads), book or stored_changes.Book(), large)
    return stored, {address(each): each for each in large}


def resolved(
    stored: bytes, blobs: dict[bytes, bytes], *payloads: bytes, rows: Callable[[bytes], Row | None] = lambda _: None
) -> list[Change]:
    return stored_changes.resolve(stored, rows, lambda index: payloads[index], blobs)


def logical(changes: Sequence[Change]) -> list[tuple[Any, ...]]:
    """What is hashed of changes, and what is applied."""
    return [(each.key, each.row, each.digest, each.is_group) for each in changes]


# --- Forms ---------------------------------------------------------------------------------------------------------


def test_golden_changes() -> None:
    """Each form, worked out by hand."""
    slot = b"0123456789abcdef"
    changes = [model.drop(b"g"), model.gone(b"k"), model.put(b"l", Row(b"mean", b"p"))]
    changes.append(model.put(b"m", Row(b"<" + slot + b">"), slot=(1, 17)))
    stored, blobs = encoded(changes, b"input", b"xx" + slot)
    assert stored.hex() == "0090014167" + "00416b" + "02416c446d65616e4170" + "03416d413c413e01021040"
    assert not blobs
    assert logical(resolved(stored, blobs, b"input", b"xx" + slot)) == logical(changes)


def test_short_changes_are_stored_as_they_are_hashed() -> None:
    changes = [model.drop(b"g"), model.gone(b"k"), model.put(b"l", Row(b"mean", b"p")), model.put(b"m", Row(b""))]
    plain = state_digest.digests(bytes(32), changes)[2]
    stored = stored_changes.encode(changes, drafts(b"input"), stored_changes.Book(), [], plain=plain)
    assert stored.hex() == "0300000011" + "88" + "416701" + "416b00" + "416c446d65616e" + "416d40" + "82417040"
    assert logical(resolved(stored, {})) == logical(changes)
    assert forms(stored) == [stored_changes.GROUP, stored_changes.GONE, stored_changes.FULL, stored_changes.FULL]
    assert not stored_changes.needs_blobs(stored)


@pytest.mark.parametrize("size", [64, 65])
def test_what_is_more_than_short_rows_is_not_plain(size: int) -> None:
    changes = [model.gone(b"k"), model.put(b"l", Row(bytes(size)), slot=(0, 20))]
    assert (state_digest.digests(bytes(32), changes)[2] == b"") is (size > model.SHORT_BYTES_MAX)


def test_very_many_short_rows_are_a_blob() -> None:
    changes = [model.put(number.to_bytes(4, "big"), Row(bytes(60))) for number in range(5_000)]
    large: list[bytes] = []
    plain = state_digest.digests(bytes(32), changes)[2]
    stored = stored_changes.encode(changes, drafts(b"input"), stored_changes.Book(), large, plain=plain)
    assert stored_changes.apart(stored) == address(large[0])
    assert logical(resolved(large[0], {})) == logical(changes)


@pytest.mark.parametrize(
    ("meant", "placed", "why"),
    [
        ([], None, "not a list of keys"),
        ([b"k"], None, "not a list of keys"),
        ({"k": 1}, None, "not a list of keys"),
        ([b"k", b"m"], b"p", "not a list of keys"),
        ([b"k", 2], None, "number 0 is none"),
        ([b"k", False], None, "number 0 is none"),
        ([b"k", bytes(65)], None, "number 0 is none"),
        (["k", b"m"], None, "number 0 is none"),
        ([b"k", b"m"], ["p"], "a placement is bytes"),
        ([b"k", b"m"], [b""], "1 placements of 1 rows"),
        ([b"k", b"m"], [b"p", b"q"], "2 placements of 1 rows"),
        ([b"k", b"m", b"l", b"m"], [b"p"], "1 placements of 2 rows"),
    ],
)
def test_what_is_wrong_with_plain_changes_is_named(meant: Any, placed: Any, why: str) -> None:
    first, second = canonical.encode(meant), b"" if placed is None else canonical.encode(placed)
    stored = b"\x03" + len(first).to_bytes(4, "big") + first + second
    for read in (lambda: resolved(stored, {}), lambda: stored_changes.decode(stored)):
        with pytest.raises(errors.DecodeError, match=why):
            read()


def test_a_payload_of_an_entry_is_stored_once() -> None:
    slot = noise(3_000)
    changes = [model.put(b"k", Row(b"head" + slot + b"tail", b"place"), slot=(4, 3_004))]
    stored, blobs = encoded(changes, b"input", b"more" + slot + b"and more")
    assert len(stored) < 40
    assert not blobs
    assert logical(resolved(stored, {}, b"input", b"more" + slot + b"and more")) == logical(changes)


@pytest.mark.parametrize("size", [model.SLOT_BYTES_MIN - 1, model.SLOT_BYTES_MIN])
def test_a_short_payload_is_not_looked_for(size: int) -> None:
    slot = noise(size)
    stored, _ = encoded([model.put(b"k", Row(slot), slot=(0, size))], slot)
    assert forms(stored) == [stored_changes.SHARED if size == model.SLOT_BYTES_MIN else stored_changes.FULL]


def test_a_payload_that_no_entry_has_stands_in_the_row() -> None:
    changes = [model.put(b"k", Row(b"a" * 100), slot=(0, 100))]
    stored, _ = encoded(changes, b"b" * 100)
    assert forms(stored) == [stored_changes.FULL]
    assert logical(resolved(stored, {})) == logical(changes)


def test_a_large_payload_of_an_entry_is_needed_as_a_blob() -> None:
    """The entry names its payload by an address: the change refers to the payload that is there."""
    slot = noise(LARGE)
    changes = [model.put(b"k", Row(b"<" + slot), slot=(1, 1 + LARGE))]
    stored, blobs = encoded(changes, b"input", b"__" + slot)
    assert not blobs, "the entry's payload is put by whoever commits the entry"
    assert stored_changes.needed(stored, [b"", address(b"__" + slot)].__getitem__) == [address(b"__" + slot)]
    assert logical(resolved(stored, {}, b"input", b"__" + slot)) == logical(changes)


def test_a_large_payload_that_is_only_referred_to_is_named_by_its_address() -> None:
    slot = noise(LARGE)
    changes = [model.put(b"k", Row(b"<" + slot + b">", b"p"), slot=(1, 1 + LARGE))]
    stored, blobs = encoded(changes, b"a reference")
    assert forms(stored) == [stored_changes.SLOT_AT]
    assert blobs == {address(slot): slot}
    assert len(stored) < 60
    assert stored_changes.needed(stored, [b""].__getitem__) == [address(slot)]
    assert logical(resolved(stored, blobs)) == logical(changes)


def test_a_large_row_is_an_image_in_the_cas() -> None:
    changes = [model.put(b"k", Row(noise(LARGE), b"p"))]
    stored, blobs = encoded(changes)
    assert forms(stored) == [stored_changes.IMAGE_AT]
    assert blobs == {changes[0].digest: noise(LARGE)}
    assert logical(resolved(stored, blobs)) == logical(changes)
    stored, blobs = encoded([model.put(b"k", Row(noise(LARGE - 1)))])
    assert forms(stored) == [stored_changes.FULL]
    assert not blobs


def test_a_large_row_travels_as_a_delta() -> None:
    before = noise(60_000)
    after = b"\x01" + before[1:] + b"one more message"
    changes = [model.put(b"k", Row(after, b"p"), base=before)]
    stored, blobs = encoded(changes)
    assert forms(stored) == [stored_changes.DELTA]
    assert len(stored) < 200
    assert not blobs
    assert stored_changes.bases(stored) == [b"k"]
    assert logical(resolved(stored, blobs, rows=lambda _: Row(before, b"other"))) == logical(changes)


def test_a_large_delta_is_a_blob() -> None:
    before, added = noise(80_000), noise(20_000, 1)
    changes = [model.put(b"k", Row(before + added, b"p"), base=before)]
    stored, blobs = encoded(changes)
    assert forms(stored) == [stored_changes.DELTA_AT]
    assert [len(each) < 21_000 for each in blobs.values()] == [True]
    assert stored_changes.needed(stored, [b""].__getitem__) == list(blobs)
    assert logical(resolved(stored, blobs, rows=lambda _: Row(before))) == logical(changes)


def test_deltas_in_a_row_are_bounded() -> None:
    """By their number; and by their bytes, if the row changes much."""
    for added, most in ((10, stored_changes.DELTAS_MAX), (1_000, 5)):
        book = stored_changes.Book()
        meaning = noise(9_000)
        seen: list[int] = []
        for number in range(40):
            grown = meaning[:9_000] + noise(added, number)
            stored, _ = encoded([model.put(b"k", Row(grown), base=meaning)], book=book)
            seen += forms(stored)
            meaning = grown
        whole = [index for index, form in enumerate(seen) if form == stored_changes.FULL]
        assert 0 < whole[0] <= most
        assert all(0 < later - earlier <= most + 1 for earlier, later in itertools.pairwise(whole))
    assert stored_changes.DELTAS_MAX == 16


def test_what_is_not_alike_is_written_whole() -> None:
    stored, _ = encoded([model.put(b"k", Row(noise(9_000, 1)), base=noise(9_000, 2))])
    assert forms(stored) == [stored_changes.FULL]


def test_small_rows_are_written_whole() -> None:
    before = noise(4_096)
    for size, form in ((4_096, stored_changes.FULL), (4_097, stored_changes.DELTA)):
        meaning = (before + b"x")[:size]
        assert forms(encoded([model.put(b"k", Row(meaning), base=before)])[0]) == [form]


def test_the_book_is_bounded() -> None:
    book = stored_changes.Book()
    for number in range(10_000):
        assert book.allows(number.to_bytes(4, "big"), size=1, image=10_000)
    assert len(book._written) <= 4_096


def test_very_many_changes_are_a_blob() -> None:
    changes = [model.put(index.to_bytes(2, "big"), Row(noise(1_000, index))) for index in range(400)]
    stored, blobs = encoded(changes)
    assert len(stored) == 33
    [whole] = blobs.values()
    assert stored_changes.apart(stored) == address(whole)
    assert logical(resolved(whole, {})) == logical(changes)


def test_the_search_for_payloads_ends() -> None:
    """Rows in the order of their entries are all found; a step in which nothing is found costs a bounded search."""
    payloads = [noise(40, number) for number in range(1_500)]
    changes = [model.put(index.to_bytes(2, "big"), Row(each), slot=(0, 40)) for index, each in enumerate(payloads)]
    stored, _ = encoded(changes, *payloads)
    assert forms(stored) == [stored_changes.SHARED] * 1_500
    search = stored_changes._Search(drafts(*payloads), 1_500)
    assert [search.find(b"not there") for _ in range(1_500)] == [None] * 1_500
    assert search._looks == 0


def test_the_committed_form_is_reserved() -> None:
    """It is read as a record, and refused where a value is wanted."""
    stored = b"\x00" + canonical.encode([stored_changes.COMMITTED, b"k", bytes(32), b"salt", b"p"])
    assert stored_changes.COMMITTED == 8
    assert stored_changes.decode(stored) == [stored_changes.RowCommitment(b"k", bytes(32), b"salt", b"p")]
    with pytest.raises(errors.DecodeError, match=r"the row 6b: its value is kept apart"):
        resolved(stored, {})


def test_a_row_that_cannot_be_read_is_named_for_people() -> None:
    stored = b"\x00" + canonical.encode([stored_changes.IMAGE_AT, row_keys.cell("Talk", "x"), bytes(32), 1, b""])
    with pytest.raises(errors.DecodeError, match=r"^cell Talk\['x'\]: the blob 0+ is missing"):
        resolved(stored, {})


# --- Refusals ------------------------------------------------------------------------------------------------------

BEFORE = noise(5_000)
DELTA = delta.encode(BEFORE + b"x", BEFORE)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (b"\x04", "they begin with 4"),
        (b"\x03\x00\x00\x00\x01", "plain changes: cut off"),
        (b"\x03\x00\x00\x01\x04" + canonical.encode([b"k", b"m"]), "plain changes: cut off"),
        (b"\x00", "not canonical"),
        (b"\x00\x80", "not a list of changes"),
        (b"\x00\xf6", "not a list of changes"),
        ([9, b"k"], "no form 9"),
        (["x", b"k"], "no form 'x'"),
        ([-1, b"k"], "no form -1"),
        ([True, b"k"], "no form True"),
        ([0], "are not those of form 0"),
        ([0, "k"], "are not those of form 0"),
        ([2, b"k", b"m"], "are not those of form 2"),
        ([2, b"k", b"m", None], "number 0 is none"),
        ([2, b"k", "m", b""], "number 0 is none"),
        ([3, b"k", b"", b"", 1, 0, 1, b""], "the row 6b: the payload of the step's entry 1 is missing"),
        ([3, b"k", b"", b"", -1, 0, 1, b""], "the row 6b: the payload of the step's entry -1 is missing"),
        ([3, b"k", b"", b"", 0, 0, 6, b""], "the row 6b: bytes 0 to 6 of a payload of 5"),
        ([3, b"k", b"", b"", 0, -1, 2, b""], "the row 6b: bytes -1 to 1"),
        ([3, b"k", b"", b"", 0, 3, -1, b""], "the row 6b: bytes 3 to 2"),
        ([4, b"k", b"", b"", bytes(32), 1, b""], "the row 6b: the blob 0+ is missing"),
        ([7, b"k", bytes(32), 1, b""], "the row 6b: the blob 0+ is missing"),
        ([7, b"k", address(b"blob"), 5, b""], "has 4 bytes where 5 belong"),
        ([5, b"other", address(BEFORE), bytes(32), 5_001, DELTA, b""], "there is no row before it"),
        ([5, b"k", address(BEFORE), bytes(32), 5_002, DELTA, b""], "the row 6b: a delta that makes 5001 bytes"),
        ([5, b"k", address(BEFORE), bytes(32), -1, DELTA, b""], "the row 6b: a delta of -1 bytes"),
        ([5, b"k", address(BEFORE), bytes(32), 5_001, b"", b""], "the row 6b: not a delta"),
        ([5, b"k", address(BEFORE), bytes(32), 5_001, DELTA, b""], "the row 6b: expected sha256 0+, found"),
        ([5, b"k", bytes(32), bytes(32), 5_001, DELTA, b""], "the row 6b: expected sha256 0+, found"),
    ],
)
def test_what_is_wrong_is_named(stored: bytes | list[Any], why: str) -> None:
    raw = stored if isinstance(stored, bytes) else b"\x00" + canonical.encode(stored)
    with pytest.raises((errors.DecodeError, errors.DigestMismatch), match=why):
        resolved(raw, {address(b"blob"): b"blob"}, b"input", rows=lambda key: Row(BEFORE) if key == b"k" else None)


def test_blobs_are_announced_if_and_only_if_there_are_any() -> None:
    with pytest.raises(errors.DecodeError, match="announced, and none is named"):
        stored_changes.needed(b"\x01" + canonical.encode([0, b"k"]), [b""].__getitem__)
    with pytest.raises(errors.DecodeError, match="not the address of a blob"):
        stored_changes.apart(b"\x02" + bytes(31))


def test_nothing_is_made_that_is_longer_than_recorded() -> None:
    """A small delta that would expand to much more than it says, or says more than any row may have."""
    bomb = delta.encode(bytes(50_000_000), b"base")
    assert len(bomb) < 10_000
    tracemalloc.start()
    try:
        for length in (100, 50_000_000):
            with pytest.raises(errors.DecodeError, match="a delta"):
                delta.decode(bomb, b"base", length=length)
        assert tracemalloc.get_traced_memory()[1] < limits.MIB
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200), st.integers(0, 10_000))
def test_any_bytes_are_a_delta_or_refused(data: bytes, length: int) -> None:
    with contextlib.suppress(errors.DecodeError):
        assert len(delta.decode(data, b"base" * 100, length=length)) == length


@given(st.binary(max_size=60))
def test_any_bytes_are_changes_or_refused(data: bytes) -> None:
    with contextlib.suppress(errors.DecodeError, errors.DigestMismatch):
        resolved(b"\x00" + data, {}, b"input")
