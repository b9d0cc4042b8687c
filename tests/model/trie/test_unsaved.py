"""What has changed since a state was saved, and that saving it is saving the state."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from random import Random

import pytest

from tests.kernel import test_random_programs as programs
from tests.runtime import test_restore_runs_no_code as lives
from worldline.kernel import state_rows
from worldline.kernel.machine import Machine
from worldline.layers.history import step_reader
from worldline.model import change as model
from worldline.model import row_keys
from worldline.model.change import Change, Row
from worldline.model.rows import Rows
from worldline.model.trie import nodes, unsaved, update
from worldline.model.trie.nodes import Header
from worldline.model.trie.unsaved import Unsaved

STATE = bytes(32)


class Saving:
    """A state that is saved now and then, by what has changed."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.kept: dict[bytes, bytes] = {}
        self.unsaved = Unsaved(self._whole())
        self.unsaved.know(rows.keys())
        self.read = 0

    def _whole(self) -> Header:
        made = update.build(self.rows.items())
        self.kept |= made.new
        return Header(STATE, made.root, made.grown)

    def apply(self, changes: Sequence[Change]) -> None:
        self.rows.apply(changes)
        self.unsaved.take(changes)

    def save(self) -> update.UpdatedTrie:
        updating = update.Update(self.unsaved.root, self.unsaved.changed())
        nodes.answer(updating, self._get)
        result = updating.result()
        header = Header(STATE, result.root, self.unsaved.size + result.grown)
        assert header == self._whole()
        self.unsaved.saved(header)
        assert self.unsaved.changed() == []
        return result

    def _get(self, address: bytes) -> bytes:
        self.read += 1
        return self.kept[address]


@pytest.fixture
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsaved, "SMALL_BYTES", 0)


@pytest.mark.usefixtures("_all_are_large")
@pytest.mark.parametrize("seed", range(12))
def test_saving_what_changed_is_saving_the_state(seed: int) -> None:
    """A drawn history, saved at random steps: the root is always that of the rows as they are then, and at the end that
    of the machine which made the history.
    """
    random, lived = Random(seed), lives.lived(seed)
    machine = Machine(programs.app)
    saving = Saving(Rows(state_rows.rows_of(machine)))
    head = lived.exported.start
    for step in lived.exported.steps():
        head = step_reader.fold(head, [step], saving.rows, lived.exported.blobs, saving.unsaved.take)
        if random.random() < 0.4:
            saving.save()
    assert saving.save().root == update.build(lived.rows).root


def run_rows(run: str, count: int) -> list[Change]:
    rows = [model.put(row_keys.RUN + row_keys.text(run) + row_keys.START, Row(b"\x80"))]
    group = row_keys.PROGRESS + row_keys.text(run) + row_keys.OP
    return [*rows, *(model.put(group + row_keys.number(number), Row(bytes(60))) for number in range(count))]


def dropped(run: str) -> list[Change]:
    name = row_keys.text(run)
    return [model.drop(kind + name) for kind in (row_keys.ARRIVED, row_keys.PROGRESS, row_keys.RUN)]


def large() -> Saving:
    cells = ((row_keys.cell("c", str(number)), Row(bytes(100))) for number in range(1_000))
    saving = Saving(Rows(cells))
    assert saving.unsaved.tracked
    return saving


def test_what_came_and_went_costs_nothing() -> None:
    saving = large()
    for number in range(100):
        saving.apply(run_rows(f"r{number}", 5))
        saving.apply(dropped(f"r{number}"))
        saving.apply([model.put(row_keys.WORK + row_keys.number(number), Row(b"w"))])
        saving.apply([model.gone(row_keys.WORK + row_keys.number(number))])
    assert saving.unsaved.changed() == []
    assert not saving.save().new
    assert not saving.read


def test_saved_runs_go_with_all_their_rows() -> None:
    saving = large()
    saving.apply(run_rows("r", 40))
    saving.apply(run_rows("r2", 3))
    assert saving.save().root.count == 1_000 + 41 + 4
    saving.apply(run_rows("r", 50)[45:])
    saving.apply(dropped("r"))
    assert saving.save().root.count == 1_000 + 4
    saving.apply(dropped("r2"))
    saving.apply(run_rows("r2", 1))  # another one of that name
    assert saving.save().root.count == 1_000 + 2


