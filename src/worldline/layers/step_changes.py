"""How a step's changed rows are stored: compact bytes, one string for each step.

::

    nothing                       the step changed no row
    0, canonical list             everything that is needed stands here, or in the step's own entries
    1, canonical list             blobs are needed, too
    2, sha256                     all of it is the blob of this address: it was too much for one step of a frame
    3, length, two lists          what is hashed of the changes, as it is hashed (`state_digest.digests`)

Most steps change a few short rows; their changes are encoded once, for the digests, and stored so. In the other forms
the list is flat: the number of a form, then its fields, change after change, in the order of `worldline.model.change`.

A payload that an entry of the same step has is not stored again: the row is stored around it, with where it is found
(`SHARED`, in the payload as it is when it has been loaded). A large payload that only a reference in an entry names is
named here by its address, too (`SLOT_AT`). A large row travels as a delta against its meaning before (`DELTA`), but not
for ever: a `Book` counts, and now and then the whole image is written. What is still large goes to the CAS (`IMAGE_AT`,
`DELTA_AT`); the caller puts that there before the commit.

`COMMITTED` is reserved for rows whose value is kept apart. Nothing writes it: personal values are kept apart one by
one, and rows have tokens in their places (`codec/sealed_token.py`, ADR 17).

Digests are over logical bytes alone (`worldline.model.change`), so two stored forms of one change are the same history.
Whatever is wrong with stored bytes is a `DecodeError` or a `DigestMismatch` that names the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, delta, digest
from worldline.model import journal, row_keys, state_digest
from worldline.model.change import DELTA_BYTES_MIN, SHORT_BYTES_MAX, SLOT_BYTES_MIN, Change, Row, put

# Forms. Numbers are stored and never reused.
GONE: Final = 0  # key
GROUP: Final = 1  # key
FULL: Final = 2  # key, meaning, placement
SHARED: Final = 3  # key, head, tail, index of the entry in the step, offset, length, placement
SLOT_AT: Final = 4  # key, head, tail, address, length, placement
DELTA: Final = 5  # key, base's sha256, image's sha256, length, delta, placement
DELTA_AT: Final = 6  # key, base's sha256, image's sha256, length, address of the delta, placement
IMAGE_AT: Final = 7  # key, address, length, placement
COMMITTED: Final = 8  # key, hash, salt, placement

# What the fields of a form are: its number, and then bytes or numbers.
_B, _N = bytes, int
_FIELDS: Final[tuple[tuple[type, ...], ...]] = (
    (_N, _B),
    (_N, _B),
    (_N, _B, _B, _B),
    (_N, _B, _B, _B, _N, _N, _N, _B),
    (_N, _B, _B, _B, _B, _N, _B),
    (_N, _B, _B, _B, _N, _B, _B),
    (_N, _B, _B, _B, _N, _B, _B),
    (_N, _B, _B, _N, _B),
    (_N, _B, _B, _B, _B),
)

_ALONE: Final = b"\x00"
_WITH_BLOBS: Final = b"\x01"
_APART: Final = b"\x02"
_PLAIN: Final = b"\x03"

DELTAS_MAX: Final = 16  # of one row, in a row
_BOOK_KEYS_MAX: Final = 4_096
_LOOKS_EACH: Final = 16  # entries that are searched for each row of a step, on the average

Blobs = Mapping[bytes, bytes]


class RowCommitment(msgspec.Struct, frozen=True, array_like=True):
    """A row whose value is kept apart: the hash of salt and value, and the salt."""

    key: bytes
    hash: bytes
    salt: bytes
    placement: bytes


class Book:
    """How many deltas were written since the last whole image of each large row, and how many bytes. It is kept in
    memory, for one world, and may be empty at any time: then a row has some more deltas in a row than usual.
    """

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: dict[bytes, tuple[int, int]] = {}

    def allows(self, key: bytes, *, size: int, image: int) -> bool:
        """Whether a delta of this size is written, for an image of that size. If so, it is counted."""
        count, total = self._written.get(key, (0, 0))
        # Both bound what a reader pays for one row: the deltas in a row, and their bytes against those of the image.
        if count >= DELTAS_MAX or total + size > image // 2:
            return False
        # Forgetting all costs some longer rows of deltas; keeping the order of use would cost something in each step.
        if len(self._written) >= _BOOK_KEYS_MAX:
            self._written.clear()
        self._written[key] = (count + 1, total + size)
        return True

    def whole(self, key: bytes) -> None:
        """An image was written."""
        self._written.pop(key, None)


def encode(
    changes: Sequence[Change],
    drafts: Sequence[journal.EntryDraft],
    book: Book | None,
    large: list[bytes],
    *,
    plain: bytes = b"",
) -> bytes:
    """The stored form of a step's changes. What belongs into the CAS is added to `large`. `plain`: the changes as
    `state_digest.digests` gives them.
    """
    if not changes:
        return b""
    # Less than the limit, not equal: one byte that says the form stands in front.
    if plain and len(plain) < limits.STEP_CHANGES_BYTES_MAX:
        return _PLAIN + plain
    book = book or Book()
    flat: list[Any] = []
    search: _Search | None = None
    before = len(large)
    flag = _ALONE
    for change in changes:
        row = change.row
        start, end = change.slot
        if row is None or (end - start < SLOT_BYTES_MIN and len(row.meaning) <= DELTA_BYTES_MIN):
            flat += _plain_form(change)
            continue
        # Made for the first row that may share something: most steps have none.
        if search is None:
            search = _Search(drafts, len(changes))
        if _add(flat, change, row, search=search, book=book, large=large):
            flag = _WITH_BLOBS
    if len(flat) > limits.CBOR_ITEMS_MAX:
        raise errors.TooLarge("a step's changes, in fields rather than", size=len(flat), limit=limits.CBOR_ITEMS_MAX)
    stored = flag + canonical.encode_flat(flat)
    if len(stored) <= limits.STEP_CHANGES_BYTES_MAX:
        return stored
    large.append(stored)
    assert len(large) > before
    return _APART + digest.sha256(stored)


class _Search:
    """Finds payloads in the entries of one step. Rows come in the order of their entries, more or less, so the search
    continues behind the last hit; in a step with very many rows it gives up at some time.
    """

    __slots__ = ("_drafts", "_looks", "_next")

    def __init__(self, drafts: Sequence[journal.EntryDraft], rows: int) -> None:
        self._drafts = drafts
        self._next = 0
        self._looks = _LOOKS_EACH * (rows + len(drafts))

    def find(self, meaning: bytes) -> tuple[int, int] | None:
        """The index of an entry that has these bytes, and where in its payload."""
        drafts = self._drafts
        count = len(drafts)
        for turn in range(count):
            # Giving up is safe: the row is then stored whole. Without a bound this is rows times entries.
            if self._looks <= 0:
                return None
            self._looks -= 1
            index = (self._next + turn) % count
            offset = drafts[index].payload.find(meaning)
            if offset >= 0:
                self._next = index
                return index, offset
        return None

    def is_large(self, index: int) -> bool:
        return len(self._drafts[index].payload) > limits.INLINE_BYTES_MAX


def _add(flat: list[Any], change: Change, row: Row, *, search: _Search, book: Book, large: list[bytes]) -> bool:
    """One row, in the form that takes least. Returns whether a blob is needed to read it."""
    key, meaning, placement = change.key, row.meaning, row.placement
    start, end = change.slot
    length = end - start
    # What is around the payload stands in the changes themselves, so it must be small.
    if length >= SLOT_BYTES_MIN and len(meaning) - length <= limits.INLINE_BYTES_MAX:
        slot = meaning[start:end]
        found = search.find(slot)
        if found is not None:
            index, offset = found
            flat += (SHARED, key, meaning[:start], meaning[end:], index, offset, length, placement)
            # A large payload is in a blob, and then so is a part of this row.
            return search.is_large(index)
        if length > limits.INLINE_BYTES_MAX:
            large.append(slot)
            flat += (SLOT_AT, key, meaning[:start], meaning[end:], digest.sha256(slot), length, placement)
            return True
    size = len(meaning)
    if size > DELTA_BYTES_MIN and change.base:
        made = delta.encode(meaning, change.base)
        if book.allows(key, size=len(made), image=size):
            base = digest.sha256(change.base)
            if len(made) <= limits.INLINE_BYTES_MAX:
                flat += (DELTA, key, base, change.digest, size, made, placement)
                return False
            large.append(made)
            flat += (DELTA_AT, key, base, change.digest, size, digest.sha256(made), placement)
            return True
    if size > DELTA_BYTES_MIN:
        # Whether a delta was too much or there was none: the next ones start from a whole image.
        book.whole(key)
    if size > limits.INLINE_BYTES_MAX:
        large.append(meaning)
        flat += (IMAGE_AT, key, change.digest, size, placement)
        return True
    flat += (FULL, key, meaning, placement)
    return False


# --- Reading ------------------------------------------------------------------------------------------------------


def apart(stored: bytes) -> bytes:
    """The address of the blob that holds all the changes; nothing if they stand here."""
    if stored[:1] != _APART:
        return b""
    if len(stored) != 1 + limits.DIGEST_BYTES:
        raise errors.DecodeError("changes: not the address of a blob")
    return stored[1:]


def needs_blobs(stored: bytes) -> bool:
    """Whether there is more to these changes than stands here and in the entries."""
    return stored[:1] in (_WITH_BLOBS, _APART)


def needed(stored: bytes, blob_of: Callable[[int], bytes]) -> list[bytes]:
    """The addresses of the blobs that must be loaded to resolve these changes. `blob_of`: the address of the payload of
    one of the step's entries, if that is stored apart. Changes that are a blob themselves are to be loaded before.
    """
    if not needs_blobs(stored):
        return []
    found: list[bytes] = []
    for fields in _forms(parse(stored)):
        match fields:
            case [4, _, _, _, address, _, _] | [6, _, _, _, _, address, _] | [7, _, address, _, _]:
                found.append(address)
            case [3, _, _, _, index, _, _, _]:
                address = _payload(blob_of, index)
                if address:
                    found.append(address)
    if not found:
        raise errors.DecodeError("changes: blobs are announced, and none is named")
    return list(dict.fromkeys(found))


def named_blobs(stored: bytes) -> list[bytes]:
    """The addresses of blobs that are named here; those that are shared with an entry are named there."""
    named = (SLOT_AT, 4), (DELTA_AT, 5), (IMAGE_AT, 2)
    return [fields[place] for fields in _forms(parse(stored)) for form, place in named if fields[0] == form]


def parse(stored: bytes) -> list[Any]:
    """The flat list of forms and fields."""
    if not stored:
        return []
    if stored[:1] == _PLAIN:
        return [field for change in state_digest.plain(stored[1:]) for field in _plain_form(change)]
    if stored[0] > 1:
        raise errors.DecodeError(f"changes: they begin with {stored[0]}, which means nothing here")
    flat = canonical.decode_flat(stored[1:])
    if type(flat) is not list or not flat:
        raise errors.DecodeError("changes: not a list of changes")
    return flat


def resolve(
    stored: bytes, rows: Callable[[bytes], Row | None], payload_of: Callable[[int], bytes], blobs: Blobs
) -> list[Change]:
    """The changes that these bytes stand for. `rows`: the state before the step; `payload_of`: the payload of one of
    the step's entries, or IndexError; `blobs`: what `needed` has named, verified.
    """
    if not stored:
        return []
    if stored[:1] == _PLAIN:
        return state_digest.plain(stored[1:])
    flat = parse(stored)
    found: list[Change] = []
    position, size = 0, len(flat)
    while position < size:
        # The form of most rows is read here, without the calls and checks that serve all forms.
        if flat[position] == FULL and position + 4 <= size:
            _, key, meaning, placement = flat[position : position + 4]
            if not (type(key) is bytes and type(meaning) is bytes and type(placement) is bytes):
                raise errors.DecodeError(f"changes: number {len(found)} is none")
            row = Row(meaning, placement)
            found.append(Change(key, row) if len(meaning) <= SHORT_BYTES_MAX else put(key, row))
            position += 4
            continue
        fields = _form(flat, position)
        try:
            found.append(_resolve(fields, rows, payload_of, blobs))
        except errors.DigestMismatch as error:
            raise errors.DigestMismatch(
                row_keys.describe(fields[1]), expected=error.expected, actual=error.actual
            ) from error
        except errors.DecodeError as error:
            raise errors.DecodeError(f"{row_keys.describe(fields[1])}: {error}") from error
        position += len(fields)
    return found


def covered(stored: bytes, payload_of: Callable[[int], bytes], blobs: Blobs) -> bytes:
    """The digest that the chain covers of these changes, without the state before the step: of a row that is a delta
    or a blob, the sha256 stands here.
    """
    if not stored:
        return state_digest.NO_CHANGES
    if stored[:1] == _PLAIN:
        return state_digest.changes_digest(state_digest.plain(stored[1:]))
    found: list[Change] = []
    for fields in _forms(parse(stored)):
        match fields:
            case [5 | 6, key, _, image, _, _, placement] | [7, key, image, _, placement]:
                found.append(Change(key, Row(b"", placement), image))
            case _:
                found.append(_resolve(fields, _no_rows, payload_of, blobs))
    return state_digest.changes_digest(found)


def _no_rows(_: bytes) -> None:
    return None


def decode(stored: bytes) -> list[RowCommitment | list[Any]]:
    """Every change as it is stored, a committed one as its record: to look at, not to apply."""
    return [RowCommitment(*fields[1:]) if fields[0] == COMMITTED else fields for fields in _forms(parse(stored))]


def bases(stored: bytes) -> list[bytes]:
    """The keys of rows that must be known to resolve these changes."""
    return [fields[1] for fields in _forms(parse(stored)) if fields[0] in (DELTA, DELTA_AT)]


def named(stored: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The keys of rows that are changed here, the groups that are dropped, and `bases`."""
    keys: list[bytes] = []
    groups: list[bytes] = []
    starts: list[bytes] = []
    if stored[:1] == _PLAIN:
        for change in state_digest.plain(stored[1:]):
            (groups if change.is_group else keys).append(change.key)
        return keys, groups, starts
    for fields in _forms(parse(stored)):
        form, key = fields[:2]
        (groups if form == GROUP else keys).append(key)
        if form in (DELTA, DELTA_AT):
            starts.append(key)
    return keys, groups, starts


