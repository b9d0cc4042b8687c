"""Every call of the service may be made twice: the second time it says what the first has done, and does nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

import worldline as wl
from tests import aio
from tests.roles import apart, sums
from tests.roles import kit as kits
from tests.roles.kit import Kit, Process
from tests.roles.sums import Add
from worldline.base import env as envs
from worldline.base import errors
from worldline.host.process import Role
from worldline.kernel import values
from worldline.layers import leases
from worldline.layers import work as works
from worldline.model import ids, inbox, payload
from worldline.model.inbox import MessageMode, ReceiptStatus
from worldline.model.settings import WorkerSettings
from worldline.model.work import WorkKind, WorkState
from worldline.roles.cluster import expiry, operations
from worldline.roles.world import lease as world_lease
from worldline.store import kv

SETTINGS = WorkerSettings(lease_ttl_ms=60_000, heartbeat_ms=15_000, max_worlds_warm=7, labels={"zone": "eu"})
WINDOW_US = 3_600_000_000
SECOND_US = 1_000_000


def program() -> wl.Program:
    app = sums.program()

    @app.effect
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def work() -> int:
        doubled = await double(4)
        await wl.sleep(0.01)
        return doubled

    return app


class Desk:
    """A store with a world that nobody runs, and a worker that is not one of ours."""

    def __init__(self, process: Process, env: envs.Env, world: wl.World, at: ids.Address) -> None:
        self.engine: kv.Engine = process.engine
        self.env = env
        self.world = world
        self.at = at
        self.worker = ids.WorkerId(envs.new_id(env))
        self.incarnation = ids.Incarnation(envs.new_id(env))

    async def beat(self) -> leases.Life:
        return await operations.heartbeat_worker(self.engine, self.env, self.worker, self.incarnation, SETTINGS)

    async def other(self) -> leases.Life:
        """Another worker that lives."""
        worker, incarnation = ids.WorkerId(envs.new_id(self.env)), ids.Incarnation(envs.new_id(self.env))
        return await operations.heartbeat_worker(self.engine, self.env, worker, incarnation, SETTINGS)

    async def state(self) -> leases.State:
        read = await self.engine.read(*leases.reads(self.at))
        return leases.decode(self.at, read.value(0), read.value(1), read.value(2))

    async def unread(self) -> int:
        return await kits.unread(self.engine, self.at)


async def desk(kit: Kit) -> Desk:
    process = await kit.process()
    world = await process.universe.create("w", program())
    return Desk(process, kit.env, world, await world.address())


# --- Workers -----------------------------------------------------------------------------------------------------


async def test_a_worker_comes_is_drained_and_goes(kit: Kit) -> None:
    at = await desk(kit)
    for beat in (1, 2):
        life = await at.beat()
        assert (life.sign.beat, life.sign.capacity, life.sign.labels) == (beat, 7, {"zone": "eu"})
    life = await at.beat()
    for draining in (True, True, False, False):
        life = await operations.drain_worker(at.engine, at.env, at.worker, draining=draining)
        assert life.sign.draining is draining
        assert (await at.beat()).sign.draining is draining, "a heartbeat does not end it"
    assert [each.worker for each in await operations.list_workers(at.engine)] == [at.worker]
    for _ in range(2):
        await operations.retire_worker(at.engine, at.env, life)
        assert await operations.list_workers(at.engine) == []
    with pytest.raises(errors.NotFound):
        await operations.drain_worker(at.engine, at.env, at.worker, draining=True)


async def test_a_drained_worker_gets_no_lease(kit: Kit) -> None:
    at = await desk(kit)
    me = await at.beat()
    await operations.drain_worker(at.engine, at.env, at.worker, draining=True)
    with pytest.raises(errors.Exists, match="being emptied"):
        await operations.acquire_lease(at.engine, at.env, at.at, me)


# --- Leases ------------------------------------------------------------------------------------------------------


async def test_a_lease_is_taken_kept_and_released(kit: Kit) -> None:
    at = await desk(kit)
    me, other = await at.beat(), await at.other()
    lease = await operations.acquire_lease(at.engine, at.env, at.at, me)
    assert lease.epoch == 1
    assert await operations.acquire_lease(at.engine, at.env, at.at, me) == lease
    with pytest.raises(errors.Exists, match="held by worker"):
        await operations.acquire_lease(at.engine, at.env, at.at, other)
    for beat in (2, 3):
        life = await operations.renew_lease(at.engine, at.env, lease, at.incarnation, SETTINGS)
        assert life.sign.beat == beat
    assert await operations.list_worker_worlds(at.engine, at.worker) == [(at.at, 1)]
    assert await operations.release_lease(at.engine, at.env, lease) is True
    assert await operations.release_lease(at.engine, at.env, lease) is False
    assert await operations.list_worker_worlds(at.engine, at.worker) == []
    with pytest.raises(errors.Fenced):
        await operations.renew_lease(at.engine, at.env, lease, at.incarnation, SETTINGS)
    second = await operations.acquire_lease(at.engine, at.env, at.at, other)
    assert second.epoch == 2
    assert await operations.release_lease(at.engine, at.env, lease) is False, "what has moved on is left alone"
    assert (await at.state()).holder is not None


async def test_a_lease_is_revoked_once(kit: Kit) -> None:
    at = await desk(kit)
    me = await at.beat()
    assert await operations.revoke_lease(at.engine, at.env, at.at) == 0, "nobody has it"
    lease = await operations.acquire_lease(at.engine, at.env, at.at, me)
    for _ in range(2):
        assert await operations.revoke_lease(at.engine, at.env, at.at, epoch=lease.epoch) == 2
    assert (await at.state()).holder is None
    assert await kits.hints(at.engine, at.at), "somebody is to go on with it"
    batch = kv.Batch()
    leases.fence(batch, lease)
    leases.release(batch, lease)
    [outcome] = await at.engine.commit(batch)
    assert isinstance(outcome, kv.Conflict), "the one that had it is fenced"
    again = await operations.acquire_lease(at.engine, at.env, at.at, await at.other())
    assert await operations.revoke_lease(at.engine, at.env, at.at, epoch=lease.epoch) == again.epoch == 3
    assert (await at.state()).holder is not None, "the repeat of an old call hits nobody else"


async def test_a_world_is_assigned_and_free_again(kit: Kit) -> None:
    at = await desk(kit)
    me, other = await at.beat(), await at.other()
    for _ in range(2):
        await operations.assign_world(at.engine, at.env, at.at, at.worker, reason="so")
    assignment = (await at.state()).assignment
    assert assignment is not None
    assert (assignment.worker, assignment.reason, assignment.revision) == (at.worker, "so", 1)
    with pytest.raises(errors.Exists, match="assigned to worker"):
        await operations.acquire_lease(at.engine, at.env, at.at, other)
    for _ in range(2):
        await operations.unassign_world(at.engine, at.env, at.at)
    assert (await at.state()).assignment is None
    assert (await operations.acquire_lease(at.engine, at.env, at.at, other)).epoch == 1
    await operations.drain_worker(at.engine, at.env, at.worker, draining=True)
    with pytest.raises(errors.NotFound):
        await operations.assign_world(at.engine, at.env, at.at, me.worker)


# --- Into worlds -------------------------------------------------------------------------------------------------


def event(number: int) -> inbox.Event:
    return inbox.Event("Add", payload.inline(values.dump(Add(number))))


async def test_an_input_is_enqueued_once(kit: Kit) -> None:
    at = await desk(kit)
    for client_id in ("chosen", envs.new_id(at.env)):
        first, second = [
            await operations.enqueue_ingress(
                at.engine, at.env, at.at, event(1), client_id=client_id, window_us=WINDOW_US
            )
            for _ in range(2)
        ]  # fmt: skip
        assert (first.stamp, first.repeated, second.repeated) == (second.stamp, False, True)
        with pytest.raises(errors.IdReused):
            await operations.enqueue_ingress(
                at.engine, at.env, at.at, event(2), client_id=client_id, window_us=WINDOW_US
            )
    assert await at.unread() == 2
    nowhere = ids.Address(at.at.universe, ids.WorldId(bytes(16)))
    with pytest.raises(errors.NotFound):
        await operations.enqueue_ingress(at.engine, at.env, nowhere, event(1), client_id="x", window_us=WINDOW_US)


async def test_a_message_is_delivered_once(kit: Kit) -> None:
    at = await desk(kit)
    sender = (bytes(15) + b"u", bytes(15) + b"w")
    message = inbox.Message(
        bytes(15) + b"m", *sender, 3, MessageMode.TYPED, "Add", payload.inline(values.dump(Add(5))),
    )  # fmt: skip
    first, second = [
        await operations.send_message(at.engine, at.env, at.at, message, window_us=WINDOW_US) for _ in range(2)
    ]
    assert (first.stamp, first.repeated, second.repeated) == (second.stamp, False, True)
    assert await at.unread() == 1


# --- Effects and timers --------------------------------------------------------------------------------------------


async def test_an_effect_and_a_timer_by_hand(kit: Kit) -> None:
    """A world whose only adapter and only timer worker is this test."""
    at = await desk(kit)
    app = program()
    me = ids.WorkerId(envs.new_id(at.env))
    first, second = ids.Token(envs.new_id(at.env)), ids.Token(envs.new_id(at.env))
    async with apart.host(kit, app, roles=[Role.WORLDS]):
        await kits.begin(at.world, app.workflows["work"](), id="r")
        effect = await opened(at, WorkKind.EFFECT)
        intent = effect.intent
        [due] = await operations.list_due(at.engine, at.at.universe, queue=effect.work.queue, count_max=10)
        assert (due.pointer.at, due.pointer.intent) == (at.at, intent)

        async def claim(token: ids.Token) -> works.Open:
            return await operations.claim_effect(
                at.engine, at.env, at.at, intent, worker=me, token=token, ttl_us=60 * SECOND_US
            )

        claimed = await claim(first)
        assert await claim(first) == claimed
        with pytest.raises(errors.Exists, match="not due"):
            await claim(second)
        await twice_later(lambda: operations.renew_effect(
            at.engine, at.env, at.at, intent, token=first, ttl_us=60 * SECOND_US
        ))  # fmt: skip

        async def fail() -> bool:
            return await operations.fail_effect(
                at.engine, at.env, at.at, intent, token=first, due_us=0, error="not now"
            )

        assert [await fail(), await fail()] == [True, False]
        receipt = inbox.Receipt(intent, ReceiptStatus.OK, payload.inline(values.dump(8)), 2, effect.work.correlation)
        with pytest.raises(errors.Closed, match="not claimed under this token"):
            await operations.ack_effect(at.engine, at.env, at.at, first, receipt)
        with pytest.raises(errors.Closed, match="not claimed under this token"):
            await operations.renew_effect(at.engine, at.env, at.at, intent, token=first, ttl_us=SECOND_US)
        assert (await claim(second)).work.attempt == 2
        assert await operations.ack_effect(at.engine, at.env, at.at, second, receipt) is True
        timer = await opened(at, WorkKind.TIMER)

        async def due_now() -> bool:
            return (await at.engine.read()).time_us >= timer.work.due_us

        await aio.until(due_now)
        assert await operations.fire_timer(at.engine, at.env, at.at, timer.intent, worker=me) is True
        assert await (await at.world.attach("r")).result(30) == 8
        assert await operations.fire_timer(at.engine, at.env, at.at, timer.intent, worker=me) is False
        assert await operations.ack_effect(at.engine, at.env, at.at, second, receipt) is False
        with pytest.raises(errors.NotFound):
            await claim(first)


async def test_answers_and_firings_come_once(kit: Kit) -> None:
    """The repeat comes before the world has looked."""
    at = await desk(kit)
    app = program()
    me, token = ids.WorkerId(envs.new_id(at.env)), ids.Token(envs.new_id(at.env))
    async with apart.host(kit, app, roles=[Role.WORLDS]):
        await kits.begin(at.world, app.workflows["work"](), id="r")
        intent = (await opened(at, WorkKind.EFFECT)).intent
    await operations.claim_effect(at.engine, at.env, at.at, intent, worker=me, token=token, ttl_us=SECOND_US)
    receipt = inbox.Receipt(intent, ReceiptStatus.OK, payload.inline(values.dump(8)), 1)
    answers = [await operations.ack_effect(at.engine, at.env, at.at, token, receipt) for _ in range(2)]
    assert answers == [True, False]
    assert await at.unread() == 1
    async with apart.host(kit, app, roles=[Role.WORLDS]):
        timer = await opened(at, WorkKind.TIMER)

    async def due_now() -> bool:
        return (await at.engine.read()).time_us >= timer.work.due_us

    await aio.until(due_now)
    fired = [await operations.fire_timer(at.engine, at.env, at.at, timer.intent, worker=me) for _ in range(2)]
    assert fired == [True, False]
    assert await at.unread() == 1


async def test_a_timer_does_not_fire_before_its_time(kit: Kit) -> None:
    at = await desk(kit)
    app = wl.Program("p")

    @app.workflow
    async def late() -> None:
        await wl.sleep(3_600)

    async with apart.host(kit, app, roles=[Role.WORLDS]):
        await kits.begin(at.world, app.workflows["late"](), id="r")
        timer = await opened(at, WorkKind.TIMER)
    with pytest.raises(errors.Exists, match="not due"):
        await operations.fire_timer(at.engine, at.env, at.at, timer.intent, worker=at.worker)


async def opened(at: Desk, kind: WorkKind) -> works.Open:
    """The world's one open piece of work, as soon as it waits."""
    found: list[works.Open] = []

    async def waits() -> bool:
        found[:] = [each for each in await kits.opened(at.engine, at.at) if each.work.kind is kind]
        return [each.work.state for each in found] == [WorkState.WAITING]

    await aio.until(waits)
    return found[0]


