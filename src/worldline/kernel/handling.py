"""What user code can do while the kernel runs it: the other side of every `wl.` function used inside.

One `Handling` is current while a reducer's handler or a workflow's coroutine runs. For a handler it collects what the
handler asked for, to be done if the handler succeeds; for a workflow it issues operations on the run and hands the
coroutine's awaits to the driver.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from worldline.base import errors, failures, limits
from worldline.codec import digest, structs
from worldline.kernel import context, runs, schedules, user_errors, values
from worldline.kernel.authoring import calls
from worldline.kernel.runs import All, First, Op, OpKind, Run
from worldline.model import ids
from worldline.model.inbox import ReceiptStatus

if TYPE_CHECKING:
    from worldline.kernel.machine import Machine


_EFFECT = tuple[bytes, bytes]
HANDLER_BYTES_MAX = limits.STEP_BYTES_MAX // 4


class Handling:
    """For one handler call or one resumption of a run."""

    __slots__ = (
        "_seed",
        "afters",
        "bytes",
        "emits",
        "lost",
        "machine",
        "made",
        "refused",
        "run",
        "schedules",
        "starts",
        "time_us",
    )

    def __init__(
        self, machine: Machine, *, time_us: int, seed: bytes | tuple[bytes, ...], run: Run | None = None
    ) -> None:
        self.machine = machine
        self.run = run
        self.time_us = time_us
        self._seed = seed
        self.emits: list[tuple[str, bytes]] = []
        self.afters: list[tuple[int, tuple[str, bytes], list[bool]]] = []
        self.starts: list[tuple[str, bytes, str]] = []
        self.made: list[calls.Call[Any]] = [] if run is None else run.made
        self.bytes = 0
        self.refused = 0
        self.lost = ""  # why a run that catches every refusal has to end
        self.schedules: list[tuple[str, schedules.Spec | None]] = []

    # --- For handlers and workflows ------------------------------------------------------------------

    @property
    def store_us(self) -> int:
        """The store's time of the step that runs. While a run is rebuilt nothing is due, and any time will do."""
        where = self.machine.where
        return self.time_us if where is None else where.store_us

    @property
    def seed(self) -> bytes:
        """What draws and ids are made from. Of a handler, hashed only if it is asked for: most never do."""
        if isinstance(self._seed, tuple):
            self._seed = digest.hash_parts(b"fold", *self._seed)
        return self._seed

    def made_call(self, call: calls.Call[Any]) -> None:
        if self.machine.strict:
            self.made.append(call)

    def check_calls(self) -> None:
        """In strict mode: refuse calls that were made and have come to nothing."""
        forgotten = next((call for call in self.made if not call.awaited), None)
        if forgotten is not None:
            hint = f"write `await {forgotten!r}`" if self.run is not None else "a workflow can await it, a handler not"
            raise failures.NotDurable(f"{forgotten!r} was made but never awaited; {hint}")

    def emit(self, event: object) -> None:
        raised = values.schema_name(type(event)), values.dump(event)
        if self.run is None:
            self.emits.append(raised)
            self._count(raised[1])
        elif not self.run.rebuilding:
            self.machine.raise_event(*raised)

    def after(self, delay_us: int, event: object) -> list[bool]:
        """For a handler: raise an event later. What is returned cancels that, in the same handler."""
        raised = values.schema_name(type(event)), values.dump(event)
        cancelled = [False]
        self.afters.append((delay_us, raised, cancelled))
        self._count(raised[1])
        return cancelled

    def start(self, call: calls.Call[Any], run_id: str) -> None:
        """For a handler: start a workflow, if all goes well."""
        call.awaited = True
        self._known(call)
        if run_id:
            ids.check_name(run_id, "a run's id")
        args = call.pack()
        known = self.machine.runs.get(run_id)
        if known is not None and not runs.is_same(known.record, call.target.name, args):
            raise errors.IdReused(run_id)
        self.starts.append((call.target.name, args, run_id))
        self._count(args)

    def _count(self, data: bytes) -> None:
        """Bound what one handler asks for: it is journaled in one step."""
        self.bytes += len(data)
        count = len(self.emits) + len(self.afters) + len(self.starts)
        if count > limits.STEP_EVENTS_MAX or self.bytes > HANDLER_BYTES_MAX:
            raise failures.LimitExceeded(
                f"a handler may raise, start and set off {limits.STEP_EVENTS_MAX} things of {HANDLER_BYTES_MAX} bytes"
            )

    def schedule(self, schedule_id: str, spec: schedules.Spec | None) -> None:
        """Make a schedule, or without a spec remove it: at once in a workflow, if all goes well in a handler."""
        if spec is not None and not (self.run is not None and self.run.rebuilding):
            try:
                schedules.check(self.machine, schedule_id, spec, adding=len(self.schedules))
            except errors.CannotStep as error:
                self.machine.drop_step(error)
                raise
        if self.run is None:
            self.schedules.append((schedule_id, spec))
        elif not self.run.rebuilding:
            now = self.machine.now
            now.half_done += 1
            schedules.change(self.machine, schedule_id, spec)
            now.half_done -= 1

    def read_state(self, cls: type, key: str) -> Any:
        self.machine.reducer_of(cls)  # also while rebuilding: a class that is none must be refused every time
        if self.run is None:
            return self.machine.read_cell(cls, key)
        data = self._value(
            "state", f"{user_errors.name_of(cls)}/{key}", lambda: values.dump(self.machine.read_cell(cls, key))
        )
        return values.load(cls, data)

    def random(self, label: str) -> random.Random:
        return random.Random(self._draw("random", label))

    def random_id(self, label: str) -> bytes:
        return self._draw("uuid", label)[:16]

    def _draw(self, api: str, label: str) -> bytes:
        """Bytes that depend on the run, the calling function, the API and a label or counter, and on nothing else, so
        that a draw added in one function does not shift those of another.
        """
        frame = sys._getframe(3)  # noqa: SLF001 - the user's function: inside.x -> Handling.x -> _draw
        function = frame.f_code.co_qualname
        flow = None if self.run is None else self.machine.program.workflows.get(self.run.record.workflow)
        if flow is not None:
            function = flow.declared(function)  # so that renaming the function draws the same
        counters = self.machine.counters if self.run is None else self.run.counters
        name = label
        if not label:
            count = counters.get((function, api), 0)
            counters[function, api] = count + 1
            name = f"#{count}"
        return digest.hash_parts(b"draw", self.seed, function.encode(), api.encode(), name.encode())

    # --- For workflows only ----------------------------------------------------------------------------

    def workflow(self, what: str) -> Run:
        if self.run is None:
            raise failures.OutsideWorkflow(f"{what} works only inside a workflow, not in a reducer's handler")
        return self.run

    def await_call(self, call: calls.Call[Any]) -> Generator[Any, Any, Any]:
        run = self.run or self.workflow(f"awaiting {call!r}")
        number = self.issue_call(call, OpKind.EFFECT if call.target.kind == "effect" else OpKind.CHILD)
        (data,) = yield All((number,))
        assert run is self.run
        return call.target.signature.result(data)

    def continue_with(self, call: calls.Call[Any]) -> None:
        """Note the workflow and arguments that a run goes on with as new. What cannot be is refused while it runs."""
        run = self.workflow("wl.continue_as_new()")
        call.awaited = True
        self._known(call)
        run.continuing = call.target.name, call.pack()

    def issue_call(self, call: calls.Call[Any], kind: OpKind, *, run_id: str = "") -> int:
        """Issue an effect or a child. The target must belong to the program of this world."""
        call.awaited = True
        try:
            self._known(call)
            params = call.pack() if call.target.kind == "workflow" else pack_effect(call)
        except errors.BadInput as error:
            self._count_refusal(error)
            raise
        return self.issue(kind, call.target.name, params, run_id=run_id)

    def _known(self, call: calls.Call[Any]) -> None:
        target = call.target
        program = self.machine.program
        known: Any = program.find_effect(target.name)
        if target.kind == "workflow":
            known = program.workflows.get(target.name)
        if known is None or known.function is not target.function:
            raise errors.BadInput(f"{target.kind} {target.name} is not one of program {program.name!r}")

    def issue(self, kind: OpKind, name: str, params: bytes, **details: Any) -> int:
        """Issue the next operation of the run, or, when rebuilding, check that it is the one recorded."""
        run = self.workflow(kind.name.lower())
        label = name.encode()  # what has no bytes is refused here, before anything is recorded
        number = self._number(run)
        wanted = Op(kind, name, digest.sha256(params)[:16])
        if run.rebuilding:
            check_same(run, number, wanted)
            return number
        now = self.machine.now
        now.half_done += 1
        run.record.ops.append(wanted)
        run.touch(b"issue", bytes([kind]), label, wanted.digest)
        self.machine.issued(run, number, params, **details)
        now.half_done -= 1
        return number

    def _value(self, api: str, name: str, read: Callable[[], bytes]) -> bytes:
        """A value read now and recorded, so that a rebuilt run reads the same."""
        run = self.workflow(api)
        label = name.encode()
        wanted = Op(OpKind.VALUE, f"{api}:{name}", b"")
        if run.rebuilding:
            number = self._number(run)
            check_same(run, number, wanted)
            outcome = run.record.ops[number].outcome
            assert outcome is not None
            return outcome.data
        data = read()  # before it counts: the user's own class may refuse
        self._number(run)
        wanted.outcome = runs.Outcome(ReceiptStatus.OK, data)
        run.record.ops.append(wanted)
        run.touch(b"value", label, data)
        return data

    def patched(self, name: str) -> bool:
        """True where new code may go: always in a new run; in an older one only if it was true the first time."""
        run = self.workflow("patched")
        if name not in run.patches:
            run.patches[name] = self._first_patched(run, name)
        return run.patches[name]

    def _first_patched(self, run: Run, name: str) -> bool:
        label = name.encode()
        if run.rebuilding:
            number = run.issued
            recorded = run.record.ops[number] if number < len(run.record.ops) else None
            if recorded is None or recorded.kind is not OpKind.PATCH or recorded.name != name:
                return False
            run.issued += 1
            return True
        self._number(run)
        run.record.ops.append(Op(OpKind.PATCH, name, b"", outcome=runs.Outcome(ReceiptStatus.OK, values.NONE)))
        run.touch(b"patch", label)
        return True

    def _count_refusal(self, error: errors.BadInput) -> None:
        """Code that catches this and asks again, and again, without ever waiting for anything, is stopped."""
        self.refused += 1
        if self.refused >= runs.REFUSALS_MAX:
            self.lost = f"it asked {self.refused} times for what is refused, the last time so: {error}"
            context.current.set(runs.Nowhere())  # type: ignore[arg-type]

    def check_lost(self) -> None:
        if self.lost:
            raise failures.LimitExceeded(self.lost)

    def _number(self, run: Run) -> int:
        """The number of the next operation."""
        if run.issued >= limits.RUN_OPERATIONS_MAX:
            error = failures.LimitExceeded(
                f"a run may ask for {limits.RUN_OPERATIONS_MAX} things; start over with wl.continue_as_new()"
            )
            self._count_refusal(error)
            raise error
        run.issued += 1
        return run.issued - 1

    def wait_event(self, kind: type, where: Any, timeout_us: int | None) -> Generator[Any, Any, Any]:
        run = self.workflow("wait")
        schema = values.schema_name(kind)
        number = self.issue(OpKind.WAIT, schema, b"")
        run.wheres[number] = (kind, where)
        timer = -1
        if timeout_us is not None:
            timer = self.issue(OpKind.TIMER, "wait", timeout_us.to_bytes(8, "big"), delay_us=timeout_us)
        self.machine.look_in_buffer(run, number)
        outcome, _ = (yield First((number, timer))) if timer >= 0 else ((yield All((number,)))[0], None)
        run.wheres.pop(number, None)
        if outcome is None:
            self.machine.cancel_op(run, number, "timeout")
            raise TimeoutError(f"no {schema} within {timeout_us / 1_000_000:g} s" if timeout_us is not None else "")
        if timer >= 0:
            self.machine.cancel_op(run, timer)
        return values.load(kind, outcome)


