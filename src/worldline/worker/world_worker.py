"""The world worker: holds worlds under leases and runs the cycle over them.

A tick is short: renew the heartbeat, start a search for worlds that are ready, start a cycle over those held that have
something to do, or rest. Searches, cycles and upkeep run beside it, so that none of them keeps another from its turn.

Whatever goes wrong with one world concerns that world alone: it is refused here, with its reason, and its lease is
released (`worldline.worker.world_refusals`). Only what goes wrong with the worker itself ends the worker.

A world whose epoch moved is fenced: it is dropped at once and never written again under that epoch. The memory of a
world whose commit failed for any other reason is thrown away and restored; if its lease and head held, it stays here
meanwhile. A worker whose heartbeat could not be renewed by its margin, for whatever reason, fences itself: it drops all
of its worlds and asks for them again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import printable
from worldline.kernel import control_commands
from worldline.kernel.authoring.program import Program
from worldline.kernel.parts import StepParts
from worldline.layers import blobs as blob_layer
from worldline.layers import leases, ready
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.runtime import (
    child_process,
    dead_workers,
    death_witness,
    hint_scan,
    live_hub,
    placement,
    program_versions,
    wakeup,
    watchdog,
)
from worldline.runtime import facts as telemetry
from worldline.runtime.holder_job import HolderJob
from worldline.runtime.signed_receipts import ReceiptCheck
from worldline.runtime.universes import universe_changes
from worldline.runtime.universes.served_universes import Universes
from worldline.runtime.world_bounds import StepRules
from worldline.store import kv
from worldline.worker import (
    crash_trials,
    cycle_runner,
    cycle_steps,
    heartbeat,
    kernel_executor,
    kernel_thread,
    side_tasks,
    stalled_step,
    step_contents,
    step_log,
    step_losses,
    store_clock,
    world_refusals,
    world_register,
    world_search,
    world_taking,
    world_upkeep,
)
from worldline.worker import cycle as cycles
from worldline.worker.held_world import HeldWorld
from worldline.worker.step_run import StepsDone

log = printable.logger("worldline.worker")

T = TypeVar("T")

CYCLES_MAX = 4  # in flight at once, over different worlds: while one waits for its sync, others step
UPKEEP_MS = 50  # between turns, if there is anything to do
REST_MS = 500
LONG_AGO_US = -(2**62)


class WorldWorker:
    def __init__(
        self, engine: kv.Engine, env: envs.Env, universes: Universes, programs: Sequence[Program],
        *, parts: StepParts, blobs: blob_layer.Of, live: live_hub.Hub, claims: step_contents.LocalClaims,
        settings: WorkerSettings, worker: ids.WorkerId, rules: StepRules | None, receipts: ReceiptCheck | None,
        is_dead: Callable[[ids.WorkerId], bool] = lambda _: False,
        children: child_process.ChildProcesses, telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:  # fmt: skip
        self._engine, self._env, self._hub, self._settings, self._telemetry = engine, env, live, settings, telemetry
        self._id, self._draining = worker, False
        self._watch = wakeup.Wakeup(engine, env, [] if universes.one is None else [ready.prefix(universes.one)])
        self._tasks = side_tasks.SideTasks(self._watch.wake)
        self._kernel = kernel_thread.KernelThread(env, timeout_us=settings.step_timeout_ms * 1000)
        self._clock = store_clock.StoreClock(env)
        self._refusals = world_refusals.Refusals(env, telemetry)
        own = functools.partial(_labels, settings, universes, programs)
        labels = own()
        self.says: list[Callable[[], dict[str, str]]] = [own, self._refusals.labels]
        self._heartbeat = heartbeat.Heartbeat(
            engine, env, worker, settings, labels=self._said, clock=self._clock, telemetry=telemetry
        )
        others = death_witness.DeathWitness(env, is_dead)
        tried = self.trials = crash_trials.TrialJudge(
            engine, env, self._kernel, others, settings=settings, incarnation=self._heartbeat.incarnation,
            children=children, telemetry=telemetry,
        )  # fmt: skip
        self._cycle = cycles.Cycle(
            engine, env, blobs=blobs, claims=claims, settings=settings, kernel=self._kernel, clock=self._clock,
            stepper=cycle_steps.Stepper(env, self._kernel, tried, settings), acted=self._acted, stuck=self._stuck,
            rules=rules, receipts=receipts, telemetry=telemetry,
        )  # fmt: skip
        guard = program_versions.VersionGuard(engine, others, worker, labels)
        self._taker = world_taking.Taker(
            engine, env, programs, parts=parts, blobs=blobs, kernel=self._kernel, clock=self._clock, cycle=self._cycle,
            guard=guard, living=self._heartbeat.living, refusals=self._refusals, trials=tried, telemetry=telemetry,
        )  # fmt: skip
        hints = hint_scan.HintScan(engine, env, universes)
        worlds = self._holdings = world_register.Holdings(
            env, take=self._taker.take, refusals=self._refusals, kernel=self._kernel, live=live,
            hints=hints, wake=self._watch.wake, lost=tried.lost, telemetry=telemetry,
        )  # fmt: skip
        self._runner = cycle_runner.Runner(
            engine, env, self._cycle, holdings=self._holdings, refusals=self._refusals, tasks=self._tasks,
            wake=self._watch.wake,
        )  # fmt: skip
        self._keeper = world_upkeep.Keeper(
            engine, env, settings, self._kernel, dropped=self._holdings.drop, freed=self._holdings.freed,
            telemetry=telemetry,
        )  # fmt: skip
        self.on_taken = self._holdings.on_taken
        self.on_taken.append(self._keeper.taken)
        self._room = world_upkeep.HoldingRoom(env, self._keeper, self._holdings, settings.max_worlds_warm)
        self._searcher = world_search.Searcher(
            engine, env, universes, self, holdings=self._holdings, hints=hints, clock=self._clock, others=others,
            guard=guard, refusals=self._refusals, labels=labels, watch=self._watch, scan_us=settings.scan_ms * 1000,
            budget=tried.budget, telemetry=telemetry,
        )  # fmt: skip
        self._stalls = stalled_step.Stalls(
            engine, env, worker, self._kernel, self._cycle, ttl_us=settings.lease_ttl_ms * 1000,
            holdings=self._holdings, refusals=self._refusals, taker=self._taker, searcher=self._searcher,
        )  # fmt: skip
        universe_changes.UniverseChanges(
            universes, self.forget, hints=hints, worlds=worlds, watch=self._watch, changed=self._heartbeat.changed,
            start=self._tasks.start, engine=engine,
        )  # fmt: skip
        self.peek, self.hand_over, self.hand_to = worlds.peek, worlds.hand_over, worlds.hand_to
        self.on_act: list[Callable[[HeldWorld, StepsDone, step_contents.Built], None]] = []
        self.steps, self._tended_us = 0, LONG_AGO_US

    # --- For the rest of the process --------------------------------------------------------------------------

    @property
    def worker(self) -> ids.WorkerId:
        return self._heartbeat.worker

    @property
    def incarnation(self) -> ids.Incarnation:
        return self._heartbeat.incarnation

    @property
    def life(self) -> leases.HeartbeatRecord | None:
        """The heartbeat by which others see that this worker lives."""
        return self._heartbeat.life

    def attach(self, jobs: Sequence[HolderJob]) -> None:
        """Work side by side with jobs: they see the worlds that are held here, and the heartbeat says what they say."""
        self._keeper.attach(jobs)
        self.says += [job.labels for job in jobs]

    @property
    def tasks(self) -> side_tasks.SideTasks:
        """What runs beside its turns."""
        return self._tasks

    async def compute(self, at: ids.Address, do: Callable[..., T], *args: Any) -> T:
        """Run something about a world in the kernel's thread."""
        return await self._kernel.run(at, do, *args)

    def _said(self) -> dict[str, str]:
        """What the heartbeat says of this worker and of its worlds."""
        return {name: value for says in self.says for name, value in says().items()}

    def holds(self, at: ids.Address) -> bool:
        return self._holdings.peek(at) is not None

    @property
    def held(self) -> list[HeldWorld]:
        return self._holdings.all

    @property
    def has_searched(self) -> bool:
        """Whether it has looked through everything once, and so holds what a process before it has left."""
        return self._searcher.has_searched

    @property
    def cells(self) -> int:
        """How many cells are in memory."""
        return sum(len(held.machine.cells) for held in self._holdings.all)

    async def hold(self, at: ids.Address) -> HeldWorld | None:
        """Take a world, if it is free, and bring it back. None if another worker has it, or it is refused here."""
        return await self._holdings.hold(at)

    def poke(self, at: ids.Address) -> None:
        """The world's inbox may hold something."""
        held = self._holdings.peek(at)
        if held is not None:
            self._holdings.look(held)

    def wake(self) -> None:
        """Do not rest: there may be something to do, or to stop."""
        self._watch.wake()

    def under_way(self) -> dict[int, watchdog.UnderWay]:
        return self._cycle.under_way()

    def look_for_hangs(self) -> list[kernel_executor.AbandonedThread]:
        """Called in a thread that watches: give up a step that does not return. Returns the threads that were given up
        and have not ended.
        """
        return self._kernel.look(self._env.monotonic_us())

    def refusal(self, at: ids.Address) -> str | None:
        """Why this worker leaves a world alone, or did before it is tried again."""
        return self._refusals.why(at)

    @property
    def restored_ms(self) -> float:
        """How long the last take of a world took."""
        return self._taker.restored_ms

    @property
    def cycles(self) -> int:
        return self._runner.cycles

    def time_us(self) -> int:
        """The store's time, carried on by our own clock since it was last read."""
        return self._clock.now_us()

    # --- The loop's turn --------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """One turn: renew the heartbeat, start what is due beside it and a cycle if there is one, or rest."""
        try:
            await self._turn()
        except errors.Error:
            raise
        except MemoryError as error:
            raise errors.CannotStep("there is no memory left for a turn", lasting=False) from error
        except Exception as error:
            self._end(error)  # a bug: callers that wait for an answer must not wait for ever
            raise

    async def _turn(self) -> None:
        # First: what happens during this turn must wake the rest at its end.
        self._watch.clear()
        now_us = self._env.monotonic_us()
        self._tasks.check()
        # Before the look for hangs: a worker that hangs must keep the lease of the world that it hangs in.
        if self._heartbeat.is_due(now_us):
            await self._renew(now_us)
        if await self._stalls.stalled(now_us):
            await self._watch.rest(min(self._settings.heartbeat_ms, REST_MS))
            return
        self._start_search(now_us)
        self._start_upkeep(now_us)
        self._start_emptying()
        if self._tasks.cycles < CYCLES_MAX:
            chosen = self._holdings.choose(self._settings.max_worlds_per_cycle)
            if chosen:
                self._tasks.start_cycle(self._runner.run(chosen))
                # No rest: the cycle begins, and the next turn may start one more beside it.
                await asyncio.sleep(0)
                return
        await self._watch.rest(min(self._settings.heartbeat_ms, self._search_rest_ms(), REST_MS))

    def _search_rest_ms(self) -> float:
        """How long until a search is due. The end of one that is under way wakes us."""
        if self._tasks.is_running("search"):
            return self._settings.scan_ms
        return min(self._settings.scan_ms, self._searcher.rest_ms())

    async def _renew(self, now_us: int) -> None:
        """Renew the heartbeat; if it is too old, drop all worlds first."""
        expired_us = self._heartbeat.expired_us(now_us)
        if expired_us:
            held = self._holdings.all
            log.warning("the heartbeat is %d ms old: letting go of all worlds (%d)", expired_us // 1000, len(held))
            self._telemetry.tell(telemetry.SelfFenced(len(held), expired_us))
            self._heartbeat.expire()
            for each in held:
                self._holdings.drop(each, again=True)
        await self._heartbeat.renew(now_us)
        # Only now: with the new heartbeat, no other process counts this one as dead again.
        if self.trials.owes and not self._tasks.is_running("acquittal"):
            self._tasks.start("acquittal", self.trials.acquit_self())

    # --- After a commit ---------------------------------------------------------------------------------------

    def _acted(self, held: HeldWorld, done: StepsDone, built: step_contents.Built) -> None:
        self.steps += done.steps
        self._refusals.forgive(held.at)
        # one that is still being taken may make another step: see `world_taking.py`
        if self._holdings.peek(held.at) is held:
            self._keeper.watch(held)
        # A short cut for worlds held here; the hint in the store is for all others.
        for at in built.touched:
            self.poke(at)
        self._hub.publish(held.at, done.entries)
        if done.halted or done.buried or done.warnings:
            step_log.tell(held, done)
            self._hub.halted(held.at, [run for each in done.halted for run in each.runs])
        for act in self.on_act:
            act(held, done, built)

    def _stuck(self, held: HeldWorld) -> None:
        """Something in its inbox cannot be read now: look again in a while."""
        asyncio.get_running_loop().call_later(step_losses.STUCK_MS / 1000, self.poke, held.at)

    # --- Searching --------------------------------------------------------------------------------------------

    async def make_room(self, universe: ids.UniverseId) -> bool:
        """Whether one world more of a universe may be taken, now that others have gone."""
        return await self._room.make(universe)

    async def give_up(self, held: HeldWorld) -> None:
        """Let another worker have a world, whatever waits for it. It is told by a hint."""
        log.info("world %s is wanted elsewhere", held.at.world.hex())
        await self._keeper.let_go(held, whatever=True, hint=True)

    def _start_search(self, now_us: int) -> None:
        if self._tasks.is_running("search"):
            return
        room = self._room.look_again(now_us)
        everything = self._searcher.is_due(now_us, everything=True)
        if everything or room or self._searcher.is_due(now_us, everything=False):
            self._tasks.start("search", self._searcher.run(everything=everything))

    # --- Upkeep and the end -----------------------------------------------------------------------------------

    def _start_upkeep(self, now_us: int) -> None:
        due = self._crowded or self._keeper.next_us() <= now_us
        if due and not self._tasks.is_running("upkeep") and now_us - self._tended_us >= UPKEEP_MS * 1000:
            self._tended_us = now_us
            self._tasks.start("upkeep", self._upkeep())

    @property
    def _crowded(self) -> bool:
        return self._holdings.count > self._settings.max_worlds_warm

    async def _upkeep(self) -> None:
        await self._keeper.turn()
        if self._crowded:
            await self._keeper.make_room(self._holdings.all)

    def _start_emptying(self) -> None:
        """A worker that is being emptied gives its worlds back, a few at a time, and takes none."""
        draining = self.life is not None and self.life.sign.draining
        if draining and not self._draining:
            self._telemetry.tell(telemetry.HostChanged("draining", self._id, self._holdings.count))
        self._draining = draining
        if draining and self._holdings.count and not self._tasks.is_running("emptying"):
            leaving = [held.at for held in self._holdings.all[: world_upkeep.AT_ONCE]]
            self._tasks.start("emptying", self._empty(leaving))

    async def _empty(self, leaving: list[ids.Address]) -> None:
        life = await self._heartbeat.read()
        # Read again: the order to drain may have been withdrawn since the heartbeat was last written.
        if life is not None and not life.sign.draining:
            self._heartbeat.adopt(life)  # it may take worlds again, and may have taken some already
            return
        await dead_workers.each(leaving, self.forget, at_once=world_upkeep.AT_ONCE)

    async def misfits(self, held: HeldWorld) -> dict[str, str]:
        """The runs of a world that its program does not fit, and how: each is blocked when it next continues."""
        return await self._kernel.run(held.at, control_commands.misfits, held.machine, held.at)

    async def save_when_free(self, held: HeldWorld) -> None:
        await self._keeper.save(held)

    async def forget(self, at: ids.Address) -> None:
        """Stop running a world, whatever waits for it: it is paused, archived or deleted."""
        held = self._holdings.peek(at)
        if held is not None:
            await self._keeper.let_go(held, whatever=True)

    async def close(self, *, abandon: bool = False) -> None:
        """Finish: save and release every world, end the heartbeat. `abandon` leaves everything as it stands."""
        # First: nothing more may be taken while the rest is being released.
        self._holdings.end(errors.Closed("the host was closed"))
        self._keeper.stop()
        self.trials.close()
        await self._watch.close()
        going = True
        while going:  # a cycle that ends may begin to release a world
            running = [*self._tasks.all, *self._holdings.taking]
            going = not all(task.done() for task in running)
            await asyncio.gather(*running, return_exceptions=True)
        try:
            if not abandon:
                await self._leave()
        finally:
            for held in self._holdings.all:
                self._holdings.drop(held)
            # Last: dropped worlds close their machines in this thread.
            self._kernel.shutdown()

    async def _leave(self) -> None:
        held = self._holdings.all
        for start in range(0, len(held), world_upkeep.AT_ONCE):
            part = held[start : start + world_upkeep.AT_ONCE]
            await asyncio.gather(*(self._keeper.let_go(each, whatever=True) for each in part))
        await self._heartbeat.end()

    def _end(self, error: BaseException) -> None:
        """Nothing more is run here."""
        self._holdings.end(error)
        for held in self._holdings.all:
            self._holdings.drop(held, error=error)


def _labels(settings: WorkerSettings, universes: Universes, programs: Sequence[Program]) -> dict[str, str]:
    code = {program.name: program.hash for program in programs}
    return placement.labels_of(settings.labels, universes=universes.label(), programs=code)
