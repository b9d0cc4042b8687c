"""The program hash: what changes it and what does not. And which events a workflow can be seen to wait for."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import linecache
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import worldline as wl
from worldline.kernel.code import interests, source

BASE = '''
"""A shop."""
from __future__ import annotations
from dataclasses import dataclass, field
import worldline as wl

app = wl.Program("shop")
LIMIT = 5
RATES = {"a": 1.5, "b": 2}

@dataclass(frozen=True)
class Item:
    name: str
    cents: int = 1

@dataclass(frozen=True)
class Bought:
    items: list[Item]
    by: str = "nobody"

def tax(cents: int) -> int:
    """What is due."""
    return cents * LIMIT // 100

class Rules:
    most = 3
    def allowed(self, count: int) -> bool:
        return count <= self.most

@app.reducer()
@dataclass
class Sold:
    total: int = 0
    names: list[str] = field(default_factory=list)

    @wl.on
    def bought(self, event: Bought) -> None:
        self._add(sum(item.cents for item in event.items))

    def _add(self, cents: int) -> None:
        self.total += cents + tax(cents)

@app.effect
async def ship(name: str, fast: bool = False) -> str:
    return name

@app.workflow
async def order(name: str, count: int = 1) -> str:
    """Buy something."""
    if not Rules().allowed(count):
        return "too many"
    async def inner(text: str) -> str:
        return await ship(text)
    for _ in range(count):
        await wl.sleep(1)
    return await inner(name)
'''


def load(folder: Path, text: str, name: str = "sample") -> Any:
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        return _read(module)
    finally:
        del sys.modules[name]


def _read(module: ModuleType) -> Any:
    module.app.hash  # noqa: B018 - while the source is there to be read
    module.app.routes  # noqa: B018
    return module


def hash_of(folder: Path, text: str) -> bytes:
    found: bytes = load(folder, text).app.hash
    return found


def edit(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new)

    change.__name__ = f"{old} -> {new}"
    return change


SAME = [
    lambda text: text,
    lambda text: text.replace("    ", "  "),
    lambda text: "# a comment\n\n\n" + text.replace("\n\n", "\n\n\n# more\n\n"),
    edit('"""Buy something."""', '"""Buy something else."""'),
    edit('    """What is due."""\n', ""),
    edit("async def order(name: str, count: int = 1) -> str:", "async def order(name: 'str', count=1):"),
    edit("await inner(name)", "(await\n        inner(\n            name ) )"),
    edit("LIMIT = 5", "LIMIT = 2 + 3"),
    edit("return name\n", "return name + '!'  # what an effect does is not part of the world\n"),
    edit('app = wl.Program("shop")', 'app = wl.Program("shop")\nUNUSED = 7\ndef unused() -> int:\n    return 5\n'),
    lambda text: text + "\n@app.effect\nasync def x() -> None: ...\ndel app.effects['x']\n",
]

OTHER = [
    edit('"shop"', '"store"'),
    edit("LIMIT = 5", "LIMIT = 6"),
    edit("// 100", "// 1000"),
    edit("most = 3", "most = 4"),
    edit("count <= self.most", "count < self.most"),
    edit("cents: int = 1", "cents: int = 2"),
    edit("cents: int = 1", "cents: float = 1"),
    edit('by: str = "nobody"', 'by: str = "nobody"\n    when: int = 0'),
    edit("items: list[Item]", "items: list[Item] = field(default_factory=list)"),
    edit("total: int = 0", "total: int = 1"),
    edit("self._add(sum", "self._add(1 + sum"),
    edit("cents + tax(cents)", "cents"),
    edit("fast: bool = False", "fast: bool = True"),
    edit("fast: bool = False", "quick: bool = False"),
    edit("async def ship(name: str", "async def ship(name: int"),
    edit("count: int = 1", "count: int = 2"),
    edit("wl.sleep(1)", "wl.sleep(2)"),
    edit("return await ship(text)", "return await ship(text, fast=True)"),
    edit('return "too many"', 'return "too much"'),
    edit("@app.reducer()", '@app.reducer(key="by")'),
    edit("@app.workflow", '@app.workflow(name="other")'),
]


@pytest.mark.parametrize("change", SAME, ids=lambda each: each.__name__[:50])
def test_what_does_not_count(tmp_path: Path, change: Callable[[str], str]) -> None:
    assert hash_of(tmp_path, change(BASE)) == hash_of(tmp_path, BASE)


@pytest.mark.parametrize("change", OTHER, ids=lambda each: each.__name__[:50])
def test_what_counts(tmp_path: Path, change: Callable[[str], str]) -> None:
    assert hash_of(tmp_path, change(BASE)) != hash_of(tmp_path, BASE)


def test_the_order_of_declarations_does_not_count(tmp_path: Path) -> None:
    first, second = (
        "@app.effect\nasync def a() -> int:\n    return 1\n",
        "@app.effect\nasync def b() -> int:\n    return 1\n",
    )
    assert hash_of(tmp_path, BASE + first + second) == hash_of(tmp_path, BASE + second + first)


def test_every_process_finds_the_same_also_where_there_is_no_source(tmp_path: Path) -> None:
    """Also under other hash seeds, as a script, and as code that was never in a file."""
    script = tmp_path / "script.py"
    typed = (
        "    import sys, types\n    sys.modules['typed'] = made = types.ModuleType('typed')\n"
        "    exec(sys.argv[1], vars(made))\n    print(app.hash.hex(), made.app.hash.hex())\n"
    )
    script.write_text(BASE + "\nif __name__ == '__main__':\n" + typed)
    found = [
        subprocess.run(
            [sys.executable, str(script), BASE],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={"PYTHONHASHSEED": seed},
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert found[0][0] == hash_of(tmp_path, BASE).hex() != found[0][1]


def test_helpers_of_the_same_package_count(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")

    def build(amount: int) -> bytes:
        (package / "helpers.py").write_text(f"def cents() -> int:\n    return {amount}\n")
        (package / "main.py").write_text(
            "import worldline as wl\nfrom pack import helpers\napp = wl.Program('p')\n\n"
            "@app.workflow\nasync def flow() -> int:\n    return helpers.cents()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", "from pack.main import app; print(app.hash.hex())"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return bytes.fromhex(done.stdout)

    assert build(5) != build(6)


def test_the_name_of_the_module_does_not_count(tmp_path: Path) -> None:
    """A module of a package, the same run as a script, and the same file loaded by its path: one program, one hash."""
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text("def cents() -> int:\n    return 5\n\ndef twice() -> int:\n    return 2\n")
    (package / "main.py").write_text(
        "import worldline as wl\nfrom pack import helpers\napp = wl.Program('p')\n\n"
        "def twice() -> int:\n    return 2 * helpers.twice()\n\n"
        "@app.workflow\nasync def flow() -> int:\n    return helpers.cents() + twice()\n\n"
        "if __name__ == '__main__':\n    print(app.hash.hex())\n"
    )
    by_path = "from worldline.terminal import program_files as f; print(f.load('pack/main.py').programs[0].hash.hex())"
    ways = [
        ["-c", "from pack.main import app; print(app.hash.hex())"],
        ["-m", "pack.main"],
        ["pack/main.py"],
        ["-c", by_path],
    ]
    found = [
        subprocess.run(
            [sys.executable, *way],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={"PYTHONPATH": str(tmp_path)},
        ).stdout
        for way in ways
    ]
    assert found == [found[0]] * len(ways)


# --- Interests -----------------------------------------------------------------------------------------------------

EVENTS = """
from __future__ import annotations
import functools
from dataclasses import dataclass
import worldline
import worldline as wl
from worldline import wait, wait as hold

