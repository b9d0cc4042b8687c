"""When runs were blocked, from the journal: a run's row says that it is, and why, but not since when.

The journal is read backwards, and only so far: a run that was blocked longer ago has no time here, which is better than
a wrong one.
"""

from __future__ import annotations

from collections.abc import Collection

from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.model.journal import Kind
from worldline.runtime import world_reader, world_restore

PAGE_ENTRIES = 1_000
ENTRIES_MAX = 50_000


async def of_runs(world: Handle, runs: Collection[str]) -> dict[str, int]:
    """By run, the time in microseconds of the step that blocked it last."""
    connection, at = world.connection, await world.address()
    engine = connection.store.engine
    missing = dict.fromkeys(runs)
    found: dict[str, int] = {}
    if not missing:
        return found
    top = (await world_reader.head(engine, at)).height
    # Two floors: entries below the first are not kept, and reading below the second would take too long for a hint.
    lowest = max((await world_reader.kept(engine, at)).above, top - ENTRIES_MAX)
    while missing and top > lowest:
        above = max(lowest, top - PAGE_ENTRIES)
        try:
            page = await world_restore.read_entries(engine, connection.blobs, at, above=above, up_to=top)
        except errors.NotRetained:  # a compaction has dropped them since
            return found
        for entry in reversed(page):
            if entry.kind is Kind.RUN_BLOCKED and entry.correlation in missing:
                # The latest one counts, and pages come backwards: older ones are not for this run.
                del missing[entry.correlation]
                found[entry.correlation] = entry.time_us
        top = above
    return found
