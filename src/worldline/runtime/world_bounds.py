"""What a universe lets its worlds do, as far as the core asks: a feature brings the rules (`runtime/feature.py`).

The rules are read in the same read as the world, when its holder brings it back. What they say of this world is kept
with it. A world that no rule is about has None there, so a step of it pays one test of one field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from worldline.model import ids, inbox, step_records
from worldline.store import kv


class WorldBounds(Protocol):
    """What one world may do. A world that may do everything has none."""

    def why_no_message(self, message: inbox.Message, *, to: str) -> str | None:
        """Say why the world may not send this to a world of its own universe; None if it may."""
        ...

    def refused(self, requests: Iterable[step_records.WorkRequest]) -> Mapping[ids.IntentId, inbox.EffectReceipt]:
        """Name the effects that it may not use, with their answers."""
        ...


class StepRules(Protocol):
    """The rules of universes, over what steps may ask for."""

    def reads(self, at: ids.Address) -> Sequence[kv.Request]:
        """Name what is read with the world."""
        ...

    def bounds(self, at: ids.Address, read: kv.ReadResult, *, program: str) -> WorldBounds | None:
        """Decode what `reads` named: what the world may do under this program; None for everything."""
        ...
