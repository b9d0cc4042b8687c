"""The reference interpreter: expressions evaluated by walking the document, the oracle of the compiled closures.

It shares only the conversions of `values` with what it checks. `bench/flow.py` measures closures against it.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from worldline.flow_core import flow_records, hashing, js_values
from worldline.flow_core.js_values import MISSING, normal, num, same_value, strict_equal, text, truth

Expr = dict[str, Any]


@dataclass(slots=True)
class Env:
    """What an expression reads."""

    snapshot: flow_records.Snapshot
    intent_id: str = ""
    action: str = ""
    item: Any = MISSING
    index: Any = MISSING
    array: Any = MISSING


def evaluate(e: Expr, env: Env) -> Any:
    """The value of an expression, its kind looked up at every visit."""
    found = LAZY.get(e["kind"])
    if found is not None:
        return found(e, env)
    name = e["kind"]
    arguments = {}
    for key, value in e.items():
        if key in ("kind", "property"):
            continue
        arguments[key] = [evaluate(x, env) for x in value] if isinstance(value, list) else evaluate(value, env)
    if name == "field":
        arguments["property"] = e["property"]
    if name in ("startsWith", "endsWith", "strIncludes", "indexOf", "replace", "split", "substring"):
        arguments = {k: js_values.units(text(v)) if k not in ("start", "end") else v for k, v in arguments.items()}
    return EAGER[name](**arguments)


# --- Kinds that decide what is evaluated -----------------------------------------------------------------


def _get(e: Expr, env: Env) -> Any:
    path = e["path"]
    parts = _parts(path)
    if parts[0] == "$item" and (path == "$item" or path.startswith("$item.")):
        return _walk(env.item, parts[1:])
    if path == "$index":
        return env.index
    if path == "$array":
        return env.array
    if parts[0] == "meta" and len(parts) > 1:
        own = {"meta.intentId": env.intent_id or MISSING, "meta.actionName": env.action or MISSING}
        return own[path] if path in own else flow_records.plain(env.snapshot.meta).get(".".join(parts[1:]), MISSING)
    if parts[0] == "input":
        return _walk(env.snapshot.input, parts[1:])
    if path.startswith("computed."):
        return env.snapshot.computed.get(path, MISSING)
    if path.startswith("system."):
        return _walk(flow_records.plain(env.snapshot.system), parts[1:])
    return _walk(env.snapshot.data, parts)


@lru_cache(maxsize=1_000)
def _parts(path: str) -> list[str]:
    """Segments, read character by character."""
    out, escaped = [""], False
    for c in path:
        if escaped:
            out[-1] += c if c in ".\\" else "\\" + c
            escaped = False
        elif c == "\\":
            escaped = True
        elif c == ".":
            out.append("")
        else:
            out[-1] += c
    if escaped:
        out[-1] += "\\"
    return out


def _walk(value: Any, parts: list[str]) -> Any:
    for part in parts:
        if isinstance(value, dict):
            value = value.get(part, MISSING)
        elif isinstance(value, list) and part == "length":
            return len(value)
        elif isinstance(value, list) and part in [str(i) for i in range(len(value))]:
            value = value[int(part)]
        else:
            return MISSING
    return value


def _each(e: Expr, env: Env, body: str) -> list[tuple[Any, Any]] | None:
    """Every element with the value of the body; None for what is no array."""
    array = evaluate(e["array"], env)
    if not isinstance(array, list):
        return None
    snapshot, intent_id, action = env.snapshot, env.intent_id, env.action
    return [(x, evaluate(e[body], Env(snapshot, intent_id, action, x, i, array))) for i, x in enumerate(array)]


def _and(e: Expr, env: Env) -> bool:
    return all(truth(evaluate(x, env)) for x in e["args"])


def _or(e: Expr, env: Env) -> bool:
    return any(truth(evaluate(x, env)) for x in e["args"])


def _if(e: Expr, env: Env) -> Any:
    return evaluate(e["then"] if truth(evaluate(e["cond"], env)) else e["else"], env)


def _coalesce(e: Expr, env: Env) -> Any:
    for x in e["args"]:
        if (found := evaluate(x, env)) not in (None, MISSING):
            return found
    return None


def _find(e: Expr, env: Env) -> Any:
    return next((x for x, yes in _each(e, env, "predicate") or [] if truth(yes)), None)


LAZY: dict[str, Callable[[Expr, Env], Any]] = {
    "lit": lambda e, env: e["value"],
    "get": _get,
    "and": _and,
    "or": _or,
    "if": _if,
    "coalesce": _coalesce,
    "map": lambda e, env: [y for _, y in _each(e, env, "mapper") or []],
    "filter": lambda e, env: [x for x, yes in _each(e, env, "predicate") or [] if truth(yes)],
    "find": _find,
    "every": lambda e, env: all(truth(yes) for _, yes in _each(e, env, "predicate") or []),
    "some": lambda e, env: any(truth(yes) for _, yes in _each(e, env, "predicate") or []),
    "object": lambda e, env: {k: evaluate(x, env) for k, x in e["fields"].items()},
}


# --- Kinds whose arguments are evaluated first -----------------------------------------------------------


def _double(value: float) -> Any:
    """What a double holds of a result."""
    return normal(float(value)) if not isinstance(value, int) or abs(value) > js_values.INTEGER_MAX else value


def _div(left: Any, right: Any) -> Any:
    return None if num(right) == 0 else _double(num(left) / num(right))


def _mod(left: Any, right: Any) -> Any:
    a, b = num(left), num(right)
    if b == 0:
        return None
    return math.nan if math.isinf(a) or a != a or b != b else _double(math.fmod(a, b))


def _least(xs: list[Any], *, most: bool = False) -> Any:
    ns = [num(x) for x in xs]
    if not ns:
        return None
    if any(n != n for n in ns):
        return math.nan
    return sorted(ns)[-1 if most else 0]


def _round(n: Any, how: str) -> Any:
    if isinstance(n, int) or not math.isfinite(n):
        return n
    if how == "floor":
        return _double(math.floor(n))
    if how == "ceil":
        return _double(math.ceil(n))
    return _double(math.floor(n) + (1 if n - math.floor(n) >= 0.5 else 0))


def _pow(base: Any, exponent: Any) -> Any:
    """By 120 digits, of which 100 count: so a power that lies in the middle of two doubles is seen to."""
    b, x = num(base), num(exponent)
    if x != x or (math.isinf(x) and abs(b) == 1):
        return None
    if x == 0:
        return 1
    if not (math.isfinite(b) and math.isfinite(x)) or b == 0:
        try:
            found = math.pow(b, x)  # 0 or infinite: there is nothing to round
        except (OverflowError, ValueError):
            return None
        return _double(found) if math.isfinite(found) else None
    if b < 0 and x != math.floor(x):
        return None
    digits = decimal.Context(prec=120, Emax=999_999, Emin=-999_999, traps=[])
    power = digits.power(decimal.Decimal(abs(b)), decimal.Decimal(x))
    found = float(decimal.Context(prec=100, Emax=999_999, Emin=-999_999, traps=[]).plus(power))
    return _double(math.copysign(found, b) if x % 2 else found) if math.isfinite(found) else None


def _sum(array: Any) -> Any:
    total: Any = 0
    for x in array if isinstance(array, list) else []:
        total = _double(total + num(x))
    return total


def _concat(args: list[Any]) -> Any:
    if not any(isinstance(x, list) for x in args):
        return js_values.fused("".join(text(x) for x in args))
    return [y for x in args if x not in (None, MISSING) for y in (x if isinstance(x, list) else [x])]


def _cut(number: Any, most: int) -> int:
    n = num(number)
    return 0 if n != n else int(max(0, min(n, most)))


def _substring(str: str, start: Any, end: Any = MISSING) -> str:
    a, b = _cut(start, len(str)), len(str) if end is MISSING else _cut(end, len(str))
    return js_values.fused(str[min(a, b) : max(a, b)])


def _slice(array: Any, start: Any, end: Any = MISSING) -> list[Any]:
    if not isinstance(array, list):
        return []

    def place(number: Any) -> int:
        n = num(number)
        return 0 if n != n else max(0, len(array) - _cut(-n, len(array))) if n < 0 else _cut(n, len(array))

    return array[place(start) : len(array) if end is MISSING else place(end)]


def _replace(str: str, search: str, replacement: str) -> str:
    before, found, after = str.partition(search) if search else ("", "", str)
    if search and not found:
        return js_values.fused(str)
    out, at = "", 0
    while at < len(replacement):
        pair = replacement[at : at + 2]
        special = {"$$": "$", "$&": search, "$`": before, "$'": after}
        out += special.get(pair, replacement[at])
        at += 2 if pair in special else 1
    return js_values.fused(before + out + after)


def _split(str: str, delimiter: str) -> list[str]:
    if not delimiter:
        return list(str) or [""]
    return [js_values.fused(x) for x in str.split(delimiter)]


def _at(array: Any, index: Any) -> Any:
    if isinstance(array, list):
        n = num(index)
        if not 0 <= n < len(array):
            return None
        return array[n] if isinstance(n, int) else MISSING
    return array.get(index) if isinstance(array, dict) and isinstance(index, str) else None


def _unique(array: Any) -> list[Any]:
    out: list[Any] = []
    for x in array if isinstance(array, list) else []:
        if not any(strict_equal(x, y) for y in out):
            out.append(x)
    return out


def _members(obj: Any) -> list[tuple[str, Any]]:
    if isinstance(obj, list):
        return [(str(i), x) for i, x in enumerate(obj)]
    return [(k, obj[k]) for k in sorted(obj, key=hashing.integers_first)] if isinstance(obj, dict) else []


def _merge(objects: list[Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for x in objects:
        out.update(x if isinstance(x, dict) else {})
    return out


def _pick(obj: Any, keys: Any) -> dict[str, Any]:
    wanted = keys if isinstance(keys, list) and isinstance(obj, dict) else []
    return {k: obj[k] for k in wanted if isinstance(k, str) and k in obj}


def _omit(obj: Any, keys: Any) -> dict[str, Any]:
    dropped = [k for k in keys if isinstance(k, str)] if isinstance(keys, list) else []
    return {k: x for k, x in obj.items() if k not in dropped} if isinstance(obj, dict) else {}


def _entries(entries: Any) -> dict[str, Any]:
    pairs = [x for x in entries if isinstance(x, list) and len(x) == 2] if isinstance(entries, list) else []
    return {k: x for k, x in pairs if isinstance(k, str)}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


EAGER: dict[str, Any] = {
    "eq": strict_equal,
    "neq": lambda left, right: not strict_equal(left, right),
    "gt": lambda left, right: num(left) > num(right),
    "gte": lambda left, right: num(left) >= num(right),
    "lt": lambda left, right: num(left) < num(right),
    "lte": lambda left, right: num(left) <= num(right),
    "not": lambda arg: not truth(arg),
    "add": lambda left, right: _double(num(left) + num(right)),
    "sub": lambda left, right: _double(num(left) - num(right)),
    "mul": lambda left, right: _double(num(left) * num(right)),
    "div": _div,
    "mod": _mod,
    "min": lambda args: _least(args),
    "max": lambda args: _least(args, most=True),
    "abs": lambda arg: abs(num(arg)),
    "neg": lambda arg: _double(-num(arg)),
    "floor": lambda arg: _round(num(arg), "floor"),
    "ceil": lambda arg: _round(num(arg), "ceil"),
    "round": lambda arg: _round(num(arg), "round"),
    "sqrt": lambda arg: None if num(arg) < 0 else _double(math.sqrt(num(arg))),
    "pow": _pow,
    "sumArray": _sum,
    "minArray": lambda array: _least(_listed(array)),
    "maxArray": lambda array: _least(_listed(array), most=True),
    "concat": _concat,
    "substring": _substring,
    "trim": lambda str: text(str).strip(js_values.SPACES),
    "toLowerCase": lambda str: text(str).lower(),
    "toUpperCase": lambda str: text(str).upper(),
    "strLen": lambda str: len(js_values.units(text(str))),
    "startsWith": lambda str, prefix: str.startswith(prefix),
    "endsWith": lambda str, suffix: str.endswith(suffix),
    "strIncludes": lambda str, search: search in str,
    "indexOf": lambda str, search: str.find(search),
    "replace": _replace,
    "split": _split,
    "len": lambda arg: (
        len(js_values.units(arg)) if isinstance(arg, str) else len(arg) if isinstance(arg, list | dict) else 0
    ),
    "at": _at,
    "first": lambda array: (_listed(array) or [None])[0],
    "last": lambda array: (_listed(array) or [None])[-1],
    "slice": _slice,
    "includes": lambda array, item: any(same_value(x, item) for x in _listed(array)),
    "append": lambda array, items: [*_listed(array), *items],
    "reverse": lambda array: list(reversed(_listed(array))),
    "unique": _unique,
    "flat": lambda array: [y for x in _listed(array) for y in (x if isinstance(x, list) else [x])],
    "field": lambda object, property: object.get(property) if isinstance(object, dict) else None,
    "keys": lambda obj: [k for k, _ in _members(obj)],
    "values": lambda obj: [x for _, x in _members(obj)],
    "entries": lambda obj: [[k, x] for k, x in _members(obj)],
    "merge": _merge,
    "hasKey": lambda obj, key: isinstance(obj, dict) and isinstance(key, str) and key in obj,
    "pick": _pick,
    "omit": _omit,
    "fromEntries": _entries,
    "typeof": lambda arg: js_values.kind_of(arg),
    "isNull": lambda arg: arg is None or arg is MISSING,
    "toString": lambda arg: text(arg),
    "toNumber": lambda arg: num(arg),
    "toBoolean": lambda arg: truth(arg),
}


# --- Flows -----------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """What came of a flow: the data, how it ended, and the effects it asked for."""

    data: dict[str, Any]
    status: str = "running"
    code: str = ""
    effects: tuple[tuple[str, Any], ...] = ()


def run_flow(document: dict[str, Any], name: str, snapshot: flow_records.Snapshot, intent_id: str) -> Ran:
    """One run of an action: every field of the document's state takes any JSON value but those of another type."""
    ran = Ran(snapshot.data)
    _node(document, document["actions"][name]["flow"], ran, snapshot, intent_id, name)
    return ran


