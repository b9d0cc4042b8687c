"""A store's clock that was ahead for a while and is right again: what is begun after that is on time."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.kits import apart, fixtures
from tests.kits import kit as kits
from tests.kits.janitors import janitor_of
from tests.kits.kit import Kit
from worldline.model.journal import Kind
from worldline.model.roles import Role
from worldline.model.settings import JanitorSettings
from worldline.store import kv

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
    return fixtures.make(request.param, tmp_path_factory.mktemp("store"))


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


class Off(kits.Around):
    """The store's clock is another than that of its clients."""

    ahead_us = 0

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        found = await super().read(*requests)
        return msgspec.structs.replace(found, time_us=found.time_us + self.ahead_us)


@pytest.mark.parametrize("hours", [26, -26])
async def test_a_store_whose_clock_is_a_day_off_takes_inputs(memory_kit: Kit, hours: int) -> None:
    """An id that the client's own call has made is not held against it."""
    app = program()
    engines: list[Off] = []

    def wrap(engine: kv.Engine) -> Off:
        engines.append(Off(engine))
        return engines[-1]

    process = await memory_kit.process(app, wrap=wrap)
    world = await process.universe.ensure("w", app)
    await world.send(Beat(1))
    [engine] = engines
    engine.ahead_us = hours * HOUR_SECONDS * 1_000_000
    await world.pause()  # what is sent goes through the inbox
    await world.send(Beat(2))
    await world.resume()
    assert await (await world.send(Beat(3))).applied()
    await process.close()
    await memory_kit.aclose()


async def test_a_janitor_whose_clock_is_ahead_forgets_no_id(movable: Kit) -> None:
    """A day and more, over many rounds, in a process that has begun so; and then by one whose clock is right."""
    app = program()
    process = await movable.process(app)
    world = await process.universe.ensure("w", app)
    assert not (await world.send(Beat(1), id="once")).already_enqueued
    connection = process.universe._connection
    for jump in (26, 26, -52):
        await movable.jump(jump * HOUR_SECONDS)
        janitor = janitor_of(
            connection,
            JanitorSettings(turn_ms=1, round_ms=1, collect_ms=0),
            dedupe_window_ms=24 * HOUR_SECONDS * 1_000,
        )
        while janitor.rounds < 3:
            await janitor.turn()
        await janitor.close()
    assert (await world.send(Beat(1), id="once")).already_enqueued
    await process.close()
    await movable.aclose()
