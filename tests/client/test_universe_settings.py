"""Settings that are stored with a universe: every process keeps the same of its worlds, and refuses inputs alike."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import worldline as wl
from tests.features.compaction import compacting
from tests.features.compaction.compacting import Added, Stored
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.base import errors
from worldline.features.compaction import calls as compaction_calls
from worldline.features.compaction import compactor
from worldline.keys import universes as universe_keys
from worldline.layers import universes
from worldline.model import blobs, ids, setting_names
from worldline.model.settings import PressureSettings, Settings, WorkerSettings
from worldline.store import kv

SLOW = {"snapshot_idle_ms": 10**9, "snapshot_ms": 10**9}  # saved by hand alone, otherwise as it comes


async def hosting(kit: Kit, app: wl.Program, **worker: Any) -> Process:
    return await kit.process(app, settings=kits.settings(worker=SLOW | worker))


async def saved(world: wl.World, times: int) -> None:
    """A world that does little, and is saved each time."""
    for number in range(times):
        await (await world.send(Added(f"k{number % 3}"))).applied()
        await world.snapshot()


async def test_a_slow_world_has_as_many_snapshots_as_are_kept(kit: Kit) -> None:
    """However often it is saved: the last ones, and the first of its program. Every state can still be read."""
    app = compacting.program()
    process = await hosting(kit, app)
    world = await process.universe.ensure("w", app)
    await saved(world, 12)
    stored = await Stored.of(process.universe, world)
    top = (await world.head()).height
    found = await stored.snapshots()
    assert (len(found), found[0], found[-1]) == (4, 0, top)
    assert await stored.segments() == []
    assert [len(await world.state(at=height)) for height in range(top)]  # none is NotRetained
    fork = await world.fork("f", at=top // 2)
    assert await fork.state() == await world.state(at=top // 2)
    await process.close()
    await kit.aclose()


async def test_kept_for_ever(memory_kit: Kit) -> None:
    app = compacting.program()
    process = await hosting(memory_kit, app, snapshots_kept=0)
    world = await process.universe.ensure("w", app)
    await saved(world, 8)
    stored = await Stored.of(process.universe, world)
    assert len(await stored.snapshots()) == 9
    assert (await compacting.compact(process, world)).snapshots == 0
    assert len(await stored.snapshots()) == 9
    await process.close()
    await memory_kit.aclose()


async def test_a_host_notes_what_it_keeps_and_a_command_keeps_the_same(kit: Kit) -> None:
    """`worldline compact` is another process, with the default settings."""
    app = compacting.program()
    process = await hosting(kit, app, snapshots_kept=50, segment_margin=0)
    world = await process.universe.ensure("w", app)
    at = await world._handle.address()
    await saved(world, 10)
    noted = [("worker.segment_margin", 0, "host"), ("worker.snapshots_kept", 50, "host")]
    found = await process.universe.stored_settings()
    assert [(each.name, each.value, each.by) for each in found] == noted
    await process.close()

    client = await kit.process(settings=Settings())
    stored = await Stored.of(client.universe, client.universe.world("w"))
    connection = client.universe._connection
    before = await stored.snapshots()
    planned = await compaction_calls.plan(connection, at)
    assert (planned.entries, planned.dropped, planned.policy["worker.snapshots_kept"]) == (0, [], 50)
    assert (await compaction_calls.compact(connection, at)).snapshots == 0
    assert await stored.snapshots() == before

    assert await client.universe.store_settings({"worker.snapshots_kept": 2})
    planned = await compaction_calls.plan(connection, at)
    assert planned.dropped == before[1:-2]
    assert planned.up_to == before[-2]
    assert (await compaction_calls.compact(connection, at)).snapshots == len(planned.dropped)
    assert await stored.snapshots() == [0, *before[-2:]]
    await client.close()
    await kit.aclose()


async def test_what_an_operator_has_chosen_goes_before_what_hosts_say(
    memory_kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while they run; the log says where that is not what the host was started with."""
    app = compacting.program()
    process = await hosting(memory_kit, app, snapshots_kept=50)
    world = await process.universe.ensure("w", app)
    stored = await Stored.of(process.universe, world)
    await saved(world, 6)
    assert len(await stored.snapshots()) == 7
    with caplog.at_level(logging.WARNING, logger="worldline.compaction"):
        await process.universe.store_settings({"worker.snapshots_kept": 1})
        await saved(world, 1)
    assert len(await stored.snapshots()) == 2
    said = [record.getMessage() for record in caplog.records]
    assert any(
        "worker.snapshots_kept is 1, as stored with it, and not 50; `worldline universe settings`" in each
        for each in said
    )
    await process.close()

    again = await hosting(memory_kit, app, snapshots_kept=20)  # what it notes changes nothing
    stored = await Stored.of(again.universe, again.universe.world("w"))
    await saved(again.universe.world("w"), 3)
    assert len(await stored.snapshots()) == 2
    assert [
        (each.name, each.value, each.by)
        for each in await again.universe.stored_settings()
        if each.name == "worker.snapshots_kept"
    ] == [("worker.snapshots_kept", 1, "operator")]
    await again.universe.store_settings({"worker.snapshots_kept": None})  # and what was noted is forgotten
    assert "worker.snapshots_kept" not in {each.name for each in await again.universe.stored_settings()}
    await again.close()
    await memory_kit.aclose()


