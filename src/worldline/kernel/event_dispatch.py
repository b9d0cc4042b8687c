"""Events and messages: which handlers and runs take them, folding them into cells, answering requests.

One event is one transaction over the cells its handlers touch: if any of them raises, all of those cells stay as they
were, nothing that the handlers asked for happens, and the event is journaled as failed. Events that handlers raise are
processed after them, in order, each as a transaction of its own.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from worldline.base import errors, failures, grammar, limits, probes
from worldline.codec import digest, structs
from worldline.kernel import context as contexts
from worldline.kernel import failure_data, run_requests, runs, schedules, user_errors, user_values
from worldline.kernel.authoring import message_calls, reducers
from worldline.kernel.execution import coroutines, stack, tracebacks, waits
from worldline.kernel.execution.handler_calls import HandlerCalls
from worldline.kernel.machine import Machine
from worldline.kernel.rows import cells
from worldline.kernel.rows.current_step import EVENTS_BYTES_MAX
from worldline.kernel.rows.row_records import UNREAD, DeferredOperation, Outcome, RunStatus, Schedule
from worldline.kernel.run_operations import OpKind
from worldline.kernel.runs import LiveRun
from worldline.model import ids, inbox, payload, step_records
from worldline.model.cell_rows import CellKind
from worldline.model.inbox import MessageMode, ReceiptStatus, Reply
from worldline.model.journal import Kind
from worldline.model.traces import TraceSource
from worldline.model.work import WorkKind

REPLY = "worldline/reply"
NOT_ASKED = "another world was asked"
BUFFER_MAX = 4_096
_INLINE_BYTES_MAX = limits.INLINE_BYTES_MAX
CHANGED_BYTES_MAX = limits.STEP_BYTES_MAX // 2  # of the cells that one event changes

# What comes back of code that has not run: an `async def`, or one with `yield`.
_UNDONE = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The payload of an ANSWERED entry and of a reply: data if ok, else a Failure."""

    ok: bool
    data: bytes


class Envelope(msgspec.Struct, frozen=True):
    """What a reducer or workflow gets for a message in inbox mode: not decoded, with where it came from."""

    inbox: str
    payload: bytes
    headers: dict[str, str]
    from_world: str
    from_step: int


ENVELOPE = user_values.schema_name(Envelope)
assert ENVELOPE == ids.ENVELOPE  # the model does not import the kernel, and has the name too
NO_SENDER = ("", 0)  # of an envelope that no world has sent, or none that is believed


def sealed(inbox_name: str, data: bytes, headers: Mapping[str, str] | None) -> tuple[str, bytes]:
    """Return an envelope from outside, as an event: its schema and its data."""
    name = ids.check_name(user_values.text(inbox_name, "an inbox's name"), "an inbox's name")
    return ENVELOPE, user_values.dump(Envelope(name, data, message_calls.check_headers(headers), *NO_SENDER))


def check_outside(schema: str, data: bytes) -> None:
    """Refuse an event from outside that would speak for the runtime: one with a name of its own, or an envelope that
    says which world has sent it. `ReservedName`.
    """
    if schema != ENVELOPE:
        ids.check_event_name(schema)
        return
    try:
        envelope = user_values.load(Envelope, data)
    except errors.DecodeError as error:
        raise errors.ReservedName(schema) from error  # an event of a user's own, by the name of ours
    if (envelope.from_world, envelope.from_step) != NO_SENDER:
        raise errors.ReservedName(schema)


class _Failed(Exception):
    """A handler raised: the event is not taken. Carries what was raised."""

    def __init__(self, cause: BaseException, handler: reducers.EventHandler) -> None:
        super().__init__()
        self.cause = cause
        self.handler = handler


def take(machine: Machine, schema: str, data: bytes, *, to: str = "", correlation: str = "") -> str:
    """Process an event from outside. Returns why no handler or run could take it, or nothing."""
    answer, dead = _dispatch(machine, schema, data, to=to)
    if correlation:
        answer = answer or Answer(False, runs.failure("rejected", dead or "no handler answers it"))
        machine.draft(Kind.ANSWERED, structs.encode(answer), correlation=correlation)
    drain_raised(machine)
    return dead


