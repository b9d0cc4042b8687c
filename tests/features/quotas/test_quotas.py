"""Quotas: what asks for more from outside is refused, exactly or nearly; what runs already goes on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.client.connection import Connection
from worldline.features.quotas import batches as layer
from worldline.features.quotas import job as quota_job
from worldline.host.feature_list import FEATURES
from worldline.inspect import why
from worldline.keys import space
from worldline.model.settings import PressureSettings
from worldline.observe import measures, metric_list
from worldline.runtime.store_context import StoreContext
from worldline.runtime.universes.served_universes import Served, Universes
from worldline.store import kv

SETTINGS = replace(kits.SETTINGS, pressure=PressureSettings(sample_ms=0))


@dataclass(frozen=True)
class Note:
    text: str


class App:
    """Worlds that keep notes and wait for an outside that is under the test's control."""

    def __init__(self) -> None:
        self.program = app = wl.Program("p")
        self.gate = asyncio.Event()
        self.started = 0

        @app.reducer()
        @dataclass
        class Notes:
            seen: int = 0

            @wl.on
            def note(self, event: Note) -> None:
                self.seen += 1

        @app.effect(concurrency=100)
        async def outside() -> str:
            self.started += 1
            await self.gate.wait()
            return "in"

        @app.workflow
        async def work() -> str:
            await wl.sleep(0.01)
            return await outside()

        @app.workflow
        async def pass_on(to: str) -> None:
            await outside()
            await wl.send(to, Note("passed on"))

        @app.workflow
        async def keep(text: str) -> int:
            return len(text)

        self.notes = Notes
        self.work, self.pass_on, self.keep = work, pass_on, keep


def link(process: Process) -> Connection:
    return process.universe._connection


async def everything(process: Process) -> list[tuple[bytes, bytes]]:
    return (await process.engine.read(kv.Range(b"\x00", b"\xff", count_max=100_000, bytes_max=1 << 30))).page(0).items


async def count(process: Process) -> None:
    store = link(process).store
    await quota_job.count_now(store.engine, store.env, link(process).id)


# --- Worlds and forks: exact -----------------------------------------------------------------------------------------


@pytest.mark.probe("quotas.worlds-counted")
async def test_the_number_of_worlds_is_exact_however_many_are_made_at_once(kit: Kit) -> None:
    app = App()
    clients = [await kit.process(settings=SETTINGS) for _ in range(3)]
    universe = clients[0].universe
    await universe.create("first", app.program)
    assert await universe.set_quota(worlds=5)
    assert not await universe.set_quota(worlds=5)

    creating = (clients[number % 3].universe.create(f"w{number}", app.program) for number in range(12))
    made = await asyncio.gather(*creating, return_exceptions=True)
    assert sum(isinstance(each, wl.World) for each in made) == 4
    before = await everything(clients[0])
    with pytest.raises(wl.errors.QuotaExceeded, match="worldline universe quota --worlds N") as caught:
        await universe.create("more", app.program)
    assert (caught.value.quota, caught.value.used, caught.value.limit) == ("worlds", 5, 5)
    assert await everything(clients[0]) == before, "nothing was changed"
    await universe.set_quota(worlds=None)
    await universe.create("more", app.program)


async def test_a_deleted_world_makes_room_for_one(kit: Kit) -> None:
    """What is deleted is not taken off the number in the record: it is counted anew when the number is reached. Two
    that are made at the same time then are still one too many.
    """
    app = App()
    one, two = [await kit.process(settings=SETTINGS) for _ in range(2)]
    await one.universe.set_quota(worlds=2)
    for name in ("a", "b"):
        await one.universe.create(name, app.program)
    there = "b"
    for number in range(3):
        await one.universe.world(there).delete()
        names = [f"c{number}", f"d{number}"]
        outcomes = await asyncio.gather(
            one.universe.create(names[0], app.program),
            two.universe.create(names[1], app.program),
            return_exceptions=True,
        )
        refused = [each for each in outcomes if isinstance(each, BaseException)]
        assert [type(each) for each in refused] == [wl.errors.QuotaExceeded]
        assert (await one.universe.quota()).worlds == 2
        there = names[isinstance(outcomes[0], BaseException)]


@pytest.mark.probe("quotas.pins-counted")
async def test_the_number_of_forks_that_pin_is_exact(memory_kit: Kit) -> None:
    app = App()
    client = await memory_kit.process(settings=SETTINGS)
    world = await client.universe.create("w", app.program)
    await client.universe.set_quota(pins=2)
    outcomes = await asyncio.gather(*(world.fork(f"f{number}") for number in range(5)), return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, BaseException)]
    assert [(type(each), getattr(each, "quota", "")) for each in refused] == [(wl.errors.QuotaExceeded, "pins")] * 3
    assert (await client.universe.quota()).pins == 2
    await client.universe.create("no fork", app.program)
    made = next(each for each in outcomes if isinstance(each, wl.World))
    host = await memory_kit.process(app.program, settings=kits.settings(worker={"idle_release_ms": 50}))
    await host.universe.world(made.name).send(Note("a state of its own"))

    async def unpinned() -> bool:
        return (await client.universe.quota()).pins < 2

    await aio.until(unpinned)
    await world.fork("again")


