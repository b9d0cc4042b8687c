"""Expressions compiled to closures, once for each document.

A closure takes the scope and returns a value; it never changes one. The compiler counts nodes and bounds their depth;
shapes were checked before (`shapes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from worldline.base import limits
from worldline.flow_core import faults, hashing, js_values
from worldline.flow_core.expressions import containers, lookups, numbers, shapes, texts
from worldline.flow_core.expressions.scope import Run

_LOOPS: Final = ("map", "filter", "find", "every", "some")


def literal(value: Any) -> Run:
    # Copied once: every evaluation gives this very container, which nothing changes in place.
    kept = js_values.from_outside(value, "a literal")
    return lambda _: kept


BUILDERS: Final[dict[str, Callable[..., Run]]] = {
    "lit": literal,
    "get": lookups.compiled,
    "eq": numbers.eq,
    "neq": numbers.neq,
    "gt": numbers.gt,
    "gte": numbers.gte,
    "lt": numbers.lt,
    "lte": numbers.lte,
    "and": numbers.all_of,
    "or": numbers.any_of,
    "not": numbers.negated,
    "if": numbers.chosen,
    "add": numbers.add,
    "sub": numbers.sub,
    "mul": numbers.mul,
    "div": numbers.div,
    "mod": numbers.mod,
    "min": numbers.least,
    "max": numbers.greatest,
    "abs": numbers.absolute,
    "neg": numbers.neg,
    "floor": numbers.floor,
    "ceil": numbers.ceil,
    "round": numbers.rounded,
    "sqrt": numbers.sqrt,
    "pow": numbers.power,
    "sumArray": numbers.sum_array,
    "minArray": numbers.min_array,
    "maxArray": numbers.max_array,
    "typeof": numbers.kind_of,
    "isNull": numbers.is_null,
    "coalesce": numbers.coalesce,
    "toNumber": numbers.to_number,
    "toBoolean": numbers.to_boolean,
    "concat": texts.concat,
    "substring": texts.substring,
    "trim": texts.trim,
    "toLowerCase": texts.lower,
    "toUpperCase": texts.upper,
    "strLen": texts.length,
    "startsWith": texts.starts_with,
    "endsWith": texts.ends_with,
    "strIncludes": texts.contains,
    "indexOf": texts.index_of,
    "replace": texts.replace,
    "split": texts.split,
    "toString": texts.to_text,
    "len": containers.length,
    "at": containers.at,
    "first": containers.first,
    "last": containers.last,
    "slice": containers.cut,
    "includes": containers.includes,
    "filter": containers.filtered,
    "map": containers.mapped,
    "find": containers.find,
    "every": containers.every,
    "some": containers.some,
    "append": containers.append,
    "reverse": containers.backwards,
    "unique": containers.unique,
    "flat": containers.flat,
    "object": containers.made_of,
    "field": containers.field,
    "keys": containers.keys,
    "values": containers.member_values,
    "entries": containers.entries,
    "merge": containers.merge,
    "hasKey": containers.has_key,
    "pick": containers.pick,
    "omit": containers.omit,
    "fromEntries": containers.from_entries,
}
assert sorted(BUILDERS) == sorted(shapes.KINDS), "every kind has a builder"


class Compiler:
    """Compiles the expressions of one document."""

    def __init__(self) -> None:
        self.nodes = 0

    def one(self, expression: Mapping[str, Any], depth: int = 0) -> Run:
        """One expression with all its children."""
        wrong = shapes.problem(expression)
        if wrong:
            raise faults.Fault(faults.INTERNAL_ERROR, wrong)
        self.entered(depth)
        kind = expression["kind"]
        begun = self.nodes
        arguments = [self._argument(expression, name, form, depth) for name, form in shapes.KINDS[kind].items()]
        if kind in _LOOPS:
            # A loop is charged for its whole body at once, so it has to know how many nodes that has.
            arguments.append(self.nodes - begun)
        return BUILDERS[kind](*arguments)

    def entered(self, depth: int) -> None:
        """One more node, so deep."""
        self.nodes += 1
        if self.nodes > limits.FLOW_NODES_MAX:
            raise faults.Fault(faults.LIMIT_EXCEEDED, f"a document of more than {limits.FLOW_NODES_MAX} nodes")
        if depth > limits.FLOW_DEPTH_MAX:
            raise faults.Fault(faults.LIMIT_EXCEEDED, f"expressions nested deeper than {limits.FLOW_DEPTH_MAX}")

    def _argument(self, expression: Mapping[str, Any], name: str, form: str, depth: int) -> Any:
        given = expression.get(name)
        if form in ("v", "s"):
            return given
        if form == "*":
            return [self.one(each, depth + 1) for each in given or ()]
        if form == "{}":
            fields = given or {}
            # In one order, whatever order the stored document has.
            return [(each, self.one(fields[each], depth + 1)) for each in sorted(fields, key=hashing.utf16)]
        return None if name not in expression else self.one(expression[name], depth + 1)
