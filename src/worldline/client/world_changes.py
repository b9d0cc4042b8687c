"""Changing what a world is: its status, its labels, its names. One commit each, with everything that follows from it.

A world that must not run any more loses its lease in the same commit: its holder is fenced and can write no further
step. One that may run again gets a ready hint, so that a worker takes it. Deleting one is in `features/deletion`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worldline.base import env as envs
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.layers import leases, ready, trial, worlds
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.runtime.world_change_interface import StatusGuard
from worldline.store import kv, transact


async def change(
    connection: Connection,
    at: ids.Address,
    *,
    status: Status | None = None,
    labels: dict[str, str] | None = None,
) -> worlds.WorldRecord:
    """Pause, resume or archive a world, or label it."""
    check_status(status)
    if status is Status.DELETED:
        raise errors.BadInput("a world is deleted by delete(), not by a change of its status")
    check_labels(labels)
    engine, env = connection.store.engine, connection.store.env
    guards = [] if status is None else [each for feature in connection.store.features for each in feature.status_guards]

    async def attempt() -> transact.Write[worlds.WorldRecord]:
        of_guards = [each for guard in guards for each in guard.reads(at)]
        read = await engine.read(worlds.get(at), *leases.reads(at), *of_guards)
        world = worlds.decode(at, read.value(0))
        batch = kv.Batch()
        if status is not None:
            # First: why a world can never run again is said before why it cannot just now.
            _follow(guards, batch, at, status, read, first=4)
        state = leases.decode(at, read.value(1), read.value(2), read.value(3))
        changed = worlds.change(batch, world, status=status, labels=labels)
        if status is not None:
            trial.clear(batch, at)  # a person has decided: a quarantine is over, or does not end by itself any more
        if status is Status.ACTIVE:
            ready.leave(batch, at, priority=ready.NORMAL)
        elif status is not None:  # also without a holder: a worker may be taking the lease now
            leases.revoke(batch, state, token=envs.new_id(env))
        return transact.Write(batch, lambda _: changed)

    if connection.host is not None and status not in (None, Status.ACTIVE):
        # Before the commit: the holder in this process releases the world itself, instead of learning it from a fence.
        await connection.host.worlds.forget(at)
    return await transact.run(engine, env, attempt)


def _follow(
    guards: Sequence[StatusGuard], batch: kv.Batch, at: ids.Address, status: Status, read: kv.ReadResult, *, first: int
) -> None:
    """Have each guard add what goes with the status, by the answers to its own reads."""
    for each in guards:
        behind = first + len(each.reads(at))
        each.follow(batch, at, status, [read.value(index) for index in range(first, behind)])
        first = behind


def check_status(status: object) -> None:
    """Refuse what is no status: text, or the number of one."""
    if status is not None and not isinstance(status, Status):
        known = ", ".join(f"Status.{each.name}" for each in Status)
        raise errors.BadInput(f"status must be one of worldline's {known}, not {status!r}")


def check_labels(labels: object) -> None:
    """Refuse what is not text to text; how long it may be is checked where it is written."""
    texts = isinstance(labels, Mapping) and all(isinstance(each, str) for pair in labels.items() for each in pair)
    if labels is not None and not texts:
        raise errors.BadInput(f"labels must be a dict of text to text, not {labels!r}")


async def point(connection: Connection, name: str, at: ids.Address) -> None:
    """Make a name point to a world: a new name, or one that points elsewhere now."""
    engine = connection.store.engine

    async def attempt() -> transact.Write[None]:
        read = await engine.read(worlds.get(at), worlds.get_name(connection.id, name))
        batch = kv.Batch()
        worlds.point_name(batch, connection.id, name, worlds.decode(at, read.value(0)), raw=read.value(1))
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, connection.store.env, attempt)


async def rename(connection: Connection, at: ids.Address, name: str) -> None:
    """Give a world another name of its own, and free the old one."""
    engine = connection.store.engine

    async def attempt() -> transact.Write[None]:
        world = worlds.decode(at, (await engine.read(worlds.get(at))).value(0))
        read = await engine.read(worlds.get_name(connection.id, world.meta.name), worlds.get_name(connection.id, name))
        raw = read.value(0)
        if raw is None or read.value(1) is not None:
            raise errors.Exists(f"the name {name!r} is in use")
        batch = kv.Batch()
        worlds.rename(batch, world, name, raw=raw)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, connection.store.env, attempt)
    # After the rename is durable: whatever goes by names reads the one that the world has now.
    for feature in connection.store.features:
        for watch in feature.rename_watches:
            await watch.renamed(engine, connection.store.env, at)


async def free(connection: Connection, name: str) -> None:
    """Take a name away. A world's own name stays: without one it could not be found."""
    engine = connection.store.engine

    async def attempt() -> transact.Write[None]:
        raw = (await engine.read(worlds.get_name(connection.id, name))).value(0)
        at = worlds.named(connection.id, raw)
        if at is None or raw is None:
            raise errors.NotFound(f"no world {name!r} in universe {connection.name!r}")
        world = worlds.find(at, (await engine.read(worlds.get(at))).value(0))
        if world is not None and world.meta.name == name:
            raise errors.Closed(f"{name!r} is the world's own name; give it another with `worldline ref rename`")
        batch = kv.Batch()
        worlds.free_name(batch, connection.id, name, raw=raw)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, connection.store.env, attempt)
