"""The ledger of erasures: as a file, and applied to a store that was made of an older backup."""

from __future__ import annotations

from pathlib import Path

import click

from worldline.base import grammar
from worldline.features.deletion import ledger_replay
from worldline.features.erasure import ledger_file
from worldline.terminal import command_session, output
from worldline.terminal.command_session import CommandSession

_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@command_session.command("export")
@_FILE
async def export(desk: CommandSession, file: Path) -> None:
    """Write the ledger into a file, with what the file has already.

    It says by ids what was erased, and holds nothing of it. Keep it where neither the store nor its backups are:
    `restore --ledger` needs it.
    """
    async with desk.open_store() as store:
        count = await ledger_file.export(store, file)
    desk.out.one({"file": str(file), "entries": count}, [f"{grammar.count(count, 'erasure')} in {file}"])


@command_session.command("apply", asks=True)
@_FILE
async def apply(desk: CommandSession, file: Path) -> int:
    """Erase again what a ledger says, in a store that was made of an older backup."""
    async with desk.open_store() as store:
        desk.confirm(f"Erase what {file} says was erased, permanently?")
        done = await ledger_replay.apply_file(store, file)
    desk.out.one(
        {"file": str(file), "applied": done.done, "left": done.left},
        [
            grammar.clause(done.done, "erasure", "was applied", "were applied"),
            *(f"not done: {each}" for each in done.left),
        ],
    )
    return output.NEGATIVE if done.left else 0


ledger = click.Group("ledger", commands=[export, apply], help="What was erased, as a file.")
