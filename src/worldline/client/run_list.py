"""The runs of a world: from its state if its program is known here, and from its journal.

The state has what a run waits for, its parent and why it is blocked; the journal has when it ended, and runs that the
state no longer keeps.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.client.handle import Handle
from worldline.codec import structs
from worldline.kernel import commands, values
from worldline.kernel.runs import ENDED, RunStatus
from worldline.kernel.state import Ended
from worldline.model import journal
from worldline.model.journal import Kind
from worldline.roles import reader, restore

KINDS = (Kind.RUN_STARTED, Kind.RUN_FINISHED, Kind.PROGRAM_CHANGED)


class Listed(msgspec.Struct, frozen=True):
    """One run. `data` is the result, or the failure; `blocked` the divergence."""

    id: str
    workflow: str
    status: RunStatus
    started_us: int
    ended_us: int | None
    args: bytes
    data: bytes = b""
    parent: str = ""
    blocked: str = ""


async def runs(handle: Handle) -> tuple[list[Listed], int]:
    """The runs that the world keeps, the newest first, and the height at which they stood so.

    From the state alone if the program is known here, so without the times of their ends; else from the journal.
    """
    try:
        machine, head = await handle.machine_and_head()
    except errors.NotFound:
        await handle.describe()  # if it is the world that is missing, say so
        return await from_journal(handle)
    records = sorted((run.record for run in machine.runs.values()), key=lambda each: each.number, reverse=True)
    found = [
        Listed(each.id, each.workflow, each.status, each.started_us, None, each.args, each.data, each.parent,
               each.blocked)
        for each in records
    ]  # fmt: skip
    return found, head.height


async def from_journal(handle: Handle) -> tuple[list[Listed], int]:
    """The runs that the journal tells of, the newest first, and its height."""
    universe, at = handle.universe, await handle.address()
    top = await reader.head(universe.store.engine, at)
    found: dict[str, Listed] = {}
    for entry in await restore.read_entries(universe.store.engine, at, above=0, up_to=top.height):
        if entry.kind in KINDS:
            loaded = await restore.load_referenced(universe.blobs, [entry]) if entry.blob else {}
            _note(found, restore.filled(entry, loaded))
    return list(reversed(found.values())), top.height


def _note(found: dict[str, Listed], entry: journal.Entry) -> None:
    if entry.kind is Kind.RUN_STARTED:
        run_id, workflow, args = values.load(tuple[str, str, bytes], entry.payload)
        found.pop(run_id, None)  # it continued as new
        found[run_id] = Listed(run_id, workflow, RunStatus.RUNNING, entry.time_us, None, args)
    elif entry.kind is Kind.RUN_FINISHED:
        ended = structs.decode(Ended, entry.payload)
        known = found.get(ended.run)
        if known is not None:
            found[ended.run] = msgspec.structs.replace(
                known, status=ended.status, ended_us=entry.time_us, data=ended.data
            )
    else:
        blocked = structs.decode(commands.ChangeProgram, entry.payload).blocked
        for run_id, run in found.items():
            if run.status not in ENDED:
                status = RunStatus.BLOCKED if run_id in blocked else RunStatus.RUNNING
                found[run_id] = msgspec.structs.replace(run, status=status, blocked=blocked.get(run_id, ""))
