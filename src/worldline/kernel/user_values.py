"""Users' values as canonical bytes, and back: dataclasses, msgspec structs, pydantic's models and types, plain types.

A value goes to plain data (dicts, lists, text, numbers, bytes), sets and maps sorted, and then to canonical CBOR.
Coming back, the annotation decides the type and everything is checked against it. Nothing is ever pickled.

A `datetime` is text with its offset from UTC, and comes back equal, to the microsecond; its zone is that offset then.
One without a zone is refused: which instant it means depends on the machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import typing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from worldline.base import errors, grammar, limits
from worldline.base.secret import Secret
from worldline.codec import canonical
from worldline.kernel import library_types, stand_ins, user_errors
from worldline.kernel.personal.personal_value import NoDesk, Personal

NONE = b"\xf6"

_STAND_INS = stand_ins.KNOWN
_PLAIN = (int, str, bytes, bool)
_FLAT_MAX = 64
_BUILT = (bytes, datetime)
_TIME = f"{datetime!r} has no canonical form"
_NAMED_DEPTH_MAX = 8
_NAMED_PARTS_MAX = 1_000
_KEYS = "Only dicts with str-like or number-like keys"
_UNSORTED = "not supported between instances of"
_TOO_DEEP = f"it contains itself, or is nested deeper than {limits.CBOR_DEPTH_MAX}"
_ADVICE = (
    ("NaNs", "; use None for a number that is not known"),
    ("Infinit", "; use None, or a number that is large enough"),
    ("integer out of range", "; an int has 64 bits: use text for a larger one"),
    ("nested deeper", "; use a list of items that name each other by id"),
)
_LARGE_ADVICE = "; keep large data outside and pass its name"


class Unstorable(errors.EncodeError):
    """A value, or a part of it, that cannot be stored. `where`: the fields that lead there."""

    def __init__(self, what: str, where: str, why: str) -> None:
        super().__init__(f"{what} cannot be stored: {f'field {where}: ' if where else ''}{why}")
        self.where = where or what
        self.why = why


class _Oversized(Unstorable, errors.ValueTooLarge):
    """The same of one that is too large."""

    code = errors.ValueTooLarge.code


def dump(value: object) -> bytes:
    """Canonical bytes of any supported value. `EncodeError` says what is not supported, and in which field."""
    # The two short ways first: most values are plain, or one flat record.
    built: Any = value if type(value) in _PLAIN else _flat(value)
    if built is None:
        built = _built(value)
    try:
        data = canonical.encode(built)
    except errors.EncodeError as error:
        # Only a value with a datetime in it pays for a second pass.
        if _TIME not in str(error):
            raise _located(value, built, error) from None
        data = _encoded_again(value, _timed(value, built))
    if len(data) > limits.USER_VALUE_BYTES_MAX:
        why = f"it takes {len(data)} bytes; the limit is {limits.USER_VALUE_BYTES_MAX}"
        raise _located(value, built, errors.ValueTooLarge(why))
    return data


def pack(value: list[str | bytes | int]) -> bytes:
    """Canonical bytes of a record of the kernel's own, around what users gave."""
    return canonical.encode_flat(value)


def bounded(data: bytes, what: str) -> bytes:
    if len(data) > limits.USER_VALUE_BYTES_MAX:
        raise errors.ValueTooLarge(f"{what} takes {len(data)} bytes; the limit is {limits.USER_VALUE_BYTES_MAX}")
    return data


def _encoded_again(value: object, built: Any) -> bytes:
    try:
        return canonical.encode(built)
    except errors.EncodeError as error:
        raise _located(value, built, error) from None


