"""Worlds as files: `export` and `import`. `verify --file` checks one without a store."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from worldline.base import grammar
from worldline.features.copies import calls
from worldline.features.copies.world_file import Contents
from worldline.terminal import command_session
from worldline.terminal.command_session import CommandSession

_FILE = click.Path(path_type=Path, dir_okay=False)
BYTES_MAX = click.option(
    "--bytes-max",
    type=click.IntRange(min=0),
    metavar="N",
    help="How much it may unpack to; if not said, what one of its size does.",
)


@command_session.command("export")
@click.argument("world")
@click.argument("file", type=_FILE)
async def export(desk: CommandSession, world: str, file: Path) -> None:
    """Write all of a world into one file.

    Its journal, saved states, blobs, dead letters and unread inputs, as they are at one moment; the world may run. The
    file needs no other: that of a fork has its parent's part of the history, too. `journal --export` is for tests: it
    writes JSON that `worldline.testing.journal_replay` runs again, and that cannot be imported.
    """
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        with desk.out.progress(f"exporting {world}") as progress:
            written = await calls.export(found, file, progress=progress)
    said = {"file": str(file), **msgspec.to_builtins(written)}
    kept = (
        f"{grammar.count(written.segments, 'segment')}, "
        f"{grammar.count(written.snapshots, 'snapshot')}, {grammar.count(written.blobs, 'blob')}"
    )
    desk.out.one(said, [f"{world} up to height {written.height}: {kept}, {written.bytes} bytes written to {file}"])


@command_session.command("import")
@click.argument("file", type=_FILE)
@click.option("--as", "name", default="", metavar="NAME", help="Its name here, if not that in the file.")
@click.option(
    "--effects",
    type=click.Choice(["drop", "reissue"]),
    default="drop",
    show_default=True,
    help="What becomes of effects that were open.",
)
@click.option("--live/--dry", default=None, help="Whether its effects leave it; if not said, as in the file.")
@BYTES_MAX
async def import_(
    desk: CommandSession, *, file: Path, name: str, effects: str, live: bool | None, bytes_max: int | None
) -> None:
    """Make a world of a file that `export` has written.

    All of the file is checked before there is a world. It has an id of its own, and begins archived: `resume` lets it
    go on.
    """
    async with desk.open(programs=[], create=True) as universe:
        with desk.out.progress(f"importing {file.name}"):
            made = await calls.import_world(universe, file, name=name, effects=effects, live=live, bytes_max=bytes_max)
    lines = [_told(made), f"it is archived: `worldline resume {made.name}{desk.option}` lets it go on"]
    if made.answers:
        lines.append(f"left out: {grammar.count(made.answers, 'unread answer')} for effects of the exported world")
    desk.out.one(msgspec.structs.asdict(made), lines)


async def verify_file(desk: CommandSession, file: Path, bytes_max: int | None) -> int:
    """`verify --file`. What is wrong is the command's error."""
    with desk.out.progress(f"verifying {file.name}"):
        found = await calls.verify(file, bytes_max=bytes_max)
    desk.out.one(
        {"file": str(file), "holds": True, **msgspec.structs.asdict(found)}, [f"{file}: {_told(found)}, all as written"]
    )
    return 0


def _told(made: Contents) -> str:
    return (
        f"{made.name} up to height {made.height}, {grammar.count(made.snapshots, 'snapshot')}, "
        f"{grammar.count(made.blobs, 'blob')}"
    )
