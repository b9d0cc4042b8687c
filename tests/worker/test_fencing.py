"""Two hosts on one store: only the one whose epoch it is ever writes, whatever the other believes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import child as children
from tests.kits import fixtures
from tests.kits import kit as kits
from tests.kits.child import Add, Child, Counter, Go, app
from tests.kits.kit import Kit
from tests.kits.pausing import Pausing
from worldline.client import world_answers
from worldline.keys import journal as journal_keys
from worldline.keys import leases as lease_keys
from worldline.model import ids
from worldline.model.settings import Settings
from worldline.store import kv


async def two(kit: Kit) -> tuple[kits.Process, Pausing, kits.Process]:
    """A host that can be paused, which has the world, and another."""
    made: list[Pausing] = []

    def wrap(engine: Any) -> Pausing:
        made.append(Pausing(engine))
        return made[-1]

    first = await kit.process(app, wrap=wrap)
    world = await first.universe.ensure("w", app)
    assert await world.ask(Add(1), timeout=10) == 1
    return first, made[0], await kit.process(app)


async def epoch(kit: Kit, at: ids.Address) -> int:
    raw = (await (await kit.engine()).read(kv.Get(lease_keys.epoch_key(at)))).value(0)
    assert raw is not None
    return lease_keys.EPOCH.unpack(raw).number


async def test_a_host_that_was_paused_lets_go_at_once(kit: Kit) -> None:
    """It is paused in the middle of a commit, and succeeded meanwhile: nothing of it is written any more, and whoever
    waits for it gets the answer of the other.
    """
    first, pausing, second = await two(kit)
    world = first.universe.world("w")
    at = await world._handle.address()
    asked = asyncio.ensure_future(world.ask(Add(10), timeout=30))
    await asyncio.sleep(0)
    pausing.pause()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)
    await second.universe.world("w").ask(Add(100), timeout=10)
    assert await epoch(kit, at) == 2
    pausing.resume()
    await asked
    assert (await second.universe.world("w").state(Counter)).total == 111, "once, by whomever"

    async def dropped() -> bool:
        return not first.host.worlds.holds(at)

    await aio.until(dropped)
    head = journal_keys.head_key(at)
    assert not any(head in batch.puts for batch in pausing.applied), "it has not written a step since it was paused"
    await kits.prove(second.universe.world("w"), app)


async def test_callers_of_a_paused_host_are_answered_by_the_other(kit: Kit) -> None:
    first, pausing, second = await two(kit)
    world = first.universe.world("w")
    at = await world._handle.address()
    pausing.pause()
    asked = [asyncio.ensure_future(world.ask(Add(10), id=f"a{number}", timeout=30)) for number in range(5)]
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)
    assert await second.universe.world("w").ask(Add(100), timeout=10) == 101
    pausing.resume()
    assert sorted(await asyncio.gather(*asked)) == [111, 121, 131, 141, 151]
    assert second.host.worlds.holds(at)
    assert not first.host.worlds.holds(at)


async def test_who_waits_for_a_run_is_told_when_its_world_moves(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait goes on at the world's new place, at once."""
    monkeypatch.setattr(world_answers, "CHECK_SECONDS", 1_000.0)
    first, pausing, second = await two(memory_kit)
    run = await first.universe.world("w").start(app.workflows["wait"](), id="r")
    waiting = asyncio.ensure_future(run.result(20))
    await asyncio.sleep(0.05)
    pausing.pause()
    await memory_kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)
    there = second.universe.world("w")
    assert await there.ask(Add(100), timeout=10) == 101
    pausing.resume()
    await there.send(Go())
    assert await waiting == "gone"


async def test_an_idle_holder_notices_that_it_lost_its_world(memory_kit: Kit) -> None:
    """Nothing is written, nothing conflicts; it finds out all the same, and reads what the other wrote."""
    first, pausing, second = await two(memory_kit)
    at = await first.universe.world("w")._handle.address()
    pausing.pause()
    await memory_kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)
    assert await second.universe.world("w").ask(Add(100), timeout=10) == 101
    pausing.resume()

    async def dropped() -> bool:
        return not first.host.worlds.holds(at)

    await aio.until(dropped)
    assert (await first.universe.world("w").state(Counter)).total == 101


async def test_a_host_that_cannot_renew_in_time_stops_believing(kit: Kit) -> None:
    """Its store was out of reach for longer than its lease is good for. Nobody else came, so it takes its world again,
    under a new epoch.
    """
    first, pausing, second = await two(kit)
    await second.close()
    world = first.universe.world("w")
    at = await world._handle.address()
    pausing.pause()
    await asyncio.sleep(2 * kits.LEASE_TTL_MS / 1000)  # a heartbeat may have begun a little after the pause
    pausing.resume()
    assert await world.ask(Add(1), timeout=10) == 2

    async def again() -> bool:
        return await epoch(kit, at) == 2

    await aio.until(again)
    assert await world.ask(Add(1), timeout=10) == 3
    assert first.host.worlds.holds(at)


async def test_two_hosts_that_want_a_world_at_once_get_it_one_by_one(kit: Kit) -> None:
    processes = [await kit.process(app) for _ in range(3)]
    await processes[0].universe.ensure("w", app)
    worlds = [process.universe.world("w") for process in processes]
    totals = await asyncio.gather(*(world.ask(Add(1), timeout=20) for world in worlds for _ in range(4)))
    assert sorted(totals) == list(range(1, 13))
    at = await worlds[0]._handle.address()
    assert [process.host.worlds.holds(at) for process in processes].count(True) == 1


async def test_takeover_after_kill_9_is_immediate_on_one_machine(tmp_path: Path) -> None:
    """The kernel released the dead process's lock: its lease, good for ten seconds, need not run out."""
    url = str(tmp_path / "store")
    child = await Child.start(url)
    assert await child.ask("hold w") == "1"
    assert [await child.ask("add w") for _ in range(3)] == ["1", "2", "3"]
    await child.kill()
    started = time.monotonic()
    async with wl.open(url, host=app) as universe:
        assert await universe.world("w").ask(Add(1), timeout=60) == 4
        assert time.monotonic() - started < Settings().worker.lease_ttl_ms / 1000
        assert universe._connection.host is not None
        held = universe._connection.host.worlds.peek(await universe.world("w")._handle.address())
        assert held is not None
        assert held.lease.epoch == 2


@pytest.mark.parametrize("engine", ["lmdb", "postgres"])
async def test_a_process_that_the_system_stops_is_fenced(engine: str, tmp_path: Path) -> None:
    """SIGSTOP, takeover, SIGCONT: it finds that the world is not its own any more, and asks the one who has it."""
    kit = fixtures.make(engine, tmp_path)
    ttl_ms = 800
    child = await Child.start(kit.url, ttl_ms)
    assert await child.ask("add w") == "1"
    child.stop()
    child.tell("add w")  # waits in its pipe, and is the first thing it does
    async with kit.hosting(app, settings=children.settings(ttl_ms)) as universe:
        world = universe.world("w")
        assert await world.ask(Add(10), timeout=20) == 11
        child.go_on()
        assert await child.answer() == "12"
        assert await child.ask("holds w") == "False"
        assert (await world.state(Counter)).total == 12
        await child.end()
    await kit.aclose()
