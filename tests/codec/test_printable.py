"""Text for terminals: nothing in it that a terminal acts on, and nothing lost."""

from __future__ import annotations

import re
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.codec import printable

ANY_TEXT = st.text(st.characters(), max_size=30)  # lone surrogates as well


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\x7f\x00", "a\\x0db\\x7f\\x00"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("tab\tline\nß 日本 👩‍💻 می‌خواهم", "tab\tline\nß 日本 👩‍💻 می‌خواهم"),
    ],
)
def test_what_a_terminal_acts_on_is_escaped(text: str, shown: str) -> None:
    assert printable.shown(text) == shown


@given(ANY_TEXT)
def test_no_control_character_is_left(text: str) -> None:
    for made in (printable.shown(text), printable.json({text: [text]})):
        made.encode()  # no lone surrogate
        for each in made.replace("\n", "").replace("\t", ""):
            assert unicodedata.category(each) not in ("Cc", "Cs", "Zl", "Zp")
            assert unicodedata.bidirectional(each) not in (
                "LRE",
                "RLE",
                "PDF",
                "LRO",
                "RLO",
                "LRI",
                "RLI",
                "FSI",
                "PDI",
            )
    assert "\n" not in printable.json({text: text})


@given(ANY_TEXT)
def test_json_means_the_same(text: str) -> None:
    kept = re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)  # no JSON can hold those
    assert msgspec.json.decode(printable.json({"a": [text, {text: 1}]})) == {"a": [kept, {kept: 1}]}


def test_json_is_what_it_was_where_nothing_is_to_be_escaped() -> None:
    for value in ({"a": "ü 日本 \\u"}, [1, 2.5, None, True], "x"):
        assert printable.json(value) == msgspec.json.encode(value).decode()


class Unwilling:
    def __str__(self) -> str:
        raise ValueError("no text")


def test_lines_of_logs_are_shown_by_any_handler(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    log = printable.logger("worldline.test")
    assert printable.logger("worldline.test").filters == log.filters
    assert len(log.filters) == 1
    log.warning("%s ended: %s", "a\x1b]0;", ValueError("\x9b31m\u202e"))
    log.warning("plain %s", "ß\n")
    try:
        raise ValueError("\x1b[31m")
    except ValueError:
        log.exception("it failed")
    assert [each.getMessage() for each in caplog.records] == [
        "a\\x1b]0; ended: \\x9b31m\\u202e",
        "plain ß\n",
        "it failed",
    ]
    assert "\x1b" not in caplog.text
    assert "ValueError: \\x1b[31m" in caplog.text
    caplog.clear()
    with pytest.raises(ValueError, match="no text"):  # pytest's handler raises; others write it to stderr
        log.warning("%s", Unwilling())
