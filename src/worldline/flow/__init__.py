"""Flow domains: state, computed values and actions as data, and a host for them in this process."""

from worldline.flow.effect_registry import EffectCall, Handler, answering
from worldline.flow.flow_host import Host, KeyFatal, Result
from worldline.flow.host_events import Event, replay
from worldline.flow_core.analysis.explore import Explored, NeverRuns, Step, explore
from worldline.flow_core.analysis.explore import StuckState as Stuck
from worldline.flow_core.authoring import ops as x
from worldline.flow_core.authoring.document_domain import Document
from worldline.flow_core.authoring.domain_class import (
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
from worldline.flow_core.authoring.domain_class import EffectError as Error
from worldline.flow_core.authoring.terms import BadDomain
from worldline.flow_core.core import Core, Refusal
from worldline.flow_core.document_schema import sealed
from worldline.flow_core.exporting.json_schema import input_schema, json_schema
from worldline.flow_core.exporting.mermaid import mermaid
from worldline.flow_core.exporting.openapi import openapi
from worldline.flow_core.exporting.tools import Tool, Tools, Unavailable, tools
from worldline.flow_core.faults import NotJson, Problem, SchemaRefused
from worldline.flow_core.flow_records import GIVEN, ErrorValue, Intent, Requirement, Snapshot
from worldline.flow_core.hashing import intent_key
from worldline.flow_core.jobs import Failure
from worldline.flow_core.patches import BadPatch, Patch, merge, unset
from worldline.flow_core.patches import set_ as set
from worldline.flow_core.validation import load, validate

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
