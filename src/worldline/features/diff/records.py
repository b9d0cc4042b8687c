"""What a comparison says: frozen records of plain data.

There are two sides, left and right, and their common ancestor: the last state that both have gone through. Of two
heights of one world that is the lower one. `added` is what the right side alone has, `removed` what the left side alone
has. `Diff` has the fields of `worldline diff --json`, and no others.

No value over 16 KiB of an effect is here, but its sha256 and size: `{"sha256": ..., "size": ...}`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from worldline.codec.differences import Field, How

__all__ = ["CellDiff", "Diff", "EffectDiff", "EffectSide", "Entries", "Field", "How", "RunDiff", "RunSide", "Sides"]


class CellDiff(msgspec.Struct, frozen=True):
    """A cell that differs. One that both sides have is compared field by field; of others, the value is given."""

    reducer: str
    key: str
    change: How
    left: Any = None
    right: Any = None
    fields: tuple[Field, ...] = ()


class RunSide(msgspec.Struct, frozen=True):
    """A run on one side. An ended run keeps no operations: `operations` and `done` are None then."""

    workflow: str
    status: str
    result: Any
    error: Any
    operations: int | None
    done: int | None
    waits_for: list[str]
    restarts: int  # how often it has continued as new, or was reset


class RunDiff(msgspec.Struct, frozen=True):
    """A run that differs. A side that does not keep it is None."""

    id: str
    change: How
    left: RunSide | None
    right: RunSide | None
    fields: tuple[Field, ...] = ()


class EffectSide(msgspec.Struct, frozen=True):
    """An effect on one side. `status`: open, parked, ok, error, timeout or cancelled; `answer`: the result, or the
    failure.
    """

    name: str
    args: Any
    status: str
    answer: Any = None


class EffectDiff(msgspec.Struct, frozen=True):
    """An effect that differs: asked for, or answered, since the common ancestor, and not in the same way. Effects of
    both sides are matched by the run and the number of its operation, counted from 1.
    """

    run: str
    operation: int
    change: How
    left: EffectSide | None
    right: EffectSide | None


class Entries(msgspec.Struct, frozen=True):
    """One side: where it stands, and its entries since the common ancestor, by kind."""

    world: str
    step: int
    height: int
    first: int | None  # height of the first of them; None: there are none
    count: int
    kinds: dict[str, int]


class Sides(msgspec.Struct, frozen=True):
    left: Entries
    right: Entries


class Diff(msgspec.Struct, frozen=True):
    """Two worlds compared. `ancestor`: the world, and the step and height in it, that both sides have come from."""

    ancestor: str
    step: int
    height: int
    cells: list[CellDiff]
    runs: list[RunDiff]
    entries: Sides
    effects: list[EffectDiff]

    @property
    def same(self) -> bool:
        """No cell, run or effect differs."""
        return not (self.cells or self.runs or self.effects)
