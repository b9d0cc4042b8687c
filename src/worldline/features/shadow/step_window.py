"""Reading the last steps of a stored world: its rows at a step end, the steps above, its rows at the head.

Nothing here writes, and no lease is needed: what is read is the journal up to the head as it is at one moment.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors
from worldline.features.shadow.pure.recording import RecordedStep, Recording, step_of
from worldline.layers import blobs as blob_layer
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import history_line, journal_pages, saved_state, step_reader
from worldline.model import ids, journal, payload
from worldline.model import snapshots as snapshot_model
from worldline.model.rows import Rows
from worldline.runtime import world_reader, world_restore
from worldline.store import kv

LAST_DEFAULT = 1_000
LAST_MAX = 10_000  # they are held in memory


class RecordedWindow(msgspec.Struct, frozen=True):
    """What was read, before it is folded: `recording` does that, and may take a while."""

    at: ids.Address
    saved: snapshot_model.StateSnapshot
    base: saved_state.LoadedState
    steps: list[step_reader.StoredStep]  # above the snapshot
    first_step: int  # of the recording
    loaded: dict[bytes, bytes]

    def recording(self) -> Recording:
        head, rows = world_restore.standing(self.saved, self.base)
        below = [each for each in self.steps if each.step < self.first_step]
        before = step_reader.fold(head, below, rows, self.loaded)
        return recording_of(self.at, before, rows, self.steps[len(below) :], self.loaded)


def recording_of(
    at: ids.Address,
    start: journal.Head,
    rows: Rows,
    stored: Sequence[step_reader.StoredStep],
    loaded: dict[bytes, bytes],
) -> Recording:
    """The steps that follow a head. `loaded`: the blobs that they need."""

    def load(carried: payload.Payload) -> bytes:
        return carried.inline if carried.inline is not None else loaded[carried.ref or b""]

    # A copy: `rows` is changed by the steps that follow.
    rows_before = Rows(rows.items())
    found: list[RecordedStep] = []
    after = start
    for step in stored:
        changed = step_reader.resolve(step, rows, loaded)
        after = step_reader.follow(after, step, changed)
        rows.apply(changed)
        entries = [world_restore.filled(entry, loaded) for entry in step.entries()]
        found.append(step_of(entries, at, load, changed))
    return Recording(at, start, rows_before, found, after, rows)


async def read(
    engine: kv.Engine, blobs: blob_layer.Blobs, at: ids.Address, *, name: str, last: int | None, or_fewer: bool = False
) -> RecordedWindow:
    """The last so many steps of a world; without a number, all that can be read, up to a limit. `or_fewer`: if there
    are not so many, those that there are.
    """
    top, line = await world_reader.head(engine, at), await world_reader.line_of(engine, at)
    # A parent's work has other ids: a fork's trial begins behind its own first step, which runs no user code.
    oldest = line.sections[-1].step + 1 if line.sections else (await _oldest(engine, at)).step
    possible = max(0, min(top.step - oldest, LAST_MAX))
    if last is None or or_fewer:
        last = min(possible, LAST_DEFAULT if last is None else last)
    elif last > possible:
        why = (
            f"one trial takes at most {LAST_MAX}"
            if possible == LAST_MAX
            else f"its state is kept from step {oldest} on, and its journal ends with step {top.step}"
        )
        most = "step" if possible == 1 else f"{possible} steps"
        raise errors.BadInput(f"world {name!r}: the last {most} can be tried, not {last}: {why}")
    first_step = top.step - last + 1
    saved = await _saved(engine, line, first_step - 1)
    steps = await world_restore.read_steps(engine, blobs, line, above=saved.height, up_to=top.height)
    loaded: dict[bytes, bytes] = {}
    steps = await world_restore.load_changes(blobs, steps, loaded)
    # Payloads only of the steps that are tried: below them, what was changed is enough.
    entries = [entry for step in steps if step.step >= first_step for entry in step.entries()]
    loaded |= await world_restore.load_referenced(blobs, entries)
    return RecordedWindow(at, saved, await saved_state.load(blobs, saved.root), steps, first_step, loaded)


async def _oldest(engine: kv.Engine, at: ids.Address) -> snapshot_model.StateSnapshot:
    """The earliest snapshot above which it is kept what steps changed."""
    line = history_line.HistoryLine(at)
    above = await journal_pages.changes_above(engine, line)
    for each in await world_reader.records(engine, line):
        if each.height >= above:
            return each
    raise errors.NotFound("no snapshot is kept from which the journal could be read")


async def _saved(engine: kv.Engine, line: history_line.HistoryLine, step: int) -> snapshot_model.StateSnapshot:
    """The latest snapshot at or below a step; of a fork, if it has none there, that of its parent."""
    page = (await engine.read(snapshot_layer.latest_range(line.at, up_to=step))).page(0)
    found = snapshot_layer.decode(line.at, page)
    return found[0].record if found else await world_reader.saved_below(engine, line, line.forked_at)
