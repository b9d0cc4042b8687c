"""Single rows of a trie, and what proves them: the nodes from the topmost one down to the row, or to where it would be.

`Paths` asks for the nodes of many keys, level by level. `follow` checks a path alone, without anything else than the
address of the topmost node: each node must have the address that the one above it names, and the last one must be a
leaf, or a branch that has no child there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from worldline.base import errors
from worldline.codec import digest
from worldline.model.row_keys import describe
from worldline.model.trie import nodes
from worldline.model.trie.nodes import BranchNode, Stored


class Paths:
    """The paths of some keys below a node."""

    def __init__(self, root: bytes, keys: Iterable[bytes]) -> None:
        self._paths: dict[bytes, list[bytes]] = {key: [] for key in keys}
        self._rows: dict[bytes, Stored] = {}
        self._next: dict[bytes, bytes] = dict.fromkeys(self._paths, root)  # which node is the next of each key

    @property
    def wanted(self) -> list[bytes]:
        # Keys share the nodes near the root: each is asked for once.
        return list(dict.fromkeys(self._next.values()))

    def take(self, encoded: Mapping[bytes, bytes]) -> None:
        decoded = {address: nodes.decode(encoded[address]) for address in self.wanted}
        after: dict[bytes, bytes] = {}
        for key, address in self._next.items():
            path, node = self._paths[key], decoded[address]
            path.append(encoded[address])
            if isinstance(node, BranchNode):
                child = node.children.get(nodes.place_of(node.children, nodes.path_of(key), len(path) - 1))
                if child is not None:
                    after[key] = child.address
            elif key in node.rows:
                self._rows[key] = node.rows[key]
        self._next = after

    def place(self, address: bytes) -> str:
        """Which node this is that is wanted now, and for which row, in words."""
        key, path = next((key, self._paths[key]) for key, each in self._next.items() if each == address)
        return f"node {address.hex()}, {len(path)} below the topmost of the state, on the path to {describe(key)}"

    def rows(self) -> dict[bytes, Stored]:
        """All rows that were found, by key."""
        assert not self._next, "nodes are missing"
        return self._rows

    def row(self, key: bytes) -> Stored | None:
        """The row under this key, if there is one."""
        assert key not in self._next, "nodes are missing"
        return self._rows.get(key)

    def path(self, key: bytes) -> list[bytes]:
        """The bytes of the nodes from the topmost one on, also for a key that is not there."""
        assert key not in self._next, "nodes are missing"
        return self._paths[key]


def follow(root: bytes, key: bytes, path: Sequence[bytes]) -> Stored | None:
    """The row that a path proves, or None if it proves that there is none. `Corrupt` if it proves nothing."""
    address: bytes | None = root
    for depth, data in enumerate(path):
        if address is None:
            raise errors.DecodeError("the path goes on where the trie ends")
        digest.check(data, address, f"node {depth} of the path")
        node = nodes.decode(data)
        if isinstance(node, BranchNode):
            child = node.children.get(nodes.place_of(node.children, nodes.path_of(key), depth))
            address = None if child is None else child.address
            continue
        # Nodes behind the leaf are checked by nothing, so a proof may not have any.
        if depth + 1 < len(path):
            raise errors.DecodeError("the path goes on where the trie ends")
        return node.rows.get(key)
    if address is not None:
        raise errors.DecodeError("the path ends before the row")
    return None
