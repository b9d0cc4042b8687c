"""One world's part of a cycle.

::

    READ -> STEPPING -> STEPPED -> COMMITTED
              |  |         |           |
              |  |         +-> AGAIN   |        its steps met a conflict; they are made again, from what is stored
              |  |         |           |
              |  |         +-----------+-> OVER  its steps are lost, or not all was done after them; that is resolved
              |  +-> LATE                       there was no time left for it
              +----> ABANDONED                  whatever its steps come to, they are not committed

While it is STEPPING, STEPPED or AGAIN, its machine may have moved on from what is committed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec

from worldline.base import errors
from worldline.keys import inbox as inbox_keys
from worldline.keys import journal as journal_keys
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready
from worldline.layers import work as works
from worldline.model import inbox, step_records
from worldline.store import kv
from worldline.worker.held_world import HeldWorld
from worldline.worker.step_contents import Built
from worldline.worker.step_run import StepsDone
from worldline.worker.waiting_input import Deferred, Repeated, Superseded, WaitingInput, was_handed

HINTS_MAX = 1_000  # that one commit deletes


class TurnStage(enum.Enum):
    READ = "read"
    STEPPING = "stepping"
    STEPPED = "stepped"
    COMMITTED = "committed"
    LATE = "late"
    ABANDONED = "abandoned"
    AGAIN = "again"
    OVER = "over"


_READ, _STEPPING, _STEPPED, _COMMITTED = (
    TurnStage.READ,
    TurnStage.STEPPING,
    TurnStage.STEPPED,
    TurnStage.COMMITTED,
)  # found quicker


def _no_thread() -> None:
    """A step that is made without a thread that could be given up."""


class WorldTurn(msgspec.Struct, eq=False):
    held: HeldWorld
    handed: list[WaitingInput]  # not resolved yet
    hints: Sequence[ready.Hint] = ()  # those that were seen before the inbox was read
    unread: list[tuple[inboxes.UnreadItem, bytes]] = []
    stage: TurnStage = _READ
    empty: bool = False  # the inbox was read, and there was nothing in it
    whole: bool = False  # the inbox was read to its end
    error: BaseException | None = None  # what reading or stepping it has raised; nothing of it is committed
    began_wall_us: int = 0  # if that is measured
    given: step_records.Input | None = None  # what its last step is over, as far as it has got
    progress: Callable[[], None] = _no_thread  # says that the kernel's thread has got on

    @property
    def has_work(self) -> bool:
        return bool(self.handed or self.unread or self.held.unfinished or self.error is not None)

    @property
    def moved(self) -> bool:
        """Whether its machine may have moved on from what is committed."""
        return self.stage in (TurnStage.STEPPING, TurnStage.STEPPED, TurnStage.AGAIN)

    # --- Read -------------------------------------------------------------------------------------------------

    def found_empty(self) -> None:
        self.empty = self.whole = True

    def known_empty(self) -> None:
        """Nothing was appended to the store since its inbox was last found empty."""
        self.whole = True

    def found(self, items: list[tuple[inboxes.UnreadItem, bytes]], *, whole: bool) -> None:
        """If this is not all there is, what was handed over goes through the inbox, behind it."""
        self.unread, self.whole = items, whole
        if not whole:
            self.handed = _defer(self.handed)

    def failed(self, error: BaseException) -> None:
        self.error = error

    def repeated(self, handover: WaitingInput, seen_raw: bytes) -> None:
        """A client id was used before: its producer gets the first answer again."""
        self.handed.remove(handover)
        repeat(handover, seen_raw)

    # --- Step -------------------------------------------------------------------------------------------------

    def begin_steps(self) -> None:
        assert self.stage is _READ
        self.stage = _STEPPING

    def begin_step(self, step_input: step_records.Input) -> None:
        """Called in the kernel's thread: a step over this begins."""
        self.progress()
        self.given = step_input

    def end_steps(self) -> None:
        if self.stage is _STEPPING:
            self.stage = _STEPPED

    def too_late(self) -> None:
        """There is no time left in this cycle, and its machine has not moved."""
        self.stage = TurnStage.LATE
        # The page that was read is forgotten with this turn, and has to be read again.
        if self.unread:
            self.held.look()

    def abandon(self) -> list[WaitingInput]:
        """Give the steps up. Returns what was handed over, which is certainly not processed."""
        assert self.stage is TurnStage.STEPPING
        self.stage = TurnStage.ABANDONED
        return self.take_handed()

    # --- Commit -----------------------------------------------------------------------------------------------

    def committed(self, taken: int) -> None:
        """Note that its steps are durable, and with them the first so many inputs that were handed over."""
        self.stage = _COMMITTED
        self.handed = self.handed[taken:]

    def settled(self, taken: int) -> None:
        """Remove the first so many inputs that were handed over: each is resolved."""
        self.handed = self.handed[taken:]

    def again(self, kept: list[WaitingInput]) -> None:
        """Its steps are made again. `kept`: the inputs of those that were handed over that are still to be
        processed.
        """
        self.handed, self.stage = kept, TurnStage.AGAIN

    def brought_back(self) -> None:
        assert self.stage is TurnStage.AGAIN
        self.stage = TurnStage.OVER

    def over(self) -> None:
        self.stage = TurnStage.OVER

    def take_handed(self) -> list[WaitingInput]:
        """Take out what was handed over and is not resolved: the caller resolves it."""
        handed, self.handed = self.handed, []
        return handed

    def superfluous(self, done: StepsDone) -> Sequence[ready.Hint]:
        """The hints whose items these steps have taken, or steps before them. A hint has a greater stamp than its
        items.
        """
        if self.whole and not done.cut:
            return self.hints[:HINTS_MAX]
        # Not all was read or processed: only hints of processed items may go.
        stamps = [each.stamp for each in done.taken] + [each.unread.stamp for each in done.buried]
        last = max((stamp for stamp in stamps if not was_handed(stamp)), default=b"")
        return [hint for hint in self.hints if hint.stamp <= last][:HINTS_MAX]


