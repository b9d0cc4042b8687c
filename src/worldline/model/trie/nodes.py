"""The nodes of a state: their bytes, and what they refer to.

The rows of a world lie in a trie by the sha256 of their keys, of which the first bit is replaced: it is 1 for cells and
0 for all else. So a world's runs and open work can be read without its cells, which may be many more. A node is
canonical CBOR; its address is its sha256. It begins with its kind and the version of that kind:

::

    [1, 1, state digest, root, count, weight, size]       header of a snapshot: `root` is the trie's topmost node
    [2, 1, places, [address, count, weight, ...]]         branch: bit n of `places` is set if a child lies at place n
    [3, 1, [key, meaning, placement, ...]]                leaf: rows in the order of their keys
    [3, 1, [key, meaning, placement, ...], [address, length, ...]]

A meaning of more than `LARGE_BYTES` is a blob of its own: null stands in its place, and a second list names these
blobs in the order of their rows. Count is the number of rows below a node, size the number of their bytes. Weight
bounds the bytes that rows take in a leaf: a meaning that is apart weighs as much as the reference to it.

A branch stands for four bits of the path. Its places are numbered as the nodes of a binary tree are: 2 and 3 are the
two halves by the first of these bits, 4 to 7 the quarters, and so on down to 16 to 31, one for all four bits. Written
in binary, the number of a place is a 1 and the bits that lead to it.

The shape follows from the rows. Rows that weigh at most `LEAF_BYTES`, or are a single one, are a leaf, at the highest
place that holds no other rows than these. Where more rows share all four bits, there is a branch below. So leaves are
at least half full, more or less, however many rows there are. A branch carries the count and weight of each child: a
change shows which children become one leaf without reading the others.

Every reference can be found without knowing the program (`references`): it stands in a fixed place of its kind. The
first two bytes tell which of the forms a node has.

What does not fit in one place is asked for: the classes of this folder name the nodes that they need next (`wanted`)
and are given them (`take`), so they work over any store, and many nodes are read at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from worldline.base import errors, limits
from worldline.codec import canonical, digest
from worldline.model import row_keys
from worldline.model.change import Row

HEADER: Final = 1
BRANCH: Final = 2
LEAF: Final = 3
VERSION: Final = 1  # of each kind, so far

BITS: Final = 4  # of a path that a branch stands for
LOWEST: Final = 1 << BITS  # the first of the places that stand for all of them
LEAF_BYTES: Final = 4_096  # what the rows of one leaf weigh at most, unless it is a single row
LARGE_BYTES: Final = 4_096  # a longer meaning is a blob of its own
_HEADS_BYTES: Final = 9  # in front of a key, a meaning and a placement, each shorter than 64 KiB
_FAR_BYTES: Final = 48  # of a reference in the place of a meaning
_FIELDS: Final = 3  # of a row in a leaf, of a child in a branch
_WITH_BIT: Final = tuple(bytes([first | 0x80]) for first in range(256))
_WITHOUT_BIT: Final = tuple(bytes([first & 0x7F]) for first in range(256))
_BRANCH: Final = bytes([0x84, BRANCH])  # how a branch begins: an array of four
_WHOLE_LEAF: Final = bytes([0x83, LEAF])  # how a leaf without references begins: an array of three

assert LARGE_BYTES + limits.CELL_KEY_BYTES_MAX + 2 * limits.KIB < limits.INLINE_BYTES_MAX, "a node is a small blob"


class Far(msgspec.Struct, frozen=True, gc=False):
    """A row whose meaning is a blob of its own."""

    address: bytes
    length: int
    placement: bytes = b""


Stored: TypeAlias = "Row | Far"


class NodeRef(msgspec.Struct, frozen=True, gc=False):
    """A node that is there, and what lies below it."""

    address: bytes
    count: int
    weight: int


class Header(msgspec.Struct, frozen=True):
    """The first node of a snapshot."""

    state: bytes
    root: NodeRef
    size: int  # of all rows, in bytes


class BranchNode(msgspec.Struct, frozen=True):
    children: dict[int, NodeRef]  # by place, in their order


class Leaf(msgspec.Struct, frozen=True):
    rows: dict[bytes, Stored]  # in the order of keys


Node: TypeAlias = "BranchNode | Leaf"


class NodeConsumer(Protocol):
    """Something that needs nodes: `wanted` names them, `take` is given them, until nothing is wanted."""

    @property
    def wanted(self) -> list[bytes]: ...

    def take(self, encoded: Mapping[bytes, bytes]) -> None: ...


def answer(asking: NodeConsumer, get: Callable[[bytes], bytes]) -> None:
    """Give it all that it needs, from where nothing has to be waited for."""
    while wanted := asking.wanted:
        asking.take({address: get(address) for address in wanted})


# --- Places -----------------------------------------------------------------------------------------------------


def path_of(key: bytes) -> bytes:
    """Where a row lies: from the root on, its bits choose a child."""
    path = digest.sha256(key)
    first = path[0]
    return (_WITH_BIT if key[:1] == row_keys.CELL else _WITHOUT_BIT)[first] + path[1:]


def lowest_of(path: bytes, depth: int) -> int:
    """The lowest place on a path, in a branch at this depth: as many branches are above it."""
    byte = path[depth >> 1]
    return LOWEST + (byte & 15 if depth & 1 else byte >> 4)


def place_of(children: Mapping[int, NodeRef], path: bytes, depth: int) -> int:
    """The place of the child on a path, in a branch at this depth; the lowest place if there is none."""
    lowest = place = lowest_of(path, depth)
    while place > 1:
        if place in children:
            return place
        place >>= 1
    return lowest


def is_below(place: int, above: int) -> bool:
    """Whether a place is another one, or leads on from it."""
    return place >> max(0, place.bit_length() - above.bit_length()) == above


def is_leaf(count: int, weight: int) -> bool:
    """Whether rows are one leaf."""
    return weight <= LEAF_BYTES or count <= 1


# --- Rows -------------------------------------------------------------------------------------------------------


def stored(row: Row) -> Stored:
    """A row as it stands in a leaf."""
    meaning = row.meaning
    return row if len(meaning) <= LARGE_BYTES else Far(digest.sha256(meaning), len(meaning), row.placement)


def size_of(key: bytes, row: Stored) -> int:
    """How many bytes a row has, wherever they are."""
    return len(key) + (row.length if isinstance(row, Far) else len(row.meaning)) + len(row.placement)


def weight_of(key: bytes, row: Stored) -> int:
    length = len(row.meaning) if type(row) is Row else _FAR_BYTES
    return len(key) + length + len(row.placement) + _HEADS_BYTES


# --- Bytes ------------------------------------------------------------------------------------------------------


def encode_header(header: Header) -> bytes:
    root = header.root
    return canonical.encode_flat([HEADER, VERSION, header.state, root.address, root.count, root.weight, header.size])


def encode_branch(children: Mapping[int, NodeRef]) -> bytes:
    places = 0
    flat: list[Any] = []
    for place in sorted(children):
        child = children[place]
        places |= 1 << place
        flat += (child.address, child.count, child.weight)
    return canonical.encode_flat([BRANCH, VERSION, places, flat])


def encode_leaf(rows: Mapping[bytes, Stored]) -> bytes:
    flat: list[Any] = []
    apart: list[Any] = []
    for key in sorted(rows):
        row = rows[key]
        if type(row) is Row:
            flat += (key, row.meaning, row.placement)
        else:
            assert isinstance(row, Far)
            flat += (key, None, row.placement)
            apart += (row.address, row.length)
    return canonical.encode_flat([LEAF, VERSION, flat, apart] if apart else [LEAF, VERSION, flat])


def decode_header(data: bytes) -> Header:
    match _fields(data):
        case [1, 1, bytes(state), bytes(root), int(count), int(weight), int(size)] if (
            _are_digests(state, root) and min(count, weight, size) >= 0
        ):
            return Header(state, NodeRef(root, count, weight), size)
        case [1, int(version), *_] if version != VERSION:
            raise errors.DecodeError(f"a snapshot's header of version {version}; this release reads {VERSION}")
        case _:
            raise errors.DecodeError("not the header of a snapshot")


def decode(data: bytes) -> Node:
    """A branch or a leaf."""
    fields = _fields(data)
    if fields[1:2] != [VERSION]:
        raise errors.DecodeError(f"a node of version {fields[1:2]}; this release reads {VERSION}")
    match fields:
        case [2, _, int(places), list(flat)]:
            return BranchNode(_children(places, flat))
        case [3, _, list(flat)]:
            return Leaf(_rows(flat, []))
        case [3, _, list(flat), list(apart)] if apart:
            return Leaf(_rows(flat, apart))
        case _:
            raise errors.DecodeError(f"not a node of a state: kind {fields[0]!r}")


def is_whole_leaf(data: bytes) -> bool:
    """Whether this is a leaf that refers to nothing."""
    return data[:2] == _WHOLE_LEAF


def is_branch(data: bytes) -> bool:
    return data[:2] == _BRANCH


class NodeReferences(msgspec.Struct, frozen=True):
    """What a node refers to: other nodes, and the meanings of rows."""

    nodes: list[bytes]
    blobs: list[bytes]


def references(data: bytes) -> NodeReferences:
    """Everything that a node needs to be whole, of whichever kind it is."""
    if _fields(data)[0] == HEADER:
        return NodeReferences([decode_header(data).root.address], [])
    node = decode(data)
    if isinstance(node, BranchNode):
        return NodeReferences([child.address for child in node.children.values()], [])
    return NodeReferences([], [row.address for row in node.rows.values() if type(row) is Far])


def _fields(data: bytes) -> list[Any]:
    fields = canonical.decode(data)
    if type(fields) is not list or not fields:
        raise errors.DecodeError("not a node of a state")
    return fields


def _children(places: int, flat: list[Any]) -> dict[int, NodeRef]:
    if not 0 < places < 1 << 2 * LOWEST or places & 3 or len(flat) != _FIELDS * places.bit_count():
        raise errors.DecodeError("a branch names each of its children once")
    children: dict[int, NodeRef] = {}
    fields = iter(flat)
    for place in range(2, 2 * LOWEST):
        if not places >> place & 1:
            continue
        match [next(fields), next(fields), next(fields)]:
            case [bytes(address), int(count), int(weight)] if _are_digests(address) and count > 0 and weight > 0:
                children[place] = NodeRef(address, count, weight)
            case _:
                raise errors.DecodeError(f"a branch's child at {place} is no address, count and weight")
        if any(place >> up in children for up in range(1, BITS)):
            raise errors.DecodeError(f"a branch has a child at {place} below another one")
    return children


def _rows(flat: list[Any], apart: list[Any]) -> dict[bytes, Stored]:
    if len(flat) % _FIELDS:
        raise errors.DecodeError("a leaf holds rows of a key, a meaning and a placement")
    rows: dict[bytes, Stored] = {}
    far = _far(apart)
    last = None
    fields = iter(flat)
    for key, meaning, placement in zip(fields, fields, fields, strict=True):
        if type(key) is not bytes or type(placement) is not bytes:
            raise errors.DecodeError("a leaf holds rows of a key, a meaning and a placement")
        if last is not None and key <= last:
            raise errors.DecodeError("the rows of a leaf are in the order of their keys")
        last = key
        if type(meaning) is bytes and len(meaning) <= LARGE_BYTES:
            rows[key] = Row(meaning, placement)
        elif meaning is None and far:
            rows[key] = Far(*far.pop(), placement)
        else:
            raise errors.DecodeError("a leaf's row has neither a short meaning nor a reference to a long one")
    if far:
        raise errors.DecodeError("a leaf refers to meanings that no row has")
    return rows


def _far(apart: list[Any]) -> list[tuple[bytes, int]]:
    """The references of a leaf, the last one first."""
    found: list[tuple[bytes, int]] = []
    for start in range(0, len(apart), 2):
        match apart[start : start + 2]:
            case [bytes(address), int(length)] if _are_digests(address) and length > LARGE_BYTES:
                found.append((address, length))
            case _:
                raise errors.DecodeError("a leaf refers to a meaning by address and length")
    found.reverse()
    return found


def _are_digests(*found: bytes) -> bool:
    return all(len(each) == limits.DIGEST_BYTES for each in found)
