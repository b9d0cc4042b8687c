"""Documents as JSON Schema: the data of a domain, and the input of each action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET

from worldline.flow_core import document_schema
from worldline.flow_core import fields as specs

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(parsed: document_schema.DomainSchema) -> dict[str, Any]:
    """Return the schema of a domain's data. Names that begin with `$` are a host's and may be there."""
    found = members(parsed.state.fields)
    return {"$schema": DIALECT, "$id": parsed.id, **found, "patternProperties": {"^\\$": {"type": "object"}}}


def input_schema(action: document_schema.ActionSpec) -> dict[str, Any]:
    """Return the schema of an action's input."""
    if not isinstance(action.input, document_schema.FieldSpec):
        return {"$schema": DIALECT}
    if action.input.type != "object" or not isinstance(action.input.fields, dict):
        return {"$schema": DIALECT}
    return {"$schema": DIALECT, **members(action.input.fields, is_input=True)}


def members(fields: Mapping[str, document_schema.FieldSpec], *, is_input: bool = False) -> dict[str, Any]:
    """Return an object with these fields and no others. `is_input`: as an input."""
    return {
        "type": "object",
        "properties": {name: field(spec, is_input=is_input) for name, spec in fields.items()},
        # Also where a default is declared: `required` says what must be there.
        "required": [name for name, spec in fields.items() if spec.required],
        "additionalProperties": False,
    }


def field(spec: document_schema.FieldSpec, *, is_input: bool = False) -> dict[str, Any]:
    """A field. Null fits every one of the state; of an input (`is_input`) only those that are not required."""
    made = _shape(spec, is_input=is_input)
    if spec.description is not UNSET:
        made["description"] = spec.description
    if spec.default is not UNSET:
        made["default"] = spec.default
    return made


def _shape(spec: document_schema.FieldSpec, *, is_input: bool) -> dict[str, Any]:
    kind, nullable = spec.type, not is_input or specs.takes_null(spec)
    if isinstance(kind, document_schema.Enum):
        # An enum of JSON Schema has null only if it names it.
        return {"enum": [*kind.enum, *([None] if nullable and None not in kind.enum else [])]}
    if kind == "object":
        if not isinstance(spec.fields, dict):
            # Any value, or any but null.
            return {} if nullable else {"type": ["object", "array", "string", "number", "boolean"]}
        inner = members(spec.fields, is_input=is_input)
        return {"anyOf": [inner, {"type": "null"}]} if nullable else inner
    made: dict[str, Any] = {"type": [kind, "null"] if nullable and kind != "null" else kind}
    if kind == "array" and isinstance(spec.items, document_schema.FieldSpec):
        made["items"] = field(spec.items, is_input=is_input)
    return made
