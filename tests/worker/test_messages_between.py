"""Messages between worlds of one store: exactly once, answered or refused, whoever hosts whom."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import fixtures
from tests.kits import kit as kits
from tests.kits.crashing import Crashing, Fate
from tests.kits.kit import Kit
from worldline.model.journal import Kind
from worldline.model.world_records import Status


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Count(wl.Request[int]):
    pass


@dataclass(frozen=True)
class Never(wl.Request[int]):
    pass


sender = wl.Program("sender")
keeper = wl.Program("keeper")


@keeper.reducer()
@dataclass
class Notes:
    texts: list[str] = field(default_factory=list)

    @wl.on
    def note(self, event: Note) -> None:
        self.texts.append(event.text)

    @wl.on
    def count(self, event: Count) -> int:
        return len(self.texts)


@sender.workflow
async def send(to: str, texts: list[str]) -> int:
    for text in texts:
        await wl.send(to, Note(text))
    return await wl.ask(to, Count())


@sender.workflow
async def try_send(to: str) -> list[str]:
    told = []
    for call in (wl.send(to, Note("x")), wl.ask(to, Count())):
        try:
            await call
        except wl.EffectFailed as error:
            told.append(f"{error.code}: {error}")
    return told


@sender.workflow
async def ask_in_time(to: str, seconds: float) -> str:
    try:
        return str(await wl.ask(to, Count(), timeout=seconds))
    except TimeoutError:
        return "no answer in time"


@sender.workflow
async def ask_anything(to: str) -> str:
    try:
        return str(await wl.ask(to, Never()))
    except wl.EffectFailed as error:
        return error.code


@sender.workflow
async def listen() -> str:
    return (await wl.wait(Note)).text


async def texts(world: wl.World) -> list[str]:
    return (await world.state(Notes)).texts


async def story(universe: wl.Universe) -> None:
    here = await universe.ensure("sender", sender)
    there = await universe.ensure("keeper", keeper)
    assert await kits.run(here, send("keeper", ["a", "b", "c"]), id="r") == 3
    assert await texts(there) == ["a", "b", "c"]


@pytest.mark.parametrize("fate", Fate, ids=lambda fate: fate.name.lower())
async def test_exactly_once_whatever_happens_to_a_commit(fate: Fate, tmp_path: Path) -> None:
    at = 1
    while True:
        kit = fixtures.make("memory", tmp_path / str(at))
        engine = await once(kit, at, fate)
        await kit.aclose()
        if not engine.met:
            break
        at += 1
    assert at > 10


async def once(kit: Kit, at: int, fate: Fate) -> Crashing:
    made: list[Crashing] = []

    def wrap(engine: Any) -> Crashing:
        made.append(Crashing(engine, at, fate))
        return made[-1]

    process = await kit.process(sender, keeper, wrap=wrap)
    [engine] = made
    telling = asyncio.ensure_future(story(process.universe))
    dying = asyncio.ensure_future(engine.dead.wait())
    await asyncio.wait([telling, dying], return_when=asyncio.FIRST_COMPLETED)
    dying.cancel()
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    await process.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    async with kit.hosting(sender, keeper) as universe:
        await story(universe)
        await kits.prove(universe.world("sender"), sender)
        await kits.prove(universe.world("keeper"), keeper)
    return engine


async def test_two_processes_that_host_one_end_each(kit: Kit) -> None:
    one = await kit.process(sender)
    two = await kit.process(keeper)
    here = await one.universe.ensure("sender", sender)
    there = await two.universe.ensure("keeper", keeper)
    assert await here.run(send("keeper", ["a", "b"]), timeout=20) == 2
    assert await texts(there) == ["a", "b"]
    assert not one.host.worlds.holds(await there._handle.address())
    assert not two.host.worlds.holds(await here._handle.address())
    found = await kits.kinds(there)
    assert found.count(Kind.MESSAGE) == 3
    await one.close()
    await two.close()


@pytest.mark.parametrize(
    ("status", "why"), [(None, "no such world"), (Status.ARCHIVED, "is archived"), (Status.DELETED, "no such world")]
)
async def test_nobody_there_is_an_error_in_the_sender(kit: Kit, status: Status | None, why: str) -> None:
    async with kit.hosting(sender, keeper) as universe:
        here = await universe.ensure("sender", sender)
        if status is not None:
            there = await universe.ensure("keeper", keeper)
            if status is Status.DELETED:
                await there.delete()
            else:
                await there.change(status=status)
        told = await here.run(try_send("keeper"), timeout=20)
        assert len(told) == 2
        assert all(each.startswith("undeliverable: ") and why in each for each in told), told
        await kits.prove(here, sender)


async def test_a_world_that_is_paused_takes_messages_and_answers_later(kit: Kit) -> None:
    async with kit.hosting(sender, keeper) as universe:
        here = await universe.ensure("sender", sender)
        there = await universe.ensure("keeper", keeper)
        await there.change(status=Status.PAUSED)
        assert await here.run(ask_in_time("keeper", 0.1), timeout=20) == "no answer in time"
        run = await here.start(send("keeper", ["a"]), id="r")
        at = await there._handle.address()

        async def waiting() -> bool:  # the question that was given up, the note and the question after it
            return await kits.unread(universe._connection.store.engine, at) == 3

        await aio.until(waiting)
        await there.change(status=Status.ACTIVE)
        assert await run.result(20) == 1
        found = await kits.kinds(here)
        assert found.count(Kind.LATE_ANSWER) == 1, "the answer that came too late"
        await kits.prove(here, sender)


async def test_a_question_that_nobody_takes_is_answered_so(kit: Kit) -> None:
    async with kit.hosting(sender, keeper) as universe:
        here = await universe.ensure("sender", sender)
        await universe.ensure("keeper", keeper)
        assert await here.run(ask_anything("keeper"), timeout=20) == "rejected"


async def test_a_reply_to_a_world_that_is_gone_is_dropped(kit: Kit) -> None:
    """The asker was deleted before it got its answer; the one who answers goes on as if nothing were."""
    async with kit.hosting(sender, keeper) as universe:
        here = await universe.ensure("sender", sender)
        there = await universe.ensure("keeper", keeper)
        await there.change(status=Status.PAUSED)
        await kits.begin(here, ask_in_time("keeper", 100), id="r")
        await asyncio.sleep(0.05)
        await here.delete()
        await there.change(status=Status.ACTIVE)

        async def answered() -> bool:
            return Kind.MESSAGE_SENT in await kits.kinds(there)

        await aio.until(answered)
        await (await there.send(Note("still here"))).applied()
        assert await texts(there) == ["still here"]
        assert await kits.unread(universe._connection.store.engine, await there._handle.address()) == 0


async def test_a_world_may_write_to_itself(kit: Kit) -> None:
    app = wl.Program("p")

    @app.workflow
    async def talk() -> str:
        await wl.send("w", Note("hello"))
        return (await wl.wait(Note)).text

    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        assert await world.run(talk(), timeout=20) == "hello"
        await kits.prove(world, app)


async def test_many_senders_to_one_keeper(kit: Kit) -> None:
    """Twenty worlds, five notes each: all arrive, each sender's in its order."""
    async with kit.hosting(sender, keeper) as universe:
        there = await universe.ensure("keeper", keeper)
        worlds = [await universe.ensure(f"s{number}", sender) for number in range(20)]
        await asyncio.gather(
            *(
                world.run(send("keeper", [f"{number}-{each}" for each in range(5)]), timeout=60)
                for number, world in enumerate(worlds)
            )
        )
        found = await texts(there)
        assert len(found) == 100
        for number in range(20):
            assert [each for each in found if each.startswith(f"{number}-")] == [
                f"{number}-{each}" for each in range(5)
            ]


async def test_large_messages_travel_by_reference(kit: Kit) -> None:
    async with kit.hosting(sender, keeper) as universe:
        here = await universe.ensure("sender", sender)
        there = await universe.ensure("keeper", keeper)
        text = "x" * 100_000
        assert await here.run(send("keeper", [text]), timeout=20) == 1
        assert await texts(there) == [text]
        await kits.prove(there, keeper)
