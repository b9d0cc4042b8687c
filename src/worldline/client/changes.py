"""Changing what a world is: its status, its labels, its names. One commit each, with everything that follows from it.

A world that must not run any more loses its lease in the very commit that says so: whoever holds it is fenced and can
write no further step. One that may run again gets a hint, so that somebody looks. Deleting a world frees its names and
forgets its open work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldline.base import env as envs
from worldline.base import errors
from worldline.keys import work as work_keys
from worldline.layers import leases, ready, worlds
from worldline.model import ids
from worldline.model.world import Status
from worldline.store import kv, transact

if TYPE_CHECKING:
    from worldline.client.sdk import Universe


async def change(
    universe: Universe, at: ids.Address, *, status: Status | None = None, labels: dict[str, str] | None = None,
    alias: str = "",
) -> worlds.World:  # fmt: skip
    """Pause, resume, archive or delete a world, or label it. `alias`: a name to free besides its own."""
    engine, env = universe.store.engine, universe.store.env

    async def attempt() -> transact.Write[worlds.World]:
        read = await engine.read(worlds.get(at), *leases.reads(at))
        world = worlds.decode(at, read.value(0))
        state = leases.decode(at, read.value(1), read.value(2), read.value(3))
        batch = kv.Batch()
        changed = worlds.change(batch, world, status=status, labels=labels)
        if status is Status.ACTIVE:
            ready.leave(batch, at, priority=ready.NORMAL)
        elif status is not None:  # also from nobody: somebody may be about to take it
            leases.revoke(batch, state, token=envs.new_id(env))
        if status is Status.DELETED:
            batch.delete_range(*work_keys.open_work(at))
            await _free_names(universe, batch, world, alias)
        return transact.Write(batch, lambda _: changed)

    if universe.host is not None and status not in (None, Status.ACTIVE):
        await universe.host.worlds.forget(at)
    return await transact.run(engine, env, attempt)


async def point(universe: Universe, name: str, at: ids.Address) -> None:
    """Make a name point to a world: a new name, or one that points elsewhere now."""
    engine = universe.store.engine

    async def attempt() -> transact.Write[None]:
        read = await engine.read(worlds.get(at), worlds.get_name(universe.id, name))
        batch = kv.Batch()
        worlds.point_name(batch, universe.id, name, worlds.decode(at, read.value(0)), raw=read.value(1))
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, universe.store.env, attempt)


async def rename(universe: Universe, at: ids.Address, name: str) -> None:
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


async def free(universe: Universe, name: str) -> None:
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


async def _free_names(universe: Universe, batch: kv.Batch, world: worlds.World, alias: str) -> None:
    names = [name for name in dict.fromkeys([world.meta.name, alias]) if name]
    read = await universe.store.engine.read(*(worlds.get_name(universe.id, name) for name in names))
    for index, name in enumerate(names):
        raw = read.value(index)
        if raw is not None and worlds.named(universe.id, raw) == world.at:
            worlds.free_name(batch, universe.id, name, raw=raw)
