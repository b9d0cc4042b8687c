"""The first step of a fork: what happens to the open work that it has inherited.

Every operation that is open where a world is forked has a fate under every policy; none waits for ever:

=========== ======================= ======================= ======================= ====================
open        drop                    reissue                 share                   script
=========== ======================= ======================= ======================= ====================
effect      `cancelled`             asked for again         the parent's answer     scripted, or
                                                                                    `cancelled`
question,   `cancelled`             sent again              the parent's answer     scripted, or
message                                                                             `cancelled`
answer to   the parent's: it brings the answer back, under every policy
a universe
timer       set again, for the same time, under every policy
child run   a run of the fork like any other, under every policy
wait        for an event that the fork gets, under every policy
=========== ======================= ======================= ======================= ====================

What is asked for or sent again is new work of the fork: in a dry one the script answers it, or it is parked. So is what
the parent had no room to ask for (`unsent`); what it has given up and not closed (`closing`) is no concern of the fork.
With `share`, the fork looks for the answer in its parent's journal (`SHARE`, an effect that every host performs); if
the parent gives the work up or is deleted, the answer is `cancelled`.

Nothing here runs user code: runs that have got an answer continue in the next step. Work that a step has no room for is
decided by the next ones.
"""

from __future__ import annotations

import functools

from worldline.base import errors, probes
from worldline.codec import canonical, digest, structs
from worldline.features.forks.pure import revert_step
from worldline.kernel import part_inputs, run_requests, runs, user_values
from worldline.kernel.authoring import message_calls
from worldline.kernel.machine import Machine
from worldline.kernel.parts import Command, DomainsPart
from worldline.kernel.rows.branch_rows import RULES_MAX, Branch, Owner, rule_of
from worldline.kernel.rows.row_records import DeferredOperation, Op, Outcome, Pending
from worldline.kernel.run_operations import OpKind
from worldline.model import ids
from worldline.model.inbox import ReceiptStatus
from worldline.model.work import WorkKind
from worldline.model.world_records import ForkPolicy


def commands(domains: DomainsPart) -> dict[str, Command]:
    """Return the control commands of forks."""
    return {part_inputs.FORKED: forked, part_inputs.REVERT: functools.partial(revert_step.revert, domains=domains)}


def forked(machine: Machine, data: bytes) -> bytes:
    """Begin as a fork. Only the first step of one does this."""
    wanted = structs.decode(part_inputs.ImportBeginning, data)
    context = machine.now.context
    if wanted.fork != context.address.world or wanted.owner == wanted.fork or wanted.step + 1 != context.step:
        raise errors.Closed("only the first step of a fork says that it is one")
    if len(wanted.script) > RULES_MAX:
        raise errors.TooLarge("a script's rules", size=len(wanted.script), limit=RULES_MAX)
    rules = [rule_of(canonical.decode(each)) for each in wanted.script]
    name = wanted.fork.hex()
    before = [] if machine.branch is None else machine.branch.still_owners()
    branch = Branch(
        machine.ledger,
        dry=not wanted.live,
        # A live fork uses keys of its own, or a service would take its requests for those of the parent.
        prefix=f"{name}:" if wanted.live else "",
        policy=wanted.policy,
        name=wanted.parent,
        owners=[*before, Owner(wanted.step, wanted.owner, wanted.height)],
        unsettled=bool(machine.work.open),
    )
    salt = digest.hash_parts(b"fork", wanted.fork) if wanted.live else b""
    universe = ids.UniverseId(wanted.universe) if wanted.universe else context.address.universe
    owner = ids.Address(universe, ids.WorldId(wanted.owner))
    machine.fork(branch, rules, owner, salt=salt)
    machine.work.forked()
    machine.continue_later()
    return user_values.NONE


def settle_inherited(machine: Machine, domains: DomainsPart) -> None:
    """Decide the fate of inherited work, as far as this step has room. Runs that have got an answer continue later."""
    branch, now = machine.branch, machine.now
    assert branch is not None
    inherited = [each for each in machine.work.open.values() if branch.is_inherited(each)]
    for pending in inherited:
        if not now.has_room:
            break
        _settle(machine, branch, pending, domains)
    # No `break`: there was room for all of it.
    else:
        branch.settled()
    machine.continue_later()


