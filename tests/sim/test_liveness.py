"""How long things take when nothing goes wrong but one thing. Virtual time: no busy machine can break these bounds."""

from __future__ import annotations

import asyncio

import pytest

from tests.campaign.load import programs
from tests.campaign.suite import SUITE
from tests.sim import kit
from worldline.model.settings import AdapterSettings, Settings, TimerSettings, WorkerSettings
from worldline.sim import seed_run as run
from worldline.sim.faults import profiles

SLACK_SECONDS = 1.0  # for the work itself: reads, commits, restoring a world, the turns of roles


def settings(*, scan_ms: int, ttl_ms: int = 3_000) -> Settings:
    return Settings(
        worker=WorkerSettings(lease_ttl_ms=ttl_ms, heartbeat_ms=ttl_ms // 4, scan_ms=scan_ms),
        adapter=AdapterSettings(scan_ms=scan_ms, claim_ttl_ms=ttl_ms, renew_ms=ttl_ms // 3),
        timer=TimerSettings(scan_ms=scan_ms),
    )


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("scan_ms", [300, 1_000, 4_000])
def test_without_any_hint_each_thing_is_found_within_a_scan(scan_ms: int, split: bool) -> None:
    """V3: inputs by world workers, effects by adapters, timers by timer workers."""
    scan = scan_ms / 1000

    async def scenario(calm: kit.Calm) -> None:
        world = calm.universe.world("counter-0")
        for number in range(3):
            began = calm.seconds
            await (await world.send(programs.Add(str(number), 1))).applied()
            assert calm.seconds - began < scan + SLACK_SECONDS
            await asyncio.sleep(scan * 0.4)
        began = calm.seconds
        assert await calm.universe.world("shop-0").run(programs.fulfil("order", 5)) == "shipped"
        inputs, effects, timers, asleep = 4, 2, 1, 0.5
        assert calm.seconds - began < (inputs + effects + timers) * (scan + SLACK_SECONDS) + asleep

    for seed in range(3):
        kit.calmly(scenario, seed=seed, hints="none", split=split, settings=settings(scan_ms=scan_ms))


@pytest.mark.parametrize("orchestrators", [0, 1])
@pytest.mark.parametrize(("ttl_ms", "scan_ms"), [(1_000, 300), (3_000, 1_000), (8_000, 3_000)])
def test_the_worlds_of_a_dead_worker_run_again(ttl_ms: int, scan_ms: int, orchestrators: int) -> None:
    """V6: within the time its life sign lasts, and a scan, and restoring."""

    async def scenario(calm: kit.Calm) -> None:
        world = calm.universe.world("counter-0")
        await (await world.send(programs.Add("before", 1))).applied()
        calm.kill(calm.owner_of(world))
        began = calm.seconds
        sent = await world.send(programs.Add("after", 1))
        await sent.applied()
        assert calm.seconds - began < (ttl_ms + scan_ms) / 1000 + SLACK_SECONDS

    for seed in range(3):
        kit.calmly(
            scenario,
            seed=seed,
            hosts=2,
            hints="none",
            orchestrators=orchestrators,
            settings=settings(scan_ms=scan_ms, ttl_ms=ttl_ms),
        )


@pytest.mark.parametrize("seconds", [5, 60, 600, 3_600, -2])
@pytest.mark.parametrize("orchestrators", [0, 1])
def test_a_jump_of_the_stores_clock_leaves_no_world_behind(seconds: int, orchestrators: int) -> None:
    """Set forward, every lease and claim runs out at once; whoever is alive goes on within a scan and a TTL."""
    ttl_ms, scan_ms = 3_000, 1_000

    async def scenario(calm: kit.Calm) -> None:
        counter = calm.universe.world("counter-0")
        await (await counter.send(programs.Add("before", 1))).applied()
        run = await calm.universe.world("shop-0").start(programs.fulfil("order", 5))
        calm.cluster.truth.jump(seconds)
        began = calm.seconds
        await (await counter.send(programs.Add("after", 1))).applied()
        assert calm.seconds - began < (ttl_ms + scan_ms) / 1000 + SLACK_SECONDS + max(0, -seconds)
        assert await run.result() == "shipped"
        assert calm.seconds - began < 4 * (ttl_ms + scan_ms) / 1000 + SLACK_SECONDS + max(0, -seconds)

    for seed in range(6):
        kit.calmly(
            scenario,
            seed=seed,
            hosts=2,
            orchestrators=orchestrators,
            settings=settings(scan_ms=scan_ms, ttl_ms=ttl_ms),
        )


@pytest.mark.parametrize("seconds", [-60, -3_600])
@pytest.mark.parametrize("orchestrators", [0, 1])
def test_a_clock_that_is_set_back_prolongs_no_lease_of_the_dead(seconds: int, orchestrators: int) -> None:
    """By the store's clock the life sign lasts longer by as much; those who watch it count for themselves."""
    ttl_ms, scan_ms = 3_000, 1_000

    async def scenario(calm: kit.Calm) -> None:
        world = calm.universe.world("counter-0")
        await (await world.send(programs.Add("before", 1))).applied()
        calm.kill(calm.owner_of(world))
        calm.cluster.truth.jump(seconds)
        began = calm.seconds
        await (await world.send(programs.Add("after", 1))).applied()
        assert calm.seconds - began < 2 * (ttl_ms + scan_ms) / 1000 + SLACK_SECONDS

    for seed in range(3):
        kit.calmly(
            scenario,
            seed=seed,
            hosts=2,
            orchestrators=orchestrators,
            settings=settings(scan_ms=scan_ms, ttl_ms=ttl_ms),
        )


@pytest.mark.parametrize("seconds", [600, 3 * 3_600, -600])
def test_after_an_excursion_of_the_clock_everything_is_on_time(seconds: int) -> None:
    """Also in the worlds that have made steps meanwhile, whose logical time never goes back."""
    ttl_ms, scan_ms = 3_000, 1_000

    async def scenario(calm: kit.Calm) -> None:
        shop = calm.universe.world("shop-0")
        calm.cluster.truth.jump(seconds)
        _ = await shop.start(programs.fulfil("meanwhile", 5))
        await asyncio.sleep(2)
        calm.cluster.truth.jump(-seconds)
        await asyncio.sleep(ttl_ms / 1000)  # until every process has read the clock again
        began = calm.seconds
        assert await shop.run(programs.fulfil("afterwards", 5)) == "shipped"
        assert calm.seconds - began < 4 * (ttl_ms + scan_ms) / 1000 + SLACK_SECONDS

    for seed in range(3):
        kit.calmly(scenario, seed=seed, hosts=2, settings=settings(scan_ms=scan_ms, ttl_ms=ttl_ms))


def test_a_client_that_reads_journals_late_is_done_within_the_bound_of_quiet() -> None:
    """Nothing else goes wrong. It reads the journal several times for each of its operations, one after the other, and
    each read takes seconds (seed 950059).
    """
    profile = "orchestrators=0,skew_us=0,drift_ppm=0,adapters=0+0+0+0,heal=all,only="
    assert run.run(950059, SUITE, profile=profiles.of(profile, 950059)).failures == []
