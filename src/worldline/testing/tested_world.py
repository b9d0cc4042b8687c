"""Worlds in tests: synchronous, in memory, in virtual time.

::

    def test_checkout() -> None:
        with testing.world(shop, wl.Script().on(charge, "ch_1")) as w:
            assert w.run(checkout("o1", 5)) == "paid"
            w.prove()

The same kernel runs as in production, and nothing else: no store, no event loop, no threads, so `breakpoint()` works
anywhere. By default every step is done twice and compared, coroutines are dropped at random, and calls that are made
and never awaited fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Generic, Literal, TypeVar, overload

from worldline.api.world_api import Effects
from worldline.base import errors, failures
from worldline.client import journal_entry, world_answers
from worldline.client.journal_entry import Entry
from worldline.codec import digest, printable, sealed_token, structs
from worldline.features.forks.script_rules import Given
from worldline.flow_core.authoring.document_domain import Document
from worldline.flow_core.authoring.domain_class import Domain
from worldline.kernel import control_commands, event_dispatch, run_repair, schedules, user_values
from worldline.kernel.authoring import call_checks, reducers, schedule_spec
from worldline.kernel.authoring.calls import Call, Effect, Request, Seconds, to_us
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.scripts import Script
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.execution import divergence_report
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import ENDED, JournaledFailure, RunStatus
from worldline.kernel.run_operations import OpKind
from worldline.kernel.schedules import Scheduled
from worldline.layers.history import journal_file
from worldline.model import ids, inbox, journal
from worldline.model import step_records as steps
from worldline.model.journal import Kind
from worldline.model.personal_records import Erase
from worldline.model.traces import StepTraces, TraceSource
from worldline.runtime import traceback_reader
from worldline.testing import fork_making, journal_tail, stage, tested_desk
from worldline.testing.domain_acting import Acting
from worldline.testing.life import Life, WorldStanding

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

START = datetime(2024, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Told of every world that is made: the pytest plugin listens, to show journals of failed tests.
listeners: list[Callable[[TestWorld], None]] = []


class NotTaken(errors.Error):
    """The world could not take an event: in production it would now be a dead letter."""

    code = "not_taken"


class Stuck(errors.Error):
    """A run waits for something that will not happen by itself."""

    code = "stuck"


class TestRun(Generic[R_co]):
    """A run in a test."""

    __test__ = False  # not a test class, whatever its name looks like

    def __init__(self, world: TestWorld, call: Call[R_co] | None, run_id: str) -> None:
        self.id = run_id
        self._world = world
        self._call = call

    @property
    def status(self) -> RunStatus:
        """How it stands."""
        run = self._world.machine.runs.get(self.id)
        if run is None:
            raise errors.NotFound(f"there is no run {self.id!r} any more")
        return run.record.status

    @property
    def done(self) -> bool:
        """Whether it has ended, in whichever way."""
        return self.status in ENDED

    def result(self) -> R_co:
        """Return what the run returns, letting time pass as far as needed. `RunFailed` if it raised, `Stuck` if it
        waits for something that will not happen by itself.
        """
        self._world.play(until=lambda: self.done)
        if not self.done:
            raise Stuck(self._world.why(self.id))
        record = self._world.machine.runs[self.id].record
        if record.status is RunStatus.FINISHED:
            if self._call is None:
                found: R_co = user_values.load(Any, record.data)
                return found
            result: R_co = call_checks.result_of(self._call, record.data)
            return result
        why = structs.decode(JournaledFailure, record.data)
        kind = failures.RunCancelled if record.status is RunStatus.CANCELLED else failures.RunFailed
        error = kind(f"run {self.id!r}: {printable.shown(why.message)}", code=why.code, data=why.data)
        raise traceback_reader.note(error, traceback_reader.find_run(self._world.traces[::-1], self.id))

    def cancel(self, reason: str = "") -> None:
        """Cancel it where it waits."""
        self._world.command(control_commands.CANCEL, control_commands.CancelRun(self.id, reason))

    def retry(self) -> None:
        """Try it again under the code that there is now, if it is blocked."""
        self._world.command(run_repair.RETRY, run_repair.RetryRun(self.id))

    def reset(self, *, to: int | Literal["start"] = "start") -> None:
        """Drop its operations from this one on, counted from 1, and let it go on from there under the code now."""
        self._world.command(run_repair.RESET, run_repair.reset_run(self.id, to))

    def terminate(self, reason: str = "") -> None:
        """End it at once. None of its code runs any more, and what it waits for is ended, too."""
        self._world.command(run_repair.TERMINATE, run_repair.TerminateRun(self.id, reason))

    def answer(self, op: int, value: object = None, /, *, error: str | None = None) -> None:
        """Answer an operation that is open, counted from 1, with a value or an error."""
        data = b"" if error is not None else user_values.dump(value)
        self._world.command(run_repair.ANSWER, run_repair.AnswerRun(self.id, op, data, error))

    def __repr__(self) -> str:
        return f"TestRun({self.id!r}, {self.status.name.lower()})"


class TestWorld(Acting):
    """A world in a test. Made by `testing.world(...)`."""

    __test__ = False

    def __init__(
        self,
        around: stage.Stage,
        actor: stage.Actor,
        options: dict[str, Any],
        *,
        start_us: int | None = None,
        made: int = 0,
    ) -> None:
        self._stage = around
        self._actor = actor
        self._options = options
        self._start_us = around.now_us if start_us is None else start_us
        self._made = made  # ids that were given; those of a fork's runs are not those of its parent's
        for listen in listeners:
            listen(self)

    # --- As from outside -----------------------------------------------------------------------------------

    def run(self, call: Call[R], /, *, id: str | None = None) -> R:
        """Run a workflow to its end, letting time pass as far as needed. The same id is the same run."""
        return self.start(call, id=id).result()

    def start(self, call: Call[R], /, *, id: str | None = None) -> TestRun[R]:
        """Start a workflow, or attach to the run of this id. Everything due now happens; the clock does not move."""
        program = self._actor.life.program.name
        call_checks.check_workflow(call, "world.run()", program=program, world=self._actor.name)
        self._made += 1
        # From a counter, so runs draw the same in each run of the test.
        seed = digest.hash_parts(b"test", self._made.to_bytes(8, "big"))[:16]
        wanted = control_commands.StartRun(
            id or f"run-{self._made}", call.target.name, call.pack_checked(), seed, named=id is not None
        )
        standing = structs.decode(control_commands.RunStanding, self.command(control_commands.RUN, wanted))
        return TestRun(self, call, standing.run)

    def attach(self, run_id: str, /) -> TestRun[Any]:
        """Find a run that something else has started, by its id."""
        if run_id not in self.machine.runs:
            raise errors.NotFound(f"no run {run_id!r}")
        return TestRun(self, None, run_id)

    def send(self, event: object, /, *, to: str | None = None) -> None:
        """Send an event, and let everything happen that is due now. `NotTaken` if the world cannot take it."""
        schema, data = _sent(event)
        item = inbox.InboxEvent(schema, self._actor.life.carry(data), to or "")
        stepped = self.step(item, data)
        if stepped.dead:
            raise traceback_reader.note(
                NotTaken(printable.shown(stepped.dead)), traceback_reader.find(stepped.traces, TraceSource.HANDLER)
            )

    def ask(self, request: Request[R], /) -> R:
        """Ask the world. `Refused` if that is the answer."""
        reducers.check_request(type(request))
        schema, data = _sent(request)
        item = inbox.InboxEvent(schema, self._actor.life.carry(data), correlation=self._correlation())
        answer: R = call_checks.answer_of(type(request), self._answered(item, data))
        return answer

    def schedule(
        self, id: str, what: object, /, *, every: Seconds | None = None, cron: str | None = None, tz: str | None = None
    ) -> bool:
        """Let an event be raised, or a workflow started, again and again. False if it was scheduled just so already."""
        spec = schedule_spec.spec_of(what, every=every, cron=cron, tz=tz)
        if not spec.starts:
            # As a client's door does, or a test could send what production refuses.
            event_dispatch.check_outside(spec.name, spec.data)
        return bool(user_values.load(bool, self.command(control_commands.SCHEDULE, schedules.ScheduleChange(id, spec))))

    def unschedule(self, id: str, /) -> bool:
        """End a schedule. False if there is none of this id."""
        return bool(user_values.load(bool, self.command(control_commands.SCHEDULE, schedules.ScheduleChange(id, None))))

    def trigger(self, id: str, /) -> str | None:
        """Let a schedule happen now, once, besides its times, which stay. Returns the id of the run that it started."""
        started: str | None = user_values.load(
            str | None, self.command(control_commands.TRIGGER, schedules.Trigger(id))
        )
        return started

    def schedules(self) -> list[Scheduled]:
        """List all schedules, with when each is due next."""
        return schedules.listed(self.machine)

    @overload
    def state(self, *, at: int | None = None) -> dict[str, dict[str, Any]]: ...
    @overload
    def state(self, cls: type[S], key: str = "", *, at: int | None = None) -> S: ...
    @overload
    def state(self, cls: Document, key: str = "", *, at: int | None = None) -> dict[str, Any]: ...
    def state(self, cls: type[S] | Document | None = None, key: str = "", *, at: int | None = None) -> Any:
        """Return a copy of a reducer's or a flow domain's state, now or at a height. Without a class: all cells as
        plain data, by reducer and key.
        """
        machine = self.machine if at is None else self._actor.life.at_height(at)
        found: Any = {}
        if isinstance(cls, Document) or (isinstance(cls, type) and issubclass(cls, Domain)):
            found = cls.read(self.snapshot(cls, key, at=at))
        elif cls is not None:
            found = machine.read_cell(cls, key)
        else:
            for (reducer, name), cell in sorted(machine.cells.items()):
                found.setdefault(reducer, {})[name] = tested_desk.plain(cell.data)
        if at is not None:
            machine.close()
        return found

    def erase(self, key: str, /) -> None:
        """Erase all personal values of a subject, as `worldline erase --key` does."""
        subject = sealed_token.subject_of(key)
        self.machine.vault.forget(subject)
        self.command(control_commands.ERASE, Erase(subject, [], 1))

    def retry(self, effect: Effect[..., Any], /) -> int:
        """Try parked calls of an effect again, as `worldline effect retry` does. Returns how many there were."""
        count = self._stage.retry(self._actor, effect.name)
        self.play(limit_us=self._stage.now_us)
        return count

    def answer(self, effect: Effect[..., Any] | str, value: object = None, /, *, error: str | None = None) -> int:
        """Answer parked calls of an effect by hand, as `worldline effect answer` does. Returns how many there were.

        Everything that a dry fork asks for and its script does not answer is parked. With the name of a world:
        questions to that world.
        """
        data = b"" if error is not None else user_values.dump(value)
        parked = self._stage.parked(self._actor, effect if isinstance(effect, str) else effect.name)
        for intent in parked:
            self.command(run_repair.ANSWER_EFFECT, run_repair.AnswerEffect(intent, data, error))
        return len(parked)

    def command(self, name: str, arguments: object) -> bytes:
        """Let the world take a command of the kernel's own; returns the answer's bytes."""
        data = structs.encode(arguments)
        return self._answered(inbox.Control(name, self._actor.life.carry(data), self._correlation()), data)

    def step(self, item: inbox.Item | None, data: bytes, *, error: str = "") -> steps.Stepped:
        """Give any input, also one that no honest outside would, and let everything happen that is due now."""
        stepped = self._stage.step(self._actor, item, data, error=error)
        self.play(limit_us=self._stage.now_us)
        return stepped

    # --- Time and trouble ----------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The stage's time."""
        return _EPOCH + timedelta(microseconds=self._stage.now_us)

    def advance(self, by: Seconds, /) -> None:
        """Let time pass, and everything happen that falls due meanwhile."""
        target_us = self._stage.now_us + to_us(by, "advance()")
        self.play(limit_us=target_us)
        self._stage.reach(target_us)

    def play(self, *, until: Callable[[], bool] = lambda: False, limit_us: int | None = None) -> None:
        """Let happen what is due, moving the clock, until a condition holds or nothing more happens by itself."""
        self._stage.play(until=until, limit_us=limit_us)

    def crash(self, *, at: int | None = None) -> None:
        """Throw the world's memory away and bring it back from its journal, now.

        With `at`, when the journal reaches that height: after the step that ends there; or, if the height is inside a
        step, before that step is committed, so it is lost and done again.
        """
        life = self._actor.life
        if at is None:
            life.restore()
            self._stage.check(self._actor)  # what is open must be known from the rows alone
        elif at <= life.head.height:
            raise errors.BadInput(f"height {at} has passed; the journal is at {life.head.height}")
        else:
            life.crash_at.append(at)

    def prove(self) -> int:
        """Replay the journal from its beginning, and each step from a snapshot of the one before; compare everything.
        Returns the number of steps; `Diverged` with the first difference.
        """
        return self._actor.life.prove()

    def adopt(self, program: Program) -> dict[str, str]:
        """Go on under changed code, as after an edit. Returns the runs that it does not fit, and how: each of them is
        blocked when it next continues.
        """
        life = self._actor.life
        change, blocked = life.adopt(program)
        data = structs.encode(change)
        self._stage.step(self._actor, inbox.Control(control_commands.PROGRAM, life.carry(data)), data)
        life.rebase()  # after the step that says so: it is the first one of the new code
        self._stage.declare(self._actor)
        self.play(limit_us=self._stage.now_us)
        return blocked

    def also(self, name: str, program: Program, script: Script | None = None) -> TestWorld:
        """Make another world on the same stage, so that they can send to and ask each other by name: one of another
        universe is named `universe/world`, or `peer:universe/world`.
        """
        return _enter(self._stage, name, program, script, self._options)

    def fork(
        self,
        name: str | None = None,
        /,
        *,
        at: int | None = None,
        before: str | None = None,
        effects: Effects = "drop",
        script: Given | None = None,
        live: bool = False,
    ) -> TestWorld:
        """Make a world of its own, on the same stage, that goes on where this one is now, at the step end at or below a
        height, or `before` something happened last: "effect charge", "event Approved".

        `effects`, `script` and `live` are those of `World.fork`. The fork is dry: what it asks for is answered by the
        script, or waits for `answer()`; a live one's effects are answered as this world's are. Here the script may
        also have functions and answers that come later.
        """
        life = self._actor.life
        begins = fork_making.start(life, self.name, at=at, before=before)
        name = name or f"{self.name}-fork{len(self._stage.actors)}"
        made = _life(self._stage, name, life.program, self._options, parent=life, start=begins)
        actor = fork_making.enter(self._stage, self._actor, name, made, effects=effects, script=script, live=live)
        self.play(limit_us=self._stage.now_us)
        return TestWorld(self._stage, actor, self._options, start_us=self._start_us, made=self._made)

    # --- Looking ------------------------------------------------------------------------------------------

    @property
    def life(self) -> Life:
        """The machine and its journal."""
        return self._actor.life

    @property
    def machine(self) -> Machine:
        """The state, for looking at what no method shows."""
        return self._actor.life.machine

    @property
    def address(self) -> ids.Address:
        """Its address."""
        return self._actor.life.at

    @property
    def head(self) -> journal.Head:
        """The end of its journal."""
        return self._actor.life.head

    def heads(self) -> dict[str, journal.Head]:
        """Return the heads of all worlds on this stage, by name."""
        return {name: actor.life.head for name, actor in self._stage.actors.items()}

    @property
    def name(self) -> str:
        """Its name."""
        return self._actor.name

    @property
    def crashes(self) -> int:
        """How often it was dropped and brought back."""
        return self._actor.life.crashes

    @property
    def dead(self) -> list[str]:
        """Why inputs could not be taken: in production, each of them a dead letter."""
        return list(self._actor.dead)

    def journal(self) -> list[Entry]:
        """Return all entries, large payloads in place."""
        return [journal_entry.of(each) for each in self._actor.life.filled()]

    @property
    def traces(self) -> list[StepTraces]:
        """The tracebacks of user code that failed, by step. They are beside the journal: no digest covers them."""
        return list(self._actor.life.traces)

    def tail(self, count: int = 20) -> str:
        """Show the last entries, for people."""
        return "\n".join(journal_tail.lines(self.journal(), start_us=self._start_us, count=count))

    def export(self, path: str | Path) -> None:
        """Write the journal to a file that `testing.journal_replay` takes."""
        exported = self._actor.life.export(self._actor.name)
        with Path(path).open("w", encoding="utf-8") as file:
            file.writelines(journal_file.lines(exported))

    def why(self, run_id: str) -> str:
        """Say what a run waits for."""
        record = self.machine.runs[run_id].record
        if record.status is RunStatus.BLOCKED:
            return f"run {run_id!r} is blocked: {divergence_report.finding(record.blocked)}"
        waits = [f"{_WAITS.get(op.kind, op.kind.name.lower())} {op.name}" for op in record.ops if op.outcome is None]
        hints = ["send() what it waits for"]
        hints += [
            f"effect {each.wanted.name} is parked: {each.parked}" for each in self._actor.asked.values() if each.parked
        ]
        if self._actor.is_dry and any(each.parked is not None for each in self.machine.work.open.values()):
            hints = [_DRY]
        return (
            f"run {run_id!r} ({record.workflow}) waits for {', '.join(waits) or 'nothing'}, and nothing more happens "
            f"by itself; {'; '.join(hints)}"
        )

    def close(self) -> None:
        """Let go of its coroutines."""
        self.machine.close()

    def _correlation(self) -> str:
        self._made += 1
        return f"test-{self._made}"

    def _answered(self, item: inbox.InboxEvent | inbox.Control, data: bytes) -> bytes:
        stepped = self.step(item, data)
        found = [each for each in stepped.drafts if each.kind is Kind.ANSWERED and each.correlation == item.correlation]
        if not found:
            raise NotTaken(printable.shown(stepped.dead or "it was not answered"))
        answer = structs.decode(Answer, found[0].payload)
        if answer.ok:
            return answer.data
        error = world_answers.error_of(structs.decode(JournaledFailure, answer.data))
        raise traceback_reader.note(error, traceback_reader.find(stepped.traces, TraceSource.HANDLER))

    def __repr__(self) -> str:
        return f"TestWorld({self._actor.name!r}, height {self.head.height})"


