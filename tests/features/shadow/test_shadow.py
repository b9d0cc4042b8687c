"""Other code, tried on recorded steps: every kind of difference is found, named and shown side by side."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.features.shadow import shadow_shop as shop
from tests.features.shadow.shadowing import shadow
from worldline import testing
from worldline.features.shadow.pure import history_comparison, shadow_machine, shadow_report
from worldline.features.shadow.pure.shadow_report import KINDS, ShadowReport
from worldline.kernel import control_commands, machine, run_repair, user_values
from worldline.model import inbox, payload
from worldline.model.work import WorkKind

Edit = Callable[..., wl.Program]
SCRIPT = wl.Script().on(shop.charge, "charged").on(shop.inform, "told")


@pytest.fixture
def edit(tmp_path: Path) -> Edit:
    """The shop with some of its text replaced: pairs of before and after."""

    def edited(*words: str) -> wl.Program:
        text = Path(shop.__file__).read_text()
        for old, new in zip(words[::2], words[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        name = f"edited_{len(list(tmp_path.iterdir()))}"
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        program: wl.Program = module.app
        assert program.hash
        assert program.routes is not None
        return program

    return edited


def kinds(found: ShadowReport) -> dict[str, int]:
    return {kind: count for kind, count in found.counts.items() if count}


def test_the_same_code_would_do_the_same(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        assert world.run(shop.order(50)) == "charged, told"
        found = shadow(world, edit("nobody", "nobody"))
        assert (found.differs, found.counts, found.unlisted) == (False, dict.fromkeys(KINDS, 0), {})
        assert (found.steps, found.first_step, found.last_step) == (world.head.step, 1, world.head.step)
        assert found.old_code == found.new_code == shop.app.hash.hex()


def test_code_that_asks_for_the_same_later_gets_the_recorded_answers(edit: Edit) -> None:
    """It sleeps for a second first: the charge is another operation in another step, and its answer came before."""
    with testing.world(shop.app, SCRIPT) as world:
        run = world.start(shop.order(50), id="o1")
        world.advance(100)
        assert run.result() == "charged, told"
        found = shadow(world, edit("    paid = await charge", "    await wl.sleep(1)\n    paid = await charge"))
    assert kinds(found) == {"timers": 1, "runs": 1}
    [timer] = found.timers
    assert (timer.run, timer.old) == ("o1", None)
    assert timer.new is not None
    assert (timer.new.text, timer.new.arguments, timer.new.operation) == ("timer 'sleep' 1 s", 1.0, 1)
    [run_] = found.runs  # the history ends before its last sleep does
    assert (run_.old.status, run_.new.status, run_.waits) == ("finished", "running", "timer 'sleep' 60 s")


def test_an_effect_with_other_arguments_is_shown_side_by_side_and_has_no_answer(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.start(shop.order(50), id="o1")
        world.start(shop.order(70), id="o2")
        world.advance(100)
        height = next(each.height for each in world.journal() if each.kind is wl.Kind.EFFECT_REQUESTED)
        found = shadow(world, edit("await charge(cents)", "await charge(cents + 10 * (cents == 50))"))
    assert kinds(found) == {"effects": 1, "runs": 1, "cells": 1}
    [effect] = found.effects
    assert (effect.run, effect.answered, effect.further) == ("o1", False, 2), "timer and effect behind it are missing"
    assert effect.old is not None
    assert effect.new is not None
    assert (effect.old.arguments, effect.new.arguments) == ({"cents": 50}, {"cents": 60})
    assert effect.old.text == "effect 'charge' (cents=50)"
    assert (effect.old.operation, effect.old.step, effect.old.height) == (1, 1, height)
    assert (effect.new.operation, effect.new.step) == (1, 1)
    assert found.runs[0].waits == "effect 'charge' (cents=60)"
    assert found.skipped == 3, "the answers of charge and inform, and the timer"


def test_an_effect_that_is_added_or_missing(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.start(shop.order(50), id="o1")
        world.advance(100)
        more = shadow(world, edit("{paid}, {await", "{paid}, {await inform('packed')}{await"))
        less = shadow(world, edit("{await inform('shipped')}", "shipped"))
        other = shadow(world, edit("await charge(cents)", "await inform('hello')"))
    assert [(each.old and each.old.arguments, each.new and each.new.arguments) for each in more.effects] == [
        ({"text": "shipped"}, {"text": "packed"})
    ]
    assert [(each.old and each.old.arguments, each.new) for each in less.effects] == [({"text": "shipped"}, None)]
    assert less.runs[0].new.value == "charged, shipped"
    assert less.skipped == 1
    assert (other.effects[0].old and other.effects[0].old.name) == "charge"
    assert (other.effects[0].new and other.effects[0].new.name) == "inform"


def test_other_options_are_a_difference_and_the_answer_is_given(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.start(shop.order(50), id="o1")
        world.advance(100)
        found = shadow(world, edit("await charge(cents)", "await charge.options(key='k')(cents)"))
    assert kinds(found) == {"effects": 1}
    assert found.effects[0].answered
    assert found.effects[0].new is not None
    assert found.effects[0].new.text == "effect 'charge' (cents=50) with key='k'"


def test_runs_that_would_block(edit: Edit) -> None:
    """One that goes on in the recorded steps, and one that has gone nowhere since."""
    with testing.world(shop.app, SCRIPT) as world:
        world.start(shop.order(50), id="o1")
        world.start(shop.approval("x"), id="a1")
        world.advance(20)
        before = world.head.step
        world.send(shop.Paid(1))
        without = edit("wl.wait(Approved, timeout=30)", "wl.wait(Paid, timeout=30)", "event.by", "str(event.cents)")
        renamed = edit("await wl.sleep(60)\n", "await inform('x')\n    await wl.sleep(60)\n")
        still = shadow(world, without, 1)
        world.advance(70)
        ended = shadow(world, renamed, world.head.step - before)
        assert world.attach("o1").result() == "charged, told"
    [blocked] = still.blocked
    assert (blocked.run, blocked.workflow, blocked.at_head) == ("a1", "approval", True)
    assert "journal: wait 'Approved'" in blocked.report
    assert "code:    wait 'Paid'" in blocked.report
    [blocked] = ended.blocked
    assert (blocked.run, blocked.at_head) == ("o1", False), "it has ended: going on under this code now blocks nothing"
    assert "code:    effect 'inform'" in blocked.report
    assert kinds(ended) == {"blocked": 1}, "what does not follow from that"


def test_a_workflow_that_is_gone(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.start(shop.approval("x"), id="a1")
        world.start(shop.approval("y"), id="a2")
        gone = edit("async def approval", "async def approved")
        found = shadow(world, gone, 1)
    assert [each.run for each in found.blocked] == ["a1", "a2"]
    assert "has no workflow 'approval'" in found.blocked[0].report
    [started] = found.inputs
    assert started.input == "command run"
    assert "has no workflow 'approval'" in started.new


def test_timers_fire_when_the_history_reaches_them(edit: Edit) -> None:
    """The journal goes on to 200 s: a longer sleep ends, a much longer one does not."""
    with testing.world(shop.app, SCRIPT) as world:
        world.start(shop.order(50), id="o1")
        world.advance(200)
        world.send(shop.Paid(1))
        longer = shadow(world, edit("sleep(60)", "sleep(90)"))
        longest = shadow(world, edit("sleep(60)", "sleep(900)"))
        never = shadow(world, edit("    await wl.sleep(60)\n", ""))
    assert kinds(longer) == {"timers": 1}
    [timer] = longer.timers
    assert timer.old is not None
    assert timer.new is not None
    assert (timer.old.arguments, timer.new.arguments) == (60.0, 90.0)
    assert (longest.runs[0].new.status, longest.runs[0].waits) == ("running", "timer 'sleep' 900 s")
    assert kinds(never) == {"timers": 1}
    assert never.timers[0].new is None
    assert never.skipped == 1


def test_a_timeout_that_is_cancelled_in_the_journal_fires_in_code_that_keeps_it(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        run = world.start(shop.approval("x"), id="a1")
        world.advance(10)
        world.send(shop.Approved("me"))
        assert run.result() == "me"
        world.advance(100)
        world.send(shop.Paid(1))
        found = shadow(
            world, edit("wl.wait(Approved, timeout=30)", "wl.wait(Approved, where=lambda e: e.by != 'me', timeout=30)")
        )
        late = shadow(
            world,
            edit("wl.wait(Approved, timeout=30)", "wl.wait(Approved, where=lambda e: e.by != 'me', timeout=30)"),
            3,
        )
    for each in (found, late):
        assert kinds(each) == {"runs": 1}
        assert (each.runs[0].old.value, each.runs[0].new.value) == ("me", "nobody")


def test_timers_of_handlers(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.send(shop.Remind("hello"))
        world.advance(100)
        world.send(shop.Paid(1))
        found = shadow(world, edit("wl.after(20", "wl.after(40"))
        other = shadow(world, edit("wl.after(20, Paid(len(event.text)))", "wl.after(20, Paid(7))"))
    assert kinds(found) == {"timers": 1}
    [timer] = found.timers
    assert (timer.run, timer.old and timer.old.text, timer.new and timer.new.text) == (
        "",
        "timer Paid(cents=5) after 20 s",
        "timer Paid(cents=5) after 40 s",
    )
    assert kinds(other) == {"timers": 1, "cells": 1}
    assert [(each.field, each.old, each.new) for each in other.cells[0].fields] == [("last[0]", 5, 7), ("total", 6, 8)]


def test_schedules(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.schedule("tick", shop.Paid(1), every=10)
        world.advance(95)
        same = shadow(world, edit("timeout=30", "timeout=31"))
        found = shadow(world, edit("self.total += event.cents", "self.total += event.cents + 1"), 4)
    assert not same.differs
    assert [(each.field, each.old, each.new) for each in found.cells[0].fields] == [("total", 9, 13)]


def test_messages(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.also("till", shop.app, SCRIPT)
        world.run(shop.tell("hello"), id="t1")
        same = shadow(world, edit("timeout=30", "timeout=31"))
        found = shadow(world, edit("Remind(text))", "Remind(text.upper()))"))
    assert not same.differs
    [message] = found.messages
    assert message.run == "t1"
    assert message.old is not None
    assert message.new is not None
    assert (message.old.arguments, message.new.arguments) == ({"text": "hello"}, {"text": "HELLO"})
    assert message.new.text == "message Remind(text='HELLO') to till"
    assert kinds(found) == {"messages": 1, "runs": 1}


def test_cells_end_different_field_by_field(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        for cents in (1, 2, 3):
            world.send(shop.Paid(cents))
        found = shadow(
            world,
            edit(
                "self.total += event.cents",
                "self.total += 2 * event.cents\n        self.count += 1",
                "total: int = 0",
                "total: int = 0\n    count: int = 7",
            ),
            2,
        )
    assert kinds(found) == {"cells": 1}
    [cell] = found.cells
    assert (cell.reducer, cell.key, cell.further) == ("Books", "", 0)
    assert [(each.field, each.change, each.old, each.new) for each in cell.fields] == [
        ("count", "added", None, 9),
        ("total", "changed", 6, 11),
    ]


def test_a_cell_that_does_not_fit_its_class(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.send(shop.Paid(1))
        found = shadow(
            world, edit("total: int = 0", "total: str = ''", "self.total += event.cents", "self.total += '.'"), 0
        )
    [cell] = found.cells
    assert "does not fit its class" in cell.unfit


def test_a_run_that_ends_otherwise(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.start(shop.order(50), id="o1")
        world.advance(100)
        result = shadow(world, edit('f"{paid}, ', 'f"{paid}; '))
        failed = shadow(
            world, edit('    return f"{paid}, {await', '    raise KeyError(f"{await', "shipped')}\"", "shipped')}\")")
        )
    assert kinds(result) == {"runs": 1}
    [run] = result.runs
    assert (run.run, run.workflow) == ("o1", "order")
    assert (run.old.value, run.new.value) == ("charged, told", "charged; told")
    assert failed.runs[0].new == shadow_report.RunEnd("failed", {"code": "KeyError", "message": "KeyError: 'told'"})


def test_inputs_that_are_answered_or_refused_otherwise(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.send(shop.Paid(5))
        assert world.ask(shop.Total()) == 5
        answered = shadow(world, edit("return self.total", "return -self.total"))
        failing = shadow(
            world,
            edit(
                "        self.total +=",
                "        if event.cents == 5:\n            raise ValueError('no')\n        self.total +=",
            ),
        )
    assert [(each.input, each.old, each.new) for each in answered.inputs] == [
        ("event Total()", "is answered (5)", "is answered (-5)")
    ]
    assert [(each.input, each.old, each.new) for each in failing.inputs] == [
        ("event Paid(cents=5)", "is taken", "fails: ValueError: no (ValueError)"),
        ("event Total()", "is answered (5)", "is answered (0)"),
    ]


def test_incarnations_and_children_are_told_apart(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        world.start(shop.patrol(3), id="p")
        world.start(shop.parent(5), id="c")
        world.advance(200)
        same = shadow(world, edit("timeout=30", "timeout=31"))
        found = shadow(world, edit("round {rounds}", "round {max(rounds, 2)}"))
        assert same.differs is False
    assert kinds(found) == {"effects": 1, "runs": 1}
    assert (found.effects[0].old and found.effects[0].old.arguments) == {"text": "round 1"}
    assert (found.effects[0].new and found.effects[0].new.arguments) == {"text": "round 2"}


def test_what_is_done_by_hand_is_done_again(edit: Edit) -> None:
    """Commands name open work by its id, which is another one behind a change of program; and runs begin again."""
    script = SCRIPT.on(shop.stuck, OSError("down"), "up", OSError("down"))
    with testing.world(shop.app, script) as world:
        world.start(shop.help_me(), id="h1")
        assert world.retry(shop.stuck) == 1
        assert world.answer(shop.stuck, "by hand") == 1
        [timer] = [each for each in world.machine.work.open.values() if each.kind is WorkKind.TIMER]
        intent = world.machine.work.wanted_again(timer, world.address).intent
        world.command(control_commands.GIVE_UP, control_commands.GiveUp(intent, "enough"))
        world.start(shop.approval("x"), id="a1").reset()
        world.advance(5)
        world.attach("a1").answer(1, shop.Approved("hand"))
        world.advance(100)
        found = shadow(world, edit("nobody", "no one"))
        assert kinds(found) == {}
        assert found.skipped == 0
        more = shadow(world, edit('await stuck("first")', 'await stuck("zeroth")'))
    assert (more.effects[0].new and more.effects[0].new.arguments) == {"text": "zeroth"}
    assert more.skipped > 2, "its answer, and what was done by hand"


def test_a_timer_that_fired_late_fires_late_again(edit: Edit) -> None:
    """An event was taken before a timer that was due: what the journal says about their order holds."""
    with testing.world(shop.app, SCRIPT) as world:
        run = world.start(shop.approval("x"), id="a1")
        late_us = world.head.time_us + 40_000_000
        data = user_values.dump(shop.Approved("me"))
        world._actor.life.step(inbox.InboxEvent("Approved", payload.inline(data)), data, time_us=late_us)
        assert run.result() == "me"
        for program in (shop.app, edit("nobody", "no one")):
            assert kinds(shadow(world, program)) == {}


def test_more_than_a_step_can_ask_for(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        assert world.run(shop.many(150), id="m") == 150
        for last in (None, 150, 149):
            assert kinds(shadow(world, edit("nobody", "no one"), last)) == {}
        more = shadow(world, edit("range(count)", "range(count + 1)"))
    assert (more.effects[0].new and more.effects[0].new.arguments) == {"text": "150"}
    assert more.runs[0].waits == "effect 'inform' (text='150')"


def test_questions_and_answers(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        till = world.also("till", shop.app, SCRIPT)
        till.send(shop.Paid(5))
        assert world.run(shop.question(), id="q") == 5
        same = edit("nobody", "no one")
        assert kinds(shadow(world, same)) == kinds(shadow(till, same)) == {}
        asked = shadow(world, edit('wl.ask("till"', 'wl.ask("other"'))
        answering = shadow(till, edit("return self.total", "return -self.total"))
    [message] = asked.messages
    assert (message.run, message.new and message.new.text) == ("q", "message Total() to other")
    assert (asked.runs[0].waits, asked.skipped) == ("ask 'other' Total()", 1)
    [message] = answering.messages
    assert (message.old and message.old.text.partition(" to ")[0], message.new and message.new.arguments) == (
        "answer (5)",
        -5,
    )


def test_the_same_question_of_two_runs(edit: Edit) -> None:
    """They ask in another order under the other code: each gets its own answer."""
    with testing.world(shop.app, SCRIPT) as world:
        till = world.also("till", shop.app, SCRIPT)
        runs = [world.start(shop.question_later(seconds), id=f"q{seconds}") for seconds in (1, 2)]
        for cents in (5, 2):
            till.send(shop.Paid(cents))
            world.advance(1)
        assert [run.result() for run in runs] == [5, 7]
        world.advance(10)
        world.send(shop.Paid(1))
        found = shadow(world, edit("wl.sleep(seconds)", "wl.sleep(3 - seconds)"))
    assert kinds(found) == {"timers": 2}


def test_questions_of_a_world_that_has_asked_before(edit: Edit) -> None:
    """Their names are made with what the state has, and the steps are others: the answers show other tickets."""
    with testing.world(shop.app, SCRIPT) as world:
        world.also("till", shop.app, SCRIPT)
        assert world.run(shop.question(), id="q") == 0
        before = world.head.step
        runs = [world.start(shop.question_later(seconds), id=f"q{seconds}") for seconds in (1, 2)]
        world.advance(10)
        assert [run.result() for run in runs] == [0, 0]
        world.send(shop.Paid(1))
        found = shadow(world, edit("wl.sleep(seconds)", "wl.sleep(3 - seconds)"), last=world.head.step - before)
    assert kinds(found) == {"timers": 2}


def test_commands_that_cannot_be_read_are_refused_again(edit: Edit) -> None:
    with testing.world(shop.app, SCRIPT) as world:
        for command in (
            run_repair.RESET,
            run_repair.ANSWER_EFFECT,
            control_commands.PARK,
            control_commands.RUN,
            "no such",
        ):
            world.step(inbox.Control(command, payload.inline(b"\x01")), b"\x01")
        world.step(None, b"?", error="not decodable")
        assert kinds(shadow(world, edit("nobody", "no one"))) == {}


def test_a_run_that_is_forgotten_is_no_difference(edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest ended runs are forgotten: not the same ones, if fewer have ended."""
    monkeypatch.setattr(machine, "FINISHED_KEPT_MAX", 3)
    with testing.world(shop.app, SCRIPT) as world:
        for number in range(3):
            world.run(shop.many(number))
        before = world.head.step
        for number in range(3):
            world.start(shop.order(number))
        world.advance(100)
        found = shadow(world, edit("sleep(60)", "sleep(6000)"), world.head.step - before)
    assert {(each.workflow, each.old.status, each.new.status) for each in found.runs} == {
        ("order", "finished", "running")
    }


