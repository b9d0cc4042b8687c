"""Schedules: when they are due, what becomes of them in a world, and that they replay byte for byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import worldline as wl
from worldline.base import errors, limits
from worldline.codec import structs
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands, replay, schedules, state_rows, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.authoring import schedule_spec
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.layers import journal as journals
from worldline.model import ids, inbox, journal, payload, step_records
from worldline.model.journal import Kind

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
SECOND = 1_000_000
DAY = 86_400 * SECOND


def us(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


# --- When ------------------------------------------------------------------------------------------------------------


def cron_spec(cron: str, tz: str | None = None) -> schedule_spec.Spec:
    return schedule_spec.spec_of(Tick("x"), every=None, cron=cron, tz=tz)


@pytest.mark.parametrize(
    ("cron", "tz", "after", "expected"),
    [
        ("0 9 * * 1-5", None, "2024-03-01T08:59:59Z", ["2024-03-01T09:00Z", "2024-03-04T09:00Z", "2024-03-05T09:00Z"]),
        ("0 9 * * MON-FRI", None, "2024-03-01T09:00:00Z", ["2024-03-04T09:00Z"]),
        ("*/20 * * * *", None, "2024-12-31T23:40:00.000001Z", ["2025-01-01T00:00Z", "2025-01-01T00:20Z"]),
        ("0 0 29 2 *", None, "2023-01-01T00:00Z", ["2024-02-29T00:00Z", "2028-02-29T00:00Z"]),
        ("0 0 29 2 *", None, "2096-03-01T00:00Z", ["2104-02-29T00:00Z"]),  # 2100 is not a leap year
        ("30 12 31 * *", None, "2024-01-31T12:30Z", ["2024-03-31T12:30Z", "2024-05-31T12:30Z"]),
        ("0 0 L * *", None, "2024-01-31T00:00Z", ["2024-02-29T00:00Z", "2024-03-31T00:00Z", "2024-04-30T00:00Z"]),
        ("0 0 L 2 *", None, "2024-03-01T00:00Z", ["2025-02-28T00:00Z"]),
        ("0 12 * * 5L", None, "2024-05-01T00:00Z", ["2024-05-31T12:00Z", "2024-06-28T12:00Z"]),
        ("30 0 9 * * *", None, "2024-05-01T09:00:29.9Z", ["2024-05-01T09:00:30Z", "2024-05-02T09:00:30Z"]),
        # A zone moves with its clock.
        ("0 9 * * *", "Europe/Berlin", "2024-03-30T00:00Z", ["2024-03-30T08:00Z", "2024-03-31T07:00Z"]),
        ("0 9 * * *", "America/New_York", "2024-11-02T00:00Z", ["2024-11-02T13:00Z", "2024-11-03T14:00Z"]),
        ("0 9 * * *", "Asia/Kolkata", "2024-01-01T00:00Z", ["2024-01-01T03:30Z"]),
        # 02:30 is skipped on the last Sunday of March: right after the gap, once.
        ("30 2 * * *", "Europe/Berlin", "2024-03-30T12:00Z", ["2024-03-31T01:00Z", "2024-04-01T00:30Z"]),
        # 02:30 is there twice on the last Sunday of October: the first counts.
        ("30 2 * * *", "Europe/Berlin", "2024-10-26T12:00Z", ["2024-10-27T00:30Z", "2024-10-28T01:30Z"]),
        ("30 2 * * *", "Europe/Berlin", "2024-10-27T01:10Z", ["2024-10-28T01:30Z"]),
        ("15,45 2 * * *", "Europe/Berlin", "2024-10-27T01:20Z", ["2024-10-28T01:15Z"]),
        # What happens every hour happens in both.
        (
            "0 * * * *",
            "Europe/Berlin",
            "2024-10-26T23:30Z",
            ["2024-10-27T00:00Z", "2024-10-27T01:00Z", "2024-10-27T02:00Z"],
        ),
    ],
)
def test_cron(cron: str, tz: str | None, after: str, expected: list[str]) -> None:
    spec, time_us, found = cron_spec(cron, tz), us(after), []
    for _ in expected:
        time_us = schedule_spec.next_us(spec, since_us=0, after_us=time_us)
        found.append(time_us)
    assert found == [us(each) for each in expected]


@pytest.mark.parametrize(
    ("since", "after", "expected"),
    [
        (100, 100, 110),
        (100, 109, 110),
        (100, 110, 120),
        (100, 119, 120),
        (103, 200, 203),
        (103, 203, 213),
        (100, 50, 60),
        (103, 50, 53),
    ],
)
def test_every_keeps_its_phase(since: int, after: int, expected: int) -> None:
    spec = schedule_spec.spec_of(Tick("x"), every=10, cron=None, tz=None)
    found = schedule_spec.next_us(spec, since_us=since * SECOND, after_us=after * SECOND)
    assert found == expected * SECOND


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "every= or cron="),
        ({"every": 1, "cron": "* * * * *"}, "not both"),
        ({"every": 1, "tz": "Europe/Berlin"}, "tz= belongs to cron="),
        ({"every": 0}, "at least 0.01 s"),
        ({"every": -1}, "every="),
        ({"every": float("nan")}, "every="),
        ({"cron": ""}, "wrong number of fields"),
        ({"cron": "* * *"}, "wrong number of fields; it is minute hour day month weekday"),
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"cron": "0 25 * * *"}, "bad hour"),
        ({"cron": "0 0 * * 8"}, "bad day-of-week"),
        ({"cron": "every day"}, "wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": "0 0 */30 2 1#5"}, "never happens"),
        ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "no time zone"),
        ({"cron": "* * * * *", "tz": "../etc/passwd"}, "no time zone"),
        ({"cron": "* * * * *", "tz": "Europe"}, "no time zone"),
    ],
)
def test_what_is_wrong_is_one_clear_error(given: dict[str, Any], says: str) -> None:
    whole: dict[str, Any] = {"every": None, "cron": None, "tz": None, **given}
    with pytest.raises(errors.BadInput) as caught:
        schedule_spec.spec_of(Tick("x"), **whole)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# --- A world in virtual time -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    name: str


@dataclass(frozen=True)
class Plan:
    """Asks the planner for schedules: (id, every) pairs, every 0 to remove."""

    wanted: list[tuple[str, float]]
    fail: bool = False


@dataclass(frozen=True)
class Once:
    """Asks the planner to end the schedule `once` when it fires."""


@dataclass(frozen=True)
class Later:
    seconds: float


def program(*, without_report: bool = False) -> wl.Program:
    app = wl.Program("planner")

    @app.reducer()
    @dataclass
    class Planner:
        ticks: list[str] = field(default_factory=list)

        @wl.on
        def tick(self, event: Tick) -> None:
            self.ticks.append(f"{event.name} {wl.now():%H:%M:%S}")
            if event.name == "once":
                wl.unschedule("once")
            if event.name == "slower":
                wl.schedule("slower", Tick("slower"), every=100)

        @wl.on
        def plan(self, event: Plan) -> None:
            for name, every in event.wanted:
                if every:
                    wl.schedule(name, Tick(name), every=every)
                else:
                    wl.unschedule(name)
            if event.fail:
                raise ValueError("not like this")

        @wl.on
        def later(self, event: Later) -> None:
            wl.after(event.seconds, Tick("after"))

    if not without_report:

        @app.workflow
        async def report(title: str) -> str:
            wl.emit(Tick(f"report {title}"))
            await wl.sleep(25)
            return title

    @app.workflow
    async def plan_for(seconds: float) -> str:
        wl.schedule("mine", Tick("mine"), every=10)
        await wl.sleep(seconds)
        wl.unschedule("mine")
        await wl.sleep(1)
        return "planned"

    return app


class Life:
    """A machine with its journal and open timers; time moves only when it is told to."""

    def __init__(self, app: wl.Program, start_us: int = us("2024-01-01T00:00Z")) -> None:
        self.app = app
        self.machine = Machine(app, strict=True)
        self.head = journal.GENESIS
        self.steps: list[list[journal.JournalEntry]] = []
        self.inputs: list[step_records.Input] = []
        self.timers: dict[ids.IntentId, int] = {}
        self.time_us = start_us

    def give(self, item: inbox.Item, data: bytes = b"") -> step_records.Stepped:
        given = step_records.Input(item, data)
        stepped = kernel_step.step(
            self.machine, given, step_records.StepContext(HOME, self.head.step + 1, self.time_us), PARTS
        )
        sealed = journals.seal(self.head, stepped.drafts, stepped.changes, state=stepped.state, time_us=self.time_us)
        self.head = sealed.after
        self.steps.append(sealed.entries)
        self.inputs.append(given)
        for wanted in stepped.wanted:
            self.timers[wanted.intent] = wanted.due_us
        for cancelled in stepped.cancelled:
            self.timers.pop(cancelled.intent, None)
        if self.machine.work.unsent:
            self.give(inbox.Control(control_commands.CONTINUE, payload.EMPTY))
        return stepped

    def send(self, event: object) -> step_records.Stepped:
        data = user_values.dump(event)
        return self.give(inbox.InboxEvent(user_values.schema_name(type(event)), payload.inline(data)), data)

    def command(self, name: str, wanted: object) -> Any:
        data = structs.encode(wanted)
        stepped = self.give(inbox.Control(name, payload.inline(data), correlation="c"), data)
        [answered] = [each for each in stepped.drafts if each.kind is Kind.ANSWERED]
        return structs.decode(wl.kernel.event_dispatch.Answer, answered.payload)

    def start(self, call: wl.Call[Any], run_id: str) -> None:
        wanted = control_commands.StartRun(run_id, call.target.name, call.pack(), b"s" * 16, named=True)
        assert self.command(control_commands.RUN, wanted).ok

    def fire_due(self) -> None:
        """Let every timer fire that is due now, in order."""
        while True:
            due = sorted((due_us, intent) for intent, due_us in self.timers.items() if due_us <= self.time_us)
            if not due:
                return
            due_us, intent = due[0]
            del self.timers[intent]
            self.give(inbox.TimerFired(intent, due_us))

    def advance(self, seconds: float) -> None:
        """Time passes, and every timer fires when it is due."""
        until_us = self.time_us + round(seconds * SECOND)
        while self.timers and min(self.timers.values()) <= until_us:
            self.time_us = max(self.time_us, min(self.timers.values()))
            self.fire_due()
        self.time_us = until_us

    def sleep(self, seconds: float) -> None:
        """Time passes, and nobody is there to let timers fire."""
        self.time_us += round(seconds * SECOND)

    def restart(self) -> None:
        """Save, and go on from what was saved alone."""
        parts = state_rows.save(self.machine)
        self.machine = state_rows.load(self.app, parts, HOME, strict=True)
        assert state_rows.save(self.machine) == parts

    def prove(self) -> None:
        """The journal's inputs give the same entries, the same digests and the same snapshot once more."""
        twin = Machine(self.app, strict=True)
        for entries in self.steps:
            assert replay.again(twin, entries, HOME, lambda carried: carried.inline or b"", PARTS) is None
        assert state_rows.save(twin) == state_rows.save(self.machine)

    @property
    def ticks(self) -> list[str]:
        reducer = self.app.reducers["Planner"].cls
        found: list[str] = self.machine.read_cell(reducer, "").ticks
        return found

    @property
    def schedules(self) -> dict[str, int]:
        return {each.id: each.fired for each in schedules.listed(self.machine)}


