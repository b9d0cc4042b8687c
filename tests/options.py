"""How much the tests do: the options of `options.toml`, as this run has them.

`make test` takes the column `default`, and `make soak` the column `soak`, by `WORLDLINE_DOSE=soak`. Single options are
set for one run, on top of either, by `WORLDLINE_TESTS="kill_rounds=2000 seeds=50"`; of two values for one option the
last counts. What is unknown is refused: a run with less than its caller asked for would pass and prove less.

Both are environment variables, so that processes that tests start inherit them.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

FILE = Path(__file__).with_name("options.toml")
DOSE = "WORLDLINE_DOSE"
SINGLE = "WORLDLINE_TESTS"
DOSES = ("default", "soak")

Value = int | float | bool
T = TypeVar("T", int, float, bool)


class Refused(Exception):
    """An option, a dose or a value that is unknown. The text says what to write instead."""


class Option(NamedTuple):
    default: Value
    soak: Value
    what: str


def table(text: str) -> dict[str, Option]:
    """The options of a file, each with both doses."""
    return {name: Option(**fields) for name, fields in tomllib.loads(text).items()}


def values(options: Mapping[str, Option], environment: Mapping[str, str]) -> dict[str, Value]:
    """What a run with these variables has. Raises `Refused`."""
    for name in options:
        if (alone := f"WORLDLINE_{name.upper()}") in environment:
            raise Refused(f'{alone} is not a variable; use {SINGLE}="{name}={environment[alone]}"')
    dose = environment.get(DOSE) or "default"
    if dose not in DOSES:
        raise Refused(f"{DOSE} is {dose!r}{_did_you_mean(dose, DOSES)}")
    run: dict[str, Value] = {name: getattr(option, dose) for name, option in options.items()}
    for word in environment.get(SINGLE, "").split():
        name, is_set, text = word.partition("=")
        if name not in options:
            raise Refused(f"{SINGLE}: {_unknown(name, options)}")
        if not is_set:
            raise Refused(f"{SINGLE}: {name} has no value; write {name}={str(options[name].soak).lower()}")
        run[name] = _parsed(name, text, type(options[name].default))
    return run


def number(name: str) -> int:
    return _value(name, int)


def seconds(name: str) -> float:
    return _value(name, float)


def flag(name: str) -> bool:
    return _value(name, bool)


def _parsed(name: str, text: str, kind: type[Value]) -> Value:
    if kind is bool and text in ("true", "false"):
        return text == "true"
    try:
        # Not `bool(text)`, by which every text is true; and a number below 0 would be a test of nothing.
        if kind is not bool and (found := kind(text)) >= 0:
            return found
    except ValueError:
        pass
    meant = {bool: "true or false", int: "a whole number", float: "a number of seconds"}[kind]
    raise Refused(f"{SINGLE}: {name} is {text!r}; write {meant}")


def _unknown(name: str, options: Iterable[str]) -> str:
    return f"tests/options.toml has no {name!r}{_did_you_mean(name, options)}"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known))
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _value(name: str, kind: type[T]) -> T:
    if name not in _RUN:
        raise Refused(_unknown(name, _RUN))
    found = _RUN[name]
    assert type(found) is kind, f"{name} is of type {type(found).__name__}, not {kind.__name__}"
    return found


_RUN = values(table(FILE.read_text()), os.environ)
