"""`docs/flow-contract.md` has every live rule of the Host contract once, each with tests that exist."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import typing

from tests.arch.trees import ROOT, name_of, sources
from worldline.flow_core import jobs

PAGE = (ROOT / "docs" / "flow-contract.md").read_text()

_ROW = re.compile(
    r"^\| (?P<id>[A-Z0-9][\w.-]*) \| (?P<rule>.*?) \| (?P<alone>.*?) \| (?P<world>.*?) \| (?P<tests>.*?) \|$",
    re.MULTILINE,
)
_TEST = re.compile(r"`(test_\w+)`")
_FUNCTION = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def ids(prefix: str, *numbers: int) -> list[str]:
    return [f"{prefix}-{each}" for each in numbers]


LIVE = [
    *ids("HOST-SNAP", *range(1, 5)),
    *ids("HOST-NS", *range(1, 6)),
    *ids("CORE-HOST", *range(1, 5)),
    *ids("SNAP", *range(1, 5)),
    *ids("INTENT", *range(1, 6)),
    *ids("INTENT-ID", *range(1, 5)),
    *ids("HANDLER", *range(1, 6)),
    "REQ-GEN-1",
    "REQ-EXEC-1",
    "REQ-APPLY-1",
    "REQ-CLEAR-1",
    "REQ-CONT-1",
    "REQ-SEQ-1",
    *ids("COMP", 4, 5),
    *ids("MAIL", *range(1, 5)),
    *ids("JOB", *range(1, 6)),
    *ids("COMP-REQ-INTERLOCK", 1, 2),
    *ids("RUN", *range(1, 5)),
    *ids("REINJ", *range(1, 5)),
    *ids("LIVE", *range(1, 5)),
    *ids("ORD", *range(1, 5)),
    "ORD-SERIAL",
    "ORD-PARALLEL",
    *ids("ORD-TIMEOUT", 1, 2, 3),
    *ids("FULFILL", *range(5)),
    "FULFILL-0-LOG",
    "FULFILL-0-TRACE",
    *ids("CTX", *range(1, 6)),
    *ids("ERR-FE", *range(1, 6)),
    *ids("INV-CH", *range(1, 5)),
    *ids("INV-IP", *range(1, 5)),
    *ids("INV-RL", 1, 2, 3),
    *ids("INV-EX", *range(1, 9), *range(10, 18)),
    *ids("INV-CTX", *range(1, 6)),
    *ids("INV-SNAP", *range(1, 8)),
]
SECTIONS = [
    "3.3",
    "6.3",
    "8.2",
    "9.1",
    "10.6.2",
    "10.7.3",
    "10.9",
    "10.10",
    "11.4",
    "11.5",
    "11.6",
    "13.1",
    "13.2",
    "13.3",
    "13.4.5",
]
DEPRECATED = [*ids("COMP", 1, 2, 3, 6), *ids("TRANS", *range(1, 5)), "INV-EX-9"]


@functools.cache
def existing() -> list[str]:
    """Every test function of the project. Not looked for by every process that collects tests."""
    return [name for path in (ROOT / "tests").rglob("test_*.py") for name in _FUNCTION.findall(path.read_text())]


ROWS = {found["id"]: found for found in _ROW.finditer(PAGE)}


def test_every_live_rule_is_there_once() -> None:
    assert len(LIVE) == len(set(LIVE)) == 127
    found = [each["id"] for each in _ROW.finditer(PAGE)]
    assert found == [*LIVE, *SECTIONS]


def test_every_rule_names_tests_that_exist() -> None:
    named = {id: _TEST.findall(row["tests"]) for id, row in ROWS.items()}
    assert [id for id, tests in named.items() if not tests] == []
    assert [each for tests in named.values() for each in tests if each not in existing()] == []


def test_every_test_that_the_page_names_exists() -> None:
    assert [each for each in _TEST.findall(PAGE) if each not in existing()] == []
    assert [each for each in re.findall(r"`(tests/[\w/]+\.py)`", PAGE) if not (ROOT / each).is_file()] == []


def test_both_hosts_say_how_they_keep_every_rule() -> None:
    for host in ("alone", "world"):
        assert [id for id, row in ROWS.items() if not row[host].strip() or "to come" in row[host]] == []
    assert "integration" not in PAGE


def test_deprecated_rules_have_nothing_here() -> None:
    """No job for a translator's output, and nothing that lowers fragments."""
    assert not [each for each in DEPRECATED if each in ROWS]
    assert [each for each in DEPRECATED if each not in PAGE] == []
    names = [each.__name__ for each in typing.get_args(jobs.Job)]
    assert names == ["StartIntent", "ContinueCompute", "FulfillEffect", "ApplyPatches"]
    words = re.compile(r"translat|lower_?patch|fragment", re.IGNORECASE)
    flow = [path for path in sources() if "flow/" in name_of(path) or "flow_core/" in name_of(path)]
    assert len(flow) > 30
    assert [path.name for path in flow if words.search(path.read_text())] == []


def test_jobs_are_plain_functions() -> None:
    """JOB-1, JOB-2: nothing in a job can await."""
    tree = ast.parse(inspect.getsource(jobs))
    assert [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor)] == []
    assert not inspect.iscoroutinefunction(jobs.run)
