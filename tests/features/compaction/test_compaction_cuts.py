"""Compaction that is cut off, lied to, or met by a fork: each height stays in exactly one place, and is readable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import worldline as wl
from tests.features.compaction import compacting
from tests.features.compaction.compacting import Stored, by_hand
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.base import env as envs
from worldline.base import errors
from worldline.features.compaction import compactor, segment_writer
from worldline.features.compaction.retention_rules import RetentionPolicy
from worldline.features.compaction.universe_retention import Policies
from worldline.inspect import verify
from worldline.keys import lineage as lineage_keys
from worldline.keys import segments as segment_keys
from worldline.layers import blobs as blob_layer
from worldline.layers import universe_settings
from worldline.layers.history import history_line
from worldline.model import journal
from worldline.model.settings import WorkerSettings
from worldline.store import kv
from worldline.store.objects import objects_interface as objects

POLICY = RetentionPolicy(entries=16, age_us=0, margin=0, kept=1)
WHOLE = RetentionPolicy(entries=10**6, age_us=0, margin=0, kept=1)  # one segment


class Budget:
    """So many writes, of the store or of objects; the last one is done, and its answer lost with the process."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self) -> None:
        self.left -= 1

    def check(self) -> None:
        if self.left <= 0:
            raise errors.StoreFailed("this process is dead")


class Dying(kits.Around):
    def __init__(self, engine: kv.Engine, budget: Budget) -> None:
        super().__init__(engine)
        self._budget = budget

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self._budget.check()
        return await super().read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        self._budget.check()
        outcomes = await super().commit(*batches)
        self._budget.spend()
        self._budget.check()
        return outcomes


class Objects:
    """The bodies of a store, as one process has them. `altered`: what becomes of one that is put."""

    def __init__(
        self, bodies: objects.Objects, budget: Budget, altered: Callable[[bytes], bytes] = lambda body: body
    ) -> None:
        self._bodies = bodies
        self._budget = budget
        self._altered = altered

    async def put(self, name: str, body: bytes) -> None:
        self._budget.check()
        await self._bodies.put(name, self._altered(body))
        self._budget.spend()
        self._budget.check()

    async def get(self, name: str) -> bytes:
        self._budget.check()
        return await self._bodies.get(name)

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[objects.ListedObject]:
        return await self._bodies.list(prefix, after=after, count_max=count_max)

    async def delete(self, name: str) -> None:
        await self._bodies.delete(name)

    async def close(self) -> None:
        pass


async def here(do: Callable[..., Any], *given: Any) -> Any:
    return do(*given)


async def large(kit: Kit) -> tuple[Process, wl.World, Stored]:
    """A world whose segments are no small blobs."""
    app = compacting.program()
    process = await kit.process(app, settings=by_hand())
    world = await compacting.busy(process, app, rounds=3)
    for number in range(36):
        await world.send(compacting.Added(kit.env.random_bytes(1_900).hex(), number))
    await world.snapshot()
    await world.send(compacting.Added("k0"))
    return process, world, await Stored.of(process.universe, world)


class Fixed(Policies):
    """One policy, whatever is stored."""

    def __init__(self, engine: kv.Engine, env: envs.Env, policy: RetentionPolicy) -> None:
        super().__init__(engine, env, WorkerSettings(), hosts=False)
        self._policy = policy

    async def of(self, stored: universe_settings.UniverseSettingsRecord) -> RetentionPolicy:
        return self._policy


def compaction(
    process: Process,
    held: Any,
    budget: Budget,
    *,
    altered: Callable[[bytes], bytes] = lambda body: body,
    policy: RetentionPolicy = POLICY,
) -> compactor.Compactor:
    """As the world's holder does it, in a process that dies."""
    store = process.universe._connection.store
    engine = Dying(store.engine, budget)
    blobs = blob_layer.Blobs(
        engine,
        Objects(store.objects, budget, altered),
        store.env,
        held.at.universe,
        in_store_bytes_max=store.in_store_bytes_max,
    )
    return compactor.Compactor(
        engine, store.env, blobs, held.lease, policies=Fixed(engine, store.env, policy), compute=here
    )


@pytest.mark.parametrize("in_store", [False, True], ids=["objects", "chunks"])
async def test_it_may_be_cut_off_behind_every_write(memory_kit: Kit, in_store: bool) -> None:
    """Of the store and of objects. The next attempt goes on, and the end is that of an undisturbed one."""
    if in_store:
        memory_kit.without_objects()
    process, world, stored = await large(memory_kit)
    held = process.host.worlds.peek(await world._handle.address())
    before, top, baseline = await world.journal(limit=10**6), await world.head(), await stored.baseline()
    moved: dict[int, int] = {0: 0}  # heights in segments, and how often it was cut off there
    done = None
    while done is None:
        compacted = sum(each.last_height - each.first_height + 1 for each in await stored.segments())
        moved[compacted] = moved.get(compacted, 0) + 1
        assert moved[compacted] < 10
        try:
            # A body is one write, or an object and its record; the index record and the frames are another.
            allowed = 2 if moved[compacted] == 2 and not in_store else 1
            done = await compaction(process, held, Budget(allowed)).run(now=True)
        except errors.StoreFailed:
            await stored.check(top.height)
            assert await world.journal(limit=10**6) == before
            verified = await verify.verify(process.universe._connection, held.at)
            assert (verified.height, verified.chain) == (top.height, top.chain.hex())
    assert list(moved)[-1] == baseline
    assert list(moved) == sorted(moved)
    assert len(moved) > 3  # no segment, one, two, ...
    assert max(moved.values()) == (2 if in_store else 3)
    assert await stored.snapshots() == [0, baseline]
    await process.close()
    await memory_kit.aclose()


