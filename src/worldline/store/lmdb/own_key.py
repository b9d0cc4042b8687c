"""The engine's own key: the version, and how often the store was scrubbed.

It is longer than any key a batch may write and greater than any end a range may have, so no read can show it and no
range delete can reach it. Its value is the version in eight bytes; from the first scrub on, their number follows.
"""

from __future__ import annotations

from typing import Protocol

from worldline.base import errors, limits

KEY = b"\xff" * (limits.KEY_BYTES_MAX + 1) + b"version"
BYTES = 8  # of a number
FIRST = bytes(BYTES)


class Transaction(Protocol):
    """What is used of one of LMDB's."""

    def id(self) -> int: ...

    def get(self, key: bytes, /) -> bytes | None: ...

    def put(self, key: bytes, value: bytes, /) -> bool: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


def next_version(record: bytes | None) -> int:
    """The version of the next append. 0 if the record is gone: then only single keys can be read."""
    return 0 if record is None else 1 + int.from_bytes(record[:BYTES], "big")


def version(record: bytes | None) -> int:
    if record is None or len(record) not in (BYTES, 2 * BYTES):
        raise errors.Corrupt("the store's own counter is gone; restore the folder from a backup")
    return int.from_bytes(record[:BYTES], "big")


def at_version(record: bytes | None, number: int) -> bytes:
    """The record, with another version."""
    return number.to_bytes(BYTES, "big") + scrubs(record)


def scrubs(record: bytes | None) -> bytes:
    """How often the store was scrubbed: nothing if it never was."""
    return b"" if record is None else record[BYTES:]


def count_scrub(record: bytes | None) -> bytes:
    """The record, with one scrub more."""
    known = FIRST if record is None else record
    return known[:BYTES] + (1 + int.from_bytes(known[BYTES:], "big")).to_bytes(BYTES, "big")
