"""Rows over rows: as if the changes had been applied to a copy, and the base stays as it was."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from worldline.layers.history.row_overlay import Overlay
from worldline.model import change
from worldline.model.change import Change, Row
from worldline.model.rows import Rows

KEYS = [group + bytes([number]) for group in (b"a", b"ab", b"b") for number in range(4)]
ROWS = st.builds(Row, st.sampled_from([b"1", b"2"]))
CHANGES = st.one_of(
    st.builds(change.put, st.sampled_from(KEYS), ROWS),
    st.builds(change.gone, st.sampled_from(KEYS)),
    st.builds(change.drop, st.sampled_from([b"a", b"ab", b"b"])),
)


@hypothesis.given(st.dictionaries(st.sampled_from(KEYS), ROWS), st.lists(st.lists(CHANGES, max_size=4), max_size=8))
def test_as_if_applied_to_a_copy(base: dict[bytes, Row], steps: list[list[Change]]) -> None:
    below, copy = Rows(base.items()), Rows(base.items())
    over = Overlay(below)
    for step in steps:
        over.apply(step)
        copy.apply(step)
        for group in (b"", b"a", b"ab", b"b"):
            assert over.under(group) == copy.under(group)
        assert [over.get(key) for key in KEYS] == [copy.get(key) for key in KEYS]
    assert dict(below.items()) == base
    differing = [key for key in KEYS if base.get(key) != copy.get(key)]
    touched = over.touched()
    assert touched == sorted(touched)
    assert [key for key in touched if key in differing] == sorted(differing), "every row that differs was touched"


def test_what_comes_to_be_known_of_a_dropped_group_is_gone() -> None:
    below = Rows()
    over = Overlay(below)
    over.apply([change.drop(b"a"), change.put(b"a2", Row(b"new"))])
    below.put(b"a1", Row(b"old"))
    below.put(b"b1", Row(b"old"))
    assert (over.get(b"a1"), over.get(b"b1")) == (None, Row(b"old"))
    assert over.under(b"a") == [(b"a2", Row(b"new"))]
    assert over.named() == [b"a", b"a2"]
    assert over.touched() == [b"a1", b"a2"]
