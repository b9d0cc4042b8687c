"""Stores and processes for the tests of the roles.

A `Kit` is one fresh store. `process` opens a universe on it that hosts programs, with an engine of its own, as another
process would; `kill` ends it as kill -9 would: its engine is cut off first, so nothing of it is written any more, and
its lock is released as the system releases that of a dead process.

The environment is the real one with a wall clock that tests can move on, so that leases and claims run out at once.
PostgreSQL has a clock of its own; what is read from it is as far ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import worldline as wl
from tests.conformance import kits
from worldline.api.universe_api import Universe
from worldline.base import env_os, errors, limits
from worldline.client import connection
from worldline.client.run_handle import Run
from worldline.codec import digest, structs
from worldline.host.feature_list import FEATURES
from worldline.kernel import control_commands
from worldline.kernel import state_rows as kernel_snapshots
from worldline.kernel.machine import Machine, RunFinished
from worldline.keys import inbox as inbox_keys
from worldline.layers import inbox as inboxes
from worldline.layers import ready
from worldline.layers import snapshots as snapshot_layer
from worldline.layers import store_format as formats
from worldline.layers import work as works
from worldline.model import ids, inbox, journal
from worldline.model.journal import Kind
from worldline.model.settings import AdapterSettings, JanitorSettings, Settings, TimerSettings, WorkerSettings
from worldline.observe import sinks
from worldline.runtime import hint_scan, store_opening, world_restore
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, transact
from worldline.store.objects import folder_objects as objects_folder
from worldline.store.objects import memory_objects as objects_memory
from worldline.store.objects import objects_interface as objects

Wrap = Callable[[kv.Engine], Any]

LEASE_TTL_MS = 900
CLAIM_TTL_MS = 600

# Quick to notice what others did, and quick to let a dead one's leases run out.
SETTINGS = Settings(
    worker=WorkerSettings(lease_ttl_ms=LEASE_TTL_MS, heartbeat_ms=200, scan_ms=200),
    adapter=AdapterSettings(claim_ttl_ms=CLAIM_TTL_MS, renew_ms=150, scan_ms=150),
    timer=TimerSettings(scan_ms=150),
    janitor=JanitorSettings(prove_ms=0),  # tests count what user code does; proofs have tests of their own
)


def settings(**changes: dict[str, Any]) -> Settings:
    """`SETTINGS` with other values: `settings(worker={"max_inbox_batch": 7})`."""
    parts = {name: msgspec.structs.replace(getattr(SETTINGS, name), **values) for name, values in changes.items()}
    return msgspec.structs.replace(SETTINGS, **parts)


class Env(env_os.OsEnv):
    """The real environment, with a wall clock that can be moved on."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def wall_us(self) -> int:
        return super().wall_us() + self.ahead_us


class Cut:
    """An engine that can be cut off from its store: from then on every call fails and nothing is written."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.off = False

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self._check()
        found: kv.ReadResult = await self.engine.read(*requests)
        self._check()
        return found

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self._check()
        outcomes: list[kv.Outcome] = await self.engine.commit(*batches)
        self._check()
        return outcomes

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        self._check()
        return bool(await self.engine.wait(prefix, seen, timeout_ms))

    async def freeze(self) -> kv.Frozen:
        self._check()
        return await kv.freeze(self.engine)

    async def raise_stamps(self, above: kv.Stamp) -> None:
        self._check()
        await kv.raise_stamps(self.engine, above)

    async def durability(self) -> kv.Durability:
        found: kv.Durability = await self.engine.durability()
        return found

    async def close(self) -> None:
        await self.engine.close()

    def _check(self) -> None:
        if self.off:
            raise errors.StoreFailed("this process is dead")  # for good: nothing tries to reach it again


class Around:
    """An engine that passes everything on. Tests say what is different."""

    def __init__(self, engine: kv.Engine) -> None:
        self._engine = engine

    async def freeze(self) -> kv.Frozen:
        return await kv.freeze(self._engine)

    async def raise_stamps(self, above: kv.Stamp) -> None:
        await kv.raise_stamps(self._engine, above)

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        return await self._engine.commit(*batches)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()


class Ahead(Around):
    """An engine with a clock of its own, which `Kit.jump` moves on as it does the others'."""

    def __init__(self, engine: kv.Engine, env: Env) -> None:
        super().__init__(engine)
        self._env = env

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        found = await self._engine.read(*requests)
        return msgspec.structs.replace(found, time_us=found.time_us + self._env.ahead_us)


