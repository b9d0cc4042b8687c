"""One world that a worker holds: its state, and everything that changes it.

::

            take                      begin_cycle
    (free) ------> IDLE  ----------------------------->  BUSY
                   ^  |  <-----------------------------   |
       end_saving  |  |            end_cycle              |
                   |  | begin_saving                      |  lose
                   |  v                                   |
                  SAVING ------------------------------>  LOST
                               lose (also from IDLE)

BUSY: a cycle reads, steps and commits it; its machine may be ahead of its journal. SAVING: its state is being written;
no step may begin. IDLE: machine and journal agree, and the machine may be read until the next await. LOST: this memory
is worthless; another object, or another worker, continues.

What waits for the world is kept here too: inputs that were handed over, whether its inbox may hold something and where
to read on in it, and the ready hints that were seen.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.kernel.machine import Machine
from worldline.kernel.parts import StepParts
from worldline.layers import blobs as blob_layer
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready
from worldline.layers import step_changes as stored_changes
from worldline.model import journal
from worldline.model import leases as lease_model
from worldline.model import snapshots as snapshot_model
from worldline.model.change import Change
from worldline.model.trie import nodes
from worldline.runtime import world_restore
from worldline.runtime.cold_cells import ColdCells
from worldline.store import kv
from worldline.worker.waiting_input import WaitingInput

NEVER_US = 2**62
TRIAL_STEPS_MAX = 1_000  # of one holder: a world that gets inputs all the time must not stay on trial for ever


class HeldState(enum.Enum):
    IDLE = "idle"
    BUSY = "busy"
    SAVING = "saving"
    LOST = "lost"


_IDLE, _BUSY, _SAVING, _LOST = (
    HeldState.IDLE,
    HeldState.BUSY,
    HeldState.SAVING,
    HeldState.LOST,
)  # found quicker, at every input


class Adopted(msgspec.Struct, frozen=True):
    """What there was when a world adopted other code: its live runs, and the number of the youngest."""

    runs: int
    youngest: int


class HeldWorld:
    # A cycle touches many worlds, each for a moment: with slots, there is less memory to fetch for each.
    __slots__ = (
        "__weakref__",
        "_found_items",
        "_idle",
        "_looks",
        "_looks_read",
        "_trial_steps",
        "_unread_range",
        "_warned",
        "active_us",
        "adopted",
        "at",
        "baseline",
        "baseline_raw",
        "blobs",
        "bounds",
        "busy",
        "careful",
        "deltas",
        "empty_version",
        "entries_since",
        "entropy",
        "handed",
        "head",
        "head_raw",
        "hints",
        "lease",
        "lineage",
        "lost",
        "machine",
        "mark",
        "name",
        "on_trial",
        "parts",
        "program",
        "save_again_us",
        "saved_us",
        "state",
        "tend_us",
        "trial",
        "unfinished",
        "unread",
        "unread_us",
        "unsaved",
        "waiting",
    )

    def __init__(
        self,
        lease: leases.Lease,
        blobs: blob_layer.Blobs,
        restored: world_restore.RestoredWorld,
        *,
        name: str,
        now_us: int,
        entropy: envs.Entropy,
        parts: StepParts,
    ) -> None:
        self.at = lease.at
        self.entropy = entropy  # of the process that holds it
        self.name = name  # for logs and metrics
        self.parts = parts  # what its steps are given, for forks and flow domains
        self.program = restored.machine.program
        self.lease = lease
        self.blobs = blobs
        self.state = _IDLE
        self.lost = False
        self.busy = False  # its machine must not be touched: a cycle or a save is under way
        self._idle: list[asyncio.Future[None]] = []  # callers that wait until it is idle, or lost
        # Memory.
        self.machine = restored.machine
        self.unfinished = restored.machine.unfinished  # when no step is under way
        self.head = restored.head
        self.head_raw = restored.head_raw
        self.deltas = stored_changes.Book()  # of its large rows
        self.baseline = restored.baseline
        self.baseline_raw = restored.baseline_raw
        self.entries_since = restored.entries  # the baseline
        self.unsaved = restored.unsaved
        self.lineage = restored.lineage  # of a fork
        self.bounds = restored.bounds  # what its universe lets it do, since it was taken; None: everything
        # What waits for it.
        self.handed: deque[WaitingInput] = deque()
        self.hints: dict[bytes, ready.Hint] = {}  # that were seen; they stay until their items are processed
        self.unread = True  # the inbox may hold something
        self.unread_us = now_us  # since when that is known
        self.empty_version = 0  # of the store, when its inbox was found empty by the last read
        self.mark = b""  # where to start reading the inbox; never above what was stable
        self.waiting = 0  # inputs that producers have handed over, and that are not resolved
        self.careful = False  # one step at a time: several did not fit into one commit
        self.on_trial = False  # one input at a time, from the inbox alone, each written down before its step
        self.trial: lease_model.CrashTrial | None = None  # as it is stored
        self._trial_steps = 0
        self._looks = 0  # how often it was said that the inbox may hold something
        self._looks_read = 0  # of these, before the inbox was last read
        self._found_items = False  # by the last read of the inbox
        self._unread_range: kv.Range | None = None  # as it was made last
        # Upkeep.
        self.active_us = now_us
        self.saved_us = now_us
        self.save_again_us = now_us  # not before; later after a failure
        self.tend_us = NEVER_US  # when upkeep looks at it
        self._warned: dict[str, None] = {}  # runs that were warned of
        self.adopted: Adopted | None = None  # if it continues under other code since this process took it

    @property
    def is_unborn(self) -> bool:
        """A fork that has made no step of its own."""
        return self.lineage is not None and self.lineage.height == self.head.height

    @property
    def leans(self) -> bool:
        """A fork that has saved no state of its own: a restore begins in its parent's history."""
        return self.lineage is not None and self.baseline.height <= self.lineage.height

    # --- State ------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a cycle may begin, and finds something to do."""
        return self.state is _IDLE and (self.unread or bool(self.handed) or self.unfinished)

    def begin_cycle(self) -> None:
        assert self.state is _IDLE
        self.state, self.busy = _BUSY, True

    def end_cycle(self) -> None:
        """A world that was lost meanwhile stays lost."""
        if self.state is not _LOST:
            assert self.state is _BUSY
            self._be_quiet(_IDLE)

    def begin_saving(self) -> None:
        assert self.state is _IDLE
        self.state, self.busy = _SAVING, True

    def end_saving(self) -> None:
        if self.state is not _LOST:
            assert self.state is _SAVING
            self._be_quiet(_IDLE)

    def lose(self) -> list[WaitingInput]:
        """Throw the memory away. Returns what was handed over and waited for a cycle."""
        self.lost = True
        self._be_quiet(_LOST)
        handed = list(self.handed)
        self.handed.clear()
        return handed

    async def quiet(self) -> None:
        """Wait until no step or save is under way. If it is not `lost` then, the machine may be read until the next
        await.
        """
        # A loop: another cycle may have begun before this task was resumed.
        while self.busy:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(told)
            await told

    def _be_quiet(self, state: HeldState) -> None:
        self.state, self.busy = state, False
        if self._idle:
            waiting, self._idle = self._idle, []
            for told in waiting:
                if not told.done():
                    told.set_result(None)

    # --- Memory -----------------------------------------------------------------------------------------------

    def committed(
        self,
        head: journal.Head,
        head_raw: bytes,
        changed: Sequence[Change],
        *,
        entries: int,
        size: int,
        unfinished: bool,
        now_us: int,
    ) -> None:
        """Steps of its machine are durable. `size`: of what was written for them, more or less."""
        if changed:
            self.unsaved.take(changed)
        elif not self.unsaved.tracked:
            # Which rows have changed is not known: the size is enough to tell when to save.
            self.unsaved.grew(size)
        self.head, self.head_raw = head, head_raw
        self.unfinished = unfinished
        self.trial = None  # deleted by these steps
        if self.on_trial:
            self._trial_steps += 1
            self.on_trial = self._trial_steps < TRIAL_STEPS_MAX
        self.entries_since += entries
        self.active_us = now_us

    def rebased(
        self, baseline: snapshot_model.StateSnapshot, raw: bytes, header: nodes.Header, keys: Sequence[bytes] | None
    ) -> None:
        """The state at its head is the baseline now: saved by what had changed, or else by all rows under `keys`."""
        self.baseline, self.baseline_raw, self.entries_since = baseline, raw, 0
        self.unsaved.saved(header, keys)

    @property
    def cold(self) -> ColdCells | None:
        """Where its cells are that are not in memory, if it is so large."""
        fetch = self.machine.cells.fetch
        return fetch if isinstance(fetch, ColdCells) else None

    def cool(self, loop: asyncio.AbstractEventLoop) -> None:
        """It has just been saved, and is so large that not all its cells stay in memory."""
        self.unsaved.track(key for key, _ in self.machine.rows())
        self.machine.cells.draw_from(ColdCells(loop, self.blobs, self.unsaved))

    def start_over(self, restored: world_restore.RestoredWorld) -> Machine:
        """Resume from what is stored, under the same lease: the steps since then were certainly not committed. Returns
        the machine that made them.
        """
        before, self.machine = self.machine, restored.machine
        self.unfinished = restored.machine.unfinished
        self.head, self.head_raw = restored.head, restored.head_raw
        self.baseline, self.baseline_raw = restored.baseline, restored.baseline_raw
        self.entries_since, self.unsaved = restored.entries, restored.unsaved
        self.bounds = restored.bounds
        self.unread = True
        # The mark may be above items of the lost steps, which are still in the inbox.
        self.drop_mark()
        return before

    # --- The inbox --------------------------------------------------------------------------------------------

    def look(self, now_us: int = 0) -> None:
        """The inbox may hold something. `now_us`: if it is measured how long that waits."""
        if now_us and not self.unread:
            self.unread_us = now_us
        self.unread = True
        # A count, not a flag: what is said while the inbox is being read must not be lost with that read.
        self._looks += 1

    def unread_range(self, count_max: int) -> kv.Range:
        """What to read now to see the next inputs in the inbox."""
        self._looks_read = self._looks
        known = self._unread_range
        if known is None or known.count_max != count_max:
            known = self._unread_range = inboxes.read_range(self.at, start=self.mark, count_max=count_max)
        return known

    def inbox_read(self, page: kv.Page, asked: kv.Range, version: int) -> None:
        """After a scan that found this page: the next may start further on, unless the mark was dropped meanwhile. An
        inbox that stays empty leaves nothing to skip.
        """
        # By identity: a range that was replaced meanwhile belongs to a mark that was dropped.
        if (page.items or self._found_items) and asked is self._unread_range:
            self.mark = inboxes.next_mark(page)
            self._unread_range = None
        self._found_items = bool(page.items)
        self.empty_version = 0 if page.items else version
        self.unread = page.more or self._looks != self._looks_read  # something may have come while it was read

    def inbox_blocked(self) -> None:
        """An item of the page that was read is out of reach now. It is looked for again in a while."""
        self.unread = False

    def waits_since(self, now_us: int) -> None:
        """What is left in the inbox has waited since now, as far as is known."""
        self.unread_us = now_us

    def drop_mark(self) -> None:
        """Read the whole inbox the next time."""
        self.mark = b""
        self._unread_range = None

    def add_hints(self, hints: Iterable[ready.Hint]) -> None:
        """Hints of this world were seen: the read of the inbox that comes next finds what they were left for."""
        self.hints.update((hint.key, hint) for hint in hints)

    def drop_hints(self, hints: Iterable[ready.Hint]) -> None:
        """These are deleted."""
        for hint in hints:
            self.hints.pop(hint.key, None)

    # --- Inputs that are handed over ----------------------------------------------------------------------------

    def take_handed(self, most: int) -> list[WaitingInput]:
        """The next inputs that were handed over. A client id comes once: its repeat waits until the first is known."""
        # Several steps did not fit together before, so one input at a time is processed.
        most = 1 if self.careful else most
        # The usual case needs no search for repeated client ids.
        if len(self.handed) <= 1:
            taken = list(self.handed)
            self.handed.clear()
            return taken
        taken = []
        later: list[WaitingInput] = []
        used: dict[bytes | str, None] = {}
        while self.handed and len(taken) < most:
            handover = self.handed.popleft()
            if handover.client_id is None:
                taken.append(handover)
            elif handover.client_id in used:
                later.append(handover)
            else:
                used[handover.client_id] = None
                taken.append(handover)
        self.put_back(later)
        return taken

    def put_back(self, handed: Sequence[WaitingInput]) -> None:
        self.handed.extendleft(reversed(handed))

    def enter(self) -> None:
        """Count a producer that hands an input over, and waits until it is resolved."""
        self.waiting += 1

    def leave(self) -> None:
        self.waiting -= 1

    def step_one_by_one(self) -> None:
        self.careful = True

    def step_many(self) -> None:
        """Go back to several steps at once: what did not fit into one commit is processed."""
        self.careful = False

    # --- The trial --------------------------------------------------------------------------------------------

    def begin_trial(self, trial: lease_model.CrashTrial) -> None:
        """Its holder before did not release it."""
        self.on_trial, self.trial = True, trial

    def tried(self, trial: lease_model.CrashTrial | None) -> None:
        """What is stored is this now."""
        self.trial = trial

    def end_trial(self) -> None:
        """Its inbox has been read empty. What is stored goes with the next step."""
        self.on_trial = False

    # --- Upkeep -----------------------------------------------------------------------------------------------

    def saved(self, now_us: int) -> None:
        self.saved_us = now_us

    def not_saved(self, *, again_us: int) -> None:
        """Saving has failed; not before `again_us` is it tried again."""
        self.save_again_us = again_us

    def tend_at(self, due_us: int) -> None:
        """When upkeep looks at it next."""
        self.tend_us = due_us

    def adopt(self) -> None:
        """Note that it continues under other code than before, with how many runs."""
        live = self.machine.live.values()
        self.adopted = Adopted(len(live), max((run.record.number for run in live), default=0))

    def warn_once(self, run: str) -> bool:
        """Whether this is the first warning of a run. Those that have ended are forgotten: they are not warned of."""
        is_new, live = run not in self._warned, self.machine.live
        self._warned = {each: None for each in (*self._warned, run) if each in live or each == run}
        return is_new
