"""The worlds of one worker: those it holds, those it is taking, and those it takes again after a loss.

A held world with something to do waits in line for its next cycle. A world that is dropped is not released: its lease
stays with the worker until it is taken again, or released (`worldline.runtime.lease_calls`), or the worker is fenced.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from worldline.base import env as envs
from worldline.base import errors
from worldline.model import ids
from worldline.runtime import facts as telemetry
from worldline.runtime import hint_scan, live_hub
from worldline.runtime.universes import fair_turns
from worldline.worker import kernel_thread
from worldline.worker import world_refusals as refusals
from worldline.worker.held_world import HeldWorld
from worldline.worker.waiting_input import WaitingInput


class Holdings:
    """`take` acquires and restores a world; `wake` ends the worker's rest; `lost` is told of worlds on trial."""

    def __init__(
        self,
        env: envs.Env,
        *,
        take: Callable[[ids.Address], Coroutine[Any, Any, HeldWorld]],
        refusals: refusals.Refusals,
        kernel: kernel_thread.KernelThread,
        live: live_hub.Hub,
        hints: hint_scan.HintScan,
        wake: Callable[[], None],
        lost: Callable[[ids.Address], None] = lambda _: None,
        telemetry: telemetry.Telemetry = telemetry.NOTHING,
    ) -> None:
        self._env = env
        self._take = take
        self._refusals = refusals
        self._kernel = kernel
        self._hub = live
        self._hints = hints
        self._wake = wake
        self._lost = lost
        self._telemetry = telemetry
        self._held: dict[ids.Address, HeldWorld] = {}
        self._taking: dict[ids.Address, asyncio.Task[HeldWorld]] = {}
        self._again: dict[ids.Address, int] = {}  # lost, but not to another worker: when they are taken again
        self._ready: dict[ids.UniverseId, dict[ids.Address, None]] = {}  # in line for a cycle, a line a universe
        self._stalled = False
        self._over: BaseException | None = None  # why nothing is run here any more
        self.on_taken: list[Callable[[HeldWorld], None]] = []

    # --- Looking ----------------------------------------------------------------------------------------------

    def peek(self, at: ids.Address) -> HeldWorld | None:
        return self._held.get(at)

    @property
    def all(self) -> list[HeldWorld]:
        return list(self._held.values())

    def addresses(self) -> list[ids.Address]:
        return list(self._held)

    @property
    def count(self) -> int:
        return len(self._held)

    @property
    def taking(self) -> list[asyncio.Task[HeldWorld]]:
        return list(self._taking.values())

    def keeps(self, at: ids.Address) -> bool:
        """Whether it is here, or on its way."""
        return at in self._held or at in self._taking or at in self._again or self._refusals.keeps(at)

    # --- Waiting for a cycle ----------------------------------------------------------------------------------

    def hand_over(self, at: ids.Address, handover: WaitingInput) -> bool:
        """Give an input to a world held here, without the inbox. False if it is not held, or is on trial: use the inbox
        then.
        """
        held = self._held.get(at)
        return held is not None and self.hand_to(held, handover)

    def hand_to(self, held: HeldWorld, handover: WaitingInput) -> bool:
        """The same for a world that was just looked up."""
        if held.lost or self._stalled or held.on_trial:
            return False
        if self._telemetry.on:
            handover.began(self._env.monotonic_us())
        held.handed.append(handover)
        if held.has_work:
            self._stand_in_line(held.at)
        return True

    def look(self, held: HeldWorld) -> None:
        """Read this world's inbox soon."""
        held.look(self._env.monotonic_us() if self._telemetry.on else 0)
        self.freed(held)

    def freed(self, held: HeldWorld) -> None:
        """The world may have something to do: if so, it stands in line."""
        if held.has_work:
            self._stand_in_line(held.at)

    def _stand_in_line(self, at: ids.Address) -> None:
        # A dict keeps the order of arrival, and has each world once however often it is asked for.
        line = self._ready.get(at.universe)
        if line is None:
            self._ready[at.universe] = {at: None}
        else:
            line[at] = None
        self._wake()

    def choose(self, most: int) -> list[HeldWorld]:
        """Worlds with something to do, those that have waited longest first, and of many universes one of each in turn;
        they are busy now. What is still busy comes again when it is done. A world on trial is chosen alone.
        """
        chosen: list[HeldWorld] = []
        for at in self._next(most):
            held = self._held.get(at)
            if held is None or not held.has_work:
                self._leave_line(at)
            elif not held.on_trial or not chosen:
                self._leave_line(at)
                held.begin_cycle()
                chosen.append(held)
                if held.on_trial:
                    # Alone in its cycle: nothing else may run in the thread when its step kills the process.
                    break
        return chosen

    def _next(self, most: int) -> list[ids.Address]:
        """Those that stand first, so many at most."""
        if len(self._ready) <= 1:
            return [at for line in self._ready.values() for at in itertools.islice(line, most)]
        first = next(iter(self._ready))
        self._ready[first] = self._ready.pop(first)  # the next choice begins with another universe
        lines = [at for line in self._ready.values() for at in itertools.islice(line, most)]
        return fair_turns.in_turns(lines)[:most]

    def _leave_line(self, at: ids.Address) -> None:
        line = self._ready[at.universe]
        del line[at]
        if not line:
            del self._ready[at.universe]

    # --- Taking -----------------------------------------------------------------------------------------------

    async def hold(self, at: ids.Address) -> HeldWorld | None:
        """Take a world, if it is free, and bring it back. None if another worker has it, or it is refused here: it can
        be reached by its inbox.
        """
        held = self._held.get(at)
        if held is not None:
            return held
        if self._over is not None:
            raise errors.Closed("no worlds are run here any more") from self._over
        if self._stalled:
            return None
        pending = self._taking.get(at)
        if pending is None and self._refusals.withholds(at):
            return None
        if pending is None:
            pending = self._taking[at] = asyncio.get_running_loop().create_task(self._take(at))
            # In a callback, not behind the `await`: the caller may be cancelled, and the world is taken all the same.
            pending.add_done_callback(lambda task: self._taken(at, task))
        try:
            # Several callers may wait for one take, and none of them may end it for the others.
            return await asyncio.shield(pending)
        except errors.Exists:
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if pending.cancelled() and task is not None and not task.cancelling():
                return None  # it was given up, for a step of another world that does not return
            raise

    def _taken(self, at: ids.Address, task: asyncio.Task[HeldWorld]) -> None:
        """A world was taken, or not; the task that asked for it may be gone."""
        self._taking.pop(at, None)
        if task.cancelled() or task.exception() is not None:
            return
        held = task.result()
        held.add_hints(self._hints.take(at))  # its inbox has not been read yet
        self._held[at] = held
        # Entries that were written elsewhere were not published here: waiting callers have to read the journal.
        self._hub.moved(at)
        for told in self.on_taken:
            told(held)
        self.freed(held)

    def cancel_taking(self, at: ids.Address) -> None:
        self._taking[at].cancel()

    # --- Losing -----------------------------------------------------------------------------------------------

    def drop(
        self,
        held: HeldWorld,
        handed: Sequence[WaitingInput] = (),
        error: BaseException | None = None,
        *,
        again: bool | int = False,
    ) -> None:
        """Throw a world's memory away. What was handed over and is not resolved goes back to its producers, with
        `Fenced` if it has certainly not been processed. `again`: the world is brought back, now or at a time, if no
        other worker has it then.
        """
        waiting = held.lose()
        if held.trial is not None:
            self._lost(held.at)
        # The world may have been taken again meanwhile, as another object that must stay.
        if self._held.get(held.at) is held:
            del self._held[held.at]
            # They are not deleted: without them, only the slow search would look at the world again.
            self._hints.put_back(held.hints.values())
            self._hub.moved(held.at)
        # There, because a step may be under way; its `finally`s run there.
        self._kernel.submit(held.at, held.machine.close)
        fail(handed, _certain(held, error))
        fail(waiting, errors.Fenced(f"world {held.at.world.hex()} left this worker"))
        if again:
            self.take_again(held.at, self._env.monotonic_us() if again is True else again)
            self._wake()

    def discard(self, at: ids.Address) -> None:
        """Throw a world's memory away, if it is still here."""
        held = self._held.get(at)
        if held is not None:
            self.drop(held)

    def take_again(self, at: ids.Address, due_us: int) -> None:
        """Take this world at a time, if no other worker has it then."""
        self._again[at] = due_us

    def waits(self, at: ids.Address, now_us: int) -> bool:
        """Whether it is taken again, at a time that has not come yet."""
        return self._again.get(at, now_us) > now_us

    def again_due(self, now_us: int) -> bool:
        return any(due_us <= now_us for due_us in self._again.values())

    def pop_again(self, now_us: int) -> list[ids.Address]:
        """The worlds that are to be taken again now."""
        again = [at for at, due_us in self._again.items() if due_us <= now_us]
        for at in again:
            del self._again[at]
        return again

    def stall(self, *, stalled: bool) -> None:
        """While a step does not return, nothing is taken and nothing is handed over."""
        self._stalled = stalled
        if stalled:
            # Else `keeps` would be true of them, and their leases would stay with a worker that hangs.
            self._again.clear()

    def end(self, error: BaseException) -> None:
        """Nothing more is taken here."""
        self._over = self._over or error

    @property
    def is_over(self) -> bool:
        return self._over is not None


def _certain(held: HeldWorld, error: BaseException | None) -> Exception:
    """Say what producers get whose input was under way. `Fenced` only if it was certainly not processed."""
    # Of these errors it is known that nothing was written.
    if error is None or isinstance(error, errors.StoreUnavailable | errors.StoreFull):
        return errors.Fenced(f"world {held.at.world.hex()} left this worker")
    if isinstance(error, errors.Error):
        return error
    return errors.StoreUncertain(f"the worker was stopped while this was under way ({error!r})")


def fail(handed: Sequence[WaitingInput], error: Exception) -> None:
    for handover in handed:
        handover.fail(error)
