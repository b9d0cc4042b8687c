"""Two hosts with two versions of a program on one store: a world stays under its own code while a host has it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit, Process
from tests.kits.sums import AddUp
from worldline.base import errors
from worldline.cluster.orchestrator import Orchestrator
from worldline.layers import leases, worlds
from worldline.model import ids
from worldline.model.journal import Kind
from worldline.model.settings import OrchestratorSettings, Settings
from worldline.runtime import death_witness, operator_calls, placement, program_versions, worker_labels
from worldline.runtime.universes.served_universes import Universes

LEASE_TTL_MS = 3_000


@dataclass(frozen=True)
class Which(wl.Request[str]):
    """Which version runs the world."""


def program(version: str) -> wl.Program:
    app = sums.program()
    if version == "one":

        @app.reducer(name="Version")
        @dataclass
        class One:
            @wl.on
            def which(self, event: Which) -> str:
                return "one"

    else:

        @app.reducer(name="Version")
        @dataclass
        class Two:
            @wl.on
            def which(self, event: Which) -> str:
                return "two"

    return app


def settings(name: str, *, idle_ms: int = 60_000, labels: dict[str, str] | None = None) -> Settings:
    worker = {"labels": {"name": name, **(labels or {})}, "lease_ttl_ms": LEASE_TTL_MS, "idle_release_ms": idle_ms}
    return kits.settings(worker=worker)


async def joined(kit: Kit, app: wl.Program, name: str, **labels: str) -> Process:
    process = await kit.process(app, settings=settings(name, labels=labels))

    async def ready() -> bool:
        return bool(process.host.ready)

    await aio.until(ready)
    return process


async def changes(world: wl.World) -> int:
    return (await kits.kinds(world)).count(Kind.PROGRAM_CHANGED)


async def test_a_world_stays_with_its_own_code_also_while_no_worker_holds_it(kit: Kit) -> None:
    one, two = program("one"), program("two")
    first, second = await joined(kit, one, "first"), await joined(kit, two, "second")
    client = await kit.process()
    world = await first.universe.create("w", one)
    at = await world._handle.address()
    for number in range(1, 6):
        assert await second.host.worlds.hold(at) is None
        assert await client.universe.world("w").ask(AddUp(1), timeout=20) == number
        assert await client.universe.world("w").ask(Which(), timeout=20) == "one"
        await first.host.worlds.forget(at)  # released: any worker may take it now
    assert not second.host.worlds.holds(at)
    assert await changes(world) == 0


async def test_when_the_last_worker_with_its_code_is_gone_the_other_takes_it_once(kit: Kit) -> None:
    one, two = program("one"), program("two")
    first, again = await joined(kit, one, "first"), await joined(kit, one, "again")
    second = await joined(kit, two, "second")
    world = await first.universe.create("w", one)
    at = await world._handle.address()
    assert await world.ask(AddUp(1), timeout=20) == 1
    seen = second.universe.world("w")
    await first.close()
    assert await seen.ask(AddUp(1), timeout=20) == 2, "a worker with its code is left"
    assert again.host.worlds.holds(at)
    await again.kill()
    await kit.jump(LEASE_TTL_MS / 1000 + 0.1)
    assert await seen.ask(AddUp(1), timeout=20) == 3
    assert await seen.ask(Which(), timeout=20) == "two"
    assert await changes(seen) == 1
    back = await joined(kit, one, "back")
    await second.host.worlds.forget(at)
    assert await back.host.worlds.hold(at) is None, "its code is the new one now"
    assert await seen.ask(Which(), timeout=20) == "two"
    assert await changes(seen) == 1


async def test_a_worker_that_is_being_emptied_keeps_no_world_from_new_code(kit: Kit) -> None:
    one, two = program("one"), program("two")
    first, second = await joined(kit, one, "first"), await joined(kit, two, "second")
    world = await first.universe.create("w", one)
    assert await world.ask(AddUp(1), timeout=20) == 1
    await operator_calls.drain_worker(first.engine, kit.env, first.host.worlds.worker, draining=True)
    at = await world._handle.address()

    async def moved() -> bool:
        return not first.host.worlds.holds(at)

    await aio.until(moved)
    assert await second.universe.world("w").ask(Which(), timeout=20) == "two"
    assert await changes(world) == 1


async def test_a_search_passes_over_worlds_that_are_left_to_others(memory_kit: Kit) -> None:
    one, two = program("one"), program("two")
    first = await joined(memory_kit, one, "first")
    client = await memory_kit.process()
    at = await (await client.universe.create("w", one))._handle.address()
    read = await client.engine.read(worlds.get(at), *leases.reads(at))
    found = [(worlds.decode(at, read.value(0)), leases.decode(at, *(read.value(part) for part in (1, 2, 3))))]
    labels = {worker_labels.program_label("p"): placement.code_of(two.hash)}
    guard = program_versions.VersionGuard(
        client.engine, death_witness.DeathWitness(memory_kit.env), ids.WorkerId(bytes(16)), labels
    )
    assert await guard.allowed(found) == []
    await first.close()
    assert await guard.allowed(found) == found


async def test_a_worker_that_may_not_run_a_world_keeps_it_from_no_other(memory_kit: Kit) -> None:
    """It has the world's code, and not the label that the world needs."""
    one, two = program("one"), program("two")
    await joined(memory_kit, one, "first")
    client = await memory_kit.process()
    world = await client.universe.create("w", one, labels={"needs:zone": "north"})
    second = await joined(memory_kit, two, "second", zone="north")
    assert await second.universe.world("w").ask(Which(), timeout=20) == "two"
    assert await changes(world) == 1


