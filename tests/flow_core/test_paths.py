"""Paths: how they are split, and what reading and writing by them does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow_core.interpreter import _parts, _walk
from worldline.flow_core import faults, js_values, value_paths

SEGMENTS = st.lists(st.text(alphabet="ab.\\0", min_size=1, max_size=3), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b", ["a", "b"]),
        ("a\\.b", ["a.b"]),
        ("a\\qb", ["a\\qb"]),
        ("a.", ["a", ""]),
        (".a", ["", "a"]),
        ("a\\", ["a\\"]),
        ("a\\\\.b", ["a\\", "b"]),
        ("", [""]),
    ],
)
def test_split(path: str, expected: list[str]) -> None:
    assert list(value_paths.split(path)) == expected


@given(SEGMENTS)
def test_what_is_joined_is_split_again(segments: list[str]) -> None:
    assert list(value_paths.split(value_paths.join(segments))) == segments


@given(st.text(alphabet="ab.\\q", max_size=8))
def test_split_reads_character_by_character(path: str) -> None:
    assert list(value_paths.split(path)) == _parts(path)


def test_join_leaves_empty_segments_out() -> None:
    assert value_paths.join(["a", "", "b.c", "d\\"]) == "a.b\\.c.d\\\\"


DATA: dict[str, Any] = {"a": {"b": [{"c": 1}, {"c": 5}]}, "x": 1, "n": None, "t": "text"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b.1.c", 5),
        ("a.b.length", 2),
        ("a.b.01.c", js_values.MISSING),
        ("a.b.-1", js_values.MISSING),
        ("x.y", js_values.MISSING),
        ("t.length", js_values.MISSING),
        ("n.x", js_values.MISSING),
        ("n", None),
        ("a.b.2", js_values.MISSING),
        ("a.b.²", js_values.MISSING),
        ("a.b." + "9" * 5_000, js_values.MISSING),
    ],
)
def test_walk(path: str, expected: Any) -> None:
    found = value_paths.walk(DATA, value_paths.split(path))
    assert found is expected or found == expected
    assert _walk(DATA, _parts(path)) is found or _walk(DATA, _parts(path)) == found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b.0.c", {**DATA, "a": {"b": [{"c": 9}, {"c": 5}]}}),
        ("x.y.z", {**DATA, "x": {"y": {"z": 9}}}),
        ("n.k", {**DATA, "n": {"k": 9}}),
        ("new.k", {**DATA, "new": {"k": 9}}),
        ("a.b.2", {**DATA, "a": {"b": [{"c": 1}, {"c": 5}, 9]}}),
    ],
)
def test_put_copies_the_way_and_nothing_else(path: str, expected: dict[str, Any]) -> None:
    before = repr(DATA)
    found = value_paths.put(DATA, value_paths.split(path), 9)
    assert (found, repr(DATA)) == (expected, before)
    assert found["t"] is DATA["t"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("x", {name: each for name, each in DATA.items() if name != "x"}),
        ("a.z.q", DATA),
        ("n.k", DATA),
        ("q", DATA),
        ("a.b.0.c", {**DATA, "a": {"b": [{}, {"c": 5}]}}),
        ("a.b.9.c", None),
    ],
)
def test_remove(path: str, expected: dict[str, Any] | None) -> None:
    if expected is None:
        with pytest.raises(faults.Fault, match="has no place"):
            value_paths.remove(DATA, value_paths.split(path))
    else:
        assert value_paths.remove(DATA, value_paths.split(path)) == expected


def test_what_no_path_may_do() -> None:
    for path in ("__proto__", "a.__proto__.x"):
        with pytest.raises(faults.Fault, match="__proto__"):
            value_paths.put(DATA, value_paths.split(path), 1)
    with pytest.raises(faults.Fault, match="unset of an array element"):
        value_paths.remove(DATA, value_paths.split("a.b.0"))
    with pytest.raises(faults.Fault, match="no place"):
        value_paths.put(DATA, value_paths.split("a.b.7"), 1)