async def twice_later(renew: Callable[[], Awaitable[works.Open]]) -> None:
    first, second = await renew(), await renew()
    assert second.work.due_us > first.work.due_us
    assert second.work.token == first.work.token


async def test_only_worlds_that_may_be_had_are_tried_for(kit: Kit) -> None:
    """One look tells the same of each world as a try at it would."""
    at = await desk(kit)
    me, other, gone = await at.beat(), await at.other(), await at.other()

    async def may_take(life: leases.Life | None = me, *, dead: Sequence[bytes] = ()) -> bool:
        others = expiry.Witness(kit.env, lambda worker: worker in dead)
        return await world_lease.may_take(at.engine, [await at.state()], life, others) == [at.at]

    assert await may_take()
    lease = await operations.acquire_lease(at.engine, at.env, at.at, other)
    assert not await may_take()
    assert await may_take(other), "it is its own"
    assert await may_take(dead=[other.worker])
    assert await may_take(None), "whoever has no life sign yet finds out by trying"
    await operations.release_lease(at.engine, at.env, lease)
    await operations.assign_world(at.engine, at.env, at.at, other.worker)
    assert not await may_take()
    assert await may_take(dead=[other.worker])
    await operations.drain_worker(at.engine, at.env, other.worker, draining=True)
    assert await may_take(), "what is being emptied wants nothing"
    await operations.drain_worker(at.engine, at.env, other.worker, draining=False)
    await operations.unassign_world(at.engine, at.env, at.at)
    await operations.acquire_lease(at.engine, at.env, at.at, gone)
    await operations.retire_worker(at.engine, at.env, gone)
    assert await may_take(), "its holder has no life sign"
