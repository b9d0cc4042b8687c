"""Break every rule of the Host contract once, and see that the test fails which docs/flow-contract.md names for it.

    python tools/mutate_rules.py                 all rules
    python tools/mutate_rules.py --only MAIL-4   the mutations of one rule; may be given again
    python tools/mutate_rules.py --json          one object on stdout instead of lines

The mutations are in tools/mutations.toml. Each is applied by itself to a copy of the project in a temporary folder, and
only its test is run there: nothing in the work tree is written, whenever this is interrupted. Tests of live servers are
left out. A mutation is

    caught           its test fails
    survived         its test passes, or does not end: the test holds nothing, and must be mended
    does not apply   its text is not there exactly once, or the page does not name its test for the rule

The exit code is 0 if all are caught, 1 if one is not, 2 if the tests fail without any mutation.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path("tools", "mutations.toml")
PAGE = Path("docs", "flow-contract.md")
COPIED = ("src", "tests", "docs", "pyproject.toml")
TEST_SECONDS = 15  # an intent that a mutation leaves waiting fails its test after this time
RUN_SECONDS = 300
STORED = "not lmdb and not postgres"

CAUGHT, SURVIVED, INAPPLICABLE = "caught", "survived", "does not apply"

_ROW = re.compile(r"^\| (?P<id>[A-Z0-9][\w.-]*) \|.*\| (?P<tests>[^|]*) \|$", re.MULTILINE)
_TEST = re.compile(r"`(test_\w+)`")
_FUNCTION = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
_FAILED = re.compile(r"^\d+ failed", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """Some rules, broken in one place."""

    rules: tuple[str, ...]
    test: str
    file: str
    edits: tuple[tuple[str, str], ...]

    def path(self, root: Path) -> Path:
        return root / "src" / "worldline" / self.file

    def misfit(self, root: Path, rows: dict[str, list[str]]) -> str:
        """Why it cannot be applied; empty if it can."""
        path = self.path(root)
        if not path.is_file():
            return f"there is no file {self.file}"
        text = path.read_text()
        for old, new in self.edits:
            if text.count(old) != 1:
                return f"{self.file} has {text.count(old)} times, and not once: {old!r}"
            if old == new:
                return f"it changes nothing: {old!r}"
            text = text.replace(old, new)
        for rule in self.rules:
            if self.test not in rows.get(rule, ()):
                return f"{PAGE} does not name {self.test} for {rule}"
        return "" if self.test in places(root) else f"there is no test {self.test}"


@dataclass(frozen=True)
class Found:
    """What became of one mutation."""

    rules: tuple[str, ...]
    test: str
    file: str
    result: str
    seconds: float
    said: str

    def line(self) -> str:
        return f"{self.result:14} {', '.join(self.rules)}: {self.test}" + (f": {self.said}" if self.said else "")


def table(root: Path = ROOT) -> list[Mutation]:
    found = tomllib.loads((root / TABLE).read_text())["mutation"]
    return [
        Mutation(tuple(each["rules"]), each["test"], each["file"], tuple((old, new) for old, new in each["edits"]))
        for each in found
    ]


def rows(root: Path = ROOT) -> dict[str, list[str]]:
    """The live rules of the page, each with the tests that it names."""
    return {each["id"]: _TEST.findall(each["tests"]) for each in _ROW.finditer((root / PAGE).read_text())}


@functools.cache
def places(root: Path) -> dict[str, str]:
    """Every test, as pytest wants it."""
    return {
        test: f"{path.relative_to(root)}::{test}"
        for path in sorted((root / "tests").rglob("test_*.py"))
        for test in _FUNCTION.findall(path.read_text())
    }


@contextlib.contextmanager
def copied(root: Path = ROOT) -> Iterator[Path]:
    """A copy of the project, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="rules-") as folder:
        copy = Path(folder)
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, copy / name, ignore=_needless)
            else:
                shutil.copy(root / name, copy / name)
        yield copy


def _needless(folder: str, names: list[str]) -> list[str]:
    """What is not copied: all that another Python has compiled. What this one has is still true of the copy."""
    compiled = os.path.basename(folder) == "__pycache__"
    return [each for each in names if compiled and f".{sys.implementation.cache_tag}" not in each]


@contextlib.contextmanager
def applied(mutation: Mutation, copy: Path) -> Iterator[None]:
    """The copy with one mutation, and then without it again."""
    path = mutation.path(copy)
    before = path.read_text()
    after = before
    for old, new in mutation.edits:
        after = after.replace(old, new)
    try:
        _write(path, after)
        yield
    finally:
        _write(path, before)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Python tells a changed file by its size and second: what was compiled of the text before could pass for this one.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def fails(copy: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether one of these tests fails in the copy, and the last line of what was said."""
    options = f"{os.environ.get('WORLDLINE_TESTS', '')} test_seconds={TEST_SECONDS}"  # tests/options.py
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "WORLDLINE_TESTS": options}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-k", STORED]
    try:
        done = subprocess.run(  # noqa: S603 - tests of this project
            [*command, *(places(copy)[each] for each in tests)],
            cwd=copy,
            env=environment,
            timeout=RUN_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no end within {RUN_SECONDS} s"
    lines = [each for each in (done.stdout + done.stderr).splitlines() if each.strip()]
    said = lines[-1] if lines else ""
    if done.returncode == 0:
        return False, ""
    # A test must have failed: a package that cannot be imported proves nothing.
    return bool(_FAILED.search(done.stdout)), said


def tried(mutation: Mutation, copy: Path, named: dict[str, list[str]]) -> Found:
    """Apply one mutation, and run its test."""
    wrong = mutation.misfit(copy, named)
    if wrong:
        return Found(mutation.rules, mutation.test, mutation.file, INAPPLICABLE, 0.0, wrong)
    began = time.monotonic()
    with applied(mutation, copy):
        failed, said = fails(copy, [mutation.test])
    seconds = round(time.monotonic() - began, 1)
    result = CAUGHT if failed else SURVIVED
    return Found(mutation.rules, mutation.test, mutation.file, result, seconds, "" if failed else said)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="ID", help="a rule; without it, all")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    given = parser.parse_args(arguments)
    chosen = [each for each in table() if not given.only or set(given.only) & set(each.rules)]
    known = {rule for each in table() for rule in each.rules}
    for rule in given.only or ():
        if rule not in known:
            parser.error(f"no mutation breaks {rule}; add one to {TABLE}")
    found: list[Found] = []
    with copied() as copy:
        named = rows(copy)
        broken, said = fails(copy, list(dict.fromkeys(each.test for each in chosen)))
        if broken or said:
            print(f"the tests fail without any mutation: {said}", file=sys.stderr)
            return 2
        for each in chosen:
            found.append(tried(each, copy, named))
            if not given.json:
                print(found[-1].line(), flush=True)
    counts = {result: sum(each.result == result for each in found) for result in (CAUGHT, SURVIVED, INAPPLICABLE)}
    if given.json:
        print(json.dumps({"counts": counts, "mutations": [asdict(each) for each in found]}, indent=2))
    else:
        print(", ".join(f"{number} {result}" for result, number in counts.items()))
    return 0 if counts[CAUGHT] == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
