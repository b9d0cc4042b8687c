"""Records as canonical bytes: a frozen `msgspec.Struct` becomes a CBOR array of its fields, and back.

Fields are positional and never reordered or reused; a new one goes to the end with a default, so older bytes still
decode. Decoding checks every type and the record's own conditions: bytes that are canonical but not this record are a
`DecodeError` too. So are fields beyond the last, if the Struct has `forbid_unknown_fields`, as every stored one does: a
store with a newer minor format is refused before its records are read, so an unknown field is never a newer release's.

`decode(type(r), encode(r)) == r`, and `encode(decode(kind, b)) == b` unless `b` was written before a field was added.
A batch that expects a stored record therefore expects the bytes that were read, never the record packed again.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from worldline.base import errors
from worldline.codec import canonical

T = TypeVar("T")

_SCALARS = (
    inspect.IntType, inspect.StrType, inspect.BytesType, inspect.BoolType, inspect.FloatType, inspect.NoneType,
    inspect.EnumType,
)  # fmt: skip
_known: dict[type, bool] = {}


def encode(record: object) -> bytes:
    """`record` is a Struct. A value in it without a canonical form (text with a lone surrogate) is an `EncodeError`."""
    plain: Any = msgspec.to_builtins(record, builtin_types=(bytes,))
    return canonical.encode_flat(plain) if _is_flat(type(record)) else canonical.encode(plain)


def decode(kind: type[T], data: bytes) -> T:
    """The record of type `kind` (a Struct, or a union of tagged ones) that `data` holds."""
    try:
        return msgspec.convert(canonical.decode(data), kind, builtin_types=(bytes,), strict=True)
    except msgspec.ValidationError as error:
        raise errors.DecodeError(f"not a record of {kind}: {error}") from error


def _is_flat(kind: type) -> bool:
    """Whether records of this type hold only scalars and other such records, as most that are stored do."""
    known = _known.get(kind)
    if known is None:
        known = _known[kind] = _flat(inspect.type_info(kind))
    return known


def _flat(info: inspect.Type) -> bool:
    if isinstance(info, inspect.StructType):
        return all(_flat(field.type) for field in info.fields)
    if isinstance(info, inspect.UnionType):
        return all(map(_flat, info.types))
    return isinstance(info, _SCALARS)
