"""Client ids: one id is one input, however often it comes, by whichever way, and whatever else is in its cycle."""

from __future__ import annotations

import asyncio

import pytest

import worldline as wl
from tests.kits.kit import Kit
from tests.kits.sums import AddUp, program
from worldline.base import errors


async def test_one_id_is_one_input(kit: Kit) -> None:
    """From the holder and from a client, one after the other and at once."""
    app = program()
    async with kit.hosting(app) as universe, kit.hosting() as client:
        here = await universe.ensure("w", app)
        there = client.world("w")
        heights = [await (await world.send(AddUp(5), id="x")).applied() for world in (here, here, there, here, there)]
        assert len(dict.fromkeys(heights)) == 1
        at_once = await asyncio.gather(*(world.send(AddUp(7), id="y") for world in [here, there] * 10))
        heights = [await sent.applied() for sent in at_once]
        assert len(dict.fromkeys(heights)) == 1
        assert (await here.state(app.reducers["Sum"].cls)).total == 12
        assert [await world.ask(AddUp(1), id="z", timeout=20) for world in (here, there, here)] == [13, 13, 13]


async def test_repeats_do_not_disturb_others(memory_kit: Kit) -> None:
    """A repeat in the same cycle as other inputs, and many of them, costs nobody their place."""
    app = program()
    process = await memory_kit.process(app)
    world = await process.universe.ensure("w", app)
    await world.send(AddUp(1), id="x")
    at = await world._handle.address()
    epoch = process.host.worlds.peek(at).lease.epoch
    sends = [world.send(AddUp(1), id="x") for _ in range(50)] + [world.send(AddUp(1)) for _ in range(50)]
    await asyncio.gather(*sends, *(world.send(AddUp(1), id="new") for _ in range(50)))
    assert (await world.state(app.reducers["Sum"].cls)).total == 52
    assert process.host.worlds.peek(at).lease.epoch == epoch, "it was never thrown away and restored"
    await process.close()


async def test_another_payload_under_the_same_id_is_refused(kit: Kit) -> None:
    app = program()
    async with kit.hosting(app) as universe, kit.hosting() as client:
        here = await universe.ensure("w", app)
        await here.send(AddUp(1), id="x")
        for world in (here, client.world("w")):
            with pytest.raises(errors.IdReused):
                await world.send(AddUp(2), id="x")
        results = await asyncio.gather(
            here.send(AddUp(3), id="y"), here.send(AddUp(4), id="y"), here.send(AddUp(10)), return_exceptions=True
        )
        assert [type(each) for each in results] == [wl.Sent, errors.IdReused, wl.Sent]
        assert (await here.state(app.reducers["Sum"].cls)).total == 14


@pytest.mark.parametrize("bad", ["", "message:1", "x" * 10_000_000], ids=["empty", "reserved", "long"])
async def test_ids_that_clients_may_not_use(memory_kit: Kit, bad: str) -> None:
    """Refused before anything is written, from the holder and from a client; the world goes on."""
    app = program()
    async with memory_kit.hosting(app) as universe, memory_kit.hosting() as client:
        here = await universe.ensure("w", app)
        for world in (here, client.world("w")):
            for refused in (world.send(AddUp(1), id=bad), world.ask(AddUp(1), id=bad)):
                with pytest.raises(errors.BadInput, match="an id m"):
                    await refused
        assert (await here.head()).height == 0
        assert await here.ask(AddUp(1), timeout=20) == 1


@pytest.mark.parametrize("bad", ["", "x" * 10_000_000], ids=["empty", "long"])
async def test_ids_that_runs_may_not_have(memory_kit: Kit, bad: str) -> None:
    app = program()

    @app.workflow
    async def nothing() -> None:
        pass

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(errors.BadInput, match="a run's id m"):
            _ = await world.start(nothing(), id=bad)
        assert (await world.head()).height == 0