def test_it_happens_again_and_again() -> None:
    life = Life(program())
    life.send(Plan([("a", 10)]))
    life.advance(35)
    assert life.ticks == ["a 00:00:10", "a 00:00:20", "a 00:00:30"]
    [found] = schedules.listed(life.machine)
    assert (found.id, found.what, found.every, found.cron, found.tz, found.fired) == (
        "a",
        "Tick",
        timedelta(seconds=10),
        None,
        "UTC",
        3,
    )
    assert found.next == datetime(2024, 1, 1, 0, 0, 40, tzinfo=UTC)
    life.prove()


def test_what_was_missed_happens_once_and_the_phase_stays() -> None:
    life = Life(program())
    life.send(Plan([("a", 10)]))
    life.sleep(47)
    life.fire_due()
    assert life.ticks == ["a 00:00:47"]
    life.advance(13)
    assert life.ticks == ["a 00:00:47", "a 00:00:50", "a 00:01:00"]
    life.prove()


def test_the_same_changes_nothing_and_another_replaces() -> None:
    life = Life(program())
    life.send(Plan([("a", 10)]))
    life.advance(5)
    before = life.machine.state
    again = life.send(Plan([("a", 10)]))
    assert (again.wanted, again.cancelled) == ([], [])
    assert len(life.timers) == 1
    life.advance(6)
    assert life.ticks == ["a 00:00:10"]
    other = life.send(Plan([("a", 7)]))
    assert (len(other.wanted), len(other.cancelled), len(life.timers)) == (1, 1, 1)
    assert life.schedules == {"a": 0}
    life.advance(10)
    assert life.ticks == ["a 00:00:10", "a 00:00:18"]
    assert life.machine.state != before
    life.prove()


