"""Journals as files, with what their steps changed. (How whole worlds are exported: `tests/testing`.)"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from tests.layers.histories import AT, LARGE, History, histories, noise
from worldline.base import errors
from worldline.layers.history import journal_file, step_reader
from worldline.model import change as model
from worldline.model import state_digest
from worldline.model.change import Row
from worldline.model.rows import Rows


def exported(made: History) -> journal_file.ExportedJournal:
    _, _, steps = made.read()
    return journal_file.ExportedJournal(
        name="alice",
        program="shop",
        program_hash=bytes(32),
        at=AT,
        entries=[entry for entries, _ in made.steps for entry in entries],
        blobs=made.blobs,
        changed=[
            journal_file.StepChanges(step.changes, state_digest.changes_digest(changes))
            for step, (_, changes) in zip(steps, made.steps, strict=True)
        ],
    )


@settings(max_examples=40)
@given(histories())
def test_changes_are_exported(made: History) -> None:
    """A file has all that is needed to fold the rows again."""
    lines = list(journal_file.lines(exported(made)))
    found = journal_file.read(lines)
    assert list(journal_file.lines(found)) == lines
    rows = Rows()
    assert step_reader.fold(found.start, found.steps(), rows, found.blobs) == made.head
    assert list(rows.items()) == list(made.rows.items())


def three_steps() -> list[str]:
    """A row in the CAS, a delta of it, and a row that is gone."""
    made = History()
    before = noise(LARGE)
    made.commit(([b"one"], [model.put(b"k", Row(before, b"p"))]))
    made.commit(([b"two"], [model.put(b"k", Row(before + b"more"), base=before)]))
    made.commit(([b"three"], []), ([b"four"], [model.gone(b"k")]))
    return list(journal_file.lines(exported(made)))


def change(step: int, do: Callable[[dict[str, Any]], object]) -> Callable[[list[str]], list[str]]:
    def changed(lines: list[str]) -> list[str]:
        index = next(index for index, line in enumerate(lines) if json.loads(line).get("changes_of") == step)
        record = json.loads(lines[index])
        do(record)
        return [*lines[:index], json.dumps(record), *lines[index + 1 :]]

    return changed


DAMAGE: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "blob missing": (
        lambda lines: [line for line in lines if '"blob"' not in line],
        "of the changes of step 1 is missing",
    ),
    "changes missing": (lambda lines: [line for line in lines if '"changes_of":2' not in line], "chain of step 2"),
    "changes twice": (lambda lines: [*lines[:-1], lines[-2], lines[-1]], "stand here once"),
    "of another step": (change(4, lambda record: record.update(changes_of=5)), "changes of step 5"),
    "of no step": (change(4, lambda record: record.update(changes_of="4")), "stand here once"),
    "another digest": (change(4, lambda record: record.update(digest="00" * 32)), "chain of step 4"),
    "no digest": (change(4, lambda record: record.pop("digest")), "is not one of an exported journal"),
    "other changes": (change(4, lambda record: record.update(data="AIIAQWw=")), "the changes of step 4"),
    "a delta cut": (
        change(2, lambda record: record.update(data=record["data"][:-8])),
        "changes of step 2, which ends at height 2",
    ),
}


@pytest.mark.parametrize(("damage", "why"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_to_exported_changes_is_noticed(damage: Callable[[list[str]], list[str]], why: str) -> None:
    with pytest.raises(errors.Corrupt, match=why):
        journal_file.read(damage(three_steps()))


def test_changes_above_a_snapshot_are_read_as_far_as_they_can_be_known() -> None:
    """A delta of a row that only the snapshot has is left to whoever has the snapshot."""
    made = History()
    before = noise(6_000)
    made.commit(([b"one"], [model.put(b"k", Row(before))]))
    start, rows = made.head, Rows(made.rows.items())
    made.commit(([b"two"], [model.put(b"k", Row(before + b"more"), base=before)]))
    whole = exported(made)
    later = msgspec.structs.replace(whole, entries=whole.entries[1:], changed=whole.changed[1:], start=start)
    found = journal_file.read(journal_file.lines(later))
    assert step_reader.fold(start, found.steps(), rows, found.blobs) == made.head
    assert rows.get(b"k") == Row(before + b"more")
