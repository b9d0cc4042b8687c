"""Making a trie, and changing one: only the nodes on the paths of changed rows are read and written.

`Update` is given the topmost node and what has changed. It asks for the nodes on the paths of the changed keys, a
bounded number at a time and the deepest first. What lies below a branch is done before the next branch is looked at:
so no more than a few pages of nodes are in memory at once, however many leaves change. A branch is written when all
that lies below it is known. When children of it have become so light that they are one leaf, those of them that are not
known yet are asked for first; so every node that is written is one of the new trie.

Nodes that are done can be taken away before the others are (`written`), children before their parents. `result` is the
new topmost node, with every new node and large meaning that was not taken away. A key that is deleted and was not
there, or is put as it was, changes nothing.

The base is not looked at beyond the paths: a trie that was made by other rules is changed, not mended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from worldline.codec import digest
from worldline.model.change import Row
from worldline.model.trie import nodes
from worldline.model.trie.nodes import BITS, LOWEST, BranchNode, Far, Leaf, NodeRef, Stored

PAGE_NODES: Final = 250  # asked for at once, and in memory with the rows of each; about a megabyte of leaves

_Item: TypeAlias = "tuple[bytes, bytes, Stored | None]"  # path, key, and what it becomes
_Placed: TypeAlias = "tuple[bytes, bytes, Stored]"


class UpdatedTrie(msgspec.Struct, frozen=True):
    """A trie after a change. `grown`: by how many bytes its rows are more now. `new`: nodes that were not there before,
    by address, children before their parents; and `blobs`, the large meanings among the changed rows.
    """

    root: NodeRef
    grown: int
    new: dict[bytes, bytes]
    blobs: dict[bytes, bytes]


class _Rows:
    """A leaf that is not written yet: it may become one with others."""

    __slots__ = ("count", "rows", "weight")

    def __init__(self, rows: dict[bytes, Stored], weight: int) -> None:
        self.rows = rows
        self.count = len(rows)
        self.weight = weight


_Node: TypeAlias = "NodeRef | _Rows"


class _Changing:
    """A branch below which something changes. `above` is the branch that it stands in, at `place`."""

    __slots__ = ("above", "before", "children", "depth", "kept", "leaves", "place", "waiting")

    def __init__(
        self, above: _Changing | None, place: int, old_node: NodeRef, kept: dict[int, NodeRef], depth: int
    ) -> None:
        self.above = above
        self.place = place
        self.before = old_node
        self.depth = depth
        self.kept = kept  # its children as they were
        self.children: dict[int, _Node] = dict(kept)  # as they are so far
        self.leaves: dict[bytes, dict[bytes, Stored]] = {}  # unchanged ones that become one with others, by address
        self.waiting = 0  # children that are not known yet


class _Wanted(msgspec.Struct, frozen=True, gc=False):
    """A node that has to be read. Without changes: a leaf that becomes one with others."""

    ref: NodeRef
    depth: int
    items: list[_Item] | None
    above: _Changing | None
    place: int


class Update:
    """One change of a trie. `base`: its topmost node, none if there is no trie yet."""

    def __init__(
        self, base: NodeRef | None, changes: Iterable[tuple[bytes, Row | None]], *, page: int = PAGE_NODES
    ) -> None:
        self._page = page
        self._blobs: dict[bytes, bytes] = {}
        self._new: dict[bytes, bytes] = {}
        self._open: list[_Wanted] = []  # the last ones are asked for first
        self._top: _Node | None = base
        self._grown = 0
        items = [(nodes.path_of(key), key, self._stored(row)) for key, row in changes]
        if base is not None and items:
            self._open.append(_Wanted(base, 0, items, None, 0))
        elif items:
            self._top = self._formed(_placed(self._changed({}, items), items), 0)

    @property
    def wanted(self) -> list[bytes]:
        return [each.ref.address for each in self._open[-self._page :]]

    def take(self, encoded: Mapping[bytes, bytes]) -> None:
        """The nodes that were wanted."""
        asked = self._open[-self._page :]
        del self._open[-self._page :]
        for each in asked:
            node = nodes.decode(encoded[each.ref.address])
            if isinstance(node, BranchNode):
                assert each.items is not None, "what is light is a leaf"
                self._open_branch(each, node, each.items)
            elif each.items is None:
                assert each.above is not None
                each.above.leaves[each.ref.address] = node.rows
                self._known(each.above)
            else:
                self._change_leaf(each, node, each.items)

    def written(self) -> list[bytes]:
        """What is done since this was last asked for: large meanings, and nodes behind all that they refer to."""
        done = [*self._blobs.values(), *self._new.values()]
        self._blobs, self._new = {}, {}
        return done

    def result(self) -> UpdatedTrie:
        assert not self._open, "nodes are missing"
        top = self._top if self._top is not None else _Rows({}, 0)
        return UpdatedTrie(self._write(top), self._grown, self._new, self._blobs)

    def _stored(self, row: Row | None) -> Stored | None:
        if row is None:
            return None
        stored = nodes.stored(row)
        if type(stored) is Far:
            self._blobs[stored.address] = row.meaning
        return stored

    # --- Down: branches and leaves as they were ---------------------------------------------------------------------

    def _open_branch(self, at: _Wanted, node: BranchNode, items: list[_Item]) -> None:
        branch = _Changing(at.above, at.place, at.ref, node.children, at.depth)
        branch.waiting = 1  # this loop
        for place, below in _by_place(node.children, items, at.depth).items():
            child = node.children.get(place)
            if child is not None:
                branch.waiting += 1
                self._open.append(_Wanted(child, at.depth + 1, below, branch, place))
            else:
                formed = self._formed(_placed(self._changed({}, below), below), at.depth + 1)
                _put(branch.children, place, formed)
        self._known(branch)

    def _change_leaf(self, at: _Wanted, leaf: Leaf, items: list[_Item]) -> None:
        rows = self._changed(leaf.rows, items)
        above = at.above
        # Rows were put as they were: the leaf keeps its address.
        if rows == leaf.rows:
            self._done(above, at.place, at.ref)
        elif above is None or at.place >= LOWEST:
            self._done(above, at.place, self._formed(_placed(rows, items), at.depth))
        else:  # it may be too heavy now, so its rows go where it is wide enough
            del above.children[at.place]
            for lowest, below in _spread(_placed(rows, items), above.depth).items():
                _put(above.children, lowest, self._formed(below, at.depth))
            self._known(above)

    def _changed(self, old_rows: dict[bytes, Stored], items: list[_Item]) -> dict[bytes, Stored]:
        rows = dict(old_rows)
        for _, key, row in items:
            was = rows.pop(key, None)
            self._grown -= 0 if was is None else nodes.size_of(key, was)
            if row is not None:
                rows[key] = row
                self._grown += nodes.size_of(key, row)
        return rows

    # --- Up: what becomes of them -----------------------------------------------------------------------------------

    def _done(self, above: _Changing | None, place: int, node: _Node | None) -> None:
        """What lies at a place of a branch is known."""
        if above is None:
            self._top = node
        else:
            _put(above.children, place, node)
            self._known(above)

    def _known(self, branch: _Changing) -> None:
        """One child more of a branch is. With the last one the branch is done, unless it must read others."""
        branch.waiting -= 1
        if branch.waiting:
            return
        children, kept = branch.children, branch.kept
        # Nothing came of the changes: the branch keeps its address and is not written again.
        if len(children) == len(kept) and all(children.get(place) is child for place, child in kept.items()):
            self._done(branch.above, branch.place, branch.before)
            return
        lacking: dict[bytes, NodeRef] = {}
        grouped = self._grouped(children, branch.leaves, lacking)
        if not lacking:
            self._done(branch.above, branch.place, grouped)
            return
        # These leaves become one with changed ones, so their rows are read before the branch can be made.
        branch.waiting = len(lacking)
        self._open += [_Wanted(leaf, branch.depth + 1, None, branch, 0) for leaf in lacking.values()]

    def _formed(self, items: list[_Placed], depth: int) -> _Node | None:
        """The node of these rows alone."""
        weight = sum([nodes.weight_of(key, row) for _, key, row in items])
        if nodes.is_leaf(len(items), weight):
            return _Rows({key: row for _, key, row in items}, weight) if items else None
        children: dict[int, _Node] = {}
        for lowest, below in _spread(items, depth).items():
            _put(children, lowest, self._formed(below, depth + 1))
        return self._grouped(children, {}, {})

    def _grouped(
        self, children: dict[int, _Node], leaves: Mapping[bytes, dict[bytes, Stored]], lacking: dict[bytes, NodeRef]
    ) -> _Node | None:
        """A branch with these children, or a leaf: light ones that lie together are one. A branch is written, unless
        rows are `lacking`: it has more than one leaf holds, so it is not joined with others.
        """
        counts, weights = [0] * 2 * LOWEST, [0] * 2 * LOWEST
        for place, child in children.items():
            for up in range(BITS + 1):
                counts[place >> up] += child.count
                weights[place >> up] += child.weight
        count, weight = counts[1], weights[1]  # above 1 is only 0
        if nodes.is_leaf(count, weight):
            return _joined([*children.values()], weight, leaves, lacking) if count else None
        grouped: dict[int, _Node] = {}
        for place in range(2, 2 * LOWEST):
            if not counts[place] or any(place >> up in grouped for up in range(1, BITS)):
                continue
            if nodes.is_leaf(counts[place], weights[place]):
                below = [child for at, child in children.items() if nodes.is_below(at, place)]
                grouped[place] = _joined(below, weights[place], leaves, lacking)
            elif place >= LOWEST:
                grouped[place] = children[place]
        if lacking:
            return None
        data = nodes.encode_branch({place: self._write(child) for place, child in grouped.items()})
        return self._keep(data, count, weight)

    def _write(self, node: _Node) -> NodeRef:
        return node if isinstance(node, NodeRef) else self._keep(nodes.encode_leaf(node.rows), node.count, node.weight)

    def _keep(self, data: bytes, count: int, weight: int) -> NodeRef:
        address = digest.sha256(data)
        self._new[address] = data
        return NodeRef(address, count, weight)


def build(rows: Iterable[tuple[bytes, Row]]) -> UpdatedTrie:
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


def _joined(
    below: list[_Node], weight: int, leaves: Mapping[bytes, dict[bytes, Stored]], lacking: dict[bytes, NodeRef]
) -> _Node:
    """Several leaves as one. `lacking` is told those whose rows are not among the `leaves` that were read."""
    if len(below) == 1:
        return below[0]
    rows: dict[bytes, Stored] = {}
    for leaf in below:
        if isinstance(leaf, _Rows):
            rows |= leaf.rows
        elif leaf.address in leaves:
            rows |= leaves[leaf.address]
        else:
            lacking[leaf.address] = leaf
    return _Rows(rows, weight)


def _placed(rows: dict[bytes, Stored], items: list[_Item]) -> list[_Placed]:
    """Rows with their paths, of which those of the changed ones are known."""
    paths = {key: path for path, key, _ in items}
    return [(paths.get(key) or nodes.path_of(key), key, row) for key, row in rows.items()]


def _by_place(children: Mapping[int, NodeRef], items: list[_Item], depth: int) -> dict[int, list[_Item]]:
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
