"""One world in the hands of a worker: its machine, its lease, what is waiting for it, and the stepping itself.

`run` is called in the kernel's thread, which has no event loop, and is the only thing that touches the machine there.
It turns inputs into sealed steps and gathers everything they derived; nothing of it has happened until it is committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import digest
from worldline.kernel import commands
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.keys import inbox as inbox_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import commit, leases, ready
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import work as works
from worldline.model import ids, inbox, journal, payload, step
from worldline.roles.world import restore
from worldline.store import kv

CYCLE_BYTES_MAX = limits.STEP_BYTES_MAX  # of a cycle's batch, before its last step
FOLLOW_UPS_MAX = 8  # steps in a row that only send what those before had no room for
RECORD_BYTES = 256  # more or less what a record takes besides its payload: keys, numbers, digests
NEVER_US = 2**62
BEHIND_US_MIN = (
    100_000  # what the store's time may be behind a world's own before a step says so: reads overtake others
)
_NO_ORDINAL = 2**32 - 1  # no engine gives this one, so it cannot meet an item's own stamp
_HANDED = _NO_ORDINAL.to_bytes(4, "big")

assert CYCLE_BYTES_MAX + 2 * limits.STEP_BYTES_MAX < limits.BATCH_BYTES_MAX, "a cycle's last step is a full one"


class Applied(msgspec.Struct, frozen=True):
    """Where an input was journaled."""

    height: int
    step: int


class Handover(msgspec.Struct, eq=False):
    """An input that does not go through the inbox: from a producer, an adapter or a timer in this process.

    `stamp` is what a producer's input has instead of an inbox stamp (`new_stamp`): it is journaled with the input, so
    that no other step has the same bytes. `client_id` is recorded as seen with the step. `claim` is the work that a
    receipt or a fired timer settles: the step expects it unchanged and deletes it. `done` ends with where it was
    journaled, or with one of these: `Fenced`: it was not taken, and the world is not here any more; `Deferred`: it was
    not taken, and has to go through the inbox; `Repeated`, `Superseded`; anything else: whether it was taken cannot be
    known.
    """

    item: inbox.Item
    data: bytes
    done: asyncio.Future[Applied] | None = None
    client_id: bytes | str | None = None
    claim: works.Open | None = None
    since_us: int = 0  # when it was handed over, if somebody wants to know
    stamp: bytes = b""

    def settle(self, applied: Applied) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(applied)

    def fail(self, error: Exception) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(error)


class Repeated(errors.Error):
    """The same input was taken before: this is the stamp it was taken under."""

    code = "repeated"

    def __init__(self, stamp: kv.Stamp) -> None:
        super().__init__("taken before")
        self.stamp = stamp


class Deferred(errors.Lost):
    """More is in the world's inbox than one cycle takes, or can be read now: the input has to come behind it."""

    code = "deferred"


class Superseded(errors.Lost):
    """Somebody else has this work now, and answers it."""

    code = "superseded"


class Budget(msgspec.Struct, frozen=True):
    """What a cycle may use for one world. It may end a cycle early, and never changes an outcome."""

    deadline_us: int
    steps_max: int
    effects_max: int


class Done(msgspec.Struct):
    """What one run of steps derived, ready to be committed."""

    before: journal.Head
    after: journal.Head
    entries: list[journal.Entry] = []
    data: list[bytes] = []  # the entries as they are stored
    taken: list[inboxes.Unread] = []
    handed: list[tuple[Handover, Applied]] = []
    buried: list[commit.Buried] = []
    wanted: dict[ids.IntentId, step.Wanted] = {}
    closed: dict[ids.IntentId, None] = {}
    cancelled: list[step.Wanted] = []
    outgoing: list[step.Outgoing] = []
    large: list[bytes] = []  # payloads that must be in the CAS before the commit
    steps: int = 0
    size: int = 0
    cut: bool = False  # not everything that was read was taken
    unfinished: bool = False  # the machine has more to do by itself


