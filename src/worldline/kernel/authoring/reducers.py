"""Reducers: classes whose instances are folded from events, one instance for each key.

A handler is a method marked `@wl.on`; the annotation of its argument is the event it takes. Handlers of a `Request[R]`
answer it by what they return, and their return annotation is checked against R when the class is declared, which a type
checker cannot do; if the class stands above the types that it names, when the program is hosted.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import msgspec

from worldline.base import call_signatures, errors
from worldline.codec import canonical
from worldline.kernel import user_values
from worldline.kernel.authoring import calls, stored_types
from worldline.kernel.personal import personal_value
from worldline.model import ids, row_keys

S = TypeVar("S")
E = TypeVar("E")
R = TypeVar("R")

_MARK = "__worldline_on__"
_INBOX = "__worldline_inbox__"
_SCALARS = (int, float, str, bytes, bool)


class EventHandler(msgspec.Struct, frozen=True):
    """One `@wl.on` method: the event it takes and, for a request, the type of its answer."""

    reducer: str
    method: str
    event: Any
    schema: str
    answers: Any = None
    is_request: bool = False
    inbox: str = ""  # the inbox whose messages it takes, whatever their schema; empty: events of its schema


class Reducer(msgspec.Struct, frozen=True):
    """`scalars`: the fields and their types, if all are numbers, text, bytes or truth values."""

    name: str
    cls: Any
    key: str | None
    handlers: list[EventHandler]
    scalars: list[tuple[str, type]] | None = None
    is_dataclass: bool = False  # so its fields are stored under their own names

    def is_canonical(self, value: Any) -> bool:
        """Return whether a value can be seen to be what its bytes would be read back as, without reading them back."""
        # More attributes than fields: something was set besides, which the bytes would not have.
        if self.scalars is None or len(getattr(value, "__dict__", self.scalars)) != len(self.scalars):
            return False
        for name, kind in self.scalars:  # noqa: SIM110 - for every event: a generator costs more than the check
            if type(getattr(value, name)) is not kind:
                return False
        return True

    def dump(self, value: Any, *, is_canonical: bool) -> bytes:
        """Return the bytes of a value: of a dataclass that holds just the scalars it declares, by the short way."""
        if not is_canonical or self.scalars is None or not self.is_dataclass:
            return user_values.dump(value)
        flat = {name: getattr(value, name) for name, _ in self.scalars}
        try:
            return user_values.bounded(canonical.encode_flat(flat), self.name)
        except errors.EncodeError:
            return user_values.dump(value)  # it says which field


class Routes(msgspec.Struct, frozen=True):
    """Which handlers and workflows get an event, by its schema. `any_flows` wait for types that are not known.
    `inboxes`: the handlers of what is sent to an inbox, by its name.
    """

    handlers: dict[str, list[EventHandler]]
    flows: dict[str, list[str]]
    any_flows: list[str]
    types: dict[str, Any]
    inboxes: dict[str, list[EventHandler]]


class OnInbox:
    """What `@wl.on(inbox="orders")` marks a method with."""

    def __init__(self, inbox: str) -> None:
        self._inbox = ids.check_name(user_values.text(inbox, "an inbox's name"), "an inbox's name")

    def __call__(self, fn: Callable[[S, E], R], /) -> Callable[[S, E], R]:
        setattr(on(fn), _INBOX, self._inbox)
        return fn


@overload
def on(fn: Callable[[S, E], R], /) -> Callable[[S, E], R]: ...
@overload
def on(*, inbox: str) -> OnInbox: ...
def on(fn: Any = None, /, *, inbox: str | None = None) -> Any:
    """Mark a reducer's method as the handler of the event its argument is annotated with.

    `inbox`: it takes what is sent to the inbox of this name instead, by `wl.send(..., inbox=)` and `world.send(...,
    inbox=)`; its argument is a `wl.Envelope`, or of any type that the contents are read as.
    """
    if fn is None:
        return OnInbox(inbox if inbox is not None else "")
    calls.check_function(fn, f"@wl.on {getattr(fn, '__qualname__', '')}".rstrip(), is_async=False)
    setattr(fn, _MARK, True)
    return fn


def declare(cls: type, *, key: str | None, name: str) -> Reducer:
    """Begin a reducer: check of its class what needs none of the types that are named in it."""
    try:
        # A new cell begins as `cls()`, in the middle of a step: that has to work now.
        cls()
    except Exception as error:
        raise errors.BadInput(
            f"reducer {name}: every field needs a default, so that {name}() works: {error}"
        ) from error
    if not _methods(cls):
        raise errors.BadInput(f"reducer {name} has no handler; mark its methods with @wl.on")
    return Reducer(name, cls, key, [])


def complete(begun: Reducer, namespace: dict[str, Any]) -> Reducer:
    """The reducer with its handlers, its types checked: of the fields, of events and of answers. `NotYet` while an
    annotation names nothing.
    """
    name, cls = begun.name, begun.cls
    stored_types.check(cls, f"reducer {name}")
    # The trial value may hold a `wl.Personal`, which is written only at a desk.
    outside = personal_value.desk.set(personal_value.TrialDesk())
    try:
        user_values.load(cls, user_values.dump(cls()))
    finally:
        personal_value.desk.reset(outside)
    # Its own name is not bound before its decorators return, and a handler may mention it.
    scope = {**namespace, cls.__name__: cls}
    handlers = [_handler(name, label, fn, begun.key, scope) for label, fn in _methods(cls)]
    for each in handlers:
        what = user_values.name_of(each.event)
        stored_types.check(each.event, f"{name}.{each.method}: {what}")
        stored_types.check(each.answers, f"{name}.{each.method}: the answer to {what}")
    return Reducer(name, cls, begun.key, handlers, _scalars(cls), dataclasses.is_dataclass(cls))


def first_handler(cls: type) -> Callable[..., Any]:
    """What says where the class stands."""
    return _methods(cls)[0][1]


def _methods(cls: type) -> list[tuple[str, Callable[..., Any]]]:
    return [(label, fn) for label, fn in vars(cls).items() if getattr(fn, _MARK, False)]


def value_of(cls: type, reducer: str, key: str, data: bytes) -> Any:
    """A cell's data as an object of its class. `CellUnfit` names the cell if the class does not take it."""
    try:
        return user_values.load(cls, data)
    except errors.DecodeError as error:
        name = row_keys.cell_name(reducer, key)
        raise errors.CellUnfit(f"the cell {name} does not fit its class {user_values.name_of(cls)}: {error}") from error


