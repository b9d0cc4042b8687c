"""Saved states of a world, from outside: records beside its journal, never in it (ADR 3).

A state is named by its hash, the root over all rows: a world can be forked from it. Every state that is saved is the
baseline then, from which the next restore begins.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from worldline.base import errors
from worldline.client import world_answers
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.keys import snapshots as keys
from worldline.layers import snapshots as layer
from worldline.model import ids, snapshots
from worldline.model.journal import JournalEntry
from worldline.runtime import world_reader
from worldline.runtime.live_hub import Chunk
from worldline.store import kv, paging

HASH_CHARACTERS_MIN = 8
LOOK_SECONDS = 0.5  # how often is looked for saved states while nothing else happens
ENTRIES_BETWEEN = 256  # and after how many entries of a world that is never idle


class SnapshotRecord(msgspec.Struct, frozen=True):
    """A state that is saved: where in the history it stands, and the hash that names it. `baseline`: a restore begins
    at it; of a world that was followed: it was made the baseline.
    """

    height: int
    step: int
    hash: str
    baseline: bool
    size: int  # of the root of its rows and what stands in it, in bytes
    program_hash: str
    time_us: int  # logical


async def records(world: Handle) -> list[SnapshotRecord]:
    """The saved states of a world and, up to the fork, of those that it comes from; the oldest first."""
    connection, at = world.connection, await world.address()
    read = await connection.store.engine.read(layer.get_baseline(at))
    baseline = layer.decode_baseline(read.value(0))
    line = await world_reader.line_of(connection.store.engine, at)
    found: list[SnapshotRecord] = []
    for piece in line.owners():
        async for saved in _saved(connection, piece.at, above=-1):
            # An ancestor's states above the fork belong to a history that this world has not got.
            if piece.above < saved.height <= (saved.height if piece.up_to is None else piece.up_to):
                # Root and step: a world that comes back to an earlier state has two records with one root.
                found.append(_record(saved, baseline=saved.root == baseline.root and saved.step == baseline.step))
    return found


async def height_of(world: Handle, text: object) -> int:
    """The height of the saved state that a hash, or the beginning of one, names: the lowest, if there are several. A
    fork keeps it there, so the same call finds it again.
    """
    if not isinstance(text, str) or len(text) < HASH_CHARACTERS_MIN:
        raise errors.BadInput(
            f"a snapshot is named by its hash, or by {HASH_CHARACTERS_MIN} characters of it at least; not {text!r}"
        )
    found = [each for each in await records(world) if each.hash.startswith(text.lower())]
    if not found:
        raise errors.NotFound(
            f"world {world.name!r} has no snapshot {text!r}: `worldline snapshots {world.name}` lists them"
        )
    if len({each.hash for each in found}) > 1:  # several heights with one hash are one state, so any of them will do
        raise errors.BadInput(f"several snapshots of world {world.name!r} begin with {text!r}; give more of it")
    return found[0].height


async def follow(world: Handle, above: int | None) -> AsyncIterator[JournalEntry | Chunk | SnapshotRecord]:
    """Entries as they are committed, and the states that are saved: each once, behind the entries up to it."""
    connection, at = world.connection, await world.address()
    height = (await world_reader.head(connection.store.engine, at)).height if above is None else above
    given, entries = height, 0  # the height of the last state that was given
    async for each in world_answers.follow_or_rest(connection, at, height, rest_seconds=LOOK_SECONDS):
        if each is not None:
            yield each
        if isinstance(each, JournalEntry):
            height, entries = each.height, entries + 1
        # Saving a state writes no entry, so nothing tells of it: it has to be looked for, and not with every entry.
        if each is None or entries >= ENTRIES_BETWEEN:
            entries = 0
            for saved in [found async for found in _saved(connection, at, above=given) if found.height <= height]:
                given = saved.height
                yield _record(saved, baseline=True)


async def _saved(connection: Connection, at: ids.Address, *, above: int) -> AsyncIterator[snapshots.StateSnapshot]:
    """Records of one world above a height. A step has a height no lower than its number."""
    begin, end = keys.snapshots(at)
    async for key, raw in paging.RangeItems(connection.store.engine, kv.Range(begin, end)):
        [saved] = layer.decode(at, kv.Page([(key, raw)], more=False, stable=kv.ZERO_STAMP))
        if saved.record.height > above:
            yield saved.record


def _record(saved: snapshots.StateSnapshot, *, baseline: bool) -> SnapshotRecord:
    return SnapshotRecord(
        saved.height, saved.step, saved.root.hex(), baseline, saved.size, saved.program_hash.hex(), saved.time_us
    )
