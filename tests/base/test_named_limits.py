"""Limits that name stored data are part of the format: changing one is a decision, not an accident."""

from __future__ import annotations

from pathlib import Path

from worldline.base import limits

STORED = {
    "KEY_BYTES_MAX": 480,
    "VALUE_BYTES_MAX": 65_536,
    "BATCH_BYTES_MAX": 4_194_304,
    "BATCH_APPENDS_MAX": 65_535,
    "STAMP_BYTES": 12,
    "COUNTER_BYTES": 8,
    "ID_BYTES": 16,
    "DIGEST_BYTES": 32,
    "NAME_BYTES_MAX": 128,
    "CLIENT_ID_BYTES_MAX": 64,
    "FRAME_BYTES_MAX": 61_440,
    "INLINE_BYTES_MAX": 16_384,
    "CHUNK_BYTES": 64_512,
    "CHUNKED_BYTES_MAX": 16_777_216,
    "CBOR_DEPTH_MAX": 64,
}


def test_limits_of_stored_data_have_not_moved() -> None:
    assert {name: getattr(limits, name) for name in STORED} == STORED


def test_every_limit_is_a_positive_integer() -> None:
    values = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert values
    assert [name for name, value in values.items() if type(value) is not int or value <= 0] == []


def test_the_relations_between_limits_are_asserted() -> None:
    """The module checks itself when it is imported; here only that nobody took the checks away."""
    source = Path(limits.__file__).read_text()
    for name in ("KEY_BYTES_MAX <= 511", "FRAME_BYTES_MAX < VALUE_BYTES_MAX", "INLINE_BYTES_MAX < FRAME_BYTES_MAX"):
        assert f"assert {name}" in source
