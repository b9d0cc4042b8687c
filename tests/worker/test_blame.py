"""Who is blamed for a death: only what was running, and only if it is a death. Nothing else costs an input or a world
anything but time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit
from tests.kits.sums import AddUp, Trap
from worldline.base import errors, probes
from worldline.effects import suspects
from worldline.keys import journal as journal_keys
from worldline.keys import trial as trial_keys
from worldline.layers import leases
from worldline.layers import trial as trials
from worldline.model import ids
from worldline.model import leases as lease
from worldline.model.leases import CrashTrial, HolderActivity
from worldline.runtime import operator_calls
from worldline.runtime import trial_neighbours as besides
from worldline.store import kv

BUDGET = 3
JUMP_SECONDS = kits.LEASE_TTL_MS / 1000 + 0.1


class App:
    """A program with a handler that stops at `gate`, and an effect that stops at `held`. `in_child`: what the handler
    does in a child process.
    """

    def __init__(self, in_child: Callable[[], None] = lambda: None) -> None:
        self.program = app = sums.program(trap=self.stop)
        self.inside, self.gate, self.deadly = threading.Event(), threading.Event(), True
        self._process, self._in_child = os.getpid(), in_child
        self.calls = 0
        self.held = asyncio.Event()
        owner = self

        @app.effect(retry=wl.Retry(attempts=None, initial_delay=0.01))
        async def fetch(number: int) -> int:
            owner.calls += 1
            await owner.held.wait()
            return number

        @app.workflow
        async def fetches(number: int) -> int:
            return await fetch(number)

        self.fetches = fetches

    def stop(self) -> None:
        if os.getpid() != self._process:
            self._in_child()
        elif self.deadly:
            self.inside.set()
            self.gate.wait(60)

    async def entered(self) -> None:
        """A step has begun since this was last asked."""
        assert await asyncio.to_thread(self.inside.wait, 20), "no step got that far"
        self.inside.clear()

    def go_on(self) -> None:
        self.deadly = False
        self.gate.set()


async def trial_of(engine: kv.Engine, at: ids.Address) -> CrashTrial | None:
    return trials.decode_trial((await engine.read(trials.get(at))).value(0))


async def dies(kit: Kit, app: App, **options: Any) -> None:
    """A process that dies in the middle of a step."""
    app.gate.clear()
    process = await kit.process(app.program, **options)
    await app.entered()
    process._cut.off = True
    app.gate.set()  # what the step comes to reaches no store
    await process.kill()
    await kit.jump(JUMP_SECONDS)


async def set_up(kit: Kit, app: App) -> tuple[kits.Process, wl.World, ids.Address]:
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    return client, world, await world._handle.address()


# --- Code that has returned -----------------------------------------------------------------------------------------


class CannotCommit(kits.Around):
    """A store that takes no step. All else goes through."""

    def __init__(self, engine: kv.Engine, at: ids.Address) -> None:
        super().__init__(engine)
        self._head = journal_keys.head_key(at)
        self.refused = asyncio.Event()

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if any(self._head in batch.puts for batch in batches):
            self.refused.set()
            raise errors.StoreFull("no room for a step")
        return await super().commit(*batches)


async def test_a_step_that_cannot_be_committed_is_not_held_against_its_input(memory_kit: Kit) -> None:
    kit, app = memory_kit, App()
    client, world, at = await set_up(kit, app)
    await world.send(Trap(1))
    await dies(kit, app)
    app.go_on()
    for _ in range(BUDGET):
        engines: list[CannotCommit] = []

        def wrap(engine: kv.Engine, engines: list[CannotCommit] = engines) -> kv.Engine:
            engines.append(CannotCommit(engine, at))
            return engines[0]

        process = await kit.process(app.program, wrap=wrap)
        await asyncio.wait_for(engines[0].refused.wait(), 20)
        await process.kill()  # its code has returned, and nothing runs
        await kit.jump(JUMP_SECONDS)
        found = await trial_of(client.engine, at)
        assert found is not None
        assert (found.running, found.step_deaths) == (HolderActivity.NOTHING, 0)
    last = await kit.process(app.program)
    assert await last.universe.world("w").ask(AddUp(1), timeout=20) == 2
    await last.close()


# --- Holders that live ------------------------------------------------------------------------------------------------


@pytest.mark.probe("trial.acquitted-itself")
@pytest.mark.probe("trial.changed-meanwhile")
async def test_a_holder_that_was_cut_off_takes_itself_off(memory_kit: Kit) -> None:
    kit, app = memory_kit, App()
    client, world, at = await set_up(kit, app)
    await world.send(Trap(1))
    await dies(kit, app)
    app.gate.clear()
    first = await kit.process(app.program)
    await app.entered()
    first._cut.off = True
    await kit.jump(JUMP_SECONDS)
    second = await kit.process(app.program)
    await app.entered()
    found = await trial_of(client.engine, at)
    assert found is not None
    assert (found.running, found.step_deaths) == (HolderActivity.STEP, 1)
    assert [each.incarnation for each in found.blamed] == [first.host.worlds.incarnation]

    async def knows() -> bool:
        """It is too late with its heartbeat, by its own clock."""
        return bool(first.host.worlds._heartbeat.expired_us(kit.env.monotonic_us()))

    await aio.until(knows)
    first._cut.off = False

    async def taken_off() -> bool:
        found = await trial_of(client.engine, at)
        return found is not None and (found.step_deaths, found.blamed) == (0, [])

    await aio.until(taken_off)
    app.go_on()
    assert await second.universe.world("w").ask(AddUp(1), timeout=20) == 2, "it reads again what was changed"
    assert await kits.dead(client.engine, at) == []
    await first.close()
    await second.close()


async def test_a_revoked_lease_is_no_death(memory_kit: Kit) -> None:
    """An operator takes the lease away in the middle of a step; the holder lives, as its heartbeat says."""
    kit, app = memory_kit, App()
    client, world, at = await set_up(kit, app)
    await world.send(Trap(1))
    await dies(kit, app)
    app.gate.clear()
    first = await kit.process(app.program)
    await app.entered()
    await operator_calls.revoke_lease(client.engine, kit.env, at)
    second = await kit.process(app.program)
    await app.entered()
    found = await trial_of(client.engine, at)
    assert found is not None
    assert (found.running, found.step_deaths) == (HolderActivity.STEP, 0)
    app.go_on()
    assert await second.universe.world("w").ask(AddUp(1), timeout=20) == 2
    await first.close()
    await second.close()


class ComesBack(kits.Around):
    """As soon as the world is restored, the heartbeat of a worker that was counted as dead is there again."""

    def __init__(self, engine: kv.Engine, at: ids.Address, back: lease.Worker, worker: ids.WorkerId) -> None:
        super().__init__(engine)
        self._key = trial_keys.trial_key(at)
        self._back, self._worker = back, worker

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        outcomes = await super().commit(*batches)
        put = batches[0].puts.get(self._key)
        if put is not None and trial_keys.TRIAL.unpack(put.value).running is HolderActivity.NOTHING:
            batch, now_us = kv.Batch(), (await self._engine.read()).time_us
            before = leases.decode_heartbeat(
                self._worker, (await self._engine.read(leases.get_heartbeat(self._worker))).value(0)
            )
            leases.heartbeat(
                batch,
                self._worker,
                last=before,
                incarnation=ids.Incarnation(self._back.incarnation),
                now_us=now_us,
                ttl_us=self._back.ttl_us,
                capacity=1,
                labels={},
            )
            await self._engine.commit(batch)
        return outcomes


@pytest.mark.probe("trial.acquitted-by-heartbeat")
async def test_one_whose_heartbeat_is_back_when_it_matters_is_taken_off(memory_kit: Kit) -> None:
    """The budget is used up when the world is taken. A child would die; it is not asked."""
    kit, app = memory_kit, App(in_child=lambda: os._exit(1))
    client, world, at = await set_up(kit, app)
    await world.send(Trap(1))
    for _ in range(1 + BUDGET):
        await dies(kit, app)
    # The next acquire counts the last of them.
    found = await trial_of(client.engine, at)
    assert found is not None
    assert (found.running, found.step_deaths) == (HolderActivity.STEP, BUDGET - 1)
    app.go_on()
    worker = ids.WorkerId(found.blamed[0].worker)
    back = lease.Worker(found.blamed[0].incarnation, 1, 0, 60_000_000, 1, {})
    last = await kit.process(app.program, wrap=lambda engine: ComesBack(engine, at, back, worker))
    assert await last.universe.world("w").ask(AddUp(1), timeout=20) == 2
    assert await kits.dead(client.engine, at) == []
    await last.close()


# --- The last attempt -------------------------------------------------------------------------------------------------


@pytest.mark.probe("trial.found-innocent")
async def test_an_input_that_a_child_survives_is_taken(kit: Kit) -> None:
    """Processes died in the step over it, of something else."""
    app = App()
    client, world, at = await set_up(kit, app)
    await world.send(Trap(1))
    for _ in range(1 + BUDGET):
        await dies(kit, app)
    app.go_on()
    last = await kit.process(app.program)
    assert await last.universe.world("w").ask(AddUp(1), timeout=30) == 2
    assert await kits.dead(client.engine, at) == []
    await last.close()


@pytest.mark.probe("trial.child-lacked-something")
async def test_memory_that_a_child_lacks_is_no_proof_by_itself(memory_kit: Kit) -> None:
    """Its parent may lack it as well, whatever the input is. In earnest, the step gets all it needs."""

    def lack() -> None:
        raise MemoryError

    kit, app = memory_kit, App(in_child=lack)
    client, world, at = await set_up(kit, app)
    await world.send(Trap(1))
    for _ in range(1 + BUDGET):
        await dies(kit, app)
    app.go_on()
    last = await kit.process(app.program)
    assert await last.universe.world("w").ask(AddUp(1), timeout=20) == 2
    assert await kits.dead(client.engine, at) == []
    await last.close()


@pytest.mark.probe("trial.child-undecided")
async def test_without_children_twice_the_budget_decides(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    kit, app = memory_kit, App()
    client, world, at = await set_up(kit, app)
    await world.send(Trap(1))
    for _ in range(1 + 2 * BUDGET):
        await dies(kit, app)
    last = await kit.process(app.program)
    assert await last.universe.world("w").ask(AddUp(1), timeout=20) == 1
    [letter] = await kits.dead(client.engine, at)
    assert "6 times in a row" in letter.dead.reason
    assert "there are no child processes here" in letter.dead.reason
    await last.close()


async def test_the_letter_says_who_was_blamed_and_how_the_child_ended(memory_kit: Kit) -> None:
    kit, app = memory_kit, App(in_child=lambda: os._exit(7))
    client, world, at = await set_up(kit, app)
    await world.send(Trap(1))
    for _ in range(1 + BUDGET):
        await dies(kit, app)
    blamed = await trial_of(client.engine, at)
    assert blamed is not None
    last = await kit.process(app.program)
    assert await last.universe.world("w").ask(AddUp(1), timeout=20) == 1
    [letter] = await kits.dead(client.engine, at)
    names = [each.hex()[-8:] for each in (*(one.incarnation for one in blamed.blamed), blamed.incarnation)]
    assert f"(processes {', '.join(names)})" in letter.dead.reason
    assert "a last attempt in a child process: it ended its process with exit code 7" in letter.dead.reason
    await last.close()


# --- Effects beside -------------------------------------------------------------------------------------------------


LONG_CLAIMS = kits.settings(adapter={"claim_ttl_ms": 60_000, "renew_ms": 10_000})


async def dies_with_effect(kit: Kit, app: App) -> None:
    """A process dies that has world `w`, and performs an effect of world `other`."""
    process = await kit.process(app.program, settings=LONG_CLAIMS)
    assert await process.universe.world("w").ask(AddUp(0), timeout=20) == 0
    other = await process.universe.ensure("other", app.program)
    await kits.begin(other, app.fetches(7), id="r")
    await called(app, 1)
    await process.kill()
    await kit.jump(JUMP_SECONDS)


async def called(app: App, times: int) -> None:
    async def is_called() -> bool:
        return app.calls == times

    await aio.until(is_called)


@pytest.mark.probe("effects.held-back")
async def test_an_effect_that_its_process_died_of_waits_for_worlds_on_trial(memory_kit: Kit) -> None:
    kit, app = memory_kit, App()
    _, world, _ = await set_up(kit, app)
    await dies_with_effect(kit, app)
    await world.send(Trap(1))
    process = await kit.process(app.program, settings=LONG_CLAIMS)
    await app.entered()  # its world is on trial
    with probes.collect() as hits:
        await kit.jump(60)  # the claim of the dead process runs out

        async def held_back() -> bool:
            return hits["effects.held-back"] > 1

        await aio.until(held_back)
    assert app.calls == 1
    app.go_on()
    await called(app, 2)
    app.held.set()
    await process.close()


async def test_a_process_that_has_not_looked_for_worlds_performs_none(memory_kit: Kit) -> None:
    """It is about to restore what the dead one had. An effect that is begun first ends every process before a step of
    any other world is done.
    """
    kit, app = memory_kit, App()
    _, world, _ = await set_up(kit, app)
    await dies_with_effect(kit, app)
    await kit.jump(60)  # the claim of the dead process has run out before the next one is there
    await world.send(Trap(1))
    with probes.collect() as hits:
        process = await kit.process(app.program, settings=LONG_CLAIMS)
        await app.entered()

        async def held_back() -> bool:
            return hits["effects.held-back"] > 1

        await aio.until(held_back)
    assert app.calls == 1
    app.go_on()
    await called(app, 2)
    app.held.set()
    await process.close()


async def test_an_effect_does_not_wait_for_ever(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that stands is waited for a while longer, and the next one knows of the effect."""
    monkeypatch.setattr(suspects, "HELD_BACK_US", 1)
    monkeypatch.setattr(besides, "MARK_SECONDS", 0.1)
    kit, app = memory_kit, App()
    _, world, _ = await set_up(kit, app)
    await dies_with_effect(kit, app)
    await world.send(Trap(1))
    process = await kit.process(app.program, settings=LONG_CLAIMS)
    await app.entered()
    await kit.jump(60)
    await called(app, 2)
    app.go_on()
    app.held.set()
    await process.close()


