"""The keys of a world's rows.

::

    MR, MW             how many runs, and how many rows of work, the world has ever had
    MP                 the program that it runs under, since which step, and what its draws are made from
    MB                 of a fork: what it may do, and what it has inherited
    MQ                 what the names of the world's questions are made with
    MD                 of a world with flow domains: their environment, what is blocked, what else its program has
    C reducer, key     a cell: of a reducer, or of a flow domain
    D name             a flow domain, with the hash of its document  E hash  a document
    R run | R          what a run was started with           R run | S    its status, unless it is running
    O run | O n        an operation of a run, with its work  O run | A n  its outcome: the work is not open any more
    O run | F n        a feeding of the run's code           O run | P n  an operation's effect that is parked
    O run | I n        a cancellation that is not delivered yet
    B run | B n        an event that no wait has taken yet   B run | L n  an operation of another run that waits for it
    W n                open work that belongs to no operation: it outlives the run, or was asked for by a handler
    H n                work that is held back                X n          given up, and not closed yet
    T n                a run that continues in the next step G n          an ended run that may be forgotten
    Z id               a schedule                            Y n          an answer that a fork was given beforehand

What stands before the bar is a group: its rows are dropped together. A text stands behind its length, so no group's
key begins with that of another; numbers sort by their value. Keys never hold steps: an ignored receipt shifts steps,
and must not shift the state.
"""

from __future__ import annotations

import ast
import re

import msgspec

from worldline.base import errors
from worldline.codec import tuples

RUN_COUNT = b"MR"
WORK_COUNT = b"MW"
PROGRAM = b"MP"
BRANCH = b"MB"
DOMAINS = b"MD"
QUESTIONS = b"MQ"
CELL = b"C"
RUN = b"R"
PROGRESS = b"O"
ARRIVED = b"B"
WORK = b"W"
HELD = b"H"
CLOSING = b"X"
LATER = b"T"
FORGETTABLE = b"G"
SCRIPT = b"Y"
SCHEDULE = b"Z"
DOMAIN = b"D"
DOCUMENT = b"E"

START = b"R"  # the rows of a run, behind its group
STATUS = b"S"
OP = b"O"
OUTCOME = b"A"
PARKED = b"P"
FEEDING = b"F"
INTERRUPT = b"I"
BUFFERED = b"B"
FOLLOWER = b"L"

_LENGTH_BYTES = 2

number = tuples.pack_number


def text(part: str) -> bytes:
    data = part.encode()
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def cell(reducer: str, key: str) -> bytes:
    return CELL + text(reducer) + text(key)


def group_of(key: bytes) -> bytes:
    """The group that a row is dropped with. Empty: with none."""
    if key[:1] in _OF_RUNS:
        return key[: 1 + _LENGTH_BYTES + int.from_bytes(key[1 : 1 + _LENGTH_BYTES], "big")]
    return b""


def is_group(key: bytes) -> bool:
    """Whether this is what the keys of one group begin with, and no more or less of them."""
    end = 1 + _LENGTH_BYTES
    return key[:1] in _OF_RUNS and len(key) == end + int.from_bytes(key[1:end], "big")


def run_of(key: bytes) -> str:
    """The run that a row belongs to, or that a group of rows does. Empty: it belongs to none."""
    return _text(key[1:])[0] if key[:1] in _OF_RUNS else ""


class Parsed(msgspec.Struct, frozen=True):
    """A key taken apart: its first letter (`MR`, `MW`, `MP` whole), the letter behind its group, what it names."""

    kind: bytes
    part: bytes = b""
    texts: list[str] = []
    number: int = 0


def parse(key: bytes) -> Parsed:
    """`DecodeError` for what is no key of a row."""
    kind = key[:1]
    if key in _ALONE:
        return Parsed(key)
    if kind == CELL:
        reducer, rest = _text(key[1:])
        cell_key, rest = _text(rest)
        return _whole(Parsed(kind, texts=[reducer, cell_key]), rest)
    if kind in _NAMED:
        name, rest = _text(key[1:])
        return _whole(Parsed(kind, texts=[name]), rest)
    if kind in _OF_RUNS:
        run, rest = _text(key[1:])
        part = rest[:1]
        if part not in _OF_RUNS[kind]:
            raise errors.DecodeError(f"no row of a run has a key like {key[:40]!r}")
        return Parsed(kind, part, [run], 0 if kind == RUN else _number(rest[1:]))
    if kind in _NUMBERED:
        return Parsed(kind, number=_number(key[1:]))
    raise errors.DecodeError(f"no row has a key like {key[:40]!r}")


def describe(key: bytes) -> str:
    """The row, or the group of rows, under this key, for people. Operations count from 1, as everywhere people see
    them; what is no key is shown in hex.
    """
    try:
        parsed = parse(key)
    except errors.DecodeError:
        return _group_name(key) or f"the row {key.hex()}"
    if parsed.kind == CELL:
        return f"cell {cell_name(*parsed.texts)}"
    return _NAMES[parsed.kind + parsed.part].format(*parsed.texts, number=parsed.number, count=parsed.number + 1)