def message(machine: Machine, item: inbox.Message, data: bytes) -> str:
    """Process a message from another world: an event, an envelope, or the reply to a question of this one."""
    if item.mode is MessageMode.TYPED and item.name == REPLY:
        return _reply(machine, item, data)
    now = machine.now
    is_believed = not (isinstance(item, inbox.Vouched) and item.from_file)
    # A message out of a file may name any sender: what it says is not passed on.
    if is_believed:
        now.sent_by(item)
    if item.mode is MessageMode.INBOX:
        sender = (item.from_world.hex(), item.from_step) if is_believed else NO_SENDER
        envelope = Envelope(item.name, data, item.headers, *sender)
        _, dead = _dispatch(machine, ENVELOPE, user_values.dump(envelope), to="")
        # Events that its handlers raised were not sent by a world: `wl.sender()` says so.
        now.sent_by(None)
        drain_raised(machine)
        return dead
    answer, dead = _dispatch(machine, item.name, data, to=item.to)
    now.sent_by(None)
    if item.reply:
        send_reply(machine, item, answer or Answer(False, runs.failure("rejected", dead or "no handler answers it")))
        dead = ""  # it was told, so this is no dead letter
    drain_raised(machine)
    return dead


def scheduled(machine: Machine, schedule: Schedule) -> str | None:
    """Raise the event of a schedule that has fired, or start its workflow. Returns the run's id, if there is one."""
    spec = schedule.spec
    if not spec.starts:
        machine.now.raised.append((spec.name, spec.data))
    elif spec.name in machine.program.workflows:
        run_id = schedules.run_id(machine, schedule)
        # A schedule that is replaced counts from 1 again, so ids can come again: the count of runs makes other seeds.
        count = machine.run_count.to_bytes(8, "big")
        seed = digest.hash_parts(b"schedule", machine.seed, run_id.encode(), count)
        run_requests.start_run(machine, run_id=run_id, workflow=spec.name, args=spec.data, seed=seed, named=False)
        return run_id
    else:
        why = f"schedule {schedule.id!r}: program {machine.program.name!r} has no workflow {spec.name!r} any more"
        machine.draft(Kind.HANDLER_FAILED, runs.failure("not_found", why))
    return None


def raise_event(machine: Machine, schema: str, data: bytes, correlation_id: str) -> None:
    """Raise an event in the middle of a workflow's code: its handlers have taken it when this returns. What they do
    has the correlation id of the run, whatever input lets the run continue.
    """
    now = machine.now
    before = now.correlation_id
    # Half done until the handlers have run: an exception in between must drop the step.
    now.begin_change()
    now.correlated(correlation_id)
    now.raised.append((schema, data))
    drain_raised(machine)
    now.correlated(before)
    now.end_change()


def drain_raised(machine: Machine) -> None:
    """Process the events that were raised in this step, in order."""
    now = machine.now
    while now.raised:
        schema, data = now.raised.popleft()
        if not now.next_event():
            if now.overflow():  # journaled once: code that raises events in a circle must not fill the journal
                reason = f"a step may raise {limits.STEP_EVENTS_MAX} events and {EVENTS_BYTES_MAX} bytes"
                machine.draft(Kind.HANDLER_FAILED, runs.failure("limit_exceeded", f"{schema} was not raised: {reason}"))
            continue
        machine.draft(Kind.EVENT_RAISED, user_values.pack([schema, data]))
        _dispatch(machine, schema, data, to="")


def _dispatch(machine: Machine, schema: str, data: bytes, *, to: str) -> tuple[Answer | None, str]:
    """Give an event to its handlers and runs. Returns a request's answer, and why nothing took it."""
    if to:
        return None, _to_run(machine, schema, data, to)
    routes = machine.program.routes
    handlers = routes.handlers.get(schema, [])
    envelope: Envelope | None = None
    if routes.inboxes and schema == ENVELOPE:
        envelope, handlers = _opened(routes, data, handlers)
    # Before handlers run: a run that they start does not get the event that started it.
    takers = _waiting_runs(machine, schema)
    if not handlers and not takers:
        return None, _reject(machine, f"nothing here takes {grammar.an(schema)} now")
    answer = None
    try:
        # No handler decodes it, and no run may be the first to find that it does not fit.
        if takers and not handlers:
            _check(machine, schema, data)
        answer = _fold(machine, handlers, data, envelope)
    except errors.DecodeError as error:
        return Answer(False, runs.failure("bad_input", str(error))), _reject(machine, str(error))
    except _Failed as failed:
        return _failed(machine, failed)
    for run in takers:
        _give(machine, run, schema, data)
    return answer, ""


