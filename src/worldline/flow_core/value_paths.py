r"""Paths into values: dotted text, `\.` for a dot inside a segment; reading, and writing by copying the way.

An array is indexed by a segment of digits, and stays an array when it is written through: the reference made an object
of it. `length` is read of arrays alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from worldline.base import limits
from worldline.flow_core import faults, js_values

Segments = tuple[str, ...]


# Paths are those of documents: the same ones are split again and again.
@lru_cache(maxsize=4_096)
def split(path: str) -> Segments:
    r"""Return the segments of a path. `\.` is a dot, `\\` a backslash, before anything else a backslash stays."""
    if "\\" not in path:
        return tuple(path.split("."))
    segments, current, at = [], "", 0
    while at < len(path):
        pair = path[at : at + 2]
        if pair in ("\\.", "\\\\"):
            current += pair[1]
            at += 2
            continue
        if path[at] == ".":
            segments.append(current)
            current = ""
        else:
            current += path[at]
        at += 1
    return (*segments, current)


def join(segments: Sequence[str]) -> str:
    """A path of segments; empty ones are left out."""
    return ".".join([escaped(each) for each in segments if each])


def escaped(segment: str) -> str:
    """A segment as it stands in a path."""
    return segment.replace("\\", "\\\\").replace(".", "\\.")


def index(segment: str, length: int) -> int:
    """Return the index that a segment names, or -1 if it names none of an array so long."""
    # No sign, no leading zero, and too short to be inexact as a double.
    if segment.isascii() and segment.isdigit() and (segment == "0" or segment[0] != "0") and len(segment) < 16:
        at = int(segment)
        return at if at < length else -1
    return -1


def walk(value: Any, segments: Segments) -> Any:
    """What is at the end of the segments, MISSING if the way ends before."""
    for segment in segments:
        kind = type(value)
        if kind is dict:
            value = value.get(segment, js_values.MISSING)
        elif kind is list:
            at = index(segment, len(value))
            if at < 0:
                return len(value) if segment == "length" else js_values.MISSING
            value = value[at]
        else:
            return js_values.MISSING
    return value


def put(value: Any, segments: Segments, new: Any) -> Any:
    """A copy with something set. What is on the way and no container becomes an object."""
    if not segments:
        return new
    # One call for each segment: the bound keeps that off Python's own limit of recursion.
    if len(segments) > limits.FLOW_DEPTH_MAX:
        raise faults.Fault(faults.LIMIT_EXCEEDED, f"a path with more than {limits.FLOW_DEPTH_MAX} segments")
    first, rest = segments[0], segments[1:]
    if type(value) is list:
        at = _place(value, first)
        return [*value[:at], put(value[at] if at < len(value) else None, rest, new), *value[at + 1 :]]
    copied = dict(value) if type(value) is dict else {}
    copied[_named(first)] = put(copied.get(first), rest, new) if rest else new
    return copied


def remove(value: Any, segments: Segments) -> Any:
    """A copy without something. What is not there is left so."""
    first, rest = segments[0], segments[1:]
    if type(value) is list:
        # Without the element, the others would move to other paths.
        if not rest:
            raise faults.Fault(faults.TYPE_MISMATCH, "unset of an array element; set the array without it")
        at = _place(value, first)
        return [*value[:at], remove(value[at], rest), *value[at + 1 :]] if at < len(value) else value
    if type(value) is not dict or first not in value:
        return value
    if rest:
        return {**value, first: remove(value[first], rest)}
    return {name: each for name, each in value.items() if name != first}


def _place(array: list[Any], segment: str) -> int:
    """Return the index that is written: one that is there, or the one behind the last."""
    at = index(segment, len(array) + 1)
    if at < 0:
        raise faults.Fault(faults.PATH_NOT_FOUND, f"an array of {len(array)} has no place {segment!r}")
    return at


def _named(segment: str) -> str:
    if segment == js_values.FORBIDDEN_KEY:
        raise faults.Fault(faults.INVALID_VALUE, f"no path may name {segment}")
    return segment