async def test_a_body_that_lies_is_not_indexed(memory_kit: Kit) -> None:
    """What was written is read back and checked, before anything is deleted."""
    process, world, stored = await large(memory_kit)
    held = process.host.worlds.peek(await world._handle.address())
    frames, before = await stored.frames(), await world.journal(limit=10**6)
    lying = compaction(process, held, Budget(10**6), altered=lambda body: body[:-1] + b"?", policy=WHOLE)
    with pytest.raises(errors.Corrupt, match="the segment of heights 1 to"):
        await lying.run(now=True)
    assert await stored.segments() == []
    assert await stored.frames() == frames
    assert await world.journal(limit=10**6) == before
    await process.close()
    await memory_kit.aclose()


async def test_the_chain_of_what_was_read_back_is_recomputed(memory_kit: Kit) -> None:
    """A body of other steps, whose sha256 is what its record says."""
    process, world, stored = await large(memory_kit)
    connection = process.universe._connection
    at = await world._handle.address()
    line = history_line.HistoryLine(at)
    writer = segment_writer.SegmentWriter(
        connection.store.engine, connection.store.env, connection.blobs, line, here, with_changes=False
    )
    first = await writer.write(journal.GENESIS, up_to=await stored.baseline(), entries_max=10)
    assert first is not None
    await writer.check(first.record, journal.GENESIS, first.head)
    for before, after in (
        (journal.GENESIS, journal.Head(first.head.step, first.head.height, bytes(32), first.head.state, 0)),
        (journal.Head(0, 0, bytes([1] * 32), bytes(32), 0), first.head),
    ):
        with pytest.raises(errors.Corrupt, match=r"does not lead to|the chain before a segment"):
            await writer.check(first.record, before, after)
    await process.close()
    await memory_kit.aclose()


class Meanwhile(kits.Around):
    """Does something right before the first commit that is of a kind."""

    def __init__(self, engine: kv.Engine, kind: bytes, do: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(engine)
        self._kind = kind
        self._do: Callable[[], Awaitable[Any]] | None = do

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        do = self._do
        if do is not None and any(key.startswith(self._kind) for batch in batches for key in batch.puts):
            self._do = None
            await do()
        return await super().commit(*batches)


@pytest.mark.probe("compaction.held-back")
@pytest.mark.parametrize("before", [False, True], ids=["first-pin", "later-pin"])
async def test_a_fork_that_comes_first_wins(kit: Kit, before: bool) -> None:
    """Its pin moves the count that the compaction expects."""
    process, world, stored = await large(kit)
    process.host.worlds._searcher.is_due = lambda *_, **__: False  # no worker takes the forks
    client = await kit.process(settings=by_hand())
    source = client.universe.world("w")
    saved = await stored.snapshots()
    if before:
        await source.fork("early", at=saved[-1])
    held = process.host.worlds.peek(await world._handle.address())
    made: list[Any] = []

    async def fork() -> None:
        made.append(await source.fork("f", at=saved[1] + 2))

    working = compaction(process, held, Budget(10**6), policy=WHOLE)
    working._engine = Meanwhile(working._engine, segment_keys.segments(held.at)[0][:-2], fork)
    done = await working.run(now=True)
    assert (done.segments, done.height) == (0, 0)
    assert await stored.segments() == []
    assert await stored.snapshots() == saved
    assert await made[0].state(at=saved[1] + 2) == await source.state(at=saved[1] + 2)
    for each in (process, client):
        await each.close()
    await kit.aclose()


@pytest.mark.parametrize("kept", [False, True], ids=["snapshot-gone", "snapshot-kept"])
async def test_a_fork_that_comes_late_is_refused(kit: Kit, kept: bool) -> None:
    """What it needs was there when it was read, and is gone when it commits: the snapshot, or the changes above."""
    process, world, stored = await large(kit)
    at = await world._handle.address()
    saved = await stored.snapshots()

    async def compact() -> None:
        assert (await compacting.compact(process, world)).segments == 1

    client = await kit.process(
        settings=by_hand(), wrap=lambda engine: Meanwhile(engine, lineage_keys.pins(at)[0][:-1], compact)
    )
    with pytest.raises(errors.NotRetained, match=f"states are kept from height {saved[-1]} on"):
        await client.universe.world("w").fork("f", at=saved[1] - 1 if kept else saved[2] + 1)
    assert await stored.snapshots() == [0, saved[-1]]
    for each in (process, client):
        await each.close()
    await kit.aclose()


async def test_another_holder_ends_it(memory_kit: Kit) -> None:
    """A compaction under an old epoch changes nothing."""
    process, world, stored = await large(memory_kit)
    held = process.host.worlds.peek(await world._handle.address())
    old = compaction(process, held, Budget(10**6))
    await process.close()
    other = await memory_kit.process(compacting.program(), settings=by_hand())
    await other.universe.world("w").send(compacting.Added("k1"))
    await other.universe.world("w").ask(compacting.Total("k1"))
    stored = await Stored.of(other.universe, other.universe.world("w"))
    old._engine = other.engine
    old._blobs = other.universe._connection.blobs
    with pytest.raises(errors.Fenced):
        await old.run(now=True)
    assert await stored.segments() == []
    await other.close()
    await memory_kit.aclose()
