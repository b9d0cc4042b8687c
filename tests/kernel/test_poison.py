"""Inputs that must not reach user code: each is settled without any, nothing is lost, and a replay does the same."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import worldline as wl
from worldline.codec import structs
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands, replay, schedules, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.authoring import schedule_spec
from worldline.kernel.event_dispatch import REPLY, Answer
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import RunId, RunStatus
from worldline.layers import journal as journals
from worldline.model import ids, inbox, journal, payload, step_records
from worldline.model.inbox import MessageMode, ReceiptStatus
from worldline.model.journal import Kind

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
WHY = "3 processes died of it"
SECOND_US = 1_000_000

RAN: list[str] = []  # every piece of user code that ran

app = wl.Program("poison")


@dataclass(frozen=True)
class Hit:
    n: int

    def __post_init__(self) -> None:
        RAN.append("decoded")


@dataclass(frozen=True)
class Ask(wl.Request[int]):
    n: int


@app.reducer()
@dataclass
class Hits:
    count: int = 0

    @wl.on
    def hit(self, event: Hit) -> None:
        RAN.append("handler")
        self.count += event.n

    @wl.on
    def ask(self, event: Ask) -> int:
        RAN.append("handler")
        return event.n


@app.effect
async def fetch(n: int) -> int:
    return n


@app.workflow
async def flow(n: int) -> int:
    RAN.append("workflow")
    try:
        got = await fetch(n)
        RAN.append("workflow")
        await wl.sleep(60)
        RAN.append("workflow")
        await wl.ask("other", Ask(got))
    finally:
        RAN.append("finally")
    return got


@app.workflow
async def later() -> None:
    RAN.append("workflow")
    wl.after(5, Hit(1))
    await wl.sleep(3600)


def large(hit: Hit) -> bool:
    RAN.append("where")
    return hit.n > 1


@app.workflow
async def waiting() -> int:
    found = await wl.wait(Hit, where=large)
    return found.n


class World:
    """A machine and its journal, replayed after every step in a machine of its own."""

    def __init__(self) -> None:
        self.machine, self.again = Machine(app), Machine(app)
        self.head = journal.GENESIS
        self.entries: list[journal.JournalEntry] = []

    def give(self, item: inbox.Item, data: bytes = b"", *, poison: str = "", time_us: int = 0) -> step_records.Stepped:
        time_us = max(self.head.time_us, time_us)
        given = step_records.Input(item, data, poison=poison)
        stepped = kernel_step.step(
            self.machine, given, step_records.StepContext(HOME, self.head.step + 1, time_us), PARTS
        )
        sealed = journals.seal(self.head, stepped.drafts, stepped.changes, state=stepped.state, time_us=time_us)
        self.head = sealed.after
        self.entries += sealed.entries
        before = len(RAN)
        replay.check(self.again, sealed.entries, HOME, lambda _: data, PARTS)
        if poison:
            assert RAN[before:] == [], "the replay ran user code"
        return stepped

    def poison(self, item: inbox.Item, data: bytes = b"", *, time_us: int = 0) -> step_records.Stepped:
        before = len(RAN)
        stepped = self.give(item, data, poison=WHY, time_us=time_us)
        assert RAN[before:] == []
        assert [draft.kind for draft in stepped.drafts][1] is Kind.POISON
        return stepped

    def command(self, command: str, record: object) -> tuple[inbox.Control, bytes]:
        data = structs.encode(record)
        return inbox.Control(command, payload.inline(data), correlation="c"), data

    def start(self, call: wl.Call[object], run: str = "r") -> tuple[inbox.Control, bytes]:
        return self.command(
            control_commands.RUN, control_commands.StartRun(run, call.target.name, call.pack(), b"s" * 16, True)
        )

    def intent(self, name: str) -> ids.IntentId:
        return next(each for each, pending in self.machine.work.open.items() if pending.name == name)

    def blocked(self, run: str = "r") -> bool:
        record = self.machine.runs[run].record
        assert record.status is not RunStatus.BLOCKED or WHY in record.blocked
        return record.status is RunStatus.BLOCKED


def answered(stepped: step_records.Stepped) -> Answer:
    [found] = [structs.decode(Answer, each.payload) for each in stepped.drafts if each.kind is Kind.ANSWERED]
    return found


def test_an_event_is_a_dead_letter() -> None:
    world = World()
    world.give(*world.start(waiting()))
    data = user_values.dump(Hit(2))
    stepped = world.poison(inbox.InboxEvent("Hit", payload.inline(data)), data)
    assert (stepped.dead, stepped.letter) == (WHY, None)
    assert not world.blocked()
    assert not world.machine.cells
    world.give(inbox.InboxEvent("Hit", payload.inline(data)), data)
    assert world.machine.runs["r"].record.status is RunStatus.FINISHED


def test_a_request_is_answered_with_the_reason() -> None:
    data = user_values.dump(Ask(2))
    stepped = World().poison(inbox.InboxEvent("Ask", payload.inline(data), correlation="x"), data)
    assert stepped.dead == WHY
    assert not answered(stepped).ok
    assert WHY.encode() in answered(stepped).data


def test_a_question_of_another_world_is_answered_and_a_dead_letter() -> None:
    data = user_values.dump(Ask(2))
    asked = inbox.Message(
        b"m" * 16,
        HOME.universe,
        b"x" * 16,
        1,
        MessageMode.TYPED,
        "Ask",
        payload.inline(data),
        reply=inbox.Reply.MESSAGE,
    )
    stepped = World().poison(asked, data)
    assert stepped.dead == WHY
    [reply] = stepped.outgoing
    assert not structs.decode(Answer, reply.data).ok


def test_an_answer_to_an_effect_is_recorded_and_its_run_blocked() -> None:
    world = World()
    world.give(*world.start(flow(7)))
    data = user_values.dump(7)
    receipt = inbox.EffectReceipt(world.intent("fetch"), ReceiptStatus.OK, payload.inline(data), 1)
    stepped = world.poison(receipt, data)
    assert world.blocked()
    assert stepped.closed == [receipt.intent]
    outcome = world.machine.runs["r"].record.ops[0].outcome
    assert outcome is not None
    assert outcome.data == data


def test_a_timer_of_a_run_and_a_reply_block_the_run() -> None:
    for until in ("sleep", "reply"):
        world = World()
        world.give(*world.start(flow(7)))
        data = user_values.dump(7)
        world.give(inbox.EffectReceipt(world.intent("fetch"), ReceiptStatus.OK, payload.inline(data), 1), data)
        fired = inbox.TimerFired(world.intent("sleep"), 60 * SECOND_US)
        if until == "sleep":
            world.poison(fired, time_us=60 * SECOND_US)
        else:
            [asked] = world.give(fired, time_us=60 * SECOND_US).outgoing
            reply = structs.encode(Answer(True, data))
            message = inbox.Message(
                b"m" * 16,
                HOME.universe,
                b"x" * 16,
                1,
                MessageMode.TYPED,
                REPLY,
                payload.inline(reply),
                {},
                asked.intent.hex(),
            )
            world.poison(message, reply)
        assert world.blocked()


def test_an_event_that_a_timer_raises_is_a_dead_letter_of_its_own() -> None:
    world = World()
    world.give(*world.start(later()))
    stepped = world.poison(inbox.TimerFired(world.intent("Hit"), 5 * SECOND_US), time_us=5 * SECOND_US)
    assert stepped.dead == WHY
    assert stepped.letter == step_records.BuriedEvent(inbox.InboxEvent("Hit", payload.EMPTY), user_values.dump(Hit(1)))
    assert not world.blocked()


@pytest.mark.parametrize("starts", [False, True])
def test_what_a_schedule_does_is_a_dead_letter_or_a_blocked_run(starts: bool) -> None:
    world = World()
    spec = schedule_spec.spec_of(flow(3) if starts else Hit(3), every=60, cron=None, tz=None)
    world.give(*world.command(control_commands.SCHEDULE, schedules.ScheduleChange("s", spec)))
    [(timer, pending)] = world.machine.work.open.items()
    due_us = pending.due_us
    stepped = world.poison(inbox.TimerFired(timer, due_us), time_us=due_us)
    assert [each.due_us for each in stepped.wanted] == [due_us + 60 * SECOND_US], "it fires again"
    if starts:
        assert (stepped.dead, world.blocked("s@1")) == ("", True)
    else:
        assert stepped.letter == step_records.BuriedEvent(
            inbox.InboxEvent("Hit", payload.EMPTY), user_values.dump(Hit(3))
        )


@pytest.mark.parametrize("starts", [False, True])
def test_so_is_what_a_triggered_one_does(starts: bool) -> None:
    world = World()
    spec = schedule_spec.spec_of(flow(3) if starts else Hit(3), every=60, cron=None, tz=None)
    world.give(*world.command(control_commands.SCHEDULE, schedules.ScheduleChange("s", spec)))
    stepped = world.poison(*world.command(control_commands.TRIGGER, schedules.Trigger("s")))
    assert stepped.wanted == [], "its timer stays"
    if starts:
        assert (stepped.dead, world.blocked("s@1")) == ("", True)
    else:
        assert stepped.letter == step_records.BuriedEvent(
            inbox.InboxEvent("Hit", payload.EMPTY), user_values.dump(Hit(3))
        )


def test_a_schedule_is_refused() -> None:
    world = World()
    spec = schedule_spec.spec_of(flow(3), every=60, cron=None, tz=None)
    stepped = world.poison(*world.command(control_commands.SCHEDULE, schedules.ScheduleChange("s", spec)))
    assert stepped.dead == WHY
    assert not answered(stepped).ok
    assert not world.machine.schedules


def test_starting_a_run_records_it_blocked() -> None:
    world = World()
    stepped = world.poison(*world.start(flow(7)))
    assert world.blocked()
    assert answered(stepped).ok
    assert stepped.wanted == []


def test_a_cancellation_is_recorded_and_stays() -> None:
    world = World()
    world.give(*world.start(flow(7)))
    world.poison(*world.command(control_commands.CANCEL, control_commands.CancelRun("r", "enough")))
    assert world.blocked()
    assert [each.reason for each in world.machine.runs["r"].record.interrupts] == ["enough"]


def test_what_a_step_left_is_blocked_run_by_run() -> None:
    world = World()
    for run in ("a", "b"):
        world.poison(*world.start(flow(1), run))
        world.machine.runs[run].unblock()
        world.again.runs[run].unblock()
    for machine in (world.machine, world.again):
        machine.later.extend([RunId("a"), RunId("b")])
    cont = inbox.Control(control_commands.CONTINUE, payload.EMPTY)
    world.poison(cont)
    assert (world.blocked("a"), world.blocked("b"), list(world.machine.later)) == (True, False, [RunId("b")])
    world.poison(cont)
    assert world.blocked("b")
    assert not world.machine.unfinished


def test_a_late_answer_stays_one() -> None:
    stepped = World().poison(inbox.EffectReceipt(b"?" * 16, ReceiptStatus.OK, payload.EMPTY, 1), user_values.NONE)
    assert [each.kind for each in stepped.drafts][2:] == [Kind.LATE_ANSWER]
    assert stepped.dead == ""


def test_a_run_that_is_warm_is_left_without_its_finally() -> None:
    world = World()
    world.give(*world.start(flow(7)))
    assert world.machine.runs["r"].coroutine is not None
    data = user_values.dump(7)
    world.poison(inbox.EffectReceipt(world.intent("fetch"), ReceiptStatus.OK, payload.inline(data), 1), data)
    assert world.machine.runs["r"].coroutine is None
