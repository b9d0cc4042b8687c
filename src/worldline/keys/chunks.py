"""Blobs kept in the store itself, in pieces; and uploads of such blobs that take more than one batch.

Chunks
Per what:      universe, sha256 of the blob and nonce of the upload, number of the chunk
Changes:       never
Key:           (UNIVERSE, u, CHUNK, sha256, nonce, number)
Value:         Chunk(data): CHUNK_BYTES of the blob, the last one what is left
Present:       with the blob's record, or while its upload is under way

Uploads
Per what:      universe, sha256 of the blob, nonce of the upload
Changes:       never
Key:           (UNIVERSE, u, UPLOAD, sha256, nonce)
Value:         Upload(size, when it began)
Present:       from the first chunk until the record is published, or the upload is given up
"""

from __future__ import annotations

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import blobs, ids

_CHUNK = space.part(space.InUniverse.CHUNK)
# Apart from the chunks: abandoned uploads are found without walking through the bytes of blobs.
_UPLOAD = space.part(space.InUniverse.UPLOAD)

CHUNK = space.ValueCodec(space.ValueKind.CHUNK, blobs.BlobChunk)
UPLOAD = space.ValueCodec(space.ValueKind.UPLOAD, blobs.Upload)


def chunk_key(universe: ids.UniverseId, digest: bytes, nonce: bytes, number: int) -> bytes:
    assert number >= 0
    return _chunks_prefix(universe, digest, nonce) + tuples.pack((number,))


def chunk_number(universe: ids.UniverseId, digest: bytes, nonce: bytes, key: bytes) -> int:
    match space.inside(_chunks_prefix(universe, digest, nonce), key, "a chunk of this blob"):
        case (int(number),) if number >= 0:
            return number
        case _:
            raise errors.DecodeError("not a chunk of this blob")


def chunks(universe: ids.UniverseId, digest: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """All chunks of one upload."""
    return tuples.prefix_range(_chunks_prefix(universe, digest, nonce))


def upload_key(universe: ids.UniverseId, digest: bytes, nonce: bytes) -> bytes:
    return space.universe(universe) + _UPLOAD + _named(digest, nonce)


def upload_name(universe: ids.UniverseId, key: bytes) -> tuple[bytes, bytes]:
    """The blob's address and the nonce of an upload."""
    match space.inside(space.universe(universe) + _UPLOAD, key, "an upload of this universe"):
        case (bytes(digest), tuples.Uuid(nonce)) if len(digest) == limits.DIGEST_BYTES:
            return digest, nonce
        case _:
            raise errors.DecodeError("not an upload of this universe")


def uploads(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.universe(universe) + _UPLOAD)


def _chunks_prefix(universe: ids.UniverseId, digest: bytes, nonce: bytes) -> bytes:
    # With the nonce: two uploads of one blob at the same time never mix their chunks.
    return space.universe(universe) + _CHUNK + _named(digest, nonce)


def _named(digest: bytes, nonce: bytes) -> bytes:
    if len(digest) != limits.DIGEST_BYTES:
        raise errors.BadInput(f"a blob's address is a sha256 of {limits.DIGEST_BYTES} bytes, not {len(digest)}")
    return tuples.pack((digest, tuples.Uuid(ids.check_id(nonce, "the nonce of an upload"))))
