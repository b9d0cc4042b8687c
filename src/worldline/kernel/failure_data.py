"""What user code raised, as data: the one place that decides a failure's code, its message and the fields kept of it.

The code is the exception's own `code`, if that is text, else the name of its class. The fields are those that the
exception has as an object: `self.balance = 5` becomes `data["balance"]` of the failure that a workflow catches. Kept
are public names with values that can be stored, up to a bound; the rest is left out. Nothing that an exception does
while it is looked at becomes another failure (see `user_errors`).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from worldline.base import errors, failures, limits
from worldline.codec import canonical
from worldline.kernel import user_errors, user_values

# Read past the user's class, which may override them.
_fields: Final[Any] = BaseException.__dict__["__dict__"].__get__
_namespace: Final[Any] = type.__dict__["__dict__"].__get__
_mro: Final[Any] = type.__dict__["__mro__"].__get__
# What the exceptions of this package say of themselves. It is passed on in another way, or is of no use to the code
# that catches one.
_OWN: Final = ("after", "attempts", "data", "reason", "report", "scope")
_NOTHING: Final[Any] = object()
_MISTAKES: Final = (
    NameError,
    UnboundLocalError,
    ImportError,
    ModuleNotFoundError,
    SyntaxError,
    IndentationError,
    TabError,
)
_SIGNATURE: Final = re.compile(  # as Python says it of a call that does not fit the function
    r"\(\) (missing \d+ required |takes .*positional argument|got an unexpected keyword |got multiple values for )"
)


class Verdict(msgspec.Struct, frozen=True):
    """What happens after an attempt that raised. `final`: no other attempt will help."""

    code: str
    message: str
    data: dict[str, Any] = {}
    final: bool = False
    timed_out: bool = False
    after_us: int = 0  # the next attempt makes no sense sooner
    mistake: bool = False  # in the code: until that is edited, no other attempt will help


def judge(error: BaseException, fatal: tuple[type[Exception], ...] = (), fatal_names: tuple[str, ...] = ()) -> Verdict:
    """What an exception of an effect means for its attempts. `fatal`: the types, and names of types, that end them."""
    kind = type(error)
    final = issubclass(kind, (failures.Fatal, *fatal)) or (bool(fatal_names) and _is_named(kind, fatal_names))
    data = data_of(error)
    if issubclass(kind, TimeoutError):
        message = user_errors.text_of(error) or "the attempt took too long"
        return Verdict("timeout", message, data, final=final, timed_out=True)
    code = user_errors.code_of(error)
    if issubclass(kind, failures.TryAgain):
        after_us = user_errors.pause_us(error)  # type: ignore[arg-type]
        return Verdict(code, user_errors.text_of(error), data, final=final, after_us=after_us)
    message = user_errors.text_of(error) if issubclass(kind, failures.Fatal) else user_errors.message_of(error)
    return Verdict(code, message, data, final=final, mistake=not final and is_mistake(error))


def is_mistake(error: BaseException) -> bool:
    """Return whether an exception says that the code itself is wrong: a name that is not there, a module that cannot be
    imported, a call that does not fit. Just these classes: what users derive from them means something of their own.
    An attribute may be missing in a library because of what the outside answered, so that counts in the user's code.
    """
    kind = type(error)
    if kind is TypeError:
        return _SIGNATURE.search(user_errors.text_of(error)) is not None
    if kind is AttributeError:
        return user_errors.is_raised_by_user(error)
    return kind in _MISTAKES


def data_of(error: BaseException) -> dict[str, Any]:
    """Return the fields of an exception, as plain data."""
    try:
        found = _found(error)
    except BaseException as raised:
        if user_errors.let_pass(raised):
            raise
        return {}
    # It is the code of the failure already.
    if issubclass(type(found.get("code")), str):
        del found["code"]
    # Sorted: which of them fit under the bound must not depend on the order of assignment.
    names = sorted(name for name in found if type(name) is str and name.isidentifier() and not name.startswith("_"))
    kept: dict[str, Any] = {}
    left = limits.FAILURE_DATA_BYTES_MAX
    for name in names[: limits.FAILURE_FIELDS_MAX]:
        value, size = _plain(found[name])
        size += len(name)
        if value is not _NOTHING and size <= left:
            kept[name] = value
            left -= size
    return kept


def _found(error: BaseException) -> dict[Any, Any]:
    kind = type(error)
    found = dict(dict.items(_fields(error)))
    if not issubclass(kind, errors.Error):
        return found
    given = found.get("data") if issubclass(kind, failures.Failed | failures.Refused) else None
    # Of the errors of this package itself, only what was passed on; what users derive from them has its own fields.
    ours = str(_namespace(kind).get("__module__")).startswith("worldline.")
    found = {} if ours else {name: each for name, each in found.items() if type(name) is str and name not in _OWN}
    return {**given, **found} if type(given) is dict else found


def _plain(value: object) -> tuple[Any, int]:
    """A value as plain data, and how large it is. `_NOTHING` if it cannot be stored."""
    try:
        data = user_values.dump(value)
        return (_NOTHING if len(data) > limits.FAILURE_DATA_BYTES_MAX else _cleaned(canonical.decode(data))), len(data)
    except BaseException as raised:
        if user_errors.let_pass(raised):
            raise
        return _NOTHING, 0


def _cleaned(value: Any) -> Any:
    """Without addresses of objects in texts: a replay must come to the same."""
    if type(value) is str:
        return user_errors.plain_text(value, characters_max=limits.FAILURE_DATA_BYTES_MAX)
    if type(value) is list:
        return [_cleaned(each) for each in value]
    return {key: _cleaned(each) for key, each in value.items()} if type(value) is dict else value


def _is_named(kind: type, names: tuple[str, ...]) -> bool:
    # By name, because a class itself cannot be journaled with a call.
    return any(user_errors.name_of(each) in names for each in _mro(kind))