def _plain_form(change: Change) -> tuple[Any, ...]:
    """A change without a payload that may be shared, as a form and its fields."""
    row = change.row
    if row is None:
        return GROUP if change.is_group else GONE, change.key
    return FULL, change.key, row.meaning, row.placement


def _forms(flat: list[Any]) -> Iterator[list[Any]]:
    position = 0
    while position < len(flat):
        fields = _form(flat, position)
        yield fields
        position += len(fields)


def _form(flat: list[Any], position: int) -> list[Any]:
    """The form that begins here, and its fields, each of its type."""
    form = flat[position]
    if type(form) is not int or not 0 <= form < len(_FIELDS):
        raise errors.DecodeError(f"changes: no form {form!r:.40}, at item {position}")
    types = _FIELDS[form]
    fields = flat[position : position + len(types)]
    if tuple(map(type, fields)) != types:
        raise errors.DecodeError(f"changes: the fields at item {position} are not those of form {form}")
    return fields


def _resolve(
    fields: list[Any], rows: Callable[[bytes], Row | None], payload_of: Callable[[int], bytes], blobs: Blobs
) -> Change:
    match fields:
        case [0, key]:
            return Change(key, None)
        case [1, key]:
            return Change(key, None, is_group=True)
        case [2, key, meaning, placement]:
            return _row(key, meaning, placement)
        case [3, key, head, tail, index, offset, length, placement]:
            payload = _payload(payload_of, index)
            if not 0 <= offset <= offset + length <= len(payload):
                raise errors.DecodeError(f"bytes {offset} to {offset + length} of a payload of {len(payload)}")
            return _row(key, head + payload[offset : offset + length] + tail, placement)
        case [4, key, head, tail, address, length, placement]:
            return _row(key, head + _blob(blobs, address, length) + tail, placement)
        case [5, key, base, image, length, made, placement]:
            return _image(key, rows(key), base, image, made=made, length=length, placement=placement)
        case [6, key, base, image, length, address, placement]:
            made = _blob(blobs, address)
            return _image(key, rows(key), base, image, made=made, length=length, placement=placement)
        case [7, key, address, length, placement]:
            return Change(key, Row(_blob(blobs, address, length), placement), address)
        case _:
            raise errors.DecodeError("its value is kept apart, which this release cannot read")


