"""Last attempts in child processes over inputs that need what is not in memory: it is read for them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import pytest

import worldline as wl
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import AddUp, Trap
from tests.worker.test_blame import BUDGET, App, dies, set_up
from worldline.base import errors, probes
from worldline.codec import structs
from worldline.runtime import child_process, cold_cells
from worldline.worker import crash_trials, kernel_thread

CELLS = 300
SMALL = kits.settings(worker={"cells_memory_max": 20_000})


@dataclass(frozen=True)
class Put:
    key: str
    mail: wl.Personal[str]


def with_people(app: App) -> None:
    @app.program.reducer(key="key")
    @dataclass
    class Person:
        text: str = ""
        mail: wl.Personal[str] | None = None

        @wl.on
        def put(self, event: Put) -> None:
            self.text, self.mail = "x" * 200, event.mail


def mail_of(app: App, number: int) -> str:
    mail = wl.state(app.program.reducers["Person"].cls, f"k{number}").mail
    return "" if mail is None else str(mail.value)


@pytest.mark.parametrize("ends", [False, True])
async def test_a_step_that_needs_cells_and_personal_values_is_decided(memory_kit: Kit, ends: bool) -> None:
    def read() -> None:
        read_all = [mail_of(app, number) for number in (7, 70, 299)] == ["mail 7", "mail 70", "mail 299"]
        if ends or not read_all:  # what it raised would be survived
            os._exit(3)

    kit, app = memory_kit, App(in_child=read)
    with_people(app)
    client, world, at = await set_up(kit, app)
    first = await kit.process(app.program, settings=SMALL)
    sent = [
        await world.send(Put(f"k{number}", wl.Personal(f"mail {number}", of=f"{number}"))) for number in range(CELLS)
    ]
    await sent[-1].applied()
    await first.close()
    await world.send(Trap(1))
    for _ in range(1 + BUDGET):
        await dies(kit, app, settings=SMALL)
    app.go_on()
    with probes.collect() as hits:
        last = await kit.process(app.program, settings=SMALL)
        assert await last.universe.world("w").ask(AddUp(1), timeout=30) == (1 if ends else 2)
    assert not hits["trial.child-undecided"]
    assert bool(hits["trial.found-innocent"]) is not ends
    letters = await kits.dead(client.engine, at)
    assert [f"{BUDGET} times in a row" in each.dead.reason for each in letters] == ([True] if ends else [])
    assert all("exit code 3" in each.dead.reason for each in letters)
    await last.close()


async def never() -> bytes:
    raise AssertionError("read in a child")


def wants(*names: bytes) -> None:
    for name in names:
        wanted = cold_cells.ColdRequest("cells", [name])
        if cold_cells.blocking(asyncio.new_event_loop(), never, wanted, "a cell") != b"read " + name:
            os._exit(1)


async def test_what_cannot_be_read_decides_nothing(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    env = memory_kit.env
    kernel = kernel_thread.KernelThread(env, timeout_us=0)
    children = child_process.ForkedChildren(env, seconds=20.0, prepare=lambda: None)
    attempts, asked = crash_trials.Attempts(kernel, children), list[bytes]()

    async def supply(packed: bytes) -> object:
        [name] = structs.decode(cold_cells.ColdRequest, packed).keys
        asked.append(name)
        if name == b"gone":
            raise errors.Corrupt("its bytes are gone")
        return b"read " + name

    assert (await attempts.attempt(lambda: wants(b"a", b"b", b"a"), supply)).survived
    assert asked == [b"a", b"b"]
    ended = await attempts.attempt(lambda: wants(b"gone"), supply)
    assert (ended.survived, ended.decided, ended.how) == (False, False, "its bytes are gone")
    assert not (await attempts.attempt(lambda: wants(b"a"))).decided, "of a restore, nothing is read"
    monkeypatch.setattr(crash_trials, "SUPPLIED_MAX", 1)
    assert not (await attempts.attempt(lambda: wants(b"a", b"b"), supply)).decided, "it does not go on for ever"
    kernel.shutdown()
