"""The guide is true: every block is type-checked and executed, every test in it passes, every link leads somewhere."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest

from tests.docs import pages
from tests.typing import checking

PAGES = sorted(page for page in pages.GUIDE.glob("*.md") if pages.source(page).strip())
ALL = [*sorted(pages.GUIDE.glob("*.md")), *sorted((pages.ROOT / "docs").glob("*.md")), pages.ROOT / "README.md"]


def module_name(page: Path) -> str:
    return f"guide_{page.stem.replace('-', '_')}"


def test_the_guide_type_checks(tmp_path: Path) -> None:
    assert len(PAGES) >= 9
    sources = {module_name(page): pages.source(page) for page in PAGES}
    said = checking.check({**sources, "readme": pages.source(pages.ROOT / "README.md")}, tmp_path)
    assert [each for each in said if each.what == "error"] == []


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_page_is_true(page: Path, tmp_path: Path) -> None:
    """Import the page as a file of its own, then run the tests that it shows. `folder` is a fresh one."""
    name = module_name(page)
    file = tmp_path / f"{name}.py"
    file.write_text(pages.source(page))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        shown = [each for key, each in vars(module).items() if key.startswith("test_")]
        for number, test in enumerate(shown):
            folder = tmp_path / f"folder-{number}"
            folder.mkdir()
            test(**({"folder": str(folder)} if "folder" in inspect.signature(test).parameters else {}))
    finally:
        del sys.modules[name]
    assert shown or page.stem == "operations"


@pytest.mark.parametrize("page", ALL, ids=[str(page.relative_to(pages.ROOT)) for page in ALL])
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in pages.links(page) if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = [link for link in pages.links(pages.GUIDE / "README.md") if "/" not in link]
    assert sorted(index) == sorted(page.name for page in pages.GUIDE.glob("*.md") if page.stem != "README")


def test_lines_keep_their_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\n```\nnot this\n```\n\n```python\ny = x\n```\n")
    assert pages.source(page) == "\n\n\nx = 1\n\n\n\n\n\n\n\ny = x\n"
    page.write_text("```python\nx = 1\n")
    with pytest.raises(AssertionError, match="has no end"):
        pages.source(page)
