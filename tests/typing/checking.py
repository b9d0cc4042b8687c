"""Type-checking source that is not a file of this repository: samples, and the code blocks of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SECONDS = 300
# What users are told to switch on besides `--strict`: it finds calls that were made and never awaited.
OPTIONS = ["--strict", "--python-version", "3.11", "--enable-error-code", "unused-awaitable", "--no-error-summary"]

_LINE = re.compile(r"(?P<file>.+?):(?P<line>\d+): (?P<what>error|note): (?P<text>.*)")


class Said(NamedTuple):
    """One line of mypy's."""

    file: str
    line: int
    what: str
    text: str


def check(sources: Mapping[str, str], folder: Path) -> list[Said]:
    """What mypy says of these modules, each checked by itself under its name.

    `folder` is a test's own. What mypy has found out about the package is kept beside the folders of all tests of this
    run, for the next check.
    """
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    config = folder / "mypy.ini"
    config.write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\nfollow_imports = silent\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(_cache(folder)),
        *OPTIONS,
    ]
    done = subprocess.run(
        [*command, *(f"{name}.py" for name in sources)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert not done.stderr, done.stderr
    found = [_LINE.fullmatch(line) for line in done.stdout.splitlines()]
    return [Said(each["file"], int(each["line"]), each["what"], each["text"]) for each in found if each is not None]


def _cache(folder: Path) -> Path:
    """In the folder of the whole run, which has one for each worker, or is itself the only one."""
    workers = os.environ.get("PYTEST_XDIST_WORKER") is not None
    return folder.parents[1 if workers else 0] / "mypy-cache"
