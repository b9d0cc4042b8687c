"""What msgspec does not read: unions of dataclasses and models, and those of pydantic's types whose values are others.

A value of a union says itself which member it is, because the field that tells them apart is stored with it: `kind:
Literal["circle"] = "circle"`. msgspec reads such unions of its own structs alone. So in the place of a union stands a
class that msgspec does not know and asks us for; in the place of a dataclass with such a field, too. `read_as` makes
these stand-ins, once for each type. Types that need none stay what they are, and cost nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import msgspec

from worldline.base import call_signatures
from worldline.kernel import library_types

Convert = Callable[[Any, Any], Any]  # plain data, as a type

_DEPTH_MAX = 32
_TYPES_MAX = 10_000
_UNIONS = (typing.Union, types.UnionType)
KNOWN: dict[Any, Any] = {}  # stand-ins by their types: as many as programs have such types
ADVICE = "classes that a field tells apart (kind: Literal['circle'] = 'circle' in each)"


class _Anything(type):
    """msgspec asks whether what it was given is an object of the stand-in: it is one of what that stands for."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class StandIn(metaclass=_Anything):
    """What msgspec finds in the place of a type that it does not read. There are no objects of it."""

    inner: ClassVar[list[Any]]  # the types that it stands for

    @classmethod
    def read(cls, value: Any, convert: Convert) -> Any:
        """Return the object that plain data is, of what it stands for."""
        return convert(value, cls.inner[0])


class _TaggedUnion(StandIn):
    field: ClassVar[str]
    members: ClassVar[dict[Any, Any]]  # by what their field says
    readable: ClassVar[dict[Any, Any]]  # what those are read as that were read
    rest: ClassVar[Any]  # what else the union has: text, a list, nothing; None if that is all

    @classmethod
    def read(cls, value: Any, convert: Convert) -> Any:
        if type(value) is not dict:
            if cls.rest is None:
                raise ValueError(f"Expected `object`, got `{type(value).__name__}`")
            return convert(value, cls.rest)
        said = value.get(cls.field)
        if not isinstance(said, str | int) or said not in cls.members:
            known = ", ".join(map(repr, cls.members))
            raise ValueError(f"Expected an object whose field {cls.field!r} is one of {known}, got {said!r}")
        member = cls.readable.get(said)
        if member is not None:
            return convert(value, member)
        member = read_as(cls.members[said])
        made = convert(value, member)
        cls.readable[said] = member  # all that it names is there
        return made


class _Pydantic(StandIn):
    """One of pydantic's own types."""

    @classmethod
    def read(cls, value: Any, convert: Convert) -> Any:  # noqa: ARG003 - pydantic reads it
        return library_types.load(cls.inner[0], value)


class _Whole(StandIn):
    """A dataclass with such unions in its fields: read as one of the same fields, and made of that."""

    shadow: ClassVar[Any]  # made when it is first needed: a class may have itself in it

    @classmethod
    def read(cls, value: Any, convert: Convert) -> Any:
        made = convert(value, shadow_of(cls))
        whole = cls.inner[0]
        return whole(**{each.name: getattr(made, each.name) for each in dataclasses.fields(whole)})


def read_as(kind: Any) -> Any:
    """What values of a type are read as: the type itself, unless something in it needs a stand-in."""
    found = known(kind)
    if found is kind:
        found = _replaced(kind, _DEPTH_MAX)
        if found is not kind and _is_hashable(kind):  # else types that it names may not be defined yet
            KNOWN[kind] = found
    return found


def known(kind: Any) -> Any:
    """Return what `read_as` has found before; else the type itself."""
    return KNOWN.get(kind, kind) if _is_hashable(kind) else kind


def _is_hashable(kind: Any) -> bool:
    try:
        return kind in KNOWN or True  # the question is whether it has a hash
    except TypeError:  # an annotation with something of the user's in it
        return False


def shadow_of(whole: type[_Whole]) -> Any:
    """A dataclass with the fields of another, where stand-ins are needed."""
    if whole.shadow is None:
        kind = whole.inner[0]
        hints = _hints(kind)
        given = [(each.name, read_as(hints[each.name]), _like(each)) for each in dataclasses.fields(kind)]
        whole.shadow = dataclasses.make_dataclass(kind.__name__, given, kw_only=True)
    return whole.shadow


def _like(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory)
    return dataclasses.field(default=field.default) if field.default is not dataclasses.MISSING else dataclasses.field()


