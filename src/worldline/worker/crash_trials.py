"""Worlds on trial: how a worker runs a world whose holder before did not release it.

Such a world is stepped over one input at a time, alone in the kernel's thread. Before each step the input is written
down, and when the code has returned, before the commit, that is taken back (`worldline.layers.trial`). The trial is
over when the inbox has been read empty, or after very many steps that all ended in order: what processes die of further
on is met by a later holder. Until then nothing is handed over to the world, so that whatever a process dies of is in
the inbox for the next.

Deaths are no verdict. Over an input that as many processes as the crash budget says have died over, one last attempt is
made alone, in a child process (`worldline.runtime.child_process`). If the child survives, the input is innocent:
nothing counts any more, and the step is made as usual. If it dies too, the input is resolved without running user code.
Where a child cannot be had, or cannot tell, the step is made as usual, and after twice as many deaths it is resolved.
A child that needs cells or personal values which are not in memory is made again with them.
What a child lacks, such as memory, its parent may lack as well, whatever the input is: a child that lives proves
something only after the step did not end in order in this process, too. The same holds for a restore; it ends in a
quarantine (`worldline.runtime.quarantine`).

A process that dies in such a step may be restoring other worlds meanwhile, and the death counts as one of their
restores too. So a world with a restore death is restored while no such step is made, and no other such restore: its
next restore death is its own. `alone` is for one of them at a time.

A step that does not end in order though its process lives, because it was interrupted or because memory ran out, counts
the same, also when the world was not on trial (`counts_as`).

A process that lives, and has lost a world on trial, may have been counted as dead: it takes itself off (`lost`).

So does one in which the kernel's own code raises: no exception of user code leaves a step. That is counted apart. If it
raises again when it is resolved without user code, its input is not processed at all (`gives_up`): it becomes a dead
letter by a step that touches nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Literal, Protocol

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.base.bounded_map import BoundedMap
from worldline.codec import digest, printable, structs
from worldline.kernel import control_commands, poison
from worldline.keys import inbox as inbox_keys
from worldline.layers import leases, step_commit, worlds
from worldline.layers import trial as trials
from worldline.model import ids, step_records
from worldline.model.leases import CrashTrial, HolderActivity, Raised
from worldline.model.settings import WorkerSettings
from worldline.runtime import child_process, cold_cells, death_witness, quarantine
from worldline.runtime import facts as telemetry
from worldline.runtime import lease_calls as world_lease
from worldline.runtime import trial_neighbours as besides
from worldline.runtime.personal import store_vault
from worldline.store import kv, transact
from worldline.worker.held_world import HeldWorld

log = printable.logger("worldline.worker")

SAID_CHARACTERS_MAX = limits.REASON_CHARACTERS_MAX // 2  # of an exception, in a reason

How = Literal["died", "hung", "memory"]
HANGS_MAX = 2  # of children, one after the other: at the first fork, another thread may have held a lock
LACKED_MAX = 1_000  # worlds
SUPPLIED_MAX = 256  # reads for children, one by one: each costs a fork
REWRITES_MAX = 5  # of a trial that was changed by processes that take themselves off

Change = Callable[[kv.Batch, CrashTrial | None], CrashTrial]
Supply = Callable[[bytes], Awaitable[object]]  # reads what a child wants


class Kernel(Protocol):
    def alone(self) -> contextlib.AbstractAsyncContextManager[object]:
        """Nothing else runs in the kernel's thread meanwhile."""


def _do(do: Callable[[], object], known: Mapping[bytes, object]) -> object:
    """In a child process."""
    cold_cells.supply(known)
    return do()


class Attempts:
    """Last attempts of one worker, in child processes."""

    def __init__(self, kernel: Kernel, children: child_process.ChildProcesses) -> None:
        self._kernel = kernel
        self._children = children

    async def attempt(self, do: Callable[[], object], supply: Supply | None = None) -> child_process.LastAttemptOutcome:
        """Make one. A child that hangs is no proof before a second one does, and one that lacks what it cannot read is
        none before it was read for the next.
        """
        hangs, known = 0, dict[bytes, object]()
        while True:
            async with self._kernel.alone():  # a step of another world may hold a lock that this one needs
                child = self._children.begin(functools.partial(_do, do, known), counts_as)
            if child is None:
                return child_process.LastAttemptOutcome(False, "there are no child processes here", decided=False)
            ended = await child.ended()
            hangs += ended.hung
            if ended.wanted and supply is not None and len(known) < SUPPLIED_MAX:
                try:
                    known[ended.wanted] = await supply(ended.wanted)
                except errors.Error as error:  # damaged or out of reach: the step in earnest will say so
                    return msgspec.structs.replace(ended, how=str(error))
            elif not ended.hung or hangs == HANGS_MAX:
                return ended


