"""The lineage of worlds: which was forked from which, where, and how."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from worldline.client import listing
from worldline.client.connection import Connection
from worldline.layers import journal as journals
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model.world_records import Lineage, WorldMeta

PAGE = 500


class Node(msgspec.Struct, frozen=True):
    """One world. `forked_at` and what follows: of a fork. `own`: entries that are its own."""

    name: str
    id: str
    status: str
    height: int
    own: int
    parent: str | None = None
    forked_at: int | None = None
    effects: str | None = None
    live: bool = True
    branches: list[Node] = []


async def tree(connection: Connection) -> list[Node]:
    """Every world that was not forked, the oldest first, with its forks and theirs; and forks whose parent is gone."""
    found = [each async for each in listing.worlds_of(connection, listing.Filter())]
    # The listing begins with the newest world; a tree is shown from the oldest on.
    found.reverse()
    known: dict[bytes, tuple[WorldMeta, int, Lineage | None]] = {}
    for start in range(0, len(found), PAGE):
        part = found[start : start + PAGE]
        read = await connection.store.engine.read(
            *(journals.get_head(at) for at, _ in part), *(history_line.get(at) for at, _ in part)
        )
        for index, (at, meta) in enumerate(part):
            height = journals.decode_head(read.value(index)).height
            known[at.world] = meta, height, history_line.decode_lineage(read.value(len(part) + index))
    children: dict[bytes, list[bytes]] = {}
    for world, (_, _, lineage) in known.items():
        # A fork whose parent is gone stands at the top, with the worlds that were not forked.
        above = lineage.parent if lineage is not None and lineage.parent in known else b""
        children.setdefault(above, []).append(world)
    return _nodes(known, children)


def _nodes(known: dict[bytes, tuple[WorldMeta, int, Lineage | None]], children: dict[bytes, list[bytes]]) -> list[Node]:
    """The trees. Forks of forks may be as many as users make: no frame of Python's stack for each."""
    order: list[bytes] = []
    left = list(children.get(b"", []))
    while left:
        order.append(left.pop())
        left += children.get(order[-1], [])
    made: dict[bytes, Node] = {}
    for world in reversed(order):  # each after its forks
        made[world] = _node(world, *known[world], [made.pop(each) for each in children.get(world, [])])
    return [made[each] for each in children.get(b"", [])]


def _node(world: bytes, meta: WorldMeta, height: int, lineage: Lineage | None, below: list[Node]) -> Node:
    status = meta.status.name.lower()
    if lineage is None:
        return Node(meta.name, world.hex(), status, height, height, branches=below)
    return Node(
        meta.name,
        world.hex(),
        status,
        height,
        height - lineage.height,
        lineage.parent_name,
        lineage.height,
        lineage.policy.name.lower(),
        lineage.live,
        below,
    )


def find(nodes: list[Node], at: ids.Address) -> list[Node]:
    """The tree that a world belongs to."""
    return [each for each in nodes if any(node.id == at.world.hex() for node in walk([each]))]


def walk(nodes: list[Node]) -> Iterator[Node]:
    """Each world before its forks."""
    left = nodes[::-1]
    while left:
        node = left.pop()
        yield node
        left += reversed(node.branches)


def drawn(nodes: list[Node]) -> list[str]:
    """For the terminal."""
    found: list[str] = []
    left = [(node, "", "") for node in reversed(nodes)]
    while left:
        node, indent, below = left.pop()
        found.append(f"{indent}{_said(node)}")
        for branch in reversed(node.branches):
            last = branch is node.branches[-1]
            left.append((branch, f"{below}{'└─' if last else '├─'} ", f"{below}{'   ' if last else '│  '}"))
    return found


def _said(node: Node) -> str:
    said = [node.name]
    if node.forked_at is not None:
        said.append(f"at height {node.forked_at} of {node.parent}, {node.effects}, {'live' if node.live else 'dry'}")
    said.append(f"height {node.height}" if node.forked_at is None else f"+{node.own}")
    if node.status != "active":
        said.append(node.status)
    return "  ".join(said)
