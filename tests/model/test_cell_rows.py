"""Rows of cells: golden bytes of both forms, and what is no such row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.base import errors
from worldline.codec import canonical
from worldline.model import cell_rows
from worldline.model.cell_rows import CellKind, StoredCell


@pytest.mark.parametrize(
    ("row", "meaning"),
    [
        (StoredCell(3, b"data", CellKind.REDUCER), "82034464617461"),
        (StoredCell(3, b"data", CellKind.DOMAIN), "8303446461746101"),
    ],
)
def test_golden_bytes(row: StoredCell, meaning: str) -> None:
    assert canonical.encode(row.fields).hex() == meaning
    assert cell_rows.decode(bytes.fromhex(meaning)) == row


@given(st.integers(0, 2**63), st.binary(), st.sampled_from(CellKind))
def test_what_is_written_is_read(folds: int, data: bytes, kind: CellKind) -> None:
    row = StoredCell(folds, data, kind)
    assert cell_rows.decode(canonical.encode(row.fields)) == cell_rows.read(row.fields) == row


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [1],
        [b"data", 1],
        [1, "data"],
        [1, b"data", 0],  # a kind that is left out
        [1, b"data", 2],
        [1, b"data", True],
        [1, b"data", b""],
        [1, b"data", 1, 1],
        {"data": b""},
        None,
    ],
)
def test_what_is_no_row_of_a_cell_is_refused(fields: object) -> None:
    with pytest.raises(errors.DecodeError, match="the row of a cell holds"):
        cell_rows.decode(canonical.encode(fields))  # type: ignore[arg-type]
