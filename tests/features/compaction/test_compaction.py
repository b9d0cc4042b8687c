"""Compaction: old entries in segments, one reader for all of it, and what is kept of the past."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest

import worldline as wl
from tests import aio
from tests.features.compaction import compacting
from tests.features.compaction.compacting import Added, Go, Stored, Total, by_hand
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline import testing
from worldline.base import errors
from worldline.features.compaction import calls as compaction_calls
from worldline.features.compaction import compactor, segment_writer
from worldline.features.compaction import job as compaction_job
from worldline.features.proofs import calls as proof_calls
from worldline.features.proofs import entry_proof
from worldline.inspect import doctor, journal_export, store_queries, verify
from worldline.layers import blobs as blob_layer
from worldline.model import journal
from worldline.runtime import world_restore


async def everything(world: wl.World) -> list[wl.Entry]:
    return await world.journal(limit=10**6)


async def test_a_world_goes_on_as_if_nothing_were_compacted(kit: Kit) -> None:
    """With work in flight. Whatever reads its past finds the same; states are kept from the last snapshot on."""
    app = compacting.program()
    process = await kit.process(app, settings=by_hand())
    world = await process.universe.ensure("w", app)
    assert await world.ask(Total("k0"), id="once") == 0
    await compacting.busy(process, app)
    stored = await Stored.of(process.universe, world)
    before, top = await everything(world), await world.head()
    entry = await entry_proof.prove_entry(world._handle, 3)
    done = await compacting.compact(process, world)
    baseline = await stored.baseline()
    assert (done.height, done.segments, done.entries) == (baseline, 1, baseline)
    assert await stored.snapshots() == [0, baseline]
    assert [(each.first_height, each.last_height, each.changes) for each in await stored.segments()] == [
        (1, baseline, False)
    ]
    await stored.check(top.height)

    looking = await kit.process(settings=by_hand())
    other = looking.universe.world("w")
    looking.universe._connection.knows(app)
    for each in (world, other):
        assert await everything(each) == before
        assert [found.height for found in await each.journal(above=2, limit=3)] == [3, 4, 5]
        seen = await _followed(each, top.height)
        assert [found.height for found in seen] == list(range(1, top.height + 1))
    assert await entry_proof.prove_entry(other._handle, 3) == entry
    verified = await verify.verify(looking.universe._connection, await other._handle.address())
    assert (verified.entries, verified.states_above, verified.snapshots) == (top.height, baseline, 2)
    proof = await proof_calls.prove(other._handle)
    assert proof.holds
    assert (proof.proved, proof.unverifiable, proof.snapshots) == (top.step, [], 1)
    assert (await doctor.examine(looking.universe._connection, repair=False)).findings == []
    assert await other.state(at=baseline) is not None
    with pytest.raises(wl.NotFound, match=f"states are kept from height {baseline} on, and at height 0") as caught:
        await other.state(at=baseline - 1)
    assert caught.value.code == "not_retained"

    await process.close()
    again = await kit.process(app, settings=by_hand())
    world = again.universe.world("w")
    stored = await Stored.of(again.universe, world)
    await world.send(Go("x"))
    assert await kits.run(world, app.workflows["wait"]("x"), id="r") == "5000 and x"
    assert await world.ask(Total("k0")) == 19
    assert await world.ask(Total("k0"), id="once") == 0  # its answer is in a segment
    await world.snapshot()
    assert (await compacting.compact(again, world)).segments == 1
    assert [each.first_height for each in await stored.segments()] == [1, baseline + 1]
    await stored.check((await world.head()).height)
    assert (await proof_calls.prove(world._handle)).holds
    for ended in (again, looking):
        await ended.close()
    await kit.aclose()


async def _followed(world: wl.World, top: int) -> list[journal.JournalEntry]:
    found: list[journal.JournalEntry] = []
    async for each in world._handle.follow(above=0):
        if isinstance(each, journal.JournalEntry):
            found.append(each)
            if each.height == top:
                break
    return found


async def test_with_changes_every_state_can_be_read(memory_kit: Kit) -> None:
    """For audits: nothing is lost by compacting."""
    app = compacting.program()
    process = await memory_kit.process(app, settings=by_hand(segment_changes=True))
    world = await compacting.busy(process, app)
    before = {height: await world.state(at=height) for height in (0, 5, 11, 20)}
    done = await compacting.compact(process, world)
    assert done.segments == 1
    assert {height: await world.state(at=height) for height in before} == before
    assert (await verify.verify(process.universe._connection, await world._handle.address())).states_above == 0
    assert (await world.diff(at=5, to=11)).cells
    fork = await world.fork("f", at=7)
    assert await fork.state(at=7) == await world.state(at=7)
    await process.close()
    await memory_kit.aclose()


async def test_segments_are_cut_and_written_by_themselves(kit: Kit, tmp_path: Path) -> None:
    """After a snapshot, when there is enough. What is behind the margin stays; an export begins where states do."""
    app = compacting.program()
    settings = kits.settings(
        worker=compacting.BY_HAND | {"snapshot_entries": 8, "segment_entries": 10, "segment_margin": 5}
    )
    process = await kit.process(app, settings=settings)
    world = await compacting.busy(process, app, rounds=5)
    stored = await Stored.of(process.universe, world)

    async def compacted() -> bool:
        return len(await stored.segments()) > 1

    await aio.until(compacted)
    await process.close()
    client = await kit.process(settings=settings)
    world = client.universe.world("w")
    stored = await Stored.of(client.universe, world)
    client.universe._connection.knows(app)
    top = (await world.head()).height
    await stored.check(top)
    found = await stored.segments()
    assert found[-1].last_height <= await stored.baseline() - 5
    assert all(each.last_height - each.first_height < 10 + 8 for each in found)
    exported = await journal_export.collect(world._handle)
    assert exported.start.height == min(each for each in await stored.snapshots() if each >= found[-1].last_height)
    journal_export.write(exported, tmp_path / "journal")
    testing.replay(tmp_path / "journal", app)
    assert (await proof_calls.prove(world._handle)).holds
    await client.close()
    await kit.aclose()


async def test_age_alone_is_enough(memory_kit: Kit) -> None:
    app = compacting.program()
    settings = by_hand(segment_ms=3_600_000)
    process = await memory_kit.process(app, settings=settings)
    world = await compacting.busy(process, app)
    stored = await Stored.of(process.universe, world)
    held = process.host.worlds.peek(await world._handle.address())
    assert (await compacting.compactions(process.host).compact(held)).segments == 0
    await memory_kit.jump(3_601)
    await world.send(Added("k0"))
    await world.snapshot()

    async def compacted() -> bool:
        return len(await stored.segments()) == 1

    await aio.until(compacted)
    await process.close()
    await memory_kit.aclose()


async def test_forks_hold_it_back(kit: Kit) -> None:
    """Until they have a state of their own. A fork's own journal is compacted like any other."""
    app = compacting.program()
    process = await kit.process(app, settings=by_hand(), watchdog=False)
    client = await kit.process(settings=by_hand())
    world = await compacting.busy(process, app)
    stored = await Stored.of(process.universe, world)
    saved = await stored.snapshots()
    held = process.host.worlds.peek(await world._handle.address())
    process.host.worlds._searcher.is_due = lambda *_, **__: False  # no worker takes the fork
    fork = await client.universe.world("w").fork("f", at=saved[1] + 2)
    done = await compacting.compactions(process.host).compact(held, now=True)
    assert (done.height, done.held_back) == (saved[1], True)
    assert await stored.snapshots() == saved
    del process.host.worlds._searcher.is_due
    await fork.send(Added("k0", 100))
    assert await fork.ask(Total("k0"), timeout=20) == await _total_at(world, saved[1] + 2) + 100
    own = await Stored.of(process.universe, fork)

    async def unpinned() -> bool:
        return bool(await own.snapshots())

    fork = process.universe.world("f")
    await fork.snapshot()
    await aio.until(unpinned)
    done = await compacting.compactions(process.host).compact(held, now=True)
    assert (done.height, done.held_back) == (saved[-1], False)
    assert await stored.snapshots() == [0, saved[-1]]
    assert (await compacting.compact(process, fork)).segments == 1
    top = (await fork.head()).height
    await own.check(top, above=saved[1] + 2)
    assert [each.height for each in await everything(fork)] == list(range(1, top + 1))
    verified = await verify.verify(process.universe._connection, await fork._handle.address())
    assert verified.entries == top
    assert (await proof_calls.prove(fork._handle)).holds
    for each in (process, client):
        await each.close()
    await kit.aclose()


