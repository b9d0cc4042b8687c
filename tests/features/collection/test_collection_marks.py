"""A garbage collection beside others: collectors that overtake it, marks that are awaited, holds, compaction."""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.collection import collecting
from tests.features.collection.test_collection import DATA, OF, run_of, state_of, until
from tests.features.collection.test_collection_publishers import Put, program
from tests.features.collection.test_collection_roots import KEPT, Desk
from tests.features.compaction import compacting
from tests.features.compaction.compacting import by_hand
from tests.kits.kit import Kit
from tests.layers import engines
from tests.layers.scenario import UNIVERSE, now
from worldline.base import errors
from worldline.features.collection import batches as collection_batches
from worldline.features.collection import collection_holds, collector, mark_barrier, sweep_phase
from worldline.features.collection.collector import _Phase
from worldline.inspect import verify
from worldline.keys import cas as cas_keys
from worldline.layers import cas, leases
from worldline.model import ids
from worldline.model.settings import WorkerSettings
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv

# --- Many collectors, and marks -------------------------------------------------------------------------------------


@pytest.mark.probe("collection.was-overtaken")
@pytest.mark.parametrize("phase", [_Phase.MARK, _Phase.END])
async def test_a_collector_that_is_overtaken_deletes_nothing(phase: _Phase) -> None:
    desk = Desk()
    kept = await KEPT["snapshots"](desk)
    slow = run_of(desk, places=[])  # it would find nothing
    await until(slow, phase)
    desk.store.env.advance_us(collection_batches.MARK_MS * 1000)
    await desk.collect()
    with pytest.raises(collector.Overtaken):
        await collecting.finish(slow)
    assert all(await desk.has(kept))


async def test_a_collector_that_is_overtaken_after_its_mark_condemns_nothing_more() -> None:
    desk = Desk()
    slow = run_of(desk)
    await until(slow, _Phase.CONDEMN)
    await desk.blobs.put(DATA)
    generation = await desk.blobs.generation()
    await until(run_of(desk), _Phase.CONDEMN)
    assert (await desk.blobs.generation()) != generation
    await collecting.finish(slow)
    assert await desk.blobs.has(OF)


@pytest.mark.probe("collection.mark-awaited")
async def test_a_second_collector_waits_for_the_mark_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    first = run_of(desk)
    await until(first, _Phase.MARK)
    looks: list[float] = []

    async def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            await until(first, _Phase.CONDEMN)

    monkeypatch.setattr(desk.store.env, "sleep", sleep)
    second = run_of(desk)
    await until(second, _Phase.MARK)
    assert len(looks) == 3
    assert second.report.generation == first.report.generation + 1


@pytest.mark.probe("collection.mark-given-up")
async def test_a_mark_of_a_dead_process_is_given_up_after_a_while() -> None:
    desk = Desk()
    await until(run_of(desk), _Phase.MARK)
    assert state_of(desk).generation.marking
    desk.store.env.advance_us(collection_batches.MARK_MS * 1000)
    state = await mark_barrier.unmarked(desk.store.engine, desk.store.env, UNIVERSE)
    assert not state.generation.marking
    assert state == state_of(desk)


@pytest.mark.parametrize("gone", ["expired", "reaped", "another life", "proven"])
async def test_a_mark_of_a_dead_worker_is_given_up_at_once(gone: str) -> None:
    """It has named its heartbeat. Nobody sleeps: the clock of the desk would move on then."""
    desk = Desk()
    engine, env, worker = desk.store.engine, desk.store.env, ids.WorkerId(bytes(16))
    life = await world_lease.beat(engine, env, worker, ids.Incarnation(b"a" * 16), WorkerSettings(lease_ttl_ms=5_000))
    await until(run_of(desk, worker=worker), _Phase.MARK)
    began_us = desk.store.time_us
    assert await mark_barrier.goes_on(engine, state_of(desk))
    proven = gone == "proven"
    if gone == "expired":
        env.advance_us(5_000_000)
        assert state_of(desk).is_marking(desk.store.time_us), "by its renewals alone it would be waited for"
    elif gone == "reaped":
        batch = kv.Batch()
        leases.goodbye(batch, life)
        desk.store.ok(batch)
    elif gone == "another life":
        env.advance_us(5_000_000)
        await world_lease.beat(engine, env, worker, ids.Incarnation(b"b" * 16), WorkerSettings())
    slept_us = desk.store.time_us
    state = await mark_barrier.unmarked(engine, env, UNIVERSE, lambda _: proven)
    assert not state.generation.marking
    assert desk.store.time_us == slept_us
    assert slept_us - began_us < collection_batches.MARK_MS * 1000


async def test_a_mark_that_lasts_too_long_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_barrier, "LOOKS_MAX", 2)
    desk = Desk()
    await until(run_of(desk), _Phase.MARK)
    with pytest.raises(errors.Conflicted, match="try again"):
        await mark_barrier.unmarked(desk.store.engine, desk.store.env, UNIVERSE)


async def test_a_long_mark_is_renewed() -> None:
    desk = Desk()
    await KEPT["journal"](desk)
    run = run_of(desk)
    await until(run, _Phase.MARK)
    for _ in range(8):
        if run._phase is _Phase.MARK:
            desk.store.env.advance_us(collection_batches.MARK_MS * 500)
            await run.turn()
            assert not run.is_marking or state_of(desk).is_marking(desk.store.time_us)
    await collecting.finish(run)


