"""Content-addressed blobs.

Per what:      universe and sha256
Changes:       the bytes never; the generation when a blob is used again
Key:           (UNIVERSE, u, CAS, sha256)
Value:         Blob(size, generation; inline bytes, or the object's name, or the nonce of its chunks)
Present:       from the moment the bytes are safe until garbage collection
"""

from __future__ import annotations

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import blobs as blob
from worldline.model import ids

_CAS = space.part(space.InUniverse.CAS)

BLOB = space.ValueCodec(space.ValueKind.BLOB, blob.Blob)


def blob_key(universe: ids.UniverseId, digest: bytes) -> bytes:
    if len(digest) != limits.DIGEST_BYTES:
        raise errors.BadInput(f"a blob's address is a sha256 of {limits.DIGEST_BYTES} bytes, not {len(digest)}")
    return space.universe(universe) + _CAS + tuples.pack((digest,))


def blob_address(universe: ids.UniverseId, key: bytes) -> bytes:
    """The address of the blob that this is the key of."""
    match space.inside(space.universe(universe) + _CAS, key, "a blob of this universe"):
        case (bytes(digest),) if len(digest) == limits.DIGEST_BYTES:
            return digest
        case _:
            raise errors.DecodeError("not a blob of this universe")


def blobs(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.universe(universe) + _CAS)


def object_folder(universe: ids.UniverseId) -> str:
    """What the names of a universe's objects begin with, before a slash."""
    return universe.hex()


def object_name(universe: ids.UniverseId, digest: bytes, nonce: bytes) -> str:
    """Where a large blob's body goes. The nonce keeps every upload apart from every other."""
    # Two digits more than needed: in a file system, no folder has all objects of a universe.
    return f"{object_folder(universe)}/cas/{digest.hex()[:2]}/{digest.hex()}-{nonce.hex()}"
