"""Worlds are proved in the background: what does not come out the same is said, and nothing of a world changes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from tests.kits.sums import Add
from worldline.base import env as envs
from worldline.features.proofs import job as proof_job
from worldline.features.proofs import row_proof
from worldline.host.feature_list import PARTS
from worldline.inspect import why
from worldline.layers import blobs as blob_layer
from worldline.model import ids
from worldline.model.settings import JanitorSettings, Settings
from worldline.observe import measures, sinks
from worldline.runtime import facts, watchdog
from worldline.runtime.holder_job import HolderContext, JobWorld
from worldline.runtime.step_prover import Prover
from worldline.store import memory_engine
from worldline.worker import side_tasks

ALWAYS = kits.settings(janitor={"prove_ms": 60_000})

T = TypeVar("T")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once."""
    monkeypatch.setattr(proof_job, "IDLE_MS", 20)


class App:
    """Adds up. `twist` is called with every event, and what it returns is added as well."""

    def __init__(self, twist: Callable[[int], int] = lambda _: 0) -> None:
        self.program = app = wl.Program("p")
        self.seen: list[int] = []
        seen = self.seen

        @app.reducer()
        @dataclass
        class Sum:
            total: int = 0

            @wl.on
            def add(self, event: Add) -> None:
                seen.append(event.number)
                self.total += event.number + twist(seen.count(event.number))

        @app.workflow
        async def two() -> int:
            first = await wl.wait(Add)
            await wl.sleep(0.001)
            return first.number + (await wl.wait(Add)).number

        self.two = two


async def send(world: wl.World, *numbers: int) -> None:
    for number in numbers:
        await (await world.send(Add(number))).applied(20)


def found(process: Process) -> proof_job.Proofs:
    [made] = [job for job in process.host.jobs if isinstance(job, proof_job.Proofs)]
    return made


async def until_proved(process: Process, world: wl.World) -> None:
    at, height = await world._handle.address(), (await world.head()).height

    async def proved() -> bool:
        process.host.check()
        return found(process)._proved.get(at, 0) >= height

    await aio.until(proved)


def counting() -> tuple[measures.Meter, sinks.Observed]:
    meter = measures.Meter()
    return meter, sinks.Observed(facts.Telling([("meter", meter.tell)]))


async def test_a_world_is_proved_to_its_head_and_from_there_on(kit: Kit) -> None:
    """Runs, timers, snapshots on the way; each step is run again once."""
    app = App()
    meter, observed = counting()
    process = await kit.process(app.program, settings=ALWAYS, observed=observed)
    world = await process.universe.ensure("w", app.program)
    await kits.begin(world, app.two(), id="r")
    await send(world, 1)
    await until_proved(process, world)
    await world.snapshot()
    await send(world, 2, 3)
    assert await (await world.attach("r")).result(20) == 3
    await until_proved(process, world)
    head = await world.head()
    assert found(process).diverged == {}
    assert meter.value("worldline_proved_steps_total") == head.step
    assert [app.seen.count(number) for number in (1, 2, 3)] == [2, 2, 2]
    assert (await why.why(world._handle)).reasons == []
    await process.close()


