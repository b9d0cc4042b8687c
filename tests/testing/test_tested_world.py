"""The testing kit itself: time, crashes, proofs, what it says when something is wrong."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.base import errors
from worldline.kernel.rows.row_records import RunStatus
from worldline.testing import life, loopless

START = datetime(2030, 6, 1, tzinfo=UTC)


@pytest.mark.parametrize(("by", "seconds"), [(3, 3), (4.5, 4.5), (timedelta(seconds=3), 3)])
def test_advance_moves_the_clock_and_lets_happen_what_falls_due(by: Any, seconds: float) -> None:
    with testing.world(shop.app, shop.script(), now=START) as world:
        run = world.start(shop.greet("Ada"))
        world.advance(by)
        assert run.status is RunStatus.RUNNING
        world.advance(2)
        assert run.done
        assert world.now - START == timedelta(seconds=seconds + 2)


def test_run_lets_time_pass_and_start_does_not() -> None:
    with testing.world(shop.app, shop.script(), now=START) as world:
        run = world.start(shop.greet("Ada"), id="g")
        assert (world.now, run.done, repr(run)) == (START, False, "TestRun('g', running)")
        assert run.result() == "HELLO ADA"
        assert world.now == START + timedelta(seconds=5)
        assert repr(world) == "TestWorld('test', height 8)"


def test_a_run_that_waits_in_vain_is_explained() -> None:
    with testing.world(shop.app) as world:
        with pytest.raises(testing.Stuck, match=r"run 'o1' \(approval\) waits for an event Approved.*send\(\)"):
            world.run(shop.approval("o1"), id="o1")
        world.send(shop.Approved("o1"))
        assert world.run(shop.approval("o1"), id="o1") == "o1 by Ada"


def test_something_endless_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    app = wl.Program("endless")

    @app.workflow
    async def endless() -> None:
        while True:
            await wl.sleep(1)

    monkeypatch.setattr("worldline.testing.stage.STEPS_MAX", 50)
    with testing.world(app) as world, pytest.raises(testing.Restless, match="no end"):
        world.run(endless())


def test_crashing_now_and_at_a_height() -> None:
    with testing.world(shop.app, shop.script()) as world:
        run = world.start(shop.greet("Ada"), id="g")
        world.crash()
        world.crash(at=world.head.height + 1)  # inside the next step
        world.crash(at=world.head.height + 2)  # at its end
        with pytest.raises(wl.BadInput, match="has passed"):
            world.crash(at=1)
        assert run.result() == "HELLO ADA"
        assert world.crashes == 3
        assert world.prove() == 3


def test_crash_everywhere_finds_what_is_not_in_the_journal() -> None:
    forgetful = wl.Program("forgetful")
    memory: list[int] = []

    @forgetful.workflow
    async def remembers() -> int:
        memory.append(1)
        await wl.sleep(1)
        return len(memory)

    def scenario(world: testing.TestWorld) -> int:
        memory.clear()
        return world.run(remembers())

    with pytest.raises(wl.errors.Diverged):
        testing.crash_everywhere(scenario, forgetful, drops=False, twice=False)


def test_crash_everywhere_compares_what_the_scenario_says() -> None:
    worlds: list[int] = []

    def scenario(world: testing.TestWorld) -> int:
        world.send(shop.Deposited("a", 1))
        worlds.append(1)
        return len(worlds)

    with pytest.raises(wl.errors.Diverged, match="after a crash at height 1 the scenario ended differently"):
        testing.crash_everywhere(scenario, shop.app)


def test_prove_finds_a_state_that_the_journal_does_not_lead_to() -> None:
    with testing.world(shop.app) as world:
        world.send(shop.Deposited("a", 1))
        world.prove()
        world.machine.cells["Account", "a"].data = b"\xa2dseen\x80ecents\x07"
        with pytest.raises(wl.errors.Diverged, match="leads to another state"):
            world.prove()


def test_prove_finds_a_journal_that_was_changed() -> None:
    with testing.world(shop.app) as world:
        world.send(shop.Deposited("a", 1))
        entries = world._actor.life.entries
        entries[0] = type(entries[0])(1, 1, entries[0].kind, 5, entries[0].payload, state=entries[0].state)
        with pytest.raises(wl.errors.Corrupt):
            world.prove()


def test_breakpoint_works_in_workflows(monkeypatch: pytest.MonkeyPatch) -> None:
    app = wl.Program("debugged")
    seen: list[str] = []

    @app.workflow
    async def stops() -> int:
        number = 5
        breakpoint()  # noqa: T100
        return number

    def stop(*_: Any, **__: Any) -> None:
        frame = sys._getframe(1)
        seen.append(f"{frame.f_code.co_name} {frame.f_locals['number']}")

    monkeypatch.setattr(sys, "breakpointhook", stop)
    with testing.world(app, twice=False) as world:
        assert world.run(stops()) == 5
    assert seen == ["stops 5"]


async def test_it_works_under_a_running_loop() -> None:
    with testing.world(shop.app, shop.script()) as world:
        assert world.run(shop.greet("Ada")) == "HELLO ADA"
    await asyncio.sleep(0)


def test_loops_are_given_back() -> None:
    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        with loopless.loopless():
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop().time()
            with loopless.loopless():
                pass
            if sys.version_info >= (3, 14):  # the running task is the thread's: no loop is asked for it
                assert asyncio.current_task() is None
            else:
                with pytest.raises(RuntimeError, match="no running event loop"):
                    asyncio.current_task()
        assert asyncio.get_running_loop() is loop
        assert asyncio.current_task() is task

    asyncio.run(main())


def test_effects_in_order_or_shuffled_by_the_seed() -> None:
    app = wl.Program("order")
    order: list[int] = []

    @app.effect
    async def note(number: int) -> int:
        return number

    @app.workflow
    async def all_of_them() -> None:
        await wl.gather(*[note(number) for number in range(10)])

    def noted(number: int) -> int:
        order.append(number)
        return number

    found = []
    for options in ({}, {"shuffle": True}, {"shuffle": True}, {"shuffle": True, "seed": 1}):
        order.clear()
        with testing.world(app, wl.Script().on(note, noted), **options) as world:
            world.run(all_of_them())
        found.append(list(order))
    assert found[0] == list(range(10))
    assert found[1] == found[2] != found[0]
    assert found[3] != found[1]


def test_a_world_is_started_with_workflows_alone() -> None:
    with testing.world(shop.app) as world:
        with pytest.raises(wl.BadInput, match="is an effect"):
            world.run(shop.shout("x"))
        with pytest.raises(wl.NotFound):
            world.attach("nobody")
        with pytest.raises(wl.Exists):
            world.also("test", shop.app)


def test_forgotten_runs_say_so() -> None:
    app = wl.Program("many")

    @app.workflow
    async def quick() -> int:
        return 1

    with testing.world(app, twice=False, drops=False) as world:
        first = world.start(quick())
        for _ in range(1_001):
            world.run(quick())
        with pytest.raises(wl.NotFound, match="any more"):
            _ = first.status


def test_what_is_open_inside_must_be_known_outside() -> None:
    with testing.world(shop.app, shop.script()) as world:
        world.start(shop.greet("Ada"))
        world._actor.asked.clear()
        with pytest.raises(AssertionError, match="open work"):
            world.crash()


def test_the_tail_reads_like_what_happened() -> None:
    with testing.world(shop.app, shop.script(), now=START) as world:
        bank = world.also("bank", shop.app)
        world.run(shop.greet("Ada"), id="hello")
        world.send(shop.Deposited("a", 5))
        world.ask(shop.Withdraw("a", 3))
        with pytest.raises(testing.NotTaken):
            world.send(shop.Deposited("a", -1))
        lines = world.tail().splitlines()
        assert len(lines) == world.head.height
        assert bank.tail() == ""
        for text in [
            "control           run hello: greet {'name': 'Ada'}",
            "timer_fired       for hello",
            "effect_result     ok 'HELLO ADA' for hello",
            "run_finished      hello finished 'HELLO ADA'",
            "event             Deposited {'cents': 5, 'account': 'a'}",
            "answered          ok 2",
            "handler_failed    ValueError: ValueError: a deposit cannot be negative",
        ]:
            assert any(text in line for line in lines), text
        assert world.tail(2).splitlines()[0] == f"... {world.head.height - 2} entries before"


def test_large_payloads_are_kept_apart_and_proved() -> None:
    app = wl.Program("large")

    @dataclass(frozen=True)
    class Big:
        text: str

    @app.effect
    async def grow(text: str) -> str:
        return text * 2

    @app.workflow
    async def grows(text: str) -> int:
        return len(await grow((await wl.wait(Big)).text + text))

    with testing.world(app, wl.Script().on(grow, lambda text: text * 2)) as world:
        run = world.start(grows("x" * 50_000), id="big")
        world.send(Big("y" * 50_000))
        assert run.result() == 200_000
        assert max(len(entry.payload) for entry in world._actor.life.entries) < 20_000
        world.crash()
        world.prove()


@pytest.mark.parametrize(("chance", "warm"), [(1.0, False), (0.0, True)])
def test_coroutines_are_dropped_between_steps(monkeypatch: pytest.MonkeyPatch, chance: float, warm: bool) -> None:
    monkeypatch.setattr(life, "DROP_CHANCE", chance)
    with testing.world(shop.app, shop.script()) as world:
        world.start(shop.greet("Ada"))
        assert [run.coroutine is not None for run in world.machine.runs.values()] == [warm]


def test_kit_errors_have_codes() -> None:
    found = {kind.code for kind in (testing.NotTaken, testing.Stuck, testing.Restless, testing.Unscripted)}
    assert found == {"not_taken", "stuck", "restless", "unscripted"}
    assert all(issubclass(kind, errors.Error) for kind in (testing.NotTaken, testing.Stuck))


def test_the_state_below_a_change_of_the_program_is_the_one_there() -> None:
    with testing.world(shop.app) as world:
        world.send(shop.Deposited("a", 1))
        world.send(shop.Deposited("a", 2))
        world.adopt(shop.app)
        world.send(shop.Deposited("a", 4))
        heights = [each.height for each in world.journal() if each.chain]
        assert [world.state(shop.Account, "a", at=height).cents for height in heights] == [1, 3, 3, 7]
