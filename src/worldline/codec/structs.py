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

from worldline.base import errors, limits
from worldline.codec import canonical

T = TypeVar("T")

_PLAIN = (inspect.IntType, inspect.StrType, inspect.BytesType, inspect.BoolType, inspect.FloatType, inspect.NoneType)
_SCALARS = (*_PLAIN, inspect.EnumType)
# Records of scalars alone; with other such records or enums inside; with lists of scalars or of
# records of scalars; with anything.
_FIELDS, _FLAT, _LISTS, _DEEP = 1, 2, 3, 4
_known: dict[type, int] = {}


def encode(record: Any) -> bytes:
    """`record` is a Struct. A value in it without a canonical form (text with a lone surrogate) is an `EncodeError`."""
    kind = type(record)
    shape = _known.get(kind) or _learn(kind)
    # Records of scalars alone are neither deep nor cyclic, so nothing is checked before encoding.
    if shape == _FIELDS:
        return canonical.encode_flat(list(msgspec.structs.astuple(record)))
    plain: Any = msgspec.to_builtins(record, builtin_types=(bytes,))
    # Only here the depth is up to the value, not to the type.
    if shape == _DEEP:
        return canonical.encode(plain)
    data = canonical.encode_flat(plain)
    if shape == _LISTS and len(data) > limits.CBOR_ITEMS_MAX:  # an item takes a byte: there may be too many
        return canonical.encode(plain)
    return data


def decode(kind: type[T], data: bytes) -> T:
    """The record of type `kind` (a Struct, or a union of tagged ones) that `data` holds."""
    try:
        return msgspec.convert(canonical.decode(data), kind, builtin_types=(bytes,), strict=True)
    except msgspec.ValidationError as error:
        raise errors.DecodeError(f"not a record of {kind}: {error}") from error


def _learn(kind: type) -> int:
    """What records of this type hold. Most that are stored are flat."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    plain = info.array_like and info.tag is None and all(isinstance(each.type, _PLAIN) for each in info.fields)
    known = _known[kind] = _FIELDS if plain else _shape(info)
    return known


def _shape(info: inspect.Type) -> int:
    """That of a value of this type which is not the record itself."""
    if isinstance(info, inspect.StructType):
        return max([_FLAT, *(_shape(field.type) for field in info.fields)])
    if isinstance(info, inspect.UnionType):
        return max(map(_shape, info.types))
    if isinstance(info, inspect.ListType):
        return _LISTS if _is_shallow(info.item_type) else _DEEP
    return _FLAT if isinstance(info, _SCALARS) else _DEEP


def _is_shallow(item: inspect.Type) -> bool:
    """Whether items of a list are scalars, or records of scalars: how deep the list is, its type says."""
    if isinstance(item, inspect.StructType):
        return all(isinstance(field.type, _SCALARS) for field in item.fields)
    return isinstance(item, _SCALARS)
