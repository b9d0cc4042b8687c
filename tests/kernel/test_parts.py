"""What a step is given for forks and for flow domains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.machine import Machine
from worldline.kernel.parts import StepParts
from worldline.model import ids, inbox, payload, step_records

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
app = wl.Program("plain")


@dataclass(frozen=True)
class Put:
    n: int


@app.reducer
@dataclass
class Last:
    n: int = 0

    @wl.on
    def put(self, event: Put) -> None:
        self.n = event.n


class Untouched:
    """A part that a plain step must not ask."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"a plain step asks for {name}")


def test_a_plain_step_calls_no_part() -> None:
    """Nor does one look at them: what a world does not have costs it one test of its own data."""
    untouched: Any = Untouched()
    machine = Machine(app)
    data = user_values.dump(Put(3))
    given = step_records.Input(inbox.InboxEvent("Put", payload.inline(data)), data)
    kernel_step.step(machine, given, step_records.StepContext(HOME, 1, 1), StepParts(untouched, untouched, untouched))
    assert machine.read_cell(Last, "") == Last(3)
    machine.close()


def test_no_control_command_has_two_meanings() -> None:
    both = [*control_commands._COMMANDS, *PARTS.branch.commands(PARTS.domains), *PARTS.domains.commands()]
    assert len(dict.fromkeys(both)) == len(both)
    assert {*control_commands.OF_WORKERS} <= {*both}
