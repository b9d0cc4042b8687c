"""Looking at flow domains in a machine, without a step: previews, explanations, tools. Nothing here changes it."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import msgspec

from worldline.base import errors
from worldline.client.flow.acted import Explained, Preview
from worldline.client.flow.tools import Tools, tool_of
from worldline.kernel.domains import kept
from worldline.kernel.domains.turn import compiled
from worldline.kernel.flow import core as cores
from worldline.kernel.flow import snapshots, validation, values
from worldline.kernel.flow.authoring.documents import name_of
from worldline.kernel.flow.authoring.domains import Act, Action
from worldline.kernel.flow.compiled import Compiled
from worldline.kernel.state import Machine

S = TypeVar("S")
_ID = "preview"


def document_of(machine: Machine, domain: str) -> Compiled:
    """The document that a domain has now."""
    found = machine.domains.current.get(domain)
    if found is None:
        raise errors.NotFound(f"the world has no flow domain {domain!r}; it has {sorted(machine.domains.current)}")
    return compiled(machine.domains.documents[found.hash].raw)


def snapshot_of(machine: Machine, domain: str, key: str, *, now_us: int) -> snapshots.Snapshot:
    """The snapshot of a cell; of one that does not exist yet, the first that it would have."""
    cell = machine.cells.get((domain, key))
    if cell is None:
        context = snapshots.Context(now_us // 1_000, "initial", machine.domains.env)
        return cores.created(document_of(machine, domain), {}, context)
    return kept.decode(cell.data)[1]


def stuck(machine: Machine, domain: str, key: str) -> str:
    """Why a cell takes nothing, or goes on with nothing; empty if it does."""
    cell = machine.cells.get((domain, key))
    found = kept.Kept() if cell is None else kept.decode(cell.data)[0]
    if found.fatal:
        return f"it takes nothing any more: {found.fatal}"
    return f"it is blocked, its data does not fit the document of now: {found.blocked}" if found.blocked else ""


def explain(machine: Machine, what: Act[Any] | Action[Any, ...], key: str, *, now_us: int) -> Explained:
    """Whether an action may be done now. Without its input, only its condition is asked."""
    domain = name_of(what.domain if isinstance(what, Act) else what.owner)
    action = what.action if isinstance(what, Act) else what.name
    document = document_of(machine, domain)
    said = stuck(machine, domain, key)
    if said:
        return Explained(False, "CELL_STUCK", said)
    given: Any = values.MISSING
    if isinstance(what, Act):
        given = what.input or values.MISSING
    elif action in document.schema.actions:
        document = _without_input(msgspec.json.encode(document.raw), action)
    head = snapshot_of(machine, domain, key, now_us=now_us)
    refusal = cores.Core().refusal(document, head, snapshots.Intent(action, _ID, given))
    if refusal is None:
        return Explained(True)
    return Explained(False, refusal.code, refusal.message, refusal.reasons)


@functools.lru_cache(maxsize=256)
def _without_input(raw: bytes, action: str) -> Compiled:
    document = msgspec.json.decode(raw)
    document["actions"][action].pop("input", None)
    return validation.load_unchecked(document)


def preview(machine: Machine, act: Act[S], key: str, *, now_us: int) -> Preview[S]:
    """What an intent would do, up to its first effect. Nothing is asked for."""
    domain = name_of(act.domain)
    head = snapshot_of(machine, domain, key, now_us=now_us)
    intent = snapshots.Intent(act.action, _ID, act.input or values.MISSING)
    context = snapshots.Context(now_us // 1_000, _ID, machine.domains.env)
    found = cores.Core().compute(document_of(machine, domain), head, intent, context)
    asks = [(each.type, each.params) for each in found.requirements]
    error = found.snapshot.system.last_error if found.status == "error" else None
    return Preview(found.status, act.domain.read(found.snapshot), error, asks)


def tools(machine: Machine, domain: Any, key: str, *, now_us: int) -> Tools:
    """Every action of a cell: those that may be called now, and why not the others."""
    name = name_of(domain)
    document = document_of(machine, name)
    available, unavailable = [], {}
    for action in document.schema.actions:
        made: Action[Any, ...] = Action(_nothing)
        made.__set_name__(domain, action)
        found = explain(machine, made, key, now_us=now_us)
        if found.available:
            available.append(tool_of(document, action))
        else:
            unavailable[action] = str(found).removeprefix("no: ")
    return Tools(domain, key, available, unavailable)


def _nothing(_: Any) -> None: ...
