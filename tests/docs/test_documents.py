"""`docs/documents.md` has every section of the documents, and names files and tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.docs import pages

PAGE = pages.ROOT / "docs" / "documents.md"
SECTIONS = {
    "The hosted runtime plane": [
        "Goal",
        "Dependencies",
        "Non-goals",
        *(f"Roles {each}" for each in range(1, 5)),
        *(f"Scope {each}" for each in range(1, 10)),
        *(f"Protocol {each}" for each in "ABCDEF"),
        "Failures: fencing",
        "Failures: crash windows",
        "Failures: idempotency",
        "Tests: deterministic",
        "Tests: chaos",
        "Performance",
        "Rollout",
        "Definition of done",
        "Out of scope",
    ],
    "The infrastructure": [
        "1",
        "2 A",
        "2 B",
        "2 C",
        "3",
        "3.1",
        "3.2",
        "4",
        "4.1",
        "4.2",
        "4.3",
        "4.4",
        "5",
        "5.1",
        "5.2",
        "5.3",
        "5.4",
        "6",
        "6.1",
        "6.2",
        "6.3",
        "7.1",
        "7.2",
        "7.3",
        "8.1",
        "8.2",
        "8.3",
        "9.1",
        "9.2",
        "9.3",
        "9.4",
        "9.5",
        "10",
        "11",
        "Compaction",
        "Compaction: defaults",
        "Forking: primitive",
        "Forking: by height",
        "Forking: seeds",
        *(f"Forking {each}" for each in range(1, 6)),
        "Named refs",
    ],
    "The contract between Core and Host": [
        *(str(each) for each in range(1, 10)),
        *(f"10.{each}" for each in range(1, 11)),
        "11",
        "12",
        "13",
        "14",
        "Appendix A",
        "Appendix B",
        "Appendix C",
    ],
    "Runtime semantics": [f"3.{each}" for each in range(1, 13)],
    "The lifecycle of a runner": [
        "Boot sequence",
        "Layout of the store",
        "Version guard",
        "Step dispatch",
        "Inbox loop",
        "Due timers",
        "Reliability counters",
        "Log sink",
        "Policy",
        "Replay hook",
        "Worker shell",
    ],
}
_ROW = re.compile(r"^\| (?P<section>[^|]+) \| [^|]+ \| (?P<where>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
_NAME = re.compile(r"`([^`]+)`")


def rows(title: str) -> list[tuple[str, list[str], list[str]]]:
    """Section, files, tests of each row of a document's table."""
    text = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    found = [(row["section"], _NAME.findall(row["where"]), _NAME.findall(row["tests"])) for row in _ROW.finditer(text)]
    return [row for row in found if row[0] not in ("section", "---")]


@pytest.mark.parametrize("title", SECTIONS)
def test_every_section_is_there(title: str) -> None:
    assert [section for section, _, _ in rows(title)] == SECTIONS[title]


@pytest.mark.parametrize("title", SECTIONS)
def test_what_it_names_is_there(title: str) -> None:
    missing = []
    for section, where, tests in rows(title):
        assert where, f"{section}: where is it kept?"
        assert tests, f"{section}: which test holds it?"
        missing += [f"{section}: {each}" for each in where if not _place(each)]
        missing += [f"{section}: {each}" for each in tests if not _test(each)]
    assert missing == []


def test_no_other_document_is_there() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE) == list(SECTIONS)


def test_what_is_missing_is_found() -> None:
    assert _place("kernel/step.py")
    assert not _place("kernel/steps.py")
    assert _test("tests/docs/test_documents.py::test_what_is_missing_is_found")
    assert not _test("tests/docs/test_documents.py::test_what_is_missing")
    assert not _test("src/worldline/kernel/step.py")


def _place(name: str) -> bool:
    apart = name.startswith(("docs/", "bench/", "deploy/", "tests/", "tools/"))
    in_package = not apart or name.startswith("bench/")  # the package has a folder of that name, too
    return (apart and (pages.ROOT / name).exists()) or (
        in_package and (pages.ROOT / "src" / "worldline" / name).exists()
    )


def _test(name: str) -> bool:
    file, _, test = name.partition("::")
    path = pages.ROOT / file
    if not path.is_file() or not path.name.startswith("test_"):
        return False
    return not test or re.search(rf"^(async )?def {test}\(", path.read_text(), re.MULTILINE) is not None
