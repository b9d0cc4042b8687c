"""Branches of worlds: fork, tree, revert."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from worldline.base import errors
from worldline.client import snapshot_calls
from worldline.client.world_handle import Handle
from worldline.features.forks import calls as forks
from worldline.features.forks import lineage_tree as trees
from worldline.features.forks import revert_calls as reverts
from worldline.layers.history import history_line
from worldline.terminal import command_session, payload_words
from worldline.terminal.command_session import CommandSession

LEFT_SHOWN = 10


@command_session.command("fork", app=True)
@click.argument("source", metavar="WORLD")
@click.argument("name")
@click.option("--at", type=int, metavar="HEIGHT", help="Where; a height inside a step means the step before.")
@click.option("--before", metavar='"effect NAME"|"event NAME"', help="Before the last time that this happened.")
@click.option("--snapshot", metavar="HASH", help="At a saved state: `worldline snapshots WORLD` lists them.")
@click.option("--effects", type=click.Choice([*forks.POLICIES]), default="drop", help="What becomes of open effects.")
@click.option("--script", type=click.Path(path_type=Path), metavar="FILE", help="Answers to effects, as JSON.")
@click.option("--live", is_flag=True, help="Let effects and messages out. Without, nothing leaves the fork.")
@click.option("--label", "labels", multiple=True, metavar="NAME[=VALUE]", help="Instead of the parent's labels.")
async def fork(
    desk: CommandSession,
    *,
    source: str,
    name: str,
    at: int | None,
    before: str | None,
    snapshot: str | None,
    effects: str,
    script: Path | None,
    live: bool,
    labels: tuple[str, ...],
) -> None:
    """Branch a world: a new one goes on where the other is.

    `worldline fork alice what-if --before "effect charge" --effects script --script answers.json`
    """
    if sum(each is not None for each in (at, before, snapshot)) > 1:
        raise errors.BadInput("give one of --at, --before and --snapshot")
    if effects == "script" and script is None:
        raise errors.BadInput("--effects script needs the answers: --script FILE")
    rules = None if script is None else _read(script)
    async with desk.open() as universe:
        if snapshot is not None:
            at = await snapshot_calls.height_of(await desk.world(universe, source), snapshot)
        wanted = functools.partial(
            forks.wanted,
            name,
            at=at,
            effects=effects,
            live=live,
            script=rules,
            labels=payload_words.labels_of(labels) if labels else None,
            connection=universe,
            before=before,
        )
        try:
            made = await forks.fork(Handle(universe, source), lambda program: wanted(program=program))
        except errors.NotFound:
            await desk.world(universe, source)  # says so with names like it
            raise
        lineage = history_line.decode_lineage((await universe.store.engine.read(history_line.get(made))).value(0))
    assert lineage is not None
    said = {
        "name": name,
        "id": made.world.hex(),
        "parent": source,
        "step": lineage.step,
        "height": lineage.height,
        "effects": effects,
        "live": live,
        "parent_snapshot_hash": lineage.parent_snapshot_hash.hex(),
    }
    inside = f"; height {at} is inside a step" if at is not None and at != lineage.height else ""
    desk.out.one(said, [f"{name} goes on from {source} at height {lineage.height}{inside}"])


@command_session.command("revert", asks=True)
@click.argument("world")
@click.option("--to", type=int, required=True, metavar="HEIGHT", help="The last step end at or below it.")
@click.option("--effects", type=click.Choice([*reverts.POLICIES]), default="drop", help="What was open then.")
@command_session.TIMEOUT
async def revert(desk: CommandSession, *, world: str, to: int, effects: str, timeout: float | None) -> None:
    """Set a world's state to what it was. Its journal goes on, and says so.

    Effects and messages that have left since then are listed: they have happened. To keep both histories, fork the
    world there and move its name.
    """
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        head = (await found.past(to)).head
        # Shown before the question: what has left the world does not come back.
        left = await reverts.left_since(found, head.height)
        for each in left[:LEFT_SHOWN]:
            desk.out.note(f"has left: {each.kind} {each.name}, at height {each.height}")
        if len(left) > LEFT_SHOWN:
            desk.out.note(f"... and {len(left) - LEFT_SHOWN} more")
        desk.out.note(
            f"to keep both: worldline fork {world} NAME --at {to} --live{desk.option} && "
            f"worldline ref set {world} NAME{desk.option}"
        )
        desk.confirm(f"Take world {world!r} back to height {head.height} (step {head.step})?")
        done = await desk.answer(found, reverts.revert_to(found, to, effects), timeout)
    desk.out.one(done, [f"{world} is what it was at height {done.height}; its journal says so at height {done.at}"])


def _read(file: Path) -> Any:
    found = payload_words.read_file(file)
    if not isinstance(found, list):
        raise errors.BadInput(f'{file} has no list of rules: [{{"effect": "charge", "answer": "ch_1"}}]')
    return found


@command_session.command("tree")
@click.argument("world", required=False)
async def tree(desk: CommandSession, world: str | None) -> None:
    """Show which worlds were forked from which.

    Of one world, the whole tree that it belongs to.
    """
    async with desk.open(programs=[]) as universe:
        found = await trees.tree(universe)
        if world is not None:
            found = trees.find(found, await Handle(universe, world).address())
    if desk.out.as_json:
        for each in found:
            desk.out.json(each)
        return
    if not found:
        desk.out.note("no worlds here; make one with `worldline create NAME`")
    for line in trees.drawn(found):
        desk.out.line(line)
