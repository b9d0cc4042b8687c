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
import logging
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from worldline.base import probes
from worldline.layers import commit
from worldline.layers import work as works
from worldline.model import ids, inbox, journal, step
from worldline.model.inbox import ReceiptStatus
from worldline.store import kv

log = logging.getLogger("worldline.telemetry")


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


class Refused(msgspec.Struct, frozen=True, gc=False):
    """An input from outside was not taken, because there is too much to do already."""

    at: ids.Address
    why: Why
    retry_after_us: int


# --- Worlds --------------------------------------------------------------------------------------------------------


class Committed(msgspec.Struct, frozen=True):
    """Steps of one world are durable, with everything they derived."""

    at: ids.Address
    name: str
    entries: Sequence[journal.Entry]
    steps: int
    read: int  # inputs that came by the inbox
    handed: int  # inputs that were handed over in this process
    buried: Sequence[commit.Buried]
    wanted: Sequence[step.Wanted]
    closed: Sequence[ids.IntentId]
    cancelled: Sequence[step.Wanted]
    outgoing: Sequence[step.Outgoing]
    claimed: int  # effects that an adapter in this process got with the commit
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


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """A world's memory was thrown away: its commit was lost, or its lease is not ours any more."""

    at: ids.Address
    why: Literal["fenced", "conflict", "store", "unfit", "step", "cannot_step", "act"]
    message: str


RefusalKind = Literal["step", "unfit", "cannot_step", "restore", "corrupt", "hung"]


class WorldRefused(msgspec.Struct, frozen=True, gc=False):
    """Something that concerns one world alone cannot be done here: it is left alone for a while. `tries`: in a row."""

    at: ids.Address
    kind: RefusalKind
    message: str
    tries: int


class StepDied(msgspec.Struct, frozen=True, gc=False):
    """A step did not end in order: its process died, it hung, or memory ran out. `deaths`: over its input, in a row."""

    at: ids.Address
    how: Literal["died", "hung", "memory"]
    deaths: int


class RestoreDied(msgspec.Struct, frozen=True, gc=False):
    """A process died while it restored a world. `deaths`: in a row. `quarantined`: it is paused from now on."""

    at: ids.Address
    deaths: int
    quarantined: bool


class Taken(msgspec.Struct, frozen=True, gc=False):
    """A lease was acquired, and its world is back in memory."""

    at: ids.Address
    name: str
    epoch: int
    height: int
    us: int


class Released(msgspec.Struct, frozen=True, gc=False):
    """A world was let go in order."""

    at: ids.Address


class Saved(msgspec.Struct, frozen=True, gc=False):
    """A snapshot is the new baseline."""

    at: ids.Address
    size: int
    us: int


class SaveFailed(msgspec.Struct, frozen=True, gc=False):
    """A snapshot could not be made of a world's state. It goes on without."""

    at: ids.Address
    message: str


class Compacted(msgspec.Struct, frozen=True, gc=False):
    """Old entries of a world were moved from frames into segments, and old snapshots dropped."""

    at: ids.Address
    segments: int
    entries: int
    frames: int
    bytes: int
    snapshots: int
    us: int


class CompactFailed(msgspec.Struct, frozen=True, gc=False):
    """A world could not be compacted. It goes on, and its frames stay."""

    at: ids.Address
    message: str


class Proved(msgspec.Struct, frozen=True, gc=False):
    """Steps of a world were run again in the background, and came out the same."""

    at: ids.Address
    steps: int
    us: int


class Unproved(msgspec.Struct, frozen=True, gc=False):
    """A world's code, run again, does not do what the journal says, or does not return. The world goes on."""

    at: ids.Address
    name: str
    height: int
    message: str


class Beat(msgspec.Struct, frozen=True, gc=False):
    """The heartbeat was written."""

    us: int


class SelfFenced(msgspec.Struct, frozen=True, gc=False):
    """The heartbeat could not be written in time: the worker has let go of all its worlds."""

    worlds: int
    late_us: int


# --- Effects and timers ----------------------------------------------------------------------------------------------

Outcome = Literal["ok", "error", "timeout", "retried", "parked", "lost"]


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """Due effects were claimed from the queue."""

    name: str
    count: int


class Attempted(msgspec.Struct, frozen=True):
    """One attempt at an effect has ended, and what becomes of it is durable."""

    claim: works.Open
    outcome: Outcome
    message: str
    began_wall_us: int
    ended_wall_us: int
    trace: str = ""  # where in its code it failed


class Answered(msgspec.Struct, frozen=True, gc=False):
    """A receipt is on its way into its world, or in it."""

    claim: works.Open
    status: ReceiptStatus
    handed: bool


class Fired(msgspec.Struct, frozen=True, gc=False):
    """A timer has fired."""

    timer: works.Open
    late_us: int
    wall_us: int


# --- The process -----------------------------------------------------------------------------------------------


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A commit call was answered."""

    batches: int
    conflicts: int
    unknown: int
    us: int


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
    Entered | Refused | Committed | Cycled | Dropped | WorldRefused | Taken | Released | Saved | SaveFailed | Compacted
    | CompactFailed | Proved
    | Unproved | Beat | SelfFenced | StepDied | RestoreDied | Claimed | Attempted | Answered | Fired
    | Stored | Hung | Lagged | Troubled
)  # fmt: skip

Listener = Callable[[Fact], None]


class Telemetry(Protocol):
    """Where roles tell facts. `on` false: there is no listener, and what is costly to tell need not be told."""

    @property
    def on(self) -> bool: ...

    def tell(self, fact: Fact) -> None: ...


class Nothing:
    """There is no listener."""

    on = False

    def tell(self, fact: Fact) -> None:
        pass


NOTHING: Telemetry = Nothing()


class Telling:
    """Tells every listener, and lets none of them hurt the teller."""

    def __init__(self, listeners: Sequence[tuple[str, Listener]]) -> None:
        self._listeners = list(listeners)
        self.on = bool(listeners)
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
                "the %s sink raised %r; it goes on being called, and this is not said again", name, error,
                exc_info=error,
            )  # fmt: skip


class Timed:
    """An engine whose commits are told of."""

    def __init__(self, engine: kv.Engine, monotonic_us: Callable[[], int], telemetry: Telemetry) -> None:
        self._engine = engine
        self._monotonic_us = monotonic_us
        self._telemetry = telemetry
        self.read = engine.read
        self.wait = engine.wait
        self.durability = engine.durability
        self.close = engine.close

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        began_us = self._monotonic_us()
        outcomes = await self._engine.commit(*batches)
        conflicts = sum(isinstance(each, kv.Conflict) for each in outcomes)
        unknown = sum(isinstance(each, kv.CommitUnknown) for each in outcomes)
        self._telemetry.tell(Stored(len(batches), conflicts, unknown, self._monotonic_us() - began_us))
        return outcomes


def about(at: ids.Address, *, step: int | None = None, name: str = "") -> dict[str, object]:
    """Fields for a log record about a world: `log.warning(..., extra=telemetry.about(at))`."""
    fields: dict[str, object] = {"world": at.world.hex()}
    if name:
        fields["world_name"] = name
    if step is not None:
        fields["step"] = step
    return fields
