"""The tests on every CPython from 3.11 on that this machine has or can install: `make versions`.

Interpreters are looked for on PATH and where version managers keep them; each is asked what it is. A version that the
package metadata names and that is not found is installed with uv, if uv and its downloads can be reached; otherwise
that is said. Every version gets an environment of its own in `.versions/`. One line is printed for each.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".versions"
OLDEST = (3, 11)
ASK_SECONDS = 20
INSTALL_SECONDS = 300
# Where version managers and distributions keep interpreters, besides PATH.
PLACES = (
    "/usr/bin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
    "/opt/python*/bin",
    "/opt/python/*/bin",
    "~/.local/bin",
    "~/.pyenv/versions/*/bin",
    "~/.asdf/installs/python/*/bin",
    "~/.local/share/mise/installs/python/*/bin",
    "~/.local/share/uv/python/*/bin",
    "~/.rye/py/*/bin",
)
_NAME = re.compile(r"python3\.(\d+)")
_ASK = "import sys, venv, ensurepip; print(sys.implementation.name, *sys.version_info[:3])"

Version = tuple[int, int, int]


class Failed(Exception):
    """Something that a version needs could not be set up. The text is for the line of that version."""


class Found(NamedTuple):
    version: Version
    path: Path

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


# --- Finding -----------------------------------------------------------------------------------------------------


def folders(path: str, places: Sequence[str] = PLACES) -> Iterator[Path]:
    """The folders of a PATH, then the places where interpreters are kept; each once."""
    listed = [Path(each) for each in path.split(os.pathsep) if each]
    for place in places:
        whole = Path(place).expanduser()
        listed += sorted(Path(whole.anchor).glob(str(whole.relative_to(whole.anchor))))
    yield from dict.fromkeys(listed)


def candidates(within: Sequence[Path]) -> list[Path]:
    """Every file that is named like an interpreter that is new enough."""
    found = []
    for folder in within:
        for file in sorted(folder.glob("python3.*")):
            named = _NAME.fullmatch(file.name)
            if named and (3, int(named[1])) >= OLDEST and os.access(file, os.X_OK):
                found.append(file)
    return found


def ask(interpreter: Path) -> Version | None:
    """The version of a CPython that can make environments. None: it is something else, or does not start."""
    try:
        done = subprocess.run(
            [interpreter, "-I", "-c", _ASK], capture_output=True, text=True, check=True, timeout=ASK_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    name, *numbers = done.stdout.split()
    if name != "cpython" or tuple(map(int, numbers[:2])) < OLDEST:
        return None
    major, minor, micro = map(int, numbers)
    return major, minor, micro


def newest(interpreters: Sequence[Path], asked: Callable[[Path], Version | None] = ask) -> dict[tuple[int, int], Found]:
    """One interpreter for each minor version, the newest of those that answer, in order."""
    found: dict[tuple[int, int], Found] = {}
    for path in interpreters:
        version = asked(path)
        if version is not None and (version[:2] not in found or found[version[:2]].version < version):
            found[version[:2]] = Found(version, path)
    return dict(sorted(found.items()))


def supported(pyproject: str) -> list[tuple[int, int]]:
    """The versions that the package metadata names."""
    classifiers = tomllib.loads(pyproject)["project"]["classifiers"]
    numbers = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", each) for each in classifiers]
    return [(3, int(each[1])) for each in numbers if each]


# --- Setting up and running --------------------------------------------------------------------------------------


def call(*command: str | Path, seconds: float | None = None) -> str:
    """Run a command. `Failed` with the last line it wrote, if it fails."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(str(error)) from error
    if done.returncode:
        raise Failed(last_line(done.stdout) or f"{command[0]} ended with {done.returncode}")
    return done.stdout


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def install(minor: tuple[int, int]) -> Found:
    """Install a version with uv, which is installed first if need be."""
    name = f"{minor[0]}.{minor[1]}"
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        call(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv")
    call(uv, "python", "install", "--quiet", name, seconds=INSTALL_SECONDS)
    path = Path(call(uv, "python", "find", name).strip())
    version = ask(path)
    if version is None:
        raise Failed(f"{path} does not start")
    return Found(version, path)


def environment(found: Found) -> Path:
    """An environment with what the tests need, made anew if the requirements have changed. Returns its interpreter."""
    folder = ENVIRONMENTS / found.name
    python, ready, required = folder / "bin" / "python", folder / ".ready", ROOT / "requirements" / "dev.txt"
    if not ready.exists() or ready.stat().st_mtime < required.stat().st_mtime:
        call(found.path, "-m", "venv", "--clear", folder)
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        call(*pip, "--require-hashes", "-r", required)
        call(*pip, "--no-deps", "--no-build-isolation", "-e", ".")
        ready.touch()
    return python


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make versions", description=__doc__)
    parser.add_argument("tests", nargs="*", default=["tests"], help="what pytest is given")
    parser.add_argument("--list", action="store_true", help="say what is found, and run nothing")
    parser.add_argument("--strict", action="store_true", help="fail if a version that the metadata names is missing")
    given = parser.parse_args(arguments)
    found = newest(candidates(list(folders(os.environ.get("PATH", "")))))
    wrong = 0
    for minor in sorted({*supported((ROOT / "pyproject.toml").read_text()), *found}):
        name = f"{minor[0]}.{minor[1]}"
        try:
            version = found.get(minor) or install(minor)
        except Failed as error:  # what is not here is said, and is no failure of the tests, unless it is asked for
            wrong += given.strict
            print(f"{name:8} not found, and cannot be installed: {error}", flush=True)
            continue
        if given.list:
            print(f"{version.name:8} {version.path}", flush=True)
            continue
        try:
            said = last_line(call(environment(version), "-m", "pytest", "-q", *given.tests))
        except Failed as error:
            wrong += 1
            said = f"FAILED: {error}"
        print(f"{version.name:8} {said}", flush=True)
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
