from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.layers.histories import short_keys
from worldline.model.change import Row
from worldline.model.rows import Rows

moves = st.lists(
    st.one_of(
        st.tuples(st.just("put"), short_keys, st.binary(max_size=2)),
        st.tuples(st.just("remove"), short_keys, st.just(b"")),
        st.tuples(st.just("drop"), short_keys, st.just(b"")),
    ),
    max_size=60,
)


@given(st.dictionaries(short_keys, st.binary(max_size=2)), moves)
def test_rows_are_a_map_from_which_groups_are_dropped(
    start: dict[bytes, bytes], moves: list[tuple[str, bytes, bytes]]
) -> None:
    rows = Rows((key, Row(meaning)) for key, meaning in start.items())
    expected = dict(start)
    for what, key, meaning in moves:
        if what == "put":
            rows.put(key, Row(meaning))
            expected[key] = meaning
        elif what == "remove":
            rows.remove(key)
            expected.pop(key, None)
        else:
            rows.drop(key)
            expected = {each: value for each, value in expected.items() if not each.startswith(key)}
        assert len(rows) == len(expected)
        assert rows.get(key) == (None if key not in expected else Row(expected[key]))
    assert [(key, row.meaning) for key, row in rows.items()] == sorted(expected.items())


def test_dropping_a_group_does_not_look_at_all_rows() -> None:
    rows = Rows((b"\x05" + number.to_bytes(4, "big"), Row(b"")) for number in range(100_000))
    looked = 0

    class Looked(list[bytes]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looked
            looked += 1
            return super().__getitem__(index)

    rows.drop(b"\x04")
    rows._long = Looked(rows._long)
    for number in range(500):
        group = b"\x06" + number.to_bytes(4, "big")
        for suffix in range(4):
            rows.put(group + bytes([suffix]), Row(b""))
        rows.drop(group)
    assert len(rows) == 100_000
    assert looked < 500 * 40
