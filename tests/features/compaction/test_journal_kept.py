"""Entries that are not kept for ever: whole segments are dropped, the chain goes on from where they ended, and whatever
reads what is gone is told so.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aging, aio
from tests.features.compaction import compacting
from tests.features.compaction import test_compaction_cuts as cuts
from tests.features.compaction.compacting import Added, Go, Stored, Total, by_hand
from tests.features.compaction.test_compaction_cuts import Budget, Meanwhile
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.base import errors
from worldline.features.compaction import retention_rules
from worldline.features.compaction.retention_rules import RetentionPolicy
from worldline.features.forks import share_effect as sharing
from worldline.features.proofs import calls as proof_calls
from worldline.features.proofs import entry_proof
from worldline.inspect import doctor, store_queries, verify
from worldline.keys import lineage as lineage_keys
from worldline.keys import segments as segment_keys
from worldline.model import journal
from worldline.model.settings import Settings, WorkerSettings

KEPT_MS = 2_000
POLICY = RetentionPolicy(entries=16, age_us=0, margin=0, kept=1, journal_us=KEPT_MS * 1_000)


def keeping(**more: Any) -> Settings:
    """By hand, with a short window, and entries that are kept for two of them."""
    settings = by_hand(**more)
    worker = msgspec.structs.replace(settings.worker, journal_kept_ms=KEPT_MS)
    return msgspec.structs.replace(settings, dedupe_window_ms=KEPT_MS // 2, worker=worker)


async def pass_by(process: Process) -> None:
    """More time than entries are kept for."""
    await aging.older(process.engine, process.universe._connection.id, KEPT_MS * 1_000 + 100_000)


async def hosting(kit: Kit, app: wl.Program, **more: Any) -> Process:
    """A process that compacts nothing by itself."""
    process = await kit.process(app, settings=keeping(**more))
    compacting.compactions(process.host).look = lambda _: None
    return process


async def aged(kit: Kit, process: Process, app: wl.Program, *, rounds: int = 3) -> tuple[wl.World, int]:
    """A world whose entries up to a height were dropped; a few are above."""
    world = await compacting.busy(process, app, rounds=rounds)
    await compacting.compact(process, world)
    await pass_by(process)
    for number in range(4):
        await world.send(Added("late", number))
    assert await world.ask(Total("late"), id="recent") == 6
    await world.snapshot()
    done = await compacting.compact(process, world)
    [gone, _] = await (await Stored.of(process.universe, world)).index()
    assert isinstance(gone, journal.DroppedEntries)
    assert (done.segments, done.expired) == (1, gone.last_height)
    return world, gone.last_height


async def test_old_entries_go_and_the_chain_goes_on(kit: Kit) -> None:
    """With work in flight. What is kept is read, verified, proved and answered as before; what is gone is said."""
    app = compacting.program()
    process = await hosting(kit, app)
    world, gone = await aged(kit, process, app)
    connection, at = process.universe._connection, await world._handle.address()
    stored, top = await Stored.of(process.universe, world), await world.head()
    await stored.check(top.height)
    baseline = await stored.baseline()
    assert await stored.snapshots() == [baseline]
    assert [each.height for each in await world.journal(limit=10**6)] == list(range(gone + 1, top.height + 1))
    assert [each.height for each in await world.journal(above=gone, limit=2)] == [gone + 1, gone + 2]
    said = f"its entry is not kept any more: entries are kept above height {gone}"
    with pytest.raises(wl.errors.NotRetained, match=said):
        await world.journal(above=gone - 1)
    with pytest.raises(wl.errors.NotRetained, match=said):
        await anext(world._handle.follow(above=0))
    verified = await verify.verify(connection, at)
    assert (verified.entries, verified.entries_above) == (top.height - gone, gone)
    proof = await proof_calls.prove(world._handle)
    assert (proof.holds, proof.start, proof.height) == (True, baseline, top.height)
    with pytest.raises(wl.errors.NotRetained, match=said):
        await entry_proof.prove_entry(world._handle, gone)
    assert (await entry_proof.prove_entry(world._handle, gone + 1)).chain == top.chain
    assert (await store_queries.show_world(connection, at)).entries_above == gone
    assert (await doctor.examine(connection, repair=False)).findings == []
    assert await world.ask(Total("late"), id="recent") == 6  # its answer is kept as long as its id
    await process.close()

    again = await hosting(kit, app)
    world = again.universe.world("w")
    await world.send(Go("x"))
    assert await kits.run(world, app.workflows["wait"]("x"), id="r") == "5000 and x"
    await pass_by(again)
    await world.send(Added("k0"))
    await world.snapshot()
    done = await compacting.compact(again, world)
    stored = await Stored.of(again.universe, world)
    [dropped, last] = await stored.index()  # one record, which has grown
    assert isinstance(dropped, journal.DroppedEntries)
    assert (dropped.first_height, dropped.last_height, last.first_height) == (
        1,
        gone + done.expired,
        gone + done.expired + 1,
    )
    await stored.check((await world.head()).height)
    await verify.verify(again.universe._connection, await world._handle.address())
    await again.close()
    await kit.aclose()


async def test_an_id_whose_answer_is_gone_is_refused(memory_kit: Kit) -> None:
    """Its record is still there, because no janitor has gone by. The caller does not wait for ever."""
    app = compacting.program()
    process = await hosting(memory_kit, app)
    world = await process.universe.ensure("w", app)
    assert await world.ask(Total("k0"), id="once") == 0
    first = await world.send(Added("k9"), id="sent")
    assert await first.applied() == 3
    await aged(memory_kit, process, app)
    async with asyncio.timeout(5):
        with pytest.raises(
            wl.errors.NotRetained, match="id once was used before, and what came of it may be in entries up to"
        ):
            await world.ask(Total("k0"), id="once")
        again = await world.send(Added("k9"), id="sent")
        assert again.already_enqueued
        with pytest.raises(wl.errors.NotRetained, match="id sent was used before"):
            await again.applied()
    await process.close()
    await memory_kit.aclose()


async def test_a_run_that_was_not_looked_at_for_long(memory_kit: Kit) -> None:
    """The entries since its start are gone; the state has it."""
    app = compacting.program()
    process = await hosting(memory_kit, app)
    world = await process.universe.ensure("w", app)
    ended = await world.start(app.workflows["wait"]("y"), id="y")
    await world.send(Go("y"))
    waits = await world.start(app.workflows["wait"]("z"), id="z")
    assert await (await world.attach("y")).result() == "5000 and y"
    await aged(memory_kit, process, app)
    async with asyncio.timeout(5):
        assert await ended.result() == "5000 and y"
        waiting = asyncio.ensure_future(waits.result())
        await world.send(Go("z"))
        assert await waiting == "5000 and z"
    await process.close()
    await memory_kit.aclose()


async def test_what_is_young_or_pinned_stays(memory_kit: Kit) -> None:
    app = compacting.program()
    process = await hosting(memory_kit, app)
    process.host.worlds._searcher.is_due = lambda *_, **__: False  # no worker takes the fork
    world = await compacting.busy(process, app)
    stored = await Stored.of(process.universe, world)
    assert (await compacting.compact(process, world)).expired == 0  # young
    [segment] = await stored.segments()
    await pass_by(process)
    fork = await world.fork("f", at=await stored.baseline())
    await world.send(Added("k1", 7))
    assert (await compacting.compact(process, world)).expired == segment.last_height  # a fork needs what is above
    assert await fork.state(at=segment.last_height) == await world.state(at=segment.last_height)
    await pass_by(process)
    for number in range(4):
        await world.send(Added("late", number))
    await world.snapshot()
    done = await compacting.compact(process, world)
    assert (done.segments, done.expired, done.held_back) == (0, 0, True)
    await process.close()
    await memory_kit.aclose()


async def test_a_fork_whose_parent_has_dropped_more_than_it_has_of_it(memory_kit: Kit) -> None:
    """It needs nothing of its parent any more; its own entries are read, and verified from its first snapshot on."""
    app = compacting.program()
    process = await hosting(memory_kit, app)
    world = await compacting.busy(process, app)
    fork = await world.fork("f", at=(await world.head()).height - 3)
    await fork.send(Added("k2", 5))
    await fork.snapshot()
    await compacting.compact(process, world)
    await pass_by(process)
    await world.send(Added("k0"))
    await world.snapshot()
    assert (await compacting.compact(process, world)).segments == 1
    await pass_by(process)
    await world.send(Added("k0"))
    await world.snapshot()
    assert (await compacting.compact(process, world)).expired
    connection, at = process.universe._connection, await fork._handle.address()
    found = await fork.journal(limit=10**6)
    top = await fork.head()
    assert (found[-1].height, found[0].height) == (
        top.height,
        (await store_queries.show_world(connection, at)).entries_above + 1,
    )
    verified = await verify.verify(connection, at)
    assert verified.entries_above >= found[0].height - 1
    assert verified.entries == top.height - verified.entries_above
    with pytest.raises(wl.errors.NotRetained):
        await fork.journal(above=0)
    assert (await proof_calls.prove(fork._handle)).holds
    assert await fork.ask(Total("k2")) == await fork.ask(Total("k2"))
    await process.close()
    await memory_kit.aclose()


async def test_it_may_be_cut_off_behind_every_write(memory_kit: Kit) -> None:
    """Each height is in one place, or gone for good."""
    memory_kit.without_objects()
    process, world, stored = await cuts.large(memory_kit)
    held = process.host.worlds.peek(await world._handle.address())
    top, baseline = await world.head(), await stored.baseline()
    done, cut, gone = None, 0, 0
    while done is None or gone != baseline:
        await pass_by(process)
        try:
            done = await cuts.compaction(process, held, Budget(1), policy=POLICY).run(now=True)
        except errors.StoreFailed:
            cut += 1
            assert cut < 50
        await stored.check(top.height)
        verified = await verify.verify(process.universe._connection, held.at)
        assert (verified.height, verified.chain) == (top.height, top.chain.hex())
        assert verified.entries_above >= gone  # what is gone does not come back
        gone = verified.entries_above
        assert [each.height for each in await world.journal(limit=10**6)] == list(range(gone + 1, top.height + 1))
    assert gone == baseline
    assert await stored.snapshots() == [baseline]
    assert cut > 3
    await process.close()
    await memory_kit.aclose()


@pytest.mark.probe("compaction.many-snapshots")
async def test_more_snapshots_than_one_batch_deletes(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go before what they were of."""
    process, world, stored = await cuts.large(memory_kit)
    monkeypatch.setattr(retention_rules, "droppable", lambda *_, **__: [])
    monkeypatch.setattr(retention_rules, "DROPS_MAX", 1)
    held = process.host.worlds.peek(await world._handle.address())
    before = await stored.snapshots()
    expired = 0
    for _ in range(len(before) + 1):
        await pass_by(process)
        expired += (await cuts.compaction(process, held, Budget(10**6), policy=POLICY).run(now=True)).expired
        await stored.check((await world.head()).height)
    assert expired == before[-1]
    assert await stored.snapshots() == before[-1:]
    await process.close()
    await memory_kit.aclose()


