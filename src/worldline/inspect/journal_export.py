"""A world's journal into a file, for tests to replay and people to keep. Its form is
`layers/history/journal_file.py`.
"""

from __future__ import annotations

from pathlib import Path

from worldline.base import errors, private_files
from worldline.client.world_handle import Handle
from worldline.inspect import verify
from worldline.kernel import state_rows as kernel_snapshots
from worldline.layers import snapshots as snapshot_layer
from worldline.layers.history import journal_file, saved_state
from worldline.model import journal
from worldline.runtime import step_prover, world_reader


async def collect(
    world: Handle, *, above: int = 0, progress: verify.Progress = verify.no_progress
) -> journal_file.ExportedJournal:
    """The journal from the world's birth, or from the latest snapshot at or below a height; checked on the way. That of
    a fork begins at the fork: a journal is replayed as one world's.
    """
    connection, at = world.connection, await world.address()
    meta = (await world.describe()).meta
    top = await verify.head(connection, at)
    line = await world_reader.line_of(connection.store.engine, at)
    kept = await verify.records(connection, line)
    start = await verify.first(connection, line, kept)
    # The latest snapshot that is low enough: the file is no longer than what was asked for.
    start = next((each for each in reversed(kept) if start.height <= each.height <= above), start)
    walk = verify.VerifyWalk(connection, line, start, top)
    entries: list[journal.JournalEntry] = []
    blobs: dict[bytes, bytes] = {}
    changed: list[journal_file.StepChanges] = []
    async for steps in walk.steps(progress):
        # The walk checks the parent's steps too, but they are not this world's.
        own = sum(step[-1].height > line.forked_at for step in steps)
        if own:
            entries += [entry for step in steps[-own:] for entry in step]
            blobs |= walk.loaded
            changed += walk.changed[-own:]
    # The file begins at the fork, where there may be no snapshot: the rows are those that the walk has passed there.
    if line.sections and start.height <= line.forked_at:
        rows, head = await world.rows_at(line.forked_at)
        parts = kernel_snapshots.parts_of(head.state, rows.items())
        program_hash = step_prover.program_of(rows)
    else:
        base = await saved_state.load(connection.blobs, start.root)
        head = snapshot_layer.head_of(start, state=base.state) if start.step else journal.GENESIS
        parts = kernel_snapshots.parts_of(base.state, base.rows()) if start.step else []
        program_hash = start.program_hash
    return journal_file.ExportedJournal(
        name=meta.name,
        program=meta.program,
        program_hash=program_hash,
        at=at,
        entries=entries,
        blobs=blobs,
        changed=changed,
        start=head,
        parts=parts,
    )


def write(exported: journal_file.ExportedJournal, file: Path) -> None:
    """Write the file whole or not at all."""
    try:
        with private_files.draft(file) as draft:
            for line in journal_file.lines(exported):
                draft.write(line.encode())
            draft.sync()  # before it has its name: after a crash there is the old file or the new one, whole
            draft.put_there(replace=True)
    except OSError as error:
        raise errors.BadInput(f"{file} cannot be written: {error.strerror}") from error
