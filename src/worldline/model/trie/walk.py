"""Reading a whole trie, many nodes at a time.

`TrieWalk` asks for nodes from the top down, a bounded number at once, and for the large meanings behind leaves. Leaves
are kept as bytes until `rows` decodes them, which may be in another thread than the reading.

Without `cells`, nothing is read below places where only cells lie; leaves further up may hold a few.

With `known`, nothing is read below a node that an earlier walk has seen, and `rows` are only those that are new.

With `strict`, everything is checked that the form of the trie promises: counts, weights, places of keys, and that every
node has the only form that its rows allow. A node that was read from its address is what was written; this finds what
should not have been written.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

import msgspec

from worldline.base import errors, limits
from worldline.model.change import Row
from worldline.model.trie import nodes
from worldline.model.trie.nodes import BITS, LOWEST, BranchNode, Far, Leaf, NodeRef, Stored

PAGE_NODES: Final = 1_000  # asked for at once
CELLS: Final = "1"  # how the paths of cells begin


class TrieCursor(msgspec.Struct, frozen=True):
    """Where a node lies. `ref`: what the node above it says of it."""

    ref: NodeRef
    path: str = ""  # the bits that lead to it

    @property
    def address(self) -> bytes:
        return self.ref.address

    def holds(self, key: bytes) -> bool:
        """Whether the row of this key lies below, if there is one."""
        path = int.from_bytes(nodes.path_of(key), "big")
        return not self.path or path >> (8 * limits.DIGEST_BYTES - len(self.path)) == int(self.path, 2)

    def child(self, place: int, ref: NodeRef) -> TrieCursor:
        return TrieCursor(ref, self.path + f"{place:b}"[1:])

    def __str__(self) -> str:
        if not self.path:
            return f"node {self.address.hex()}, the topmost of the state"
        rows = f"the {self.ref.count} rows" if self.ref.count > 1 else "the one row"
        return f"node {self.address.hex()}, which holds {rows} on the paths that begin with {self.path}"


class TrieWalk:
    """All rows below a node: `rows`, when nothing is wanted any more."""

    def __init__(
        self,
        root: NodeRef,
        *,
        strict: bool = False,
        known: dict[bytes, None] | None = None,
        cells: bool = True,
        page: int = PAGE_NODES,
    ) -> None:
        self._strict = strict
        self._cells = cells
        self._known = known
        self._page = page
        self._open: list[TrieCursor] = [TrieCursor(root)] if not self._knows(root.address) else []
        self._leaves: list[bytes] = []
        self._far: dict[bytes, TrieCursor] = {}  # large meanings that were not read yet, and the leaf of each
        self._meanings: dict[bytes, bytes] = {}
        self.seen = 0  # nodes and large meanings

    @property
    def wanted(self) -> list[bytes]:
        if self._open:
            # From the end: the deepest first, so that few nodes wait while the trie is wide.
            return [place.address for place in self._open[-self._page :]]
        return list(itertools.islice(self._far, self._page))

    def place(self, address: bytes) -> TrieCursor | None:
        """Where a node lies that is wanted now."""
        return self._far.get(address) or next((each for each in self._open if each.address == address), None)

    def take(self, encoded: Mapping[bytes, bytes]) -> None:
        # Large meanings come last, when no node is wanted any more.
        if not self._open:
            for address in self.wanted:
                self._meanings[address] = encoded[address]
                del self._far[address]
                self.seen += 1
            return
        asked = self._open[-self._page :]
        del self._open[-self._page :]
        for place in asked:
            self.seen += 1
            data = encoded[place.address]
            if nodes.is_whole_leaf(data) and not self._strict:
                self._leaves.append(data)
            else:
                self._take_node(place, data)

    def _take_node(self, place: TrieCursor, data: bytes) -> None:
        try:
            node = nodes.decode(data)
            if self._strict:
                _check(node, place)
        except errors.DecodeError as error:
            raise errors.DecodeError(f"{place}: {error}") from error
        if isinstance(node, BranchNode):
            for number, child in node.children.items():
                below = place.child(number, child)
                if (self._cells or not below.path.startswith(CELLS)) and not self._knows(child.address):
                    self._open.append(below)
            return
        self._leaves.append(data)
        for row in node.rows.values():
            if type(row) is Far and not self._knows(row.address):
                self._far[row.address] = place

    def _knows(self, address: bytes) -> bool:
        """Whether this was seen by an earlier walk. It counts as seen from here on."""
        if self._known is None:
            return False
        if address in self._known:
            return True
        self._known[address] = None
        return False

    def rows(self) -> list[tuple[bytes, Row]]:
        """In no particular order."""
        assert not self.wanted, "nodes are missing"
        found: list[tuple[bytes, Row]] = []
        for data in self._leaves:
            leaf = nodes.decode(data)
            assert isinstance(leaf, Leaf)
            for key, row in leaf.rows.items():
                found.append((key, row if type(row) is Row else self._near(key, row)))
        return found

    def _near(self, key: bytes, row: Stored) -> Row:
        assert isinstance(row, Far)
        meaning = self._meanings[row.address]
        if len(meaning) != row.length:
            raise errors.DecodeError(f"the row {key[:60]!r} has {row.length} bytes, and its blob {len(meaning)}")
        return Row(meaning, row.placement)


def _check(node: nodes.Node, place: TrieCursor) -> None:
    if isinstance(node, BranchNode):
        count, weight = _check_places(node)
    else:
        count = len(node.rows)
        weight = sum(nodes.weight_of(key, row) for key, row in node.rows.items())
        for key in node.rows:
            if not place.holds(key):
                raise errors.DecodeError(f"the row {key[:60]!r} lies elsewhere")
    is_leaf = nodes.is_leaf(count, weight)
    if is_leaf is isinstance(node, BranchNode):
        raise errors.DecodeError(f"{count} rows that weigh {weight} are {'one leaf' if is_leaf else 'no leaf'}")
    if (place.ref.count, place.ref.weight) != (count, weight):
        raise errors.DecodeError("count or weight is not what the node above it says")


def _check_places(branch: BranchNode) -> tuple[int, int]:
    """Count and weight of a branch, whose leaves are as high as they can be."""
    counts, weights = [0] * 2 * LOWEST, [0] * 2 * LOWEST
    for place, child in branch.children.items():
        for up in range(BITS + 1):
            counts[place >> up] += child.count
            weights[place >> up] += child.weight
        if place < LOWEST and not nodes.is_leaf(child.count, child.weight):
            raise errors.DecodeError(f"the child at {place} is too heavy for its place")
    for place in branch.children:
        if place > 3 and nodes.is_leaf(counts[place >> 1], weights[place >> 1]):
            raise errors.DecodeError(f"the child at {place} and the one beside it are one leaf")
    return counts[1], weights[1]
