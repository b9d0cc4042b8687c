"""Which types can be stored: checked when something is declared, so that the error names the field and not a value.

A type that msgspec does not know, such as `Path`, or a class of the user's that is no dataclass, struct or model, can
be annotated and never read back. What cannot be told here (annotations that do not resolve, types that only a value
shows) is left to encoding, which names the field too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Never, NoReturn

from msgspec import inspect

from worldline.base import errors
from worldline.kernel import values

_TYPES_MAX = 10_000
_ANYTHING: tuple[Any, ...] = (Any, None, Never, NoReturn)


def check(kind: Any, what: str) -> None:
    """`BadInput` if values of a type cannot be stored. `what` says where it is annotated."""
    if any(kind is each for each in _ANYTHING):
        return
    todo: list[tuple[Any, str]] = [(_info(kind), "")]
    seen: list[Any] = []
    while todo and len(seen) < _TYPES_MAX:
        info, path = todo.pop(0)
        if any(info is each for each in seen):
            continue
        seen.append(info)
        if isinstance(info, inspect.CustomType) and not hasattr(info.cls, "model_validate"):
            where = f"{what}, field {path.lstrip('.')!r}" if path else what
            raise errors.BadInput(
                f"{where}: {values.name_of(info.cls)} cannot be stored; use a dataclass, a msgspec struct, a pydantic "
                f"model or a plain type (str for a path, Any for anything that can be stored)"
            )
        todo += [(inner, path + label) for label, inner in _inside(info)]


def _info(kind: Any) -> Any:
    try:
        return inspect.type_info(kind)
    except Exception:  # noqa: BLE001 - the user's annotations: what cannot be described here is seen when it is used
        return None


def _inside(info: Any) -> Iterator[tuple[str, Any]]:
    """The types that a type is made of, each with what leads to it."""
    if isinstance(info, inspect.CustomType):
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
