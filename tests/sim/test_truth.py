"""Transactions that stay open: what they hold back, and what appears below what others have read."""

from __future__ import annotations

import asyncio

from worldline.runtime import store_opening
from worldline.sim.runtime.sim_env import SimEnv
from worldline.sim.runtime.sim_loop import SimLoop, SimMachine
from worldline.sim.runtime.truth import SimTrace, Truth
from worldline.store import kv

ALL = kv.Range(b"q", b"r")


def appending(name: bytes) -> kv.Batch:
    batch = kv.Batch()
    batch.absent(name)
    batch.put(name, b"")
    batch.append(b"q", name)
    return batch


async def page(truth: Truth, host: SimMachine) -> kv.Page:
    return (await truth.read(host, ALL)).page(0)


def test_nothing_appears_below_stable_and_open_transactions_hold_it_back() -> None:
    loop = SimLoop("truth")

    async def scenario() -> None:
        env = SimEnv(loop, "store")
        truth = Truth(await store_opening.open_engine("memory://", env, create=True), env, SimTrace(loop))
        host = SimMachine("host-0")
        await truth.commit(host, appending(b"a"))
        late = truth.begin(host)
        await truth.commit(host, appending(b"b"))
        before = await page(truth, host)
        await truth.commit(host, appending(b"c"), version=late)
        after = await page(truth, host)
        assert [value for _, value in before.items] == [b"a", b"b"]
        assert [value for _, value in after.items] == [b"a", b"c", b"b"]
        [appeared] = [key[1:] for key, value in after.items if value == b"c"]
        assert before.stable <= appeared < after.stable
        assert all(key[1:] < after.stable for key, _ in after.items)

    loop.run(scenario(), seconds=1)
    loop.finish()


def test_a_transaction_ends_with_its_host_or_when_it_is_given_up() -> None:
    loop = SimLoop("truth")

    async def scenario() -> None:
        env = SimEnv(loop, "store")
        truth = Truth(await store_opening.open_engine("memory://", env, create=True), env, SimTrace(loop))
        host, other = SimMachine("host-0"), SimMachine("host-1")
        truth.begin(host)
        idle = truth.begin(other)
        await truth.commit(other, appending(b"a"))
        held = (await page(truth, other)).stable
        loop.crash(host)
        freed = (await page(truth, other)).stable
        truth.abandon(idle)
        assert held < freed < (await page(truth, other)).stable
        await asyncio.sleep(0)

    loop.run(scenario(), seconds=1)
    loop.finish()
