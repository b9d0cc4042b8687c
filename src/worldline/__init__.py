"""Worldline: a runtime for worlds, long-lived programs whose whole life is an append-only journal."""

if not __debug__:
    raise ImportError("Worldline keeps its assertions on: run Python without -O and PYTHONOPTIMIZE")

from worldline.adapters.egress import Egress
from worldline.base.errors import (
    BadInput,
    Closed,
    Conflicted,
    Corrupt,
    DedupeExpired,
    DurabilityWarning,
    Error,
    Exists,
    IdReused,
    NotFound,
    Overloaded,
    StepFailed,
    StoreError,
)
from worldline.base.failures import (
    Cancelled,
    Diverged,
    EffectFailed,
    EffectTimeout,
    Failed,
    Fatal,
    LimitExceeded,
    NotDurable,
    OutsideWorkflow,
    Refused,
    RunCancelled,
    RunFailed,
    TryAgain,
)
from worldline.control.measuring import Measure
from worldline.control.observing import Journaled, Notice, Sinks
from worldline.control.sdk import Run, Sent, Universe, World, open
from worldline.kernel import http_call as http
from worldline.kernel.calls import Call, Effect, Request, Retry, Workflow
from worldline.kernel.events import Envelope
from worldline.kernel.inside import (
    Scope,
    Started,
    Timer,
    after,
    ask,
    continue_as_new,
    emit,
    gather,
    log,
    now,
    patched,
    random,
    schedule,
    scope,
    send,
    sleep,
    sleep_until,
    start,
    state,
    unschedule,
    uuid,
    wait,
)
from worldline.kernel.program import Program
from worldline.kernel.reducers import on
from worldline.kernel.schedules import Scheduled
from worldline.kernel.scripts import Script
from worldline.roles.attempts import Attempt, attempt
from worldline.roles.hub import Chunk

__version__ = "0.1.0.dev0"

__all__ = [
    "Attempt",
    "BadInput",
    "Call",
    "Cancelled",
    "Chunk",
    "Closed",
    "Conflicted",
    "Corrupt",
    "DedupeExpired",
    "Diverged",
    "DurabilityWarning",
    "Effect",
    "EffectFailed",
    "EffectTimeout",
    "Egress",
    "Envelope",
    "Error",
    "Exists",
    "Failed",
    "Fatal",
    "IdReused",
    "Journaled",
    "LimitExceeded",
    "Measure",
    "NotDurable",
    "NotFound",
    "Notice",
    "OutsideWorkflow",
    "Overloaded",
    "Program",
    "Refused",
    "Request",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "Scheduled",
    "Scope",
    "Script",
    "Sent",
    "Sinks",
    "Started",
    "StepFailed",
    "StoreError",
    "Timer",
    "TryAgain",
    "Universe",
    "Workflow",
    "World",
    "after",
    "ask",
    "attempt",
    "continue_as_new",
    "emit",
    "gather",
    "http",
    "log",
    "now",
    "on",
    "open",
    "patched",
    "random",
    "schedule",
    "scope",
    "send",
    "sleep",
    "sleep_until",
    "start",
    "state",
    "unschedule",
    "uuid",
    "wait",
]
