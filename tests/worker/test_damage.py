"""Records of one world that cannot be read, and effects that raise what ends processes: no role ends, and the others'
worlds, effects and timers go on.
"""

from __future__ import annotations

import asyncio
import sys

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits import sums
from tests.kits.kit import Kit, Process
from tests.kits.sums import AddUp
from worldline.client import send_door
from worldline.host import process as processes
from worldline.kernel import user_values
from worldline.keys import leases as lease_keys
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.layers import work as works
from worldline.model import ids, inbox, payload
from worldline.model.roles import Role
from worldline.runtime import placement
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class UnspeakableTimeout(TimeoutError):
    def __str__(self) -> str:
        raise RuntimeError("no")


class UnspeakableEnd(wl.Fatal):
    def __str__(self) -> str:
        raise RuntimeError("no")


def fail(kind: str) -> str:
    match kind:
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "stop":
            raise StopIteration(1)
        case "cancelled":
            raise asyncio.CancelledError
        case "unspeakable":
            raise Unspeakable
        case "timeout":
            raise UnspeakableTimeout
        case "fatal":
            raise UnspeakableEnd("no")
        case "generator":
            raise GeneratorExit
        case _:
            return kind


KINDS = ["exit", "interrupt", "stop", "cancelled", "unspeakable", "timeout", "fatal", "generator"]


class App:
    def __init__(self) -> None:
        self.program = app = sums.program()

        @app.effect(retry=wl.Retry(attempts=1))
        def in_thread(kind: str) -> str:
            return fail(kind)

        @app.effect(retry=wl.Retry(attempts=1))
        async def on_loop(kind: str) -> str:
            return fail(kind)

        @app.effect(retry=wl.Retry(attempts=9, initial_delay=0.4))
        async def again() -> str:
            raise ValueError("not yet")

        @app.workflow
        async def insist() -> str:
            return await again()

        @app.workflow
        async def use(kind: str, thread: bool) -> str:
            try:
                return await (in_thread(kind) if thread else on_loop(kind))
            except wl.EffectFailed:
                return "failed"

        @app.workflow
        async def nap(seconds: float) -> str:
            await wl.sleep(seconds)
            return "woke"

        self.use, self.nap, self.insist = use, nap, insist


async def change(engine: kv.Engine, key: bytes) -> None:
    """Turn a bit of a record."""
    raw = (await engine.read(kv.Get(key))).value(0)
    assert raw is not None
    batch = kv.Batch()
    batch.expect(key, raw)
    batch.put(key, raw[:-1] + bytes([raw[-1] ^ 1]))
    assert isinstance((await engine.commit(batch))[0], kv.Ok)


async def well(process: Process, app: App) -> None:
    """A world that is not damaged answers, has effects and timers; no role has ended or is in trouble now."""
    world = await process.universe.ensure("good", app.program)
    assert await world.ask(AddUp(0), timeout=10) == 0
    assert await world.run(app.use("fine", False), timeout=10) == "fine"
    assert await world.run(app.nap(0.05), timeout=10) == "woke"
    assert process.host.failed is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("thread", [True, False], ids=["thread", "loop"])
async def test_an_effect_that_raises_what_ends_processes_fails_alone(memory_kit: Kit, kind: str, thread: bool) -> None:
    app = App()
    process = await memory_kit.process(app.program)
    world = await process.universe.ensure("w", app.program)
    if (kind, thread) != ("generator", False):  # on the loop its claim runs out, and that was the last attempt
        assert await world.run(app.use(kind, thread), timeout=20) == "failed"
    await well(process, app)
    await process.close()


@pytest.mark.parametrize("which", ["meta", "epoch", "assignment", "index"])
async def test_worlds_whose_records_cannot_be_read_hide_no_others(memory_kit: Kit, which: str) -> None:
    """Every role looks at all worlds now and then: they skip what is damaged."""
    app = App()
    async with memory_kit.hosting() as client:
        worlds = [await client.create(f"w{number}", app.program) for number in range(4)]
        engine = client._connection.store.engine
        for number, world in enumerate(worlds):
            at = await world._handle.address()
            await send_door.enqueue(
                client._connection, at, inbox.InboxEvent("AddUp", payload.inline(user_values.dump(AddUp(number))))
            )
        bad = await worlds[1]._handle.address()
        key = {
            "meta": world_keys.meta_key(bad),
            "epoch": lease_keys.epoch_key(bad),
            "index": world_keys.index_key(bad),
            "assignment": lease_keys.assignment_key(bad),
        }[which]
        if which == "assignment":
            batch = kv.Batch()
            batch.absent(key)
            batch.put(key, b"not a record")
            assert isinstance((await engine.commit(batch))[0], kv.Ok)
        else:
            await change(engine, key)
        process = await memory_kit.process(app.program)
        roles = (Role.ORCHESTRATOR, Role.JANITOR)
        opened = process.universe._connection
        beside = processes.ProcessHost(
            opened.store,
            Universes.only(opened.id),
            [app.program],
            blobs=lambda _: opened.blobs,
            settings=kits.SETTINGS,
            roles=roles,
        )
        beside.start()
        for number in (0, 2, 3):
            world = process.universe.world(f"w{number}")
            assert await world.ask(AddUp(0), timeout=20) == number
        await well(process, app)
        await beside._orchestrator.turn()  # type: ignore[union-attr]
        assert beside.failed is None
        assert not [each for each in beside._loops if each.last_error is not None]
        trouble = process.host._loops[0].last_error
        assert trouble is None, "searching goes on without a fault"
        await beside.close()
        await process.close()


@pytest.mark.parametrize("kind", ["effect", "timer"])
async def test_work_whose_record_cannot_be_read_holds_up_no_other(memory_kit: Kit, kind: str) -> None:
    app = App()
    process = await memory_kit.process(app.program, settings=kits.settings(adapter={"concurrency": 1}))
    world = await process.universe.ensure("w", app.program)
    at = await world._handle.address()
    _ = await world.start(app.nap(0.4) if kind == "timer" else app.insist(), id="damaged")

    async def opened() -> bool:
        found = await kits.opened(process.engine, at)
        return bool(found) and found[0].work.state in works.CLAIMABLE

    await aio.until(opened)
    [work] = await kits.opened(process.engine, at)
    await change(process.engine, work_keys.open_key(at, ids.IntentId(work.intent)))
    await asyncio.sleep(0.5)
    number = 2 if kind == "timer" else 1
    began = process.host._loops[number].ticks
    await well(process, app)
    await asyncio.sleep(0.5)
    assert process.host._loops[number].ticks - began < 100, "it does not run hot over what it cannot read"
    assert process.host.failed is None
    assert process.host._loops[number].last_error is None
    await process.kill()


def test_labels_of_refusals_are_not_for_hands() -> None:
    at = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(16)))
    assert placement.reserved(placement.refused_label(at))
