"""Checking a world file, without a store: it is read through once, and nothing is written anywhere.

What comes out says what the file is, which of its blobs are needed, and the digest of all its bytes: a world is made of
the very bytes that were checked (`world_import`). Whatever is wrong with a file is a `BadCopy`;
only one that would unpack to far too much is a `CopyTooLarge`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest, structs
from worldline.features.copies import history_check, pack_file
from worldline.features.copies import records as copies
from worldline.features.copies.copy_bounds import CopyBounds
from worldline.features.copies.file_blobs import FileBlobs, reading
from worldline.features.copies.file_keys import FileKeys, check_envelope
from worldline.features.copies.world_export import Keep
from worldline.features.copies.world_file import WORLD_BLOB_BYTES_MAX, Contents, Tag
from worldline.layers import blobs as blob_layer
from worldline.layers import worlds
from worldline.model import ids, journal, payload, snapshots
from worldline.store import kv

TIME_US_MAX = 2**63 - 1
_NOWHERE = ids.Address(ids.UniverseId(bytes(limits.ID_BYTES)), ids.WorldId(bytes(limits.ID_BYTES)))
_GUARD = b"guard"  # every batch needs one
# What code that decodes hostile bytes may raise. Anything else is a bug of ours, and ends the command.
_FAULTS = (errors.Error, ValueError, LookupError, ArithmeticError, TypeError, AssertionError, RecursionError)


class CheckedContents(Contents, frozen=True):
    """What is in a file that is whole. `answers`: unread ones, which an import leaves out."""

    answers: int


class CheckedFile(msgspec.Struct, frozen=True):
    """A file that is whole. `size`: of all that is stored of it; `needed`: addresses of its blobs; `baseline`: what a
    restore of the world begins with.
    """

    world: copies.ExportedWorld
    baseline: snapshots.StateSnapshot
    needed: dict[bytes, None]
    digest: bytes
    size: int
    contents: CheckedContents


async def check_file(file: int, shown: str, *, bytes_max: int | None = None, keep: Keep | None = None) -> CheckedFile:
    """Read a file, given by its descriptor, from its beginning to its end. `keep` is called often."""
    bounds = CopyBounds(shown, os.fstat(file).st_size, bytes_max)
    checking = _Checking(file, bounds)
    reader = pack_file.PackReader(pack_file.PackKind.WORLD, reading(file))
    records = reader.placed()
    block = 0
    while True:
        with bad_copy(shown):
            found = next(records, None)
            if found is None:
                return await checking.end(reader.digest)
            bounds.unpack(len(found.data))
            await checking.take(found)
        if found.block != block:
            block = found.block
            await asyncio.sleep(0)  # a large file takes a while: the worlds of this process go on
            if keep is not None:
                await keep()


def header(file: int, shown: str) -> tuple[copies.ExportedWorld, bytes]:
    """What a file says that it is, in its first record; and that record. Nothing else of it was checked."""
    with bad_copy(shown):
        first = next(pack_file.records(pack_file.PackKind.WORLD, reading(file)), (0, b""))
        if first[0] != Tag.WORLD:
            raise errors.DecodeError("the file has no world")
        return _header(first[1]), first[1]


@contextlib.contextmanager
def bad_copy(shown: str) -> Iterator[None]:
    """Around what looks at nothing but the bytes of a file: whatever is raised there is the file's fault."""
    try:
        yield
    except (errors.BadCopy, errors.CopyTooLarge):
        raise
    except _FAULTS as error:
        raise errors.BadCopy(f"{shown}: {error}") from error


def _header(data: bytes) -> copies.ExportedWorld:
    """The first record. What it says is shown to people and stored, so it must be what people may choose."""
    found = structs.decode(copies.ExportedWorld, data)
    ids.check_name(found.name, "a world's name")
    ids.check_name(found.program, "a program's name")
    ids.check_name(found.universe, "a universe's name")
    worlds.check_labels(found.labels)
    if len(found.program_hash) != limits.DIGEST_BYTES:
        raise errors.DecodeError(f"a program's hash of {len(found.program_hash)} bytes")
    if not all(0 <= each <= TIME_US_MAX for each in (found.created_us, found.exported_us, found.head.time_us)):
        raise errors.DecodeError("a time that is none")
    steps = [each.step for each in found.origins]
    if steps != sorted(steps) or steps[0] < 0 or steps[-1] != found.head.step or found.origins[0].height < 0:
        raise errors.DecodeError("the origins of a history rise to its head")
    return found


