"""A few values for a field, chosen by its spec and by the literals of its document: where conditions change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from worldline.flow_core import document_schema, js_values
from worldline.flow_core.analysis import reads
from worldline.flow_core.expressions import shapes

LITERALS_MAX: Final = 6  # of each kind


class Literals:
    """The texts and numbers that a document compares with or writes, the first ones of each."""

    def __init__(self, parsed: document_schema.DomainSchema) -> None:
        texts: dict[str, None] = {}
        numbers: dict[float, None] = {}
        for value in _literals(parsed):
            if isinstance(value, str):
                texts[value] = None
            elif isinstance(value, int | float) and not isinstance(value, bool):
                # One more than a literal is where a comparison with it turns.
                numbers |= {value: None, value + 1: None}
        self.texts = list(texts)[:LITERALS_MAX]
        self.numbers = list(numbers)[:LITERALS_MAX]


def of_field(spec: document_schema.FieldSpec, literals: Literals, count_max: int) -> list[Any]:
    """Values that fit a field, the plainest first, at most so many; no two are equal."""
    found = _of_kind(spec, literals, count_max)
    return found[:count_max]


def _of_kind(spec: document_schema.FieldSpec, literals: Literals, count_max: int) -> list[Any]:
    kind = spec.type
    if isinstance(kind, document_schema.Enum):
        # All of them: conditions usually compare with each.
        return list(kind.enum) or [None]  # null fits every field
    if kind == "object":
        return of_members(spec.fields, literals, count_max) if isinstance(spec.fields, dict) else [{}]
    if kind == "array":
        if not isinstance(spec.items, document_schema.FieldSpec):
            return [[]]
        return [[each] for each in of_field(spec.items, literals, 1)] + [[]]
    plain: Mapping[str, list[Any]] = {
        "number": [1, 0, -1, *(each for each in literals.numbers if each not in (1, 0, -1))],
        "string": ["a", "", *(each for each in literals.texts if each not in ("a", ""))],
        "boolean": [True, False],
        "null": [None],
    }
    return plain[kind]


def of_members(fields: Mapping[str, document_schema.FieldSpec], literals: Literals, count_max: int) -> list[Any]:
    """Objects: the plainest of every member, then one other member after the other; optional ones left out once."""
    plainest = {name: of_field(spec, literals, 1)[0] for name, spec in fields.items()}
    found: list[Any] = [plainest]
    required = {name: value for name, value in plainest.items() if fields[name].required}
    # Only where it is another object: samples must not be equal.
    if required != plainest:
        found.append(required)
    for name, spec in fields.items():
        found += [{**plainest, name: each} for each in of_field(spec, literals, count_max)[1:]]
    return found[:count_max]


def of_input(spec: document_schema.ActionSpec, literals: Literals, count_max: int) -> list[Any]:
    """Inputs of an action; `js_values.MISSING` alone if it takes none."""
    if isinstance(spec.input, document_schema.FieldSpec):
        return of_field(spec.input, literals, count_max)
    return [js_values.MISSING]


def _literals(parsed: document_schema.DomainSchema) -> Iterator[Any]:
    for action in parsed.actions.values():
        if isinstance(action.available, dict):
            yield from _inside(action.available)
        for _, node in reads.walk(action):
            for place, form, inner in document_schema.node_children(node):
                # Targets of effects are paths, and not data.
                if form == "e" and place not in (".params.into", ".params.fail"):
                    yield from _inside(inner)
    for field in parsed.computed.fields.values():
        yield from _inside(field.expr)


def _inside(expression: Mapping[str, Any]) -> Iterator[Any]:
    if expression["kind"] == "lit":
        yield expression["value"]
    for _, each in shapes.children(expression):
        yield from _inside(each)
