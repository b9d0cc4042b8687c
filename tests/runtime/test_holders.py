"""Whether a world is hosted: one answer, which believes the lock of a process before its heartbeat."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add, AddUp, program
from worldline.client.world_handle import Handle
from worldline.inspect import store_queries, why
from worldline.runtime import world_holders

# A heartbeat that is good for longer than the test takes.
SLOW = msgspec.structs.replace(
    kits.SETTINGS, worker=msgspec.structs.replace(kits.SETTINGS.worker, lease_ttl_ms=600_000), host_wait_ms=300
)


async def test_a_killed_process_hosts_nothing_though_its_heartbeat_is_good(lmdb_kit: Kit) -> None:
    app = program()
    host = await lmdb_kit.process(app, settings=SLOW)
    client = await lmdb_kit.process(settings=SLOW)
    world = await host.universe.ensure("w", app)
    assert await world.ask(AddUp(1), timeout=20) == 1
    there = client.universe.world("w")
    opened = client.universe._connection
    at = await there._handle.address()
    assert await world_holders.is_hosted(opened.store, at)
    await host.kill()
    assert not await world_holders.is_hosted(opened.store, at)
    held = await world_holders.find(opened.store, at)
    assert held is not None
    assert not held.alive
    shown = await store_queries.holder(opened, at)
    assert shown is not None
    assert not shown.alive
    with pytest.raises(wl.NotHosted):  # the SDK sees it too
        await there.ask(AddUp(1))
    reasons = (await why.why(Handle(opened, "w"))).reasons
    assert [each.kind for each in reasons if each.stuck] == ["not_hosted"]
    assert "is dead" in reasons[0].what


async def test_a_world_that_was_never_run_has_no_holder(memory_kit: Kit) -> None:
    client = await memory_kit.process()
    world = await client.universe.ensure("w", program())
    at = await world._handle.address()
    assert await world_holders.find(client.universe._connection.store, at) is None
    assert not await world_holders.is_hosted(client.universe._connection.store, at)


async def test_a_world_that_is_released_because_nothing_happens_is_served_still(memory_kit: Kit) -> None:
    """A caller that waits for it is not told that no process hosts it."""
    app = program()

    @app.workflow
    async def waits() -> None:
        await wl.wait(Add)

    idle = kits.settings(worker={"idle_release_ms": 50})
    host = await memory_kit.process(app, settings=msgspec.structs.replace(idle, host_wait_ms=300))
    client = await memory_kit.process(settings=SLOW)
    world = await client.universe.ensure("w", app)
    at = await world._handle.address()
    running = [
        asyncio.create_task(each.world("w").run(waits(), id="r", timeout=20))
        for each in (host.universe, client.universe)
    ]

    async def released() -> bool:
        return host.host.worlds.peek(at) is None and (await world.head()).height > 0

    await aio.until(released)
    assert not await world_holders.is_hosted(client.universe._connection.store, at)
    assert await world_holders.is_served(client.universe._connection.store, at)
    done, _ = await asyncio.wait(running, timeout=1)
    assert not done, "longer than host_wait_ms"
    _ = await world.send(Add(1))
    await asyncio.gather(*running)
    await host.close()
    assert not await world_holders.is_served(client.universe._connection.store, at)