class TrialJudge:
    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        kernel: Kernel,
        others: death_witness.DeathWitness,
        *,
        settings: WorkerSettings,
        children: child_process.ChildProcesses,
        incarnation: bytes,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._others = others
        self._children = children
        self._attempts = Attempts(kernel, children)
        self._incarnation = incarnation
        self._telemetry = telemetry
        # The input whose step did not end in order in this process. One that is forgotten costs one more try.
        self._lacked: BoundedMap[ids.Address, bytes] = BoundedMap(LACKED_MAX)
        self._lost: dict[ids.Address, None] = {}  # worlds on trial that this process has lost, and lives
        self.budget = quarantine.budget_of(settings)
        self.alone = asyncio.Lock()
        self.beside = besides.Beside()

    # --- Restores ---------------------------------------------------------------------------------------------

    async def judge_restore(
        self, world: worlds.WorldRecord, lease: leases.Lease, build: Callable[[], object]
    ) -> leases.Lease:
        """Before a world is restored that processes may have died restoring: have it restored in a child process, if
        there were as many as the budget says. `Quarantined` if that dies too.
        """
        found = lease.trial
        if found is None or found.restore_deaths < self.budget.restore_deaths_max:
            return lease
        attempted = await self._attempts.attempt(build)
        self._tell(lease.at, "restore", attempted)
        if attempted.survived:
            batch = kv.Batch()
            after = trials.innocent(batch, lease, found, HolderActivity.RESTORE)
            await self._commit(lease, batch)
            log.warning(
                "world %r: %s, and a child process did not: it is restored",
                world.meta.name,
                quarantine.reason(found),
                extra=telemetry.about(lease.at, name=world.meta.name),
            )
            return msgspec.structs.replace(lease, trial=after)
        if attempted.decided and not attempted.lived:
            raise await self._quarantine(world, lease, found, attempted.how)
        return lease

    async def _quarantine(
        self, world: worlds.WorldRecord, lease: leases.Lease, trial: CrashTrial, how: str
    ) -> quarantine.Quarantined:
        batch = kv.Batch()
        # In the commit that pauses it: a paused world that is still leased could not be tried by another worker.
        leases.release(batch, lease)
        now_us = (await self._engine.read()).time_us
        why = quarantine.begin(batch, world, trial, self.budget, now_us=now_us, verdict=how)
        await self._commit(lease, batch)
        self._telemetry.tell(telemetry.WorldQuarantined(lease.at, str(why)))
        return why

    async def restored(self, held: HeldWorld) -> None:
        """The world is back in memory, and on trial if its holder before did not release it."""
        if held.lease.trial is None:
            return
        probes.hit("trial.taken-over")
        held.begin_trial(held.lease.trial)
        await self._write(held, lambda batch, known: trials.restored(batch, held.lease, _present(known)))

    # --- Steps ------------------------------------------------------------------------------------------------

    async def judge(self, held: HeldWorld, step_input: step_records.Input, do: Callable[[], object]) -> str:
        """Why an input must not reach user code, if it must not. `do`: makes its step, in a child process."""
        raised = self._raised(held, step_input)
        if raised is not None:
            probes.hit("trial.settled-raised")
            why = raised_reason(raised, taken=raised.times == self.budget.deaths_max)
            log.error("world %r: %s", held.name, why, extra=telemetry.about(held.at, step=held.head.step + 1))
            return why
        if not self._is_due(held, step_input):
            return ""
        # Before the verdict: a holder whose heartbeat is back has not died, and is no longer counted.
        await self._acquit_living(held)
        known = held.trial
        if not self._is_due(held, step_input) or known is None:
            return ""
        attempted = await self._attempts.attempt(do, functools.partial(_read_for, held))
        self._tell(held.at, "step", attempted)
        about = telemetry.about(held.at, step=held.head.step + 1)
        if attempted.survived:
            probes.hit("trial.found-innocent")
            log.warning("world %r: %s, and a child process did not: it is made", held.name, counted(known), extra=about)
            await self._write(
                held, lambda batch, trial: trials.innocent(batch, held.lease, _present(trial), HolderActivity.STEP)
            )
            return ""
        # What the child lacked its parent may lack, too: no proof before the step has failed here as well.
        if attempted.lived and self._lacked.get(held.at) != known.input:
            probes.hit("trial.child-lacked-something")
            attempted = msgspec.structs.replace(attempted, decided=False)
        if not attempted.decided and known.step_deaths < 2 * self.budget.deaths_max:
            probes.hit("trial.child-undecided")
            log.warning("world %r: %s; a child cannot tell: %s", held.name, counted(known), attempted.how, extra=about)
            return ""
        probes.hit("trial.settled-unseen")
        why = reason(known, attempted)
        log.error("world %r: %s", held.name, why, extra=about)
        return why

    @contextlib.asynccontextmanager
    async def marked(self, held: HeldWorld, step_input: step_records.Input) -> AsyncIterator[None]:
        """Code runs in this block, in a step over this input. Written down before it, and taken back behind it."""
        name = digest_of(step_input)
        with self.beside.marked():
            beside = self.beside.has_effects
            if beside:
                probes.hit("trial.beside-an-effect")
                await self.beside.disturb()

            def mark(batch: kv.Batch, known: CrashTrial | None) -> CrashTrial:
                return trials.mark(batch, held.lease, known, step=held.head.step, input_digest=name, beside=beside)

            await self._write(held, mark)
            try:
                yield
            finally:
                await self._returned(held)

    async def _returned(self, held: HeldWorld) -> None:
        """Before the commit, which may not go through. If this does not either, the step is not committed; this process
        lives, and says so when it can (`lost`).
        """
        await self._write(held, lambda batch, known: trials.returned(batch, held.lease, _present(known)))

    def gives_up(self, held: HeldWorld, step_input: step_records.Input) -> bool:
        """Whether the step over this input raised even when it was resolved without user code, or would again: because
        no user code was in it.
        """
        raised = self._raised(held, step_input)
        if raised is None:
            return False
        nothing = step_input.item == control_commands.CONTINUED and not poison.can_go_on(held.machine)
        return nothing or raised.times > self.budget.deaths_max

    def _raised(self, held: HeldWorld, step_input: step_records.Input) -> Raised | None:
        """What the kernel raised over this input, if it did as often as the budget says."""
        found = trials.raised_over(held.trial, step=held.head.step, input_digest=digest_of(step_input))
        return found if found is not None and found.times >= self.budget.deaths_max else None

    async def hold_against(self, held: HeldWorld, step_input: step_records.Input, how: How) -> None:
        """A step over this input did not end in order: its next step is on trial."""
        probes.hit("trial.held-against")
        self._lacked[held.at] = digest_of(step_input)
        name, number = digest_of(step_input), held.head.step
        after = await self._write(
            held, lambda batch, known: trials.hold_against(batch, held.lease, known, step=number, input_digest=name)
        )
        self._telemetry.tell(telemetry.StepDied(held.at, how, after.step_deaths))

    async def raised(self, held: HeldWorld, step_input: step_records.Input, said: str) -> None:
        """The kernel raised in the step over this input: its next step is on trial. `said`: what, and where."""
        name, number = digest_of(step_input), held.head.step
        bounded = said[:SAID_CHARACTERS_MAX]
        after = await self._write(
            held,
            lambda batch, known: trials.count_raised(
                batch, held.lease, known, step=number, input_digest=name, said=bounded
            ),
        )
        assert after.raised is not None
        self._telemetry.tell(telemetry.StepDied(held.at, "raised", after.raised.times))

    def _is_due(self, held: HeldWorld, step_input: step_records.Input) -> bool:
        """Whether so many deaths are counted over this input that a last attempt is due."""
        known = held.trial
        return (
            known is not None
            and known.step_deaths >= self.budget.deaths_max
            and (known.step, known.input) == (held.head.step, digest_of(step_input))
        )

    # --- Last attempts ----------------------------------------------------------------------------------------

    def _tell(self, at: ids.Address, what: telemetry.Tried, attempted: child_process.LastAttemptOutcome) -> None:
        ended: telemetry.TriedEnd = "survived" if attempted.survived else "died" if attempted.decided else "undecided"
        self._telemetry.tell(telemetry.LastAttempt(at, what, ended))

    def close(self) -> None:
        self._children.close()

    # --- Holders that live ---------------------------------------------------------------------------------------

    def lost(self, at: ids.Address) -> None:
        """A world on trial was lost, and this process lives: it may have been counted as dead, or be now."""
        self._lost[at] = None

    @property
    def owes(self) -> bool:
        """Whether it is to be said of a world that this process lives."""
        return bool(self._lost)

    async def acquit_self(self) -> None:
        """Take this process off wherever it is counted as dead. Called when its heartbeat is renewed: from then on no
        other process counts it.
        """
        for at in list(self._lost):
            await transact.run(self._engine, self._env, lambda at=at: self._acquittal(at))  # type: ignore[misc]
            self._lost.pop(at, None)

    async def _acquittal(self, at: ids.Address) -> transact.NothingToWrite[None] | transact.Write[None]:
        read = await self._engine.read(worlds.get(at), trials.get(at))
        world, batch = worlds.find(at, read.value(0)), kv.Batch()
        if world is None or not trials.acquit(batch, at, read.value(1), self._incarnation):
            return transact.NothingToWrite(None)
        worlds.expect_there(batch, world)  # nothing is written of a deleted world, whose keys are being removed
        probes.hit("trial.acquitted-itself")
        return transact.Write(batch, lambda _: None)

    async def _acquit_living(self, held: HeldWorld) -> None:
        """Take holders off whose heartbeats are back."""
        lives = await world_lease.lives_of(self._engine, held.trial, self._others)
        now_us = (await self._engine.read()).time_us
        living = world_lease.alive_among(lives, now_us)

        def acquit(batch: kv.Batch, known: CrashTrial | None) -> CrashTrial:
            return trials.take_off(batch, held.lease, _present(known), living)

        if held.trial is not None and trials.acquitted_by(held.trial, living) != held.trial:
            probes.hit("trial.acquitted-by-heartbeat")
            await self._write(held, acquit)

    # --- Writing ----------------------------------------------------------------------------------------------

    async def _write(self, held: HeldWorld, change: Change) -> CrashTrial:
        """Change the trial of a world held here. A process that has taken itself off has changed it, too: then it is
        read again.
        """
        for _ in range(REWRITES_MAX):
            batch = kv.Batch()
            after = change(batch, held.trial)
            # Nothing has changed: a commit would only cost a sync.
            if after == held.trial:
                return after
            [outcome] = await transact.commit(self._engine, self._env, batch)
            if not isinstance(outcome, kv.Conflict):
                held.tried(after)
                return after
            # A moved lease never comes back; a changed trial can be read again.
            if leases.fenced(outcome, held.lease):
                raise step_commit.lost(outcome, held.lease)
            probes.hit("trial.changed-meanwhile")
            held.tried(trials.decode_trial((await self._engine.read(trials.get(held.at))).value(0)))
        raise errors.Conflicted(f"the trial of world {held.at.world.hex()} changed again and again")

    async def _commit(self, lease: leases.Lease, batch: kv.Batch) -> None:
        [outcome] = await transact.commit(self._engine, self._env, batch)
        if isinstance(outcome, kv.Conflict):
            raise step_commit.lost(outcome, lease)


