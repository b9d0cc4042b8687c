"""asyncio and other awaitables inside a workflow: refused at once, with a hint, and nothing of it ever runs.

In a thread that runs worlds, as hosts have one, while the process has a loop running; in a hosted world; and in the
testing kit, in the main thread and under a running loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.from_thread
import pytest

import worldline as wl
from worldline import testing
from worldline.codec import structs
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands
from worldline.kernel import step as kernel_step
from worldline.kernel.machine import Machine, RunFinished
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.model import ids, inbox, payload, step_records
from worldline.model.journal import Kind
from worldline.worker import no_asyncio

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
app = wl.Program("asyncio")
ran: list[str] = []


@app.effect
async def shout(text: str) -> str:
    ran.append(text)
    return text


class Foreign:
    """An awaitable that yields whatever it likes."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield object()


async def innocent() -> None:
    ran.append("innocent")


@app.workflow
async def creates_task() -> None:
    coroutine = innocent()
    try:
        await asyncio.create_task(coroutine)
    finally:
        coroutine.close()


@app.workflow
async def gathers() -> None:
    coroutine = innocent()
    try:
        await asyncio.gather(coroutine)
    finally:
        coroutine.close()


@app.workflow
async def sleeps() -> None:
    await asyncio.sleep(1)


@app.workflow
async def yields() -> None:
    await asyncio.sleep(0)


@app.workflow
async def times_out() -> None:
    async with asyncio.timeout(1):
        await wl.sleep(1)


@app.workflow
async def goes_to_thread() -> None:
    await asyncio.to_thread(ran.append, "thread")


@app.workflow
async def waits_for() -> None:
    coroutine = innocent()
    try:
        await asyncio.wait_for(coroutine, 1)
    finally:
        coroutine.close()


@app.workflow
async def uses_event() -> None:
    await asyncio.Event().wait()


@app.workflow
async def asks_for_loop() -> None:
    asyncio.get_running_loop().call_soon(ran.append, "soon")


@app.workflow
async def awaits_foreign() -> None:
    await Foreign()


@app.workflow
async def goes_on_after() -> str:
    try:
        await Foreign()
    except wl.errors.NotDurable:
        await wl.sleep(1)
        return "recovered"
    return "not reached"


@app.workflow
async def insists() -> None:
    while True:
        try:
            await Foreign()
        except wl.errors.NotDurable:
            continue


@app.workflow
async def runs_a_loop() -> None:
    coroutine = innocent()
    try:
        asyncio.run(coroutine)
    finally:
        coroutine.close()


@app.workflow
async def runs_a_runner() -> None:
    coroutine = innocent()
    try:
        asyncio.Runner().run(coroutine)
    finally:
        coroutine.close()


@app.workflow
async def makes_a_loop() -> None:
    coroutine = innocent()
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        coroutine.close()
        loop.close()


@app.workflow
async def anyio_sleeps() -> None:
    await anyio.sleep(1)


@app.workflow
async def anyio_groups() -> None:
    async with anyio.create_task_group():
        ran.append("group")


@app.workflow
async def anyio_runs() -> None:
    anyio.run(innocent)


@app.workflow
async def anyio_finds_no_loop() -> None:
    anyio.from_thread.run(innocent)


REFUSED = [
    creates_task,
    gathers,
    sleeps,
    yields,
    times_out,
    goes_to_thread,
    waits_for,
    uses_event,
    asks_for_loop,
    awaits_foreign,
    insists,
    runs_a_loop,
    runs_a_runner,
    makes_a_loop,
    anyio_sleeps,
    anyio_groups,
    anyio_runs,
    anyio_finds_no_loop,
]
HINT = "put asyncio and other I/O into an @effect"


def run_of(call: wl.Call[Any]) -> JournaledFailure:
    """Start a run on a bare machine, in this thread as it is, and say how it ended."""
    machine = Machine(app)
    wanted = structs.encode(control_commands.StartRun("r", call.target.name, call.pack(), b"s" * 16, named=True))
    item = inbox.Control(control_commands.RUN, payload.inline(wanted), "c")
    stepped = kernel_step.step(machine, step_records.Input(item, wanted), step_records.StepContext(HOME, 1, 1), PARTS)
    machine.close()
    ended = next(draft for draft in stepped.drafts if draft.kind is Kind.RUN_FINISHED)
    return structs.decode(JournaledFailure, structs.decode(RunFinished, ended.payload).data)


@pytest.mark.parametrize("flow", REFUSED, ids=lambda flow: flow.name)
async def test_in_a_thread_that_runs_worlds(flow: wl.Workflow[..., Any]) -> None:
    ran.clear()
    with ThreadPoolExecutor(1, initializer=no_asyncio.refuse_asyncio) as kernel:
        failure = await asyncio.get_running_loop().run_in_executor(kernel, run_of, flow())
    assert failure.message.count(HINT) == 1, failure
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert ran == []


@pytest.mark.parametrize("flow", [runs_a_loop, makes_a_loop, creates_task], ids=lambda flow: flow.name)
async def test_in_a_hosted_world(flow: wl.Workflow[..., Any]) -> None:
    ran.clear()
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        with pytest.raises(wl.RunFailed, match=HINT):
            await world.run(flow())
        assert (await world._handle.machine()).runs  # read by replaying, where the same is refused
    assert ran == []


@pytest.mark.parametrize("flow", REFUSED, ids=lambda flow: flow.name)
def test_in_the_testing_kit(flow: wl.Workflow[..., Any]) -> None:
    ran.clear()
    with testing.world(app) as world, pytest.raises(wl.RunFailed, match=HINT):
        world.run(flow())
    gc.collect()
    assert ran == []


@pytest.mark.parametrize("flow", REFUSED, ids=lambda flow: flow.name)
async def test_in_the_testing_kit_under_a_running_loop(flow: wl.Workflow[..., Any]) -> None:
    ran.clear()
    loop = asyncio.get_running_loop()
    with testing.world(app) as world, pytest.raises(wl.RunFailed, match=HINT):
        world.run(flow())
    assert asyncio.get_running_loop() is loop
    for _ in range(3):
        await asyncio.sleep(0)
    assert ran == []


def test_a_workflow_may_catch_the_refusal_and_go_on() -> None:
    with testing.world(app) as world:
        assert world.run(goes_on_after()) == "recovered"
        world.prove()


@pytest.mark.parametrize("kind", [asyncio.Future, concurrent.futures.Future, "text", 5, None])
def test_whatever_is_yielded_is_named(kind: Any) -> None:
    class Yields:
        def __await__(self) -> Generator[Any, Any, None]:
            yield kind

    odd = wl.Program("odd")

    @odd.workflow
    async def awaits() -> None:
        await Yields()

    with testing.world(odd) as world, pytest.raises(wl.RunFailed, match=f"awaited {type(kind).__name__}"):
        world.run(awaits())


def test_an_effect_may_use_asyncio_and_its_failures_are_its_own() -> None:
    """What asyncio's own code raises in an effect says nothing of workflows."""
    network = wl.Program("network")

    @network.effect(retry=wl.Retry(attempts=1))
    async def connects() -> None:
        asyncio.Queue[int]().get_nowait()

    @network.workflow
    async def flow() -> str:
        try:
            await connects()
        except wl.EffectFailed as failed:
            return str(failed)
        return "connected"

    with testing.world(network, wl.Script().on(connects, connects)) as world:
        assert world.run(flow()) == "connects: QueueEmpty"
