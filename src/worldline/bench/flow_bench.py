"""Workload F: flow domains without a store, on one core. The best of some rounds, the sides of a ratio in turns.

What the switch of traces costs is measured against code without it: the module of the nodes is compiled once more from
its source, with every statement left out that only serves a recorder.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any, Final

from worldline.base import env as envs
from worldline.flow_core import compiled_document, core, document_schema, flow_nodes, flow_records, validation
from worldline.flow_core.expressions import compiler
from worldline.flow_core.expressions.scope import EvalScope

ITEMS: Final = 1_000
ROUNDS: Final = 60
COMPUTES: Final = 60  # of one round
STEPS: Final = 12  # of the longer flow
KIB: Final = 1_024
CELLS_KIB: Final = (1, 16, 64)
_ONE: Final = {"kind": "lit", "value": 1}
_COUNT: Final = {"kind": "get", "path": "count"}
_ADD: Final = {"kind": "patch", "op": "set", "path": "count", "value": {"kind": "add", "left": _COUNT, "right": _ONE}}
DOCUMENT: Final = {
    "id": "worldline:bench",
    "version": "1.0.0",
    "types": {},
    "state": {
        "fields": {
            "count": {"type": "number", "required": True, "default": 0},
            "items": {"type": "array", "required": True, "default": []},
        }
    },
    "computed": {
        "fields": {"computed.doubled": {"deps": ["count"], "expr": {"kind": "add", "left": _COUNT, "right": _COUNT}}}
    },
    "actions": {"one": {"flow": _ADD}, "many": {"flow": {"kind": "seq", "steps": [_ADD] * STEPS}}},
}
_PRICE: Final = {"kind": "get", "path": "$item.price"}
_TOTAL: Final = {
    "kind": "sumArray",
    "array": {
        "kind": "map",
        "array": {"kind": "get", "path": "items"},
        "mapper": {"kind": "mul", "left": _PRICE, "right": {"kind": "add", "left": _PRICE, "right": _ONE}},
    },
}
_TOTAL_NODES: Final = 3 + 5 * ITEMS


def run(env: envs.Env) -> dict[str, Any]:
    """All figures. A cost of 0.02 is two hundredths of the time of a compute."""
    document = document_schema.sealed(DOCUMENT)
    return {
        "nodes_per_s": _nodes_per_s(env),
        **_computes(env, validation.load(document), Unswitched(document)),
        **_cells(env, validation.load(document)),
    }


class Unswitched(compiled_document.Compiled):
    """A document whose nodes have no switch for traces: they are never traced."""

    def __init__(self, document: dict[str, Any]) -> None:
        parsed, _ = document_schema.read(document)
        assert parsed is not None
        super().__init__(document, parsed)
        self._without = unswitched_nodes()

    def _nodes(self) -> flow_nodes.Nodes:
        made: flow_nodes.Nodes = self._without.Nodes(self.fields, self._compiler, self.action)
        return made


def unswitched_nodes() -> Any:
    """The module of the nodes without what only serves a recorder, imported from its changed source."""
    loader = _Stripped()
    spec = importlib.util.spec_from_loader("unswitched_nodes", loader)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    loader.exec_module(made)
    return made


class _Stripped(importlib.abc.InspectLoader):
    def get_source(self, fullname: str) -> str:
        del fullname
        return ast.unparse(_Strip().visit(ast.parse(inspect.getsource(flow_nodes))))


class _Strip(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return None if node.name == "_end" else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        # By its text: a statement that serves a recorder is written in this way only.
        return None if ast.unparse(node.test) == "flow.recorder is not None" else self.generic_visit(node)


def _best(env: envs.Env, sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least microseconds of each side, in turns."""
    found = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, work in sides.items():  # in turns, so that a slow moment meets all sides
            begun = env.monotonic_us()
            work()
            # The least: whatever else the machine does can only make a round slower.
            found[name] = min(found[name], max(1, env.monotonic_us() - begun))
    return found


def _nodes_per_s(env: envs.Env) -> int:
    data = {"items": [{"price": at % 40} for at in range(ITEMS)]}
    snapshot = flow_records.created(data, "", flow_records.JobContext())
    total = compiler.Compiler().one(_TOTAL)
    us = _best(env, {"total": lambda: [total(EvalScope(snapshot)) for _ in range(10)]})["total"]
    return round(10 * _TOTAL_NODES / us * 1_000_000)


def _computes(
    env: envs.Env, domain: compiled_document.Compiled, unswitched: compiled_document.Compiled
) -> dict[str, Any]:
    traced, untraced = core.Core(), core.Core(trace=False)
    us = _best(
        env,
        {
            "counter": _work(traced, domain, "one"),
            "counter untraced": _work(untraced, domain, "one"),
            "traced": _work(traced, domain, "many"),
            "untraced": _work(untraced, domain, "many"),
            "without": _work(untraced, unswitched, "many"),
        },
    )
    return {
        "counter_per_s": round(COMPUTES / us["counter"] * 1_000_000),
        "counter_untraced_per_s": round(COMPUTES / us["counter untraced"] * 1_000_000),
        "trace_costs": round(us["traced"] / us["untraced"] - 1, 3),
        "switched_off_costs": round(us["untraced"] / us["without"] - 1, 3),
    }


def _work(with_core: core.Core, domain: compiled_document.Compiled, action: str) -> Callable[[], object]:
    intent, context = flow_records.Intent(action, "i"), flow_records.JobContext(now=1_000)
    first = core.created(domain, {}, context)

    def work() -> None:
        head = first
        for _ in range(COMPUTES):  # many in one measurement: one is shorter than the clock can tell
            head = with_core.compute(domain, head, intent, context).snapshot

    return work


def _cells(env: envs.Env, domain: compiled_document.Compiled) -> dict[str, Any]:
    """Microseconds of one compute, and of writing and reading the snapshot, by its size."""
    found: dict[str, Any] = {}
    intent, context, untraced = (
        flow_records.Intent("one", "i"),
        flow_records.JobContext(now=1_000),
        core.Core(trace=False),
    )
    for size in CELLS_KIB:
        head = core.created(domain, {"items": filling(size * KIB)}, context)
        stored = flow_records.plain(head)
        us = _best(
            env,
            {
                "compute": lambda head=head: untraced.compute(domain, head, intent, context),  # type: ignore[misc]
                "write": lambda head=head: flow_records.encoded(head),  # type: ignore[misc]
                "read": lambda stored=stored: flow_records.decoded(stored),  # type: ignore[misc]
            },
        )
        found |= {f"{name}_{size}_kib_us": round(each) for name, each in us.items()}
    return found


def filling(size: int) -> list[Any]:
    """Items whose JSON is about as long as this."""
    item = {"name": "a thing of some length", "count": 3, "done": False}
    return [dict(item) for _ in range(size // 56)]
