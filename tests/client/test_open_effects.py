"""Open effects from the SDK: looked at, parked, retried and answered by hand; hosted here and elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.features.proofs import calls as proof_calls
from worldline.kernel import run_repair

PARKED, WAITING = wl.WorkState.PARKED, wl.WorkState.WAITING


@dataclass(frozen=True)
class Go:
    by: str = ""


class App:
    def __init__(self) -> None:
        self.program = app = wl.Program("paying")
        self.broken = broken = [True]

        @app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
        async def pay(cents: int) -> int:
            if broken[0]:
                raise ValueError("no line")
            return cents

        @app.effect(retry=wl.Retry(attempts=None, initial_delay=3_600, max_delay=3_600))
        async def slow(cents: int) -> int:
            raise ValueError(f"not yet: {cents}")

        @app.workflow
        async def order(cents: int) -> list[Any]:
            return [await pay(cents), await wl.wait(Go)]

        @app.workflow
        async def patient(cents: int) -> int:
            return await slow(cents)

        @app.workflow
        async def fails(cents: int) -> str:
            try:
                return str(await pay(cents))
            except wl.EffectFailed as error:
                return f"{error.code}: {error}"

        self.order, self.patient, self.fails = order, patient, fails


@pytest.fixture(params=["here", "elsewhere"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def looking(kit: Kit, app: App, where: str) -> AsyncIterator[wl.World]:
    """The world as a process sees that hosts it, or one that does not and has no program."""
    host = await kit.process(app.program)
    await host.universe.ensure("w", app.program)
    client = host if where == "here" else await kit.process()
    yield client.universe.world("w")
    if client is not host:
        await client.close()
    await host.close()


async def until(world: wl.World, state: wl.WorkState, *, attempt: int = 1) -> wl.ops.OpenEffect:
    found: list[wl.ops.OpenEffect] = []

    async def there() -> bool:
        found[:] = [each for each in await world.effects(state=state) if each.attempt == attempt]
        return bool(found)

    await aio.until(there)
    return found[0]


async def proved(world: wl.World, app: App) -> None:
    proof = await proof_calls.prove(world._handle, programs=[app.program])
    assert proof.holds, proof.difference


async def test_a_parked_effect_is_seen_and_answered(kit: Kit, where: str) -> None:
    app = App()
    async with looking(kit, app, where) as world:
        assert await world.effects() == []
        await kits.begin(world, app.order(5), id="o")
        effect = await until(world, PARKED)
        assert (effect.name, effect.run, effect.state, effect.attempt) == ("pay", "o", PARKED, 1)
        assert (effect.args, effect.error) == ({"cents": 5}, "ValueError: no line")
        assert effect.opened.tzinfo is not None
        assert [each.id for each in await world.effects()] == [effect.id]
        assert (await world.effect(effect.id[:12])).id == effect.id
        assert await world.effects(state=WAITING) == []

        with pytest.raises(wl.BadInput, match="the answer does not fit pay"):
            await effect.answer("no number")
        await effect.answer(41)
        assert await world.effects() == []
        await effect.answer(41)  # a caller that has lost the answer asks again
        with pytest.raises(wl.Exists, match="has an answer"):
            await effect.answer(42)
        with pytest.raises(wl.Exists, match="has an answer"):
            await effect.answer(error="no")
        with pytest.raises(wl.NotFound, match="not open any more"):
            await effect.retry()
        with pytest.raises(wl.NotFound, match="no open effect"):
            await world.effect(effect.id)

        run = await world.attach("o")
        await run.terminate()
        with pytest.raises(wl.NotFound, match="is open"):
            await effect.answer(41)
        await proved(world, app)


async def test_an_answer_can_be_an_error(kit: Kit, where: str) -> None:
    app = App()
    async with looking(kit, app, where) as world:
        await kits.begin(world, app.fails(5), id="f")
        effect = await until(world, PARKED)
        await effect.answer(error="the bank says no")
        assert await (await world.attach("f")).result(20) == "answered: pay: the bank says no"
        await proved(world, app)


async def test_what_is_not_parked_is_parked_first(kit: Kit, where: str) -> None:
    app = App()
    async with looking(kit, app, where) as world:
        await kits.begin(world, app.patient(5), id="p")
        effect = await until(world, WAITING)
        with pytest.raises(wl.errors.Closed, match="is not parked"):
            await effect.answer(1)
        await effect.park()
        with pytest.raises(wl.errors.Closed, match="parked, not waiting"):
            await effect.park()
        await effect.answer(7)
        assert await (await world.attach("p")).result(20) == 7
        await proved(world, app)


async def test_a_parked_effect_is_retried(kit: Kit, where: str) -> None:
    app = App()
    async with looking(kit, app, where) as world:
        await kits.begin(world, app.fails(5), id="f")
        effect = await until(world, PARKED)
        app.broken[0] = False
        await effect.retry()
        assert await (await world.attach("f")).result(20) == "5"
        await proved(world, app)


async def test_one_that_waits_for_its_next_attempt_is_tried_at_once(kit: Kit, where: str) -> None:
    app = App()
    async with looking(kit, app, where) as world:
        await kits.begin(world, app.patient(5), id="p")
        await (await until(world, WAITING)).retry()
        await until(world, WAITING, attempt=2)


async def test_one_that_was_cancelled_is_not_answered(memory_kit: Kit) -> None:
    app = App()
    async with looking(memory_kit, app, "here") as world:
        await kits.begin(world, app.patient(5), id="p")
        effect = await until(world, WAITING)
        await (await world.attach("p")).cancel("enough")
        with pytest.raises(wl.NotFound):
            await effect.answer(1)


async def test_bad_ids_and_states_are_refused(memory_kit: Kit) -> None:
    app = App()
    async with looking(memory_kit, app, "here") as world:
        for id, error in (("ab", wl.BadInput), (5, wl.BadInput), ("abcdef", wl.NotFound)):
            with pytest.raises(error):
                await world.effect(id)  # type: ignore[arg-type]
        with pytest.raises(wl.BadInput, match=r"worldline\.WorkState"):
            await world.effects(state="parked")  # type: ignore[arg-type]
        with pytest.raises(wl.NotFound, match="no effect 000000"):
            await world._handle.command(
                run_repair.ANSWER_EFFECT, run_repair.AnswerEffect(bytes(16), b"\xf6", None, "r")
            )


async def test_attempts_are_kept_with_an_effect_and_behind_its_answer(memory_kit: Kit) -> None:
    """When, where and how each ended: while it is open, and for some time when it has its answer."""
    app = wl.Program("p")
    failures = ["one", "two"]

    @app.effect(retry=wl.Retry(attempts=None, initial_delay=0.01, max_delay=0.01))
    async def fetch(key: str) -> str:
        if failures and key == "soon":
            raise ValueError(failures.pop(0))
        if key == "never":
            raise OSError("no line")
        return key

    @app.effect(retry=wl.Retry(attempts=2, initial_delay=0.01))
    async def broken() -> None:
        raise OSError("no route")

    @app.workflow
    async def go(key: str) -> str:
        await fetch("at once")
        return await fetch(key)

    @app.workflow
    async def fails() -> None:
        await broken()

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(go("soon"), id="r")
        assert await run.result(20) == "soon"
        [found] = await run.attempts()  # the one that succeeded at once has none
        assert (found.effect, found.open, len(found.id)) == ("fetch", False, 32)
        assert [(each.number, each.ended, each.error) for each in found.attempts] == [
            (1, "retried", "ValueError: one"),
            (2, "retried", "ValueError: two"),
            (3, "ok", ""),
        ]
        for before, after in zip(found.attempts, found.attempts[1:], strict=False):
            assert before.began_us <= before.ended_us <= after.began_us
            assert len(before.worker) == 16
        failed = await world.start(fails(), id="f")
        with pytest.raises(wl.RunFailed):
            await failed.result(20)
        [found] = await failed.attempts()
        assert [(each.ended, each.error) for each in found.attempts] == [
            ("retried", "OSError: no route"),
            ("failed", "OSError: no route"),
        ]
        waiting = await world.start(go("never"), id="n")
        opened = await until(world, WAITING, attempt=12)
        assert len(opened.attempts) == 8
        assert {each.error for each in opened.attempts} == {"OSError: no line"}
        [found] = await waiting.attempts()
        assert found.open
        assert found.attempts[-1].number >= 12
        await kits.prove(world, app)


async def test_an_effect_that_runs_is_answered_by_hand(memory_kit: Kit, where: str) -> None:
    """The attempt is stopped, and whatever it says then is too late."""
    app = wl.Program("p")
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.effect(retry=wl.Retry(attempts=None, initial_delay=3_600, max_delay=3_600))
    async def call(number: str) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    @app.workflow
    async def dial() -> str:
        name = await call("7")
        return name + (await wl.wait(Go)).by

    host = await memory_kit.process(app)
    await host.universe.ensure("w", app)
    client = host if where == "here" else await memory_kit.process()
    world = client.universe.world("w")
    run = await host.universe.world("w").start(dial(), id="r")
    await asyncio.wait_for(begun.wait(), 20)
    [effect] = await world.effects()
    with pytest.raises(wl.errors.Closed, match="running=True"):
        await effect.answer("Ada")
    with pytest.raises(wl.BadInput):
        await effect.answer(7, running=True)
    await effect.answer("Ada", running=True)
    await effect.answer("Ada", running=True)  # the same again changes nothing
    with pytest.raises(wl.Exists):
        await effect.answer("Bob", running=True)
    await asyncio.wait_for(ended.wait(), 20)
    assert await world.effects() == []
    await world.send(Go("!"))
    assert await run.result(20) == "Ada!"
    await kits.prove(world, app)
    for each in {id(one): one for one in (client, host)}.values():
        await each.close()
