"""Whether a value fits its field, and which field a path leads to.

Null fits every field of the state, for a field can always be emptied. In an input it fits those that are not required:
a required one is there to be read. An object without declared fields takes any value, and has no inner paths that a
patch could name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from worldline.flow_core import document_schema, js_values, value_paths


def lookup(
    fields: Mapping[str, document_schema.FieldSpec], segments: value_paths.Segments
) -> document_schema.FieldSpec | None:
    """Return the field that a patch path names, None if there is none."""
    spec = fields.get(segments[0])
    for segment in segments[1:]:
        if spec is None:
            return None
        if spec.type == "array":
            spec = spec.items if isinstance(spec.items, document_schema.FieldSpec) and segment.isdigit() else None
        else:
            spec = spec.fields.get(segment) if isinstance(spec.fields, dict) else None
    return spec


def readable(fields: Mapping[str, document_schema.FieldSpec], segments: value_paths.Segments) -> bool:
    """Return whether a `get` may name the path: as a patch may, and anything below what is not declared further."""
    spec = fields.get(segments[0])
    for segment in segments[1:]:
        if spec is None:
            return False
        if spec.type == "array":
            # `length` can be read, and not written: so it is here and not in `lookup`.
            if segment == "length" or not isinstance(spec.items, document_schema.FieldSpec):
                return True
            spec = spec.items if segment.isdigit() else None
        elif spec.type == "object":
            if not isinstance(spec.fields, dict):
                return True
            spec = spec.fields.get(segment)
        else:
            return False
    return spec is not None


def takes_null(spec: document_schema.FieldSpec) -> bool:
    """Return whether null is a value of a field of an input."""
    if isinstance(spec.type, document_schema.Enum):
        return not spec.required or None in spec.type.enum
    return not spec.required or spec.type == "null"


def misfit(
    spec: document_schema.FieldSpec, value: Any, where: str, *, partial: bool = False, is_input: bool = False
) -> str:
    """Why a value does not fit a field; empty if it does. `partial`: required members may be missing; `is_input`: it is
    an input, where what is required is not null.
    """
    if value is None:
        return "" if not is_input or takes_null(spec) else f"{where} is required, and null is no value for it"
    kind = spec.type
    if value is js_values.MISSING:
        return f"Value is required at {where}"
    if isinstance(kind, document_schema.Enum):
        fits = any(js_values.strict_equal(value, each) for each in kind.enum)
        return "" if fits else f"{where} must be one of {kind.enum}"
    found = js_values.kind_of(value)
    if kind == "object":
        if not isinstance(spec.fields, dict):
            return ""
        if found == "object":
            return _members(spec.fields, value, where, partial=partial, is_input=is_input)
    elif found == kind:
        if kind == "array" and isinstance(spec.items, document_schema.FieldSpec):
            each = (misfit(spec.items, item, f"{where}.{at}", is_input=is_input) for at, item in enumerate(value))
            return next((wrong for wrong in each if wrong), "")
        if kind == "number" and not math.isfinite(value):
            return f"{where} must be a finite number"
        return ""
    return f"{where} must be {kind}, not {found}"


def _members(
    fields: Mapping[str, document_schema.FieldSpec],
    value: Mapping[str, Any],
    where: str,
    *,
    partial: bool,
    is_input: bool,
) -> str:
    # Refused, because no path of the document could read it.
    for name in value:
        if name not in fields:
            return f"{where} has no field {name!r}"
    for name, spec in fields.items():
        if name not in value:
            if spec.required and not partial:
                return f"{where} needs the field {name!r}"
            continue
        if wrong := misfit(spec, value[name], f"{where}.{name}", is_input=is_input):
            return wrong
    return ""


def input_misfit(spec: document_schema.FieldSpec | Any, value: Any) -> str:
    """Why an intent's input does not fit; only inputs that are objects are looked into, and only their first level."""
    if spec is UNSET or spec.type != "object" or not isinstance(spec.fields, dict):
        return ""
    # No input is an object without members: what is required is named then.
    given = {} if value is js_values.MISSING or value is None else value
    if type(given) is not dict:
        return f"input must be an object, not {js_values.kind_of(given)}"
    return _members(spec.fields, given, "input", partial=False, is_input=True)