async def _total_at(world: wl.World, height: int) -> int:
    cells = await world._handle.cells(at=height)
    return int.from_bytes(cells[next(each for each in cells if each[1] == "k0")][-1:], "big")


async def test_a_program_that_is_gone(memory_kit: Kit) -> None:
    """Where neither code nor changes are, the proof goes on at the first snapshot of the next program."""
    old, new = compacting.program(), compacting.program(by=2)
    process = await memory_kit.process(old, settings=by_hand())
    world = await compacting.busy(process, old)
    await process.close()
    process = await memory_kit.process(new, settings=by_hand())
    world = process.universe.world("w")
    changed = (await world.head()).height
    for _ in range(3):
        await world.send(Added("k0"))
        await world.snapshot()
    await world.send(Added("k0"))
    done = await compacting.compact(process, world)
    stored = await Stored.of(process.universe, world)
    kept = await stored.snapshots()
    assert kept[0] == 0
    assert changed < kept[1] < kept[2] == done.height == await stored.baseline()
    proof = await proof_calls.prove(world._handle)
    assert proof.holds
    assert [(each.first, each.last) for each in proof.unverifiable] == [(1, changed), (changed + 1, kept[1])]
    assert proof.proved == (await world.head()).step - await _step_at(world, kept[1])
    assert (await proof_calls.prove(world._handle, programs=[old])).unverifiable == []
    await process.close()
    await memory_kit.aclose()