class Hosted:
    """A world that this worker holds."""

    def __init__(
        self,
        program: Program,
        lease: leases.Lease,
        blobs: blob_layer.Blobs,
        restored: restore.Restored,
        *,
        now_us: int,
    ) -> None:
        self.at = lease.at
        self.program = program
        self.lease = lease
        self.blobs = blobs
        self.machine = restored.machine
        self.head = restored.head
        self.head_raw = restored.head_raw
        self.baseline = restored.baseline
        self.baseline_raw = restored.baseline_raw
        self.entries_since = restored.entries
        self.saved_us = now_us
        self.save_again_us = now_us  # not before; later after a failure
        self.tend_us = NEVER_US  # when upkeep looks at it
        self.warned: dict[str, None] = {}  # runs that somebody was warned of
        self.active_us = now_us
        self.handed: deque[Handover] = deque()
        self.unread = True  # the inbox may hold something
        self.unread_us = now_us  # since when that is known
        self.waiting = 0  # inputs from outside that were handed over and are not settled
        self.name = ""  # for logs and metrics
        self.mark = b""  # where to start reading it; never above what was stable
        self.was_read = False  # the last read of the inbox found something
        self.empty_version = 0  # of the store, when its inbox was found empty by the last read
        self.hints: dict[bytes, ready.Hint] = {}  # ready hints that were seen; they stay until their items are taken
        self.careful = False  # one step at a time: several did not fit into one commit
        self.lost = False
        self._unread_range: kv.Range | None = None  # as it was made last
        self._busy = False
        self._quiet: list[asyncio.Future[None]] = []  # those who wait until it is not busy

    @property
    def busy(self) -> bool:
        return self._busy

    @busy.setter
    def busy(self, value: bool) -> None:
        self._busy = value
        if not value and self._quiet:
            for each in self._quiet:
                if not each.done():
                    each.set_result(None)
            self._quiet = []

    async def quiet(self) -> None:
        """Wait until no step is under way: the machine may be looked at until the next await."""
        while self._busy:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._quiet.append(told)
            await told

    def start_over(self, restored: restore.Restored) -> Machine:
        """Go on from what is stored, under the same lease: the steps since then were certainly not committed. Returns
        the machine that made them.
        """
        before, self.machine = self.machine, restored.machine
        self.head, self.head_raw = restored.head, restored.head_raw
        self.baseline, self.baseline_raw = restored.baseline, restored.baseline_raw
        self.entries_since = restored.entries
        self.unread = True
        self.drop_mark()
        return before

    @property
    def has_work(self) -> bool:
        if self._busy or self.lost:
            return False
        return self.unread or bool(self.handed) or self.machine.unfinished

    def unread_range(self, count_max: int) -> kv.Range:
        """What to read to see the next inputs in the inbox."""
        known = self._unread_range
        if known is None or known.count_max != count_max:
            known = self._unread_range = inboxes.read_range(self.at, start=self.mark, count_max=count_max)
        return known

    def inbox_read(self, page: kv.Page, asked: kv.Range, version: int) -> None:
        """After a scan that found this page: the next may start further on, unless the mark was dropped meanwhile. An
        inbox that stays empty leaves nothing to skip.
        """
        if (page.items or self.was_read) and asked is self._unread_range:
            self.mark = inboxes.next_mark(page)
            self._unread_range = None
        self.was_read = bool(page.items)
        self.empty_version = 0 if page.items else version

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

    def take_handed(self, most: int) -> list[Handover]:
        """The next inputs that were handed over. A client id comes once: its repeat waits until the first is known."""
        if len(self.handed) <= 1:
            taken = list(self.handed)
            self.handed.clear()
            return taken
        taken = []
        later: list[Handover] = []
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

    def put_back(self, handed: list[Handover]) -> None:
        self.handed.extendleft(reversed(handed))

    # --- In the kernel's thread ------------------------------------------------------------------------------------

    def run(
        self, unread: list[tuple[inboxes.Unread, bytes]], handed: list[Handover], budget: Budget, *, time_us: int,
        env: envs.Env,
    ) -> Done:  # fmt: skip
        """Step through these inputs, in order, until they are used up or the budget is. What was handed over comes
        behind everything that was in the inbox when it was read.
        """
        done = Done(self.head, self.head)
        for item, data in unread:
            if self._full(done, budget, env):
                done.cut = True
                break
            given = step.Input(item.item, data, item.stamp, b"" if item.item else digest.sha256(item.raw), item.error)
            applied, dead = self._step(done, given, time_us)
            if dead:
                done.buried.append(commit.Buried(item, dead, applied.step, done.after.time_us))
                done.size += len(item.raw)
            else:
                done.taken.append(item)
        for handover in () if done.cut else handed:
            if self._full(done, budget, env):
                break
            applied, dead = self._step(done, step.Input(handover.item, handover.data, handover.stamp), time_us)
            done.handed.append((handover, applied))
            done.size += RECORD_BYTES
            if dead:
                letter = _as_unread(handover.item, applied)
                done.buried.append(commit.Buried(letter, dead, applied.step, done.after.time_us))
                done.size += len(letter.raw)
        self._go_on(done, budget, time_us, env)
        done.unfinished = self.machine.unfinished
        return done

    @staticmethod
    def _full(done: Done, budget: Budget, env: envs.Env) -> bool:
        """Whether the cycle ends here: at least one step is done, and time or room is used up."""
        return done.steps > 0 and (
            done.steps >= budget.steps_max
            or done.size > CYCLE_BYTES_MAX
            or len(done.wanted) >= budget.effects_max
            or env.monotonic_us() > budget.deadline_us
        )

    def _go_on(self, done: Done, budget: Budget, time_us: int, env: envs.Env) -> None:
        """Steps for what those before had no room for; what is left then goes with the next cycle."""
        for _ in range(FOLLOW_UPS_MAX):
            if not self.machine.unfinished or self._full(done, budget, env):
                return
            self._step(done, step.Input(inbox.Control(commands.CONTINUE, payload.EMPTY), b""), time_us)

    def _step(self, done: Done, given: step.Input, time_us: int) -> tuple[Applied, str]:
        head = done.after
        due_us = given.item.due_us if isinstance(given.item, inbox.TimerFired) else 0
        # Logical time starts at birth, the baseline's time: the store's clock may be set back before the first step.
        logical_us = max(head.time_us, self.baseline.time_us, time_us, due_us)
        behind_us = logical_us - time_us if logical_us - time_us >= BEHIND_US_MIN else 0
        stepped = self.machine.step(given, step.Context(self.at, head.step + 1, logical_us, behind_us))
        sealed = journals.seal(head, stepped.drafts, state=stepped.state, time_us=logical_us)
        done.after = sealed.after
        done.entries += sealed.entries
        done.data += sealed.data
        done.steps += 1
        for draft in stepped.drafts:
            length = len(draft.payload)
            if length > limits.INLINE_BYTES_MAX:
                done.large.append(draft.payload)
            done.size += _size(length)
        if stepped.wanted or stepped.closed or stepped.cancelled or stepped.outgoing:
            _gather(done, stepped)
        return Applied(head.height + 1, head.step + 1), stepped.dead


