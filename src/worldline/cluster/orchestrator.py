"""The orchestrator: says where worlds are wanted, by heartbeats, capacity, labels and load.

A turn reads what there is (workers, the worlds they hold, worlds with a hint), lets `placement` choose, and writes
assignments. These are advice: a worker releases a world that is assigned to another, and none takes one that is not
meant for it; who may write a world is decided by its lease alone. Without an orchestrator, and where no assignment is,
any worker takes what is ready.

Any number may run at once and none is needed for anything to go on. Each act is a commit of its own that expects what
was read; of two orchestrators that see the same, one is too late and changes nothing. Nothing that matters is
remembered between turns. Worlds that no worker holds and that have nothing to do keep their assignment, and cost
nothing; of those that are held by workers in good order, a turn looks at so many, and the next one continues from
there.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import printable
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready, worlds
from worldline.model import ids
from worldline.model.settings import OrchestratorSettings
from worldline.model.world_records import Status
from worldline.runtime import dead_workers, death_witness, hint_scan, placement, wakeup, worker_labels
from worldline.runtime import facts as telemetry
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, paging, transact

log = printable.logger("worldline.orchestrator")

PAGE = 500  # worlds looked at in one read; each takes a handful of requests
HINTS_MAX = 4_000  # in one turn; the most urgent first
LOOK_MAX = 2_000  # of the worlds that are held in good order, in one turn
COMMITS_AT_ONCE = 128


class WorldView(msgspec.Struct, frozen=True):
    """A world as one turn has found it."""

    active: placement.Active
    state: leases.LeaseState


class Orchestrator:
    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        universes: Universes,
        *,
        settings: OrchestratorSettings,
        is_dead: Callable[[ids.WorkerId], bool] = lambda _: False,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._universes = universes
        self._settings = settings
        self._others = death_witness.DeathWitness(env, is_dead)
        self._telemetry = telemetry
        self._freer = dead_workers.Freer(engine, env, universes.serves, self._others, telemetry)
        self._hints = hint_scan.HintScan(engine, env, universes)
        universes.on_hint.append(self._hints.touch)
        universes.on_gone.append(self._hints.forget)
        self._watch = wakeup.Wakeup(engine, env, [])
        self._after: ids.Address | None = None  # the last world that was looked at, if not all were
        self.turns = 0
        self.assigned = 0
        self.moved = 0

    def wake(self) -> None:
        self._watch.wake()

    async def close(self) -> None:
        await self._watch.close()

    async def tick(self) -> None:
        """One turn, and a rest."""
        self._watch.clear()
        await self.turn()
        await self._watch.rest(self._settings.turn_ms)

    async def turn(self) -> list[placement.Choice]:
        """Look, choose, write. Returns what was chosen, whether another orchestrator was quicker or not."""
        began_us = self._env.monotonic_us()
        lives, now_us = await self._others.lives(self._engine)
        alive = [life for life in lives if life.alive(now_us) and not self._others.is_dead(life.worker)]
        sites = [
            placement.Site(life.worker, life.sign.capacity, life.sign.labels)
            for life in alive
            if not life.sign.draining
            and any(worker_labels.serves(life.sign.labels, each) for each in self._universes.known)
        ]
        held = await self._held(lives)
        wanted = dict.fromkeys([*await self._hinted(), *self._urgent(held, sites), *self._next(held)])
        seen = await self._look(list(wanted))
        # Worlds that were not looked at are load all the same.
        besides = {worker: sum(at not in seen for at in found) for worker, found in held.items()}
        choices = placement.choose(
            [each.active for each in seen.values()], sites, moves_max=self._settings.moves_max, besides=besides
        )
        for start in range(0, len(choices), COMMITS_AT_ONCE):
            part = choices[start : start + COMMITS_AT_ONCE]
            await self._write([(choice, seen[choice.at]) for choice in part], alive)
        # Only now: a worker that is woken by a freed world finds where it is assigned.
        await self._freer.of_the_dead()
        self.turns += 1
        self._telemetry.tell(telemetry.Orchestrated(self._env.monotonic_us() - began_us))
        return choices

    # --- Looking -----------------------------------------------------------------------------------------------

    async def _held(self, lives: Sequence[leases.HeartbeatRecord]) -> dict[ids.WorkerId, list[ids.Address]]:
        held: dict[ids.WorkerId, list[ids.Address]] = {}
        for life in lives:
            pages = paging.RangePages(self._engine, leases.held_range(life.worker, count_max=PAGE))
            every = [at async for page in pages for at, _ in leases.decode_held(life.worker, page)]
            held[life.worker] = [at for at in every if self._universes.serves(at.universe)]
        return held

    @staticmethod
    def _urgent(held: dict[ids.WorkerId, list[ids.Address]], sites: Sequence[placement.Site]) -> list[ids.Address]:
        """Worlds of workers that are dead or being emptied."""
        standing = [site.worker for site in sites]
        return [at for worker, found in held.items() if worker not in standing for at in found]

    def _next(self, held: dict[ids.WorkerId, list[ids.Address]]) -> list[ids.Address]:
        """So many of all that are held, from where the last turn has stopped."""
        every = sorted(at for found in held.values() for at in found)
        start = 0 if self._after is None else bisect.bisect_right(every, self._after)
        # Round and round: a store with more worlds than this is looked at in parts.
        turned = [*every[start:], *every[:start]][:LOOK_MAX]
        self._after = turned[-1] if turned and len(every) > LOOK_MAX else None
        return turned

    async def _hinted(self) -> list[ids.Address]:
        """The worlds with a hint. Most are held: what their holders have deleted since is read again once."""
        await self._hints.read()
        await self._hints.check(self._hints.worlds)
        return self._hints.worlds[:HINTS_MAX]

    async def _look(self, addresses: Sequence[ids.Address]) -> dict[ids.Address, WorldView]:
        """Those of these worlds that run."""
        seen: dict[ids.Address, WorldView] = {}
        for start in range(0, len(addresses), PAGE):
            part = addresses[start : start + PAGE]
            read = await self._engine.read(
                *(worlds.get(at) for at in part),
                *(get for at in part for get in leases.reads(at)),
                *(inboxes.read_range(at, count_max=1) for at in part),
            )
            for index, at in enumerate(part):
                first = len(part) + 3 * index
                try:
                    world = worlds.find(at, read.value(index))
                    state = leases.decode(at, *(read.value(first + offset) for offset in range(3)))
                except errors.Lost:
                    continue  # it was deleted
                except errors.Corrupt as error:  # the others can be placed all the same
                    log.warning("world %s cannot be placed: %s", at.world.hex(), error)
                    continue
                if world is None or world.meta.status is not Status.ACTIVE:
                    continue
                quiet = not read.page(4 * len(part) + index).items
                seen[at] = WorldView(_active(world, state, quiet=quiet), state)
        return seen

    # --- Writing -----------------------------------------------------------------------------------------------

    async def _write(
        self, chosen: Sequence[tuple[placement.Choice, WorldView]], alive: Sequence[leases.HeartbeatRecord]
    ) -> None:
        """Assignments, each with a hint: for the holder that releases the world, or for the worker that takes it."""
        batches: list[kv.Batch] = []
        for choice, each in chosen:
            # One for each choice: a conflict over one world leaves the others as chosen.
            batch = kv.Batch()
            if choice.to is None:
                leases.unassign(batch, each.state)
            else:
                leases.assign(batch, each.state, choice.to, priority=ready.NORMAL, reason=choice.reason)
            if _moves(choice, each) or (each.active.holder is None and not each.active.quiet):
                ready.leave(batch, choice.at, priority=ready.LATER if each.active.quiet else ready.NORMAL)
            batches.append(batch)
        outcomes = await transact.commit(self._engine, self._env, *batches)
        for (choice, each), outcome in zip(chosen, outcomes, strict=True):
            if not isinstance(outcome, kv.Ok):
                continue  # the lease or the assignment has changed meanwhile
            self.assigned += 1
            self.moved += _moves(choice, each)
            why: telemetry.Move = _why_moved(choice, each, alive) if _moves(choice, each) else ""
            self._telemetry.tell(telemetry.WorldPlaced(choice.at, choice.reason, why))
            log.info("world %s: %s (%s)", choice.at.world.hex(), _where(choice), choice.reason)


def _moves(choice: placement.Choice, seen: WorldView) -> bool:
    """Whether another worker holds the world."""
    return seen.active.holder is not None and seen.active.holder != choice.to


def _why_moved(choice: placement.Choice, seen: WorldView, alive: Sequence[leases.HeartbeatRecord]) -> telemetry.Move:
    """Why the worker that holds a world is not to have it any more."""
    if choice.reason == "balance":
        return "balance"
    holder = next((life for life in alive if life.worker == seen.active.holder), None)
    if holder is None:
        return "failover"
    return "drain" if holder.sign.draining else "needs"


def _active(world: worlds.WorldRecord, state: leases.LeaseState, *, quiet: bool) -> placement.Active:
    holder = None if state.holder is None else ids.WorkerId(state.holder.worker)
    assigned = None if state.assignment is None else ids.WorkerId(state.assignment.worker)
    return placement.Active(
        world.at,
        worker_labels.needs_of(world.meta),
        holder,
        assigned,
        quiet,
        placement.code_of(world.meta.program_hash),
    )


def _where(choice: placement.Choice) -> str:
    return "for any worker" if choice.to is None else f"for worker {choice.to.hex()}"
