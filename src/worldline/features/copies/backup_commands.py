"""Copies of whole stores: `backup`, which also lists and checks them, and `restore`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from worldline.base import errors, grammar
from worldline.features.copies import backup_calls
from worldline.features.copies.commands import BYTES_MAX
from worldline.inspect import entry_text
from worldline.store import urls
from worldline.terminal import command_session, output
from worldline.terminal.command_session import CommandSession

_BACKUP = click.option("--backup", "id", default="", metavar="ID", help="One of them, by its id.")


class BackupRow(msgspec.Struct, frozen=True):
    """A backup, as a line of a list."""

    id: str
    time: object
    universes: str
    keys: int
    blobs: int
    size: int


@command_session.command("create")
@click.argument("places", nargs=-1, required=True, metavar="[STORE] FOLDER")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Delete all but the last N backups there.")
@click.option("--only", "names", multiple=True, metavar="UNIVERSE", help="Not all universes; may be given again.")
async def create(desk: CommandSession, places: tuple[str, ...], keep: int | None, names: tuple[str, ...]) -> None:
    """Back up a store, which may run, into a folder or s3://bucket/prefix.

    All worlds are copied as they are at one moment. Blobs that an earlier backup in the folder has are not copied
    again.
    """
    if len(places) > 2:
        raise errors.BadInput("name the store, if it is another than --store says, and the folder")
    url = places[0] if len(places) > 1 else desk.place.store
    # The objects of the options belong to the store of the options; one that is named here has its own.
    objects = None if len(places) > 1 else desk.place.objects
    async with desk.open_store(url, objects=objects) as store:
        with desk.out.progress("backing up") as progress:
            made = await backup_calls.backup(store, places[-1], universes=names, keep=keep or 0, progress=progress)
    said = {**msgspec.to_builtins(made), "folder": places[-1]}
    held = f"{grammar.count(made.keys, 'key')}, {grammar.count(made.blobs, 'blob')}"
    lines = [f"backup {made.id}: {grammar.count(made.universes, 'universe')}, {held} in {places[-1]}"]
    lines.append(
        f"{grammar.clause(made.new_blobs, 'blob', 'was', 'were')} new; {made.bytes} bytes written of {made.size}"
    )
    lines += [f"{grammar.count(made.pruned, 'older backup')} deleted"] if made.pruned else []
    desk.out.one(said, lines)


@command_session.command("list", many=True)
@click.argument("folder")
async def list_(desk: CommandSession, folder: str, limit: int) -> None:
    """List the backups of a folder, the oldest first."""
    found = [
        BackupRow(each.id, entry_text.when(each.time_us), ", ".join(each.universes), each.keys, each.blobs, each.size)
        for each in await backup_calls.list_all(folder, codec=desk.codec())
    ]
    columns = {"ID": "id", "TIME": "time", "UNIVERSES": "universes", "KEYS": "keys", "BLOBS": "blobs", "BYTES": "size"}
    desk.out.many(found[-limit:], columns, none=f"no backups in {folder}")


@command_session.command("verify")
@click.argument("folder")
@_BACKUP
@BYTES_MAX
async def verify(desk: CommandSession, folder: str, id: str, bytes_max: int | None) -> None:
    """Check every byte of backups, without a store."""
    with desk.out.progress("verifying") as progress:
        found = await backup_calls.verify(folder, id=id, codec=desk.codec(), progress=progress, bytes_max=bytes_max)
    for each in found:
        said = {**msgspec.to_builtins(each), "holds": True}
        held = f"{grammar.count(each.keys, 'key')}, {grammar.count(each.blobs, 'blob')}"
        desk.out.one(said, [f"{each.id}: {held} in {grammar.count(each.files, 'file')}, all as written"])
    if not found:
        desk.out.note(f"no backups in {folder}")


@command_session.command("restore")
@click.argument("folder")
@click.argument("target", metavar="STORE")
@_BACKUP
@click.option("--live", is_flag=True, help="Worlds go on at once: only if no other copy of them runs.")
@click.option(
    "--ledger",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What was erased since the backup was made, by `ledger export`: it is erased again.",
)
@BYTES_MAX
async def restore(
    desk: CommandSession, *, folder: str, target: str, id: str, live: bool, ledger: Path | None, bytes_max: int | None
) -> int:
    """Make a store of a backup, the last one in a folder.

    The store must be empty; it may be of another kind. Its worlds are archived until `resume --all`: they have the ids
    and the keys that those of the backed-up store have, and two copies must not both act.
    """
    objects = desk.place.objects if desk.place.objects_given else None
    async with desk.open_store(target, objects=objects, create=True) as store:
        with desk.out.progress("restoring") as progress:
            made = await backup_calls.restore(
                folder, store, id=id, live=live, ledger=ledger, progress=progress, bytes_max=bytes_max
            )
    said = f"{', '.join(made.universes)}; {grammar.count(made.keys, 'key')}, {grammar.count(made.blobs, 'blob')}"
    lines = [f"backup {made.backup} is in {urls.shown(target)}: {said}"]
    if not live:
        lines.append(f"worlds are archived: `worldline resume --all{urls.option('store', target)}` lets them go on")
    if made.erased_again is None:
        lines.append(
            f"NO LEDGER: what was erased after {entry_text.when(made.time_us)} IS BACK. If anything was, do not use "
            f"this store before `worldline ledger apply FILE{urls.option('store', target)}` with the ledger of the "
            "lost one"
        )
    elif made.erased_again:
        lines.append(f"{grammar.count(made.erased_again, 'later erasure')}: applied again")
    lines += [f"not done: {each}" for each in made.left]
    desk.out.one(msgspec.to_builtins(made), lines)
    return output.NEGATIVE if made.left else 0


class Backup(click.Group):
    """`backup FOLDER` is `backup create FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # What is no subcommand is a folder or a store: `create` may be left out.
        known = not args or args[0] in self.commands or args[0] in ("-h", "--help")
        return super().parse_args(ctx, args if known else ["create", *args])


backup = Backup(
    "backup",
    commands=[create, list_, verify],
    help="Back up a store, or list and check backups.\n\n`backup [STORE] FOLDER` is `backup create [STORE] FOLDER`.",
)
