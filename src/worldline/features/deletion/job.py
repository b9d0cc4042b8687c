"""Deleting worlds: beginning that, and removing what is left of those that were deleted.

A world is gone with the first batch (`features/deletion/batches.py`). What it had is removed afterwards, by the janitor
of any process, or at once by the process that has deleted it. `WorldRemoval` does so in turns of bounded work and keeps
nothing that is not in the store but how far a look at the universe has come: a process that is killed is followed by
another, which begins that look again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.features.collection import batches as collection_batches
from worldline.features.collection import mark_barrier as collection_marks
from worldline.features.deletion import batches as deletion
from worldline.features.deletion.batches import DoomedWorld
from worldline.features.encryption import batches as encryption_batches
from worldline.features.erasure import job as erasure_job
from worldline.layers import leases, snapshots, worlds
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model import snapshots as snapshot
from worldline.model import world_records as model
from worldline.runtime import facts
from worldline.runtime.janitor_job import JanitorContext, JanitorJob
from worldline.store import kv, paging, transact

AT_ONCE = 16  # worlds that are removed in one go
TURNS = 8  # batches of one turn
NAMED_MAX = 8  # forks in one message
HELD_UP_SECONDS = 0.2


async def begin(engine: kv.Engine, env: envs.Env, at: ids.Address, *, alias: str = "") -> bool:
    """Delete a world. False if that was done before. `NotFound` if there never was one, `InUse` while forks need what
    it has. `alias`: a name to free besides its own.
    """

    async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
        read = await engine.read(
            worlds.get(at),
            *leases.reads(at),
            snapshots.get_pin_count(at),
            history_line.get(at),
            snapshots.get_baseline(at),
            snapshots.pins_range(at, count_max=NAMED_MAX + 1),
            encryption_batches.get(at),
        )
        if worlds.is_deleted(read.value(0)):
            return transact.NothingToWrite(False)
        world = worlds.decode(at, read.value(0))
        forks = forks_of(at, read.page(7))
        if forks:
            raise await _needed(engine, world, forks)
        batch = kv.Batch()
        deletion.begin(
            batch,
            world,
            leases.decode(at, read.value(1), read.value(2), read.value(3)),
            pins_raw=read.value(4),
            token=envs.new_id(env),
            time_us=read.time_us,
            names=await _names(engine, world, alias),
            leans=_leans(read.value(5), read.value(6)),
            data_key_raw=read.value(8),
        )
        return transact.Write(batch, lambda _: True)

    return await transact.run(engine, env, attempt)


async def pinned_by(engine: kv.Engine, at: ids.Address, *, count_max: int = NAMED_MAX) -> list[ids.Address]:
    """Forks that have no state of their own yet, and need what this world has."""
    return forks_of(at, (await engine.read(snapshots.pins_range(at, count_max=count_max))).page(0))


def forks_of(at: ids.Address, page: kv.Page) -> list[ids.Address]:
    """The forks that these pins are for."""
    return [ids.Address(at.universe, fork) for fork, _ in snapshots.decode_pins(at, page)]


def _leans(raw: bytes | None, baseline_raw: bytes | None) -> tuple[model.Lineage, snapshot.StateSnapshot] | None:
    lineage = history_line.decode_lineage(raw)
    try:
        return None if lineage is None else (lineage, snapshots.decode_baseline(baseline_raw))
    except errors.KeyDestroyed:
        return None  # its pins went with its key


async def _names(engine: kv.Engine, world: worlds.WorldRecord, alias: str) -> list[tuple[str, bytes]]:
    """Of these names, those that point to the world, with their records."""
    names = [name for name in dict.fromkeys([world.meta.name, alias]) if name]
    read = await engine.read(*(worlds.get_name(world.at.universe, name) for name in names))
    found = [(name, read.value(index)) for index, name in enumerate(names)]
    return [(name, raw) for name, raw in found if raw is not None and worlds.named(world.at.universe, raw) == world.at]


async def _needed(engine: kv.Engine, world: worlds.WorldRecord, forks: Sequence[ids.Address]) -> errors.InUse:
    """The error that says which forks a world cannot be deleted because of."""
    read = await engine.read(*(worlds.get(at) for at in forks))
    found = [worlds.find(at, read.value(index)) for index, at in enumerate(forks)]
    names = [at.world.hex() if each is None else each.meta.name for at, each in zip(forks, found, strict=True)]
    shown = ", ".join(repr(name) for name in names[:NAMED_MAX])
    more = " and others" if len(names) > NAMED_MAX else ""
    return errors.InUse(
        f"forks of world {world.meta.name!r} have no state of their own yet and need its history: {shown}{more}; "
        "each saves one as soon as a worker runs it: wait for that with `--after-forks`, or delete the forks first",
        by=tuple(names),
    )


class WorldRemoval:
    """Removes what deleted worlds have left, in turns. `only`: of one world. `is_dead`: proof that a worker is."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universe: ids.UniverseId,
        *,
        only: ids.Address | None = None,
        is_dead: collection_marks.IsDead = collection_marks.never_proven,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universe = universe
        self._only = only
        self._is_dead = is_dead
        self._empty: dict[
            ids.Address, DoomedWorld
        ] = {}  # nothing of their own is left; who mentions them is looked for
        self._places: list[kv.Range] = []  # where that is still to be looked for
        self.is_held_up = False  # by a collection, which is marking what is needed
        self.seen = -1  # what the last look at the queue had seen
        self.removed = 0  # keys, by this process
        self.finished = 0

    async def turn(self) -> bool:
        """A bounded part of the work. Returns whether nothing is left to do."""
        self.is_held_up = False
        for _ in range(TURNS):
            if self._empty:
                await self._look()
            elif not await self._group():
                return True
            if self.is_held_up:
                break
        return False

    async def run(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """All that there is to do."""
        while not await self.turn():
            progress(self.removed)
            if self.is_held_up:
                await self._env.sleep(HELD_UP_SECONDS)
        progress(self.removed)

    async def _group(self) -> bool:
        """Remove what the next deleted worlds have. Returns whether there are any."""
        if self._only is None:
            read = await self._engine.read(deletion.unfinished(self._universe, count_max=AT_ONCE))
            self.seen = read.seen
            group = deletion.decode_unfinished(self._universe, read.page(0))
        else:
            doomed = deletion.decode(self._only, (await self._engine.read(deletion.get(self._only))).value(0))
            group = [] if doomed is None else [doomed]
        counts = [await transact.run(self._engine, self._env, self._own(each.at)) for each in group]
        self.removed += sum(each or 0 for each in counts)
        if group and all(each == 0 for each in counts):
            read = await self._engine.read(*(deletion.get(each.at) for each in group))
            known = [deletion.decode(each.at, read.value(index)) for index, each in enumerate(group)]
            self._empty = {each.at: each for each in known if each is not None}
            self._places = list(deletion.mentions(self._universe))
        return bool(group)

    def _own(
        self, at: ids.Address
    ) -> Callable[[], Awaitable[transact.NothingToWrite[int | None] | transact.Write[int | None]]]:
        """One batch of what a world has: how many keys that is. None if there are some that stay for now."""

        async def attempt() -> transact.NothingToWrite[int | None] | transact.Write[int | None]:
            read = await self._engine.read(
                deletion.get(at), *deletion.reads(at), *collection_batches.reads(self._universe)
            )
            doomed = deletion.decode(at, read.value(0))
            if doomed is None or not (read.page(1).items or read.page(2).items):
                return transact.NothingToWrite(0)
            batch = kv.Batch()
            marks = collection_batches.decode(self._universe, read.value(3), read.value(4))
            if marks.generation.marking:
                self.is_held_up = await collection_marks.goes_on(self._engine, marks, self._is_dead)
                if self.is_held_up:
                    return transact.NothingToWrite(None)
                probes.hit("deletion.mark-left-behind")
                collection_batches.give_up(batch, marks)
                return transact.Write(batch, lambda _: None)
            after = deletion.remove(batch, doomed, read.page(1), read.page(2), marks=marks)
            assert after is not None
            count = after.record.removed - doomed.record.removed
            return transact.Write(batch, lambda _: count)

        return attempt

    async def _look(self) -> None:
        """The next page of what may mention worlds that are empty; behind the last one, they are finished."""
        if not self._places:
            await self._finish()
            return
        place = self._places[0]
        gone = {at.world: None for at in self._empty}
        count = 0

        async def attempt() -> transact.NothingToWrite[kv.Page] | transact.Write[kv.Page]:
            nonlocal count
            page = (await self._engine.read(place)).page(0)
            batch = kv.Batch()
            count = deletion.forget(batch, self._universe, page, gone)
            if not count:
                return transact.NothingToWrite(page)
            probes.hit("deletion.was-mentioned")
            return transact.Write(batch, lambda _: page)

        page = await transact.run(self._engine, self._env, attempt)
        self.removed += count
        rest = paging.rest_of(place, page)
        self._places[:1] = [] if rest is None else [rest]

    async def _finish(self) -> None:
        """One batch for each: another process may have finished some of them. Personal values that only these worlds
        could read go before.
        """
        await erasure_job.sweep(self._engine, self._env, self._universe)
        batches = []
        for doomed in self._empty.values():
            batches.append(kv.Batch())
            deletion.finish(batches[-1], doomed)
        outcomes = await transact.commit(self._engine, self._env, *batches)
        self.finished += sum(isinstance(outcome, kv.Ok) for outcome in outcomes)
        self._empty = {}


class WorldRemovalJob(JanitorJob):
    """The janitor's part: what was deleted in its universe, at once."""

    def __init__(self, context: JanitorContext) -> None:
        self.watches = [deletion.prefix(context.universe)]
        self._removal = WorldRemoval(context.engine, context.env, context.universe, is_dead=context.is_dead)
        self._telemetry = context.telemetry

    async def turn(self) -> bool:
        before = self._removal.removed
        over = await self._removal.turn()
        self.seen = self._removal.seen
        if self._removal.removed > before:
            self._telemetry.tell(facts.Cleared("deleted", self._removal.removed - before))
        return over

    async def close(self) -> None:
        """Nothing is left behind: each batch stands alone."""
