"""The tables of `docs/settings.md` have every setting once, with the default and the range that it has in code."""

from __future__ import annotations

import re
from typing import Any

from tests.arch.trees import ROOT
from worldline.model import setting_names

TEXT = (ROOT / "docs" / "settings.md").read_text()
_ROW = re.compile(
    r"^\| `(?P<name>[\w.]+)` \| (?P<default>[^|]+) \| (?P<values>[^|]+) \| (?P<meaning>[^|]+) \|$", re.MULTILINE
)


def shown(value: Any) -> str:
    if type(value) is int:
        return f"{value:,}"
    return setting_names.text_of(value) or "none"


def test_the_tables_are_the_settings() -> None:
    rows = [(row["name"], row["default"], row["values"]) for row in _ROW.finditer(TEXT)]
    wanted = [
        (each.name, shown(each.default), re.sub(r"\d+", lambda found: f"{int(found[0]):,}", each.values))
        for each in setting_names.ALL.values()
    ]
    assert rows == wanted, "docs/settings.md: one row for each setting, in the order of model/settings.py"


def test_each_says_what_it_means_in_words_of_its_own() -> None:
    meanings = [row["meaning"] for row in _ROW.finditer(TEXT)]
    assert len(set(meanings)) == len(meanings) == len(setting_names.ALL)


def test_the_examples_are_settings() -> None:
    for name in re.findall(r"--set ([a-z_.]+)=", TEXT):
        assert name in setting_names.ALL
    for variable in re.findall(r"(WORLDLINE_SET_\w+)=", TEXT):
        assert variable in setting_names.VARIABLES
