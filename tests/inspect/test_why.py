"""why: a world that waits has what it waits for; one that cannot go on has the reason."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest

import worldline as wl
from tests import aio
from tests.inspect import doubling
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add, program
from tests.worker import test_containment as containment
from worldline.api import wiring
from worldline.client.world_handle import Handle
from worldline.inspect import block_times, entry_text, why
from worldline.model.journal import Kind
from worldline.runtime import world_holders


async def test_a_sleep_has_no_command_and_no_fault(memory_kit: Kit) -> None:
    app = program()

    @app.workflow
    async def nap() -> None:
        await wl.sleep(3_600)

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await kits.begin(world, nap(), id="r")
        [reason] = (await why.why(world._handle)).reasons
    assert (reason.kind, reason.stuck, reason.command) == ("timer", False, "")
    assert reason.until is not None


async def test_a_refused_world_is_not_reported_as_unhosted(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    containment.quickly(monkeypatch, 20)
    app = containment.program()
    host = await memory_kit.process(app)
    client = await memory_kit.process()
    world = await client.universe.ensure("w", app)
    containment.broken_step(monkeypatch, lambda: MemoryError("no memory for this"))
    await world.send(containment.Poison())
    await containment.until_refused(host, await world._handle.address())

    opened, at = client.universe._connection, await world._handle.address()

    async def told() -> bool:
        return not await world_holders.is_hosted(opened.store, at) and bool(
            await world_holders.refusals_of(opened.store, at)
        )

    await aio.until(told)
    stuck = [each for each in (await why.why(world._handle)).reasons if each.stuck]
    assert [each.kind for each in stuck] == ["refused"]
    assert "MemoryError" in stuck[0].error or "memory" in stuck[0].error


async def test_a_blocked_run_is_told_without_its_program(memory_kit: Kit) -> None:
    await _changed(memory_kit)
    client = await memory_kit.process()
    handle = Handle(client.universe._connection, "w")
    [blocked] = [each for each in (await why.why(handle)).reasons if each.stuck]
    assert (blocked.kind, blocked.run) == ("blocked", "r")
    assert "worldline runs retry w r" in blocked.error
    assert "WORLD" not in blocked.error
    ways = [f"worldline runs {way}" for way in ("retry w r", "answer w r 1 VALUE", "reset w r --to 1", "terminate w r")]
    assert (blocked.command, blocked.ways) == (ways[0], ways)


async def test_a_run_is_blocked_since_it_blocked(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not since it was fed last; what is too long ago to be found has no time, which is better than a wrong one."""
    await _changed(memory_kit)
    client = await memory_kit.process()
    handle = Handle(client.universe._connection, "w")
    [entry] = [each for each in await handle.journal() if each.kind is Kind.RUN_BLOCKED]
    [record] = [run.record for run in (await handle.machine()).live_runs()]
    assert (record.log[-1].time_us if record.log else record.started_us) < entry.time_us
    [blocked] = [each for each in (await why.why(handle)).reasons if each.kind == "blocked"]
    assert blocked.since == entry_text.when(entry.time_us)

    monkeypatch.setattr(block_times, "PAGE_ENTRIES", 1)
    assert await block_times.of_runs(handle, ["r", "none"]) == {"r": entry.time_us}
    monkeypatch.setattr(block_times, "ENTRIES_MAX", (await handle.head()).height - entry.height)
    assert await block_times.of_runs(handle, ["r"]) == {}


async def test_a_name_is_written_as_a_shell_takes_it(memory_kit: Kit) -> None:
    app = _flowing(lambda app: None)
    client = await memory_kit.process()
    universe = client.universe
    await universe.ensure("the world", app)
    await universe.world("the world").pause()
    [reason] = (await why.why(Handle(universe._connection, "the world"))).reasons
    assert reason.command == "worldline resume 'the world'"


async def test_a_world_is_looked_at_without_its_code(memory_kit: Kit) -> None:
    """Code that does something else than the journal says keeps no world from being read, or hosted."""
    app, other = program(), doubling.program()

    @app.workflow
    async def hold() -> None:
        await wl.wait(Add)

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Add(1))).applied(20)
        await kits.begin(world, hold(), id="r")
        host = wiring.host_of(universe._connection)
        host.abandon()  # nothing is saved: the whole journal is above the baseline
    client = await memory_kit.process()
    client.universe._connection.knows(other)
    await memory_kit.jump(kits.LEASE_TTL_MS / 1000 + 0.2)  # nothing hosts it any more
    found = await why.why(Handle(client.universe._connection, "w"))
    assert [(each.kind, each.run, each.stuck) for each in found.reasons] == [
        ("not_hosted", "", False),
        ("wait", "r", False),
    ]


