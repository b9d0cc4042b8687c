"""Several processes that see the same timers: the holder of the world fires them, and a lost race costs little."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests import aio
from tests.kits import apart
from tests.kits import kit as kits
from tests.kits.kit import Around, Kit
from tests.timers.test_timers import Arm, Rang, program, timers, until_rung
from worldline.api.universe_api import Universe
from worldline.base import errors
from worldline.host.process import Role
from worldline.keys import work as work_keys
from worldline.layers import leases
from worldline.layers import work as works
from worldline.model import ids, inbox
from worldline.model.journal import Kind
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv
from worldline.timers import timer_worker
from worldline.worker.waiting_input import Superseded, WaitingInput


async def epoch(universe: Universe, at: ids.Address) -> int:
    read = await universe._connection.store.engine.read(*leases.reads(at))
    return leases.decode(at, read.value(0), read.value(1), read.value(2)).epoch.number


async def test_timers_are_left_to_the_living_holder_of_their_world(kit: Kit) -> None:
    app = program()
    async with kit.hosting(app) as first:
        world = await first.ensure("w", app)
        await world.send(Arm(["warm"], 0))
        await until_rung(world, app, 1)
        at = await world._handle.address()
        async with kit.hosting(app) as second:
            assert second._connection.host is not None
            before = await epoch(first, at)
            for number in range(20):
                await world.send(Arm([f"{number}a", f"{number}b"], 0.01 * number))
            await until_rung(world, app, 41)
            assert second._connection.host.timers.fired == 0
            assert await epoch(first, at) == before
            assert all(not each.stamp for each in await kits.entries(world) if each.kind is Kind.TIMER_FIRED)


async def test_a_holder_that_does_not_fire_them_has_a_grace_only(kit: Kit) -> None:
    app = program()
    async with kit.hosting(app) as first:
        world = await first.ensure("w", app)
        assert first._connection.host is not None
        await next(
            each for each in first._connection.host._loops if each.name == "timer worker"
        ).stop()  # as if it hung
        await world.send(Arm(["x", "y"], 0.1))
        async with kit.hosting(app) as second:
            assert second._connection.host is not None
            assert len(await until_rung(world, app, 2)) == 2
            found = timers(await kits.entries(world))
            assert all(taken_us - due_us >= timer_worker.GRACE_US for due_us, taken_us in found)
            assert second._connection.host.timers.fired == 2


async def test_a_timer_process_fires_at_once_for_workers_that_do_not(kit: Kit) -> None:
    app = program()
    async with (
        apart.host(kit, app, roles=[Role.WORLDS]) as holder,
        apart.host(kit, app, roles=[Role.TIMERS]),
        kit.hosting() as client,
    ):
        world = await client.ensure("w", app)
        await world.send(Arm(["x"], 0.1))
        await until_rung(world, app, 1)
        assert holder.worlds.holds(await world._handle.address())
        [(due_us, taken_us)] = timers(await kits.entries(world))
        assert taken_us - due_us < timer_worker.GRACE_US


async def test_a_step_that_loses_a_race_for_one_input_is_made_again_where_it_was(kit: Kit) -> None:
    """The timer is another's by now. What else was to be taken with it is, and the world stays."""
    app = program()
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.send(Arm(["x"], 1_000))
        at, engine = await world._handle.address(), universe._connection.store.engine
        [timer] = await kits.opened(engine, at)
        assert universe._connection.host is not None
        worker = universe._connection.host.worlds
        held, before = worker.peek(at), await epoch(universe, at)
        batch = kv.Batch()
        moved = works.move_due(batch, timer, now_us=timer.work.opened_us, due_us=timer.work.due_us + 1)
        [outcome] = await engine.commit(batch)
        assert isinstance(outcome, kv.Ok)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        fired = inbox.TimerFired(timer.intent, timer.work.due_us)
        assert worker.hand_over(at, WaitingInput(fired, b"", done=done, claim=timer))
        sent = [asyncio.ensure_future(world.send(Rang(str(number)))) for number in range(5)]
        with pytest.raises(Superseded):
            await done
        await asyncio.gather(*sent)
        assert await until_rung(world, app, 5) == [str(number) for number in range(5)]
        assert worker.peek(at) is held
        assert await epoch(universe, at) == before
        assert [each.raw for each in await kits.opened(engine, at)] == [moved.raw]
        await kits.prove(world, app)


