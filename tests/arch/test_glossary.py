"""The glossary explains each word once, and names of classes and files are words of it, with that meaning.

What is held: a public class with the name of a word is in the glossary's table of classes, at one meaning and in its
file, so none can come without being looked at. A word that the glossary replaces is in no name. Whether a text uses a
word as the glossary means it, no test can tell.
"""

from __future__ import annotations

import ast
import re

import pytest

from tests.arch.trees import ROOT, name_of, sources, tree_of

TEXT = (ROOT / "docs" / "glossary.md").read_text()
WORDS_MIN = 130
CLASSES_MIN = 75

_TERM = re.compile(r"\*\*([^*]+)\*\*")
_CLASS = re.compile(r"^\| (?P<word>[^|*`]+) \| `(?P<name>\w+)` \| `(?P<file>[\w/]+\.py)` \|$", re.MULTILINE)
_NOT_USED = re.compile(r"^\| (?P<word>[a-z]+) \| [^|]+ \| (?P<but>[^|]*) \|$", re.MULTILINE)
_IN_TEXT = re.compile(r"`([A-Z][a-z]+[A-Z]\w+)`")


def terms() -> list[str]:
    """The words that are explained, as they stand in their rows."""
    return [term for row in re.findall(r"^\| (\*\*[^|]+) \|", TEXT, re.MULTILINE) for term in _TERM.findall(row)]


def class_name(term: str) -> str:
    """The name that a class of this meaning has, without what tells it from another meaning of the word."""
    return "".join(word.capitalize() for word in re.sub(r" \(.*", "", term).split())


def classes() -> dict[str, str]:
    """The public classes, each with its file."""
    return {
        node.name: name_of(path)
        for path in sources()
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def words_of(name: str) -> list[str]:
    """The words of a name, `of_this_kind` or `OfThisKind`."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


TERMS = terms()
CLASSES = classes()
LISTED = [(row["word"], row["name"], row["file"]) for row in _CLASS.finditer(TEXT)]
NOT_USED = {
    row["word"]: row["but"].strip().replace("`", "").split(", ")
    for row in _NOT_USED.finditer(TEXT.split("| --- | --- | --- |")[-1])
}


def test_there_are_words() -> None:
    assert len(TERMS) >= WORDS_MIN
    assert len(LISTED) >= CLASSES_MIN
    assert len(NOT_USED) > 5


def test_a_class_with_the_name_of_a_word_is_listed_at_one_meaning() -> None:
    named = {name for term in TERMS if (name := class_name(term)) in CLASSES}
    assert sorted(name for _, name, _ in LISTED) == sorted(named), "the table of classes in docs/glossary.md"


@pytest.mark.parametrize(("word", "name", "file"), LISTED, ids=[name for _, name, _ in LISTED])
def test_a_listed_class_is_what_its_word_means(word: str, name: str, file: str) -> None:
    assert word in TERMS
    assert class_name(word) == name
    assert CLASSES[name] == file


def test_classes_that_are_named_are_there() -> None:
    assert [name for name in _IN_TEXT.findall(TEXT) if name not in CLASSES] == []


@pytest.mark.parametrize("word", NOT_USED)
def test_a_word_that_another_replaces_is_in_no_name(word: str) -> None:
    names = [*CLASSES, *(path.stem for path in sources())]
    found = sorted({name for name in names if {word, f"{word}s"} & {*words_of(name)}})
    assert found == sorted(each for each in NOT_USED[word] if each)


@pytest.mark.parametrize(
    ("name", "words"),
    [("HTTPAdapters", ["http", "adapters"]), ("step_batch", ["step", "batch"]), ("Lease", ["lease"])],
)
def test_names_are_read_as_words(name: str, words: list[str]) -> None:
    assert words_of(name) == words