async def _step_at(world: wl.World, height: int) -> int:
    [entry] = await world.journal(above=height - 1, limit=1)
    return entry.step


@pytest.mark.probe("restore.compacted-meanwhile")
async def test_a_restore_of_what_is_compacted_meanwhile_begins_anew(memory_kit: Kit) -> None:
    """Its baseline is read, then the world is saved and compacted past it."""
    app = compacting.program()
    process = await memory_kit.process(app, settings=by_hand())
    world = await compacting.busy(process, app)
    looking = await memory_kit.process(settings=by_hand())
    at = await world._handle.address()
    real = blob_layer.Blobs.get_many
    done: list[int] = []

    async def meanwhile(self: blob_layer.Blobs, of: Sequence[bytes]) -> dict[bytes, bytes]:
        if self is looking.universe._connection.blobs and not done:
            done.append(0)
            await world.snapshot()
            assert (await compacting.compact(process, world)).segments == 1
        return await real(self, of)

    with mock.patch.object(blob_layer.Blobs, "get_many", meanwhile):
        restored = await world_restore.gather(
            looking.universe._connection.store.engine, looking.universe._connection.blobs, at
        )
    assert done
    assert restored.baseline.height == (await world.head()).height
    for each in (process, looking):
        await each.close()
    await memory_kit.aclose()


async def test_a_reader_that_was_left_behind_catches_up(memory_kit: Kit) -> None:
    app = compacting.program()
    process = await memory_kit.process(app, settings=by_hand())
    world = await compacting.busy(process, app)
    looking = await memory_kit.process(settings=by_hand())
    looking.universe._connection.knows(app)
    other = looking.universe.world("w")
    first = await other.state()
    for number in range(5):
        await world.send(Added("k2", number))
    await world.snapshot()
    assert (await compacting.compact(process, world)).segments == 1
    assert await other.state() == await world.state() != first
    for each in (process, looking):
        await each.close()
    await memory_kit.aclose()


async def test_a_fork_below_what_is_kept_is_refused(memory_kit: Kit) -> None:
    """Below, forks begin at snapshots that are kept."""
    app = compacting.program()
    process = await memory_kit.process(app, settings=by_hand())
    world = await compacting.busy(process, app)
    done = await compacting.compact(process, world)
    for refused in (world.fork("f", at=done.height - 1), world.revert(done.height - 1), world.diff(at=3, to=9)):
        with pytest.raises(errors.NotRetained, match=f"states are kept from height {done.height} on, and at height 0"):
            await refused
    for height in (0, done.height):
        fork = await world.fork(f"f{height}", at=height)
        assert await fork.state(at=height) == await world.state(at=height)
    await process.close()
    await memory_kit.aclose()