def _failed(machine: Machine, failed: _Failed) -> tuple[Answer, str]:
    cause = failed.cause
    # A refusal is an answer, so it is not journaled as a failure.
    if issubclass(type(cause), failures.Refused) and failed.handler.is_request:
        return Answer(False, runs.failure("refused", user_errors.text_of(cause), data=failure_data.data_of(cause))), ""
    message = user_errors.message_in_step(cause)
    why = runs.failure(user_errors.code_of(cause), message, data=failure_data.data_of(cause))
    machine.draft(Kind.HANDLER_FAILED, why)
    handler = f"{failed.handler.reducer}.{failed.handler.method}"
    tracebacks.record(machine, TraceSource.HANDLER, handler, cause, message)
    return Answer(False, why), f"{handler} raised {message}"


def _opened(
    routes: reducers.Routes, data: bytes, handlers: list[reducers.EventHandler]
) -> tuple[Envelope | None, list[reducers.EventHandler]]:
    """Read an envelope and find its handlers: those of its inbox; if there are none, those that take any envelope."""
    try:
        envelope = user_values.load(Envelope, data)
    except errors.DecodeError:
        return None, handlers  # decoding it for them fails, too, and says why
    return envelope, routes.inboxes.get(envelope.inbox, handlers)


def _fold(
    machine: Machine, handlers: list[reducers.EventHandler], data: bytes, envelope: Envelope | None = None
) -> Answer | None:
    """Run all handlers of an event; then, only if all succeeded, do what they asked for. Handlers of an inbox that name
    a type of their own get what is inside the envelope.
    """
    before: dict[tuple[str, str], tuple[int, bytes, CellKind] | None] = {}
    asked: list[HandlerCalls] = []
    answer = None
    try:
        for handler in handlers:
            inside = envelope is not None and handler.event is not Envelope
            event = user_values.load(handler.event, envelope.payload if envelope is not None and inside else data)
            calls = HandlerCalls(machine, handler)
            asked.append(calls)
            result = _call(machine, handler, event, calls, before)
            if handler.is_request:
                answer = Answer(True, _answer(handler, result))
        _count_changes(machine, handlers[-1] if handlers else None, before)
    # Any other exception drops the whole step, and these cells with it.
    except (errors.DecodeError, _Failed):
        _roll_back(machine, before)
        raise
    # Only now: a handler that failed later would have left rows noted for nothing.
    for key, was in before.items():
        cell = machine.cells[key]
        if was != (cell.folds, cell.data, cell.kind):
            cells.mark(machine.ledger, cell, was)
    for calls in asked:
        if calls.asked:
            _do_asked(machine, calls)
    return answer


def _call(
    machine: Machine,
    handler: reducers.EventHandler,
    event: Any,
    calls: HandlerCalls,
    before: dict[tuple[str, str], tuple[int, bytes, CellKind] | None],
) -> Any:
    reducer = machine.program.reducers[handler.reducer]
    # Set before the key is read: an event's attribute may be code of the user's.
    outside = contexts.current.set(calls)
    try:
        key = (reducer.name, "" if reducer.key is None else _cell_key(getattr(event, reducer.key)))
        # Where all cells are in memory, a plain `get` saves a call for every event.
        cell = machine.cells.get(key) if machine.cells.fetch is None else machine.find_cell(key)
        if key not in before:
            before[key] = None if cell is None else (cell.folds, cell.data, cell.kind)
        if cell is None:
            value = reducer.cls()
            cell = machine.cells.new(key, value, user_values.dump(value))
        elif cell.value is UNREAD:
            cell.read(_fitting(reducer, key, cell.data))
        calls.in_cell(cell)
        was = cell.data
        result = stack.call(getattr(cell.value, handler.method), event)
        if type(result) in _UNDONE:
            _refuse_undone(handler, result)
        calls.check_calls()
        # From here on the cell is what its bytes say, now and not only when it is restored: maps in canonical order,
        # fields of their declared types, nothing shared and nothing besides.
        value = cell.value
        is_canonical = reducer.is_canonical(value)
        data = reducer.dump(value, is_canonical=is_canonical)
        cell.keep(value if is_canonical else user_values.load(reducer.cls, data), data)
        # A draw counts, too: the next event must not draw the same.
        if data != was or calls.drew:
            cell.folded()
    except BaseException as error:
        if user_errors.let_pass(error):
            raise
        raise _Failed(error, handler) from error
    finally:
        contexts.current.reset(outside)
    return result


