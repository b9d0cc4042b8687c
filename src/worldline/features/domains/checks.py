"""What `why` says of flow domains: cells that wait or do not go on, and whose the effects are that they require.

All of it is in the state; no program is needed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime

import msgspec

from worldline.base import errors, grammar
from worldline.features.domains.pure import domain_cell, requirements
from worldline.flow_core import flow_records, slots
from worldline.inspect.entry_text import when
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Cell
from worldline.model import ids, row_keys
from worldline.model.cell_rows import CellKind
from worldline.runtime.feature_reasons import AskedWorld, FeatureReasons, Reason

CELLS_SHOWN_MAX = 20
QUEUED_SHOWN_MAX = 5


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


class DomainReasons(FeatureReasons):
    def of_state(self, asked: AskedWorld, machine: Machine) -> list[Reason]:
        return _stalled(asked, machine)

    def of_effects(
        self, asked: AskedWorld, machine: Machine, effects: Mapping[ids.IntentId, Reason]
    ) -> Mapping[ids.IntentId, Reason]:
        whose = required(machine)
        return {
            intent: _of_intent(asked, reason, whose[intent]) if intent in whose else reason
            for intent, reason in effects.items()
        }


def waiting(machine: Machine) -> list[WaitingCell]:
    """Cells that take nothing any more, are blocked, or have intents in their queues."""
    if not machine.domains.had:
        return []
    found: list[WaitingCell] = []
    for (domain, key), cell in sorted(machine.cells.items()):
        opened = _held_up(machine, domain, cell)
        if opened is not None:
            has, head = opened
            queue = [Queued(each.id, each.action) for each in has.queue]
            is_declared = domain in machine.domains.current
            since = when(head.meta.timestamp * 1_000)
            found.append(
                WaitingCell(domain, key, since, has.fatal, has.blocked, is_declared, list(slots.every(head)), queue)
            )
    return found


def _held_up(machine: Machine, name: str, cell: Cell) -> tuple[domain_cell.DomainCell, flow_records.Snapshot] | None:
    """Open a cell of a flow domain that is held up; None for any other cell. `name`: of the domain, or reducer."""
    if cell.kind is not CellKind.DOMAIN and not _may_be_of_domain(machine, name):
        return None
    if not domain_cell.is_held_up(cell.data):
        return None
    try:
        return domain_cell.decode(cell.data)
    except errors.DecodeError:
        if cell.kind is CellKind.DOMAIN:
            raise
        return None  # a reducer's


def _may_be_of_domain(machine: Machine, name: str) -> bool:
    """Whether a cell whose row says no kind may be a flow domain's, written before format 2.4. Such a cell is known by
    the name of a domain. A domain that the program has no more is not in the state: any name may have been its own that
    is no reducer's now.
    """
    return name in machine.domains.current or name not in machine.program.reducers


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


def _stalled(asked: AskedWorld, machine: Machine) -> list[Reason]:
    """Name cells that make no progress, and intents that wait in their queues."""
    every = waiting(machine)
    # Those that need a person first, or the cut could hide them.
    every.sort(key=lambda each: not (each.fatal or each.blocked or not each.is_declared))
    found = [_cell(asked, each) for each in every[:CELLS_SHOWN_MAX]]
    if len(every) > CELLS_SHOWN_MAX:
        # What is cut off may still need a person, and that must show.
        stuck = any(each.fatal or each.blocked for each in every[CELLS_SHOWN_MAX:])
        found.append(
            Reason("cells", (f"{grammar.count(len(every) - CELLS_SHOWN_MAX, 'more cell')} of flow domains"), stuck)
        )
    return found


def _cell(asked: AskedWorld, cell: WaitingCell) -> Reason:
    ids_queued = [each.id for each in cell.queue]
    waits = f"{len(ids_queued)} {'intent waits' if len(ids_queued) == 1 else 'intents wait'}"
    abandon = [_abandon(asked, cell.domain, cell.key, each) for each in ids_queued[:QUEUED_SHOWN_MAX]]
    if cell.fatal:
        ways = [
            asked.command(f"trace {asked.name} --domain {cell.domain}{_key(cell.key)}"),
            asked.command(f"revert {asked.name} --to HEIGHT"),
        ]
        what = f"{cell.name} takes nothing any more; the state before it did can be gone back to"
        return Reason(
            "fatal", what, True, since=cell.since, error=cell.fatal, command=ways[0], ways=ways, cell=cell.name
        )
    if cell.blocked:
        ways = [
            asked.command("dev FILE"),
            asked.command(f"patch {asked.name} {cell.domain} PATH=VALUE{_key(cell.key)}"),
            *abandon,
        ]
        what = f"{cell.name} is blocked: its data does not fit the document of now; patch it, or host one that fits"
        what += f"; {waits}" if ids_queued else ""
        return Reason(
            "unfit", what, True, since=cell.since, error=cell.blocked, command=ways[0], ways=ways, cell=cell.name
        )
    named = ", ".join(f"{each.id} ({each.action})" for each in cell.queue[:QUEUED_SHOWN_MAX])
    more = ", ..." if len(cell.queue) > QUEUED_SHOWN_MAX else ""
    if not cell.is_declared:
        ways = [asked.command("dev FILE"), *abandon]
        what = f"{cell.name}: the program declares no {cell.domain} now; {waits}: {named}{more}"
        return Reason("undeclared", what, True, command=ways[0], ways=ways, cell=cell.name)
    before = ", ".join(cell.on_its_way)
    what = f"{cell.name}: {waits} for the end of {before}: {named}{more}"
    command = _abandon(asked, cell.domain, cell.key, cell.on_its_way[0]) if cell.on_its_way else ""
    return Reason("queued", what, command=command, cell=cell.name)


def _of_intent(asked: AskedWorld, reason: Reason, required: Required) -> Reason:
    """The reason of an effect that an intent waits for."""
    abandon = _abandon(asked, required.domain, required.key, required.intent)
    ways = [*(reason.ways or ([reason.command] if reason.command else [])), abandon]
    return msgspec.structs.replace(
        reason,
        what=f"{required.text} waits for {reason.what}",
        command=reason.command or abandon,
        ways=ways,
        cell=row_keys.cell_name(required.domain, required.key),
        intent=required.intent,
    )


def _abandon(asked: AskedWorld, domain: str, key: str, intent: str) -> str:
    return asked.command(f"abandon {asked.name} {domain} {shlex.quote(intent)}{_key(key)}")


def _key(key: str) -> str:
    return f" --key {shlex.quote(key)}" if key else ""