async def _read_for(held: HeldWorld, packed: bytes) -> object:
    """Read what a child wants which makes a step of this world: what the kernel's thread would get."""
    wanted = structs.decode(cold_cells.ColdRequest, packed)
    match wanted.what:
        case "cells":
            assert held.cold is not None  # where its cells come from
            return await held.cold.lookup(wanted.keys)
        case "nodes":
            return await held.blobs.get_many(wanted.keys)
        case "personal":
            subject, value = wanted.keys
            return await store_vault.of(held.machine).read(subject, value)


def _present(known: CrashTrial | None) -> CrashTrial:
    """While a world is held, only its own step deletes its trial."""
    assert known is not None
    return known


def counts_as(error: BaseException) -> How | Literal[""]:
    """How a step that ended so, though its process lives, counts like a death over its input: one of `How`; else "".
    One that did not return, and was given up, has no exception of its own to tell.
    """
    lacking = isinstance(error, errors.CannotStep) and not error.lasting
    if isinstance(error, MemoryError) or (lacking and not isinstance(error, errors.CannotRead)):
        return "memory"
    return ""


def digest_of(step_input: step_records.Input) -> bytes:
    """What an input is recognised by, whichever way it comes."""
    return step_input.raw_digest if step_input.item is None else digest.sha256(inbox_keys.ITEM.pack(step_input.item))


def counted(known: CrashTrial) -> str:
    times = "once" if known.step_deaths == 1 else f"{known.step_deaths} times in a row"
    return f"{times} the process died, hung or ran out of memory in the step over its input{quarantine.blamed(known)}"


def reason(known: CrashTrial, attempted: child_process.LastAttemptOutcome) -> str:
    said = f"{counted(known)}, "
    if attempted.decided:
        return (
            said
            + f"and so did a last attempt in a child process: {attempted.how}; it was resolved without running any code"
        )
    return said + f"and a child process cannot tell: {attempted.how}; it was resolved without running any code"


def raised_reason(raised: Raised, *, taken: bool) -> str:
    """Not `taken`: it raised when it was resolved without user code, too."""
    return (
        f"the step over it raised {raised.times} times in a row, so it was "
        f"{'resolved without running any code' if taken else 'not processed'}; this is a defect of worldline, not of "
        f"the program: please report it, with {raised.said}"
    )
