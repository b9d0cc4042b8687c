from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid

import pytest

from worldline.base import env as envs
from worldline.base import env_os, limits


def test_an_id_is_a_uuid_of_version_7_and_knows_its_time() -> None:
    env = envs.FixedEnv(seed=7, wall_us=1_700_000_000_123_456)
    made = envs.new_id(env)
    assert len(made) == limits.ID_BYTES
    assert uuid.UUID(bytes=made).version == 7
    assert uuid.UUID(bytes=made).variant == uuid.RFC_4122
    assert envs.id_time_us(made) == 1_700_000_000_123_000


@pytest.mark.parametrize("step_us", [1, 17, 1_000])
def test_ids_of_later_microseconds_are_greater(step_us: int) -> None:
    env = envs.FixedEnv(seed=1)
    made = []
    for _ in range(2_000):
        made.append(envs.new_id(env))
        env.advance_us(step_us)
    assert made == sorted(set(made))


def test_ids_of_one_microsecond_differ() -> None:
    env = envs.FixedEnv()
    assert len({envs.new_id(env) for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize(
    ("wall_us", "fits"), [(0, True), ((2**48 - 1) * 1000, True), (2**48 * 1000, False), (-1, False)]
)
def test_the_time_of_an_id_has_48_bits(wall_us: int, fits: bool) -> None:
    env = envs.FixedEnv(wall_us=wall_us)
    if fits:
        assert envs.id_time_us(envs.new_id(env)) == wall_us
    else:
        with pytest.raises(AssertionError):
            envs.new_id(env)


def test_the_same_seed_gives_the_same_bytes() -> None:
    def drawn(seed: int) -> list[object]:
        env = envs.FixedEnv(seed)
        return [env.random_bytes(8), env.random_below(1_000), envs.new_id(env)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_fixed_clock_moves_when_told() -> None:
    env = envs.FixedEnv(wall_us=100)
    assert (env.wall_us(), env.monotonic_us()) == (100, 0)
    env.advance_us(5)
    assert (env.wall_us(), env.monotonic_us()) == (105, 5)
    env.jump_wall_us(-50)
    assert (env.wall_us(), env.monotonic_us()) == (55, 5)
    asyncio.run(env.sleep(1.5))
    assert (env.wall_us(), env.monotonic_us()) == (1_500_055, 1_500_005)
    with pytest.raises(AssertionError):
        env.advance_us(-1)


@pytest.mark.parametrize(
    ("attempt", "ceiling"), [(0, 5), (1, 10), (2, 20), (7, 640), (8, 1_000), (63, 1_000), (10**9, 1_000)]
)
def test_backoff_grows_with_jitter_up_to_its_bound(attempt: int, ceiling: int) -> None:
    env = envs.FixedEnv()
    drawn = [envs.backoff_ms(env, attempt, first_ms=5, most_ms=1_000) for _ in range(2_000)]
    assert min(drawn) >= 1
    assert max(drawn) <= ceiling
    assert max(drawn) > ceiling * 0.9 - 1, "the whole span is used"
    assert min(drawn) < 2 + ceiling * 0.1


def test_the_real_environment_tells_time_and_chance() -> None:
    env = env_os.OsEnv()
    first, then = env.monotonic_us(), env.monotonic_us()
    assert then >= first
    assert 1_600_000_000_000_000 < env.wall_us() < 4_000_000_000_000_000
    assert len(env.random_bytes(16)) == 16
    assert env.random_bytes(16) != env.random_bytes(16)
    assert {env.random_below(2) for _ in range(200)} == {0, 1}
    asyncio.run(_sleeps(env))


def test_no_random_bytes_are_given_out_twice() -> None:
    """Not to threads that ask at the same time, nor at the end of what was drawn, nor to a forked child."""
    env = env_os.OsEnv()
    taken: list[list[bytes]] = [[] for _ in range(4)]

    def take(into: list[bytes]) -> None:
        into.extend(env.random_bytes(10) for _ in range(5_000))

    threads = [threading.Thread(target=take, args=(each,)) for each in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [each for some in taken for each in some]
    assert len(dict.fromkeys(everything)) == 20_000
    assert {len(each) for each in everything} == {10}
    assert len(env.random_bytes(env_os.DRAWN_BYTES + 1)) == env_os.DRAWN_BYTES + 1


def test_a_forked_child_draws_its_own() -> None:
    script = (
        "import os; from worldline.base import env_os; env = env_os.OsEnv(); env.random_bytes(8); child = os.fork(); "
        "os.write(1, env.random_bytes(8).hex().encode() + b' '); child and os.waitpid(child, 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    parent, child = done.stdout.split()
    assert parent != child


async def _sleeps(env: env_os.OsEnv) -> None:
    before = env.monotonic_us()
    await env.sleep(0.01)
    assert env.monotonic_us() - before >= 9_000
