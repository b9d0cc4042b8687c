"""Stored things for people: entries as JSON objects and as one line. What they say is taken apart in the kernel."""

from __future__ import annotations

from typing import Any

import msgspec

from worldline.kernel import entry_fields
from worldline.kernel.entry_fields import Fields
from worldline.model import journal

TEXT_CHARACTERS_MAX = 120

when = entry_fields.when
rfc3339 = entry_fields.rfc3339
plain = entry_fields.plain
decoded = entry_fields.decoded
fields = entry_fields.fields
item = entry_fields.item
failure = entry_fields.failure
arguments = entry_fields.arguments


def entry(found: journal.JournalEntry) -> Fields:
    """A whole entry as one JSON object."""
    shown: Fields = {
        "height": found.height,
        "step": found.step,
        "kind": found.kind.name.lower(),
        "time": rfc3339(when(found.time_us)),
        **fields(found),
    }
    for name in ("correlation", "stamp", "state", "chain", "blob"):
        value = getattr(found, name)
        if value:  # an entry has most of these empty, and a line full of nothing hides the rest
            shown[name] = plain(value)
    return shown


def line(found: journal.JournalEntry) -> str:
    """Return what an entry says, in a few words."""
    return parts(fields(found))


def parts(said: Fields) -> str:
    """Names and values on one line; those without a value are left out."""
    return " ".join(f"{name}={_short(value)}" for name, value in said.items() if value not in (None, "", {}, []))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else canonical_text(value)
    text = " ".join(text.split())  # a value with line breaks must not look like several entries
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 3] + "..."


def canonical_text(value: Any) -> str:
    """Plain data as one line of JSON."""
    return msgspec.json.encode(plain(value)).decode()