class Process:
    """A universe as one process has it."""

    def __init__(self, universe: Universe, cut: Cut) -> None:
        self.universe = universe
        self._cut = cut
        self._over = False

    @property
    def engine(self) -> kv.Engine:
        return self.universe._connection.store.engine

    @property
    def host(self) -> Any:
        assert self.universe._connection.host is not None
        return self.universe._connection.host

    async def kill(self) -> None:
        """End it as kill -9 would."""
        self._cut.off = True
        self._over = True
        host = self.universe._connection.host
        if host is not None:
            host.abandon()
            tasks = [loop._task for loop in host._loops if loop._task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await _ended(self.universe)
        await self._cut.close()

    async def close(self) -> None:
        """End it properly."""
        if not self._over:
            self._over = True
            try:
                await self.universe._connection.close()
            finally:
                await self._cut.close()


async def _ended(universe: Universe) -> None:
    with contextlib.suppress(errors.StoreError):  # it has no store to say goodbye to
        await universe._connection.close()


class Kit:
    def __init__(self, name: str, store: kits.Kit, env: Env, folder: Path) -> None:
        self.name = name
        self.env = env
        self.folder = folder
        self._store = store
        self._objects: objects.Objects | None = None
        self.in_store_bytes_max = 0
        self._processes: list[Process] = []

    def without_objects(self) -> None:
        """As a store is opened that has no objects: what is large is kept in the store itself."""
        self._objects = store_opening.NoObjects()
        self.in_store_bytes_max = limits.CHUNKED_BYTES_MAX

    @property
    def url(self) -> str:
        return "memory://" if self.name == "memory" else self._store.place.where

    async def engine(self) -> kv.Engine:
        """A bare engine on the store, to look at it with."""
        opened = await self._store.open()
        return Ahead(opened, self.env) if self.name == "postgres" else opened

    async def process(
        self,
        *programs: wl.Program,
        settings: Settings = SETTINGS,
        wrap: Wrap = lambda engine: engine,
        observed: sinks.Observed | None = None,
        watchdog: bool = False,
        universe: str = connection.DEFAULT_UNIVERSE,
        peers: dict[str, str] | None = None,
    ) -> Process:
        """Another process on this store. Without programs it is a client."""
        engine = await self.engine()
        await formats.ensure(engine, self.env, create=True)
        kept = self.in_store_bytes_max
        bare = store_opening.Store(self.url, engine, await self._bodies(), self.env, FEATURES, in_store_bytes_max=kept)
        found = await connection.find_universe(bare, universe, create=True)
        cut = Cut(wrap(engine))
        store = store_opening.Store(self.url, cut, bare.objects, self.env, FEATURES, in_store_bytes_max=kept)
        opened = connection.Connection(
            store,
            found,
            universe,
            list(programs),
            settings,
            observed=observed,
            watchdog=watchdog,
            peers=peers,
        )
        process = Process(Universe(opened), cut)
        self._processes.append(process)
        opened.start()
        return process

    @asynccontextmanager
    async def hosting(self, *programs: wl.Program, **options: Any) -> AsyncIterator[Universe]:
        """A process for the length of a block."""
        process = await self.process(*programs, **options)
        try:
            yield process.universe
        finally:
            await process.close()

    async def jump(self, seconds: float) -> None:
        """Let the store's clock move on."""
        self.env.ahead_us += int(seconds * 1_000_000)

    async def _bodies(self) -> objects.Objects:
        if self._objects is None:
            if self.name == "lmdb":
                self._objects = await objects_folder.open(self.folder / "objects", create=True)
            else:
                self._objects = objects_memory.MemoryObjects(self.env)
        return self._objects

    async def aclose(self) -> None:
        for process in self._processes:
            await process.kill() if not process._over else None
        if self._objects is not None:
            await self._objects.close()
        await self._store.aclose()


# --- Driving and looking -------------------------------------------------------------------------------------------


async def start(world: wl.World, call: wl.Call[Any], *, id: str) -> wl.Run[Any]:
    """`world.start` with a seed that depends on the id alone, so that two runs of a test draw the same."""
    seed = digest.sha256(id.encode())[:16]
    wanted = control_commands.StartRun(id, call.target.name, call.pack(), seed, named=True)
    data, since = await world._handle.command(control_commands.RUN, wanted)
    standing = structs.decode(control_commands.RunStanding, data)
    return Run(world._handle, id, call.target.name, standing, since=since, call=call)


async def begin(world: wl.World, call: wl.Call[Any], *, id: str) -> None:
    """Start a run and leave it to itself."""
    _ = await world.start(call, id=id)


def item(entry: journal.JournalEntry) -> inbox.Item:
    """The input that an entry records."""
    found: inbox.Item = structs.decode(inbox.Item, entry.payload)  # type: ignore[arg-type]
    return found


def item_of(raw: bytes) -> inbox.Item | None:
    """The inbox item that these bytes are, if they are one."""
    try:
        return inbox_keys.ITEM.unpack(raw)
    except errors.DecodeError:
        return None


async def run(world: wl.World, call: wl.Call[Any], *, id: str) -> Any:
    return await (await start(world, call, id=id)).result(30)


async def entries(world: wl.World) -> list[journal.JournalEntry]:
    return await world._handle.journal(limit=1_000_000)


def parts(machine: Machine) -> list[bytes]:
    """All of a machine's state, as it would be saved."""
    return kernel_snapshots.save(machine)


async def kinds(world: wl.World) -> list[Kind]:
    return [entry.kind for entry in await entries(world)]


async def unread(engine: kv.Engine, at: ids.Address) -> int:
    return len((await engine.read(inboxes.read_range(at, count_max=10_000))).page(0).items)


async def dead(engine: kv.Engine, at: ids.Address) -> list[inboxes.DeadLetterRecord]:
    return inboxes.decode_dead((await engine.read(inboxes.dead_range(at, count_max=1_000))).page(0).items)


async def opened(engine: kv.Engine, at: ids.Address) -> list[works.Open]:
    return works.decode_open(at, (await engine.read(works.open_range(at, count_max=10_000))).page(0))


async def hints(engine: kv.Engine, at: ids.Address) -> list[ready.Hint]:
    """The ready hints of a world, the most urgent and oldest first."""
    read = await engine.read(
        *(ready.read_range(at.universe, priority=each, count_max=10_000) for each in ready.PRIORITIES)
    )
    found = [ready.decode(at.universe, read.page(each), priority=each) for each in ready.PRIORITIES]
    return [hint for page in found for hint in page if hint.at == at]


def scan(universe: Universe) -> hint_scan.HintScan:
    return hint_scan.HintScan(
        universe._connection.store.engine, universe._connection.store.env, Universes.only(universe._connection.id)
    )


async def leave_hint(universe: Universe, at: ids.Address, *, priority: int = ready.NORMAL) -> None:
    """A hint for nothing."""
    key = b"\x50" + universe._connection.store.env.random_bytes(16)
    batch = kv.Batch()
    batch.absent(key)
    batch.put(key, b"")
    ready.leave(batch, at, priority=priority)
    assert isinstance(
        (await transact.commit(universe._connection.store.engine, universe._connection.store.env, batch))[0], kv.Ok
    )


class Ends(msgspec.Struct, frozen=True):
    """Everything about a finished world that must not depend on what happened to its hosts."""

    state: bytes
    cells: dict[tuple[str, str], bytes]
    runs: list[tuple[str, int, bytes]]
    answers: list[tuple[str, int]]
    letters: list[str]


async def ends(world: wl.World, engine: kv.Engine) -> Ends:
    """Where a world has got to. Receipts that were ignored do not count, whatever their number."""
    found = await entries(world)
    machine = await world._handle.machine()
    finished = [structs.decode(RunFinished, each.payload) for each in found if each.kind is Kind.RUN_FINISHED]
    answers: list[tuple[str, int]] = []
    ignored = {entry.step for entry in found if entry.kind is Kind.LATE_ANSWER}
    for entry in found:
        if entry.kind is Kind.EFFECT_RESULT and entry.step not in ignored:
            receipt = item(entry)
            assert isinstance(receipt, inbox.EffectReceipt)
            answers.append((receipt.correlation, receipt.status))
    return Ends(
        (await world.head()).state,
        {key: cell.data for key, cell in sorted(machine.cells.items())},
        sorted((each.run, each.status, each.data) for each in finished),
        answers,
        # In no order: a letter is filed under its stamp, and that depends on the way on which it came.
        sorted(letter.dead.reason for letter in await dead(engine, await world._handle.address())),
    )


async def prove(world: wl.World, program: wl.Program) -> journal.Head:
    """Replay the whole journal from the world's birth under the program and compare everything."""
    at, engine = await world._handle.address(), world._universe.store.engine
    read = await engine.read(snapshot_layer.latest_range(at, up_to=0))
    [birth] = snapshot_layer.decode(at, read.page(0))
    head = await world.head()
    material = await world_restore.gather(engine, world._universe.blobs, at, baseline=birth.record, up_to=head.height)
    restored = await asyncio.get_running_loop().run_in_executor(None, world_restore.build, material, program)
    restored.machine.close()
    assert restored.head == head
    return head
