"""Which types can be stored: checked when something is declared, so that the error names the field and not a value.

Three things are looked for: a type that cannot be read back (a class that is no dataclass, struct or model; a union
whose member cannot be told from the stored value), a map whose keys cannot be text, and a set whose items have no
order. What only a value shows, such as what `Any` holds, is left to encoding, which names the field too.

Inside a pydantic model, reading back is pydantic's: there only what can be written is checked.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any, Never, NoReturn

import msgspec
from msgspec import inspect

from worldline.base import errors
from worldline.kernel import library_types, stand_ins, user_errors, user_values
from worldline.kernel.personal.personal_value import Personal, use

_TYPES_MAX = 10_000
_DEPTH_MAX = 32
_ANYTHING: tuple[Any, ...] = (Any, None, Never, NoReturn)
_PLAIN = (
    "use a dataclass, a msgspec struct, a pydantic model, a path or a plain type (Any for anything that can be stored)"
)
_UNION = f"use one type besides None, {stand_ins.ADVICE}, structs that have tags, or Any"
_KEYS = (
    inspect.AnyType,
    inspect.StrType,
    inspect.IntType,
    inspect.FloatType,
    inspect.DecimalType,
    inspect.UUIDType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.EnumType,
    inspect.LiteralType,
)
_NUMBERS = (inspect.IntType, inspect.FloatType, inspect.BoolType)
_SORTED = (*_KEYS, inspect.BoolType, inspect.BytesType, inspect.FrozenSetType)
_ARRAYS = (inspect.TupleType, inspect.VarTupleType, inspect.NamedTupleType)


class NotDefinedYet(errors.BadInput):
    """An annotation names something that is not defined, or not yet: a declaration may stand above its types."""


def check(kind: Any, what: str) -> None:
    """`BadInput` if values of a type cannot be stored; `NotDefinedYet` if it is made of types that are not defined yet.
    `what` says where it is annotated.
    """
    if any(kind is each for each in _ANYTHING):
        return
    _check_read(kind, what)
    todo: list[tuple[Any, str]] = [(_info(kind), "")]
    seen: list[Any] = []
    # Bounded, because generic types can go on without end.
    while todo and len(seen) < _TYPES_MAX:
        info, path = todo.pop(0)
        stand_in = _stand_in(info)
        known: Any = info if stand_in is None else stand_in
        # By identity: descriptions of recursive types refer to themselves, so comparing them might not end.
        if any(known is each for each in seen):
            continue
        seen.append(known)
        why = _wrong(info)
        if why:
            raise errors.BadInput(f"{_place(what, path)}: {why}")
        todo += [(inner, path + label) for label, inner in _inside(info)]
        for label, inner in stand_ins.parts(stand_in) if stand_in is not None else ():
            _check_read(inner, _place(what, path + label))
            todo.append((_info(inner), path + label))


def _place(what: str, path: str) -> str:
    return f"{what}, field {path.lstrip('.')!r}" if path else what


# --- Reading back ------------------------------------------------------------------------------------------------


def _check_read(kind: Any, what: str) -> None:
    """Refuse a type that no value can be read back as."""
    why = _refusal(kind)
    if not why:
        return
    path = ""
    # Goes down to the innermost type that cannot be read, so that the error names it and not what holds it.
    for _ in range(_DEPTH_MAX):
        for label, inner in _members(kind):
            inner_why = _refusal(inner)
            if inner_why:
                kind, why, path = inner, inner_why, path + label
                break
        else:
            break
    raise errors.BadInput(f"{_place(what, path)}: {_shown(kind)} cannot be stored: {why}")


def _shown(kind: Any) -> str:
    """A type for people: of a union, its members without their modules."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return " | ".join(map(user_values.name_of, typing.get_args(kind))) if is_union else user_values.name_of(kind)


def _refusal(kind: Any) -> str:
    """Say why nothing can be read back as this type, or nothing. `NotDefinedYet` if it names what is not defined."""
    if any(kind is each for each in _ANYTHING):
        return ""
    try:
        # msgspec understands the whole type before it looks at the value: a type that it does not know fails here.
        msgspec.convert(_PROBE, stand_ins.read_as(kind), builtin_types=(bytes,), str_keys=True, dec_hook=_refuse)
    except msgspec.ValidationError:
        pass  # no value is a probe; that this can be said means that the type is understood
    except (NameError, AttributeError) as error:
        name = user_errors.text_of(error)
        raise NotDefinedYet(
            f"{user_values.name_of(kind)}: an annotation of it names nothing known in its module: "
            f"{name}; define it there"
        ) from error
    except Exception as error:  # noqa: BLE001 - the user's annotations: whatever they do, nothing can be read by them
        why = user_errors.text_of(error).partition(" - ")[0]
        return f"{why}; {_UNION if 'union' in why else _PLAIN}"
    return ""


class _Probe:
    """A value of a type that is nothing that is stored."""


_PROBE = _Probe()


def _refuse(kind: type, value: object) -> Never:  # noqa: ARG001 - what msgspec calls for classes it does not know
    raise msgspec.ValidationError("not read")