class _Checking:
    """One file, as far as it was read."""

    def __init__(self, file: int, bounds: CopyBounds) -> None:
        self._blobs = FileBlobs(file, bounds)
        self._history = history_check.Checking(self._blobs, _NOWHERE, bounds)
        self._keys = FileKeys(_NOWHERE)
        self._world: copies.ExportedWorld | None = None
        self._first: pack_file.PlacedRecord | None = None  # of a blob whose pieces are being read
        self._pieces: list[bytes] = []
        self._body = b""  # the last blob
        self._written: dict[bytes, None] = {}  # keys of records
        self._size = 0

    async def take(self, placed: pack_file.PlacedRecord) -> None:
        if placed.tag in (Tag.PIECE, Tag.BLOB):
            self._take_blob(placed)
            return
        if self._first is not None:
            raise errors.DecodeError("a blob is not all there: another record follows a piece of it")
        tag = self._keys.order(placed.tag)
        if tag == Tag.WORLD:
            self._world = _header(placed.data)
            return
        batch = kv.Batch()
        for address in self._keys.put(batch, tag, placed.data):
            self._history.need(address)
        self._take_keys(batch)
        match tag:
            case Tag.SNAPSHOT:
                await self._history.take_snapshot(structs.decode(snapshots.StateSnapshot, placed.data))
            case Tag.DROPPED:
                self._history.take_dropped(structs.decode(journal.DroppedEntries, placed.data))
            case Tag.SEGMENT:
                await self._history.take_segment(structs.decode(journal.Segment, placed.data), self._body)
            case Tag.UNREAD:
                await check_envelope(structs.decode(copies.CopiedInput, placed.data), self._load)

    async def _load(self, carried: payload.Payload) -> bytes:
        self._blobs.begin()
        return await blob_layer.load(self._blobs, carried)

    def _take_keys(self, batch: kv.Batch) -> None:
        """Every key and value of a record can be stored, and no other record has the same key."""
        for key in batch.puts:
            if key in self._written:
                raise errors.DecodeError("two records have one key")
            self._written[key] = None
        self._size += sum(len(key) + len(put.value) for key, put in batch.puts.items())
        self._size += sum(len(each.prefix) + len(each.value) for each in batch.appends)
        batch.put(_GUARD, b"")
        batch.absent(_GUARD)
        # By the rules of engines, so that an import of this file is not refused half-way.
        kv.check(batch)

    def _take_blob(self, placed: pack_file.PlacedRecord) -> None:
        if not self._keys.has_begun:
            raise errors.DecodeError("a blob before the world")
        self._first = self._first or placed  # where its first piece stands
        self._pieces.append(placed.data)
        size = sum(map(len, self._pieces))
        if size > WORLD_BLOB_BYTES_MAX:
            raise errors.DecodeError(f"a blob of more than {WORLD_BLOB_BYTES_MAX} bytes")
        if placed.tag == Tag.BLOB:
            self._body = b"".join(self._pieces)
            self._blobs.add(digest.sha256(self._body), self._first, size)
            self._first, self._pieces = None, []

    async def end(self, digest: bytes) -> CheckedFile:
        """All records were read."""
        world, keys, history = self._world, self._keys, self._history
        if world is None or self._first is not None:
            raise errors.DecodeError("the file has no world, or ends behind a piece of a blob")
        baseline = await history.check_end(world.head)
        head = world.head
        contents = CheckedContents(
            world.name,
            world.program,
            head.height,
            head.step,
            head.chain.hex(),
            head.state.hex(),
            len(history.needed),
            keys.segments,
            keys.snapshots,
            keys.unread,
            keys.dead,
            keys.answers,
        )
        size = self._size + sum(map(self._blobs.size, history.needed))
        return CheckedFile(world, baseline, history.needed, digest, size, contents)
