"""Telemetry: the facts that roles report, and the listeners that get them.

A fact is a frozen record of something that has happened: a commit, an attempt, a lease. Roles tell facts after they are
true, on the event loop, and never wait for a listener. A listener (metrics, spans, a user's own sinks) is a function
over facts; it decides what to make of them.

Listening never changes an outcome: a listener that raises is caught, counted and logged once (`Telling`), and only
that listener misses the fact. Without listeners `on` is false and the hot path builds no facts at all.

Times that end in `wall_us` are this process's clock; `us` alone is a duration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from worldline.base import probes
from worldline.codec import printable
from worldline.layers import step_commit
from worldline.layers import work as works
from worldline.model import ids, inbox, journal
from worldline.model import step_records as step
from worldline.model.inbox import ReceiptStatus
from worldline.runtime import metric_table
from worldline.store import kv

log = printable.logger("worldline.telemetry")


# --- Inputs --------------------------------------------------------------------------------------------------------


class Entered(msgspec.Struct, frozen=True, gc=False):
    """An input from outside is durable: in the inbox under a stamp, or already in a step."""

    at: ids.Address
    item: inbox.Item
    data: bytes
    stamp: bytes
    handed: bool
    began_wall_us: int
    ended_wall_us: int


Why = Literal["inbox", "effects", "world", "process"]


class InputRefused(msgspec.Struct, frozen=True, gc=False):
    """An input from outside was refused, because there is too much to do already, or the universe has all it may."""

    at: ids.Address
    why: str  # one of `Why`, or the word of a feature that refuses (`universe_admission.InputBounds`)
    retry_after_us: int


# --- Worlds --------------------------------------------------------------------------------------------------------


class StepsCommitted(msgspec.Struct, frozen=True):
    """Steps of one world are durable, with everything they derived."""

    at: ids.Address
    name: str
    entries: Sequence[journal.JournalEntry]
    steps: int
    read: int  # inputs that came by the inbox
    handed: int  # inputs that were handed over in this process
    buried: Sequence[step_commit.Buried]
    wanted: Sequence[step.WorkRequest]
    closed: Sequence[ids.IntentId]
    cancelled: Sequence[step.WorkRequest]
    outgoing: Sequence[step.Outgoing]
    claimed: int  # effects that an effect worker in this process got with the commit
    waited_us: Sequence[int]  # of each input: since this process knew of it
    store_us: int  # the store's time, more or less
    began_wall_us: int
    ended_wall_us: int


class Cycled(msgspec.Struct, frozen=True, gc=False):
    """One cycle has ended, whatever came of it. `misses`: cells that its steps had to wait for."""

    worlds: int
    steps: int
    us: int
    misses: int = 0


DropReason = Literal["fenced", "conflict", "store", "unfit", "step", "cannot_step", "act"]


class WorldDropped(msgspec.Struct, frozen=True, gc=False):
    """A world's memory was thrown away: its commit was lost, or its lease is not ours any more."""

    at: ids.Address
    why: DropReason
    message: str


RefusalKind = Literal["step", "unfit", "cannot_step", "restore", "corrupt", "hung"]


class WorldRefused(msgspec.Struct, frozen=True, gc=False):
    """Something that concerns one world alone cannot be done here: it is left alone for a while. `tries`: in a row."""

    at: ids.Address
    kind: RefusalKind
    message: str
    tries: int


Death = Literal["died", "hung", "memory", "raised"]


class StepDied(msgspec.Struct, frozen=True, gc=False):
    """A step did not end in order: its process died, it hung, memory ran out, or the kernel raised. `deaths`: over its
    input, in a row.
    """

    at: ids.Address
    how: Death
    deaths: int


class RestoreDied(msgspec.Struct, frozen=True, gc=False):
    """A process died while it restored a world. `deaths`: in a row."""

    at: ids.Address
    deaths: int


class WorldQuarantined(msgspec.Struct, frozen=True, gc=False):
    """A world is paused for a while, because processes die while they restore it."""

    at: ids.Address
    message: str


Tried = Literal["step", "restore"]
TriedEnd = Literal["survived", "died", "undecided"]


class LastAttempt(msgspec.Struct, frozen=True, gc=False):
    """A step or a restore that processes died over was tried in a child process."""

    at: ids.Address
    what: Tried
    ended: TriedEnd


class WorldTaken(msgspec.Struct, frozen=True, gc=False):
    """A lease was acquired, and its world is back in memory."""

    at: ids.Address
    name: str
    epoch: int
    height: int
    us: int
    failover: bool = False  # the holder before did not release it


class Released(msgspec.Struct, frozen=True, gc=False):
    """A world was released cleanly."""

    at: ids.Address


class BaselineSaved(msgspec.Struct, frozen=True, gc=False):
    """A snapshot is the new baseline."""

    at: ids.Address
    size: int
    us: int


class SaveFailed(msgspec.Struct, frozen=True, gc=False):
    """A snapshot could not be made of a world's state. The world continues without."""

    at: ids.Address
    message: str


