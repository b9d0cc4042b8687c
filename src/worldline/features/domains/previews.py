"""Looking at flow domains in a machine, without a step: previews, explanations, tools. Nothing here changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from worldline.base import errors
from worldline.features.domains.pure import domain_cell
from worldline.features.domains.pure.cell_documents import compiled
from worldline.flow_core import core as cores
from worldline.flow_core import flow_records, hashing
from worldline.flow_core.authoring.action_calls import input_of
from worldline.flow_core.authoring.document_domain import name_of
from worldline.flow_core.authoring.domain_class import Act, Action
from worldline.flow_core.compiled_document import Compiled
from worldline.flow_core.exporting import tools as exporting
from worldline.kernel.machine import Machine
from worldline.model import row_keys

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
_ID = "preview"


@dataclass(frozen=True)
class Preview(Generic[S_co]):
    """What an intent would do now, up to its first effect: "complete", "halted", "error" or "pending"."""

    status: str
    state: S_co
    error: flow_records.ErrorValue | None
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


def document_of(machine: Machine, domain: Any) -> Compiled:
    """The document that a domain has now; in a world that was never run, the one that it will be given."""
    name = name_of(domain)
    found = machine.domains.current.get(name)
    if found is not None:
        return compiled(machine.domains.documents[found.hash].raw)
    # The world was given its domains, and this is none of them.
    if machine.domains.had:
        raise errors.NotFound(f"the world has no flow domain {name!r}; it has {sorted(machine.domains.current)}")
    return compiled(hashing.canonical(domain.document()).encode())


def snapshot_of(machine: Machine, domain: Any, key: str, *, now_us: int) -> flow_records.Snapshot:
    """The snapshot of a cell; of one that does not exist yet, the first that it would have."""
    cell = machine.cells.get((name_of(domain), key))
    if cell is None:
        # As a turn of the cell makes it, so that what is shown is what the first intent will find.
        context = flow_records.JobContext(now_us // 1_000, "initial", machine.domains.env)
        return cores.created(document_of(machine, domain), {}, context)
    return domain_cell.decode(cell.data)[1]


def stuck(machine: Machine, domain: str, key: str) -> str:
    """Why a cell accepts nothing, or begins nothing; empty if it does."""
    cell = machine.cells.get((domain, key))
    found = domain_cell.DomainCell() if cell is None else domain_cell.decode(cell.data)[0]
    if found.fatal:
        return f"it takes nothing any more: {found.fatal}"
    return f"it is blocked, its data does not fit the document of now: {found.blocked}" if found.blocked else ""


def explain(machine: Machine, what: Act[Any] | Action[Any, ...], key: str, *, now_us: int) -> Explained:
    """Whether an action may be done now. Without its input, only its condition is asked."""
    if not isinstance(what, Act):
        return unavailable(machine, what.owner, what.name, key, now_us=now_us)
    document = document_of(machine, what.domain)
    said = stuck(machine, name_of(what.domain), key)
    head = snapshot_of(machine, what.domain, key, now_us=now_us)
    return _said(said, cores.Core().refusal(document, head, flow_records.Intent(what.action, _ID, input_of(what))))


def unavailable(machine: Machine, domain: Any, action: str, key: str, *, now_us: int) -> Explained:
    """Whether an action may be done now, whatever its input."""
    document = document_of(machine, domain)
    said = stuck(machine, name_of(domain), key)
    head = snapshot_of(machine, domain, key, now_us=now_us)
    return _said(said, cores.Core().unavailable(document, head, action))


def _said(why_stuck: str, refusal: cores.Refusal | None) -> Explained:
    if why_stuck:
        return Explained(False, "CELL_STUCK", why_stuck)
    if refusal is None:
        return Explained(True)
    return Explained(False, refusal.code, refusal.message, refusal.reasons)


def preview(machine: Machine, act: Act[S], key: str, *, now_us: int) -> Preview[S]:
    """What an intent would do, up to its first effect. Nothing is asked for."""
    domain = act.domain
    head = snapshot_of(machine, domain, key, now_us=now_us)
    intent = flow_records.Intent(act.action, _ID, input_of(act))
    context = flow_records.JobContext(now_us // 1_000, _ID, machine.domains.env)
    found = cores.Core().compute(document_of(machine, domain), head, intent, context)
    asks = [(each.type, each.params) for each in found.requirements]
    error = found.snapshot.system.last_error if found.status == "error" else None
    return Preview(found.status, act.domain.read(found.snapshot), error, asks)


def tools(machine: Machine, domain: Any, key: str, *, shape: exporting.Shape, now_us: int) -> exporting.Tools:
    """Every action of a cell: those that may be called now, and why not the others."""
    name = name_of(domain)
    document = document_of(machine, domain)
    said = stuck(machine, name, key)
    if said:
        raise errors.Closed(f"{row_keys.cell_name(name, key)}: {said}")
    return exporting.tools(document, snapshot_of(machine, domain, key, now_us=now_us), shape=shape)
