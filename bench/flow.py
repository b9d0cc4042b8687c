"""Flow domains on one core: `python -m bench.flow --json`

Closures against the tree interpreter that is their oracle in the tests, on the same expressions,
in turns; computes of the
counter with and without a trace; whole intents of the standalone host. CPU time of this process,
the best of some rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from tests.flow_core import interpreter
from tests.flow_core.documents import COUNTER, get, lit, op
from worldline import flow
from worldline.flow_core import core, document_schema, flow_records, validation
from worldline.flow_core.expressions import compiler, shapes
from worldline.flow_core.expressions.scope import EvalScope

ITEMS = 1_000
ROUNDS = 7

DATA = {
    "items": [{"price": at % 40, "count": 2, "name": f"item {at}"} for at in range(ITEMS)],
    "rate": 1.2,
    "name": "ada",
}
PRICE = op("mul", get("$item.price"), get("$item.count"))
WANTED = op("and", op("gt", get("$item.price"), lit(-1)), op("not", op("eq", get("$item.name"), lit("item 5"))))
KEPT = {"kind": "filter", "array": get("items"), "predicate": WANTED}
EXPRESSIONS: dict[str, dict[str, Any]] = {
    "arithmetic over a list": {
        "kind": "sumArray",
        "array": {"kind": "map", "array": get("items"), "mapper": op("add", PRICE, lit(1))},
    },
    "filter and logic": KEPT,
    "text over a list": {
        "kind": "map",
        "array": get("items"),
        "mapper": op("concat", get("$item.name"), lit(": "), get("$item.price")),
    },
    "conditions": {
        "kind": "map",
        "array": get("items"),
        "mapper": {
            "kind": "if",
            "cond": op("lt", get("$item.price"), lit(20)),
            "then": PRICE,
            "else": op("sub", PRICE, get("rate")),
        },
    },
}


def evaluated(expression: dict[str, Any], data: dict[str, Any]) -> int:
    """The nodes that one evaluation visits, loops counted; branches that are not taken count as their mates."""
    inner = [each for _, each in shapes.children(expression)]
    if expression["kind"] in ("map", "filter"):
        source, body = inner
        return 1 + evaluated(source, data) + ITEMS * evaluated(body, data)
    if expression["kind"] == "if":
        return 1 + evaluated(inner[0], data) + evaluated(inner[1], data)
    return 1 + sum(evaluated(each, data) for each in inner)


def best(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The least CPU seconds of some rounds."""
    found = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def expressions() -> dict[str, Any]:
    snapshot = flow_records.created(DATA, "h", flow_records.JobContext())
    figures: dict[str, Any] = {}
    closures = reference = nodes = 0.0
    for name, expression in EXPRESSIONS.items():
        run = compiler.Compiler().one(expression)
        env = interpreter.Env(snapshot)
        assert run(EvalScope(snapshot)) == interpreter.evaluate(expression, env)
        fast = slow = float("inf")
        for _ in range(ROUNDS):
            fast = min(fast, best(lambda run=run: run(EvalScope(snapshot)), 1))  # type: ignore[misc]
            slow = min(slow, best(lambda e=expression, env=env: interpreter.evaluate(e, env), 1))  # type: ignore[misc]
        count = evaluated(expression, DATA)
        figures[name] = {"nodes_per_s": round(count / fast), "of_interpreter": round(slow / fast, 2)}
        closures, reference, nodes = closures + fast, reference + slow, nodes + count
    return {"nodes_per_s": round(nodes / closures), "of_interpreter": round(reference / closures, 2), "each": figures}


def computes(count: int = 3_000) -> dict[str, Any]:
    """Computes of the counter, traced and not, in turns."""
    domain = validation.load(document_schema.sealed(COUNTER))
    intent, context = flow_records.Intent("increment", "i"), flow_records.JobContext(now=1_000)
    first = flow_records.created({"count": 0}, domain.hash, context)
    seconds = {True: float("inf"), False: float("inf")}
    for _ in range(ROUNDS):
        for traced in (True, False):
            with_core = core.Core(trace=traced)

            def work(with_core: core.Core = with_core) -> None:
                head = first
                for _ in range(count):
                    head = with_core.compute(domain, head, intent, context).snapshot

            seconds[traced] = min(seconds[traced], best(work, 1))
    return {
        "per_s": round(count / seconds[True]),
        "untraced_per_s": round(count / seconds[False]),
        "trace_costs": round(seconds[True] / seconds[False] - 1, 3),
    }


def intents(count: int = 1_000) -> dict[str, Any]:
    """Intents of the standalone host, one after the other: slot, compute, mailbox, runner."""

    async def work() -> None:
        host = flow.Host(document_schema.sealed(COUNTER))
        for _ in range(count):
            await host.dispatch("increment")

    return {"per_s": round(count / best(lambda: asyncio.run(work()), 3))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    figures = {"expressions": expressions(), "counter computes": computes(), "standalone intents": intents()}
    if given.json:
        print(json.dumps(figures, indent=2))
        return
    for name, found in figures.items():
        print(f"{name}: {', '.join(f'{key} {value:,}' for key, value in found.items() if key != 'each')}")


if __name__ == "__main__":
    main()
