"""What clients have done and know, and when worlds took it: the account that ONCE and ORDER are checked against.

An operation is begun, acked (what it sent is durable) and answered, each at a time. The auditor tells of every input as
it is journaled. So two things are seen at once, whichever process sent an input and whichever holds the world:

* ONCE: an input is journaled once. An anonymous one that ended in an error was taken as often as the error says.
* ORDER: an input that was acked before another was begun is journaled before it.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable

import msgspec

from worldline.codec import structs
from worldline.kernel import control_commands, user_values
from worldline.layers import cas
from worldline.model import inbox, journal, payload
from worldline.model.journal import Kind

Broken = Callable[[str, str], None]


def ignored(invariant: str, what: str) -> None:
    """A violation that is not looked at."""


class ClientOp(msgspec.Struct, frozen=True):
    """One thing a client will do. `kind`: one that its client knows."""

    id: str
    kind: str
    world: str
    amount: int = 0
    to: str = ""


class Called(msgspec.Struct, frozen=True):
    """One call that reached the outside."""

    time_us: int
    host: str
    name: str
    key: str
    attempt: int


class ClientOutcome(enum.StrEnum):
    """How an anonymous operation ended for its client."""

    ACKED = "acked"  # taken, once
    UNCERTAIN = "uncertain"  # the error said so, or the client died: taken once or not at all
    REFUSED = "refused"  # the error said that it was not taken


class History:
    """`broken`: told of an invariant that does not hold, and how."""

    def __init__(self, now_us: Callable[[], int] = lambda: 0, *, broken: Broken = ignored) -> None:
        self.begun: dict[str, ClientOp] = {}
        self.answered: dict[str, object] = {}
        self.finished: dict[str, None] = {}  # clients that are through
        self.tried_us: dict[str, int] = {}  # the last time
        self.answered_us: dict[str, int] = {}
        self.ended_us: dict[str, int] = {}  # runs, by id: when their end was journaled
        self._now_us = now_us
        self._broken = broken
        self._begun_us: dict[str, int] = {}
        self._acked_us: dict[str, int] = {}
        self._by_payload: dict[bytes, str] = {}
        self._untaken: dict[str, dict[str, None]] = {}  # operations of each world that no step has taken yet
        self._taken: dict[str, None] = {}
        self._at_work: dict[str, ClientOp] = {}  # the latest operation of each client
        self._latest = ""  # the operation whose input was journaled last
        self.chosen: dict[str, int | None] = {}  # heights that clients have chosen for forks, by operation
        self.poisoned: dict[str, None] = {}  # operations whose input was resolved without code

    # --- By clients -----------------------------------------------------------------------------------------

    def begin(self, op: ClientOp, client: str = "") -> None:
        """The first time counts: what is tried again may have succeeded the first time."""
        self.begun[op.id] = op
        self._at_work[client] = op
        self._begun_us.setdefault(op.id, self._now_us())
        if op.id not in self._taken:
            self._untaken.setdefault(op.world, {})[op.id] = None

    def tries(self, op: ClientOp) -> None:
        """The first time, or again."""
        self.tried_us[op.id] = self._now_us()

    def sends(self, op: ClientOp, event: object) -> None:
        """What the journal will know the operation by."""
        self.sends_raw(op, user_values.schema_name(type(event)), user_values.dump(event))

    def sends_raw(self, op: ClientOp, schema: str, data: bytes) -> None:
        self._by_payload[hashlib.sha256(data).digest()] = op.id
        if cas.is_small(data):  # the entry may be too large even so
            item = inbox.InboxEvent(schema, payload.inline(data))
            self._by_payload[journal.blob_of(structs.encode(item))] = op.id

    def acked(self, op: ClientOp) -> None:
        """What it sent is durable. Said as soon as the client knows."""
        self._acked_us.setdefault(op.id, self._now_us())  # the first ack counts: a repeat is acked again, and later

    def answer(self, op: ClientOp, answer: object) -> None:
        self.answered[op.id] = answer
        self.answered_us[op.id] = self._now_us()

    def under_way(self, client: str) -> list[ClientOp]:
        """Return what a client has begun and has no answer to."""
        op = self._at_work.get(client)
        return [] if op is None or op.id in self.answered else [op]

    # --- By the auditor -------------------------------------------------------------------------------------

    def look(self, entry: journal.JournalEntry) -> None:
        """An entry that was just journaled."""
        if entry.kind in journal.INPUTS:  # a new step begins: what was marked before belongs to the input before
            self._latest = ""
        if entry.kind is Kind.POISON:
            self.poisoned[self._latest] = None
        elif entry.kind is Kind.RUN_FINISHED:
            self.ended_us.setdefault(entry.correlation, self._now_us())
        elif entry.blob:
            self._took(self._by_payload.get(entry.blob, ""), again=False)
        elif entry.kind in (Kind.EVENT, Kind.CONTROL):
            self._input(entry)

    def _input(self, entry: journal.JournalEntry) -> None:
        item: inbox.Item = structs.decode(inbox.Item, entry.payload)  # type: ignore[arg-type]
        if isinstance(item, inbox.Control):
            if item.command == control_commands.RUN and item.payload.inline is not None:
                self._took(structs.decode(control_commands.CorrelatedRun, item.payload.inline).run, again=True)
        elif isinstance(item, inbox.InboxEvent):
            inline = item.payload.inline
            digest = item.payload.ref if inline is None else hashlib.sha256(inline).digest()
            self._took(self._by_payload.get(digest or b"", ""), again=False)

    def _took(self, id: str, *, again: bool) -> None:
        self._latest = id
        op = self.begun.get(id)
        if op is None:
            return
        if id in self._taken:
            # A run may be asked for again under its id, and is found; an event that is taken twice has counted twice.
            if not again:
                self._broken("ONCE", f"{op.world}: the input of operation {id} ({op.kind}) was taken twice")
            return
        self._taken[id] = None
        untaken, begun_us = self._untaken[op.world], self._begun_us[id]
        del untaken[id]
        for other in untaken:
            # Strictly before: operations that overlap may come in either order.
            if self._acked_us.get(other, begun_us) < begun_us:
                what = f"{id} ({op.kind}) before {other} ({self.begun[other].kind})"
                self._broken("ORDER", f"{op.world}: took {what}, which was acked before the first was begun")
                return