def _located(value: object, built: Any, error: errors.EncodeError) -> Unstorable:
    """What plain data cannot be stored for, with the names that lead to the part that is in the way: the first that
    cannot be stored alone. If each could be and all together are too large, that is the largest.
    """
    where, part = "", built
    for _ in range(_NAMED_DEPTH_MAX):
        if where and "nested deeper" in str(error):
            break  # so is each part of it
        for label, inner in itertools.islice(_parts(part), _NAMED_PARTS_MAX):
            try:
                canonical.encode(inner)
            except errors.EncodeError as found:
                if _TIME in str(found):
                    continue  # that is text by now
                where, part, error = f"{where}{label}".lstrip("."), inner, found
                break
        else:
            break
    is_large = isinstance(error, errors.ValueTooLarge)
    why = str(error)
    if is_large and not where:
        where = _largest(built)
    why += next((advice for said, advice in _ADVICE if said in why), "")
    if is_large:
        why += _LARGE_ADVICE
    return (_Oversized if is_large else Unstorable)(user_errors.name_of(type(value)), where, why)


def _largest(built: Any) -> str:
    """The part of plain data that takes most bytes, by name; nothing if it has no parts, or too many to be one's."""
    sizes: list[tuple[int, str]] = []
    for label, part in itertools.islice(_parts(built), _NAMED_PARTS_MAX):
        with contextlib.suppress(errors.EncodeError):
            sizes.append((len(canonical.encode(part)), label.lstrip(".")))
    size, name = max(sizes, key=lambda each: each[0], default=(0, ""))
    # A part of half the limit or less is not what makes the value too large.
    return name if size * 2 > limits.USER_VALUE_BYTES_MAX else ""


def plain(value: object) -> Any:
    """Return the value as plain data."""
    return _timed(value, _built(value))


def _flat(value: object) -> dict[str, Any] | None:
    """A map or a dataclass that holds a few plain values and nothing else, as most arguments and events do: this very
    map is what it is stored as, and finding that out takes a fifth of the time that building it takes.
    """
    kind: Any = type(value)
    held: Any = value
    if kind is not dict:
        names = _field_names(kind) if type(kind) is type else None  # other metaclasses have code of their own
        if names is None:
            return None
        held = object.__getattribute__(value, "__dict__")
        # Attributes besides the fields, or fields that are missing: then the long way decides.
        if held.keys() != names:
            return None
    if len(held) > _FLAT_MAX:
        return None
    for name, item in held.items():
        if type(item) not in _PLAIN or type(name) is not str:
            return None
    flat: dict[str, Any] = held
    return flat


# Kept, because every value that is stored asks for it.
@functools.lru_cache(maxsize=1024)
def _field_names(kind: type) -> frozenset[str] | None:
    """Return the fields of a dataclass, if its objects have them in a map."""
    if not dataclasses.is_dataclass(kind) or not kind.__dictoffset__:
        return None
    return frozenset(each.name for each in dataclasses.fields(kind))


def _built(value: object) -> Any:
    """Return the value as plain data, but for the datetimes in it."""
    if value is None or type(value) in _PLAIN:
        return value
    try:
        # Sorted, because sets have no order that two processes share.
        return msgspec.to_builtins(value, builtin_types=_BUILT, str_keys=True, order="sorted", enc_hook=_model)
    except BaseException as error:  # users' types have code of their own
        # A caller that has a desk for personal values tries again.
        if type(error) is NoDesk or user_errors.let_pass(error):
            raise
        return _built_again(value, error)


def _built_again(value: object, error: BaseException) -> Any:
    """A datetime as a key of a map is the one thing that can be stored and was not taken. Everything else is named."""
    what = user_errors.name_of(type(value))
    where, why = _culprit(value, error)
    if _KEYS in why:
        try:
            built = msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True, order="sorted", enc_hook=_model)
        except BaseException as again:
            if user_errors.let_pass(again):
                raise
            raise Unstorable(what, where, user_errors.text_of(again)) from again
        _check_keys(value, what)
        return built
    if _UNSORTED in why:
        why = "the items of a set cannot be sorted"  # Python says which two, and that differs by process
    raise Unstorable(what, where, why) from error


def _timed(value: object, built: Any) -> Any:
    """Plain data with text in the place of datetimes."""
    try:
        return _Times(user_errors.name_of(type(value))).replaced(built, "", limits.CBOR_DEPTH_MAX)
    except errors.EncodeError:
        raise
    except BaseException as error:  # a time zone is code of the user's
        if user_errors.let_pass(error):
            raise
        raise Unstorable(user_errors.name_of(type(value)), "", user_errors.text_of(error)) from error


