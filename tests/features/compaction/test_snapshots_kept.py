"""Snapshots that are kept for a time: by the age of their universe, besides the last ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aging
from tests.features.compaction import compacting
from tests.features.compaction.compacting import Added, Stored
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.base import env as envs
from worldline.cluster.age_counter import AgeCounter
from worldline.features.compaction import calls as compaction_calls
from worldline.features.compaction import compactor, retention_rules, universe_retention
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import snapshots as snapshot_layer
from worldline.model.age import Age
from worldline.model.settings import Settings
from worldline.store import kv

HOUR_MS = 3_600_000
HOUR_US = HOUR_MS * 1_000
SLOW = {"snapshot_idle_ms": 10**9, "snapshot_ms": 10**9}  # saved by hand alone


async def hosting(kit: Kit, app: wl.Program, **worker: Any) -> Process:
    wanted = SLOW | {"snapshots_kept": 1, "snapshots_kept_ms": HOUR_MS} | worker
    process = await kit.process(app, settings=kits.settings(worker=wanted))
    compacting.compactions(process.host).look = lambda _: None  # nothing is compacted but by hand
    return process


async def saved(world: wl.World, times: int = 1) -> list[int]:
    """The heights at which it was saved."""
    found = []
    for number in range(times):
        await (await world.send(Added(f"k{number % 3}"))).applied()
        await world.snapshot()
        found.append((await world.head()).height)
    return found


async def older(process: Process, by_us: int) -> Age:
    return await aging.older(process.engine, process.universe._connection.id, by_us)


async def test_a_snapshot_stays_while_it_is_young(kit: Kit) -> None:
    """However many there are; then it goes with the next that is taken. The last one stays however old it is."""
    app = compacting.program()
    process = await hosting(kit, app)
    world = await process.universe.ensure("w", app)
    stored = await Stored.of(process.universe, world)
    first = await saved(world, 5)
    await older(process, HOUR_US // 2)
    second = await saved(world, 5)
    assert await stored.snapshots() == [0, *first, *second]
    await older(process, HOUR_US // 2)
    third = await saved(world)
    assert await stored.snapshots() == [0, *second, *third]  # that at 0 is the first of its program
    await older(process, 2 * HOUR_US)
    last = await saved(world)
    assert await stored.snapshots() == [0, *last]
    fork = await world.fork("f", at=first[0])  # states can be made as before, from changes
    assert await fork.state() == await world.state(at=first[0])
    await process.close()
    await kit.aclose()


async def test_a_compaction_keeps_young_ones_and_the_states_above(memory_kit: Kit) -> None:
    app = compacting.program()
    process = await hosting(memory_kit, app, segment_margin=0)
    world = await process.universe.ensure("w", app)
    stored = await Stored.of(process.universe, world)
    first = await saved(world, 3)
    await older(process, 2 * HOUR_US)
    second = await saved(world, 3)
    done = await compacting.compact(process, world)
    assert done.height == second[0]
    assert await stored.snapshots() == [0, *second]
    with pytest.raises(wl.errors.NotRetained):
        await world.state(at=first[1])
    for height in range(second[0], second[-1] + 1):
        await world.state(at=height)
    await older(process, 2 * HOUR_US)
    done = await compacting.compact(process, world)
    assert (done.height, await stored.snapshots()) == (second[-1], [0, second[-1]])
    await process.close()
    await memory_kit.aclose()


async def test_a_command_goes_by_what_the_host_has_noted_and_a_dry_run_says_what_it_does(kit: Kit) -> None:
    app = compacting.program()
    process = await hosting(kit, app, segment_margin=0)
    world = await process.universe.ensure("w", app)
    at = await world._handle.address()
    heights = await saved(world, 4)
    noted = {each.name: (each.value, each.by) for each in await process.universe.stored_settings()}
    assert noted["worker.snapshots_kept_ms"] == (HOUR_MS, "host")
    await process.close()

    client = await kit.process(settings=Settings())
    connection = client.universe._connection
    stored = await Stored.of(client.universe, client.universe.world("w"))
    planned = await compaction_calls.plan(connection, at)
    assert (planned.dropped, planned.policy["worker.snapshots_kept_ms"]) == ([], HOUR_MS)
    await compaction_calls.compact(connection, at)
    assert await stored.snapshots() == [0, *heights]
    await client.universe.store_settings({"worker.snapshots_kept_ms": 2 * HOUR_MS})  # an operator has the last word
    await older(client, HOUR_US)
    assert (await compaction_calls.plan(connection, at)).dropped == []
    await client.universe.store_settings({"worker.snapshots_kept_ms": None})
    await client.universe.store_settings({"worker.snapshots_kept": 2})  # by number alone again
    planned = await compaction_calls.plan(connection, at)
    assert planned.dropped == heights[:-2]
    assert (await compaction_calls.compact(connection, at)).snapshots == 2
    assert await stored.snapshots() == [0, *heights[-2:]]
    await client.close()
    await kit.aclose()


async def test_neither_downtime_nor_a_clock_makes_a_snapshot_old(memory_kit: Kit) -> None:
    """Days by the store's clock, with and without a process; then an hour that a janitor has counted."""
    app = compacting.program()
    process = await hosting(memory_kit, app)
    world = await process.universe.ensure("w", app)
    heights = await saved(world, 3)
    await memory_kit.jump(48 * 3_600)  # ahead, while it runs
    heights += await saved(world)
    await memory_kit.jump(-24 * 3_600)
    heights += await saved(world)
    await process.close()
    await memory_kit.jump(240 * 3_600)  # nothing runs

    again = await hosting(memory_kit, app)
    world = again.universe.world("w")
    stored = await Stored.of(again.universe, world)
    heights += await saved(world)
    assert await stored.snapshots() == [0, *heights]
    assert (await compaction_calls.plan(again.universe._connection, await world._handle.address())).dropped == []

    clock = envs.FixedEnv(wall_us=memory_kit.env.wall_us())
    counter = AgeCounter(Clocked(again.engine, clock), clock, again.universe._connection.id, every_us=0)
    await counter.look()
    clock.jump_wall_us(100 * HOUR_US)  # one clock alone has not passed an hour
    await counter.look()
    heights += await saved(world)
    assert await stored.snapshots() == [0, *heights]
    for _ in range(20):  # ten minutes at a time, by both clocks: a fifth of an hour may be behind
        clock.advance_us(HOUR_US // 6)
        await counter.look()
    heights += await saved(world)
    assert await stored.snapshots() == [0, heights[-1]]
    await again.close()
    await memory_kit.aclose()


class Clocked(kits.Around):
    """A store with a clock that the test drives."""

    def __init__(self, engine: kv.Engine, clock: envs.Env) -> None:
        super().__init__(engine)
        self._clock = clock

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return msgspec.structs.replace(await super().read(*requests), time_us=self._clock.wall_us())


async def test_many_young_snapshots_are_not_read_with_each(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked through when some of them may have become too old. Each says its age all the same."""
    app = compacting.program()
    process = await hosting(memory_kit, app)
    world = await process.universe.ensure("w", app)
    survey, looks = compactor.survey, 0

    async def counted(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        return await survey(*given)

    monkeypatch.setattr(compactor, "survey", counted)
    for _ in range(20):
        await saved(world)
    assert looks == 1
    now = await older(process, HOUR_US // universe_retention.LOOKS)
    await saved(world, 2)
    assert looks == 2
    at = await world._handle.address()
    page = (await process.engine.read(snapshot_layer.latest_range(at, up_to=10**9, count_max=3))).page(0)
    assert [snapshot_keys.SNAPSHOT.unpack(raw).age_us for _, raw in page.items] == [now.age_us, now.age_us, 1]
    monkeypatch.setattr(retention_rules, "DROPS_MAX", 8)
    await older(process, 2 * HOUR_US)
    await saved(world, 3)
    assert looks == 5  # more have become too old than one batch drops: the next goes on at once
    stored = await Stored.of(process.universe, world)
    assert len(await stored.snapshots()) == 2 + 2  # the first of its program, and what was taken since
    await process.close()
    await memory_kit.aclose()


async def test_imported_snapshots_are_as_old_as_the_import(memory_kit: Kit, tmp_path: Path) -> None:
    """Those of the file counted in another universe."""
    app = compacting.program()
    process = await hosting(memory_kit, app)
    world = await process.universe.ensure("w", app)
    await older(process, 500 * HOUR_US)
    heights = await saved(world, 3)
    await world.export(tmp_path / "w.world")
    now = await older(process, HOUR_US)
    copy = await process.universe.import_world(tmp_path / "w.world", name="copy")
    at = await copy._handle.address()
    read = await process.engine.read(
        snapshot_layer.latest_range(at, up_to=10**9, count_max=9), snapshot_layer.get_baseline(at)
    )
    found = [snapshot_keys.SNAPSHOT.unpack(raw) for _, raw in read.page(0).items]
    assert {each.age_us for each in [*found, snapshot_layer.decode_baseline(read.value(1))]} == {now.age_us}
    assert (await compaction_calls.plan(process.universe._connection, at)).dropped == []
    assert heights[-1] in [each.height for each in found]
    await process.close()
    await memory_kit.aclose()
