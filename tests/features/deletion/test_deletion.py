"""A world that is deleted is gone at once and for good; nothing of it is left, and nothing of any other is touched."""

from __future__ import annotations

import asyncio

import pytest

import worldline as wl
from tests.features.deletion import deleting
from tests.features.deletion.deleting import SECRET, Note, Vault
from tests.features.forks.forking import until
from tests.kits import kit as kits
from tests.kits.janitors import janitor_of
from tests.kits.kit import Kit, Process
from worldline.base import errors
from worldline.client import world_changes as changes
from worldline.cluster.janitor import Janitor
from worldline.features.collection import collector
from worldline.features.deletion import batches as deletion_batches
from worldline.features.deletion import calls as deletions
from worldline.features.deletion import checks
from worldline.inspect import doctor
from worldline.keys import leases as lease_keys
from worldline.keys import worlds as world_keys
from worldline.model import world_records as model
from worldline.model.settings import JanitorSettings
from worldline.store import kv, transact


async def plant(kit: Kit, process: Process, vault: Vault) -> wl.World:
    """Something of everything, with every word in its place."""
    world = await deleting.full(kit, vault, process)
    at = await world._handle.address()
    await changes.point(process.universe._connection, f"{SECRET}-alias", at)
    await world.pause()
    await world.send(Note("k", f"{SECRET}-inbox"))
    assert await deleting.words(kit, process.engine) == {*deleting.WORDS}
    return world


def janitor(process: Process, **changes: int) -> Janitor:
    settings = JanitorSettings(**{"turn_ms": 1, "round_ms": 1, **changes})
    return janitor_of(process.universe._connection, settings)


async def collected(process: Process) -> None:
    """Blobs that nothing needs go: condemned by one collection, deleted by the next, without a grace."""
    connection = process.universe._connection
    for _ in range(2):
        await collector.collect(
            connection.store.engine, connection.store.env, connection.blobs, connection.id, grace_ms=0
        )


@pytest.mark.parametrize("in_store", [False, True], ids=["objects", "chunks"])
@pytest.mark.probe("deletion.was-mentioned")
async def test_nothing_of_it_is_left(kit: Kit, in_store: bool) -> None:
    """Journal, segments, snapshots, inbox, ids, dead letters, traces, names, open work: on every engine."""
    if in_store:
        kit.without_objects()
    vault = Vault()
    process = await kit.process(vault.program, settings=deleting.settings())
    world = await plant(kit, process, vault)
    at = await world._handle.address()
    raw = (await process.engine.read(kv.Get(lease_keys.epoch_key(at)))).value(0)
    before = lease_keys.EPOCH.unpack(raw or b"").number
    await world.delete(wait=True)
    assert await deleting.left(process.engine, at) == []
    await process.universe.world("friend").delete(wait=True)  # what it was sent is its own, with the sender's name
    await collected(process)
    assert await deleting.words(kit, process.engine) == set()
    items = await deleting.items(process.engine)
    meta = world_keys.META.unpack(items[world_keys.meta_key(at)])
    assert meta == model.WorldMeta("", "", b"", model.Status.DELETED, {}, meta.created_us, meta.revision)
    assert lease_keys.EPOCH.unpack(items[lease_keys.epoch_key(at)]).number > before
    for use in (world.describe(), world.head(), world.send(Note("k", "v")), world.ask(deleting.Read("k"))):
        with pytest.raises(errors.NotFound, match="is deleted"):
            await use
    with pytest.raises(errors.NotFound, match="no world"):
        await process.universe.world(f"{SECRET}-alias").describe()
    assert [each.name async for each in process.universe.worlds()] == []
    again = await process.universe.create(f"{SECRET}-name", vault.program)  # the name is free
    await again.send(Note("k", "new"))
    assert await deletions.delete(process.universe._connection, at, wait=True) is False  # twice is once
    assert (await again.describe()).name == f"{SECRET}-name"
    vault.gate.set()
    await process.close()
    await kit.aclose()


async def test_without_waiting_the_janitor_of_any_process_removes_it(memory_kit: Kit) -> None:
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world = await plant(memory_kit, process, vault)
    at, connection = await world._handle.address(), process.universe._connection
    await world.delete()
    with pytest.raises(errors.NotFound, match="is deleted"):
        await world.describe()
    [unfinished] = await deletions.unfinished(connection)
    assert (unfinished.id, unfinished.removed) == (at.world.hex(), 0)
    assert f"{at.world.hex()} is deleted, 0 keys" in (await checks.describe(connection.store.engine, at) or "")
    assert await deleting.left(process.engine, at)
    cleaner = await memory_kit.process(universe=connection.name)  # of another process
    each = janitor(cleaner)
    while not await each.remove():
        pass
    assert await deleting.left(process.engine, at) == []
    assert await deletions.unfinished(connection) == []
    assert "nothing of it is left" in (await checks.describe(connection.store.engine, at) or "")
    for one in (process, cleaner):
        await one.close()
    await memory_kit.aclose()


