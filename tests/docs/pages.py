"""The code blocks of a page of the documentation, as one Python file with the page's line numbers."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"

_FENCE = re.compile(r"```(?P<language>\w*)\s*")


def source(page: Path) -> str:
    """Its Python blocks, every line where it stands on the page; all other lines are empty."""
    lines: list[str] = []
    language: str | None = None
    for line in page.read_text().splitlines():
        fence = _FENCE.fullmatch(line)
        if fence is None:
            lines.append(line if language == "python" else "")
            continue
        language = fence["language"] if language is None else None
        lines.append("")
    assert language is None, f"{page.name}: a code block has no end"
    return "\n".join(lines).rstrip() + "\n"


def links(page: Path) -> list[str]:
    """Where it links to, within the repository."""
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    return [link for link in found if "://" not in link]
