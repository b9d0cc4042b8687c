"""The public names of Worldline and where each is declared, for type checkers.

`__init__.py` has the same table for the running program, which loads a name when it is first used.
"""

from worldline import errors, flow, ops
from worldline.api.hosting import serve
from worldline.api.open import open
from worldline.api.universe_api import Universe
from worldline.api.world_api import World
from worldline.base.errors import BadInput, Error, Exists, NotFound, NotHosted, Overloaded, StoreUncertain
from worldline.base.failures import (
    CancelKind,
    Cancelled,
    EffectFailed,
    EffectTimeout,
    Fatal,
    Refused,
    RunCancelled,
    RunFailed,
    TryAgain,
    Undeliverable,
)
from worldline.client.dead_letters import DeadLetter
from worldline.client.journal_entry import Entry
from worldline.client.run_handle import Run, Sent
from worldline.effects.attempt import Attempt, attempt
from worldline.effects.secret_reading import secret
from worldline.features.diff.records import Diff
from worldline.flow_core.authoring.action_calls import Acted
from worldline.kernel.authoring import http_call as http
from worldline.kernel.authoring.calls import Call, Effect, Request, Retry, Workflow
from worldline.kernel.authoring.log_calls import log
from worldline.kernel.authoring.message_calls import Receipt, Sender
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.reducers import on
from worldline.kernel.authoring.resources import Resource, use
from worldline.kernel.authoring.scripts import Script
from worldline.kernel.authoring.workflow_api import (
    Scope,
    Started,
    Timer,
    act,
    after,
    ask,
    continue_as_new,
    emit,
    gather,
    now,
    patched,
    random,
    schedule,
    scope,
    send,
    sender,
    sleep,
    sleep_until,
    start,
    state,
    unschedule,
    uuid,
    wait,
)
from worldline.kernel.event_dispatch import Envelope
from worldline.kernel.personal.personal_value import Personal
from worldline.kernel.rows.row_records import RunStatus
from worldline.kernel.schedules import Scheduled
from worldline.model.journal import Head, Kind
from worldline.model.settings import Settings
from worldline.model.work import WorkState
from worldline.model.world_records import Status
from worldline.runtime.live_hub import Chunk

__version__: str

__all__ = [
    "Acted",
    "Attempt",
    "BadInput",
    "Call",
    "CancelKind",
    "Cancelled",
    "Chunk",
    "DeadLetter",
    "Diff",
    "Effect",
    "EffectFailed",
    "EffectTimeout",
    "Entry",
    "Envelope",
    "Error",
    "Exists",
    "Fatal",
    "Head",
    "Kind",
    "NotFound",
    "NotHosted",
    "Overloaded",
    "Personal",
    "Program",
    "Receipt",
    "Refused",
    "Request",
    "Resource",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunStatus",
    "Scheduled",
    "Scope",
    "Script",
    "Sender",
    "Sent",
    "Settings",
    "Started",
    "Status",
    "StoreUncertain",
    "Timer",
    "TryAgain",
    "Undeliverable",
    "Universe",
    "WorkState",
    "Workflow",
    "World",
    "act",
    "after",
    "ask",
    "attempt",
    "continue_as_new",
    "emit",
    "errors",
    "flow",
    "gather",
    "http",
    "log",
    "now",
    "on",
    "open",
    "ops",
    "patched",
    "random",
    "schedule",
    "scope",
    "secret",
    "send",
    "sender",
    "serve",
    "sleep",
    "sleep_until",
    "start",
    "state",
    "unschedule",
    "use",
    "uuid",
    "wait",
]
