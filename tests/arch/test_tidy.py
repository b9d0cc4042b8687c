"""The house rules that linters do not know, as tests over the syntax tree. Each ban names its replacement."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.trees import ROOT, SOURCE, dotted, name_of, nodes_of, sources, tree_of
from worldline.host.feature_list import FEATURES

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600

PURE = ("model", "codec", "keys", "kernel", "flow_core")
COMMAND_LINE = ("cli/", "terminal/", "features/")
ENVIRONMENT_FILES = ("base/env_os.py", "base/env.py", "runtime/environment.py")

BANNED_CALLS = {
    "time.time": "Env.wall_us",
    "time.time_ns": "Env.wall_us",
    "time.monotonic": "Env.monotonic_us",
    "time.monotonic_ns": "Env.monotonic_us",
    "time.perf_counter": "Env.monotonic_us",
    "time.sleep": "Env.sleep",
    "datetime.now": "Env.wall_us",
    "datetime.utcnow": "Env.wall_us",
    "datetime.datetime.now": "Env.wall_us",
    "os.urandom": "Env.random_bytes",
    "secrets.token_bytes": "Env.random_bytes",
    "secrets.randbelow": "Env.random_below",
    "uuid.uuid4": "env.new_id",
    "uuid.uuid1": "env.new_id",
    "random.random": "Env.random_below",
    "random.randrange": "Env.random_below",
    "random.choice": "Env.random_below",
    "asyncio.as_completed": "asyncio.gather (as_completed orders by address)",
    "pickle.dumps": "codec.structs",
    "pickle.loads": "codec.structs",
    "eval": "nothing",
    "exec": "nothing",
    "print": "a role's log, or the command line",
}
BANNED_IN_PURE = {"hash": "codec.digest", "id": "an id of model.ids", "open": "the store", "set": "dict.fromkeys"}
BANNED_MODULES = ("pickle", "marshal", "shelve", "dill", "yaml")
PRINTS = ("demo/",)
# What the command line writes goes through one door, which escapes what a terminal would act on.
DOORS = {
    "click.echo": "terminal/output.py",
    "click.secho": "terminal/output.py",
    "sys.stdout.write": "terminal/output.py",
    "sys.stderr.write": "terminal/output.py",
    "text.Text": "terminal/screen.py",
    "console.Console": "terminal/screen.py",
}
# Lines of logs are shown by whatever handler there is: `codec/printable.py` escapes what a terminal would act on.
MAKE_HANDLERS = (
    "codec/printable.py",
    "observe/log_format.py",
    "cli/dev/dev_output.py",
    "bench/cluster_bench.py",
    "sim/seed_run.py",
)
# What users await inside workflows is a coroutine; the kernel itself drives it by hand.
COROUTINES_FOR_USERS = ("kernel/authoring/workflow_api.py", "kernel/authoring/calls.py")
# The shell of the roles, and the simulator's event loop.
CATCHES_ALL = ("runtime/role_loop.py", "sim/runtime/sim_loop.py")
# Where user code is called, whatever it raises is a result, or concerns one world alone. Everywhere else, only the role
# loop may catch everything.
CALLS_USER_CODE = (
    "codec/printable.py",
    "features/encryption/user_codec.py",
    "kernel/authoring/calls.py",
    "kernel/context.py",
    "kernel/run_driver.py",
    "kernel/event_dispatch.py",
    "features/domains/pure/cell_turn.py",
    "flow_core/jobs.py",
    "kernel/execution/coroutines.py",
    "kernel/execution/waits.py",
    "kernel/authoring/reducers.py",
    "kernel/authoring/scripts.py",
    "kernel/authoring/stored_types.py",
    "kernel/library_types.py",
    "kernel/stand_ins.py",
    "kernel/user_errors.py",
    "kernel/user_values.py",
    "flow/effect_registry.py",
    "flow/flow_host.py",
    "features/proofs/job.py",
    "effects/attempt.py",
    "effects/open_resources.py",
    "runtime/daemon_threads.py",
    "runtime/child_process.py",
    "worker/cycle.py",
    "worker/kernel_executor.py",
    "worker/cycle_steps.py",
    "worker/inbox_read.py",
    "worker/world_search.py",
    "worker/world_upkeep.py",
    "worker/kernel_thread.py",
    "runtime/facts.py",
    "worker/world_worker.py",
    "sim/load/scenarios.py",
    "testing/effect_loop.py",
)


def is_pure(name: str) -> bool:
    """A feature has kernel-side code in `pure/`, and its keys and records in files that are called so."""
    of_feature = name.startswith("features/") and name.endswith(("keyspace.py", "records.py"))
    return name.split("/", maxsplit=1)[0] in PURE or "/pure/" in name or of_feature


def problems(path: Path) -> Iterator[str]:
    text = path.read_text()
    tree = tree_of(path)
    name = name_of(path)
    if text.count("\n") > FILE_LINES_MAX:
        yield f"{name}: {text.count(chr(10))} lines; split it by meaning"
    if not ast.get_docstring(tree):
        yield f"{name}: no module docstring"
    for word in ("FIX" + "ME", "TO" + "DO", "XX" + "X", "NotImplemented" + "Error"):
        if word in text:
            yield f"{name}: left over: {word}"
    for node in nodes_of(tree):
        yield from (f"{name}:{getattr(node, 'lineno', 0)}: {what}" for what in node_problems(node, name))


def node_problems(node: ast.AST, name: str) -> Iterator[str]:
    pure = is_pure(name)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES_MAX:
            yield f"{node.name} has {length} lines; split it by meaning"
        if pure and isinstance(node, ast.AsyncFunctionDef) and name not in COROUTINES_FOR_USERS:
            yield f"{node.name} is async in a pure package"
    elif isinstance(node, ast.Call):
        called = dotted(node.func)
        if (
            called in BANNED_CALLS
            and name not in ENVIRONMENT_FILES
            and not (called == "print" and name.startswith(PRINTS))
        ):
            yield f"{called} is banned; use {BANNED_CALLS[called]}"
        if name.startswith(COMMAND_LINE) and DOORS.get(called, name) != name:
            yield f"{called} is banned; write through {DOORS[called]}"
        if called == "logging.getLogger" and name not in MAKE_HANDLERS:
            yield "logging.getLogger is banned; use printable.logger"
        if pure and called in BANNED_IN_PURE:
            yield f"{called} is banned in pure packages; use {BANNED_IN_PURE[called]}"
    elif isinstance(node, ast.For) and isinstance(node.iter, ast.Set | ast.SetComp):
        yield "iterates a set; its order is not defined"
    elif pure and isinstance(node, ast.Set | ast.SetComp):
        yield "builds a set in a pure package; use a dict"
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] in BANNED_MODULES:
                yield f"{alias.name} is banned; use codec.structs"
    elif isinstance(node, ast.Attribute) and dotted(node) == "os.environ" and name not in ENVIRONMENT_FILES:
        yield "os.environ is read only in runtime/environment.py"
    elif isinstance(node, ast.ExceptHandler):
        broad = node.type is None or dotted(node.type) in ("Exception", "BaseException")
        reraises = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))
        if broad and not reraises and name not in CATCHES_ALL and name not in CALLS_USER_CODE:
            yield "broad except that does not raise again"


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_source_is_tidy(path: Path) -> None:
    assert list(problems(path)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import time\ntime.time()", "Env.wall_us"),
        ("for x in {1, 2}: pass", "iterates a set"),
        ("try:\n    pass\nexcept Exception:\n    pass", "broad except"),
        ("import pickle", "pickle is banned"),
        ("import os\nos.environ", "os.environ"),
        ("hash(b'')", "hash is banned"),
        ("async def f(): pass", "async in a pure package"),
        ("def f():\n" + "    x = 1\n" * 71, "split it by meaning"),
    ],
)
def test_each_rule_bites(text: str, expected: str) -> None:
    found = [what for node in ast.walk(ast.parse(text)) for what in node_problems(node, "codec/sample.py")]
    assert any(expected in what for what in found), found


def test_the_command_line_has_one_door() -> None:
    [node] = [each for each in ast.walk(ast.parse("click.echo('x')")) if isinstance(each, ast.Call)]
    assert list(node_problems(node, "cli/look.py")) == ["click.echo is banned; write through terminal/output.py"]
    assert list(node_problems(node, "terminal/output.py")) == []


# The packages in which no import is hidden from the running program, and in which an object's attributes are assigned
# only in the file of its class.
STRICT = ("kernel", "flow_core")


def strict_sources() -> list[Path]:
    return [
        path for path in sources() if name_of(path).split("/", maxsplit=1)[0] in STRICT or "/pure/" in name_of(path)
    ]


def strict_problems(tree: ast.Module) -> Iterator[str]:
    declared = set(declared_attributes(tree))
    for node in nodes_of(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name | ast.Attribute) and dotted(node).split(".")[-1] == "TYPE_CHECKING":
            yield f"{line}: TYPE_CHECKING hides an import; move what both files need below them"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom)]
            yield from (f"{each.lineno}: imported in {node.name}; import it at the top of the file" for each in inner)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and node.attr not in declared:
                yield f"{line}: {dotted(node)} is assigned here; call a method of its own file"


def declared_attributes(tree: ast.Module) -> Iterator[str]:
    """The attributes of the classes of a file: assigned to `self`, or declared with a type."""
    for declared in (node for node in nodes_of(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(declared):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
                yield node.attr


@pytest.mark.parametrize("path", strict_sources(), ids=name_of)
def test_nothing_is_hidden_and_state_is_changed_in_its_own_file(path: Path) -> None:
    assert list(strict_problems(tree_of(path))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import x", "TYPE_CHECKING hides"),
        ("import typing\nif typing.TYPE_CHECKING:\n    import x", "TYPE_CHECKING hides"),
        ("def f():\n    from a import b", "imported in f"),
        ("def f(run):\n    run.status = 1", "run.status is assigned"),
        ("def f(run):\n    run.record.number += 1", "run.record.number is assigned"),
        ("def f(run):\n    a, run.status = 1, 2", "run.status is assigned"),
    ],
)
def test_each_strict_rule_bites(text: str, expected: str) -> None:
    assert any(expected in what for what in strict_problems(ast.parse(text)))


def test_a_file_may_assign_the_attributes_of_its_own_classes() -> None:
    text = "class A:\n    x: int\n    def f(self):\n        self.y = 1\n\ndef g(a):\n    a.x, a.y = 1, 2"
    assert list(strict_problems(ast.parse(text))) == []


def imports(path: Path) -> list[str]:
    """The lines of a file that import something. What stands on several lines, on one."""
    text = re.sub(r"import \(([^)]*)\)", lambda found: "import " + " ".join(found.group(1).split()), path.read_text())
    return [line for line in text.splitlines() if "import" in line]


def test_every_module_is_imported_by_something() -> None:
    """A module nobody imports is dead, unless it is an entry point."""
    entries = ["testing/plugin.py", "demo/demo_program.py"]  # by pytest, and as a process of its own
    places = [place.partition(":")[0] for feature in FEATURES for place in feature.commands.values()]
    entries += [f"{place.removeprefix('worldline.').replace('.', '/')}.py" for place in places]  # when run
    importing = {name_of(path): imports(path) for path in sources()}
    outside = [
        line for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py") for line in imports(path)
    ]
    outside += imports(SOURCE / "__init__.pyi")  # names that the package loads when they are first used
    everywhere = Counter([line for lines in importing.values() for line in lines] + outside)
    dead = []
    for name, own in importing.items():
        if name.endswith(("__init__.py", "__main__.py")) or name in entries:
            continue
        stem = name.removesuffix(".py").split("/")[-1]
        pattern = re.compile(rf"import\b.*\b{stem}\b|from worldline[\w.]*\.{stem} import")
        its = Counter(own)
        if not any(pattern.search(line) for line, count in everywhere.items() if stem in line and count > its[line]):
            dead.append(name)
    assert dead == []


def test_no_test_relies_on_a_group() -> None:
    """The mark does nothing here: tests/scheduling.py says why, and what keeps tests together."""
    mark = "xdist" + "_group"
    users = [path.name for path in (ROOT / "tests").rglob("*.py") if f"mark.{mark}" in path.read_text()]
    assert users == []


def test_optimised_python_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", "import worldline"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert "assertions" in done.stderr


def test_the_project_speaks_of_itself_alone() -> None:
    """No machine paths and no package index hosts in anything that is committed."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    pattern = re.compile(r"/(home|root|work|Users)/[a-z]|py" + r"pi\.org|files\.python" + r"hosted")
    offending = []
    for name in listed:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".yml"} or name == "Makefile":
            offending += [
                f"{name}: {line.strip()[:80]}" for line in path.read_text().splitlines() if pattern.search(line)
            ]
    assert offending == []