async def test_quotas_are_kept_with_their_changes(kit: Kit) -> None:
    client = await kit.process(settings=SETTINGS)
    universe = client.universe
    assert (await universe.quota()).quota == wl.ops.Quota()
    await universe.set_quota(worlds=3, bytes=1000)
    await universe.set_quota(bytes=None, effects=7)
    found = await universe.quota()
    assert (found.quota, found.bytes, found.counted_us) == (wl.ops.Quota(worlds=3, effects=7), None, None)
    changes = await universe.quota_changes()
    assert [(each.change, each.quota) for each in changes] == [
        (2, wl.ops.Quota(worlds=3, effects=7)),
        (1, wl.ops.Quota(worlds=3, bytes=1000)),
    ]
    wrong: Any
    for wrong in (-1, 1.5, True, "10", 2**63):
        with pytest.raises(wl.BadInput, match="a whole number"):
            await universe.set_quota(worlds=wrong)
    assert len(await universe.quota_changes()) == 2


# --- Bytes and effects: as last counted ------------------------------------------------------------------------------


async def test_too_many_bytes_refuse_what_comes_from_outside(kit: Kit) -> None:
    app = App()
    host = await kit.process(app.program, settings=SETTINGS)
    world = await host.universe.create("w", app.program)
    run = await world.start(app.work(), id="r")
    await aio.until(lambda: _is(lambda: app.started == 1))
    await world.send(Note("fits"))
    await host.universe.set_quota(bytes=10)
    await world.send(Note("not counted yet"))
    await count(host)
    client = await kit.process(settings=SETTINGS)
    outside = client.universe.world("w")
    for refused in (
        outside.send(Note("x")),
        outside.start(app.work(), id="s"),
        client.universe.create("n", app.program),
        outside.fork("f"),
        outside.send(Note("y" * 100_000)),
    ):
        with pytest.raises(wl.errors.QuotaExceeded) as caught:
            await refused
        assert (caught.value.quota, caught.value.limit) == ("bytes", 10)
    await refuses(lambda: world.send(Note("z")))
    taken = (await world.state(app.notes)).seen
    said = await why.why(outside._handle)
    assert [each.kind for each in said.reasons if each.stuck] == ["quota"]
    app.gate.set()
    assert await run.result(30) == "in", "the timer fired, the receipt came in, the run ended"
    assert (await world.state(app.notes)).seen == taken
    await host.universe.set_quota(bytes=10_000_000)
    await passes(lambda: world.send(Note("again")))
    await client.universe.world("w").send(Note("once more"))


async def test_nothing_of_a_large_input_is_stored_when_it_is_refused(memory_kit: Kit) -> None:
    app = App()
    client = await memory_kit.process(settings=SETTINGS)
    await client.universe.create("w", app.program)
    await client.universe.set_quota(bytes=1)
    await count(client)
    client = await memory_kit.process(settings=SETTINGS)
    before = await everything(client)
    world = client.universe.world("w")
    for refused in (world.send(Note("y" * 100_000)), world.start(app.keep("y" * 100_000), id="r")):
        with pytest.raises(wl.errors.QuotaExceeded):
            await refused
    assert await everything(client) == before


async def test_messages_between_worlds_of_the_universe_pass(memory_kit: Kit) -> None:
    app = App()
    host = await memory_kit.process(app.program, settings=SETTINGS)
    world = await host.universe.create("w", app.program)
    other = await host.universe.create("other", app.program)
    run = await other.start(app.pass_on("w"), id="p")
    await aio.until(lambda: _is(lambda: app.started == 1))
    await host.universe.set_quota(bytes=1)
    await count(host)
    await refuses(lambda: world.send(Note("z")))
    before = (await world.state(app.notes)).seen
    app.gate.set()
    await run.result(30)

    async def noted() -> bool:
        return (await world.state(app.notes)).seen == before + 1

    await aio.until(noted)


async def test_too_many_open_effects_refuse_until_they_are_answered(kit: Kit) -> None:
    app = App()
    host = await kit.process(app.program, settings=SETTINGS)
    world = await host.universe.create("w", app.program)
    await host.universe.set_quota(effects=2)
    runs = [await world.start(app.work(), id=f"r{number}") for number in range(2)]
    await aio.until(lambda: _is(lambda: app.started == 2))
    error = await refuses(lambda: world.send(Note("z")))
    assert (error.quota, error.used, error.limit) == ("effects", 2, 2)
    client = await kit.process(settings=SETTINGS)
    with pytest.raises(wl.errors.QuotaExceeded):
        await client.universe.world("w").send(Note("z"))
    app.gate.set()
    for run in runs:
        assert await run.result(30) == "in"
    await passes(lambda: world.send(Note("again")))


