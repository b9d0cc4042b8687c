"""Where user code raised is told in a debug log, for people at a terminal, and is no part of what is journaled."""

from __future__ import annotations

import json
import logging

import pytest

from worldline.kernel import user_errors


def raised(text: str) -> BaseException:
    try:
        json.loads(text)
    except ValueError as error:
        return error
    raise AssertionError(text)


def test_the_innermost_user_code_is_named(caplog: pytest.LogCaptureFixture) -> None:
    error = raised("{")
    line = raised.__code__.co_firstlineno + 2
    assert user_errors.place_of(error) == f"test_failure_places.py:{line}", "not the library's own line"
    with caplog.at_level(logging.DEBUG, "worldline.failures"):
        text = user_errors.text_of(error)
    [record] = caplog.records
    assert (record.__dict__["place"], record.__dict__["text"]) == (f"test_failure_places.py:{line}", text)
    assert "test_failure_places" not in text


def test_nothing_is_logged_above_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "worldline.failures"):
        user_errors.text_of(raised("{"))
    assert caplog.records == []


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    assert user_errors.place_of(ValueError("x")) == ""
