"""Which events a workflow waits for, read from its source, so that only those are given to its runs.

The answer must never be too small, or a run would miss an event. So it is either certain or unknown: the waits in the
workflow and in every function that it is known to use; unknown as soon as the type of a wait, or what is awaited,
cannot be resolved. A workflow whose interests are unknown gets every event.
"""

from __future__ import annotations

import ast
import inspect
from types import FunctionType
from typing import Any

from worldline.kernel.code import source

_OWN = "worldline."
_INSIDE = "worldline.kernel.authoring.workflow_api"


class _Unknown(Exception):
    """Something about a workflow cannot be resolved."""


def of(flow: source.CallTarget) -> list[Any] | None:
    """Return the event classes that a workflow waits for, or None if that is unknown."""
    found: list[Any] = []
    todo, done = [flow.function], list[Any]()
    homes: source.Homes = {}
    try:
        while todo:
            function = source.unwrapped(todo.pop(0))
            if function is not None and function not in done:
                done.append(function)
                kinds, others = _read(function, flow.function.__module__, homes)
                found = list(dict.fromkeys([*found, *kinds]))
                todo += others
    except _Unknown:
        return None
    return found


def _read(function: FunctionType, module: str, homes: source.Homes) -> tuple[list[Any], list[Any]]:
    """Return the event classes that one function waits for, and the functions it uses."""
    tree = source.tree_of(function)
    if tree is None:
        raise _Unknown  # without source nothing is certain
    scope = source.NameScope(function, tree)
    kinds = [_kind(scope, call) for call in _calls(tree) if _is_wait(scope.resolve(call.func))]
    mentions = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
    waits = [node for node in mentions if _is_wait(scope.resolve(node))]
    if len(waits) != len(kinds):
        raise _Unknown  # the function itself is passed on, and may be called under another name
    _check_awaited(tree, scope)
    return kinds, [thing for node in mentions if _may_wait(thing := scope.resolve(node), module, homes)]


def _kind(scope: source.NameScope, call: ast.Call) -> Any:
    kind = scope.resolve(call.args[0]) if call.args else source.UNKNOWN
    if not isinstance(kind, type):
        raise _Unknown  # a type that only shows when the code runs
    return kind


def _check_awaited(tree: ast.Module, scope: source.NameScope) -> None:
    """A function that is called and awaited at once must be known: an unknown one could wait for anything."""
    own = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for call in _awaited(tree):
        if _is_known(scope, call.func):
            continue
        if isinstance(call.func, ast.Name) and call.func.id in own:
            continue  # defined inside, so its waits have been seen
        if not _starts_in_scope(tree, scope, call.func):
            raise _Unknown


def _is_known(scope: source.NameScope, node: ast.expr) -> bool:
    if isinstance(
        node, ast.Call
    ):  # what a call returns is known only of Worldline's own: charge.options(key="o1")("card", 5)
        return _is_own(scope.resolve(node.func))
    thing = scope.resolve(node)
    return source.unwrapped(thing) is not None or _is_own(thing)  # also of every effect and workflow


def _is_own(thing: Any) -> bool:
    return thing is not source.UNKNOWN and str(getattr(thing, "__module__", "")).startswith(_OWN)


def _awaited(tree: ast.Module) -> list[ast.Call]:
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Await):
            found.append(node.value)
        elif isinstance(node, ast.AsyncWith):
            found += [item.context_expr for item in node.items]
        elif isinstance(node, ast.AsyncFor) or (isinstance(node, ast.comprehension) and node.is_async):
            found.append(node.iter)
    return [each for each in found if isinstance(each, ast.Call)]


def _starts_in_scope(tree: ast.Module, scope: source.NameScope, node: ast.expr) -> bool:
    """Return whether this is `start` of something that `async with wl.scope()` has made."""
    if not (isinstance(node, ast.Attribute) and node.attr == "start" and isinstance(node.value, ast.Name)):
        return False
    for block in ast.walk(tree):
        for item in block.items if isinstance(block, ast.AsyncWith) else ():
            made = item.context_expr
            if isinstance(made, ast.Call) and _is_inside(scope.resolve(made.func), "scope"):
                name = item.optional_vars
                if isinstance(name, ast.Name) and name.id == node.value.id:
                    return True
    return False


def _calls(tree: ast.Module) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _is_wait(thing: Any) -> bool:
    return _is_inside(thing, "wait")


def _is_inside(thing: Any, name: str) -> bool:
    return inspect.isfunction(thing) and thing.__module__ == _INSIDE and thing.__name__ == name


def _may_wait(thing: Any, module: str, homes: source.Homes) -> bool:
    """Functions that could wait: all coroutines, and plain functions of the same project, which may return one."""
    function = source.unwrapped(thing)
    # Of the functions of this package `wait` alone waits for events, and it is known by its name.
    if function is None or function.__module__.startswith(_OWN):
        return False
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return is_async or source.is_at_home(function, module, homes)