async def test_a_race_that_is_lost_while_the_store_is_out_of_reach_lets_go_of_the_world(memory_kit: Kit) -> None:
    app = program()
    made: list[Failing] = []

    class Failing(Around):
        """Cannot be read from once a conflict was met, as often as it is told."""

        failures = 0

        async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
            outcomes = await self._engine.commit(*batches)
            if any(isinstance(each, kv.Conflict) for each in outcomes) and self.failures:
                self.broken, self.failures = self.failures, 0
            return outcomes

        broken = 0

        async def read(self, *requests: kv.Request) -> kv.ReadResult:
            if self.broken:
                self.broken -= 1
                raise errors.StoreUnavailable("not now")
            return await self._engine.read(*requests)

    def wrap(engine: Any) -> Failing:
        made.append(Failing(engine))
        return made[-1]

    async with memory_kit.hosting(app, wrap=wrap) as universe:
        world = await universe.ensure("w", app)
        await world.send(Arm(["x"], 1_000))
        at = await world._handle.address()
        [timer] = await kits.opened(universe._connection.store.engine, at)
        assert universe._connection.host is not None
        batch = kv.Batch()
        works.move_due(batch, timer, now_us=timer.work.opened_us, due_us=timer.work.due_us + 1)
        await universe._connection.store.engine.commit(batch)
        made[0].failures = 1
        fired = inbox.TimerFired(timer.intent, timer.work.due_us)
        assert universe._connection.host.worlds.hand_over(at, WaitingInput(fired, b"", claim=timer))

        async def failed() -> bool:
            return made[0].failures == 0 and made[0].broken == 0

        await aio.until(failed)
        await world.send(Rang("after"))
        assert await until_rung(world, app, 1) == ["after"]
        universe._connection.host.check()


class LostAnswer(Around):
    """Loses the answer to the first firings, and those with the earliest timer were not even applied."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.lost = 0

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        firing = [each for each in batches if any(_is_firing(append.value) for append in each.appends)]
        if not firing or self.lost:
            return await self._engine.commit(*batches)
        self.lost += 1
        rest = [each for each in batches if each is not firing[0]]
        outcomes = iter(await self._engine.commit(*rest) if rest else [])
        return [kv.CommitUnknown("lost") if each is firing[0] else next(outcomes) for each in batches]


def _is_firing(raw: bytes) -> bool:
    return isinstance(kits.item_of(raw), inbox.TimerFired)


async def test_timers_keep_their_order_when_the_answer_to_their_firing_is_lost(kit: Kit) -> None:
    """Ties too: a firing that is committed again must not come behind a later one."""
    app = program()
    engines: list[LostAnswer] = []

    def wrap(engine: Any) -> LostAnswer:
        engines.append(LostAnswer(engine))
        return engines[-1]

    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        names = [f"n{number}" for number in range(6)]
        await world.send(Arm(names[:3], 0.2))
        await world.send(Arm(names[3:], 0.25))
        pending = await kits.opened(universe._connection.store.engine, await world._handle.address())
        order = sorted(pending, key=lambda each: (each.work.due_us, each.intent))
    await kit.jump(0.5)
    async with kit.hosting(wrap=wrap) as client, apart.host(kit, app, roles=[Role.WORLDS]):
        firing = timer_worker.TimerWorker(
            engines[0],
            kit.env,
            Universes.only(client._connection.id),
            settings=kits.SETTINGS.timer,
            worker=ids.WorkerId(b"timers.........."),
        )
        await firing.tick()
        await firing.close()
        assert engines[0].lost == 1
        world = client.world("w")

        async def taken() -> bool:
            return (await kits.kinds(world)).count(Kind.TIMER_FIRED) == 6

        await aio.until(taken)
        fired = [kits.item(each) for each in await kits.entries(world) if each.kind is Kind.TIMER_FIRED]
        assert [each.intent for each in fired if isinstance(each, inbox.TimerFired)] == [each.intent for each in order]


async def test_what_does_not_fit_into_one_firing_follows(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_worker, "FIRE_BYTES_MAX", 3_000)
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.send(Arm([str(number) for number in range(20)], 5))
    await memory_kit.jump(6)
    async with memory_kit.hosting(app) as universe:
        world = universe.world("w")
        assert len(await until_rung(world, app, 20)) == 20
        read = await universe._connection.store.engine.read(kv.Range(*work_keys.due_all(universe._connection.id)))
        assert read.page(0).items == []