def _defer(handed: list[WaitingInput]) -> list[WaitingInput]:
    """Send inputs through the inbox, behind what is unread there. Fired timers stay: they are no producer's next."""
    for handover in handed:
        if not isinstance(handover.item, inbox.TimerFired):
            handover.fail(Deferred("the world's inbox comes first"))
    return [each for each in handed if isinstance(each.item, inbox.TimerFired)]


class Worked(msgspec.Struct, eq=False):
    """A turn that made steps, and their batch."""

    turn: WorldTurn
    done: StepsDone
    built: Built | None = None

    def with_batch(self, built: Built) -> None:
        self.built = built

    @property
    def committed(self) -> bool:
        return self.turn.stage is TurnStage.COMMITTED

    @property
    def is_producers(self) -> bool:
        """Whether a single step was over an input that its producer has handed over, and that is in no store yet."""
        turn = self.turn
        over_handed = not turn.unread and bool(turn.handed) if turn.error is not None else bool(self.done.handed)
        return over_handed and turn.handed[0].claim is None


class LostTurn(msgspec.Struct, frozen=True):
    """A turn whose world's memory is worthless: its steps were not committed, or not all was done after it."""

    worked: Worked
    why: kv.Conflict | BaseException

    @property
    def unfit(self) -> bool:
        """Whether its steps were made, and could not be stored as they are."""
        return isinstance(self.why, BaseException) and self.worked.turn.error is None and not self.worked.committed

    @property
    def is_ours(self) -> bool:
        """Whether the world is still ours after a conflict, and where it was: something else that its steps rest on has
        changed, such as work that another process has answered.
        """
        held, why = self.worked.turn.held, self.why
        if not isinstance(why, kv.Conflict) or leases.fenced(why, held.lease):
            return False
        return not why.at(journal_keys.head_key(held.at))[0]


def unsettled(turn: WorldTurn, why: kv.Conflict) -> list[WaitingInput]:
    """What was handed over for steps that met this conflict, but for those whose own end it tells."""
    kept: list[WaitingInput] = []
    for handover in turn.handed:
        if handover.claim is not None and works.lost(why, handover.claim):
            handover.fail(Superseded("another process has this work now"))
            continue
        if handover.client_id is not None:
            failed, found = why.at(inbox_keys.seen_key(turn.held.at, handover.client_id))
            if failed and found is not None:
                repeat(handover, found)
                continue
        kept.append(handover)
    return kept


def repeat(handover: WaitingInput, seen_raw: bytes) -> None:
    """Tell a producer that its client id was used before."""
    assert handover.client_id is not None
    try:
        stamp = inboxes.seen_stamp(seen_raw, handover.item, client_id=handover.client_id)
    except (errors.IdReused, errors.Corrupt) as error:
        handover.fail(error)
    else:
        handover.fail(Repeated(stamp))
