from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.base import errors
from worldline.codec import digest

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_sha256_is_the_plain_one() -> None:
    assert digest.sha256(b"").hex() == EMPTY
    assert digest.sha256(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("parts", "content"),
    [
        ((b"d",), "0000000000000001" + "64"),
        ((b"d", b""), "0000000000000001" + "64" + "0000000000000000"),
        (
            (b"intent", b"\x01\x02", b"xyz"),
            "0000000000000006696e74656e74" + "00000000000000020102" + "000000000000000378797a",
        ),
    ],
)
def test_hash_parts_golden(parts: tuple[bytes, ...], content: str) -> None:
    assert digest.hash_parts(*parts) == hashlib.sha256(bytes.fromhex(content)).digest()


def test_hash_parts_golden_digest() -> None:
    found = digest.hash_parts(b"intent", b"\x01\x02", b"xyz")
    assert found.hex() == "c097024d28531fcab92d3972ffa40617cf0fe923d7e45734a092cfc3d48afe1f"


def test_parts_and_domains_are_never_confused() -> None:
    names = [b"", b"a", b"ab", b"b", b"ba", b"\x00", b"\x00" * 8, b"\x00" * 7 + b"\x01a"]
    inputs = [
        (domain, *parts) for domain in names[1:] for size in range(4) for parts in itertools.product(names, repeat=size)
    ]
    assert len({digest.hash_parts(*parts) for parts in inputs}) == len(inputs)


def test_a_domain_is_never_empty() -> None:
    with pytest.raises(AssertionError):
        digest.hash_parts(b"", b"a")


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.binary(min_size=32, max_size=32))
def test_hex_comes_back(raw: bytes) -> None:
    text = digest.to_hex(raw)
    assert len(text) == 64
    assert digest.from_hex(text) == raw


@pytest.mark.parametrize(
    "text",
    [
        "",
        EMPTY[:-1],
        EMPTY[:-2],
        EMPTY + "0",
        EMPTY.upper(),
        EMPTY[:-1] + "A",
        EMPTY[:-1] + "g",
        EMPTY + "\n",
        " " + EMPTY[1:],
        EMPTY[:62] + "  ",
        EMPTY[:31] + " " + EMPTY[32:],
        "0x" + EMPTY[2:],
        "../" + EMPTY[3:],
        "\u0661" * 64,
        "\uff11" * 64,
        "a" * 1_000_000,
    ],
)
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(errors.DecodeError) as caught:
        digest.from_hex(text)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("raw", [b"", b"\x00" * 31, b"\x00" * 33])
def test_only_a_digest_is_written_as_one(raw: bytes) -> None:
    with pytest.raises(AssertionError):
        digest.to_hex(raw)


def test_check() -> None:
    digest.check(b"abc", digest.sha256(b"abc"), "blob")
    with pytest.raises(errors.DigestMismatch, match=f"blob 7: expected sha256 {EMPTY}, found ba7816bf") as caught:
        digest.check(b"abc", bytes.fromhex(EMPTY), "blob 7")
    assert caught.value.expected == digest.sha256(b"")
    assert caught.value.actual == digest.sha256(b"abc")


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([bytes(255), bytes(256), bytes(70_000)])), max_size=5)
)
def test_counted_parts_make_the_same_digest(parts: list[bytes]) -> None:
    joined = b"".join(map(digest.counted, [b"domain", *parts]))
    assert digest.sha256(joined) == digest.hash_parts(b"domain", *parts)