def _node(document: Any, node: Any, ran: Ran, snapshot: flow_records.Snapshot, intent_id: str, action: str) -> None:
    current = flow_records.Snapshot(ran.data, snapshot.computed, snapshot.system, snapshot.meta, snapshot.input)
    env = Env(current, intent_id, action)

    def go(inner: Any) -> None:
        _node(document, inner, ran, snapshot, intent_id, action)

    if node["kind"] == "seq":
        for step in node["steps"]:
            if ran.status == "running":
                go(step)
    elif node["kind"] == "if":
        if evaluate(node["cond"], env) not in (None, MISSING) and evaluate(node["cond"], env) is not False:
            go(node["then"])
        elif "else" in node:
            go(node["else"])
    elif node["kind"] == "patch":
        _patch(document, node, ran, env)
    elif node["kind"] == "effect":
        params = {k: evaluate(e, env) for k, e in node["params"].items()}
        if not storable(params):
            ran.status, ran.code = "error", "INVALID_VALUE"
        else:
            ran.status, ran.effects = "pending", (*ran.effects, (node["type"], plain(params)))
    elif node["kind"] == "call":
        go(document["actions"][node["flow"]]["flow"])
    elif node["kind"] == "halt":
        ran.status = "halted"
    else:
        ran.status, ran.code = "error", "VALIDATION_ERROR"


