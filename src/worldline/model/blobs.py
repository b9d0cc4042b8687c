"""Blobs: bytes under their sha256, the generation that garbage collection counts by, and what it keeps of its work."""

from __future__ import annotations

import msgspec

from worldline.base import limits


class Blob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the bytes behind a sha256 are: inline here, in the object store under `object`, or in the store itself, in
    the chunks of the upload whose nonce is `chunks`.
    """

    size: int
    generation: int
    inline: bytes | None = None
    object: str | None = None
    chunks: bytes | None = None

    def __post_init__(self) -> None:
        if (self.inline, self.object, self.chunks).count(None) != 2:
            raise ValueError("a blob is inline, an object or in chunks")
        if self.size < 0 or self.generation < 0:
            raise ValueError("a blob's size and generation are not negative")
        if self.inline is not None and len(self.inline) != self.size:
            raise ValueError("a blob's size is the number of its bytes")
        if self.chunks is not None and len(self.chunks) != limits.ID_BYTES:
            raise ValueError(f"the nonce of an upload has {limits.ID_BYTES} bytes")


class BlobChunk(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A piece of a blob that is kept in the store itself."""

    data: bytes

    def __post_init__(self) -> None:
        if not 0 < len(self.data) <= limits.CHUNK_BYTES:
            raise ValueError(f"a chunk has 1 to {limits.CHUNK_BYTES} bytes")


class Upload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A blob whose chunks are being written, over more than one batch."""

    size: int
    began_us: int  # by the store's clock
    age_us: int = 0  # of the universe then


class Generation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The universe's garbage-collection generation: raised before each mark. `marking`: a mark is under way."""

    number: int
    marking: bool = False

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("a generation is not negative")


class Collection(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last garbage collection of a universe. All times are the store's.

    `collector` has begun the mark of `generation`, and says with `renewed_us` that it goes on. `ended_us` is when the
    mark ended; 0 while it is under way, or if it was given up. `above`: where the addresses begin that the next
    collection judges, if there were too many to keep at once; empty: at the first. `worker`, `incarnation`: of the
    process that collects, if it has a heartbeat; empty: it has none.
    """

    generation: int
    collector: bytes
    began_us: int
    renewed_us: int
    ended_us: int = 0
    above: bytes = b""
    worker: bytes = b""
    incarnation: bytes = b""

    def __post_init__(self) -> None:
        if len(self.collector) != limits.ID_BYTES:
            raise ValueError(f"the id of a collector has {limits.ID_BYTES} bytes")
        if len(self.worker) != len(self.incarnation) or len(self.worker) not in (0, limits.ID_BYTES):
            raise ValueError(f"the ids of a worker and of its incarnation have {limits.ID_BYTES} bytes, or are empty")
        if len(self.above) not in (0, limits.DIGEST_BYTES):
            raise ValueError("an address is a sha256")


class Hold(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """As long as this stands, nothing is collected: something copies what is there. `what`: for people.

    It has expired if both times have come: that of the store's clock, and the age of the universe.
    """

    id: bytes
    expires_us: int  # by the store's clock
    what: str
    expires_age_us: int = 0

    def __post_init__(self) -> None:
        if len(self.id) != limits.ID_BYTES:
            raise ValueError(f"the id of a hold has {limits.ID_BYTES} bytes")


class Holds(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All holds of a universe, one record. `changes` counts how often it was changed: no two have the same bytes."""

    changes: int
    holds: list[Hold]

    def __post_init__(self) -> None:
        if len(self.holds) > limits.HOLDS_MAX:
            raise ValueError(f"a universe has at most {limits.HOLDS_MAX} holds")


class Condemned(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A blob that nothing referred to. `generation`: that of its record then; a blob that is used again has a greater
    one. `since_us`: when it was condemned, by the store's clock; `age_us`: the age of the universe then. `mark`: the
    generation of the mark that has not found it.
    """

    generation: int
    since_us: int
    age_us: int = 0
    mark: int = 0
