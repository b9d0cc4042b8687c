"""Open work: one effect or timer a world has asked for and not yet heard back from."""

from __future__ import annotations

import enum

import msgspec

from worldline.model.payload import Payload


class WorkKind(enum.IntEnum):
    EFFECT = 1
    TIMER = 2
    MESSAGE = 3  # known to the world alone: it leaves with the step and is in no queue


class WorkState(enum.IntEnum):
    """Transitions are in `layers/work.py`. Numbers are stored and never reused."""

    WAITING = 1  # due at `due_us`, unclaimed
    CLAIMED = 2  # an effect worker's until `due_us`, under `token`
    PARKED = 3  # set aside until retried by hand; not in the due queue
    SETTLED = 4  # answered; stays until the world has consumed the answer
    SENT = 5  # a question that is in another universe's inbox: the answer comes from there


class EffectAttempt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One attempt at an effect: when, in which process, and how it ended.

    `ended`: "ok", "failed", "timeout", "retried", "parked", "given back" by a process that ended in order, or "died" if
    its process died or said nothing until its claim ran out. Times are the store's, in microseconds.
    """

    number: int
    began_us: int
    ended_us: int
    worker: bytes
    ended: str
    error: str = ""


class EffectHistory(msgspec.Struct, frozen=True):
    """The last attempts at one effect, the oldest first. `id` names the effect; `open`: it has no answer yet."""

    effect: str
    id: str
    attempts: list[EffectAttempt]
    open: bool = False


class Work(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The authority over one intent: every change expects its exact bytes."""

    kind: WorkKind
    state: WorkState
    queue: str
    reserved: int  # 0, as in the due key
    name: str  # the effect's kind; for a timer, its purpose
    params: Payload
    step: int
    ordinal: int
    opened_us: int
    due_us: int
    attempt: int = 0
    token: bytes = b""
    worker: bytes = b""
    deadline_us: int = 0  # of all attempts together; 0: none
    error: str = ""  # what the last attempt failed with
    correlation: str = ""
    trace: str = ""  # where in its code the last attempt failed, for people
    died: int = 0  # attempts in a row whose processes did not say how they ended
    asked: bytes = b""  # of a question that was SENT: the universe and the world that it was put to
    alone: bool = False  # of a claim: nothing else that its process may die of runs there
    blamed: list[bytes] = []  # the workers of attempts in a row that died alone
    claimed_us: int = 0  # when it was claimed last; 0: with the step that asked for it
    tried: list[EffectAttempt] = []  # the last attempts that have ended, the oldest first
    correlation_id: str = ""  # of what it was asked for in the course of
