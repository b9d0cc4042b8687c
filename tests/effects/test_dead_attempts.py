"""An effect whose processes die is parked in the end, also where its attempts are not limited in number; and only for
deaths that are evidence: it was performed alone, and its process is really dead.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.base import probes
from worldline.effects import suspects
from worldline.inspect import why as reasons
from worldline.keys import work as work_keys
from worldline.layers import work as works
from worldline.model import ids, work
from worldline.model.work import WorkState
from worldline.store import kv

DEATHS = 3
SETTINGS = kits.settings(adapter={"dead_attempts_max": DEATHS})
AWAY_SECONDS = works.DEATH_PAUSE_MAX_US / 1_000_000 + 1  # longer than any lease, claim or pause


class App:
    def __init__(self) -> None:
        self.program = app = wl.Program("p")
        self.began: list[str] = []
        self.deadly = True

        @app.effect(retry=wl.Retry(attempts=None, initial_delay=0.01))
        async def poison(name: str) -> str:
            self.began.append(name)
            if self.deadly:
                await asyncio.sleep(3600)
            return "well"

        @app.workflow
        async def takes(name: str) -> str:
            return await poison(name)

        self.takes = takes

    async def has_begun(self, times: int) -> None:
        async def enough() -> bool:
            return len(self.began) >= times

        await aio.until(enough)


async def only(client: kits.Process, at: ids.Address) -> work.Work:
    [opened] = await kits.opened(client.engine, at)
    return opened.work


async def counts(client: kits.Process, at: ids.Address, deaths: int) -> None:
    async def counted() -> bool:
        return len((await only(client, at)).blamed) == deaths

    await aio.until(counted)


async def paused(client: kits.Process, at: ids.Address, pause_us: int) -> None:
    """Every effect of the world waits, for so long."""

    async def all_wait() -> bool:
        now_us = (await client.engine.read()).time_us
        found = [each.work for each in await kits.opened(client.engine, at)]
        return all(
            each.state is WorkState.WAITING and pause_us // 2 < each.due_us - now_us <= pause_us for each in found
        )

    await aio.until(all_wait)


async def dies(kit: Kit, app: App, client: kits.Process, at: ids.Address, deaths: int) -> None:
    """A process dies while it performs the effect, and another one counts that. Then the pause is over."""
    before = len(app.began)
    process = await kit.process(app.program, settings=SETTINGS)
    await app.has_begun(before + 1)
    found = await only(client, at)
    assert (found.died, found.alone, len(found.blamed)) == (deaths, True, deaths - 1)
    await process.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    process = await kit.process(app.program, settings=SETTINGS)
    await counts(client, at, deaths)
    found = await only(client, at)
    left_us = found.due_us - (await client.engine.read()).time_us
    assert found.state is WorkState.WAITING
    assert works.pause_after(deaths) // 2 < left_us <= works.pause_after(deaths)
    assert len(app.began) == before + 1
    await process.close()
    await kit.jump(AWAY_SECONDS)


async def begin(kit: Kit, app: App, *names: str) -> tuple[kits.Process, wl.World, ids.Address]:
    """A world that has asked for effects, of which each was performed once, by a process that died."""
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    process = await kit.process(app.program, settings=SETTINGS)
    for name in names:
        await kits.begin(world, app.takes(name), id=name)
    await app.has_begun(len(names))
    await process.kill()
    await kit.jump(AWAY_SECONDS)
    return client, world, await world._handle.address()


async def test_dead_attempts_of_unlimited_ones_count(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    client, world, at = await begin(kit, app, "r")
    for deaths in range(1, DEATHS + 1):  # the first death was not counted: it was not alone
        await dies(kit, app, client, at, deaths)
    app.deadly = False
    last = await kit.process(app.program, settings=SETTINGS)

    async def parked() -> bool:
        return (await only(client, at)).state is WorkState.PARKED

    with caplog.at_level(logging.ERROR):
        await aio.until(parked)
    [opened] = await kits.opened(client.engine, at)
    retry = f"worldline effect retry {opened.intent.hex()[:12]}"
    said = f"the processes of {DEATHS} attempts in a row died"
    [line] = [record.getMessage() for record in caplog.records if said in record.getMessage()]
    assert retry in line
    [reason] = [each for each in (await reasons.why(world._handle)).reasons if each.kind == "parked"]
    assert said in reason.error
    assert all(worker.hex()[-8:] in reason.error for worker in opened.work.blamed)
    assert reason.command == retry
    await last.close()


def test_pauses_grow() -> None:
    assert [works.pause_after(deaths) // 1_000_000 for deaths in (1, 2, 3, 4, 100)] == [2, 8, 32, 60, 60]


async def test_two_that_processes_may_have_died_of_are_not_performed_together(memory_kit: Kit) -> None:
    kit, app = memory_kit, App()
    client, _, at = await begin(kit, app, "a", "b")
    with probes.collect() as hits:
        process = await kit.process(app.program, settings=SETTINGS)
        await app.has_begun(3)

        async def held_back() -> bool:
            return hits["effects.held-back"] > 1

        await aio.until(held_back)
    assert len(app.began) == 3
    claimed = [each.work for each in await kits.opened(client.engine, at) if each.work.worker == process.host.worker]
    assert [each.alone for each in claimed] == [True]
    await process.close()
    await client.close()


async def test_deaths_of_two_together_are_not_counted(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """One does not wait for ever for another to end. Then neither is alone. There are pauses all the same, in which
    whatever else their processes have to do goes on.
    """
    monkeypatch.setattr(suspects, "HELD_BACK_US", 1)
    kit, app = memory_kit, App()
    client, _, at = await begin(kit, app, "a", "b")
    for number in range(1, DEATHS + 2):
        process = await kit.process(app.program, settings=SETTINGS)
        await app.has_begun(2 + 2 * number)
        found = [each.work for each in await kits.opened(client.engine, at)]
        assert [(each.alone, each.blamed, each.died) for each in found] == [(False, [], number)] * 2
        await process.kill()
        await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
        process = await kit.process(app.program, settings=SETTINGS)
        await paused(client, at, works.pause_after(number))
        await process.close()
        assert len(app.began) == 2 + 2 * number
        await kit.jump(AWAY_SECONDS)
    await client.close()


@pytest.mark.probe("effects.acquitted-by-heartbeat")
async def test_one_whose_process_gives_a_sign_is_not_parked(memory_kit: Kit) -> None:
    """As many are counted as it takes, and they live: they were cut off, and are back."""
    kit, app = memory_kit, App()
    client, _, at = await begin(kit, app, "r")
    living = await kit.process(wl.Program("other"), settings=SETTINGS)
    [opened] = await kits.opened(client.engine, at)
    batch, key = kv.Batch(), work_keys.open_key(at, opened.intent)
    batch.expect(key, opened.raw)
    batch.put(key, work_keys.WORK.pack(msgspec.structs.replace(opened.work, blamed=[living.host.worker] * DEATHS)))
    [outcome] = await client.engine.commit(batch)
    assert isinstance(outcome, kv.Ok)
    app.deadly = False
    process = await kit.process(app.program, settings=SETTINGS)
    run = await process.universe.world("w").start(app.takes("r"), id="r")
    assert await run.result(20) == "well"
    await process.close()
    await living.close()


@pytest.mark.probe("effects.acquitted-itself")
async def test_a_process_that_was_cut_off_takes_itself_off(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(works, "DEATH_PAUSE_US", works.DEATH_PAUSE_MAX_US)
    kit, app = memory_kit, App()
    client, _, at = await begin(kit, app, "r")
    first = await kit.process(app.program, settings=SETTINGS)
    await app.has_begun(2)
    first._cut.off = True
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    second = await kit.process(app.program, settings=SETTINGS)
    await counts(client, at, 1)
    assert (await only(client, at)).blamed == [first.host.worker]
    first._cut.off = False
    await counts(client, at, 0)
    await first.close()
    await second.close()


async def test_attempts_that_are_given_back_do_not_count(memory_kit: Kit) -> None:
    app = App()
    client = await memory_kit.process()
    world = await client.universe.ensure("w", app.program)
    starting = asyncio.ensure_future(kits.begin(world, app.takes("r"), id="r"))
    for number in range(DEATHS + 1):
        process = await memory_kit.process(app.program, settings=SETTINGS)
        await app.has_begun(number + 1)
        await process.close()
    await starting
    app.deadly = False
    async with memory_kit.hosting(app.program, settings=SETTINGS) as universe:
        assert await (await universe.world("w").start(app.takes("r"), id="r")).result(20) == "well"
