"""A map that keeps its bound: the key that was put longest ago goes."""

from __future__ import annotations

from worldline.base.bounded_map import BoundedMap


def _filled() -> BoundedMap[str, int]:
    known: BoundedMap[str, int] = BoundedMap(3)
    for number, key in enumerate("abc"):
        known[key] = number
    return known


def test_the_oldest_goes() -> None:
    known = _filled()
    known["d"] = 3
    assert list(known.items()) == [("b", 1), ("c", 2), ("d", 3)]


def test_a_key_that_is_put_again_is_the_youngest() -> None:
    known = _filled()
    known["a"] = 7
    assert list(known.items()) == [("b", 1), ("c", 2), ("a", 7)]
    known["d"] = 3
    assert list(known) == ["c", "a", "d"]


def test_reading_leaves_a_key_where_it_is() -> None:
    known = _filled()
    assert known["a"] == known.get("a") == 0
    known["d"] = 3
    assert "a" not in known


def test_a_value_that_is_taken_out_and_put_back_is_in_order_of_use() -> None:
    known = _filled()
    known["a"] = known.pop("a")
    known["d"] = 3
    assert list(known) == ["c", "a", "d"]
