"""Rows by name."""

from __future__ import annotations

import pytest

from worldline.base import errors
from worldline.model import row_keys as keys

RUN = keys.text("r")
THREE = keys.number(3)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (keys.RUN_COUNT, "the number of runs"),
        (keys.PROGRAM, "the program of the world"),
        (keys.cell("Talk", "x"), "cell Talk['x']"),
        (keys.cell("Talk", ""), "cell Talk"),
        (keys.cell("Talk", "{0}"), "cell Talk['{0}']"),
        (keys.RUN + RUN + keys.START, "run 'r'"),
        (keys.RUN + RUN + keys.STATUS, "the status of run 'r'"),
        (keys.PROGRESS + RUN + keys.OP + THREE, "operation 4 of run 'r'"),
        (keys.PROGRESS + RUN + keys.OUTCOME + THREE, "the outcome of operation 4 of run 'r'"),
        (keys.PROGRESS + RUN + keys.FEEDING + THREE, "feeding 4 of run 'r'"),
        (keys.ARRIVED + RUN + keys.BUFFERED + THREE, "waiting event 3 of run 'r'"),
        (keys.WORK + keys.number(7), "work 7"),
        (keys.PROGRESS + keys.text("r") + keys.PARKED + keys.number(2), "the parking of operation 3 of run 'r'"),
        (keys.SCHEDULE + keys.text("nightly"), "schedule 'nightly'"),
        (keys.DOMAIN + keys.text("Order"), "flow domain 'Order'"),
        (keys.DOCUMENT + keys.text("0a"), "flow document '0a'"),
        (keys.DOMAINS, "what all flow domains have in common"),
        (keys.RUN + RUN, "all rows of run 'r'"),
        (keys.PROGRESS + RUN, "all operations of run 'r'"),
        (keys.ARRIVED + RUN, "all that waits for run 'r'"),
        (b"", "the row "),
        (b"k", "the row 6b"),
        (b"R\x00", "the row 5200"),
        (b"R\x00\x02r", "the row 52000272"),
        (keys.RUN + RUN + b"?", "the row 520001723f"),
    ],
)
def test_a_row_is_named_for_people(key: bytes, name: str) -> None:
    assert keys.describe(key) == name


def test_every_kind_of_row_has_a_name() -> None:
    of_runs = [kind + RUN + part for kind, parts in keys._OF_RUNS.items() for part in parts]
    numbered = [key if key.startswith(keys.RUN) else key + THREE for key in (*of_runs, *keys._NUMBERED)]
    names = [keys.describe(key) for key in (*keys._ALONE, *numbered)]
    assert not [name for name in names if name.startswith("the row")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Talk", [keys.cell("Talk", "")]),
        ("Talk['x']", [keys.cell("Talk", "x")]),
        ('Talk["it\'s"]', [keys.cell("Talk", "it's")]),
        ("Talk[x]", [keys.cell("Talk", "x")]),
        ("Talk[7]", [keys.cell("Talk", "7")]),
        ("cell Talk['a b']", [keys.cell("Talk", "a b")]),
        ("Talk['[x]']", [keys.cell("Talk", "[x]")]),
        ("run r", [keys.RUN + RUN + keys.STATUS, keys.RUN + RUN + keys.START]),
        ("run 'r'", [keys.RUN + RUN + keys.STATUS, keys.RUN + RUN + keys.START]),
        ("the status of run r", [keys.RUN + RUN + keys.STATUS]),
        ("schedule nightly", [keys.SCHEDULE + keys.text("nightly")]),
        ("operation 4 of run r", [keys.PROGRESS + RUN + keys.OP + THREE]),
        (keys.cell("Talk", "x").hex(), [keys.cell("Talk", "x")]),
        ("abcd", [keys.cell("abcd", "")]),
    ],
)
def test_a_row_is_found_by_its_name(name: str, found: list[bytes]) -> None:
    assert keys.named(name) == found


@pytest.mark.parametrize("name", ["", "a b", "Talk[", "Talk['x]", "operation 0 of run r", "Talk['x'].y", "x" * 70_000])
def test_what_names_no_row(name: str) -> None:
    with pytest.raises(errors.BadInput):
        keys.named(name)


def test_what_describe_says_is_a_name() -> None:
    of_runs = [kind + RUN + part for kind, parts in keys._OF_RUNS.items() for part in parts]
    numbered = [key if key.startswith(keys.RUN) else key + THREE for key in (*of_runs, *keys._NUMBERED)]
    for key in (*keys._ALONE, *numbered, keys.cell("Talk", "it's"), *(each + keys.text("s") for each in keys._NAMED)):
        assert key in keys.named(keys.describe(key))
