"""The arguments of every kind: which there are, and what each is.

`e` an expression, `e?` one that may be left out, `*` a list of expressions, `{}` expressions by name, `s` a text, `v`
any value. `requires` walks a document with it, so the compiler meets only what has the right shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_BINARY: Final = {"left": "e", "right": "e"}
_ARG: Final = {"arg": "e"}
_ARGS: Final = {"args": "*"}
_STR: Final = {"str": "e"}
_ARRAY: Final = {"array": "e"}
_OBJ: Final = {"obj": "e"}
_SEARCH: Final = {**_STR, "search": "e"}
_PREDICATE: Final = {**_ARRAY, "predicate": "e"}
_KEYS: Final = {**_OBJ, "keys": "e"}

KINDS: Final[dict[str, dict[str, str]]] = {
    "lit": {"value": "v"},
    "get": {"path": "s"},
    **dict.fromkeys(("eq", "neq", "gt", "gte", "lt", "lte"), _BINARY),
    **dict.fromkeys(("and", "or", "min", "max", "concat", "coalesce"), _ARGS),
    **dict.fromkeys(("add", "sub", "mul", "div", "mod"), _BINARY),
    **dict.fromkeys(("not", "abs", "neg", "floor", "ceil", "round", "sqrt"), _ARG),
    **dict.fromkeys(("len", "typeof", "isNull", "toString", "toNumber", "toBoolean"), _ARG),
    "if": {"cond": "e", "then": "e", "else": "e"},
    "pow": {"base": "e", "exponent": "e"},
    **dict.fromkeys(("sumArray", "minArray", "maxArray", "first", "last", "reverse", "unique", "flat"), _ARRAY),
    "substring": {**_STR, "start": "e", "end": "e?"},
    **dict.fromkeys(("trim", "toLowerCase", "toUpperCase", "strLen"), _STR),
    "startsWith": {**_STR, "prefix": "e"},
    "endsWith": {**_STR, "suffix": "e"},
    **dict.fromkeys(("strIncludes", "indexOf"), _SEARCH),
    "replace": {**_STR, "search": "e", "replacement": "e"},
    "split": {**_STR, "delimiter": "e"},
    "at": {**_ARRAY, "index": "e"},
    "slice": {**_ARRAY, "start": "e", "end": "e?"},
    "includes": {**_ARRAY, "item": "e"},
    **dict.fromkeys(("filter", "find", "every", "some"), _PREDICATE),
    "map": {**_ARRAY, "mapper": "e"},
    "append": {**_ARRAY, "items": "*"},
    "object": {"fields": "{}"},
    "field": {"object": "e", "property": "s"},
    **dict.fromkeys(("keys", "values", "entries"), _OBJ),
    "merge": {"objects": "*"},
    "hasKey": {**_OBJ, "key": "e"},
    **dict.fromkeys(("pick", "omit"), _KEYS),
    "fromEntries": {"entries": "e"},
}
assert len(KINDS) == 72, "the contract has 72 kinds"

_SAID: Final = {
    "e": "an expression",
    "e?": "an expression",
    "*": "a list of expressions",
    "{}": "expressions by name",
    "s": "a text",
}


def problem(expression: object) -> str:
    """What is wrong with the shape of one expression, its children aside; empty if nothing is."""
    if not isinstance(expression, dict):
        return f"an expression is an object with a kind, not {type(expression).__name__}"
    kind = expression.get("kind")
    # Asked first whether it is text: an object or an array cannot be looked up in a dict.
    if not isinstance(kind, str) or kind not in KINDS:
        return f"no expression has the kind {kind!r}"
    for name, form in KINDS[kind].items():
        if name not in expression:
            if form != "e?":
                return f"{kind} needs {name!r}"
        elif not _fits(expression[name], form):
            return f"{name!r} of {kind} must be {_SAID[form]}"
    return ""


def _fits(value: object, form: str) -> bool:
    if form == "v":
        return True
    if form == "s":
        return isinstance(value, str)
    return isinstance(value, list if form == "*" else dict)


def children(expression: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the expressions inside one whose shape is right, each with its place."""
    for name, form in KINDS[expression["kind"]].items():
        inner = expression.get(name)
        if form in ("e", "e?"):
            # Absent is not null: an optional child that is null is refused by its shape.
            if name in expression:
                yield name, inner
        elif form == "*":
            yield from ((f"{name}[{at}]", each) for at, each in enumerate(inner or ()))
        elif form == "{}":
            yield from ((f"{name}.{key}", each) for key, each in (inner or {}).items())


def paths(expression: Mapping[str, Any]) -> Iterator[str]:
    """Yield every path that an expression gets, at any depth."""
    if expression["kind"] == "get":
        yield expression["path"]
    for _, each in children(expression):
        yield from paths(each)
