"""What a universe holds, page by page: worlds by filter; and the runs of a world. Reads only, and needs no program.
The journal still has the ends of runs that the state no longer keeps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec

from worldline.base import errors
from worldline.client import world_changes
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.codec import structs
from worldline.kernel import state_rows
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import RunFinished
from worldline.kernel.rows.row_records import Record
from worldline.layers import worlds
from worldline.model import ids, row_keys
from worldline.model.journal import Kind
from worldline.model.world_records import Status, WorldMeta
from worldline.runtime import world_reader, world_restore
from worldline.store import paging

PAGE = 500


class Filter(msgspec.Struct, frozen=True):
    """Which worlds are wanted. A label without a value matches any value."""

    status: Status | None = None
    labels: Mapping[str, str] = {}
    program: str = ""
    prefix: str = ""

    def matches(self, meta: WorldMeta) -> bool:
        return (
            self.status in (None, meta.status)
            and self.program in ("", meta.program)
            and meta.name.startswith(self.prefix)
            and all(key in meta.labels and value in ("", meta.labels[key]) for key, value in self.labels.items())
        )


def wanted(*, status: Status | None, labels: Mapping[str, str] | None, program: str, prefix: str) -> Filter:
    """Check what a caller asks for, and return it as a filter."""
    world_changes.check_status(status)
    world_changes.check_labels(labels)
    for what, value in (("program", program), ("prefix", prefix)):
        if not isinstance(value, str):
            raise errors.BadInput(f"{what} must be text, not {value!r}")
    return Filter(status, labels or {}, program, prefix)


async def worlds_of(connection: Connection, chosen: Filter) -> AsyncIterator[tuple[ids.Address, WorldMeta]]:
    """Worlds, the newest first."""
    async for page in paging.RangePages(connection.store.engine, worlds.newest_range(connection.id, count_max=PAGE)):
        for at, meta in worlds.listed(connection.id, page):
            if chosen.matches(meta):
                yield at, meta


async def runs(handle: Handle) -> tuple[list[Record], int]:
    """The runs that the world keeps, the newest first, and the height at which they stood so."""
    machine, head = await handle.machine_and_head()
    records = (run.record for run in machine.runs.values())
    return sorted(records, key=lambda each: each.number, reverse=True), head.height


async def run_at(handle: Handle, run_id: str, height: int) -> Record | None:
    """A run as it stood at a height, without its operations; None if there was no such run. Two rows are read."""
    past = await handle.past(height)
    group = row_keys.RUN + row_keys.text(run_id)
    keys = [group + row_keys.START, group + row_keys.STATUS]
    await past.fetch(keys)
    rows = [(key, row) for key in keys if (row := past.rows.get(key)) is not None]
    # The rows of a run need no code, so its program need not be known here.
    machine = state_rows.machine_of(Program("any"), past.head.state, rows, await handle.address())
    run = machine.runs.get(run_id)
    return None if run is None else run.record


async def forgotten(handle: Handle, run_id: str, *, above: int) -> RunFinished | None:
    """Return how a run ended that the state no longer keeps: what the journal says above a height."""
    connection, at = handle.connection, await handle.address()
    top = await world_reader.head(connection.store.engine, at)
    # The head first: entries that come meanwhile are not read, so the loop ends on a busy world.
    for entry in await world_restore.read_entries(
        connection.store.engine, connection.blobs, at, above=above, up_to=top.height
    ):
        if entry.kind is Kind.RUN_FINISHED and entry.correlation == run_id:
            loaded = await world_restore.load_referenced(connection.blobs, [entry])
            return structs.decode(RunFinished, world_restore.filled(entry, loaded).payload)
    return None
