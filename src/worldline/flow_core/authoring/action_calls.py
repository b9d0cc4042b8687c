"""A call of an action on its way to a world, and its end: the records that travel, and what authors get.

An intent is an event: its schema names domain and action (`documents.schema_of`), its payload is a `IntentEvent`. Its
end is answered with an `IntentAnswer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from worldline.base import errors
from worldline.codec import canonical, structs
from worldline.flow_core import faults, flow_records, js_values
from worldline.flow_core.authoring.document_domain import name_of, schema_of
from worldline.flow_core.authoring.domain_class import Act

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class IntentEvent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The payload of an event that is an intent. `intent`: its id; empty, if the world derives one from the operation
    or the message that asks for it. `named`: its caller chose the id. `input`: one value, or none.
    """

    key: str
    intent: str
    named: bool
    input: list[Any] = []


class IntentAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The answer to an intent. `state`: the snapshot that it ended with; a client reads a large one from the world."""

    status: str
    error: dict[str, Any] | None = None
    state: dict[str, Any] | None = None


@dataclass(frozen=True)
class Acted(Generic[S_co]):
    """The end of an intent: "complete" (also if it halted) or "error", with the domain's state then."""

    status: str
    state: S_co
    error: flow_records.ErrorValue | None = None


def checked(act: object) -> Act[Any]:
    if not isinstance(act, Act):
        raise errors.BadInput(f"an action is called to be done, as in Order.pay('tok'); {act!r} is no such call")
    return act


def input_of(act: Act[Any]) -> Any:
    """Return the input of a call; a call without arguments has none."""
    # An action without parameters declares no input, and would refuse an empty object.
    return js_values.MISSING if act.input == {} else act.input


def event_of(act: Act[Any], *, key: str, id: str, named: bool) -> tuple[str, bytes]:
    """Return the event that an intent is: its schema and its data."""
    given = input_of(act)
    taken = [] if given is js_values.MISSING else [given]
    # The short way does not check bounds, so it is for small maps alone.
    is_flat = not taken or (type(given) is dict and canonical.is_small_map(given))
    made = (canonical.encode_flat if is_flat else canonical.encode)([key, id, named, taken])  # a `IntentEvent`
    return schema_of(name_of(act.domain), act.action), made


def acted_of(act: Act[S], said: IntentAnswer, snapshot: flow_records.Snapshot) -> Acted[S]:
    error = None if said.error is None else msgspec.convert(said.error, flow_records.ErrorValue)
    return Acted(said.status, act.domain.read(snapshot), error)


def read_answer(act: Act[S], data: bytes) -> Acted[S]:
    """Return the end of an intent from an answer that has the whole state. `DecodeError` for what is no such answer."""
    said = structs.decode(IntentAnswer, data)
    try:
        return acted_of(act, said, flow_records.decoded(said.state))
    except (faults.NotJson, msgspec.ValidationError) as error:
        raise errors.DecodeError(f"this is no end of an intent: {error}") from error