class _Times:
    """Replaces datetimes in plain data by text. It stops at the number of items that a value may have."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._items = 0

    def replaced(self, built: Any, where: str, depth: int) -> Any:
        kind = type(built)
        if kind is datetime:
            return _time_text(built, where, self._what)
        if depth < 0 or (kind is not dict and kind is not list and kind is not tuple):
            return built
        self._items += len(built)
        # Counted as often as it is written: one list may be in a value many times.
        if self._items > limits.CBOR_ITEMS_MAX:
            raise errors.ValueTooLarge(f"more than {limits.CBOR_ITEMS_MAX} items")
        if kind is dict:
            dot = "." if where else ""
            return {key: self.replaced(item, f"{where}{dot}{key}", depth - 1) for key, item in built.items()}
        return kind(self.replaced(item, f"{where}[{index}]", depth - 1) for index, item in enumerate(built))


def _time_text(given: datetime, where: str, what: str) -> Any:
    offset = given.utcoffset()
    if offset is None:
        raise Unstorable(what, where, f"the datetime {given.isoformat()} has no time zone; give it one (tzinfo=UTC)")
    # The text has whole minutes only, and old offsets have seconds: then the same instant in UTC is stored.
    return msgspec.to_builtins(given.astimezone(UTC) if offset % timedelta(minutes=1) else given)


def _culprit(value: object, error: BaseException) -> tuple[str, str]:
    """Which part of a value cannot be stored, by the names that lead there, and why. Large values are tried in part."""
    where = ""
    for _ in range(_NAMED_DEPTH_MAX):
        if where and issubclass(type(error), RecursionError):
            break  # each part of it is as deep, and Python says it in other words in other releases
        for label, part in itertools.islice(_parts(value), _NAMED_PARTS_MAX):
            try:
                msgspec.to_builtins(part, builtin_types=_BUILT, str_keys=True, order="sorted", enc_hook=_model)
            except BaseException as inner:
                if user_errors.let_pass(inner):
                    raise
                where = f"{where}{label}".lstrip(".")
                value, error = part, inner
                break
        else:
            break
    return where, _TOO_DEEP if issubclass(type(error), RecursionError) else user_errors.text_of(error)


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    """What a value is made of, as far as that can be told without code of its own."""
    kind = type(value)
    if kind is dict:
        inside: dict[Any, Any] = value  # type: ignore[assignment]
        for key, item in inside.items():
            yield f".{key}" if type(key) is str else f"[{user_errors.repr_of(key)}]", item
    elif kind is list or kind is tuple:
        for index, item in enumerate(value):  # type: ignore[arg-type]
            yield f"[{index}]", item
    elif dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            # Past the class's own `__getattribute__`, which is the user's code.
            yield f".{field.name}", object.__getattribute__(value, field.name)
    elif issubclass(kind, msgspec.Struct):
        for name in kind.__struct_fields__:
            yield f".{name}", object.__getattribute__(value, name)


def _check_keys(value: object, what: str) -> None:
    """Refuse datetimes without a time zone among the keys of maps."""
    todo: list[tuple[str, Any]] = [("", value)]
    for _ in range(limits.CBOR_ITEMS_MAX):
        if not todo:
            return
        where, each = todo.pop()
        if type(each) is dict:
            for key in each:
                if type(key) is datetime:
                    _time_text(key, where, what)
        todo += [(f"{where}{label}".lstrip("."), part) for label, part in _parts(each)]


def load(kind: Any, data: bytes) -> Any:
    """Return the value of type `kind` that these bytes hold. `DecodeError` if they hold another."""
    return rebuild(kind, canonical.decode(data))


def rebuild(kind: Any, value: Any) -> Any:
    if kind is Any or kind is None or (type(value) is kind and kind in _PLAIN):
        return value
    read_as = stand_ins.known(kind) if _STAND_INS else kind
    try:
        return msgspec.convert(value, read_as, builtin_types=(bytes,), str_keys=True, dec_hook=_validate)
    except BaseException as error:  # users' types have code of their own
        if user_errors.let_pass(error):
            raise
        found = stand_ins.read_as(kind)  # here, and not before: types that msgspec reads pay nothing
        if found is not read_as:
            return _rebuilt(kind, found, value)
        raise _unfit(kind, error) from error


def _rebuilt(kind: Any, read_as: Any, value: Any) -> Any:
    try:
        return _convert(value, read_as)
    except BaseException as error:  # users' types have code of their own
        if user_errors.let_pass(error):
            raise
        raise _unfit(kind, error) from error


def _unfit(kind: Any, error: BaseException) -> errors.DecodeError:
    return errors.DecodeError(f"not {grammar.an(name_of(kind))}: {user_errors.text_of(error)}")


def _convert(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, builtin_types=(bytes,), str_keys=True, dec_hook=_validate)


def text(value: object, what: str) -> str:
    """Text that a user gave, as a plain `str`: an object of a subclass could change later."""
    if type(value) is str:
        return value
    if not issubclass(type(value), str):
        raise errors.BadInput(f"{what} must be text, not {user_errors.name_of(type(value))}")
    return str.__getitem__(value, slice(None))  # type: ignore[index]


def schema_name(kind: type) -> str:
    """Return the name of an event type in journals."""
    given = getattr(kind, "__schema__", None)
    name = text(kind.__name__ if given is None else given, "an event's __schema__")
    if len(name) > limits.NAME_BYTES_MAX:
        raise errors.TooLarge("an event's name", size=len(name), limit=limits.NAME_BYTES_MAX)
    return name


def _model(value: object) -> Any:
    if type(value) is Personal:
        return value.stored(_inner)
    if type(value) is Secret:
        raise TypeError(f"{value} has no stored form; the effect that needs it calls wl.secret({value.name!r})")
    dump_model = getattr(value, "model_dump", None)
    if dump_model is not None:
        return dump_model(mode="python")
    if library_types.is_path(type(value)):
        return library_types.path_text(value)
    if library_types.is_pydantic(type(value)):
        return library_types.dump(value)
    what = user_errors.name_of(type(value))
    raise TypeError(_mistaken(value) or f"{what} is not a dataclass, struct, model or plain value")


def _mistaken(value: Any) -> str:
    """What was given in the place of a value, and what to write."""
    if isinstance(value, type):
        name = name_of(value)
        return f"it is the class {name}; pass an object of it: {name}(...)"
    if inspect.iscoroutine(value):
        return f"it is {user_errors.plain_text(value.__name__)}(...), which was not awaited; write `await` before it"
    told = getattr(type(value), "_no_value", None)  # a call, an effect or a workflow: that file imports this one
    return told(value) if callable(told) else ""


def _inner(value: object) -> bytes:
    """Return the bytes of a personal value, which is one value of the store at most."""
    data = dump(value)
    if len(data) > limits.PERSONAL_BYTES_MAX:
        raise errors.ValueTooLarge(f"a wl.Personal takes {len(data)} bytes; the limit is {limits.PERSONAL_BYTES_MAX}")
    return data


def _personal(kind: Any, value: object) -> Personal[Any]:
    if type(value) is not bytes:
        raise errors.DecodeError("a personal value that was not sealed; send a wl.Personal(value, of=...)")
    held = typing.get_args(kind)
    return Personal.of_token(value, functools.partial(load, held[0] if held else Any))


def _validate(kind: type, value: object) -> Any:
    if kind is Personal or typing.get_origin(kind) is Personal:
        return _personal(kind, value)
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    if issubclass(kind, stand_ins.StandIn):
        try:
            return kind.read(value, _convert)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error  # msgspec adds what leads here
    if library_types.is_path(kind):
        return library_types.path(kind, value)
    if library_types.is_pydantic(kind):
        return library_types.load(kind, value)
    raise TypeError(f"{name_of(kind)} cannot be read back; use a dataclass, struct, model or plain type")


def name_of(kind: Any) -> str:
    """A type or annotation, for people."""
    return user_errors.name_of(kind) if isinstance(kind, type) else user_errors.repr_of(kind)
