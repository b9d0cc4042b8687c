"""Worlds that want to be run are found: by hints, after the death of their holder, and if a hint was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add, program
from worldline.api.universe_api import Universe
from worldline.base import errors
from worldline.client import door
from worldline.kernel import user_values
from worldline.keys import leases as lease_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import inbox as inboxes
from worldline.layers import leases, ready
from worldline.model import ids, inbox, payload
from worldline.model.world_records import Status
from worldline.runtime import hint_scan
from worldline.sim.runtime import keyspaces
from worldline.store import kv, transact


async def total(world: wl.World, app: wl.Program) -> int:
    found: int = (await world.state(app.reducers["Sum"].cls)).total
    return found


async def until_total(world: wl.World, app: wl.Program, number: int) -> None:
    async def reached() -> bool:
        return await total(world, app) == number

    await aio.until(reached, seconds=60)


async def enqueue_silently(universe: Universe, at: ids.Address, number: int) -> None:
    """An item without a hint: as if the hint had been lost."""
    engine, env = universe._connection.store.engine, universe._connection.store.env
    batch = kv.Batch()
    item = inbox.InboxEvent("Add", payload.inline(user_values.dump(Add(number))))
    now_us = (await engine.read()).time_us
    client_id = env.random_bytes(8).hex()
    inboxes.enqueue(batch, at, item, client_id=client_id, time_us=now_us, window_us=10**12)
    assert isinstance((await transact.commit(engine, env, batch))[0], kv.Ok)


async def test_a_client_alone_wakes_a_world_up(kit: Kit) -> None:
    app = program()
    async with kit.hosting(app), kit.hosting() as client:
        world = await client.create("w", app)
        sent = await world.send(Add(3))
        assert await sent.applied(20) == 1
        assert await total(world, app) == 3


async def test_a_world_that_was_held_elsewhere_is_taken_when_it_is_free(kit: Kit) -> None:
    """Who has seen that somebody else holds it does not look at every hint; but then it looks, without being asked."""
    app = program()
    settings = kits.settings(worker={"scan_ms": 10**7})  # nobody looks through everything
    async with kit.hosting() as client:
        async with kit.hosting(app, settings=settings):
            world = await client.create("w", app)
            await world.send(Add(1))
            await until_total(world, app, 1)
            standby = await kit.process(app, settings=settings)
            assert standby.universe._connection.host is not None
            elsewhere = standby.universe._connection.host.worlds._searcher._placed

            async def seen() -> bool:
                nonlocal elsewhere
                assert standby.universe._connection.host is not None
                elsewhere = elsewhere | standby.universe._connection.host.worlds._searcher._placed
                await world.send(Add(0))
                return await world._handle.address() in elsewhere

            await aio.until(seen)
        await world.send(Add(1))
        await until_total(world, app, 2)
        assert standby.universe._connection.host.worlds.holds(await world._handle.address())
        await standby.close()


async def test_hints_stay_until_everything_is_read(kit: Kit) -> None:
    """Then they go, also if many wrote at once."""
    app = program()
    async with kit.hosting(app) as universe, kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        await asyncio.gather(*(world.send(Add(1)) for _ in range(50)))
        await until_total(world, app, 50)

        async def cleared() -> bool:
            return not await kits.hints(universe._connection.store.engine, at)

        await aio.until(cleared)
        await world.send(Add(1))
        await until_total(world, app, 51)
        await aio.until(cleared)


async def test_a_worker_that_dies_in_the_middle_leaves_a_hint(memory_kit: Kit) -> None:
    """At every instant: something is unread, so there is a hint."""
    app = program()
    async with memory_kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        for _ in range(60):
            await world.send(Add(1))
        async with memory_kit.hosting(app, settings=kits.settings(worker={"max_inbox_batch": 1})):
            left = 60
            while left:
                hints = ready.read_range(client._connection.id, priority=ready.NORMAL, count_max=1)
                read = await client._connection.store.engine.read(inboxes.read_range(at, count_max=100), hints)
                left = len(read.page(0).items)
                assert not left or read.page(1).items


async def test_an_item_that_comes_right_before_a_hint_is_cleared_is_found(memory_kit: Kit) -> None:
    """The inbox was empty when it was read. The item that comes since then has a hint of its own, which stays."""
    app = program()
    process, late = await late_process(memory_kit, app)
    async with memory_kit.hosting() as client:
        world, at = await quiet_world(client, app)
        came: list[bool] = []

        async def another() -> None:
            came.append(True)
            await world.send(Add(10))

        late.before_clear = another
        await kits.leave_hint(client, at)  # for nothing: nothing is unread when it is seen
        await until_total(world, app, 11)
        assert came, "right before the hint was cleared"
        await aio.until(lambda: is_cleared(client, at))
    await process.close()


async def test_an_item_that_comes_right_before_the_step_that_takes_the_hint_is_found(memory_kit: Kit) -> None:
    """The step has read the inbox before. It deletes the hints it had seen before that read, and no other."""
    app = program()
    process, late = await late_process(memory_kit, app)
    async with memory_kit.hosting() as client:
        world, at = await quiet_world(client, app)
        came: list[bool] = []

        async def another() -> None:
            came.append(True)
            await world.send(Add(10))

        late.before_step = another
        await world.send(Add(100))
        await until_total(world, app, 111)
        assert came, "it was the step that took the hint"
        await aio.until(lambda: is_cleared(client, at))
    await process.close()


@pytest.mark.parametrize("busy", [False, True], ids=["an idle worker", "a step under way"])
async def test_a_hint_seen_after_the_inbox_was_read_stays(memory_kit: Kit, busy: bool) -> None:
    """Between a cycle's read and its end the search sees the hint of an item that the read has not seen."""
    app = program()
    process, late = await late_process(memory_kit, app)
    worker = process.host.worlds
    async with memory_kit.hosting() as client:
        world, at = await quiet_world(client, app)
        seen: list[int] = []

        async def another() -> None:
            await world.send(Add(10))

            async def noticed() -> bool:
                held = worker.peek(at)
                assert held is not None
                seen.append(len(held.hints))
                return len(held.hints) > busy

            await aio.until(noticed)

        if busy:
            late.before_step = another
            await world.send(Add(100))
        else:
            late.before_clear = another
            await kits.leave_hint(client, at)
        await until_total(world, app, 111 if busy else 11)
        assert seen[-1] == 1 + busy
        await aio.until(lambda: is_cleared(client, at))
    await process.close()


