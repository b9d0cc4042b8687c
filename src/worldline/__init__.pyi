"""The public names of Worldline and where each is declared, for type checkers.

`__init__.py` has the same table for the running program, which loads a name when it is first used.
"""

from worldline import flow
from worldline.api.hosting import Hosting, serve
from worldline.api.open import open
from worldline.api.store_universes import UniverseInfo, create_universe, universes
from worldline.api.universe import Universe
from worldline.api.world import World
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
from worldline.client.dead_letters import DeadLetter
from worldline.client.journal_entry import Entry
from worldline.client.open_effects import OpenEffect
from worldline.client.run_handle import Run, Sent
from worldline.client.setting_calls import UniverseSetting
from worldline.client.snapshot_calls import SnapshotRecord
from worldline.client.world_names import Ref
from worldline.effects.attempt import Attempt, attempt
from worldline.effects.egress import Credential, Egress
from worldline.effects.secret_reading import secret
from worldline.features.abroad.calls import Allowed, AllowedChange
from worldline.features.anchors.anchor_check import AnchorCheck, AnchorVerdict
from worldline.features.anchors.anchor_signature import SigningKey
from worldline.features.anchors.records import Anchor
from worldline.features.collection.calls import Collected, Garbage
from worldline.features.copies.world_export import Exported
from worldline.features.deletion.universe_calls import delete_universe
from worldline.features.diff.records import Diff
from worldline.features.domains.previews import Explained, Preview
from worldline.features.domains.pure.job_trace import Trace, TraceEvent
from worldline.features.encryption.cipher_interface import Codec, CodecContext
from worldline.features.encryption.master_keys import AesGcm
from worldline.features.erasure.calls import Erasure
from worldline.features.policy.calls import PolicyChange, Rule
from worldline.features.quotas.calls import Quota, QuotaChange, QuotaUse
from worldline.features.shadow.pure.shadow_report import ShadowReport
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
from worldline.model.work import EffectAttempt, EffectHistory, WorkState
from worldline.model.world_records import Status, WorldMeta
from worldline.observe.counters import Counted, Counters
from worldline.observe.measures import Measure
from worldline.observe.sinks import Disposed, HostEvent, Journaled, Notice, Sinks
from worldline.runtime.live_hub import Chunk

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
