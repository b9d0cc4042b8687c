"""The cycle: read, step, commit, act, once for some worlds that a worker holds.

One read for all of them (`inbox_read`) -> their steps in the kernel's thread, within budgets (`cycle_steps`) -> one
batch for each, one commit for all (`step_contents`) -> only then act: answer callers, hand out claimed work, publish
entries. A world whose batch did not hold, or whose reading, stepping, building or acting raised anything at all, is
reported back as lost; the others are not touched by it, and their steps are committed in the same cycle.

A ready hint is deleted by the step that takes the item it was left for. A worker that dies before that leaves the hint
for the next holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import printable
from worldline.kernel import halts
from worldline.kernel.authoring.program import Program
from worldline.layers import blobs as blob_layer
from worldline.layers import journal as journals
from worldline.layers import leases, ready, step_commit, universes, worlds
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.runtime import cold_cells, watchdog, world_restore
from worldline.runtime import facts as telemetry
from worldline.runtime.cold_cells import ColdCells
from worldline.runtime.personal import store_vault as vaults
from worldline.runtime.signed_receipts import ReceiptCheck
from worldline.runtime.world_bounds import StepRules
from worldline.store import kv, transact
from worldline.worker import cycle_steps, inbox_read, kernel_thread, step_contents
from worldline.worker.held_world import HeldWorld
from worldline.worker.step_run import StepsDone
from worldline.worker.store_clock import StoreClock
from worldline.worker.waiting_input import WaitingInput, was_handed
from worldline.worker.world_turn import LostTurn, TurnStage, Worked, WorldTurn

log = printable.logger("worldline.worker")

ABANDONED = TurnStage.ABANDONED

Acted = Callable[[HeldWorld, StepsDone, step_contents.Built], None]


class Cycle:
    """What all cycles of one worker share. Several may run at once, over different worlds."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        *,
        blobs: blob_layer.Of,
        claims: step_contents.LocalClaims,
        settings: WorkerSettings,
        kernel: kernel_thread.KernelThread,
        stepper: cycle_steps.Stepper,
        clock: StoreClock,
        acted: Acted,
        stuck: Callable[[HeldWorld], None],
        rules: StepRules | None,
        receipts: ReceiptCheck | None,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._engine = engine
        self._env = env
        self._blobs = blobs
        self._claims = claims
        self._settings = settings
        self._kernel = kernel
        self._stepper = stepper
        self._clock = clock
        self._acted = acted
        self._rules = rules
        self._telemetry = telemetry
        self._intake = inbox_read.Intake(engine, env, clock, settings=settings, stuck=stuck, receipts=receipts)
        self._number = 0
        self._under_way: dict[int, tuple[int, Sequence[WorldTurn]]] = {}  # since when, by a number of their own

    def take(self, held: HeldWorld) -> WorldTurn:
        """Make the turn of a world that takes part in the next cycle, with what was handed over to it."""
        # Before the inbox is read: a hint that is known here, and whose item that read does not find, is superfluous.
        handed = held.take_handed(self._settings.max_inbox_batch)
        hints = tuple(held.hints.values()) if held.hints else ()
        began_wall_us = self._env.wall_us() if self._telemetry.on else 0
        return WorldTurn(held, handed, hints, began_wall_us=began_wall_us, progress=self._kernel.progress)

    async def run(self, turns: Sequence[WorldTurn]) -> list[LostTurn]:
        """Run the whole cycle for these worlds, all of them busy. Returns those that are lost.

        If it raises, nothing is known of the worlds that have `moved`; the others are as they were.
        """
        self._number += 1
        number, began_us = self._number, self._env.monotonic_us()
        # The watchdog and `abandon` look here while the cycle is waiting for something.
        self._under_way[number] = began_us, turns
        try:
            return await self._run(turns, began_us)
        finally:
            del self._under_way[number]

    def under_way(self) -> dict[int, watchdog.UnderWay]:
        """The cycles that have not come back yet."""
        return {
            number: watchdog.UnderWay(began_us, [each.held.name or each.held.at.world.hex() for each in turns])
            for number, (began_us, turns) in self._under_way.items()
        }

    def abandon(self, at: ids.Address) -> list[WaitingInput] | None:
        """Discard the steps of a world that wait in the kernel's thread. Returns what was handed over for them, which
        is certainly not processed; None if no steps of it are there.
        """
        for _, turns in self._under_way.values():
            for each in turns:
                if each.held.at == at and each.stage is TurnStage.STEPPING:
                    return each.abandon()
        return None

    async def _run(self, turns: Sequence[WorldTurn], began_us: int) -> list[LostTurn]:
        time_us = await self._intake.read(turns)
        for each in turns:
            # What an earlier step began may be what processes die of: the trial lasts until that is stepped, too.
            if each.held.on_trial and each.empty and not each.held.unfinished:
                each.held.end_trial()
        working = [each for each in turns if each.has_work]
        if not working:
            return []
        for each in working:
            if each.held.machine.cells.fetch is not None:
                # Before the steps: a cell that is read later blocks the kernel's thread, and every world behind it.
                await _read_ahead(each)
        for each in working:
            each.begin_steps()
        worked: list[Worked] = []
        try:
            await self._stepper.step(working, time_us, worked)
        finally:
            # Also after an error. From here on `abandon` leaves them alone: their inputs may be part of a commit.
            for each in working:
                each.end_steps()
        # Their inputs have gone back as not processed, so their steps must not be committed.
        worked = [each for each in worked if each.turn.stage is not ABANDONED]
        await self._stepper.hold_against(worked)
        lost = await self._commit(worked, time_us)
        for each_lost in lost:  # what cannot be stored; what could not be made was counted before
            if isinstance(each_lost.why, BaseException) and each_lost.unfit:
                await self._stepper.hold(each_lost.worked, each_lost.why)
        if self._telemetry.on:
            count = sum(each.done.steps for each in worked)
            cold = [each.held.cold for each in working if each.held.machine.cells.fetch is not None]
            misses = sum(each.new_misses() for each in cold if each is not None)
            self._telemetry.tell(telemetry.Cycled(len(turns), count, self._env.monotonic_us() - began_us, misses))
            for each_lost in lost:
                self._telemetry.tell(_dropped(each_lost))
        return lost

    # --- Commit -----------------------------------------------------------------------------------------------

    async def _commit(self, worked: list[Worked], time_us: int) -> list[LostTurn]:
        lost: list[LostTurn] = []
        try:
            for each in worked:
                if each.turn.error is not None:
                    lost.append(LostTurn(each, each.turn.error))
                    continue
                try:
                    if each.done.large or each.done.outgoing or each.done.carried:
                        await self._build(each, time_us)
                    else:
                        self._built(each, time_us)
                except Exception as error:  # noqa: BLE001 - a batch that cannot be built is its world's concern alone
                    lost.append(LostTurn(each, error))
            good = [each for each in worked if each.built is not None]
            outcomes = await self._commit_all(good) if good else []
        except BaseException:
            # Claims were promised while batches were built: those of a batch that is lost are free again.
            for each in worked:
                self._give_back(each)
            raise
        now_us = self._env.monotonic_us()
        for each, outcome in zip(good, outcomes, strict=True):
            if isinstance(outcome, kv.Ok):
                try:
                    self._act(each, now_us)
                except Exception as error:  # noqa: BLE001 - the steps are durable; a restore makes good what is missing
                    self._give_back(each)
                    lost.append(LostTurn(each, error))
            else:
                self._give_back(each)
                lost.append(LostTurn(each, outcome))
        for each_lost in lost:
            # `repeated`: the lost answer may have been an Ok, and then these inputs are processed.
            if isinstance(each_lost.why, kv.Conflict) and each_lost.why.repeated and each_lost.worked.done.handed:
                await self._settle_overtaken(each_lost.worked)
        return lost

    async def _settle_overtaken(self, worked: Worked) -> None:
        """Ask the journal whether it has these steps: the commit's answer was lost, and the world has made others
        since. Inputs of steps that are not in it stay to be given back.
        """
        turn, done = worked.turn, worked.done
        uncertain = errors.StoreUncertain("the answer to the commit was lost, and what became of it cannot be read")
        try:
            if not await _journaled(self._engine, turn.held.blobs, turn.held.at, done):
                return
        except errors.Error as error:
            uncertain.__cause__ = error
            for handover, _ in done.handed:
                handover.fail(uncertain)
        for handover, applied in done.handed:
            handover.settle(applied)
        turn.settled(len(done.handed))

    async def _build(self, worked: Worked, time_us: int) -> None:
        """The batch of a world whose steps have large payloads, or send something."""
        held, done = worked.turn.held, worked.done
        routes = await step_contents.route(self._engine, self._env, held, done)
        generation = await step_contents.put_large(held, done)
        self._built(worked, time_us, routes, generation)

    def _built(
        self,
        worked: Worked,
        time_us: int,
        routes: Sequence[step_contents.Route] = (),
        generation: universes.GenerationRecord | None = None,
    ) -> None:
        turn, done = worked.turn, worked.done
        hints = turn.superfluous(done) if turn.hints else ()
        worked.with_batch(
            step_contents.build(
                turn.held, done, routes, self._claims, time_us=time_us, hints=hints, generation=generation
            )
        )

    async def _commit_all(self, worked: list[Worked]) -> list[transact.Certain | Exception]:
        """One outcome for each. A batch that breaks a rule of the store fails alone."""
        batches = [each.built.batch for each in worked if each.built is not None]
        try:
            return [*await transact.commit(self._engine, self._env, *batches)]
        except (errors.StoreError, errors.Lost):
            # These concern the store or all batches alike: no single batch is to blame.
            raise
        except Exception:
            # Only after a failure: the engine checks every batch anyway, and a second check is wasted on good ones.
            bad = [_refusal(batch) for batch in batches]
            if not any(bad):
                raise
        good = iter(
            await transact.commit(
                self._engine, self._env, *(batch for batch, why in zip(batches, bad, strict=True) if why is None)
            )
        )
        return [next(good) if why is None else why for why in bad]

    def _give_back(self, worked: Worked) -> None:
        if worked.built is not None:
            self._claims.give_back([claimed.work.token for claimed in worked.built.claimed])

    # --- Act --------------------------------------------------------------------------------------------------

    def _act(self, worked: Worked, now_us: int) -> None:
        """The steps are durable: now, and only now, the outside may learn of them."""
        turn, done, built = worked.turn, worked.done, worked.built
        assert built is not None
        held = turn.held
        turn.committed(len(done.handed))
        size = done.size if not done.large else done.size + sum(map(len, done.large))
        held.committed(
            done.after,
            built.head_raw,
            done.changed,
            entries=len(done.entries),
            size=size,
            unfinished=done.unfinished,
            now_us=now_us,
        )
        if built.unhinted:
            held.drop_hints(built.unhinted)
        if done.cut or built.answers_self or held.on_trial:  # a trial ends when the inbox is found empty
            held.look()
        # Inbox and queue are used up, and with them what did not fit: several may go together again.
        if held.careful and not held.unread and not turn.handed and not held.handed:
            held.step_many()
        for handover, applied in done.handed:
            handover.settle(applied)
        if self._telemetry.on:
            self._tell(turn, done, built)
        self._acted(held, done, built)

    def _tell(self, turn: WorldTurn, done: StepsDone, built: step_contents.Built) -> None:
        now_us = self._env.monotonic_us()
        waited = [now_us - handover.since_us for handover, _ in done.handed if handover.since_us]
        read = len(done.taken) + sum(1 for each in done.buried if not was_handed(each.unread.stamp))
        waited += [now_us - turn.held.unread_us] * read
        turn.held.waits_since(now_us)
        self._telemetry.tell(
            telemetry.StepsCommitted(
                turn.held.at,
                turn.held.name,
                done.entries,
                done.steps,
                read,
                len(done.handed),
                done.buried,
                list(done.wanted.values()),
                list(done.closed),
                done.cancelled,
                done.outgoing,
                len(built.claimed),
                waited,
                self._clock.now_us(),
                turn.began_wall_us,
                self._env.wall_us(),
            )
        )

    # --- Bringing a world back --------------------------------------------------------------------------------

    async def gather(self, at: ids.Address) -> world_restore.Material:
        """Everything that is needed of a world, read. Of a large one, the cells are left where they are."""
        cells_max = self._settings.cells_memory_max
        return await world_restore.gather(
            self._engine, self._blobs(at.universe), at, cells_max=cells_max, rules=self._rules
        )

    def building(self, material: world_restore.Material, program: Program) -> Callable[[], world_restore.RestoredWorld]:
        """What makes a machine of what was read, in the kernel's thread, or in a child process."""
        cells_of = functools.partial(ColdCells, asyncio.get_running_loop(), self._blobs(material.at.universe))
        return functools.partial(world_restore.build, material, program, False, cells_of)

    async def build(self, material: world_restore.Material, program: Program) -> world_restore.RestoredWorld:
        restored = await self._kernel.run(material.at, self.building(material, program))
        line = history_line.line_of(material.at, material.lineage)
        restored.machine.keep_in(await vaults.vault_of(self._engine, self._env, line))
        if self._rules is None:
            return restored
        assert material.ruled is not None, "a holder reads the rules with the world"
        bounds = self._rules.bounds(material.at, material.ruled, program=program.name)
        return restored if bounds is None else msgspec.structs.replace(restored, bounds=bounds)

    # --- After a conflict -------------------------------------------------------------------------------------

    async def start_over(self, turn: WorldTurn) -> bool:
        """Bring a world back that has lost a race for an input, and nothing else: it stays here, and keeps its lease.

        Its steps are made again, without that input, by its next cycle. False if it cannot be brought back now.
        """
        held = turn.held
        try:
            restored = await self.build(await self.gather(held.at), held.program)
        except Exception as error:  # noqa: BLE001 - taking the world again finds out what is wrong with it
            said = kernel_thread.describe(error)
            log.warning("world %s cannot be brought back now: %s", held.at.world.hex(), said)
            return False
        self._kernel.submit(held.at, held.start_over(restored).close)  # there: `finally` blocks of its runs end there
        turn.brought_back()
        return True

    # --- A cycle of its own -----------------------------------------------------------------------------------

    async def take_alone(
        self, held: HeldWorld, handover: WaitingInput, *, changing: worlds.WorldRecord | None = None
    ) -> None:
        """Take one input before everything else: that a fork begins, or that the program has changed, which is noted
        in the world's record (`changing`) in the same commit.
        """
        time_us = self._clock.now_us()
        done = await self._stepper.take_alone(held, handover, time_us)
        routes = await step_contents.route(self._engine, self._env, held, done)
        generation = await step_contents.put_large(held, done)
        built = step_contents.build(
            held, done, routes, step_contents.LocalClaims(), time_us=time_us, generation=generation
        )
        if changing is not None:
            worlds.change(built.batch, changing, program=(held.program.name, held.program.hash))
            # Adopting the code has tried blocked runs again. If none is left, no worker with other code is looked for.
            if not halts.has_blocked(held.machine):
                ready.unmark_blocked(built.batch, held.at)
        [outcome] = await transact.commit(self._engine, self._env, built.batch)
        if isinstance(outcome, kv.Conflict):
            raise step_commit.lost(outcome, held.lease)
        self._act(Worked(WorldTurn(held, [handover]), done, built), self._env.monotonic_us())


