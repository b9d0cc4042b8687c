"""A universe that is deleted leaves no key and no object; others are not touched, and nothing comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import worldline as wl
from tests.features.compaction.test_compaction_cuts import Budget, Dying
from tests.features.deletion import deleting
from tests.features.deletion.deleting import Note, Vault
from tests.features.deletion.test_deletion import janitor
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.base import errors, limits
from worldline.features.deletion import universe_calls, universe_keyspace
from worldline.features.deletion import universe_job as deletions
from worldline.keys import cas as cas_keys
from worldline.keys import space
from worldline.layers import leases
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.runtime.universes import universe_scan
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv


async def none_hosted(states: Sequence[leases.LeaseState]) -> list[bool]:
    return [False for _ in states]


async def left(kit: Kit, engine: kv.Engine, universe: ids.UniverseId) -> list[object]:
    """Every key and every object that is about a universe."""
    keys = [
        key for key, raw in (await deleting.items(engine)).items() if bytes(universe) in key or bytes(universe) in raw
    ]
    under = cas_keys.object_folder(universe)
    return [*keys, *(name for name in await deleting.bodies(kit) if name.startswith(under))]


async def town(kit: Kit, vault: Vault) -> tuple[Process, ids.UniverseId]:
    """A universe with worlds, forks, grants, and large values."""
    process = await kit.process(vault.program, settings=deleting.settings(), universe="town")
    world = await deleting.full(kit, vault, process, name="a")
    await world.fork("fork")
    await process.universe.allow("default")
    return process, process.universe._connection.id


@pytest.mark.parametrize("in_store", [False, True], ids=["objects", "chunks"])
async def test_nothing_of_it_is_left_and_others_are_as_they_were(kit: Kit, in_store: bool) -> None:
    if in_store:
        kit.without_objects()
    vault = Vault()
    other = await kit.process(vault.program, settings=deleting.settings())
    kept = await deleting.full(kit, vault, other, name="kept")
    await other.close()
    process, universe = await town(kit, vault)
    client = await kit.process(settings=deleting.settings())
    store = client.universe._connection.store
    with pytest.raises(errors.InUse, match=r"workers run worlds of universe 'town'.*'a'"):
        await universe_calls.delete(store, "town", with_worlds=True)
    with pytest.raises(errors.InUse, match=r"universe 'town' has worlds: .*'a'.*--with-worlds") as caught:
        await universe_calls.delete(store, "town", with_worlds=False)
    assert {"a", "fork", "friend"} <= {*caught.value.by}
    await process.close()
    mine = space.universe(client.universe._connection.id)
    before = {key: raw for key, raw in (await deleting.items(client.engine)).items() if key.startswith(mine)}
    told: list[int] = []
    await universe_calls.delete(store, "town", with_worlds=True, progress=told.append)
    assert told == sorted(told)
    assert await left(kit, client.engine, universe) == []
    after = {key: raw for key, raw in (await deleting.items(client.engine)).items() if key.startswith(mine)}
    assert after == before
    with pytest.raises(errors.NotFound, match="no universe 'town'"):
        await universe_calls.delete(store, "town", with_worlds=True)
    again = await kit.process(universe="town")  # the name is free
    assert again.universe._connection.id != universe
    back = await kit.process(vault.program, settings=deleting.settings())
    assert await back.universe.world(kept.name).ask(deleting.Read("k")) == "11" * 40
    for each in (client, again, back):
        await each.close()
    await kit.aclose()


@pytest.mark.parametrize("written", [1, 3])
async def test_it_may_be_cut_off_behind_every_write(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Each process does so many writes, and dies; the janitor of another universe goes on."""
    monkeypatch.setattr(limits, "DELETE_KEYS_MAX", 3)
    vault = Vault()
    client = await memory_kit.process(settings=deleting.settings())
    process, universe = await town(memory_kit, vault)
    await process.close()
    store = client.universe._connection.store
    with pytest.raises(errors.StoreFailed):
        await deletions.begin(
            Dying(client.engine, Budget(1)), memory_kit.env, "town", with_worlds=True, hosted=none_hosted
        )
    sizes: list[int] = []
    done = False
    while not done:
        sizes.append(len(await left(memory_kit, client.engine, universe)))
        assert len(sizes) < 300
        engine = Dying(client.engine, Budget(written))
        try:
            done = await deletions.UniverseRemoval(engine, memory_kit.env, store_opening.bodies_of(store)).turn()
        except errors.StoreFailed:
            continue
    assert sizes[-1] <= written  # the last turn writes no more than that
    assert len(sizes) > 24 // written
    assert await left(memory_kit, client.engine, universe) == []
    await client.close()
    await memory_kit.aclose()


