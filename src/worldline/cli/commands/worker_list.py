"""Workers and leases: `worker list|show|drain|undrain`, `lease revoke|assign|unassign`.

`worldline worker FILE` is a worker itself (`cli.roles`).
"""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from worldline.base import errors
from worldline.cli.commands import process_commands
from worldline.client.connection import Connection
from worldline.inspect import entry_text
from worldline.inspect.entry_text import when
from worldline.layers import leases, ready, worlds
from worldline.model import ids
from worldline.runtime import operator_calls, placement, worker_labels, world_holders
from worldline.runtime.universes import served_universes
from worldline.terminal import command_session, output, suggest
from worldline.terminal.command_session import CommandSession

ID_CHARACTERS_MIN = 4


class WorkerRow(msgspec.Struct, frozen=True):
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


@command_session.command("list", many=True)
async def list_workers(desk: CommandSession, limit: int) -> None:
    """List the workers of this universe: their state, and what they run."""
    async with desk.open(programs=[]) as universe:
        found = [await _shown(universe, life) for life in (await _lives(universe))[:limit]]
    columns = {
        "NAME": "name",
        "STATE": "state",
        "WORLDS": "worlds",
        "CAPACITY": "capacity",
        "PROGRAMS": "programs",
        "CODE": "code",
        "LABELS": "labels",
        "LAST HEARTBEAT": "last_heartbeat",
        "ID": "id",
    }
    desk.out.many(found, columns, none="no workers here")


class HeldWorldRow(msgspec.Struct, frozen=True):
    """A world that a worker holds."""

    name: str
    id: str
    program: str
    status: str
    universe: str
    epoch: int


class WholeWorker(WorkerRow, frozen=True):
    """A worker, and the worlds that it holds. `more`: how many are left out of the list."""

    held: list[HeldWorldRow] = []
    more: int = 0


@command_session.command("show")
@click.argument("worker")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=command_session.LIST_DEFAULT,
    show_default=True,
    help="How many worlds at most.",
)
async def show(desk: CommandSession, *, worker: str, limit: int) -> None:
    """Show a worker and the worlds that it holds, each with its epoch. WORKER is a name or an id."""
    async with desk.open(programs=[]) as universe:
        found = [await _whole(universe, life, limit) for life in _find(await _lives(universe), worker)]
    for each in found:
        said = entry_text.plain(each)
        del said["held"], said["more"]
        worlds = [f"  {held.name}  {held.program}  {held.status}  epoch {held.epoch}" for held in each.held]
        rest = [f"  ... and {each.more} more: --limit {each.worlds}"] if each.more else []
        lines = output.pairs({**said, "last_heartbeat": each.last_heartbeat})
        desk.out.one(each, [*lines, *(worlds or ["  it holds no world"]), *rest])


@command_session.command("drain")
@click.argument("worker")
async def drain(desk: CommandSession, worker: str) -> None:
    """Drain a worker: it saves and releases its worlds and takes none. WORKER is a name or an id."""
    await _drain(desk, worker, draining=True)


@command_session.command("undrain")
@click.argument("worker")
async def undrain(desk: CommandSession, worker: str) -> None:
    """Let a drained worker take worlds again."""
    await _drain(desk, worker, draining=False)


@command_session.command("revoke")
@click.argument("world")
@click.option("--epoch", type=click.IntRange(min=1), metavar="N", help="Only if it is held at this epoch.")
async def revoke(desk: CommandSession, *, world: str, epoch: int | None) -> None:
    """Take the lease of a world from its holder, which can write no more. Another worker goes on.

    With --epoch, only the lease of that epoch (`worldline show` says it): a repeat takes it from no other holder.
    """
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        after = await operator_calls.revoke_lease(universe.store.engine, universe.store.env, at, epoch=epoch)
    line = f"the lease of {world} is free, at epoch {after}"
    # Revoking raises the epoch by one, and a repeat finds it so; any other number is the lease of another holder.
    if epoch is not None and after not in (epoch, epoch + 1):
        line = f"nothing was revoked: the lease of {world} is at epoch {after}, not {epoch}"
    desk.out.one({"name": world, "epoch": after}, [line])


@command_session.command("assign")
@click.argument("world")
@click.argument("worker")
@click.option(
    "--priority",
    type=click.IntRange(min=0, max=9),
    default=ready.NORMAL,
    show_default=True,
    metavar="N",
    help="A worker that has many worlds to take begins with the lowest.",
)
async def assign(desk: CommandSession, *, world: str, worker: str, priority: int) -> None:
    """Say which worker should run a world: any other gives it back, saved. WORKER is its name or its id.

    A worker that does not have its program, or the labels that it needs, is refused.
    """
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        chosen = _find(await _lives(universe), worker)
        if len(chosen) > 1:  # one world has one holder, and the name does not say which of them
            raise errors.BadInput(
                f"{len(chosen)} workers are named {worker!r}; give an id from `worldline worker list`"
            )
        engine, env = universe.store.engine, universe.store.env
        await operator_calls.assign_world(engine, env, at, chosen[0].worker, priority=priority)
    said = {"name": world, "worker": chosen[0].worker.hex()}
    desk.out.one(said, [f"{world} is assigned to worker {worker}"])


