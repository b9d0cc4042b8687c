"""One side of a comparison: the rows as its steps make them, over those of the common ancestor, and what its entries
say. Pure: steps are given, none is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worldline.features.diff.effect_history import READ, Effects
from worldline.features.diff.records import Entries
from worldline.layers.history import step_reader
from worldline.layers.history.row_overlay import Base, Overlay
from worldline.model import ids, journal
from worldline.runtime import world_restore


class Side:
    """`world`: its name. `worlds`: whose effects may be answered here: its own address first, then its ancestors'."""

    def __init__(self, world: str, worlds: Sequence[ids.Address], base: Base, head: journal.Head) -> None:
        self._world = world
        self._first = head.height + 1
        self._kinds: dict[str, int] = {}
        self.base = base
        self.head = head
        self.rows = Overlay(base)
        self.effects = Effects(worlds, base.get)

    def take(self, steps: Sequence[step_reader.StoredStep], loaded: Mapping[bytes, bytes]) -> None:
        """Steps that follow each other. Their digests are recomputed. `loaded`: what their changes need, and the
        payloads of entries of the kinds in `READ`.
        """
        blobs: dict[bytes, Any] = dict(loaded)
        for step in steps:
            changed = step_reader.resolve(step, self.rows, blobs)
            self.head = step_reader.follow(self.head, step, changed)
            entries = [_filled(entry, blobs) for entry in step.entries()]
            for entry in entries:
                name = entry.kind.name.lower()
                self._kinds[name] = self._kinds.get(name, 0) + 1
            # Before the rows change: an effect that the step closes is still in them.
            self.effects.look(changed, self.rows)
            self.rows.apply(changed)
            self.effects.take(entries, self.rows.get)

    def entries(self) -> Entries:
        count = self.head.height - self._first + 1
        kinds = dict(sorted(self._kinds.items()))
        return Entries(self._world, self.head.step, self.head.height, self._first if count else None, count, kinds)


def _filled(entry: journal.JournalEntry, blobs: dict[bytes, bytes]) -> journal.JournalEntry:
    return world_restore.filled(entry, blobs) if entry.kind in READ else entry
