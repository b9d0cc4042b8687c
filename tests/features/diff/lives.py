"""Lives in memory, taken apart into stored steps: what the tests of comparisons give to each side."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

import worldline as wl
from worldline import testing
from worldline.features.diff import calls as diff_calls
from worldline.features.diff.diff_side import Side
from worldline.features.diff.effect_history import READ
from worldline.features.diff.records import Diff
from worldline.features.diff.side_comparison import compare
from worldline.kernel import state_rows
from worldline.kernel.machine import Machine
from worldline.layers.history import step_reader
from worldline.layers.history.known_rows import KnownRows
from worldline.layers.history.row_overlay import Overlay
from worldline.model import journal
from worldline.model.change import Row
from worldline.model.rows import Rows
from worldline.model.trie import nodes, paths, update, walk
from worldline.model.trie.differing_keys import TrieDifference
from worldline.runtime import world_restore


class Lived:
    """A life, its steps, and how it stands at the end of one of them."""

    def __init__(self, app: wl.Program, world: testing.TestWorld) -> None:
        self._app = app
        self.exported = world._actor.life.export("w")
        self.steps = self.exported.steps()

    def at(self, step: int) -> tuple[journal.Head, Rows]:
        state, rows = state_rows.read(state_rows.save(Machine(self._app)))
        found = Rows(rows)
        start = msgspec.structs.replace(journal.GENESIS, state=state)
        return step_reader.fold(start, self.steps[:step], found, self.exported.blobs), found

    def machine(self, step: int) -> Machine:
        head, rows = self.at(step)
        return state_rows.machine_of(self._app, head.state, rows.items(), self.exported.at)

    def side(self, since: int, to: int, known: Known | None = None) -> Side:
        """`known`: the state at `since`; if there is none, all rows of it are."""
        head, rows = self.at(since) if known is None else (known.head, known.rows)
        made = Side("w", [self.exported.at], rows, head)
        for step in self.steps[since:to]:
            if known is not None:
                entries = [
                    world_restore.filled(each, dict(self.exported.blobs))
                    for each in step.entries()
                    if each.kind in READ
                ]
                keys, runs = diff_calls.needed([step], entries)
                known.fetch(keys)
                known.fetch_runs(runs)
            made.take([step], self.exported.blobs)
        return made


class Known:
    """What `reader.Past` is for a stored world: a life at the end of a step, of which rows are looked up in the trie of
    an earlier state.
    """

    def __init__(self, life: Lived, saved: int, at: int) -> None:
        self.head, rows = life.at(saved)
        made = update.build(rows.items())
        self._nodes = {**made.new, **made.blobs}
        self._root = made.root
        self._known = KnownRows()
        self.rows = Overlay(self._known)
        steps = life.steps[saved:at]
        self.fetch(step_reader.bases(steps))
        self.head = step_reader.fold(self.head, steps, self.rows, life.exported.blobs)

    def fetch(self, keys: Iterable[bytes]) -> None:
        wanted = self._known.missing(keys)
        asking = paths.Paths(self._root.address, wanted)
        nodes.answer(asking, self._nodes.__getitem__)
        self._known.take(wanted, {key: self._near(row) for key, row in asking.rows().items()})

    def fetch_runs(self, runs: Iterable[str]) -> None:
        for keys in self._known.look_for(runs):
            self.fetch(keys)

    def fetch_all_but_cells(self) -> None:
        walking = walk.TrieWalk(self._root, cells=False)
        nodes.answer(walking, self._nodes.__getitem__)
        self._known.take_all_but_cells(walking.rows())

    def fetch_unlike(self, other: Known) -> list[bytes]:
        asking = TrieDifference(self._root.address, other._root.address)
        nodes.answer(asking, {**self._nodes, **other._nodes}.__getitem__)
        keys = dict.fromkeys(each.key for each in asking.changed())
        for each in (self, other):
            if each.rows.has_dropped:
                each.fetch_all_but_cells()
            keys |= dict.fromkeys(each.rows.touched())
        for each in (self, other):
            each.fetch(keys)
        return sorted(keys)

    def _near(self, row: nodes.Stored) -> Row:
        return Row(self._nodes[row.address], row.placement) if isinstance(row, nodes.Far) else row


def diff(left: Lived, right: Lived, *, since: int, at: int, to: int, saved: int | None = None) -> Diff:
    """The left life at the end of one step and the right one at that of another, from a step that both have done.
    `saved`: a step before that; only what is needed is looked up in the state at its end.
    """
    if saved is not None:
        known = Known(left, saved, since)
        return compare("w", known.head, left.side(since, at, known), right.side(since, to, known))
    return compare("w", left.at(since)[0], left.side(since, at), right.side(since, to))
