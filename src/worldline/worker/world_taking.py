"""Taking a world: acquire its lease, restore it, adopt a change of its program if there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence

from worldline.base import env as envs
from worldline.base import errors, probes
from worldline.codec import printable
from worldline.kernel import halts
from worldline.kernel.authoring.program import Program
from worldline.kernel.parts import StepParts
from worldline.layers import blobs as blob_layer
from worldline.layers import leases, ready, step_commit, trial, worlds
from worldline.model import ids
from worldline.model.leases import CrashTrial
from worldline.model.world_records import Status
from worldline.runtime import facts as telemetry
from worldline.runtime import lease_calls as world_lease
from worldline.runtime import program_versions, quarantine, worker_labels
from worldline.store import kv, transact
from worldline.worker import crash_trials as trials
from worldline.worker import first_steps, kernel_thread
from worldline.worker import world_refusals as refusals
from worldline.worker.cycle import Cycle
from worldline.worker.held_world import HeldWorld
from worldline.worker.store_clock import StoreClock

log = printable.logger("worldline.worker")


class Taker:
    """`living` is the worker's heartbeat, under which it takes leases; `refusals` the worlds that it cannot run."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        programs: Sequence[Program],
        *,
        parts: StepParts,
        blobs: blob_layer.Of,
        kernel: kernel_thread.KernelThread,
        clock: StoreClock,
        cycle: Cycle,
        guard: program_versions.VersionGuard,
        living: Callable[[], Awaitable[leases.HeartbeatRecord]],
        refusals: refusals.Refusals,
        trials: trials.TrialJudge,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._entropy = envs.Entropy(env)
        self._programs = {program.name: program for program in programs}
        self._parts = parts
        self._blobs = blobs
        self._kernel = kernel
        self._clock = clock
        self._cycle = cycle
        self._guard = guard
        self._living = living
        self._refusals = refusals
        self._trials = trials
        self._telemetry = telemetry
        self.waiting: dict[ids.Address, None] = {}  # worlds that are being brought back in the kernel's thread
        self.restored_ms = 0.0

    async def take(self, at: ids.Address) -> HeldWorld:
        """Acquire the lease, restore the world, adopt a change of its program if there is one."""
        read = await self._engine.read(worlds.get(at), trial.get(at))
        self._clock.set(read.time_us)
        world = worlds.decode(at, read.value(0))
        program = self._programs.get(world.meta.program)
        if program is None:
            raise errors.NotFound(f"no program {world.meta.program!r} is held here")
        unmet = worker_labels.unmet(worker_labels.needs_of(world.meta), self._guard.labels)
        if unmet is not None:
            raise errors.Exists(f"world {world.meta.name!r} is for workers that are labelled {unmet}")
        if world.meta.status is not Status.ACTIVE:
            raise errors.Closed(f"world {world.meta.name!r} is {world.meta.status.name.lower()}")
        async with contextlib.AsyncExitStack() as alone:
            if trial.is_suspect(trial.decode_trial(read.value(1))):
                probes.hit("trial.restored-alone")
                await alone.enter_async_context(self._trials.alone)
            return await self._acquire(world, program, alone)

    async def _acquire(
        self, world: worlds.WorldRecord, program: Program, alone: contextlib.AsyncExitStack
    ) -> HeldWorld:
        at, life = world.at, await self._living()
        started_us = self._env.monotonic_us()
        lease: leases.Lease | None = None
        held: HeldWorld | None = None
        # From before the lease: acquiring it may write a mark, and effects under suspicion must know of that.
        with self._trials.beside.marked():
            try:
                lease = await world_lease.acquire(
                    self._engine,
                    self._env,
                    at,
                    life,
                    self._guard.others,
                    why_not=self._guard.why_not,
                    budget=self._trials.budget,
                    beside=lambda: self._trials.beside.has_effects,
                    telemetry=self._telemetry,
                )
                if lease.trial is not None:
                    await self._trials.beside.disturb()
                held = await self._bring_back(world, program, lease)
                await alone.aclose()  # the restore has succeeded; what follows are steps, in which code may run
                await self._first_steps(world, held)
            except quarantine.Quarantined as error:
                log.warning("%s", error, extra=telemetry.about(at, name=world.meta.name))
                raise
            except BaseException as error:
                # Nothing was acquired, so there is nothing to release.
                if lease is None:
                    raise
                await self._give_back(world, lease, error, kept=lease.trial if held is None else held.trial)
                raise
        taken_us = self._env.monotonic_us() - started_us
        self.restored_ms = taken_us / 1000
        failover = lease.trial is not None
        self._telemetry.tell(telemetry.WorldTaken(at, held.name, lease.epoch, held.head.height, taken_us, failover))
        log.info(
            "world %r at epoch %d, height %d, in %.1f ms",
            held.name,
            lease.epoch,
            held.head.height,
            self.restored_ms,
            extra=telemetry.about(at, name=held.name),
        )
        return held

    async def _give_back(
        self, world: worlds.WorldRecord, lease: leases.Lease, error: BaseException, *, kept: CrashTrial | None
    ) -> None:
        """Release a world that was not brought back. Raises what to tell its callers, if not this error itself. `kept`:
        what is counted against it, which the next holder must see.
        """
        if lease.trial is not None:
            self._trials.lost(lease.at)  # whatever has kept it from being restored, this process lives
        try:
            refused = self._refuse(world, error)
        finally:
            # In any case: a lease that stays with this live worker would keep all other workers away.
            await world_lease.release(self._engine, self._env, lease, kept=kept)
        if refused is not None:
            raise refused from error

    async def _bring_back(self, world: worlds.WorldRecord, program: Program, lease: leases.Lease) -> HeldWorld:
        await world_lease.take_back_claims(self._engine, self._env, world.at, self._guard.others.is_dead)
        material = await self._cycle.gather(world.at)
        lease = await self._trials.judge_restore(world, lease, self._cycle.building(material, program))
        with self._in_thread(world.at):
            restored = await self._cycle.build(material, program)
            held = HeldWorld(
                lease,
                self._blobs(lease.at.universe),
                restored,
                name=world.meta.name,
                now_us=self._env.monotonic_us(),
                entropy=self._entropy,
                parts=self._parts,
            )
            await self._trials.restored(held)
        return held

    async def _first_steps(self, world: worlds.WorldRecord, held: HeldWorld) -> None:
        with self._in_thread(world.at):
            if held.is_unborn:
                await first_steps.begin_fork(self._cycle, held)
            before = held.machine.origin.program_hash
            if before != held.program.hash:
                await first_steps.adopt(self._cycle, held, world, before)
            elif halts.has_blocked(held.machine):
                await self._mark_blocked(held)
            await first_steps.declare_domains(self._cycle, held)

    async def _mark_blocked(self, held: HeldWorld) -> None:
        """Leave the hint by which a worker with other code finds a world that came with blocked runs: a fork, a copy,
        or one of a release that left none.
        """
        # Mostly it is there, and one read is cheaper than a commit.
        if (await self._engine.read(ready.get_blocked(held.at))).value(0) is None:
            batch = kv.Batch()
            leases.fence(batch, held.lease)
            ready.mark_unmarked(batch, held.at)
            [outcome] = await transact.commit(self._engine, self._env, batch)
            if isinstance(outcome, kv.Conflict):
                raise step_commit.lost(outcome, held.lease)

    @contextlib.contextmanager
    def _in_thread(self, at: ids.Address) -> Iterator[None]:
        self.waiting[at] = None
        try:
            yield
        finally:
            del self.waiting[at]

    def _refuse(self, world: worlds.WorldRecord, error: BaseException) -> errors.Error | None:
        """Leave a world alone that cannot be brought back here. Returns what to tell its callers; None
        for what is no fault of the world: the error itself tells them.
        """
        said, name = kernel_thread.describe(error), world.meta.name
        match error:
            case errors.Corrupt():  # bytes may be whole again
                self._refusals.refuse(world.at, "corrupt", str(error), may_look=True, name=name)
                return None
            case errors.StoreError():
                return None
            case errors.Lost():  # to the worker that has it now
                return errors.Exists(f"world {name!r} was lost while it was restored: {error}")
            case errors.CannotStep() | MemoryError():
                lasting = isinstance(error, errors.CannotStep) and error.lasting
                self._refusals.refuse(world.at, "cannot_step", said, lasting=lasting, name=name)
            case Exception():
                self._refusals.refuse(world.at, "restore", f"it cannot be brought back: {said}", cause=error, name=name)
            case _:
                return None
        return errors.Exists(f"world {name!r} is not for this worker now: {said}")
