"""The crash budget: an input that processes die of is settled without its code, a world that cannot be restored is
paused, and nothing else is counted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit
from tests.kits.sums import AddUp, Trap
from worldline.base import env as envs
from worldline.base import errors
from worldline.inspect import doctor, store_queries
from worldline.inspect import why as reasons
from worldline.keys import trial as trial_keys
from worldline.layers import trial as trials
from worldline.model import ids
from worldline.model.journal import Kind
from worldline.model.leases import CrashTrial, HolderActivity
from worldline.model.world_records import Status
from worldline.observe import measures, sinks
from worldline.runtime import facts, operator_calls, world_restore
from worldline.store import kv
from worldline.worker import held_world

BUDGET = 3


class App:
    """A program whose code stops where a process is to die: `inside` says that it is there, `gate` lets it go on."""

    def __init__(self) -> None:
        self.program = app = sums.program(trap=self.stop)
        self.inside, self.gate, self.deadly = threading.Event(), threading.Event(), True
        self._process = os.getpid()
        owner = self

        @app.effect
        async def fetch(number: int) -> int:
            return number

        @app.workflow
        async def fetches(number: int) -> int:
            got = await fetch(number)
            owner.stop()
            return got

        self.fetches = fetches

    def stop(self) -> None:
        if self.deadly and os.getpid() != self._process:
            os._exit(9)  # a child process, in which it is tried once more
        if self.deadly:
            self.inside.set()
            self.gate.wait(60)


async def dies(kit: Kit, app: App, **options: Any) -> None:
    """A process that dies in the middle of a step."""
    app.inside.clear()
    app.gate.clear()
    process = await kit.process(app.program, **options)
    assert await asyncio.to_thread(app.inside.wait, 20), "no step got that far"
    process._cut.off = True
    app.gate.set()  # what the step comes to reaches no store
    await process.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)


async def trial_of(engine: kv.Engine, at: ids.Address) -> CrashTrial | None:
    return trials.decode_trial((await engine.read(trials.get(at))).value(0))


@pytest.mark.probe("trial.taken-over")
@pytest.mark.probe("trial.settled-unseen")
async def test_an_input_that_processes_die_of_becomes_a_dead_letter(kit: Kit) -> None:
    app, meter = App(), measures.Meter()
    client = await kit.process()
    client.universe._connection.knows(app.program)
    world = await client.universe.ensure("w", app.program)
    at = await world._handle.address()
    await world.send(AddUp(1))
    await world.send(Trap())
    await world.send(AddUp(5))
    observed = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    for deaths in (None, 0, 1, 2):
        await dies(kit, app, observed=observed)
        found = await trial_of(client.engine, at)
        assert deaths == (None if found is None or found.running is not HolderActivity.STEP else found.step_deaths)
        said = [each.what for each in (await reasons.why(world._handle)).reasons if each.kind == "trial"]
        assert bool(said) == bool(deaths)
    last = await kit.process(app.program, observed=observed)
    assert await last.universe.world("w").ask(AddUp(0), timeout=30) == 6
    [letter] = await kits.dead(client.engine, at)
    assert "3 times in a row the process died" in letter.dead.reason
    assert (await kits.kinds(world)).count(Kind.POISON) == 1
    assert meter.value("worldline_step_deaths_total", "died") == BUDGET
    assert await trial_of(client.engine, at) is None
    why = await reasons.why(world._handle)
    assert any(each.kind == "dead" and "without running any code" in each.error for each in why.reasons)
    app.deadly = False
    await kits.prove(world, app.program)
    await last.close()


async def test_a_change_of_code_that_processes_die_of_blocks_the_run_and_not_the_world(memory_kit: Kit) -> None:
    """The step that adopts changed code tries blocked runs again: it counted as the restore, and paused the world."""
    kit, app, changed = memory_kit, App(), App()

    @changed.program.workflow
    async def other() -> None: ...

    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    starting = asyncio.ensure_future(kits.begin(world, app.fetches(7), id="r"))
    for _ in range(1 + BUDGET):
        await dies(kit, app)
    await starting
    first = await kit.process(app.program)
    assert await first.universe.world("w").ask(AddUp(3), timeout=30) == 3
    await first.close()
    await world.send(AddUp(4))
    for _ in range(1 + BUDGET):
        await dies(kit, changed)
    last = await kit.process(changed.program)
    hosted = last.universe.world("w")
    assert await hosted.ask(AddUp(0), timeout=30) == 7
    machine = await hosted._handle.machine()
    assert "was not continued: 3 times in a row" in machine.runs["r"].record.blocked
    assert machine.origin.program_hash == changed.program.hash
    await last.close()


async def test_a_receipt_that_processes_die_of_blocks_its_run_alone(memory_kit: Kit) -> None:
    kit, app = memory_kit, App()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    starting = asyncio.ensure_future(kits.begin(world, app.fetches(7), id="r"))
    for _ in range(1 + BUDGET):
        await dies(kit, app)
    await starting
    last = await kit.process(app.program)
    hosted = last.universe.world("w")
    assert await hosted.ask(AddUp(3), timeout=30) == 3
    machine = await hosted._handle.machine()
    record = machine.runs["r"].record
    assert "was not continued: 3 times in a row" in record.blocked
    assert record.ops[0].outcome is not None
    assert await kits.dead(client.engine, await world._handle.address()) == []
    await last.close()


async def test_idle_hosts_killed_a_hundred_times_count_nothing(memory_kit: Kit) -> None:
    kit, app = memory_kit, App()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    for number in range(100):
        process = await kit.process(app.program)
        assert await process.universe.world("w").ask(AddUp(1), timeout=20) == number + 1
        await process.kill()
        await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    at = await world._handle.address()
    found = await trial_of(client.engine, at)
    assert found is None or (found.step_deaths, found.restore_deaths) == (0, 0)
    assert await kits.dead(client.engine, at) == []


async def test_a_release_ends_the_trial(memory_kit: Kit) -> None:
    kit, app = memory_kit, App()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    at = await world._handle.address()
    await world.send(Trap())
    await dies(kit, app)
    await dies(kit, app)
    found = await trial_of(client.engine, at)
    assert found is not None
    assert found.running is HolderActivity.STEP
    app.deadly = False
    async with kit.hosting(app.program) as universe:
        assert await universe.world("w").ask(AddUp(1), timeout=20) == 1
    assert await trial_of(client.engine, at) is None


class DiesRestoring(kits.Around):
    """An engine whose process dies as soon as it has said that it restores a world on trial."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.dead = asyncio.Event()

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        if self.dead.is_set():
            raise errors.StoreFailed("this process is dead")
        outcomes = await super().commit(*batches)
        for batch in batches:
            for key, put in batch.puts.items():
                if (
                    key.endswith(trial_keys._TRIAL)
                    and trial_keys.TRIAL.unpack(put.value).running is HolderActivity.RESTORE
                ):
                    self.dead.set()
                    raise errors.StoreFailed("this process is dead")
        return outcomes