async def test_code_that_does_something_else_again_is_said_and_the_world_goes_on(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, code that is not deterministic showed when a crash or an edit made it matter."""
    app = App(twist=lambda times: times - 1)
    meter, observed = counting()
    process = await kit.process(app.program, settings=ALWAYS, observed=observed)
    world = await process.universe.ensure("w", app.program)
    await send(world, 5)
    at = await world._handle.address()

    async def diverged() -> bool:
        return at in found(process).diverged

    with caplog.at_level(logging.ERROR, "worldline.janitor"):
        await aio.until(diverged)
        await send(world, 6, 7)
        await asyncio.sleep(0)
    assert (await world.state())["Sum"][""] == {"total": 18}
    divergence = found(process).diverged[at]
    assert divergence.height == 1
    assert "state" in divergence.message
    assert [record.name for record in caplog.records if "could not be proved" in record.getMessage()] == [
        "worldline.janitor"
    ]
    assert meter.value("worldline_proofs_diverged_total") == 1
    assert process.host.levels()["worldline_worlds_diverged"] == 1
    assert [(each.name, each.height) for each in process.host.dump().diverged] == [("w", 1)]

    client = await kit.process()
    looking = client.universe.world("w")

    async def told() -> bool:
        return bool([each for each in (await why.why(looking._handle)).reasons if each.kind == "unproved"])

    await aio.until(told)
    [reason] = [each for each in (await why.why(looking._handle)).reasons if each.kind == "unproved"]
    assert not reason.stuck
    assert "height 1" in reason.error
    assert reason.command == "worldline replay w --prove"
    await process.close()


async def test_workflows_that_do_something_else_again_are_found_when_they_are_rebuilt(memory_kit: Kit) -> None:
    app, times = wl.Program("p"), [0]

    @app.workflow
    async def unsteady() -> None:
        times[0] += 1
        wl.emit(Add(times[0]))
        await wl.sleep(3_600)

    process = await memory_kit.process(app, settings=ALWAYS)
    world = await process.universe.ensure("w", app)
    await kits.begin(world, unsteady(), id="r")

    async def diverged() -> bool:
        return bool(found(process).diverged)

    await aio.until(diverged)
    assert [run.id for run in await world.runs(status=wl.RunStatus.RUNNING)] == ["r"]
    await process.close()


async def test_with_a_budget_of_0_nothing_is_run_again(memory_kit: Kit) -> None:
    app = App()
    process = await memory_kit.process(app.program, settings=kits.settings(janitor={"prove_ms": 0}))
    world = await process.universe.ensure("w", app.program)
    await send(world, 1)
    assert not any(isinstance(job, proof_job.Proofs) for job in process.host.jobs)
    assert [each.name for each in process.host.dump().roles] == ["world worker", "effect worker", "timer worker"]
    await process.close()


async def test_code_that_does_not_return_again_is_left_behind_and_keeps_nothing_from_closing(memory_kit: Kit) -> None:
    gate = threading.Event()
    app = App(twist=lambda times: int(times > 1 and gate.wait(60)))
    settings = msgspec.structs.replace(ALWAYS, hang_ms=200)
    process = await memory_kit.process(app.program, settings=settings)
    world = await process.universe.ensure("w", app.program)
    await send(world, 1)

    async def said() -> bool:
        return bool(found(process).diverged)

    try:
        await aio.until(said)
        [divergence] = found(process).diverged.values()
        assert "did not return" in divergence.message
        await send(world, 2)
        await asyncio.wait_for(process.close(), 60)
    finally:
        gate.set()


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, MemoryError, asyncio.CancelledError])
async def test_code_that_raises_what_ends_a_process_ends_a_proof_alone(
    memory_kit: Kit, raised: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def twist(times: int) -> int:
        if times > 1:
            raise raised
        return 0

    app = App(twist)
    process = await memory_kit.process(app.program, settings=ALWAYS)
    world = await process.universe.ensure("w", app.program)
    with caplog.at_level(logging.WARNING, "worldline.janitor"):
        await send(world, 1)
        await until_proved(process, world)
    assert caplog.records, "it was said, one way or the other"
    await send(world, 2)
    await process.close()


async def test_every_world_has_its_turn(memory_kit: Kit) -> None:
    app = App()
    process = await memory_kit.process(app.program, settings=ALWAYS)
    worlds = [await process.universe.ensure(f"w{number}", app.program) for number in range(4)]
    for _ in range(3):
        for world in worlds:
            await send(world, 1)
    for world in worlds:
        await until_proved(process, world)
    assert len(found(process)._proved) == 4
    await process.close()


async def test_what_was_proved_before_is_folded_and_not_run(memory_kit: Kit) -> None:
    app = App()
    process = await memory_kit.process(app.program, settings=ALWAYS)
    world = await process.universe.ensure("w", app.program)
    for number in range(1, 6):
        await send(world, number)
        await until_proved(process, world)
    assert [app.seen.count(number) for number in range(1, 6)] == [2] * 5, "once live, once to prove it"
    await process.close()


@dataclass(frozen=True)
class Put:
    key: str
    text: str


async def test_a_large_world_is_proved_without_having_it_all_in_memory(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells stay where they are, save those that steps reach; also those that a delta starts from."""
    monkeypatch.setattr(proof_job, "CELLS_BYTES_MAX", 20_000)
    app = wl.Program("cells")

    @app.reducer(key="key")
    @dataclass
    class Cell:
        texts: list[str] = field(default_factory=list)

        @wl.on
        def put(self, event: Put) -> None:
            self.texts.append(event.text)

    read: list[int] = []
    build = Prover._stand

    def noting(self: Prover, *given: Any) -> None:
        build(self, *given)
        assert self._machine is not None
        if not self._machine.cells.are_all:  # before the first of the steps below, a proof begins at the world's birth
            read.append(len(self._machine.cells))

    process = await kit.process(app, settings=kits.settings(janitor={"prove_ms": 1}))
    world = await process.universe.ensure("w", app)
    sent = [await world.send(Put(f"k{number}", "first " * 100)) for number in range(200)]
    await world.send(Put("k3", "long " * 2_000))
    await sent[-1].applied(20)
    await world.snapshot()
    await process.close()
    monkeypatch.setattr(Prover, "_stand", noting)
    meter, observed = counting()
    process = await kit.process(app, settings=ALWAYS, observed=observed)
    world = process.universe.world("w")
    for turn in range(3):
        for number in (3, 3, 5, 150, 201 + turn):
            await (await world.send(Put(f"k{number}", f"{turn}"))).applied(20)
        await row_proof.witness_now(world._handle)
        await until_proved(process, world)
    assert found(process).diverged == {}
    assert found(process)._told == {}
    assert meter.value("worldline_proved_steps_total") >= 15
    assert 0 < max(read) < 40
    await process.close()


# --- The budget -----------------------------------------------------------------------------------------------


class Clock(envs.FixedEnv):
    """A clock that stands still until a test moves it."""

    now_us = 0

    def monotonic_us(self) -> int:
        return self.now_us


class Idle:
    """A worker that holds no world. `cycles`: how many are under way all the time."""

    def __init__(self, cycles: int) -> None:
        self.held: list[JobWorld] = []
        self.tasks = side_tasks.SideTasks(lambda: None)
        self._cycles = cycles

    def under_way(self) -> dict[int, watchdog.UnderWay]:
        return {number: watchdog.UnderWay(0, []) for number in range(self._cycles)}

    async def compute(self, at: ids.Address, do: Callable[..., T], *args: Any) -> T:
        raise NotImplementedError


def budgeted(prove_ms: int, *, cycles: int = 0) -> tuple[proof_job.Proofs, Clock]:
    env = Clock()
    engine: Any = memory_engine.MemoryEngine(env)
    blobs = blob_layer.Blobs(engine, Any, env, ids.UniverseId(bytes(16)))  # type: ignore[arg-type]
    settings = kits.settings(janitor={"prove_ms": prove_ms})
    context = HolderContext(engine, env, lambda _: blobs, [], PARTS, Idle(cycles), settings, facts.NOTHING)
    return proof_job.Proofs(context), env


async def test_a_slice_waits_until_the_budget_has_room_for_it() -> None:
    made, env = budgeted(600)  # 10 ms a second
    assert made._rest_ms() == 5_001, "it begins with nothing saved"
    env.now_us += 5_000_000
    assert made._rest_ms() == 0
    made._spent_us += 30_000
    assert made._rest_ms() == 3_001
    env.now_us += 3_600_000_000
    assert made._rest_ms() == 0
    made._spent_us += proof_job.SAVED_US_MAX
    assert made._rest_ms() > 0, "an hour without proofs is not caught up with"


async def test_a_slice_waits_for_cycles_but_not_for_ever() -> None:
    made, env = budgeted(60_000, cycles=1)
    env.now_us += 1_000_000
    rests = [made._rest_ms() for _ in range(proof_job.BUSY_LOOKS_MAX + 2)]
    assert rests == [proof_job.BUSY_MS] * proof_job.BUSY_LOOKS_MAX + [0, proof_job.BUSY_MS]


def test_it_is_on_by_default_and_bounded() -> None:
    assert 0 < Settings().janitor.prove_ms <= 1_000
    with pytest.raises(wl.BadInput, match="prove_ms is 60001"):
        JanitorSettings(prove_ms=60_001)