async def test_a_fork_that_comes_late_is_refused(memory_kit: Kit) -> None:
    """It begins at a snapshot that stays readable until its segment is dropped, between its read and its commit."""
    app = compacting.program()
    process = await hosting(memory_kit, app, segment_changes=True)
    world = await compacting.busy(process, app)
    await compacting.compact(process, world)
    at, stored = await world._handle.address(), await Stored.of(process.universe, world)
    await pass_by(process)

    async def drop() -> None:
        assert (await compacting.compact(process, world)).expired

    client = await memory_kit.process(
        settings=by_hand(), wrap=lambda engine: Meanwhile(engine, lineage_keys.pins(at)[0][:-1], drop)
    )
    with pytest.raises(errors.NotRetained):
        await client.universe.world("w").fork("f", at=5)
    assert await stored.segments() == []
    for each in (process, client):
        await each.close()
    await memory_kit.aclose()


async def test_a_fork_of_a_fork_that_comes_late_is_refused(memory_kit: Kit) -> None:
    """It begins at a snapshot of its grandparent, which stays; what it needs of its parent is dropped meanwhile."""
    app = compacting.program()
    process = await hosting(memory_kit, app, segment_changes=True)
    world = await compacting.busy(process, app)
    wanted = (await world.head()).height + 1  # behind the first step of the fork, below its first snapshot
    fork = await world.fork("f")
    for number in range(4):
        await fork.send(Added("k1", number))
    await fork.snapshot()
    stored = await Stored.of(process.universe, fork)
    assert (await stored.snapshots())[0] > wanted
    assert (await compacting.compact(process, fork)).segments == 1
    await pass_by(process)

    async def drop() -> None:
        assert (await compacting.compact(process, fork)).expired

    at = await fork._handle.address()
    client = await memory_kit.process(
        settings=by_hand(), wrap=lambda engine: Meanwhile(engine, lineage_keys.pins(at)[0][:-1], drop)
    )
    with pytest.raises(errors.NotRetained):
        await client.universe.world("f").fork("g", at=wanted)
    for each in (process, client):
        await each.close()
    await memory_kit.aclose()