def named(name: str) -> list[bytes]:
    """The key that a row has by the name that people use: as `describe` has it, "Reducer['key']" or "Reducer" for a
    cell, or a key in hex. The quotes may be missing. For "run ID" these are two, of which the first that is there is
    meant: how the run stands, and with what it was started.
    """
    try:
        key = bytes.fromhex(name)
        parse(key)
    # No hex, or no key in hex: then it is a name, and the patterns below decide.
    except (ValueError, errors.DecodeError):
        pass
    else:
        return [key]
    # A text stands behind its length in two bytes: a longer one has no key.
    if len(name.encode()) >= 1 << 8 * _LENGTH_BYTES:
        raise errors.BadInput("no row has so long a name")
    run = _RUN_NAME.fullmatch(name)
    if run is not None:
        group = RUN + text(_unquoted(run[1]))
        return [group + STATUS, group + START]
    for kind, pattern in _PATTERNS.items():
        found = pattern.fullmatch(name)
        if found is not None:
            return [_key(kind, found.groupdict())]
    found = _CELL_NAME.fullmatch(name)
    if found is None:
        raise errors.BadInput(
            f'no row is called {name!r}: name a cell ("Reducer[\'key\']", or "Reducer" if it has no key), "run ID", '
            '"schedule ID", or the key of a row in hex'
        )
    return [cell(found[1], _unquoted(found[2] or ""))]


def _key(kind: bytes, parts: dict[str, str]) -> bytes:
    """The key of a kind, by what its name tells."""
    numbered = b""
    if "number" in parts or "count" in parts:
        value = int(parts["number"]) if "number" in parts else int(parts["count"]) - 1
        if not 0 <= value < _NUMBERS_END:
            raise errors.BadInput(f"no row has the number {parts.get('number') or parts.get('count')}")
        numbered = number(value)
    if kind in _ALONE:
        return kind
    named = text(_unquoted(parts["text"])) if "text" in parts else b""
    return kind[:1] + named + kind[1:] + numbered


def _unquoted(part: str) -> str:
    if part[:1] not in ("'", '"'):
        return part
    try:
        # Messages show keys by `repr`, so a name that was copied from one is read back the same way.
        found = ast.literal_eval(part)
    except (ValueError, SyntaxError):
        found = None
    if not isinstance(found, str):
        raise errors.BadInput(f"{part} is no text in quotes")
    return found


def cell_name(reducer: str, key: str) -> str:
    """A cell for people."""
    return reducer + (f"[{key!r}]" if key else "")


def _group_name(key: bytes) -> str:
    """Nothing if it is not the key of a group."""
    name = _GROUP_NAMES.get(key[:1])
    if name is None:
        return ""
    try:
        run, rest = _text(key[1:])
    except errors.DecodeError:
        return ""
    return "" if rest else name.format(run)


def _text(data: bytes) -> tuple[str, bytes]:
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    if len(data) < max(end, _LENGTH_BYTES):
        raise errors.DecodeError("the key of a row is cut off")
    try:
        return data[_LENGTH_BYTES:end].decode(), data[end:]
    except UnicodeDecodeError as error:
        raise errors.DecodeError(f"the key of a row: {error}") from error


def _number(data: bytes) -> int:
    match tuples.unpack(data):
        case (int(value),) if value >= 0:
            return value
        case _:
            raise errors.DecodeError("the key of a row ends in no number")


def _whole(parsed: Parsed, rest: bytes) -> Parsed:
    if rest:
        raise errors.DecodeError("the key of a row has bytes behind its end")
    return parsed


_ALONE = (BRANCH, DOMAINS, QUESTIONS, RUN_COUNT, WORK_COUNT, PROGRAM)
_NAMED = (SCHEDULE, DOMAIN, DOCUMENT)
_OF_RUNS = {RUN: (START, STATUS), PROGRESS: (OP, OUTCOME, PARKED, FEEDING, INTERRUPT), ARRIVED: (BUFFERED, FOLLOWER)}
_NUMBERED = (WORK, HELD, CLOSING, LATER, FORGETTABLE, SCRIPT)

_NAMES = {
    RUN_COUNT: "the number of runs",
    WORK_COUNT: "the number of effects, timers and messages",
    PROGRAM: "the program of the world",
    BRANCH: "what the fork may do and has inherited",
    DOMAINS: "what all flow domains have in common",
    QUESTIONS: "what names the world's questions",
    RUN + START: "run {!r}",
    RUN + STATUS: "the status of run {!r}",
    PROGRESS + OP: "operation {count} of run {!r}",
    PROGRESS + OUTCOME: "the outcome of operation {count} of run {!r}",
    PROGRESS + PARKED: "the parking of operation {count} of run {!r}",
    PROGRESS + FEEDING: "feeding {count} of run {!r}",
    PROGRESS + INTERRUPT: "cancellation {number} of run {!r}",
    ARRIVED + BUFFERED: "waiting event {number} of run {!r}",
    ARRIVED + FOLLOWER: "follower {number} of run {!r}",
    WORK: "work {number}",
    HELD: "held-back request {number}",
    CLOSING: "given-up request {number}",
    LATER: "continuing run {number}",
    FORGETTABLE: "ended run {number}",
    SCRIPT: "scripted answer {number}",
    SCHEDULE: "schedule {!r}",
    DOMAIN: "flow domain {!r}",
    DOCUMENT: "flow document {!r}",
}
_GROUP_NAMES = {
    RUN: "all rows of run {!r}",
    PROGRESS: "all operations of run {!r}",
    ARRIVED: "all that waits for run {!r}",
}


def _pattern(name: str) -> re.Pattern[str]:
    """What a name looks like, whatever it names."""
    said = re.escape(name).replace(re.escape("{!r}"), "(?P<text>.+)")
    for part in ("number", "count"):
        said = said.replace(re.escape(f"{{{part}}}"), f"(?P<{part}>[0-9]{{1,18}})")
    return re.compile(said, re.DOTALL)


_RUN_NAME = re.compile(r"run (.+)", re.DOTALL)
_CELL_NAME = re.compile(r"(?:cell )?([^\[\]\s]+)(?:\[(.*)\])?", re.DOTALL)
_PATTERNS = {kind: _pattern(name) for kind, name in _NAMES.items()}
_NUMBERS_END = 2**53  # of those that people may say
