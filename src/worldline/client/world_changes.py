"""Changing what a world is: its status, its labels, its names. One commit each, with everything that follows from it.

A world that must not run any more loses its lease in the same commit: its holder is fenced and can write no further
step. One that may run again gets a ready hint, so that a worker takes it. Deleting one is in `features/deletion`.
"""

from __future__ import annotations

from collections.abc import Mapping

from worldline.base import env as envs
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.features.copies import dormant_worlds
from worldline.features.encryption import batches as encryption_batches
from worldline.features.policy import calls as policy_calls
from worldline.layers import leases, ready, trial, worlds
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.store import kv, transact


async def change(
    universe: Connection,
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
    engine, env = universe.store.engine, universe.store.env

    async def attempt() -> transact.Write[worlds.WorldRecord]:
        read = await engine.read(worlds.get(at), *leases.reads(at), dormant_worlds.get(at), encryption_batches.get(at))
        world = worlds.decode(at, read.value(0))
        if status is Status.ACTIVE:
            # A world without its data key could not read its own state.
            encryption_batches.check_kept(at, read.value(5))
        state = leases.decode(at, read.value(1), read.value(2), read.value(3))
        batch = kv.Batch()
        changed = worlds.change(batch, world, status=status, labels=labels)
        if status is not None:
            dormant_worlds.forget(batch, at, read.value(4))
        if status is not None:
            trial.clear(batch, at)  # a person has decided: a quarantine is over, or does not end by itself any more
        if status is Status.ACTIVE:
            ready.leave(batch, at, priority=ready.NORMAL)
        elif status is not None:  # also without a holder: a worker may be taking the lease now
            leases.revoke(batch, state, token=envs.new_id(env))
        return transact.Write(batch, lambda _: changed)

    if universe.host is not None and status not in (None, Status.ACTIVE):
        # Before the commit: the holder in this process releases the world itself, instead of learning it from a fence.
        await universe.host.worlds.forget(at)
    return await transact.run(engine, env, attempt)


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


async def point(universe: Connection, name: str, at: ids.Address) -> None:
    """Make a name point to a world: a new name, or one that points elsewhere now."""
    engine = universe.store.engine

    async def attempt() -> transact.Write[None]:
        read = await engine.read(worlds.get(at), worlds.get_name(universe.id, name))
        batch = kv.Batch()
        worlds.point_name(batch, universe.id, name, worlds.decode(at, read.value(0)), raw=read.value(1))
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, universe.store.env, attempt)


async def rename(universe: Connection, at: ids.Address, name: str) -> None:
    """Give a world another name of its own, and free the old one."""
    engine = universe.store.engine

    async def attempt() -> transact.Write[None]:
        world = worlds.decode(at, (await engine.read(worlds.get(at))).value(0))
        read = await engine.read(worlds.get_name(universe.id, world.meta.name), worlds.get_name(universe.id, name))
        raw = read.value(0)
        if raw is None or read.value(1) is not None:
            raise errors.Exists(f"the name {name!r} is taken")
        batch = kv.Batch()
        worlds.rename(batch, world, name, raw=raw)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, universe.store.env, attempt)
    # After the rename is durable: rules match worlds by the name that they have.
    await policy_calls.renamed(universe, at)


async def free(universe: Connection, name: str) -> None:
    """Take a name away. A world's own name stays: without one it could not be found."""
    engine = universe.store.engine

    async def attempt() -> transact.Write[None]:
        raw = (await engine.read(worlds.get_name(universe.id, name))).value(0)
        at = worlds.named(universe.id, raw)
        if at is None or raw is None:
            raise errors.NotFound(f"no world {name!r} in universe {universe.name!r}")
        world = worlds.find(at, (await engine.read(worlds.get(at))).value(0))
        if world is not None and world.meta.name == name:
            raise errors.Closed(f"{name!r} is the world's own name; give it another with `worldline ref rename`")
        batch = kv.Batch()
        worlds.free_name(batch, universe.id, name, raw=raw)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, universe.store.env, attempt)
