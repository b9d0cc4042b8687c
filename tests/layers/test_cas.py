"""CAS records: bytes under their own address, checked whenever they are seen."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from tests.layers import scenario
from tests.layers.scenario import UNIVERSE, Store
from worldline.base import errors, limits
from worldline.keys import cas as keys
from worldline.layers import cas
from worldline.model import blobs, payload
from worldline.store import kv

DATA = b"some bytes"
AT_LIMIT = b"x" * limits.INLINE_BYTES_MAX
OVER_LIMIT = AT_LIMIT + b"x"


def publishing(data: bytes, *, generation: int = 0) -> kv.Batch:
    batch = kv.Batch()
    cas.publish(batch, UNIVERSE, cas.address(data), blobs.Blob(len(data), generation, inline=data))
    return batch


def stored(store: Store, data: bytes) -> bytes:
    raw = store.read(cas.get(UNIVERSE, cas.address(data))).value(0)
    assert raw is not None
    return raw


def test_address_is_the_plain_sha256() -> None:
    assert cas.address(DATA) == hashlib.sha256(DATA).digest()


@pytest.mark.parametrize("of", [b"", b"x" * 31, b"x" * 33])
def test_address_of_another_length_is_refused(of: bytes) -> None:
    with pytest.raises(errors.BadInput, match="sha256"):
        cas.get(UNIVERSE, of)


def test_published_blob_is_read_back_and_published_once() -> None:
    store = Store()
    of = cas.address(DATA)
    with pytest.raises(errors.NotFound, match=of.hex()):
        cas.decode(of, store.read(cas.get(UNIVERSE, of)).value(0))
    store.ok(publishing(DATA))
    store.conflict(publishing(DATA, generation=7))
    assert cas.decode(of, stored(store, DATA)) == blobs.Blob(len(DATA), 0, inline=DATA)
    assert store.read(cas.get(scenario.OTHER_UNIVERSE, of)).value(0) is None


def test_bytes_under_a_wrong_address_are_never_returned() -> None:
    store = Store()
    store.ok(publishing(DATA))
    with pytest.raises(errors.DigestMismatch):
        cas.decode(cas.address(b"other"), stored(store, DATA))
    swapped = keys.BLOB.pack(blobs.Blob(5, 0, inline=b"other"))
    with pytest.raises(errors.DigestMismatch):
        cas.decode(cas.address(DATA), swapped)


def test_damaged_record_is_noticed_wherever_it_is_damaged() -> None:
    raw = keys.BLOB.pack(blobs.Blob(len(DATA), 3, inline=DATA))
    for position in range(len(raw)):
        with pytest.raises(errors.Corrupt):
            cas.decode(cas.address(DATA), scenario.flipped(raw, at=position))
        with pytest.raises(errors.Corrupt):
            cas.decode(cas.address(DATA), raw[:position])


def test_small_blob_can_join_a_batch() -> None:
    store = Store()
    batch = scenario.replaced(b"\x50guard", None, b"")
    of = cas.put_inline(batch, UNIVERSE, AT_LIMIT, generation=2)
    assert cas.put_inline(batch, UNIVERSE, AT_LIMIT, generation=2) == of
    store.ok(batch)
    assert cas.decode(of, stored(store, AT_LIMIT)) == blobs.Blob(len(AT_LIMIT), 2, inline=AT_LIMIT)
    with pytest.raises(errors.TooLarge, match="inline blob"):
        cas.put_inline(kv.Batch(), UNIVERSE, OVER_LIMIT, generation=2)


def touching(store: Store, data: bytes, *, generation: int) -> tuple[bool, kv.Batch]:
    batch = kv.Batch()
    return cas.touch(batch, UNIVERSE, cas.address(data), stored(store, data), generation=generation), batch


@pytest.mark.parametrize(
    "made",
    [blobs.Blob(len(DATA), 3, inline=DATA), blobs.Blob(len(DATA), 3, object="ab/cd-ef")],
    ids=["inline", "object"],
)
def test_used_again_a_blob_rises_to_the_present_generation(made: blobs.Blob) -> None:
    store = Store()
    batch = kv.Batch()
    cas.publish(batch, UNIVERSE, cas.address(DATA), made)
    store.ok(batch)
    for generation in (2, 3):
        assert touching(store, DATA, generation=generation)[0] is False
    touched, batch = touching(store, DATA, generation=5)
    _, slower = touching(store, DATA, generation=4)
    assert touched
    store.ok(batch)
    store.conflict(slower)
    assert cas.decode(cas.address(DATA), stored(store, DATA)) == msgspec.structs.replace(made, generation=5)


def test_blob_that_is_damaged_is_not_touched() -> None:
    store = Store()
    store.ok(publishing(DATA))
    raw = keys.BLOB.pack(blobs.Blob(5, 0, inline=b"other"))
    with pytest.raises(errors.DigestMismatch):
        cas.touch(kv.Batch(), UNIVERSE, cas.address(DATA), raw, generation=5)


def test_payload_is_carried_along_up_to_the_limit() -> None:
    assert (cas.is_small(AT_LIMIT), cas.is_small(OVER_LIMIT)) == (True, False)
    assert cas.as_payload(AT_LIMIT) == payload.inline(AT_LIMIT)
    expected = payload.reference(hashlib.sha256(OVER_LIMIT).digest(), size=len(OVER_LIMIT))
    assert cas.as_payload(OVER_LIMIT) == expected
    assert cas.as_payload(OVER_LIMIT, of=cas.address(OVER_LIMIT)) == expected
