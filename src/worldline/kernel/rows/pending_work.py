"""Open work: effects, timers and messages that were asked for and have no answer yet; what a step had no room to ask
for (`unsent`), and what was given up and is still in the queues (`closing`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from worldline.kernel import user_values
from worldline.kernel.rows.current_step import CurrentStep
from worldline.kernel.rows.questions import QuestionRows
from worldline.kernel.rows.row_ledger import RecordQueue, RowLedger, Write, Written
from worldline.kernel.rows.row_records import DeferredOperation, GivenUp, Op, Parked, Pending, Record
from worldline.kernel.run_operations import OUTLIVE
from worldline.model import ids
from worldline.model import row_keys as keys
from worldline.model import step_records as steps
from worldline.model.journal import Kind
from worldline.model.work import WorkKind

_CANCELLED = {
    WorkKind.EFFECT: Kind.EFFECT_CANCELLED,
    WorkKind.TIMER: Kind.TIMER_CANCELLED,
    WorkKind.MESSAGE: Kind.QUESTION_CANCELLED,
}
_EFFECT, _EFFECT_REQUESTED = WorkKind.EFFECT, Kind.EFFECT_REQUESTED


class OpenWork:
    """The open work of one world."""

    __slots__ = ("_numbered", "_rows", "closing", "count", "now", "open", "questions", "unsent")

    now: CurrentStep  # only while a step runs

    def __init__(self, ledger: RowLedger) -> None:
        self._rows = ledger.top
        self.open: dict[ids.IntentId, Pending] = {}  # in the order in which it was asked for
        self._numbered: dict[int, Pending] = {}  # of it, what has a row of its own: it belongs to no operation
        self.unsent: RecordQueue[DeferredOperation] = RecordQueue(ledger.top, keys.HELD)
        self.closing: RecordQueue[GivenUp] = RecordQueue(ledger.top, keys.CLOSING)  # given up when the step was full
        self.count = 0
        self.questions = QuestionRows(ledger)

    def begin_step(self, now: CurrentStep) -> None:
        self.now = now

    def end_step(self) -> None:
        """What the step derived is the caller's: kept here, it would cost memory for every world."""
        del self.now

    def counted(self, count: int) -> None:
        """What the row of the count says."""
        self.count = count

    def _count_row(self) -> Written:
        return [self.count], [], b""

    def rows(self) -> Iterator[tuple[bytes, Write]]:
        """Yield every row that there is."""
        yield keys.WORK_COUNT, self._count_row
        yield from self.questions.rows()
        for number, pending in self._numbered.items():
            yield keys.WORK + keys.number(number), pending.write
        yield from self.unsent.rows()
        yield from self.closing.rows()

    def want(
        self,
        kind: WorkKind,
        name: str,
        params: bytes,
        *,
        due_us: int,
        deadline_us: int,
        run: str,
        op: int,
        event: str = "",
        parked: str = "",
        attached: bytes = b"",
        correlation_id: str = "",
    ) -> Pending:
        """Ask for an effect or timer now. What belongs to a run is noted by the caller, in its operation's row; also
        that it is `parked`, with why it waits for a person. `attached` leaves with the parameters, and the entry does
        not have it: so the name of the work is made without.
        """
        now = self.now
        context = now.context
        opened_us = context.store_us
        step, ordinal = now.next_key()
        intent = ids.intent_id(context.address, step=step, ordinal=ordinal, kind=name, params=params)
        number = 0 if run else self._next_work()  # what belongs to a run is in its operation's row
        pending = Pending(
            number,
            kind,
            name,
            params,
            step,
            ordinal,
            opened_us,
            due_us,
            deadline_us,
            run,
            op,
            event,
            attached=attached,
        )
        self.open[intent] = pending
        if number:
            self._numbered[number] = pending
            self._rows.put(keys.WORK + keys.number(number), pending.write, is_new=True)
        if attached:
            now.count_bytes(len(attached))
        now.draft(
            _EFFECT_REQUESTED if kind is _EFFECT else Kind.TIMER_SET,
            user_values.pack([ordinal, name, run, op, params, due_us - opened_us if due_us > opened_us else 0]),
        )
        now.wanted.append(
            steps.WorkRequest(
                intent,
                kind,
                step,
                ordinal,
                name,
                pending.leaving,
                opened_us,
                due_us,
                deadline_us,
                run,
                parked,
                correlation_id,
            )
        )
        return pending

    def want_message(self, name: str, params: bytes, *, run: str, op: int, asks: bool) -> tuple[Pending, ids.IntentId]:
        """Record a message that leaves with this step, so that its receipt or reply finds the operation."""
        context = self.now.context
        key = self.now.next_key()
        pending = Pending(0, WorkKind.MESSAGE, name, params, *key, context.store_us, 0, 0, run, op)
        if asks:
            # Before the name is made, which the secret is part of.
            pending.keep_secret(self.questions.secret(self.now))
        intent = pending.intent(context.address)
        self.open[intent] = pending
        return pending, intent

    def _next_work(self) -> int:
        self.count += 1
        self._rows.put(keys.WORK_COUNT, self._count_row)
        return self.count

    def _remove(self, intent: ids.IntentId) -> Pending:
        # Only work without an operation has a row of its own; the other rows are noted by the run.
        pending = self.open.pop(intent)
        if pending.number:
            del self._numbered[pending.number]
            self._rows.gone(keys.WORK + keys.number(pending.number))
        return pending

    def reopen(self, pending: Pending, address: ids.Address) -> None:
        """Open work that was loaded, in the order in which it was asked for, in the world of this address."""
        self.open[pending.intent(address)] = pending
        if pending.number:
            self._numbered[pending.number] = pending

    def find_open(self, intent: ids.IntentId) -> Pending | None:
        return self.open.get(intent)

    def rename(self, pending: Pending) -> None:
        """Ask again, under the name of this step, for a timer that a fork has inherited. What belongs to a run is noted
        by the caller.
        """
        # Under its old name, which is made of the step that had asked for it.
        del self.open[pending.intent(self.now.context.address)]
        pending.renamed(*self.now.next_key())
        wanted = self.wanted_again(pending, self.now.context.address)
        self.open[wanted.intent] = pending
        if pending.number:
            self._rows.put(keys.WORK + keys.number(pending.number), pending.write)
        self.now.draft(
            Kind.TIMER_SET,
            user_values.pack(
                [
                    pending.ordinal,
                    pending.name,
                    pending.run,
                    pending.op,
                    pending.params,
                    max(0, pending.due_us - self.now.context.store_us),
                ]
            ),
        )
        self.now.wanted.append(wanted)

    def park(self, pending: Pending, parked: Parked | None) -> None:
        """Stop trying an effect that belongs to no run; None: try it again."""
        pending.park(parked)
        self._rows.put(keys.WORK + keys.number(pending.number), pending.write)

    def disown(self, pending: Pending) -> None:
        """Forget work that a fork has inherited: its record is the parent's."""
        self._remove(pending.intent(self.now.context.address))

    def settle(self, intent: ids.IntentId) -> Pending:
        """Remove open work that was answered. The role deletes its record with this step."""
        self.now.closed.append(intent)
        return self._remove(intent)

    def take_question(self, intent: ids.IntentId) -> Pending:
        """Remove a question that another world has answered."""
        return self._remove(intent)

    def give_up_of(self, op: Op) -> None:
        """Cancel an operation's work, if it has some that is open."""
        if op.asked is not None:
            self.give_up(op.asked)
        elif op.work:
            self.give_up_numbered(op.work)

    def give_up_numbered(self, number: int) -> None:
        """Cancel work that belongs to no operation, if it is open."""
        pending = self._numbered.get(number)
        if pending is not None:
            self.give_up(pending)

    def give_up(self, pending: Pending) -> None:
        """Cancel open work: no operation waits for it from here on, and the role deletes its record, with this step or
        one of the next.
        """
        self._remove(pending.intent(self.now.context.address))
        # Behind what waits to be closed nothing overtakes.
        if self.closing or self.now.full:
            self.closing.append(GivenUp(pending))
        else:
            self._close(pending)

    def close_given_up(self) -> None:
        """Close the work that was given up when a step was full, as far as this step has room."""
        while self.closing and not self.now.full:
            self._close(self.closing.popleft().pending)

    def forked(self) -> None:
        """A fork begins: what was given up and is still in the queues is its parent's, and so is what names the
        parent's questions.
        """
        # Closing it would cancel work of the parent, which is another world.
        self.closing.clear()
        self.questions.forked(self.now.context.step, [each.secret for each in self.open.values() if each.secret])

    def _close(self, pending: Pending) -> None:
        # A message has left already: only its answer is not wanted any more.
        if pending.kind is not WorkKind.MESSAGE:
            self.now.cancelled.append(self.wanted_again(pending, self.now.context.address))
        self.now.draft(_CANCELLED[pending.kind], user_values.dump([pending.step, pending.ordinal, pending.name]))

    @staticmethod
    def wanted_again(pending: Pending, address: ids.Address) -> steps.WorkRequest:
        """Make the request for open work again, as it was made first."""
        return steps.WorkRequest(
            pending.intent(address),
            pending.kind,
            pending.step,
            pending.ordinal,
            pending.name,
            pending.leaving,
            pending.opened_us,
            pending.due_us,
            pending.deadline_us,
            pending.run,
        )

    def forget_held_timer(self, name: str) -> None:
        """Drop a schedule's timer that is held back."""
        self.unsent.keep(lambda each: each if each.run or each.op >= 0 or each.name != name else None)

    def release_held(self, record: Record) -> None:
        """Drop what a run that ends or starts over has asked for and is held back, except what outlives it."""

        def choose(held: DeferredOperation) -> DeferredOperation | None:
            if held.run != record.id:
                return held
            # What outlives the run stays without its owner; an operation that has an outcome asks for nothing more.
            outlives = held.kind in OUTLIVE and record.ops[held.op].outcome is None
            return msgspec.structs.replace(held, run="") if outlives else None

        if self.unsent:
            self.unsent.keep(choose)

    def drop_held(self, record: Record, first: int) -> None:
        """Drop what a run that is reset has asked for and is held back: the operations from this one on."""
        if self.unsent:
            self.unsent.keep(lambda held: None if held.run == record.id and held.op >= first else held)
