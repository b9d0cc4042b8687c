"""A run waits for a person: what a caller that waits for its end is told, and when.

A blocked run resumes when its code is fixed, a parked effect when a person retries or answers it; nothing is lost
meanwhile. The caller's log says so at once, with the command to type. How long it waits then is up to the caller
(`on_blocked=`) or `Settings.blocked_wait_ms`: the wait ends with `RunBlocked`.

A caller in the process that runs the world is told by the hub, any other finds it in the journal. Either way the state
is read before anything is said: the run may have resumed meanwhile.
"""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias, get_args

import msgspec

from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.codec import printable, structs
from worldline.kernel import control_commands
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Op, RunStatus
from worldline.kernel.run_operations import OpKind
from worldline.layers import work as works
from worldline.model import ids, inbox, journal
from worldline.model.journal import Kind
from worldline.model.work import WorkState
from worldline.runtime import halt_text
from worldline.store import urls

log = printable.logger("worldline")

OnBlocked: TypeAlias = Literal["raise", "wait"]
RETRIES_SECONDS = 2.0  # between two looks for effects that are tried again
OPEN_MAX = 256  # effects and timers of the world that such a look reads
RUNS_MAX = 64  # that are looked at: those that the run waits for, the nearest first


class Halt(msgspec.Struct, frozen=True):
    """What waits for a person: a run that is blocked, or an effect of it that is parked."""

    run: str
    why: str
    effect: str = ""
    intent: bytes = b""
    attempts: int = 0

    def text(self, world: str, *, option: str) -> str:
        """In one line, with the command to type."""
        if self.effect:
            return halt_text.parked(self.effect, self.intent, self.why, attempts=self.attempts, option=option)
        return halt_text.blocked(world, self.run, self.why, option=option)


def check(on_blocked: object) -> None:
    if on_blocked is not None and on_blocked not in get_args(OnBlocked):
        raise errors.BadInput(f'on_blocked={on_blocked!r}: use "raise" or "wait", or leave it out')


class RunWatch:
    """One caller that waits for the end of a run. `attached`: the run was there before, and may be halted by now."""

    def __init__(self, world: Handle, run: str, on_blocked: OnBlocked | None, *, attached: bool) -> None:
        self._world = world
        self._run = run
        self._limit_us = 0 if on_blocked == "raise" else world.connection.settings.blocked_wait_ms * 1000 or None
        if on_blocked == "wait":
            self._limit_us = None
        self._since_us = 0
        self._halt: Halt | None = None
        self.is_due = attached  # the state is to be looked at
        self._retried: dict[ids.IntentId, None] = {}  # effects that the log has named
        self._look_us = world.connection.store.env.monotonic_us()

    def missed(self) -> None:
        """Note that the world came to this process, or left it: what was told meanwhile did not reach this caller."""
        self.is_due = True

    def saw(self, entry: journal.JournalEntry) -> None:
        """An entry of the world's journal that may say that something waits for a person."""
        if entry.kind is Kind.RUN_BLOCKED or parks(entry):
            self.is_due = True

    async def told(self) -> None:
        """The hub says that the run, or one that it waits for, waits for a person. The host has logged it, and its log
        is this process's.
        """
        await self._look(is_said=True)

    async def look(self) -> None:
        """For a caller to await while nothing comes. `RunBlocked` after too long."""
        if self._limit_us is None and not log.isEnabledFor(logging.WARNING):
            return  # it would be told nothing
        if self.is_due:
            await self._look()
        elif self._halt is not None and self._is_late():
            await self._look(is_said=True)  # it may have gone on since
        elif self._halt is None and self._world.connection.host is None:
            await self._look_for_retries()  # a process that performs effects has these lines in its log

    async def _look_for_retries(self) -> None:
        """Say of each effect that the run waits for, and that has failed, that it is tried again."""
        connection = self._world.connection
        now_us = connection.store.env.monotonic_us()
        if now_us - self._look_us < RETRIES_SECONDS * 1_000_000:
            return
        self._look_us = now_us
        at = await self._world.address()
        page = (await connection.store.engine.read(works.open_range(at, count_max=OPEN_MAX))).page(0)
        option = urls.option("store", connection.store.url)
        for each in works.decode_open(at, page):
            work = each.work
            # Runs that it has started have its id and a slash as their beginning, and it waits for their effects as
            # well.
            ours = work.correlation == self._run or work.correlation.startswith(f"{self._run}/")
            if ours and work.error and work.state is not WorkState.PARKED and each.intent not in self._retried:
                self._retried[each.intent] = None  # once per effect: each further attempt would write the same line
                said = halt_text.retried(work.name, each.intent, work.error, attempts=work.attempt, option=option)
                log.warning("run %r of world %r waits: %s", self._run, self._world.name, said)

    def _is_late(self) -> bool:
        waited_us = self._world.connection.store.env.monotonic_us() - self._since_us
        return self._limit_us is not None and waited_us >= self._limit_us

    async def _look(self, *, is_said: bool = False) -> None:
        self.is_due = False
        at = await self._world.address()
        found = find(
            await self._world.machine_of_runs(), self._run, at
        )  # nothing is awaited between: no step can begin
        # Another cause starts the time again: the limit is for how long one thing waits for a person.
        if found is None or found != self._halt:
            self._since_us = self._world.connection.store.env.monotonic_us()
            if found is not None and not is_said:  # the host's log is this process's: not twice
                log.warning("run %r of world %r waits: %s", self._run, self._world.name, self._text(found))
        self._halt = found
        if found is not None and self._is_late():
            raise errors.RunBlocked(self._run, self._world.name, self._text(found), report=found.why)

    def _text(self, halt: Halt) -> str:
        return halt.text(self._world.name, option=urls.option("store", self._world.connection.store.url))


def parks(entry: journal.JournalEntry) -> bool:
    """Whether an entry says that an effect is parked."""
    if entry.kind is not Kind.CONTROL:
        return False
    try:
        return structs.decode(inbox.Control, entry.payload).command == control_commands.PARK
    except errors.DecodeError:  # only a look for a cause: what cannot be read is reported by the step
        return False


def find(machine: Machine, run_id: str, at: ids.Address) -> Halt | None:
    """What a run waits for that waits for a person, if there is something: in the run itself, or in one whose end it
    waits for.
    """
    # Breadth first: the nearest cause is the one that the caller can act on.
    waiting, seen = [run_id], {run_id: None}
    while waiting and len(seen) < RUNS_MAX:
        run = machine.runs.get(waiting.pop(0))
        if run is None or not run.live:
            continue
        record = run.record
        if record.status is RunStatus.BLOCKED:
            return Halt(record.id, record.blocked)
        is_open = [(number, op) for number, op in enumerate(record.ops) if op.outcome is None]
        for _, op in is_open:
            if op.parked is not None and op.asked is not None:
                return Halt(record.id, op.parked.error, op.asked.name, op.asked.intent(at), op.parked.attempts)
        children = (machine.child_of(run, number) for number in _awaited(is_open))
        # A run is looked at once, however many wait for it.
        new = [child.record.id for child in children if child is not None and child.record.id not in seen]
        seen |= dict.fromkeys(new)
        waiting += new
    return None


def _awaited(is_open: list[tuple[int, Op]]) -> list[int]:
    """The operations whose runs the code waits for. A run that was only started, with `wl.start`, is waited for where
    nothing else is.
    """
    children = [number for number, op in is_open if op.kind is OpKind.CHILD]
    starts = [number for number, op in is_open if op.kind is OpKind.START]
    return starts if starts and len(starts) == len(is_open) else children
