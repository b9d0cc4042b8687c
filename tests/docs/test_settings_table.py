"""The tables of `docs/settings.md` are made from code: every setting once, with default, range and meaning."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType
from typing import Any

from tests.arch.trees import ROOT
from worldline.model import setting_names

TEXT = (ROOT / "docs" / "settings.md").read_text()


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("settings_tables", ROOT / "tools" / "settings_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL: Any = _tool()


def rows(page: str) -> dict[str, re.Match[str]]:
    return {row["name"]: row for row in re.finditer(TOOL._ROW, page)}


def test_the_tables_are_what_code_says() -> None:
    assert TOOL.made(TEXT) == TEXT, "type: make reference"
    assert list(rows(TEXT)) == list(setting_names.ALL), "a section without a table? see tools/settings_tables.py"


def test_each_says_what_it_means_in_words_of_its_own() -> None:
    meanings = [row["meaning"] for row in rows(TEXT).values()]
    assert TOOL.UNKNOWN not in meanings
    assert len(set(meanings)) == len(meanings)


def test_what_is_old_is_made_anew() -> None:
    """A default that changed, a setting that is gone, one that is new; what it means stays."""
    one, other = [each for each in setting_names.ALL if each.startswith("worker.")][:2]
    said = rows(TEXT)
    page = TEXT.replace(said[one][0], f"| `{one}` | 7 | 1 to 2 | kept |\n| `worker.gone` | 1 | 1 | old |\n")
    found = rows(TOOL.made(page.replace(said[other][0], "")))
    assert found[one][0] == said[one][0].replace(said[one]["meaning"], "kept")
    assert "worker.gone" not in found
    assert found[other]["meaning"] == TOOL.UNKNOWN
    assert list(found) == list(setting_names.ALL)


def test_the_examples_are_settings() -> None:
    for name in re.findall(r"--set ([a-z_.]+)=", TEXT):
        assert name in setting_names.ALL
    for variable in re.findall(r"(WORLDLINE_SET_\w+)=", TEXT):
        assert variable in setting_names.VARIABLES
