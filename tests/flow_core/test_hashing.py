"""Canonical JSON, schema hashes, requirement ids and intent keys, against the reference and another RFC 8785."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from tests.flow_core.documents import COUNTER
from worldline.flow_core import faults, hashing, js_values

EMPTY = {
    "id": "manifesto:test",
    "version": "1.0.0",
    "types": {},
    "state": {"fields": {}},
    "computed": {"fields": {}},
    "actions": {},
}
INTEGER_KEYS = {"b": 1, "10": 2, "9": 3, "01": 4}
MIXED = {
    "\u20ac": "Euro Sign",
    "\r": "Carriage Return",
    "\ufb33": "Hebrew Letter Dalet With Dagesh",
    "1": "One",
    "\U0001f600": "Emoji: Grinning Face",
    "\u0080": "Control",
    "\u00f6": "Latin Small Letter O With Diaeresis",
}
HOST = {"$host": {"type": "object", "required": False, "default": {}}}


def test_canonical_text_and_its_hash() -> None:
    text = hashing.schema_text({"b": 2, "a": 1, "d": None, "c": js_values.MISSING, "e": {"y": 2, "x": 1}})
    assert text == '{"a":1,"b":2,"d":null,"e":{"x":1,"y":2}}'
    expected = "d24f3ed07e642c868ecd33f828872f2d3ad5700435987bd63f74bf9f167e7d60"
    assert hashlib.sha256(text.encode()).hexdigest() == expected


def test_keys_that_look_like_integers_come_first_in_schema_hashes_only() -> None:
    assert hashing.schema_text(INTEGER_KEYS) == '{"9":3,"10":2,"01":4,"b":1}'
    assert hashing.canonical(INTEGER_KEYS) == '{"01":4,"10":2,"9":3,"b":1}'


def test_keys_sort_by_utf16_units_and_in_the_legacy_form_by_code_points() -> None:
    emoji, hebrew = "\U0001f600", "\ufb33"
    assert hashing.canonical({hebrew: 1, emoji: 2}) == f'{{"{emoji}":2,"{hebrew}":1}}'
    assert hashing.legacy_text({emoji: 2, hebrew: 1}) == f'{{"{hebrew}":1,"{emoji}":2}}'
    assert [each for each in hashing.canonical(MIXED) if each in "1€😀"] == ["1", "€", "😀"]


def test_strings_and_what_json_does_not_have() -> None:
    assert hashing.canonical('€$\u000f\nA\'B"\\\\"/') == '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'
    assert hashing.schema_text("\x00 \ud800x") == '"\\u0000 \\ud800x"'
    assert hashing.legacy_text([1, js_values.MISSING, math.nan, 2]) == "[1,null,null,2]"
    assert hashing.canonical({"b": 1, "a": js_values.MISSING, "d": None}) == '{"b":1,"d":null}'


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", {1: 2}, b"x", [object()]])
def test_what_has_no_json_is_refused(value: Any) -> None:
    with pytest.raises(faults.NotJson):
        hashing.canonical(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.text()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_canonical_is_rfc_8785(value: Any) -> None:
    assert hashing.canonical(value).encode() == rfc8785.dumps(value)


def test_schema_hashes() -> None:
    assert hashing.schema_hash(EMPTY) == "a5f6006d600a0ff4d0e34f1211c21e06842c88f8636e4ed369ef0fd32423c822"
    counter = "745a166553d2eebefc95d70e4ba44245f8377ff472afc1e36d688c62f5d099c5"
    assert hashing.schema_hash(COUNTER) == hashing.schema_hash({**COUNTER, "hash": "any"}) == counter
    with_host = {**COUNTER, "state": {"fields": {**COUNTER["state"]["fields"], **HOST}}}
    assert hashing.schema_hash(with_host) == counter
    effective = "22706ada6e9ba504656b9c48513fc6e7d2f5fa9740fe96abc000c415eef1a7ee"
    assert hashing.schema_hash(with_host, effective=True) == effective


def test_requirement_ids() -> None:
    found = hashing.requirement_id(
        schema_hash="schema-hash",
        intent_id="intent-1",
        action_id="fetchUser",
        node_path="actions.fetchUser.flow.then",
        effect="api.fetch",
        params={"url": "/u/1", "into": "user"},
    )
    assert found == "3d9016a8dab58ce5c0a94515f2cbfc006aaf48777f9c120fcfc8f72ac63ce8fc"


def test_write_targets_are_sorted() -> None:
    assert hashing.write_targets({"into": "b", "fail": "a", "url": "z", "pass": ["c", 1]}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("schema_hash", "intent_id", "expected"),
    [("hash", "intent", "req-03f530320f27ec58"), ("schema-hash", "intent-1", "req-deabe5ed8be5d4c5")],
)
def test_legacy_requirement_ids(schema_hash: str, intent_id: str, expected: str) -> None:
    found = hashing.legacy_requirement_id(
        schema_hash=schema_hash, intent_id=intent_id, action_id="action", node_path="path"
    )
    assert found == expected


@pytest.mark.parametrize(
    ("type", "input", "scope", "expected"),
    [
        (
            "todo.create",
            {"b": 2, "a": 1},
            {"note": "create todo", "allowedPaths": ["data.todos.*"]},
            "eefd85d78a4526524d7f735a398b54b5318fc52981537ef3dd597c7d5aa67828",
        ),
        ("todo.clear", None, None, "363554eb13569f38bc814a1745692f9520b1b4ec0967832db39abba2e4c4a8d6"),
        (
            "stats.update",
            {"values": [1, math.nan, math.inf, -math.inf]},
            None,
            "2b315a4f8f9dcbf3f027f87954d25902d3a39282561f59409223eba93e699ba9",
        ),
    ],
)
def test_intent_keys(type: str, input: Any, scope: Any, expected: str) -> None:
    found = hashing.intent_key(schema_hash="schema-hash", type=type, input=input, scope=scope)
    assert found == expected


def test_uuids_depend_on_their_seed_alone() -> None:
    made = hashing.uuid_like(["intent", "0"])
    assert made == hashing.uuid_like(["intent", "0"]) != hashing.uuid_like(["intent", "1"])
    assert (len(made), made[14], made[19] in "89ab") == (36, "4", True)
