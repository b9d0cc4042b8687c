"""Patches: set, unset and merge, each of one path of the data.

`written` is what both a flow's patch node and `apply` do with one patch: look the field up, check the value, copy the
way to it. What is refused raises a `Fault` and changes nothing. A name that begins with `$` is a namespace of a
platform: no field declares it, and its root must be an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from worldline.base import errors, limits
from worldline.flow_core import document_schema, faults, fields, js_values, value_paths

RESERVED: Final = ("system", "input", "computed", "meta")
CLEAR: Final = "system.pendingRequirements"  # the one path outside the data that a host writes


class BadPatch(errors.BadInput):
    """What is no patch: an unknown op, a path that is no text, a value that is no JSON. Nothing was changed."""

    code = "bad_patch"


class Patch(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of the data. Only `unset` has no value."""

    op: str
    path: str
    value: Any = js_values.MISSING


class Concrete(tuple[Patch, ...]):
    """Patches that were checked and copied: whatever else refers to their values does not change them."""

    __slots__ = ()


def set_(path: str, value: Any) -> Patch:
    """Make a patch that sets a path to a value."""
    return Patch(op="set", path=path, value=value)


def unset(path: str) -> Patch:
    """Make a patch that removes a path."""
    return Patch(op="unset", path=path)


def merge(path: str, value: Mapping[str, Any]) -> Patch:
    """Make a patch that merges fields into the object at a path."""
    return Patch(op="merge", path=path, value=value)


def concrete(patch_list: object) -> Concrete:
    """Patches as callers give them, as records or as JSON, checked and copied. Raises `BadPatch`."""
    # Checked before: most jobs hand on what they have made themselves.
    if type(patch_list) is Concrete:
        return patch_list
    if not isinstance(patch_list, list | tuple):
        raise BadPatch(f"patches are a list, not {type(patch_list).__name__}")
    if len(patch_list) > limits.FLOW_PATCHES_MAX:
        raise BadPatch(f"{len(patch_list)} patches; the limit is {limits.FLOW_PATCHES_MAX}")
    return Concrete([_concrete(each) for each in patch_list])


def _concrete(patch: object) -> Patch:
    if not isinstance(patch, Patch):
        if not isinstance(patch, Mapping):
            raise BadPatch(f"a patch is an object with op and path, not {type(patch).__name__}")
        patch = Patch(patch.get("op", ""), patch.get("path", ""), patch.get("value", js_values.MISSING))
    if patch.op not in document_schema.OPS:
        raise BadPatch(f"no patch has the op {patch.op!r}; there are {', '.join(document_schema.OPS)}")
    path: object = patch.path
    if not isinstance(path, str) or not path:
        raise BadPatch(f"the path of a patch is a text, not {path!r}")
    if js_values.FORBIDDEN_KEY in value_paths.split(patch.path):
        raise BadPatch(f"no path may name {js_values.FORBIDDEN_KEY}")
    if patch.op == "unset":
        return Patch("unset", patch.path)
    if patch.value is js_values.MISSING:
        raise BadPatch(f"{patch.op} of {patch.path} needs a value")
    try:
        return Patch(patch.op, patch.path, js_values.from_outside(patch.value, patch.path))
    except faults.NotJson as refused:
        raise BadPatch(str(refused)) from None


def written(data: dict[str, Any], patch: Patch, declared: Mapping[str, document_schema.FieldSpec]) -> dict[str, Any]:
    """Return the data after one patch whose value is checked JSON."""
    segments = value_paths.split(patch.path)
    if segments[0].startswith("$"):
        if len(segments) == 1 and patch.op != "unset" and type(patch.value) is not dict:
            raise faults.Fault(faults.TYPE_MISMATCH, f"{patch.path} must be an object")
        return changed(data, patch.op, segments, patch.value)
    spec = fields.lookup(declared, segments)
    if spec is None:
        raise faults.Fault(faults.PATH_NOT_FOUND, f"no field is declared at {patch.path}")
    if patch.op != "unset":
        wrong = fields.misfit(spec, patch.value, patch.path, partial=patch.op == "merge")
        if wrong:
            raise faults.Fault(faults.TYPE_MISMATCH, wrong)
    return changed(data, patch.op, segments, patch.value)


def changed(data: dict[str, Any], op: str, segments: value_paths.Segments, value: Any) -> dict[str, Any]:
    """Return the data after one op, without a look at what is declared."""
    found: dict[str, Any]
    if op == "set":
        found = value_paths.put(data, segments, value)
        return found
    if op == "unset":
        found = value_paths.remove(data, segments)
        return found
    before = value_paths.walk(data, segments)
    if before is not js_values.MISSING and type(before) is not dict:
        raise faults.Fault(
            faults.TYPE_MISMATCH, f"{value_paths.join(segments)} is {js_values.kind_of(before)}; merge needs an object"
        )
    if type(value) is not dict:
        raise faults.Fault(faults.TYPE_MISMATCH, f"merge into {value_paths.join(segments)} needs an object")
    found = value_paths.put(data, segments, {**(before if type(before) is dict else {}), **value})
    return found