def _refuse_undone(handler: reducers.EventHandler, result: object) -> NoReturn:
    """A decorator can hide from the declaration that a handler is a coroutine or a generator."""
    kind = user_errors.name_of(type(result))
    raise errors.BadInput(
        f"{handler.reducer}.{handler.method} returned {grammar.an(kind)}, whose code has not run: a handler is a plain "
        f"def"
    )


def _fitting(reducer: reducers.Reducer, key: tuple[str, str], data: bytes) -> Any:
    """A cell's value. One that the class does not take any more is kept as it is: no event reaches it until the class
    fits again.
    """
    return reducers.value_of(reducer.cls, reducer.name, key[1], data)


def _count_changes(
    machine: Machine,
    last: reducers.EventHandler | None,
    before: dict[tuple[str, str], tuple[int, bytes, CellKind] | None],
) -> None:
    """Bound what one event changes: its rows are written with this step."""
    size = 0
    for key in before:
        length = len(machine.cells[key].data)
        # Larger data is stored apart, and counts only as much as it may take in a row.
        size += min(_INLINE_BYTES_MAX, length)
    if size > CHANGED_BYTES_MAX and last is not None:
        error = failures.LimitExceeded(f"an event may change cells of {CHANGED_BYTES_MAX} bytes, not {size}")
        raise _Failed(error, last)
    machine.now.count_bytes(size)


def _answer(handler: reducers.EventHandler, result: Any) -> bytes:
    try:
        return user_values.dump(result)
    except errors.EncodeError as error:
        raise _Failed(error, handler) from error


def _roll_back(machine: Machine, before: dict[tuple[str, str], tuple[int, bytes, CellKind] | None]) -> None:
    for key, was in before.items():
        if was is None:
            machine.cells.pop(key, None)
        else:  # its value is read again from its bytes when it is needed
            machine.cells[key].roll_back(*was)


def _do_asked(machine: Machine, calls: HandlerCalls) -> None:
    machine.now.raised.extend(calls.emits)
    for delay_us, (schema, data), cancelled in calls.afters:
        if not cancelled[0]:
            due_us = machine.now.context.store_us + delay_us
            run_requests.ask_for(machine, DeferredOperation("", -1, OpKind.AFTER, schema, data, due_us))
    for schedule_id, spec in calls.schedules:
        schedules.change(machine, schedule_id, spec)
    for number, (workflow, args, run_id) in enumerate(calls.starts):
        seed = digest.hash_parts(b"start", calls.seed, number.to_bytes(4, "big"))
        name = run_id or seed.hex()[:16]
        known = machine.runs.get(name)
        if known is None:
            run_requests.start_run(
                machine,
                run_id=name,
                workflow=workflow,
                args=args,
                seed=seed,
                named=bool(run_id),
                correlation_id=machine.now.correlation_id,
            )
        elif not runs.is_same(known.record, workflow, args):  # started by another handler of the same event
            machine.draft(Kind.HANDLER_FAILED, runs.failure(errors.IdReused.code, str(errors.IdReused(name))))


def _waiting_runs(machine: Machine, schema: str) -> list[LiveRun]:
    """The live runs that wait for this kind of event, or may, in order of start: those of blocked runs, too, whose code
    may be gone.
    """
    return machine.interested(schema) if machine.live else []


def _to_run(machine: Machine, schema: str, data: bytes, to: str) -> str:
    run = machine.runs.get(to)
    if run is None or not run.live:
        return _reject(machine, f"no run {to!r} is there to take it")
    try:
        _check(machine, schema, data)
    except errors.DecodeError as error:
        return _reject(machine, str(error))
    return _give(machine, run, schema, data)


def _check(machine: Machine, schema: str, data: bytes) -> None:
    """Refuse data that is not of this schema, as far as its type is known, before a run gets it. `DecodeError`."""
    user_values.load(machine.program.routes.types.get(schema, Any), data)


def _give(machine: Machine, run: LiveRun, schema: str, data: bytes) -> str:
    """Give an event to a run: to the wait it satisfies, or into the buffer until one does."""
    # A run that never waits for what it gets must not fill the world's state.
    if len(run.record.buffer) >= BUFFER_MAX:
        return _reject(machine, f"run {run.record.id!r} has {BUFFER_MAX} events it has not waited for")
    # Rebuilt first, because only the running code knows the conditions of its waits.
    if run.record.status is RunStatus.RUNNING and (run.coroutine is None or machine.now.given_blocks):
        try:
            coroutines.check_given(machine, run)
            if run.coroutine is None:
                coroutines.rebuild(machine, run)
        except failures.Diverged as error:
            coroutines.block(machine, run, error.report)
    # Also while it is blocked: it gets the event when its code fits again.
    run.buffer(schema, data)
    waits.check_all(machine, run)
    return ""