@pytest.mark.probe("collection.given-up")
async def test_a_mark_that_fails_is_given_up_at_once() -> None:
    desk = Desk()
    run = run_of(desk)
    await until(run, _Phase.MARK)
    await run.give_up()
    assert not state_of(desk).generation.marking
    assert await run.turn(), "it is over"


@pytest.mark.probe("collection.half-is-left")
async def test_room_for_few_addresses_makes_several_collections() -> None:
    desk = Desk()
    kept = await KEPT["baselines"](desk)
    report = await collecting.finish(run_of(desk, marked_max=20))
    assert report.partial
    state = state_of(desk)
    assert state.last is not None
    assert state.last.above != b""
    assert all(await desk.has(kept))


async def test_what_one_mark_has_not_found_and_the_next_does_not_judge_stays() -> None:
    """The first mark has read nothing as it is stored; the others have room for a part each, and no grace."""
    desk = Desk()
    kept = await KEPT["baselines"](desk)
    garbage = [await desk.blobs.put(b"garbage %d" % number) for number in range(50)]
    wrong = await collecting.finish(run_of(desk, places=[]))
    assert wrong.swept.unreferenced.count >= len(kept) + len(garbage), "all of it is condemned"
    rounds = 0
    while any(await desk.has(garbage)):
        assert (await collecting.finish(run_of(desk, marked_max=20))).partial
        assert all(await desk.has(kept))
        rounds += 1
        assert rounds < 100
    assert rounds > 1, "what was not judged was left to the next"


# --- Holds ----------------------------------------------------------------------------------------------------------


@pytest.mark.probe("collection.hold-stands")
async def test_nothing_is_deleted_while_a_hold_stands() -> None:
    desk = Desk()
    await desk.blobs.put(DATA)
    name = cas_keys.object_name(UNIVERSE, OF, bytes(16))
    await desk.blobs.objects.put(name, DATA)
    held = now(collection_holds.take(desk.store.engine, desk.store.env, UNIVERSE, what="backup", ttl_ms=1_000))
    report = await collecting.finish(run_of(desk))
    assert (report.swept.held, report.swept.deleted.count, report.swept.orphans.count) == ("backup", 0, 0)
    assert await desk.blobs.get(OF) == DATA
    assert len(await desk.blobs.objects.list("")) == 2
    now(collection_holds.release(desk.store.engine, desk.store.env, UNIVERSE, held))
    report = await collecting.finish(run_of(desk))
    assert (report.swept.held, report.swept.deleted.count, report.swept.orphans.count) == ("", 1, 1)


async def test_a_hold_that_comes_while_blobs_are_deleted_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_phase, "PAGE", 10)
    desk = Desk()
    many = [b"garbage %d" % number for number in range(50)]
    await desk.blobs.put_many(many)
    await collecting.finish(run_of(desk))
    run = run_of(desk)
    await until(run, _Phase.DELETE)
    await run.turn()
    now(collection_holds.take(desk.store.engine, desk.store.env, UNIVERSE, what="backup"))
    report = await collecting.finish(run)
    assert report.swept.deleted.count == 10
    assert [await desk.blobs.has(cas.address(each)) for each in many].count(True) == 40


# --- Compaction and marks -------------------------------------------------------------------------------------------


async def test_compaction_waits_for_the_end_of_a_mark(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a snapshot or a frame that the mark has not read yet may be gone before, and what it shares with it."""
    app = compacting.program()
    process = await memory_kit.process(app, settings=by_hand())
    world = await compacting.busy(process, app)
    around = collecting.Around((await memory_kit.process()).universe)
    run = around.run()
    await until(run, _Phase.MARK)
    slept: list[float] = []
    env = process.universe._connection.store.env
    sleep = env.sleep

    async def sleeping(seconds: float) -> None:
        if seconds == mark_barrier.LOOK_MS / 1000:
            slept.append(seconds)
            if len(slept) == 3:
                await until(run, _Phase.CONDEMN)
        await sleep(0)

    monkeypatch.setattr(env, "sleep", sleeping)
    done = await compacting.compact(process, world)
    monkeypatch.undo()
    assert len(slept) >= 3
    assert done.segments == 1
    await collecting.finish(run)
    assert await around.missing() == []
    await verify.verify(process.universe._connection, await world._handle.address())


@pytest.mark.probe("snapshot.collected-meanwhile")
async def test_a_snapshot_is_put_again_if_a_collection_begins_meanwhile(memory_kit: Kit) -> None:
    app = program()
    other = collecting.Around((await memory_kit.process()).universe)
    meddling: list[engines.Meddled] = []

    def wrap(engine: kv.Engine) -> engines.Meddled:
        meddling.append(engines.Meddled(engine, other.collect))
        meddling[-1]._meddle = None
        return meddling[-1]

    process = await memory_kit.process(app, wrap=wrap, settings=by_hand())
    world = await process.universe.ensure("w", app)
    await world.send(Put("x" * 40_000))
    held = process.host.worlds.peek(await world._handle.address())
    generation = held.blobs.generation

    async def late() -> Any:
        found = await generation()
        held.blobs.generation = generation
        await other.collect()
        return found

    held.blobs.generation = late
    before = (await world.head()).step
    assert await world.snapshot() == before
    assert await other.missing() == []
    assert await other.garbage() == []
