"""Keys: tuples as bytes whose order is the order of the tuples (FoundationDB's tuple layer, its bytes exactly).

Each item is a type code and its content; items compare first by type code, then by value:

    0x00 None      0x01 bytes      0x02 text      0x05 nested tuple      0x0c..0x1c integers, |n| < 2**64
    0x26 False     0x27 True       0x30 `Uuid`    0x33 `Stamp12`

Bytes and text end with 0x00, and a 0x00 inside is written 00 FF; so is a None inside a nested tuple, whose end is 0x00.
An integer's code says its length and sign: 0x14 is zero, 0x14 + n a positive one of n bytes, 0x14 - n a negative one,
stored as its complement so that smaller sorts first.

Invariants: `unpack(pack(t)) == t`; `pack(unpack(b)) == b` for every accepted `b`, so a tuple has one key; `unpack`
raises nothing but `DecodeError`, `pack` nothing but `EncodeError`; the order of bytes is the order of tuples; the key
of a tuple is a prefix of the keys of all its extensions.

Left out on purpose: floats, integers of more than 64 bits, and incomplete stamps (the store fills stamps in). One
corner differs from the Python binding, not from the layer's definition: the binding writes 2**64 - 1 and its negative
in the form for longer integers; here they take eight bytes, as every integer of that width does.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from worldline.base import errors, limits


class Uuid(msgspec.Struct, frozen=True, order=True, gc=False):
    """Sixteen bytes with a type code of their own: shorter than `bytes` in a key, and nothing in them is escaped."""

    raw: bytes


class Stamp12(msgspec.Struct, frozen=True, order=True, gc=False):
    """A store's stamp: twelve bytes in commit order (FoundationDB's versionstamp with its two bytes of ordinal)."""

    raw: bytes


Item: TypeAlias = "bytes | str | int | bool | Uuid | Stamp12 | tuple[Item, ...] | None"

_NONE: Final = 0x00
_BYTES: Final = 0x01
_TEXT: Final = 0x02
_NESTED: Final = 0x05
_ZERO: Final = 0x14
_INT_BYTES_MAX: Final = 8
_FALSE: Final = 0x26
_TRUE: Final = 0x27
_UUID: Final = 0x30
_STAMP: Final = 0x33
_ESCAPE: Final = 0xFF

_ESCAPED_ZERO: Final = bytes([0, _ESCAPE])
_UUID_CODE: Final = bytes([_UUID])
_STAMP_CODE: Final = bytes([_STAMP])
_INT_LIMIT: Final = 1 << (8 * _INT_BYTES_MAX)
# Field tags and kinds are small numbers; they are looked up, not computed.
_SMALL_INTS: Final = (bytes([_ZERO]), *(bytes([_ZERO + 1, value]) for value in range(1, 256)))
_LISTED: Final = 1_024
_NUMBERS: Final = (*_SMALL_INTS, *(bytes([_ZERO + 2]) + value.to_bytes(2, "big") for value in range(256, _LISTED)))
_NUMBER_HEADS: Final = tuple(bytes([_ZERO + size]) for size in range(_INT_BYTES_MAX + 1))
_ID_BYTES: Final = limits.ID_BYTES


def pack(items: tuple[Item, ...]) -> bytes:
    """The key of `items`."""
    parts: list[bytes] = []
    item: Any
    for item in items:
        kind = type(item)
        # What nearly all keys are made of comes first, without a call.
        if kind is int and 0 <= item < 256:
            parts.append(_SMALL_INTS[item])
        elif kind is Uuid:
            parts.append(_UUID_CODE + _exactly(item.raw, limits.ID_BYTES))
        else:
            parts.append(_pack_item(item, 0))
    return b"".join(parts)


def pack_uuid(raw: bytes) -> bytes:
    """The key of one `Uuid`, without making it: most keys end in one."""
    if type(raw) is bytes and len(raw) == _ID_BYTES:
        return _UUID_CODE + raw
    return _UUID_CODE + _exactly(raw, _ID_BYTES)


def pack_number(value: int) -> bytes:
    """The key of one integer that is not negative, without looking for what kind of item it is."""
    if value < _LISTED:
        return _NUMBERS[value]
    size = (value.bit_length() + 7) >> 3
    return _NUMBER_HEADS[size] + value.to_bytes(size, "big")


def unpack(data: bytes) -> tuple[Item, ...]:
    """The tuple whose key `data` is, or `DecodeError`."""
    items: list[Item] = []
    position = 0
    size = len(data)
    while position < size:
        item, position = _unpack_item(data, position, 0)
        items.append(item)
    return tuple(items)


def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """First key and end (exclusive) of all keys that start with `prefix`, itself included.

    The empty prefix and one of 0xff bytes only have no such end and are refused. No key starts with 0xff, so a
    range of every key ends at that byte.
    """
    # A last byte of 0xff cannot be raised, so the one before it is.
    shortest = prefix.rstrip(b"\xff")
    if not shortest:
        raise errors.EncodeError(f"no key is beyond all keys that start with {prefix!r}")
    return prefix, shortest[:-1] + bytes([shortest[-1] + 1])


def successor(key: bytes) -> bytes:
    """The very next key: nothing sorts between the two."""
    return key + b"\x00"


def _pack_item(item: Any, depth: int) -> bytes:
    kind = type(item)
    if kind is int:
        return _pack_int(item)
    if kind is str:
        return b"\x02" + _pack_escaped(_encode_text(item))
    if kind is bytes:
        return b"\x01" + _pack_escaped(item)
    if kind is Uuid:
        return _UUID_CODE + _exactly(item.raw, limits.ID_BYTES)
    if kind is Stamp12:
        return _STAMP_CODE + _exactly(item.raw, limits.STAMP_BYTES)
    if item is None:
        return b"\x00"
    if kind is bool:
        return b"\x27" if item else b"\x26"
    if kind is tuple:
        return _pack_nested(item, depth + 1)
    raise errors.EncodeError(f"{type.__repr__(kind)} cannot be part of a key")


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise errors.EncodeError("a key's text holds a lone surrogate") from None


def _pack_escaped(raw: bytes) -> bytes:
    return raw.replace(b"\x00", _ESCAPED_ZERO) + b"\x00"


def _pack_int(value: int) -> bytes:
    if value >= 0:
        if value >= _INT_LIMIT:
            raise errors.EncodeError("an integer in a key must be below 2**64")
        size = (value.bit_length() + 7) >> 3
        return (_ZERO + size).to_bytes(1, "big") + value.to_bytes(size, "big")
    if value <= -_INT_LIMIT:
        raise errors.EncodeError("an integer in a key must be above -2**64")
    size = (value.bit_length() + 7) >> 3
    return (_ZERO - size).to_bytes(1, "big") + (value + (1 << (8 * size)) - 1).to_bytes(size, "big")


def _pack_nested(items: tuple[Item, ...], depth: int) -> bytes:
    if depth > limits.TUPLE_DEPTH_MAX:
        raise errors.EncodeError(f"a key nested deeper than {limits.TUPLE_DEPTH_MAX}")
    parts = [_ESCAPED_ZERO if item is None else _pack_item(item, depth) for item in items]
    return b"\x05" + b"".join(parts) + b"\x00"


def _exactly(raw: bytes, size: int) -> bytes:
    if type(raw) is not bytes or len(raw) != size:
        raise errors.EncodeError(f"an id or stamp in a key must be {size} bytes, not {raw!r}")
    return raw


def _unpack_item(data: bytes, position: int, depth: int) -> tuple[Item, int]:
    """The item at `position`, and where the next one starts."""
    code = data[position]
    position += 1
    if _ZERO - _INT_BYTES_MAX <= code <= _ZERO + _INT_BYTES_MAX:
        return _unpack_int(data, position, code - _ZERO)
    if code == _UUID:
        end = position + limits.ID_BYTES
        return Uuid(_take(data, position, end)), end
    if code == _TEXT:
        raw, end = _unpack_escaped(data, position)
        try:
            return raw.decode(), end
        except UnicodeDecodeError:
            raise errors.DecodeError(f"not a key: text at byte {position} is not valid UTF-8") from None
    if code == _BYTES:
        return _unpack_escaped(data, position)
    if code == _STAMP:
        end = position + limits.STAMP_BYTES
        return Stamp12(_take(data, position, end)), end
    if code == _NONE:
        return None, position
    if code in (_FALSE, _TRUE):
        return code == _TRUE, position
    if code == _NESTED:
        return _unpack_nested(data, position, depth + 1)
    raise errors.DecodeError(f"not a key: type code {code:#04x} at byte {position - 1}")


def _unpack_int(data: bytes, position: int, signed_size: int) -> tuple[int, int]:
    if signed_size == 0:
        return 0, position
    size = abs(signed_size)
    end = position + size
    value = int.from_bytes(_take(data, position, end), "big")
    if signed_size < 0:
        value -= (1 << (8 * size)) - 1
    # A longer form of the same number would be a second key for one tuple.
    if abs(value) >> (8 * (size - 1)) == 0:
        raise errors.DecodeError(f"not a key: integer at byte {position - 1} is not the shortest")
    return value, end


def _unpack_escaped(data: bytes, position: int) -> tuple[bytes, int]:
    """Content up to its terminator: the first 0x00 that is no escape."""
    size = len(data)
    end = data.find(0, position)
    while end != -1 and end + 1 < size and data[end + 1] == _ESCAPE:
        end = data.find(0, end + 2)
    if end == -1:
        raise errors.DecodeError(f"not a key: what starts at byte {position - 1} has no end")
    return data[position:end].replace(_ESCAPED_ZERO, b"\x00"), end + 1


def _unpack_nested(data: bytes, position: int, depth: int) -> tuple[tuple[Item, ...], int]:
    if depth > limits.TUPLE_DEPTH_MAX:
        raise errors.DecodeError(f"not a key: nested deeper than {limits.TUPLE_DEPTH_MAX}")
    items: list[Item] = []
    size = len(data)
    while position < size:
        item: Item = None
        if data[position] != _NONE:
            item, position = _unpack_item(data, position, depth)
        elif data[position + 1 : position + 2] == b"\xff":
            position += 2
        else:
            return tuple(items), position + 1
        items.append(item)
    raise errors.DecodeError("not a key: a nested tuple has no end")


def _take(data: bytes, start: int, end: int) -> bytes:
    if end > len(data):
        raise errors.DecodeError(f"not a key: {end - len(data)} bytes are missing at its end")
    return data[start:end]
