"""A world's state and its step function: the pure heart of the runtime.

`Machine.step` consumes one input and derives everything that follows from it: handlers fold the event into cells, runs
that were waiting go on until they wait again, and what they ask for is collected. The result depends on the state, the
input and the context alone. The caller commits the result or throws the machine away; there is no way back inside.

State exists only between steps. Its digest is H(previous, sorted digests of the changed cells), so a step costs what it
changes. A step that changes nothing (a late receipt) leaves the digest as it was.

What a step may derive is bounded. Effects and timers beyond the bound are not refused but kept back (`unsent`) and
leave with later steps; so are those that are given up (`closing`: nobody waits for them, and they are still in the
queues). A step that raises too many events or writes too much fails.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from worldline.base import errors, limits
from worldline.codec import digest, structs
from worldline.kernel import commands, driver, events, runs, schedules, values
from worldline.kernel.authoring.program import Program
from worldline.kernel.runs import Held, OpKind, Outcome, Parked, Record, Run, RunStatus
from worldline.model import ids, inbox, journal
from worldline.model import step as steps
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.work import WorkKind

FINISHED_KEPT_MAX = 1_000
ENTRY_BYTES = 64  # of an entry without payload, about


class Cell:
    """One reducer instance: the live object, and the bytes it stands for."""

    __slots__ = ("data", "value")

    def __init__(self, value: Any, data: bytes) -> None:
        self.value = value
        self.data = data


class Pending(msgspec.Struct, array_like=True):
    """Open work, as the world knows it: whose operation it is, and all that is needed to ask for it again."""

    kind: WorkKind
    name: str
    params: bytes
    step: int
    ordinal: int
    opened_us: int
    due_us: int
    deadline_us: int
    run: str  # empty: asked for by a handler
    op: int
    event: str = ""  # of an AFTER timer: the schema of the event that `params` holds
    parked: Parked | None = None  # an effect that nobody tries until a person says so


class Now:
    """What the current step has derived so far."""

    __slots__ = (
        "bytes",
        "cancelled",
        "changed",
        "closed",
        "context",
        "drafts",
        "dropped",
        "events",
        "half_done",
        "ordinal",
        "outgoing",
        "overflowed",
        "raised",
        "ready",
        "turns",
        "wanted",
    )

    def __init__(self, context: steps.Context) -> None:
        self.context = context
        self.drafts: list[journal.Draft] = []
        self.wanted: list[steps.Wanted] = []
        self.closed: list[ids.IntentId] = []
        self.cancelled: list[steps.Wanted] = []
        self.outgoing: list[steps.Outgoing] = []
        self.changed: dict[bytes, bytes] = {}
        self.raised: deque[tuple[str, bytes]] = deque()
        self.ready: deque[str] = deque()
        self.ordinal = 0
        self.events = 0
        self.overflowed = False
        self.turns = 0
        self.bytes = 0
        self.dropped: errors.CannotStep | None = None  # why nothing of this step may be journaled
        self.half_done = 0  # changes under way; what interrupts one, a full stack for example, leaves it here

    @property
    def full(self) -> bool:
        """Whether what can wait goes on in the next step. The rest of the bytes are for what cannot."""
        return (
            self.bytes > limits.STEP_BYTES_MAX // 2
            or len(self.drafts) >= limits.STEP_ENTRIES_MAX
            or self.turns >= limits.STEP_TURNS_MAX
        )


class Machine:
    def __init__(self, program: Program, *, strict: bool = False) -> None:
        assert program.routes is not None, "what is wrong with a program shows here, before anything is stepped"
        self.program = program
        self.strict = strict  # also refuse calls that are never awaited
        self.cells: dict[tuple[str, str], Cell] = {}
        self.runs: dict[str, Run] = {}
        self.live: dict[str, dict[str, None]] = {}  # workflow -> its live runs, in order of start
        self.open: dict[tuple[int, int], Pending] = {}
        self.by_intent: dict[ids.IntentId, tuple[int, int]] = {}
        self.unsent: deque[Held] = deque()
        self.closing: deque[Pending] = deque()  # given up when the step was full
        self.later: deque[str] = deque()  # runs that could go on when the step was full
        self.forgettable: deque[str] = deque()
        self.schedules: dict[str, schedules.Schedule] = {}
        self.state = bytes(limits.DIGEST_BYTES)
        self.counters: dict[tuple[str, str], int] = {}
        self.run_count = 0
        self.replaying = False
        self._now: Now | None = None

    @property
    def unfinished(self) -> bool:
        """Whether a step left something for the next: the holder makes that happen without waiting for an input."""
        return bool(self.unsent) or bool(self.later) or bool(self.closing)

    def close(self) -> None:
        """Drop every warm coroutine. The machine must not be used any more."""
        for run in self.runs.values():
            run.cool()

    # --- The step -----------------------------------------------------------------------------------------

    def step(self, given: steps.Input, context: steps.Context) -> steps.Stepped:
        """`CannotStep` if this process, and not the code, stood in the way. Then, and after any other exception, the
        machine is spoilt: the caller drops it, and journals nothing.
        """
        try:
            return self._step(given, context)
        except MemoryError as error:
            raise errors.CannotStep("the process has no memory left for this step", lasting=False) from error

    def _step(self, given: steps.Input, context: steps.Context) -> steps.Stepped:
        now = self._now = Now(context)
        self.counters = {}
        if given.item is None:
            self.draft(
                Kind.UNDECODABLE_INPUT, values.dump([runs.storable(given.error), given.raw_digest]), stamp=given.stamp
            )
            dead = given.error or "not decodable"
        else:
            self.draft(
                _KINDS[type(given.item)],
                structs.encode(given.item),
                stamp=given.stamp,
                correlation=given.item.correlation,
            )
            if context.behind_us:
                self.draft(Kind.CLOCK, values.dump(context.behind_us))
                schedules.clock_set_back(self)
            now.ready.extend(self.later)
            self.later.clear()
            dead = self._take(given.item, given.data)
            driver.drain(self)
            self._send_held_back()
            while now.ready:
                driver.drain(self)
                self._send_held_back()
            while self.closing and not now.full:
                self._close_now(self.closing.popleft())
        if now.dropped is not None:
            raise now.dropped
        if now.half_done:
            raise errors.CannotStep("a change of the world's state was interrupted half-way", lasting=False)
        self._now = None
        self.state = self._digest(now)
        return steps.Stepped(now.drafts, self.state, now.wanted, now.closed, now.cancelled, now.outgoing, dead)

    def _take(self, item: inbox.Item, data: bytes) -> str:
        """Dispatch an input. Returns why it could not be taken, or nothing."""
        if isinstance(item, inbox.Event):
            return events.take(self, item.schema, data, to=item.to, correlation=item.correlation)
        if isinstance(item, inbox.Receipt):
            return self._receipt(item, data)
        if isinstance(item, inbox.TimerFired):
            return self._fired(item)
        if isinstance(item, inbox.Message):
            return events.message(self, item, data)
        return commands.take(self, item, data)

    def _receipt(self, item: inbox.Receipt, data: bytes) -> str:
        key = self.by_intent.get(ids.IntentId(item.intent))
        if key is None or self.open[key].kind is WorkKind.TIMER:
            self.draft(Kind.LATE_ANSWER, values.dump(["receipt", item.intent, "nothing waits for it"]))
            return ""
        pending = self._settle(ids.IntentId(item.intent))
        assert pending is not None
        self.arrive(pending.run, pending.op, Outcome(item.status, data))
        return ""

    def _fired(self, item: inbox.TimerFired) -> str:
        key = self.by_intent.get(ids.IntentId(item.intent))
        pending = None if key is None else self.open[key]
        if pending is None or pending.kind is not WorkKind.TIMER or item.due_us < pending.due_us:
            self.draft(Kind.LATE_ANSWER, values.dump(["timer", item.intent, "nothing waits for it"]))
            return ""
        self._settle(ids.IntentId(item.intent))
        if pending.event:
            self.now.raised.append((pending.event, pending.params))
            events.drain_raised(self)
        if pending.run:
            self.arrive(pending.run, pending.op, Outcome(ReceiptStatus.OK, values.NONE))
        elif not pending.event:
            events.scheduled(self, schedules.fired(self, pending.name))
        return ""

    def take_question(self, intent: ids.IntentId) -> Pending | None:
        """Take a question that another world has answered off the table. Effects are not answered by messages."""
        key = self.by_intent.get(intent)
        if key is None or self.open[key].kind is not WorkKind.MESSAGE:
            return None
        del self.by_intent[intent]
        return self.open.pop(key)

    def _settle(self, intent: ids.IntentId) -> Pending | None:
        """Take open work off the table; the role deletes its record with this step."""
        key = self.by_intent.pop(intent, None)
        if key is None:
            return None
        self.now.closed.append(intent)
        return self.open.pop(key)

    def _digest(self, now: Now) -> bytes:
        if not now.changed:
            return self.state
        parts = sorted(digest.hash_parts(b"cell", key, value) for key, value in now.changed.items())
        return digest.hash_parts(b"state", self.state, *parts)

    # --- What a step derives -----------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        assert self._now is not None, "only while a step runs"
        return self._now

    @property
    def where(self) -> steps.Context | None:
        """The step that runs now, if one does."""
        return None if self._now is None else self._now.context

    def drop_step(self, why: errors.CannotStep) -> None:
        """The step has met something that is no part of the world: it must not be journaled, however it ends."""
        if self._now is not None:
            self._now.dropped = why

    def draft(self, kind: Kind, data: bytes, *, stamp: bytes = b"", correlation: str = "") -> None:
        now = self.now
        # A payload that is too large for an entry is stored apart, and only named in it.
        now.bytes += ENTRY_BYTES + len(correlation) + (len(data) if len(data) <= limits.INLINE_BYTES_MAX else 0)
        now.drafts.append(journal.Draft(kind, data, stamp, correlation))

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
    ) -> tuple[int, int]:
        """Ask for an effect or timer now. Returns the (step, ordinal) it is known by."""
        now = self.now
        key = (now.context.step, now.ordinal)
        now.ordinal += 1
        intent = ids.intent_id(now.context.address, step=key[0], ordinal=key[1], kind=name, params=params)
        self.open[key] = Pending(kind, name, params, *key, now.context.store_us, due_us, deadline_us, run, op, event)
        self.by_intent[intent] = key
        self.draft(
            Kind.EFFECT_REQUESTED if kind is WorkKind.EFFECT else Kind.TIMER_SET,
            values.pack([key[1], name, run, op, params, max(0, due_us - now.context.store_us)]),
        )
        now.wanted.append(
            steps.Wanted(intent, kind, *key, name, params, now.context.store_us, due_us, deadline_us, run)
        )
        return key

    def want_message(self, kind: OpKind, name: str, params: bytes, *, run: str, op: int) -> tuple[int, int]:
        """Note a message that leaves with this step, so that its receipt or reply finds its way back."""
        now = self.now
        key = (now.context.step, now.ordinal)
        now.ordinal += 1
        intent = ids.intent_id(now.context.address, step=key[0], ordinal=key[1], kind=name, params=params)
        self.open[key] = Pending(WorkKind.MESSAGE, name, params, *key, now.context.store_us, 0, 0, run, op)
        self.by_intent[intent] = key
        assert kind in (OpKind.SEND, OpKind.ASK)
        return key

    def new_cell(self, key: tuple[str, str], value: Any) -> Cell:
        cell = self.cells[key] = Cell(value, values.dump(value))
        return cell

    def issued(
        self, run: Run, number: int, params: bytes, *, delay_us: int = 0, run_id: str = "", to: str = ""
    ) -> None:
        """A run issued an operation: do what it asks for."""
        op = run.record.ops[number]
        if op.kind in (OpKind.EFFECT, OpKind.TIMER, OpKind.AFTER):
            due_us = self.now.context.store_us + delay_us
            self.ask_for(Held(run.record.id, number, op.kind, op.name, params, due_us))
        elif op.kind in (OpKind.CHILD, OpKind.START):
            self.ask_for(driver.hold_child(run, number, params, run_id=run_id))
        elif op.kind in (OpKind.SEND, OpKind.ASK):
            events.send(self, run, number, to=to, params=params)

    def ask_for(self, held: Held) -> None:
        """Ask for an effect, timer or run now if the step has room for it, else with a step that follows at once."""
        if self.unsent or not self._room:
            self.unsent.append(held)
        else:
            self._ask_now(held)

    @property
    def _room(self) -> bool:
        return len(self.now.wanted) < limits.STEP_EFFECTS_MAX and not self.now.full

    def _ask_now(self, held: Held) -> None:
        run = self.runs.get(held.run)
        live = run is not None and run.live
        if run is not None and live and run.record.ops[held.op].outcome is not None:
            return  # given up while it was held back
        if held.kind in (OpKind.CHILD, OpKind.START):
            driver.start_child(self, held)
            return
        deadline_us = 0
        if held.kind is OpKind.EFFECT:
            # It was known when it was issued; held back since, it may belong to a program that has lost it. It is asked
            # for all the same: like all work that no program here serves, it waits in its queue for one that does.
            effect = self.program.find_effect(held.name)
            within_us = None if effect is None else effect.total_timeout_us
            deadline_us = 0 if within_us is None else held.due_us + within_us
        key = self.want(
            WorkKind.EFFECT if held.kind is OpKind.EFFECT else WorkKind.TIMER,
            held.name,
            held.params,
            due_us=held.due_us,
            deadline_us=deadline_us,
            # An event to be raised later belongs to the world: it outlives the run that asked for it.
            run="" if held.kind is OpKind.AFTER else held.run,
            op=held.op,
            event=held.name if held.kind is OpKind.AFTER else "",
        )
        if run is not None and live:
            op = run.record.ops[held.op]
            op.step, op.ordinal = key
        elif held.kind is OpKind.TIMER:
            schedules.armed(self, held.name, step=key[0], ordinal=key[1])

    def ask_for_timer(self, name: str, due_us: int) -> None:
        """A timer of the world's own, for a schedule."""
        self.ask_for(Held("", -1, OpKind.TIMER, name, b"", due_us))

    def forget_held(self, name: str) -> None:
        """Such a timer is not wanted any more, and has not left yet."""
        self.unsent = deque(each for each in self.unsent if each.run or each.op >= 0 or each.name != name)

    def give_up(self, step: int, ordinal: int) -> None:
        """Cancel open work by its name inside the world."""
        pending = self.open.pop((step, ordinal), None)
        if pending is not None:
            self._close(pending)

    def _send_held_back(self) -> None:
        while self.unsent and self._room:
            self._ask_now(self.unsent.popleft())

    def release_held(self, run: Run) -> None:
        """A run has ended or starts over: of what it asked for and has not left yet, only what outlives it stays."""
        if not self.unsent:
            return
        kept: deque[Held] = deque()
        for held in self.unsent:
            if held.run != run.record.id:
                kept.append(held)
            elif held.kind in runs.OUTLIVE and run.record.ops[held.op].outcome is None:
                kept.append(msgspec.structs.replace(held, run=""))
        self.unsent = kept

    def arrive(self, run_id: str, number: int, outcome: Outcome) -> None:
        """An operation is done. Its run goes on later in this step, if that is what it waits for."""
        run = self.runs.get(run_id)
        if run is None or not run.live or number >= len(run.record.ops) or run.record.ops[number].outcome is not None:
            return
        run.record.ops[number].outcome = outcome
        run.alarmed = run.alarmed or outcome.status is not ReceiptStatus.OK
        run.touch(b"outcome", number.to_bytes(4, "big"), bytes([outcome.status]), outcome.data)
        driver.scope_timer(run, number)
        self.mark_run(run)
        self.now.ready.append(run_id)

    def cancel_op(self, run: Run, number: int, reason: str = "cancelled") -> None:
        """Give up an operation that nobody will wait for any more."""
        op = run.record.ops[number]
        if run.rebuilding or op.outcome is not None:
            return
        outcome = runs.failed("cancelled", reason, status=ReceiptStatus.CANCELLED)
        self.now.half_done += 1
        op.outcome = outcome
        run.alarmed = True
        run.touch(b"cancel", number.to_bytes(4, "big"))
        if op.kind in (OpKind.CHILD, OpKind.START):
            child = self._child(run, number)
            if child is not None:
                driver.interrupt(self, child, 0, reason)
        if op.step:
            pending = self.open.pop((op.step, op.ordinal), None)
            if pending is not None:
                self._close(pending)
        self.now.half_done -= 1

    def _close(self, pending: Pending) -> None:
        """Give up open work: nobody waits for it from here on, and the role deletes its record, with this step or one
        of the next.
        """
        self.by_intent.pop(self.wanted_again(pending, self.now.context.address).intent, None)
        if pending.kind is WorkKind.MESSAGE:
            return
        if self.closing or self.now.full:
            self.closing.append(pending)
        else:
            self._close_now(pending)

    def _close_now(self, pending: Pending) -> None:
        self.now.cancelled.append(self.wanted_again(pending, self.now.context.address))
        kind = Kind.EFFECT_CANCELLED if pending.kind is WorkKind.EFFECT else Kind.TIMER_CANCELLED
        self.draft(kind, values.dump([pending.step, pending.ordinal, pending.name]))

    @staticmethod
    def wanted_again(pending: Pending, address: ids.Address) -> steps.Wanted:
        """Open work as it was asked for."""
        intent = ids.intent_id(
            address, step=pending.step, ordinal=pending.ordinal, kind=pending.name, params=pending.params
        )
        return steps.Wanted(
            intent, pending.kind, pending.step, pending.ordinal, pending.name, pending.params, pending.opened_us,
            pending.due_us, pending.deadline_us, pending.run,
        )  # fmt: skip

    # --- Cells and runs --------------------------------------------------------------------------------

    def raise_event(self, schema: str, data: bytes) -> None:
        self.now.half_done += 1
        self.now.raised.append((schema, data))
        events.drain_raised(self)
        self.now.half_done -= 1

    def read_cell(self, cls: type, key: str) -> Any:
        """A copy of a cell's value; a cell that does not exist yet is a fresh instance."""
        cell = self.cells.get((self.reducer_of(cls), key))
        return cls() if cell is None else values.load(cls, cell.data)

    def reducer_of(self, cls: type) -> str:
        """The name under which a class is a reducer here."""
        name = next((each.name for each in self.program.reducers.values() if each.cls is cls), None)
        if name is None:
            raise errors.BadInput(f"{values.name_of(cls)} is not a reducer of program {self.program.name!r}")
        return name

    def look_in_buffer(self, run: Run, number: int) -> None:
        driver.look_in_buffer(self, run, number)

    def mark_cell(self, reducer: str, key: str, data: bytes) -> None:
        self.now.changed[b"c" + reducer.encode() + b"\x00" + key.encode()] = digest.sha256(data)

    def mark_run(self, run: Run) -> None:
        self.now.changed[b"r" + run.record.id.encode()] = run.record.digest

    def live_runs(self) -> list[Run]:
        """In the order of their start."""
        return sorted((run for run in self.runs.values() if run.live), key=lambda run: run.record.number)

    def add_run(self, record: Record) -> Run:
        if not record.number:
            self.run_count += 1
            record.number = self.run_count
        run = self.runs[record.id] = Run(record)
        if run.live:
            self.live.setdefault(record.workflow, {})[record.id] = None
        return run

    def _child(self, run: Run, number: int) -> Run | None:
        """The run that an operation has started, if it still goes on."""
        found = self.runs.get(driver.child_id(run, number))
        if found is None and run.record.ops[number].kind is OpKind.START:  # it may have an id of its own
            mine = (run.record.id, number)
            mates = (each for each in self.runs.values() if (each.record.parent, each.record.parent_op) == mine)
            found = next(mates, None)
        return found

    def relist(self, run: Run, workflow: str) -> None:
        """A run continues as new, maybe as another workflow: it is the youngest of them."""
        record = run.record
        del self.live[record.workflow][record.id]
        record.workflow = workflow
        self.live.setdefault(workflow, {})[record.id] = None
        self.runs[record.id] = self.runs.pop(record.id)
        self.run_count += 1
        record.number = self.run_count

    def end_run(self, run: Run, status: RunStatus, data: bytes) -> None:
        """Record a run's end, tell whoever waits for it, and let go of what it no longer needs."""
        record = run.record
        for number, op in enumerate(record.ops):
            if op.outcome is None and op.kind not in runs.OUTLIVE:
                self.cancel_op(run, number, "the run has ended")
        self.release_held(run)
        record.status = status
        record.data = data
        run.touch(b"end", bytes([status]), data)
        self.mark_run(run)
        self.draft(Kind.RUN_FINISHED, structs.encode(Ended(record.id, status, data)), correlation=record.id)
        del self.live[record.workflow][record.id]
        run.cool()
        record.ops, record.log, record.buffer, record.interrupts = [], [], [], []
        for follower in [runs.Follower(record.parent, record.parent_op), *record.followers]:
            self.arrive(follower.run, follower.op, runs.outcome_of(record))
        record.followers = []
        if not record.named:
            self.forgettable.append(record.id)
            while len(self.forgettable) > FINISHED_KEPT_MAX:
                self.runs.pop(self.forgettable.popleft(), None)


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a RUN_FINISHED entry."""

    run: str
    status: RunStatus
    data: bytes


_KINDS: dict[type, Kind] = {
    inbox.Event: Kind.EVENT,
    inbox.Receipt: Kind.EFFECT_RESULT,
    inbox.TimerFired: Kind.TIMER_FIRED,
    inbox.Message: Kind.MESSAGE,
    inbox.Control: Kind.CONTROL,
}
