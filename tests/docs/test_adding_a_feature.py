"""The page about adding a feature names every file that knows quotas, and no other."""

from __future__ import annotations

import re

from tests.docs import pages

SOURCE = pages.ROOT / "src" / "worldline"
PAGE = pages.ROOT / "docs" / "adding-a-feature.md"
FOLDER = "features/quotas/"
NUMBERS = {"five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9}


def in_tables(text: str) -> set[str]:
    """The files in the first column of tables."""
    rows = re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w/]+\.pyi?)`", row)}


def test_every_file_that_knows_quotas_is_on_the_page() -> None:
    knows = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py*")
        if path.suffix in (".py", ".pyi") and "quota" in path.read_text().lower()
    }
    inside = {path.relative_to(SOURCE).as_posix() for path in (SOURCE / FOLDER).glob("*.py")} - {f"{FOLDER}__init__.py"}
    listed = in_tables(PAGE.read_text())
    assert {each for each in listed if each.startswith(FOLDER)} == inside
    assert listed - inside == {each for each in knows if not each.startswith(FOLDER)}


def test_the_page_counts_them_rightly() -> None:
    text = PAGE.read_text()
    places = in_tables(text[text.index("## 2.") : text.index("## 3.")])
    others = in_tables(text[text.index("## 3.") :])
    said = re.search(r"names (\d+) files outside of the folder\. (\w+) of them .*?other (\w+)\.", text, re.DOTALL)
    assert said is not None
    counts = (int(said[1]), NUMBERS[said[2].lower()], NUMBERS[said[3]])
    assert counts == (len(places | others), len(places), len(others))
