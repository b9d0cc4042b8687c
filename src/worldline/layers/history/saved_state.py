"""Saved states: reading one whole, and writing one beside what is there already.

A saved state is a header and the trie that it names (`model/trie`), all of them blobs; the address of the header is the
root of a snapshot. Equal states have equal bytes, so states share what is equal in them: a new one is written by the
nodes that were not there before.

`load` and `save_changed` read on the event loop, many nodes at once. What takes time there, decoding leaves and making
nodes, is left to the caller's thread (`Loaded.rows`, `compute`). A state is changed in parts: nodes are written as soon
as they are done, so that neither memory nor a turn of the loop grows with the number of leaves that change. Whatever a
process has written of a state when it ends is unused: the header, which makes it one, is written last.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest
from worldline.layers import blobs as blob_layer
from worldline.model import row_keys
from worldline.model.change import Row
from worldline.model.trie import nodes, paths, walk
from worldline.model.trie.differing_keys import TrieDifference
from worldline.model.trie.nodes import Far, Header, NodeRef
from worldline.model.trie.update import Update, UpdatedTrie, build

Compute = Callable[..., Awaitable[Any]]  # calls a function with arguments, in the thread that is for it


BRANCHES_KEPT = 4_096  # of a trie that rows are looked up in again and again; about 3 MB
PART_BLOBS = 250  # of a state, that are put at once
PART_BYTES = limits.BLOBS_BATCH_BYTES_MAX * 3 // 4  # of nodes that wait to be put together, more or less
ROW_BYTES = 550  # more or less what a row takes in memory besides its bytes, if it is a cell
VALUE_TIMES_MAX = 32  # the value of a cell takes at most so many times its bytes, as a rule


class LoadedState(msgspec.Struct, frozen=True):
    """A saved state as it was read."""

    header: Header
    walk: walk.TrieWalk
    cold: bool = False  # cells were left out

    @property
    def state(self) -> bytes:
        return self.header.state

    def rows(self) -> list[tuple[bytes, Row]]:
        """All of its rows that were read, in no particular order. Takes a while if they are many."""
        found = self.walk.rows()
        # Compared, because rows that are missing would make another state without any other sign of it.
        if not self.cold and len(found) != self.header.root.count:
            raise errors.DecodeError(f"a saved state has {len(found)} rows; its header says {self.header.root.count}")
        return found


class StateBlobs(msgspec.Struct, frozen=True):
    """A state that is to be saved: its header, and all blobs that may not be there, in the order they are put in."""

    header: Header
    blobs: list[bytes]

    @property
    def root(self) -> bytes:
        return digest.sha256(self.blobs[-1])


class SavedState(msgspec.Struct, frozen=True):
    """A state that is saved. `blobs` and `size`: how many were put for it, there already or not, and their bytes."""

    header: Header
    root: bytes
    blobs: int
    size: int


def whole(state: bytes, rows: Iterable[tuple[bytes, Row]]) -> StateBlobs:
    """A state of these rows, with all that it consists of."""
    return written(state, build(rows), size_before=0)


def written(state: bytes, result: UpdatedTrie, *, size_before: int) -> StateBlobs:
    """What is left to be written of a state that was changed: `result` has no more than that."""
    header = Header(state, result.root, size_before + result.grown)
    return StateBlobs(header, [*result.blobs.values(), *result.new.values(), nodes.encode_header(header)])


async def header_of(blobs: blob_layer.BlobReader, root: bytes) -> Header:
    return nodes.decode_header((await blobs.get_many([root]))[root])


async def load(blobs: blob_layer.BlobReader, root: bytes, *, cells_max: int | None = None) -> LoadedState:
    """Read a saved state. `BadNode` says which node is damaged or missing, and where it lies. If its cells would take
    more memory than `cells_max`, they are left out.
    """
    header = await header_of(blobs, root)
    cold = is_large(header, cells_max)
    walking = walk.TrieWalk(header.root, cells=not cold)
    await _walk(blobs, walking)
    return LoadedState(header, walking, cold)


def is_large(header: Header, cells_max: int | None) -> bool:
    """Whether a state takes more memory than this, even if its cells are left as they are stored."""
    return cells_max is not None and header.size + ROW_BYTES * header.root.count > cells_max


def may_be_large(header: Header, cells_max: int) -> bool:
    """Whether a state may take more memory than this when its cells have been used."""
    return VALUE_TIMES_MAX * header.size + ROW_BYTES * header.root.count > cells_max


async def lookup(
    blobs: blob_layer.Blobs, root: NodeRef, keys: Iterable[bytes], known: dict[bytes, bytes] | None = None
) -> dict[bytes, Row]:
    """The rows under some keys of a trie; those that are not there are left out. `known`: branches by address, which
    are not read again; it is added to, and what was added first goes when it grows too long. `BadNode` says which node
    is damaged or missing, and for which row it was read.
    """
    asking = paths.Paths(root.address, keys)
    branches = {} if known is None else known
    while wanted := asking.wanted:
        missing = [address for address in wanted if address not in branches]
        try:
            found = await blobs.get_many(missing) if missing else {}
        except blob_layer.BadBlob as error:
            raise BadNode(None, f"{asking.place(error.address)}: {error.why}") from error
        asking.take({address: found.get(address) or branches[address] for address in wanted})
        # Leaves are not kept: lookups share the branches near the root, and seldom a leaf.
        branches.update((address, data) for address, data in found.items() if nodes.is_branch(data))
    # A dict keeps the order of insertion, so the first are the oldest. This lookup has used them already.
    for address in list(itertools.islice(branches, max(0, len(branches) - BRANCHES_KEPT))):
        branches.pop(address, None)
    rows = asking.rows()
    # Large rows are asked for together: their records come in few reads, not in one for each.
    far = {row.address: key for key, row in rows.items() if isinstance(row, Far)}
    try:
        meanings = await blobs.get_many(list(far))
    except blob_layer.BadBlob as error:
        what = f"blob {error.address.hex()}, which holds {row_keys.describe(far[error.address])}"
        raise BadNode(None, f"{what}: {error.why}") from error
    return {
        key: Row(meanings[row.address], row.placement) if isinstance(row, Far) else row for key, row in rows.items()
    }


async def changed(blobs: blob_layer.Blobs, old: NodeRef, after: NodeRef, compute: Compute) -> list[bytes]:
    """The keys of rows that are not the same in two tries, in their order. Costs what is different."""
    asking = TrieDifference(old.address, after.address)
    while wanted := asking.wanted:
        # Not on the event loop: decoding a page of leaves takes longer than a turn of it may.
        await compute(asking.take, await blobs.get_many(wanted))
    return [each.key for each in asking.changed()]


async def check(blobs: blob_layer.BlobReader, root: bytes, known: dict[bytes, None]) -> None:
    """Read every node of a saved state that is not `known`, and check that it has the only form that its rows allow.
    `BadNode` says which is damaged or missing, and where it lies.
    """
    header = await header_of(blobs, root)
    known[root] = None
    await _walk(blobs, walk.TrieWalk(header.root, strict=True, known=known))


async def _walk(blobs: blob_layer.BlobReader, walking: walk.TrieWalk) -> None:
    try:
        while wanted := walking.wanted:
            walking.take(await blobs.get_many(wanted))
    except blob_layer.BadBlob as error:
        place = walking.place(error.address)
        said = str(place) if place is None or place.address == error.address else f"a large row below {place}"
        raise BadNode(place, f"{said}: {error.why}") from error


class BadNode(errors.Corrupt):
    """A node of a saved state cannot be read. `place`: where it lies, if all of the state was read."""

    code = "bad_node"

    def __init__(self, place: walk.TrieCursor | None, message: str) -> None:
        super().__init__(message)
        self.place = place


async def save_changed(
    blobs: blob_layer.Blobs, updating: Update, compute: Compute, *, state: bytes, size_before: int
) -> SavedState:
    """Read what a change of a saved state needs, and put all of the changed state that is not there yet."""
    parts = _Parts(blobs)
    await parts.put(updating.written())
    while wanted := updating.wanted:
        await parts.put(await compute(_taken, updating, await blobs.get_many(wanted)))
    # The header is put last: until it is there, nothing refers to the nodes, and a collection removes them.
    last = written(state, updating.result(), size_before=size_before)
    await parts.put(last.blobs)
    await parts.finish()
    return SavedState(last.header, last.root, parts.count, parts.size)


def _taken(updating: Update, encoded: dict[bytes, bytes]) -> list[bytes]:
    updating.take(encoded)
    return updating.written()


async def save(blobs: blob_layer.Blobs, state: StateBlobs) -> SavedState:
    """Put all of a state that is not there yet."""
    parts = _Parts(blobs)
    # In parts: between two of them the event loop has its turn.
    for start in range(0, len(state.blobs), PART_BLOBS):
        await parts.put(state.blobs[start : start + PART_BLOBS])
    await parts.finish()
    return SavedState(state.header, state.root, parts.count, parts.size)


class _Parts:
    """Blobs on their way into the store, in their order: a commit for about as many as fit into one."""

    def __init__(self, blobs: blob_layer.Blobs) -> None:
        self._blobs = blobs
        self._waiting: list[bytes] = []
        self._waiting_size = 0
        self.count = 0
        self.size = 0

    async def put(self, bodies: list[bytes]) -> None:
        size = sum(map(len, bodies))
        self.count += len(bodies)
        self.size += size
        self._waiting += bodies
        self._waiting_size += size
        # A commit has a fixed price, so small nodes wait until together they are worth one.
        if self._waiting_size >= PART_BYTES:
            await self.finish()

    async def finish(self) -> None:
        """All of them are durable."""
        waiting, self._waiting, self._waiting_size = self._waiting, [], 0
        await self._blobs.put_many(waiting)
