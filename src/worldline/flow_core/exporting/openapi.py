"""A domain as an OpenAPI 3.1 description: a request for each action, and one for the state.

It describes an interface for a server of the user's own; `worldline` has none. What an action answers is what a host's
`Result` has: its status, the data and computed values, and the error if there is one.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from worldline.flow_core import document_schema
from worldline.flow_core.exporting import json_schema, tools

VERSION: Final = "3.1.0"
_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "reasons": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["code", "message"],
}


def openapi(parsed: document_schema.DomainSchema) -> dict[str, Any]:
    """Return the description of a whole domain."""
    info: dict[str, Any] = {"title": parsed.id, "version": parsed.version}
    meta = parsed.meta if isinstance(parsed.meta, dict) else {}
    if isinstance(meta.get("description"), str):
        info["description"] = meta["description"]
    names = tools.tool_names(parsed)
    requests = {
        # The name of an action is any text.
        f"/actions/{quote(name, safe='')}": {"post": _action(spec, names[name])}
        for name, spec in parsed.actions.items()
    }
    state = {"operationId": "get-state", "responses": {"200": _answer("What there is now", "State")}}
    return {
        "openapi": VERSION,
        "jsonSchemaDialect": json_schema.DIALECT,
        "info": info,
        "paths": {"/state": {"get": state}, **requests},
        "components": {"schemas": {"State": _state(parsed), "Result": _RESULT, "Error": _ERROR}},
    }


_RESULT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "status": {"enum": ["complete", "error"]},
        "state": {"$ref": "#/components/schemas/State"},
        "error": {"anyOf": [{"$ref": "#/components/schemas/Error"}, {"type": "null"}]},
    },
    "required": ["status", "state"],
}


def _state(parsed: document_schema.DomainSchema) -> dict[str, Any]:
    data = json_schema.json_schema(parsed)
    # Inside a description a schema names neither dialect nor id.
    del data["$schema"], data["$id"]
    computed = {
        key: {} if not isinstance(field.description, str) else {"description": field.description}
        for key, field in parsed.computed.fields.items()
    }
    return {
        "type": "object",
        "properties": {"data": data, "computed": {"type": "object", "properties": computed}},
        "required": ["data", "computed"],
    }


def _action(spec: document_schema.ActionSpec, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {"operationId": f"act-{name}"}
    if isinstance(spec.description, str):
        made["description"] = spec.description
    if isinstance(spec.input, document_schema.FieldSpec):
        taken = json_schema.input_schema(spec)
        del taken["$schema"]
        # An input that is no object has no members: its own schema stands there.
        made["requestBody"] = {
            "required": spec.input.required,
            "content": {"application/json": {"schema": taken or json_schema.field(spec.input, is_input=True)}},
        }
    made["responses"] = {
        "200": _answer("What became of it", "Result"),
        "409": _answer("The action is not available now, and why", "Error"),
        "422": _answer("The input does not fit", "Error"),
    }
    return made


def _answer(what: str, name: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"description": what, "content": content}
