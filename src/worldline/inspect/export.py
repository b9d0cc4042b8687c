"""A world's journal into a file, for tests to replay and for people to keep. The file's form is `layers/export.py`."""

from __future__ import annotations

from pathlib import Path

from worldline.base import errors
from worldline.client.handle import Handle
from worldline.inspect import verify
from worldline.kernel import snapshots as kernel_snapshots
from worldline.kernel.authoring.program import Program
from worldline.layers import export
from worldline.layers import snapshots as snapshot_layer
from worldline.model import journal
from worldline.roles import restore


async def collect(world: Handle, *, above: int = 0, progress: verify.Progress = verify.no_progress) -> export.Exported:
    """The journal from the world's birth, or from the latest snapshot at or below a height; checked on the way."""
    universe, at = world.universe, await world.address()
    meta = (await world.describe()).meta
    top = await verify.head(universe, at)
    kept = await verify.records(universe, at)
    start = await verify.first(universe, at, kept)
    start = next((each for each in reversed(kept) if start.height <= each.height <= above), start)
    parts = await restore.load_parts(universe.blobs, start.root)
    walk = verify.Walk(universe, at, start, top)
    entries: list[journal.Entry] = []
    blobs: dict[bytes, bytes] = {}
    async for steps in walk.steps(progress):
        entries += [entry for step in steps for entry in step]
        blobs |= walk.loaded
    # Only the state's digest is wanted of the snapshot: no program is needed to read that.
    machine, program_hash = kernel_snapshots.load(Program(meta.program), parts, at)
    head = snapshot_layer.head_of(start, state=machine.state) if start.step else journal.GENESIS
    return export.Exported(
        name=meta.name, program=meta.program, program_hash=program_hash, at=at, entries=entries, blobs=blobs,
        start=head, parts=parts if start.step else (),
    )  # fmt: skip


def write(exported: export.Exported, file: Path) -> None:
    """Write the file whole or not at all: under another name first."""
    draft = file.with_name(file.name + ".part")
    try:
        with draft.open("w", encoding="utf-8") as lines:
            lines.writelines(export.lines(exported))
        draft.replace(file)
    except OSError as error:
        raise errors.BadInput(f"{file} cannot be written: {error.strerror}") from error