def _gather(done: Done, stepped: step.Stepped) -> None:
    """What a step asked for, sent and gave up. Work that is wanted and settled in one commit is never opened."""
    for wanted in stepped.wanted:
        done.wanted[wanted.intent] = wanted
        done.size += _size(len(wanted.params))
    for intent in stepped.closed:
        if done.wanted.pop(intent, None) is None:
            done.closed[intent] = None
    for cancelled in stepped.cancelled:
        done.size += 2 * RECORD_BYTES  # what is cancelled has two keys
        if done.wanted.pop(cancelled.intent, None) is None:
            done.cancelled.append(cancelled)
    for outgoing in stepped.outgoing:
        done.outgoing.append(outgoing)
        done.size += _size(len(outgoing.data))


def _size(length: int) -> int:
    """What a record with a payload of this length takes in a batch, more or less."""
    return RECORD_BYTES + (min(limits.INLINE_BYTES_MAX, length))


def _as_unread(item: inbox.Item, applied: Applied) -> inboxes.Unread:
    """A refused hand-over as the dead letter it becomes, filed under its step."""
    return inboxes.Unread(handed_stamp(applied), inbox_keys.ITEM.pack(item), item)


def new_stamp(env: envs.Env) -> kv.Stamp:
    """A stamp for an input that is handed over: unique, and none that an engine gives."""
    return kv.Stamp(env.random_bytes(8) + _HANDED)


def handed_stamp(applied: Applied) -> kv.Stamp:
    """The stamp that stands for an input which has none in the journal: its step."""
    return kv.stamp(applied.step, _NO_ORDINAL)


def was_handed(stamp: bytes) -> bool:
    """Whether it is such a stamp, and not an engine's own."""
    return stamp.endswith(_HANDED)
