"""The content-addressed store: bytes under their sha256, shared by all worlds of a universe.

Small blobs live in the store, larger ones as objects whose name ends in an upload nonce; the record in the store is
published last, so an address that can be read always has its bytes. Contents are verified when they are put and every
time they are read, from wherever they come. `layers/blobs.py` does the uploading and caching around this.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest
from worldline.keys import cas as keys
from worldline.model import blobs, ids, payload
from worldline.store import kv


def address(data: bytes) -> ids.Digest:
    return ids.Digest(digest.sha256(data))


def get(universe: ids.UniverseId, of: bytes) -> kv.Get:
    return kv.Get(keys.blob_key(universe, of))


def decode(of: bytes, raw: bytes | None) -> blobs.Blob:
    """The blob's record, which must exist. An inline body is verified here."""
    found = keys.BLOB.get(raw)
    if found is None:
        raise errors.NotFound(f"no blob {of.hex()} in this universe")
    if found.inline is not None:
        digest.check(found.inline, of, "an inline blob")
    return found


def put_inline(batch: kv.Batch, universe: ids.UniverseId, data: bytes, *, generation: int) -> ids.Digest:
    """Add a small blob to a batch that has a guard of its own. Writing the same bytes again changes nothing."""
    if len(data) > limits.INLINE_BYTES_MAX:
        raise errors.TooLarge("inline blob", size=len(data), limit=limits.INLINE_BYTES_MAX)
    of = address(data)
    key = keys.blob_key(universe, of)
    # Several entries of one step may carry the same bytes, and a batch writes a key once.
    if key not in batch.puts:
        batch.put(key, keys.BLOB.pack(blobs.Blob(len(data), generation, inline=data)))
    return of


def publish(batch: kv.Batch, universe: ids.UniverseId, of: bytes, record: blobs.Blob) -> None:
    """Make a blob readable: a batch of its own. Guard: it is not there yet."""
    key = keys.blob_key(universe, of)
    # The first record stands: readers may have begun with the body that it names.
    batch.absent(key)
    batch.put(key, keys.BLOB.pack(record))


def touch(batch: kv.Batch, universe: ids.UniverseId, of: bytes, raw: bytes, *, generation: int) -> bool:
    """Raise a blob that is used again to the present generation. Returns whether it was below. Guard: its record."""
    found = decode(of, raw)
    # A collection spares what has the present generation, so there is nothing to raise.
    if found.generation >= generation:
        return False
    key = keys.blob_key(universe, of)
    batch.expect(key, raw)
    batch.put(key, keys.BLOB.pack(msgspec.structs.replace(found, generation=generation)))
    return True


def is_small(data: bytes) -> bool:
    return len(data) <= limits.INLINE_BYTES_MAX


def as_payload(data: bytes, *, of: bytes | None = None) -> payload.Payload:
    """Carried along if small, else by its address: the caller has put it, or will before the commit."""
    if is_small(data):
        return payload.inline(data)
    return payload.reference(of if of is not None else address(data), size=len(data))