async def test_a_scan_of_all_universes_tells_of_one_that_was_deleted(memory_kit: Kit) -> None:
    """Also when the hint of it was lost."""
    client = await memory_kit.process()
    told: list[ids.UniverseId | None] = []
    universes = Universes(patterns=["*"])
    universes.on_delete.append(told.append)
    scan = universe_scan.Scan(client.engine, memory_kit.env, universes, scan_ms=1)
    await scan.turn()
    assert told == []
    await memory_kit.process(universe="town")
    gone = await deletions.begin(client.engine, memory_kit.env, "town", with_worlds=True, hosted=none_hosted)
    await scan.turn()
    assert told == [None]
    scan.note([universe_keyspace.deletion_key(gone)])
    assert told == [None, None]
    await deletions.UniverseRemoval(client.engine, memory_kit.env, None).run()
    await scan.turn()
    assert told == [None, None]
    await scan.close()


class Meanwhile(kits.Around):
    """Right before the first commit, something is done."""

    def __init__(self, engine: kv.Engine, do: Callable[[], Awaitable[object]]) -> None:
        super().__init__(engine)
        self._do: Callable[[], Awaitable[object]] | None = do

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        do, self._do = self._do, None
        if do is not None:
            await do()
        return await super().commit(*batches)


@pytest.mark.probe("deletion.universe-stays")
async def test_a_world_that_is_made_meanwhile_keeps_the_universe(memory_kit: Kit) -> None:
    """It was found empty, and was not when it was closed."""
    vault = Vault()
    town = await memory_kit.process(universe="town")
    client = await memory_kit.process()
    engine = Meanwhile(client.engine, lambda: town.universe.create("w", vault.program))
    universe = await deletions.begin(engine, memory_kit.env, "town", with_worlds=False, hosted=none_hosted)
    with pytest.raises(errors.InUse, match="has worlds: 'w'"):
        await deletions.UniverseRemoval(client.engine, memory_kit.env, None, only=universe).run()
    assert (await town.universe.world("w").describe()).name == "w"
    await town.universe.create("v", vault.program)
    reopened = await memory_kit.process(universe="town")
    assert reopened.universe._connection.id == universe
    for each in (town, client, reopened):
        await each.close()
    await memory_kit.aclose()


async def test_no_world_is_made_in_a_universe_that_is_being_deleted(memory_kit: Kit) -> None:
    """Neither by a process that has it open, nor by one that decided to before it was closed."""
    vault = Vault()
    client = await memory_kit.process()
    made = await memory_kit.process(universe="town")

    async def close() -> None:
        await universe_calls.delete(client.universe._connection.store, "town", with_worlds=True)

    late = await memory_kit.process(universe="town", wrap=lambda engine: Meanwhile(engine, close))
    universe = late.universe._connection.id
    for process in (late, made):
        with pytest.raises(errors.NotFound, match="is deleted"):
            await process.universe.create("w", vault.program)
    assert await left(memory_kit, client.engine, universe) == []
    for each in (late, client, made):
        await each.close()
    await memory_kit.aclose()


async def test_an_idle_host_of_it_leaves_nothing(memory_kit: Kit) -> None:
    """Its roles go on for as long as its process does."""
    vault = Vault()
    client = await memory_kit.process()
    host = await memory_kit.process(vault.program, settings=deleting.settings(), universe="town")
    universe = host.universe._connection.id
    await universe_calls.delete(client.universe._connection.store, "town", with_worlds=False)
    each = janitor(host)
    for _ in range(3):
        await each.tick()
    await asyncio.sleep(0.5)
    assert await left(memory_kit, client.engine, universe) == []
    with pytest.raises(errors.NotFound, match="is deleted"):
        await host.universe.ensure("w", vault.program)
    await each.close()
    await host.close()
    assert await left(memory_kit, client.engine, universe) == []
    await client.close()
    await memory_kit.aclose()


async def test_by_url(tmp_path: Path) -> None:
    vault = Vault()
    url = str(tmp_path / "store")
    async with wl.open(url, host=vault.program, universe="town") as universe:
        await (await universe.ensure("w", vault.program)).send(Note("k", "1"))
    with pytest.raises(wl.errors.InUse):
        await wl.ops.delete_universe(url, "town")
    with pytest.raises(wl.NotFound):
        await wl.ops.delete_universe(url, "nowhere")
    await wl.ops.delete_universe(url, "town", with_worlds=True)
    assert await wl.ops.universes(url) == []
