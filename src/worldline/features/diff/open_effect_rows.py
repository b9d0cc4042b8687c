"""Effects that are open in a state, by its rows: the one place here that knows how rows say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from worldline.base import errors
from worldline.codec import canonical
from worldline.kernel.rows.row_records import OWN_WORK
from worldline.kernel.run_operations import OpKind
from worldline.layers.history.row_overlay import Overlay
from worldline.model import row_keys
from worldline.model.change import Change, Row

Get = Callable[[bytes], Row | None]
Place = tuple[str, int]  # a run, and the number of its operation


class OpenEffectRow(msgspec.Struct, frozen=True):
    """An open effect: what the operation wants, and what was asked for by which step, as its intent has it. In a fork
    these may differ.
    """

    name: str
    params: bytes
    step: int
    ordinal: int
    asked_name: str
    asked_params: bytes
    parked: bool


def asked(place: Place, get: Get) -> OpenEffectRow | None:
    """The open effect of an operation, if it has one."""
    run, op = place
    group, number = row_keys.PROGRESS + row_keys.text(run), row_keys.number(op)
    row = get(group + row_keys.OP + number)
    # With an outcome, the operation is done, and its effect is open no more.
    if row is None or get(group + row_keys.OUTCOME + number) is not None:
        return None
    kind, name, params, _, _, work, *other = fields(row.meaning)
    if kind != OpKind.EFFECT or work != OWN_WORK:
        return None
    _, step, ordinal, *_ = fields(row.placement)
    # In a fork, what was asked for first may be something else: then it stands behind the other fields.
    _, asked_name, asked_params = other or (kind, name, params)
    return OpenEffectRow(
        name, params, step, ordinal, asked_name, asked_params, get(group + row_keys.PARKED + number) is not None
    )


def touched(change: Change, rows: Overlay) -> list[Place]:
    """The operations whose effects a change of these rows may be about."""
    if change.key[:1] != row_keys.PROGRESS:
        return []
    if change.is_group:
        found = [row_keys.parse(key) for key, _ in rows.under(change.key)]
        return [(each.texts[0], each.number) for each in found if each.part == row_keys.OP]
    parsed = row_keys.parse(change.key)
    parts = row_keys.OP, row_keys.OUTCOME, row_keys.PARKED
    return [(parsed.texts[0], parsed.number)] if parsed.part in parts else []


def fields(data: bytes) -> list[Any]:
    found = canonical.decode(data)
    if not isinstance(found, list):
        raise errors.DecodeError("a row is a list of fields")
    return found
