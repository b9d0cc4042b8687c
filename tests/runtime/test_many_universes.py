"""Many universes in one process: they run, fail over, come and go; idle ones cost nothing, busy ones starve none."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import fixtures as roles_conftest
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.many import Add, App, Counting, Counts, Served, Total, serving
from worldline.codec import tuples
from worldline.features.deletion import universe_job as universe_deletions
from worldline.keys import cas, space
from worldline.keys import universes as universe_keys
from worldline.layers import leases
from worldline.model import ids
from worldline.model.roles import ALL, EMBEDDED, HOSTING, Role
from worldline.runtime import placement
from worldline.runtime.universes import fair_turns
from worldline.store import kv

PATIENT = kits.settings(
    worker={"lease_ttl_ms": 20_000, "heartbeat_ms": 5_000}, adapter={"claim_ttl_ms": 20_000, "renew_ms": 5_000}
)


async def total(universe: wl.Universe, world: str = "w") -> int:
    return await universe.world(world).ask(Total(), timeout=30)


# --- Running ---------------------------------------------------------------------------------------------------------


async def test_worlds_of_many_universes_run_in_one_process(kit: Kit) -> None:
    """Inputs, timers and effects, from this process and from others; one worker for all."""
    app = App()
    async with serving(kit, app.program, settings=PATIENT) as here:
        tenants = [await here.universe(f"t{number}") for number in range(12)]
        for number, tenant in enumerate(tenants):
            world = await tenant.create("w", app.program)
            await world.send(Add(number))
        client = await kit.process(universe="t3")
        await client.universe.world("w").send(Add(100))
        assert await client.universe.world("w").ask(Total(), timeout=30) == 103
        found = [await total(tenant) for tenant in tenants]
        assert found == [number + (100 if number == 3 else 0) for number in range(12)]
        runs = [await tenant.world("w").start(app.work(tenant.name, 1, 0.05), id="r") for tenant in tenants]
        assert [await run.result(30) for run in runs] == [tenant.name for tenant in tenants]
        lives, _ = await here.host.worlds._searcher._others.lives(client.engine)
        assert [life.sign.labels[placement.UNIVERSE] for life in lives] == ["*"]


@pytest.mark.parametrize("killed", [True, False])
async def test_another_process_takes_over(kit: Kit, killed: bool) -> None:
    app = App()
    async with serving(kit, app.program) as one:
        tenants = [await one.universe(f"t{number}") for number in range(6)]
        for tenant in tenants:
            await (await tenant.create("w", app.program)).send(Add(1))
            _ = await tenant.world("w").start(app.work(tenant.name, 1, 1.0), id="r")
        assert [await total(tenant) for tenant in tenants] == [1] * 6
        async with serving(kit, app.program) as two:
            if killed:
                await one.kill()
                await kit.jump(2)
            else:
                await one.close()
            moved = [await two.universe(tenant.name) for tenant in tenants]
            assert [await total(tenant) for tenant in moved] == [1] * 6
            for tenant in moved:
                assert await (await tenant.world("w").attach("r")).result(60) == tenant.name


async def test_two_processes_share_the_worlds_of_many_universes(lmdb_kit: Kit) -> None:
    app = App()
    orchestrated = (*EMBEDDED, Role.ORCHESTRATOR)
    async with serving(lmdb_kit, app.program) as one, serving(lmdb_kit, app.program, roles=orchestrated) as two:
        tenants = [await one.universe(f"t{number}") for number in range(10)]
        for tenant in tenants:
            await tenant.create("w", app.program)
        client = [await lmdb_kit.process(universe=tenant.name) for tenant in tenants]
        for _ in range(3):
            for each in client:
                await each.universe.world("w").send(Add(1))
            for each in client:
                await each.universe.world("w").ask(Total(), timeout=30)

        async def spread() -> bool:
            for each in client:
                await each.universe.world("w").send(Add(1))
            return bool(one.host.worlds.held) and bool(two.host.worlds.held)

        await aio.until(spread)
        held = [{each.at for each in side.host.worlds.held} for side in (one, two)]
        assert not held[0] & held[1]


class Deaf(kits.Around):
    """A store whose hints are all lost."""

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        del prefix, seen
        await asyncio.sleep(timeout_ms / 1000)
        return False


async def test_without_any_hint_all_goes_on_within_a_scan(kit: Kit) -> None:
    """Inputs of other processes, timers and effects of worlds that run elsewhere: nothing is heard, all is found."""
    app = App()
    alone = (Role.ADAPTER, Role.TIMERS)
    worlds = (Role.WORLDS,)
    async with (
        serving(kit, app.program, roles=worlds, wrap=Deaf, hints=False),
        serving(kit, app.program, roles=alone, wrap=Deaf, hints=False),
    ):
        for number in range(3):
            client = (await kit.process(universe=f"t{number}")).universe
            world = await client.create("w", app.program)
            await world.send(Add(number))
            assert await world.ask(Total(), timeout=30) == number
            assert await (await world.start(app.work("a", 1, 0.3), id="r")).result(30) == "a"


# --- Coming and going ------------------------------------------------------------------------------------------------


async def forget(kit: Kit, tenant: wl.Universe, *, all_of_it: bool) -> None:
    """Delete a universe: its name, and maybe everything in it, under the process that serves it."""
    engine = await kit.engine()
    key = universe_keys.name_key(tenant.name)
    raw = (await engine.read(kv.Get(key))).value(0)
    assert raw is not None
    batch = kv.Batch()
    batch.expect(key, raw)
    batch.delete(key)
    if all_of_it:
        batch.delete_range(*tuples.prefix_range(space.universe(tenant._connection.id)))
    assert isinstance((await engine.commit(batch))[0], kv.Ok)


# With everything in it gone, either finds it first: the scan of universes, or the holder of the world, by its lease.
@pytest.mark.parametrize("all_of_it", [True, pytest.param(False, marks=pytest.mark.probe("worker.universe-gone"))])
async def test_universes_come_and_go_while_it_runs(kit: Kit, all_of_it: bool) -> None:
    app = App()
    app.permits = asyncio.Semaphore(0)
    async with serving(kit, app.program, universes=("t*", "named"), settings=PATIENT) as here:
        assert here.hosting.universes == ["named"]
        stays, leaves = await here.universe("t-stays"), await here.universe("t-leaves")
        for tenant in (stays, leaves):
            await tenant.create("w", app.program)
            _ = await tenant.world("w").start(app.work(tenant.name, 1, 0.0), id="r")
            _ = await tenant.world("w").start(app.work(tenant.name, 1, 3600.0), id="s")
            assert await total(tenant) == 0
        await aio.until(lambda: _is(lambda: len(app.started) == 2))
        await forget(kit, leaves, all_of_it=all_of_it)

        async def gone() -> bool:
            return [each.at.universe for each in here.host.worlds.held] == [stays._connection.id]

        await aio.until(gone)
        if all_of_it:
            assert await left_of(here.host._store.engine, leaves._connection.id) == 0, "nothing was written there since"
        # The world may go before the universe does: its holder finds that on its own.
        await aio.until(lambda: _is(lambda: here.hosting.universes == ["named", "t-stays"]))
        with pytest.raises(wl.NotFound, match="no universe 't-leaves'"):
            await here.hosting.universe("t-leaves")
        with pytest.raises(wl.BadInput, match="not served by this host"):
            await here.hosting.universe("other")
        app.permits = asyncio.Semaphore(100)
        again = await here.universe("t-leaves")
        assert again.id != leaves.id
        await again.create("w", app.program)
        client = (await kit.process(universe="t-leaves")).universe
        await client.world("w").send(Add(5))
        assert await total(again) == 5
        assert await total(stays) == 0
        here.host.check()


async def _is(holds: Any) -> bool:
    return bool(holds())


async def test_what_is_not_served_is_left_alone(memory_kit: Kit) -> None:
    """Also what waits there, and what a dead worker has left: nothing in that universe is changed."""
    app = App()
    dead = await memory_kit.process(app.program, universe="other")
    world = await dead.universe.create("w", app.program)
    assert await world.ask(Total(), timeout=30) == 0
    await dead.kill()
    await memory_kit.jump(5)
    client = await memory_kit.process(universe="other")
    await client.universe.world("w").send(Add(1))
    prefix = space.universe(client.universe._connection.id)
    everything = kv.Range(prefix, prefix + b"\xff", count_max=10_000)
    before = (await client.engine.read(everything)).page(0).items
    janitors = (*ALL,)
    async with serving(memory_kit, app.program, universes=("t*",), roles=janitors) as here:
        tenant = await here.universe("t1")
        await (await tenant.create("w", app.program)).send(Add(2))
        assert await total(tenant) == 2
        scans = here.host._scan.scans

        async def scanned() -> bool:
            return bool(here.host._scan.scans > scans + 3)

        await aio.until(scanned)
    assert (await client.engine.read(everything)).page(0).items == before


async def test_tenants_do_not_meet(kit: Kit) -> None:
    """The same names, the same program and the same process: nothing of one is reachable from another."""
    app = App()
    async with serving(kit, app.program, settings=PATIENT) as here:
        one, two = await here.universe("one"), await here.universe("two")
        for tenant, number in ((one, 1), (two, 2)):
            world = await tenant.create("w", app.program)
            await world.send(Add(number))
        assert (await total(one), await total(two)) == (1, 2)
        large = await (await one.world("w").start(app.work("secret ", 20_000, 0.0), id="r")).result(30)
        assert large == "secret " * 20_000
        assert await two.world("w").runs() == []
        found = [key async for key in _blobs(kit, one)]
        theirs = here.host.blobs(two._connection.id)
        assert found
        for each in found:
            assert await here.host.blobs(one._connection.id).get(each)
            with pytest.raises(wl.NotFound):
                await theirs.get(each)
        with pytest.raises(wl.NotFound):
            await two.world("only in one").send(Add(1))


async def _blobs(kit: Kit, universe: wl.Universe) -> Any:
    """The addresses of the large blobs of a universe."""
    engine = await kit.engine()
    begin, end = cas.blobs(universe._connection.id)
    for key, raw in (await engine.read(kv.Range(begin, end))).page(0).items:
        if cas.BLOB.unpack(raw).inline is None:
            [address] = tuples.unpack(key[len(begin) :])
            yield address


# --- What idle universes cost ----------------------------------------------------------------------------------------


async def idle(kit: Kit, app: App, count: int, scans: int) -> Counts:
    """What a process with so many idle universes, each with a world that was run and let go of, asks of the store in
    so many scans.
    """
    counted: list[Counting] = []

    def counting(engine: kv.Engine) -> Counting:
        counted.append(Counting(engine))
        return counted[0]

    quick = kits.settings(worker={"idle_release_ms": 100, "lease_ttl_ms": 60_000, "heartbeat_ms": 30_000})
    async with serving(kit, app.program, settings=quick, roles=HOSTING, wrap=counting) as here:
        for number in range(count):
            tenant = await here.universe(f"t{number}")
            await (await tenant.create("w", app.program)).send(Add(1))

        async def quiet() -> bool:
            return not here.host.worlds.held

        await aio.until(quiet)
        await until_scanned(here, 3)
        before = counted[0].counts()
        await until_scanned(here, scans)
        return Counts(*(now - then for now, then in zip(counted[0].counts(), before, strict=True)))


async def until_scanned(here: Served, scans: int) -> None:
    first = here.host._scan.scans

    async def scanned() -> bool:
        return bool(here.host._scan.scans >= first + scans)

    await aio.until(scanned)


async def test_idle_universes_do_not_show(tmp_path: Path) -> None:
    """Counted, not timed: for 300 universes the store is read as often as for one, and written as often. A scan asks
    for the hints of each universe, its worlds, and the inbox of each; what is found are names and worlds.
    """
    app = App()
    scans = 8
    one = await idle(roles_conftest.make("memory", tmp_path / "one"), app, 1, scans)
    many = await idle(roles_conftest.make("memory", tmp_path / "many"), app, 300, scans)
    assert many.reads <= one.reads * 1.25 + scans, (one, many)
    assert many.commits <= one.commits + 1, (one, many)
    assert many.waits <= one.waits + 1, (one, many)
    each = 300 * (scans + 2)  # two more scans may have begun and ended
    assert many.requests - one.requests <= 3 * each * 1.1, (one, many)
    assert many.found - one.found <= 2 * each * 1.1, (one, many)


# --- Fairness --------------------------------------------------------------------------------------------------------


async def test_a_flooded_universe_does_not_keep_another_waiting_for_cycles(memory_kit: Kit) -> None:
    """Two universes of 40 worlds with ten inputs each, a few in a cycle: whenever a world of a third universe has
    something to do, it is in the next cycle.
    """
    app = App()
    small = kits.settings(
        worker={
            "max_worlds_per_cycle": 4,
            "max_inbox_batch": 1,
            "lease_ttl_ms": 60_000,
            "heartbeat_ms": 5_000,
        }
    )
    for name in ("flooded", "flooded-too"):
        flood = (await memory_kit.process(universe=name)).universe
        for number in range(40):
            world = await flood.create(f"w{number}", app.program)
            for _ in range(10):
                await world.send(Add(1))
    quiet = (await memory_kit.process(universe="quiet")).universe
    await quiet.create("w", app.program)
    async with serving(memory_kit, app.program, settings=small) as here:
        choices = Choices(here)
        for _ in range(5):
            assert await quiet.world("w").ask(Total(), timeout=60) == 0
        await aio.until(lambda: _is(lambda: here.host.worlds.steps >= 805))
    assert choices.shared, "they had something to do at once"
    assert choices.unfair == []


class Choices:
    """Looks at every choice of worlds for a cycle: a universe that had some in line is in it."""

    def __init__(self, here: Served) -> None:
        self._holdings = here.host.worlds._holdings
        self._choose = self._holdings.choose
        self._holdings.choose = self.choose
        self.shared = 0
        self.unfair: list[int] = []

    def choose(self, most: int) -> Any:
        lines = {
            universe: [at for at in line if (held := self._holdings.peek(at)) is not None and held.has_work]
            for universe, line in self._holdings._ready.items()
        }
        waiting = [universe for universe, line in lines.items() if line]
        chosen = self._choose(most)
        taken = {held.at.universe for held in chosen}
        if len(waiting) > 1:
            self.shared += 1
            if not taken.issuperset(waiting):
                self.unfair.append(len(chosen))
        return chosen


@pytest.mark.probe("search.left-for-later")
async def test_a_flooded_universe_does_not_keep_another_waiting_for_its_worlds_to_be_taken(memory_kit: Kit) -> None:
    """A search looks at so many worlds, one of each universe in turn, and the rest with the next one."""
    app = App()
    flood = (await memory_kit.process(universe="flooded")).universe
    for number in range(600):
        await (await flood.create(f"w{number}", app.program)).send(Add(1))
    quiet = (await memory_kit.process(universe="quiet")).universe
    await (await quiet.create("w", app.program)).send(Add(1))
    async with serving(memory_kit, app.program, settings=PATIENT) as here:

        async def taken() -> bool:
            return any(each.at.universe == quiet._connection.id for each in here.host.worlds.held)

        await aio.until(taken)
        assert len(here.host.worlds.held) < 300


@pytest.mark.probe("upkeep.gave-way")
async def test_a_flooded_universe_does_not_fill_a_worker(memory_kit: Kit) -> None:
    """Twelve busy worlds and room for four: a world of another universe is taken, and all go on."""
    app = App()
    flood = (await memory_kit.process(universe="flooded")).universe
    for number in range(12):
        world = await flood.create(f"w{number}", app.program)
        for _ in range(400):
            await world.send(Add(1))
    quiet = (await memory_kit.process(universe="quiet")).universe
    await quiet.create("w", app.program)
    crowded = kits.settings(
        worker={
            "max_worlds_warm": 4,
            "max_inbox_batch": 2,
            "lease_ttl_ms": 60_000,
            "heartbeat_ms": 5_000,
        }
    )
    async with serving(memory_kit, app.program, settings=crowded) as here:
        await aio.until(lambda: _is(lambda: here.host.worlds.steps > 20))
        assert await quiet.world("w").ask(Total(), timeout=60) == 0
        assert here.host.worlds.steps < 4_000, f"of 4800: {here.host.worlds.steps}"
        found = [await total(flood, f"w{number}") for number in range(12)]
    assert found == [400] * 12


@pytest.mark.parametrize("bound", ["kind", "process"])
async def test_a_flooded_universe_does_not_keep_another_waiting_for_effects(memory_kit: Kit, bound: str) -> None:
    """Four at once, of a kind or of a process, each followed by another one of the same run at once: the quiet universe
    gets its share all the same, of the next that end.
    """
    app = App(concurrency=4 if bound == "kind" else 100)
    app.permits = asyncio.Semaphore(0)
    narrow = kits.settings(
        worker={"lease_ttl_ms": 60_000, "heartbeat_ms": 5_000},
        adapter={"concurrency": 100 if bound == "kind" else 4, "claim_ttl_ms": 60_000, "renew_ms": 5_000},
    )
    async with serving(memory_kit, app.program, settings=narrow) as here:
        flood, quiet = await here.universe("flooded"), await here.universe("quiet")
        world = await flood.create("w", app.program)
        for number in range(8):
            _ = await world.start(app.work_again("flood", 5), id=f"r{number}")
        await aio.until(lambda: _is(lambda: len(app.started) == 4))
        other = await quiet.create("w", app.program)
        runs = [await other.start(app.work("quiet", 1, 0.0), id=f"r{number}") for number in range(2)]
        for ended in range(1, 5):
            app.permits.release()
            await aio.until(functools.partial(started, app, 4 + ended))
        assert app.started[4:8].count("quiet") == 2, app.started
        for _ in range(50):
            app.permits.release()
        for run in runs:
            assert await run.result(30) == "quiet"


async def started(app: App, count: int) -> bool:
    return len(app.started) >= count


def test_worlds_take_turns_by_universe() -> None:
    def at(universe: int, world: int) -> ids.Address:
        return ids.Address(ids.UniverseId(bytes([universe]) * 16), ids.WorldId(bytes([world]) * 16))

    mixed = [at(1, 1), at(1, 2), at(1, 3), at(2, 1), at(3, 1), at(3, 2)]
    assert fair_turns.in_turns(mixed) == [at(1, 1), at(2, 1), at(3, 1), at(1, 2), at(3, 2), at(1, 3)]
    assert fair_turns.in_turns(mixed[:3]) == mixed[:3]
    assert fair_turns.in_turns([]) == []


def test_shares() -> None:
    one, two, three = (ids.UniverseId(bytes([number]) * 16) for number in range(3))
    shares = fair_turns.Shares()
    for _ in range(6):
        shares.take(one)
    assert shares.room(one, 10) == 10, "no other waits"
    shares.wait(two)
    assert (shares.room(one, 10), shares.room(two, 10)) == (0, 10)
    shares.wait(three)
    assert (shares.room(two, 10), shares.room(three, 10)) == (5, 5)
    shares.take(two)
    assert shares.room(two, 2) == 0
    shares.wait_no_more(two)
    shares.wait_no_more(three)
    shares.give_back(two)
    assert shares.room(one, 10) == 10
    assert shares.waiting == []


# --- Clearing up -----------------------------------------------------------------------------------------------------


async def left_of(engine: kv.Engine, universe: bytes) -> int:
    """How many keys there are in a universe."""
    begin, end = tuples.prefix_range(space.universe(ids.UniverseId(universe)))
    return len((await engine.read(kv.Range(begin, end, count_max=10_000))).page(0).items)


async def no_worker(states: Sequence[leases.LeaseState]) -> list[bool]:
    return [False] * len(states)


async def test_what_is_deleted_is_removed_in_every_universe(kit: Kit) -> None:
    """Worlds that other processes delete, and whole universes: the janitor of many does not wait for its next round."""
    app = App()
    roles = (*EMBEDDED, Role.JANITOR)
    slow = kits.settings(janitor={"round_ms": 3_600_000, "turn_ms": 50}, worker={"idle_release_ms": 100})
    async with serving(kit, app.program, settings=slow, roles=roles) as here:
        tenants = [await here.universe(f"t{number}") for number in range(4)]
        for tenant in tenants:
            for name in ("goes", "stays"):
                await (await tenant.create(name, app.program)).send(Add(1))
                assert await total(tenant, name) == 1
        for tenant in tenants[:2]:
            client = (await kit.process(universe=tenant.name)).universe
            await client.world("goes").delete(wait=True)
        other = await kit.process(universe="t3")
        store = other.universe._connection.store
        await aio.until(lambda: _is(lambda: not here.host.worlds.held))  # while one is run, it cannot be deleted
        await universe_deletions.begin(store.engine, store.env, "t3", with_worlds=True, hosted=no_worker)

        async def gone() -> bool:
            return await left_of(store.engine, tenants[3]._connection.id) == 0 and here.hosting.universes == [
                "t0",
                "t1",
                "t2",
            ]

        await aio.until(gone)
        assert [await total(tenant, "stays") for tenant in tenants[:3]] == [1, 1, 1]
        here.host.check()