def _settle(machine: Machine, branch: Branch, pending: Pending, domains: DomainsPart) -> None:
    if pending.kind is WorkKind.TIMER:
        machine.work.rename(pending)
        if pending.run:
            machine.runs[pending.run].opened(pending.op, pending)
        return
    machine.work.disown(pending)
    if pending.event:
        _settle_requirement(machine, branch, pending, domains)
        return
    run = machine.runs.get(pending.run)
    if run is None or not run.live:
        return
    if pending.parked is not None:
        run.park(pending.op, None)  # whatever becomes of it
    op = run.record.ops[pending.op]
    match branch.policy:
        case ForkPolicy.REISSUE:
            run.opened(pending.op, None)
            run_requests.issued(machine, run, pending.op, op.params)
        case ForkPolicy.SHARE:
            _share(machine, branch, pending)
        case ForkPolicy.SCRIPT if (outcome := _scripted(branch, op.kind, op.name, op.params)) is not None:
            _answer(machine, pending, outcome)
        case _:
            _answer(machine, pending, runs.failed("cancelled", _why(machine, branch), status=ReceiptStatus.CANCELLED))


def _settle_requirement(machine: Machine, branch: Branch, pending: Pending, domains: DomainsPart) -> None:
    """What a flow domain requires gets an outcome, or is asked for under a name of the fork. What the parent itself has
    shared is looked up in the cell: the effect, and not the look for another world's answer.
    """
    outcome: Outcome | None = None
    name, params = pending.name, pending.params
    if name == part_inputs.SHARE and branch.policy is not ForkPolicy.SHARE:
        probes.hit("fork.shared-requirement")
        name, params = domains.required(machine, pending.event)
    if branch.policy is ForkPolicy.REISSUE:
        due_us = machine.now.context.store_us
        # Its snapshot goes with it, if the effect was asked for with one.
        held = DeferredOperation("", -1, OpKind.EFFECT, name, params, due_us, pending.event, attached=pending.attached)
        run_requests.ask_for(machine, held)
    elif branch.policy is ForkPolicy.SHARE:
        _share(machine, branch, pending)
    else:
        if branch.policy is ForkPolicy.SCRIPT:
            outcome = _scripted(branch, OpKind.EFFECT, name, params)
        outcome = outcome or runs.failed("cancelled", _why(machine, branch), status=ReceiptStatus.CANCELLED)
        run_requests.scripted(machine, "", -1, Op(OpKind.EFFECT, name, params), outcome)
        domains.fulfil(machine, pending.event, outcome)
    domains.take_answered(machine)


def _why(machine: Machine, branch: Branch) -> str:
    if branch.owners[-1].world == machine.now.context.address.world:
        return f"it was open at {branch.name}, to which this world was reverted"
    return f"it was open when this world was forked from {branch.name!r}"


def _scripted(branch: Branch, kind: OpKind, name: str, params: bytes) -> Outcome | None:
    if kind is OpKind.EFFECT:
        return branch.answer(name, run_requests.effect_arguments(params))
    if kind is OpKind.ASK:
        return branch.answer(name, {"event": message_calls.unpack(params).name}, ask=True)
    return None


def _answer(machine: Machine, pending: Pending, outcome: Outcome) -> None:
    op = machine.runs[pending.run].record.ops[pending.op]
    run_requests.scripted(machine, pending.run, pending.op, op, outcome)
    run_requests.arrive(machine, pending.run, pending.op, outcome)


# --- The parent's answers --------------------------------------------------------------------------------------------


def _share(machine: Machine, branch: Branch, pending: Pending) -> None:
    """Ask for the answer that the parent gets. If the parent itself shares it, ask for what the parent asks for."""
    shared = machine.work.want(
        WorkKind.EFFECT,
        part_inputs.SHARE,
        pending.params if pending.name == part_inputs.SHARE else _shared_work(machine, branch, pending),
        due_us=machine.now.context.store_us,
        deadline_us=0,
        run=pending.run,
        op=pending.op,
        event=pending.event,
    )
    if pending.run:
        machine.runs[pending.run].opened(pending.op, shared)


def _shared_work(machine: Machine, branch: Branch, pending: Pending) -> bytes:
    """Where the answer to inherited work will be."""
    owner = branch.owner(pending)
    arguments = {
        "world": owner.world,
        "intent": pending.intent(ids.Address(machine.now.context.address.universe, ids.WorldId(owner.world))),
        "given_up": [pending.step, pending.ordinal, pending.name],
        "by_hand": [pending.run, pending.op + 1],
        "above": owner.height,
    }
    return user_values.pack([user_values.dump(arguments), b""])
