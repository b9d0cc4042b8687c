"""What programs outside a world use: `open`, `Universe`, `World`, `Run`.

With `host=`, the process also runs worlds of those programs; without, it is a client that talks to worlds hosted
elsewhere through the store. Both see the same API: an input goes straight to a world held here, else into its inbox,
and answers are found in the journal, so they survive whoever waited for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from worldline.adapters.egress import Egress
from worldline.base import env as envs
from worldline.base import errors, failures
from worldline.client import backpressure, changes, delivery, known_worlds
from worldline.codec import structs
from worldline.host import compose, process
from worldline.kernel import commands, schedules, values
from worldline.kernel import snapshots as kernel_snapshots
from worldline.kernel.authoring.calls import Call, Request, Seconds, to_us
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.reducers import answer_type, check_request
from worldline.kernel.machine import Ended, Machine
from worldline.kernel.runs import Failure, RunStatus
from worldline.kernel.schedules import Scheduled
from worldline.layers import blobs as blob_layer
from worldline.layers import cas, universes, worlds
from worldline.model import ids, inbox, payload
from worldline.model import journal as journals
from worldline.model import snapshot as snapshot_model
from worldline.model import world as world_model
from worldline.model.journal import Kind
from worldline.model.settings import Settings
from worldline.observe import sinks as observers
from worldline.roles import telemetry
from worldline.roles.hub import Chunk
from worldline.roles.world import no_asyncio, restore
from worldline.roles.world import reader as readers
from worldline.store import kv, transact

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

DEFAULT_UNIVERSE = "default"
HOSTING = (*process.EMBEDDED, process.Role.JANITOR)  # the roles of a process that hosts, unless it is part of a cluster


@asynccontextmanager
async def open(
    url: str,
    /,
    *,
    host: Program | Sequence[Program] = (),
    universe: str = DEFAULT_UNIVERSE,
    objects: str | None = None,
    create: bool | None = None,
    settings: Settings | None = None,
    env: envs.Env | None = None,
    egress: Egress | None = None,
    sinks: observers.Sinks | None = None,
    metrics: str | None = None,
) -> AsyncIterator[Universe]:
    """Open a universe: a folder, or `postgresql://...`. `host=` runs worlds of these programs here.

    A store is created if this process hosts, or if `create` says so. `egress` says which hosts `wl.http.request` may
    reach from here: none, unless they are named. `sinks` are functions that are told what this process does; `metrics`
    is HOST:PORT where Prometheus finds the same as numbers.
    """
    programs = [host] if isinstance(host, Program) else list(host)
    wanted = bool(programs) if create is None else create
    with observers.observed(sinks, metrics=metrics) as observed:
        async with compose.store(url, create=wanted, objects_url=objects, env=env) as store:
            found = await _find_universe(store, universe, create=wanted)
            opened = Universe(
                store, found, universe, programs, settings or Settings(),
                egress=egress, observed=observed, roles=HOSTING,
            )  # fmt: skip
            opened.start()
            try:
                yield opened
            finally:
                await opened.close()


async def _find_universe(store: compose.Store, name: str, *, create: bool) -> ids.UniverseId:
    async def attempt() -> transact.Done[ids.UniverseId] | transact.Write[ids.UniverseId]:
        read = await store.engine.read(universes.get(name))
        found = universes.decode(read.value(0))
        if found is not None:
            return transact.Done(found)
        if not create:
            raise errors.NotFound(f"no universe {name!r} in this store")
        made = ids.UniverseId(envs.new_id(store.env))
        batch = kv.Batch()
        universes.create(batch, made, name=name, time_us=read.time_us)
        return transact.Write(batch, lambda _: made)

    return await transact.run(store.engine, store.env, attempt)


class Universe:
    """The worlds of one namespace."""

    def __init__(
        self, store: compose.Store, universe: ids.UniverseId, name: str, programs: Sequence[Program],
        settings: Settings, *, egress: Egress | None = None, observed: observers.Observed | None = None,
        roles: Sequence[process.Role] = process.EMBEDDED,
    ) -> None:  # fmt: skip
        self.name = name
        self.id = universe
        self.telemetry = telemetry.NOTHING if observed is None else observed.telemetry
        self.store = store = compose.told(store, self.telemetry)
        self.pressure = backpressure.Pressure(
            store.engine, store.env, universe, settings.pressure, telemetry=self.telemetry
        )
        self.recent = known_worlds.Recent(store.env)
        self._observed = observed
        self.levels_from(dict)
        self.settings = settings
        self.blobs = blob_layer.Blobs(store.engine, store.objects, store.env, universe)
        self.host: process.Host | None = None
        if programs:
            self.host = process.Host(
                store, universe, programs,
                blobs=self.blobs, settings=settings, egress=egress, telemetry=self.telemetry, roles=roles,
            )  # fmt: skip
        self.programs = {program.name: program for program in programs}
        self.readers = ThreadPoolExecutor(1, "worldline-reader", no_asyncio.refuse_asyncio)
        self._warm: dict[ids.Address, readers.Reader] = {}

    @property
    def metrics_port(self) -> int | None:
        """Where Prometheus finds metrics, if they are offered."""
        return None if self._observed is None else self._observed.port

    def levels_from(self, levels: Callable[[], dict[str, float]]) -> None:
        """For metrics: ask these roles, beside those of this universe's own host, how much there is now."""
        if self._observed is not None:
            self._observed.levels_from(lambda: self._levels() | levels())

    def _levels(self) -> dict[str, float]:
        levels = {} if self.host is None else self.host.levels()
        return levels | {"worldline_inputs_waiting": self.pressure.waiting}

    def start(self) -> None:
        if self.host is not None:
            self.host.start()

    async def close(self) -> None:
        try:
            if self.host is not None:
                await self.host.close()
        finally:
            for reader in self._warm.values():
                reader.close()
            self.readers.shutdown(wait=True)

    def world(self, name: str, /) -> World:
        """A world by name. Whether it exists shows when it is used."""
        return World(self, ids.check_name(name, "a world's name"))

    async def ensure(self, name: str, program: Program, /, *, labels: dict[str, str] | None = None) -> World:
        """The world of this name; made now if there is none. One of another program is refused."""
        try:
            return await self.create(name, program, labels=labels)
        except errors.Exists:
            world = self.world(name)
            meta = (await world.describe()).meta
            if meta.program != program.name:
                raise errors.Exists(
                    f"world {name!r} is one of program {meta.program!r}, not {program.name!r}"
                ) from None
            self.programs.setdefault(program.name, program)
            return world

    async def create(self, name: str, program: Program, /, *, labels: dict[str, str] | None = None) -> World:
        """A new world. `Exists` if the name is taken."""
        machine = Machine(program)
        parts = kernel_snapshots.save(machine)

        async def attempt() -> transact.Done[bool] | transact.Write[bool]:
            generation = universes.get_generation(self.id)
            read = await self.store.engine.read(worlds.get_name(self.id, name), generation)
            if read.value(0) is not None:
                return transact.Done(False)
            batch = kv.Batch()
            number = universes.decode_generation(read.value(1))
            digests = [cas.put_inline(batch, self.id, part, generation=number) for part in parts]
            root = cas.put_inline(batch, self.id, restore.root_bytes(digests), generation=number)
            baseline = snapshot_model.Snapshot(
                0, 0, journals.GENESIS.chain, root, sum(map(len, parts)), program.hash, read.time_us
            )
            at = ids.Address(self.id, ids.WorldId(envs.new_id(self.store.env)))
            worlds.create(
                batch, at, name=name, program=program.name, program_hash=program.hash, labels=labels or {},
                baseline=baseline, time_us=read.time_us,
            )  # fmt: skip
            return transact.Write(batch, lambda _: True)

        made = await transact.run(self.store.engine, self.store.env, attempt)
        if not made:
            raise errors.Exists(f"there is a world named {name!r} already")
        self.programs.setdefault(program.name, program)
        return self.world(name)

    async def list(self, *, label: str | None = None, limit: int = 50) -> list[world_model.WorldMeta]:
        """Worlds, newest first. `label` is `name` or `name=value`."""
        wanted, _, value = (label or "").partition("=")
        found: list[world_model.WorldMeta] = []
        before: ids.WorldId | None = None
        while len(found) < limit:
            read = await self.store.engine.read(worlds.newest_range(self.id, before=before, count_max=1_000))
            listed = worlds.listed(self.id, read.page(0))
            for at, meta in listed:
                before = at.world
                if not label or (wanted in meta.labels and (not value or meta.labels[wanted] == value)):
                    found.append(meta)
            if not read.page(0).more:
                break
        return found[:limit]

    def reader(self, at: ids.Address, program: Program) -> readers.Reader:
        reader = self._warm.get(at)
        if reader is None:
            reader = readers.Reader(self.store.engine, self.blobs, program, at, self.readers)
            self._warm[at] = reader
        return reader


