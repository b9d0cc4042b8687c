from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.base import errors, limits
from worldline.codec import frame

quick = settings(deadline=None, derandomize=True, max_examples=200)

GOLDEN = [
    (0, b"", "b100bc078d06"),
    (7, b"hello", "b107f659fa4968656c6c6f"),
    (255, b"\x00" * 4, "b1ffaa30a6ff00000000"),
]


@pytest.mark.parametrize(("kind", "body", "encoded"), GOLDEN)
def test_golden(kind: int, body: bytes, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert frame.wrap(kind, body) == data
    assert frame.unwrap(kind, data) == body
    assert len(data) == len(body) + frame.OVERHEAD_BYTES
    assert data[2:6] == zlib.crc32(data[:2] + body).to_bytes(4, "big")


@quick
@given(st.integers(0, 255), st.binary(max_size=300))
def test_a_body_comes_back(kind: int, body: bytes) -> None:
    assert frame.unwrap(kind, frame.wrap(kind, body)) == body


def with_checksum(head: str, body: bytes) -> bytes:
    start = bytes.fromhex(head)
    return start + zlib.crc32(start + body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated to 0 bytes"),
        (frame.wrap(7, b"")[:-1], "truncated to 5 bytes"),
        (frame.wrap(7, b"hello")[:-1], "checksum"),
        (frame.wrap(7, b"hello") + b"\x00", "checksum"),
        (frame.wrap(7, b"hello")[:-1] + b"x", "checksum"),
        (b"\xb1\x07" + b"\x00" * 4 + b"hello", "checksum"),
        (with_checksum("b108", b"hello"), "kind 8 where kind 7"),
        (with_checksum("b207", b"hello"), "version 2; this release reads version 1"),
        (with_checksum("b007", b"hello"), "version 0"),
        (with_checksum("a107", b"hello"), "magic 0xa0"),
        (with_checksum("0007", b"hello"), "magic 0x00"),
    ],
)
def test_each_damage_has_its_message(data: bytes, why: str) -> None:
    with pytest.raises(errors.DecodeError, match=why):
        frame.unwrap(7, data)


def test_every_flipped_bit_is_noticed() -> None:
    data = frame.wrap(7, bytes(range(64)))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(errors.DecodeError):
            frame.unwrap(7, bytes(damaged))


def test_a_frame_of_one_kind_is_not_a_frame_of_another() -> None:
    for kind in range(256):
        data = frame.wrap(kind, b"body")
        for other in (kind ^ 1, 255 - kind):
            with pytest.raises(errors.DecodeError, match="where kind"):
                frame.unwrap(other, data)
            # Nor does changing the kind alone make it one.
            with pytest.raises(errors.DecodeError, match="checksum"):
                frame.unwrap(other, data[:1] + bytes([other]) + data[2:])


@pytest.mark.parametrize("kind", [-1, 256])
def test_a_kind_is_one_byte(kind: int) -> None:
    with pytest.raises(AssertionError):
        frame.wrap(kind, b"")
    with pytest.raises(AssertionError):
        frame.unwrap(kind, frame.wrap(0, b""))


CHUNKS_GOLDEN: list[tuple[list[bytes], str]] = [
    ([], ""),
    ([b""], "00000000"),
    ([b"a"], "0000000161"),
    ([b"", b"abc", b"", b"\x00"], "00000000" + "00000003616263" + "00000000" + "0000000100"),
    ([b"x" * 300], "0000012c" + "78" * 300),
]


@pytest.mark.parametrize(("chunks", "encoded"), CHUNKS_GOLDEN)
def test_chunks_golden(chunks: list[bytes], encoded: str) -> None:
    assert frame.join(chunks) == bytes.fromhex(encoded)
    assert frame.take(bytes.fromhex(encoded), len(chunks), start=0) == (chunks, len(encoded) // 2)


@quick
@given(st.lists(st.binary(max_size=20), max_size=8))
def test_chunks_come_back(chunks: list[bytes]) -> None:
    body = frame.join(chunks)
    assert len(body) == sum(frame.CHUNK_OVERHEAD_BYTES + len(chunk) for chunk in chunks)
    assert frame.take(b"x" + body + b"y", len(chunks), start=1) == (chunks, 1 + len(body))
    for size in range(len(body)):
        with pytest.raises(errors.DecodeError, match="truncated"):
            frame.take(body[:size], len(chunks), start=0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("00", "length number 0 is truncated"),
        ("000000", "length number 0 is truncated"),
        ("00000001", "number 0 is truncated"),
        ("ffffffff", "number 0 is truncated"),
        ("0000000261", "number 0 is truncated"),
        ("00000001610000", "length number 1 is truncated"),
        ("0000000161" + "7fffffff" + "00" * 10, "number 1 is truncated"),
    ],
)
def test_malformed_chunks_are_refused(data: str, why: str) -> None:
    with pytest.raises(errors.DecodeError, match=why):
        frame.take(bytes.fromhex(data), 2, start=0)


def test_chunks_fit_one_value() -> None:
    room = frame.CHUNKS_BYTES_MAX - frame.CHUNK_OVERHEAD_BYTES
    fits = frame.join([b"x" * room])
    assert len(frame.wrap(1, fits)) == limits.VALUE_BYTES_MAX
    assert frame.take(fits, 1, start=0) == ([b"x" * room], len(fits))
    with pytest.raises(errors.TooLarge):
        frame.join([b"x" * (room + 1)])
    with pytest.raises(errors.TooLarge):
        frame.join([b"x" * room, b""])


@given(st.lists(st.binary(max_size=30), max_size=6), st.binary(max_size=10), st.integers(0, 7))
def test_the_first_chunks_are_taken(chunks: list[bytes], rest: bytes, count: int) -> None:
    body = b"".join(map(frame.chunk, chunks)) + rest
    assert frame.join(chunks) + rest == body
    if count <= len(chunks):
        found, end = frame.take(b"??" + body, count, start=2)
        assert (found, body[end - 2 :]) == (chunks[:count], frame.join(chunks[count:]) + rest)
    elif len(rest) < frame.CHUNK_OVERHEAD_BYTES:
        with pytest.raises(errors.DecodeError, match=f"number {len(chunks)} is truncated"):
            frame.take(body, len(chunks) + 1, start=0)


def test_a_damaged_body_can_be_looked_at() -> None:
    damaged = frame.wrap(7, b"hello")[:-1] + b"O"
    with pytest.raises(errors.DecodeError, match="checksum"):
        frame.unwrap(7, damaged)
    assert frame.unwrap(7, damaged, checked=False) == b"hellO"
