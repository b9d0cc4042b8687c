"""Code that does not do what the journal says: found, named and shown; blocked and taken up again; patched."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.host.feature_list import PARTS
from worldline.kernel import replay
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import RunStatus
from worldline.model.journal import Kind


@dataclass(frozen=True)
class Go:
    number: int = 0


def program(*steps: str) -> wl.Program:
    """A workflow `flow` that does these things one after the other, as if its source had been edited."""
    app = wl.Program("edited")

    @app.effect
    async def first(text: str) -> str:
        return text

    @app.effect
    async def second(text: str) -> str:
        return text

    @app.workflow
    async def child(text: str) -> str:
        return text

    started: list[Any] = []

    async def do(name: str, said: list[Any]) -> None:
        if name == "nap":
            await wl.sleep(10)
        elif name == "wait":
            said.append((await wl.wait(Go)).number)
        elif name == "child":
            said.append(await child("c"))
        elif name == "patch":
            said.append(wl.patched("new"))
        elif name == "raise":
            raise ValueError("edited")
        elif name == "start":
            started.append(wl.start(first("x")))
        elif name == "cling":
            try:
                await second("x")
            except BaseException:  # noqa: BLE001
                said.append(await started[0])
        elif name == "catch-all":
            try:
                said.append(await second("caught"))
            except BaseException:  # noqa: BLE001
                said.append(await second("handled"))
        elif name != "return":
            effect, _, argument = name.partition(" ")
            said.append(await {"first": first, "second": second}[effect](argument or "x"))

    @app.workflow
    async def flow() -> list[Any]:
        said: list[Any] = []
        for name in steps:
            if name == "return":
                return said
            await do(name, said)
        return said

    assert "flow" in app.routes.any_flows or "flow" in app.routes.flows["Go"]
    return app


def started(app: wl.Program) -> Any:
    return app.workflows["flow"]()


def script(app: wl.Program) -> wl.Script:
    return wl.Script().on(app.effects["first"], "one").on(app.effects["second"], "two")


@pytest.mark.parametrize(
    ("edited", "report"),
    [
        (["second", "nap"], ["operation 1", "journal: effect 'first'", "code:    effect 'second'", "(step 1)"]),
        (
            ["first y", "nap"],
            ["operation 1", "journal: effect 'first'", "code:    effect 'first'"],
        ),
        (["nap", "first"], ["operation 1", "journal: effect 'first'", "code:    timer 'sleep'"]),
        (["first", "wait"], ["operation 2", "journal: timer 'sleep'", "code:    wait 'Go'"]),
        (["first", "child", "nap"], ["operation 2", "journal: timer 'sleep'", "code:    child 'child'"]),
        (["first", "return"], ["the code returns where the journal goes on"]),
        (["first", "raise"], ["the code raises ValueError: edited where the journal goes on"]),
        (["start", "cling"], ["operation 2", "journal: timer 'sleep'", "code:    effect 'second'"]),
        (["catch-all", "nap"], ["operation 1", "journal: effect 'first'", "code:    effect 'second'"]),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_run_that_new_code_does_not_fit_is_blocked_and_shown(edited: list[str], report: list[str]) -> None:
    begin = "start" if edited[0] == "start" else "first"
    old, new = program(begin, "nap", "second"), program(*edited, "second")
    with testing.world(old, script(old)) as world:
        run = world.start(started(old), id="r")
        blocked = world.adopt(new)
        assert list(blocked) == ["r"]
        for text in ["run 'r'", *report]:
            assert text in blocked["r"], blocked["r"]
        world.advance(100)  # its timer fires meanwhile, and is kept
        assert run.status is RunStatus.BLOCKED
        with pytest.raises(testing.Stuck, match="blocked"):
            run.result()
        assert world.adopt(program(begin, "nap", "second")) == {}
        assert run.result() == (["two"] if begin == "start" else ["one", "two"])


def test_an_event_that_came_while_a_run_was_blocked_is_not_lost() -> None:
    old, new = program("wait", "first"), program("first", "wait")
    with testing.world(old, script(old)) as world:
        run = world.start(started(old), id="r")
        assert list(world.adopt(new)) == ["r"]
        world.send(Go(7), to="r")
        assert not run.done
        assert world.adopt(program("wait", "first")) == {}
        assert run.result() == [7, "one"]


def test_a_workflow_that_is_gone_or_takes_other_arguments_blocks_its_runs() -> None:
    def taking(function: Callable[..., Any] | None) -> wl.Program:
        app = wl.Program("edited")
        if function is not None:
            app.workflow(name="flow")(function)
        return app

    async def old(order: str) -> str:
        await wl.sleep(10)
        return order

    async def more(order: str, cents: int) -> str:
        return order

    async def other(order: int) -> str:
        return str(order)

    async def default(order: str, cents: int = 5) -> str:
        await wl.sleep(10)
        return f"{order} {cents}"

    app = taking(old)
    with testing.world(app) as world:
        run = world.start(app.workflows["flow"]("o1"), id="r")
        for function, report in [
            (None, "has no workflow 'flow'"),
            (more, "arguments do not fit flow()"),
            (other, "arguments do not fit flow()"),
        ]:
            assert report in world.adopt(taking(function))["r"]
        assert world.adopt(taking(default)) == {}
        assert run.result() == "o1 5"


def test_runs_that_fit_go_on_under_new_code() -> None:
    old, new = program("first", "nap", "second"), program("first", "nap", "child", "second")
    with testing.world(old, script(old)) as world:
        run = world.start(started(old), id="r")
        assert world.adopt(new) == {}
        assert [entry.kind for entry in world.journal()][-1] is Kind.PROGRAM_CHANGED
        world.crash()
        assert run.result() == ["one", "c", "two"]
        world.prove()


def test_patched_is_false_in_an_old_run_and_true_in_a_new_one_each_time() -> None:
    old, new = program("first", "nap", "second"), program("patch", "first", "patch", "nap", "second", "patch")
    with testing.world(old, script(old)) as world:
        run = world.start(started(old), id="old")
        assert world.adopt(new) == {}
        world.crash()
        assert run.result() == [False, "one", False, "two", False]
        assert world.run(started(new), id="new") == [True, "one", True, "two", True]
        world.prove()


def test_patched_is_true_where_an_old_run_has_not_been_yet() -> None:
    old, new = program("first", "nap", "second"), program("first", "nap", "patch", "second", "patch")
    with testing.world(old, script(old)) as world:
        run = world.start(started(old), id="old")
        world.adopt(new)
        world.crash()
        assert run.result() == ["one", True, "two", True]
        world.prove()


ROLLING = itertools.count()


def hidden(kind: str) -> wl.Program:
    """A program that is not deterministic, in one of many ways."""
    app = wl.Program("hidden")

    @app.effect
    async def echo(text: str) -> str:
        return text

    @app.reducer()
    @dataclass
    class Cell:
        number: int = 0
        names: list[str] = field(default_factory=list)

        @wl.on
        def go(self, event: Go) -> None:
            if kind == "state":
                self.number = next(ROLLING)
            if kind == "emit":
                wl.emit(Go(next(ROLLING) + 1)) if event.number == 0 else None

    @app.workflow
    async def flow() -> int:
        if kind == "argument":
            await echo(str(next(ROLLING)))
        if kind == "result":
            return next(ROLLING)
        if kind == "replay":
            await wl.sleep(1)
            await echo(str(next(ROLLING)))
            await wl.sleep(1)
        if kind == "branch" and next(ROLLING) % 2:
            await wl.sleep(1)
        return 0

    return app


@pytest.mark.parametrize(
    ("kind", "reports"),
    [
        ("state", ["cell Cell", "first: {'names': [], 'number': ", "again: {'names': [], 'number': "]),
        ("emit", ["entry 2", "first: event_raised ['Go'", "again: event_raised ['Go'"]),
        ("argument", ["entry 4", "first: effect_requested [0, 'echo', 'r'", "again: effect_requested [0, 'echo', 'r'"]),
        ("result", ["entry 4", "first: run_finished ['r'", "again: run_finished ['r'"]),
        ("branch", ["entry 4", "timer_set", "run_finished"]),
        ("replay", ["entry", "echo"]),
    ],
)
def test_hidden_nondeterminism_is_found_by_doing_steps_twice(kind: str, reports: list[str]) -> None:
    app = hidden(kind)
    with testing.world(app, wl.Script().on(app.effects["echo"], "x"), drops=False) as world:
        with pytest.raises(wl.errors.Diverged) as caught:  # noqa: PT012 - which of these it is depends on the kind
            if kind in ("state", "emit"):
                world.send(Go())
            else:
                world.run(app.workflows["flow"](), id="r")
        for text in ["done twice, does not come out the same", *reports]:
            assert text in caught.value.report, caught.value.report


def test_a_dropped_run_that_does_not_come_back_the_same_is_shown() -> None:
    app = hidden("replay")
    with testing.world(app, wl.Script().on(app.effects["echo"], "x"), twice=False, drops=False) as world:
        run = world.start(app.workflows["flow"](), id="r")
        world.advance(1)
        world.crash()  # brings its rows back, and runs nothing
        assert not world.machine.runs["r"].record.blocked
        world.advance(1)
        assert run.status is RunStatus.BLOCKED


def test_prove_names_the_first_difference() -> None:
    with testing.world(shop.app, shop.script()) as world:
        world.send(shop.Deposited("a", 5))
        world.run(shop.greet("Ada"), id="hello")
        world.prove()
        entries = world.journal()
    other = wl.Program("shop")
    other.reducers.update(shop.app.reducers)
    other.effects.update(shop.app.effects)

    @other.workflow(name="greet")
    async def greet(name: str) -> str:
        await wl.sleep(6)
        return await shop.shout(f"hello {name}")

    machine = Machine(other)
    steps = list(replay.steps(entries))
    assert replay.again(machine, steps[0], world.address, lambda carried: carried.inline or b"", PARTS) is None
    found = replay.again(machine, steps[1], world.address, lambda carried: carried.inline or b"", PARTS)
    assert found is not None
    assert (found.height, found.step) == (5, 2)
    assert "timer_set" in found.journal
    assert "5000000" in found.journal
    assert "6000000" in found.code
    with pytest.raises(wl.errors.Diverged, match="does not do what the journal says, at height"):
        replay.check(Machine(other), steps[1], world.address, lambda carried: carried.inline or b"", PARTS)


def test_replay_compares_missing_and_extra_entries_and_the_state() -> None:
    with testing.world(shop.app) as world:
        world.send(shop.Deposited("a", 5))
        world.send(shop.Deposited("a", 6))
        first, second = replay.steps(world.journal())
        home = world.address

    def again(entries: list[Any]) -> replay.CodeDifference | None:
        return replay.again(Machine(shop.app), entries, home, lambda carried: carried.inline or b"", PARTS)

    assert again(first) is None
    extra = again([*first, *second])
    assert extra is not None
    assert extra.code == "nothing"
    assert "state" in str(again(second))
    with pytest.raises(wl.errors.Corrupt, match="ends inside step 1"):
        list(replay.steps([first[0].__class__(1, 1, Kind.EVENT, 1, first[0].payload)]))
    with pytest.raises(wl.errors.Corrupt, match="cannot begin with EFFECT_REQUESTED"):
        replay.input_of([first[0].__class__(1, 1, Kind.EFFECT_REQUESTED, 1, b"")], lambda _: b"")


def test_runs_that_changed_code_makes_wait_for_more_get_events_in_the_order_of_their_start() -> None:
    @dataclass(frozen=True)
    class More:
        pass

    def waiting(*, more: bool) -> wl.Program:
        app = wl.Program("waiting")

        if more:

            @app.workflow(name="one")
            async def one_more(name: str) -> None:
                await wl.wait(Go, where=lambda event: event.number == 1)
                await wl.wait(More)
        else:

            @app.workflow
            async def one(name: str) -> None:
                await wl.wait(Go, where=lambda event: event.number == 1)

        @app.workflow
        async def two(name: str) -> None:
            await wl.wait(Go, where=lambda event: event.number == 1)

        return app

    app = waiting(more=False)
    with testing.world(app) as world:
        for flow, run in (("one", "a"), ("two", "b"), ("one", "c")):
            world.start(app.workflows[flow](run), id=run)
        world.adopt(waiting(more=True))
        world.send(Go(0))  # each keeps it, and is rebuilt for that
        found = [run.record.id for run in world.machine.interested("Go")]
        assert found == ["a", "b", "c"]
        assert world.machine.runs["a"].record.interests == ["Go", "More"]
        world.crash()
        assert [run.record.id for run in world.machine.interested("Go")] == found