def test_it_can_be_removed_and_made_again() -> None:
    life = Life(program())
    life.send(Plan([("a", 10), ("b", 3)]))
    life.send(Plan([("a", 0), ("b", 0), ("b", 4), ("c", 0)]))
    life.advance(20)
    assert life.schedules == {"b": 5}
    life.send(Plan([("b", 0)]))
    assert life.timers == {}
    assert life.machine.work.open == {}
    life.prove()


def test_a_handler_that_fails_schedules_nothing() -> None:
    life = Life(program())
    life.send(Plan([("a", 10)], fail=True))
    assert (life.schedules, life.timers) == ({}, {})
    life.send(Plan([("a", 10)]))
    life.send(Plan([("a", 0)], fail=True))
    assert life.schedules == {"a": 0}
    life.prove()


def test_what_fires_may_end_or_change_its_schedule() -> None:
    life = Life(program())
    life.send(Plan([("once", 10), ("slower", 10)]))
    life.advance(220)
    assert life.ticks == ["once 00:00:10", "slower 00:00:10", "slower 00:01:50", "slower 00:03:30"]
    assert life.schedules == {"slower": 2}
    assert len(life.timers) == 1
    life.prove()


def test_a_workflow_schedules_and_is_rebuilt_without_doing_it_again() -> None:
    app = program()
    life = Life(app)
    life.start(app.workflows["plan_for"](35), "p")
    life.restart()  # the run is cold now, and is rebuilt when it goes on
    life.advance(34)
    life.restart()
    life.advance(10)
    assert life.ticks == ["mine 00:00:10", "mine 00:00:20", "mine 00:00:30"]
    assert life.machine.runs["p"].record.data == user_values.dump("planned")
    assert (life.schedules, life.timers) == ({}, {})
    life.prove()