async def test_an_item_that_comes_while_the_inbox_is_read_is_found(memory_kit: Kit) -> None:
    """Its hint is seen before the answer arrives, which does not have the item yet."""
    app = program()
    process, late = await late_process(memory_kit, app)
    worker = process.host.worlds
    async with memory_kit.hosting() as client:
        world, at = await quiet_world(client, app)
        seen: list[bool] = []

        async def another() -> None:
            await world.send(Add(10))

            async def noticed() -> bool:
                held = worker.peek(at)
                assert held is not None
                return len(held.hints) > 1

            await aio.until(noticed)
            seen.append(True)

        late.after_read = inboxes.read_range(at, count_max=1).begin, another
        await kits.leave_hint(client, at)
        await until_total(world, app, 11)
        assert seen
    await process.close()


async def test_a_step_deletes_no_hint_that_was_seen_while_the_inbox_was_read(memory_kit: Kit) -> None:
    """The step does not take the item that this hint was left for. If the worker died now, another must find it."""
    app = program()
    process, late = await late_process(memory_kit, app)
    async with memory_kit.hosting() as client:
        world, at = await quiet_world(client, app)
        newest: list[bytes] = []

        async def another() -> None:
            await world.send(Add(10))

            async def noticed() -> bool:
                held = process.host.worlds.peek(at)
                assert held is not None
                return len(held.hints) > 1

            await aio.until(noticed)
            newest.append((await kits.hints(client._connection.store.engine, at))[-1].key)
            late.steps.clear()

        late.after_read = inboxes.read_range(at, count_max=1).begin, another
        await world.send(Add(100))
        await until_total(world, app, 111)
        assert newest[0] not in late.steps[0], "of the step that took the first item alone"
        assert any(newest[0] in step for step in late.steps[1:])
    await process.close()


async def test_many_hints_of_a_world_that_cannot_be_run_become_one(memory_kit: Kit) -> None:
    """Each input leaves one. Nothing takes the inputs, so workers keep the newest hint alone."""
    app = program()
    async with memory_kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        await world.change(status=Status.PAUSED)
        for _ in range(3 * hint_scan.COMPACT_ABOVE):
            await world.send(Add(1))
        [*_, newest] = await kits.hints(client._connection.store.engine, at)
        async with memory_kit.hosting(app):

            async def compacted() -> bool:
                return await kits.hints(client._connection.store.engine, at) == [newest]

            await aio.until(compacted)
            await world.change(status=Status.ACTIVE)
            await until_total(world, app, 3 * hint_scan.COMPACT_ABOVE)
            await aio.until(lambda: is_cleared(client, at))


