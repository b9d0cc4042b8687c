"""Documents as JSON Schema: the data of a domain, and the input of each action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET

from worldline.kernel.flow import schema

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(parsed: schema.DomainSchema) -> dict[str, Any]:
    """The schema of a domain's data. Names that begin with `$` are a host's and may be there."""
    found = members(parsed.state.fields)
    return {"$schema": DIALECT, "$id": parsed.id, **found, "patternProperties": {"^\\$": {"type": "object"}}}


def input_schema(action: schema.ActionSpec) -> dict[str, Any]:
    """The schema of an action's input."""
    if not isinstance(action.input, schema.FieldSpec):
        return {"$schema": DIALECT}
    if action.input.type != "object" or not isinstance(action.input.fields, dict):
        return {"$schema": DIALECT}
    return {"$schema": DIALECT, **members(action.input.fields)}


def members(fields: Mapping[str, schema.FieldSpec]) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": {name: field(spec) for name, spec in fields.items()},
        "required": [name for name, spec in fields.items() if spec.required],
        "additionalProperties": False,
    }


def field(spec: schema.FieldSpec) -> dict[str, Any]:
    """A field; null fits every one."""
    made = _shape(spec)
    if spec.description is not UNSET:
        made["description"] = spec.description
    if spec.default is not UNSET:
        made["default"] = spec.default
    return made


def _shape(spec: schema.FieldSpec) -> dict[str, Any]:
    kind = spec.type
    if isinstance(kind, schema.Enum):
        return {"enum": [*kind.enum, *([] if None in kind.enum else [None])]}
    if kind == "object":
        if not isinstance(spec.fields, dict):
            return {}
        return {"anyOf": [members(spec.fields), {"type": "null"}]}
    if kind == "array" and isinstance(spec.items, schema.FieldSpec):
        return {"type": ["array", "null"], "items": field(spec.items)}
    return {"type": kind if kind == "null" else [kind, "null"]}
