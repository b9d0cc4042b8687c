"""A trie's shape and bytes depend on its rows alone; changing, reading and comparing cost what they concern."""

from __future__ import annotations

import hashlib
import re
import tracemalloc
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.base import errors
from worldline.model.change import Row
from worldline.model.trie import differing_keys, nodes, paths, update, walk
from worldline.model.trie.nodes import Far, NodeRef

Rows = dict[bytes, Row]

# Meanings of many sizes: a few hundred bytes make branches out of a few rows, the longest are blobs of their own.
SIZES = (0, 1, 60, 500, 1_500, 4_096, 4_097, 9_000)
keys = st.integers(0, 40).map(lambda number: b"C" + number.to_bytes(2, "big"))
rows = st.builds(
    lambda size, fill, placement: Row(bytes([fill]) * size, placement),
    st.sampled_from(SIZES),
    st.integers(0, 2),
    st.sampled_from([b"", b"\x81\x01"]),
)
batches = st.lists(st.lists(st.tuples(keys, st.none() | rows), max_size=12), max_size=8)
quick = settings(deadline=None, derandomize=True)


class Store:
    """Nodes and blobs by address, and what was asked of it."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.gets: list[bytes] = []
        self.root = self.put(update.build(()))

    def put(self, result: update.UpdatedTrie) -> NodeRef:
        for data in [*result.new.values(), *result.blobs.values()]:
            self.kept[hashlib.sha256(data).digest()] = data
        self.root = result.root
        return result.root

    def size(self) -> int:
        return sum(len(key) + len(row.meaning) + len(row.placement) for key, row in self.rows().items())

    def get(self, address: bytes) -> bytes:
        self.gets.append(address)
        return self.kept[address]

    def change(self, changes: Mapping[bytes, Row | None]) -> update.UpdatedTrie:
        changing = update.Update(self.root, changes.items())
        nodes.answer(changing, self.get)
        result = changing.result()
        self.put(result)
        return result

    def rows(self) -> Rows:
        walking = walk.TrieWalk(self.root, strict=True)
        nodes.answer(walking, self.get)
        return dict(sorted(walking.rows()))

    def near(self, row: nodes.Stored) -> Row:
        if isinstance(row, Row):
            return row
        assert len(self.kept[row.address]) == row.length
        return Row(self.kept[row.address], row.placement)


def many(count: int, *, size: int = 30) -> Rows:
    return {b"Cell %d" % number: Row(b"%d" % number + b"." * size) for number in range(count)}


# --- The shape --------------------------------------------------------------------------------------------------


@quick
@given(batches)
def test_any_order_of_changes_leads_to_the_same_bytes(batches: list[list[tuple[bytes, Row | None]]]) -> None:
    store = Store()
    expected: Rows = {}
    for batch in batches:
        changes, size = dict(batch), store.size()
        assert store.change(changes).grown == store.size() - size
        expected |= {key: row for key, row in changes.items() if row is not None}
        expected = {key: row for key, row in expected.items() if changes.get(key, row) is not None}
        assert store.root == update.build(expected.items()).root
        assert store.root.count == len(expected)
        assert store.rows() == dict(sorted(expected.items()))
    assert store.root.address == update.root_of(sorted(expected.items(), reverse=True))


@quick
@given(batches, st.integers(1, 3))
def test_a_change_in_parts_writes_the_same_nodes_and_no_others(
    batches: list[list[tuple[bytes, Row | None]]], page: int
) -> None:
    """However few nodes are asked for at once. What is taken away in between refers only to what was taken before."""
    store = Store()
    for batch in batches:
        changes, before = dict(batch), store.root
        changing = update.Update(before, changes.items(), page=page)
        written: list[bytes] = changing.written()
        while wanted := changing.wanted:
            assert len(wanted) <= page
            changing.take({address: store.kept[address] for address in wanted})
            written += changing.written()
        result = changing.result()
        written += [*result.blobs.values(), *result.new.values()]
        old = reachable(store, before.address)
        for data in written:
            if data[:1] in (b"\x83", b"\x84"):
                below = nodes.references(data)
                assert all(each in store.kept for each in [*below.nodes, *below.blobs])
            store.kept[hashlib.sha256(data).digest()] = data
        at_once = store.change(changes)
        assert (result.root, result.grown) == (at_once.root, at_once.grown)
        assert sorted(written) == sorted([*at_once.new.values(), *at_once.blobs.values()])
        new = reachable(store, result.root.address)
        assert [each for each in new if each not in old and store.kept[each] not in written] == []
        unused = [each for each in written if hashlib.sha256(each).digest() not in new]
        assert all(len(each) > nodes.LARGE_BYTES for each in unused), "a large row that is put as it was, or removed"


def reachable(store: Store, root: bytes) -> dict[bytes, None]:
    """Every node and blob of a trie."""
    found: dict[bytes, None] = {}
    waiting = [root]
    while waiting:
        each = waiting.pop()
        found[each] = None
        below = nodes.references(store.kept[each])
        waiting += below.nodes
        found |= dict.fromkeys(below.blobs)
    return found


def test_a_change_of_all_leaves_has_few_of_them_in_memory() -> None:
    store, rows = Store(), many(12_000)
    store.change(rows)
    changes = [(key, Row(row.meaning + b"!")) for key, row in rows.items()]

    def peak(page: int) -> int:
        """Of what the change takes besides the changes."""
        changing = update.Update(store.root, changes, page=page)
        tracemalloc.start()
        try:
            while wanted := changing.wanted:
                changing.take({address: store.kept[address] for address in wanted})
                changing.written()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert 4 * peak(10) < peak(1_000_000)


def test_thousands_of_rows_come_and_go() -> None:
    random = Random(7)
    store, expected = Store(), many(3_000)
    store.change(expected)
    for _ in range(12):
        changes: dict[bytes, Row | None] = {}
        for number in random.sample(range(6_000), 900):
            key = b"Cell %d" % number
            changes[key] = None if random.random() < 0.7 else Row(b"changed %d" % random.randrange(9))
        store.change(changes)
        expected |= {key: row for key, row in changes.items() if row is not None}
        expected = {key: row for key, row in expected.items() if changes.get(key, row) is not None}
        assert store.root == update.build(expected.items()).root
    store.change(dict.fromkeys(expected))
    assert store.root == update.build(()).root
    assert store.root.count == store.root.weight == 0


def test_nodes_are_a_few_kilobytes() -> None:
    for count in (300, 5_000, 20_000, 40_000):
        sizes = [len(data) for data in update.build(many(count).items()).new.values()]
        assert max(sizes) <= nodes.LEAF_BYTES + 16
        assert sum(sizes) / len(sizes) > nodes.LEAF_BYTES / 3


def test_a_row_that_is_large_with_its_key_is_a_small_blob() -> None:
    result = update.build([(b"C" + bytes(4_200), Row(bytes(4_096), bytes(60)))])
    assert max(map(len, result.new.values())) < 16 * 1024
    assert not result.blobs


# --- What a change costs ------------------------------------------------------------------------------------------


def test_a_change_writes_and_reads_only_the_paths_of_what_changed() -> None:
    store, rows = Store(), many(20_000)
    whole = store.change(rows)
    store.gets = []
    touched = store.change({b"Cell %d" % number: Row(b"touched") for number in range(0, 20_000, 1_000)})
    assert len(touched.new) <= 20 * 4
    assert len(store.gets) <= 20 * 4
    assert len(whole.new) > 300
    assert sum(map(len, touched.new.values())) < sum(map(len, whole.new.values())) / 8
    assert not any(address in whole.new for address in touched.new)


def test_nothing_changed_is_nothing_new() -> None:
    store, rows = Store(), many(500)
    store.change(rows)
    before = store.root
    same: dict[bytes, Row | None] = {b"Cell 3": rows[b"Cell 3"], b"never": None}
    assert store.change(same).new == {}
    assert store.change({}).new == {}
    assert store.root == before


def test_children_are_written_before_their_parents() -> None:
    written: list[bytes] = []
    for address, data in update.build(many(3_000).items()).new.items():
        assert all(each in written for each in nodes.references(data).nodes)
        written.append(address)


def test_a_branch_that_becomes_light_reads_its_other_children() -> None:
    store, rows = Store(), many(120)
    store.change(rows)
    assert isinstance(nodes.decode(store.kept[store.root.address]), nodes.BranchNode)
    rest = {key: rows[key] for key in list(rows)[:10]}
    store.change({key: None for key in rows if key not in rest})
    assert store.root == update.build(rest.items()).root
    assert isinstance(nodes.decode(store.kept[store.root.address]), nodes.Leaf)


# --- Large rows ---------------------------------------------------------------------------------------------------


def test_a_large_meaning_is_a_blob_that_the_leaf_refers_to() -> None:
    large = Row(bytes(5_000), b"\x81\x01")
    result = update.build([(b"small", Row(b"s")), (b"large", large)])
    [leaf] = result.new.values()
    address = hashlib.sha256(large.meaning).digest()
    assert result.blobs == {address: large.meaning}
    assert nodes.references(leaf) == nodes.NodeReferences([], [address])
    node = nodes.decode(leaf)
    assert isinstance(node, nodes.Leaf)
    assert node.rows == {b"large": Far(address, 5_000, b"\x81\x01"), b"small": Row(b"s")}


def test_every_reference_is_found_without_knowing_what_rows_mean() -> None:
    result = update.build({**many(400), b"large": Row(bytes(70_000))}.items())
    header = nodes.encode_header(nodes.Header(bytes(32), result.root, result.grown))
    kept = {**result.new, **result.blobs}
    found: dict[bytes, None] = {}
    waiting = nodes.references(header).nodes
    while waiting:
        each = waiting.pop()
        found[each] = None
        below = nodes.references(kept[each])
        waiting += below.nodes
        found |= dict.fromkeys(below.blobs)
    assert sorted(found) == sorted(kept)


# --- Paths --------------------------------------------------------------------------------------------------------


def test_a_path_proves_a_row_and_its_absence() -> None:
    store, rows = Store(), many(3_000)
    store.change(rows)
    wanted = [b"Cell 17", b"Cell 2999", b"absent", *(b"Cabsent %d" % number for number in range(40))]
    asking = paths.Paths(store.root.address, wanted)
    nodes.answer(asking, store.get)
    for key in wanted:
        assert asking.row(key) == rows.get(key)
        path = asking.path(key)
        assert 1 <= len(path) < 6
        assert paths.follow(store.root.address, key, path) == rows.get(key)


def test_paths_that_prove_nothing_are_refused() -> None:
    store = Store()
    store.change(many(3_000))
    asking = paths.Paths(store.root.address, [b"Cell 17"])
    nodes.answer(asking, store.get)
    path, root = asking.path(b"Cell 17"), store.root.address
    other = update.build(many(2_999).items()).root.address
    for bad in (path[:-1], [*path, path[-1]], path[1:], [], [*path[:-1], path[-1][:-1] + b"x"]):
        with pytest.raises(errors.Corrupt):
            paths.follow(root, b"Cell 17", bad)
    with pytest.raises(errors.Corrupt):
        paths.follow(other, b"Cell 17", path)
    empty = Store()
    nothing = paths.Paths(empty.root.address, [b"k"])
    nodes.answer(nothing, empty.get)
    assert paths.follow(empty.root.address, b"k", nothing.path(b"k")) is None


# --- Differences ----------------------------------------------------------------------------------------------------


@quick
@given(st.dictionaries(keys, rows), st.dictionaries(keys, rows))
def test_a_difference_names_every_key_whose_row_is_another(before: Rows, after: Rows) -> None:
    store = Store()
    one, other = store.put(update.build(before.items())), store.put(update.build(after.items()))
    comparing = differing_keys.TrieDifference(one.address, other.address)
    nodes.answer(comparing, store.get)
    found = {
        each.key: (each.before and store.near(each.before), each.after and store.near(each.after))
        for each in comparing.changed()
    }
    assert found == {
        key: (before.get(key), after.get(key))
        for key in sorted({**before, **after})
        if before.get(key) != after.get(key)
    }


def test_a_difference_costs_what_differs() -> None:
    store, rows = Store(), many(20_000)
    store.change(rows)
    before = store.root
    store.change({b"Cell 5": Row(b"other"), b"Cell 77": None, b"new": Row(b"new")})
    store.gets = []
    comparing = differing_keys.TrieDifference(before.address, store.root.address)
    nodes.answer(comparing, store.get)
    assert [each.key for each in comparing.changed()] == [b"Cell 5", b"Cell 77", b"new"]
    assert len(store.gets) <= 2 * 3 * 5
    store.gets = []
    nodes.answer(differing_keys.TrieDifference(before.address, before.address), store.get)
    assert not store.gets


# --- Walking ------------------------------------------------------------------------------------------------------


def test_a_walk_asks_for_a_bounded_number_of_nodes() -> None:
    store, rows = Store(), many(5_000)
    store.change(rows)
    walking = walk.TrieWalk(store.root, page=50)
    while wanted := walking.wanted:
        assert len(wanted) <= 50
        walking.take({each: store.kept[each] for each in wanted})
    assert dict(walking.rows()) == rows


def test_a_walk_tells_where_a_node_lies() -> None:
    store = Store()
    store.change(many(3_000))
    walking = walk.TrieWalk(store.root)
    walking.take({store.root.address: store.kept[store.root.address]})
    address = walking.wanted[0]
    place = walking.place(address)
    assert place is not None
    assert str(place).startswith(f"node {address.hex()}, which holds the ")
    assert re.search(r"rows on the paths that begin with [01]{1,4}$", str(place))
    with pytest.raises(errors.DecodeError, match=f"node {address.hex()}"):
        walking.take({**{each: store.kept[each] for each in walking.wanted}, address: b"\x80"})


def ref(data: bytes, count: int, weight: int) -> NodeRef:
    return NodeRef(hashlib.sha256(data).digest(), count, weight)


def test_a_strict_walk_refuses_what_has_another_form() -> None:
    """Each of these nodes is well formed; together they are no trie that `update` makes."""
    candidates = (b"C%d" % number for number in range(99))
    [first, second, third, *_] = [key for key in candidates if nodes.lowest_of(nodes.path_of(key), 0) % 2]
    row = Row(b"x" * 2_000)
    heavy = nodes.encode_leaf(dict.fromkeys([first, second, third], row))
    light = nodes.encode_leaf({first: row})
    weight = nodes.weight_of(first, row)
    at = nodes.lowest_of(nodes.path_of(first), 0)
    other = NodeRef(bytes(32), 50, 5_000)
    beside = next(key for key in map(b"Cb%d".__mod__, range(99)) if nodes.lowest_of(nodes.path_of(key), 0) == at ^ 1)

    def branch(**children: NodeRef) -> bytes:
        return nodes.encode_branch({int(place[1:]): child for place, child in children.items()})

    one = ref(light, 1, weight)
    cases = {
        "no leaf": (3, 3 * weight, [heavy]),
        "one leaf": (1, weight, [branch(_2=one), light]),
        "lies elsewhere": (51, weight + 5_000, [branch(**{f"_{at ^ 1}": one, f"_{at}": other}), light]),
        "the node above it": (59, 9_000, [branch(**{f"_{at}": ref(light, 9, 4_000), f"_{at ^ 1}": other}), light]),
        "count or weight": (2, weight, [light]),
        "too heavy": (100, 10_000, [branch(_2=other, _3=other)]),
        "are one leaf": (52, weight + 5_009, [branch(_8=one, _9=NodeRef(bytes(32), 1, 9), _31=other)]),
    }
    for said, (count, total, kept) in cases.items():
        found = {hashlib.sha256(data).digest(): data for data in kept}
        found[bytes(32)] = nodes.encode_leaf({beside: row})
        with pytest.raises(errors.DecodeError, match=said):
            nodes.answer(walk.TrieWalk(ref(kept[0], count, total), strict=True), found.__getitem__)


def test_a_walk_leaves_cells_out() -> None:
    store = Store()
    others = {b"R%d" % number: Row(b"r" * 40) for number in range(300)}
    store.change({**many(20_000), **others})
    store.gets = []
    walking = walk.TrieWalk(store.root, cells=False)
    nodes.answer(walking, store.get)
    assert dict(walking.rows()) == others
    assert len(store.gets) < 20
    small = Store()
    small.change({b"Cell": Row(b"c"), b"R": Row(b"r")})
    walking = walk.TrieWalk(small.root, cells=False)
    nodes.answer(walking, small.get)
    assert dict(walking.rows()) == {b"Cell": Row(b"c"), b"R": Row(b"r")}


def test_a_walk_skips_what_an_earlier_one_has_seen() -> None:
    store, known = Store(), dict[bytes, None]()
    store.change(many(3_000))
    nodes.answer(walk.TrieWalk(store.root, strict=True, known=known), store.get)
    assert len(known) > 50
    changed = store.change({b"Cell 5": Row(b"other"), b"large": Row(bytes(5_000))})
    store.gets = []
    nodes.answer(walk.TrieWalk(store.root, strict=True, known=known), store.get)
    assert sorted(store.gets) == sorted([*changed.new, *changed.blobs])
