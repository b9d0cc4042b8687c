"""The cells of flow domains that wait or do not go on, and whose the effects are that flow domains require.

All of it is in the state; no program is needed. Cells are looked through for the names of the fields that such a cell
has, and only those that have one are decoded.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from worldline.base import errors
from worldline.features.domains.pure import domain_cell, requirements
from worldline.flow_core import flow_records, slots
from worldline.inspect.entry_text import when
from worldline.kernel.machine import Machine
from worldline.model import ids, row_keys

_MARKS = (b"\x65fatal", b"\x65queue", b"\x67blocked")  # keys of a canonical map: left out if there is nothing to say


class Queued(msgspec.Struct, frozen=True):
    """An intent that waits for its turn."""

    id: str
    action: str


class WaitingCell(msgspec.Struct, frozen=True):
    """A cell. `fatal`: why it takes nothing any more; `blocked`: where its data does not fit the document of now."""

    domain: str
    key: str
    since: datetime  # when it changed last
    fatal: str
    blocked: str
    is_declared: bool  # its domain is, by the program of now
    on_its_way: list[str]  # intents
    queue: list[Queued]

    @property
    def name(self) -> str:
        return row_keys.cell_name(self.domain, self.key)


class Required(msgspec.Struct, frozen=True):
    """What an effect is performed for."""

    domain: str
    key: str
    intent: str
    action: str

    @property
    def text(self) -> str:
        return f"{row_keys.cell_name(self.domain, self.key)}: intent {self.intent} ({self.domain}.{self.action})"


def waiting(machine: Machine) -> list[WaitingCell]:
    """Cells that take nothing any more, are blocked, or have intents in their queues."""
    if not machine.domains.had:
        return []
    found: list[WaitingCell] = []
    for (domain, key), cell in sorted(machine.cells.items()):
        if not any(mark in cell.data for mark in _MARKS):
            continue
        try:
            has, head = domain_cell.decode(cell.data)
        except errors.DecodeError:
            continue  # a reducer's
        if has.fatal or has.blocked or has.queue:
            queue = [Queued(each.id, each.action) for each in has.queue]
            is_declared = domain in machine.domains.current
            since = when(head.meta.timestamp * 1_000)
            found.append(
                WaitingCell(domain, key, since, has.fatal, has.blocked, is_declared, list(slots.every(head)), queue)
            )
    return found


def required(machine: Machine) -> dict[ids.IntentId, Required]:
    """Whose the open effects are that flow domains require, by their names outside."""
    heads: dict[tuple[str, str], flow_records.Snapshot | None] = {}
    found: dict[ids.IntentId, Required] = {}
    for effect, _, target in requirements.requirements(machine):
        name = target.domain, target.key
        # A cell may require several effects, and is decoded once.
        if name not in heads:
            cell = machine.cells.get(name)
            heads[name] = None if cell is None else domain_cell.decode(cell.data)[1]
        head = heads[name]
        slot = None if head is None else slots.slot(head, target.intent)
        found[effect] = Required(*name, target.intent, "" if slot is None else slot["type"])
    return found
