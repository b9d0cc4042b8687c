"""The table of docs/hangs.md: what becomes of each misbehaviour in each place, with real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import worldline as wl
from tests.hostile import cells
from tests.hostile.host import ROOT
from tests.kits import kit as kits
from worldline.codec import structs
from worldline.kernel.machine import RunFinished
from worldline.kernel.rows.row_records import RunStatus
from worldline.model.journal import Kind
from worldline.model.work import WorkState

SECONDS = 180.0
# Those that end the process die beside no others; those that use up a processor delay no others in their process.
GROUPS = (("memory", "recursion", "exit", "sleep"), ("os_exit",), ("loop",))
SETTLED = "2 times in a row"

# What becomes of each: where it ends up, and what is said of it.
EXPECTED = {
    ("memory", "handler"): ("dead", SETTLED),
    ("memory", "workflow"): ("blocked", SETTLED),
    ("memory", "where"): ("dead", SETTLED),
    ("memory", "effect"): ("failed", "MemoryError"),
    ("recursion", "handler"): ("dead", "RecursionError"),
    ("recursion", "workflow"): ("failed", "RecursionError"),
    ("recursion", "where"): ("failed", "where= raised RecursionError"),
    ("recursion", "effect"): ("failed", "RecursionError"),
    ("exit", "handler"): ("dead", "SystemExit"),
    ("exit", "workflow"): ("failed", "SystemExit"),
    ("exit", "where"): ("failed", "where= raised SystemExit"),
    ("exit", "effect"): ("failed", "SystemExit"),
    ("os_exit", "handler"): ("dead", SETTLED),
    ("os_exit", "workflow"): ("blocked", SETTLED),
    ("os_exit", "where"): ("dead", SETTLED),
    ("os_exit", "effect"): ("parked", "the processes of 2 attempts in a row died"),
    ("loop", "handler"): ("dead", SETTLED),
    ("loop", "workflow"): ("blocked", SETTLED),
    ("loop", "where"): ("dead", SETTLED),
    ("loop", "effect"): ("failed", "the attempt took too long"),
    ("sleep", "handler"): ("dead", SETTLED),
    ("sleep", "workflow"): ("blocked", SETTLED),
    ("sleep", "where"): ("dead", SETTLED),
    ("sleep", "effect"): ("failed", "the attempt took too long"),
}


class Hosts:
    """One process after the other: another is started when one has died."""

    def __init__(self, url: str, log: Path) -> None:
        self._url = url
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self.deaths = 0

    def look(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self.deaths += 1
            self._child = None
        if self._child is None:
            with self._log.open("ab") as log:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "tests.hostile.cells", self._url], cwd=ROOT, stdout=log, stderr=log
                )

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()


async def begin(universe: wl.Universe, how: str, place: str) -> wl.World:
    world = await universe.ensure(f"{how} {place}", cells.app)
    match place:
        case "handler":
            await world.send(cells.Bad(how))
        case "workflow":
            await kits.begin(world, cells.workflow(how), id="r")
        case "effect":
            await kits.begin(world, cells.effect(how), id="r")
        case _:
            await kits.begin(world, cells.where(), id="r")
            await world.send(cells.Awaited(how))
    return world


async def outcome(world: wl.World) -> tuple[str, str] | None:
    """Where an input has ended up, and what is said of it; None as long as it has not."""
    at, engine = await world._handle.address(), world._universe.store.engine
    for letter in await kits.dead(engine, at):
        return "dead", letter.dead.reason
    for opened in await kits.opened(engine, at):
        if opened.work.state is WorkState.PARKED:
            return "parked", opened.work.error
    for entry in await kits.entries(world):
        if entry.kind is Kind.RUN_FINISHED:
            ended = structs.decode(RunFinished, entry.payload)
            return ended.status.name.lower(), ended.data.decode("utf-8", "replace")
        if entry.kind is Kind.POISON:
            record = (await world._handle.machine()).runs["r"].record
            assert record.status is RunStatus.BLOCKED
            return "blocked", record.blocked
    return None


async def play(folder: Path) -> dict[tuple[str, str], tuple[str, str] | None]:
    """All groups at once, each in a store and under hosts of its own."""
    found: dict[tuple[str, str], tuple[str, str] | None] = {}
    for each in await asyncio.gather(*(play_store(folder / group[0], folder / "log", group) for group in GROUPS)):
        found |= each
    return found


async def play_store(store: Path, log: Path, group: Sequence[str]) -> dict[tuple[str, str], tuple[str, str] | None]:
    hosts = Hosts(str(store), log)
    try:
        async with wl.open(str(store), programs=cells.app, create=True) as universe:
            hosts.look()
            found = await play_group(universe, hosts, group)
    finally:
        hosts.kill()
    # Two attempts at the effect; twice on trial for each of the others, and at most once before that.
    assert hosts.deaths == 0 if group != ("os_exit",) else 2 + 3 * 2 <= hosts.deaths <= 2 + 3 * 3
    return found


async def play_group(
    universe: wl.Universe, hosts: Hosts, group: Sequence[str]
) -> dict[tuple[str, str], tuple[str, str] | None]:
    starting = [(how, place) for how in group for place in cells.PLACES]
    found: dict[tuple[str, str], tuple[str, str] | None] = dict.fromkeys(starting)
    begun = asyncio.gather(*(begin(universe, how, place) for how, place in starting))
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not begun.done():
        hosts.look()
        await asyncio.sleep(0.05)
    worlds = dict(zip(starting, await begun, strict=True))
    while time.monotonic() < until and None in found.values():
        hosts.look()
        for cell, world in worlds.items():
            found[cell] = found[cell] or await outcome(world)
        await asyncio.sleep(0.05)
    for world in worlds.values():
        hosts.look()
        assert await world.ask(cells.Ping(), timeout=60) == 1, f"{world.name} does not answer"
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[str, str] | None]:
    folder = tmp_path_factory.mktemp("cells")
    try:
        return asyncio.run(play(folder))
    except BaseException:
        print((folder / "log").read_text()[-6_000:])
        raise


@pytest.mark.parametrize("cell", EXPECTED, ids=" in ".join)
def test_a_cell(played: dict[tuple[str, str], tuple[str, str] | None], cell: tuple[str, str]) -> None:
    found = played[cell]
    assert found is not None
    where, said = EXPECTED[cell]
    assert found[0] == where, found
    assert said in found[1]


def test_the_table_is_whole() -> None:
    assert list(EXPECTED) == [(how, place) for how in cells.HOWS for place in cells.PLACES]
