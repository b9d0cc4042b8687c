"""Types as field specs: what an annotation says that a field may hold."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union

import msgspec

from worldline.flow_core import js_values
from worldline.flow_core.authoring import terms

_SIMPLE: dict[Any, str] = {
    int: "number",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    dict: "object",
    list: "array",
    Any: "object",
    object: "object",
}


def spec(
    annotation: Any, where: str, *, default: Any = js_values.MISSING, within: tuple[Any, ...] = ()
) -> dict[str, Any]:
    """The spec of a field. It is required unless it may be None or has a default. `within`: the records around it."""
    kind, optional = _without_none(annotation, where)
    made = _of(kind, where, within)
    if default is not js_values.MISSING:
        made |= {"required": False, "default": js_values.from_outside(default, where)}
    elif optional:
        # A document refuses an optional field at the top without a default.
        made |= {"required": False, "default": None}
    else:
        made |= {"required": True}
    return made


def names_record(annotation: Any) -> bool:
    """Return whether values of this annotation are, or have in them, dataclasses or structs."""
    return _is_record(annotation) or any(names_record(each) for each in typing.get_args(annotation))


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def _without_none(annotation: Any, where: str) -> tuple[Any, bool]:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        parts = [each for each in typing.get_args(annotation) if each is not type(None)]
        # A field spec has one type; None is what makes it optional.
        if len(parts) > 1:
            raise terms.BadDomain(f"{where}: a field has one type, or one and None; not {annotation}")
        return parts[0], True
    return annotation, annotation is type(None)


def _of(kind: Any, where: str, within: tuple[Any, ...]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"type": {"enum": list(arguments)}}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": spec(arguments[0], f"{where}[]", within=within)}
    if origin in (dict, Mapping):
        return {"type": "object"}
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if _is_record(kind):
        if kind in within:
            raise terms.BadDomain(
                f"{where}: {kind.__name__} has itself in it, and a field has a fixed shape; use a dict"
            )
        hints = typing.get_type_hints(kind)
        defaults = _defaults(kind)
        fields = {
            name: spec(each, f"{where}.{name}", default=defaults.get(name, js_values.MISSING), within=(*within, kind))
            for name, each in hints.items()
        }
        return {"type": "object", "fields": fields}
    raise terms.BadDomain(
        f"{where}: {kind!r} is no type of a field; there are int, float, str, bool, list, dict, Literal, dataclasses "
        f"and structs, each with or without None"
    )


def _defaults(kind: type) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        # A default that a factory makes is no value, and a document has only values.
        return {each.name: each.default for each in dataclasses.fields(kind) if each.default is not dataclasses.MISSING}
    found = msgspec.structs.fields(kind)
    return {each.name: each.default for each in found if each.default is not msgspec.NODEFAULT}
