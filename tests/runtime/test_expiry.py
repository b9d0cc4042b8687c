"""Life signs that do not change any more: their workers are dead, whatever the store's clock says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import worldline as wl
from tests import aio
from tests.kits import fixtures
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.layers import scenario
from worldline.base import env as envs
from worldline.layers import leases
from worldline.model import ids
from worldline.model import leases as lease
from worldline.model.settings import WorkerSettings
from worldline.runtime import death_witness
from worldline.runtime import lease_calls as world_lease

SETTINGS = WorkerSettings()
TTL_US = SETTINGS.lease_ttl_ms * 1000
LONG_US = TTL_US + TTL_US // death_witness.MARGIN


@dataclass(frozen=True)
class Ask(wl.Request[int]):
    pass


def program() -> wl.Program:
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Count:
        asked: int = 0

        @wl.on
        def ask(self, event: Ask) -> int:
            self.asked += 1
            return self.asked

    return app


def sign(number: int, *, beat: int) -> leases.HeartbeatRecord:
    made = lease.Worker(b"incarnation-%d..." % number, beat, 1_000, TTL_US, 10, {})
    return leases.HeartbeatRecord(ids.WorkerId(b"worker-%d........" % number), made, b"%d/%d" % (number, beat))


def stale(seen: leases.HeartbeatRecord | None) -> bool:
    assert seen is not None
    return seen.stale


def test_a_sign_is_stale_when_it_was_seen_unchanged_for_its_ttl_and_a_margin() -> None:
    env = envs.FixedEnv()
    eyes = death_witness.DeathWitness(env)
    assert not stale(eyes.look(sign(1, beat=1)))
    env.advance_us(LONG_US - 1)
    assert not stale(eyes.look(sign(1, beat=1)))
    assert not stale(eyes.look(sign(2, beat=1))), "seen for the first time"
    env.advance_us(1)
    assert stale(eyes.look(sign(1, beat=1)))
    assert stale(eyes.look(sign(1, beat=1)))
    assert not stale(eyes.look(sign(1, beat=2))), "it lives"
    env.advance_us(LONG_US - 1)
    assert not stale(eyes.look(sign(1, beat=2)))
    assert stale(eyes.look(sign(2, beat=1)))
    assert eyes.look(None) is None


def test_a_wall_clock_that_jumps_makes_nothing_stale() -> None:
    env = envs.FixedEnv()
    eyes = death_witness.DeathWitness(env)
    eyes.look(sign(1, beat=1))
    env.jump_wall_us(10 * LONG_US)
    assert not stale(eyes.look(sign(1, beat=1)))


def test_only_so_many_signs_are_remembered() -> None:
    env = envs.FixedEnv()
    eyes = death_witness.DeathWitness(env)
    for number in range(death_witness.SIGNS_MAX + 1):
        life = sign(1, beat=1)
        eyes.look(leases.HeartbeatRecord(ids.WorkerId(number.to_bytes(16, "big")), life.sign, life.raw))
    assert len(eyes._signs) == death_witness.SIGNS_MAX


def test_every_heartbeat_changes_the_sign_also_if_the_clock_stands_still() -> None:
    store = scenario.Store()
    worker, incarnation = ids.WorkerId(b"worker-1........"), ids.Incarnation(b"incarnation-1...")
    beats = [scenario.now(world_lease.beat(store.engine, store.env, worker, incarnation, SETTINGS)) for _ in range(3)]
    assert len({each.raw for each in beats}) == 3


@pytest.fixture(params=["memory", "lmdb"])
def movable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """A store whose clock the test can set."""
    return fixtures.make(request.param, tmp_path_factory.mktemp("store"))


async def test_a_clock_set_back_does_not_keep_a_dead_workers_worlds(movable: Kit) -> None:
    """As on a server: no lock of the operating system proves the death."""
    app = program()
    first = await movable.process(app)
    world = await first.universe.ensure("w", app)
    assert await world.ask(Ask()) == 1
    locked, first.host._presence = first.host._presence, None  # its lock stays
    await first.kill()
    await movable.jump(-3_600)
    async with movable.hosting(app) as universe:
        assert await universe.world("w").ask(Ask(), timeout=20) == 2
    if locked is not None:
        locked.leave(first.host.worker)


async def test_a_clock_set_ahead_moves_a_world_once_at_most(movable: Kit) -> None:
    """Living workers' signs have run out until they beat again. After that every world stays where it is."""
    app = program()
    async with movable.hosting(app) as first, movable.hosting(app) as second:
        world = await first.ensure("w", app)
        other = second.world("w")
        assert await world.ask(Ask()) == 1
        at = await world._handle.address()

        async def epoch() -> int:
            read = await first._connection.store.engine.read(*leases.reads(at))
            return leases.decode(at, read.value(0), read.value(1), read.value(2)).epoch.number

        async def beaten() -> bool:
            assert first._connection.host is not None
            assert second._connection.host is not None
            now_us = movable.env.wall_us()
            lives = [first._connection.host.worlds.life, second._connection.host.worlds.life]
            return all(life is not None and life.alive(now_us) for life in lives)

        before = await epoch()
        await movable.jump(3_600)
        await aio.until(beaten)
        assert await other.ask(Ask(), timeout=20) == 2
        moved = await epoch()
        assert moved - before <= 2
        for number in range(10):
            assert await (world, other)[number % 2].ask(Ask(), timeout=20) == 3 + number
            await movable.env.sleep(2 * kits.LEASE_TTL_MS / 1000 / 10)
        assert await epoch() == moved