def _patch(document: Any, node: Any, ran: Ran, env: Env) -> None:
    spec = document["state"]["fields"][node["path"]]["type"]
    value = evaluate(node["value"], env) if node["op"] != "unset" else None
    before = ran.data.get(node["path"], MISSING)
    if node["op"] == "unset":
        ran.data = {k: v for k, v in ran.data.items() if k != node["path"]}
    elif value is MISSING:
        ran.status, ran.code = "error", "TYPE_MISMATCH"
    elif not storable(value):
        ran.status, ran.code = "error", "INVALID_VALUE"
    elif value is not None and spec not in ("object", js_values.kind_of(value)):
        ran.status, ran.code = "error", "TYPE_MISMATCH"
    elif node["op"] == "set":
        ran.data = {**ran.data, node["path"]: plain(value)}
    elif not isinstance(value, dict) or (before is not MISSING and not isinstance(before, dict)):
        ran.status, ran.code = "error", "TYPE_MISMATCH"
    else:
        ran.data = {**ran.data, node["path"]: {**({} if before is MISSING else before), **plain(value)}}


def storable(value: Any) -> bool:
    """Whether JSON has a value."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, dict):
        return all(storable(k) and k != "__proto__" and (v is MISSING or storable(v)) for k, v in value.items())
    return all(v is MISSING or storable(v) for v in value) if isinstance(value, list) else True


def plain(value: Any) -> Any:
    """A value as a snapshot keeps it: what is missing is left out of objects, and null in arrays."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if v is not MISSING}
    return [None if v is MISSING else plain(v) for v in value] if isinstance(value, list) else value
