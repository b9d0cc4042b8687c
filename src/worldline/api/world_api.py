"""A world, from outside: what users send it, ask it, read of it and change about it, with their own types.

An input goes straight to a world held in this process, else into its inbox. Answers are entries of the journal, so they
survive the process that waits for them.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, overload

from worldline.api import cell_reads
from worldline.base import errors
from worldline.client import (
    client_desk,
    dead_letters,
    halted_runs,
    journal_entry,
    listing,
    open_effects,
    send_door,
    time_limits,
    world_answers,
    world_changes,
)
from worldline.client import snapshot_calls as saved_states
from worldline.client.connection import Connection
from worldline.client.dead_letters import DeadLetter
from worldline.client.halted_runs import OnBlocked
from worldline.client.journal_entry import Entry
from worldline.client.open_effects import OpenEffect
from worldline.client.run_handle import Run, Sent, ended, result_of
from worldline.client.snapshot_calls import SnapshotRecord
from worldline.client.world_handle import Handle
from worldline.codec import printable, structs
from worldline.features.anchors.calls import Anchored
from worldline.features.copies import calls as copy_calls
from worldline.features.copies.world_export import Exported
from worldline.features.deletion import calls as deletion_calls
from worldline.features.diff import calls as diff_calls
from worldline.features.diff.records import Diff
from worldline.features.domains.calls import Acts
from worldline.features.erasure import calls as erasing
from worldline.features.erasure.calls import Erasure
from worldline.features.forks import calls as forks
from worldline.features.forks import revert_calls as reverts
from worldline.features.forks import script_rules
from worldline.features.forks.revert_calls import Reverted
from worldline.features.shadow import calls as shadow_calls
from worldline.features.shadow.pure.shadow_report import ShadowReport
from worldline.flow_core.authoring.document_domain import Document
from worldline.kernel import control_commands, runs, schedules, user_values
from worldline.kernel import event_dispatch as envelopes
from worldline.kernel.authoring import call_checks, schedule_spec
from worldline.kernel.authoring.calls import Call, Request, Seconds
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.reducers import check_request
from worldline.kernel.rows.row_records import RunStatus
from worldline.kernel.schedules import Scheduled
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model import journal as journals
from worldline.model.journal import Kind
from worldline.model.work import WorkState
from worldline.model.world_records import Lineage, Status, WorldMeta
from worldline.runtime.feature import parts_of
from worldline.runtime.live_hub import Chunk

log = printable.logger("worldline")

R = TypeVar("R")
S = TypeVar("S")
Effects: TypeAlias = Literal["drop", "reissue", "share", "script"]


class World(Acts, Anchored):
    """A world, from outside."""

    def __init__(self, connection: Connection, name: str, *, program: str = "") -> None:
        super().__init__(Handle(connection, name, program))
        self._universe = connection
        self._taken: dict[str, None] = {}  # schemas of events of which it is known whether the program takes them

    @property
    def name(self) -> str:
        """Its name in the universe."""
        return self._handle.name

    def __repr__(self) -> str:
        return f"World({self.name!r}, universe={self._universe.name!r})"

    # --- Talking to it -------------------------------------------------------------------------------------------

    async def run(
        self,
        call: Call[R],
        /,
        *,
        id: str | None = None,
        timeout: Seconds | None = None,
        on_blocked: OnBlocked | None = None,
        correlation: str | None = None,
    ) -> R:
        """Run a workflow and wait for its result. The same id attaches to the same run, or returns what it returned.

        `TimeoutError` if it takes longer, `NotHosted` if no process has run the world for too long: the run goes on, or
        starts when one does, and the same id finds it again. `RunReverted` if the world is taken back meanwhile.
        `RunBlocked` if the run waits for a person (`Run.result`): at once with `on_blocked="raise"`, never with
        `"wait"`, else after `Settings.blocked_wait_ms`.
        """
        halted_runs.check(on_blocked)
        wanted: control_commands.StartRun | None = None

        def late(limit: str) -> str:
            return time_limits.of_run(self._handle, "" if wanted is None else wanted.run, limit)

        async with time_limits.Within(timeout, late):
            # The id is chosen now, so that a timeout can name the run.
            wanted = await self._wanted(call, id, correlation=correlation)
            at = await self._handle.address()
            # Before the start: a short run ends in the step that starts it, and may be told before the answer is.
            with world_answers.expecting(self._universe, at, Kind.RUN_FINISHED, wanted.run) as finished:
                standing, since = await self._start(wanted)
                with world_answers.Durable():  # the run is started: from here on no error may say that it was not
                    end = await ended(
                        self._handle,
                        standing,
                        since=since,
                        origin=_origin(wanted),
                        expected=finished,
                        on_blocked=on_blocked,
                        attached=standing.attached,
                    )
                    return await result_of(self._handle, end, call)

    async def start(self, call: Call[R], /, *, id: str | None = None, correlation: str | None = None) -> Run[R]:
        """Start a workflow, or attach to the run of this id. The same id with other arguments is refused.

        `correlation`: what you call what it belongs to, an order for example. Its child runs have it too, and so do
        the messages that it sends, the receipts of its effects (`wl.attempt().correlation` in the effect) and spans.
        """
        wanted = await self._wanted(call, id, "world.start()", correlation=correlation)
        standing, since = await self._start(wanted)
        origin = _origin(wanted)  # tells this run from another of the same id, after a revert
        return Run(self._handle, wanted.run, wanted.workflow, standing, since=since, call=call, origin=origin)

    async def _wanted(
        self, call: Call[Any], id: str | None, what: str = "world.run()", *, correlation: str | None = None
    ) -> control_commands.StartRun:
        call_checks.check_call(call, what)
        # Before anything is sent: a call of another program is a mistake of the caller, and is said here.
        call_checks.check_workflow(call, what, program=await self._handle.program(), world=self.name)
        if id is not None:
            # An id of the caller's is typed in commands, so it must be one that can be.
            ids.check_chosen(id, "a run's id")
        env = self._universe.store.env
        run_id = id or env.random_bytes(8).hex()
        args = await client_desk.deliver_sealed(
            self._handle, call.pack_checked, client_desk.as_it_is, id=f"run {run_id}"
        )
        return control_commands.start_run(
            run_id,
            call.target.name,
            args,
            env.random_bytes(16),
            named=id is not None,
            correlation_id=ids.check_correlation(correlation),
        )

    async def _start(self, request: control_commands.StartRun) -> tuple[control_commands.RunStanding, int]:
        # A run that has not ended when the answer is given ends behind it.
        data, since = await self._handle.command(control_commands.RUN, request)
        return structs.decode(control_commands.RunStanding, data), since

    async def attach(self, run_id: str, /) -> Run[Any]:
        """Find the run of this id, whatever it runs. `NotFound` if there is none."""
        for run in await self.runs():
            if run.id == run_id:
                return run
        raise errors.NotFound(f"world {self.name!r} has no run {run_id!r}")

    async def runs(self, *, status: RunStatus | None = None) -> list[Run[Any]]:
        """List the runs that the world keeps, the newest first. Runs without an id of yours are forgotten some time
        after their end.
        """
        if status is not None and not isinstance(status, RunStatus):
            raise errors.BadInput(f"status must be a worldline.RunStatus, not {status!r}")
        found, height = await listing.runs(self._handle)
        return [
            Run(
                self._handle,
                each.id,
                each.workflow,
                since=height,
                origin=runs.origin_of(each),
                standing=control_commands.RunStanding(each.id, each.status, attached=True, data=each.data),
            )
            for each in found
            if status in (None, each.status)
        ]

    async def effects(self, *, state: WorkState | None = None) -> list[OpenEffect]:
        """List the calls of effects that have no answer yet, the newest first. Those that are parked stay so until they
        are retried or answered.
        """
        return await open_effects.effects(self._handle, state=state)

    async def effect(self, id: str, /) -> OpenEffect:
        """Find the open effect of this id, or whose id begins so. `NotFound` if there is none."""
        return await open_effects.effect(self._handle, id)

    async def send(
        self,
        event: object,
        /,
        *,
        to: str | None = None,
        id: str | None = None,
        inbox: str | None = None,
        headers: Mapping[str, str] | None = None,
        correlation: str | None = None,
    ) -> Sent:
        """Send an event. Durable on return; `await sent.applied()` to know that the world has taken it.

        `correlation`: what you call what it belongs to, an order for example. It is journaled with the event. A run
        that a handler starts because of it has it, as if it had been started with it; and spans show it.

        `inbox`: any value goes to the inbox of this name instead, as an envelope with these `headers`.
        """
        correlation_id = ids.check_correlation(correlation)
        if inbox is None:
            if headers is not None:
                raise errors.BadInput("headers go with an envelope: name an inbox= for it")
            schema, write = user_values.schema_name(type(event)), functools.partial(user_values.dump, event)
        elif to is not None:
            raise errors.BadInput("a message for an inbox is for no single run: leave out to=")
        else:
            schema = envelopes.ENVELOPE
            write = functools.partial(_envelope, inbox, event, headers)

        def deliver(data: bytes) -> Awaitable[send_door.Sending]:
            return self._handle.send(schema, data, to=to, id=id, correlation_id=correlation_id)

        sending = await client_desk.deliver_sealed(self._handle, write, deliver, id=id)
        # Looked at once for each event: a send must not read the program each time.
        if (schema if inbox is None else f"inbox:{inbox}") not in self._taken:
            await self._warn_if_untaken(schema, inbox)
        return Sent(self._universe, sending, world=self._handle.name, event=schema)

    async def _warn_if_untaken(self, schema: str, inbox: str | None) -> None:
        """Say once of an event that nothing in the world's program can take it, if the program is known here."""
        name = schema if inbox is None else f"inbox:{inbox}"
        self._taken[name] = None  # before the first await: of many sends at once, only one may warn
        try:
            program = self._universe.programs.get(await self._handle.program()) if self._universe.programs else None
        except errors.Error:  # the event is acked: a store that fails now must not make the caller send it again
            del self._taken[name]  # looked at again with the next send
            return
        # A warning and no error: the program that hosts the world may be newer than this one.
        if program is not None and not program.takes(schema, inbox=inbox):
            log.warning(
                "%s was sent to world %r, and nothing in its program %r takes it: it becomes a dead letter; declare a "
                "handler with @wl.on, or wl.wait for it in a workflow; then type `worldline dead retry %s --all`",
                schema if inbox is None else f"a message for inbox {inbox!r}",
                self.name,
                program.name,
                shlex.quote(self.name),
            )

    async def ask(
        self,
        request: Request[R],
        /,
        *,
        id: str | None = None,
        timeout: Seconds | None = None,
        correlation: str | None = None,
    ) -> R:
        """Ask the world and wait for its answer. `Refused` if that is the answer, `TimeoutError` if it takes longer,
        `NotHosted` if no process has run the world for too long: the request stays in its inbox.
        """
        check_request(type(request))
        correlation_id = ids.check_correlation(correlation)
        schema = user_values.schema_name(type(request))
        write = functools.partial(user_values.dump, request)

        def deliver(data: bytes) -> Awaitable[bytes]:
            return self._handle.ask(schema, data, id=id, correlation_id=correlation_id)

        def late(limit: str) -> str:
            return time_limits.of_request(self._handle, schema, id, limit)

        async with time_limits.Within(timeout, late):
            data = await client_desk.deliver_sealed(self._handle, write, deliver, id=id)
            answer: R = await client_desk.opened(self._handle, data, lambda: call_checks.answer_of(type(request), data))
        return answer

    async def schedule(
        self, id: str, what: object, /, *, every: Seconds | None = None, cron: str | None = None, tz: str | None = None
    ) -> bool:
        """Let an event be raised, or a workflow started, again and again. False if it was scheduled just so already."""
        spec = schedule_spec.spec_of(what, every=every, cron=cron, tz=tz)
        if not spec.starts:
            # At once: a schedule would raise what is refused again and again.
            envelopes.check_outside(spec.name, spec.data)
        answer, _ = await self._handle.command(control_commands.SCHEDULE, schedules.ScheduleChange(id, spec))
        return bool(user_values.load(bool, answer))

    async def unschedule(self, id: str, /) -> bool:
        """End a schedule. False if there is none of this id."""
        answer, _ = await self._handle.command(control_commands.SCHEDULE, schedules.ScheduleChange(id, None))
        return bool(user_values.load(bool, answer))

    async def trigger(self, id: str, /) -> str | None:
        """Let a schedule happen now, once, besides its times, which stay. `NotFound` if there is none of this id.

        Returns the id of the run that it started, for `attach`; None if it raises an event.
        """
        answer, _ = await self._handle.command(control_commands.TRIGGER, schedules.Trigger(id))
        started: str | None = user_values.load(str | None, answer)
        return started

    # --- Looking at it -------------------------------------------------------------------------------------------

    @overload
    async def state(self, *, at: int | None = None) -> dict[str, dict[str, Any]]: ...
    @overload
    async def state(self, cls: type[S], key: str = "", *, at: int | None = None) -> S: ...
    @overload
    async def state(self, cls: Document, key: str = "", *, at: int | None = None) -> dict[str, Any]: ...
    async def state(self, cls: type[S] | Document | None = None, key: str = "", *, at: int | None = None) -> Any:
        """Return a copy of a reducer's or a flow domain's state, now or at a height. Calling its methods does not
        change the world.

        Without a class: all cells as plain data, by reducer and key, which needs no program. That is in memory at once,
        and so are all rows while they are read: of a world with very many cells, read those that are needed.
        `CellUnfit` if the class does not take the cell's data.
        """
        if cls is None:
            return await cell_reads.plain(self._handle, at=at)
        return await cell_reads.typed(self._handle, cls, key, at=at)

    async def diff(self, other: World | None = None, /, *, at: int | None = None, to: int | None = None) -> Diff:
        """Compare this world with another that has a common ancestor with it, or two heights of this one.

        `at`: the height of this world, the left side. `to`: the height of the other, the right side. Each is at its
        head if no height is given. A height inside a step means the step end below it.
        """
        if other is None and at is None and to is None:
            raise errors.BadInput("a world is compared with another world, or with itself at a height: pass at= or to=")
        right = self if other is None else other
        if not isinstance(right, World):
            raise errors.BadInput(f"a world is compared with a world, not {right!r}; heights are given by at= and to=")
        return await diff_calls.diff(self._handle, right._handle, at=at, to=to)  # noqa: SLF001 - of this class

    async def dead(self, *, oldest_first: bool = False) -> AsyncIterator[DeadLetter]:
        """List the inputs that it could not take, the newest first. Each has `retry()` and `drop()`."""
        at = await self._handle.address()
        async for letter in dead_letters.of_world(self._universe, at, self.name, oldest_first=oldest_first):
            yield letter

    async def retry_dead(self) -> int:
        """Put all its dead letters back into its inbox, in the order in which they came. Returns how many."""
        return await dead_letters.retry_all(self._universe, await self._handle.address())

    async def drain_dead(self) -> AsyncIterator[DeadLetter]:
        """Yield its dead letters, the oldest first. Each is deleted when the next is asked for: one whose handling
        raises stays.
        """
        async for letter in dead_letters.drain(self._universe, await self._handle.address(), self.name):
            yield letter

    async def schedules(self) -> list[Scheduled]:
        """List all schedules, with when each is due next."""
        return schedules.listed(await self._handle.machine())

    async def journal(self, *, above: int | None = None, limit: int = 1_000) -> list[Entry]:
        """Read entries above a height; without one, from the first that is kept on."""
        return [journal_entry.of(each) for each in await self._handle.journal(above=above, limit=limit)]

    @overload
    def follow(self, *, above: int | None = None) -> AsyncIterator[Entry | Chunk]: ...
    @overload
    def follow(self, *, above: int | None = None, snapshots: bool) -> AsyncIterator[Entry | Chunk | SnapshotRecord]: ...
    async def follow(
        self, *, above: int | None = None, snapshots: bool = False
    ) -> AsyncIterator[Entry | Chunk | SnapshotRecord]:
        """Yield entries as they are committed, from a height or from now on; and, where the world is hosted here, the
        pieces that its effects stream. `snapshots`: also each state that is saved, as a `SnapshotRecord` behind the
        entries up to it.
        """
        followed = saved_states.follow(self._handle, above) if snapshots else self._handle.follow(above=above)
        async for each in followed:
            yield journal_entry.of(each) if isinstance(each, journals.JournalEntry) else each

    async def snapshots(self) -> list[SnapshotRecord]:
        """List the states that are saved, the oldest first; of a fork, those of the world that it comes from, too."""
        return await saved_states.records(self._handle)

    async def head(self) -> journals.Head:
        """Read where its journal ends: step, height, digests, logical time."""
        return await self._handle.head()

    async def describe(self) -> WorldMeta:
        """Read its name, program, status and labels."""
        return (await self._handle.describe()).meta

    async def shadow(self, program: Program, /, *, last: int | None = None) -> ShadowReport:
        """Try other code on the last steps of the world, and say what would differ under it.

        The code gets the world's rows as they were and the recorded inputs since, answers of effects included; nothing
        is written, no effect is called. `last`: so many steps; else as many as the store still has, up to 1,000.
        """
        store = self._universe.store
        described = await self._handle.describe()
        return await shadow_calls.try_out(
            store.engine, self._universe.blobs, store.env, described, program, parts=parts_of(store.features), last=last
        )

    async def snapshot(self) -> int:
        """Save the state now, as the new baseline. Returns its step. Only where the world is hosted."""
        held = await send_door.hosted(self._universe, await self._handle.address())
        # The state is in the memory of the holder: no other process can save it.
        if held is None or self._universe.host is None:
            raise errors.Closed("a snapshot is taken by the process that hosts the world; open it with host=")
        if held.entries_since:  # nothing has happened since the last one: it is the state of now
            await self._universe.host.worlds.save_when_free(held)
        return held.baseline.step

    # --- Branching it --------------------------------------------------------------------------------------------

    async def fork(
        self,
        name: str,
        /,
        *,
        at: int | None = None,
        before: str | None = None,
        snapshot: str | None = None,
        effects: Effects = "drop",
        script: script_rules.Given | None = None,
        live: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> World:
        """Make a world of its own that goes on where this one is now, at the step end at or below a height, or `before`
        something happened last: "effect charge", "event Approved". `snapshot`: at a saved state, by its hash or the
        beginning of it. One commit, whatever the size of the world.

        The fork is dry: what its runs ask for is answered by the script, or waits for you; `live=True` lets effects and
        messages out. `effects` says what becomes of those that are open now: "drop" cancels them, "reissue" asks for
        them again, "share" gives the fork the answers that this world gets, "script" answers them from the script.
        """
        if snapshot is not None:  # a snapshot is named by its content, and a fork is made at a height
            at = await forks.height_of_snapshot(self._handle, snapshot, at=at, before=before)
        wanted = functools.partial(
            forks.wanted,
            name,
            at=at,
            effects=effects,
            live=live,
            script=script,
            labels=labels,
            connection=self._universe,
            before=before,
        )
        await forks.fork(self._handle, lambda program: wanted(program=program))
        return World(self._universe, name)  # a handle by the new name: the fork is a world like any other

    async def revert(self, to: int, /, *, effects: Literal["drop", "reissue"] = "drop") -> Reverted:
        """Set the state to what it was at the step end at or below a height. The journal goes on, and says so.

        What is open now is closed; what was open then is cancelled, or with "reissue" asked for again. Returns what had
        left the world since then: that has happened. To keep both histories, `fork` it there instead.
        """
        return await reverts.revert_to(self._handle, to, effects)

    async def erase(self, *, key: str | None = None, height: int | None = None, dry_run: bool = False) -> Erasure:
        """Erase personal values for good: all `wl.Personal(..., of=key)`, or those in the payload at a height.

        They go at once, here and in every world that has a history in common with this one; each says so in its journal
        when it next runs. Journals, digests and proofs stay as they are, and readers find `wl.errors.Erased`. Erasing
        again changes nothing. `dry_run`: only say what would go.
        """
        return await erasing.erase(self._handle, key=key, height=height, dry_run=dry_run)

    async def export(self, path: str | os.PathLike[str], /) -> Exported:
        """Write all of it into a file, as it is at this moment: `Universe.import_world` makes a world of that."""
        return await copy_calls.export(self._handle, path)

    async def lineage(self) -> Lineage | None:
        """Say where it was forked, and how; None if it was not."""
        at = await self._handle.address()
        return history_line.decode_lineage((await self._universe.store.engine.read(history_line.get(at))).value(0))

    # --- Changing what it is ---------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop running it. It goes on taking input, and resumes where it stopped."""
        await self.change(status=Status.PAUSED)

    async def resume(self) -> None:
        """Run it again: a paused or archived world becomes active."""
        await self.change(status=Status.ACTIVE)

    async def archive(self) -> None:
        """Stop running it and refuse input. It stays readable, and can be resumed."""
        await self.change(status=Status.ARCHIVED)

    async def delete(self, *, wait: bool = False, after_forks: bool = False) -> None:
        """Delete it for good, and free its name. From then on there is no such world; what it had is removed by the
        janitors of processes that host worlds, or with `wait` here, before this returns.

        `InUse` while forks have no state of their own yet and need its history; `after_forks` waits for them.
        """
        at = await self._handle.address()
        await deletion_calls.delete(self._universe, at, alias=self.name, wait=wait, after_forks=after_forks)

    async def change(self, *, status: Status | None = None, labels: dict[str, str] | None = None) -> None:
        """Change its status, replace its labels, or both in one commit."""
        await world_changes.change(self._universe, await self._handle.address(), status=status, labels=labels)


def _origin(request: control_commands.StartRun) -> bytes:
    return runs.origin(request.workflow, request.args)


def _envelope(inbox: str, event: object, headers: Mapping[str, str] | None) -> bytes:
    return envelopes.sealed(inbox, user_values.dump(event), headers)[1]
