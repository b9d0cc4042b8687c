"""A rough reader of PromQL: enough to say which metrics, labels and functions an expression names, and to refuse what
cannot be right. It is no parser of the whole language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from worldline.host.feature_list import FEATURES
from worldline.observe import metric_list

METRICS = metric_list.table(FEATURES)
FUNCTIONS = (
    "absent",
    "changes",
    "clamp_min",
    "delta",
    "histogram_quantile",
    "increase",
    "rate",
    "time",
)
OVER_RANGES = ("changes", "delta", "increase", "rate")
AGGREGATIONS = ("avg", "count", "max", "min", "sum", "topk")
GROUPINGS = ("by", "without", "on", "ignoring", "group_left", "group_right")
OPERATORS = ("and", "or", "unless", "offset", "bool")
TARGET_LABELS = ("instance", "job")  # Prometheus' own
PARTS = ("_bucket", "_sum", "_count")
_CLOSING = {"(": ")", "[": "]", "{": "}"}

_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<string>"[^"\\]*")|(?P<duration>\d+(?:ms|[smhdwy])\b)|(?P<number>\d+(?:\.\d+)?(?:e\d+)?\b)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<operator>=~|!~|!=|==|>=|<=|[-+*/%^<>=,])|(?P<bracket>[()\[\]{}])""",
    re.VERBOSE,
)


class BadExpression(AssertionError):
    pass


@dataclass
class Found:
    """What an expression names. `kept`: the labels that its aggregations keep; None if none of them says which."""

    metrics: list[str] = field(default_factory=list)
    kept: list[str] | None = None


def read(text: str) -> Found:
    tokens = _tokens(text)
    _check_brackets(tokens)
    found = Found()
    for index, (kind, word) in enumerate(tokens):
        if kind != "name" or _inside(tokens, index) not in ("", "("):
            continue
        after = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        if word in GROUPINGS:
            kept = _names(tokens, index + 1)
            found.kept = kept if found.kept is None else found.kept + kept
        elif word in AGGREGATIONS or word in FUNCTIONS:
            _need(after == "(" or (word in AGGREGATIONS and after in GROUPINGS), f"{word} is not called")
            if word in OVER_RANGES:
                _need("]" in _argument(tokens, index + 1), f"{word} takes a range")
        elif word.startswith("worldline_"):
            found.metrics.append(_metric(word, tokens, index))
        elif word not in OPERATORS and not _is_label(tokens, index):
            raise BadExpression(f"{word} is no function, operator or metric of ours")
    _need(bool(found.metrics), "no metric")
    _check_grouping(found)
    return found


def labels_of(metric: str) -> tuple[str, ...]:
    name, part = split(metric)
    le = ("le",) if part == "_bucket" else ()
    return (*METRICS.metrics[name].labels, *le, *TARGET_LABELS)


def split(metric: str) -> tuple[str, str]:
    """A histogram's name and the part of it that is named; any other metric's name alone."""
    for part in PARTS:
        name = metric.removesuffix(part)
        if metric.endswith(part) and name in METRICS.metrics and METRICS.metrics[name].kind == "histogram":
            return name, part
    return metric, ""


def _metric(word: str, tokens: list[tuple[str, str]], index: int) -> str:
    name, part = split(word)
    _need(name in METRICS.metrics, f"there is no metric {word}")
    metric = METRICS.metrics[name]
    _need(bool(part) == (metric.kind == "histogram"), f"{word}: of a histogram, name _bucket, _sum or _count")
    for label, operator, values in _matchers(tokens, index + 1):
        _need(label in labels_of(word), f"{word} has no label {label}")
        known = METRICS.values.get((name, label))
        for value in values.split("|") if operator in ("=~", "!~") else [values]:
            free = value.startswith("$") or known is None
            _need(free or value in (known or ()), f"{word}: {label} is never {value!r}")
    return word


def _matchers(tokens: list[tuple[str, str]], start: int) -> list[tuple[str, str, str]]:
    """What stands in the braces from here on, if there are any."""
    if start >= len(tokens) or tokens[start][1] != "{":
        return []
    found = []
    index = start + 1
    while tokens[index][1] != "}":
        (_, label), (_, operator), (kind, value) = tokens[index : index + 3]
        _need(kind == "string" and operator in ("=", "!=", "=~", "!~"), f"{label} is compared with {value}")
        found.append((label, operator, value[1:-1]))
        index += 3
        if tokens[index][1] == ",":
            index += 1
    return found


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadExpression(f"cannot read {text[at : at + 20]!r}")
        at = match.end()
        if match.lastgroup != "space":
            found.append((match.lastgroup or "", match.group()))
    return found


def _check_brackets(tokens: list[tuple[str, str]]) -> None:
    open_ones: list[str] = []
    for kind, word in tokens:
        if kind == "bracket" and word in _CLOSING:
            open_ones.append(_CLOSING[word])
        elif kind == "bracket":
            _need(bool(open_ones) and open_ones.pop() == word, f"{word} closes nothing")
    _need(not open_ones, f"{open_ones} are missing")


def _inside(tokens: list[tuple[str, str]], index: int) -> str:
    """The bracket that is open where a token stands."""
    depth: list[str] = []
    for kind, word in tokens[:index]:
        if kind == "bracket":
            depth.append(word) if word in _CLOSING else depth.pop()
    return depth[-1] if depth else ""


def _is_label(tokens: list[tuple[str, str]], index: int) -> bool:
    """Whether a name stands in the list of a grouping."""
    while index and tokens[index][1] != "(":
        index -= 1
    return index > 0 and tokens[index - 1][1] in GROUPINGS


def _names(tokens: list[tuple[str, str]], start: int) -> list[str]:
    _need(tokens[start][1] == "(", "a grouping has a list of labels")
    end = next(index for index in range(start, len(tokens)) if tokens[index][1] == ")")
    return [word for kind, word in tokens[start:end] if kind == "name"]


def _argument(tokens: list[tuple[str, str]], start: int) -> list[str]:
    """The words between a bracket and its end."""
    depth = 0
    words: list[str] = []
    for kind, word in tokens[start:]:
        depth += kind == "bracket" and word == "("
        depth -= kind == "bracket" and word == ")"
        words.append(word)
        if not depth:
            break
    return words


def _check_grouping(found: Found) -> None:
    known = [label for metric in found.metrics for label in labels_of(metric)]
    for label in found.kept or []:
        _need(label in known, f"no metric here has the label {label}")


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise BadExpression(why)
