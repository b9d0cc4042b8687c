"""Flow domains: state, computed values and actions as data, and a host for them in this process."""

from worldline.flow.effects import EffectCall, Handler
from worldline.flow.events import Event, replay
from worldline.flow.host import Host, KeyFatal, Result
from worldline.kernel.flow.core import Core
from worldline.kernel.flow.faults import NotJson, Problem, SchemaRefused
from worldline.kernel.flow.jobs import Failure
from worldline.kernel.flow.patches import BadPatch, Patch, merge, unset
from worldline.kernel.flow.patches import set_ as set
from worldline.kernel.flow.schema import sealed
from worldline.kernel.flow.snapshots import ErrorValue, Intent, Requirement, Snapshot
from worldline.kernel.flow.validation import load, validate

__all__ = [
    "BadPatch",
    "Core",
    "EffectCall",
    "ErrorValue",
    "Event",
    "Failure",
    "Handler",
    "Host",
    "Intent",
    "KeyFatal",
    "NotJson",
    "Patch",
    "Problem",
    "Requirement",
    "Result",
    "SchemaRefused",
    "Snapshot",
    "load",
    "merge",
    "replay",
    "sealed",
    "set",
    "unset",
    "validate",
]