async def test_worlds_are_looked_at_again_after_a_search_that_failed(memory_kit: Kit) -> None:
    """Their hints are not new any more by then."""
    app = program()
    failing: list[Failing] = []

    def wrap(engine: Any) -> Failing:
        failing.append(Failing(engine))
        return failing[-1]

    async with memory_kit.hosting() as client:
        world = await client.create("w", app)
        process = await memory_kit.process(app, settings=kits.settings(worker={"scan_ms": 10**7}), wrap=wrap)

        async def searched() -> bool:
            return bool(failing[0].searches)

        await aio.until(searched)
        failing[0].what = leases.reads(await world._handle.address())[0]
        await world.send(Add(1))
        await until_total(world, app, 1)
        assert failing[0].failed, "the first look at the world's place has failed"
        await process.close()


class Failing(kits.Around):
    """An engine that cannot be reached when a certain key is read, once."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.what: kv.Request | None = None
        self.searches = 0
        self.failed = False

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        self.searches += any(isinstance(each, kv.Range) and reading_hints(each) for each in requests)
        if self.what is not None and self.what in requests:
            self.what, self.failed = None, True
            raise errors.StoreUnavailable("not now")
        return await self._engine.read(*requests)


def reading_hints(asked: kv.Range) -> bool:
    try:
        return keyspaces.place(asked.begin[:-1]).what == "hint"
    except errors.Corrupt:
        return False


async def quiet_world(client: wl.Universe, app: wl.Program) -> tuple[wl.World, ids.Address]:
    """A world that has taken one event, and has no hint."""
    world = await client.create("w", app)
    at = await world._handle.address()
    await world.send(Add(1))
    await until_total(world, app, 1)
    await aio.until(lambda: is_cleared(client, at))
    return world, at


async def late_process(kit: Kit, app: wl.Program) -> tuple[kits.Process, Late]:
    """A host that does not look again by itself."""
    made: list[Late] = []

    def wrap(engine: Any) -> Late:
        made.append(Late(engine))
        return made[-1]

    return await kit.process(app, settings=kits.settings(worker={"scan_ms": 10**7}), wrap=wrap), made[0]


async def is_cleared(universe: Universe, at: ids.Address) -> bool:
    return not await kits.hints(universe._connection.store.engine, at)


async def test_a_hint_that_another_one_of_the_world_needs_stays(memory_kit: Kit) -> None:
    """An inbox that was not read to its end, and a step that did not take all, leave it for whoever comes next."""
    app = program()
    settings = kits.settings(worker={"scan_ms": 10**7, "max_inbox_batch": 3, "max_tick_steps_per_cycle": 2})
    async with memory_kit.hosting() as client:
        world = await client.create("w", app)
        at = await world._handle.address()
        for _ in range(20):
            await world.send(Add(1))
        async with memory_kit.hosting(app, settings=settings):
            await until_total(world, app, 20)
            await aio.until(lambda: is_cleared(client, at))


class Late(kits.Around):
    """An engine in which something happens right before a ready hint is deleted, by itself or by a step, or before the
    answer to a read arrives.
    """

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.before_clear: Callable[[], Awaitable[None]] | None = None
        self.before_step: Callable[[], Awaitable[None]] | None = None
        self.steps: list[list[bytes]] = []  # the hints that each step deleted
        self.after_read: tuple[bytes, Callable[[], Awaitable[None]]] | None = None

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        answer = await self._engine.read(*requests)
        if self.after_read is not None:
            prefix, act = self.after_read
            if any(isinstance(each, kv.Range) and each.begin.startswith(prefix) for each in requests):
                self.after_read = None
                await act()
        return answer

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        cleared = [key for batch in batches for key in batch.deletes if key in batch.expects and not batch.puts]
        if cleared and self.before_clear is not None:
            before, self.before_clear = self.before_clear, None
            await before()
        gone = [key for batch in batches if batch.puts for key in batch.deletes]
        stepped = [key for key in gone if keyspaces.place(key).what == "hint"]
        if stepped:
            self.steps.append(stepped)
        if stepped and self.before_step is not None:
            before, self.before_step = self.before_step, None
            await before()
        return await self._engine.commit(*batches)


async def test_hints_of_others_are_left_alone(kit: Kit) -> None:
    """A host of another program, more hints than fit a page: it takes what is its own behind all of them."""
    mine, other = program("mine"), program("other")
    async with kit.hosting() as client:
        count = 1_100 if kit.name == "memory" else 30
        for number in range(count):
            world = await client.create(f"other-{number}", other)
            at = await world._handle.address()
            await kits.leave_hint(client, at, priority=ready.URGENT)
        await client.create("paused", mine)
        await client.world("paused").send(Add(1))
        await client.world("paused").change(status=Status.PAUSED)
        world = await client.create("mine", mine)
        await world.send(Add(1))
        async with kit.hosting(mine) as universe:
            await until_total(world, mine, 1)
            assert universe._connection.host is not None
            assert len(universe._connection.host.worlds.held) == 1
        scan = kits.scan(client)
        await scan.read()
        assert len(scan.worlds) == count + 1


async def test_an_item_whose_hint_was_lost_is_found(kit: Kit) -> None:
    """In a world held here, and in one held by nobody."""
    app = program()
    async with kit.hosting(app) as universe:
        held = await universe.ensure("held", app)
        await held.send(Add(1))
        free = await universe.ensure("free", app)
        await enqueue_silently(universe, await held._handle.address(), 10)
        await enqueue_silently(universe, await free._handle.address(), 10)
        await until_total(held, app, 11)
        await until_total(free, app, 10)


async def test_worlds_of_a_dead_worker_are_freed(kit: Kit) -> None:
    """Also those that have nothing to do; and what is left of the worker goes."""
    app = program()
    first = await kit.process(app)
    worlds = [await first.universe.ensure(f"w{number}", app) for number in range(5)]
    for world in worlds:
        await world.send(Add(1))
    waiting = await worlds[0]._handle.address()
    await first.kill()
    engine = await kit.engine()
    async with kit.hosting() as client:
        await enqueue_silently(client, waiting, 10)
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    async with kit.hosting(app) as universe:
        await until_total(universe.world("w0"), app, 11)
        workers = lease_keys.workers()

        async def only_us() -> bool:
            found = [lease_keys.worker_of(key) for key, _ in (await engine.read(kv.Range(*workers))).page(0).items]
            assert universe._connection.host is not None
            return [each for each in found if each is not None] == [universe._connection.host.worker]

        await aio.until(only_us)
        for world in worlds[1:]:
            at = await world._handle.address()
            read = await engine.read(*leases.reads(at))
            state = leases.decode(at, read.value(0), read.value(1), read.value(2))
            assert (state.holder, state.epoch.number) == (None, 1)


async def test_a_living_workers_worlds_are_left_alone(kit: Kit) -> None:
    app = program()
    first = await kit.process(app)
    world = await first.universe.ensure("w", app)
    await world.send(Add(1))
    at = await world._handle.address()
    second = await kit.process(app)
    await enqueue_silently(second.universe, at, 10)
    await until_total(world, app, 11)
    await asyncio.sleep(0.5)
    assert first.host.worlds.holds(at)
    assert not second.host.worlds.holds(at)
    read = await first.engine.read(*leases.reads(at))
    assert leases.decode(at, read.value(0), read.value(1), read.value(2)).epoch.number == 1
    await first.close()
    await second.close()


async def test_a_damaged_world_is_in_nobodys_way(memory_kit: Kit) -> None:
    """Its baseline cannot be read. It is refused, with its reason; others are found and run as ever."""
    app = program()
    async with memory_kit.hosting() as client:
        bad, good = await client.create("bad", app), await client.create("good", app)
        at = await bad._handle.address()
        raw = (await client._connection.store.engine.read(kv.Get(snapshot_keys.baseline_key(at)))).value(0)
        assert raw is not None
        batch = kv.Batch()
        batch.expect(snapshot_keys.baseline_key(at), raw)
        batch.put(snapshot_keys.baseline_key(at), raw[:-1] + bytes([raw[-1] ^ 1]))
        assert isinstance((await client._connection.store.engine.commit(batch))[0], kv.Ok)
        await door.enqueue(client._connection, at, inbox.InboxEvent("Add", payload.inline(user_values.dump(Add(1)))))
        await good.send(Add(1))
        async with memory_kit.hosting(app) as universe:
            await until_total(universe.world("good"), app, 1)
            assert universe._connection.host is not None
            host = universe._connection.host

            async def refused() -> bool:
                return host.worlds.refusal(at) is not None

            await aio.until(refused)
            assert await kits.unread(client._connection.store.engine, at) == 1
            assert host.failed is None