def routes(reducers: Iterable[Reducer], interests: dict[str, list[Any] | None]) -> Routes:
    """Put all handlers and waits together. Two answers to one request, or two types of one name, are refused."""
    made = Routes({}, {}, [], {}, {})
    for reducer in sorted(reducers, key=lambda each: each.name):  # not by where in the file they stand
        for handler in reducer.handlers:
            if handler.inbox:
                made.inboxes.setdefault(handler.inbox, []).append(handler)
                continue
            _name_type(made, handler.event)
            taken = made.handlers.setdefault(handler.schema, [])
            if taken and handler.is_request:
                raise errors.BadInput(f"request {handler.schema} has two handlers: {taken[0].reducer}, {reducer.name}")
            taken.append(handler)
    for flow, waited in interests.items():
        if waited is None:
            made.any_flows.append(flow)
            continue
        for kind in waited:
            _name_type(made, kind)
            flows = made.flows.setdefault(user_values.schema_name(kind), [])
            if flow not in flows:
                flows.append(flow)
    return made


def _handler(reducer: str, label: str, fn: Callable[..., Any], key: str | None, scope: dict[str, Any]) -> EventHandler:
    hints = calls.type_hints(fn, scope)
    arguments = [name for name in hints if name != "return"]
    if len(arguments) != 1:
        raise errors.BadInput(f"{reducer}.{label} must take one event, with its type annotated")
    event = hints[arguments[0]]
    if not isinstance(event, type):
        raise errors.BadInput(f"{reducer}.{label}: {event!r} is not an event class")
    if key is not None and key not in _fields(event):
        raise errors.BadInput(f"{reducer}.{label}: {event.__name__} has no field {key!r} to choose the cell by")
    is_request = issubclass(event, calls.Request)
    answers = calls.answer_type(event) if is_request else None
    if is_request and "return" in hints and answers is not Any and hints["return"] not in (answers, Any):
        raise errors.BadInput(
            f"{reducer}.{label} returns {hints['return']!r}, but {event.__name__} is answered with {answers!r}"
        )
    inbox: str = getattr(fn, _INBOX, "")
    if inbox and is_request:
        raise errors.BadInput(
            f"{reducer}.{label} takes messages to inbox {inbox!r}, which have no answer: {event.__name__} is a request"
        )
    return EventHandler(reducer, label, event, user_values.schema_name(event), answers, is_request, inbox)


def _scalars(cls: type) -> list[tuple[str, type]] | None:
    if hasattr(cls, "model_fields"):
        return None
    found = (
        [(field.name, field.type) for field in msgspec.structs.fields(cls)] if issubclass(cls, msgspec.Struct) else []
    )
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        found = [(field.name, hints[field.name]) for field in dataclasses.fields(cls)]
    return found if all(kind in _SCALARS for _, kind in found) else None


def check_request(kind: type) -> None:
    """Refuse to ask what is no request: nothing would answer it."""
    if not issubclass(kind, calls.Request):
        name = user_values.name_of(kind)
        raise errors.BadInput(
            f"{name} is not a request, so it has no answer: send it, or declare `class {name}(wl.Request[...])`"
        )


def _fields(event: type) -> list[str]:
    for names in ("__dataclass_fields__", "__struct_fields__", "model_fields"):
        if hasattr(event, names):
            return list(getattr(event, names))
    return list(call_signatures.annotations_of(event))


def _name_type(made: Routes, kind: Any) -> None:
    name = user_values.schema_name(kind)
    # By identity: two classes of one name would read each other's events.
    if made.types.setdefault(name, kind) is not kind:
        raise errors.BadInput(f"two event classes are named {name}; give one of them __schema__ = 'another name'")
