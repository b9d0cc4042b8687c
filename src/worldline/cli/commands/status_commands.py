"""Tending worlds: pause, resume, archive, label, and names (`ref`)."""

from __future__ import annotations

import click
import msgspec

from worldline.base import errors, grammar
from worldline.client import world_changes, world_names
from worldline.features.compaction import calls as compaction
from worldline.features.copies import release_calls
from worldline.inspect import store_queries
from worldline.model import setting_names
from worldline.model.world_records import Status
from worldline.terminal import command_session, payload_words
from worldline.terminal.command_session import CommandSession

HEIGHTS_SHOWN = 8


@command_session.command("pause")
@click.argument("world")
async def pause(desk: CommandSession, world: str) -> None:
    """Stop a world. Its inbox still accepts input, and it goes on when it is resumed."""
    await _change(desk, world, Status.PAUSED)


@command_session.command("resume", asks=True)
@click.argument("world", required=False)
@click.option("--all", "every", is_flag=True, help="Every copy that was restored or imported and is not used yet.")
async def resume(desk: CommandSession, world: str | None, every: bool) -> None:
    """Let a paused or archived world go on.

    With --all, every world that was restored or imported becomes what it was: do so only if no other copy runs.
    """
    if every is (world is not None):
        raise errors.BadInput("name a world, or all copies with --all")
    if world is not None:
        await _change(desk, world, Status.ACTIVE)
        return
    desk.confirm("Let all copies go on? If the store that they were copied from still runs, both will act.")
    names = await desk.universes()
    released: list[dict[str, str]] = []
    for name in names:
        async with desk.open(programs=[], universe=name) as universe:
            for each in await release_calls.release_all(universe):
                status = each.meta.status.name.lower()
                released.append({"universe": name, "name": each.meta.name, "status": status})
    desk.out.one({"resumed": released}, [grammar.clause(len(released), "copy", "goes on", "go on")])


@command_session.command("archive")
@click.argument("world")
async def archive(desk: CommandSession, world: str) -> None:
    """Stop a world and refuse input. It can be read, and resumed."""
    await _change(desk, world, Status.ARCHIVED)


@command_session.command("label")
@click.argument("world")
@click.argument("labels", nargs=-1, metavar="[NAME=VALUE | NAME-]...")
async def label(desk: CommandSession, world: str, labels: tuple[str, ...]) -> None:
    """Set and remove labels of a world.

    NAME=VALUE or NAME sets a label, NAME- removes it.
    """
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        # Labels are replaced as a whole, so those that stay are given again.
        wanted = dict((await found.describe()).meta.labels)
        for word in labels:
            if word.endswith("-") and "=" not in word:  # a value may end in a minus
                wanted.pop(word[:-1], None)
            else:
                wanted |= payload_words.labels_of((word,))
        changed = await world_changes.change(universe, await found.address(), labels=wanted)
    shown = " ".join(f"{name}={value}" if value else name for name, value in sorted(changed.meta.labels.items()))
    desk.out.one({"name": world, "labels": changed.meta.labels}, [shown or "no labels"])


@command_session.command("compact")
@click.argument("world")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
async def compact(desk: CommandSession, world: str, dry_run: bool) -> None:
    """Move old entries of a world into segments.

    For a world that no process runs: workers do so by themselves with those that they run.
    """
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        # Planned also when it is done at once: what forks hold back shows in the plan only.
        planned = await compaction.plan(universe, at)
        done = None if dry_run else await compaction.compact(universe, at)
    if done is None:
        said = [
            f"{world}: {grammar.count(planned.entries, 'entry')} would be moved, up to height {planned.up_to}",
            *_would_go(planned),
        ]
    else:
        segments = grammar.count(done.segments, "segment")
        said = [f"{world}: {grammar.count(done.entries, 'entry')} moved into {segments}, {done.bytes} bytes"]
        said += [f"{grammar.count(done.snapshots, 'snapshot')} dropped"] if done.snapshots else []
        said += [f"{grammar.count(done.expired, 'entry')} dropped: not kept any more"] if done.expired else []
    if planned.held_back:
        said.append("forks that have no state of their own yet keep it from going further")
    desk.out.one({"name": world, **msgspec.to_builtins(planned if done is None else done)}, said)


def _would_go(planned: compaction.CompactionPlan) -> list[str]:
    """Return what a compaction would drop, and by which policy."""
    said: list[str] = []
    if planned.dropped:
        shown = ", ".join(str(height) for height in planned.dropped[:HEIGHTS_SHOWN])
        more = ", ..." if len(planned.dropped) > HEIGHTS_SHOWN else ""
        said.append(f"{grammar.count(planned.snapshots, 'snapshot')} would be dropped, at height {shown}{more}")
    if planned.expired:
        said.append(f"{grammar.count(planned.expired, 'entry')} would be dropped: not kept any more")
    kept = ", ".join(f"{name}={setting_names.text_of(value)}" for name, value in planned.policy.items())
    return [*said, f"policy: {kept}; `worldline universe settings` changes it"]


async def _change(desk: CommandSession, world: str, status: Status) -> None:
    async with desk.open(programs=[]) as universe:
        changed = await world_changes.change(universe, await desk.address(universe, world), status=status)
    name = changed.meta.status.name.lower()
    desk.out.one({"name": changed.meta.name, "status": name}, [f"{changed.meta.name} is {name}"])


@command_session.command("list", many=True)
async def list_refs(desk: CommandSession, limit: int) -> None:
    """List names and the worlds they point to."""
    async with desk.open(programs=[]) as universe:
        found = [each async for each in world_names.refs(universe)]
    columns = {"NAME": "name", "WORLD": "world", "ID": "id", "OWN": "own"}
    desk.out.many(found[:limit], columns, none="no names here", key="name")


@command_session.command("set", asks=True)
@click.argument("name")
@click.argument("world")
async def set_ref(desk: CommandSession, name: str, world: str) -> None:
    """Make a name point to a world. One that points elsewhere is moved."""
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        before = await world_names.named(universe, name)
        # A new name takes nothing from another world, so there is nothing to ask.
        if before is not None and before != at:
            known = (await store_queries.world_names(universe, [before]))[before]
            desk.confirm(f"Move the name {name!r} from world {known!r} to {world!r}?")
        await world_changes.point(universe, name, at)
    desk.out.one({"name": name, "world": world}, [f"{name} points to {world}"])


@command_session.command("rename", asks=True)
@click.argument("world")
@click.argument("name")
async def rename_ref(desk: CommandSession, world: str, name: str) -> None:
    """Give a world another name of its own."""
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        desk.confirm(f"Rename world {world!r} to {name!r}?")
        await world_changes.rename(universe, at, name)
    desk.out.one({"name": name, "before": world}, [f"{world} is now {name}"])


@command_session.command("delete", asks=True)
@click.argument("name")
async def delete_ref(desk: CommandSession, name: str) -> None:
    """Remove a name. The world stays."""
    async with desk.open(programs=[]) as universe:
        desk.confirm(f"Remove the name {name!r}?")
        await world_changes.free(universe, name)
    desk.out.one({"name": name, "deleted": True}, [f"{name} is free"])


ref = click.Group(
    "ref",
    commands=[list_refs, set_ref, rename_ref, delete_ref],
    help="List and change names. Any number of names may point to a world.",
)

COMMANDS: list[click.Command] = [pause, resume, archive, label, compact, ref]
