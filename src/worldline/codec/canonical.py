"""Canonical values: one value, one byte string (the DAG-CBOR profile without links).

A value is None, a bool, an int of 64 bits (with CBOR's separate sign: -2**64 .. 2**64 - 1), a finite float, text,
bytes, a list, or a dict with text keys. Exactly these types: a subclass (an enum that is also a str, say) is refused,
because it would come back as something else. The one exception: `encode` takes a tuple for a list, since frozen records
hold tuples; it comes back as a list.

Invariants, for every `b` and `v`:

- `decode(b)` returns or raises `DecodeError`; memory and time are bounded by the length of `b`;
- `encode(decode(b)) == b` whenever `decode` accepts `b`: map keys are sorted (shorter first, then bytewise) and
  unique, integers and lengths are the shortest, floats are 64 bits wide, nothing is indefinite, tagged or trailing;
- `encode(v)` returns or raises `EncodeError`, also when `v` is cyclic, very deep, or small with a huge expansion;
- what `encode` returns, `decode` accepts: both count depth, items and bytes the same way.

Equal values have equal bytes with Python's own exceptions to "equal": `1`, `1.0` and `True` are three values here, and
so are `0.0` and `-0.0`.

`cbrrr` does the work and is strict about everything in the second invariant except tags. What it leaves open is closed
here: depth and item count both ways; cycles and malformed keys when encoding; and the space it reserves for a list as
soon as it has read the declared count, which nested heads could multiply.

Not here: records and schemas, CIDs (our references are plain digests), checksums and versions (see `frame`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import cbrrr
from cbrrr import _cbrrr

from worldline.base import errors, limits

Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | dict[str, Value] | None"
# `list` is invariant, so a `list[int]` is no `list[Value]`; the insides are checked at run time anyway.
Encodable: TypeAlias = "bool | int | float | str | bytes | list[Any] | tuple[Any, ...] | dict[str, Any] | None"

# What `cbrrr.encode_dag_cbor` and `decode_dag_cbor` call: a step encodes about ten values, and a call costs as much as
# encoding a short one.
_serialize: Final[Callable[[Any, type, bool], bytes]] = _cbrrr.encode_dag_cbor
_parse: Final[Callable[[bytes, Callable[[bytes], NoReturn], bool], tuple[Any, int]]] = _cbrrr.decode_dag_cbor
_LINK: Final = cbrrr.CID

# Up to this size a byte string is decoded without a scan when it has no more possible container heads than the depth
# limit: then no nest can be too deep, and the lists reserved for false counts stay below 8 MiB together. A nest needs
# a byte per level, so an input no longer than the depth limit needs not even that look.
_GLANCE_BYTES_MAX: Final = limits.INLINE_BYTES_MAX
_LIST_SLOT_BYTES: Final = 8
assert _GLANCE_BYTES_MAX <= limits.CBOR_ITEMS_MAX, "an item takes a byte, so a short input needs no item count"
assert limits.CBOR_DEPTH_MAX * _GLANCE_BYTES_MAX * _LIST_SLOT_BYTES <= 8 * limits.MIB

_BYTES_MAX: Final = limits.CBOR_BYTES_MAX
_FLAT_BYTES_MAX: Final = 1_024
assert _FLAT_BYTES_MAX * _FLAT_BYTES_MAX * _LIST_SLOT_BYTES <= 8 * limits.MIB

_FLAT: Final = (int, str, bytes, bool, float, type(None))
_SMALL_ITEMS_MAX: Final = 64
_SMALL_BYTES_MAX: Final = 4_096

_BYTES: Final = 2
_ARRAY: Final = 4
_MAP: Final = 5
_CONTAINER_HEADS: Final = bytes(range(_ARRAY << 5, (_ARRAY << 5) + 28)) + bytes(range(_MAP << 5, (_MAP << 5) + 28))


def encode(value: Encodable, *, around: int = 0) -> bytes:
    """The canonical bytes of `value`, or `EncodeError`. `around`: how many containers they will stand in, if they are
    joined to others.
    """
    kind = type(value)
    # What most values are: too small to need the walk that bounds them.
    if kind in _FLAT or (kind is dict and is_small_map(value)):
        return encode_flat(value)
    return encode_flat(_without_tuples(value) if _check_bounds(value, limits.CBOR_DEPTH_MAX - around) else value)


def encode_flat(value: Encodable) -> bytes:
    """The same of a value that is known to be neither deep nor cyclic, without tuples, its map keys well-formed."""
    try:
        data = _serialize(value, _LINK, False)
    except (TypeError, ValueError) as error:
        raise errors.EncodeError(f"no canonical form: {_cut(error)}") from None
    if len(data) > _BYTES_MAX:
        raise errors.ValueTooLarge(f"more than {_BYTES_MAX} bytes")
    return data


def join_list(parts: Sequence[bytes]) -> bytes:
    """The canonical bytes of a list, of those of its items. The caller sees to bounds: `around`, and the size."""
    return b"".join((_head(_ARRAY, len(parts)), *parts))


def join_map(parts: Mapping[str, bytes]) -> bytes:
    """The same of a map. Encoded keys have the order of the keys: a longer text has a greater head."""
    items = sorted([(_key_bytes(key), data) for key, data in parts.items()])
    return b"".join([_head(_MAP, len(items)), *(part for item in items for part in item)])


def joiner(*names: str) -> Callable[..., bytes]:
    """`join_map` for these keys, whose values are given in this order, without sorting them each time."""
    order = sorted(range(len(names)), key=lambda at: _key_bytes(names[at]))
    keys = [_key_bytes(names[at]) for at in order]
    head, indexes = _head(_MAP, len(names)), list(zip(keys, order, strict=True))

    def join(*parts: bytes) -> bytes:
        made = [head]
        for key, at in indexes:
            made += (key, parts[at])
        return b"".join(made)

    return join


@functools.lru_cache(maxsize=1_024)
def _key_bytes(key: str) -> bytes:
    return encode_flat(key)


def _head(major: int, count: int) -> bytes:
    """The first bytes of a container."""
    if count < 24:
        return bytes((major << 5 | count,))
    # 24 to 27 in the first byte say that the count follows in so many bytes.
    size = next(each for each in (1, 2, 4, 8) if count < 1 << 8 * each)
    return bytes((major << 5 | 23 + size.bit_length(),)) + count.to_bytes(size, "big")


def is_shallow(data: bytes) -> bool:
    """Whether canonical bytes are plainly nested no deeper than the limit. Others may be, or not."""
    size = len(data)
    return size <= limits.CBOR_DEPTH_MAX or (size <= _GLANCE_BYTES_MAX and not _may_be_deep(data))


def decode(data: bytes) -> Value:
    """The value whose canonical bytes `data` are, or `DecodeError`."""
    size = len(data)
    if not is_shallow(data):
        _scan(data)
    value: Value
    try:
        value, length = _parse(data, _refuse_link, False)
    except ValueError as error:
        raise errors.DecodeError(f"not canonical: {_cut(error)}") from None
    if length != size:
        raise errors.DecodeError(f"not canonical: {size - length} bytes behind the value")
    return value


def decode_flat(data: bytes) -> Value:
    """The same of bytes that were checked, and that a flat value was encoded to: short ones are not looked over before.
    What is not flat may come out deeper than `decode` allows, and no deeper than these bytes are many.
    """
    size = len(data)
    if size > _FLAT_BYTES_MAX:
        return decode(data)
    value: Value
    try:
        value, length = _parse(data, _refuse_link, False)
    except ValueError as error:
        raise errors.DecodeError(f"not canonical: {_cut(error)}") from None
    if length != size:
        raise errors.DecodeError(f"not canonical: {size - length} bytes behind the value")
    return value


def is_small_map(value: Any) -> bool:
    """Whether a map holds a few scalars, or nothing, in each place, as most users' values do: then its bounds are no
    question.
    """
    if len(value) > _SMALL_ITEMS_MAX:
        return False
    for item in value.values():
        kind = type(item)
        if (kind is str or kind is bytes) and len(item) > _SMALL_BYTES_MAX:
            return False
        if kind not in _FLAT and (item or (kind is not dict and kind is not list)):
            return False
    _add_keys(0, value)
    return True


def _may_be_deep(data: bytes) -> bool:
    """Whether more bytes than the depth limit look like the head of a container. Most are text or parts of ids."""
    return len(data) - len(data.translate(None, _CONTAINER_HEADS)) > limits.CBOR_DEPTH_MAX


def _check_bounds(value: object, depth_max: int) -> bool:
    """Refuse, without recursion, what would exhaust the encoder. Returns whether there are tuples inside.

    Walks level by level: a cycle shows as too many levels, a small value that refers to its parts over and over as too
    many items or bytes. Only text and bytes are long, and a character takes at least one byte, so adding up lengths
    stops in time; the exact size is known at the end.
    """
    level: list[Any] = [[value]]
    items = 1
    size = 0
    tuples = False
    for _ in range(depth_max + 1):
        below: list[Any] = []
        for container in level:
            for item in container:
                kind = type(item)
                if kind is str or kind is bytes:
                    size += len(item)
                elif kind is dict:
                    items += 2 * len(item)
                    size = _add_keys(size, item)
                    below.append(item.values())
                elif kind is list or kind is tuple:
                    items += len(item)
                    below.append(item)
                    tuples |= kind is tuple
                elif kind is not int and kind is not bool and kind is not float and item is not None:
                    raise errors.EncodeError(f"{type.__repr__(kind)} has no canonical form")
            # After each container, not at the end: the next level of a small value may be huge.
            if items > limits.CBOR_ITEMS_MAX or size > limits.CBOR_BYTES_MAX:
                raise errors.ValueTooLarge(f"more than {limits.CBOR_ITEMS_MAX} items or {limits.CBOR_BYTES_MAX} bytes")
        if not below:
            return tuples
        level = below
    raise errors.EncodeError(f"nested deeper than {depth_max}, or cyclic")


def _without_tuples(value: Any) -> Any:
    """A copy with lists in the place of tuples; depth and size are known to be bounded."""
    kind = type(value)
    if kind is list or kind is tuple:
        return [_without_tuples(item) for item in value]
    if kind is dict:
        return {key: _without_tuples(item) for key, item in value.items()}
    return value


def _add_keys(size: int, mapping: dict[Any, Any]) -> int:
    """`size` and the bytes of all keys, which must be well-formed text: the encoder's sort does not survive others.

    The limit is checked here too: joining takes time, and the next map may be this one again.
    """
    try:
        size += len("".join(mapping).encode())
    except (TypeError, UnicodeEncodeError):
        raise errors.EncodeError("a map key is not text, or not well-formed") from None
    if size > limits.CBOR_BYTES_MAX:
        raise errors.ValueTooLarge(f"more than {limits.CBOR_BYTES_MAX} bytes")
    return size


def _refuse_link(content: bytes) -> NoReturn:
    raise errors.DecodeError(f"not canonical: a link (tag 42) of {len(content)} bytes")


def _cut(error: Exception) -> str:
    """The message, which may quote a whole key."""
    return str(error)[:200]


# How many bytes an item takes in all, where its first byte alone says so; 0 where more must be read.
_ITEM_SIZES: Final = bytes(
    [1] * 24
    + [2, 3, 5, 9]
    + [0] * 4  # unsigned integers
    + [1] * 24
    + [2, 3, 5, 9]
    + [0] * 4  # negative integers
    + [1 + size for size in range(24)]
    + [0] * 8  # bytes
    + [1 + size for size in range(24)]
    + [0] * 8  # text
    + [0] * 32
    + [0] * 32  # lists and maps
    + [0] * 32  # tags
    + [0] * 20
    + [1, 1, 1]
    + [0] * 4
    + [9]
    + [0] * 4  # false, true, null, a float of 64 bits
)
assert len(_ITEM_SIZES) == 256


def _scan(data: bytes) -> None:
    """Bound depth and item count before anything is built, by going over the heads alone.

    Counts are added up when they are declared, so the space reserved for lists stays within the item limit however the
    heads are nested. All other checks are the decoder's: what is no container is skipped.
    """
    size = len(data)
    if size > limits.CBOR_BYTES_MAX:
        raise errors.DecodeError(f"{size} bytes; the limit is {limits.CBOR_BYTES_MAX}")
    position = 0
    items = 1
    rest = 1  # items still to come in the innermost open container; at first, the value itself
    rests: list[int] = []  # the same for the containers around it, outermost first
    try:
        while True:
            while rest:
                rest -= 1
                head = data[position]
                item_size = _ITEM_SIZES[head]
                if item_size:
                    position += item_size
                    continue
                length, position = _read_length(data, position, head)
                if head < _ARRAY << 5:
                    position += length
                    continue
                rests.append(rest)
                rest = length if head < _MAP << 5 else 2 * length
                items += rest
                if items > limits.CBOR_ITEMS_MAX:
                    raise errors.DecodeError(f"more than {limits.CBOR_ITEMS_MAX} items")
                if len(rests) > limits.CBOR_DEPTH_MAX:
                    raise errors.DecodeError(f"nested deeper than {limits.CBOR_DEPTH_MAX}")
            if not rests:
                return
            rest = rests.pop()
    except IndexError:
        raise errors.DecodeError("not canonical: truncated") from None


def _read_length(data: bytes, position: int, head: int) -> tuple[int, int]:
    """The length or count that starts at `position`, and where its content starts."""
    info = head & 31
    if not _BYTES <= head >> 5 <= _MAP or info > 27:
        raise errors.DecodeError(f"not canonical: head {head:#04x} at byte {position}")
    position += 1
    if info < 24:
        return info, position
    end = position + (1 << (info - 24))
    return int.from_bytes(data[position:end], "big"), end
