"""Deleting a whole universe, and removing what is left of those that were deleted.

`begin` refuses what is in use and closes the universe; `UniverseRemoval` does the rest in turns, as the janitor of any
process, of any universe of the store, or at once by the process that has deleted it: decide, delete its worlds if they
go with it, delete its objects, then every key. It keeps nothing that is not in the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.features.deletion import job as world_deletions
from worldline.features.deletion import universe_batches
from worldline.features.deletion.universe_batches import DoomedUniverse
from worldline.keys import cas as cas_keys
from worldline.layers import leases, universes, worlds
from worldline.model import ids
from worldline.runtime.janitor_job import JanitorJob
from worldline.runtime.store_context import StoreContext
from worldline.store import kv, paging, transact
from worldline.store.objects import objects_interface as objects

AT_ONCE = 16  # universes looked at in one turn
TURNS = 8  # batches of one turn
WORLDS_PAGE = 200
OBJECTS_PAGE = 200
NAMED_MAX = 8  # worlds in one message


async def begin(
    engine: kv.Engine,
    env: envs.Env,
    name: str,
    *,
    with_worlds: bool,
    hosted: Callable[[Sequence[leases.LeaseState]], Awaitable[Sequence[bool]]],
) -> ids.UniverseId:
    """Close a universe, to be deleted. `NotFound` if there is none of this name, `InUse` if it has worlds that are not
    to go with it, or that a living worker runs (`hosted`).
    """
    universe: ids.UniverseId | None = None

    async def attempt() -> transact.Write[ids.UniverseId]:
        nonlocal universe
        read = await engine.read(universes.get(name))
        universe, name_raw = universes.decode(read.value(0)), read.value(0)
        if universe is None or name_raw is None:
            raise errors.NotFound(f"no universe {name!r} in this store")
        # Inside of the attempt, so that each attempt sees the worlds that were made meanwhile.
        await _check_worlds(engine, universe, name, with_worlds=with_worlds, hosted=hosted)
        read = await engine.read(universes.get_meta(universe))
        if read.value(0) is None:
            raise errors.Corrupt(f"the name {name!r} leads to universe {universe.hex()}, which has no record")
        batch = kv.Batch()
        universe_batches.close(
            batch,
            universe,
            name_raw=name_raw,
            meta_raw=read.value(0) or b"",
            with_worlds=with_worlds,
            time_us=read.time_us,
        )
        closed = universe
        return transact.Write(batch, lambda _: closed)

    return await transact.run(engine, env, attempt)


async def _check_worlds(
    engine: kv.Engine,
    universe: ids.UniverseId,
    name: str,
    *,
    with_worlds: bool,
    hosted: Callable[[Sequence[leases.LeaseState]], Awaitable[Sequence[bool]]],
) -> None:
    async for page in paging.RangePages(engine, worlds.list_range(universe, count_max=WORLDS_PAGE)):
        found = worlds.listed_at(universe, page)
        if found and not with_worlds:
            # One name more than is shown, to know whether there are others.
            raise _has_worlds(name, await _names(engine, found[: NAMED_MAX + 1]))
        if found:
            read = await engine.read(*(get for at in found for get in leases.reads(at)))
            states = [
                leases.decode(at, *(read.value(3 * index + each) for each in range(3)))
                for index, at in enumerate(found)
            ]
            running = [at for at, is_hosted in zip(found, await hosted(states), strict=True) if is_hosted]
            if running:
                names = await _names(engine, running[: NAMED_MAX + 1])
                raise errors.InUse(
                    f"workers run worlds of universe {name!r}: {_shown(names)}; stop them first", by=tuple(names)
                )


def _has_worlds(name: str, names: Sequence[str]) -> errors.InUse:
    return errors.InUse(
        f"universe {name!r} has worlds: {_shown(names)}; delete them first, or delete it `--with-worlds`",
        by=tuple(names),
    )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:NAMED_MAX]) + (" and others" if len(names) > NAMED_MAX else "")


async def _names(engine: kv.Engine, addresses: Sequence[ids.Address]) -> list[str]:
    read = await engine.read(*(worlds.get(at) for at in addresses))
    found = [worlds.find(at, read.value(index)) for index, at in enumerate(addresses)]
    return [at.world.hex() if each is None else each.meta.name for at, each in zip(addresses, found, strict=True)]


class UniverseRemoval:
    """Removes what deleted universes have left, in turns. `only`: of one. `bodies`: None if there are no objects."""

    def __init__(
        self, engine: kv.Engine, env: envs.Env, bodies: objects.Objects | None, *, only: ids.UniverseId | None = None
    ) -> None:
        self._engine = engine
        self._env = env
        self._bodies = bodies
        self._only = only
        self.seen = -1  # what the last look at the queue had seen
        self.removed = 0  # keys and objects, by this process
        self.refused: errors.InUse | None = None  # it is open again

    async def run(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """All that there is to do. `InUse` if the universe stays, because a world was made in it meanwhile."""
        while not await self.turn():
            progress(self.removed)
        progress(self.removed)
        if self.refused is not None:
            raise self.refused

    async def turn(self) -> bool:
        """A bounded part of the work. Returns whether nothing is left to do."""
        for _ in range(TURNS):
            found = await self._next()
            if found is None:
                return True
            if not found.record.decided:
                await self._decide(found)
            # Worlds first, which fences their writers; keys last, because worlds are found by them.
            elif not (await self._delete_worlds(found) or await self._delete_objects(found)):
                await self._delete_keys(found)
        return False

    async def _next(self) -> DoomedUniverse | None:
        if self._only is not None:
            return universe_batches.decode(
                self._only, (await self._engine.read(universe_batches.get(self._only))).value(0)
            )
        read = await self._engine.read(universe_batches.unfinished(count_max=AT_ONCE))
        self.seen = read.seen
        return next(iter(universe_batches.decode_unfinished(read.page(0))), None)

    async def _decide(self, doomed: DoomedUniverse) -> None:
        """No world is made in it any more. If one was made before, and is not to go, the universe is opened again."""
        universe, record = doomed.universe, doomed.record
        listed = worlds.list_range(universe, count_max=NAMED_MAX + 1)
        read = await self._engine.read(listed, universes.get_meta(universe), universes.get(record.name))
        found = worlds.listed_at(universe, read.page(0))
        batch = kv.Batch()
        if record.with_worlds or not found or read.value(2) is not None:  # another has taken its name
            universe_batches.decide(batch, doomed)
        else:
            probes.hit("deletion.universe-stays")
            universe_batches.reopen(batch, doomed, meta_raw=read.value(1) or b"")
            self.refused = _has_worlds(record.name, await _names(self._engine, found))
        await transact.applied(self._engine, self._env, batch)

    async def _delete_worlds(self, doomed: DoomedUniverse) -> bool:
        """The newest first: forks before what they were forked from. Returns whether there were any."""
        read = await self._engine.read(worlds.newest_range(doomed.universe, count_max=WORLDS_PAGE))
        found = worlds.listed_at(doomed.universe, read.page(0))
        for at in found:
            # One by one, as by hand: each deletion fences the writers of its world.
            await world_deletions.begin(self._engine, self._env, at)
        self.removed += len(found)
        return bool(found)

    async def _delete_objects(self, doomed: DoomedUniverse) -> bool:
        if self._bodies is None:
            return False
        # Always the first page: what was listed before is deleted.
        found = await self._bodies.list(f"{cas_keys.object_folder(doomed.universe)}/", count_max=OBJECTS_PAGE)
        for each in found:
            # Deleted before it is counted: the count may be too low, and nothing is forgotten
            await self._bodies.delete(each.name)
        if found:
            batch = kv.Batch()
            universe_batches.remove(batch, doomed, kv.Page([], False, kv.ZERO_STAMP), objects=len(found))
            await transact.applied(self._engine, self._env, batch)
            self.removed += len(found)
        return bool(found)

    async def _delete_keys(self, doomed: DoomedUniverse) -> None:
        """The next keys; behind the last one, the record of the deletion itself."""
        page = (await self._engine.read(universe_batches.read_range(doomed.universe))).page(0)
        batch = kv.Batch()
        if page.items:
            universe_batches.remove(batch, doomed, page)
        else:
            universe_batches.finish(batch, doomed)
        # Else another process has done it, and the next look sees how far.
        if await transact.applied(self._engine, self._env, batch):
            self.removed += len(page.items)


class UniverseRemovalJob(JanitorJob):
    """The janitor's part: universes of the store that were deleted, at once."""

    def __init__(self, context: StoreContext) -> None:
        self.watches = [universe_batches.prefix()]
        self._removal = UniverseRemoval(context.engine, context.env, context.bodies)

    async def turn(self) -> bool:
        over = await self._removal.turn()
        self.seen = self._removal.seen
        return over

    async def close(self) -> None:
        """Nothing is left behind: each batch stands alone."""