@pytest.mark.probe("trial.beside-an-effect")
async def test_a_death_beside_an_effect_that_processes_died_of_is_not_counted(memory_kit: Kit) -> None:
    kit, app = memory_kit, App(in_child=lambda: os._exit(1))
    client, world, at = await set_up(kit, app)
    await dies_with_effect(kit, app)
    await kit.jump(60)
    process = await kit.process(app.program, settings=LONG_CLAIMS)
    await called(app, 2)
    other = await client.universe.world("other")._handle.address()
    assert [each.work.alone for each in await kits.opened(client.engine, other)] == [True]
    await world.send(Trap(1))
    await app.entered()
    assert [each.work.alone for each in await kits.opened(client.engine, other)] == [False], "nor is that one's"
    found = await trial_of(client.engine, at)
    assert found is not None
    assert (found.running, found.beside) == (HolderActivity.STEP, True)
    process._cut.off = True
    app.go_on()
    await process.kill()
    await kit.jump(JUMP_SECONDS)
    app.inside.clear()
    app.deadly = True
    app.gate.clear()
    last = await kit.process(app.program, settings=LONG_CLAIMS)
    await app.entered()
    found = await trial_of(client.engine, at)
    assert found is not None
    assert (found.running, found.beside, found.step_deaths) == (HolderActivity.STEP, False, 0)
    app.go_on()
    assert await last.universe.world("w").ask(AddUp(1), timeout=20) == 2
    await last.close()
