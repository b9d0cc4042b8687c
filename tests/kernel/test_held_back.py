"""Effects that a step had no room for, under a program that does not have them any more: they leave like all others."""

from __future__ import annotations

import pytest

import worldline as wl
from worldline import testing
from worldline.base import limits
from worldline.codec import structs
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands, state_rows, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.machine import Machine
from worldline.model import ids, inbox, payload, step_records
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.work import WorkKind

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
COUNT = 3 * limits.STEP_EFFECTS_MAX + 5


def program(*, renamed: bool) -> wl.Program:
    app = wl.Program("held back")
    if renamed:

        @app.effect
        def fetch_one(n: int) -> int:
            return n

        fetch: wl.Effect[[int], int] = fetch_one
    else:

        @app.effect(total_timeout=60)
        def fetch_it(n: int) -> int:
            return n

        fetch = fetch_it

    @app.workflow
    async def many() -> int:
        return sum(await wl.gather(*[fetch(n) for n in range(COUNT)]))

    return app


def control(command: str, data: bytes, number: int) -> tuple[step_records.Input, step_records.StepContext]:
    return step_records.Input(inbox.Control(command, payload.inline(data)), data), step_records.StepContext(
        HOME, number, number
    )


def carry_on(machine: Machine, number: int) -> list[step_records.Stepped]:
    """Let everything leave that is held back."""
    stepped = []
    while machine.unfinished:
        number += 1
        stepped.append(kernel_step.step(machine, *control(control_commands.CONTINUE, b"", number), PARTS))
    return stepped


def test_what_is_held_back_leaves_under_a_program_without_it() -> None:
    machine = Machine(program(renamed=False))
    wanted = control_commands.StartRun("r", "many", user_values.dump({}), b"s" * 16, named=True)
    kernel_step.step(machine, *control(control_commands.RUN, structs.encode(wanted), 1), PARTS)
    parts = state_rows.save(machine)
    assert len(machine.work.unsent) == COUNT - limits.STEP_EFFECTS_MAX

    changed = state_rows.load(program(renamed=True), parts, HOME)
    assert "journal: effect 'fetch_it'" in control_commands.misfits(changed, HOME)["r"]
    change = structs.encode(control_commands.ChangeProgram(b"a" * 32, b"b" * 32))
    stepped = [kernel_step.step(changed, *control(control_commands.PROGRAM, change, 2), PARTS), *carry_on(changed, 2)]
    left = [each for one in stepped for each in one.wanted]
    assert [each.name for each in left] == ["fetch_it"] * (COUNT - limits.STEP_EFFECTS_MAX)
    assert {each.deadline_us for each in left} == {0}  # no declaration is known here that would set one
    assert len(changed.work.open) == COUNT

    # A snapshot of it goes back to the code that knows them; there the answers come, and the run ends.
    back = state_rows.load(program(renamed=False), state_rows.save(changed), HOME)
    number = 100
    last = kernel_step.step(
        back,
        *control(
            control_commands.PROGRAM, structs.encode(control_commands.ChangeProgram(b"b" * 32, b"a" * 32)), number
        ),
        PARTS,
    )
    for intent in list(back.work.open):
        number += 1
        answer = user_values.dump(1)
        receipt = inbox.EffectReceipt(intent, ReceiptStatus.OK, payload.inline(answer), 1)
        last = kernel_step.step(
            back, step_records.Input(receipt, answer), step_records.StepContext(HOME, number, number), PARTS
        )
    assert [each.kind for each in last.drafts][-1] is Kind.RUN_FINISHED


@pytest.mark.parametrize("seed", [0, 1])
def test_in_the_testing_kit_they_stay_open(seed: int) -> None:
    app = program(renamed=False)
    script = wl.Script().on(app.effects["fetch_it"], wl.Script.later(10, 1))
    with testing.world(app, script, seed=seed) as world:
        world.start(app.workflows["many"](), id="r")
        assert world.adopt(program(renamed=True))
        world.advance(30)
        assert all(each.kind is WorkKind.EFFECT for each in world.machine.work.open.values())
        assert not world.machine.work.unsent