def pack_effect(call: calls.Call[Any]) -> bytes:
    """An effect's parameters as they leave the world: the arguments, then what this call overrides."""
    options = b"" if call.options is None else call.options.pack()
    return values.bounded(values.pack([call.pack(), options]), "a call")


def unpack_effect(params: bytes) -> tuple[bytes, calls.Options]:
    arguments, options = values.load(_EFFECT, params)
    return arguments, structs.decode(calls.Options, options) if options else calls.PLAIN


def check_same(run: Run, number: int, wanted: Op) -> None:
    """Refuse to go on with code that asks for something else than the record says."""
    ops = run.record.ops
    if number >= len(ops):
        raise _stray(
            run,
            f"run {run.record.id!r} ({run.record.workflow}): the code asks for {describe(wanted)} as its operation "
            f"{number + 1}; the journal has only {len(ops)}",
        )
    recorded = ops[number]
    if (recorded.kind, recorded.name, recorded.digest) != (wanted.kind, wanted.name, wanted.digest):
        raise _stray(
            run,
            f"run {run.record.id!r} ({run.record.workflow}), operation {number + 1}:\n"
            f"  journal: {describe(recorded)}\n"
            f"  code:    {describe(wanted)}",
        )


def _stray(run: Run, report: str) -> runs.Strayed:
    """Note how a run departs from its record. From here on, until it awaits something, nothing it does counts."""
    run.strayed = run.strayed or report
    context.current.set(runs.Closing())  # type: ignore[arg-type]
    return runs.Strayed(run.strayed)


def check_all_issued(run: Run) -> None:
    if run.issued != len(run.record.ops):
        raise failures.Diverged(
            f"run {run.record.id!r} ({run.record.workflow}), operation {run.issued + 1}:\n"
            f"  journal: {describe(run.record.ops[run.issued])}\n"
            f"  code:    nothing"
        )


def describe(op: Op) -> str:
    detail = f" with parameters {op.digest.hex()[:12]}" if op.digest else ""
    where = f" (step {op.step})" if op.step else ""
    return f"{op.kind.name.lower()} {op.name!r}{detail}{where}"
