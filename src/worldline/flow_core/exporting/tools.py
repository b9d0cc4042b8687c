"""The actions of a domain as tools of a language model: those that can be called now, and why the others cannot.

Three shapes, which differ in the names of their members alone:

| shape | one tool |
| --- | --- |
| openai | `{"type": "function", "function": {"name", "description", "parameters"}}` |
| anthropic | `{"name", "description", "input_schema"}` |
| mcp | `{"name", "description", "inputSchema"}`, as `tools/list` answers |

A tool is called with an object, and its name has at most 64 letters, digits, `_` and `-`: what the three have in
common. An action that takes something else than an object gets it as the member `input`; a name that is none becomes
one. Both are undone by `Tools.call`. Names depend on the document alone, and not on what is available.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from worldline.base import errors
from worldline.flow_core import core, flow_records, js_values
from worldline.flow_core import document_schema as schema
from worldline.flow_core.analysis import reads
from worldline.flow_core.compiled_document import Compiled
from worldline.flow_core.exporting import json_schema

Shape = Literal["openai", "anthropic", "mcp"]
SHAPES: Final[tuple[Shape, ...]] = ("openai", "anthropic", "mcp")
NAME_CHARACTERS_MAX: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_WRAPPED: Final = "input"


class Tool(msgspec.Struct, frozen=True):
    """An action that can be called now. `document` is what a model is given."""

    name: str
    action: str
    document: dict[str, Any]
    wraps: bool


class Unavailable(msgspec.Struct, frozen=True):
    """An action that cannot be called now, and why: as `Core.unavailable` says it."""

    name: str
    action: str
    code: str
    message: str
    reasons: tuple[str, ...]


class Tools(msgspec.Struct, frozen=True):
    """What can be done now, and what cannot."""

    available: tuple[Tool, ...]
    unavailable: tuple[Unavailable, ...]

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The tools as a model's interface takes them."""
        return [each.document for each in self.available]

    def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> tuple[str, Any]:
        """Return the action that a model has chosen, and its input. Raises `BadInput` for what cannot be called now."""
        for each in self.available:
            if each.name == name:
                given = dict(arguments or {})
                return each.action, given.get(_WRAPPED, js_values.MISSING) if each.wraps else given or js_values.MISSING
        for other in self.unavailable:
            # A model may still choose a tool that it was offered before.
            if other.name == name:
                said = "; ".join(other.reasons) or other.message
                raise errors.BadInput(f"{name} cannot be called now: {said}")
        known = ", ".join(each.name for each in self.available) or "none"
        raise errors.BadInput(f"there is no tool {name!r}; there are {known}")


def tools(schema: Compiled, snapshot: flow_records.Snapshot, *, shape: Shape) -> Tools:
    """Offer the actions that an intent may name now as tools of a shape, and the others with reasons."""
    if shape not in SHAPES:
        raise errors.BadInput(f"no tools have the shape {shape!r}; there are {', '.join(SHAPES)}")
    available: list[Tool] = []
    unavailable: list[Unavailable] = []
    calls = core.Core(trace=False)
    for action, name in tool_names(schema.schema).items():
        refusal = calls.unavailable(schema, snapshot, action)
        if refusal is not None:
            unavailable.append(Unavailable(name, action, refusal.code, refusal.message, refusal.reasons))
            continue
        spec = schema.schema.actions[action]
        available.append(Tool(name, action, _document(spec, name, shape), _wraps(spec)))
    return Tools(tuple(available), tuple(unavailable))


def tool_names(parsed: schema.DomainSchema) -> dict[str, str]:
    """Return the name of the tool for each action."""
    names: dict[str, str] = {}
    # Names that are valid already go first, so that none that is made up takes one of them.
    taken: dict[str, None] = {each: None for each in parsed.actions if _is_name(each)}
    for action in parsed.actions:
        names[action] = action if _is_name(action) else _free(action, taken)
        taken[names[action]] = None
    return names


def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_CHARACTERS_MAX and not _NOT_IN_NAMES.search(text)


def _free(action: str, taken: Mapping[str, None]) -> str:
    """A name like that of the action that no other has."""
    base = _NOT_IN_NAMES.sub("_", action) or "_"
    found, count = base[:NAME_CHARACTERS_MAX], 1
    while found in taken:  # ends: there are fewer names than counts
        count += 1
        end = f"_{count}"
        found = base[: NAME_CHARACTERS_MAX - len(end)] + end
    return found


def _document(spec: schema.ActionSpec, name: str, shape: Shape) -> dict[str, Any]:
    said: dict[str, Any] = {"name": name}
    if isinstance(spec.description, str):
        said["description"] = spec.description
    taken = _parameters(spec)
    if shape == "openai":
        return {"type": "function", "function": {**said, "parameters": taken}}
    return {**said, "input_schema" if shape == "anthropic" else "inputSchema": taken}


def _wraps(spec: schema.ActionSpec) -> bool:
    """Return whether the action takes something else than an object."""
    return isinstance(spec.input, schema.FieldSpec) and spec.input.type != "object"


def _parameters(spec: schema.ActionSpec) -> dict[str, Any]:
    """Return the schema of a tool's argument, which is an object."""
    if not isinstance(spec.input, schema.FieldSpec):
        closed: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
        # An action may read an input that it does not declare, so nothing can be forbidden there.
        return {"type": "object"} if _reads_input(spec) else closed
    if spec.input.type != "object":
        inner = json_schema.field(spec.input, is_input=True)
        return {
            "type": "object",
            "properties": {_WRAPPED: inner},
            "required": [_WRAPPED],
            "additionalProperties": False,
        }
    if not isinstance(spec.input.fields, dict):
        return {"type": "object"}
    return json_schema.members(spec.input.fields, is_input=True)


def _reads_input(spec: schema.ActionSpec) -> bool:
    """Whether an action that declares no input may read one all the same, itself or in an action that it calls."""
    # What a called action reads is not looked up: it may be the input.
    if any(node["kind"] == "call" for _, node in reads.walk(spec)):
        return True
    return any(path == _WRAPPED or path.startswith(f"{_WRAPPED}.") for path in reads.of_action(spec))