def test_code_that_makes_steps_for_ever_is_stopped(edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_machine, "STEPS_BETWEEN_MAX", 20)
    with testing.world(shop.app, SCRIPT) as world:
        world.start(shop.order(50), id="o1")
        world.advance(100)
        found = shadow(world, edit("    paid = await", "    while cents:\n        await wl.sleep(0)\n    paid = await"))
    assert "more than 20 steps by itself" in found.stopped
    assert found.differs


def test_lists_are_bounded(edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_report, "LISTED_MAX", 2)
    with testing.world(shop.app, SCRIPT) as world:
        for number in range(5):
            world.start(shop.order(number), id=f"o{number}")
        found = shadow(world, edit("await charge(cents)", "await charge(cents + 1)"))
    assert (len(found.effects), found.unlisted["effects"], found.counts["effects"]) == (2, 3, 5)


def test_values_are_compared_by_path() -> None:
    old: Any = {"a": 1, "b": [1, {"c": 2}], "d": None, "f": 1}
    new: Any = {"a": 1, "b": [1, {"c": 3}, 4], "e": "x", "f": 1.0}
    found, further = history_comparison.fields(old, new)
    assert [(each.field, each.change, each.old, each.new) for each in found] == [
        ("b[1].c", "changed", 2, 3),
        ("b[2]", "added", None, 4),
        ("d", "removed", None, None),
        ("e", "added", None, "x"),
        ("f", "changed", 1, 1.0),
    ]
    assert further == 0
    found, further = history_comparison.fields(list(range(100)), list(range(1, 101)))
    assert (len(found), further) == (20, 80)
    found, further = history_comparison.fields([1, 2, 3], [0, 1, 2, 3])
    assert ([(each.field, each.change, each.new) for each in found], further) == ([("[0]", "added", 0)], 0)
    found, _ = history_comparison.fields("x" * 5_000, "y")
    assert found[0].old.endswith("(5003 bytes)")
    assert len(found[0].old) < 300
