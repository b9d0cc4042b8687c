"""The object store is out of reach: only what needs it waits, and goes on when it is back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.api import wiring
from worldline.base import errors
from worldline.model.journal import Kind
from worldline.store.objects import memory_objects as objects_memory

LARGE = "x" * 30_000


class Flaky(objects_memory.MemoryObjects):
    """Objects in memory that are out of reach now and then."""

    down = False

    async def put(self, name: str, body: bytes) -> None:
        self._check()
        await super().put(name, body)

    async def get(self, name: str) -> bytes:
        self._check()
        return await super().get(name)

    def _check(self) -> None:
        if self.down:
            raise errors.StoreUnavailable("no objects now")


@dataclass(frozen=True)
class Put:
    text: str


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Shelf:
        texts: list[str] = field(default_factory=list)

        @wl.on
        def put(self, event: Put) -> None:
            self.texts.append(event.text[:10])

    @app.reducer()
    @dataclass
    class Fat:
        text: str = ""

        @wl.on
        def put(self, event: Put) -> None:
            self.text = event.text if len(event.text) > 100 else self.text

    @app.effect
    async def echo(text: str) -> int:
        return len(text)

    @app.workflow
    async def grow() -> int:
        return await echo(LARGE)

    return app


async def texts(world: wl.World, app: wl.Program) -> list[str]:
    found: list[str] = (await world.state(app.reducers["Shelf"].cls)).texts
    return found


def flaky(kit: Kit) -> Flaky:
    kit._objects = made = Flaky(kit.env)
    return made


async def test_an_item_out_of_reach_holds_up_its_own_world_alone(memory_kit: Kit) -> None:
    app, objects = program(), flaky(memory_kit)
    async with memory_kit.hosting() as client:
        worlds = [await client.create(name, app) for name in ("large", "small")]
        await worlds[0].send(Put("first"))
        await worlds[0].send(Put(LARGE))
        await worlds[0].send(Put("after"))
        await worlds[1].send(Put("one"))
        objects.down = True
        async with memory_kit.hosting(app) as universe:
            large, small = universe.world("large"), universe.world("small")

            async def taken() -> bool:
                return (await texts(small, app), await texts(large, app)) == (["one"], ["first"])

            await aio.until(taken)
            for number in range(5):
                await small.send(Put(str(number)))
            assert wiring.host_of(universe._connection)._loops[0].last_error is None, "nobody had to pause for it"
            objects.down = False

            async def gone_on() -> bool:
                return await texts(large, app) == ["first", LARGE[:10], "after"]

            await aio.until(gone_on)
            await kits.prove(large, app)


async def test_a_step_that_cannot_be_put_away_is_tried_again(memory_kit: Kit) -> None:
    app, objects = program(), flaky(memory_kit)
    async with memory_kit.hosting(app) as universe:
        large, small = await universe.ensure("large", app), await universe.ensure("small", app)
        await large.send(Put("before"))
        objects.down = True
        running = asyncio.ensure_future(large.run(app.workflows["grow"](), id="r"))
        await asyncio.sleep(0.1)
        for number in range(5):
            await small.send(Put(str(number)))
        assert not running.done()
        objects.down = False
        async with asyncio.timeout(20):
            assert await running == 30_000
        assert (await kits.kinds(large)).count(Kind.EFFECT_RESULT) == 1
        await kits.prove(large, app)


async def test_a_world_whose_snapshot_is_out_of_reach_waits(memory_kit: Kit) -> None:
    app, objects = program(), flaky(memory_kit)
    async with memory_kit.hosting(app) as universe:
        large, small = await universe.ensure("large", app), await universe.ensure("small", app)
        await large.send(Put(LARGE))
        await small.send(Put("a"))
    objects.down = True
    async with memory_kit.hosting() as client:
        for name in ("large", "small"):
            await client.world(name).send(Put("b"))
        async with memory_kit.hosting(app) as universe:
            large, small = universe.world("large"), universe.world("small")

            async def taken() -> bool:
                return await texts(small, app) == ["a", "b"]

            await aio.until(taken)
            with pytest.raises(errors.StoreUnavailable):
                await large.send(Put("c"))
            assert wiring.host_of(universe._connection)._loops[0].last_error is None
            objects.down = False

            async def back() -> bool:
                return await texts(large, app) == [LARGE[:10], "b"]

            await aio.until(back)
