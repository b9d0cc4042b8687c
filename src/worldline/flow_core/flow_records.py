"""The records of Core: a snapshot, an intent, a requirement, an error, the context of a call.

There is one Snapshot type, for Core and for both hosts. As JSON their fields have the names of the contract
(`pendingRequirements`); a host keeps what is its own in `data["$host"]` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from worldline.base import limits
from worldline.flow_core import faults, js_values

HOST: Final = "$host"


class ErrorSource(msgspec.Struct, frozen=True, rename="camel"):
    """Where an error comes from."""

    action_id: str
    node_path: str


class ErrorValue(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An error as data."""

    code: str
    message: str
    source: ErrorSource
    timestamp: int
    context: dict[str, Any] | None = None


class FlowPosition(msgspec.Struct, frozen=True, rename="camel"):
    """The effect node that a requirement comes from, and the version it was computed at."""

    node_path: str
    snapshot_version: int


class Requirement(msgspec.Struct, frozen=True, rename="camel"):
    """An effect that Core declares and a host performs."""

    id: str
    intent_id: str
    type: str
    params: dict[str, Any]
    action_id: str
    flow_position: FlowPosition
    created_at: int


class System(msgspec.Struct, frozen=True, rename="camel"):
    """What Core says about its own work. Hosts add no field."""

    status: str = "idle"  # idle, computing, pending, error
    last_error: ErrorValue | None = None
    errors: tuple[ErrorValue, ...] = ()
    pending_requirements: tuple[Requirement, ...] = ()
    current_action: str | None = None


IDLE: Final = System()


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    version: int
    timestamp: int
    random_seed: str
    schema_hash: str


class Snapshot(msgspec.Struct, frozen=True, rename="camel"):
    """The whole state of a domain at a version."""

    data: dict[str, Any]
    computed: dict[str, Any]
    system: System
    meta: Meta
    input: Any = js_values.MISSING


# The default of an effect's parameter `snapshot`: to type checkers a snapshot, because the effect is given one.
GIVEN: Final = Snapshot({}, {}, IDLE, Meta(version=0, timestamp=0, random_seed="", schema_hash=""))


class Intent(msgspec.Struct, frozen=True, rename="camel"):
    """A command: which action, its input, and the id that stays the same over all its computes."""

    type: str
    intent_id: str
    input: Any = js_values.MISSING


class JobContext(msgspec.Struct, frozen=True, rename="camel"):
    """What a host freezes at the start of a job: its time in ms, its seed, its environment."""

    now: int = 0
    random_seed: str = ""
    env: dict[str, Any] = {}
    duration_ms: int = 0


def plain(record: msgspec.Struct) -> Any:
    """A record as JSON values."""
    return msgspec.json.decode(msgspec.json.encode(record, enc_hook=_thawed))


def plain_system(system: System) -> dict[str, Any]:
    """`plain` of one whose values are no frozen copies: half of the time."""
    last = system.last_error
    return {
        "status": system.status,
        "lastError": None if last is None else msgspec.to_builtins(last),
        "errors": [msgspec.to_builtins(each) for each in system.errors],
        "pendingRequirements": [msgspec.to_builtins(each) for each in system.pending_requirements],
        "currentAction": system.current_action,
    }


def plain_list(records: Sequence[msgspec.Struct]) -> list[Any]:
    """Records as JSON values, as a patch carries them."""
    found: list[Any] = msgspec.json.decode(msgspec.json.encode(records, enc_hook=_thawed))
    return found


def _thawed(value: object) -> object:
    """Members of what `frozen` gave."""
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def encoded(snapshot: Snapshot) -> bytes:
    """A snapshot as JSON; equal snapshots have equal bytes."""
    return msgspec.json.encode(snapshot, order="deterministic", enc_hook=_thawed)


def decoded(value: object) -> Snapshot:
    """A snapshot from JSON values. Raises `faults.NotJson` where it is none."""
    try:
        snapshot = msgspec.convert(value, Snapshot)
    except msgspec.ValidationError as refused:
        raise faults.NotJson(f"this is no snapshot: {refused}") from None
    given = snapshot.input
    # What JSON lets through may still be no value that a snapshot can keep, as half of a character.
    return replace(
        snapshot,
        data=js_values.from_outside(snapshot.data, "data"),
        computed=js_values.from_outside(snapshot.computed, "computed"),
        input=given if given is js_values.MISSING else js_values.from_outside(given, "input"),
    )


def frozen(snapshot: Snapshot) -> Snapshot:
    """A copy that refuses every change, at any depth: what handlers of effects are given."""
    system = snapshot.system
    last = None if system.last_error is None else _frozen_error(system.last_error)
    pending = (replace(each, params=js_values.frozen(each.params)) for each in system.pending_requirements)
    return replace(
        snapshot,
        data=js_values.frozen(snapshot.data),
        computed=js_values.frozen(snapshot.computed),
        input=js_values.frozen(snapshot.input),
        system=replace(
            system,
            last_error=last,
            errors=tuple(_frozen_error(each) for each in system.errors),
            pending_requirements=tuple(pending),
        ),
    )


def _frozen_error(error: ErrorValue) -> ErrorValue:
    return replace(error, context=js_values.frozen(error.context))  # its other fields cannot be changed


def received(value: object) -> Snapshot:
    """A snapshot from JSON values that a host of the same store has made: they were checked there."""
    return msgspec.convert(value, Snapshot)


def copied(snapshot: Snapshot) -> Snapshot:
    """A copy that shares no container with the snapshot."""
    return received(plain(snapshot))


def copied_error(error: ErrorValue | None) -> ErrorValue | None:
    """A copy that shares no container with the error, which a snapshot has too."""
    return None if error is None else replace(error, context=js_values.duplicate(error.context))


def created(data: object, schema_hash: str, context: JobContext) -> Snapshot:
    """Return the first snapshot. Its computed values are empty until the first compute or apply."""
    return Snapshot(
        data=js_values.from_outside(data, "data"),
        computed={},
        system=System(),
        meta=Meta(version=0, timestamp=context.now, random_seed=context.random_seed, schema_hash=schema_hash),
    )


def kept(errors: tuple[ErrorValue, ...]) -> tuple[ErrorValue, ...]:
    """Return the errors that a snapshot keeps: the last ones."""
    # Bounded, because the whole snapshot is stored with each version.
    return errors[-limits.FLOW_ERRORS_MAX :]
