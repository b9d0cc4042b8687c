"""Blobs in the store itself: pieces of at most `CHUNK_BYTES`, each upload under a nonce of its own.

A blob of up to `CHUNKS_BATCH_MAX` chunks is written whole, in the batch that publishes its record. A larger one takes
several batches: the first writes a record of the upload, every other one expects it, and the batch that publishes the
blob deletes it. So what a killed process leaves behind is found by the records of uploads, without reading a chunk; and
an upload that was swept meanwhile conflicts at its next batch, and is never published without its bytes.

This adds to batches and decodes what was read; `layers/blobs.py` commits.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import chunks as keys
from worldline.model import blobs, ids
from worldline.store import kv

CHUNK = limits.CHUNK_BYTES
PART = CHUNK * limits.CHUNKS_BATCH_MAX  # bytes of one batch


class UploadRecord(msgspec.Struct, frozen=True):
    """An upload under way. `raw`: its record as stored."""

    of: bytes
    nonce: bytes
    age_us: int  # of the universe, when it began
    key: bytes
    raw: bytes


def is_one_batch(data: bytes) -> bool:
    return len(data) <= PART


def put(batch: kv.Batch, universe: ids.UniverseId, of: bytes, nonce: bytes, data: bytes) -> None:
    """All chunks of a blob, in the batch that publishes it, which has a guard of its own."""
    assert is_one_batch(data), "a larger blob is an upload"
    _put(batch, universe, of, nonce, data, first=0)


def begin(
    batch: kv.Batch, universe: ids.UniverseId, of: bytes, nonce: bytes, data: bytes, *, time_us: int, age_us: int
) -> UploadRecord:
    """The first part of an upload. Guard: its nonce was never used."""
    key = keys.upload_key(universe, of, nonce)
    raw = keys.UPLOAD.pack(blobs.Upload(len(data), time_us, age_us))
    batch.absent(key)
    batch.put(key, raw)
    _put(batch, universe, of, nonce, data[:PART], first=0)
    return UploadRecord(of, nonce, age_us, key, raw)


def later_parts(data: bytes) -> range:
    """Where the parts after the first begin."""
    return range(PART, len(data), PART)


def extend(batch: kv.Batch, universe: ids.UniverseId, upload: UploadRecord, data: bytes, start: int) -> None:
    """The part that begins at `start`. Guard: its first chunk is not there. Expects that the upload is under way."""
    batch.expect(upload.key, upload.raw)
    first = start // CHUNK
    # The upload's record does not change here, so the first chunk of the part is the guard.
    batch.absent(keys.chunk_key(universe, upload.of, upload.nonce, first))
    _put(batch, universe, upload.of, upload.nonce, data[start : start + PART], first=first)


def get_upload(upload: UploadRecord) -> kv.Get:
    return kv.Get(upload.key)


def finish(batch: kv.Batch, upload: UploadRecord) -> None:
    """All parts are there: in the batch that publishes the blob. Expects that the upload was not given up."""
    batch.expect(upload.key, upload.raw)
    batch.delete(upload.key)


def discard(batch: kv.Batch, universe: ids.UniverseId, upload: UploadRecord) -> None:
    """Give an upload up: its record and all its chunks go. Guard: its record, which carries a nonce."""
    batch.expect(upload.key, upload.raw)
    batch.delete(upload.key)
    # A range, because the record does not say how many chunks were written.
    batch.delete_range(*keys.chunks(universe, upload.of, upload.nonce))


def uploads_range(universe: ids.UniverseId, *, after: bytes = b"", count_max: int) -> kv.Range:
    """Uploads under way or abandoned. `after`: the key of one seen before."""
    begin, end = keys.uploads(universe)
    return kv.Range(tuples.successor(after) if after else begin, end, count_max=count_max)


def decode_uploads(universe: ids.UniverseId, page: kv.Page) -> list[UploadRecord]:
    """One whose record is damaged counts as old: it can be given up, and if it is under way, it begins again."""
    found: list[UploadRecord] = []
    for key, raw in page.items:
        of, nonce = keys.upload_name(universe, key)
        try:
            age_us = keys.UPLOAD.unpack(raw).age_us
        except errors.DecodeError:
            age_us = 0  # counts as begun when the universe was made
        found.append(UploadRecord(of, nonce, age_us, key, raw))
    return found


def read_range(universe: ids.UniverseId, of: bytes, nonce: bytes) -> kv.Range:
    """The chunks of a blob, as many a page as are read at once."""
    return kv.Range(
        *keys.chunks(universe, of, nonce),
        count_max=limits.CHUNKS_PAGE_BYTES_MAX // CHUNK,
        bytes_max=limits.CHUNKS_PAGE_BYTES_MAX,
    )


def decode(universe: ids.UniverseId, of: bytes, nonce: bytes, page: kv.Page, *, first: int) -> list[bytes]:
    """The data of the chunks from number `first` on, none left out. `NotFound` if one is missing."""
    found: list[bytes] = []
    for number, (key, raw) in enumerate(page.items, first):
        if keys.chunk_number(universe, of, nonce, key) != number:
            raise errors.NotFound(f"chunk {number} of blob {of.hex()} is missing")
        found.append(keys.CHUNK.unpack(raw).data)
    return found


def _put(batch: kv.Batch, universe: ids.UniverseId, of: bytes, nonce: bytes, data: bytes, *, first: int) -> None:
    for number, start in enumerate(range(0, len(data), CHUNK), first):
        piece = blobs.BlobChunk(data[start : start + CHUNK])
        batch.put(keys.chunk_key(universe, of, nonce, number), keys.CHUNK.pack(piece))
