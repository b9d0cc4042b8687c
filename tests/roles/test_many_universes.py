"""Many universes in one process: they run, fail over, come and go; idle ones cost nothing, busy ones starve no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.roles import kit as kits
from tests.roles.kit import Kit
from tests.roles.many import Add, App, Counting, Served, Total, serving
from worldline.codec import tuples
from worldline.host import process
from worldline.keys import cas, space
from worldline.keys import universes as universe_keys
from worldline.roles.cluster import placement
from worldline.store import kv

PATIENT = kits.settings(
    worker={"lease_ttl_ms": 20_000, "heartbeat_ms": 5_000}, adapter={"claim_ttl_ms": 20_000, "renew_ms": 5_000}
)


async def total(universe: wl.Universe, world: str = "w") -> int:
    return await universe.world(world).ask(Total(), timeout=30)


# --- Running -------------------------------------------------------------------------------------------------------


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
            await tenant.world("w").start(app.work(tenant.name, 1, 1.0), id="r")
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
    orchestrated = (*process.EMBEDDED, process.Role.ORCHESTRATOR)
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
    alone = (process.Role.ADAPTER, process.Role.TIMERS)
    worlds = (process.Role.WORLDS,)
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


@pytest.mark.parametrize("all_of_it", [True, False])
@pytest.mark.probe("worker.universe-gone")
async def test_universes_come_and_go_while_it_runs(kit: Kit, all_of_it: bool) -> None:
    app = App()
    app.permits = asyncio.Semaphore(0)
    async with serving(kit, app.program, universes=("t*", "named"), settings=PATIENT) as here:
        assert here.hosting.universes == ["named"]
        stays, leaves = await here.universe("t-stays"), await here.universe("t-leaves")
        for tenant in (stays, leaves):
            await tenant.create("w", app.program)
            await tenant.world("w").start(app.work(tenant.name, 1, 0.0), id="r")
            await tenant.world("w").start(app.work(tenant.name, 1, 3600.0), id="s")
            assert await total(tenant) == 0
        await aio.until(lambda: _is(lambda: len(app.started) == 2))
        await forget(kit, leaves, all_of_it=all_of_it)

        async def gone() -> bool:
            return [each.at.universe for each in here.host.worlds.held] == [stays._connection.id]

        await aio.until(gone)
        assert here.hosting.universes == ["named", "t-stays"]
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
    """Also what waits there: nothing in that universe is changed, and no lease of it is taken."""
    app = App()
    client = await memory_kit.process(universe="other")
    world = await client.universe.create("w", app.program)
    await world.send(Add(1))
    prefix = space.universe(client.universe._connection.id)
    everything = kv.Range(prefix, prefix + b"\xff", count_max=10_000)
    before = (await client.engine.read(everything)).page(0).items
    janitors = (*process.ALL,)
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
