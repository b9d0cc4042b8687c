"""The cell of a flow domain, as it is kept: the snapshot, the intents that wait for the one on its way, who is to be
told of their ends, and what the last ones with a chosen id came to.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from worldline.base import errors, limits
from worldline.codec import canonical, digest
from worldline.features.domains.pure.snapshot_packing import CellPacker
from worldline.flow_core import faults, flow_records, js_values, slots
from worldline.model import ids, inbox, payload, row_keys
from worldline.model.inbox import MessageMode, Reply

_only_snapshot = canonical.joiner("snapshot")
_BOUNDED = ("owed", "named")  # no value of a user is in them
_WAITS = ("fatal", "queue", "blocked")  # left out of a cell that nothing holds up


class IntentWaiter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What waits for the end of an intent: a caller, by its correlation, a world that has asked, or an operation of a
    run of this world. `asked`: the world that was asked; a fork answers no question that was put to its parent.
    """

    correlation: str = ""
    universe: bytes = b""
    world: bytes = b""
    message: bytes = b""
    reply: int = 0
    run: str = ""
    op: int = -1
    asked: bytes = b""

    @staticmethod
    def to(asker: inbox.Message, *, here: bytes) -> IntentWaiter:
        """The answer to a question of another world, put to the world `here`."""
        # The ticket stands behind the id, not in a field of its own: cells of before must have the bytes they had.
        ticket = asker.ticket if isinstance(asker, inbox.Vouched) else b""
        return IntentWaiter(
            "", asker.from_universe, asker.from_world, asker.message + ticket, int(asker.reply), asked=here
        )

    def question(self) -> inbox.Message:
        """What of the question a reply needs."""
        message, ticket = self.message[: limits.ID_BYTES], self.message[limits.ID_BYTES :]
        question = inbox.Message(
            message,
            self.universe,
            self.world,
            0,
            MessageMode.TYPED,
            "",
            payload.EMPTY,
            {},
            reply=Reply(self.reply),
        )
        return question.vouched(ticket=ticket) if ticket else question

    def is_asked_of(self, here: ids.Address) -> bool:
        """Whether the world here is to answer."""
        return self.asked in (b"", here.world)

    @property
    def waits(self) -> bool:
        return bool(self.correlation or self.message or self.run)


class WaitingIntent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An intent that waits for its turn. `input` has one value, or none."""

    id: str
    action: str
    named: bool
    input: list[Any]

    def intent(self) -> flow_records.Intent:
        return flow_records.Intent(self.action, self.id, self.input[0] if self.input else js_values.MISSING)


class EndedIntent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An intent that has ended, and what became of it."""

    id: str
    body: bytes
    status: str
    error: dict[str, Any] | None


class DomainCell(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All of a cell. `snapshot`: only where it is stored. `named`: the bodies of intents under way whose ids their
    callers chose.
    """

    snapshot: dict[str, Any] = {}
    queue: list[WaitingIntent] = []
    owed: dict[str, list[IntentWaiter]] = {}
    named: dict[str, bytes] = {}
    done: list[EndedIntent] = []
    fatal: str = ""
    blocked: str = ""


def encode(kept: DomainCell, head: flow_records.Snapshot, limit: int | None, packer: CellPacker | None = None) -> bytes:
    """`TooLarge` for more than `limit` bytes, `EncodeError` for what has no bytes."""
    rest: dict[str, Any] = msgspec.to_builtins(kept, builtin_types=(bytes,))
    snapshot = (packer or CellPacker()).pack(head)
    if rest:
        parts = {
            name: canonical.encode_flat(each) if name in _BOUNDED else canonical.encode(each, around=1)
            for name, each in rest.items()
        }
        data = canonical.join_map({**parts, "snapshot": snapshot})
    else:  # the usual cell has nothing else
        data = _only_snapshot(snapshot)
    if limit is not None and len(data) > limit:
        raise errors.TooLarge("the cell of a flow domain", size=len(data), limit=limit)
    return data


def decode(data: bytes) -> tuple[DomainCell, flow_records.Snapshot]:
    """`DecodeError` for what is no such cell."""
    try:
        kept = msgspec.convert(canonical.decode(data), DomainCell, builtin_types=(bytes,))
        return msgspec.structs.replace(kept, snapshot={}), flow_records.decoded(kept.snapshot)
    except (msgspec.ValidationError, faults.NotJson) as error:
        raise errors.DecodeError(f"this is no cell of a flow domain: {error}") from error


def is_held_up(data: bytes) -> bool:
    """Return whether a cell takes nothing any more, is blocked, or has intents that wait. What is no such cell may
    seem to be held up, too: `decode` tells. Costs a fraction of `decode`.
    """
    fields = canonical.decode(data)
    return isinstance(fields, dict) and not fields.keys().isdisjoint(_WAITS)


def body_of(action: str, given: list[Any]) -> bytes:
    """What must be the same if the id of an intent is."""
    return digest.hash_parts(b"intent", action.encode(), canonical.encode(given))


def body_in(kept: DomainCell, head: flow_records.Snapshot, intent_id: str) -> bytes | None:
    """What an intent was submitted with, if the cell knows one of this id."""
    slot = slots.slot(head, intent_id)
    if slot is not None:
        return body_of(slot["type"], [slot["input"]] if "input" in slot else [])
    found = [each.body for each in kept.done if each.id == intent_id]
    found += [body_of(each.action, each.input) for each in kept.queue if each.id == intent_id]
    return next(iter(found), None)


def queued(kept: DomainCell, wanted: WaitingIntent, cell: tuple[str, str]) -> DomainCell:
    """The cell with an intent more that waits."""
    if len(kept.queue) >= limits.FLOW_QUEUE_MAX:
        name = row_keys.cell_name(*cell)
        raise errors.Closed(f"{limits.FLOW_QUEUE_MAX} intents wait in {name} already; send it later, under a new id")
    if not wanted.named:
        return replace(kept, queue=[*kept.queue, wanted])
    named = {**kept.named, wanted.id: body_of(wanted.action, wanted.input)}
    return replace(kept, queue=[*kept.queue, wanted], named=named)


def told_of(kept: DomainCell, intent_id: str, owed: IntentWaiter, cell: tuple[str, str]) -> DomainCell:
    """The cell with one more who is told of the end of an intent. All of them are told in one step."""
    found = kept.owed.get(intent_id, [])
    if len(found) >= limits.FLOW_WAITERS_MAX:
        raise errors.Closed(f"{limits.FLOW_WAITERS_MAX} callers wait for intent {intent_id!r} already")
    if sum(map(len, kept.owed.values())) >= limits.FLOW_CELL_WAITERS_MAX:
        name = row_keys.cell_name(*cell)
        raise errors.Closed(f"{limits.FLOW_CELL_WAITERS_MAX} callers wait for intents of {name} already")
    return replace(kept, owed={**kept.owed, intent_id: [*found, owed]})
