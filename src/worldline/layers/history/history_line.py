"""In whose journals a world's history stands.

A world that was not forked has a journal of its own, from height 1 on. A fork's history is that of its parent up to the
fork, and maybe that of its parent's parent before that; its own journal continues above. Nothing is copied, and each
height comes from exactly one place. What was true of a line stays true: a lineage never changes, and journals only
grow.

Who made a step is another question only for a world that was imported from a file, and for its forks: all of the file
stands in its own journal, but intents and draws of those steps are named by the worlds that made them (`identity`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from worldline.keys import lineage as keys
from worldline.model import ids, journal
from worldline.model.world_records import Lineage, Origin, Section
from worldline.store import kv


class Piece(msgspec.Struct, frozen=True):
    """Heights in (above, up_to] of one world's journal; without an end, all above."""

    at: ids.Address
    above: int
    up_to: int | None


class HistoryLine(msgspec.Struct, frozen=True):
    """A world, and the parts of its history that stand in other worlds' journals, the oldest first."""

    at: ids.Address
    sections: tuple[Section, ...] = ()
    origins: tuple[Origin, ...] = ()

    @property
    def forked_at(self) -> int:
        """The height above which its own journal begins."""
        return self.sections[-1].height if self.sections else 0

    def pieces(self, above: int) -> Iterator[Piece]:
        """Where everything above a height stands, in order."""
        for section in self.sections:
            if section.height > above:
                yield Piece(self._of(section), above, section.height)
                above = section.height
        yield Piece(self.at, above, None)

    def owners(self) -> list[Piece]:
        """Every world that has a part of this history, the oldest first, with the heights at which its snapshots count.
        A state at height 0 is the first one's, so nothing is above -1.
        """
        found: list[Piece] = []
        above = -1
        for section in self.sections:
            found.append(Piece(self._of(section), above, section.height))
            above = section.height
        return [*found, Piece(self.at, above, None)]

    def owner(self, height: int) -> ids.Address:
        """The world in whose journal an entry stands."""
        # Oldest first: the first section that reaches up to the height is the one that has it.
        return next((self._of(each) for each in self.sections if height <= each.height), self.at)

    def identity(self, height: int) -> ids.Address:
        """The world that made a step: the one whose entry it is, unless it was imported."""
        for each in self.origins:
            if height <= each.height:
                return ids.Address(ids.UniverseId(each.universe), ids.WorldId(each.world))
        return self.owner(height)

    def origins_up_to(self, *, step: int, height: int) -> tuple[Origin, ...]:
        """Those of a fork that begins at the end of this step."""
        found: list[Origin] = []
        for each in self.origins:
            # This origin made the last step that the fork has: it counts up to there, and later ones not at all.
            if each.height >= height:
                return (*found, Origin(each.universe, each.world, step, height))
            found.append(each)
        return tuple(found)

    def all_origins(self, *, step: int, height: int) -> list[Origin]:
        """Who made all of the history up to the end of a step, without a reference to a world of this store."""
        found = list(self.origins_up_to(step=step, height=height))
        covered = found[-1].height if found else -1
        for section in self.up_to(step=step, height=height):
            if section.height > covered or (not found and section.height == height):
                found.append(Origin(self.at.universe, section.world, section.step, section.height))
        return found

    def up_to(self, *, step: int, height: int) -> tuple[Section, ...]:
        """The sections of a fork that begins at the end of this step."""
        below = [each for each in self.sections if each.height < height]
        return (*below, Section(self.owner(height).world, step, height))

    def _of(self, section: Section) -> ids.Address:
        return ids.Address(self.at.universe, ids.WorldId(section.world))


def get(at: ids.Address) -> kv.Get:
    return kv.Get(keys.lineage_key(at))


def decode_lineage(raw: bytes | None) -> Lineage | None:
    return keys.LINEAGE.get(raw)


def forked_head(lineage: Lineage | None) -> journal.Head | None:
    """The head that the history of a fork had where it was forked; None if its lineage does not say."""
    if lineage is None or not lineage.chain:
        return None
    return journal.Head(lineage.step, lineage.height, lineage.chain, lineage.state, lineage.time_us)


def decode(at: ids.Address, raw: bytes | None) -> HistoryLine:
    return line_of(at, decode_lineage(raw))


def line_of(at: ids.Address, lineage: Lineage | None) -> HistoryLine:
    return HistoryLine(at) if lineage is None else HistoryLine(at, tuple(lineage.sections), tuple(lineage.origins))
