"""Hints have priorities: worlds that somebody waits for are taken first, those that need only a look come last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests import aio
from tests.cli import cli_kit
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add, program
from tests.worker.test_search import enqueue_silently
from worldline.client import send_door
from worldline.inspect import queue_check
from worldline.kernel import user_values
from worldline.keys import ready as ready_keys
from worldline.layers import leases, ready
from worldline.model import ids, inbox, payload
from worldline.model.settings import WorkerSettings
from worldline.runtime import death_witness
from worldline.runtime import lease_calls as world_lease
from worldline.store import kv


def event(correlation: str = "") -> inbox.InboxEvent:
    return inbox.InboxEvent("Add", payload.inline(user_values.dump(Add(1))), correlation=correlation)


@pytest.mark.parametrize(
    ("item", "priority"),
    [
        (event(), ready.NORMAL),
        (event("asked"), ready.URGENT),
        (inbox.Control("run", payload.EMPTY), ready.URGENT),
        (inbox.TimerFired(bytes(16), 0, "run"), ready.NORMAL),
    ],
)
def test_how_urgent_an_input_is(item: inbox.Item, priority: int) -> None:
    assert ready.priority_of(item) == priority


async def test_the_most_urgent_worlds_are_taken_first(memory_kit: Kit) -> None:
    app = program()
    client = (await memory_kit.process()).universe
    normal = [await (await client.create(f"w{number}", app))._handle.address() for number in range(40)]
    later = await (await client.create("later", app))._handle.address()
    urgent = await (await client.create("urgent", app))._handle.address()
    await kits.leave_hint(client, later, priority=ready.LATER)
    for at in normal:
        await send_door.enqueue(client._connection, at, event())
    await send_door.enqueue(client._connection, urgent, event())
    await send_door.enqueue(client._connection, urgent, event("asked"))
    process = await memory_kit.process(app)
    order = _watch_takes(process.host.worlds)

    async def clear() -> bool:
        return (
            not (await client._connection.store.engine.read(kv.Range(*ready_keys.every_hint(client._connection.id))))
            .page(0)
            .items
        )

    await aio.until(clear)
    assert order == [urgent, *normal, later], "each once, in the order of their hints"


def _watch_takes(worker: Any) -> list[ids.Address]:
    order: list[ids.Address] = []
    try_hold = worker._searcher._try_hold

    async def watched(at: ids.Address) -> Any:
        order.append(at)
        return await try_hold(at)

    worker._searcher._try_hold = watched
    return order


@pytest.mark.parametrize("correlation", ["", "asked"])
async def test_a_hint_of_any_priority_is_one(memory_kit: Kit, correlation: str) -> None:
    """`doctor` misses none as long as there is any; with none at all, it does."""
    app = program()
    client = (await memory_kit.process()).universe
    client._connection.programs[app.name] = app
    at = await (await client.create("w", app))._handle.address()
    await send_door.enqueue(client._connection, at, event(correlation))
    assert await queue_check.faults(client._connection, at, app.name, kits.scan(client)) == []
    for begin, end in cli_kit.derived(client._connection.id):
        for key, raw in (await client._connection.store.engine.read(kv.Range(begin, end))).page(0).items:
            await cli_kit.put(client, key, raw, None)
    wrong = await queue_check.faults(client._connection, at, app.name, kits.scan(client))
    assert [each.fault for each in wrong or []] == [queue_check.QueueFault.MISSING_READY]
    assert await kits.unread(client._connection.store.engine, at) == 1


class Watched:
    """An engine after each of whose commits somebody may look."""

    def __init__(self, engine: kv.Engine, look: Callable[[], Awaitable[None]]) -> None:
        self._engine = engine
        self._look = look

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        outcomes = await self._engine.commit(*batches)
        await self._look()
        return outcomes

    async def wait(self, prefix: bytes, seen: int, timeout_ms: int) -> bool:
        return await self._engine.wait(prefix, seen, timeout_ms)

    async def durability(self) -> kv.Durability:
        return await self._engine.durability()

    async def close(self) -> None:
        await self._engine.close()


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("hinted", [False, True])
async def test_a_world_that_is_given_up_is_never_overlooked(memory_kit: Kit, unread: bool, hinted: bool) -> None:
    """At every instant: free, and something unread, means a hint. In the end there is a new one, for the next."""
    client = (await memory_kit.process()).universe
    engine, env = client._connection.store.engine, client._connection.store.env
    at = await (await client.create("w", program()))._handle.address()
    me = await world_lease.beat(engine, env, ids.WorkerId(bytes(16)), ids.Incarnation(b"i" * 16), WorkerSettings())
    lease = await world_lease.acquire(engine, env, at, me, death_witness.DeathWitness(env))
    if unread:
        await enqueue_silently(client, at, 1)
    if hinted:
        await kits.leave_hint(client, at)
    before = await kits.hints(engine, at)
    seen: list[bool] = []

    async def look() -> None:
        read = await engine.read(*leases.reads(at))
        seen.append(not unread or read.value(1) is not None or bool(await kits.hints(engine, at)))

    await world_lease.release(Watched(engine, look), env, lease, hint=True)
    assert seen == [True], "one commit"
    [new] = [hint for hint in await kits.hints(engine, at) if hint not in before]
    assert new.priority == (ready.NORMAL if unread else ready.LATER)