async def test_the_janitor_is_woken_by_a_deletion(memory_kit: Kit) -> None:
    """It rests for long between its rounds, and a deletion does not wait for the next."""
    vault = Vault()
    cleaner = await memory_kit.process()
    each = janitor(cleaner, round_ms=10**8)

    async def ticks() -> None:
        while True:
            await each.tick()

    ticking = asyncio.create_task(ticks())
    await until(lambda: each.rounds == 1)
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    at = await world._handle.address()
    await world.delete()

    async def is_gone() -> bool:
        return await deleting.left(process.engine, at) == []

    await until(is_gone, seconds=20)
    assert each.rounds == 1
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    await each.close()
    for one in (process, cleaner):
        await one.close()
    await memory_kit.aclose()


# --- Others that are at it ------------------------------------------------------------------------------------------


async def test_whoever_waits_for_it_is_told(memory_kit: Kit) -> None:
    """Runs, asks and followers: in the process that runs it, in others, and of a world that no process runs."""
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    client = await memory_kit.process(settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    await kits.begin(world, vault.wait("x"), id="r")

    async def follow(each: wl.World) -> None:
        async for _ in each.follow():
            pass

    waiting = []
    for universe in (process.universe, client.universe):
        each = universe.world("w")
        waiting += [asyncio.create_task((await each.attach("r")).result()), asyncio.create_task(follow(each))]
    await asyncio.sleep(0.05)
    await world.delete(wait=True)
    async with asyncio.timeout(20):
        said = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in said] == [errors.NotFound] * 4
    assert all("is deleted" in str(each) for each in said)
    vault.gate.set()
    for one in (process, client):
        await one.close()
    await memory_kit.aclose()


@pytest.mark.parametrize("status", [model.Status.ACTIVE, model.Status.PAUSED, model.Status.ARCHIVED])
async def test_every_status_can_be_deleted_and_a_change_of_status_cannot(memory_kit: Kit, status: model.Status) -> None:
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    with pytest.raises(errors.BadInput, match=r"delete\(\)"):
        await world.change(status=model.Status.DELETED)
    await world.change(status=status)
    await world.delete(wait=True)
    assert await deleting.left(process.engine, await world._handle.address()) == []
    with pytest.raises(errors.NotFound):
        await process.universe.world("never").delete()
    await process.close()
    await memory_kit.aclose()


async def test_messages_to_it_get_an_error_receipt(memory_kit: Kit) -> None:
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    friend = await process.universe.ensure("friend", vault.program)
    sender = await process.universe.ensure("sender", vault.program)
    await friend.delete(wait=True)
    with pytest.raises(wl.RunFailed, match="no such world"):
        await sender.run(vault.talk("x"), id="r")
    await process.close()
    await memory_kit.aclose()


@pytest.mark.probe("reap.world-deleted")
async def test_a_record_that_a_dead_worker_held_it_is_dropped(memory_kit: Kit) -> None:
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world, kept = [await process.universe.ensure(name, vault.program) for name in ("w", "kept")]
    await kept.send(Note("k", "1"))
    at = await world._handle.address()
    client = await memory_kit.process(universe=process.universe.name)
    await world.delete(wait=True)
    key = lease_keys.held_key(process.host.worker, at)
    batch = kv.Batch()
    batch.absent(key)
    batch.put(key, lease_keys.HELD.pack(lease_keys.HeldRecord(1)))
    await transact.commit(client.engine, memory_kit.env, batch)
    await process.kill()
    await memory_kit.jump(60)
    each = janitor(client)
    for _ in range(2):
        while not await each.turn():
            pass
    assert (await client.engine.read(kv.Get(key))).value(0) is None
    assert await deleting.left(client.engine, at) == []
    await client.close()
    await memory_kit.aclose()


async def test_doctor_finishes_deletions_also_of_earlier_releases(memory_kit: Kit) -> None:
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    worlds = [await process.universe.ensure(name, vault.program) for name in ("new", "old")]
    addresses = [await world._handle.address() for world in worlds]
    for world in worlds:
        await world.delete()
    batch = kv.Batch()  # an earlier release has left no record of it
    key, raw = (
        (await process.engine.read(deletion_batches.unfinished(addresses[1].universe, count_max=9))).page(0).items[1]
    )
    batch.expect(key, raw)
    batch.delete(key)
    await transact.commit(process.engine, memory_kit.env, batch)
    report = await doctor.examine(process.universe._connection, repair=False)
    assert (report.findings, report.deletions, report.deletions_finished) == ([], 2, 0)
    report = await doctor.examine(process.universe._connection, repair=True)
    assert (report.findings, report.deletions, report.deletions_finished) == ([], 2, 2)
    for at in addresses:
        assert await deleting.left(process.engine, at) == []
    report = await doctor.examine(process.universe._connection, repair=False)
    assert (report.deletions, report.left_over) == (0, 0)
    await process.close()
    await memory_kit.aclose()