@command_session.command("unassign")
@click.argument("world")
async def unassign(desk: CommandSession, world: str) -> None:
    """Let any worker run a world again."""
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        await operator_calls.unassign_world(universe.store.engine, universe.store.env, at)
    desk.out.one({"name": world, "worker": None}, [f"any worker may run {world}"])


async def _whole(connection: Connection, life: leases.HeartbeatRecord, limit: int) -> WholeWorker:
    every = await operator_calls.list_worker_worlds(connection.store.engine, life.worker)
    shown = every[:limit]
    read = await connection.store.engine.read(*(worlds.get(at) for at, _ in shown))
    names = {each.id: each.name for each in await served_universes.read_all(connection.store.engine)}
    held: list[HeldWorldRow] = []
    for index, (at, epoch) in enumerate(shown):
        world = worlds.find(at, read.value(index))
        if world is not None:  # else it was deleted just now
            meta = world.meta
            where = names.get(at.universe, at.universe.hex())
            held.append(HeldWorldRow(meta.name, at.world.hex(), meta.program, meta.status.name.lower(), where, epoch))
    line = msgspec.structs.asdict(await _shown(connection, life))
    return WholeWorker(**line, held=held, more=len(every) - len(shown))


async def _drain(desk: CommandSession, named: str, *, draining: bool) -> None:
    async with desk.open(programs=[]) as universe:
        engine, env = universe.store.engine, universe.store.env
        chosen = _find(await _lives(universe), named)
        for life in chosen:
            await operator_calls.drain_worker(engine, env, life.worker, draining=draining)
        # Read again: what is shown is what was stored.
        ended = [await _shown(universe, life) for life in await _lives(universe) if life.worker in _ids(chosen)]
    done = "gives its worlds back" if draining else "takes worlds again"
    for each in ended:
        desk.out.one(each, [f"worker {each.name} ({each.id}) {done}"])


def _ids(lives: list[leases.HeartbeatRecord]) -> list[ids.WorkerId]:
    return [life.worker for life in lives]


async def _lives(connection: Connection) -> list[leases.HeartbeatRecord]:
    found = await operator_calls.list_workers(connection.store.engine)
    # Heartbeats are the store's, and workers of other universes are none of this one's.
    return [life for life in found if worker_labels.serves(life.sign.labels, connection.id)]


def _find(lives: list[leases.HeartbeatRecord], named: str) -> list[leases.HeartbeatRecord]:
    """The workers of a name, or the one whose id begins or ends so."""
    by_name = [life for life in lives if life.sign.labels.get(placement.NAME) == named]
    text = named.lower()
    # A few characters at least: a short word is a name, and not the beginning of an id.
    by_id = [life for life in lives if life.worker.hex().startswith(text) and len(text) >= ID_CHARACTERS_MIN]
    if len(by_id) > 1 and not by_name:  # several workers may share a name, and all of them are meant; an id means one
        raise errors.BadInput(f"{len(by_id)} workers have ids that begin with {named!r}; give more of it")
    if not by_name and not by_id:
        meant = suggest.near(named, (life.sign.labels.get(placement.NAME, "") for life in lives))
        meant = meant or suggest.ids(text, (life.worker.hex() for life in lives))
        raise errors.NotFound(f"no worker {named!r} in this universe; see `worldline worker list`{meant}")
    return by_name or by_id


async def _shown(connection: Connection, life: leases.HeartbeatRecord) -> WorkerRow:
    now_us = (await connection.store.engine.read()).time_us
    held = await operator_calls.list_worker_worlds(connection.store.engine, life.worker)
    gone = world_holders.is_gone(connection.store, life.worker)
    # A process that is proven dead is dead at once; of another machine's, only the heartbeat tells.
    state = "dead" if gone or not life.alive(now_us) else "draining" if life.sign.draining else "alive"
    return WorkerRow(
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
    process_commands.RoleGroup(
        "worker",
        commands=[process_commands.worker, list_workers, show, drain, undrain],
        help="Run worlds; list and drain workers. `worldline worker FILE` runs them: see `worker start --help`.",
    ),
]
LEASES: list[click.Command] = [
    click.Group("lease", commands=[revoke, assign, unassign], help="Who may write a world."),
]