def test_what_was_removed_does_not_come_back_when_a_run_is_rebuilt() -> None:
    app = program()
    life = Life(app)
    life.start(app.workflows["plan_for"](35), "p")
    life.send(Plan([("mine", 0)]))
    life.restart()
    life.advance(40)
    assert life.ticks == []
    assert life.machine.runs["p"].record.data == user_values.dump("planned")
    life.prove()


def test_a_schedule_starts_workflows() -> None:
    app = program()
    life = Life(app)
    spec = schedule_spec.spec_of(app.workflows["report"]("weekly"), every=10, cron=None, tz=None)
    assert (
        user_values.load(bool, life.command(control_commands.SCHEDULE, schedules.ScheduleChange("r", spec)).data)
        is True
    )
    assert (
        user_values.load(bool, life.command(control_commands.SCHEDULE, schedules.ScheduleChange("r", spec)).data)
        is False
    )
    life.advance(31)
    assert list(life.machine.runs) == ["r@1", "r@2", "r@3"]
    assert [run.live for run in life.machine.runs.values()] == [True, True, True], "they may overlap"
    assert (
        user_values.load(bool, life.command(control_commands.SCHEDULE, schedules.ScheduleChange("r", None)).data)
        is True
    )
    assert (
        user_values.load(bool, life.command(control_commands.SCHEDULE, schedules.ScheduleChange("r", None)).data)
        is False
    )
    life.command(control_commands.SCHEDULE, schedules.ScheduleChange("r", spec))
    life.advance(30)
    assert list(life.machine.runs) == ["r@1", "r@2", "r@3", "r@4", "r@5", "r@6"]
    assert len(life.ticks) == 6
    life.prove()


def test_cron_in_a_world_crosses_the_change_of_clocks() -> None:
    app = program()
    life = Life(app, us("2024-03-29T12:00Z"))
    spec = schedule_spec.spec_of(Tick("morning"), every=None, cron="0  9 * * *", tz="Europe/Berlin")
    assert life.command(control_commands.SCHEDULE, schedules.ScheduleChange("m", spec)).ok
    assert schedules.listed(life.machine)[0].cron == "0 9 * * *"
    life.advance(3 * 86_400)
    assert life.ticks == ["morning 08:00:00", "morning 07:00:00", "morning 07:00:00"]
    life.prove()


@pytest.mark.parametrize(
    ("put", "says"),
    [
        (schedules.ScheduleChange("", cron_spec("* * * * *")), "id"),
        (
            schedules.ScheduleChange("a", schedule_spec.Spec(0, "0 0 30 2 *", "", False, "Tick", b"")),
            "never happens|bad day",
        ),
        (schedules.ScheduleChange("a", schedule_spec.Spec(SECOND, "", "", True, "nowhere", b"\xa0")), "nowhere"),
        (
            schedules.ScheduleChange(
                "a", schedule_spec.Spec(SECOND, "", "", True, "report", user_values.dump({"x": 1}))
            ),
            "report",
        ),
    ],
)
def test_a_bad_one_from_outside_is_answered_with_an_error(put: schedules.ScheduleChange, says: str) -> None:
    life = Life(program())
    answer = life.command(control_commands.SCHEDULE, put)
    assert not answer.ok
    message = structs.decode(JournaledFailure, answer.data).message
    assert any(each in message for each in says.split("|")), message
    assert (life.schedules, life.timers) == ({}, {})


