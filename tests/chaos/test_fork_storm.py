"""Many processes fork one world at once: every fork is there, and none waits for the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import worldline as wl
from tests import options
from tests.chaos.forker import Forker, Took
from tests.servers import postgres
from tests.store import postgres_kit
from worldline.api.universe_api import Universe
from worldline.client.world_handle import Handle
from worldline.keys import lineage as lineage_keys
from worldline.layers import snapshots as snapshot_layer
from worldline.model import ids
from worldline.model.world_records import Lineage
from worldline.store import kv

FORKS = options.number("forks")
PROCESSES = 8 if FORKS >= 1_000 else 4
AT_ONCE = 4  # of one process
SERIAL_MAX = 3.0  # how much longer forks of one world may take than forks of as many worlds as there are processes

app = wl.Program("forked")


@dataclass(frozen=True)
class Noted:
    number: int


@app.reducer()
@dataclass
class Notes:
    total: int = 0

    @wl.on
    def noted(self, event: Noted) -> None:
        self.total += event.number


@pytest.fixture(params=["lmdb", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lmdb":
        return str(tmp_path / "store")
    return postgres.shared().url(schema=postgres_kit.fresh_schema())


def storm(url: str, worlds: list[str], prefix: str, count: int) -> list[Took]:
    """All processes at once, each with its share of the forks, by turns of these worlds."""
    forkers = [
        Forker(url, worlds[number % len(worlds)], f"{prefix}-{number}", count // PROCESSES, at_once=AT_ONCE)
        for number in range(PROCESSES)
    ]
    for each in forkers:
        each.wait_ready()
    for each in forkers:
        each.go()
    return [each.took() for each in forkers]


async def lineages(universe: Universe, prefix: str) -> dict[str, Lineage | None]:
    names = [each.name async for each in universe.worlds(prefix=prefix)]
    return {name: await universe.world(name).lineage() for name in names}


async def test_forks_of_one_world_from_many_processes(url: str) -> None:
    async with wl.open(url, host=app) as universe:
        for number in range(PROCESSES):
            world = await universe.create(f"parent-{number}", app)
            for value in range(3):
                await (await world.send(Noted(value))).applied()
            await world.pause()
    apart = storm(url, [f"parent-{number}" for number in range(PROCESSES)], "apart", FORKS)
    eighth = storm(url, ["parent-0"], "eighth", FORKS // 8)
    together = storm(url, ["parent-0"], "together", FORKS)
    async with wl.open(url) as universe:
        parent = universe.world("parent-0")
        head, at = await parent.head(), await Handle(universe._connection, "parent-0").address()
        found = await lineages(universe, "together-")
        share = range(FORKS // PROCESSES)
        assert sorted(found) == sorted(f"together-{process}-{n}" for process in range(PROCESSES) for n in share)
        for lineage in found.values():
            assert lineage is not None
            assert (lineage.parent, lineage.step, lineage.height) == (at.world, head.step, head.height)
            assert [each.world for each in lineage.sections] == [at.world]
        forks = {await _world(universe, name) for name in found}
        assert len(forks) == len(found)
        engine = universe._connection.store.engine
        read = await engine.read(snapshot_layer.pins_range(at, count_max=10_000), *map(kv.Get, _counters(at)))
        pinned = [fork for fork, _ in snapshot_layer.decode_pins(at, read.page(0))]
        assert forks <= set(pinned)
        moved = [read.value(index) for index in range(1, len(read.answers))]
        assert sum(kv.counter(each) for each in moved if each) == len(pinned), (
            "each pin has moved what retention expects"
        )
    async with wl.open(url, host=app) as universe:  # some of them are run
        for number in range(PROCESSES):
            assert (await universe.world(f"together-{number}-0").state(Notes)).total == 3
    print(f"\n{FORKS} forks by {PROCESSES} processes: {_said(apart)} apart, {_said(together)} of one world")
    assert _longest(together) <= SERIAL_MAX * _longest(apart) + 0.5
    assert _longest(together) <= SERIAL_MAX * 8 * _longest(eighth) + 0.5


def _counters(at: ids.Address) -> list[bytes]:
    return [lineage_keys.pin_count_key(at)]


async def _world(universe: Universe, name: str) -> bytes:
    return (await Handle(universe._connection, name).address()).world


def _longest(took: list[Took]) -> float:
    return max(each.seconds for each in took)


def _said(took: list[Took]) -> str:
    return f"{_longest(took):.2f} s (slowest {max(each.slowest_ms for each in took):.0f} ms)"
