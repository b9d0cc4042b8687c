"""Timers: never early on the store's clock, in order, once; wherever their world is, and if it is nowhere."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.api.universe_api import Universe
from worldline.kernel import user_values
from worldline.keys import work as work_keys
from worldline.layers import work as works
from worldline.model import inbox
from worldline.model.journal import JournalEntry, Kind
from worldline.model.work import WorkKind
from worldline.model.world_records import Status
from worldline.runtime import queue_names
from worldline.store import kv


@dataclass(frozen=True)
class Rang:
    name: str


@dataclass(frozen=True)
class Arm:
    names: list[str]
    seconds: float


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Bell:
        rung: list[str] = field(default_factory=list)

        @wl.on
        def rang(self, event: Rang) -> None:
            self.rung.append(event.name)

        @wl.on
        def arm(self, event: Arm) -> None:
            for name in event.names:
                wl.after(event.seconds, Rang(name))

    @app.workflow
    async def nap(seconds: float) -> str:
        await wl.sleep(seconds)
        return "awake"

    @app.workflow
    async def arm_and_cancel(seconds: float) -> str:
        timer = wl.after(seconds, Rang("never"))
        await wl.sleep(seconds)
        timer.cancel()
        return "cancelled"

    return app


async def rung(world: wl.World, app: wl.Program) -> list[str]:
    found: list[str] = (await world.state(app.reducers["Bell"].cls)).rung
    return found


async def until_rung(world: wl.World, app: wl.Program, count: int) -> list[str]:
    async def enough() -> bool:
        return len(await rung(world, app)) >= count

    await aio.until(enough)
    return await rung(world, app)


def timers(entries: list[JournalEntry]) -> list[tuple[int, int]]:
    """For each firing that was journaled: when it was due, and at what logical time it was taken."""
    fired = [each for each in entries if each.kind is Kind.TIMER_FIRED]
    items: list[inbox.TimerFired] = [kits.item(each) for each in fired]  # type: ignore[misc]
    return [(item.due_us, entry.time_us) for item, entry in zip(items, fired, strict=True)]


async def due_count(engine: kv.Engine, universe: Universe) -> int:
    return len((await engine.read(kv.Range(*work_keys.due_all(universe._connection.id)))).page(0).items)


class Stamped:
    """Notes the store's time at which each firing is committed, read right before the commit."""

    def __init__(self, engine: kv.Engine) -> None:
        self._engine = engine
        self.early: list[int] = []
        self.fired = 0

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        now_us = (await self._engine.read()).time_us
        for batch in batches:
            for append in batch.appends:
                found = kits.item_of(append.value)
                if isinstance(found, inbox.TimerFired):
                    self.fired += 1
                    if found.due_us > now_us:
                        self.early.append(found.due_us - now_us)
        return await self._engine.commit(*batches)

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()


async def test_timers_of_worlds_held_here_go_straight_into_a_step(kit: Kit) -> None:
    app = program()
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        for number in range(20):
            await world.send(Arm([str(number)], 0.002 * number))
        assert sorted(await until_rung(world, app, 20)) == sorted(str(number) for number in range(20))
        found = timers(await kits.entries(world))
        assert len(found) == 20
        assert all(taken_us >= due_us for due_us, taken_us in found)
        assert all(not each.stamp for each in await kits.entries(world) if each.kind is Kind.TIMER_FIRED), (
            "not by inbox"
        )
        assert await due_count(universe._connection.store.engine, universe) == 0
        assert await kits.opened(universe._connection.store.engine, await world._handle.address()) == []
        await kits.prove(world, app)


async def test_timers_of_worlds_that_nobody_holds_go_by_the_inbox(kit: Kit) -> None:
    """They wake their world up: somebody takes it, and lets it go again."""
    app = program()
    settings = kits.settings(worker={"idle_release_ms": 100})
    made: list[Stamped] = []

    def wrap(engine: Any) -> Stamped:
        made.append(Stamped(engine))
        return made[-1]

    process = await kit.process(app, settings=settings, wrap=wrap)
    world = await process.universe.ensure("w", app)
    at = await world._handle.address()
    await world.send(Arm(["a", "b"], 30))

    async def free() -> bool:
        return not process.host.worlds.holds(at)

    await aio.until(free)
    await kit.jump(31)
    process.host.timers.wake()
    assert sorted(await until_rung(world, app, 2)) == ["a", "b"]
    assert (made[0].fired, made[0].early) == (2, [])
    assert all(each.stamp for each in await kits.entries(world) if each.kind is Kind.TIMER_FIRED), "by inbox"
    await aio.until(free)
    await process.close()


async def test_nothing_fires_before_its_time(memory_kit: Kit) -> None:
    """The store's clock decides, and it stands wherever it stands."""
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.send(Arm(["later"], 10))
        assert universe._connection.host is not None
        for _ in range(20):
            universe._connection.host.timers.wake()
            await asyncio.sleep(0.01)
        assert await rung(world, app) == []
        await memory_kit.jump(9)
        universe._connection.host.timers.wake()
        await asyncio.sleep(0.1)
        assert await rung(world, app) == []
        await memory_kit.jump(1)
        universe._connection.host.timers.wake()
        assert await until_rung(world, app, 1) == ["later"]


