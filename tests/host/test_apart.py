"""Each role in a process of its own: the same things happen, through the queues and inboxes of the store."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.kits import apart
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.base import errors
from worldline.host.process import ProcessHost
from worldline.keys import inbox as inbox_keys
from worldline.model.roles import ALL, EMBEDDED, Role
from worldline.model.settings import JanitorSettings
from worldline.model.work import WorkKind, WorkState
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv

WORLDS, ADAPTER, TIMERS = Role.WORLDS, Role.ADAPTER, Role.TIMERS


def program() -> wl.Program:
    app = wl.Program("apart")

    @app.effect
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def work(number: int) -> int:
        doubled = await double(number)
        await wl.sleep(0.05)
        return await double(doubled)

    @app.workflow
    async def wait() -> str:
        await stuck()
        return "done"

    @app.effect
    async def stuck() -> None:
        await asyncio.sleep(3_600)

    return app


@pytest.mark.parametrize(
    "hosts",
    [
        [[WORLDS], [ADAPTER], [TIMERS]],
        [[WORLDS, ADAPTER], [TIMERS]],
        [[WORLDS, TIMERS], [ADAPTER]],
        [[WORLDS], [ADAPTER, TIMERS]],
        [[WORLDS], [WORLDS], [ADAPTER], [ADAPTER], [TIMERS], [TIMERS]],
        [list(ALL)],
        [list(EMBEDDED), [Role.ORCHESTRATOR], [Role.JANITOR]],
    ],
    ids=lambda hosts: "+".join("".join(role.value[0] for role in roles) for roles in hosts),
)
async def test_any_mix_will_do(kit: Kit, hosts: Sequence[Sequence[Role]]) -> None:
    app = program()
    async with AsyncExitStack() as stack:
        for roles in hosts:
            await stack.enter_async_context(apart.host(kit, app, roles=roles))
        client = await stack.enter_async_context(kit.hosting())
        worlds = [await client.create(f"w{number}", app) for number in range(3)]
        calls = [kits.run(world, app.workflows["work"](number), id="r") for number, world in enumerate(worlds)]
        assert await asyncio.gather(*calls) == [0, 4, 8]
        for world in worlds:
            await kits.prove(world, app)


async def test_without_an_adapter_effects_wait_in_their_queue(kit: Kit) -> None:
    app = program()
    async with apart.host(kit, app, roles=[WORLDS, TIMERS]), kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        await kits.begin(world, app.workflows["work"](3), id="r")

        async def asked() -> bool:
            return len(await kits.opened(client._connection.store.engine, at)) == 1

        await aio.until(asked)
        [opened] = await kits.opened(client._connection.store.engine, at)
        assert (opened.work.kind, opened.work.state, opened.work.attempt) == (WorkKind.EFFECT, WorkState.WAITING, 0)
        async with apart.host(kit, app, roles=[ADAPTER]) as adapter:
            assert await (await world.attach("r")).result(30) == 12
            assert adapter.effects.performed == 2


async def test_an_adapter_that_stops_gives_its_claims_back(kit: Kit) -> None:
    app = program()
    settings = kits.settings(adapter={"claim_ttl_ms": 60_000, "renew_ms": 20_000})
    async with apart.host(kit, app, roles=[WORLDS]), kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        async with apart.host(kit, app, roles=[ADAPTER], settings=settings) as adapter:
            await kits.begin(world, app.workflows["wait"](), id="r")

            async def claimed() -> bool:
                return [each.work.worker for each in await kits.opened(client._connection.store.engine, at)] == [
                    adapter.worker
                ]

            await aio.until(claimed)
        [opened] = await kits.opened(client._connection.store.engine, at)
        assert opened.work.state is WorkState.WAITING
        assert opened.work.due_us <= (await client._connection.store.engine.read()).time_us


async def test_what_a_host_has_not_is_not_to_be_had(memory_kit: Kit) -> None:
    app = program()
    async with apart.host(memory_kit, app, roles=[TIMERS]) as timers:
        assert timers.timers.fired == 0
        for missing in ("worlds", "effects"):
            with pytest.raises(AssertionError, match="in this process"):
                getattr(timers, missing)
    async with apart.host(memory_kit, app, roles=[ADAPTER]) as adapter:
        with pytest.raises(AssertionError, match="in this process"):
            _ = adapter.timers


async def test_a_name_is_said_with_every_life_sign(memory_kit: Kit) -> None:
    app = program()
    async with apart.host(memory_kit, app, roles=[WORLDS]) as nameless:
        assert nameless.name == nameless.worker.hex()[-8:]
    settings = kits.settings(worker={"labels": {"name": "a"}})
    async with apart.host(memory_kit, app, roles=[WORLDS], settings=settings) as named:
        assert named.name == "a"


async def test_two_programs_of_one_name_are_refused(memory_kit: Kit) -> None:
    universe = (await memory_kit.process()).universe
    with pytest.raises(errors.BadInput, match="two programs are named 'apart'"):
        ProcessHost(
            universe._connection.store,
            Universes.only(universe._connection.id),
            [program(), program()],
            blobs=lambda _: universe._connection.blobs,
            settings=kits.SETTINGS,
        )


async def test_a_process_that_hosts_clears_up_after_itself(tmp_path: Path) -> None:
    """Embedded, there is nobody else who would."""
    app = program()
    quick = msgspec.structs.replace(kits.SETTINGS, janitor=JanitorSettings(turn_ms=1, round_ms=1), dedupe_window_ms=1)
    async with wl.open(str(tmp_path / "store"), host=app, settings=quick) as universe:
        world = await universe.ensure("w", app)
        at = await world._handle.address()

        async def forgotten() -> bool:
            made, chosen = inbox_keys.seen_made(at), inbox_keys.seen_chosen(at)
            read = await universe._connection.store.engine.read(kv.Range(*made), kv.Range(*chosen))
            return not read.page(0).items and not read.page(1).items

        await world._handle.send("Nothing", b"\xa0", id="chosen")
        await aio.until(forgotten)


@pytest.mark.parametrize(("before", "after"), [(700, 20_000), (0, 0), (50_000, 50_000)])
async def test_a_process_that_runs_worlds_collects_less_often(memory_kit: Kit, before: int, after: int) -> None:
    kept = gc.get_threshold()
    try:
        gc.set_threshold(before, 10, 10)
        async with apart.host(memory_kit, roles=[Role.TIMERS]):
            assert gc.get_threshold()[0] == before, "others do not need it"
        async with apart.host(memory_kit, roles=[Role.WORLDS]):
            assert gc.get_threshold() == (after, 10, 10)
    finally:
        gc.set_threshold(*kept)