def test_only_events_and_workflows_can_be_scheduled() -> None:
    app = wl.Program("other")

    @app.effect
    def outside() -> None: ...

    with pytest.raises(errors.BadInput, match="is an effect"):
        schedule_spec.spec_of(outside(), every=1, cron=None, tz=None)
    with pytest.raises(errors.EncodeError):
        schedule_spec.spec_of(object(), every=1, cron=None, tz=None)
    with pytest.raises(wl.errors.OutsideWorkflow):
        wl.schedule("a", Tick("a"), every=1)
    with pytest.raises(wl.errors.OutsideWorkflow):
        wl.unschedule("a")


def test_a_snapshot_keeps_schedules() -> None:
    life = Life(program())
    life.send(Plan([("a", 10), ("b", 16)]))
    life.send(Later(12))
    life.advance(11)
    life.restart()
    life.advance(9)
    life.restart()
    life.sleep(25)
    life.fire_due()
    assert life.ticks == ["a 00:00:10", "after 00:00:12", "b 00:00:16", "a 00:00:20", "a 00:00:45", "b 00:00:45"]
    life.prove()


def test_the_digest_knows_schedules_and_not_times() -> None:
    early, late, other = Life(program()), Life(program(), us("2030-06-01T00:00Z")), Life(program())
    for life, every in ((early, 10), (late, 10), (other, 11)):
        life.send(Plan([("a", every)]))
    assert early.machine.state == late.machine.state != other.machine.state
    before = early.machine.state
    early.command(control_commands.SCHEDULE, schedules.ScheduleChange("a", None))
    assert early.machine.state != before


def test_a_late_firing_of_a_schedule_that_is_gone_is_ignored() -> None:
    life = Life(program())
    life.send(Plan([("a", 10)]))
    [(intent, due_us)] = life.timers.items()
    life.send(Plan([("a", 0)]))
    life.sleep(10)
    before = life.machine.state
    stepped = life.give(inbox.TimerFired(intent, due_us))
    assert [each.kind for each in stepped.drafts] == [Kind.TIMER_FIRED, Kind.LATE_ANSWER]
    assert life.machine.state == before
    life.prove()


def test_many_at_once_leave_with_several_steps() -> None:
    life = Life(program())
    names = [f"s{number:03}" for number in range(limits.STEP_EFFECTS_MAX * 2 + 5)]
    first = life.send(Plan([(name, 10) for name in names]))
    assert len(first.wanted) == limits.STEP_EFFECTS_MAX
    assert len(life.timers) == len(names)
    life.advance(20)
    assert life.schedules == dict.fromkeys(names, 2)
    life.prove()


def test_one_that_is_held_back_can_be_removed() -> None:
    life = Life(program())
    names = [f"s{number:03}" for number in range(limits.STEP_EFFECTS_MAX + 2)]
    life.send(Plan([*((name, 10) for name in names), (names[-1], 0)]))
    assert len(life.timers) == len(life.schedules) == len(names) - 1
    life.advance(10)
    life.prove()


def test_there_is_a_limit_for_each_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCHEDULES_MAX", 3)
    life = Life(program())
    stepped = life.send(Plan([("a", 1), ("b", 1), ("c", 1), ("d", 1)]))
    assert "at most 3 schedules" in stepped.dead
    life.send(Plan([("a", 1), ("b", 1), ("c", 1)]))
    answer = life.command(control_commands.SCHEDULE, schedules.ScheduleChange("d", cron_spec("* * * * *")))
    assert not answer.ok
    assert life.command(control_commands.SCHEDULE, schedules.ScheduleChange("c", cron_spec("* * * * *"))).ok, (
        "replacing needs no room"
    )
    assert list(life.schedules) == ["a", "b", "c"]


def test_a_workflow_that_is_gone_is_reported_and_the_schedule_goes_on() -> None:
    app = program()
    life = Life(app)
    spec = schedule_spec.spec_of(app.workflows["report"]("x"), every=10, cron=None, tz=None)
    life.command(control_commands.SCHEDULE, schedules.ScheduleChange("r", spec))
    life.app = program(without_report=True)
    life.restart()
    life.advance(25)
    failed = [entry for entries in life.steps for entry in entries if entry.kind is Kind.HANDLER_FAILED]
    assert len(failed) == 2
    assert b"no workflow 'report' any more" in failed[0].payload
    assert life.schedules == {"r": 2}
