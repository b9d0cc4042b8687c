"""The first steps of a fork: more open work than one of them settles, and inputs that only look like the first one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.forks.everything_open import (
    COUNT,
    ROOM,
    RULES,
    Added,
    app,
    charge,
    check,
    last_of_first_step,
    many,
    outcome,
    patient,
    script,
)
from worldline import testing
from worldline.base import limits
from worldline.codec import structs
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands, part_inputs, run_repair, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.part_inputs import ForkBeginning
from worldline.kernel.rows.row_records import RunStatus
from worldline.model import ids, inbox, payload, step_records
from worldline.model.journal import Kind
from worldline.model.work import WorkKind
from worldline.model.world_records import ForkPolicy


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEP_EFFECTS_MAX", ROOM)


# --- More than a step has room for ---------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("policy", ["drop", "reissue", "share", "script"])
def test_more_open_work_than_one_step_can_settle(policy: Any, live: bool) -> None:
    with testing.world(app, script(), drops=False) as world:
        world.start(patient(COUNT), id="r")
        assert len(world.machine.work.open) == COUNT
        forked = world.fork(effects=policy, script=RULES if policy == "script" else None, live=live)
        first = world.head.step + 1
        wanted = [each for each in forked.journal() if each.step >= first and each.kind is Kind.EFFECT_REQUESTED]
        asked = {"drop": 0, "script": 0}.get(policy, COUNT)
        assert len(wanted) == asked
        assert forked.head.step - world.head.step >= (COUNT // ROOM if asked else 1)
        if policy == "reissue" and not live:
            assert forked.answer(charge, "by hand") == COUNT
        paid = [f"paid o{n}" for n in range(COUNT)]
        same = {"drop": ["cancelled"] * COUNT, "script": ["scripted"] * COUNT}
        expected = ["by hand"] * COUNT if policy == "reissue" and not live else same.get(policy, paid)
        assert forked.attach("r").result() == expected
        assert world.attach("r").result() == paid
        check(world, forked)


def test_more_than_a_step_of_its_real_size_can_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    count = 2 * limits.STEP_EFFECTS_MAX + 3
    with testing.world(app, script(), drops=False, twice=False) as world:
        world.start(patient(count), id="r")
        forked = world.fork(effects="reissue", live=True)
        assert forked.head.step == world.head.step + 3
        assert forked.attach("r").result() == [f"paid o{n}" for n in range(count)]
        check(forked)


def test_no_run_goes_on_before_all_of_its_work_is_settled() -> None:
    with testing.world(app, script(), drops=False) as world:
        world.start(many(COUNT), id="r")
        stage, life = world._stage, world._actor.life
        made = testing.tested_world._life(
            stage, "fork", app, world._options, parent=life, start=life.standing_at(10**6)
        )
        said = ForkBeginning(
            made.at.world, world.address.world, "test", made.head.step, made.head.height, ForkPolicy.REISSUE, True
        )
        actor = stage.fork("fork", made, world._actor.reading, said)
        assert made.machine.branch is not None
        assert made.machine.branch.unsettled
        made.restore()
        # In between: an event, a cancellation, and a command that ends the run without its code.
        data = user_values.dump(Added(2))
        stage.step(actor, inbox.InboxEvent("Added", payload.inline(data)), data)
        end = structs.encode(run_repair.TerminateRun("r", "enough"))
        stage.step(actor, inbox.Control(run_repair.TERMINATE, payload.inline(end)), end)
        world.advance(0)
        assert not made.machine.unfinished
        assert not made.machine.work.open
        assert made.machine.runs["r"].record.status is RunStatus.CANCELLED
        made.prove()


def test_what_was_held_back_is_asked_for_by_the_fork() -> None:
    with testing.world(app, script(), drops=False) as world:
        world.start(patient(COUNT), id="r")
        first = world.fork("dropped", at=last_of_first_step(world))
        assert first.answer(charge, "by hand") == COUNT - ROOM
        sent = ROOM
        assert outcome(first) == ["cancelled"] * sent + ["by hand"] * (COUNT - sent)
        second = world.fork("live", at=last_of_first_step(world), effects="share", live=True)
        assert outcome(second) == [f"paid o{n}" for n in range(COUNT)]
        check(world, first, second)


def test_what_was_given_up_and_not_closed_is_the_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEP_ENTRIES_MAX", 10)
    with testing.world(app, script(), drops=False) as world:
        run = world.start(many(COUNT), id="r")
        height = world.head.height
        run.cancel("enough")
        halfway = next(each.height for each in world.journal() if each.height > height and each.chain)
        for policy in ("drop", "reissue", "share"):
            forked = world.fork(policy, at=halfway, effects=policy)
            assert not forked.machine.work.open
            assert not forked.machine.work.closing
            own = [each.kind for each in forked.journal() if each.height > halfway]
            assert own == [Kind.CONTROL, *own[1:]]
            assert Kind.EFFECT_CANCELLED not in own
            assert forked.attach("r").status is RunStatus.CANCELLED
            check(forked)


# --- What is no fork -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{}, {"fork": b"x" * 16}, {"step": 5}, {"owner": b"o" * 16, "step": 0}, {"script": [b"\x00"]}]
)
def test_only_the_first_step_of_a_fork_says_that_it_is_one(change: dict[str, Any]) -> None:
    with testing.world(app) as world:
        world.send(Added(1))
        mine = world.address.world
        said = ForkBeginning(mine, mine, "test", world.head.step, world.head.height, ForkPolicy.DROP, False)
        fields = {name: getattr(said, name) for name in said.__struct_fields__} | change
        data = structs.encode(ForkBeginning(**fields))
        before = world.machine.rows
        stepped = world.step(inbox.Control(part_inputs.FORKED, payload.inline(data)), data)
        assert "forked: " in stepped.dead
        assert world.machine.branch is None
        assert not world.machine.unfinished
        assert before == world.machine.rows
        world.prove()


@pytest.mark.parametrize("correlation", ["", "c"])
@pytest.mark.parametrize("command", control_commands.OF_WORKERS)
def test_what_only_a_worker_says_is_refused_from_a_producer(command: str, correlation: str) -> None:
    """With the right ids and step, but in an input that has a stamp."""
    with testing.world(app) as world:
        world.send(Added(1))
        at, head = world.address, world.head
        machine = world.machine
        said = {
            part_inputs.FORKED: ForkBeginning(
                at.world, b"o" * 16, "test", head.step, head.height, ForkPolicy.DROP, True
            ),
            control_commands.PROGRAM: control_commands.ChangeProgram(app.hash, b"p" * 32),
            part_inputs.DOMAINS: part_inputs.DomainDeclarations({}, {}, True, {}),
        }
        data = structs.encode(said[command])
        item = inbox.Control(command, payload.inline(data), correlation)
        stepped = kernel_step.step(
            machine,
            step_records.Input(item, data, b"s" * 12),
            step_records.StepContext(at, head.step + 1, head.time_us),
            PARTS,
        )
        refusal = Kind.ANSWERED if correlation else Kind.UNDECODABLE_INPUT
        assert [each.kind for each in stepped.drafts] == [Kind.CONTROL, refusal]
        assert b"no producer can send it" in stepped.drafts[1].payload
        assert bool(stepped.dead) is not bool(correlation)
        assert machine.branch is None
        assert not stepped.changes


def test_a_poisoned_first_step_and_poisoned_steps_behind_it() -> None:
    """Nothing of a fork's first step is user code; what is settled without user code is settled later."""
    with testing.world(app, script(), drops=False) as world:
        world.start(patient(COUNT), id="r")
        life = world._actor.life
        made = testing.tested_world._life(
            world._stage, "fork", app, world._options, parent=life, start=life.standing_at(10**6)
        )
        machine, number = made.machine, made.head.step
        data = structs.encode(
            ForkBeginning(made.at.world, world.address.world, "test", number, made.head.height, ForkPolicy.SHARE, False)
        )

        def take(item: inbox.Item, data: bytes, poison: str = "") -> step_records.Stepped:
            nonlocal number
            number += 1
            given = step_records.Input(item, data, poison=poison)
            return kernel_step.step(machine, given, step_records.StepContext(made.at, number, made.head.time_us), PARTS)

        take(inbox.Control(part_inputs.FORKED, payload.inline(data)), data, "died of it")
        assert machine.branch is not None
        assert machine.branch.unsettled
        go_on = inbox.Control(control_commands.CONTINUE, payload.EMPTY)
        take(go_on, b"", "died of it")
        wanted: list[step_records.WorkRequest] = []
        while machine.unfinished:
            wanted += take(go_on, b"").wanted
        assert [each.name for each in wanted] == [part_inputs.SHARE] * COUNT
        assert {each.kind for each in machine.work.open.values()} == {WorkKind.EFFECT}
        assert machine.runs["r"].record.status is RunStatus.RUNNING
        assert isinstance(made.at, ids.Address)
        machine.close()
