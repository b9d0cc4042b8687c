"""Flow domains: state, computed values and actions as data, and a host for them in this process."""

from worldline.flow.effects import EffectCall, Handler, answering
from worldline.flow.events import Event, replay
from worldline.flow.host import Host, KeyFatal, Result
from worldline.kernel.flow.analysis.explore import Explored, NeverRuns, Step, explore
from worldline.kernel.flow.analysis.explore import StuckState as Stuck
from worldline.kernel.flow.authoring import ops as x
from worldline.kernel.flow.authoring.documents import Document
from worldline.kernel.flow.authoring.domains import (
    Act,
    Action,
    Domain,
    action,
    ask,
    available,
    call,
    clear,
    computed,
    fail,
    halt,
    once,
    otherwise,
    perform,
    update,
    when,
)
from worldline.kernel.flow.authoring.domains import (
    EffectError as Error,
)
from worldline.kernel.flow.authoring.terms import BadDomain
from worldline.kernel.flow.core import Core, Refusal
from worldline.kernel.flow.exporting.json_schema import input_schema, json_schema
from worldline.kernel.flow.exporting.mermaid import mermaid
from worldline.kernel.flow.exporting.openapi import openapi
from worldline.kernel.flow.exporting.tools import Tool, Tools, Unavailable, tools
from worldline.kernel.flow.faults import NotJson, Problem, SchemaRefused
from worldline.kernel.flow.hashing import intent_key
from worldline.kernel.flow.jobs import Failure
from worldline.kernel.flow.patches import BadPatch, Patch, merge, unset
from worldline.kernel.flow.patches import set_ as set
from worldline.kernel.flow.schema import sealed
from worldline.kernel.flow.snapshots import GIVEN, ErrorValue, Intent, Requirement, Snapshot
from worldline.kernel.flow.validation import load, validate

__all__ = [
    "GIVEN",
    "Act",
    "Action",
    "BadDomain",
    "BadPatch",
    "Core",
    "Document",
    "Domain",
    "EffectCall",
    "Error",
    "ErrorValue",
    "Event",
    "Explored",
    "Failure",
    "Handler",
    "Host",
    "Intent",
    "KeyFatal",
    "NeverRuns",
    "NotJson",
    "Patch",
    "Problem",
    "Refusal",
    "Requirement",
    "Result",
    "SchemaRefused",
    "Snapshot",
    "Step",
    "Stuck",
    "Tool",
    "Tools",
    "Unavailable",
    "action",
    "answering",
    "ask",
    "available",
    "call",
    "clear",
    "computed",
    "explore",
    "fail",
    "halt",
    "input_schema",
    "intent_key",
    "json_schema",
    "load",
    "merge",
    "mermaid",
    "once",
    "openapi",
    "otherwise",
    "perform",
    "replay",
    "sealed",
    "set",
    "tools",
    "unset",
    "update",
    "validate",
    "when",
    "x",
]
