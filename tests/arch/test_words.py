"""Plain technical English in everything a person reads: docstrings, comments, messages and documents (STYLE, rule 21).

A component is named. Each banned expression comes with what to write instead.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.trees import ROOT, SOURCE

# "The dead" as a noun: nothing that it could describe follows.
_NOUN_ENDS = (
    r"\W*$|[.,;:)!?'\"`]"
    r"|\s+(?:of|and|or|who|whose|that|have|has|had|are|is|were|was|did|do|may|can|will|in|on|left)\b"
)
BANNED = {
    r"who(m)?(so)?ever": "name the component or the person: the caller, the holder, the subscriber, the operator",
    r"nobody": "name what is absent: no worker, no process, no subscriber",
    r"(some|any|every)body": "name the component or the person: a worker, a client, an operator, every subscriber",
    r"those who": "name them: the callers, the clients, the workers",
    r"to be had": "is missing, is available",
    rf"the (?:dead|living)(?={_NOUN_ENDS})": "dead workers, live workers: name what is dead",
    r"life(?: |-)signs?": "heartbeat",
}
QUOTES_THEM = ("STYLE.md",)  # the rule itself, with its examples

_GAP = r"(?:\s|\\n|#|>|\*|\"|')+"
_PATTERN = re.compile("|".join(rf"(?:\b{each.replace(' ', _GAP)}\b)" for each in BANNED), re.IGNORECASE)


def documents() -> list[Path]:
    """What is read besides the sources: documents, and the examples with their code."""
    examples = ROOT / "examples"
    return sorted(
        [
            *ROOT.glob("*.md"),
            *(ROOT / "docs").rglob("*.md"),
            *(ROOT / "bench").glob("*.md"),
            *examples.rglob("*.md"),
            *examples.rglob("*.py"),
        ]
    )


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """What a person can read in a file, with its line: all of a document; strings and comments of a source."""
    if path.suffix == ".md":
        yield 1, path.read_text()
        return
    yield from python_texts(path.read_text())


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Strings and comments. Comments on consecutive lines are one text."""
    block: list[str] = []
    begun = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield begun, "\n".join(block)
                block = []
            begun, last = (token.start[0] if not block else begun), token.start[0]
            block.append(token.string)
        elif tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE", "TSTRING_MIDDLE"):
            yield token.start[0], token.string
    if block:
        yield begun, "\n".join(block)


def found_in(texts: Iterator[tuple[int, str]]) -> list[str]:
    found = []
    for line, text in texts:
        for each in _PATTERN.finditer(text):
            found.append(f"{line + text.count(chr(10), 0, each.start())}: {' '.join(each.group().split())!r}")
    return found


def instead(found: str) -> str:
    return next(
        better for banned, better in BANNED.items() if re.search(banned.replace(" ", _GAP), found, re.IGNORECASE)
    )


FILES = {
    name: path
    for path in [*sorted(SOURCE.rglob("*.py")), *documents()]
    if (name := path.relative_to(ROOT).as_posix()) not in QUOTES_THEM
}


@pytest.mark.parametrize("name", list(FILES))
def test_words_are_plain(name: str) -> None:
    found = found_in(texts_of(FILES[name]))
    assert not found, "\n".join(f"{name}:{each}; write: {instead(each)}" for each in found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""Whoever listens."""', 1),
        ("x = 1  # nobody\ny = 2  # Somebody", 2),
        ("# what is not to be\n# had here", 1),
        ('raise Error(f"{name}: nobody hosts it")', 1),
        ('"""Releases what the dead have left."""', 1),
        ('"""The dead letters of the living worker."""', 0),
        ('"""The worker\'s life\n    sign."""', 1),
        ("nobody = whoever", 0),
        ("'no body', 'a dead worker', 'the dead worker is gone'", 0),
    ],
)
def test_each_word_is_found(text: str, count: int) -> None:
    assert len(found_in(python_texts(text))) == count
