"""What the simulator has found, kept as scenarios: seeds lose their meaning when code changes, these do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from worldline.base import errors
from worldline.control import compose, sdk
from worldline.layers import blobs as blob_layer
from worldline.sim import cluster as clusters
from worldline.sim import faults, workloads
from worldline.sim.loop import SimLoop
from worldline.store import objects

PLAN = workloads.Plan(worlds=[("counter-0", "counters")], ops=[], pause_ms=10)


def calmly(scenario: Callable[[clusters.Cluster, sdk.Universe], Awaitable[None]]) -> None:
    """Run a scenario against a host in calm, from a client that hosts nothing."""
    loop = SimLoop("0")
    cluster = clusters.Cluster(loop, 0, faults.Profile(hosts=1, clients=0), PLAN, without="")

    async def main() -> None:
        await cluster.boot([])
        await scenario(cluster, sdk.Universe(cluster.calm(), cluster.universe, "simulated", [], cluster.settings))
        cluster.stop()

    try:
        loop.run(main(), seconds=120)
    finally:
        loop.finish()


def test_an_answer_is_found_again_long_after_it_was_given() -> None:
    """A client that repeats an id looked for the answer above the present head, where it never comes."""

    async def scenario(cluster: clusters.Cluster, universe: sdk.Universe) -> None:
        world = universe.world("counter-0")
        first = await world.ask(workloads.AddAndTell("a", 5), id="a", timeout=20)
        sent = await world.send(workloads.Add("b", 1), id="b")
        height = await sent.applied(20)
        assert await world.ask(workloads.AddAndTell("a", 5), id="a", timeout=20) == first == 5
        assert await (await world.send(workloads.Add("b", 1), id="b")).applied(20) == height

    calmly(scenario)


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

    async def scenario(cluster: clusters.Cluster, universe: sdk.Universe) -> None:
        flipping = Flipping(cluster.objects, 0)
        blobs = blob_layer.Blobs(cluster.calm().engine, flipping, cluster.env, cluster.universe)  # type: ignore[arg-type]
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

    calmly(scenario)


def test_a_calm_cluster_serves_its_clients() -> None:
    async def scenario(cluster: clusters.Cluster, universe: sdk.Universe) -> None:
        await asyncio.gather(*(universe.world("counter-0").send(workloads.Add(str(n), n)) for n in range(10)))
        assert isinstance(universe.store, compose.Store)
        while cluster.left():  # noqa: ASYNC110 - what is waited for happens on other hosts
            await asyncio.sleep(0.1)
        universe.programs["counters"] = workloads.counters
        assert (await universe.world("counter-0").state(workloads.Counter)).total == 45

    calmly(scenario)
