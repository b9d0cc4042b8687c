"""The API reference is complete and up to date: it is made from docstrings, and every public name has one."""

from __future__ import annotations

import importlib.util
import inspect
from types import ModuleType
from typing import Any

import pytest

from tests.docs import pages


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_reference", pages.ROOT / "tools" / "api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL: Any = _tool()
MADE: dict[str, str] = TOOL.pages()


def test_every_public_name_and_method_has_a_docstring() -> None:
    assert TOOL.undocumented() == []


# What a sentence begins with that says what something is, not what it does.
NOUNS = (
    "A",
    "All",
    "An",
    "Another",
    "Each",
    "Every",
    "How",
    "If",
    "In",
    "It",
    "Its",
    "No",
    "None",
    "Nothing",
    "On",
    "One",
    "So",
    "Some",
    "That",
    "The",
    "These",
    "This",
    "Those",
    "To",
    "What",
    "When",
    "Where",
    "Whether",
    "Which",
    "Who",
    "Why",
    "With",
    "Within",
)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    first = {where: doc.split()[0].rstrip(".,:;") for where, doc in TOOL.functions()}
    assert len(first) > 200
    assert {where: word for where, word in first.items() if word in NOUNS or not word[0].isupper()} == {}


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_what_docstrings_say(name: str) -> None:
    file = TOOL.FOLDER / name
    assert file.exists(), "type: make reference"
    assert file.read_text() == MADE[name], "type: make reference"


def test_no_page_is_left_over() -> None:
    assert sorted(each.name for each in TOOL.FOLDER.iterdir()) == sorted(MADE)


@pytest.mark.parametrize("module", TOOL.MODULES)
def test_every_public_name_and_method_stands_in_it(module: str) -> None:
    """By what the package exports, not by what the tool lists."""
    text = MADE[f"{module.rpartition('.')[2]}.md"]
    public = TOOL.MODULES[module]
    entries = dict(part.partition("\n")[::2] for part in text.split("\n### ")[1:])
    shown = {title.partition(" ")[0]: body for title, body in entries.items()}
    assert sorted(shown) == sorted(public.__all__)
    for name in public.__all__:
        value = getattr(public, name)
        if not inspect.isclass(value):
            continue
        for each in dir(value):
            found = inspect.getattr_static(value, each)
            if not each.startswith("_") and getattr(found, "__module__", "").startswith("worldline."):
                assert f"`{each}" in shown[name] or f" {each}(" in shown[name], f"{name}.{each}"


def test_attributes_stand_in_it() -> None:
    entries = dict(part.partition("\n")[::2] for part in MADE["worldline.md"].split("\n### ")[1:])
    assert "Attributes: `retry_after`." in entries["Overloaded (Error)"]
    assert "Attributes: `id`, `workflow`." in entries["Run"]
    assert "`code`" in entries["EffectFailed (Failed)"]


def test_what_has_no_docstring_is_found() -> None:
    class Bare:
        """It has one."""

        def method(self) -> None: ...

    Bare.__module__ = "worldline.bare"
    assert list(TOOL._undocumented("Bare", Bare)) == ["Bare.method"]
    assert list(TOOL._undocumented("value", 7)) == ["value"]
