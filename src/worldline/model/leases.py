"""Who may run a world: the fencing epoch, its holder, and the heartbeats of workers."""

from __future__ import annotations

import enum

import msgspec


class Epoch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fencing number of a world. Never deleted, raised by every acquire.

    The incarnation is in it so that two workers racing for the same number never write the same bytes.
    """

    number: int
    incarnation: bytes


class Holder(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Present while a lease is held. Its liveness is the heartbeat of that incarnation."""

    worker: bytes
    incarnation: bytes
    epoch: int  # that of the `Epoch` which the same batch wrote
    acquired_us: int


class Worker(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One worker's heartbeat: renewing it renews every lease it holds. `beat` makes each renewal a new value."""

    incarnation: bytes
    beat: int
    heartbeat_us: int
    ttl_us: int  # how long after `heartbeat_us` it still counts as alive
    capacity: int
    labels: dict[str, str]
    draining: bool = False  # it is being emptied, and is given no worlds


class Assignment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a world is wanted. Advice: it decides who tries, never who may write.

    `priority`: a worker that has many worlds to take begins with those that have the lowest.
    """

    worker: bytes
    priority: int
    reason: str
    revision: int  # makes each assignment a new value, also one that says the same


class HolderActivity(enum.IntEnum):
    """What a holder on trial is doing. Numbers are stored and never reused."""

    NOTHING = 1
    RESTORE = 2
    STEP = 3


class Raised(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The kernel's own code raised in the step over an input at a head, so many times in a row; and what and where, the
    last time.
    """

    step: int
    input: bytes
    times: int
    said: str


class Blamed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A holder that was counted as dead: which life of which worker, and what it had said that it was doing."""

    worker: bytes
    incarnation: bytes
    running: HolderActivity


class CrashTrial(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The crash budget of a world whose last holder did not release it.

    `step` is that of the head when this was written; `input` the digest of the input that `step_deaths` is about.
    `worker` and `incarnation`: the holder that says this. `beside`: while it says so, its process performs an effect
    that processes may have died of, so its death proves nothing. `blamed`: the holders among the deaths that are
    counted, the latest ones; one that turns out to live is taken off. `acquitted`: how often a last attempt in a child
    process survived what was counted. `verdict`: how the last one ended that did not. `until_us`: the world is
    quarantined until this time of the store, for the `quarantines`-th time in a row.
    `raised` is counted apart: no process has died.
    """

    epoch: int
    step: int
    running: HolderActivity
    input: bytes = b""
    step_deaths: int = 0
    restore_deaths: int = 0
    worker: bytes = b""
    incarnation: bytes = b""
    beside: bool = False
    blamed: list[Blamed] = []
    acquitted: int = 0
    verdict: str = ""
    until_us: int = 0
    quarantines: int = 0
    raised: Raised | None = None
