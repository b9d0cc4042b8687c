"""Reading what a comparison needs: the steps of both sides above the common ancestor, and those rows of the ancestor
that these steps are about: the cells that they name, the runs that they name, and what deltas start from. So it costs
what has changed, whatever the worlds hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors
from worldline.client import client_desk
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.features.diff.diff_side import Side
from worldline.features.diff.effect_history import READ, run_of
from worldline.features.diff.records import Diff
from worldline.features.diff.side_comparison import compare
from worldline.layers import worlds
from worldline.layers.history import history_line, step_reader
from worldline.model import ids, journal, row_keys
from worldline.runtime import world_reader, world_restore


class Point(msgspec.Struct, frozen=True):
    """A world at a height. `line`: in whose journals its history stands."""

    world: Handle
    height: int
    line: history_line.HistoryLine


async def diff(left: Handle, right: Handle, *, at: int | None = None, to: int | None = None) -> Diff:
    """Compare two worlds: `left` at the height `at`, `right` at the height `to`; at their heads, if none is given. A
    height inside a step means the step end below it.
    """
    if left.connection.store is not right.connection.store or left.connection.id != right.connection.id:
        raise errors.BadInput(f"world {right.name!r} is in another universe: worlds of one universe are compared")
    ours, theirs = await _point(left, at), await _point(right, to)
    owner, height = common(ours, theirs)
    base = await left.past(height)
    mine, other = await _side(ours, base), await _side(theirs, base)
    name = await _name(left.connection, owner, ours, theirs)
    return await client_desk.revealed(left, await base.run(compare, name, base.head, mine, other))


async def _point(world: Handle, height: object) -> Point:
    line = await world_reader.line_of(world.connection.store.engine, await world.address())
    top = (await world.head()).height
    if height is None:
        return Point(world, top, line)
    if not isinstance(height, int) or isinstance(height, bool):
        raise errors.BadInput(f"a height is a number, not {height!r}")
    if not 0 <= height <= top:
        raise errors.BadInput(f"world {world.name!r} has no height {height}: its head is at height {top}")
    return Point(world, height, line)


def common(left: Point, right: Point) -> tuple[ids.Address, int]:
    """The last height that both have gone through, and the world in whose journal it stands."""
    found: tuple[ids.Address, int] | None = None
    for ours, theirs in zip(left.line.owners(), right.line.owners(), strict=False):
        # From here on the two histories stand in different journals.
        if ours.at != theirs.at:
            break
        ends = [
            point.height if piece.up_to is None else min(point.height, piece.up_to)
            for point, piece in ((left, ours), (right, theirs))
        ]
        if found is None or min(ends) > found[1]:
            found = ours.at, min(ends)
        # One of the two leaves the common journal here: what follows is its own.
        if ends[0] != ends[1]:
            break
    if found is None:
        raise errors.BadInput(f"worlds {left.world.name!r} and {right.world.name!r} have no common ancestor")
    return found


async def _name(connection: Connection, at: ids.Address, *known: Point) -> str:
    """What a world is called; its id if it is deleted."""
    for point in known:
        if point.line.at == at:
            return point.world.name
    found = worlds.find(at, (await connection.store.engine.read(worlds.get(at))).value(0))
    return at.world.hex() if found is None else found.meta.name


async def _side(point: Point, base: world_reader.Past) -> Side:
    """A side with its steps, which are read page by page."""
    owners = [piece.at for piece in reversed(point.line.owners())]
    side = Side(point.world.name, owners, base.rows, base.head)
    async for steps, loaded in base.above(point.line, up_to=point.height):
        entries = await _load_payloads(point.world.connection, steps, loaded)
        keys, runs = await base.run(needed, steps, entries)
        # Fetched before the steps are folded: the thread that folds them cannot read the store.
        await base.fetch(keys)
        await base.fetch_runs(runs)
        await base.run(side.take, steps, loaded)
    return side


def needed(
    steps: Sequence[step_reader.StoredStep], entries: Sequence[journal.JournalEntry]
) -> tuple[list[bytes], list[str]]:
    """What must be known of the ancestor to take these steps and to compare what they lead to: rows by their keys, and
    runs. `entries`: those of the kinds in `READ`.
    """
    named = step_reader.named(steps)
    cells = [key for key in named.keys if key[:1] == row_keys.CELL]
    runs = dict.fromkeys(map(row_keys.run_of, [*named.keys, *named.groups]))
    runs |= dict.fromkeys(map(run_of, entries))
    return [*cells, *named.bases], [run for run in runs if run]


async def _load_payloads(
    connection: Connection, steps: Sequence[step_reader.StoredStep], loaded: dict[bytes, bytes]
) -> list[journal.JournalEntry]:
    """The entries of the kinds in `READ`, with their payloads in place."""
    found = [entry for step in steps for entry in step.entries() if entry.kind in READ]
    for entry in found:
        if entry.blob and entry.blob not in loaded:
            loaded[entry.blob] = await connection.blobs.get(ids.Digest(entry.blob))
    return [world_restore.filled(entry, loaded) for entry in found]
