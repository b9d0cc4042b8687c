"""Drawn histories, forked anywhere: the parent never notices, and every digest of the fork is that of the model.

The model of a fork is its parent's journal run again from the beginning, and the fork's own journal run again over what
that leads to; and, for a fork that gets what its parent got, the parent itself.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import hypothesis
import pytest
from hypothesis import strategies as st

import worldline as wl
from tests import options
from tests.kernel import test_random_programs as programs
from worldline import testing
from worldline.host.feature_list import PARTS
from worldline.kernel import replay, state_rows
from worldline.kernel.machine import Machine
from worldline.testing import fork_following, stage
from worldline.testing.life import Life

EXAMPLES = options.number("forked_histories")
SCRIPT = wl.Script().on(programs.outside, programs.answer)
RULES: list[dict[str, Any]] = [
    {"effect": "outside", "arguments": {"number": 4}, "error": "scripted"},
    {"effect": "outside", "arguments": {"number": 3}, "answer": 33, "times": 2},
    {"effect": "outside", "answer": 7, "times": 9},
]
ACTS = st.lists(programs.ACTS, min_size=1, max_size=6)


def check(fork: Life) -> None:
    """Everything of a fork is what running it again gives, from the beginning of the world that it comes from."""
    at = fork.line.owner(1)
    machine = Machine(fork.program, strict=True)
    for entries in replay.steps(fork.filled()):
        owner = fork.line.owner(entries[0].height)
        if owner != at:  # the code of a fork runs over the rows of its parent
            parts, at = state_rows.save(machine), owner
            machine.close()
            machine = state_rows.load(fork.program, parts, at, strict=True)
        replay.check(machine, entries, at, fork.load, PARTS)
    assert state_rows.save(machine) == state_rows.save(fork.machine)
    assert (machine.state, fork.entries[-1].chain) == (fork.head.state, fork.head.chain)
    machine.close()


def restored_without_code(life: Life) -> None:
    def raises(*_: object, **__: object) -> NoReturn:
        raise AssertionError("user code ran while a world was brought back")

    expected = state_rows.save(life.machine)
    with pytest.MonkeyPatch.context() as patch:
        for flow in programs.app.workflows.values():
            patch.setattr(flow, "function", raises)
        for name in ("__init__", "ping", "count"):
            patch.setattr(programs.Heard, name, raises)
        life.restore()
    assert state_rows.save(life.machine) == expected


def live(world: testing.TestWorld, acts: list[Any], prefix: str) -> None:
    programs.live(world, acts, until=0, prefix=prefix)


def follow(parent: Life, height: int) -> None:
    """A fork that gets what its parent got ends as its parent does."""
    made = parent.branch(stage.address(0), height)
    assert fork_following.follow(made, parent, fork_following.lived(parent))
    assert fork_following.difference(made.machine, parent.machine) == ""
    check(made)
    made.machine.close()


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(
    before=ACTS,
    after=ACTS,
    seed=st.integers(0, 1000),
    policy=st.sampled_from(["drop", "reissue", "share", "script"]),
    dry_or_live=st.booleans(),
    where=st.floats(0, 1),
    again=st.none() | st.floats(0, 1),
)
def test_a_drawn_history_forked_anywhere(
    before: list[Any], after: list[Any], seed: int, policy: Any, dry_or_live: bool, where: float, again: float | None
) -> None:
    with testing.world(programs.app, SCRIPT, seed=seed, shuffle=True, twice=False, drops=False) as twin:
        live(twin, before, "run")
        live(twin, after, "after")
        twin.advance(300)
    with testing.world(programs.app, SCRIPT, seed=seed, shuffle=True, twice=False) as world:
        live(world, before, "run")
        height = int(where * world.head.height)
        how: dict[str, Any] = {"effects": policy, "script": RULES if policy == "script" else None, "live": dry_or_live}
        forks = [world.fork(at=height, **how)]
        if again is not None:
            forks.append(forks[0].fork(at=int(again * forks[0].head.height), **how))
        live(world, after, "after")
        ends = world.now + timedelta(seconds=300)
        for each in forks:
            live(each, after, "after")
        world.advance(ends - world.now)
        assert world.head == twin.head
        follow(world.life, height)
        for each in forks:
            assert each.machine.branch is not None
            assert not each.machine.branch.unsettled
            restored_without_code(each.life)
            check(each.life)
            each.prove()