@contextmanager
def world(
    program: Program,
    script: Script | None = None,
    /,
    *,
    name: str = "test",
    seed: int = 0,
    now: datetime = START,
    twice: bool = True,
    drops: bool = True,
    strict: bool = True,
    shuffle: bool = False,
) -> Iterator[TestWorld]:
    """Make a new world of a program, its effects answered by a script.

    `twice`: do every step twice and compare. `drops`: drop warm coroutines at random, by the seed. `strict`: a call
    made and never awaited fails. `shuffle`: effects due together answer in an order drawn from the seed.
    """
    around = stage.Stage(now_us=(now - _EPOCH) // timedelta(microseconds=1), random=Random(seed), shuffle=shuffle)
    options = {"seed": seed, "twice": twice, "drops": drops, "strict": strict}
    with tested_desk.in_memory():
        made = _enter(around, name, program, script, options)
        try:
            yield made
        finally:
            # All worlds of the stage, also forks and those made with `also`: their coroutines must not outlive the
            # test.
            for actor in around.actors.values():
                actor.life.machine.close()


def _enter(
    around: stage.Stage, name: str, program: Program, script: Script | None, options: dict[str, Any]
) -> TestWorld:
    life = _life(around, name, program, options)
    return TestWorld(around, around.add(name, life, script or Script()), options)


def _life(
    around: stage.Stage,
    name: str,
    program: Program,
    options: dict[str, Any],
    *,
    parent: Life | None = None,
    start: WorldStanding | None = None,
) -> Life:
    return Life(
        program,
        stage.address(len(around.actors) + 1),
        strict=options["strict"],
        twice=options["twice"],
        drops=Random(f"{options['seed']}/{name}") if options["drops"] else None,
        parent=parent,
        start=start,
    )


def _sent(event: object) -> tuple[str, bytes]:
    """An event as a client sends it: its schema and its data."""
    schema, data = user_values.schema_name(type(event)), user_values.dump(event)
    event_dispatch.check_outside(schema, data)
    return schema, data


_DRY = (
    "the fork is dry, so effects and questions do not leave it: answer() them, give fork() a script=, or fork with "
    "live=True"
)
_WAITS = {
    OpKind.WAIT: "an event",
    OpKind.EFFECT: "effect",
    OpKind.TIMER: "timer",
    OpKind.CHILD: "run of",
    OpKind.ASK: "an answer of world",
    OpKind.ACT: "the end of action",
}