def test_rows_of_several_groups_or_a_part_of_one_may_go() -> None:
    saving = large()
    saving.apply(run_rows("r", 12))
    saving.apply(run_rows("r2", 3))
    saving.save()
    saving.apply(run_rows("r3", 2))
    tens = row_keys.PROGRESS + row_keys.text("r") + row_keys.OP + row_keys.number(10)[:1]
    for prefix in (row_keys.RUN, tens):
        saving.apply([model.drop(prefix), model.put(row_keys.cell("c", "2"), Row(b"x"))])
        assert saving.unsaved.tracked
        assert not saving.unsaved.lacking
        saving.save()
    assert not saving.rows.under(row_keys.RUN)
    assert not saving.rows.under(tens)


@pytest.mark.parametrize("prefix", [b"", row_keys.CELL, row_keys.cell("c", "12")[:-1], row_keys.cell("other", "1")])
@pytest.mark.parametrize("always", [False, True], ids=["warm", "cold"])
def test_cells_that_go_together_are_looked_up_when_the_state_is_saved(prefix: bytes, always: bool) -> None:
    """Which cells there were is not known here: of a cold world only some are in memory."""
    saving = large()
    before = list(saving.rows.keys())
    known = saving.unsaved
    if always:
        known.track()
    saving.apply([model.put(row_keys.cell("c", "12"), Row(b"x")), model.put(row_keys.cell("c", "new"), Row(b"x"))])
    saving.apply([model.drop(prefix), model.put(row_keys.cell("c", "2"), Row(b"again"))])
    saving.apply([model.put(row_keys.cell("c", "3"), Row(b"later"))])
    for key in [*before, row_keys.cell("c", "new"), row_keys.cell("c", "never")]:
        changed, row = known.cell(key)
        assert row == saving.rows.get(key) if changed else not key.startswith(prefix)
    assert known.lacking
    known.find(before)
    saving.save()


def test_the_bytes_that_have_changed_are_counted() -> None:
    saving = large()
    saving.apply([model.put(row_keys.cell("c", "1"), Row(bytes(70)))])
    saving.apply([model.put(row_keys.cell("c", "1"), Row(bytes(30))), model.gone(row_keys.cell("c", "2"))])
    keys = 3 * len(row_keys.cell("c", "1"))
    assert saving.unsaved.bytes == 100 + keys + 3 * unsaved.CHANGE_BYTES
    saving.save()
    assert saving.unsaved.bytes == 0


def test_what_changed_rows_take_is_not_underrated() -> None:
    """With what saving them takes besides."""
    known = large().unsaved
    changes = [[model.put(row_keys.cell("c", f"{number}"), Row(b"%020d" % number))] for number in range(5_000)]
    tracemalloc.start()
    try:
        for each in changes:
            known.take([model.put(each[0].key + b"", Row(bytes(bytearray(each[0].row.meaning))))])  # type: ignore[union-attr]
        made = update.Update(known.root, known.changed())
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert made.wanted
    assert taken < known.bytes < 2 * taken


def test_of_a_small_state_nothing_is_kept() -> None:
    saving = Saving(Rows([(b"MR", Row(b"\x80"))]))
    assert not saving.unsaved.tracked
    saving.apply(run_rows("r", 4))
    assert saving.unsaved.changed() == []
    saving.unsaved.grew(300)
    assert saving.unsaved.bytes == 300
    saving.unsaved.saved(saving.unsaved.header, saving.rows.keys())
    assert saving.unsaved.bytes == 0


def test_a_small_state_whose_rows_are_asked_for_is_tracked_with_what_it_has() -> None:
    """What goes from here on was saved: its keys have to be known, whatever the size."""
    rows = Rows([(b"MR", Row(b"\x80"))])
    rows.apply(run_rows("r", 4))
    saving = Saving(rows)
    saving.unsaved.track(rows.keys())
    saving.apply([*dropped("r"), model.put(row_keys.cell("c", "1"), Row(b"x"))])
    assert saving.save().root.count == 2
