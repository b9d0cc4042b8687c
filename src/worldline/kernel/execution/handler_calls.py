"""What a reducer's handler can call while it runs: the kernel's side of the functions of
`kernel/authoring/workflow_api.py`.

One `HandlerCalls` is current while a handler runs. It collects what the handler asks for; `kernel/event_dispatch.py`
does that if the handler succeeds. What only a workflow can do is refused.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any, Never, Self

from worldline.base import errors, failures, limits
from worldline.codec import digest
from worldline.kernel import run_requests, runs, schedules, user_values
from worldline.kernel.authoring import calls, reducers
from worldline.kernel.authoring.schedule_spec import Spec
from worldline.kernel.execution import draws
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Cell
from worldline.kernel.run_operations import OpKind
from worldline.model import ids, inbox
from worldline.model import step_records as steps

HANDLER_BYTES_MAX = limits.STEP_BYTES_MAX // 4


class HandlerCalls:
    """For one call of one handler."""

    __slots__ = (
        "_bytes",
        "_cell",
        "_handler",
        "_machine",
        "_made",
        "_seed",
        "afters",
        "emits",
        "schedules",
        "starts",
        "time_us",
    )

    run_id = ""

    def __init__(self, machine: Machine, handler: reducers.EventHandler) -> None:
        self._machine = machine
        self._handler = handler
        self._cell = (b"", 0)
        self._seed = b""
        self._made: list[calls.Call[Any]] = []
        self._bytes = 0
        self.time_us = machine.now.context.time_us
        self.emits: list[tuple[str, bytes]] = []
        self.afters: list[tuple[int, tuple[str, bytes], list[bool]]] = []
        self.starts: list[tuple[str, bytes, str]] = []
        self.schedules: list[tuple[str, Spec | None]] = []

    @property
    def store_us(self) -> int:
        return self._machine.now.context.store_us

    @property
    def where(self) -> steps.StepContext | None:
        return self._machine.where

    @property
    def is_silent(self) -> bool:
        return self._machine.replaying

    @property
    def handler(self) -> Self:
        return self

    @property
    def seed(self) -> bytes:
        """What draws and ids are made from: the world, the cell and how many events it has folded, and which event of
        this step this is. Made only if it is asked for: most handlers never do.
        """
        if not self._seed:
            # Whatever draws counts as a fold, so no two events draw the same.
            key, folds = self._cell
            counts = folds.to_bytes(8, "big") + self._machine.now.events.to_bytes(4, "big")
            self._seed = digest.hash_parts(b"fold", self._machine.seed, key, counts, self._handler.method.encode())
        return self._seed

    def in_cell(self, cell: Cell) -> None:
        """Set the cell that the handler runs on."""
        self._cell = cell.key, cell.folds

    @property
    def drew(self) -> bool:
        """Whether something was made from the seed, or will be: the next event must get another one."""
        return bool(self._seed) or bool(self.starts)

    @property
    def asked(self) -> bool:
        """Whether the handler asked for anything."""
        return bool(self.emits or self.afters or self.schedules or self.starts)

    def sender(self) -> inbox.Message | None:
        return self._machine.now.sender

    def drop_step(self, why: errors.CannotStep) -> None:
        self._machine.drop_step(why)

    def made_call(self, call: calls.Call[Any]) -> None:
        # Only strict mode looks at them, so only there they are kept.
        if self._machine.strict:
            self._made.append(call)

    def check_calls(self) -> None:
        """In strict mode: refuse calls that were made and never used."""
        if not self._made:
            return
        forgotten = next((call for call in self._made if not call.awaited), None)
        if forgotten is not None:
            hint = "a workflow can await it, a handler not"
            raise failures.NotDurable(f"{forgotten!r} was made but never awaited; {hint}")

    def emit(self, event: object) -> None:
        raised = user_values.schema_name(type(event)), user_values.dump(event)
        self.emits.append(raised)
        self._count(raised[1])

    def after(self, delay_us: int, event: object) -> list[bool]:
        raised = user_values.schema_name(type(event)), user_values.dump(event)
        cancelled = [False]  # read when the handler has ended
        self.afters.append((delay_us, raised, cancelled))
        self._count(raised[1])
        return cancelled

    def start(self, call: calls.Call[Any], run_id: str) -> None:
        call.use()
        run_requests.check_known(self._machine.program, call.target)
        if run_id:
            ids.check_name(run_id, "a run's id")
        args = call.pack_checked()
        # Refused here, where the author sees it; one that is started by another handler of this event shows later.
        known = self._machine.runs.get(run_id)
        if known is not None and not runs.is_same(known.record, call.target.name, args):
            raise errors.IdReused(run_id)
        self.starts.append((call.target.name, args, run_id))
        self._count(args)

    def _count(self, data: bytes) -> None:
        """Bound what one handler asks for: it is journaled in one step."""
        self._bytes += len(data)
        count = len(self.emits) + len(self.afters) + len(self.starts)
        if count > limits.STEP_EVENTS_MAX or self._bytes > HANDLER_BYTES_MAX:
            raise failures.LimitExceeded(
                f"a handler may raise, start and set off {limits.STEP_EVENTS_MAX} things of {HANDLER_BYTES_MAX} bytes"
            )

    def schedule(self, schedule_id: str, spec: Spec | None) -> None:
        """Make a schedule, or without a spec remove it, if the handler succeeds."""
        if spec is not None:
            try:
                # Those that this handler has asked for are not in the machine yet.
                schedules.check(self._machine, schedule_id, spec, adding=len(self.schedules))
            except errors.CannotStep as error:
                # Noted before it is raised again: the handler may catch it, and the step must be dropped all the same.
                self._machine.drop_step(error)
                raise
        self.schedules.append((schedule_id, spec))

    def read_state(self, cls: type, key: str) -> Any:
        return self._machine.read_cell(cls, key)

    def random(self, label: str) -> random.Random:
        return random.Random(draws.draw(self.seed, self._machine.now.counters, "random", label))

    def random_id(self, label: str) -> bytes:
        return draws.draw(self.seed, self._machine.now.counters, "uuid", label)[:16]

    # --- For workflows only ----------------------------------------------------------------------------

    def workflow(self, what: str) -> Never:
        raise failures.OutsideWorkflow(f"{what} works only inside a workflow, not in a reducer's handler")

    def issue(self, kind: OpKind, name: str, params: bytes, **details: Any) -> int:  # noqa: ARG002
        self.workflow(kind.name.lower())

    def issue_call(self, call: calls.Call[Any], kind: OpKind, *, run_id: str = "") -> int:  # noqa: ARG002
        self.workflow(kind.name.lower())

    def await_call(self, call: calls.Call[Any]) -> Generator[Any, Any, Any]:
        yield self.workflow(f"awaiting {call!r}")

    def wait_event(self, kind: type, where: Any, timeout_us: int | None) -> Generator[Any, Any, Any]:  # noqa: ARG002
        yield self.workflow("wait")

    def continue_with(self, call: calls.Call[Any]) -> None:  # noqa: ARG002
        self.workflow("wl.continue_as_new()")

    def patched(self, name: str) -> bool:  # noqa: ARG002
        self.workflow("patched")
