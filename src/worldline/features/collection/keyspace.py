"""Garbage collection: the last one, what keeps it from deleting, and what it is about to delete.

Collection
Per what:      universe
Changes:       when a mark begins, is renewed and ends
Key:           (UNIVERSE, u, COLLECTION)
Value:         Collection(generation, collector, began, renewed, ended, where the next one begins)
Present:       from the first collection on

Holds
Per what:      universe
Changes:       when a hold is taken, renewed or released
Key:           (UNIVERSE, u, HOLDS)
Value:         Holds(changes, [Hold(id, expires, what)])
Present:       from the first hold, or the first delete of a collection, on

Condemned
Per what:      universe and sha256
Changes:       never
Key:           (UNIVERSE, u, CONDEMNED, sha256)
Value:         Condemned(generation of the blob's record, since)
Present:       from the collection that finds that nothing refers to a blob, until it is deleted or used again
"""

from __future__ import annotations

from worldline.base import errors, limits
from worldline.codec import tuples
from worldline.keys import space
from worldline.model import blobs, ids

_COLLECTION = space.part(space.InUniverse.COLLECTION)
_HOLDS = space.part(space.InUniverse.HOLDS)
_CONDEMNED = space.part(space.InUniverse.CONDEMNED)

COLLECTION = space.ValueCodec(space.ValueKind.COLLECTION, blobs.Collection)
HOLDS = space.ValueCodec(space.ValueKind.HOLDS, blobs.Holds)
CONDEMNED = space.ValueCodec(space.ValueKind.CONDEMNED, blobs.Condemned)


def collection_key(universe: ids.UniverseId) -> bytes:
    return space.universe(universe) + _COLLECTION


def holds_key(universe: ids.UniverseId) -> bytes:
    return space.universe(universe) + _HOLDS


def condemned_key(universe: ids.UniverseId, digest: bytes) -> bytes:
    if len(digest) != limits.DIGEST_BYTES:
        raise errors.BadInput(f"a blob's address is a sha256 of {limits.DIGEST_BYTES} bytes, not {len(digest)}")
    return space.universe(universe) + _CONDEMNED + tuples.pack((digest,))


def condemned_address(universe: ids.UniverseId, key: bytes) -> bytes:
    """The address of the blob that this is about."""
    match space.inside(space.universe(universe) + _CONDEMNED, key, "a condemned blob of this universe"):
        case (bytes(digest),) if len(digest) == limits.DIGEST_BYTES:
            return digest
        case _:
            raise errors.DecodeError("not a condemned blob of this universe")


def condemned(universe: ids.UniverseId) -> tuple[bytes, bytes]:
    return tuples.prefix_range(space.universe(universe) + _CONDEMNED)
