"""One world in the hands of a worker: its machine, its lease, what is waiting for it, and the stepping itself.

`run` is called in the kernel's thread, which has no event loop, and is the only thing that touches the machine there.
It turns inputs into sealed steps and gathers everything they derived; nothing of it has happened until it is committed.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from worldline.base import env as envs
from worldline.base import limits
from worldline.codec import digest
from worldline.kernel import commands
from worldline.kernel.program import Program
from worldline.keys import inbox as inbox_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import commit, leases
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import work as works
from worldline.model import ids, inbox, journal, payload, step
from worldline.roles import restoring
from worldline.store import kv

CYCLE_BYTES_MAX = limits.STEP_BYTES_MAX // 2
FOLLOW_UPS_MAX = 8  # so that a cycle's batch stays within its limit
_NO_ORDINAL = 2**32 - 1  # no engine gives this one, so it cannot meet an item's own stamp


class Applied(msgspec.Struct, frozen=True):
    """Where an input was journaled."""

    height: int
    step: int


class Handover(msgspec.Struct, eq=False):
    """An input that does not go through the inbox: from a producer, an adapter or a timer in this process.

    `client_id` is recorded as seen with the step. `claim` is the work that a receipt or a fired timer settles: the step
    expects it unchanged and deletes it.
    """

    item: inbox.Item
    data: bytes
    done: asyncio.Future[Applied] | None = None
    client_id: bytes | str | None = None
    claim: works.Open | None = None


class Done(msgspec.Struct):
    """What one run of steps derived, ready to be committed."""

    entries: list[journal.Entry] = []
    after: journal.Head = journal.GENESIS
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

    def full(self, late: bool) -> bool:
        """Whether the cycle should end here: at least one step is done, and time or room is used up."""
        return self.steps > 0 and (late or self.size > CYCLE_BYTES_MAX)


class Hosted:
    """A world that this worker holds."""

    def __init__(
        self,
        program: Program,
        lease: leases.Lease,
        blobs: blob_layer.Blobs,
        restored: restoring.Restored,
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
        self.active_us = now_us
        self.handed: deque[Handover] = deque()
        self.unread = True  # the inbox may hold something
        self.mark = b""  # where to start reading it; never above what was stable
        self._free = asyncio.Event()
        self._free.set()
        self.lost = False

    @property
    def busy(self) -> bool:
        return not self._free.is_set()

    @busy.setter
    def busy(self, value: bool) -> None:
        if value:
            self._free.clear()
        else:
            self._free.set()

    async def quiet(self) -> None:
        """Wait until no step is under way: the machine may be looked at until the next await."""
        while self.busy:
            await self._free.wait()

    @property
    def ready(self) -> bool:
        waiting = self.unread or bool(self.handed) or self.machine.unfinished
        return not self.busy and not self.lost and waiting

    def run(
        self, unread: list[tuple[inboxes.Unread, bytes]], handed: list[Handover], *, time_us: int, env: envs.Env,
        wall_ms: int,
    ) -> Done:  # fmt: skip
        """Step through these inputs, in order, until they are used up or time is. In the kernel's thread."""
        done = Done(after=self.head)
        deadline_us = env.monotonic_us() + wall_ms * 1000
        for item, data in unread:
            if done.full(env.monotonic_us() > deadline_us):
                done.cut = True
                return done
            given = step.Input(item.item, data, item.stamp, b"" if item.item else digest.sha256(item.raw), item.error)
            applied, dead = self._step(done, given, time_us)
            if dead:
                done.buried.append(commit.Buried(item, dead, applied.step, done.after.time_us))
            else:
                done.taken.append(item)
        for handover in handed:
            if done.full(env.monotonic_us() > deadline_us):
                return done
            applied, dead = self._step(done, step.Input(handover.item, handover.data), time_us)
            done.handed.append((handover, applied))
            if dead:
                letter = _as_unread(handover.item, applied)
                done.buried.append(commit.Buried(letter, dead, applied.step, done.after.time_us))
        self._send_the_rest(done, time_us)
        return done

    def _send_the_rest(self, done: Done, time_us: int) -> None:
        """Steps that only send what those before had no room for; what is left then goes with the next cycle."""
        for _ in range(FOLLOW_UPS_MAX):
            if not self.machine.unfinished or done.full(late=False):
                return
            self._step(done, step.Input(inbox.Control(commands.CONTINUE, payload.EMPTY), b""), time_us)

    def _step(self, done: Done, given: step.Input, time_us: int) -> tuple[Applied, str]:
        head = done.after
        due_us = given.item.due_us if isinstance(given.item, inbox.TimerFired) else 0
        logical_us = max(head.time_us, time_us, due_us)
        stepped = self.machine.step(given, step.Context(self.at, head.step + 1, logical_us))
        entries, done.after = journals.seal(head, stepped.drafts, state=stepped.state, time_us=logical_us)
        done.entries += entries
        done.steps += 1
        done.size += sum(min(len(draft.payload), limits.INLINE_BYTES_MAX) + 64 for draft in stepped.drafts)
        for wanted in stepped.wanted:
            done.wanted[wanted.intent] = wanted
        for intent in stepped.closed:
            if done.wanted.pop(intent, None) is None:
                done.closed[intent] = None
        for cancelled in stepped.cancelled:
            if done.wanted.pop(cancelled.intent, None) is None:
                done.cancelled.append(cancelled)
        done.outgoing += stepped.outgoing
        done.large += [draft.payload for draft in stepped.drafts if journal.blob_of(draft.payload)]
        return Applied(entries[0].height, head.step + 1), stepped.dead


def _as_unread(item: inbox.Item, applied: Applied) -> inboxes.Unread:
    """A refused hand-over as the dead letter it becomes, filed under its step."""
    return inboxes.Unread(handed_stamp(applied), inbox_keys.ITEM.pack(item), item)


def handed_stamp(applied: Applied) -> kv.Stamp:
    """The stamp that stands for an input which had none: its step, so that a repeat can be told where it went."""
    return kv.stamp(applied.step, _NO_ORDINAL)


def step_of_handed(stamp: bytes) -> int | None:
    """The step behind such a stamp, or None for a stamp of an engine's own."""
    return int.from_bytes(stamp[:8], "big") if stamp[8:] == _NO_ORDINAL.to_bytes(4, "big") else None
