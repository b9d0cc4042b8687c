"""A universe that may send has a share of another world's inbox, and no more: the rest is the owner's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.keys import inbox as inbox_keys
from worldline.model import ids
from worldline.store import kv


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Ping(wl.Request[str]):
    pass


sender = wl.Program("sender")
keeper = wl.Program("keeper")


@keeper.reducer
@dataclass
class Notes:
    texts: list[str] = field(default_factory=list)

    @wl.on
    def note(self, event: Note) -> None:
        if event.text.startswith("bad"):
            raise ValueError("not this")
        self.texts.append(event.text[:8])


@sender.reducer
@dataclass
class Alive:
    pings: int = 0

    @wl.on
    def ping(self, event: Ping) -> str:
        return "alive"


@sender.workflow
async def one(text: str) -> str:
    try:
        await wl.send("city/keeper", Note(text))
    except wl.Undeliverable as error:
        return f"{error.code}: {error}"
    return "sent"


SHARE = 4  # of one universe; all others together have 8


def small(**pressure: int) -> dict[str, object]:
    return {"settings": kits.settings(pressure={"inbox_items_max": 16, "inbox_sender_part": 4, **pressure})}


async def flood(world: wl.World, count: int, text: str = "n", first: int = 0) -> list[wl.Run[str]]:
    return [await world.start(one(f"{text}{number}"), id=f"{text}{number}") for number in range(first, first + count)]


async def brought(universe: wl.Universe, at: ids.Address) -> int:
    page = (await universe._connection.store.engine.read(kv.Range(*inbox_keys.brought(at), count_max=100))).page(0)
    return len(page.items)


@pytest.mark.probe("deliver.share-full")
async def test_what_has_no_room_waits_and_nothing_is_lost(memory_kit: Kit) -> None:
    async with (
        memory_kit.hosting(universe="city", **small()) as city,
        memory_kit.hosting(sender, universe="a", **small()) as a,
    ):
        keeper_world = await city.create("keeper", keeper)
        await city.allow("a")
        here = await a.create("s", sender)
        at, engine = await keeper_world._handle.address(), city._connection.store.engine
        runs = []
        for number in range(SHARE):
            [run] = await flood(here, 1, first=number)
            assert await run.result() == "sent"
            runs.append(run)
        late = await flood(here, 3, first=SHARE)
        assert await here.ask(Ping(), timeout=20) == "alive", "the sender's world goes on"
        await aio.until(lambda: tried_again(engine, here))
        assert await kits.unread(engine, at) == await brought(city, at) == SHARE
        for number in range(5):
            await keeper_world.send(Note(f"own{number}"))
        assert await kits.unread(engine, at) == SHARE + 5, "the owner's inputs have room"
        async with memory_kit.hosting(keeper, universe="city", **small()):
            assert [await asyncio.wait_for(each.result(), 30) for each in late] == ["sent"] * 3
            await aio.until(lambda: taken(keeper_world, 12))
        texts = (await keeper_world.state(Notes)).texts
        assert sorted(texts) == sorted([f"n{number}" for number in range(7)] + [f"own{number}" for number in range(5)])
        assert await brought(city, at) == 0


async def tried_again(engine: kv.Engine, world: wl.World) -> bool:
    found = await kits.opened(engine, await world._handle.address())
    return len(found) == 3 and all(each.work.attempt > 1 for each in found)


async def taken(world: wl.World, count: int) -> bool:
    return len((await world.state(Notes)).texts) == count


async def test_what_finds_no_room_for_too_long_is_refused(memory_kit: Kit) -> None:
    options = small(inbox_sender_wait_ms=1)
    async with (
        memory_kit.hosting(universe="city", **options) as city,
        memory_kit.hosting(sender, universe="a", **options) as a,
    ):
        await city.create("keeper", keeper)
        await city.allow("a")
        here = await a.create("s", sender)
        said = [await kits.run(here, one(f"n{number}"), id=f"n{number}") for number in range(SHARE + 2)]
        assert said[:SHARE] == ["sent"] * SHARE
        assert all(each.startswith("overloaded: ") for each in said[SHARE:])
        assert "4 messages" in said[-1]


async def test_a_clock_that_jumps_ahead_refuses_nothing(memory_kit: Kit) -> None:
    """What has no room waits by time that has passed, and not by the difference of two readings of the store's clock.
    It stays ahead here, because the next attempt is due by it.
    """
    async with (
        memory_kit.hosting(universe="city", **small()) as city,
        memory_kit.hosting(sender, universe="a", **small()) as a,
    ):
        keeper_world = await city.create("keeper", keeper)
        await city.allow("a")
        here = await a.create("s", sender)
        at, engine = await keeper_world._handle.address(), city._connection.store.engine
        said = [await kits.run(here, one(f"n{number}"), id=f"n{number}") for number in range(SHARE)]
        assert said == ["sent"] * SHARE
        [late] = await flood(here, 1, first=SHARE)
        before = await attempts(engine, here, more_than=0)
        await memory_kit.jump(600)
        await attempts(engine, here, more_than=before + 1)  # one of them began behind the jump
        async with memory_kit.hosting(keeper, universe="city", **small()):
            assert await late.result(30) == "sent"
        assert await brought(city, at) == 0


async def attempts(engine: kv.Engine, world: wl.World, *, more_than: int) -> int:
    """How often the one message that has no room was tried, when that is more than a number."""
    found: list[int] = []

    async def tried() -> bool:
        found[:] = [each.work.attempt for each in await kits.opened(engine, await world._handle.address())]
        return not found or found[0] > more_than  # none: it has ended

    await aio.until(tried)
    assert found, "the message was given up"
    return found[0]


async def test_each_universe_has_a_share_and_all_of_them_together(memory_kit: Kit) -> None:
    options = small(inbox_sender_wait_ms=1)
    async with memory_kit.hosting(universe="city", **options) as city:
        keeper_world = await city.create("keeper", keeper)
        at = await keeper_world._handle.address()
        said: list[str] = []
        for name in ("a", "b", "c"):
            async with memory_kit.hosting(sender, universe=name, **options) as others:
                await city.allow(name)
                here = await others.create("s", sender)
                said += [await kits.run(here, one(f"n{number}"), id=f"n{number}") for number in range(3)]
        assert [each.partition(":")[0] for each in said] == ["sent"] * 8 + ["overloaded"]
        assert "of other universes" in said[-1]
        assert await brought(city, at) == 8


async def test_the_share_counts_bytes_of_large_messages_too(memory_kit: Kit) -> None:
    options = small(inbox_sender_wait_ms=1, inbox_bytes_max=400_000)
    async with (
        memory_kit.hosting(universe="city", **options) as city,
        memory_kit.hosting(sender, universe="a", **options) as a,
    ):
        await city.create("keeper", keeper)
        await city.allow("a")
        here = await a.create("s", sender)
        assert await kits.run(here, one("x" * 150_000), id="1") == "sent", "one is taken however large it is"
        assert (await kits.run(here, one("y"), id="2")).startswith("overloaded: ")


async def test_a_dead_letter_gives_its_place_back(memory_kit: Kit) -> None:
    options = small(inbox_sender_wait_ms=1)
    async with (
        memory_kit.hosting(keeper, universe="city", **options) as city,
        memory_kit.hosting(sender, universe="a", **options) as a,
    ):
        keeper_world = await city.create("keeper", keeper)
        await city.allow("a")
        here = await a.create("s", sender)
        at, engine = await keeper_world._handle.address(), city._connection.store.engine
        assert await kits.run(here, one("bad"), id="1") == "sent"
        await aio.until(lambda: buried(engine, at))
        assert await brought(city, at) == 0


async def buried(engine: kv.Engine, at: ids.Address) -> bool:
    return len(await kits.dead(engine, at)) == 1


async def test_the_own_universe_has_no_share(memory_kit: Kit) -> None:
    """By its name too: such a message is the owner's."""
    options = small(inbox_sender_wait_ms=1)
    async with memory_kit.hosting(sender, universe="city", **options) as city:
        keeper_world = await city.create("keeper", keeper)
        here = await city.create("s", sender)
        said = [await kits.run(here, one(f"n{number}"), id=f"n{number}") for number in range(SHARE + 2)]
        assert said == ["sent"] * (SHARE + 2)
        assert await brought(city, await keeper_world._handle.address()) == 0