app = wl.Program("waits")

@dataclass(frozen=True)
class A: ...

@dataclass(frozen=True)
class B: ...

class Outer:
    @dataclass(frozen=True)
    class Inner: ...

@app.effect
async def ship(name: str) -> str:
    return name

@app.workflow
async def other() -> None:
    await wl.wait(B)

async def helper() -> None:
    await wl.wait(B)

async def caller(function) -> None:
    await function()

def plain(kind):
    return helper()

def trampoline(function, *args):
    return function(*args)

waiter = functools.partial(wl.wait, B)

class Waits:
    def __await__(self):
        return wl.wait(B).__await__()

class Service:
    async def approve(self) -> None:
        await wl.wait(B)

service = Service()
known = [A, B]

def make(kind, function):
    async def closed() -> None:
        await wl.wait(kind)
        await function()
    return app.workflow(name="closed")(closed)
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("await wl.sleep(1)", []),
        ("await ship('x'); await wl.gather(ship('y'), other())", []),
        ("await ship.options(key='k')('x')", []),
        ("await wl.wait(A)", ["A"]),
        ("await worldline.wait(A, timeout=5)", ["A"]),
        ("await wait(A)", ["A"]),
        ("await hold(A)", ["A"]),
        ("await wl.wait(Outer.Inner)", ["Inner"]),
        ("await wl.wait(A); await wl.wait(B); await wl.wait(A)", ["A", "B"]),
        ("await helper()", ["B"]),
        ("x = helper(); await x", ["B"]),
        ("await caller(helper)", None),  # what `caller` calls, it is given
        ("await caller(lambda: wl.wait(A))", None),
        ("await plain(A)", ["B"]),
        ("await service.approve()", ["B"]),
        ("[await wl.wait(A) for _ in range(3)]", ["A"]),
        ("async def inner() -> None:\n        await wl.wait(A)\n    await inner()", ["A"]),
        ("async with wl.scope(timeout=5) as s:\n        await s.start(other())\n        await wl.wait(A)", ["A"]),
        ("run = wl.start(other()); await run", []),
        # Not to be told:
        ("kind = A\n    await wl.wait(kind)", None),
        ("await wl.wait(known[0])", None),
        ("w = wl.wait\n    await w(A)", None),
        ("await Service().approve()", None),
        ("thing = Service()\n    await thing.approve()", None),
        ("await [helper][0]()", None),
        ("await trampoline(helper)", ["B"]),
        ("await trampoline(wl.wait, A)", None),
        ("await waiter()", None),
        ("await Waits()", None),
        ("from worldline import wait as w2\n    await w2(A)", None),
        ("for kind in known:\n        await wl.wait(kind)", None),
    ],
    ids=lambda each: str(each)[:60].replace("\n", " "),
)
def test_what_a_workflow_can_be_seen_to_wait_for(tmp_path: Path, body: str, expected: list[str] | None) -> None:
    text = EVENTS + f"\n@app.workflow\nasync def flow() -> None:\n    {body}\n"
    module = load(tmp_path, text, "waits")
    found = interests.of(module.app.workflows["flow"])
    assert (None if found is None else [kind.__name__ for kind in found]) == expected


