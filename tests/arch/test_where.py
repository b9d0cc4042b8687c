"""`docs/where.md` and the other project documents name files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.arch.trees import ROOT, SOURCE

QUESTIONS_MIN = 30
WHERE = ROOT / "docs" / "where.md"
DOCUMENTS = [
    "README.md",
    "ARCHITECTURE.md",
    "STYLE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/adding-a-feature.md",
    "docs/code-map.md",
    "docs/glossary.md",
    "docs/invariants.md",
    "docs/walks.md",
    "docs/where.md",
]

_ROW = re.compile(r"^\| (?P<question>.*\?) \| (?P<answer>.*) \|$", re.MULTILINE)
_PATH = re.compile(r"`((?:\w+/)+[\w-]+\.(?:py|md|json|toml)|(?:\w+/)+)`")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def is_there(name: str) -> bool:
    return any((base / name).exists() for base in (ROOT, SOURCE, ROOT / "tests"))


def rows() -> list[tuple[str, str]]:
    return [(found["question"], found["answer"]) for found in _ROW.finditer(WHERE.read_text())]


def test_there_are_thirty_questions_each_asked_once() -> None:
    questions = [question for question, _ in rows()]
    assert len(questions) >= QUESTIONS_MIN
    assert len(set(questions)) == len(questions)


@pytest.mark.parametrize(("question", "answer"), rows(), ids=[question for question, _ in rows()])
def test_every_answer_names_files_that_are_there(question: str, answer: str) -> None:
    named = _PATH.findall(answer)
    assert named, f"{question} is answered by no file"
    assert [name for name in named if not is_there(name)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_and_links_of_a_document_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    assert [name for name in _PATH.findall(text) if not is_there(name)] == []
    folder = (ROOT / document).parent
    assert [link for link in _LINK.findall(text) if not Path(folder / link).exists()] == []


def test_a_word_is_explained_once() -> None:
    words = re.findall(r"^\| \*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(words) > 60
    assert sorted({word for word in words if words.count(word) > 1}) == []
