"""What a program's code says, read from its source: the program hash, and which events a workflow waits for.

The hash covers the normalised syntax of every handler and of the functions of the same module it refers to, and the
fields of their types; formatting, comments, docstrings and annotations' spelling do not count. Where no source is to be
had (an interactive session), the compiled code stands in for it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from worldline.codec import digest
from worldline.kernel.calls import Workflow

if TYPE_CHECKING:
    from worldline.kernel.program import Program

WAITS = ("wait",)


def program_hash(program: Program) -> bytes:
    parts = [program.name.encode()]
    for name, effect in sorted(program.effects.items()):
        parts += [b"effect", name.encode(), str(effect.signature.parameters).encode()]
    for name, flow in sorted(program.workflows.items()):
        parts += [b"workflow", name.encode(), *_texts(flow.function)]
    for name, reducer in sorted(program.reducers.items()):
        parts += [b"reducer", name.encode(), (reducer.key or "").encode(), _class_text(reducer.cls)]
        for handler in reducer.handlers:
            parts += [handler.schema.encode(), _class_text(handler.event)]
            parts += list(_texts(getattr(reducer.cls, handler.method)))
    return digest.hash_parts(b"program", *parts)


def interests(flow: Workflow[..., Any]) -> list[Any] | None:
    """The event classes that a workflow waits for, or None if that cannot be told from its source."""
    found: list[Any] = []
    for function in _reachable(flow.function):
        tree = _tree(function)
        if tree is None:
            return None
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and _called(node.func) in WAITS and node.args):
                continue
            kind = _resolve(function, node.args[0])
            if not isinstance(kind, type):
                return None
            if kind not in found:
                found.append(kind)
    return found


def _texts(function: Callable[..., Any]) -> Iterator[bytes]:
    for each in _reachable(function):
        tree = _tree(each)
        if tree is None:
            code = each.__code__
            yield code.co_code + repr(code.co_consts).encode()
        else:
            yield ast.dump(_normal(tree)).encode()


def _reachable(function: Callable[..., Any]) -> list[Any]:
    """The function, and the plain functions of its own module that it names, and theirs."""
    todo, done = [function], []
    while todo:
        each = todo.pop(0)
        if each in done:
            continue
        done.append(each)
        code = getattr(each, "__code__", None)
        for name in code.co_names if code else ():
            other = each.__globals__.get(name)
            if inspect.isfunction(other) and other.__module__ == each.__module__:
                todo.append(other)
    return done


def _tree(function: Callable[..., Any]) -> ast.Module | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None


def _normal(tree: ast.Module) -> ast.Module:
    """The tree without what does not change behaviour: decorators, docstrings, annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.decorator_list = []
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return tree


def _class_text(cls: type) -> bytes:
    """A class by its fields: names, types and defaults, in order."""
    fields = getattr(cls, "__dataclass_fields__", None) or getattr(cls, "model_fields", None)
    if fields is not None:
        return "; ".join(
            f"{name}: {getattr(field, 'type', getattr(field, 'annotation', ''))}" for name, field in fields.items()
        ).encode()
    return "; ".join(f"{name}: {kind}" for name, kind in getattr(cls, "__annotations__", {}).items()).encode()


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _resolve(function: Any, node: ast.expr) -> Any:
    """The object an expression of names and attributes stands for in the function's scope."""
    if isinstance(node, ast.Attribute):
        return getattr(_resolve(function, node.value), node.attr, None)
    if isinstance(node, ast.Name):
        closed = inspect.getclosurevars(function)
        return closed.nonlocals.get(node.id, function.__globals__.get(node.id))
    return None