def _row(key: bytes, meaning: bytes, placement: bytes) -> Change:
    return put(key, Row(meaning, placement))


def _image(
    key: bytes, old_row: Row | None, base: bytes, image: bytes, *, made: bytes, length: int, placement: bytes
) -> Change:
    if old_row is None:
        raise errors.DecodeError("a delta, and there is no row before it")
    try:
        meaning = delta.decode(made, old_row.meaning, length=length)
        digest.check(meaning, image, "the image")
    except errors.Corrupt:
        # If the row before is the damaged one, the error names that one and not the delta.
        digest.check(old_row.meaning, base, "the row that a delta starts from")
        raise
    return Change(key, Row(meaning, placement), image)


def _payload(payload_of: Callable[[int], bytes], index: int) -> bytes:
    """What is known of one of the step's entries."""
    # A negative index would count from the end, and find the payload of another entry.
    if index >= 0:
        try:
            return payload_of(index)
        except (IndexError, KeyError):
            pass
    raise errors.DecodeError(f"the payload of the step's entry {index} is missing")


def _blob(blobs: Blobs, address: bytes, length: int | None = None) -> bytes:
    found = blobs.get(address)
    if found is None:
        raise errors.DecodeError(f"the blob {address.hex()} is missing")
    if length is not None and len(found) != length:
        raise errors.DecodeError(f"the blob {address.hex()} has {len(found)} bytes where {length} belong")
    return found