def _reject(machine: Machine, reason: str) -> str:
    machine.draft(Kind.UNDECODABLE_INPUT, user_values.dump([runs.storable(reason)]))
    return reason


def _cell_key(value: object) -> str:
    key = value if type(value) is str else _key_text(value)
    if type(key) is not str:
        raise errors.BadInput("the key of a cell must be plain text or a plain value")
    size = len(key.encode())  # what has no bytes is refused here, before anything is changed
    if size > limits.CELL_KEY_BYTES_MAX:
        raise errors.TooLarge("the key of a cell", size=size, limit=limits.CELL_KEY_BYTES_MAX)
    return key


def _key_text(value: object) -> str:
    made = user_values.plain(value)
    if type(made) is not int and type(made) is not str:
        user_values.dump(made)  # an enum may hold any object, whose text is its address
    return str(made)


# --- Requests of other worlds ------------------------------------------------------------------------------------


def send_reply(machine: Machine, asked: inbox.Message, answer: Answer) -> None:
    """Answer a question of another world."""
    # The question came here as an effect of another universe, and its answer goes back as that effect's receipt.
    if asked.reply is Reply.RECEIPT:
        run_requests.reply_away(machine, asked, ok=answer.ok, data=answer.data)
        return
    context = machine.now.context
    data = structs.encode(answer)
    # A reply has no operation of its own: its id is derived from the question's, so a repeat is recognised.
    reply_id = ids.IntentId(digest.hash_parts(b"reply", asked.message)[: limits.ID_BYTES])
    item = inbox.Message(
        reply_id,
        context.address.universe,
        context.address.world,
        context.step,
        MessageMode.TYPED,
        REPLY,
        payload.EMPTY,
        {},
        correlation=asked.message.hex(),
    )
    if isinstance(asked, inbox.Vouched):
        item = item.vouched(ticket=asked.ticket)
    back = ids.Address(ids.UniverseId(asked.from_universe), ids.WorldId(asked.from_world))
    machine.draft(Kind.MESSAGE_SENT, user_values.pack([-1, back.world, REPLY, data]), correlation=item.correlation)
    machine.now.outgoing.append(step_records.Outgoing(reply_id, "", back, item, data))


def _reply(machine: Machine, item: inbox.Message, data: bytes) -> str:
    try:
        answer = structs.decode(Answer, data)
        asked = ids.IntentId(bytes.fromhex(item.correlation))
    except (errors.DecodeError, ValueError) as error:
        return _reject(machine, f"not a reply: {error}")
    pending = machine.work.find_open(asked)
    if pending is None or pending.kind is not WorkKind.MESSAGE:  # effects are not answered by messages
        machine.draft(Kind.LATE_ANSWER, user_values.dump(["reply", item.message, "nothing waits for it"]))
        return ""
    # Without a secret the question is older than tickets, and is answered by its name alone.
    if pending.secret and not _is_of_asked(item, ids.question_key(asked, pending.secret)):
        probes.hit("messages.forged-answer")
        machine.draft(Kind.LATE_ANSWER, user_values.dump(["reply", item.message, NOT_ASKED]))
        return ""
    machine.work.take_question(asked)
    status = ReceiptStatus.OK if answer.ok else ReceiptStatus.ERROR
    run_requests.arrive(machine, pending.run, pending.op, Outcome(status, answer.data))
    return ""


def _is_of_asked(item: inbox.Message, key: bytes) -> bool:
    """Whether an answer is of the world that was asked: it shows the ticket that this world, and no other, was given.
    An answer out of a file is of no world.
    """
    if not isinstance(item, inbox.Vouched) or item.from_file:
        return False
    sender = ids.Address(ids.UniverseId(item.from_universe), ids.WorldId(item.from_world))
    return item.ticket == ids.ticket(key, sender)


def as_if_asked(machine: Machine, item: inbox.Message) -> inbox.Message:
    """An answer that was taken in one history, for another history of the world, with the ticket that it has there."""
    asked = ids.IntentId(bytes.fromhex(item.correlation))
    pending = machine.work.find_open(asked)
    if pending is None or not pending.secret:
        return item
    sender = ids.Address(ids.UniverseId(item.from_universe), ids.WorldId(item.from_world))
    return item.vouched(ticket=ids.ticket(ids.question_key(asked, pending.secret), sender))
