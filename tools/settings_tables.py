"""Write the tables of docs/settings.md anew: names, defaults and ranges from code, meanings as they stand there.

`make reference` does so. A setting without a meaning gets `?`, which `tests/docs/test_settings_table.py` refuses. A new
section needs a sentence and an empty table by hand, with one row of any of its settings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from worldline.model import setting_names

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
UNKNOWN = "?"
_ROW = r"\| `(?P<name>[\w.]+)` \| (?P<default>[^|]+) \| (?P<values>[^|]+) \| (?P<meaning>[^|]+) \|\n"
_ROWS = re.compile(rf"(?:^{re.sub('[?]P<[a-z]+>', '?:', _ROW)})+", re.MULTILINE)


def made(page: str) -> str:
    """The page with all its tables made anew."""
    meanings = {row["name"]: row["meaning"] for row in re.finditer(_ROW, page)}

    def table(found: re.Match[str]) -> str:
        first = re.match(_ROW, found[0])
        assert first is not None
        section = first["name"].rpartition(".")[0]
        chosen = [each for each in setting_names.ALL.values() if each.section == section]
        return "".join(_row(each, meanings.get(each.name, UNKNOWN)) for each in chosen)

    return _ROWS.sub(table, page)


def _row(each: setting_names.SettingName, meaning: str) -> str:
    values = re.sub(r"\d+", lambda found: f"{int(found[0]):,}", each.values)
    return f"| `{each.name}` | {_shown(each.default)} | {values} | {meaning} |\n"


def _shown(value: Any) -> str:
    return f"{value:,}" if type(value) is int else setting_names.text_of(value) or "none"


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
