"""`make versions` finds the interpreters that are there, each minor version once, and nothing that looks like one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import versions
from tests.versions import Found, Version


def fake(folder: Path, name: str, says: str = "cpython 3 12 1", code: int = 0) -> Path:
    """A file that answers as an interpreter would."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\necho {says}\nexit {code}\n")
    file.chmod(0o755)
    return file


def test_folders_are_those_of_the_path_and_the_known_places_each_once(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "tools" / "3.12.1" / "bin"
    second.mkdir(parents=True)
    path = os.pathsep.join([str(first), str(second), "", str(first)])
    assert list(versions.folders(path, [f"{tmp_path}/tools/*/bin", f"{tmp_path}/nothing"])) == [first, second]


def test_candidates_are_named_like_interpreters_that_are_new_enough(tmp_path: Path) -> None:
    wanted = [fake(tmp_path, name) for name in ("python3.11", "python3.12")]
    for name in ("python3", "python3.10", "python3.12-config", "python3.x", "python2.7"):
        fake(tmp_path, name)
    (tmp_path / "python3.13").write_text("not executable")
    assert versions.candidates([tmp_path, tmp_path / "missing"]) == wanted


@pytest.mark.parametrize(
    ("says", "code", "expected"),
    [
        ("cpython 3 12 1", 0, (3, 12, 1)),
        ("cpython 3 10 13", 0, None),
        ("pypy 3 11 0", 0, None),
        ("cpython 3 12 1", 127, None),  # a version manager's stand-in for what is not selected
    ],
)
def test_each_is_asked_what_it_is(tmp_path: Path, says: str, code: int, expected: Version | None) -> None:
    assert versions.ask(fake(tmp_path, "python3.12", says, code)) == expected


def test_what_does_not_start_is_left_out(tmp_path: Path) -> None:
    assert versions.ask(tmp_path / "python3.12") is None


def test_this_interpreter_is_one() -> None:
    assert versions.ask(Path(sys.executable)) == sys.version_info[:3]


def test_the_newest_of_each_minor_version_is_taken() -> None:
    answers: dict[str, Version | None] = {
        "a": (3, 13, 0),
        "b": (3, 12, 1),
        "c": (3, 12, 7),
        "d": (3, 12, 3),
        "e": None,
    }
    found = versions.newest([Path(each) for each in answers], lambda path: answers[path.name])
    assert list(found.items()) == [
        ((3, 12), Found((3, 12, 7), Path("c"))),
        ((3, 13), Found((3, 13, 0), Path("a"))),
    ]


def test_supported_versions_are_those_of_the_metadata() -> None:
    text = (versions.ROOT / "pyproject.toml").read_text()
    assert versions.supported(text)[0] == versions.OLDEST
    assert f'requires-python = ">={versions.OLDEST[0]}.{versions.OLDEST[1]}"' in text


def test_a_command_that_fails_says_its_last_line() -> None:
    with pytest.raises(versions.Failed, match=r"^two$"):
        versions.call("sh", "-c", "echo one; echo two; exit 3")
    with pytest.raises(versions.Failed, match="ended with 3"):
        versions.call("sh", "-c", "exit 3")
    with pytest.raises(versions.Failed, match="nothing-like-it"):
        versions.call("nothing-like-it")