async def test_an_upgrade_moves_a_world_to_other_code(kit: Kit) -> None:
    one, two = program("one"), program("two")
    first, second = await joined(kit, one, "first"), await joined(kit, two, "second")
    world = await first.universe.create("w", one)
    at = await world._handle.address()
    assert await world.ask(AddUp(1), timeout=20) == 1
    others = death_witness.DeathWitness(kit.env)
    life, changed = await program_versions.upgrade(first.engine, kit.env, others, at)
    assert (life.worker, changed) == (second.host.worlds.worker, True)

    async def moved() -> bool:
        return bool(second.host.worlds.holds(at))

    await aio.until(moved)
    assert await second.universe.world("w").ask(Which(), timeout=20) == "two"
    _, changed = await program_versions.upgrade(first.engine, kit.env, others, at, code=placement.code_of(two.hash)[:6])
    assert not changed, "it has this code already"
    assert await changes(world) == 1


async def test_an_upgrade_to_no_code_or_to_one_of_several_is_refused(memory_kit: Kit) -> None:
    one, two = program("one"), program("two")
    first = await joined(memory_kit, one, "first")
    world = await first.universe.create("w", one)
    at, others = await world._handle.address(), death_witness.DeathWitness(memory_kit.env)
    with pytest.raises(errors.NotFound, match="no living worker has other code of program 'p'"):
        await program_versions.upgrade(first.engine, memory_kit.env, others, at)
    await joined(memory_kit, two, "second")
    with pytest.raises(errors.NotFound, match="no worker that may run world 'w' has code 'ffffff'"):
        await program_versions.upgrade(first.engine, memory_kit.env, others, at, code="ffffff")
    third = program("two")
    third.workflow(_more)
    await joined(memory_kit, third, "third")
    with pytest.raises(errors.BadInput, match="workers have 2 other versions of 'p'"):
        await program_versions.upgrade(first.engine, memory_kit.env, others, at)


async def _more() -> None:
    await wl.sleep(1)


async def test_an_orchestrator_does_not_move_worlds_to_other_code(memory_kit: Kit) -> None:
    one, two = program("one"), program("two")
    first = await joined(memory_kit, one, "first")
    second = await joined(memory_kit, two, "second")
    worlds = [await first.universe.create(f"w{number}", one) for number in range(8)]
    for world in worlds:
        assert await world.ask(AddUp(1), timeout=20) == 1
        await first.host.worlds.forget(await world._handle.address())
        await kits.leave_hint(first.universe, await world._handle.address())
    connection = first.universe._connection
    place = Orchestrator(
        first.engine,
        memory_kit.env,
        Universes.only(connection.id),
        settings=OrchestratorSettings(turn_ms=20, moves_max=1_000),
    )
    choices = await place.turn()
    assert {choice.to for choice in choices} <= {first.host.worlds.worker}
    assert all([await changes(world) == 0 for world in worlds])
    await place.close()
    await second.close()
