"""Two values, field by field: what is found, and that it makes the one of the other."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.codec.fields import applied
from worldline.codec import canonical, differences
from worldline.codec.differences import Field

CASES: list[tuple[Any, Any, list[Field]]] = [
    (1, 1, []),
    (None, None, []),
    (1, 2, [Field((), "changed", 1, 2)]),
    (1, 1.0, [Field((), "changed", 1, 1.0)]),
    (True, 1, [Field((), "changed", True, 1)]),
    (0.0, -0.0, [Field((), "changed", 0.0, -0.0)]),
    ([1], [True], [Field((0,), "changed", 1, True)]),
    ({}, [], [Field((), "changed", {}, [])]),
    ({"a": 1}, {"a": None}, [Field(("a",), "changed", 1, None)]),
    (
        {"a": 1, "b": 2},
        {"b": 3, "c": 4},
        [
            Field(("a",), "removed", 1),
            Field(("b",), "changed", 2, 3),
            Field(("c",), "added", None, 4),
        ],
    ),
    ({"lines": [{"n": 1}, {"n": 2}]}, {"lines": [{"n": 1}, {"n": 3}]}, [Field(("lines", 1, "n"), "changed", 2, 3)]),
    ([1, 2], [1, 2, 3], [Field((2,), "added", None, 3)]),
    ([1, 2], [0, 1, 2], [Field((0,), "added", None, 0)]),
    ([1, 2, 3], [1, 3], [Field((1,), "removed", 2)]),
    ([1, 2, 3, 9], [4, 9], [Field((0,), "changed", 1, 4), Field((1,), "removed", 2), Field((2,), "removed", 3)]),
    ([1, 1], [1], [Field((1,), "removed", 1)]),
]


@pytest.mark.parametrize(("left", "right", "found"), CASES)
def test_what_is_found(left: Any, right: Any, found: list[Field]) -> None:
    said = differences.differences(left, right)
    assert said == found
    assert [(type(each.left), type(each.right)) for each in said] == [
        (type(each.left), type(each.right)) for each in found
    ], "1, 1.0 and True are equal, and not the same"


SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, "", "a", b"a"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner), max_leaves=12
)


@hypothesis.given(VALUES, VALUES)
def test_applied_to_the_left_value_it_makes_the_right_one(left: Any, right: Any) -> None:
    found = differences.differences(left, right)
    assert canonical.encode(applied(left, found)) == canonical.encode(right)
    assert bool(found) == (canonical.encode(left) != canonical.encode(right))
    assert differences.differences(left, left) == []


def test_values_with_too_many_differences_are_given_whole() -> None:
    most = differences.FIELDS_MAX
    left, right = list(range(most)), [-1 - number for number in range(most)]
    assert len(differences.differences(left, right)) == most
    more, others = {"a": [*left, 0], "b": 1}, {"a": [*right, 1], "b": 2}
    assert differences.differences(more, others) == [Field((), "changed", more, others)]
