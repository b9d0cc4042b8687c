"""check: each rule finds its plain case, names the replacement, and lets harmless code alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_kit import SHOP, run
from worldline.base import errors
from worldline.inspect import lint

HEAD = """
import asyncio, os, random, secrets, threading, time, uuid
import datetime as dates
import time as clock
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import choice
import httpx
import worldline as wl
app = wl.Program("p")
CACHE: dict[str, int] = {}
CONFIG = object()

@app.effect
def outside() -> float:
    print(open("/etc/hosts").read(), random.random())
    return time.time()

@app.workflow
async def child() -> None: ...

def helper() -> float:
    return HERE

"""

# What a line in a workflow is found to be, and what to write instead.
FOUND = [
    ("time.time()", "clock", "wl.now()"),
    ("clock.monotonic()", "clock", "wl.now()"),
    ("datetime.now()", "clock", "wl.now()"),
    ("dates.datetime.utcnow()", "clock", "wl.now()"),
    ("dates.date.today()", "clock", "wl.now()"),
    ("time.sleep(1)", "clock", "wl.sleep"),
    ("random.random()", "random", "wl.random()"),
    ("choice([1, 2])", "random", "wl.random()"),
    ("random.Random().random()", "random", "wl.random()"),
    ("secrets.token_hex()", "random", "wl.random()"),
    ("os.urandom(8)", "random", "wl.random()"),
    ("uuid.uuid4()", "random", "wl.uuid()"),
    ("hash('x')", "hash", "hashlib"),
    ("id(x)", "hash", "hashlib"),
    ("[y for y in {1, 2}]", "set", "sorted"),
    ("[y for y in set(x)]", "set", "sorted"),
    ("list({1} | {2})", "set", "sorted"),
    ("tuple(frozenset(x))", "set", "sorted"),
    ("open('x')", "io", "@effect"),
    ("input()", "io", "@effect"),
    ("print('x')", "io", "wl.log"),
    ("os.environ['HOME']", "io", "@effect"),
    ("os.getenv('HOME')", "io", "@effect"),
    ("os.listdir('.')", "io", "@effect"),
    ("Path('x').read_text()", "io", "@effect"),
    ("httpx.get('https://example.org')", "io", "@effect"),
    ("await asyncio.sleep(1)", "asyncio", "wl.sleep"),
    ("await asyncio.gather(x)", "asyncio", "wl.gather"),
    ("asyncio.create_task(x)", "asyncio", "wl.start"),
    ("await asyncio.wait_for(x, 1)", "asyncio", "wl.scope(timeout="),
    ("await asyncio.to_thread(x)", "asyncio", "@effect"),
    ("asyncio.Lock()", "asyncio", "wl.scope"),
    ("threading.Thread(target=x)", "thread", "@effect"),
    ("{1.5: 'x'}", "float_key", "int or a str"),
    ("x[2.5]", "float_key", "int or a str"),
    ("CACHE.update(a=1)", "global", "reducer"),
    ("CACHE.setdefault('a', 1)", "global", "reducer"),
    ("outside()", "not_awaited", "await outside(...)"),
    ("child()", "not_awaited", "await child(...)"),
]

STATEMENTS = [
    ("CACHE['a'] = 1", "global"),
    ("del CACHE['a']", "global"),
    ("CONFIG.level = 1", "global"),
    ("global CACHE", "global"),
    ("for y in {1, 2}: pass", "set"),
    ("s = {1}\n    for y in s: pass", "set"),
]

HARMLESS = [
    "wl.now()",
    "wl.random().random()",
    "wl.uuid()",
    "await wl.sleep(1)",
    "await outside()",
    "await wl.gather(outside(), child())",
    "sorted({1, 2})",
    "1 in {1, 2}",
    "len(set(x))",
    "os.path.join('a', 'b')",
    "Path('a') / 'b'",
    "dates.timedelta(days=1)",
    "datetime.fromisoformat('2024-01-01')",
    "x.update(a=1)",
    "x.open()",
    "{1: 'x'}",
    "x[0]",
    "wl.log.info('x')",
    "time.time()  # worldline: allow",
]


def workflow(line: str) -> str:
    return f"{HEAD}@app.workflow\nasync def flow(x):\n    {line}\n"


@pytest.mark.parametrize(("line", "rule", "instead"), FOUND, ids=[row[0] for row in FOUND])
def test_what_does_not_replay_is_found(line: str, rule: str, instead: str) -> None:
    text = workflow(line)
    found = [each for each in lint.lint(text, "app.py") if each.line == text.count("\n")]
    assert [each.rule for each in found] == [rule]
    assert instead in found[0].instead
    assert found[0].inside == "workflow flow"
    assert str(found[0]).startswith(f"app.py:{found[0].line}: ")


@pytest.mark.parametrize(("lines", "rule"), STATEMENTS)
def test_statements_too(lines: str, rule: str) -> None:
    assert [each.rule for each in lint.lint(workflow(lines), "app.py")] == [rule]


@pytest.mark.parametrize("line", HARMLESS)
def test_what_replays_is_let_alone(line: str) -> None:
    assert lint.lint(workflow(line), "app.py") == []


def test_effects_and_the_rest_of_the_file_may_do_as_they_please() -> None:
    assert lint.lint(HEAD, "app.py") == []


def test_functions_that_a_workflow_uses_are_looked_at() -> None:
    text = workflow("helper()").replace("HERE", "random.random()")
    [found] = lint.lint(text, "app.py")
    assert found.inside == "helper, used by workflow flow"
    assert lint.lint(workflow("pass").replace("HERE", "random.random()"), "app.py") == []


REDUCER = (
    HEAD
    + """
@dataclass
class Priced:
    price: float

@app.reducer(key="price")
@dataclass
class Prices:
    tags: set[str] = field(default_factory=set)
    @wl.on
    def priced(self, event: Priced) -> None:
        for tag in self.tags:
            wl.emit(tag)
        self.last = time.time()
"""
)


def test_reducers_are_looked_at() -> None:
    found = lint.lint(REDUCER, "app.py")
    assert [each.rule for each in found] == ["float_key", "set", "clock"]
    assert found[0].what == "cells are chosen by the float 'price'"


def test_a_set_given_as_an_argument() -> None:
    text = workflow("pass").replace("flow(x)", "flow(x: set[str])").replace("    pass", "    [y for y in x]")
    assert [each.rule for each in lint.lint(text, "app.py")] == ["set"]


def test_a_name_of_the_users_own_is_not_the_builtin() -> None:
    text = HEAD + "def open(x): ...\n@app.workflow\nasync def flow(hash):\n    open(1); hash(2)\n"
    assert lint.lint(text, "app.py") == []


def test_what_is_not_python() -> None:
    with pytest.raises(errors.BadInput, match=r"app.py:1: "):
        lint.lint("def f(:", "app.py")


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(workflow("time.time()"))
    said = run("check", file, SHOP, "--json")
    assert said.code == 1
    [finding] = said.lines
    assert (finding["file"], finding["line"], finding["rule"]) == (str(file), file.read_text().count("\n"), "clock")
    assert run("check", SHOP).code == 0