async def die_restoring(kit: Kit, app: App, deaths: int) -> None:
    """So many processes die while they restore the world."""
    for _ in range(deaths):
        engines: list[DiesRestoring] = []

        def wrap(engine: kv.Engine, engines: list[DiesRestoring] = engines) -> kv.Engine:
            engines.append(DiesRestoring(engine))
            return engines[0]

        process = await kit.process(app.program, wrap=wrap)
        await asyncio.wait_for(engines[0].dead.wait(), 20)
        await process.kill()
        await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)


@pytest.fixture
def deadly_restore(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Restoring a world ends a child process, as long as the list says so."""
    deadly, process, build = [True], os.getpid(), world_restore.build

    def dying(*given: Any) -> world_restore.RestoredWorld:
        if deadly[0] and os.getpid() != process:
            os.kill(os.getpid(), signal.SIGKILL)
        return build(*given)

    monkeypatch.setattr(world_restore, "build", dying)
    return deadly


async def status_of(world: wl.World) -> Status:
    return (await world._handle.describe()).meta.status


async def test_a_world_that_processes_and_a_child_die_restoring_is_quarantined_until_resume(
    memory_kit: Kit, deadly_restore: list[bool]
) -> None:
    kit, app, meter = memory_kit, App(), measures.Meter()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    at = await world._handle.address()
    await world.send(Trap())
    await dies(kit, app)
    await die_restoring(kit, app, BUDGET)
    observed = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    last = await kit.process(app.program, observed=observed)

    async def paused() -> bool:
        return await status_of(world) is Status.PAUSED

    await aio.until(paused)
    assert meter.value("worldline_quarantines_total") == 1
    assert meter.value("worldline_last_attempts_total", "died") == 1
    await world.send(AddUp(4))  # it takes input
    why = await reasons.why(world._handle)
    assert why.reasons[0].kind == "quarantined"
    assert "3 processes in a row died while they restored it" in why.reasons[0].what
    assert "child process: signal 9" in why.reasons[0].what
    assert "it is tried again in " in why.reasons[0].what
    assert why.reasons[0].command == "worldline resume w"
    shown = await store_queries.show_world(client.universe._connection, at)
    assert shown.quarantined == BUDGET
    assert shown.quarantined_until is not None
    [finding] = (await doctor.examine(client.universe._connection, repair=False)).findings
    assert (finding.kind, finding.advice) == ("quarantined", "fix the cause, then worldline resume w")
    app.deadly = deadly_restore[0] = False
    await world.resume()
    assert await last.universe.world("w").ask(AddUp(0), timeout=20) == 4
    await last.close()
    assert await trial_of(client.engine, at) is None


@pytest.mark.probe("trial.quarantine-over")
async def test_a_quarantine_ends_by_itself_and_the_next_lasts_twice_as_long(
    memory_kit: Kit, deadly_restore: list[bool]
) -> None:
    kit, app = memory_kit, App()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    at = await world._handle.address()
    await world.send(Trap())
    await dies(kit, app)
    await die_restoring(kit, app, BUDGET)
    app.deadly = False
    lasts_ms = 50_000
    settings = kits.settings(worker={"quarantine_ms": lasts_ms, "quarantine_max_ms": 3 * lasts_ms})
    last = await kit.process(app.program, settings=settings)
    for number, times in enumerate((1, 2, 3, 3)):

        async def quarantined(number: int = number) -> bool:
            found = await trial_of(client.engine, at)
            return found is not None and found.until_us > 0 and found.quarantines == number + 1

        await aio.until(quarantined)
        found = await trial_of(client.engine, at)
        assert found is not None
        left_ms = (found.until_us - (await client.engine.read()).time_us) // 1000
        assert (times - 1) * lasts_ms < left_ms <= times * lasts_ms
        deadly_restore[0] = number < 3
        await kit.jump(left_ms / 1000 + 0.1)
    assert await last.universe.world("w").ask(AddUp(4), timeout=20) == 4
    assert await trial_of(client.engine, at) is None
    await last.close()


async def test_a_world_that_a_child_can_restore_is_not_quarantined(memory_kit: Kit) -> None:
    """Processes died while they restored it, of something else."""
    kit, app, meter = memory_kit, App(), measures.Meter()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    await world.send(Trap())
    await dies(kit, app)
    await die_restoring(kit, app, BUDGET)
    app.deadly = False
    observed = sinks.Observed(facts.Telling([("meter", meter.tell)]))
    last = await kit.process(app.program, observed=observed)
    assert await last.universe.world("w").ask(AddUp(4), timeout=20) == 4
    assert meter.value("worldline_last_attempts_total", "survived") == 1
    assert meter.value("worldline_quarantines_total") == 0
    await last.close()


async def test_a_world_that_processes_die_reading_is_quarantined_without_a_child(memory_kit: Kit) -> None:
    """A child is given what was read. If no process gets so far, twice the budget decides."""
    kit, app = memory_kit, App()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    await world.send(Trap())
    await dies(kit, app)
    await die_restoring(kit, app, 2 * BUDGET)
    last = await kit.process(app.program)

    async def paused() -> bool:
        return await status_of(world) is Status.PAUSED

    await aio.until(paused)
    assert "6 processes in a row died while they restored it" in (await reasons.why(world._handle)).reasons[0].what
    await world.pause()  # a person's doing does not end by itself
    assert (await reasons.why(world._handle)).reasons[0].kind == "paused"
    await last.close()


class SlowToRestore(kits.Around):
    """An engine under which the restore of a world on trial takes so long that another begins its step, if it may."""

    def __init__(self, engine: kv.Engine, slow: ids.Address, begun: threading.Event) -> None:
        super().__init__(engine)
        self._slow = slow
        self._begun = begun

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        for batch in batches:
            put = batch.puts.get(trial_keys.trial_key(self._slow))
            is_restored = put is not None and trial_keys.TRIAL.unpack(put.value).running is HolderActivity.NOTHING
            if is_restored and await asyncio.to_thread(self._begun.wait, 0.3):
                raise errors.StoreFailed("the process has died of that step")
        return await super().commit(*batches)


@pytest.mark.probe("trial.restored-alone")
async def test_a_world_that_is_restored_beside_a_deadly_step_is_not_quarantined(memory_kit: Kit) -> None:
    kit, app = memory_kit, App()
    client = await kit.process()
    deadly = await client.universe.ensure("deadly", app.program)
    world = await client.universe.ensure("innocent", app.program)
    at = await world._handle.address()
    async with kit.hosting(app.program) as universe:
        assert await universe.world("innocent").ask(AddUp(1), timeout=20) == 1
    await world.send(AddUp(1))
    await deadly.send(Trap())
    for _ in range(1 + BUDGET):
        await world.send(AddUp(1))
        await dies(kit, app, wrap=lambda engine: SlowToRestore(engine, at, app.inside))
    last = await kit.process(app.program)
    assert await last.universe.world("innocent").ask(AddUp(0), timeout=20) == 3 + BUDGET
    assert await last.universe.world("deadly").ask(AddUp(0), timeout=20) == 0
    assert len(await kits.dead(client.engine, await deadly._handle.address())) == 1
    await last.close()


async def test_nothing_is_handed_over_to_a_world_on_trial(memory_kit: Kit) -> None:
    """What its process would die of is in the inbox, so the next process knows it."""
    kit, app = memory_kit, App()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    await world.send(Trap())
    await dies(kit, app)
    app.inside.clear()
    app.gate.clear()
    process = await kit.process(app.program)
    await asyncio.to_thread(app.inside.wait, 20)
    asked = asyncio.ensure_future(process.universe.world("w").ask(AddUp(1), timeout=20))
    at = await world._handle.address()

    async def there() -> bool:
        return await kits.unread(client.engine, at) == 2

    await aio.until(there)
    app.gate.set()
    assert await asked == 1
    held = process.host.worlds._holdings.peek(at)

    async def over() -> bool:
        return not held.on_trial

    await aio.until(over)
    assert await process.universe.world("w").ask(AddUp(1), timeout=20) == 2
    await process.close()


class Marks(kits.Around):
    """Counts the inputs that are written down before their steps."""

    def __init__(self, engine: kv.Engine) -> None:
        super().__init__(engine)
        self.count = 0

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        for batch in batches:
            for key, put in batch.puts.items():
                if key.endswith(trial_keys._TRIAL):
                    self.count += trial_keys.TRIAL.unpack(put.value).running is HolderActivity.STEP
        return await super().commit(*batches)


class Revoked(kits.Around):
    """The lease is revoked right before the first world on trial is said to be restored."""

    def __init__(self, engine: kv.Engine, env: envs.Env) -> None:
        super().__init__(engine)
        self._env = env
        self.at: ids.Address | None = None

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        at = self.at
        put = None if at is None else batches[0].puts.get(trial_keys.trial_key(at))
        if at is not None and put is not None and trial_keys.TRIAL.unpack(put.value).running is HolderActivity.NOTHING:
            self.at = None
            await operator_calls.revoke_lease(self._engine, self._env, at)
        return await super().commit(*batches)


async def test_a_caller_whose_world_is_lost_while_it_is_restored_is_answered(memory_kit: Kit) -> None:
    """It was told that the world has moved on from an epoch."""
    kit, app = memory_kit, App()
    first = await kit.process(app.program)
    world = await first.universe.ensure("w", app.program)
    assert await world.ask(AddUp(1), timeout=20) == 1
    at = await world._handle.address()
    await first.kill()
    await kit.jump(kits.LEASE_TTL_MS / 1000 + 0.1)
    engines: list[Revoked] = []

    def wrap(engine: kv.Engine) -> kv.Engine:
        engines.append(Revoked(engine, kit.env))
        engines[0].at = at
        return engines[0]

    last = await kit.process(app.program, wrap=wrap)
    assert await last.universe.world("w").ask(AddUp(1), timeout=20) == 2
    assert engines[0].at is None
    await last.close()


@pytest.mark.parametrize("most", [2, 1_000])
async def test_a_trial_has_an_end(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(held_world, "TRIAL_STEPS_MAX", most)
    kit, app = memory_kit, App()
    client = await kit.process()
    world = await client.universe.ensure("w", app.program)
    await world.send(Trap())
    await dies(kit, app)
    app.deadly = False
    for _ in range(4):
        await world.send(AddUp(1))
    engines: list[Marks] = []

    def wrap(engine: kv.Engine) -> kv.Engine:
        engines.append(Marks(engine))
        return engines[0]

    last = await kit.process(app.program, wrap=wrap)
    assert await last.universe.world("w").ask(AddUp(0), timeout=20) == 4
    assert engines[0].count in ((2,) if most == 2 else (5, 6)), "the question may come on trial or after it"
    await last.close()
