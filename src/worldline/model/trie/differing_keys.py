"""How two tries differ: the keys whose rows are not the same, at the cost of the difference.

Where both have the same address, nothing below is read: equal rows have equal nodes. Both are gone through place by
place. Where one has a leaf and the other a branch, the rows of the leaf are divided by the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from worldline.model.trie import nodes
from worldline.model.trie.nodes import LOWEST, BranchNode, Leaf, Node, Stored

_Side: TypeAlias = "bytes | Node"  # a node's address; or what is known to lie at a place of a branch


class ChangedRow(msgspec.Struct, frozen=True):
    """A key whose row is not the same. None: it has none on that side."""

    key: bytes
    before: Stored | None
    after: Stored | None


class TrieDifference:
    def __init__(self, old_root: bytes, after: bytes) -> None:
        # Pairs of what lies at the same place, the depth of the branch that this is a place of, and the place.
        self._open: list[tuple[_Side, _Side, int, int]] = [(old_root, after, -1, LOWEST)] if old_root != after else []
        self._found: list[ChangedRow] = []

    @property
    def wanted(self) -> list[bytes]:
        sides = [side for before, after, _, _ in self._open for side in (before, after) if isinstance(side, bytes)]
        return list(dict.fromkeys(sides))

    def take(self, encoded: Mapping[bytes, bytes]) -> None:
        decoded = {address: nodes.decode(encoded[address]) for address in self.wanted}
        pairs, self._open = self._open, []
        for one, other, depth, place in pairs:
            before = decoded[one] if isinstance(one, bytes) else one
            after = decoded[other] if isinstance(other, bytes) else other
            self._compare(before, after, *((depth + 1, 1) if place >= LOWEST else (depth, place)))

    def changed(self) -> list[ChangedRow]:
        """All of them, in the order of keys."""
        assert not self._open, "nodes are missing"
        return sorted(self._found, key=lambda each: each.key)

    def _compare(self, old: Node, after: Node, depth: int, place: int) -> None:
        if isinstance(old, Leaf) and isinstance(after, Leaf):
            for key in {**old.rows, **after.rows}:
                changed = ChangedRow(key, old.rows.get(key), after.rows.get(key))
                if changed.before != changed.after:
                    self._found.append(changed)
            return
        for half in (2 * place, 2 * place + 1):
            one, other = _at(old, half, depth), _at(after, half, depth)
            # The same address, so all rows below are equal: nothing of it is read.
            if one == other:
                continue
            if isinstance(one, bytes) or isinstance(other, bytes):
                self._open.append((one, other, depth, half))
            else:
                self._compare(one, other, depth, half)


def _at(node: Node, place: int, depth: int) -> _Side:
    """What lies at a place of a branch at this depth. `node`: what lies at the place above it."""
    if isinstance(node, Leaf):
        return Leaf({key: row for key, row in node.rows.items() if _is_at(nodes.path_of(key), place, depth)})
    if place in node.children:
        return node.children[place].address
    below = {at: child for at, child in node.children.items() if nodes.is_below(at, place)}
    return BranchNode(below) if below else Leaf({})


def _is_at(path: bytes, place: int, depth: int) -> bool:
    return nodes.is_below(nodes.lowest_of(path, depth), place)