def _is_needed(kind: Any) -> bool:
    """Return whether something in a type needs a stand-in."""
    todo, seen = [kind], list[Any]()
    while todo and len(seen) < _TYPES_MAX:
        each = todo.pop()
        if any(each is known for known in seen):
            continue
        seen.append(each)
        if _tag_of(each) is not None or library_types.is_pydantic(each):
            return True
        todo += _inside(each)
    return False


def _inside(kind: Any) -> list[Any]:
    if _is_plain_dataclass(kind):
        return list(_hints(kind).values())
    return [each for each in typing.get_args(kind) if not isinstance(each, str | int | bytes)]


def _replaced(kind: Any, depth: int) -> Any:
    if depth < 0 or not _is_needed(kind):
        return kind
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _replaced(args[0], depth - 1)
    tag = _tag_of(kind)
    if tag is not None:
        return _union(kind, tag)
    if library_types.is_pydantic(kind):
        return type(kind.__name__, (_Pydantic,), {"inner": [kind]})
    if _is_plain_dataclass(kind):
        return type(kind.__name__, (_Whole,), {"shadow": None, "inner": [kind]})
    inner = tuple(_replaced(each, depth - 1) for each in args)
    if origin in _UNIONS:
        return _union_of(inner)
    return origin[inner] if origin is not None else kind


def _union(kind: Any, tag: str) -> Any:
    members = [each for each in typing.get_args(kind) if _is_object(each)]
    others = tuple(each for each in typing.get_args(kind) if not _is_object(each))
    by_tag = {said: each for each in members for said in _literals(each, tag)}
    rest = _union_of(others) if others else None
    said = {"field": tag, "members": by_tag, "readable": {}, "rest": rest, "inner": members}
    return type("TaggedUnion", (_TaggedUnion,), said)


def _union_of(kinds: tuple[Any, ...]) -> Any:
    return typing.Union[kinds]  # noqa: UP007 - of as many as there are


def _tag_of(kind: Any) -> str | None:
    """Return the field that tells the members of a union apart; None if this is none, or msgspec reads it."""
    if typing.get_origin(kind) not in _UNIONS:
        return None
    members = [each for each in typing.get_args(kind) if _is_object(each)]
    if len(members) < 2 or all(issubclass(each, msgspec.Struct) for each in members):
        return None
    for name in _hints(members[0]):
        said = [literal for each in members for literal in _literals(each, name) or [None]]
        # Every member has the field, and no two of them say the same in it.
        if None not in said and len(dict.fromkeys(said)) == len(said):
            return name
    return None


def _literals(member: Any, name: str) -> list[Any]:
    """What the field of a member may say, if that is one of a few words or numbers."""
    kind = _hints(member).get(name)
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    said = list(typing.get_args(kind)) if typing.get_origin(kind) is Literal else []
    return said if all(type(each) in (str, int) for each in said) else []


def _is_object(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "model_validate")


def _is_plain_dataclass(kind: Any) -> bool:
    """Return whether objects of it can be made of its fields: pydantic's and msgspec's classes are read by them."""
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind) or hasattr(kind, "__pydantic_fields__"):
        return False
    # The object is made by its constructor, which has to take every field.
    return all(each.init for each in dataclasses.fields(kind)) and not any(_init_only(kind))


def _init_only(kind: type) -> Iterator[bool]:
    for each in call_signatures.annotations_of(kind).values():
        yield isinstance(each, dataclasses.InitVar) or (isinstance(each, str) and "InitVar" in each)


def _hints(kind: Any) -> dict[str, Any]:
    """Return the annotations of a class, as far as they name what is defined."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - the user's annotations; what is wrong with them is said where they are checked
        found = [
            (name, _hint(base, name, given))
            for base in reversed(kind.__mro__)
            for name, given in inspect.get_annotations(base).items()
        ]
        return {name: hint for name, hint in found if hint is not None}


def _hint(base: type, name: str, given: Any) -> Any:
    names = vars(sys.modules.get(base.__module__, typing))
    one = types.SimpleNamespace(__name__=name, __annotations__={name: given})
    try:
        return typing.get_type_hints(one, names, dict(vars(base)), include_extras=True)[name]
    except Exception:  # noqa: BLE001 - as above
        return None


def parts(stand_in: type[StandIn]) -> Iterator[tuple[str, Any]]:
    """Yield the types that a stand-in is made of, each with what leads to it."""
    if issubclass(stand_in, _TaggedUnion):
        yield from (("", each) for each in stand_in.inner)
        if stand_in.rest is not None:
            yield "", stand_in.rest
    elif issubclass(stand_in, _Whole):
        yield from ((f".{name}", hint) for name, hint in _hints(stand_in.inner[0]).items())
