"""Having the steps of a cycle made in the kernel's thread, whatever the result of each."""

from __future__ import annotations

from collections.abc import Sequence

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import printable
from worldline.kernel import user_errors
from worldline.model.settings import WorkerSettings
from worldline.model.step_records import Input
from worldline.runtime import facts
from worldline.worker import crash_trials as trials
from worldline.worker import kernel_thread, step_run
from worldline.worker.held_world import HeldWorld
from worldline.worker.kernel_executor import KernelOverdue
from worldline.worker.step_run import CycleBudget, StepsDone
from worldline.worker.waiting_input import WaitingInput
from worldline.worker.world_turn import TurnStage, Worked, WorldTurn

log = printable.logger("worldline.worker")

ABANDONED = TurnStage.ABANDONED
TEXT_CHARACTERS_MAX = 300  # of an exception that is counted; the log has all of it


class Stepper:
    def __init__(
        self, env: envs.Env, kernel: kernel_thread.KernelThread, trials: trials.TrialJudge, settings: WorkerSettings
    ) -> None:
        self._env = env
        self._kernel = kernel
        self._trials = trials
        self._settings = settings

    async def step(self, working: Sequence[WorldTurn], time_us: int, worked: list[Worked]) -> None:
        """Have the steps made; `worked` gets what came of them. If one does not return, its world has failed; worlds
        before it have their steps, and those behind it none.
        """
        done: list[Worked] = []
        try:
            if working[0].held.on_trial:
                await self._step_alone(working[0], time_us, done)
            else:
                await self._kernel.run(None, self._step_all, working, time_us, done)
        except KernelOverdue as error:
            done = list(done)  # the thread that was given up has the other one
            # Turns are stepped in order: the first that is STEPPING without a result is the one that hung.
            ended = [each.turn for each in done]
            hung, *behind = [each for each in working if each.stage is TurnStage.STEPPING and each not in ended]
            hung.failed(error)
            done.append(Worked(hung, StepsDone(hung.held.head, hung.held.head)))
            for each in behind:
                each.too_late()
        worked += done

    async def _step_alone(self, turn: WorldTurn, time_us: int, worked: list[Worked]) -> None:
        """One step of a world on trial: nothing else runs in the thread from the time when its input is written down
        until it has returned, and no world is restored that processes may have died restoring.
        """
        held = turn.held
        if turn.error is not None:
            worked.append(Worked(turn, StepsDone(held.head, held.head)))
            return
        given = step_run.next_input(held, turn.unread)

        def tried() -> StepsDone:
            return step_run.run_one(held, turn.unread, poison="", given_up=False, time_us=time_us, begin=lambda _: None)

        try:
            poison = await self._trials.judge(held, given, tried)
            given_up = bool(poison) and self._trials.gives_up(held, given)
            async with self._trials.alone, self._kernel.alone() as run:
                if poison:
                    await run(None, self._step_one, turn, poison, given_up, time_us, worked)
                else:
                    async with self._trials.marked(held, given):
                        await run(None, self._step_one, turn, "", False, time_us, worked)
        except errors.Lost as error:
            turn.failed(error)
            # Writing the mark before or after the step has failed: a result without it must not be committed.
            worked[:] = [Worked(turn, StepsDone(held.head, held.head))]

    async def take_alone(self, held: HeldWorld, handover: WaitingInput, time_us: int) -> StepsDone:
        """The step of a world that begins as a fork, or whose program has changed, over the input that says so. On
        trial it is alone, and written down, as any other.
        """
        # One step that must be made: no deadline of a cycle may leave it out.
        budget = CycleBudget(2**62, 1, limits.STEP_EFFECTS_MAX)

        def run(poison: str) -> StepsDone:
            return step_run.run(
                held, [], [handover], budget, time_us=time_us, env=self._env, begin=lambda _: None, poison=poison
            )

        given = step_run.handed_input(handover)
        try:
            if not held.on_trial:
                return await self._kernel.run(held.at, run, "")
            poison = await self._trials.judge(held, given, lambda: run(""))
            async with self._trials.alone, self._kernel.alone() as alone:
                done: StepsDone
                if poison:
                    done = await alone(held.at, run, poison)
                else:
                    async with self._trials.marked(held, given):
                        done = await alone(held.at, run, "")
                return done
        except Exception as error:
            await self._count(held, given, _how(error), error)
            raise

    async def hold_against(self, worked: Sequence[Worked]) -> None:
        """A step that hung, that memory ran out in, or that raised, counts like one that its process died in."""
        for each in worked:
            if each.turn.error is not None:
                await self.hold(each, each.turn.error)

    async def hold(self, worked: Worked, error: BaseException) -> None:
        """Count what a step ended with against its input, if that is at fault. Several at once are tried one by one
        first; an input that no store has goes back to its producer.
        """
        held, how = worked.turn.held, _how(error)
        if how == "raised" and (worked.is_producers or not (held.careful or held.on_trial)):
            return
        await self._count(held, worked.turn.given, how, error)

    async def _count(
        self, held: HeldWorld, step_input: Input | None, how: facts.Death | None, error: BaseException
    ) -> None:
        if step_input is None or how is None:
            return
        try:
            if how == "raised":
                said = f"{kernel_thread.describe(error)[:TEXT_CHARACTERS_MAX]} ({user_errors.own_place_of(error)})"
                await self._trials.raised(held, step_input, said)
            else:
                await self._trials.hold_against(held, step_input, how)
        except errors.Error as failed:  # it counts the next time
            log.warning("world %s: a failed step is not counted: %s", held.at.world.hex(), failed)

    # --- Step, in the kernel's thread -------------------------------------------------------------------------

    def _step_all(self, turns: Sequence[WorldTurn], time_us: int, worked: list[Worked]) -> None:
        """A world whose turn does not come in time is left out. Whatever comes out of the steps of one, the others make
        theirs.
        """
        settings, monotonic_us = self._settings, self._env.monotonic_us
        deadline_us = monotonic_us() + settings.max_cycle_wall_ms * 1000
        steps_max, effects_max = settings.max_tick_steps_per_cycle, settings.max_effects_per_cycle
        many, one = CycleBudget(deadline_us, steps_max, effects_max), CycleBudget(deadline_us, 1, effects_max)
        # From here on the time of the job counts, and the job can be given up.
        self._kernel.begin()
        for each in turns:
            held = each.held
            if each.stage is ABANDONED:
                continue
            if each.error is not None:
                worked.append(Worked(each, StepsDone(held.head, held.head)))
                continue
            now_us = monotonic_us()
            # The first always gets its turn, however late it is: else a slow process would make no step at all.
            if worked and now_us > deadline_us:
                each.too_late()
            else:
                self._kernel.now(held.at, now_us)
                self._step(each, worked, one if held.careful else many, time_us)

    def _step_one(self, turn: WorldTurn, poison: str, given_up: bool, time_us: int, worked: list[Worked]) -> None:
        self._kernel.begin()
        self._kernel.now(turn.held.at, self._env.monotonic_us())
        self._step(turn, worked, None, time_us, poison, given_up=given_up)

    def _cool(self, held: HeldWorld) -> None:
        """All that its cells are is durable: those that were used longest ago may go."""
        if held.machine.cells.fetch is not None:
            held.machine.cells.cool(max(0, self._settings.cells_memory_max - held.unsaved.bytes))

    def _step(
        self,
        turn: WorldTurn,
        worked: list[Worked],
        budget: CycleBudget | None,
        time_us: int,
        poison: str = "",
        *,
        given_up: bool = False,
    ) -> None:
        """Whatever comes of a world's steps is that world's alone; nothing comes of steps that were given up. Without a
        budget: one step of a world on trial.
        """
        held, unread, begin = turn.held, turn.unread, turn.begin_step
        try:
            if held.machine.cells.fetch is not None:  # as of few worlds
                self._cool(held)
            if budget is None:
                done = step_run.run_one(held, unread, poison=poison, given_up=given_up, time_us=time_us, begin=begin)
            else:
                done = step_run.run(held, unread, turn.handed, budget, time_us=time_us, env=self._env, begin=begin)
        except BaseException as raised:  # noqa: BLE001 - user code may raise anything, and no signal is meant here
            # Through `keep`, under the executor's lock: a thread that was given up must not add to this cycle.
            self._kernel.keep(_keep_failed, turn, worked, raised)
        else:
            self._kernel.keep(worked.append, Worked(turn, done))


def _keep_failed(turn: WorldTurn, worked: list[Worked], error: BaseException) -> None:
    turn.failed(error)
    worked.append(Worked(turn, StepsDone(turn.held.head, turn.held.head)))


def _how(error: BaseException) -> facts.Death | None:
    """How a step ended that its input is to blame for; None if the store, or what this process lacks, is."""
    if isinstance(error, KernelOverdue):
        return "hung"
    if counts := trials.counts_as(error):
        return counts
    outside = errors.CannotStep | errors.StoreError | errors.Fenced | errors.Conflicted
    return None if isinstance(error, outside) else "raised"
