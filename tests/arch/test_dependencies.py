"""What is depended on at run time: up to the versions that are tested, and the tool that pins them is pinned itself."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
RUNTIME = [Requirement(each) for each in [*PROJECT["dependencies"], *itertools.chain(*EXTRAS.values())]]
DATA = ("tzdata",)  # no code: an old one is wrong, and a new one breaks nothing
PINNED = re.compile(r"^([a-z0-9.-]+)==([^ ;\\]+)", re.MULTILINE)


def pinned(file: str) -> dict[str, Version]:
    return {name: Version(version) for name, version in PINNED.findall((ROOT / "requirements" / file).read_text())}


@pytest.mark.parametrize("needed", RUNTIME, ids=lambda each: each.name)
def test_the_tested_version_is_the_last_that_is_allowed_to_be_used(needed: Requirement) -> None:
    tested = pinned("dev.txt")[needed.name]
    assert tested in needed.specifier
    assert any(each.operator == ">=" for each in needed.specifier)
    if needed.name in DATA:
        return
    [least_refused] = [Version(each.version) for each in needed.specifier if each.operator == "<"]
    following = Version(f"{tested.major + 1}") if tested.major else Version(f"0.{tested.minor + 1}")
    assert least_refused == following, "raise the bound when requirements/dev.txt has a newer version, and not before"


def test_what_pins_is_pinned() -> None:
    text = (ROOT / "requirements" / "lock.txt").read_text()
    assert list(pinned("lock.txt")) == ["uv"]
    assert text.count("--hash=sha256:") > 1
    assert "--require-hashes -r requirements/lock.txt" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("file", ["dev.txt", "lock.txt"])
def test_no_package_host_stands_in_a_file(file: str) -> None:
    text = (ROOT / "requirements" / file).read_text()
    assert "://" not in text
    assert "index" not in text.replace("indexes", "")
    blocks = re.split(r"\n(?=[a-z])", text.strip())
    assert all("--hash=sha256:" in block for block in blocks), "each is pinned with its hashes"
