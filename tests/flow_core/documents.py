"""Documents and short forms of expressions that tests share."""

from __future__ import annotations

from typing import Any

from worldline.flow_core import compiled_document, document_schema, flow_records, validation

Expr = dict[str, Any]


def lit(value: Any) -> Expr:
    return {"kind": "lit", "value": value}


def get(path: str) -> Expr:
    return {"kind": "get", "path": path}


def op(kind: str, *args: Expr) -> Expr:
    """A kind with two sides, one argument, or a list of them."""
    if kind in ("and", "or", "min", "max", "concat", "coalesce"):
        return {"kind": kind, "args": list(args)}
    if len(args) == 1:
        return {"kind": kind, "arg": args[0]}
    return {"kind": kind, "left": args[0], "right": args[1]}


def seq(*steps: Any) -> Any:
    return {"kind": "seq", "steps": list(steps)}


def when(cond: Expr, then: Any, otherwise: Any = None) -> Any:
    return {"kind": "if", "cond": cond, "then": then} | ({} if otherwise is None else {"else": otherwise})


def put(path: str, value: Expr) -> Any:
    return {"kind": "patch", "op": "set", "path": path, "value": value}


def effect(kind: str, **params: Expr) -> Any:
    return {"kind": "effect", "type": kind, "params": params}


def once(path: str, kind: str, **params: Expr) -> Any:
    """An effect that is asked for while a field is empty."""
    return when(op("isNull", get(path)), effect(kind, **params))


HALT = {"kind": "halt"}
DOUBLED = {"computed.doubled": {"deps": ["count"], "expr": op("mul", get("count"), lit(2))}}


def field(kind: Any, default: Any = None, *, required: bool = False, **more: Any) -> dict[str, Any]:
    return {"type": kind, "required": required, "default": default, **more}


def document(actions: dict[str, Any], fields: dict[str, Any] | None = None, computed: Any = None) -> dict[str, Any]:
    """A document with a number `count`, its own fields, and actions given as flows or whole."""
    return document_schema.sealed(
        {
            "id": "test:domain",
            "version": "1.0.0",
            "types": {},
            "state": {"fields": {"count": field("number", 0), **(fields or {})}},
            "computed": {"fields": computed or DOUBLED},
            "actions": {
                name: each if "flow" in each and "kind" not in each else {"flow": each}
                for name, each in actions.items()
            },
        }
    )


def loaded(
    actions: dict[str, Any], fields: dict[str, Any] | None = None, computed: Any = None
) -> compiled_document.Compiled:
    return validation.load(document(actions, fields, computed))


def unchecked(
    actions: dict[str, Any], fields: dict[str, Any] | None = None, computed: Any = None
) -> compiled_document.Compiled:
    return validation.load_unchecked(document(actions, fields, computed))


def first(domain: compiled_document.Compiled, data: Any = None, now: int = 0) -> flow_records.Snapshot:
    """A first snapshot: the defaults, and what is given."""
    context = flow_records.JobContext(now=now, random_seed="initial")
    return flow_records.created({**document_schema.defaults(domain.schema), **(data or {})}, domain.hash, context)


COUNTER: dict[str, Any] = {
    "id": "manifesto:counter",
    "version": "1.0.0",
    "types": {},
    "state": {"fields": {"count": {"type": "number", "required": True, "default": 0}}},
    "computed": {"fields": DOUBLED},
    "actions": {"increment": {"flow": put("count", op("add", get("count"), lit(1)))}},
}
