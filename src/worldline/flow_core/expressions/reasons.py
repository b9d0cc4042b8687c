"""Why a condition does not hold, for people: its parts that fail, and the values they read.

`cents > 0 is false (cents = 0)`. Of an `and`, only the parts that fail are named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from worldline.flow_core import faults, js_values
from worldline.flow_core.expressions import compiler, shapes
from worldline.flow_core.expressions.scope import EvalScope

_INFIX: Final = {
    "eq": "=",
    "neq": "≠",
    "gt": ">",
    "gte": "≥",
    "lt": "<",
    "lte": "≤",
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "mod": "mod",
}
_OF_INTENT: Final = ("input", "meta.intentId", "$system.uuid")
_SHOWN_MAX: Final = 80  # characters of a value


def why(condition: Mapping[str, Any], scope: EvalScope) -> tuple[str, ...]:
    """Return the reasons that a condition does not hold; none if it does."""
    if js_values.truth(_value(condition, scope)):
        return ()
    if condition["kind"] == "and":
        return tuple(reason for each in condition["args"] for reason in why(each, scope))
    read = [f"{path} = {_shown(_value({'kind': 'get', 'path': path}, scope))}" for path in _paths(condition)]
    said = f" ({', '.join(read)})" if read else ""
    return (f"{text(condition)} is false{said}",)


def without_intent(condition: dict[str, Any]) -> dict[str, Any] | None:
    """Return the condition without those of its parts that read the intent; None if nothing is left of it."""
    if not reads_intent(condition):
        return condition
    # Of an `or`, a part that is left out could be the one that holds.
    if condition["kind"] != "and":
        return None
    parts = [without_intent(each) for each in condition["args"]]
    kept = [each for each in parts if each is not None]
    return {"kind": "and", "args": kept} if kept else None


def reads_intent(expression: Mapping[str, Any]) -> bool:
    """Return whether an expression depends on which intent is asked for: its input or its id."""
    return any(path in _OF_INTENT or path.startswith("input.") for path in shapes.paths(expression))


def text(expression: Mapping[str, Any]) -> str:
    """Return an expression as a person would write it."""
    kind = expression["kind"]
    if kind == "lit":
        return _shown(expression["value"])
    if kind == "get":
        return str(expression["path"])
    inner = [_bracketed(each) for _, each in shapes.children(expression)]
    if kind in _INFIX:
        return f" {_INFIX[kind]} ".join(inner)
    if kind in ("and", "or") and inner:
        return f" {kind} ".join(inner)
    if kind == "not":
        negated = expression["arg"]
        return f"{_bracketed(negated['arg'])} is set" if negated["kind"] == "isNull" else f"not {inner[0]}"
    if kind == "isNull":
        return f"{inner[0]} is empty"
    if kind == "toBoolean":
        return text(expression["arg"])
    plain = [text(each) for _, each in shapes.children(expression)]
    return f"{kind}({', '.join(plain)})"


def _bracketed(expression: Mapping[str, Any]) -> str:
    found = text(expression)
    return f"({found})" if expression["kind"] in (*_INFIX, "and", "or", "not", "isNull") else found


def _paths(expression: Mapping[str, Any]) -> list[str]:
    return [each for each in dict.fromkeys(shapes.paths(expression)) if not each.startswith("$")]


def _value(expression: Mapping[str, Any], scope: EvalScope) -> Any:
    try:
        return compiler.Compiler().one(expression)(scope)
    except faults.Fault:  # a part that cannot be evaluated has no value to show
        return None


def _shown(value: object) -> str:
    if value is js_values.MISSING:
        return "missing"
    said = json.dumps(value, ensure_ascii=False, default=str)
    return said if len(said) <= _SHOWN_MAX else f"{said[: _SHOWN_MAX - 1]}…"
