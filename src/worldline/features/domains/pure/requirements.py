"""Requirements of flow domains as effects of the world: how they leave, and which are open."""

from __future__ import annotations

import msgspec

from worldline.base import errors, limits, probes
from worldline.codec import canonical
from worldline.flow_core import flow_records
from worldline.kernel import user_values
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import DeferredOperation, Pending
from worldline.kernel.run_operations import OpKind
from worldline.model import ids
from worldline.model.work import WorkKind

TARGETS = ("into", "fail")  # parameters of an effect that stay inside: where its outcome goes
Asked = tuple[flow_records.Requirement, flow_records.Snapshot]  # a requirement, and the head at its dispatch


class AnsweredRequirement(msgspec.Struct, frozen=True, array_like=True):
    """Which requirement an effect answers."""

    domain: str
    key: str
    intent: str
    requirement: str

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def of(text: str) -> AnsweredRequirement:
        return msgspec.json.decode(text, type=AnsweredRequirement)


def requirements(machine: Machine) -> list[tuple[ids.IntentId, Pending, AnsweredRequirement]]:
    """What flow domains have required and is open, in the order in which it was asked for."""
    return [
        (effect, pending, AnsweredRequirement.of(pending.event))
        for effect, pending in machine.work.open.items()
        if pending.event and not pending.run and pending.kind is WorkKind.EFFECT
    ]


def leaving(machine: Machine, domain: str, key: str, asked: list[Asked]) -> list[DeferredOperation]:
    """What was required, as effects of the world; the world's names for them are the keys outside. Whether the
    snapshot of its dispatch goes with one, the state says: no program is needed to run that again. `TooLarge` if
    all of these are.
    """
    found: list[DeferredOperation] = []
    if not asked:
        return found
    last, attached, size = None, b"", 0
    due_us = machine.now.context.store_us
    for requirement, head in asked:
        wants = requirement.type in machine.domains.snapshots
        # Several requirements of one head have the same snapshot, which is encoded once.
        if wants and head is not last:
            last, attached = head, canonical.encode(flow_records.plain(head))
        size += len(attached) if wants else 0
        if size > limits.FLOW_ATTACHED_BYTES_MAX:
            probes.hit("domains.snapshots-too-large")
            limit = limits.FLOW_ATTACHED_BYTES_MAX
            raise errors.TooLarge("the snapshots for effects that are asked for at once", size=size, limit=limit)
        name, params = effect_of(requirement)
        target = AnsweredRequirement(domain, key, requirement.intent_id, requirement.id).text()
        found.append(
            DeferredOperation("", -1, OpKind.EFFECT, name, params, due_us, target, b"", attached if wants else b"")
        )
    return found


def effect_of(requirement: flow_records.Requirement) -> tuple[str, bytes]:
    """The effect that a requirement becomes: its name, and its parameters without those that stay inside."""
    given = {name: each for name, each in requirement.params.items() if name not in TARGETS}
    return requirement.type, user_values.pack([user_values.dump(given), b""])


def give_up(
    machine: Machine, domain: str, key: str, intent_id: str
) -> list[tuple[ids.IntentId, Pending, AnsweredRequirement]]:
    """An intent has ended while effects of it are open, or held back: no job waits for them any more. Returns those
    that were open.
    """
    its = (domain, key, intent_id)
    found = [each for each in requirements(machine) if (each[2].domain, each[2].key, each[2].intent) == its]
    for _, pending, _ in found:
        machine.work.give_up(pending)
    # Also what was held back: it would be asked for after its intent has ended.
    if machine.work.unsent:
        machine.work.unsent.keep(lambda held: None if _is_of(held, its) else held)
    return found


def _is_of(held: DeferredOperation, its: tuple[str, str, str]) -> bool:
    if held.run or held.kind is not OpKind.EFFECT or not held.id:
        return False
    target = AnsweredRequirement.of(held.id)
    return (target.domain, target.key, target.intent) == its
