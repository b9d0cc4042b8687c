"""Tracebacks of user code that failed: kept beside the journal, for people. Nothing is decided by them."""

from __future__ import annotations

import enum

import msgspec


class TraceSource(enum.IntEnum):
    """What failed. Numbers are stored and never reused."""

    RUN = 1
    HANDLER = 2
    WHERE = 3  # the condition of a `wl.wait`
    EFFECT = 4  # its last attempt
    ATTEMPTS = 5  # at an effect of a run: no traceback, but a `work.EffectHistory` as JSON


class TracedFailure(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`subject`: the id of the run whose code, `where=` or effect it was, `Reducer.method`, or the effect's intent."""

    source: TraceSource
    subject: str
    text: str


class StepTraces(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The traces of one step, in the order in which things failed."""

    step: int
    time_us: int
    traces: list[TracedFailure]
