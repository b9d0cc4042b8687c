"""An entry of a journal as users get it: its bytes, and what they say."""

from __future__ import annotations

from typing import Any

import msgspec

from worldline.kernel import entry_fields
from worldline.model import journal


class Entry(journal.JournalEntry, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One journal record. `payload` has its bytes, `data` what they say.

    `chain` and `state` are set on the last entry of a step and empty on the others. `blob`: the sha256 of a payload too
    large to stand here; `payload` is empty then.
    """

    @property
    def data(self) -> dict[str, Any]:
        """What it says, as plain data by name: `{"event": "Deposited", "data": {"cents": 500}, "to": ""}`. The same as
        `worldline journal --json` shows: bytes as hexadecimal text.
        """
        return entry_fields.fields(self)

    def __repr__(self) -> str:
        said = {name: value for name, value in self.data.items() if value not in (None, "", {}, [])}
        return f"Entry(height={self.height}, step={self.step}, kind={self.kind.name}, data={said})"


def of(record: journal.JournalEntry) -> Entry:
    """The entry with this record's fields."""
    return Entry(*msgspec.structs.astuple(record))