async def _read_ahead(turn: WorldTurn) -> None:
    """Read the cells that a world's inputs are for. One that cannot be read fails the step that needs it."""
    held, warm = turn.held, turn.held.machine.cells
    inputs = [(unread.item, data) for unread, data in turn.unread] + [(each.item, each.data) for each in turn.handed]
    cells = [cell for item, data in inputs for cell in cold_cells.reached(held.program, item, data)]
    if held.cold is not None:
        # The step that asks for a damaged cell fails by itself, and names it.
        with contextlib.suppress(errors.Corrupt):
            await held.cold.ahead(cell for cell in cells if cell not in warm)


async def _journaled(engine: kv.Engine, blobs: blob_layer.Blobs, at: ids.Address, done: StepsDone) -> bool:
    """Whether these very steps are in the journal. Raises if that part of it cannot be read any more."""
    head = journals.decode_head((await engine.read(journals.get_head(at))).value(0))
    if head.height < done.after.height:
        return False
    above, up_to = done.before.height, done.after.height
    return await world_restore.read_entries(engine, blobs, at, above=above, up_to=up_to) == done.entries


def _dropped(lost: LostTurn) -> telemetry.WorldDropped:
    held, why = lost.worked.turn.held, lost.why
    if lost.worked.committed and isinstance(why, BaseException):
        return telemetry.WorldDropped(held.at, "act", kernel_thread.describe(why))
    if isinstance(why, errors.CannotStep | MemoryError):
        return telemetry.WorldDropped(held.at, "cannot_step", kernel_thread.describe(why))
    if isinstance(why, errors.StoreError):
        return telemetry.WorldDropped(held.at, "store", str(why))
    if isinstance(why, BaseException):
        unfit = lost.worked.turn.error is None
        return telemetry.WorldDropped(held.at, "unfit" if unfit else "step", kernel_thread.describe(why))
    fenced = leases.fenced(why, held.lease)
    return telemetry.WorldDropped(held.at, "fenced" if fenced else "conflict", str(step_commit.lost(why, held.lease)))


def _refusal(batch: kv.Batch) -> Exception | None:
    try:
        kv.check(batch)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one batch is its world's concern alone
        return error
    return None
