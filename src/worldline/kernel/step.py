"""The step: one input consumed, and everything derived that follows from it.

Handlers fold the event into cells, runs that were waiting continue until they wait again, and what they ask for is
collected. The result depends on the state, the input and the context alone. The caller commits the result or drops the
machine; a step cannot be undone.
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import structs
from worldline.kernel import (
    control_commands,
    event_dispatch,
    part_inputs,
    poison,
    run_driver,
    run_requests,
    runs,
    schedules,
    state_witness,
    user_values,
)
from worldline.kernel.authoring import message_calls
from worldline.kernel.execution import tracebacks
from worldline.kernel.execution.step_desk import StepDesk
from worldline.kernel.machine import Machine
from worldline.kernel.parts import StepParts
from worldline.kernel.personal import personal_value
from worldline.kernel.rows.row_records import Outcome
from worldline.model import ids, inbox, payload
from worldline.model import step_records as steps
from worldline.model.inbox import MessageMode, ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.traces import TraceSource
from worldline.model.work import WorkKind

_TIMER, _MESSAGE = WorkKind.TIMER, WorkKind.MESSAGE
_CONTROL = Kind.CONTROL


def step(machine: Machine, given: steps.Input, context: steps.StepContext, parts: StepParts) -> steps.Stepped:
    """`CannotStep` if this process, and not the code, prevented the step. After that, and after any other exception,
    the machine is spoilt: the caller drops it, and journals nothing. `parts`: what is called for forks and for flow
    domains, where the world has any.
    """
    try:
        # Most processes have no personal values, and save the desk.
        if personal_value.use.seen:
            return _step_at_desk(machine, given, context, parts)
        return _step(machine, given, context, parts)
    # The guards around user code let it pass (`user_errors.let_pass`), so it gets here.
    except MemoryError as error:
        raise errors.CannotStep("the process has no memory left for this step", lasting=False) from error


def _step_at_desk(machine: Machine, given: steps.Input, context: steps.StepContext, parts: StepParts) -> steps.Stepped:
    """Where there may be personal values."""
    outside = personal_value.desk.set(StepDesk(machine))
    try:
        return _step(machine, given, context, parts)
    finally:
        personal_value.desk.reset(outside)


def _step(machine: Machine, given: steps.Input, context: steps.StepContext, parts: StepParts) -> steps.Stepped:
    now = machine.begin_step(context, given)
    letter = None
    if given.item is None:
        data = user_values.dump([runs.storable(given.error), given.raw_digest])
        machine.draft(Kind.UNDECODABLE_INPUT, data, stamp=given.stamp, correlation=given.correlation)
        dead = given.error or "not decodable"
        if given.correlation:
            poison.answer(machine, dead, given.correlation)
    else:
        kind = _KINDS[type(given.item)]
        now.draft(
            kind,
            structs.encode(given.item),
            stamp=given.stamp,
            correlation=given.item.correlation,
        )
        # Right behind the input, where a replay looks for it.
        if context.behind_us:
            machine.draft(Kind.CLOCK, user_values.dump(context.behind_us))
        if kind is _CONTROL and _is_witness(given.item):
            dead = _witness(machine, given, parts)
        else:
            dead, letter = _go_on(machine, given, parts)
    changes, covered, plain = machine.end_step()
    return steps.Stepped(
        now.drafts,
        machine.state,
        now.wanted,
        now.closed,
        now.cancelled,
        now.outgoing,
        dead,
        letter,
        changes,
        covered,
        plain,
        now.traces,
        [] if now.personal is None else now.personal.new,
        now.halted,
        now.warnings,
    )


def _go_on(machine: Machine, given: steps.Input, parts: StepParts) -> tuple[str, steps.BuriedEvent | None]:
    """Take an input, and do all that can be done then. Returns why it is a dead letter, and which, if it is one."""
    now = machine.now
    dead, letter = "", None
    if given.discard:
        poison.draft(machine, given.poison, discard=True)
        poison.discard(machine)
        return dead, letter
    if now.context.behind_us:
        schedules.clock_set_back(machine)
    if given.poison:
        poison.draft(machine, given.poison)
        dead, letter = _settle(machine, given, given.poison, parts)
    else:
        if machine.later.items:
            # First in line: they were ready before this input came.
            machine.resume_later()
        dead = _take(machine, given, parts)
        if machine.branch is not None and machine.branch.unsettled and not now.reverted:
            parts.branch.settle_inherited(machine, parts.domains)
        # Again and again: what runs ask for can make other runs ready, and what is held back too.
        while now.ready or machine.domains.wanted or (machine.work.unsent.items and now.has_room):
            run_driver.drain(machine)
            if machine.domains.wanted:
                parts.domains.take_wanted(machine)
            if machine.work.unsent.items:
                run_requests.send_held_back(machine)
                if machine.domains.answered:
                    parts.domains.take_answered(machine)
    # Last, so that what was given up takes no room from new work.
    if machine.work.closing.items:
        machine.work.close_given_up()
    return dead, letter


def _is_witness(item: inbox.Item) -> bool:
    return isinstance(item, inbox.Control) and item.command == state_witness.WITNESS


def _witness(machine: Machine, given: steps.Input, parts: StepParts) -> str:
    """A step that says what the state is, and does nothing else: whatever an earlier step left for the next waits."""
    item = given.item
    assert isinstance(item, inbox.Control)
    if given.poison:
        poison.draft(machine, given.poison)
        return poison.reject(machine, given.poison, correlation=item.correlation)
    return control_commands.take(machine, item, given.data, parts)


def _take(machine: Machine, given: steps.Input, parts: StepParts) -> str:
    """Dispatch an input. Returns why it could not be taken, or nothing."""
    item, data = given.item, given.data
    if isinstance(item, inbox.InboxEvent):
        # Only records that are derived from it have a correlation id.
        if type(item) is not inbox.InboxEvent:
            machine.now.correlated(inbox.correlation_id_of(item))
        if item.schema in machine.domains.actions:
            return parts.domains.event(machine, item, data)
        return event_dispatch.take(machine, item.schema, data, to=item.to, correlation=item.correlation)
    if isinstance(item, inbox.EffectReceipt):
        if given.trace or given.tried:
            _keep_trace(machine, item, given)
        return _receipt(machine, item, data, parts)
    if isinstance(item, inbox.TimerFired):
        _fired(machine, item)
        event_dispatch.drain_raised(machine)
        return ""
    if isinstance(item, inbox.Message):
        if item.name in machine.domains.actions and item.mode is MessageMode.TYPED:
            return parts.domains.message(machine, item, data)
        return event_dispatch.message(machine, item, data)
    assert item is not None, "what cannot be decoded is journaled as it is"
    dead = control_commands.take(machine, item, data, parts)
    if machine.now.raised:  # by a schedule that was triggered
        event_dispatch.drain_raised(machine)
    return dead


def _settle(machine: Machine, given: steps.Input, why: str, parts: StepParts) -> tuple[str, steps.BuriedEvent | None]:
    """Dispatch an input that must not reach user code. Returns why it is a dead letter, and which, if it is one."""
    item = given.item
    assert item is not None
    if isinstance(item, inbox.InboxEvent):
        return poison.reject(machine, why, correlation=item.correlation), None
    if isinstance(item, inbox.Message) and not poison.is_reply(item):
        return poison.message(machine, item, why), None
    if isinstance(item, inbox.TimerFired):
        _fired(machine, item)
    elif not isinstance(item, inbox.Control):
        _take(machine, given, parts)
    elif item.command == control_commands.CONTINUE:
        poison.go_on(machine, why)
    elif item.command == control_commands.SCHEDULE:  # what it schedules is decoded by user code
        return poison.reject(machine, why, correlation=item.correlation), None
    else:
        control_commands.take(machine, item, given.data, parts, trusted=True)
    poison.block(machine, why)
    raised = machine.now.raised
    if not raised:
        return "", None
    # A timer, or the event of a schedule: never more than one.
    [(schema, event)] = raised
    raised.clear()
    return why, steps.BuriedEvent(inbox.InboxEvent(schema, payload.EMPTY), event)


def _receipt(machine: Machine, item: inbox.EffectReceipt, data: bytes, parts: StepParts) -> str:
    intent = ids.IntentId(item.intent)
    pending = machine.work.find_open(intent)
    if pending is None or pending.kind is _TIMER:
        machine.draft(Kind.LATE_ANSWER, user_values.dump(["receipt", item.intent, "nothing waits for it"]))
        return ""
    machine.work.settle(intent)
    if pending.kind is _MESSAGE:
        data = _posted(item, data, machine.now.drafts[0].stamp)  # the input's
    outcome = Outcome(item.status, data)
    if pending.name == part_inputs.SHARE:
        outcome = part_inputs.shared(outcome)
    if pending.event:
        parts.domains.fulfil(machine, pending.event, outcome)
        parts.domains.take_answered(machine)
        return ""
    run_requests.arrive(machine, pending.run, pending.op, outcome)
    return ""


def _posted(item: inbox.EffectReceipt, data: bytes, stamp: bytes) -> bytes:
    """The receipt of a message that left with its step: it says how many places before itself the message stands."""
    if item.status is not ReceiptStatus.OK or not data:
        return data
    return message_calls.receipt_data(item.intent, message_calls.stamp_before(stamp, user_values.load(int, data)))


def _keep_trace(machine: Machine, item: inbox.EffectReceipt, given: steps.Input) -> None:
    """Where the effect failed, and which attempts there were, for readers: with the step; and where it failed
    with the exception that its run is fed with, too.
    """
    if given.trace:
        tracebacks.keep(machine, TraceSource.EFFECT, item.intent.hex(), given.trace)
    pending = machine.work.find_open(ids.IntentId(item.intent))
    if given.tried and pending is not None:
        tracebacks.keep(machine, TraceSource.ATTEMPTS, pending.run or item.intent.hex(), given.tried)
    if not given.trace:
        return
    run = None if pending is None else machine.runs.get(pending.run)
    if pending is not None and run is not None:
        run.traces.keep(pending.op, given.data, given.trace)


def _fired(machine: Machine, item: inbox.TimerFired) -> None:
    """A timer of a run, or one that raises an event: that is left in `raised`."""
    intent = ids.IntentId(item.intent)
    pending = machine.work.find_open(intent)
    # One that fires before its time is not the timer that is set now.
    if pending is None or pending.kind is not _TIMER or item.due_us < pending.due_us:
        machine.draft(Kind.LATE_ANSWER, user_values.dump(["timer", item.intent, "nothing waits for it"]))
        return
    machine.work.settle(intent)
    if pending.event:
        machine.now.raised.append((pending.event, pending.params))
    if pending.run:
        run_requests.arrive(machine, pending.run, pending.op, Outcome(ReceiptStatus.OK, user_values.NONE))
    elif not pending.event:
        event_dispatch.scheduled(machine, schedules.fired(machine, pending.name))


_KINDS: dict[type, Kind] = {
    inbox.InboxEvent: Kind.EVENT,
    inbox.CorrelatedEvent: Kind.EVENT,
    inbox.EffectReceipt: Kind.EFFECT_RESULT,
    inbox.CorrelatedReceipt: Kind.EFFECT_RESULT,
    inbox.SignedReceipt: Kind.EFFECT_RESULT,
    inbox.TimerFired: Kind.TIMER_FIRED,
    inbox.Message: Kind.MESSAGE,
    inbox.Vouched: Kind.MESSAGE,
    inbox.Control: Kind.CONTROL,
}
