"""What a workflow can call while it runs: the kernel's side of the functions of `kernel/authoring/workflow_api.py`.

One `WorkflowCalls` is current while a run's coroutine is fed. It issues operations on the run, or, while the run is
rebuilt, checks that they are the ones recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any, NoReturn, Self

from worldline.base import errors, failures, limits
from worldline.base.failures import CancelKind
from worldline.kernel import context, run_requests, runs, schedules, user_errors, user_values
from worldline.kernel.authoring import calls, closing
from worldline.kernel.authoring.schedule_spec import Spec
from worldline.kernel.execution import divergence_report, draws, waits
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Op, Outcome
from worldline.kernel.run_operations import All, First, OpKind, ScopeOperation
from worldline.kernel.runs import LiveRun
from worldline.model import step_records as steps
from worldline.model.inbox import ReceiptStatus

_EFFECT = OpKind.EFFECT
REFUSALS_MAX = 100

RaiseEvent = Callable[[Machine, str, bytes, str], None]


class WorkflowCalls:
    """For one resumption of a run."""

    __slots__ = ("_lost", "_machine", "_raise_event", "_refused", "_run", "time_us")

    handler = None

    def __init__(self, machine: Machine, run: LiveRun, raise_event: RaiseEvent) -> None:
        self._machine = machine
        self._run = run
        self._raise_event = raise_event
        self._refused = 0
        self._lost = ""  # why a run that catches every refusal has to end
        self.time_us = run.time_us

    @property
    def store_us(self) -> int:
        """The store's time of this step. A run may be rebuilt outside of a step; then no timer is set, and any time
        will do.
        """
        where = self._machine.where
        return self.time_us if where is None else where.store_us

    @property
    def where(self) -> steps.StepContext | None:
        return self._machine.where

    @property
    def run_id(self) -> str:
        return self._run.record.id

    @property
    def is_silent(self) -> bool:
        return self._machine.replaying or self._run.rebuilding

    def workflow(self, what: str) -> Self:  # noqa: ARG002
        return self

    def sender(self) -> NoReturn:
        raise failures.OutsideWorkflow("wl.sender() works only in a reducer's handler: let that pass on what it says")

    def drop_step(self, why: errors.CannotStep) -> None:
        self._machine.drop_step(why)

    def made_call(self, call: calls.Call[Any]) -> None:
        if self._machine.strict:
            self._run.made.append(call)

    def check_calls(self) -> None:
        """In strict mode: refuse calls that were made and never used."""
        forgotten = next((call for call in self._run.made if not call.awaited), None)
        if forgotten is not None:
            raise failures.NotDurable(f"{forgotten!r} was made but never awaited; write `await {forgotten!r}`")

    def emit(self, event: object) -> None:
        schema, data = user_values.schema_name(type(event)), user_values.dump(event)
        if not self._run.rebuilding:
            self._raise_event(self._machine, schema, data, self._run.record.correlation_id)

    def schedule(self, schedule_id: str, spec: Spec | None) -> None:
        """Make a schedule, or without a spec remove it."""
        if self._run.rebuilding:
            return
        if spec is not None:
            try:
                schedules.check(self._machine, schedule_id, spec)
            except errors.CannotStep as error:
                self._machine.drop_step(error)
                raise
        now = self._machine.now
        # Half done in between: an exception there drops the step.
        now.begin_change()
        schedules.change(self._machine, schedule_id, spec)
        now.end_change()

    def random(self, label: str) -> random.Random:
        return random.Random(draws.draw(self._seed, self._run.counters, "random", label, self._declared))

    def random_id(self, label: str) -> bytes:
        return draws.draw(self._seed, self._run.counters, "uuid", label, self._declared)[:16]

    @property
    def _seed(self) -> bytes:
        return self._machine.origin.run_seed(self._run.record.seed, self._run.salts)

    def _declared(self, function: str) -> str:
        """Return the name that a function of the user's counts under: renaming it changes no draw."""
        flow = self._machine.program.workflows.get(self._run.record.workflow)
        return function if flow is None else flow.declared(function)

    # --- Operations ------------------------------------------------------------------------------------

    def await_call(self, call: calls.Call[Any]) -> Generator[Any, Any, Any]:
        number = self.issue_call(call, _EFFECT if call.target.kind == "effect" else OpKind.CHILD)
        try:
            (data,) = yield All((number,))
        # What was called is cancelled with the code that waited for it; a run gets time to clean up.
        except failures.Cancelled as cancelled:
            yield from closing.close((number,), cancelled, closing.GRACE_US, "the workflow")
            raise
        try:
            return call.target.signature.result(data)
        except errors.DecodeError as error:
            raise self.unfit(number, error) from error

    def continue_with(self, call: calls.Call[Any]) -> None:
        """Record the workflow and arguments that the run continues with as new. A bad call is refused while the code
        still runs.
        """
        call.use()
        run_requests.check_known(self._machine.program, call.target)
        self._run.continue_with(call.target.name, call.pack_checked())

    def issue_call(self, call: calls.Call[Any], kind: OpKind, *, run_id: str = "") -> int:
        """Issue an effect or a child. The target must belong to the program of this world."""
        call.use()  # also if it is refused: it is not forgotten
        try:
            run_requests.check_known(self._machine.program, call.target)
            params = run_requests.pack_call(call, again=self._is_rebuilding())
        except errors.BadInput as error:
            self._count_refusal(error)
            raise
        return self.issue(kind, call.target.name, params, run_id=run_id)

    def issue(self, kind: OpKind, name: str, params: bytes, *, delay_us: int = 0, run_id: str = "") -> int:
        """Issue the next operation of the run, or, when rebuilding, check that it is the one recorded."""
        run = self._run
        name.encode()  # what has no bytes is refused here, before anything is recorded
        # Before `_number`, which counts this operation: a reset run turns live by the count.
        rebuilding = self._is_rebuilding()
        number = self._number()
        wanted = Op(kind, name, params)
        if rebuilding:
            _check_same(self._machine, run, number, wanted)
            return number
        now = self._machine.now
        now.begin_change()
        self._issue(wanted)
        run_requests.issued(self._machine, run, number, params, delay_us=delay_us, run_id=run_id)
        now.end_change()
        return number

    def _is_rebuilding(self) -> bool:
        """Whether the next operation was asked for before. A run that was reset turns live at the first one that was
        not.
        """
        run = self._run
        if run.turning and run.issued >= len(run.record.ops):
            run.turned()
        return run.rebuilding

    def _issue(self, op: Op) -> None:
        record = self._run.record
        op.issued_by(fed=len(record.log), again=record.again, step=self._machine.now.context.step)
        self._run.issue(op)

    def _number(self) -> int:
        """Return the number of the next operation."""
        if self._run.issued >= limits.RUN_OPERATIONS_MAX:
            error = failures.LimitExceeded(
                f"a run may ask for {limits.RUN_OPERATIONS_MAX} things; start over with wl.continue_as_new()"
            )
            self._count_refusal(error)
            raise error
        return self._run.next_number()

    def _count_refusal(self, error: errors.BadInput) -> None:
        """Code that catches this and asks again, and again, without ever waiting for anything, is stopped."""
        self._refused += 1
        if self._refused >= REFUSALS_MAX:
            self._lost = f"it asked {self._refused} times for what is refused, the last time so: {error}"
            # Its calls have no effect from here on; `check_lost` ends the run when it awaits something.
            context.current.set(context.Nowhere())

    def check_lost(self) -> None:
        if self._lost:
            raise failures.LimitExceeded(self._lost)

    def child_id(self, number: int) -> str:
        return runs.child_id(self._run, number)

    def cancel_op(self, number: int, reason: str) -> None:
        run_requests.cancel_op(self._machine, self._run, number, reason)

    def end_op(self, number: int, reason: str, kind: CancelKind) -> bool:
        run_requests.end_op(self._machine, self._run, number, reason, kind)
        return self._run.record.ops[number].kind is OpKind.CHILD

    def wait_event(self, kind: type, where: Any, timeout_us: int | None) -> Generator[Any, Any, Any]:
        run = self._run
        schema = user_values.schema_name(kind)
        number = self.issue(OpKind.WAIT, schema, b"")
        run.wheres[number] = (kind, where)
        timer = -1
        if timeout_us is not None:
            timer = self.issue(OpKind.TIMER, "wait", timeout_us.to_bytes(8, "big"), delay_us=timeout_us)
        # Events that came before count, so the buffer is searched as soon as the wait is recorded.
        waits.check(self._machine, run, number)
        outcome, _ = (yield First((number, timer))) if timer >= 0 else ((yield All((number,)))[0], None)
        # Answered or given up: no later event is tried on it.
        run.wheres.pop(number, None)
        if outcome is None:
            self.cancel_op(number, "timeout")
            raise TimeoutError(f"no {schema} within {timeout_us / 1_000_000:g} s" if timeout_us is not None else "")
        try:
            event = user_values.load(kind, outcome)
        except errors.DecodeError as error:
            raise self.unfit(number, error) from error
        # The event came first: the timeout must not stay in the queues.
        if timer >= 0:
            self.cancel_op(timer, "cancelled")
        return event

    def unfit(self, number: int, error: errors.DecodeError) -> BaseException:
        """Answers are decoded before anything else happens in a feeding. So the feeding can be taken back, and the run
        is blocked with its answer kept; unless the code drives awaitables by hand, and has asked for more since.
        """
        run, record = self._run, self._run.record
        outcome = record.ops[number].outcome
        if outcome is None or (not run.rebuilding and record.ops[-1].fed >= len(record.log)):
            return error
        at = divergence_report.asking_line()
        report = divergence_report.unfit_answer(
            record.id, record.workflow, record.ops, number, answer=outcome.data, why=str(error), asked_at=at
        )
        return _stray(run, report, unfit=not run.rebuilding)

    # --- Values that are read and recorded -------------------------------------------------------------

    def read_state(self, cls: type, key: str) -> Any:
        self._machine.reducer_of(cls)  # also while rebuilding: a class that is none must be refused every time
        data = self._value(
            "state", f"{user_errors.name_of(cls)}/{key}", lambda: user_values.dump(self._machine.read_cell(cls, key))
        )
        return user_values.load(cls, data)

    def _value(self, api: str, name: str, read: Callable[[], bytes]) -> bytes:
        """A value read now and recorded, so that a rebuilt run reads the same."""
        run = self._run
        name.encode()  # what has no bytes is refused here, as in `issue`
        if self._is_rebuilding():
            number = self._number()
            _check_same(self._machine, run, number, Op(OpKind.VALUE, f"{api}:{name}", b""))
            outcome = run.record.ops[number].outcome
            assert outcome is not None
            return outcome.data
        data = read()  # before it counts: the user's own class may refuse
        self._number()
        self._machine.now.count_bytes(len(data))
        self._issue(Op(OpKind.VALUE, f"{api}:{name}", b"", outcome=Outcome(ReceiptStatus.OK, data)))
        return data

    def patched(self, name: str) -> bool:
        """True where new code may run: always in a new run; in an older one only if it was true the first time."""
        patches = self._run.patches
        # Remembered: all places of the code must get the same answer.
        if name not in patches:
            patches[name] = self._first_patched(name)
        return patches[name]

    def _first_patched(self, name: str) -> bool:
        run = self._run
        name.encode()
        if self._is_rebuilding():
            number = run.issued
            recorded = run.record.ops[number] if number < len(run.record.ops) else None
            # The record is older than the patch: it has another operation here, or none.
            if recorded is None or recorded.kind is not OpKind.PATCH or recorded.name != name:
                return False
            run.next_number()
            return True
        self._number()
        self._issue(Op(OpKind.PATCH, name, b"", outcome=Outcome(ReceiptStatus.OK, user_values.NONE)))
        return True

    # --- Scopes ----------------------------------------------------------------------------------------

    def new_scope(self, *, shield: bool) -> ScopeOperation:
        return self._run.new_scope(shield=shield)

    def enter_scope(self, scope: ScopeOperation) -> None:
        self._run.scopes.append(scope)

    def cancel_scope(self, scope: ScopeOperation, reason: str) -> None:
        """Cancel what the block waits for: it is left at its next await."""
        if not self._run.rebuilding:
            run_requests.interrupt(self._machine, self._run, scope.number, reason, CancelKind.USER)

    def failed_in(self, scope: ScopeOperation) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for number in scope.children:
            op = self._run.record.ops[number]
            if op.outcome is None or number in scope.heard:
                continue
            if op.outcome.status in (ReceiptStatus.ERROR, ReceiptStatus.TIMEOUT) or number == scope.failing:
                found.append((number, f"{op.name}: {runs.message_of(op.outcome)}"))
        # The failure that cancelled the block comes first: it is raised, and the others become notes.
        found.sort(key=lambda each: each[0] != scope.failing)
        return found

    def leave_scope(self, scope: ScopeOperation) -> None:
        """End a block, and with it everything that was started in it."""
        run = self._run
        run.scopes.remove(scope)
        for number in [scope.timer, *scope.children]:
            if number >= 0:
                self.cancel_op(number, "the scope has ended")
        if not run.rebuilding:
            run.forget_interrupts(scope.number)


def _check_same(machine: Machine, run: LiveRun, number: int, wanted: Op) -> None:
    """Refuse to continue with code that asks for something else than was recorded: of another kind, or by another name.
    Other arguments are no obstacle, except where `Machine.is_exact` says so: what was asked for has been asked for.
    """
    record = run.record
    recorded = record.ops[number] if number < len(record.ops) else None
    if recorded is None or recorded.kind is not wanted.kind or recorded.name != wanted.name:
        at = divergence_report.asking_line()
        raise _stray(
            run, divergence_report.another(record.id, record.workflow, record.ops, number, wanted, asked_at=at)
        )
    if recorded.params != wanted.params:
        run.differ(number, wanted.params)
        if machine.is_exact(recorded.step):
            at = divergence_report.asking_line()
            raise _stray(
                run,
                divergence_report.arguments_differ(record.id, record.workflow, number, recorded, wanted, asked_at=at),
            )


def _stray(run: LiveRun, report: str, *, unfit: bool = False) -> context.Strayed:
    """Record how a run departs from its record. From here on, until it awaits something, its calls have no effect."""
    first = run.stray(report, unfit=unfit)
    closing: Any = context.ClosingRun()
    context.current.set(closing)
    return context.Strayed(first)