async def test_by_hand_and_shown(kit: Kit) -> None:
    """A world that no process runs. What would be done is what is done."""
    app = compacting.program()
    process = await kit.process(app, settings=by_hand())
    world = await compacting.busy(process, app, rounds=5)
    at = await world._handle.address()
    with pytest.raises(errors.Exists):
        await compaction_calls.compact(process.universe._connection, at)
    await process.close()
    client = await kit.process(settings=by_hand())
    connection = client.universe._connection
    await client.universe.store_settings({"worker.segment_margin": 3, "worker.snapshots_kept": 2})
    planned = await compaction_calls.plan(connection, at)
    assert (planned.compacted, planned.held_back) == (0, False)
    assert planned.snapshots == len(planned.dropped) > 0
    done = await compaction_calls.compact(connection, at)
    assert (done.segments, done.entries, done.height, done.snapshots) == (
        1,
        planned.entries,
        planned.up_to,
        planned.snapshots,
    )
    shown = await store_queries.show_world(connection, at)
    assert (shown.compacted, shown.segments, shown.states_above) == (done.height, 1, done.height)
    assert shown.holder is None
    await (await Stored.of(client.universe, client.universe.world("w"))).check(shown.height)
    await client.close()
    await kit.aclose()


@pytest.mark.probe("compaction.is-late")
async def test_if_many_worlds_wait_it_does_not_rest(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves time to others as long as it keeps up: else what it compacts would grow without end."""
    rest = 0.01
    monkeypatch.setattr(segment_writer, "REST_TIMES", 10**9)
    monkeypatch.setattr(segment_writer, "REST_SECONDS_MAX", rest)
    app = compacting.program()
    process = await memory_kit.process(app, settings=by_hand())
    compactions = compacting.compactions(process.host)
    look = compactions.look
    compactions.look = lambda _: None
    worlds = [await process.universe.ensure(f"w{number}", app) for number in range(compaction_job.WAITING_MAX + 3)]
    for world in worlds:
        await world.send(Added("k"))
        await world.snapshot()
    rested: list[tuple[bool, float]] = []
    sleep = memory_kit.env.sleep

    async def slept(seconds: float) -> None:
        rested.append((len(compactions._waiting) > compaction_job.WAITING_MAX, seconds))
        await sleep(seconds)

    compactions._env = mock.Mock(wraps=memory_kit.env, sleep=slept)
    await process.universe.store_settings({"worker.segment_entries": 1})
    for world in worlds:
        look(process.host.worlds.peek(await world._handle.address()))

    async def all_are() -> bool:
        return all([await (await Stored.of(process.universe, world)).segments() for world in worlds])

    await aio.until(all_are)
    assert {*rested} == {(True, 0), (False, rest)}
    await process.close()
    await memory_kit.aclose()


async def test_if_one_world_is_far_behind_it_does_not_rest(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A world that is never idle would write quicker than it is compacted, for as long as that lasts."""
    rest = 0.01
    monkeypatch.setattr(segment_writer, "REST_TIMES", 10**9)
    monkeypatch.setattr(segment_writer, "REST_SECONDS_MAX", rest)
    app = compacting.program()
    process = await memory_kit.process(app, settings=by_hand())
    compactions = compacting.compactions(process.host)
    world = await process.universe.ensure("w", app)
    for number in range(3 * compactor.BEHIND_SEGMENTS):
        await world.send(Added(f"k{number}"))
        await world.snapshot()
    rested: list[float] = []
    sleep = memory_kit.env.sleep

    async def slept(seconds: float) -> None:
        rested.append(seconds)
        await sleep(seconds)

    compactions._env = mock.Mock(wraps=memory_kit.env, sleep=slept)
    await process.universe.store_settings({"worker.segment_entries": 1, "worker.segment_margin": 0})
    held = process.host.worlds.peek(await world._handle.address())
    assert held is not None
    done = await compactions.compact(held)
    assert done.segments > 2 * compactor.BEHIND_SEGMENTS
    assert [*dict.fromkeys(rested)] == [0, rest], "it rests again when it has nearly caught up"
    assert 0 not in rested[rested.index(rest) :]
    await process.close()
    await memory_kit.aclose()
