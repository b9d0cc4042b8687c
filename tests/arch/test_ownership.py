"""An object's state is changed in its own file (STYLE, rule 23): no attribute of another module's object is assigned.

The rule, over the syntax tree: `x.attr = ...`, `x.attr += ...`, `del x.attr` and `setattr(x, "attr", ...)`, where `x`
is not `self` or `cls` and was not made in the same function. The class of `x` is read from annotations, constructors
and imports. Where they say nothing, the name of the attribute decides (`?.attr`): it is foreign if classes of other
modules that are not frozen have it and none of this module does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.trees import dotted, module_of, name_of, nodes_of, sources, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
Owner = tuple[str, str]  # a module, and a class in it
OUTSIDE: Owner = ("", "")  # a class that is not ours

# Records that other modules fill in: data without transitions of its own.
RECORDS: tuple[str, ...] = ()


class Classes:
    """Every class of some modules: its attributes, and what is known of their types."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.attributes: dict[Owner, dict[str, Owner | None]] = {}
        self._imports = {module: dict(_imported(tree)) for module, tree in trees.items()}
        nodes = {(module, node.name): node for module, tree in trees.items() for node in _classes(tree)}
        self._defined = dict.fromkeys(nodes)
        self._frozen = [owner for owner, node in nodes.items() if _frozen(node)]
        for module, tree in trees.items():
            for node in _classes(tree):
                self.attributes[module, node.name] = dict(self._attributes(module, node))

    def named(self, module: str, name: str) -> Owner | None:
        """The class that a dotted name stands for in a module."""
        first, _, rest = name.partition(".")
        if not rest and (module, name) in self._defined:
            return module, name
        target = self._imports[module].get(first)
        if target is None:
            return None
        parts = f"{target}.{rest}".strip(".").rpartition(".")
        owner = (parts[0], parts[2])
        return owner if owner in self._defined else None

    def annotated(self, module: str, node: ast.expr | None) -> Owner | None:
        """The class that an annotation names, `| None` and quotes aside."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.annotated(module, ast.parse(node.value, mode="eval").body)
        if isinstance(node, ast.BinOp):
            either = [self.annotated(module, node.left), self.annotated(module, node.right)]
            return next((each for each in either if each not in (None, OUTSIDE)), None)
        if node is None or not dotted(node):
            return None
        return self.named(module, dotted(node)) or (None if dotted(node) in ("Any", "object") else OUTSIDE)

    def has_one_with(self, attribute: str) -> bool:
        """Whether a class that is not frozen has such an attribute."""
        return any(attribute in names for owner, names in self.attributes.items() if owner not in self._frozen)

    def _attributes(self, module: str, node: ast.ClassDef) -> Iterator[tuple[str, Owner | None]]:
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                yield field.target.id, self.annotated(module, field.annotation)
        for function in (each for each in ast.walk(node) if isinstance(each, Function)):
            known = {arg.arg: self.annotated(module, arg.annotation) for arg in _arguments(function)}
            for each in ast.walk(function):
                if isinstance(each, ast.AnnAssign) and _of_self(each.target):
                    yield each.target.attr, self.annotated(module, each.annotation)  # type: ignore[union-attr]
                for target in each.targets if isinstance(each, ast.Assign) else []:
                    if _of_self(target):
                        yield target.attr, self.value(module, each.value, known)  # type: ignore[attr-defined]

    def value(self, module: str, node: ast.expr, known: dict[str, Owner | None]) -> Owner | None:
        """The class of an expression, if it is a name that is known, a path from one, or a constructor."""
        if isinstance(node, ast.Name):
            return known[node.id] if node.id in known else self.named(module, node.id)
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            if called == "cls":
                return known.get("cls")
            constructs = called.rpartition(".")[2][:1].isupper()
            return self.named(module, called) or (OUTSIDE if constructs else None)
        if isinstance(node, ast.Attribute):
            owner = self.value(module, node.value, known)
            return None if owner is None else self.attributes.get(owner, {}).get(node.attr)
        return None


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in nodes_of(tree) if isinstance(node, ast.ClassDef)]


def _frozen(node: ast.ClassDef) -> bool:
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    keywords = [*node.keywords, *(keyword for call in calls for keyword in call.keywords)]
    return any(each.arg == "frozen" for each in keywords) or any("Enum" in dotted(base) for base in node.bases)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _arguments(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _of_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The objects whose attributes a statement sets or deletes, and which."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and dotted(node.func) in ("setattr", "delattr", "object.__setattr__"):
        name = node.args[1]
        if isinstance(name, ast.Constant):
            yield node.args[0], str(name.value)
    for target in targets:
        for each in ast.walk(target):
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store | ast.Del):
                yield each.value, each.attr


def foreign(module: str, tree: ast.Module, classes: Classes) -> Iterator[tuple[int, str]]:
    """What a module assigns that belongs to another: the line, and class and attribute."""
    own = {attribute for owner, names in classes.attributes.items() if owner[0] == module for attribute in names}
    for function, within in _functions(tree):
        known, made = _names(module, function, within, classes)
        for node in _body(function):
            for value, attribute in assigned(node):
                if isinstance(value, ast.Name) and (value.id in ("self", "cls") or value.id in made):
                    continue
                owner = classes.value(module, value, known)
                if owner is None and attribute not in own and classes.has_one_with(attribute):
                    yield node.lineno, f"?.{attribute}"  # type: ignore[attr-defined]
                elif owner is not None and owner[0] not in ("", module):
                    yield node.lineno, f"{owner[1]}.{attribute}"  # type: ignore[attr-defined]


def _functions(tree: ast.Module) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Every function, with the class around it."""

    def walk(node: ast.AST, within: ast.ClassDef | None) -> Iterator[tuple[Function, ast.ClassDef | None]]:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, Function):
                yield each, within
            yield from walk(each, each if isinstance(each, ast.ClassDef) else within)

    yield from walk(tree, None)


