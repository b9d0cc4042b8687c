from __future__ import annotations

import hashlib

import pytest

from worldline.base import errors
from worldline.model import ids

AT = ids.Address(ids.UniverseId(b"U" * 16), ids.WorldId(b"W" * 16))

GOOD = ["a", "a b", "zoë/1", "order:42", "a/b/c", "-", ".", "\U0001f30d" * 32, "a" * 128]
BAD = ["", " ", " a", "a ", "/", "/a", "a/", "a\n", "a\tb", "\x00", "a\x7f", "\u200b", "a\u00a0b", "\ud800", "\ufeffa"]


@pytest.mark.parametrize("name", GOOD)
def test_names_people_may_choose(name: str) -> None:
    assert ids.check_name(name, "a name") == name


@pytest.mark.parametrize("name", BAD)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(errors.BadInput, match="a name must be printable text"):
        ids.check_name(name, "a name")


@pytest.mark.parametrize("name", ["a" * 129, "ë" * 65, "\ud800" * 43])
def test_long_names_are_refused(name: str) -> None:
    with pytest.raises(errors.TooLarge) as caught:
        ids.check_name(name, "a name")
    assert (caught.value.what, caught.value.limit) == ("a name", 128)


@pytest.mark.parametrize("size", [0, 15, 17, 32])
def test_an_id_has_sixteen_bytes(size: int) -> None:
    assert ids.check_id(bytes(16), "an id") == bytes(16)
    with pytest.raises(errors.BadInput, match=f"an id must be 16 bytes, not {size}"):
        ids.check_id(bytes(size), "an id")


def test_addresses_sort_by_universe_and_then_world() -> None:
    made = [ids.Address(ids.UniverseId(bytes([u])), ids.WorldId(bytes([w]))) for u in (1, 2) for w in (1, 2)]
    made.reverse()
    assert sorted(made) == made[::-1]
    assert ids.Address(AT.universe, AT.world) == AT


def test_golden_intent_id() -> None:
    """The first half of a sha256 over the domain and the parts, each after its length in eight bytes."""
    parts = [b"intent", b"U" * 16, b"W" * 16, (7).to_bytes(8, "big"), (2).to_bytes(4, "big"), b"mail.send", b"\xa0"]
    joined = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    found = ids.intent_id(AT, step=7, ordinal=2, kind="mail.send", params=b"\xa0")
    assert found == hashlib.sha256(joined).digest()[:16]
    assert found.hex() == "7c12bb73694a3beb58a547429833af7a"


def test_every_part_counts_in_an_intent_id() -> None:
    other = ids.Address(ids.UniverseId(b"V" * 16), AT.world)
    fork = ids.Address(AT.universe, ids.WorldId(b"X" * 16))
    made = [
        ids.intent_id(AT, step=1, ordinal=0, kind="k", params=b"p"),
        ids.intent_id(other, step=1, ordinal=0, kind="k", params=b"p"),
        ids.intent_id(fork, step=1, ordinal=0, kind="k", params=b"p"),
        ids.intent_id(AT, step=2, ordinal=0, kind="k", params=b"p"),
        ids.intent_id(AT, step=1, ordinal=1, kind="k", params=b"p"),
        ids.intent_id(AT, step=1, ordinal=0, kind="l", params=b"p"),
        ids.intent_id(AT, step=1, ordinal=0, kind="k", params=b"q"),
        ids.intent_id(AT, step=1, ordinal=0, kind="kp", params=b""),
    ]
    assert len({*made}) == len(made)
    assert {len(each) for each in made} == {16}


@pytest.mark.parametrize(("step", "ordinal"), [(0, 0), (-1, 0), (1, -1)])
def test_steps_count_from_one_and_ordinals_from_zero(step: int, ordinal: int) -> None:
    with pytest.raises(AssertionError):
        ids.intent_id(AT, step=step, ordinal=ordinal, kind="k", params=b"")


@pytest.mark.parametrize("text", ["a", " ", "a/b\n", "zoë", "messages:1", "x" * 1_024, "ë" * 512])
def test_ids_clients_may_choose(text: str) -> None:
    assert ids.check_client_id(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must not be empty"),
        ("\ud800", "must be well-formed text"),
        ("x" * 1_025, "may have 1024 bytes, not 1025"),
        ("ë" * 513, "may have 1024 bytes, not 1026"),
        ("message:", "must not begin with 'message:'"),
        ("message:" + "0" * 98, "messages between worlds have such ids"),
    ],
)
def test_other_ids_are_refused(text: str, why: str) -> None:
    with pytest.raises(errors.BadInput, match=why):
        ids.check_client_id(text)
