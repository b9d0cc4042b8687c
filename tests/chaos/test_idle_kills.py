"""Idle hosts, killed with kill -9 and started again: nothing is counted, nothing is a dead letter, no run is blocked.

Real processes hold a few worlds whose runs and timers wait for times far away. A host that starts takes no world
without a reason, so each gets a hint for nothing: it is restored, and makes no step. With a crash budget of 1, whatever
is counted shows. The options `idle_kills_lmdb` and `idle_kills_postgres` say how often hosts are killed: less often on
PostgreSQL, where a dead host's worlds are free only when its lease has run out.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import worldline as wl
from tests import aio, options
from tests.chaos import idle_app, opening
from tests.chaos.processes import Crew, Nursery, Process
from tests.kits import kit as kits
from tests.servers import postgres
from tests.store import postgres_kit
from worldline.api.universe_api import Universe
from worldline.inspect import why
from worldline.layers import trial as trials
from worldline.model import ids
from worldline.model.journal import Kind
from worldline.model.leases import CrashTrial, HolderActivity
from worldline.runtime import world_holders

UP = ("up", "FILE", "--lease-ttl", "0.5", "--scan", "0.1", "--crash-budget", "1")
NAMES = ("sleeps", "waits", "calls")
SECONDS = 120.0


class Field:
    """One store, one host after the other, and a client that looks."""

    def __init__(self, crew: Crew, universe: Universe) -> None:
        self.crew = crew
        self.universe = universe
        self._at: dict[str, ids.Address] = {}
        self._epochs: dict[str, int] = {}  # of the host before

    async def begin(self) -> None:
        """Worlds with runs that wait, and one input behind them."""
        flows = {"sleeps": idle_app.sleeps(), "waits": idle_app.waits(), "calls": idle_app.calls(1)}
        host = await self.start()
        for name in NAMES:
            world = await self.universe.ensure(name, idle_app.app)
            self._at[name] = await world._handle.address()
            await kits.begin(world, flows[name], id="r")
            assert await world.ask(idle_app.Add(1), timeout=SECONDS) == 1
        await aio.until(self._tried, seconds=SECONDS)
        await self.idle(host)
        await self.crew.kill(host)

    async def _tried(self) -> bool:
        return [each.attempt for each in await self.universe.world("calls").effects()] == [1]

    async def start(self) -> Process:
        host = self.crew.start("host", *UP)
        await host.wait_ready()
        return host

    async def touch(self) -> None:
        """Have every world taken, by a hint for nothing."""
        for at in self._at.values():
            await kits.leave_hint(self.universe, at)

    async def idle(self, host: Process) -> None:
        """The host holds every world, has restored it, and has nothing to do."""

        async def held() -> bool:
            assert host.alive, host.said
            for name, at in self._at.items():
                found = await self.trial(at)
                holder = await world_holders.find(self.universe._connection.store, at)
                if holder is None or holder.epoch <= self._epochs.get(name, 0):
                    return False
                if found is not None and found.running is not HolderActivity.NOTHING:
                    return False
                epochs[name] = holder.epoch
            return True

        epochs: dict[str, int] = {}
        await aio.until(held, seconds=SECONDS)
        self._epochs = epochs

    async def trial(self, at: ids.Address) -> CrashTrial | None:
        return trials.decode_trial((await self.universe._connection.store.engine.read(trials.get(at))).value(0))

    async def check(self) -> None:
        """Nothing was counted, and nothing has happened."""
        for name, at in self._at.items():
            found = await self.trial(at)
            assert found is None or (found.step_deaths, found.restore_deaths) == (0, 0), (name, found)

    async def check_whole(self, heads: dict[str, wl.Head]) -> None:
        """The journals are as they were; no dead letters, no blocked runs; what waits still waits."""
        engine = self.universe._connection.store.engine
        for name, at in self._at.items():
            world = self.universe.world(name)
            assert await world.head() == heads[name], name
            assert await kits.dead(engine, at) == []
            assert Kind.POISON not in await kits.kinds(world)
            assert [await run.status() for run in await world.runs()] == [wl.RunStatus.RUNNING]
            assert [each.kind for each in (await why.why(world._handle)).reasons if each.stuck] == []
            assert len(await kits.opened(engine, at)) == 1
            assert (await world.describe()).status is wl.Status.ACTIVE

    async def heads(self) -> dict[str, wl.Head]:
        return {name: await self.universe.world(name).head() for name in NAMES}


async def killed(nursery: Nursery, url: str, folder: Path, *, kills: int) -> None:
    crew = Crew(nursery, url, folder, file=Path(idle_app.__file__))
    universe = await opening.recorded(url, crew.objects, knows=[idle_app.app])
    field = Field(crew, universe)
    try:
        await field.begin()
        heads = await field.heads()
        for _ in range(kills):
            host = await field.start()
            await field.touch()
            await field.idle(host)
            await field.check()
            await crew.kill(host)
        await field.check_whole(heads)
        host = await field.start()
        async with asyncio.timeout(SECONDS):
            for name in NAMES:
                assert await universe.world(name).ask(idle_app.Add(1)) == 2
            await universe.world("waits").send(idle_app.Go("ann"))
            assert await (await universe.world("waits").attach("r")).result() == "ann"
        await field.check()
        await crew.end()
    finally:
        crew.close()
        await opening.close(universe)


async def test_on_a_folder(nursery: Nursery, tmp_path: Path) -> None:
    await killed(nursery, str(tmp_path / "store"), tmp_path / "crew", kills=options.number("idle_kills_lmdb"))


async def test_on_postgres(nursery: Nursery, tmp_path: Path) -> None:
    url = postgres.shared().url(schema=postgres_kit.fresh_schema())
    await killed(nursery, url, tmp_path / "crew", kills=options.number("idle_kills_postgres"))
