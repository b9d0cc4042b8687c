"""A store's clock that was ahead for a while and is right again: what is begun after that is on time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import worldline as wl
from tests import aio
from tests.roles import apart, conftest
from tests.roles import kit as kits
from tests.roles.kit import Kit
from worldline.host.process import Role
from worldline.model.journal import Kind

HOUR_SECONDS = 3_600


@dataclass(frozen=True)
class Beat:
    number: int


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Heart:
        beats: int = 0

        @wl.on
        def beat(self, event: Beat) -> None:
            self.beats += 1

    @app.effect
    async def outside(number: int) -> int:
        return number + 1

    @app.workflow
    async def nap() -> str:
        await wl.sleep(0.5)
        return "awake"

    @app.workflow
    async def work() -> int:
        return await outside(1)

    return app


@pytest.fixture(params=["memory", "lmdb"])
def movable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """A store whose clock the test can set."""
    return conftest.make(request.param, tmp_path_factory.mktemp("store"))


async def excursion(kit: Kit, world: wl.World) -> None:
    """The clock is ahead by an hour while the world takes an input, then right again."""
    before = (await world.head()).time_us
    await kit.jump(HOUR_SECONDS)
    await world.send(Beat(1))

    async def ahead() -> bool:
        return (await world.head()).time_us >= before + HOUR_SECONDS * 1_000_000

    await aio.until(ahead)
    await kit.jump(-HOUR_SECONDS)


async def test_a_sleep_begun_after_the_return_ends_in_time(movable: Kit) -> None:
    app = program()
    async with movable.hosting(app) as universe:
        world = await universe.ensure("w", app)
        assert await kits.run(world, app.workflows["nap"](), id="before") == "awake"
        await excursion(movable, world)
        assert await kits.run(world, app.workflows["nap"](), id="after") == "awake"
        assert Kind.CLOCK in await kits.kinds(world)
    async with movable.hosting(app) as universe:
        world = universe.world("w")
        assert await kits.run(world, app.workflows["nap"](), id="in another process") == "awake"
        times = [entry.time_us for entry in await kits.entries(world)]
        assert times == sorted(times), "logical time has gone back"
        await kits.prove(world, app)


async def test_effects_asked_for_after_the_return_are_performed_by_an_adapter_apart(movable: Kit) -> None:
    app = program()
    async with (
        apart.host(movable, app, roles=[Role.WORLDS]),
        apart.host(movable, app, roles=[Role.ADAPTER]),
        movable.hosting() as client,
    ):
        world = await client.ensure("w", app)
        await excursion(movable, world)
        assert await kits.run(world, app.workflows["work"](), id="after") == 2


async def test_a_schedule_that_fired_while_the_clock_was_ahead_goes_on_after_the_return(movable: Kit) -> None:
    app = program()
    async with movable.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.schedule("s", Beat(0), every=1)

        async def beats() -> int:
            found: int = (await world.state(app.reducers["Heart"].cls)).beats
            return found

        async def fired_ahead() -> bool:
            return await beats() >= 1

        await movable.jump(HOUR_SECONDS)
        await aio.until(fired_ahead)
        await movable.jump(-HOUR_SECONDS)
        await world.send(Beat(2))  # the first step after the return sees it
        before = await beats()

        async def again() -> bool:
            return await beats() >= before + 3

        await aio.until(again)
        await kits.prove(world, app)