def test_closures_are_looked_into(tmp_path: Path) -> None:
    module = load(tmp_path, EVENTS, "waits")
    sys.modules["waits"] = module
    try:
        assert interests.of(module.make(module.A, module.helper)) == [module.A, module.B]
        module.app.workflows.pop("closed")
        assert interests.of(module.make("no type", module.helper)) is None
    finally:
        del sys.modules["waits"]


def test_without_source_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though Python 3.13 remembers the text of `python -c` under the name that all such code has."""
    other = "async def flow() -> None:\n    pass\n\n\n"
    monkeypatch.setitem(linecache.cache, "<string>", (len(other), None, other.splitlines(keepends=True), "<string>"))
    names: dict[str, Any] = {"wl": wl, "app": wl.Program("typed")}
    exec("@app.workflow\nasync def flow() -> None:\n    await wl.sleep(1)\n", names)
    assert interests.of(names["app"].workflows["flow"]) is None
    assert names["app"].routes.any_flows == ["flow"]


def test_a_local_name_hides_a_global_one(tmp_path: Path) -> None:
    text = EVENTS + "\n@app.workflow\nasync def flow(A: str) -> None:\n    await wl.wait(A)\n"
    assert interests.of(load(tmp_path, text, "waits").app.workflows["flow"]) is None


def test_a_parser_that_is_disturbed_by_a_finaliser_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is collected while a program's source is parsed may print a traceback, which parses too."""
    whole, disturbed = ast.parse, [True]

    def parse(text: str) -> ast.Module:
        if disturbed.pop() if disturbed else False:
            raise SystemError("AST constructor recursion depth mismatch (before=1, after=2)")
        return whole(text)

    monkeypatch.setattr(ast, "parse", parse)
    assert ast.dump(source.parse("x = 1")) == ast.dump(whole("x = 1"))
    assert not disturbed


def test_the_source_of_a_class_is_asked_for_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding it parses the whole file, in any thread that first needs the hash of a program."""
    whole, disturbed = inspect.getsource, [True]

    def getsource(thing: Any) -> str:
        if disturbed.pop() if disturbed else False:
            raise SystemError("AST constructor recursion depth mismatch (before=66, after=51)")
        return whole(thing)

    monkeypatch.setattr(source, "_CLASS_TEXTS", {})
    monkeypatch.setattr(inspect, "getsource", getsource)
    assert source.tree_of(source.NameScope) is not None
    assert not disturbed
