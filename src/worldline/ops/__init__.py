"""What operators use: settings, quotas, policy, universes, keys, anchors, metrics and sinks, results of upkeep."""

from worldline.api.hosting import Hosting
from worldline.api.store_universes import UniverseInfo, create_universe, delete_universe, universes
from worldline.base.env import Env
from worldline.base.secret import Secret
from worldline.client.open_effects import OpenEffect
from worldline.client.setting_calls import UniverseSetting
from worldline.client.snapshot_calls import SnapshotRecord
from worldline.client.world_names import Ref
from worldline.effects.egress import Credential, Egress
from worldline.features.abroad.calls import Allowed, AllowedChange
from worldline.features.anchors.anchor_check import AnchorCheck, AnchorVerdict
from worldline.features.anchors.anchor_signature import SigningKey
from worldline.features.anchors.records import Anchor
from worldline.features.collection.calls import Collected, Garbage
from worldline.features.copies.world_export import Exported
from worldline.features.domains.previews import Explained, Preview
from worldline.features.domains.pure.job_trace import Trace, TraceEvent
from worldline.features.encryption.cipher_interface import Codec, CodecContext
from worldline.features.encryption.master_keys import AesGcm
from worldline.features.erasure.calls import Erasure
from worldline.features.policy.calls import PolicyChange, Rule
from worldline.features.quotas.calls import QuotaChange
from worldline.features.quotas.quota_use import Quota, QuotaUse
from worldline.features.shadow.pure.shadow_report import ShadowReport
from worldline.model.settings import (
    AdapterSettings,
    CacheSettings,
    JanitorSettings,
    OrchestratorSettings,
    PressureSettings,
    TimerSettings,
    WorkerSettings,
)
from worldline.model.work import EffectAttempt, EffectHistory
from worldline.model.world_records import WorldMeta
from worldline.observe.counters import Counted, Counters
from worldline.observe.measures import Measure
from worldline.observe.sinks import Disposed, HostEvent, Journaled, Notice, Sinks

__all__ = [
    "AdapterSettings",
    "AesGcm",
    "Allowed",
    "AllowedChange",
    "Anchor",
    "AnchorCheck",
    "AnchorVerdict",
    "CacheSettings",
    "Codec",
    "CodecContext",
    "Collected",
    "Counted",
    "Counters",
    "Credential",
    "Disposed",
    "EffectAttempt",
    "EffectHistory",
    "Egress",
    "Env",
    "Erasure",
    "Explained",
    "Exported",
    "Garbage",
    "HostEvent",
    "Hosting",
    "JanitorSettings",
    "Journaled",
    "Measure",
    "Notice",
    "OpenEffect",
    "OrchestratorSettings",
    "PolicyChange",
    "PressureSettings",
    "Preview",
    "Quota",
    "QuotaChange",
    "QuotaUse",
    "Ref",
    "Rule",
    "Secret",
    "ShadowReport",
    "SigningKey",
    "Sinks",
    "SnapshotRecord",
    "TimerSettings",
    "Trace",
    "TraceEvent",
    "UniverseInfo",
    "UniverseSetting",
    "WorkerSettings",
    "WorldMeta",
    "create_universe",
    "delete_universe",
    "universes",
]
