"""The step: one input consumed, and everything derived that follows from it.

Handlers fold the event into cells, runs that were waiting continue until they wait again, and what they ask for is
collected. The result depends on the state, the input and the context alone. The caller commits the result or drops the
machine; a step cannot be undone.
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import structs
from worldline.kernel import commands, driver, events, runs, schedules, values, work
from worldline.kernel.runs import Outcome
from worldline.kernel.state import Machine
from worldline.model import ids, inbox
from worldline.model import step as steps
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.work import WorkKind


def step(machine: Machine, given: steps.Input, context: steps.Context) -> steps.Stepped:
    """`CannotStep` if this process, and not the code, prevented the step. After that, and after any other exception,
    the machine is spoilt: the caller drops it, and journals nothing.
    """
    try:
        return _step(machine, given, context)
    except MemoryError as error:
        raise errors.CannotStep("the process has no memory left for this step", lasting=False) from error


def _step(machine: Machine, given: steps.Input, context: steps.Context) -> steps.Stepped:
    now = machine.begin_step(context)
    if given.item is None:
        data = values.dump([runs.storable(given.error), given.raw_digest])
        machine.draft(Kind.UNDECODABLE_INPUT, data, stamp=given.stamp)
        dead = given.error or "not decodable"
    else:
        machine.draft(
            _KINDS[type(given.item)],
            structs.encode(given.item),
            stamp=given.stamp,
            correlation=given.item.correlation,
        )
        if context.behind_us:
            machine.draft(Kind.CLOCK, values.dump(context.behind_us))
            schedules.clock_set_back(machine)
        if machine.later:
            machine.resume_later()
        dead = _take(machine, given.item, given.data)
        while now.ready or (machine.unsent and now.has_room):
            driver.drain(machine)
            work.send_held_back(machine)
        if machine.closing:
            machine.close_given_up()
    machine.end_step()
    return steps.Stepped(now.drafts, machine.state, now.wanted, now.closed, now.cancelled, now.outgoing, dead)


def _take(machine: Machine, item: inbox.Item, data: bytes) -> str:
    """Dispatch an input. Returns why it could not be taken, or nothing."""
    if isinstance(item, inbox.Event):
        return events.take(machine, item.schema, data, to=item.to, correlation=item.correlation)
    if isinstance(item, inbox.Receipt):
        return _receipt(machine, item, data)
    if isinstance(item, inbox.TimerFired):
        return _fired(machine, item)
    if isinstance(item, inbox.Message):
        return events.message(machine, item, data)
    return commands.take(machine, item, data)


def _receipt(machine: Machine, item: inbox.Receipt, data: bytes) -> str:
    intent = ids.IntentId(item.intent)
    pending = machine.find_open(intent)
    if pending is None or pending.kind is WorkKind.TIMER:
        machine.draft(Kind.LATE_ANSWER, values.dump(["receipt", item.intent, "nothing waits for it"]))
        return ""
    machine.settle(intent)
    work.arrive(machine, pending.run, pending.op, Outcome(item.status, data))
    return ""


def _fired(machine: Machine, item: inbox.TimerFired) -> str:
    intent = ids.IntentId(item.intent)
    pending = machine.find_open(intent)
    if pending is None or pending.kind is not WorkKind.TIMER or item.due_us < pending.due_us:
        machine.draft(Kind.LATE_ANSWER, values.dump(["timer", item.intent, "nothing waits for it"]))
        return ""
    machine.settle(intent)
    if pending.event:
        machine.now.raised.append((pending.event, pending.params))
        events.drain_raised(machine)
    if pending.run:
        work.arrive(machine, pending.run, pending.op, Outcome(ReceiptStatus.OK, values.NONE))
    elif not pending.event:
        events.scheduled(machine, schedules.fired(machine, pending.name))
    return ""


_KINDS: dict[type, Kind] = {
    inbox.Event: Kind.EVENT,
    inbox.Receipt: Kind.EFFECT_RESULT,
    inbox.TimerFired: Kind.TIMER_FIRED,
    inbox.Message: Kind.MESSAGE,
    inbox.Control: Kind.CONTROL,
}
