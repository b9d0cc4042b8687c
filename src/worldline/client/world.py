"""A world, from outside: an input goes straight to a world held here, else into its inbox; answers are found in the
journal, so they survive whoever waited for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar

from worldline.base import errors
from worldline.client import answers, changes, delivery
from worldline.client.run import Run, Sent
from worldline.codec import structs
from worldline.kernel import commands, schedules, values
from worldline.kernel.authoring.calls import Call, Request, Seconds, to_us
from worldline.kernel.authoring.reducers import answer_type
from worldline.kernel.machine import Machine
from worldline.kernel.schedules import Scheduled
from worldline.layers import cas, worlds
from worldline.model import ids, inbox, payload
from worldline.model import journal as journals
from worldline.model import world as world_model
from worldline.model.journal import Kind
from worldline.roles.hub import Chunk
from worldline.roles.world import reader as readers
from worldline.roles.world import restore

if TYPE_CHECKING:
    from worldline.client.universe import Universe

R = TypeVar("R")
S = TypeVar("S")


class World:
    """A world, from outside."""

    def __init__(self, universe: Universe, name: str) -> None:
        self.universe = universe
        self.name = name
        self._at: ids.Address | None = None

    # --- Talking to it -------------------------------------------------------------------------------------------

    async def run(self, call: Call[R], /, *, id: str | None = None, timeout: Seconds | None = None) -> R:
        """Run a workflow and wait for its result. The same id attaches to the same run, or returns what it returned."""
        limit = None if timeout is None else to_us(timeout, "timeout") / 1_000_000
        wanted = self._wanted(call, id)
        async with asyncio.timeout(limit):
            with answers.expecting(self.universe, await self.address(), Kind.RUN_FINISHED, wanted.run) as finished:
                started = await self._start(call, wanted)
                with answers.durable():
                    return await started._result(finished)  # noqa: SLF001 - the other half of this

    async def start(self, call: Call[R], /, *, id: str | None = None) -> Run[R] | Any:
        """Start a workflow, or attach to the run of this id. The same id with other arguments is refused."""
        # `Any` as with `wl.start`: a type checker that reports what is not awaited lets a start stand alone.
        return await self._start(call, self._wanted(call, id))

    def _wanted(self, call: Call[Any], id: str | None) -> commands.StartRun:
        if call.target.kind != "workflow":
            raise errors.BadInput(f"{call!r} is an effect; a world runs workflows, which call effects")
        if id is not None:
            ids.check_chosen(id, "a run's id")
        env = self.universe.store.env
        run_id = id or env.random_bytes(8).hex()
        return commands.StartRun(run_id, call.target.name, call.pack(), env.random_bytes(16), named=id is not None)

    async def _start(self, call: Call[R], wanted: commands.StartRun) -> Run[R]:
        # A run that has not ended when the answer is given ends behind it.
        data, since = await self._command(commands.RUN, wanted)
        return Run(self, call, wanted.run, structs.decode(commands.Standing, data), since)

    async def attach(self, run_id: str, /) -> Run[Any]:
        """The run of this id, whatever it runs. `NotFound` if there is none."""
        machine, head = await self._machine(None)
        run = machine.runs.get(run_id)
        if run is None:
            raise errors.NotFound(f"world {self.name!r} has no run {run_id!r}")
        standing = commands.Standing(run_id, run.record.status, attached=True, data=run.record.data)
        return Run(self, None, run_id, standing, head.height)

    async def send(self, event: object, /, *, to: str | None = None, id: str | None = None) -> Sent:
        """Send an event. Durable on return; `await sent.applied()` to know that the world has taken it."""
        schema = values.schema_name(type(event))
        return await self.send_raw(schema, values.dump(event), to=to, id=id)

    async def send_raw(self, schema: str, data: bytes, *, to: str | None = None, id: str | None = None) -> Sent:
        if id is not None:
            ids.check_client_id(id)
        carried = payload.inline(data) if cas.is_small(data) else await self.universe.blobs.carry(data)
        item = inbox.Event(schema, carried, to or "")
        at = self._at or await self.address()
        return Sent(self, await delivery.deliver(self.universe, at, item, data, client_id=id))

    async def ask(self, request: Request[R], /, *, id: str | None = None, timeout: Seconds | None = None) -> R:
        """Ask the world and wait for its answer. `Refused` if that is the answer."""
        schema = values.schema_name(type(request))
        limit = None if timeout is None else to_us(timeout, "timeout") / 1_000_000
        async with asyncio.timeout(limit):
            data = await self.ask_raw(schema, values.dump(request), id=id)
        answer: R = values.load(answer_type(type(request)), data)
        return answer

    async def ask_raw(self, schema: str, data: bytes, *, id: str | None = None) -> bytes:
        if id is not None:
            ids.check_client_id(id)
        carried = await self.universe.blobs.carry(data)
        correlation = id or self.universe.store.env.random_bytes(16).hex()
        item = inbox.Event(schema, carried, correlation=correlation)
        answer, _ = await answers.ask(self.universe, await self.address(), item, data, correlation, client_id=id)
        return answer

    async def schedule(
        self, id: str, what: object, /, *, every: Seconds | None = None, cron: str | None = None, tz: str | None = None
    ) -> bool:
        """Let an event be raised, or a workflow started, again and again. False if it was scheduled just so already."""
        spec = schedules.spec_of(what, every=every, cron=cron, tz=tz)
        return bool(values.load(bool, await self.command(commands.SCHEDULE, schedules.Put(id, spec))))

    async def unschedule(self, id: str, /) -> bool:
        """End a schedule. False if there is none of this id."""
        return bool(values.load(bool, await self.command(commands.SCHEDULE, schedules.Put(id, None))))

    async def command(self, name: str, wanted: object) -> bytes:
        """Give a control input and wait for its answer."""
        return (await self._command(name, wanted))[0]

    async def _command(self, name: str, wanted: object) -> tuple[bytes, int]:
        data = structs.encode(wanted)
        carried = await self.universe.blobs.carry(data)
        correlation = self.universe.store.env.random_bytes(16).hex()
        item = inbox.Control(name, carried, correlation)
        return await answers.ask(self.universe, await self.address(), item, data, correlation)

    # --- Looking at it -------------------------------------------------------------------------------------------

    async def state(self, cls: type[S], key: str = "", *, at: int | None = None) -> S:
        """A copy of a reducer's state, now or at a height. Any method may be called on it; nothing comes of it."""
        machine, _ = await self._machine(at)
        found: S = machine.read_cell(cls, key)
        return found

    async def schedules(self) -> list[Scheduled]:
        """All schedules, with when each is due next."""
        return schedules.listed((await self._machine(None))[0])

    async def journal(self, *, above: int = 0, limit: int = 1_000) -> list[journals.Entry]:
        """Entries above a height."""
        engine, where = self.universe.store.engine, await self.address()
        top = await readers.head(engine, where)
        found = await restore.read_entries(engine, where, above=above, up_to=min(top.height, above + limit))
        loaded = await restore.load_referenced(self.universe.blobs, found)
        return [restore.filled(entry, loaded) for entry in found]

    async def follow(self, *, above: int | None = None) -> AsyncIterator[journals.Entry | Chunk]:
        """Entries as they are committed, from a height or from now on; and, where the world is hosted here, the pieces
        that its effects stream.
        """
        where = await self.address()
        async for each in answers.follow(self.universe, where, above):
            yield each

    async def head(self) -> journals.Head:
        return await readers.head(self.universe.store.engine, await self.address())

    async def describe(self) -> worlds.World:
        """The world's meta: program, status, labels."""
        at = await self.address()
        return worlds.decode(at, (await self.universe.store.engine.read(worlds.get(at))).value(0))

    async def machine(self, *, at: int | None = None) -> Machine:
        """The whole state, read-only: for tools."""
        return (await self._machine(at))[0]

    async def snapshot(self) -> int:
        """Save the state now, as the new baseline. Returns its step. Only where the world is hosted."""
        held = await delivery.hosted(self.universe, await self.address())
        if held is None or self.universe.host is None:
            raise errors.Closed("a snapshot is taken by the process that hosts the world; open it with host=")
        if held.entries_since:
            await self.universe.host.worlds.save_when_free(held)
        return held.baseline.step

    # --- Changing what it is ---------------------------------------------------------------------------------------

    async def change(self, *, status: world_model.Status | None = None, labels: dict[str, str] | None = None) -> None:
        """Pause, resume, archive or delete the world, or label it."""
        await changes.change(self.universe, await self.address(), status=status, labels=labels, alias=self.name)

    async def address(self) -> ids.Address:
        if self._at is None:
            read = await self.universe.store.engine.read(worlds.get_name(self.universe.id, self.name))
            found = worlds.named(self.universe.id, read.value(0))
            if found is None:
                raise errors.NotFound(f"no world {self.name!r} in universe {self.universe.name!r}")
            self._at = found
        return self._at

    async def _machine(self, height: int | None) -> tuple[Machine, journals.Head]:
        where = await self.address()
        if height is None:
            held = None if self.universe.host is None else self.universe.host.worlds.peek(where)
            if held is not None:
                await held.quiet()
                return held.machine, held.head
        meta = (await self.describe()).meta
        program = self.universe.programs.get(meta.program)
        if program is None:
            raise errors.NotFound(f"program {meta.program!r} is not known here; open the universe with it")
        reader = self.universe.reader(where, program)
        return await reader.latest() if height is None else await reader.at_height(height)
