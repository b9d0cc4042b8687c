"""What the simulator has found, kept as scenarios: seeds lose their meaning when code changes, these do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import worldline as wl
from tests.campaign.hosts import crew
from tests.campaign.load import flow_domains, programs
from tests.sim import kit
from worldline.api.universe_api import Universe
from worldline.base import env as envs
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.features.proofs import calls as proof_calls
from worldline.host.feature_list import FEATURES
from worldline.kernel import part_inputs
from worldline.layers import blobs as blob_layer
from worldline.layers import leases
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.runtime import death_witness, store_opening
from worldline.runtime import lease_calls as world_lease
from worldline.sim.check import checkers, fork_checks
from worldline.store import kv
from worldline.store.objects import objects_interface as objects


def test_an_answer_is_found_again_long_after_it_was_given() -> None:
    """A client that repeats an id looked for the answer above the present head, where it never comes."""

    async def scenario(calm: kit.Calm) -> None:
        world = calm.universe.world("counter-0")
        first = await world.ask(programs.AddAndTell("a", 5), id="a", timeout=20)
        sent = await world.send(programs.Add("b", 1), id="b")
        height = await sent.applied(20)
        assert await world.ask(programs.AddAndTell("a", 5), id="a", timeout=20) == first == 5
        assert await (await world.send(programs.Add("b", 1), id="b")).applied(20) == height

    kit.calmly(scenario, hosts=1)


class Flipping:
    """Objects whose bytes are damaged on the way, so many times in a row."""

    def __init__(self, bodies: objects.Objects, times: int) -> None:
        self._bodies = bodies
        self.times = times

    async def get(self, name: str) -> bytes:
        body = await self._bodies.get(name)
        self.times -= 1
        return bytes([body[0] ^ 1]) + body[1:] if self.times >= 0 else body

    def __getattr__(self, name: str) -> object:
        return getattr(self._bodies, name)


def test_bytes_damaged_on_the_way_are_read_again_and_at_rest_are_an_error() -> None:
    """One bad read made a good event a dead letter, and a world refused for good."""

    async def scenario(calm: kit.Calm) -> None:
        store = calm.cluster.calm()
        flipping = Flipping(store.objects, 0)
        blobs = blob_layer.Blobs(store.engine, flipping, store.env, calm.cluster.universe)  # type: ignore[arg-type]
        data = bytes(100_000)
        of = await blobs.put(data)
        flipping.times = blob_layer.READS_MAX - 1
        assert await blobs.get(of) == data
        flipping.times = blob_layer.READS_MAX
        try:
            await blobs.get(of)
        except errors.DigestMismatch:
            return
        raise AssertionError("damaged bytes were taken for data")

    kit.calmly(scenario, hosts=1)


def test_a_calm_cluster_serves_its_clients() -> None:
    async def scenario(calm: kit.Calm) -> None:
        world = calm.universe.world("counter-0")
        await asyncio.gather(*(world.send(programs.Add(str(n), n)) for n in range(10)))
        while calm.cluster.left():  # noqa: ASYNC110 - what is waited for happens on other hosts
            await asyncio.sleep(0.1)
        assert (await world.state(programs.Counter)).total == 45

    kit.calmly(scenario, hosts=1)


def test_a_world_whose_first_step_comes_before_its_birth_can_be_restored() -> None:
    """The store's clock was set back between a world's creation and its first step: nobody could read it any more."""

    async def scenario(calm: kit.Calm) -> None:
        calm.cluster.truth.jump(-60)
        world = calm.universe.world("counter-0")
        await (await world.send(programs.Add("a", 1))).applied()
        calm.kill("host-0")
        await (await world.send(programs.Add("b", 1))).applied()  # by another host, which restores it
        assert (await world.state(programs.Counter)).total == 2

    kit.calmly(scenario, hosts=2)


class Meddling:
    """An engine with somebody who is quicker: `first` happens right before the next commit."""

    def __init__(self, engine: kv.Engine) -> None:
        self._engine = engine
        self.first: Callable[[], Awaitable[object]] | None = None

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        first, self.first = self.first, None
        if first is not None:
            await first()
        return await self._engine.commit(*batches)

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


async def worker(engine: kv.Engine, env: envs.Env) -> leases.HeartbeatRecord:
    """A worker that has just shown a sign of life."""
    batch = kv.Batch()
    now_us = (await engine.read(kv.Get(b"\x01"))).time_us
    life = leases.heartbeat(
        batch,
        ids.WorkerId(envs.new_id(env)),
        last=None,
        incarnation=ids.Incarnation(envs.new_id(env)),
        now_us=now_us,
        ttl_us=10_000_000,
        capacity=10,
        labels={},
    )
    await engine.commit(batch)
    return life


async def close(world: wl.World, status: Status) -> None:
    await (world.delete() if status is Status.DELETED else world.change(status=status))


@pytest.mark.parametrize("status", [Status.PAUSED, Status.ARCHIVED, Status.DELETED])
def test_a_world_that_is_closed_while_somebody_takes_it_does_not_run(status: Status) -> None:
    """Whoever took the lease had looked at the world before, and went on with one that was deleted meanwhile."""

    async def scenario(calm: kit.Calm) -> None:
        world, env = calm.universe.world("counter-0"), calm.universe._connection.store.env
        at = await world._handle.address()
        meddling = Meddling(calm.universe._connection.store.engine)
        me = await worker(calm.universe._connection.store.engine, env)
        meddling.first = lambda: close(world, status)
        with pytest.raises((errors.Closed, errors.NotFound)):
            await world_lease.acquire(meddling, env, at, me, death_witness.DeathWitness(env))  # type: ignore[arg-type]

    kit.calmly(scenario, hosts=1)


@pytest.mark.parametrize("status", [Status.PAUSED, Status.ARCHIVED, Status.DELETED])
def test_a_world_that_is_taken_while_somebody_closes_it_is_taken_away_again(status: Status) -> None:
    """A free world was closed without touching its lease, which somebody got in the same instant."""

    async def scenario(calm: kit.Calm) -> None:
        store = calm.universe._connection.store
        at = await calm.universe.world("counter-0")._handle.address()
        me = await worker(store.engine, store.env)
        meddling = Meddling(store.engine)
        meddling.first = lambda: world_lease.acquire(
            store.engine, store.env, at, me, death_witness.DeathWitness(store.env)
        )
        closing = store_opening.Store("memory://", meddling, store.objects, store.env, FEATURES)  # type: ignore[arg-type]
        known = calm.universe._connection
        universe = Universe(Connection(closing, known.id, "simulated", known.settings))
        await close(universe.world("counter-0"), status)
        read = await store.engine.read(*leases.reads(at))
        assert leases.decode(at, *(read.value(index) for index in range(3))).holder is None

    kit.calmly(scenario, hosts=1)


def test_a_fork_that_nobody_has_begun_is_left_to_do() -> None:
    """What a fork has inherited stands in no queue: a run whose worker died before a fork's first step was called over,
    and the fork unsettled.
    """

    async def scenario(calm: kit.Calm) -> None:
        cluster = calm.cluster
        born = fork_checks.Forks(calm.audit.broken, calm.audit.asked_by, lambda: cluster.truth.copy)
        cluster.truth.audit.append(born.look)
        calm.kill("host-0")
        await calm.universe.world("counter-0").fork("fork")
        reader = checkers.reader(cluster, cluster.calm())
        assert cluster.left() == []
        [left] = await born.unsettled(reader)
        assert born.are_concerned([left])
        cluster.start(cluster.members[0])
        while await born.unsettled(reader):  # noqa: ASYNC110 - what is waited for happens on other hosts
            await asyncio.sleep(0.1)

    kit.calmly(scenario, hosts=1)


class Holding:
    """The commits of one host: a step that declares flow domains never arrives."""

    def __init__(self, engine: kv.Engine) -> None:
        self._commit = engine.commit
        self.held = asyncio.Event()

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if any(part_inputs.DOMAINS.encode() in put.value for batch in batches for put in batch.puts.values()):
            self.held.set()
            await asyncio.get_running_loop().create_future()
        return await self._commit(*batches)


def test_no_state_of_a_world_is_saved_while_it_is_still_being_taken() -> None:
    """A fork was saved as soon as it had begun, in the middle of the step that declares its flow domains. When its host
    died then, the fork went on from a state that no step had led to (seed 44 with flows=2).
    """

    async def scenario(calm: kit.Calm) -> None:
        cluster = calm.cluster
        member = next(each for each in cluster.members if each.code is crew.of(cluster).flows.code)
        assert member.engine is not None
        calm.universe._connection.knows(flow_domains.VERSIONS[flow_domains.FIRST])
        world = await calm.universe.create("bill", flow_domains.VERSIONS[flow_domains.FIRST])
        holding = Holding(member.engine)
        member.engine.commit = holding.commit  # type: ignore[method-assign]
        fork = await world.fork("fork")
        await holding.held.wait()
        await asyncio.sleep(20)
        assert member.host is not None
        cluster.loop.crash(member.host)
        cluster.start(member)
        await fork.act(flow_domains.Till.add(5), timeout=60)
        proof = await proof_calls.prove(Handle(checkers.stranger(cluster), "fork"))
        assert (proof.holds, proof.unverifiable) == (True, [])

    kit.calmly(scenario, hosts=1, flows=1)
