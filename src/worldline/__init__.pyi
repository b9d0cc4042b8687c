"""The public names of Worldline and where each is declared, for type checkers.

`__init__.py` has the same table for the running program, which loads a name when it is first used.
"""

from worldline import flow
from worldline.adapters.egress import Credential, Egress
from worldline.base.env import Env
from worldline.base.errors import (
    BadAnchor,
    BadCopy,
    BadInput,
    CellUnfit,
    Closed,
    CodecFailed,
    CodecMismatch,
    Conflicted,
    CopyTooLarge,
    Corrupt,
    DedupeExpired,
    DurabilityWarning,
    Error,
    Exists,
    IdReused,
    InUse,
    KeyDestroyed,
    KeyMissing,
    KeyWorn,
    ModeWarning,
    NotFound,
    NotHosted,
    NotRetained,
    Overloaded,
    QuotaExceeded,
    ReservedName,
    RunBlocked,
    StepFailed,
    StoreError,
    StoreUncertain,
    Unhandled,
    WrongKey,
)
from worldline.base.failures import (
    CancelKind,
    Cancelled,
    Diverged,
    EffectFailed,
    EffectTimeout,
    Erased,
    Failed,
    Fatal,
    LimitExceeded,
    NotDurable,
    OutsideEffect,
    OutsideWorkflow,
    PolicyDenied,
    Refused,
    ResourceFailed,
    RunCancelled,
    RunFailed,
    RunReverted,
    SecretMissing,
    TooManyRuns,
    TryAgain,
    Undeliverable,
)
from worldline.base.secret import Secret
from worldline.client.access.grants import Allowed, AllowedChange
from worldline.client.access.policy import PolicyChange, Rule
from worldline.client.access.quotas import Quota, QuotaChange, QuotaUse
from worldline.client.access.store_universes import UniverseInfo, create_universe, universes
from worldline.client.access.universe_settings import UniverseSetting
from worldline.client.anchors.anchoring import AnchorCheck, AnchorVerdict
from worldline.client.anchors.signing import SigningKey
from worldline.client.dead_letters import DeadLetter
from worldline.client.diff.result import Diff
from worldline.client.effect import OpenEffect
from worldline.client.flow.looking import Explained, Preview
from worldline.client.hosting.many import Hosting, serve
from worldline.client.journal_entry import Entry
from worldline.client.open import open
from worldline.client.personal.erase import Erasure
from worldline.client.refs import Ref
from worldline.client.run import Run, Sent
from worldline.client.snapshots import SnapshotRecord
from worldline.client.universe import Universe
from worldline.client.upkeep.collection import Collected, Garbage
from worldline.client.upkeep.universe_deletion import delete_universe
from worldline.client.world import World
from worldline.kernel.authoring import http_call as http
from worldline.kernel.authoring.calls import Call, Effect, Request, Retry, Workflow
from worldline.kernel.authoring.log import log
from worldline.kernel.authoring.messages import Receipt, Sender
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
from worldline.kernel.domains.tracing import Trace, TraceEvent
from worldline.kernel.events import Envelope
from worldline.kernel.flow.authoring.acts import Acted
from worldline.kernel.personal import Personal
from worldline.kernel.rows.records import RunStatus
from worldline.kernel.schedules import Scheduled
from worldline.kernel.shadow.report import ShadowReport
from worldline.model.journal import Head, Kind
from worldline.model.settings import (
    AdapterSettings,
    CacheSettings,
    JanitorSettings,
    OrchestratorSettings,
    PressureSettings,
    Settings,
    TimerSettings,
    WorkerSettings,
)
from worldline.model.upkeep.anchor import Anchor
from worldline.model.work import EffectAttempt, EffectHistory, WorkState
from worldline.model.world import Status, WorldMeta
from worldline.observe.counters import Counted, Counters
from worldline.observe.measures import Measure
from worldline.observe.sinks import Disposed, HostEvent, Journaled, Notice, Sinks
from worldline.roles.copies.world_export import Exported
from worldline.roles.effects.attempt import Attempt, attempt
from worldline.roles.effects.secrets import secret
from worldline.roles.hub import Chunk
from worldline.store.encryption.interface import Codec, CodecContext
from worldline.store.encryption.master_keys import AesGcm

__version__: str

__all__ = [
    "Acted",
    "AdapterSettings",
    "AesGcm",
    "Allowed",
    "AllowedChange",
    "Anchor",
    "AnchorCheck",
    "AnchorVerdict",
    "Attempt",
    "BadAnchor",
    "BadCopy",
    "BadInput",
    "CacheSettings",
    "Call",
    "CancelKind",
    "Cancelled",
    "CellUnfit",
    "Chunk",
    "Closed",
    "Codec",
    "CodecContext",
    "CodecFailed",
    "CodecMismatch",
    "Collected",
    "Conflicted",
    "CopyTooLarge",
    "Corrupt",
    "Counted",
    "Counters",
    "Credential",
    "DeadLetter",
    "DedupeExpired",
    "Diff",
    "Disposed",
    "Diverged",
    "DurabilityWarning",
    "Effect",
    "EffectAttempt",
    "EffectFailed",
    "EffectHistory",
    "EffectTimeout",
    "Egress",
    "Entry",
    "Env",
    "Envelope",
    "Erased",
    "Erasure",
    "Error",
    "Exists",
    "Explained",
    "Exported",
    "Failed",
    "Fatal",
    "Garbage",
    "Head",
    "HostEvent",
    "Hosting",
    "IdReused",
    "InUse",
    "JanitorSettings",
    "Journaled",
    "KeyDestroyed",
    "KeyMissing",
    "KeyWorn",
    "Kind",
    "LimitExceeded",
    "Measure",
    "ModeWarning",
    "NotDurable",
    "NotFound",
    "NotHosted",
    "NotRetained",
    "Notice",
    "OpenEffect",
    "OrchestratorSettings",
    "OutsideEffect",
    "OutsideWorkflow",
    "Overloaded",
    "Personal",
    "PolicyChange",
    "PolicyDenied",
    "PressureSettings",
    "Preview",
    "Program",
    "Quota",
    "QuotaChange",
    "QuotaExceeded",
    "QuotaUse",
    "Receipt",
    "Ref",
    "Refused",
    "Request",
    "ReservedName",
    "Resource",
    "ResourceFailed",
    "Retry",
    "Rule",
    "Run",
    "RunBlocked",
    "RunCancelled",
    "RunFailed",
    "RunReverted",
    "RunStatus",
    "Scheduled",
    "Scope",
    "Script",
    "Secret",
    "SecretMissing",
    "Sender",
    "Sent",
    "Settings",
    "ShadowReport",
    "SigningKey",
    "Sinks",
    "SnapshotRecord",
    "Started",
    "Status",
    "StepFailed",
    "StoreError",
    "StoreUncertain",
    "Timer",
    "TimerSettings",
    "TooManyRuns",
    "Trace",
    "TraceEvent",
    "TryAgain",
    "Undeliverable",
    "Unhandled",
    "Universe",
    "UniverseInfo",
    "UniverseSetting",
    "WorkState",
    "WorkerSettings",
    "Workflow",
    "World",
    "WorldMeta",
    "WrongKey",
    "act",
    "after",
    "ask",
    "attempt",
    "continue_as_new",
    "create_universe",
    "delete_universe",
    "emit",
    "flow",
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
    "secret",
    "send",
    "sender",
    "serve",
    "sleep",
    "sleep_until",
    "start",
    "state",
    "universes",
    "unschedule",
    "use",
    "uuid",
    "wait",
]