async def test_a_fork_that_comes_first_wins(memory_kit: Kit) -> None:
    """Its pin moves the count that the drop expects; what it has pinned stays."""
    app = compacting.program()
    process = await hosting(memory_kit, app, segment_changes=True)
    process.host.worlds._searcher.is_due = lambda *_, **__: False  # no worker takes the fork
    world = await compacting.busy(process, app)
    await compacting.compact(process, world)
    await pass_by(process)
    stored, client = await Stored.of(process.universe, world), await memory_kit.process(settings=by_hand())
    held = process.host.worlds.peek(await world._handle.address())
    made: list[Any] = []

    async def fork() -> None:
        made.append(await client.universe.world("w").fork("f", at=5))

    working = cuts.compaction(process, held, Budget(10**6), policy=POLICY)
    working._engine = Meanwhile(working._engine, segment_keys.segments(held.at)[0][:-2], fork)
    assert (await working.run(now=True)).expired == 0
    assert len(await stored.segments()) == 1
    assert await made[0].state(at=5) == await client.universe.world("w").state(at=5)
    for each in (process, client):
        await each.close()
    await memory_kit.aclose()


async def test_a_world_that_always_has_work_in_flight(kit: Kit) -> None:
    """It is saved, compacted and forgotten all the same, by itself: the baseline moves and frames go."""
    app = wl.Program("loop")

    @app.effect(name="work")
    async def work(number: int) -> int:
        return number

    @app.workflow(name="cycle")
    async def cycle(number: int) -> None:
        for each in range(20):
            await work(number + each)
        await wl.continue_as_new(cycle(number + 20))

    settings = kits.settings(
        worker={"snapshot_entries": 60, "segment_entries": 60, "segment_margin": 0, "snapshots_kept": 1}
    )
    worker = msgspec.structs.replace(settings.worker, journal_kept_ms=2)
    process = await kit.process(app, settings=msgspec.structs.replace(settings, dedupe_window_ms=1, worker=worker))
    world = await process.universe.ensure("w", app)
    _ = await world.start(cycle(0), id="r")
    stored = await Stored.of(process.universe, world)

    async def forgotten() -> bool:
        await pass_by(process)
        index = await stored.index()
        return bool(index) and isinstance(index[0], journal.DroppedEntries) and index[0].last_height > 200

    await aio.until(forgotten)
    connection, at = process.universe._connection, await world._handle.address()
    shown = await store_queries.show_world(connection, at)
    assert shown.baseline.height > 200
    frames = await stored.frames()
    assert frames[0] > shown.entries_above > 200
    await process.close()
    client = await kit.process()
    verified = await verify.verify(client.universe._connection, at)
    assert verified.entries_above > 200
    await client.close()
    await kit.aclose()


def test_it_is_never_less_than_what_ids_need() -> None:
    """A repeated id finds its answer in the journal, for the window and as long again."""
    Settings(dedupe_window_ms=1_000, worker=WorkerSettings(journal_kept_ms=2_000))
    Settings(worker=WorkerSettings(journal_kept_ms=0))
    with pytest.raises(
        wl.BadInput, match=r"journal_kept_ms is 1999; use 0, or twice dedupe_window_ms at least \(2000\)"
    ):
        Settings(dedupe_window_ms=1_000, worker=WorkerSettings(journal_kept_ms=1_999))


async def test_a_parent_that_has_dropped_what_a_fork_shares(memory_kit: Kit) -> None:
    """If the parent still waits for it, so does the fork; if not, its answer is gone, and the fork is told so."""
    app = compacting.program()
    process = await hosting(memory_kit, app)
    world, gone = await aged(memory_kit, process, app)
    connection, at = process.universe._connection, await world._handle.address()
    effect = sharing.share(connection.store.engine, lambda _: connection.blobs, lambda: at.universe)
    found = await effect.function(at.world, bytes(16), 1, [], [])
    assert "not kept any more" in str(found)
    await process.close()
    await memory_kit.aclose()
    del gone
