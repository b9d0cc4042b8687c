"""What happens to a world whose steps were lost: its memory is dropped, and it is brought back, or refused here.

::

    another was first with one input  -> brought back where it is, under the same lease, without that input
    the lease or the head has moved   -> brought back at once, if no other worker has it
    the store was out of reach        -> brought back in a while
    this process lacks what is needed -> brought back in a while; after a few times, or if it lasts, refused
    a cell that it needs is damaged   -> refused; its inputs stay
    a step does not return            -> brought back at once; it counts as a death over its input
    several steps cannot be made      -> brought back, and stepped one by one
    a single step cannot be made      -> its input goes back to the producer; if it is in the inbox, it is counted like
                                         a death over it, and the world is refused for a while
    committed, and not all was done   -> brought back at once

Inputs that were handed over and not processed get `Fenced`: their producers put them into the inbox. Only the
one that is known to be at fault comes back as `StepFailed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from worldline.base import env as envs
from worldline.base import errors
from worldline.codec import printable
from worldline.layers import leases, step_commit
from worldline.model import ids
from worldline.model.leases import CrashTrial
from worldline.runtime import facts
from worldline.worker import kernel_thread, world_turn
from worldline.worker import world_refusals as refusals
from worldline.worker.held_world import HeldWorld
from worldline.worker.kernel_executor import KernelOverdue
from worldline.worker.waiting_input import WaitingInput
from worldline.worker.world_turn import LostTurn, Worked, WorldTurn

log = printable.logger("worldline.worker")

STUCK_MS = 1_000  # before something is tried again that failed for one world alone
CANNOT_STEP_TRIES_MAX = 3  # with its lease kept, of a world that lacks something in this process for the moment


class Drop(Protocol):
    def __call__(self, held: HeldWorld, handed: Sequence[WaitingInput] = (), *, again: bool | int = False) -> None: ...


class Losses:
    """`drop` throws a world's memory away; `release` begins to release its lease, and keeps its trial."""

    def __init__(
        self,
        env: envs.Env,
        refusals: refusals.Refusals,
        *,
        drop: Drop,
        release: Callable[[leases.Lease, CrashTrial | None], None],
    ) -> None:
        self._env = env
        self._refusals = refusals
        self._drop = drop
        self._release = release
        self._careful: dict[ids.Address, None] = {}  # to be stepped one by one when they are back

    def taken(self, held: HeldWorld) -> None:
        """A world is back."""
        # `None` is what is stored, so what is missing needs another value.
        if self._careful.pop(held.at, "no") is None:
            held.step_one_by_one()

    def settle(self, lost: LostTurn) -> None:
        """Its steps were not committed, or not all was done that follows. Whose fault it was decides what happens
        to the inputs that were handed over.
        """
        given, why = lost.worked.turn, lost.why
        committed = lost.worked.committed
        given.over()
        # First: what is durable must not go back to its producers as if it were not.
        if committed and isinstance(why, BaseException):
            self._unfinished(given, why)
            return
        if isinstance(why, errors.CannotStep | MemoryError):
            self._cannot_step(given, why)
            return
        if isinstance(why, KernelOverdue):
            self._hung(given, why)
            return
        if isinstance(why, errors.StoreError | errors.Fenced | errors.Conflicted):
            log.warning("world %s: %s; trying again", given.held.at.world.hex(), why)
            self._drop(given.held, given.take_handed(), again=self._env.monotonic_us() + STUCK_MS * 1000)
            return
        if isinstance(why, BaseException):
            self._unfit(lost.worked, why)
            return
        error = step_commit.lost(why, given.held.lease)
        log.info("%s", error, extra=facts.about(given.held.at))
        kept = world_turn.unsettled(given, why)
        if lost.is_ours and not given.held.lost:
            given.again(kept)
            return
        # `kept` has all of these that are still open.
        given.take_handed()
        # Also after a fence: a lease that was revoked from a paused world may be free by now.
        self._drop(given.held, kept, again=True)

    def _unfit(self, worked: Worked, error: BaseException) -> None:
        """Its steps cannot be made, or not be stored. Several at once are tried one by one; an input that is alone at
        fault goes back to its producer; anything else was counted against its input, and the world is left alone for
        a while: after as many times as the crash budget says, the input is resolved without its code, or dropped.
        """
        given, done, is_producers = worked.turn, worked.done, worked.is_producers
        held, handed = given.held, given.take_handed()
        stepping = given.error is not None
        if not (held.careful or held.on_trial) and (stepping or done.steps > 1):
            log.warning(
                "world %s goes on one step at a time:\n%s",
                held.at.world.hex(),
                kernel_thread.trace(error),
                extra=facts.about(held.at),
            )
            # By address, because the object is dropped: the one that is taken next has to know.
            self._careful[held.at] = None
            self._drop(held, handed, again=True)
            return
        if is_producers:  # a single step: it was over the first of them
            handed[0].fail(_not_taken(error))
            self._drop(held, handed[1:], again=True)
            return
        said = kernel_thread.describe(error)
        why = f"a step of it cannot be made: {said}" if stepping else f"a step of it cannot be stored: {said}"
        self._refuse(held, handed, "step" if stepping else "unfit", why, cause=error)

    def _cannot_step(self, turn: WorldTurn, error: errors.CannotStep | MemoryError) -> None:
        """The process lacks what a step needs. For the moment: the world is tried again here a few times. For good, or
        for too long: another worker may have it.
        """
        held, handed = turn.held, turn.take_handed()
        why = f"this process cannot make its step: {kernel_thread.describe(error)}"
        if isinstance(error, errors.DamagedCell):
            self._refuse(held, handed, "corrupt", str(error))
        elif isinstance(error, errors.CannotStep) and error.lasting:
            self._refuse(held, handed, "cannot_step", why, lasting=True)
        elif self._refusals.tries(held.at) >= CANNOT_STEP_TRIES_MAX:
            self._refuse(held, handed, "cannot_step", why)
        else:
            self._refusals.refuse(held.at, "cannot_step", why, keep=True, name=held.name)
            self._drop(held, handed)

    def _hung(self, turn: WorldTurn, error: KernelOverdue) -> None:
        """A step did not return and was given up. It was counted, so the world is on trial when it is back."""
        held = turn.held
        log.error("world %r: a step was given up: %s", held.name, error, extra=facts.about(held.at))
        self._drop(held, turn.take_handed(), again=True)

    def _unfinished(self, turn: WorldTurn, error: BaseException) -> None:
        """Its steps are durable, and something that follows from them in this process was not done: begin again."""
        log.error(
            "world %s is restored:\n%s",
            turn.held.at.world.hex(),
            kernel_thread.trace(error),
            extra=facts.about(turn.held.at),
        )
        self._drop(turn.held, turn.take_handed(), again=True)

    def _refuse(
        self,
        held: HeldWorld,
        handed: Sequence[WaitingInput],
        kind: facts.RefusalKind,
        why: str,
        *,
        lasting: bool = False,
        cause: BaseException | None = None,
    ) -> None:
        """Leave a world alone for a while, and let another worker try. What was handed over goes to its inbox."""
        # Before the drop and the release: from then on a search could take it again at once.
        self._refusals.refuse(held.at, kind, why, lasting=lasting, cause=cause, name=held.name)
        self._careful[held.at] = None
        self._drop(held, handed)
        self._release(held.lease, held.trial)


def _not_taken(error: BaseException) -> errors.Error:
    """What to tell the producer of an input whose step ended with this."""
    if isinstance(error, errors.BadInput):
        return error
    why = printable.shown(kernel_thread.describe(error))
    made = errors.StepFailed(f"the input was not processed: the step over it ended with {why}")
    made.__cause__ = error
    return made