def _body(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop(0)
        if not isinstance(node, Function | ast.ClassDef):
            yield node
            todo = [*ast.iter_child_nodes(node), *todo]


def _names(
    module: str, function: Function, within: ast.ClassDef | None, classes: Classes
) -> tuple[dict[str, Owner | None], dict[str, None]]:
    """The classes of a function's names, and the names of what it makes itself."""
    known = {arg.arg: classes.annotated(module, arg.annotation) for arg in _arguments(function)}
    if within is not None:
        known["self"] = known["cls"] = (module, within.name)
    made: dict[str, None] = {}
    for node in _body(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            known[node.target.id] = classes.annotated(module, node.annotation)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    known[target.id] = classes.value(module, node.value, known)
                    if isinstance(node.value, ast.Call) and known[target.id] is not None:
                        made[target.id] = None
    return known, made


CLASSES = Classes({module_of(path): tree_of(path) for path in sources()})


def offenders(path: Path) -> list[str]:
    """What a file assigns from outside, `RECORDS` aside."""
    found = [f"{name_of(path)}: {what}" for _, what in foreign(module_of(path), tree_of(path), CLASSES)]
    return [each for each in dict.fromkeys(found) if each.split(": ")[1].split(".")[0] not in RECORDS]


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_state_is_changed_in_its_own_file(path: Path) -> None:
    found = list(offenders(path))
    assert found == [], "call a named transition of the object instead"


OTHER = "class Held:\n    def __init__(self) -> None:\n        self.busy = False\n        self.inner = Inner()\n"
KEEPER = "class A:\n    def __init__(self, held: Held) -> None:\n        self._held = held\n"
OTHER += "class Inner:\n    depth: int = 0\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(held: Held) -> None:\n    held.busy = True", ["Held.busy"]),
        ("def f(held: Held | None) -> None:\n    held.inner.depth += 1", ["Inner.depth"]),
        ("def f(held: 'Held') -> None:\n    setattr(held, 'busy', True)", ["Held.busy"]),
        (f"{KEEPER}    def f(self) -> None:\n        self._held.busy = True", ["Held.busy"]),
        ("def f(found) -> None:\n    for each in found:\n        del each.busy", ["?.busy"]),
        ("def f() -> None:\n    held = Held()\n    held.busy = True", []),
        ("class B:\n    busy: bool\ndef f(found) -> None:\n    found.busy = True", []),
        ("def f(x) -> None:\n    x.unheard_of = 1", []),
        ("import logging\ndef f(log: logging.Logger) -> None:\n    log.busy = 1", []),
    ],
)
def test_the_rule_bites(text: str, expected: list[str]) -> None:
    trees = {"other": ast.parse(OTHER), "here": ast.parse("from other import Held\n" + text)}
    assert [what for _, what in foreign("here", trees["here"], Classes(trees))] == expected
