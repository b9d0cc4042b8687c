"""Pack files: golden bytes, what is read back, and that every byte of one counts."""

from __future__ import annotations

import hashlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.base import errors, limits
from worldline.codec import delta
from worldline.features.copies import pack_file

SAMPLE = [(1, b"world"), (3, b""), (255, bytes(range(256)))]
HEAD = "89574c500d0a1a0a" + "0001" + "0001"


def packed(records: list[tuple[int, bytes]], kind: pack_file.PackKind = pack_file.PackKind.WORLD) -> bytes:
    packer = pack_file.Packer(kind)
    data = b"".join([packer.add(tag, body) for tag, body in records]) + packer.finish()
    assert (packer.count, packer.written) == (len(records), len(data))
    return data


def read(data: bytes, kind: pack_file.PackKind = pack_file.PackKind.WORLD) -> list[tuple[int, bytes]]:
    return list(pack_file.of_bytes(kind, data))


def by_hand(records: bytes, count: int, *, length: int | None = None) -> bytes:
    """A file of one block, written as the format says, and by other code."""
    head = bytes.fromhex(HEAD)
    body = delta.pack(records)
    block = struct.pack(">BII", 1, len(body), len(records) if length is None else length)
    whole = head + block + struct.pack(">I", zlib.crc32(block + body)) + body
    end = struct.pack(">BQ", 2, count) + hashlib.sha256(whole).digest()
    return whole + end + struct.pack(">I", zlib.crc32(end))


def test_golden() -> None:
    """Without a block there is nothing that a compressor decides."""
    end = "02" + "00" * 8 + hashlib.sha256(bytes.fromhex(HEAD)).hexdigest()
    assert packed([]).hex() == HEAD + end + f"{zlib.crc32(bytes.fromhex(end)):08x}"
    assert packed(SAMPLE).startswith(bytes.fromhex(HEAD + "01"))
    assert read(by_hand(b"".join(struct.pack(">BI", tag, len(data)) + data for tag, data in SAMPLE), 3)) == SAMPLE
    assert [int(kind) for kind in pack_file.PackKind] == [1, 2, 3, 4, 5]


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=20))
def test_what_was_packed_is_read(records: list[tuple[int, bytes]]) -> None:
    assert read(packed(records)) == records


def test_large_records_have_blocks_of_their_own() -> None:
    records = [(1, bytes(200_000)), (2, b"x" * pack_file.RECORD_BYTES_MAX), (3, b"y" * 100), (4, bytes(300_000))]
    assert read(packed(records)) == records
    with pytest.raises(errors.TooLarge):
        pack_file.Packer(pack_file.PackKind.WORLD).add(1, bytes(pack_file.RECORD_BYTES_MAX + 1))


def test_every_byte_counts() -> None:
    data = packed(SAMPLE)
    for place in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[place] ^= change
            with pytest.raises(errors.DecodeError):
                read(bytes(changed))


def test_every_cut_is_noticed() -> None:
    data = packed(SAMPLE)
    for length in range(len(data)):
        with pytest.raises(errors.DecodeError):
            read(data[:length])
    with pytest.raises(errors.DecodeError, match="bytes follow"):
        read(data + b"\x00")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a file of Worldline"),
        (b"PK" + bytes(40), "not a file of Worldline"),
        (bytes.fromhex(HEAD[:16] + "0002" + "0001") + bytes(60), "version 2; this release reads version 1"),
        (bytes.fromhex(HEAD[:20] + "0063"), "a kind 99 file where a world file belongs"),
        (packed([], pack_file.PackKind.KEYS), "a keys file where a world file belongs"),
        (by_hand(b"\x01\x00\x00", 1), "a block ends inside a record"),
        (by_hand(b"\x01\xff\xff\xff\xff", 1), "a block ends inside a record"),
        (by_hand(b"\x01\x00\x00\x00\x00", 2), "does not end with what it had"),
        (by_hand(bytes(100_000), 1, length=limits.PACK_BLOCK_BYTES_MAX + 1), "the limit is"),
        (by_hand(bytes(100_000), 1, length=50), "compressed bytes"),
    ],
)
def test_what_is_no_pack_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(errors.DecodeError, match=said):
        read(data)


def test_no_more_is_made_than_a_block_says() -> None:
    """A small file that would become a gigabyte: refused before any of it is made."""
    bomb = delta.pack(bytes(64 * limits.MIB))
    block = struct.pack(">BII", 1, len(bomb), limits.PACK_BLOCK_BYTES_MAX)
    data = bytes.fromhex(HEAD) + block + struct.pack(">I", zlib.crc32(block + bomb)) + bomb
    with pytest.raises(errors.DecodeError, match="compressed bytes that do not make"):
        read(data)