class WorldCompacted(msgspec.Struct, frozen=True, gc=False):
    """Old entries of a world were moved from frames into segments, and old snapshots dropped."""

    at: ids.Address
    segments: int
    entries: int
    frames: int
    bytes: int
    snapshots: int
    us: int
    expired: int = 0  # entries that are not kept any more


class CompactFailed(msgspec.Struct, frozen=True, gc=False):
    """A world could not be compacted. It continues, and its frames stay."""

    at: ids.Address
    message: str


class Proved(msgspec.Struct, frozen=True, gc=False):
    """Steps of a world were run again in the background, and came out the same."""

    at: ids.Address
    steps: int
    us: int


class Unproved(msgspec.Struct, frozen=True, gc=False):
    """A world's code, run again, does not do what the journal says, or does not return. The world continues."""

    at: ids.Address
    name: str
    height: int
    message: str


class Beat(msgspec.Struct, frozen=True, gc=False):
    """The heartbeat was written."""

    us: int


HostChange = Literal["started", "draining", "closing", "closed"]


class HostChanged(msgspec.Struct, frozen=True, gc=False):
    """The process begins or ends to run its roles, or is to release its worlds."""

    change: HostChange
    worker: bytes
    worlds: int = 0  # that it holds


class SelfFenced(msgspec.Struct, frozen=True, gc=False):
    """The heartbeat could not be written in time: the worker has dropped all its worlds."""

    worlds: int
    late_us: int


# --- Effects and timers ----------------------------------------------------------------------------------------------

Outcome = Literal["ok", "error", "timeout", "retried", "parked", "lost"]


class ClaimsMade(msgspec.Struct, frozen=True, gc=False):
    """Due effects were claimed from the queue."""

    name: str
    count: int


class AttemptEnded(msgspec.Struct, frozen=True):
    """One attempt at an effect has ended, and what follows from it is durable."""

    claim: works.Open
    outcome: Outcome
    message: str
    began_wall_us: int
    ended_wall_us: int
    trace: str = ""  # where in its code it failed


class EffectAnswered(msgspec.Struct, frozen=True, gc=False):
    """A receipt is on its way into its world, or in it."""

    claim: works.Open
    status: ReceiptStatus
    handed: bool


class Fired(msgspec.Struct, frozen=True, gc=False):
    """A timer has fired."""

    timer: works.Open
    late_us: int
    wall_us: int


# --- The cluster -----------------------------------------------------------------------------------------------


Move = Literal["", "drain", "failover", "balance", "needs"]


class WorldPlaced(msgspec.Struct, frozen=True, gc=False):
    """A world is assigned to a worker, or to none. `moves`: another worker holds it, and why it is to release it."""

    at: ids.Address
    why: str  # as `runtime/placement.py` names its reasons
    moves: Move = ""


class Orchestrated(msgspec.Struct, frozen=True, gc=False):
    """A turn of the orchestrator has ended."""

    us: int


class Reaped(msgspec.Struct, frozen=True, gc=False):
    """The leases of a dead worker were ended by this process, and its own records removed. `worlds`: so many."""

    worlds: int
    gone: bool  # its heartbeat record was deleted by this process


Clearable = Literal[
    "made_ids",
    "chosen_ids",
    "pointers",
    "held_records",
    "lock_files",
    "temporary_files",
    "uploads",
    "imports",
    "deleted",
]


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """The janitor has removed what has had its time."""

    what: Clearable
    count: int


class GarbageCollected(msgspec.Struct, frozen=True, gc=False):
    """A garbage collection has ended: blobs that are referred to, condemned, spared and deleted, with their bytes, and
    objects without a record that were deleted.
    """

    worlds: int
    marked: int
    condemned: int
    spared: int
    deleted: int
    deleted_bytes: int
    orphans: int
    orphans_bytes: int
    us: int


CollectTrouble = Literal["unreadable", "overtaken", "store"]


class CollectFailed(msgspec.Struct, frozen=True, gc=False):
    """A garbage collection was given up. `why`: something cannot be read, so what it refers to is not known, or another
    collector has begun.
    """

    why: CollectTrouble
    message: str


class JanitorRound(msgspec.Struct, frozen=True, gc=False):
    """The janitor has been through everything once."""

    us: int


# --- The backlog, as `cluster/backlog_count.py` counts it ----------------------------------------------------------


class WorldsCounted(msgspec.Struct, frozen=True):
    """All worlds of a universe were looked at. By status; the numbers of items are at least these."""

    universe: str
    wall_us: int
    worlds: dict[str, int]
    unread: dict[str, int]
    unread_worlds: dict[str, int]
    unread_age_us: dict[str, int]  # of the oldest: at least
    unhosted: int  # active worlds with something unread that no live worker holds
    dead: int
    dead_age_us: int  # of the oldest dead letter, since it became one
    workers: dict[str, int]  # by state


