"""Every mistake of the guide's page is made here: what is said of it is what the page shows, and names the line."""

from __future__ import annotations

import pytest

from tests.docs import mistakes

COUNT_MIN = 30


@pytest.mark.parametrize("name", mistakes.MISTAKES)
async def test_the_page_shows_what_is_said_and_it_names_the_line(name: str) -> None:
    said = await mistakes.told(name)
    assert mistakes.row(name, said) in mistakes.PAGE.read_text(), "type: python -m tests.docs.mistakes"
    assert mistakes.place(name) in said.lines
    assert all("\n" not in each for each in said.text.split(" // "))


def test_the_page_has_each_of_them_once() -> None:
    rows = [line for line in mistakes.PAGE.read_text().splitlines() if line.startswith("|")][2:]
    assert len(rows) == len(mistakes.MISTAKES) >= COUNT_MIN
    shown = [mistakes.shown(each) for each in mistakes.MISTAKES]
    assert [row.partition(" | ")[0].removeprefix("| ") for row in rows] == shown
    assert len(dict.fromkeys(rows)) == len(rows)


def test_each_error_that_waits_for_a_person_or_a_bound_is_among_them() -> None:
    """What users meet first where something was not bounded, was not handled, or does not fit."""
    said = [row.partition(" | ")[2] for row in mistakes.PAGE.read_text().splitlines() if row.startswith("|")]
    for kind in ("TooManyRuns", "Unhandled", "RunBlocked"):
        assert any(f"{kind}:" in each for each in said), kind
