"""Sends beside a transaction that stays open, as `pg_dump`'s does: `python -m bench.old_snapshot --json`.

One server, two databases. In one of them a transaction is opened and left alone; a server keeps old row versions for
those of the same database only. Each has a hosting process of its own and a client here, which take turns in short
blocks, so whatever else the machine does concerns both. The ratio is that of the medians over the last third of the
time, when the transaction has been open for longest. `--writing`: the transaction has also written,
so it holds `stable` back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import asyncpg

import worldline as wl
from tests.servers import postgres as servers

WORLDS = 100
SENDERS = 32
BLOCK = 1_000
DATABASES = ("without", "with")
SCHEMA = "bench"

app = wl.Program("old_snapshot")


@dataclass(frozen=True)
class Tick:
    number: int


@app.reducer()
@dataclass
class Clicks:
    count: int = 0

    @wl.on
    def tick(self, event: Tick) -> None:
        self.count += 1
        del event


async def host(url: str, objects: str) -> None:
    async with wl.open(url, host=app, objects=objects):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def block(worlds: list[wl.World]) -> float:
    """Sends per second; every fiftieth is followed to its step, so that the host cannot be left behind."""
    numbers = iter(range(BLOCK))

    async def sender() -> None:
        for number in numbers:
            sent = await worlds[number % len(worlds)].send(Tick(number))
            if number % 50 == 0:
                await sent.applied(120)

    began = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(SENDERS)))
    return BLOCK / (time.perf_counter() - began)


async def measure(server: servers.Server, folder: str, seconds: float, *, writing: bool) -> dict[str, object]:
    raw = await asyncpg.connect(server.url())
    opened = contextlib.AsyncExitStack()
    worlds: dict[str, list[wl.World]] = {}
    hosts: list[subprocess.Popen[bytes]] = []
    rates: dict[str, list[float]] = {name: [] for name in DATABASES}
    try:
        for name in DATABASES:
            await raw.execute(f'CREATE DATABASE "{name}"')
            url, objects = server.url(database=name, schema=SCHEMA), f"{folder}/{name}"
            client = await opened.enter_async_context(wl.open(url, create=True, objects=objects))
            worlds[name] = [await client.ensure(f"w{number}", app) for number in range(WORLDS)]
            command = [sys.executable, "-m", "bench.old_snapshot", "--host", url, "--objects", objects]
            hosts.append(await asyncio.to_thread(_start, command))
            await block(worlds[name])
        old = await asyncpg.connect(server.url(database="with"))
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await old.fetch(f"SELECT count(*) FROM {SCHEMA}.kv")
        if writing:
            await old.fetchval("SELECT pg_current_xact_id()::text")
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for name in DATABASES:
                rates[name].append(await block(worlds[name]))
        await old.execute("ROLLBACK")
        await old.close()
        after = {name: [await block(worlds[name]) for _ in range(3)] for name in DATABASES}
    finally:
        await opened.aclose()
        for each in hosts:
            each.kill()
            each.wait()
        await raw.close()
    last = {name: statistics.median(rates[name][-max(1, len(rates[name]) // 3) :]) for name in DATABASES}
    ended = {name: statistics.median(after[name][1:]) for name in DATABASES}
    return {
        "seconds": seconds,
        "blocks": len(rates["with"]),
        "sends_per_second": {name: round(last[name]) for name in DATABASES},
        "ratio": round(last["with"] / last["without"], 2),
        "ratio_after_its_end": round(ended["with"] / ended["without"], 2),
    }


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--writing", action="store_true", help="the open transaction has written, too")
    parser.add_argument("--host")
    parser.add_argument("--objects")
    given = parser.parse_args()
    if given.host:
        asyncio.run(host(given.host, given.objects))
        return
    server = servers.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(measure(server, folder, given.seconds, writing=given.writing))
    finally:
        server.close()
    print(json.dumps(found, indent=None if given.json else 2))


if __name__ == "__main__":
    main()
