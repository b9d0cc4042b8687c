"""The hierarchy: its picture in the docstring is the hierarchy there is, and codes are one each."""

from __future__ import annotations

import inspect
import re

from worldline.base import errors


def _classes() -> dict[str, type[Exception]]:
    members = inspect.getmembers(errors, inspect.isclass)
    return {
        name: found for name, found in members if issubclass(found, Exception) and found.__module__ == errors.__name__
    }


def test_the_picture_shows_every_error_where_it_belongs() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str | None] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        matched = re.match(r"^    ((?:│   |├── |└── |    )*)([A-Z]\w+)  ", line)
        if matched:
            depth = len(matched[1]) // 4
            above = [*above[:depth], matched[2]]
            drawn[matched[2]] = above[-2] if depth else None
    actual = {
        name: found.__base__.__name__ if found is not errors.Error and found.__base__ else None
        for name, found in _classes().items()
        if issubclass(found, errors.Error)
    }
    assert drawn == actual


def test_codes_are_stable_and_unique() -> None:
    for name, found in _classes().items():
        if issubclass(found, errors.Error):
            assert found.code == (re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())


def test_messages_say_what_happened_in_one_line() -> None:
    made = [
        errors.TooLarge("key", size=481, limit=480),
        errors.IdReused("order-7"),
        errors.DigestMismatch("blob", expected=b"\x01", actual=b"\x02"),
    ]
    assert [str(error) for error in made] == [
        "key is 481 bytes; the limit is 480",
        "id 'order-7' was used before with another payload; use a new id",
        "blob: expected sha256 01, found 02",
    ]
    large, reused, mismatch = made
    assert isinstance(large, errors.TooLarge)
    assert (large.what, large.size, large.limit) == ("key", 481, 480)
    assert isinstance(reused, errors.IdReused)
    assert reused.client_id == "order-7"
    assert isinstance(mismatch, errors.DigestMismatch)
    assert (mismatch.expected, mismatch.actual) == (b"\x01", b"\x02")


def test_losing_durability_is_a_warning() -> None:
    assert issubclass(errors.DurabilityWarning, UserWarning)
    assert not issubclass(errors.DurabilityWarning, errors.Error)