class Sent:
    """An event that is durably on its way."""

    def __init__(self, world: World, sending: delivery.Sending) -> None:
        self._world = world
        self._sending = sending

    async def applied(self, timeout: Seconds | None = None) -> int:
        """The height at which the world has taken it."""
        limit = None if timeout is None else to_us(timeout, "timeout") / 1_000_000
        async with asyncio.timeout(limit):
            return await delivery.applied(self._world.universe, self._sending)


class Run(Generic[R_co]):
    """A workflow run, from outside."""

    def __init__(
        self, world: World, call: Call[R_co] | None, run_id: str, standing: commands.Standing, since: int
    ) -> None:
        self.id = run_id
        self._world = world
        self._call = call
        self._standing = standing
        self._since = since

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """What the run returned. `RunFailed` if it raised, `TimeoutError` if it takes longer."""
        limit = None if timeout is None else to_us(timeout, "timeout") / 1_000_000
        async with asyncio.timeout(limit):
            return await self._result(None)

    async def _result(self, finished: asyncio.Future[journals.Entry] | None) -> R_co:
        """The same; `finished` is told of the end, if it was asked for before the start."""
        if self._standing.status in (RunStatus.RUNNING, RunStatus.BLOCKED):
            universe, at = self._world.universe, await self._world.address()
            entry = await delivery.entry(universe, at, Kind.RUN_FINISHED, self.id, self._since, expected=finished)
            ended = structs.decode(Ended, await delivery.payload_of(universe, entry))
            self._standing = commands.Standing(self.id, ended.status, attached=True, data=ended.data)
        return self._decode(self._standing)

    async def cancel(self, reason: str = "") -> None:
        """Cancel it where it waits. Returns when that is journaled, not when the run has ended."""
        await self._world.command(commands.CANCEL, commands.CancelRun(self.id, reason))

    def __await__(self) -> Generator[Any, Any, R_co]:
        return self.result().__await__()

    def _decode(self, standing: commands.Standing) -> R_co:
        if standing.status is RunStatus.FINISHED:
            if self._call is None:
                found: R_co = values.load(Any, standing.data)
                return found
            result: R_co = self._call.target.signature.result(standing.data)
            return result
        why = structs.decode(Failure, standing.data)
        kind = failures.RunCancelled if standing.status is RunStatus.CANCELLED else failures.RunFailed
        raise kind(f"run {self.id!r}: {why.message}", code=why.code, data=why.data)


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
            with delivery.expecting(self.universe, await self.address(), Kind.RUN_FINISHED, wanted.run) as finished:
                started = await self._start(call, wanted)
                with delivery.durable():
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
        check_request(type(request))
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
        answer, _ = await delivery.ask(self.universe, await self.address(), item, data, correlation, client_id=id)
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
        return await delivery.ask(self.universe, await self.address(), item, data, correlation)

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
        async for each in delivery.follow(self.universe, where, above):
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
