"""What was started or sent, from outside: a workflow run, an event on its way."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Generator
from typing import Any, Generic, Literal, TypeVar

import msgspec

from worldline.base import errors, failures
from worldline.client import attempt_reads, client_desk, halted_runs, listing, send_door, time_limits, world_answers
from worldline.client.connection import Connection
from worldline.client.halted_runs import OnBlocked
from worldline.client.world_handle import Handle
from worldline.codec import printable, structs
from worldline.kernel import control_commands, run_repair, runs, user_values
from worldline.kernel.authoring import call_checks
from worldline.kernel.authoring.calls import Call, Seconds
from worldline.kernel.machine import RunFinished
from worldline.kernel.rows.row_records import ENDED, JournaledFailure, RunStatus
from worldline.model import journal as journals
from worldline.model.journal import Kind
from worldline.model.traces import TraceSource
from worldline.model.work import EffectHistory
from worldline.store import urls

R_co = TypeVar("R_co", covariant=True)


class Sent:
    """An event that is durably on its way."""

    def __init__(self, connection: Connection, sending: send_door.Sending, *, world: str = "", event: str = "") -> None:
        self._universe = connection
        self._sending = sending
        self._world = world
        self._event = event

    @property
    def id(self) -> str:
        """What it is known by in the world's inbox: the id that it was sent with, or one that was made for it."""
        return self._sending.id

    @property
    def stamp(self) -> str:
        """Its place among the world's inputs, which its journal entry has too."""
        return self._sending.stamp.hex()

    @property
    def already_enqueued(self) -> bool:
        """Whether the same was sent before under this id: `stamp` is the one that it got then."""
        return self._sending.repeated

    async def applied(self, timeout: Seconds | None = None) -> int:
        """Wait until the world has processed it, and return the height at which it has. `Unhandled` if nothing in the
        world handles it, or what does has failed: it is a dead letter. `NotHosted` if no process has run the world for
        too long.
        """
        async with time_limits.Within(timeout, lambda limit: time_limits.of_event(self._sending.id, limit)):
            found = await world_answers.taken(self._universe, self._sending)
        if found.dead:
            raise self._unhandled(found)
        return found.height

    def _unhandled(self, taken: world_answers.TakenInput) -> errors.Unhandled:
        option = urls.option("store", self._universe.store.url)
        which = f"{shlex.quote(self._world)} {taken.letter}{option}"
        said = (
            f"world {self._world!r} did not process {self._event}: {' '.join(taken.dead.split())}; it is a dead "
            f"letter: when the cause is fixed, type `worldline dead retry {which}`"
        )
        return errors.Unhandled(printable.shown(said), height=taken.height)

    def __repr__(self) -> str:
        return f"Sent({self.id!r})"


