"""Running cycles over held worlds, and resolving what they lost."""

from __future__ import annotations

from collections.abc import Callable

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import printable
from worldline.layers import leases
from worldline.model.leases import CrashTrial
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv
from worldline.worker import step_losses
from worldline.worker import world_refusals as refusals
from worldline.worker import world_register as holdings
from worldline.worker.cycle import Cycle
from worldline.worker.held_world import HeldWorld
from worldline.worker.side_tasks import SideTasks
from worldline.worker.world_turn import TurnStage, WorldTurn

log = printable.logger("worldline.worker")


_LATE, _AGAIN = TurnStage.LATE, TurnStage.AGAIN


class Runner:
    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        cycle: Cycle,
        *,
        holdings: holdings.Holdings,
        refusals: refusals.Refusals,
        tasks: SideTasks,
        wake: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._env = env
        self._cycle = cycle
        self._holdings = holdings
        self._tasks = tasks
        self._wake = wake
        self._losses = step_losses.Losses(env, refusals, drop=holdings.drop, release=self._start_release)
        holdings.on_taken.append(self._losses.taken)
        self.cycles = 0

    async def run(self, chosen: list[HeldWorld]) -> None:
        """Read, step, commit, act: once for these worlds, all of them busy. Cycles over other worlds may overlap."""
        self.cycles += 1
        turns = [self._cycle.take(held) for held in chosen]
        try:
            for lost in await self._cycle.run(turns):
                self._losses.settle(lost)
        except BaseException as error:
            for each in turns:
                # A machine that may be ahead of its journal is worth nothing; the others only need their pages again.
                if each.moved:
                    self._holdings.drop(each.held, each.take_handed(), error, again=True)
                else:
                    each.held.look()
            raise
        finally:
            if any(each.stage is _LATE for each in turns):  # those without a turn are first in the next
                turns.sort(key=lambda each: each.stage is not _LATE)
            for each in turns:
                # It stays BUSY while it is rebuilt, so that no other cycle chooses it; `_free` follows after that.
                if each.stage is _AGAIN and not self._holdings.is_over:
                    self._tasks.start_cycle(self._start_over(each))
                else:
                    self._free(each)
            # A place for a cycle is free now, even if none of these worlds has more to do.
            self._wake()

    def _free(self, turn: WorldTurn) -> None:
        """End the world's turn. What was handed over and not processed is first in the next."""
        held = turn.held
        held.end_cycle()
        if turn.stage is _AGAIN:  # it was not brought back
            self._holdings.drop(held, again=self._env.monotonic_us() + step_losses.STUCK_MS * 1000)
        if held.lost:
            holdings.fail(turn.take_handed(), errors.Fenced("the world left this worker"))
            return
        if turn.handed:
            held.put_back(turn.take_handed())
        self._holdings.freed(held)

    async def _start_over(self, turn: WorldTurn) -> None:
        await self._cycle.start_over(turn)
        self._free(turn)

    def _start_release(self, lease: leases.Lease, trial: CrashTrial | None) -> None:
        self._tasks.start(f"release {lease.at.world.hex()}", self._release(lease, trial))

    async def _release(self, lease: leases.Lease, trial: CrashTrial | None) -> None:
        try:
            await world_lease.release(self._engine, self._env, lease, kept=trial)
        except errors.StoreError as error:  # the next search through everything finds that it is not in memory
            log.warning("world %s cannot be released now: %s", lease.at.world.hex(), error)
