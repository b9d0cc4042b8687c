"""A deletion that is cut off, repeated, raced by others, or met by a writer that is late: the world is there as before,
or gone for good, and nothing of it comes back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import worldline as wl
from tests.features.compaction import compacting
from tests.features.compaction.test_compaction_cuts import Budget, Dying
from tests.features.deletion import deleting
from tests.features.deletion.deleting import Note, Vault
from tests.kits import fixtures
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.base import errors, limits
from worldline.client import world_changes
from worldline.features.collection import batches as collection_batches
from worldline.features.deletion import batches as deletion_batches
from worldline.features.deletion import job as deletions
from worldline.keys import universes as universe_keys
from worldline.model import blobs, ids
from worldline.runtime import operator_calls
from worldline.store import kv, transact


async def delete(engine: kv.Engine, kit: Kit, at: ids.Address) -> None:
    await deletions.begin(engine, kit.env, at)
    await deletions.WorldRemoval(engine, kit.env, at.universe).run()


@pytest.mark.parametrize("written", [1, 2, 3])
async def test_it_may_be_cut_off_behind_every_write(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Each process does so many writes, and dies; the next one goes on."""
    monkeypatch.setattr(limits, "DELETE_KEYS_MAX", 2)
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world = await deleting.full(memory_kit, vault, process)
    await world.pause()
    at, before = await world._handle.address(), await world.journal(limit=10**6)
    others = {
        key: raw for key, raw in (await deleting.items(process.engine)).items() if not deleting.about(at, key, raw)
    }
    # Asking whether a collection marks leaves a record that none does.
    others[universe_keys.generation_key(at.universe)] = universe_keys.GENERATION.pack(blobs.Generation(0))
    sizes = [len(await deleting.left(process.engine, at))]
    done = False
    while not done:
        try:
            await delete(Dying(process.engine, Budget(written)), memory_kit, at)
            done = True
        except errors.StoreFailed:
            with pytest.raises(errors.NotFound, match="is deleted"):
                await world.describe()
            with pytest.raises(errors.NotFound):
                await world.journal(limit=10**6)
        sizes.append(len(await deleting.left(process.engine, at)))
        assert len(sizes) < 200
    assert before
    assert sizes[1:] == sorted(sizes[1:], reverse=True)
    assert sizes[-1] == 0
    assert len(sizes) > 9 // written
    after = await deleting.items(process.engine)
    assert {key: raw for key, raw in after.items() if not deleting.about(at, key, raw)} == others
    await process.close()
    await memory_kit.aclose()


async def test_before_its_first_write_the_world_is_as_it_was(memory_kit: Kit) -> None:
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world = await deleting.full(memory_kit, vault, process)
    before = await deleting.items(process.engine)
    with pytest.raises(errors.StoreFailed):
        await delete(Dying(process.engine, Budget(0)), memory_kit, await world._handle.address())
    assert await deleting.items(process.engine) == before
    await process.close()
    await memory_kit.aclose()