class Run(Generic[R_co]):
    """A workflow run, from outside. `id` names it in its world, `workflow` is what it runs."""

    def __init__(
        self,
        world: Handle,
        run_id: str,
        workflow: str,
        standing: control_commands.RunStanding,
        *,
        since: int,
        call: Call[R_co] | None = None,
        origin: bytes = b"",
    ) -> None:
        self.id = run_id
        self.workflow = workflow
        self._world = world
        self._call = call
        self._standing = standing
        self._since = since
        self._origin = origin  # what it was started with, if that is known

    async def status(self) -> RunStatus:
        """Say how the run stands now: running, finished, failed, cancelled, or blocked by a change of code."""
        if self._standing.status not in ENDED:
            kept = next((each for each in (await listing.runs(self._world))[0] if each.id == self.id), None)
            # The state first: it is in memory or a few rows, and the journal is read only for a run that has been
            # dropped.
            found = kept or await listing.forgotten(self._world, self.id, above=self._since)
            if found is None:
                raise errors.NotFound(f"world {self._world.name!r} has no run {self.id!r}")
            self._standing = control_commands.RunStanding(self.id, found.status, attached=True, data=found.data)
        return self._standing.status

    async def attempts(self) -> list[EffectHistory]:
        """List the last attempts at its effects, newest effect first: when, in which process, how each ended. An effect
        that succeeded at once has none; of effects that have their answer they are kept for some time.
        """
        return await attempt_reads.of_run(self._world, self.id)

    async def result(self, timeout: Seconds | None = None, *, on_blocked: OnBlocked | None = None) -> R_co:
        """Wait for the end, and return what the run returned. `RunFailed` if it raised, `RunReverted` if its world was
        taken back to before its start, `TimeoutError` if it takes longer, `NotHosted` if no process has run the world
        for too long.

        `RunBlocked` if it waits for a person, because its code does not fit or an effect of it is parked: at once with
        `on_blocked="raise"`, never with `"wait"`, else after `Settings.blocked_wait_ms`. The log says so at once.
        """
        halted_runs.check(on_blocked)
        async with time_limits.Within(timeout, lambda limit: time_limits.of_run(self._world, self.id, limit)):
            end = await ended(
                self._world, self._standing, since=self._since, origin=self._origin, on_blocked=on_blocked
            )
            # Before the result is opened: the run has ended even if its value does not fit its type.
            self._standing = end.standing
            return await result_of(self._world, end, self._call)

    async def cancel(self, reason: str = "", *, kind: failures.CancelKind = failures.CancelKind.USER) -> None:
        """Cancel it where it waits. Returns when that is journaled, not when the run has ended. A blocked run is
        cancelled when it resumes; `terminate` ends it at once.

        `kind`: what the run is told cancels it: a user, a policy, or the host that had started it.
        """
        if kind not in control_commands.CANCELS or not isinstance(kind, failures.CancelKind):
            known = ", ".join(f"CancelKind.{each.name}" for each in control_commands.CANCELS)
            raise errors.BadInput(f"kind is one of {known}, not {kind!r}")
        await self._world.command(control_commands.CANCEL, control_commands.CancelRun(self.id, reason, kind))

    async def retry(self) -> RunStatus:
        """Try it again under the code that is hosted now, if it is blocked. Returns how it stands then."""
        await self._change(run_repair.RETRY, run_repair.RetryRun(self.id))
        return await self.status()

    async def reset(self, *, to: int | Literal["start"] = "start") -> RunStatus:
        """Drop its operations from this one on, counted from 1, or all of them, and resume it from there under the
        code that is hosted now. What it asks for again may happen twice. Returns how it stands then.
        """
        await self._change(run_repair.RESET, run_repair.reset_run(self.id, to))
        return await self.status()

    async def terminate(self, reason: str = "") -> None:
        """End it at once, as cancelled. None of its code runs any more, and the runs it waits for end with it."""
        await self._change(run_repair.TERMINATE, run_repair.TerminateRun(self.id, reason))

    async def answer(self, op: int, value: object = None, /, *, error: str | None = None) -> None:
        """Answer an operation that is open, counted from 1, with a value or with an error. Whatever was open for it is
        closed. `Exists` if it has another answer.
        """
        data = b"" if error is not None else user_values.dump(value)
        await self._change(run_repair.ANSWER, run_repair.AnswerRun(self.id, op, data, error))

    async def _change(self, command: str, arguments: object) -> None:
        data, self._since = await self._world.command(command, arguments)
        self._standing = structs.decode(control_commands.RunStanding, data)

    def __await__(self) -> Generator[Any, Any, R_co]:
        return self.result().__await__()

    def __repr__(self) -> str:
        seen = self._standing.status.name.lower()  # when it was last looked at: a repr reads nothing
        return f"Run({self.id!r}, workflow={self.workflow!r}, world={self._world.name!r}, status={seen!r})"


class RunCompletion(msgspec.Struct, frozen=True):
    """How a run ended, and in which step, if that was seen."""

    standing: control_commands.RunStanding
    step: int | None = None