class OpenCounted(msgspec.Struct, frozen=True):
    """All open work of a universe was looked at: by kind and state."""

    universe: str
    wall_us: int
    work: dict[tuple[str, str], int]


class DueCounted(msgspec.Struct, frozen=True):
    """The due queues of a universe were looked at, by kind of work: what is due and not done."""

    universe: str
    wall_us: int
    overdue: dict[str, int]
    overdue_age_us: dict[str, int]  # of what is due for longest


class LevelsMeasured(msgspec.Struct, frozen=True):
    """A feature has measured something: gauges that it declares (`Feature.measures`)."""

    levels: Sequence[metric_table.Level]


# --- The process -----------------------------------------------------------------------------------------------


class StoreRead(msgspec.Struct, frozen=True, gc=False):
    """A read was answered."""

    engine: str
    us: int


class CommitAnswered(msgspec.Struct, frozen=True):
    """A commit call was answered: an outcome for each batch."""

    engine: str
    batches: Sequence[kv.Batch]
    outcomes: Sequence[kv.Outcome]
    us: int


StoreCall = Literal["read", "commit"]


class StoreCallFailed(msgspec.Struct, frozen=True, gc=False):
    """A call to the store failed: it cannot be reached, is full, or has lost its footing."""

    engine: str
    call: StoreCall
    code: str


ObjectCall = Literal["put", "get", "list", "delete"]


class ObjectDone(msgspec.Struct, frozen=True, gc=False):
    """A call to the object store was answered. `size`: the bytes that went either way."""

    engine: str
    call: ObjectCall
    size: int
    us: int


class ObjectFailed(msgspec.Struct, frozen=True, gc=False):
    """A call to the object store failed."""

    engine: str
    call: ObjectCall
    code: str


class Hung(msgspec.Struct, frozen=True):
    """A cycle has not come back for long: something in one of these worlds does not return."""

    worlds: Sequence[str]
    us: int


class Lagged(msgspec.Struct, frozen=True, gc=False):
    """How late the event loop was with something that was due."""

    us: int


class Troubled(msgspec.Struct, frozen=True, gc=False):
    """A role's turn went wrong. `bug`: it was the last."""

    role: str
    code: str
    message: str
    bug: bool


Fact = (
    Entered
    | InputRefused
    | StepsCommitted
    | Cycled
    | WorldDropped
    | WorldRefused
    | WorldTaken
    | Released
    | BaselineSaved
    | SaveFailed
    | WorldCompacted
    | CompactFailed
    | Proved
    | Unproved
    | Beat
    | HostChanged
    | SelfFenced
    | StepDied
    | RestoreDied
    | WorldQuarantined
    | LastAttempt
    | ClaimsMade
    | AttemptEnded
    | EffectAnswered
    | Fired
    | WorldPlaced
    | Orchestrated
    | Reaped
    | Cleared
    | GarbageCollected
    | CollectFailed
    | JanitorRound
    | WorldsCounted
    | OpenCounted
    | DueCounted
    | LevelsMeasured
    | StoreRead
    | CommitAnswered
    | StoreCallFailed
    | ObjectDone
    | ObjectFailed
    | Hung
    | Lagged
    | Troubled
)

Listener = Callable[[Fact], None]


class Telemetry(Protocol):
    """Where roles tell facts. `on` false: there is no listener, and what is costly to tell need not be told.

    `counts`: a listener makes metrics of them. Otherwise calls to the store and the backlog are not told of at all.
    """

    @property
    def on(self) -> bool: ...

    @property
    def counts(self) -> bool: ...

    def tell(self, fact: Fact) -> None: ...


class Nothing:
    """There is no listener."""

    on = False
    counts = False

    def tell(self, fact: Fact) -> None:
        pass


NOTHING: Telemetry = Nothing()


class Telling:
    """Tells every listener, and lets none of them hurt the teller."""

    def __init__(self, listeners: Sequence[tuple[str, Listener]], *, counts: bool = True) -> None:
        self._listeners = list(listeners)
        self.on = bool(listeners)
        self.counts = self.on and counts
        self.failures: dict[str, int] = {}  # by listener

    def tell(self, fact: Fact) -> None:
        for name, listener in self._listeners:
            try:
                listener(fact)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a user's sink may raise anything
                probes.hit("telemetry.listener-failed")
                self._failed(name, error)

    def _failed(self, name: str, error: BaseException) -> None:
        self.failures[name] = self.failures.get(name, 0) + 1
        if self.failures[name] == 1:
            log.warning(
                "the %s sink raised %r; it goes on being called, and this is not said again",
                name,
                error,
                exc_info=error,
            )


def about(at: ids.Address, *, step: int | None = None, name: str = "") -> dict[str, object]:
    """Fields for a log record about a world: `log.warning(..., extra=telemetry.about(at))`."""
    fields: dict[str, object] = {"world": at.world.hex()}
    if name:
        fields["world_name"] = name
    if step is not None:
        fields["step"] = step
    return fields
