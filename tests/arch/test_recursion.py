"""Nothing is recursive over what users size: Python's stack is short, and a chain of runs, forks or causes is not.

The rule, over the syntax tree: a function that calls itself, directly or through others of its module, stands in
`recursion.toml` with what bounds its depth. A call is a name that is called or handed to a call (`map(f, ...)`),
`self.name(...)` in a class, and `given.name(...)` where a parameter's annotation names a class of the module. Calls
through other modules and other objects are not seen.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.arch.trees import SOURCE, dotted, name_of, sources, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
Names = dict[str, str]  # what a name of a scope stands for: the full name of a function, empty for anything else

BOUNDED: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "recursion.toml").read_text())


class Calls:
    """Which functions of a module call which, by their full names: `Class.method`, `outer.inner`."""

    def __init__(self, tree: ast.Module) -> None:
        self.of: dict[str, list[str]] = {}
        self._read(tree, "", [], {})
        for name, called in self.of.items():
            self.of[name] = [each for each in called if each in self.of]

    def recursive(self) -> list[str]:
        return [name for name in self.of if name in self._reached(name)]

    def _reached(self, name: str) -> list[str]:
        found: dict[str, None] = {}
        left = list(self.of[name])
        while left:
            each = left.pop()
            if each not in found:
                found[each] = None
                left += self.of[each]
        return list(found)

    def _read(self, scope: ast.AST, full: str, seen: list[Names], methods: Names) -> None:
        inside = _own(scope)
        defined = [each for each in inside if isinstance(each, Function | ast.ClassDef)]
        names = {each.name: full + each.name if isinstance(each, Function) else "" for each in defined}
        if isinstance(scope, ast.ClassDef):
            methods = names  # the names of a class are no names in its functions
        else:
            seen = [*seen, {**_bound(scope, inside), **names}]
        if isinstance(scope, Function):
            kinds = {
                each.arg: dotted(each.annotation) for each in inside if isinstance(each, ast.arg) and each.annotation
            }
            self.of[full.removesuffix(".")] = [each for node in inside for each in _called(node, seen, methods, kinds)]
        for each in defined:
            self._read(each, f"{full}{each.name}.", seen, methods)


def _own(scope: ast.AST) -> list[ast.AST]:
    """The nodes of a scope without those of the functions and classes in it, which are there themselves."""
    found: list[ast.AST] = []
    left = list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop(0)
        found.append(node)
        if not isinstance(node, Function | ast.ClassDef):
            left += ast.iter_child_nodes(node)
    return found


def _bound(scope: ast.AST, inside: list[ast.AST]) -> Names:
    """The parameters and variables of a function: they hide functions of the same name."""
    if not isinstance(scope, Function):
        return {}
    stored = [each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    return dict.fromkeys([*stored, *(each.arg for each in inside if isinstance(each, ast.arg))], "")


def _called(node: ast.AST, seen: list[Names], methods: Names, kinds: dict[str, str]) -> list[str]:
    """`kinds`: the classes of parameters."""
    if not isinstance(node, ast.Call):
        return []
    found = []
    for each in [node.func, *node.args, *(keyword.value for keyword in node.keywords)]:
        if isinstance(each, ast.Name):
            found.append(next((names[each.id] for names in reversed(seen) if each.id in names), ""))
    target = node.func
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        owner = target.value.id
        found.append(methods.get(target.attr, "") if owner in ("self", "cls") else f"{kinds.get(owner)}.{target.attr}")
    return [each for each in found if each]


def test_a_recursive_function_says_what_bounds_its_depth() -> None:
    found = {name_of(path): Calls(tree_of(path)).recursive() for path in sources()}
    unbounded = [
        f"{file}: {name}" for file, names in found.items() for name in names if name not in BOUNDED.get(file, {})
    ]
    assert not unbounded, "make it a loop, or refuse what is too deep, and say in recursion.toml what bounds it"
    stale = [f"{file}: {name}" for file, names in BOUNDED.items() for name in names if name not in found.get(file, [])]
    assert not stale, "these are not recursive any more: delete their lines in recursion.toml"


def test_a_limit_that_bounds_a_depth_is_there() -> None:
    limits = (SOURCE / "base" / "limits.py").read_text()
    for file, names in BOUNDED.items():
        known = limits + (SOURCE / file).read_text()
        missing = [
            each for why in names.values() for each in re.findall(r"_?[A-Z][A-Z_]+_MAX", why) if each not in known
        ]
        assert not missing, file
        assert all(len(why) > 8 for why in names.values()), file


SAMPLES = [
    ("def f(x):\n    return f(x - 1)", ["f"]),
    ("def f(x):\n    return list(map(f, x))", ["f"]),
    ("def f(x):\n    return [g(each) for each in x]\ndef g(x):\n    return f(x)", ["f", "g"]),
    ("async def f(x):\n    await f(x)", ["f"]),
    ("def f(x):\n    def g(y):\n        return g(y)\n    return g(x)", ["f.g"]),
    ("def f(x):\n    def g(y):\n        return f(y)\n    return g(x)", ["f", "f.g"]),
    ("class C:\n    def m(self):\n        return self.n()\n    def n(self):\n        return self.m()", ["C.m", "C.n"]),
    ("class C:\n    def m(self):\n        return f(self)\ndef f(c: C):\n    return c.m()", ["f", "C.m"]),
    ("def f(x):\n    return any(f(each) for each in x)", ["f"]),
    ("def f(x, f):\n    return f(x)", []),
    ("def f(x):\n    return x.f()", []),
    ("class C:\n    def m(self):\n        return m()\ndef m():\n    return 1", []),
    ("def f(x):\n    return g(x)\ndef g(x):\n    return x", []),
]


@pytest.mark.parametrize(("text", "names"), SAMPLES)
def test_recursion_is_found(text: str, names: list[str]) -> None:
    assert sorted(Calls(ast.parse(text)).recursive()) == sorted(names)
