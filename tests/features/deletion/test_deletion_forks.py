"""Forks of a world that is deleted: told about before, whole afterwards, and without what stood in its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

import worldline as wl
from tests.features.compaction import compacting
from tests.features.deletion import deleting
from tests.features.deletion.deleting import Note, Vault
from tests.features.forks.forking import Shop, result, until
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.base import errors
from worldline.features.deletion import job as deletions
from worldline.features.forks import share_effect
from worldline.features.proofs import calls as proof_calls
from worldline.inspect import doctor, verify
from worldline.keys import lineage as lineage_keys
from worldline.keys import space
from worldline.layers import snapshots
from worldline.runtime import operator_calls
from worldline.store import kv, transact


async def no_worker(process: Process) -> None:
    process.host.worlds._searcher.is_due = lambda *_, **__: False  # no worker takes the forks


async def test_forks_that_need_it_are_named(memory_kit: Kit) -> None:
    """Nothing is deleted; with a state of its own, a fork needs nothing of it any more."""
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    await world.send(Note("k", "1"))
    client = await memory_kit.process(settings=deleting.settings())
    due = process.host.worlds._searcher.is_due
    await no_worker(process)
    for name in ("f1", "f2"):
        await client.universe.world("w").fork(name)
    before = await deleting.items(process.engine)
    with pytest.raises(errors.InUse, match=r"'f1', 'f2'; .*--after-forks") as caught:
        await client.universe.world("w").delete()
    assert caught.value.by == ("f1", "f2")
    assert await deleting.items(process.engine) == before
    deleting_it = asyncio.create_task(client.universe.world("w").delete(wait=True, after_forks=True))
    await asyncio.sleep(0.05)
    assert not deleting_it.done()
    process.host.worlds._searcher.is_due = due
    async with asyncio.timeout(30):
        await deleting_it
    assert await deleting.left(process.engine, await world._handle.address()) == []
    for name in ("f1", "f2"):
        fork = client.universe.world(name)
        assert await fork.ask(deleting.Read("k")) == "1"
        await fork.send(Note("k", "2"))
        assert await fork.ask(deleting.Read("k")) == "2"
    for one in (process, client):
        await one.close()
    await memory_kit.aclose()


async def lone(process: Process, parent: wl.World, name: str) -> wl.World:
    """A fork with a state of its own."""
    fork = await parent.fork(name)
    await fork.ask(deleting.Read("k"))
    at, of = await parent._handle.address(), await fork._handle.address()

    async def stands_alone() -> bool:
        return (await process.engine.read(snapshots.get_pin(at, of.world))).value(0) is None

    await until(stands_alone)
    return fork


async def family(kit: Kit) -> tuple[Vault, Process, wl.World, wl.World]:
    vault = Vault()
    process = await kit.process(vault.program, settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    for number in range(4):
        await world.send(Note("k", str(number)))
    return vault, process, world, await lone(process, world, "f")


@pytest.mark.probe("journal.owner-deleted")
async def test_a_fork_goes_on_without_the_history_that_stood_elsewhere(kit: Kit) -> None:
    vault, process, world, fork = await family(kit)
    top = await fork.head()
    forked = (await fork.lineage() or pytest.fail("a fork")).height
    await world.delete(wait=True)
    assert await fork.head() == top
    await fork.send(Note("k", "later"))
    assert await fork.ask(deleting.Read("k")) == "later"
    with pytest.raises(errors.NotRetained, match=f"entries are kept above height {forked}"):
        await fork.journal(above=0)
    assert await fork.journal() == await fork.journal(above=forked)
    assert (await fork.journal(above=forked))[0].height == forked + 1
    with pytest.raises(errors.NotRetained, match="not kept any more"):
        await fork.state(at=1)
    found = await verify.verify(process.universe._connection, await fork._handle.address())
    assert (found.height, found.entries, found.entries_above) == (
        (await fork.head()).height,
        (await fork.head()).height - forked,
        forked,
    )
    proof = await proof_calls.prove(fork._handle, programs=[vault.program])
    assert proof.holds
    assert (await doctor.examine(process.universe._connection, repair=False)).findings == []
    for number in range(20):
        await fork.send(Note("k", str(number)))
    await fork.snapshot()
    await fork.send(Note("k", "end"))
    assert (await compacting.compact(process, fork)).segments == 1
    found = await verify.verify(process.universe._connection, await fork._handle.address())
    assert found.entries == (await fork.head()).height - forked
    again = await lone(process, fork, "g")
    assert await again.ask(deleting.Read("k")) == "end"
    await process.close()
    await kit.aclose()


@pytest.mark.parametrize("knows_chain", [True, False])
async def test_a_history_with_a_gap_is_proved_from_behind_it(memory_kit: Kit, knows_chain: bool) -> None:
    """The parent is deleted, its own parent is not: the snapshot of that one leads nowhere. The simulator found a proof
    that began there and called the fork damaged.
    """
    vault, process, _, fork = await family(memory_kit)
    await fork.send(Note("k", "more"))
    last = await lone(process, fork, "g")
    if not knows_chain:
        await forget_chain(memory_kit, process, last)
    forked = (await last.lineage() or pytest.fail("a fork")).height
    await fork.delete(wait=True)
    proof = await proof_calls.prove(last._handle, programs=[vault.program])
    assert (proof.holds, proof.height) == (True, (await last.head()).height)
    assert proof.start >= forked
    assert (await verify.verify(process.universe._connection, await last._handle.address())).entries_above >= forked
    with pytest.raises(errors.NotRetained, match="not kept any more"):
        await proof_calls.prove(last._handle, programs=[vault.program], up_to=1)
    await process.close()
    await memory_kit.aclose()


async def forget_chain(kit: Kit, process: Process, fork: wl.World) -> None:
    """Make its lineage one of an earlier release, which does not say the chain that its own journal goes on from."""
    key = lineage_keys.lineage_key(await fork._handle.address())
    raw = (await process.engine.read(kv.Get(key))).value(0) or b""
    old = msgspec.structs.replace(lineage_keys.LINEAGE.unpack(raw), chain=b"", state=b"", time_us=0)
    batch = kv.Batch()
    batch.expect(key, raw)
    batch.put(key, lineage_keys.LINEAGE.pack(old))
    await transact.commit(process.engine, kit.env, batch)


@pytest.mark.probe("compaction.parent-deleted")
async def test_a_fork_of_an_earlier_release_is_not_compacted_once_its_parent_is_deleted(memory_kit: Kit) -> None:
    _, process, world, fork = await family(memory_kit)
    await forget_chain(memory_kit, process, fork)
    await world.delete(wait=True)
    for number in range(20):
        await fork.send(Note("k", str(number)))
    await fork.snapshot()
    assert (await compacting.compact(process, fork)).segments == 0
    assert (await verify.verify(process.universe._connection, await fork._handle.address())).entries > 0
    await process.close()
    await memory_kit.aclose()


async def test_deleting_one_of_two_forks_leaves_the_other_and_the_parent_as_they_are(kit: Kit) -> None:
    _, process, world, fork = await family(kit)
    other = await lone(process, world, "g")
    await until(lambda: not process.host.worlds.under_way())
    gone = await fork._handle.address()
    kept = {each: space.world(await each._handle.address()) for each in (world, other)}
    before = await deleting.items(process.engine)
    await fork.delete(wait=True)
    after = await deleting.items(process.engine)
    for prefix in kept.values():
        assert {k: v for k, v in after.items() if k.startswith(prefix)} == {
            k: v for k, v in before.items() if k.startswith(prefix)
        }
    assert await deleting.left(process.engine, gone) == []
    for each in kept:
        assert await each.ask(deleting.Read("k")) == "3"
        await verify.verify(process.universe._connection, await each._handle.address())
    await process.close()
    await kit.aclose()


async def test_the_pins_of_a_deleted_fork_go(memory_kit: Kit) -> None:
    """Its parent can be deleted then, although the fork was never run."""
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    await world.send(Note("k", "1"))
    await no_worker(process)
    fork = await world.fork("f")
    with pytest.raises(errors.InUse):
        await world.delete()
    assert await world.ask(deleting.Read("k")) == "1"
    await fork.delete(wait=True)
    await world.delete(wait=True)
    for each in (world, fork):
        assert await deleting.left(process.engine, await each._handle.address()) == []
    await process.close()
    await memory_kit.aclose()


async def test_a_deleted_grandparent_stays_empty(memory_kit: Kit) -> None:
    """Forks that do not need it write nothing of it: neither when they save a state, nor when they are deleted."""
    _, process, world, fork = await family(memory_kit)
    await world.delete(wait=True)
    at = await world._handle.address()
    child = await lone(process, fork, "child")
    assert await deleting.left(process.engine, at) == []
    await child.delete(wait=True)
    await fork.delete(wait=True)
    assert await deleting.left(process.engine, at) == []
    await process.close()
    await memory_kit.aclose()


async def test_the_same_fork_is_asked_for_again_after_its_parent_is_gone(memory_kit: Kit) -> None:
    _, process, world, fork = await family(memory_kit)
    at = await fork._handle.address()
    await world.delete(wait=True)
    for source in (world, process.universe.world("w")):
        assert await (await source.fork("f"))._handle.address() == at
        for other in ({"name": "f", "live": True}, {"name": "g"}):
            with pytest.raises(errors.NotFound):
                await source.fork(other.pop("name"), **other)  # type: ignore[arg-type]
    with pytest.raises(errors.NotFound):
        await process.universe.world("another").fork("f")
    await process.close()
    await memory_kit.aclose()


async def test_what_a_fork_shares_with_a_deleted_parent_is_cancelled(memory_kit: Kit) -> None:
    shop = Shop()
    process = await memory_kit.process(shop.program, settings=deleting.settings())
    world = await process.universe.ensure("w", shop.program)
    await kits.begin(world, shop.buy("o"), id="r")
    await until(lambda: shop.calls)
    fork = await world.fork("f", effects="share")
    at, of = await world._handle.address(), await fork._handle.address()

    async def stands_alone() -> bool:
        return (await process.engine.read(snapshots.get_pin(at, of.world))).value(0) is None

    await until(stands_alone)
    await world.delete(wait=True)
    with pytest.raises(wl.RunFailed, match="the world that it was shared with is deleted"):
        await result(fork, "r")
    await process.close()
    await memory_kit.aclose()


class Before(kits.Around):
    """Right before the second read, something is done."""

    def __init__(self, engine: kv.Engine, do: Callable[[], Awaitable[None]]) -> None:
        super().__init__(engine)
        self._reads = 0
        self._do = do

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self._reads += 1
        if self._reads == 2:
            await self._do()
        return await super().read(*requests)


@pytest.mark.probe("share.deleted-meanwhile")
async def test_a_parent_that_is_deleted_while_its_journal_is_read_is_gone(memory_kit: Kit) -> None:
    _, process, world, _ = await family(memory_kit)
    at, connection = await world._handle.address(), process.universe._connection
    engine = Before(process.engine, lambda: world.delete(wait=True))
    shared = share_effect.share(engine, lambda _: connection.blobs, lambda: at.universe)
    said = await shared.function(at.world, bytes(16), 0, [], [])
    assert "the world that it was shared with is deleted" in str(said)
    await process.close()
    await memory_kit.aclose()


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


async def test_a_fork_that_comes_first_keeps_the_world(memory_kit: Kit) -> None:
    """Its pin moves the count that the deletion expects, also if it is the first there ever was."""
    vault = Vault()
    process = await memory_kit.process(settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    at = await world._handle.address()
    engine = Meanwhile(process.engine, lambda: world.fork("f"))
    with pytest.raises(errors.InUse, match="'f'"):
        await deletions.begin(engine, memory_kit.env, at)
    assert (await world.describe()).name == "w"
    await process.close()
    await memory_kit.aclose()


async def test_a_fork_does_not_pin_a_grandparent_that_is_deleted_meanwhile(memory_kit: Kit) -> None:
    """It has read what it needs there, of a world that no other fork pins any more."""
    vault = Vault()
    process = await memory_kit.process(settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    parent = await world.fork("f")
    at, of = await world._handle.address(), await parent._handle.address()

    async def delete() -> None:
        lineage = await parent.lineage()
        assert lineage is not None
        batch = kv.Batch()
        key = lineage_keys.pin_key(at, of.world)
        batch.expect(key, (await process.engine.read(kv.Get(key))).value(0) or b"")
        snapshots.unpin(batch, of, lineage, height=0)
        await transact.commit(process.engine, memory_kit.env, batch)
        assert await deletions.begin(process.engine, memory_kit.env, at)

    client = await memory_kit.process(settings=deleting.settings(), wrap=lambda engine: Meanwhile(engine, delete))
    with pytest.raises(errors.NotFound):
        await client.universe.world("f").fork("g")
    await deletions.WorldRemoval(process.engine, memory_kit.env, at.universe).run()
    assert await deleting.left(process.engine, at) == []
    for one in (process, client):
        await one.close()
    await memory_kit.aclose()


@pytest.mark.parametrize("assigned", [False, True])
async def test_a_deleted_world_is_not_assigned(memory_kit: Kit, assigned: bool) -> None:
    """Placement has read its lease, and writes where it is wanted: nothing, if it was deleted meanwhile."""
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    at, worker = await world._handle.address(), process.host.worker
    await world.send(Note("k", "1"))
    if assigned:
        await operator_calls.assign_world(process.engine, memory_kit.env, at, worker)
    client = await memory_kit.process(settings=deleting.settings())

    async def delete() -> None:
        await deletions.begin(client.engine, memory_kit.env, at)
        await deletions.WorldRemoval(client.engine, memory_kit.env, at.universe).run()

    engine = Meanwhile(client.engine, delete)
    if assigned:
        await operator_calls.unassign_world(engine, memory_kit.env, at)
    else:
        with pytest.raises(errors.NotFound, match="is deleted"):
            await operator_calls.assign_world(engine, memory_kit.env, at, worker)
    assert await deleting.left(client.engine, at) == []
    for one in (process, client):
        await one.close()
    await memory_kit.aclose()
