"""A dry fork makes no call outside, seen from outside: a real HTTP server that counts, under every policy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.servers import web
from tests.servers.web import Reply, Seen

SECONDS = 60.0
app = wl.Program("caller")


@app.workflow
async def calls(url: str) -> list[str]:
    first = await wl.http.request("POST", f"{url}/first")
    second = await wl.http.request("POST", f"{url}/second")
    return [first.text, second.text]


SCRIPTED = {"effect": "http.request", "answer": {"status": 200, "headers": {}, "body": b"scripted", "url": ""}}


@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        ({"effects": "drop"}, "FAILED"),
        ({"effects": "reissue"}, "/first is parked"),
        ({"effects": "share"}, "/second is parked"),
        ({"effects": "script", "script": [SCRIPTED]}, "FINISHED"),
    ],
)
async def test_a_dry_fork_makes_no_call_outside(policy: dict[str, Any], ends: str, tmp_path: Path) -> None:
    arrived, gate = asyncio.Event(), asyncio.Event()

    async def answer(seen: Seen) -> Reply:
        arrived.set()
        await gate.wait()
        return Reply(body=seen.target.encode())

    async def outcome(world: wl.World) -> str:
        """How the run ended, or what it asked for that nothing performs."""
        while True:
            parked = [each for each in await world.effects() if each.state is wl.WorkState.PARKED]
            if parked:
                return f"{parked[0].args['url'].removeprefix(server.url)} is parked"
            [run] = await world.runs()
            status = await run.status()
            if status is not wl.RunStatus.RUNNING:
                return status.name
            await asyncio.sleep(0.01)

    async with (
        asyncio.timeout(SECONDS),
        web.serving(answer) as server,
        wl.open(str(tmp_path), host=app, egress=wl.ops.Egress(allow=["127.0.0.1"])) as universe,
    ):
        world = await universe.ensure("alice", app)
        _ = await world.start(calls(server.url), id="c")
        await arrived.wait()
        dry = await world.fork("dry", **policy)
        live = await world.fork("live", effects="reissue", live=True)
        gate.set()
        for each in (world, live):
            assert await (await each.attach("c")).result() == ["/first", "/second"]
        assert await outcome(dry) == ends
    assert sorted(each.target for each in server.seen) == ["/first", "/first", "/second", "/second"]
    assert len({each.key for each in server.seen}) == 4, "every call has a key of its own"
