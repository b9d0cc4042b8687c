"""A second, slow implementation of the canonical form: what `canonical` is compared with.

Written from the rules alone, one item at a time, without bounds on size and count (the cases are small). It shares no
code with what it checks.
"""

from __future__ import annotations

import math
import struct
from typing import Any

DEPTH_MAX = 64


class Refused(Exception):
    pass


def encode(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"\xf6", False: b"\xf4", True: b"\xf5"}[value]
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, float):
        return b"\xfb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        raw = value.encode()
        return head(3, len(raw)) + raw
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(encode(item) for item in value)
    pairs = sorted((len(key.encode()), key.encode(), encode(item)) for key, item in value.items())
    return head(5, len(pairs)) + b"".join(head(3, size) + key + item for size, key, item in pairs)


def head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes([major << 5 | value])
    for info, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << (8 * size):
            return bytes([major << 5 | info]) + value.to_bytes(size, "big")
    raise Refused("integer")


def decode(data: bytes) -> Any:
    value, position = _decode(data, 0, 0)
    if position != len(data):
        raise Refused("trailing bytes")
    return value


def _decode(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    major, info, value, position = _read_head(data, position)
    if major == 0:
        return value, position
    if major == 1:
        return -1 - value, position
    if major in (2, 3):
        raw = data[position : position + value]
        if len(raw) != value:
            raise Refused("truncated")
        return (raw if major == 2 else _text(raw)), position + value
    if major == 4:
        return _decode_list(data, position, depth + 1, value)
    if major == 5:
        return _decode_map(data, position, depth + 1, value)
    if major == 7:
        return _decode_simple(info, value), position
    raise Refused("tag")


def _read_head(data: bytes, position: int) -> tuple[int, int, int, int]:
    if position >= len(data):
        raise Refused("truncated")
    major, info = data[position] >> 5, data[position] & 31
    position += 1
    if info < 24:
        return major, info, info, position
    if info > 27:
        raise Refused("reserved or indefinite")
    size = 1 << (info - 24)
    raw = data[position : position + size]
    if len(raw) != size:
        raise Refused("truncated")
    value = int.from_bytes(raw, "big")
    least = 24 if size == 1 else 1 << (4 * size)
    if major != 7 and value < least:
        raise Refused("not the shortest")
    return major, info, value, position + size


def _decode_list(data: bytes, position: int, depth: int, count: int) -> tuple[Any, int]:
    _check_container(depth, count, len(data) - position)
    items = []
    for _ in range(count):
        item, position = _decode(data, position, depth)
        items.append(item)
    return items, position


def _decode_map(data: bytes, position: int, depth: int, count: int) -> tuple[Any, int]:
    _check_container(depth, count, len(data) - position)
    found: dict[str, Any] = {}
    previous: tuple[int, bytes] | None = None
    for _ in range(count):
        if data[position : position + 1] and data[position] >> 5 != 3:
            raise Refused("key is not text")
        key, position = _decode(data, position, depth)
        order = (len(key.encode()), key.encode())
        if previous is not None and order <= previous:
            raise Refused("keys out of order")
        previous = order
        found[key], position = _decode(data, position, depth)
    return found, position


def _check_container(depth: int, count: int, left: int) -> None:
    if depth > DEPTH_MAX:
        raise Refused("depth")
    if count > left:
        raise Refused("count")


def _decode_simple(info: int, value: int) -> Any:
    if info == 27:
        number = struct.unpack(">d", value.to_bytes(8, "big"))[0]
        if not math.isfinite(number):
            raise Refused("not finite")
        return number
    if info not in (20, 21, 22):
        raise Refused("simple value")
    return {20: False, 21: True, 22: None}[info]


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Refused("UTF-8") from error
