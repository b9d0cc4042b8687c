# ruff: noqa: BLE001, E722, SIM105 - programs that catch everything are what this file is about
"""Coroutines that do not let themselves be closed: dropping a run ends always, does nothing, and prints nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

import worldline as wl
from worldline import testing
from worldline.kernel import context, control_commands, state_rows
from worldline.kernel.execution import coroutines, workflow_calls
from worldline.model import ids

app = wl.Program("closing")
performed: list[str] = []


@dataclass(frozen=True)
class Ping:
    n: int


@app.effect
def act(text: str) -> str:
    performed.append(text)
    return text


@app.reducer()
@dataclass
class Seen:
    pings: int = 0

    @wl.on
    def ping(self, event: Ping) -> None:
        self.pings += 1


@app.workflow
async def sleeps() -> None:
    while True:
        try:
            await wl.sleep(1)
        except:
            pass


@app.workflow
async def acts() -> None:
    while True:
        try:
            await act("x")
        except BaseException:
            continue


@app.workflow
async def looks_first() -> None:
    """Never comes to its await while what stands before it is refused."""
    while True:
        try:
            wl.now()
            wl.random().random()
            wl.uuid("label")
            wl.emit(Ping(1))
            wl.after(1, Ping(2))
            wl.state(Seen)
            wl.patched("p")
            wl.schedule("s", Ping(3), every=1)
            _ = wl.start(act("y"))
            await wl.wait(Ping, where=lambda event: event.n < 0)
        except BaseException:
            continue


@app.workflow
async def scopes() -> None:
    while True:
        try:
            async with wl.scope(timeout=100) as scope:
                _ = scope.start(act("z"))
                await wl.sleep(50)
        except BaseException:
            continue


@app.workflow
async def gathers() -> None:
    while True:
        try:
            await wl.gather(act("a"), act("b"))
        except BaseException:
            continue


@app.workflow
async def asks() -> None:
    while True:
        try:
            await wl.send("elsewhere", Ping(1))
        except BaseException:
            await wl.sleep(1)


@app.workflow
async def nests() -> None:
    async def inner() -> None:
        while True:
            try:
                await wl.sleep(1)
            except BaseException:
                await wl.sleep(2)

    while True:
        try:
            await inner()
        except BaseException:
            continue


@app.workflow
async def cleans_up() -> None:
    """Well meant: each of its steps is tried, whatever became of the one before."""
    try:
        await wl.sleep(1_000)
    finally:
        for text in ("a", "b", "c"):
            try:
                await act(text)
            except BaseException:
                continue


CLINGING = [sleeps, acts, looks_first, scopes, gathers, asks, nests, cleans_up]


def script() -> wl.Script:
    return wl.Script().on(act, wl.Script.later(30, "done"))


@pytest.mark.parametrize("flow", CLINGING, ids=lambda flow: flow.name)
@pytest.mark.parametrize("way", ["cool", "close", "forget"])
def test_dropping_it_ends(flow: wl.Workflow[..., Any], way: str, capfd: pytest.CaptureFixture[str]) -> None:
    performed.clear()
    with testing.world(app, script(), drops=False) as world:
        world.start(flow(), id="r")
        before, open_before = state_rows.save(world.machine), dict(world.machine.work.open)
        run = world.machine.runs["r"]
        assert run.coroutine is not None
        if way == "cool":
            run.cool()
        elif way == "close":
            world.machine.close()
        else:
            context.close(run.coroutine)
        run.coroutine = None
        gc.collect()
        assert state_rows.save(world.machine) == before
        assert world.machine.work.open == open_before
        world.send(Ping(5))
        assert world.state(Seen).pings >= 1
    gc.collect()
    assert performed == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("flow", CLINGING, ids=lambda flow: flow.name)
def test_it_is_rebuilt_and_goes_on(flow: wl.Workflow[..., Any]) -> None:
    """Dropped after every step, at random, it does what it does when it is kept."""
    with testing.world(app, script(), drops=False) as warm, testing.world(app, script(), seed=3) as dropped:
        for world in (warm, dropped):
            world.start(flow(), id="r")
            world.advance(5)
            world.send(Ping(1))
            world.advance(40)
        assert warm.journal() == dropped.journal()
        assert warm.head == dropped.head


@app.workflow
async def insists() -> None:
    """Comes to no await: each is refused at once."""
    while True:
        try:
            await act(object())  # type: ignore[arg-type]
        except Exception:
            continue


def test_a_run_that_catches_every_refusal_fails() -> None:
    with testing.world(app, script()) as world:
        with pytest.raises(wl.RunFailed, match=r"it asked 100 times for what is refused.*cannot be stored"):
            world.run(insists())
        world.send(Ping(1))
        assert world.state(Seen).pings == 1
        world.prove()


@app.workflow
async def insists_and_sleeps() -> None:
    """The same, and once it is stopped it asks for the store's time alone."""
    for asked in range(10_000):
        try:
            if asked < workflow_calls.REFUSALS_MAX:
                await act(object())  # type: ignore[arg-type]
            else:
                await wl.sleep_until(datetime(2030, 1, 1, tzinfo=UTC))
        except Exception:
            continue


def test_a_run_that_was_stopped_may_ask_for_the_time() -> None:
    with testing.world(app, script()) as world:
        with pytest.raises(wl.RunFailed, match=r"it asked 100 times for what is refused"):
            world.run(insists_and_sleeps())
        world.prove()


def changed(*, awaits: bool) -> wl.Program:
    other = wl.Program("closing")

    @other.workflow(name="sleeps")
    async def strays() -> None:
        while True:
            try:
                if awaits:
                    await wl.sleep(2)
                else:
                    wl.after(1, Ping(1))
                    wl.patched("other")
                    await wl.wait(Ping)
            except:
                pass

    return other


@pytest.mark.parametrize("awaits", [True, False])
def test_a_rebuild_that_strays_ends_and_blocks_the_run(awaits: bool) -> None:
    with testing.world(app, script(), drops=False) as world:
        world.start(sleeps(), id="r")
        parts = state_rows.save(world.machine)
    home = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
    machine = state_rows.load(changed(awaits=awaits), parts, home, strict=True)
    assert "journal: timer 'sleep'" in control_commands.misfits(machine, home)["r"]
    machine.close()


def test_a_process_with_abandoned_coroutines_ends_and_prints_nothing() -> None:
    code = (
        "import gc\n"
        "from worldline import testing\n"
        "from tests.kernel import test_closing as t\n"
        "keep = testing.world(t.app, t.script(), drops=False)\n"
        "world = keep.__enter__()\n"
        "[world.start(flow(), id=flow.name) for flow in t.CLINGING]\n"
        "world.machine.close()\n"
        "gc.collect()\n"
    )
    ended = subprocess.run([sys.executable, "-X", "dev", "-W", "ignore", "-c", code], capture_output=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_code_that_catches_everything_is_not_kept_at_it() -> None:
    """What its `finally` does is done a few times: if it is slow, dropping a run would be slow a hundred times over."""
    odd = wl.Program("odd")
    done: list[int] = []

    @odd.workflow
    async def insists() -> None:
        while True:
            try:
                await wl.sleep(1)
            except:
                pass
            finally:
                done.append(1)

    with testing.world(odd) as world:
        world.start(insists(), id="r")
        run = world.machine.runs["r"]
        if run.coroutine is None:
            coroutines.rebuild(world.machine, run)
        done.clear()
        run.cool()
        assert 0 < len(done) <= 3 * context.CLOSINGS_MAX
