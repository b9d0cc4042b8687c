"""Making a trie, and changing one: only the nodes on the paths of changed rows are read and written.

`Update` is given the topmost node and what has changed. It asks for the nodes on the paths of the changed keys, level
by level; when children have become so light that they are one leaf, for those of them that are not known yet. Then
`result` is the new topmost node, with every new node and every new large meaning. A key that is deleted and was not
there, or is put as it was, changes nothing.

The base is not looked at beyond the paths: a trie that was made by other rules is changed, not mended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from worldline.codec import digest
from worldline.model.change import Row
from worldline.model.trie import nodes
from worldline.model.trie.nodes import BITS, LOWEST, Branch, Far, Leaf, Node, Ref, Stored

_Item: TypeAlias = "tuple[bytes, bytes, Stored | None]"  # path, key, and what it becomes
_Placed: TypeAlias = "tuple[bytes, bytes, Stored]"


class Result(msgspec.Struct, frozen=True):
    """A trie after a change. `grown`: by how many bytes its rows are more now. `new`: nodes that were not there before,
    by address, children before their parents; and `blobs`, the large meanings among the changed rows.
    """

    root: Ref
    grown: int
    new: dict[bytes, bytes]
    blobs: dict[bytes, bytes]


class _Rows:
    """A leaf that may not be written yet."""

    __slots__ = ("count", "rows", "weight")

    def __init__(self, rows: dict[bytes, Stored], weight: int) -> None:
        self.rows = rows
        self.count = len(rows)
        self.weight = weight


class _Fork:
    """A branch that is not written yet."""

    __slots__ = ("children", "count", "weight")

    def __init__(self, children: dict[int, _Node], count: int, weight: int) -> None:
        self.children = children
        self.count = count
        self.weight = weight


_Node: TypeAlias = "Ref | _Rows | _Fork"


class Update:
    """One change of a trie. `base`: its topmost node, none if there is no trie yet."""

    def __init__(self, base: Ref | None, changes: Iterable[tuple[bytes, Row | None]]) -> None:
        self._base = base
        self._blobs: dict[bytes, bytes] = {}
        self._changes = [(nodes.path_of(key), key, self._stored(row)) for key, row in changes]
        self._loaded: dict[bytes, Node] = {}
        # Places on the paths whose nodes are not loaded yet, with the changes below them.
        self._frontier: list[tuple[Ref, int, list[_Item]]] = []
        self._lacking: dict[bytes, None] = {}  # leaves that become one with others
        self._merged: _Node | None = None
        self._grown = 0
        if base is not None and self._changes:
            self._frontier = [(base, 0, self._changes)]
        else:
            self._merge_all()

    @property
    def wanted(self) -> list[bytes]:
        return [ref.address for ref, _, _ in self._frontier] or list(self._lacking)

    def take(self, found: Mapping[bytes, bytes]) -> None:
        """The nodes that were wanted."""
        self._loaded |= {address: nodes.decode(found[address]) for address in self.wanted}
        frontier, self._frontier = self._frontier, []
        for ref, depth, items in frontier:
            node = self._loaded[ref.address]
            if isinstance(node, Branch):
                for place, below in _by_place(node.children, items, depth).items():
                    if place in node.children:
                        self._frontier.append((node.children[place], depth + 1, below))
        if not self._frontier:
            self._merge_all()

    def result(self) -> Result:
        assert not self.wanted, "nodes are missing"
        new: dict[bytes, bytes] = {}
        root = _write(self._merged or _Rows({}, 0), new)
        return Result(root, self._grown, new, self._blobs)

    def _stored(self, row: Row | None) -> Stored | None:
        if row is None:
            return None
        stored = nodes.stored(row)
        if type(stored) is Far:
            self._blobs[stored.address] = row.meaning
        return stored

    def _merge_all(self) -> None:
        self._lacking, self._grown = {}, 0
        self._merged = self._merge(self._base, self._changes, 0)

    def _merge(self, before: Ref | None, items: list[_Item], depth: int) -> _Node | None:
        """What becomes of a node by the changes below it; the very same if nothing does."""
        node = self._loaded[before.address] if before is not None and items else Leaf({})
        if not items:
            return before
        if isinstance(node, Leaf):
            rows = self._changed(node.rows, items)
            return before if rows == node.rows else self._formed(_placed(rows, items), depth)
        after: dict[int, _Node] = dict(node.children)
        for place, below in _by_place(node.children, items, depth).items():
            child = node.children.get(place)
            if place >= LOWEST:
                _put(after, place, self._merge(child, below, depth + 1))
            else:
                assert child is not None
                self._merge_leaf(after, place, child, below, depth)
        if all(after.get(place) is child for place, child in node.children.items()) and len(after) == len(
            node.children
        ):
            return before
        return self._grouped(after)

    def _merge_leaf(self, after: dict[int, _Node], place: int, child: Ref, items: list[_Item], depth: int) -> None:
        """The same for a leaf that does not stand at a lowest place: when it is too heavy, its rows go there."""
        leaf = self._loaded[child.address]
        assert isinstance(leaf, Leaf), "a branch is at a lowest place"
        rows = self._changed(leaf.rows, items)
        if rows == leaf.rows:
            return
        del after[place]
        for lowest, below in _spread(_placed(rows, items), depth).items():
            _put(after, lowest, self._formed(below, depth + 1))

    def _changed(self, before: dict[bytes, Stored], items: list[_Item]) -> dict[bytes, Stored]:
        rows = dict(before)
        for _, key, row in items:
            was = rows.pop(key, None)
            self._grown -= 0 if was is None else nodes.size_of(key, was)
            if row is not None:
                rows[key] = row
                self._grown += nodes.size_of(key, row)
        return rows

    def _formed(self, items: list[_Placed], depth: int) -> _Node | None:
        """The node of these rows alone."""
        weight = sum([nodes.weight_of(key, row) for _, key, row in items])
        if nodes.is_leaf(len(items), weight):
            return _Rows({key: row for _, key, row in items}, weight) if items else None
        children: dict[int, _Node] = {}
        for lowest, below in _spread(items, depth).items():
            _put(children, lowest, self._formed(below, depth + 1))
        return self._grouped(children)

    def _grouped(self, children: dict[int, _Node]) -> _Node | None:
        """A branch with these children, or a leaf: light ones that lie together are one."""
        counts, weights = [0] * 2 * LOWEST, [0] * 2 * LOWEST
        for place, child in children.items():
            for up in range(BITS + 1):
                counts[place >> up] += child.count
                weights[place >> up] += child.weight
        count, weight = counts[1], weights[1]  # above 1 is only 0
        if nodes.is_leaf(count, weight):
            return self._joined([*children.values()], weight) if count else None
        grouped: dict[int, _Node] = {}
        for place in range(2, 2 * LOWEST):
            if not counts[place] or any(place >> up in grouped for up in range(1, BITS)):
                continue
            if nodes.is_leaf(counts[place], weights[place]):
                below = [child for at, child in children.items() if nodes.is_below(at, place)]
                grouped[place] = self._joined(below, weights[place])
            elif place >= LOWEST:
                grouped[place] = children[place]
        return _Fork(grouped, count, weight)

    def _joined(self, leaves: list[_Node], weight: int) -> _Node:
        """Several leaves as one."""
        if len(leaves) == 1:
            return leaves[0]
        rows: dict[bytes, Stored] = {}
        for leaf in leaves:
            if isinstance(leaf, Ref):
                node = self._loaded.get(leaf.address)
                if node is None:
                    self._lacking[leaf.address] = None
                    continue
                assert isinstance(node, Leaf), "what is light is a leaf"
                rows |= node.rows
            else:
                assert isinstance(leaf, _Rows), "what is light is a leaf"
                rows |= leaf.rows
        return _Rows(rows, weight)


def build(rows: Iterable[tuple[bytes, Row]]) -> Result:
    """A trie of these rows. Keys come once, in any order."""
    return Update(None, rows).result()


def root_of(rows: Iterable[tuple[bytes, Row]]) -> bytes:
    """The address that the topmost node of these rows has."""
    return build(rows).root.address


def _put(children: dict[int, _Node], place: int, child: _Node | None) -> None:
    if child is None:
        children.pop(place, None)
    else:
        children[place] = child


def _placed(rows: dict[bytes, Stored], items: list[_Item]) -> list[_Placed]:
    """Rows with their paths, of which those of the changed ones are known."""
    paths = {key: path for path, key, _ in items}
    return [(paths.get(key) or nodes.path_of(key), key, row) for key, row in rows.items()]


def _by_place(children: Mapping[int, Ref], items: list[_Item], depth: int) -> dict[int, list[_Item]]:
    """Changes by the children of a branch that they are below; those below none, by their lowest places."""
    found: dict[int, list[_Item]] = {}
    for item in items:
        found.setdefault(nodes.place_of(children, item[0], depth), []).append(item)
    return found


def _spread(items: list[_Placed], depth: int) -> dict[int, list[_Placed]]:
    """Rows by their lowest places in a branch at this depth."""
    found: dict[int, list[_Placed]] = {}
    index = depth >> 1
    shift, mask = (0, LOWEST - 1) if depth & 1 else (BITS, LOWEST - 1)
    for item in items:
        place = LOWEST + (item[0][index] >> shift & mask)
        known = found.get(place)
        if known is None:
            found[place] = [item]
        else:
            known.append(item)
    return found


def _write(node: _Node, new: dict[bytes, bytes]) -> Ref:
    if isinstance(node, Ref):
        return node
    if isinstance(node, _Rows):
        data = nodes.encode_leaf(node.rows)
    else:
        data = nodes.encode_branch({place: _write(child, new) for place, child in node.children.items()})
    address = digest.sha256(data)
    new[address] = data
    return Ref(address, node.count, node.weight)