async def ended(
    world: Handle,
    standing: control_commands.RunStanding,
    *,
    since: int,
    origin: bytes = b"",
    expected: asyncio.Future[journals.JournalEntry] | None = None,
    on_blocked: OnBlocked | None = None,
    attached: bool = True,
) -> RunCompletion:
    """The run's end; waits for it. `RunReverted` if the world goes back to where there was no such run. `origin`: what
    it was started with, if that is known. `expected` is told of the end, if that was asked for before the start.
    `attached`: the run may wait for a person already.
    """
    connection, at = world.connection, await world.address()
    halts: halted_runs.RunWatch | None = None
    while standing.status not in ENDED:
        # A run that ended within its first step needs no watch.
        if halts is None and not world_answers.is_told(expected):
            halts = halted_runs.RunWatch(world, standing.run, on_blocked, attached=attached)
        try:
            entry = await world_answers.entry(
                connection, at, Kind.RUN_FINISHED, standing.run, since, expected=expected, halts=halts
            )
        except errors.NotRetained:
            standing, since = await _now(world, standing)
            continue
        finally:
            # The future is used up: another round of the loop waits for another entry.
            expected = None
        if entry.kind is Kind.RUN_FINISHED:
            found = structs.decode(RunFinished, await world_answers.payload_of(connection, entry))
            return RunCompletion(
                control_commands.RunStanding(found.run, found.status, attached=True, data=found.data), entry.step
            )
        if entry.height > since:  # else the world went back before the run was started
            standing = await _after_revert(world, standing, entry, origin)
            since = entry.height
    return RunCompletion(standing)


async def _now(world: Handle, standing: control_commands.RunStanding) -> tuple[control_commands.RunStanding, int]:
    """How a run stands, and at which height at least, if the entries since it was last looked at are not kept any more.
    `NotRetained` if the state has nothing of it, either.
    """
    runs, height = await listing.runs(world)
    kept = next((each for each in runs if each.id == standing.run), None)
    if kept is None:
        raise errors.NotRetained(height, f"run {standing.run!r} has ended, and its result is not kept any more")
    return control_commands.RunStanding(kept.id, kept.status, attached=True, data=kept.data), height


async def _after_revert(
    world: Handle, standing: control_commands.RunStanding, entry: journals.JournalEntry, origin: bytes
) -> control_commands.RunStanding:
    """How a run stands where its world was taken back to. `RunReverted` if it was not there."""
    step, to = user_values.load(tuple[int, int], await world_answers.payload_of(world.connection, entry))
    record = await listing.run_at(world, standing.run, to)
    # The id alone is not enough: a run of the same name may have been started with something else at that height.
    if record is None or origin not in (b"", runs.origin_of(record)):
        raise failures.RunReverted(
            f"run {standing.run!r} is gone: at height {entry.height}, world {world.name!r} was reverted to height {to} "
            f"(step {step}), where there was no such run; start it again, or fork the world where the run still was: "
            f"worldline fork {world.name} NAME --at {entry.height - 1}",
            to=to,
            height=entry.height,
        )
    return control_commands.RunStanding(record.id, record.status, attached=True, data=record.data)


async def result_of(world: Handle, end: RunCompletion, call: Call[R_co] | None) -> R_co:
    """What a run that has ended returned, or raise what it ended with. Without its call, as plain data."""
    standing = end.standing
    if standing.status is RunStatus.FINISHED:
        if call is None:
            plain: R_co = await client_desk.plain(world, standing.data)
            return plain
        result: R_co = await client_desk.opened(
            world, standing.data, lambda: call_checks.result_of(call, standing.data)
        )
        return result
    why = structs.decode(JournaledFailure, standing.data)
    said = f"run {standing.run!r}: {printable.shown(why.message)}"
    if standing.status is RunStatus.CANCELLED:
        raise failures.RunCancelled(said, code=why.code, data=why.data)
    # The reason comes through every run that waited for the one that was refused: callers get it as workflows do.
    kind = failures.TooManyRuns if why.code == failures.TooManyRuns.code else failures.RunFailed
    error = kind(said, code=why.code, data=why.data)
    await world_answers.add_trace(
        world.connection, await world.address(), error, TraceSource.RUN, step=end.step, run=standing.run
    )
    raise error
