"""A PostgreSQL that is restarted, killed and loses its sessions, and a network that does what networks do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg

from tests.chaos import field
from tests.chaos.field import Field
from tests.chaos.processes import Nursery
from tests.servers import postgres
from tests.servers.postgres import Server
from tests.servers.proxy import Action, Proxy
from tests.store import postgres_kit

ROLES = {
    "worker-1": field.WORKER,
    "worker-2": field.WORKER,
    "adapter": field.ADAPTER,
    "timer": field.TIMER,
    "up": field.UP,
}


async def terminate(server: Server, share: float) -> None:
    """End some of the sessions of all processes, whatever they are doing."""
    raw = await asyncpg.connect(server.url())
    try:
        await raw.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'worldline%' AND random() < $1",
            share,
        )
    finally:
        await raw.close()


async def befall(chaos: Field, server: Server, kind: str) -> None:
    match kind:
        case "terminate":
            await terminate(server, chaos.draws.choice([0.2, 1.0]))
        case "kill":
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start, track_commit_timestamp="on")
        case "fast":
            await asyncio.to_thread(server.restart, "fast")
        case _:
            await asyncio.to_thread(server.restart, "immediate")


async def test_a_server_that_is_restarted_and_loses_sessions(nursery: Nursery, tmp_path: Path) -> None:
    server = await asyncio.to_thread(postgres.start, track_commit_timestamp="on")
    chaos = await Field(nursery, server.url(), tmp_path / "field", seed="restarts").open()
    try:
        for name, words in ROLES.items():
            chaos.begin(name, words)
        chaos.work()
        await chaos.answered(20)
        waiting = ["terminate", "fast"]  # at least
        async for _ in chaos.for_a_while(0.3, 0.8):
            waiting = waiting or ["terminate", *chaos.draws.sample(["fast", "immediate", "kill"], 1)]
            await befall(chaos, server, waiting.pop(0))
        for kind in waiting:
            await befall(chaos, server, kind)
        await chaos.finish()
    finally:
        await chaos.aclose()
        await asyncio.to_thread(server.close)


async def test_a_network_that_delays_loses_resets_and_cuts(nursery: Nursery, tmp_path: Path) -> None:
    """Among all else, commits whose answer never comes back: a record of the test's own in them is what springs the
    trap, so it is always the COMMIT.
    """
    server = postgres.shared()
    schema = postgres_kit.fresh_schema()
    proxy = await Proxy(server.port).start()
    url = server.url(schema=schema, port=proxy.port)
    chaos = await Field(nursery, url, tmp_path / "field", seed="network", direct=server.url(schema=schema)).open()
    sprung = 0
    try:
        for name, words in ROLES.items():
            chaos.begin(name, words)
        chaos.work()
        await chaos.answered(20)
        async for _ in chaos.for_a_while(0.05, 0.3):
            sprung += await break_network(chaos, proxy)
        while not sprung:
            sprung += await cut_off(chaos, proxy, "swallow")
        await chaos.finish()
    finally:
        await chaos.aclose()
        await proxy.aclose()


async def break_network(chaos: Field, proxy: Proxy) -> int:
    """One thing that goes wrong, and its end. Returns how many commits were cut off from their answer."""
    kind = chaos.draws.choice(["delay", "blackhole", "reset", "swallow", "swallow", "drop", "cut"])
    if kind == "delay":
        proxy.delay_seconds = chaos.draws.choice([0.01, 0.1])
        await asyncio.sleep(0.3)
        proxy.delay_seconds = 0.0
    elif kind == "blackhole":
        proxy.set_mode("blackhole")
        await asyncio.sleep(chaos.draws.choice([0.2, 1.0]))
        if chaos.draws.random() < 0.5:
            proxy.reset()
        proxy.set_mode("pass")
    elif kind == "reset":
        proxy.reset()
    else:
        return await cut_off(chaos, proxy, "swallow" if kind == "swallow" else "drop" if kind == "drop" else "cut")
    return 0


async def cut_off(chaos: Field, proxy: Proxy, action: Action) -> int:
    who = chaos.draws.choice([*chaos.roles, "client"])
    trap = proxy.trap(who.encode(), action, bytes_max=chaos.draws.randint(1, 40))
    try:
        async with asyncio.timeout(1):
            await trap.sprung.wait()
    except TimeoutError:
        return 0
    return int(action != "drop")
