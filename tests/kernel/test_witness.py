"""A world that says the root of its state: nothing else happens in that step, and a replay comes to the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests.kernel.test_cold_cells import From
from worldline import testing
from worldline.base import limits
from worldline.codec import structs
from worldline.host.feature_list import PARTS
from worldline.kernel import control_commands, part_inputs, schedules, state_rows, state_witness, user_values
from worldline.kernel import step as kernel_step
from worldline.kernel.authoring import schedule_spec
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.machine import Machine
from worldline.model import ids, inbox, journal, payload, row_keys, step_records
from worldline.model.change import Change, drop
from worldline.model.journal import Kind
from worldline.model.rows import Rows
from worldline.model.trie.update import root_of
from worldline.model.world_records import ForkPolicy

HOME = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
SECOND_US = 1_000_000

app = wl.Program("witness")


@dataclass(frozen=True)
class Put:
    key: str
    text: str = ""


@app.reducer(key="key")
@dataclass
class Cell:
    text: str = ""

    @wl.on
    def put(self, event: Put) -> None:
        self.text = event.text


@app.effect
async def work(number: int) -> int:
    return number


@app.workflow
async def many(count: int) -> int:
    return len(await wl.gather(*(work(number) for number in range(count))))


def control(command: str, data: bytes, *, poison: str = "") -> step_records.Input:
    return step_records.Input(inbox.Control(command, payload.inline(data), "asked"), data, poison=poison)


def asking(*, poison: str = "") -> step_records.Input:
    return control(state_witness.WITNESS, structs.encode(state_witness.WitnessCommand()), poison=poison)


def put(key: str, text: str = "") -> step_records.Input:
    data = user_values.dump(Put(key, text))
    return step_records.Input(inbox.InboxEvent(user_values.schema_name(Put), payload.inline(data)), data)


def at(number: int, behind_us: int = 0) -> step_records.StepContext:
    return step_records.StepContext(HOME, number, SECOND_US * 1_000 * number, behind_us)


def said(drafts: list[journal.EntryDraft]) -> state_witness.WitnessedRoot:
    [found] = [
        structs.decode(state_witness.WitnessedRoot, draft.payload) for draft in drafts if draft.kind is Kind.WITNESSED
    ]
    return found


def root(machine: Machine) -> bytes:
    return root_of(state_rows.rows_of(machine))


def test_the_root_is_that_of_the_rows() -> None:
    """Every step of a test world is made twice, and it is replayed at the end."""
    with testing.world(app) as world:
        roots: list[bytes] = []
        for number in range(3):
            world.send(Put(f"k{number % 2}", "x" * 2_000 * number))
            for _ in range(2):
                before = world.head
                world.command(state_witness.WITNESS, state_witness.WitnessCommand())
                entries = [each for each in world.journal() if each.height > before.height]
                assert [each.kind for each in entries] == [Kind.CONTROL, Kind.WITNESSED, Kind.ANSWERED]
                found = structs.decode(state_witness.WitnessedRoot, entries[1].payload)
                assert found == state_witness.WitnessedRoot(before.step, root(world.machine))
                roots.append(found.root)
        assert roots[::2] == roots[1::2], "to say it changes nothing"
        assert len({*roots}) == 3
        world.prove()


def test_nothing_else_goes_on_in_that_step() -> None:
    """What an earlier step left for the next waits for the one after it."""
    machine = Machine(app)
    call = many(limits.STEP_EFFECTS_MAX + 5)
    call.awaited = True
    start = control_commands.StartRun("r", "many", call.pack(), bytes(16), named=True)
    kernel_step.step(machine, control(control_commands.RUN, structs.encode(start)), at(1), PARTS)
    assert machine.unfinished
    rows, before = state_rows.rows_of(machine), root(machine)
    stepped = kernel_step.step(machine, asking(), at(2), PARTS)
    assert said(stepped.drafts) == state_witness.WitnessedRoot(1, before)
    assert (stepped.changes, stepped.wanted, state_rows.rows_of(machine)) == ([], [], rows)
    assert machine.unfinished
    data = b""
    kernel_step.step(
        machine, step_records.Input(inbox.Control(control_commands.CONTINUE, payload.EMPTY), data), at(3), PARTS
    )
    assert not machine.work.unsent.items
    machine.close()


def test_a_clock_that_was_set_back_changes_no_schedule_yet() -> None:
    machine = Machine(app)
    spec = schedule_spec.spec_of(Put("k"), every=3_600, cron=None, tz=None)
    kernel_step.step(
        machine, control(control_commands.SCHEDULE, structs.encode(schedules.ScheduleChange("s", spec))), at(10), PARTS
    )
    before = root(machine)
    behind_us = 9_000 * SECOND_US
    stepped = kernel_step.step(machine, asking(), at(11, behind_us), PARTS)
    assert [draft.kind for draft in stepped.drafts] == [Kind.CONTROL, Kind.CLOCK, Kind.WITNESSED, Kind.ANSWERED]
    assert (said(stepped.drafts).root, stepped.changes) == (before, [])
    after = kernel_step.step(machine, put("k"), at(12, behind_us), PARTS)
    assert Kind.TIMER_CANCELLED in [draft.kind for draft in after.drafts], "the next step sets the timer anew"


def test_one_that_processes_die_of_is_refused() -> None:
    """As in a world whose rows are too many for a step."""
    machine = Machine(app)
    stepped = kernel_step.step(machine, asking(poison="3 processes died of it"), at(1), PARTS)
    kinds = [Kind.CONTROL, Kind.POISON, Kind.UNDECODABLE_INPUT, Kind.ANSWERED]
    assert [draft.kind for draft in stepped.drafts] == kinds
    assert not structs.decode(Answer, stepped.drafts[-1].payload).ok
    assert stepped.dead == "3 processes died of it"
    assert stepped.changes == []


def test_a_command_that_cannot_be_read_is_refused() -> None:
    stepped = kernel_step.step(Machine(app), control(state_witness.WITNESS, b"\x01"), at(1), PARTS)
    assert [draft.kind for draft in stepped.drafts] == [Kind.CONTROL, Kind.ANSWERED]
    assert not structs.decode(Answer, stepped.drafts[-1].payload).ok


@pytest.mark.parametrize("durable", [True, False])
def test_cells_that_are_not_in_memory(durable: bool) -> None:
    """Those that have changed since the last durable step are in memory; all others are as that has left them."""
    rows, all_here = Rows(), Machine(app)
    machine = Machine(app, fetch=From(rows))
    number = 0

    def both(given: step_records.Input) -> list[Any]:
        nonlocal number
        number += 1
        stepped = [kernel_step.step(each, given, at(number), PARTS) for each in (machine, all_here)]
        assert stepped[0].drafts == stepped[1].drafts
        return stepped

    for key in range(40):
        rows.apply(both(put(f"k{key}", "x" * 300))[0].changes)
    assert machine.cells.cool(5_000) > 20
    for key in range(0, 40, 3):
        changed = both(put(f"k{key}", "changed"))[0].changes
        if durable:
            rows.apply(changed)
    both(put("new", "new"))
    expected = root(all_here)
    assert said(both(asking())[0].drafts).root == expected


def test_cells_that_a_revert_removed_are_gone_before_that_is_durable() -> None:
    """Several steps are made durable at once: what the store still has is not what the next of them works on."""
    rows, all_here = Rows(), Machine(app)
    machine = Machine(app, fetch=From(rows))
    givens = [put("a", "1"), put("b", "1"), back(2, "b"), asking(), back(4, "c"), asking(), put("b", "2"), asking()]
    for number, given in enumerate(givens, 1):
        cold, warm = (kernel_step.step(each, given, at(number), PARTS) for each in (machine, all_here))
        assert (cold.drafts, cold.state) == (warm.drafts, warm.state), number
        if number <= 2:
            rows.apply(cold.changes)
    assert machine.cells["Cell", "b"].folds == 1


def test_with_all_cells_in_memory_the_trie_is_told_what_is_not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what steps have changed before the world went back, and by that."""
    rows, changes = Rows(), list[Change]()
    machine, other = Machine(app), Machine(app)
    machine.cells.save_in(From(rows))
    machine.cells.begin_steps(changes)
    made = 0

    def of_all_rows(found: Any) -> bytes:
        nonlocal made
        made += 1
        return root_of(found)

    monkeypatch.setattr(state_witness, "root_of", of_all_rows)
    givens = [
        put("a", "1"),
        put("b", "1"),
        put("a", "2"),
        put("c", "1"),
        asking(),
        back(5, "b"),
        asking(),
        put("b", "2"),
    ]
    for number, given in enumerate([*givens, asking(), put("b", "3"), asking()], 1):
        by_trie, by_rows = (kernel_step.step(each, given, at(number), PARTS) for each in (machine, other))
        assert (by_trie.drafts, by_trie.state) == (by_rows.drafts, by_rows.state), number
        if number <= 2:
            rows.apply(by_trie.changes)
        else:
            changes += by_trie.changes
        assert Kind.REVERTED in [draft.kind for draft in by_trie.drafts] or number != 6
    assert made == 4, "those of the machine that has no trie"


def test_cells_that_go_together_are_found_among_all_rows() -> None:
    """No step does that; the keys of those that go are not known."""
    machine = Machine(app)
    machine.cells.save_in(From(Rows()))
    assert machine.cells.root([]) == root_of([])
    for group in (b"", row_keys.cell("Cell", "")):
        machine.cells.begin_steps([drop(group)])
        assert machine.cells.root([]) is None
    machine.cells.begin_steps([drop(row_keys.RUN)])
    assert machine.cells.root([]) == root_of([])


def back(since: int, key: str) -> step_records.Input:
    """To a state without this cell."""
    wanted = part_inputs.Revert(since, 1, 1, ForkPolicy.DROP, [[row_keys.cell("Cell", key)]])
    return control(part_inputs.REVERT, structs.encode(wanted))
