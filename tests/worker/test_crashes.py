"""Something goes wrong at every single commit of the canonical scenario; the end is always the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import fixtures, scenario
from tests.kits import kit as kits
from tests.kits.crashing import DEATHS, Crashing, Fate
from worldline.base import errors

NEVER = 1 << 30


async def through(kit: kits.Kit, at: int, fate: Fate) -> tuple[Crashing, tuple[kits.Ends, kits.Ends]]:
    """The scenario with one bad commit; after a death another process goes on."""
    made: list[Crashing] = []

    def wrap(engine: object) -> Crashing:
        made.append(Crashing(engine, at, fate))  # type: ignore[arg-type]
        return made[-1]

    scenario.outside.clear()
    process = await kit.process(*scenario.PROGRAMS, wrap=wrap)
    [engine] = made
    driving = asyncio.ensure_future(scenario.drive(process.universe))
    dying = asyncio.ensure_future(engine.dead.wait())
    try:
        await asyncio.wait([driving, dying], return_when=asyncio.FIRST_COMPLETED)
    finally:
        dying.cancel()
    if not engine.dead.is_set():
        ends = await again(driving, process)
        try:
            await process.close()
        except errors.StoreUnavailable:
            assert engine.met
        if not engine.dead.is_set():
            return engine, ends
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    await process.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    async with kit.hosting(*scenario.PROGRAMS) as universe:
        return engine, await scenario.drive(universe)


async def again(driving: asyncio.Future[tuple[kits.Ends, kits.Ends]], process: kits.Process) -> Any:
    """What the driver has found. If the store failed the driver itself, it simply tries again."""
    try:
        return await driving
    except errors.StoreUnavailable:
        return await scenario.drive(process.universe)


def check_outside() -> None:
    """At least once outside, but always the same key."""
    found = {name: len(dict.fromkeys(keys)) for name, keys in scenario.outside.items()}
    assert found == scenario.KEYS


async def everywhere(engine: str, folder: Path, fate: Fate, *, every: int) -> int:
    """Let every so-many-th commit go wrong, up to the last there is. Returns how many did."""
    twin_kit = fixtures.make(engine, folder / "twin")
    _, twin = await through(twin_kit, NEVER, fate)
    await twin_kit.aclose()
    check_outside()
    at = 1
    while True:
        kit = fixtures.make(engine, folder / str(at))
        crashing, ends = await through(kit, at, fate)
        await kit.aclose()
        assert ends == twin, f"commit {at}: {fate.value}"
        check_outside()
        if not crashing.met:
            return at
        at += every


@pytest.mark.parametrize("fate", Fate, ids=lambda fate: fate.name.lower())
async def test_any_commit_may_go_wrong(fate: Fate, tmp_path: Path) -> None:
    assert await everywhere("memory", tmp_path, fate, every=1) > 30


@pytest.mark.parametrize(("engine", "every"), [("lmdb", 5), ("postgres", 13)])
@pytest.mark.parametrize("fate", DEATHS, ids=lambda fate: fate.name.lower())
async def test_real_stores_too(engine: str, every: int, fate: Fate, tmp_path: Path) -> None:
    assert await everywhere(engine, tmp_path, fate, every=every) > 30


async def test_all_engines_come_to_the_same_state(tmp_path: Path) -> None:
    """Digests are of what happened, not of where, when, or by how many hosts."""
    found = []
    for engine in fixtures.ENGINES:
        kit = fixtures.make(engine, tmp_path / engine)
        _, ends = await through(kit, NEVER, Fate.DIES_AFTER)
        found.append(ends)
        await kit.aclose()
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("fate", DEATHS, ids=lambda fate: fate.name.lower())
async def test_it_goes_on_by_itself(fate: Fate, tmp_path: Path) -> None:
    """Once a run is accepted nobody has to ask again: a host that knows nothing of it brings it to its end."""
    at = 1
    while True:
        kit = fixtures.make("memory", tmp_path / str(at))
        crashing = await alone(kit, at, fate)
        await kit.aclose()
        if not crashing.dead.is_set():
            break
        at += 1
    assert at > 12


async def test_what_a_step_had_no_room_for_is_not_forgotten(tmp_path: Path) -> None:
    """Killed between the step that asks for more than it may and the next: whoever comes goes on with the rest."""
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Bell:
        armed: int = 0

        @wl.on
        def sold(self, event: scenario.Sold) -> None:
            self.armed += 1
            for number in range(100):
                wl.after(1_000, scenario.Ticked(str(number)))

    kit = fixtures.make("memory", tmp_path)
    made: list[Crashing] = []

    def wrap(engine: object) -> Crashing:
        made.append(Crashing(engine, NEVER, Fate.DIES_AFTER))  # type: ignore[arg-type]
        return made[-1]

    settings = kits.settings(worker={"max_tick_steps_per_cycle": 1})
    process = await kit.process(app, settings=settings, wrap=wrap)
    world = await process.universe.ensure("w", app)
    at = await world._handle.address()
    await world.snapshot()  # takes the world
    made[0].die_at(made[0].commits + 1)
    sending = asyncio.ensure_future(world.send(scenario.Sold("x", 1)))
    await made[0].dead.wait()
    sending.cancel()
    await process.kill()
    engine = await kit.engine()
    assert len(await kits.opened(engine, at)) == 64
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    async with kit.hosting(app, settings=settings):

        async def all_armed() -> bool:
            return len(await kits.opened(engine, at)) == 100

        await aio.until(all_armed)
    await kit.aclose()


async def alone(kit: kits.Kit, at: int, fate: Fate) -> Crashing:
    made: list[Crashing] = []

    def wrap(engine: object) -> Crashing:
        made.append(Crashing(engine, NEVER, fate))  # type: ignore[arg-type]
        return made[-1]

    process = await kit.process(*scenario.PROGRAMS, wrap=wrap)
    [engine] = made
    till = await process.universe.ensure("bank", scenario.bank)
    store = await process.universe.ensure("shop", scenario.shop)
    await till.send(scenario.Deposited("alice", 100), id="deposit")
    _ = await kits.start(store, scenario.order("lamp", 30), id="order-lamp")
    engine.die_at(engine.commits + at)
    async with kit.hosting() as client:
        client._connection.programs |= {program.name: program for program in scenario.PROGRAMS}
        run = await client.world("shop").attach("order-lamp")
        waiting = asyncio.ensure_future(run.result(30))
        dying = asyncio.ensure_future(engine.dead.wait())
        await asyncio.wait([waiting, dying], return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        await process.kill()
        await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
        other = await kit.process(*scenario.PROGRAMS)
        assert (await waiting)[2] == "70 left"
        await scenario.settled(client, client.world("bank"), client.world("shop"))
        await other.close()
    return engine
