"""A domain as lines for people: its fields, its computed values, its actions and what each needs and does."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import UNSET

from worldline.flow_core import document_schema
from worldline.flow_core.analysis import reads
from worldline.flow_core.compiled_document import Compiled
from worldline.flow_core.expressions import reasons


class Outline(msgspec.Struct, frozen=True):
    """What a document declares, each part as text by its name."""

    id: str
    version: str
    hash: str
    description: str
    fields: dict[str, str]
    computed: dict[str, str]
    actions: dict[str, ActionOutline]


class ActionOutline(msgspec.Struct, frozen=True):
    """An action: its input, its condition, and what it reads, writes and asks for."""

    description: str
    input: dict[str, str]
    available: str
    writes: list[str]
    effects: list[str]


def outline(domain: Compiled) -> Outline:
    """Describe a whole document."""
    parsed = domain.schema
    meta = parsed.meta if isinstance(parsed.meta, dict) else {}
    return Outline(
        id=parsed.id,
        version=parsed.version,
        hash=domain.hash,
        description=str(meta.get("description", "")),
        fields={name: _field(spec) for name, spec in parsed.state.fields.items()},
        computed={key: reasons.text(each.expr) for key, each in parsed.computed.fields.items()},
        actions={name: _action(each) for name, each in parsed.actions.items()},
    )


def lines(outline: Outline) -> list[str]:
    """Write an outline as the lines that are shown."""
    said = [f"{outline.id} {outline.version}", f"hash {outline.hash}", *outline.description.splitlines(), "", "fields"]
    said += _aligned(outline.fields)
    said += ["", "computed", *_aligned(outline.computed), "", "actions"]
    for name, each in outline.actions.items():
        taken = ", ".join(f"{member}: {what}" for member, what in each.input.items())
        said.append(f"  {name}({taken})")
        parts = {
            # On one line, because each part of an action is one.
            "": each.description.replace("\n", " "),
            "available if ": each.available,
            "writes ": ", ".join(each.writes),
            "asks for ": ", ".join(each.effects),
        }
        said += [f"    {title}{text}" for title, text in parts.items() if text]
    return said


def _aligned(pairs: dict[str, str]) -> list[str]:
    width = max((len(name) for name in pairs), default=0)
    return [f"  {name.ljust(width)}  {text}" for name, text in pairs.items()]


def _action(spec: document_schema.ActionSpec) -> ActionOutline:
    taken: dict[str, str] = {}
    if isinstance(spec.input, document_schema.FieldSpec):
        inner = spec.input.fields
        taken = {name: _field(each) for name, each in inner.items()} if isinstance(inner, dict) else {}
        # An input that is no object is shown as one parameter.
        taken = taken or {"input": _field(spec.input)}
    return ActionOutline(
        description=spec.description if isinstance(spec.description, str) else "",
        input=taken,
        available=reasons.text(spec.available) if isinstance(spec.available, dict) else "",
        writes=reads.written(spec),
        effects=reads.effects(spec),
    )


def _field(spec: document_schema.FieldSpec) -> str:
    default = "" if spec.default is UNSET else f" = {_text(spec.default)}"
    optional = "" if spec.required or spec.default is not UNSET else ", optional"
    return f"{_kind(spec)}{default}{optional}"


def _kind(spec: document_schema.FieldSpec) -> str:
    if isinstance(spec.type, document_schema.Enum):
        return " | ".join(_text(each) for each in spec.type.enum)
    if spec.type == "array" and isinstance(spec.items, document_schema.FieldSpec):
        return f"array of {_kind(spec.items)}"
    if spec.type == "object" and isinstance(spec.fields, dict):
        return "{" + ", ".join(f"{name}: {_kind(each)}" for name, each in spec.fields.items()) + "}"
    return spec.type


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
