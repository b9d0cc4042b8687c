"""The golden table of nodes, and what is refused in place of them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.base import errors
from worldline.codec import canonical
from worldline.model.change import Row
from worldline.model.trie import nodes, update
from worldline.model.trie.nodes import BranchNode, Far, Header, Leaf, NodeRef

A, B = bytes(range(32)), bytes(range(96, 128))
CHILDREN = {2: NodeRef(A, 3, 70), 31: NodeRef(B, 200, 70_000)}
ROWS: dict[bytes, nodes.Stored] = {
    b"C\x00\x01n\x00\x00": Row(b"\x82\x01\x03"),
    b"MR": Row(b"\x81\x02"),
    b"W\x15\x01": Row(b"\x81\x00", b"\x82\x01\x02"),
    b"big": Far(B, 5_000, b"\x81\x07"),
}

GOLDEN = {
    "header": (
        "8701015820000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f5820606162636465666768696a"
        "6b6c6d6e6f707172737475767778797a7b7c7d7e7f031846185a"
    ),
    "branch": (
        "8402011a80000004865820000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f03184658206061"
        "62636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f18c81a00011170"
    ),
    "leaf": (
        "8403018c464300016e00004382010340424d5242810240435715014281004382010243626967f64281078258206061626364"
        "65666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f191388"
    ),
    "empty leaf": "83030180",
}
SAMPLES = {
    "header": lambda: nodes.encode_header(Header(A, NodeRef(B, 3, 70), 90)),
    "branch": lambda: nodes.encode_branch(CHILDREN),
    "leaf": lambda: nodes.encode_leaf(ROWS),
    "empty leaf": lambda: nodes.encode_leaf({}),
}
ROOTS = {  # of so many rows
    0: "75e5b6c56a1d2c0cbc336b643e53e8f86cd312f7a27ee0fda8af18f9a35c926d",
    1: "9b49602c015d6bf84cff1b8786703f9a23a61232e0c0281994e2a245b5228ac5",
    1_000: "d4b8a921b55e849acdfe947675dfdf02bda190e18b24a04cd93f5ced23c7ca68",
}
quick = settings(deadline=None, derandomize=True)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    assert SAMPLES[name]().hex() == GOLDEN[name]


@pytest.mark.parametrize("count", ROOTS)
def test_golden_roots(count: int) -> None:
    rows = ((b"C\x00\x01c\x00\x03%03d" % number, Row(canonical.encode([1, b"%d" % number]))) for number in range(count))
    assert update.root_of(rows).hex() == ROOTS[count]


def test_nodes_are_read_as_they_were_written() -> None:
    assert nodes.decode_header(SAMPLES["header"]()) == Header(A, NodeRef(B, 3, 70), 90)
    assert nodes.decode(SAMPLES["branch"]()) == BranchNode(CHILDREN)
    assert nodes.decode(SAMPLES["leaf"]()) == Leaf(ROWS)
    assert nodes.decode(SAMPLES["empty leaf"]()) == Leaf({})


@quick
@given(st.dictionaries(st.binary(max_size=40), st.tuples(st.binary(max_size=4_096), st.binary(max_size=20))))
def test_leaves_round_trip(rows: dict[bytes, tuple[bytes, bytes]]) -> None:
    written = nodes.encode_leaf({key: Row(*fields) for key, fields in rows.items()})
    assert nodes.decode(written) == Leaf({key: Row(*rows[key]) for key in sorted(rows)})


BAD: list[Any] = [
    7,
    [],
    [9, 1],
    [3, 2, []],
    [2, 2, 4, [A, 1, 1]],
    [3, 1, [b"key", b"meaning"]],
    [3, 1, ["key", b"meaning", b""]],
    [3, 1, [b"key", b"meaning", None]],
    [3, 1, [b"key", None, b""]],
    [3, 1, [b"key", b"meaning", b""], []],
    [3, 1, [b"key", b"meaning", b""], [A, 5_000]],
    [3, 1, [b"key", None, b""], [A[1:], 5_000]],
    [3, 1, [b"key", None, b""], [A, 12]],
    [3, 1, [b"key", None, b""], [A]],
    [3, 1, [b"key", None, b""], [A, 5_000, B, 5_000]],
    [3, 1, [b"key", bytes(4_097), b""]],
    [3, 1, [b"b", b"", b"", b"a", b"", b""]],
    [3, 1, [b"a", b"", b"", b"a", b"", b""]],
    [3, 1, [], 0],
    [2, 1, 0, []],
    [2, 1, 4, []],
    [2, 1, 4, [A, 1, 1, B, 1, 1]],
    [2, 1, 1, [A, 1, 1]],
    [2, 1, 2, [A, 1, 1]],
    [2, 1, 1 << 32, [A, 1, 1]],
    [2, 1, 1 << 2 | 1 << 4, [A, 1, 1, B, 1, 1]],
    [2, 1, 1 << 3 | 1 << 31, [A, 1, 1, B, 1, 1]],
    [2, 1, 4, [A[1:], 1, 1]],
    [2, 1, 4, [A, 0, 1]],
    [2, 1, 4, [A, 1, "1"]],
    [1, 1, A, B, 3, 70, 90],
]


@pytest.mark.parametrize("value", BAD, ids=str)
def test_what_is_no_node_is_refused(value: Any) -> None:
    with pytest.raises(errors.DecodeError):
        nodes.decode(canonical.encode(value))


BAD_HEADERS: list[Any] = [
    1,
    [3, 1, []],
    [1, 2, A, B, 3, 70, 90],
    [1, 1, A, B, 3, 70],
    [1, 1, A[1:], B, 3, 70, 90],
    [1, 1, A, B, -1, 70, 90],
]


@pytest.mark.parametrize("value", BAD_HEADERS, ids=str)
def test_what_is_no_header_is_refused(value: Any) -> None:
    with pytest.raises(errors.DecodeError):
        nodes.decode_header(canonical.encode(value))


@pytest.mark.parametrize("name", GOLDEN)
def test_a_changed_byte_is_another_address_or_refused(name: str) -> None:
    data = SAMPLES[name]()
    for index in range(len(data)):
        changed = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        assert hashlib.sha256(changed).digest() != hashlib.sha256(data).digest()
        try:
            nodes.references(changed)
        except errors.DecodeError:
            continue
