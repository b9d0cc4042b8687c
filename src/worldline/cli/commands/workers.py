"""Workers and leases: `worker list|drain|undrain`, `lease revoke|assign|unassign`.

`worldline worker FILE` is a worker itself (`cli.roles`).
"""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from worldline.base import errors
from worldline.cli import common, suggest
from worldline.cli.commands import roles
from worldline.cli.common import Desk
from worldline.client.connection import Connection
from worldline.host import holders
from worldline.inspect.render import when
from worldline.layers import leases
from worldline.model import ids
from worldline.roles.cluster import operations, placement

ID_CHARACTERS_MIN = 4


class Worker(msgspec.Struct, frozen=True):
    """A line of the listing."""

    name: str
    id: str
    state: str
    worlds: int
    capacity: int
    programs: list[str]
    code: dict[str, str]  # of each program
    labels: dict[str, str]
    last_heartbeat: datetime


@common.command("list", many=True)
async def list_workers(desk: Desk, limit: int) -> None:
    """List the workers of this universe: their state, and what they run."""
    async with desk.open(programs=[]) as universe:
        found = [await _shown(universe, life) for life in (await _lives(universe))[:limit]]
    columns = {
        "NAME": "name", "STATE": "state", "WORLDS": "worlds", "CAPACITY": "capacity", "PROGRAMS": "programs",
        "CODE": "code",
        "LABELS": "labels", "LAST HEARTBEAT": "last_heartbeat", "ID": "id",
    }  # fmt: skip
    desk.out.many(found, columns, none="no workers here")


@common.command("drain")
@click.argument("worker")
async def drain(desk: Desk, worker: str) -> None:
    """Drain a worker: it saves and releases its worlds and takes none. WORKER is a name or an id."""
    await _drain(desk, worker, draining=True)


@common.command("undrain")
@click.argument("worker")
async def undrain(desk: Desk, worker: str) -> None:
    """Let a drained worker take worlds again."""
    await _drain(desk, worker, draining=False)


@common.command("revoke")
@click.argument("world")
async def revoke(desk: Desk, world: str) -> None:
    """Take the lease of a world from its holder, which can write no more. Another worker goes on."""
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        epoch = await operations.revoke_lease(universe.store.engine, universe.store.env, at)
    desk.out.one({"name": world, "epoch": epoch}, [f"the lease of {world} is free, at epoch {epoch}"])


@common.command("assign")
@click.argument("world")
@click.argument("worker")
async def assign(desk: Desk, *, world: str, worker: str) -> None:
    """Say which worker should run a world: any other gives it back, saved. WORKER is its name or its id."""
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        chosen = _find(await _lives(universe), worker)
        if len(chosen) > 1:
            raise errors.BadInput(
                f"{len(chosen)} workers are named {worker!r}; give an id from `worldline worker list`"
            )
        await operations.assign_world(universe.store.engine, universe.store.env, at, chosen[0].worker)
    said = {"name": world, "worker": chosen[0].worker.hex()}
    desk.out.one(said, [f"{world} is assigned to worker {worker}"])


@common.command("unassign")
@click.argument("world")
async def unassign(desk: Desk, world: str) -> None:
    """Let any worker run a world again."""
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        await operations.unassign_world(universe.store.engine, universe.store.env, at)
    desk.out.one({"name": world, "worker": None}, [f"any worker may run {world}"])


async def _drain(desk: Desk, named: str, *, draining: bool) -> None:
    async with desk.open(programs=[]) as universe:
        engine, env = universe.store.engine, universe.store.env
        chosen = _find(await _lives(universe), named)
        for life in chosen:
            await operations.drain_worker(engine, env, life.worker, draining=draining)
        ended = [await _shown(universe, life) for life in await _lives(universe) if life.worker in _ids(chosen)]
    done = "gives its worlds back" if draining else "takes worlds again"
    for each in ended:
        desk.out.one(each, [f"worker {each.name} ({each.id}) {done}"])


def _ids(lives: list[leases.Heartbeat]) -> list[ids.WorkerId]:
    return [life.worker for life in lives]


async def _lives(universe: Connection) -> list[leases.Heartbeat]:
    found = await operations.list_workers(universe.store.engine)
    return [life for life in found if placement.serves(life.sign.labels, universe.id)]


def _find(lives: list[leases.Heartbeat], named: str) -> list[leases.Heartbeat]:
    """The workers of a name, or the one whose id begins or ends so."""
    by_name = [life for life in lives if life.sign.labels.get(placement.NAME) == named]
    text = named.lower()
    by_id = [life for life in lives if life.worker.hex().startswith(text) and len(text) >= ID_CHARACTERS_MIN]
    if not by_name and len(by_id) > 1:
        raise errors.BadInput(f"{len(by_id)} workers have ids that begin with {named!r}; give more of it")
    if not by_name and not by_id:
        meant = suggest.near(named, (life.sign.labels.get(placement.NAME, "") for life in lives))
        meant = meant or suggest.ids(text, (life.worker.hex() for life in lives))
        raise errors.NotFound(f"no worker {named!r} in this universe; see `worldline worker list`{meant}")
    return by_name or by_id


async def _shown(universe: Connection, life: leases.Heartbeat) -> Worker:
    now_us = (await universe.store.engine.read()).time_us
    held = await operations.list_worker_worlds(universe.store.engine, life.worker)
    gone = holders.is_gone(universe.store, life.worker)
    state = "dead" if gone or not life.alive(now_us) else "draining" if life.sign.draining else "alive"
    return Worker(
        life.sign.labels.get(placement.NAME, ""),
        life.worker.hex(),
        state,
        len(held),
        life.sign.capacity,
        list(placement.programs_of(life.sign.labels)),
        placement.programs_of(life.sign.labels),
        {name: value for name, value in life.sign.labels.items() if not placement.reserved(name)},
        when(life.sign.heartbeat_us),
    )


COMMANDS: list[click.Command] = [
    roles.RoleGroup(
        "worker", commands=[roles.worker, list_workers, drain, undrain],
        help="Run worlds; list and drain workers. `worldline worker FILE` runs them: see `worker start --help`.",
    ),
]  # fmt: skip
LEASES: list[click.Command] = [
    click.Group("lease", commands=[revoke, assign, unassign], help="Who may write a world."),
]