async def test_any_number_may_do_it_at_once(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELETE_KEYS_MAX", 9)
    vault = Vault()
    process = await kit.process(vault.program, settings=deleting.settings())
    worlds = [await deleting.full(kit, vault, process, name=name) for name in ("a", "b")]
    addresses = [await world._handle.address() for world in worlds]
    engines = [await kit.engine() for _ in range(3)]
    await asyncio.gather(*(delete(engine, kit, at) for engine in engines for at in addresses))
    for at in addresses:
        assert await deleting.left(process.engine, at) == []
    for engine in engines if kit.name != "memory" else ():
        await engine.close()
    vault.gate.set()
    await process.close()
    await kit.aclose()


async def begin_mark(engine: kv.Engine, kit: Kit, universe: ids.UniverseId) -> None:
    read = await engine.read(*collection_batches.reads(universe))
    batch = kv.Batch()
    state = collection_batches.decode(universe, read.value(0), read.value(1))
    collection_batches.begin(batch, state, bytes(16), time_us=read.time_us)
    await transact.commit(engine, kit.env, batch)


async def test_a_mark_that_begins_meanwhile_keeps_what_would_be_removed(memory_kit: Kit) -> None:
    """It began when there was no mark, and there is one when it commits."""
    vault = Vault()
    process = await memory_kit.process(settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    at = await world._handle.address()
    await world.delete()
    before = await deleting.left(process.engine, at)
    late = Late(process.engine, 0)
    late.at, late.do = at, lambda: begin_mark(process.engine, memory_kit, at.universe)
    removal = deletions.WorldRemoval(late, memory_kit.env, at.universe)
    assert (await removal.turn(), removal.is_held_up) == (False, True)
    assert await deleting.left(process.engine, at) == before
    await process.close()
    await memory_kit.aclose()


@pytest.mark.probe("deletion.mark-left-behind")
async def test_nothing_is_removed_while_a_collection_marks(memory_kit: Kit) -> None:
    """Until its collector has said nothing for long: then its mark is given up."""
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    world = await process.universe.ensure("w", vault.program)
    at = await world._handle.address()
    await begin_mark(process.engine, memory_kit, at.universe)
    await world.delete()
    before = await deleting.left(process.engine, at)
    removal = deletions.WorldRemoval(process.engine, memory_kit.env, at.universe)
    assert (await removal.turn(), removal.is_held_up) == (False, True)
    assert await deleting.left(process.engine, at) == before
    await memory_kit.jump(collection_batches.MARK_MS / 1000 + 1)
    assert await removal.turn()
    assert await deleting.left(process.engine, at) == []
    await process.close()
    await memory_kit.aclose()


async def test_a_damaged_record_keeps_no_world_from_being_removed(memory_kit: Kit) -> None:
    vault = Vault()
    process = await memory_kit.process(vault.program, settings=deleting.settings())
    worlds = [await process.universe.ensure(name, vault.program) for name in ("a", "b")]
    for world in worlds:
        await world.delete()
    at = await worlds[0]._handle.address()
    key = deletion_batches.get(at).key
    raw = (await process.engine.read(deletion_batches.get(at))).value(0) or b""
    batch = kv.Batch()
    batch.expect(key, raw)
    batch.put(key, raw[:-1] + bytes([raw[-1] ^ 1]))
    await transact.commit(process.engine, memory_kit.env, batch)
    await deletions.WorldRemoval(process.engine, memory_kit.env, at.universe).run()
    for world in worlds:
        assert await deleting.left(process.engine, await world._handle.address()) == []
    await process.close()
    await memory_kit.aclose()


# --- Writers that are late -----------------------------------------------------------------------------------------


class Late(kits.Around):
    """Right before the commit of this number that has to do with the world, the world is deleted."""

    def __init__(self, engine: kv.Engine, number: int) -> None:
        super().__init__(engine)
        self.at: ids.Address | None = None
        self.left = number
        self.do: Callable[[], Awaitable[None]] | None = None

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if self.do is not None and any(self._concerns(batch) for batch in batches):
            self.left -= 1
            if self.left < 0:
                do, self.do = self.do, None
                await do()
        return await super().commit(*batches)

    def _concerns(self, batch: kv.Batch) -> bool:
        assert self.at is not None
        world = bytes(self.at.world)
        keys = [*batch.puts, *batch.deletes, *(each.prefix for each in batch.appends)]
        return any(world in key for key in keys) or any(world in each.value for each in batch.appends)


async def life(kit: Kit, process: Process, client: Process, world: wl.World, vault: Vault) -> None:
    """What writes to a world: its holder, producers, its effects and timers, forks, a compaction, an operator."""
    at = await world._handle.address()
    other = client.universe.world("w")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: world.send(Note("k", "1")),
        lambda: other.send(Note("k", "2"), id="chosen"),
        lambda: world.ask(deleting.Read("k")),
        lambda: world.send(deleting.Bad("x")),
        lambda: kits.begin(world, vault.wait("x"), id="wait"),
        lambda: world.run(vault.nap(), id="nap"),
        lambda: world.run(vault.talk("x"), id="talk"),
        world.snapshot,
        lambda: other.fork("f"),
        lambda: compacting.compact(process, world),
        world.pause,
        lambda: other.send(Note("k", "3")),
        world.resume,
        lambda: other.change(labels={"a": "b"}),
        lambda: process.universe.world("friend").run(vault.back("w"), id="back"),
        lambda: operator_calls.assign_world(client.engine, kit.env, at, process.host.worker),
        lambda: operator_calls.unassign_world(client.engine, kit.env, at),
        lambda: world_changes.point(client.universe._connection, "alias", at),
        lambda: other.ask(deleting.Read("k")),
    ]
    for call in calls:
        with contextlib.suppress(errors.Error, AttributeError):
            async with asyncio.timeout(5):
                await call()


def _instead(late: Late, engine: kv.Engine) -> kv.Engine:
    del engine
    return late


@pytest.mark.parametrize("part", range(4))
async def test_a_writer_that_is_late_leaves_nothing(tmp_path: Path, part: int) -> None:
    """Whatever was decided before the world was deleted, and is committed afterwards."""
    number, met = part, True
    while met:
        kit = fixtures.make("memory", tmp_path / str(number))
        vault = Vault()
        late = Late(await kit.engine(), number)
        wrap = functools.partial(_instead, late)
        process = await kit.process(vault.program, settings=deleting.settings(), wrap=wrap)
        client = await kit.process(settings=deleting.settings(), wrap=wrap)
        await process.universe.ensure("friend", vault.program)
        world = await process.universe.ensure("w", vault.program)
        late.at = at = await world._handle.address()
        engine = await kit.engine()

        async def gone(engine: kv.Engine = engine, kit: Kit = kit, at: ids.Address = at) -> None:
            with contextlib.suppress(errors.InUse):
                await delete(engine, kit, at)

        late.do = gone
        await life(kit, process, client, world, vault)
        met = late.do is None
        vault.gate.set()
        await process.close()
        await client.close()
        if met and not await deletions.pinned_by(engine, at):
            await delete(engine, kit, at)
            assert await deleting.left(engine, at) == [], number
        await kit.aclose()
        number += 4
    assert number > 30
