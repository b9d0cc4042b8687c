"""Users' values as canonical bytes, and back: dataclasses, msgspec structs, pydantic models and plain types.

A value goes to plain data (dicts, lists, text, numbers, bytes), sets and maps sorted, and then to canonical CBOR.
Coming back, the annotation decides the type and everything is checked against it. Nothing is ever pickled.
"""

from __future__ import annotations

from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical
from worldline.kernel import user_errors

NONE = b"\xf6"

_PLAIN = (bool, int, str, bytes)
_UNSORTED = "not supported between instances of"


def dump(value: object) -> bytes:
    """Canonical bytes of any supported value. `EncodeError` says what is not supported."""
    data = canonical.encode(plain(value))
    return data if len(data) <= limits.USER_VALUE_BYTES_MAX else bounded(data, user_errors.name_of(type(value)))


def pack(value: list[str | bytes | int]) -> bytes:
    """Canonical bytes of a record of the kernel's own, around what users gave."""
    return canonical.encode_flat(value)


def bounded(data: bytes, what: str) -> bytes:
    if len(data) > limits.USER_VALUE_BYTES_MAX:
        raise errors.EncodeError(f"{what} takes {len(data)} bytes; the limit is {limits.USER_VALUE_BYTES_MAX}")
    return data


def plain(value: object) -> Any:
    """The value as plain data."""
    if value is None or type(value) in _PLAIN:
        return value
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True, order="sorted", enc_hook=_model)
    except BaseException as error:  # users' types have code of their own
        if user_errors.let_pass(error):
            raise
        what = user_errors.name_of(type(value))
        why = user_errors.text_of(error)
        if _UNSORTED in why:
            why = "the items of a set cannot be sorted"  # Python names two of them, and which ones differs by process
        raise errors.EncodeError(f"{what} cannot be stored: {why}") from error


def load(kind: Any, data: bytes) -> Any:
    """The value of type `kind` that these bytes hold. `DecodeError` if they hold another."""
    return rebuild(kind, canonical.decode(data))


def rebuild(kind: Any, value: Any) -> Any:
    if kind is Any or kind is None or (type(value) is kind and kind in _PLAIN):
        return value
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes,), str_keys=True, dec_hook=_validate)
    except BaseException as error:  # users' types have code of their own
        if user_errors.let_pass(error):
            raise
        raise errors.DecodeError(f"not a {name_of(kind)}: {user_errors.text_of(error)}") from error


def text(value: object, what: str) -> str:
    """Text that a user gave, as a plain `str`: an object of a subclass could change later."""
    if type(value) is str:
        return value
    if not issubclass(type(value), str):
        raise errors.BadInput(f"{what} must be text, not {user_errors.name_of(type(value))}")
    return str.__getitem__(value, slice(None))  # type: ignore[index]


def schema_name(kind: type) -> str:
    """The name of an event type in journals."""
    given = getattr(kind, "__schema__", None)
    name = text(kind.__name__ if given is None else given, "an event's __schema__")
    if len(name) > limits.NAME_BYTES_MAX:
        raise errors.TooLarge("an event's name", size=len(name), limit=limits.NAME_BYTES_MAX)
    return name


def _model(value: object) -> Any:
    dump_model = getattr(value, "model_dump", None)
    if dump_model is None:
        raise TypeError(f"{user_errors.name_of(type(value))} is not a dataclass, struct, model or plain value")
    return dump_model(mode="python")


def _validate(kind: type, value: object) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"{name_of(kind)} cannot be read back; use a dataclass, struct, model or plain type")
    return validate(value)


def name_of(kind: Any) -> str:
    """A type or annotation, for people."""
    return user_errors.name_of(kind) if isinstance(kind, type) else user_errors.repr_of(kind)
