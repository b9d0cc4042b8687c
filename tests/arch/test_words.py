"""Plain technical English in everything a person reads: docstrings, comments, messages and documents (STYLE, rule 21).

A component is named. Each banned expression comes with what to write instead.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
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
    r"whom": "name the component or the person: the caller, the receiver, the owner",
    r"who waits?": "name what waits: the caller, the run, the world",
    r"hears? of|heard of": "learns of, gets, is told",
    r"settl(?:e|es|ed|ing)(?: \w+){0,4} without": "resolved without running its code (its answer settles open work)",
    r"rid of": "removed, erased",
    r"in vain": "without success",
    r"hardly": "almost no, seldom, unlikely",
    r"at hand": "current, loaded, available: say which",
    r"lived through": "its history",
    r"without a trace": "without writing anything",
    r"as if nothing": "say what does not change",
}
# One word for one thing, in what users read. Messages, and comments of code, still have some of these.
BANNED_IN_MANUALS = {
    r"(?:go(?:es)?|going|went|gone) on": "resumes (after a stop), continues (without one)",
    r"(?:is|are|was|were|been|be) (?:not )?taken(?! over)": "processed (an input), accepted (a file), in use (an id)",
    r"anew": "again",
    r"lets? go": "releases",
    r"(?:become|becomes|became) of": "what happens to it",
    r"mend(?:s|ed)?": "fix, repair",
    r"for good": "permanently",
    r"(?:hold|holds|held) up": "blocks, delays",
    r"the outside": "external systems",
    r"(?:stop(?:s|ped)?|end(?:s|ed)?|released|close[sd]?) in order": "cleanly: it shuts down",
}
QUOTES_THEM = ("STYLE.md",)  # the rule itself, with its examples

_GAP = r"(?:\s|\\n|#|>|\*|\"|')+"


def pattern(banned: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(rf"(?:\b(?:{each.replace(' ', _GAP)})\b)" for each in banned), re.IGNORECASE)


_PATTERN = pattern(BANNED)
_PATTERN_OF_MANUALS = pattern(BANNED_IN_MANUALS)


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


def manuals() -> list[Path]:
    """What users read: no decisions (those are of their time), no maps of the code, no quoted messages."""
    apart = ("docs/code-map.md", "docs/guide/mistakes.md")
    return [
        path
        for path in documents()
        if path.suffix == ".md"
        and path.name != "ARCHITECTURE.md"
        and path.parent.name not in ("adr", "reference")
        and path.relative_to(ROOT).as_posix() not in (*apart, *QUOTES_THEM)
    ]


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """A document without its code blocks, which show what the program prints."""
    lines: list[str] = []
    is_code = False
    for line in path.read_text().splitlines():
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        lines.append("" if is_code or is_fence else line)
    yield 1, "\n".join(lines)


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


def found_in(texts: Iterator[tuple[int, str]], banned: re.Pattern[str] = _PATTERN) -> list[str]:
    found = []
    for line, text in texts:
        for each in banned.finditer(text):
            found.append(f"{line + text.count(chr(10), 0, each.start())}: {' '.join(each.group().split())!r}")
    return found


def instead(found: str) -> str:
    every = {**BANNED, **BANNED_IN_MANUALS}
    return next(better for banned, better in every.items() if pattern([banned]).search(found))


FILES = {
    name: path
    for path in [*sorted(SOURCE.rglob("*.py")), *documents()]
    if (name := path.relative_to(ROOT).as_posix()) not in QUOTES_THEM
}


@pytest.mark.parametrize("name", list(FILES))
def test_words_are_plain(name: str) -> None:
    found = found_in(texts_of(FILES[name]))
    assert not found, "\n".join(f"{name}:{each}; write: {instead(each)}" for each in found)


@pytest.mark.parametrize("path", manuals(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_manuals_have_one_word_for_one_thing(path: Path) -> None:
    found = found_in(prose_of(path), _PATTERN_OF_MANUALS)
    assert not found, "\n".join(f"{path.name}:{each}; write: {instead(each)}" for each in found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The run\ngoes on.", 1),
        ("```\nthe history goes on\n```\nAn input is not taken.", 1),
        ("It let go of its worlds, and was stopped in order.", 2),
        ("Entries are in order; a claim is taken over, a snapshot is taken.", 1),
        ("An outside address is processed and continues.", 0),
    ],
)
def test_each_word_of_manuals_is_found(tmp_path: Path, text: str, count: int) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    found = found_in(prose_of(page), _PATTERN_OF_MANUALS)
    assert len(found) == count
    assert all(instead(each) for each in found)


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
        ('"""An input is settled, after some deaths, without its code."""', 0),
        ('"""The input was settled at last without its code; for whom?"""', 2),
        ("# tells all who wait, and the world hears\n# of it", 2),
        ("nobody = whoever", 0),
        ("'no body', 'a dead worker', 'the dead worker is gone'", 0),
    ],
)
def test_each_word_is_found(text: str, count: int) -> None:
    assert len(found_in(python_texts(text))) == count
