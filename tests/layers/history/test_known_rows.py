"""Rows of a saved state as far as they were looked up: which keys are asked for, and what may not be asked."""

from __future__ import annotations

import pytest

from worldline.layers.history.known_rows import FIRST_OPS, KnownRows
from worldline.model import row_keys
from worldline.model.change import Row

CELL = row_keys.cell("c", "k")
ROW = Row(b"x")


def progress(run: str, part: bytes, number: int) -> bytes:
    return row_keys.PROGRESS + row_keys.text(run) + part + row_keys.number(number)


def start(run: str) -> bytes:
    return row_keys.RUN + row_keys.text(run) + row_keys.START


def look(known: KnownRows, state: dict[bytes, Row], *runs: str) -> list[int]:
    """How many keys were asked for, each time."""
    asked: list[int] = []
    for keys in known.look_for(runs):
        wanted = known.missing(keys)
        known.take(wanted, {key: state[key] for key in wanted if key in state})
        asked.append(len(wanted))
    return asked


def test_an_absent_row_and_one_that_was_not_looked_up_are_not_the_same() -> None:
    known = KnownRows()
    with pytest.raises(AssertionError, match=r"cell c\['k'\] was not looked up"):
        known.get(CELL)
    assert known.missing([CELL, CELL]) == [CELL]
    known.take([CELL], {})
    assert known.get(CELL) is None
    assert known.missing([CELL]) == []
    with pytest.raises(AssertionError, match="all operations of run 'r' were not looked up"):
        known.under(row_keys.PROGRESS + row_keys.text("r"))


@pytest.mark.parametrize(
    ("count", "asked"),
    [
        (0, [2, 3 * FIRST_OPS]),
        (FIRST_OPS - 1, [2, 3 * FIRST_OPS]),
        (FIRST_OPS, [2, 3 * FIRST_OPS, 3 * FIRST_OPS]),
        (3 * FIRST_OPS, [2, 3 * FIRST_OPS, 3 * FIRST_OPS, 6 * FIRST_OPS]),
    ],
)
def test_operations_are_looked_up_as_far_as_there_are_any(count: int, asked: list[int]) -> None:
    state = {progress("r", row_keys.OP, number): ROW for number in range(count)} | {start("r"): ROW}
    known = KnownRows()
    assert look(known, state, "r") == asked
    assert len(known.under(row_keys.PROGRESS + row_keys.text("r"))) == count
    assert known.get(progress("r", row_keys.OUTCOME, 1_000)) is None
    with pytest.raises(AssertionError, match="feeding 1 of run 'r' was not looked up"):
        known.get(progress("r", row_keys.FEEDING, 0))
    assert look(known, state, "r") == [0], "it is known"


def test_of_a_run_that_is_not_there_nothing_more_is_asked() -> None:
    known = KnownRows()
    assert look(known, {}, "r", "s", "r") == [4]
    assert known.under(row_keys.PROGRESS + row_keys.text("s")) == []


def test_everything_but_cells() -> None:
    known = KnownRows()
    known.take_all_but_cells([(start("r"), ROW)])
    assert known.missing([CELL, start("s")]) == [CELL]
    assert known.get(start("s")) is None
    assert known.under(row_keys.RUN + row_keys.text("r")) == [(start("r"), ROW)]
    assert look(known, {}, "r") == []
    with pytest.raises(AssertionError, match="was not looked up"):
        known.get(CELL)
