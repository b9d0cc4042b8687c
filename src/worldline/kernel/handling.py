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

from worldline.base import errors, failures
from worldline.codec import digest, structs
from worldline.kernel import calls, runs, schedules, values
from worldline.kernel.runs import All, First, Op, OpKind, Run
from worldline.model.inbox import ReceiptStatus

if TYPE_CHECKING:
    from worldline.kernel.machine import Machine


class Handling:
    """For one handler call or one resumption of a run."""

    __slots__ = ("afters", "emits", "machine", "made", "run", "schedules", "seed", "starts", "time_us")

    def __init__(self, machine: Machine, *, time_us: int, seed: bytes, run: Run | None = None) -> None:
        self.machine = machine
        self.run = run
        self.time_us = time_us
        self.seed = seed
        self.emits: list[object] = []
        self.afters: list[tuple[int, object, list[bool]]] = []
        self.starts: list[tuple[calls.Call[Any], str]] = []
        self.made: list[calls.Call[Any]] = []
        self.schedules: list[tuple[str, schedules.Spec | None]] = []

    # --- For handlers and workflows ------------------------------------------------------------------

    def made_call(self, call: calls.Call[Any]) -> None:
        if self.machine.strict:
            self.made.append(call)

    def emit(self, event: object) -> None:
        if self.run is None:
            self.emits.append(event)
        elif not self.run.rebuilding:
            self.machine.raise_event(event)

    def schedule(self, schedule_id: str, spec: schedules.Spec | None) -> None:
        """Make a schedule, or without a spec remove it: at once in a workflow, if all goes well in a handler."""
        if spec is not None:
            schedules.check(self.machine, schedule_id, spec, adding=len(self.schedules))
        if self.run is None:
            self.schedules.append((schedule_id, spec))
        elif not self.run.rebuilding:
            schedules.change(self.machine, schedule_id, spec)

    def read_state(self, cls: type, key: str) -> Any:
        if self.run is None:
            return self.machine.read_cell(cls, key)
        data = self._value("state", f"{cls.__name__}/{key}", lambda: values.dump(self.machine.read_cell(cls, key)))
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
        run = self.workflow(f"awaiting {call!r}")
        number = self.issue_call(call, OpKind.EFFECT if call.target.kind == "effect" else OpKind.CHILD)
        (data,) = yield All((number,))
        assert run is self.run
        return call.target.signature.result(data)

    def issue_call(self, call: calls.Call[Any], kind: OpKind, *, run_id: str = "") -> int:
        """Issue an effect or a child. The target must belong to the program of this world."""
        call.awaited = True
        target = call.target
        program = self.machine.program
        known: Any = program.find_effect(target.name)
        if target.kind == "workflow":
            known = program.workflows.get(target.name)
        if known is None or known.function is not target.function:
            raise errors.BadInput(f"{target.kind} {target.name} is not one of program {program.name!r}")
        params = call.pack() if target.kind == "workflow" else pack_effect(call)
        return self.issue(kind, target.name, params, run_id=run_id)

    def issue(self, kind: OpKind, name: str, params: bytes, **details: Any) -> int:
        """Issue the next operation of the run, or, when rebuilding, check that it is the one recorded."""
        run = self.workflow(kind.name.lower())
        number = run.issued
        run.issued += 1
        wanted = Op(kind, name, digest.sha256(params)[:16])
        if run.rebuilding:
            check_same(run, number, wanted)
            return number
        run.record.ops.append(wanted)
        run.touch(b"issue", bytes([kind]), name.encode(), wanted.digest)
        self.machine.issued(run, number, params, **details)
        return number

    def _value(self, api: str, name: str, read: Callable[[], bytes]) -> bytes:
        """A value read now and recorded, so that a rebuilt run reads the same."""
        run = self.workflow(api)
        number = run.issued
        run.issued += 1
        wanted = Op(OpKind.VALUE, f"{api}:{name}", b"")
        if run.rebuilding:
            check_same(run, number, wanted)
            outcome = run.record.ops[number].outcome
            assert outcome is not None
            return outcome.data
        data = read()
        wanted.outcome = runs.Outcome(ReceiptStatus.OK, data)
        run.record.ops.append(wanted)
        run.touch(b"value", name.encode(), data)
        return data

    def patched(self, name: str) -> bool:
        """True where new code may go: always in a new run; in an older one only if it was true the first time."""
        run = self.workflow("patched")
        if run.rebuilding:
            number = run.issued
            recorded = run.record.ops[number] if number < len(run.record.ops) else None
            if recorded is None or recorded.kind is not OpKind.PATCH or recorded.name != name:
                return False
            run.issued += 1
            return True
        run.issued += 1
        run.record.ops.append(Op(OpKind.PATCH, name, b"", outcome=runs.Outcome(ReceiptStatus.OK, values.NONE)))
        run.touch(b"patch", name.encode())
        return True

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
    options = b"" if call.options is None else structs.encode(call.options)
    return values.dump([call.pack(), options])


def unpack_effect(params: bytes) -> tuple[bytes, calls.Options]:
    arguments, options = values.load(tuple[bytes, bytes], params)
    return arguments, structs.decode(calls.Options, options) if options else calls.Options()


def check_same(run: Run, number: int, wanted: Op) -> None:
    """Refuse to go on with code that asks for something else than the record says."""
    ops = run.record.ops
    if number >= len(ops):
        raise failures.Diverged(
            f"run {run.record.id!r} ({run.record.workflow}): the code asks for {describe(wanted)} as its operation "
            f"{number + 1}; the journal has only {len(ops)}"
        )
    recorded = ops[number]
    if (recorded.kind, recorded.name, recorded.digest) != (wanted.kind, wanted.name, wanted.digest):
        raise failures.Diverged(
            f"run {run.record.id!r} ({run.record.workflow}), operation {number + 1}:\n"
            f"  journal: {describe(recorded)}\n"
            f"  code:    {describe(wanted)}"
        )


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
