"""Finding programs in files, again after they were edited, and saying what is wrong with them in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from worldline.base import errors
from worldline.effects.egress import Egress
from worldline.terminal import program_files

APP = """
import worldline as wl
import {neighbour}
app = wl.Program("one")
other = wl.Program("two")

@app.workflow
async def flow() -> str:
    return "{text}"

if __name__ == "__main__":
    raise SystemExit("not when it is imported")
"""


def write(folder: Path, text: str = "a", *, value: int = 1) -> Path:
    """Modules have names of their own in each test: they stay in `sys.modules`."""
    neighbour = f"near_{folder.name}"
    (folder / f"{neighbour}.py").write_text(f"VALUE = {value}\n")
    file = folder / f"app_{folder.name}.py"
    file.write_text(APP.format(text=text, neighbour=neighbour))
    return file


def test_programs_are_found(tmp_path: Path) -> None:
    file = write(tmp_path)
    assert [program.name for program in program_files.load(str(file)).programs] == ["one", "two"]
    assert [program.name for program in program_files.load(f"{file}:other").programs] == ["two"]
    assert program_files.load(str(file)).files == [file, tmp_path / f"near_{tmp_path.name}.py"]


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("", None),
        ("egress = wl.ops.Egress(allow=['api.example.com'])", ("api.example.com",)),
        ("def egress(): ...", None),
        ("import json as egress", None),
    ],
)
def test_what_its_effects_may_reach(tmp_path: Path, line: str, allowed: tuple[str, ...] | None) -> None:
    file = write(tmp_path)
    file.write_text(f"{file.read_text()}\n{line}\n")
    found = program_files.load(str(file)).egress
    assert (None if found is None else found.allow) == allowed


def test_one_process_has_one_policy(tmp_path: Path) -> None:
    files: list[str] = []
    for number, line in enumerate(("", "egress = wl.ops.Egress(allow=['a'])", "egress = wl.ops.Egress(allow=['b'])")):
        (folder := tmp_path / f"{tmp_path.name}_{number}").mkdir()
        file = write(folder)
        file.write_text(f"{file.read_text()}\n{line}\n")
        files.append(f"{file}:app")
    program_files.load_all(files)
    assert program_files.egress_of(files[:1]) is None
    assert program_files.egress_of(files[:2]) == program_files.egress_of(files[1::-1]) == Egress(allow=["a"])
    with pytest.raises(errors.BadInput, match="another egress"):
        program_files.egress_of(files)


def test_each_program_once(tmp_path: Path) -> None:
    file = write(tmp_path)
    assert [program.name for program in program_files.load_all([f"{file}:app", f"{file}:other"])] == ["one", "two"]


def test_two_edits_within_a_second_are_seen(tmp_path: Path) -> None:
    """Same size, same second: what Python keeps compiled would not tell them apart."""
    hashes = []
    for text in "abc":
        file = write(tmp_path, text)
        [program, _] = program_files.load(str(file)).programs
        hashes.append(program.hash)
    assert len(dict.fromkeys(hashes)) == 3
    program_files.load(str(write(tmp_path, value=7)))
    assert sys.modules[f"near_{tmp_path.name}"].VALUE == 7


def test_a_name_that_is_taken_by_a_module(tmp_path: Path) -> None:
    file = tmp_path / "json.py"
    file.write_text("import worldline as wl\napp = wl.Program('x')\n")
    before = sys.modules["json"]
    assert [program.name for program in program_files.load(str(file)).programs] == ["x"]
    assert sys.modules["json"] is before
    sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "declares no program"),
        ("x = 1 +", "line 1: invalid syntax"),
        ("\nimport nowhere_at_all", "line 2: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def f():\n    raise KeyError('x')\nf()\n", "line 2: KeyError: 'x'"),
        (
            "raise SystemExit(3)",
            'runs itself when it is imported (line 1): put that under `if __name__ == "__main__":`',
        ),
        ("import worldline as wl\na = wl.Program('x')\n@a.workflow\ndef f(): ...", "must be an async def"),
        (
            "import worldline as wl\na = wl.Program('x')\negress = ['*']",
            "egress must be a worldline.ops.Egress(...), not list",
        ),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / f"bad_{tmp_path.name}.py"
    file.write_text(text)
    with pytest.raises(errors.BadInput) as caught:
        program_files.load(str(file))
    assert message in str(caught.value)
    assert file.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    file = write(tmp_path)
    with pytest.raises(errors.BadInput, match="there is no file"):
        program_files.load(str(tmp_path / "absent.py"))
    with pytest.raises(errors.BadInput, match="has no program called 'nope'; it has app, other"):
        program_files.load(f"{file}:nope")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("app.py", ("app.py", "")),
        ("app.py:app", ("app.py", "app")),
        ("a/b.py:x1", ("a/b.py", "x1")),
        ("c:/d/app.py", ("c:/d/app.py", "")),
        (":app", (":app", "")),
    ],
)
def test_targets_are_taken_apart(target: str, expected: tuple[str, str]) -> None:
    path, name = program_files.split(target)
    assert (str(path), name) == expected
