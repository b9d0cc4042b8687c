"""What reaches the flow domains of a world: intents, the outcomes of their effects, and what people command.

An intent is an event whose schema is `Domain.action`. It comes from a client, a message of another world, or anything
else that sends events; or a run of the world asks for it. Its end is told to the caller that asked for it: in the same
step, or in that of the last receipt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, structs
from worldline.features.domains.pure import domain_cell, requirements
from worldline.features.domains.pure.cell_turn import CellTurn
from worldline.features.domains.pure.domain_cell import IntentWaiter, WaitingIntent
from worldline.features.domains.pure.intent_ends import EndAnswers, tell
from worldline.features.domains.pure.requirements import AnsweredRequirement
from worldline.flow_core import flow_records, jobs, patches
from worldline.flow_core import js_values as flow_values
from worldline.flow_core.authoring.action_calls import IntentEvent
from worldline.kernel import part_inputs, runs, user_values
from worldline.kernel.authoring.program import Program
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.machine import Machine
from worldline.kernel.parts import Command
from worldline.kernel.rows.domain_rows import DomainRow
from worldline.kernel.rows.row_records import JournaledFailure, Outcome
from worldline.model import inbox
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind

ENV = "domains_env"
PATCH = "domain_patch"
ABANDON = "domain_abandon"

_CODES = {
    ReceiptStatus.TIMEOUT: jobs.EFFECT_TIMEOUT,
    ReceiptStatus.CANCELLED: jobs.EFFECT_CANCELLED,
    ReceiptStatus.ERROR: jobs.EFFECT_EXECUTION_FAILED,
}


class SetEnv(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    env: dict[str, Any]


class PatchCell(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    domain: str
    key: str
    patches: list[dict[str, Any]]
    source: str


class AbandonIntent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    domain: str
    key: str
    intent: str


# --- Inputs ----------------------------------------------------------------------------------------------------------


def event(machine: Machine, item: inbox.InboxEvent, data: bytes) -> str:
    """An intent from outside. Returns why it cannot be taken, or nothing."""
    return _act(machine, item.schema, data, IntentWaiter(item.correlation))


def message(machine: Machine, item: inbox.Message, data: bytes) -> str:
    """An intent from another world, which gets a reply if it waits for one."""
    owed = IntentWaiter()
    if item.reply:
        owed = IntentWaiter.to(item, here=machine.now.context.address.world)
    return _act(machine, item.name, data, owed, derived=item.message.hex())


def take_wanted(machine: Machine) -> None:
    """Take the intents that runs of this world have asked for, and go on with cells for which a step was too short."""
    while machine.domains.wanted:
        held = machine.domains.take_wanted()
        if not held.run:
            CellTurn(machine, held.name, held.id).finish()
            take_answered(machine)
            continue
        machine.draft(Kind.EVENT_RAISED, user_values.pack([held.name, held.params]))
        _act(machine, held.name, held.params, IntentWaiter(run=held.run, op=held.op), derived=held.id)


def _act(machine: Machine, schema: str, data: bytes, owed: IntentWaiter, *, derived: str = "") -> str:
    """`derived`: the id of an intent whose caller gives none."""
    try:
        wanted = structs.decode(IntentEvent, data)
        if not wanted.intent:
            wanted = msgspec.structs.replace(wanted, intent=derived)
        domain, action = _action(machine, schema)
        turn = CellTurn(machine, domain, _checked_key(machine, domain, wanted.key))
        turn.submit(_waiting(wanted, action), owed)
    # No fault of the intent: the step cannot be made now.
    except errors.CannotStep:
        raise
    except errors.Error as error:
        if owed.waits:
            tell(machine, owed, EndAnswers(Answer(False, runs.failure(error.code, str(error)))))
            return ""
        machine.draft(Kind.UNDECODABLE_INPUT, user_values.dump([runs.storable(str(error))]))
        return f"{schema}: {error}"
    turn.finish()
    take_answered(machine)
    return ""


def _action(machine: Machine, schema: str) -> tuple[str, str]:
    found = machine.domains.actions.get(schema)
    if found is None:
        raise errors.NotFound(f"the world has no action {schema!r} now; it has {sorted(machine.domains.actions)}")
    return found


def _waiting(wanted: IntentEvent, action: str) -> WaitingIntent:
    # Text out of JSON may have lone surrogates, which have no bytes otherwise.
    size = len(wanted.intent.encode(errors="surrogatepass"))
    if not 0 < size <= limits.CHOSEN_ID_BYTES_MAX or wanted.intent == flow_values.FORBIDDEN_KEY:
        raise errors.BadInput(f"the id of an intent is a text of 1 to {limits.CHOSEN_ID_BYTES_MAX} bytes")
    given = [flow_values.from_outside(each, "input") for each in wanted.input[:1]]
    return WaitingIntent(wanted.intent, action, wanted.named, given)


def _checked_key(machine: Machine, domain: str, key: str) -> str:
    found = machine.domains.current.get(domain)
    if found is None:
        raise errors.NotFound(f"the world has no flow domain {domain!r} now")
    if found.keyed is not bool(key):
        raise errors.BadInput(f"{domain} has {'a cell for each key: give one' if found.keyed else 'no keys'}")
    size = len(key.encode())
    if size > limits.CELL_KEY_BYTES_MAX:
        raise errors.TooLarge("the key of a cell", size=size, limit=limits.CELL_KEY_BYTES_MAX)
    return key


def fulfil(machine: Machine, target: str, outcome: Outcome) -> None:
    """An effect that a requirement asked for has an outcome."""
    to = AnsweredRequirement.of(target)
    turn = CellTurn(machine, to.domain, to.key)
    turn.enqueue(_fulfilment(turn.head, to, outcome))
    turn.finish()


def required(machine: Machine, target: str) -> tuple[str, bytes]:
    """The effect that a requirement asks for, and its parameters, as they leave the world."""
    to = AnsweredRequirement.of(target)
    pending = CellTurn(machine, to.domain, to.key).head.system.pending_requirements
    found = next((each for each in pending if each.id == to.requirement), None)
    assert found is not None, "what is open is pending"
    return requirements.effect_of(found)


def take_answered(machine: Machine) -> None:
    """Take what the script of a fork has answered in this step."""
    # What an outcome leads to may ask for more, which the script answers at once.
    while machine.domains.answered:
        for target, outcome in machine.domains.take_answered():
            fulfil(machine, target, outcome)


def _fulfilment(head: flow_records.Snapshot, to: AnsweredRequirement, outcome: Outcome) -> jobs.FulfillEffect:
    """What an outcome means: its value goes where `into` says, or it is patches; a failure goes where `fail` says."""
    pending = (each for each in head.system.pending_requirements if each.id == to.requirement)
    params = next((each.params for each in pending), {})
    if outcome.status is ReceiptStatus.OK:
        answer = canonical.decode(outcome.data) if outcome.data else None
        into = params.get("into")
        if isinstance(into, str):
            return jobs.fulfilled(to.intent, to.requirement, [patches.set_(into, answer)])
        return jobs.fulfilled(to.intent, to.requirement, [] if answer is None else answer)
    why = structs.decode(JournaledFailure, outcome.data)
    code, target = _CODES[outcome.status], params.get("fail")
    if isinstance(target, str):
        said = {"code": why.code if outcome.status is ReceiptStatus.ERROR else code, "message": why.message}
        return jobs.fulfilled(to.intent, to.requirement, [patches.set_(target, said)])
    return jobs.FulfillEffect(to.intent, to.requirement, (), jobs.Failure(code, why.message))


# --- Going back ------------------------------------------------------------------------------------------------------


class WaitingCells(msgspec.Struct, frozen=True):
    """Cells of flow domains, as they were kept before the world went back."""

    cells: dict[tuple[str, str], domain_cell.DomainCell]

    def went_back(self, machine: Machine, height: int) -> None:
        """The world has become what it was. Callers that wait for an intent which was not there then are told so; runs
        went back with it. What waited in a cell then resumes, if its document of now fits.
        """
        after = waiting(machine, list(self.cells)).cells
        why = f"the world was reverted to height {height}, where there was no such intent; send it again under a new id"
        gone = EndAnswers(Answer(False, runs.failure("reverted", why)))
        for name, known in self.cells.items():
            there = after.get(name, domain_cell.DomainCell()).owed
            for id, owed in known.owed.items():
                for each in owed:
                    if each not in there.get(id, []) and not each.run and each.is_asked_of(machine.now.context.address):
                        tell(machine, each, gone)
        for name in after:
            CellTurn(machine, *name).finish()
        take_answered(machine)


def waiting(machine: Machine, names: Sequence[tuple[str, str]]) -> WaitingCells:
    """Those of these cells that are cells of flow domains, as they are kept now."""
    found: dict[tuple[str, str], domain_cell.DomainCell] = {}
    for name in names:
        cell = machine.cells.get(name)
        if cell is not None and name[0] in machine.domains.current:
            found[name] = domain_cell.decode(cell.data)[0]
    return WaitingCells(found)


# --- Commands --------------------------------------------------------------------------------------------------------


def commands() -> dict[str, Command]:
    """Return the control commands of flow domains."""
    return {part_inputs.DOMAINS: declare, ENV: set_env, PATCH: patch, ABANDON: abandon}


def declare(machine: Machine, data: bytes) -> bytes:
    """The documents of the program. Cells that were blocked are tried again; others move when they are idle."""
    wanted = structs.decode(part_inputs.DomainDeclarations, data)
    machine.domains.declared(
        wanted.domains,
        wanted.documents,
        alone=wanted.alone,
        deadlines=wanted.deadlines,
        snapshots=wanted.snapshots,
        kinds=wanted.kinds,
    )
    # A copy of the list: cells that fit now leave it.
    for domain, key in list(machine.domains.blocked):
        CellTurn(machine, domain, key).finish()
    take_answered(machine)
    return user_values.NONE


def set_env(machine: Machine, data: bytes) -> bytes:
    """What the environment of all domains is from here on."""
    wanted = structs.decode(SetEnv, data)
    env = flow_values.from_outside(wanted.env, "the environment")
    size = len(canonical.encode(env))
    if size > limits.FLOW_ENV_BYTES_MAX:
        raise errors.TooLarge("the environment", size=size, limit=limits.FLOW_ENV_BYTES_MAX)
    if not machine.domains.had:
        raise errors.NotFound("the world has no flow domains")
    machine.domains.set_env(env)
    return user_values.NONE


def patch(machine: Machine, data: bytes) -> bytes:
    """Patches from outside."""
    wanted = structs.decode(PatchCell, data)
    given = jobs.from_handler(wanted.patches)
    turn = CellTurn(machine, wanted.domain, _checked_key(machine, wanted.domain, wanted.key))
    if turn.kept.fatal:
        raise errors.Closed(f"the cell takes nothing any more: {turn.kept.fatal}")
    turn.patch(given, wanted.source)
    turn.finish()
    take_answered(machine)
    turn.check_applied()
    return user_values.NONE


def abandon(machine: Machine, data: bytes) -> bytes:
    """End an intent by hand, with an error."""
    wanted = structs.decode(AbandonIntent, data)
    turn = CellTurn(machine, wanted.domain, _checked_key(machine, wanted.domain, wanted.key))
    turn.abandon(wanted.intent)
    turn.finish()
    take_answered(machine)
    return user_values.NONE


# --- What a program declares -----------------------------------------------------------------------------------------


def news(machine: Machine, program: Program) -> part_inputs.DomainDeclarations | None:
    """What a program declares, where the world does not have it already; None if it has all of it, or never had a flow
    domain.
    """
    known = machine.domains
    if not program.domains and not known.had:
        return None
    made = part_inputs.DomainDeclarations(
        {name: DomainRow(each.hash, each.keyed, each.parallel, each.actions) for name, each in program.domains.items()},
        # The world keeps a document that it was given, under its hash
        {each.hash: each.raw for each in program.domains.values() if each.hash not in known.documents},
        alone=not program.workflows and not program.reducers,
        deadlines={
            name: each.total_timeout_us for name, each in program.effects.items() if each.total_timeout_us is not None
        },
        snapshots=sorted(name for name, each in program.effects.items() if each.signature.snapshot is not None),
        kinds=True,
    )
    has = known.current, known.alone, known.deadlines, known.snapshots, known.kinds
    same = has == (made.domains, made.alone, made.deadlines, made.snapshots, made.kinds)
    return None if same and not made.documents else made