def _members(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the types that a type is annotated with, each with what leads to it."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        yield "", typing.get_args(kind)[0]
        return
    if origin is not None and not hasattr(origin, "__annotations__"):
        is_union = origin is typing.Union or user_values.name_of(origin) == "UnionType"
        for inner in typing.get_args(kind):
            if isinstance(inner, type) or typing.get_origin(inner) is not None:
                yield "" if is_union else "[]", inner
        return
    try:
        hints = typing.get_type_hints(origin or kind, include_extras=True)
    except Exception:  # noqa: BLE001 - the user's annotations; what is wrong with them is known already
        return
    for name, inner in hints.items():
        # Neither of these is stored with an object.
        if not isinstance(inner, dataclasses.InitVar) and typing.ClassVar not in (inner, typing.get_origin(inner)):
            yield f".{name}", inner


# --- Writing -----------------------------------------------------------------------------------------------------


def _wrong(info: Any) -> str:
    """Say why values of a type cannot be written, or nothing. The types inside it are looked at apart."""
    if isinstance(info, inspect.CustomType) and _is_personal(info.cls):
        use.note()  # so that steps of this process get a desk
        return ""
    if isinstance(info, inspect.CustomType) and not hasattr(info.cls, "model_validate"):
        return _unread(info.cls)
    if isinstance(info, inspect.RawType | inspect.ExtType):
        return f"{type(info).__name__.removesuffix('Type')} cannot be stored; use bytes"
    if isinstance(info, inspect.DictType):
        key = info.key_type
        if not _is_number(key) if isinstance(key, inspect.UnionType) else not isinstance(key, _KEYS):
            return (
                f"a map with keys of type {_name(key)} cannot be stored, because keys are stored as text; use str, a "
                f"number, an enum, a date, a time or a UUID as the key, or a list of pairs"
            )
    if isinstance(info, inspect.SetType | inspect.FrozenSetType) and not _is_sorted(info.item_type):
        return (
            f"a set of {_name(info.item_type)} cannot be stored, because such items have no order; use a set of one "
            f"plain type (text, numbers, bytes, dates, UUIDs, enums, or tuples of them), or a list"
        )
    return ""


def _unread(cls: Any) -> str:
    """Say why values of a class that is no model cannot be stored, or nothing."""
    if isinstance(cls, type) and library_types.is_path(cls):
        return ""
    if isinstance(cls, type) and issubclass(cls, stand_ins.StandIn):
        cls = cls.inner[0] if library_types.is_pydantic(cls.inner[0]) else None
    if cls is None:
        return ""  # its parts are looked at apart
    if library_types.is_pydantic(cls):
        why = library_types.refusal(cls)
        return f"{user_values.name_of(cls)} cannot be stored: {why}" if why else ""
    return f"{user_values.name_of(cls)} cannot be stored; {_PLAIN}"


def _stand_in(info: Any) -> type[stand_ins.StandIn] | None:
    cls = getattr(info, "cls", None)
    return cls if isinstance(cls, type) and issubclass(cls, stand_ins.StandIn) else None


def _is_personal(cls: Any) -> bool:
    return (typing.get_origin(cls) or cls) is Personal


def _is_number(union: inspect.UnionType) -> bool:
    return all(isinstance(each, _NUMBERS) for each in union.types)


def _is_sorted(info: Any) -> bool:
    """Return whether any two values of a type can be compared by what is stored of them, and be items of a set."""
    if isinstance(info, inspect.UnionType):
        return _is_number(info)
    if isinstance(info, _ARRAYS):
        return all(_is_sorted(each) for _, each in _inside(info))
    if isinstance(info, inspect.LiteralType):
        # Literals of several types have no common order.
        return all(type(each) is type(info.values[0]) for each in info.values)
    return isinstance(info, _SORTED) or (isinstance(info, inspect.StructType) and info.array_like)


def _name(info: Any) -> str:
    """A type, for people."""
    if isinstance(info, inspect.UnionType):
        return " | ".join(_name(each) for each in info.types)
    if hasattr(info, "cls"):
        return user_values.name_of(info.cls)
    return type(info).__name__.removesuffix("Type").lower().replace("vartuple", "tuple")


def _info(kind: Any) -> Any:
    try:
        return inspect.type_info(stand_ins.read_as(kind))
    except Exception:  # noqa: BLE001 - the user's annotations: what cannot be described here is seen when it is used
        return None


def _inside(info: Any) -> Iterator[tuple[str, Any]]:
    """Yield the types that a type is made of, each with what leads to it."""
    if isinstance(info, inspect.CustomType) and _is_personal(info.cls):
        yield from (("", _info(inner)) for inner in typing.get_args(info.cls))
    elif isinstance(info, inspect.CustomType):
        for name, field in getattr(info.cls, "model_fields", {}).items():
            yield f".{name}", _info(field.annotation)
    for field in getattr(info, "fields", ()):
        yield f".{field.name}", field.type
    for name in ("item_type", "key_type", "value_type"):
        if hasattr(info, name):
            yield "[]", getattr(info, name)
    for position, inner in enumerate(getattr(info, "item_types", ())):
        yield f"[{position}]", inner
    for inner in getattr(info, "types", ()):
        yield "", inner
