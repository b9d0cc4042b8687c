"""Effects that wait for a person: set aside, journaled, tried again by hand. On every engine."""

from __future__ import annotations

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.client import world_answers
from worldline.effects import parking
from worldline.kernel import control_commands
from worldline.kernel.rows.row_records import Parked
from worldline.layers import worlds
from worldline.model import inbox
from worldline.model.journal import Kind
from worldline.model.work import WorkState
from worldline.store import kv, transact


async def told(world: wl.World, command: str) -> bool:
    """Whether the journal has exactly one such command."""
    found = [kits.item(entry) for entry in await kits.entries(world) if entry.kind is Kind.CONTROL]
    count = sum(isinstance(each, inbox.Control) and each.command == command for each in found)
    assert count <= 1
    return count == 1


async def test_parked_work_waits_for_a_person(kit: Kit) -> None:
    app = wl.Program("p")
    seen: list[tuple[int, str]] = []
    broken = [True]

    @app.effect(retry=wl.Retry(attempts=2, initial_delay=0.01, on_exhausted="park"))
    async def touch() -> str:
        seen.append((wl.attempt().number, wl.attempt().key))
        if broken[0]:
            raise ConnectionError("down")
        return "up"

    @app.workflow
    async def go() -> str:
        return await touch()

    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(go(), id="r")
        engine, at = universe._connection.store.engine, await world._handle.address()

        async def parked() -> bool:
            return [each.work.state for each in await kits.opened(engine, at)] == [WorkState.PARKED]

        await aio.until(parked)
        [work] = await kits.opened(engine, at)
        assert (work.work.attempt, work.work.error) == (2, "ConnectionError: down")
        await aio.until(lambda: told(world, control_commands.PARK))
        [pending] = (await world._handle.machine()).work.open.values()
        assert pending.parked == Parked(2, "ConnectionError: down")
        broken[0] = False
        batch = kv.Batch()
        read = await engine.read(worlds.get(at))
        parking.retry(batch, worlds.decode(at, read.value(0)), work, now_us=read.time_us)
        assert isinstance((await transact.commit(engine, kit.env, batch))[0], kv.Ok)
        assert await run.result(20) == "up"
        await aio.until(lambda: told(world, control_commands.RETRY))
        await kits.prove(world, app)
    assert [number for number, _ in seen] == [1, 2, 1]
    assert len({key for _, key in seen}) == 1


class Losing:
    """Loses the answer to the one commit that parks an effect; whether it was applied is the test's choice."""

    def __init__(self, engine: kv.Engine, *, applied: bool) -> None:
        self._engine = engine
        self._applied = applied
        self.lost = 0

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        items = [kits.item_of(append.value) for batch in batches for append in batch.appends]
        parks = [each for each in items if isinstance(each, inbox.Control) and each.command == control_commands.PARK]
        if not parks or self.lost:
            return await self._engine.commit(*batches)
        self.lost += 1
        if self._applied:
            await self._engine.commit(*batches)
        return [kv.CommitUnknown("lost") for _ in batches]

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_answer_parks_once(memory_kit: Kit, applied: bool) -> None:
    app = wl.Program("p")

    @app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
    async def touch() -> str:
        raise ConnectionError("down")

    @app.workflow
    async def go() -> str:
        return await touch()

    losing: list[Losing] = []

    def wrap(engine: kv.Engine) -> Losing:
        losing.append(Losing(engine, applied=applied))
        return losing[0]

    async with memory_kit.hosting(app, wrap=wrap) as universe:
        world = await universe.ensure("w", app)
        await kits.begin(world, go(), id="r")
        await aio.until(lambda: told(world, control_commands.PARK))
        [work] = await kits.opened(universe._connection.store.engine, await world._handle.address())
        assert (work.work.state, losing[0].lost) == (WorkState.PARKED, 1)
        sending = await world._handle.send("Nothing", b"\xf6")
        await world_answers.taken(universe._connection, sending)  # what came behind it has been taken too
        assert await told(world, control_commands.PARK)