async def _is(holds: Any) -> bool:
    return bool(holds())


async def refuses(send: Any) -> wl.errors.QuotaExceeded:
    """Until it is refused: one or two may be let in by an older look."""
    for _ in range(4):
        try:
            await send()
        except wl.errors.QuotaExceeded as error:
            return error
    pytest.fail("nothing is refused")


async def passes(send: Any) -> None:
    async def tried() -> bool:
        try:
            await send()
        except wl.errors.QuotaExceeded:
            return False
        return True

    await aio.until(tried, seconds=60)


# --- Counting --------------------------------------------------------------------------------------------------------


async def test_a_count_finds_what_there_is(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of all keys of the universe and of no other; objects by their size."""
    monkeypatch.setattr(quota_job, "PAGE_KEYS", 3)
    app = App()
    client = await kit.process(settings=SETTINGS)
    world = await client.universe.create("w", app.program)
    await client.universe.create("v", app.program)
    await world.fork("f")
    await world.send(Note("y" * 50_000))
    other = await kit.process(settings=SETTINGS, universe="other")
    await other.universe.create("w", app.program)
    store, own = link(client).store, link(client).id
    counted = await quota_job.count_now(store.engine, store.env, own)
    mine = [(key, value) for key, value in await everything(client) if key.startswith(space.universe(own))]
    size = sum(len(key) + len(value) for key, value in mine)
    published = layer.get_usage(own).key
    size -= sum(len(key) + len(value) for key, value in mine if key == published)
    objects = sum(each.size for each in await store.objects.list(own.hex()))
    assert counted.bytes == size + objects
    assert (counted.worlds, counted.pins, counted.effects) == (3, 1, 0)
    found = await client.universe.quota()
    assert (found.bytes, found.worlds, found.counted_us) == (counted.bytes, 3, counted.time_us)


async def test_the_janitor_counts_what_is_bounded_and_says_so(memory_kit: Kit) -> None:
    app = App()
    meter = measures.Meter(table=metric_list.table(FEATURES))
    client = await memory_kit.process(settings=SETTINGS)
    other = await memory_kit.process(settings=SETTINGS, universe="other")
    await client.universe.create("w", app.program)
    universes = Universes(patterns=["*"])
    universes.update(Served(link(each).id, each.universe.name) for each in (client, other))
    store = link(client).store
    context = StoreContext(
        engine=store.engine,
        env=store.env,
        bodies=None,
        universes=universes,
        settings=replace(SETTINGS.janitor, usage_ms=1),
        telemetry=Telling(meter),
    )
    assert quota_job.usage_counter(replace(context, settings=replace(SETTINGS.janitor, usage_ms=0))) is None
    counter = quota_job.usage_counter(context)
    assert counter is not None
    assert await counter.turn()
    assert (await client.universe.quota()).bytes is None, "without a quota nothing is counted"
    await client.universe.set_quota(bytes=100)
    await other.universe.set_quota(worlds=4)
    while not await counter.turn():
        pass
    assert ((await client.universe.quota()).bytes or 0) > 100
    assert (await other.universe.quota()).bytes is None
    name = client.universe.name
    assert meter.value("worldline_quota_used", name, "bytes") > 100
    assert meter.value("worldline_quota_limit", name, "bytes") == 100
    assert meter.value("worldline_quota_limit", "other", "worlds") == 4
    await client.universe.set_quota(bytes=None)
    while not await counter.turn():
        pass
    assert meter.value("worldline_quota_limit", name, "bytes") == float("inf")
    assert (await client.universe.quota()).exceeded == []


class Telling:
    """A listener that counts."""

    on = counts = True

    def __init__(self, meter: measures.Meter) -> None:
        self.tell = meter.tell


# --- The universes of a store ----------------------------------------------------------------------------------------


async def test_the_universes_of_a_store(tmp_path: Path) -> None:
    app = App()
    url = str(tmp_path / "store")
    with pytest.raises(wl.errors.StoreError):
        await wl.ops.universes(url)
    async with wl.open(url, universe="b", create=True) as universe:
        await universe.create("w", app.program)
        await universe.set_quota(worlds=1)
        with pytest.raises(wl.errors.QuotaExceeded):
            await universe.create("v", app.program)
    assert await wl.ops.create_universe(url, "a")
    assert not await wl.ops.create_universe(url, "a")
    with pytest.raises(wl.BadInput):
        await wl.ops.create_universe(url, "")
    first, second = await wl.ops.universes(url)
    assert (first.name, first.use.worlds, first.use.quota) == ("a", 0, wl.ops.Quota())
    assert (second.name, second.use.worlds, second.use.quota.worlds) == ("b", 1, 1)
    assert second.use.exceeded == ["worlds"]
    assert second.created_us > 0
    with pytest.raises(wl.NotFound, match="no universe 'c' in this store; `worldline universe list`"):
        async with wl.open(url, universe="c"):
            pass
