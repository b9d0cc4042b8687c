"""A collector that is killed by SIGKILL in its mark holds up no other process: `gc` and `delete --wait` go on when its
heartbeat is gone, and do not wait for the time after which a mark that was not renewed is given up. That time is so
long here that only the heartbeat can be the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.chaos import child, idle_app, marking_host
from tests.chaos.processes import ROOT
from tests.cli import cli_kit
from tests.servers import postgres
from tests.store import postgres_kit
from worldline.api.universe_api import Universe
from worldline.features.collection import batches as collection_batches
from worldline.features.collection import mark_barrier
from worldline.runtime import world_holders

MARK_MS = 120_000
COMMANDS = {"gc": ("gc", "--now"), "delete": ("delete", "old", "--wait", "--yes")}


@pytest.fixture(params=["folder", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "store")
    return postgres.shared().url(schema=postgres_kit.fresh_schema())


@contextmanager
def _marking(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process that collects garbage and stands in its mark."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.marking_host", url],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, child.PARENT: str(os.getpid())},
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == marking_host.SAYS
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_waits_for_a_killed_collector_goes_on(command: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_batches, "MARK_MS", MARK_MS)
    aio.run(_stock(url))
    with _marking(url) as process:
        began = aio.run(_outlives_a_lease(url))
        process.kill()
        process.wait()
        said = cli_kit.run(*COMMANDS[command], "--store", url)
        assert said.code == 0, said.err
    after, time_us = aio.run(_state(url))
    assert after.generation.number > began.generation.number
    assert not after.generation.marking
    assert began.is_marking(time_us), (
        "it was given up by its heartbeat: by its last renewal it would still be waited for"
    )


async def _stock(url: str) -> None:
    async with wl.open(url, host=idle_app.app, create=True) as universe:
        world = await universe.create("old", idle_app.app)
        assert await world.ask(idle_app.Add(1), timeout=cli_kit.SECONDS) == 1


async def _outlives_a_lease(url: str) -> collection_batches.CollectionState:
    """While the collector lives it is waited for, also if it says nothing of its mark for longer than a lease."""
    async with wl.open(url) as universe:
        began, _ = await _read(universe)
        assert began.last is not None
        last = began.last

        async def long_ago() -> bool:
            return (await _read(universe))[1] > last.renewed_us + marking_host.SETTINGS.worker.lease_ttl_ms * 1000

        await aio.until(long_ago, seconds=cli_kit.SECONDS)
        store = universe._connection.store
        assert await mark_barrier.goes_on(store.engine, began, lambda worker: world_holders.is_gone(store, worker))
        return began


async def _state(url: str) -> tuple[collection_batches.CollectionState, int]:
    async with wl.open(url) as universe:
        return await _read(universe)


async def _read(universe: Universe) -> tuple[collection_batches.CollectionState, int]:
    opened = universe._connection
    read = await opened.store.engine.read(*collection_batches.reads(opened.id))
    return collection_batches.decode(opened.id, read.value(0), read.value(1)), read.time_us