async def test_ties_are_taken_in_order(kit: Kit) -> None:
    """Timers due at one instant: by world, then by intent. Across worlds nothing can be said; in each it can."""
    app = program()
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        names = [f"n{number}" for number in range(30)]
        await world.send(Arm(names, 0.3))
        pending = await kits.opened(universe._connection.store.engine, await world._handle.address())
        order = sorted((each for each in pending if each.work.kind is WorkKind.TIMER), key=lambda each: each.intent)
        expected = [user_values.load(Rang, each.work.params.inline or b"").name for each in order]
        assert len({each.work.due_us for each in order}) == 1
        assert await until_rung(world, app, 30) == expected


async def test_many_timers_at_one_instant_all_fire(kit: Kit) -> None:
    app = program()
    settings = kits.settings(timer={"batch": 7})
    async with kit.hosting(app, settings=settings) as universe:
        worlds = [await universe.ensure(f"w{number}", app) for number in range(5)]
        for world in worlds:
            await world.send(Arm([str(number) for number in range(20)], 0.2))
        for world in worlds:
            assert len(await until_rung(world, app, 20)) == 20
        assert await due_count(universe._connection.store.engine, universe) == 0


async def test_cancelled_or_fired_but_never_both(kit: Kit) -> None:
    """The journal decides the race of a timer and its cancellation at the same instant."""
    app = program()
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        runs = [await world.start(app.workflows["arm_and_cancel"](0.03), id=f"r{number}") for number in range(20)]
        for run in runs:
            assert await run.result(20) == "cancelled"
        entries = await kits.entries(world)
        cancelled = sum(1 for each in entries if each.kind is Kind.TIMER_CANCELLED)
        assert cancelled + len(await rung(world, app)) == 20
        assert await kits.opened(universe._connection.store.engine, await world._handle.address()) == []
        await kits.prove(world, app)

        async def tidy() -> bool:
            return await due_count(universe._connection.store.engine, universe) == 0

        await aio.until(tidy)


async def test_missed_timers_fire_when_somebody_hosts_again(kit: Kit) -> None:
    app = program()
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await kits.begin(world, app.workflows["nap"](0.3), id="r")
        await world.send(Arm(["missed"], 0.3))
    await kit.jump(0.5)
    async with kit.hosting(app) as universe:
        world = universe.world("w")
        assert await (await world.attach("r")).result(20) == "awake"
        assert await until_rung(world, app, 1) == ["missed"]


async def test_timers_of_a_deleted_world_are_nobodys(kit: Kit) -> None:
    app = program()
    async with kit.hosting(app) as universe:
        gone = await universe.ensure("gone", app)
        stays = await universe.ensure("stays", app)
        await gone.send(Arm(["x"], 0.3))
        await stays.send(Arm(["y"], 0.35))
        await gone.delete()
        assert await until_rung(stays, app, 1) == ["y"]

        async def tidy() -> bool:
            return await due_count(universe._connection.store.engine, universe) == 0

        await aio.until(tidy)


async def test_timers_of_an_archived_world_are_in_nobodys_way(kit: Kit) -> None:
    """It takes no input now. Its timers are put off, not lost, and others fire."""
    app = program()
    async with kit.hosting(app, settings=kits.settings(worker={"idle_release_ms": 50})) as universe:
        resting = await universe.ensure("resting", app)
        awake = await universe.ensure("awake", app)
        await resting.send(Arm([str(number) for number in range(5)], 0.1))
        await resting.change(status=Status.ARCHIVED)
        await awake.send(Arm(["on time"], 1))  # when nobody holds it any more: by the same way as the others
        assert await until_rung(awake, app, 1) == ["on time"]
        assert len(await kits.opened(universe._connection.store.engine, await resting._handle.address())) == 5
        await resting.change(status=Status.ACTIVE)
        await kit.jump(10)
        assert universe._connection.host is not None
        universe._connection.host.timers.wake()
        assert len(await until_rung(resting, app, 5)) == 5


async def test_a_pointer_without_its_timer_is_garbage(memory_kit: Kit) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.send(Arm(["x"], 1_000))
        [timer] = await kits.opened(universe._connection.store.engine, await world._handle.address())
        batch = kv.Batch()
        key = work_keys.due_key(timer.at, timer.intent, queue=queue_names.TIMER_QUEUE, due_us=1)
        batch.absent(key)
        batch.put(key, work_keys.DUE.pack(work_keys.Due(WorkKind.TIMER)))
        await universe._connection.store.engine.commit(batch)

        async def swept() -> bool:
            found = (await universe._connection.store.engine.read(kv.Get(key))).value(0)
            return found is None

        await aio.until(swept)
        assert await rung(world, app) == []
        assert [each.intent for each in await kits.opened(universe._connection.store.engine, timer.at)] == [
            timer.intent
        ]
        read = await universe._connection.store.engine.read(
            works.next_range(universe._connection.id, queue=queue_names.TIMER_QUEUE)
        )
        assert works.decode_due(universe._connection.id, read.page(0))[0].pointer.due_us == timer.work.due_us
