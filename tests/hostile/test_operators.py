"""No command of an operator stops a world, whatever its runs are doing."""

from __future__ import annotations

import pytest

from tests import options
from tests.hostile import making, operators
from worldline import testing
from worldline.base import errors, failures
from worldline.features.forks.pure import revert_step
from worldline.kernel import part_inputs, user_values
from worldline.model import row_keys
from worldline.model.world_records import ForkPolicy

SEEDS = options.number("operator_seeds")


@pytest.mark.parametrize("part", range(4))
def test_the_next_input_is_taken_after_every_command(part: int) -> None:
    for seed in range(part, SEEDS, 4):
        problems = operators.Operator(seed).play()
        assert not problems, f"seed {seed}: {problems}"


@pytest.mark.parametrize("part", range(2))
async def test_a_world_that_is_paused_resumed_and_deleted_takes_what_it_is_to(part: int) -> None:
    done: list[str] = []
    for seed in range(part, SEEDS, 2):
        tender = operators.Tender(seed)
        problems = await tender.play()
        assert not problems, f"seed {seed}: {problems}"
        done += tender.done
    assert {"pause", "resume", "archive", "delete"} <= set(done)


@pytest.mark.parametrize("wrong", [user_values.dump([1]), user_values.dump("x"), user_values.NONE])
@pytest.mark.parametrize("kind", [row_keys.RUN_COUNT, row_keys.WORK_COUNT, row_keys.RUN, row_keys.CELL])
def test_a_revert_that_is_refused_changes_nothing(kind: bytes, wrong: bytes) -> None:
    app = operators.program()
    with testing.world(app, seed=1) as world:
        world.ask(making.Ping())
        world.start(app.workflows["chain"](3), id="r")
        before = revert_step._rows_of(world.machine)
        key = next(each for each in before if each.startswith(kind))
        opened = list(world.machine.work.open)
        wanted = part_inputs.Revert(world.head.step, 1, 1, ForkPolicy.DROP, [[key, wrong, b""]])
        if kind not in (row_keys.RUN_COUNT, row_keys.WORK_COUNT) or wrong != user_values.dump([1]):
            with pytest.raises((errors.Error, failures.RunFailed)):
                world.command(part_inputs.REVERT, wanted)
            assert opened
            assert list(world.machine.work.open) == opened
        world.ask(making.Ping())
        world.prove()