@pytest.mark.probe("snapshot.not-dropped")
async def test_a_fork_that_comes_while_a_world_is_saved_keeps_its_snapshot(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = compacting.program()
    process = await hosting(memory_kit, app)
    world = await process.universe.ensure("w", app)
    stored = await Stored.of(process.universe, world)
    await saved(world, 3)
    oldest = (await stored.snapshots())[1]
    superseded = compactor.superseded
    forked: list[wl.World] = []

    async def fork_meanwhile(*given: Any) -> Any:
        found = await superseded(*given)
        if not forked:
            assert [each.record.height for each in found.snapshots] == [oldest]
            forked.append(await world.fork("f", at=oldest))
        return found

    monkeypatch.setattr(compactor, "superseded", fork_meanwhile)
    await saved(world, 1)
    assert oldest in await stored.snapshots()
    assert await forked[0].state() == await world.state(at=oldest)
    await process.close()
    await memory_kit.aclose()


async def test_nothing_is_dropped_while_a_collection_marks(memory_kit: Kit) -> None:
    app = compacting.program()
    process = await hosting(memory_kit, app)
    world = await process.universe.ensure("w", app)
    stored = await Stored.of(process.universe, world)
    await saved(world, 3)
    engine, universe = process.universe._connection.store.engine, process.universe._connection.id
    await mark(engine, universe, marking=True)
    await saved(world, 1)
    assert len(await stored.snapshots()) == 5
    await mark(engine, universe, marking=False)
    await saved(world, 1)
    assert len(await stored.snapshots()) == 4
    await process.close()
    await memory_kit.aclose()


async def mark(engine: kv.Engine, universe: ids.UniverseId, *, marking: bool) -> None:
    key = universe_keys.generation_key(universe)
    raw = (await engine.read(kv.Get(key))).value(0)
    assert raw is not None
    number = universes.decode_generation(raw)
    batch = kv.Batch()
    batch.expect(key, raw)
    batch.put(key, universe_keys.GENERATION.pack(blobs.Generation(number + 1, marking)))
    [outcome] = await engine.commit(batch)
    assert isinstance(outcome, kv.Ok)


# --- Pressure ------------------------------------------------------------------------------------------------


async def test_inputs_are_refused_by_the_bound_of_the_universe_wherever_they_enter(kit: Kit) -> None:
    """One process was given a bound, one was not: both go by that of the universe, within `sample_ms`."""
    app = compacting.program()
    own = Settings(pressure=PressureSettings(inbox_items_max=1_000, sample_ms=0))
    first, second = await kit.process(settings=own), await kit.process(settings=Settings())
    world = await first.universe.ensure("w", app)
    assert await first.universe.store_settings({"pressure.inbox_items_max": 5, "pressure.sample_ms": 0})
    assert not await first.universe.store_settings({"pressure.inbox_items_max": 5})
    for number in range(5):
        await world.send(Added("k", number))
    for process in (first, second, await kit.process(settings=Settings())):
        process.universe._connection.knows(app)
        with pytest.raises(wl.Overloaded, match="is full"):
            await process.universe.world("w").send(Added("k"))
    await first.universe.store_settings({"pressure.inbox_items_max": 6})
    await second.universe._connection.pressure.begin()  # as after `sample_ms`
    await second.universe.world("w").send(Added("k"))
    for process in (first, second):
        await process.close()
    await kit.aclose()


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"worker.scan_ms": 5}, "worker.scan_ms is a setting of each process"),
        ({"pressure.inbox_item_max": 5}, "no setting 'pressure.inbox_item_max' of a universe"),
        ({"pressure.inbox_items_max": -1}, "inbox_items_max is -1; use a whole number from 0"),
        ({"worker.segment_changes": 3}, "segment_changes is 3; use True or False"),
        ({"worker.journal_kept_ms": 5}, "journal_kept_ms is 5; use 0, or twice dedupe_window_ms"),
    ],
)
async def test_what_cannot_be_stored(memory_kit: Kit, wanted: dict[str, Any], why: str) -> None:
    process = await memory_kit.process()
    with pytest.raises(errors.BadInput, match=why):
        await process.universe.store_settings(wanted)
    assert await process.universe.stored_settings() == []
    await process.close()
    await memory_kit.aclose()


def test_what_a_default_host_says() -> None:
    """Nothing: it goes by what others have noted."""
    assert setting_names.said_of_retention(WorkerSettings()) == {}
    said = setting_names.said_of_retention(WorkerSettings(snapshots_kept=9, segment_changes=True, scan_ms=5))
    assert said == {"worker.segment_changes": "true", "worker.snapshots_kept": "9"}
