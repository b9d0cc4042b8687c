"""What users get of flow domains: the end of an intent, what one would do, why one may not be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from worldline.base import errors
from worldline.codec import structs
from worldline.kernel.domains import acting, turn
from worldline.kernel.flow import snapshots, values
from worldline.kernel.flow.authoring.documents import name_of, schema_of
from worldline.kernel.flow.authoring.domains import Act

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True)
class Acted(Generic[S_co]):
    """The end of an intent: "complete" (also if it halted) or "error", with the domain's state then."""

    status: str
    state: S_co
    error: snapshots.ErrorValue | None = None


@dataclass(frozen=True)
class Preview(Generic[S_co]):
    """What an intent would do now, up to its first effect: "complete", "halted", "error" or "pending"."""

    status: str
    state: S_co
    error: snapshots.ErrorValue | None
    asks: list[tuple[str, dict[str, Any]]]  # the effects that it would ask for, with their parameters


@dataclass(frozen=True)
class Explained:
    """Whether an action may be done now; if not, why."""

    available: bool
    code: str = ""
    message: str = ""
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "yes" if self.available else f"no: {'; '.join(self.reasons) or self.message}"


def checked(act: object) -> Act[Any]:
    if not isinstance(act, Act):
        raise errors.BadInput(f"an action is called to be done, as in Order.pay('tok'); {act!r} is no such call")
    return act


def input_of(act: Act[Any]) -> Any:
    """The input of a call; a call without arguments has none."""
    return values.MISSING if act.input == {} else act.input


def event_of(act: Act[Any], *, key: str, id: str, named: bool) -> tuple[str, bytes]:
    """The event that an intent is: its schema and its data."""
    given = [each for each in [input_of(act)] if each is not values.MISSING]
    return schema_of(name_of(act.domain), act.action), structs.encode(acting.StartIntent(key, id, named, given))


def acted_of(act: Act[S], said: turn.Acted, snapshot: snapshots.Snapshot) -> Acted[S]:
    error = None if said.error is None else msgspec.convert(said.error, snapshots.ErrorValue)
    return Acted(said.status, act.domain.read(snapshot), error)