async def test_a_paused_world_needs_no_host(memory_kit: Kit) -> None:
    client = await memory_kit.process()
    world = await client.universe.ensure("w", program())
    await world.send(Add(1))
    await world.pause()
    stuck = [each for each in (await why.why(world._handle)).reasons if each.stuck]
    assert [(each.kind, each.command) for each in stuck] == [("paused", "worldline resume w")]


async def test_finished_runs_have_an_end(memory_kit: Kit) -> None:
    app = program()

    @app.workflow
    async def quick() -> int:
        await wl.sleep(0.01)
        return 1

    @app.workflow
    async def wait() -> None:
        await wl.wait(Add)

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await kits.begin(world, wait(), id="waits")
        assert await world.run(quick(), id="ends", timeout=20) == 1
        ended, waiting = await why.list_runs(world._handle)
    assert (ended.id, ended.status) == ("ends", "finished")
    assert ended.ended is not None
    assert ended.ended > ended.started
    assert waiting.ended is None


# --- Code that does not return --------------------------------------------------------------------------------------


def _stuck(app: wl.Program, hang: Callable[[], None]) -> wl.Program:
    @app.workflow
    async def flow() -> int:
        first = await wl.wait(Add)
        hang()
        return first.number + (await wl.wait(Add)).number

    return app


def _loops() -> None:
    while True:
        pass


def _loops_and_catches() -> None:
    while True:
        with contextlib.suppress(BaseException):
            _loops()


@pytest.mark.parametrize("hang", [_loops, _loops_and_catches])
async def test_code_that_does_not_return_does_not_keep_a_run_from_being_shown(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, hang: Callable[[], None]
) -> None:
    """Before, the code ran on the event loop, and nothing of the process went on any more."""
    app = _stuck(program(), lambda: None)
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await kits.begin(world, app.workflows["flow"](), id="r")
        await (await world.send(Add(1))).applied(20)
    client = await memory_kit.process()
    client.universe._connection.knows(_stuck(program(), hang))
    monkeypatch.setattr(why, "CODE_SECONDS_MAX", 0.2)
    handle = Handle(client.universe._connection, "w")
    found = await asyncio.wait_for(why.find_run(handle, "r"), 20)
    assert [(each.number, each.state) for each in found.operations] == [(1, "ok"), (2, "open")]
    assert found.note.startswith("the arguments that its code passes now are not known: the code did not return within")
    assert "_loops" in found.note
    assert (await why.why(handle)).reasons, "the process goes on, and reads the same world again"
    alone = [each for each in threading.enumerate() if each.name == "worldline-alone"]
    for each in alone:
        each.join(20)
    assert not any(each.is_alive() for each in alone), "it was interrupted"


async def test_code_that_returns_says_what_it_passes_now(memory_kit: Kit) -> None:
    def sleeping(seconds: int) -> wl.Program:
        app = program()

        @app.workflow
        async def nap() -> None:
            await wl.sleep(seconds)

        return app

    app = sleeping(3_600)
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await kits.begin(world, app.workflows["nap"](), id="r")
    client = await memory_kit.process()
    client.universe._connection.knows(sleeping(60))
    found = await why.find_run(Handle(client.universe._connection, "w"), "r")
    assert ([each.differs for each in found.operations], found.note) == (["60 s"], "")


# --- Programs that change -----------------------------------------------------------------------------------------


async def _changed(kit: Kit) -> None:
    """A world `w` whose run `r` is blocked by a change of code."""

    def before(app: wl.Program) -> None:
        @app.workflow
        async def flow() -> int:
            first = await wl.wait(Add)
            return first.number

    def after(app: wl.Program) -> None:
        @app.workflow
        async def flow() -> int:
            await wl.sleep(1)
            return 0

    app = _flowing(before)
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await kits.begin(world, app.workflows["flow"](), id="r")
        await world.snapshot()
    changed = _flowing(after)
    async with kit.hosting(changed) as universe:
        await (await universe.world("w").send(Add(1))).applied(20)


def _flowing(add: Callable[[wl.Program], None]) -> wl.Program:
    app = program()
    add(app)
    return app
