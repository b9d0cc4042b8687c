"""Deleting worlds and universes."""

from __future__ import annotations

import click

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.features.deletion import calls, checks, universe_calls
from worldline.model import ids
from worldline.terminal import command_session
from worldline.terminal.command_session import CommandSession


@command_session.command("delete", asks=True)
@click.argument("world")
@click.option("--wait", is_flag=True, help="Until nothing of it is left: remove it here and now.")
@click.option("--after-forks", is_flag=True, help="First wait until each fork has saved a state of its own.")
async def delete(desk: CommandSession, world: str, wait: bool, after_forks: bool) -> None:
    """Delete a world and everything it has.

    It is gone at once. What it had is removed by the janitor of any process that hosts worlds, or here with --wait.
    """
    async with desk.open(programs=[]) as universe:
        at = await _address(desk, universe, world)
        # One that was deleted before needs no question: there is nothing left to decide.
        if not (deleted := await checks.describe(universe.store.engine, at)):
            desk.confirm(f"Delete world {world!r} and its whole history?")
        with desk.out.progress("keys removed") as progress:
            await calls.delete(
                universe,
                at,
                alias="" if deleted else world,  # an id is no name to free
                wait=wait,
                after_forks=after_forks,
                progress=lambda removed: progress(removed, removed),
            )
        left = [each for each in await calls.unfinished(universe) if each.id == at.world.hex()]
    said = "nothing of it is left" if not left else "what it had is being removed; --wait does that now"
    desk.out.one(
        {"name": world, "id": at.world.hex(), "status": "deleted", "finished": not left},
        [f"{world} is deleted; {said}"],
    )


async def _address(desk: CommandSession, connection: Connection, world: str) -> ids.Address:
    """By name; or by id, of a world that was deleted: it has no name any more."""
    try:
        return await desk.address(connection, world)
    except errors.NotFound:
        at = ids.address_by_id(connection.id, world)
        if at is None or await checks.describe(connection.store.engine, at) is None:
            raise
        return at


@command_session.command("delete", asks=True)
@click.argument("name")
@click.option("--with-worlds", is_flag=True, help="Also if it has worlds: they go with it.")
async def delete_universe(desk: CommandSession, *, name: str, with_worlds: bool) -> None:
    """Delete a universe with everything in it.

    Refused while it has worlds, unless they go with it, and while workers run some of them.
    """
    async with desk.open_store() as store:
        desk.confirm(f"Delete universe {name!r} with everything in it?")
        with desk.out.progress("removed") as progress:
            await universe_calls.delete(
                store, name, with_worlds=with_worlds, progress=lambda removed: progress(removed, removed)
            )
    desk.out.one({"universe": name, "deleted": True}, [f"universe {name!r} is deleted; nothing of it is left"])
