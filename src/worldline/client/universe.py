"""A universe, from outside: its worlds, found, made and listed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from worldline.adapters.egress import Egress
from worldline.base import env as envs
from worldline.base import errors
from worldline.client import backpressure, known_worlds
from worldline.client.world import World
from worldline.host import compose, process
from worldline.kernel import snapshots as kernel_snapshots
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.layers import blobs as blob_layer
from worldline.layers import cas, universes, worlds
from worldline.model import ids
from worldline.model import journal as journals
from worldline.model import snapshot as snapshot_model
from worldline.model import world as world_model
from worldline.model.settings import Settings
from worldline.observe import sinks as observers
from worldline.roles import telemetry
from worldline.roles.world import no_asyncio, restore
from worldline.roles.world import reader as readers
from worldline.store import kv, transact


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
