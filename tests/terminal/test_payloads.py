"""Words as typed values, and entries as plain data."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

import worldline as wl
from tests.cli import shop
from worldline.base import errors
from worldline.inspect import entry_text
from worldline.kernel import entry_fields, user_values
from worldline.model import journal
from worldline.model.journal import Kind
from worldline.terminal import output, payload_words


class Colour(enum.Enum):
    RED = "red"


TYPED: list[tuple[Any, str, Any]] = [
    (str, "5", "5"),
    (str, '"quoted"', '"quoted"'),
    (int, "5", 5),
    (float, "5", 5.0),
    (bool, "true", True),
    (str | None, "5", "5"),
    (str | None, "null", None),
    (int | None, "null", None),
    (list[int], "[1, 2]", [1, 2]),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (Literal["a", "b"], "a", "a"),
    (Colour, "red", Colour.RED),
    (UUID, "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
    (datetime, "2024-01-02T03:04:05Z", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (Any, "5", 5),
    (Any, "five", "five"),
]


@pytest.mark.parametrize(("kind", "text", "expected"), TYPED, ids=[f"{row[0]}-{row[1]}" for row in TYPED])
def test_text_becomes_what_its_type_says(kind: Any, text: str, expected: Any) -> None:
    assert payload_words.typed(kind, text) == expected


@pytest.mark.parametrize(("kind", "text"), [(int, "five"), (bool, "maybe"), (list[int], "1"), (Colour, "blue")])
def test_text_that_is_not_of_its_type(kind: Any, text: str) -> None:
    with pytest.raises(errors.DecodeError):
        payload_words.typed(kind, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5), ("5.5", 5.5), ("true", True), ("null", None), ('"5"', "5"), ("bob", "bob"), ("[1]", [1]), ("", "")],
)
def test_without_a_type_json_is_tried(text: str, expected: Any) -> None:
    assert payload_words.loose(text) == expected


def test_words_are_split_at_the_first_equals_sign() -> None:
    found = payload_words.given(["a=b=c", "plain", "not-a-name=x"], None)
    assert (found.named, found.words) == ({"a": "b=c"}, ["plain", "not-a-name=x"])


def test_events_of_a_pydantic_model_and_a_struct() -> None:
    class Model(pydantic.BaseModel):
        name: str
        count: int = 1

    class Struct(msgspec.Struct):
        name: str

    program = wl.Program("models")

    @program.reducer()
    @dataclass
    class Seen:
        names: str = ""

        @wl.on
        def model(self, event: Model) -> None: ...

        @wl.on
        def struct(self, event: Struct) -> None: ...

    for schema in ("Model", "Struct"):
        data = payload_words.event(program, schema, payload_words.given(["name=5"], None))
        assert user_values.load(dict[str, Any], data)["name"] == "5"
        with pytest.raises(errors.BadInput, match="has no field 'nome'"):
            payload_words.event(program, schema, payload_words.given(["nome=5"], None))


def test_the_answer_of_a_request() -> None:
    assert payload_words.answer(shop.app, "Withdraw") is int
    assert payload_words.answer(shop.app, "Deposited") is Any
    assert payload_words.answer(None, "Withdraw") is Any


# --- Entries ---------------------------------------------------------------------------------------------------------


def test_bytes_times_and_names_as_plain_data() -> None:
    made = {"a": b"\x01\xff", "b": datetime(2024, 1, 2, tzinfo=UTC), "c": Kind.EVENT, "d": (1, [2.5, None, True])}
    assert entry_text.plain(made) == {
        "a": "01ff",
        "b": "2024-01-02T00:00:00.000Z",
        "c": "event",
        "d": [1, [2.5, None, True]],
    }


def entry(kind: Kind, payload: bytes, **more: Any) -> journal.JournalEntry:
    return journal.JournalEntry(1, 1, kind, 0, payload, **more)


@pytest.mark.parametrize("kind", [each for each in Kind if each is not Kind.SECRET_DRAWN])
def test_an_entry_that_is_not_what_its_kind_promises_is_shown_as_it_is(kind: Kind) -> None:
    assert entry_text.fields(entry(kind, b"\xff\xff")) == {"payload": "ffff"}
    assert entry_text.line(entry(kind, b"\xff\xff")) == "payload=ffff"


def test_a_secret_is_never_shown() -> None:
    assert entry_text.fields(entry(Kind.SECRET_DRAWN, b"\xff\xff")) == {}


def test_every_kind_that_a_step_derives_is_described() -> None:
    undescribed = [Kind.SNAPSHOT, Kind.BASELINE]
    derived = [kind for kind in Kind if kind not in journal.INPUTS and kind not in undescribed]
    assert sorted(entry_fields._DERIVED) == sorted(derived)


def test_a_payload_stored_apart_is_named() -> None:
    assert entry_text.fields(entry(Kind.EVENT, b"", blob=bytes(32))) == {"payload": {"blob": bytes(32).hex()}}


def test_long_values_are_cut_for_people_and_whole_for_programs() -> None:
    long = entry(Kind.EVENT_RAISED, user_values.dump(["Said", user_values.dump("x" * 1000)]))
    assert len(entry_text.line(long)) < 200
    assert len(entry_text.entry(long)["data"]) == 1000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        ("", "-"),
        (True, "yes"),
        ({}, "-"),
        ({"a": "1", "b": ""}, "a=1 b"),
        (["x", "y"], "x, y"),
        ({"a": 1}, '{"a":1}'),
    ],
)
def test_cells_of_tables(value: Any, expected: str) -> None:
    assert output.cell(value) == expected
