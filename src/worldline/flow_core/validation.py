"""What is wrong with a document, beyond its shape.

| code | what |
| --- | --- |
| SCHEMA_ERROR | the shape: kinds, arguments, id, version, hash, empty parts, optional fields without a default |
| V-008 | the hash is not that of the document |
| V-001 | a dependency of a computed value is unknown, or one that it reads is not declared |
| V-003 | a path that is read is declared nowhere |
| V-002 | computed values depend on each other |
| V-004 | a call of an action that is not there |
| V-005 | actions that call each other in a circle |

V-006 (a value that does not fit its field) is found when it is written; V-007 is part of the shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET

from worldline.flow_core import compiled_document, computed, document_schema, faults, fields, hashing, value_paths
from worldline.flow_core.expressions import shapes

_LOOP = ("$item", "$index", "$array")


def validate(document: object) -> list[faults.Problem]:
    """List all that is wrong with a document, in the order of the table; empty if nothing is."""
    parsed, problems = document_schema.read(document)
    if parsed is None:
        return problems
    assert isinstance(document, Mapping)
    return [*_hash(document, parsed), *_computed(parsed), *_actions(parsed), *_cycles(parsed), *_calls(parsed)]


def load(document: object) -> compiled_document.Compiled:
    """Make a document ready to run. Raises `faults.SchemaRefused` with everything that is wrong."""
    problems = validate(document)
    if problems:
        raise faults.SchemaRefused(tuple(problems))
    return load_unchecked(document)


def load_unchecked(document: object) -> compiled_document.Compiled:
    """Only the shape is looked at: what else is wrong becomes an error value when it is met."""
    parsed, problems = document_schema.read(document)
    if parsed is None:
        raise faults.SchemaRefused(tuple(problems))
    assert isinstance(document, Mapping)
    return compiled_document.Compiled(document, parsed)


def _hash(document: Mapping[str, Any], parsed: document_schema.DomainSchema) -> Iterator[faults.Problem]:
    expected = hashing.schema_hash(document)
    if parsed.hash != expected:
        yield faults.Problem("V-008", f"the hash is {parsed.hash}, that of the document is {expected}", "hash")


def _computed(parsed: document_schema.DomainSchema) -> Iterator[faults.Problem]:
    every = parsed.computed.fields
    for key, field in every.items():
        where = f"computed.fields.{key}"
        for dep in field.deps:
            if dep not in every and not fields.readable(parsed.state.fields, value_paths.split(dep)):
                yield faults.Problem("V-001", f"the dependency {dep!r} is declared nowhere", where)
        for path in dict.fromkeys(shapes.paths(field.expr)):
            if _is_loop(path):
                continue
            if not _known(path, parsed):
                yield faults.Problem("V-003", f"{path!r} is declared nowhere", where)
            # A dependency on an object covers what is inside of it.
            elif not any(path == dep or path.startswith(f"{dep}.") for dep in field.deps):
                yield faults.Problem("V-001", f"{path!r} is read and no dependency", where)


def _actions(parsed: document_schema.DomainSchema) -> Iterator[faults.Problem]:
    for name, action in parsed.actions.items():
        if action.available is not UNSET:
            given: Any = action.available
            yield from _reads(given, parsed, action, f"actions.{name}.available")
        for where, node in walk(action.flow, f"actions.{name}.flow"):
            for place, form, inner in document_schema.node_children(node):
                if form == "e":
                    yield from _reads(inner, parsed, action, f"{where}{place}")


def _reads(
    expression: Mapping[str, Any], parsed: document_schema.DomainSchema, action: document_schema.ActionSpec, where: str
) -> Iterator[faults.Problem]:
    for path in dict.fromkeys(shapes.paths(expression)):
        if path.startswith(("$", "system.", "meta.")) or _known(path, parsed) or _is_input(path, action):
            continue
        yield faults.Problem("V-003", f"{path!r} is declared nowhere", where)


def _is_input(path: str, action: document_schema.ActionSpec) -> bool:
    if path != "input" and not path.startswith("input."):
        return False
    spec = action.input
    # Where no members are declared, any may be given.
    if path == "input" or not isinstance(spec, document_schema.FieldSpec) or not isinstance(spec.fields, dict):
        return True
    return fields.readable(spec.fields, value_paths.split(path)[1:])


def _is_loop(path: str) -> bool:
    return path in _LOOP or path.startswith("$item.")


def _known(path: str, parsed: document_schema.DomainSchema) -> bool:
    if path.startswith("computed."):
        return path in parsed.computed.fields
    return fields.readable(parsed.state.fields, value_paths.split(path))


def _cycles(parsed: document_schema.DomainSchema) -> Iterator[faults.Problem]:
    try:
        computed.ordered(parsed.computed.fields)
    except faults.Fault as fault:
        yield faults.Problem("V-002", fault.message, "computed.fields")


def walk(node: Mapping[str, Any], where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every node of a flow whose shape is right, with its path."""
    yield where, node
    for place, form, inner in document_schema.node_children(node):
        if form == "n":
            yield from walk(inner, f"{where}{place}")


def _calls(parsed: document_schema.DomainSchema) -> Iterator[faults.Problem]:
    called: dict[str, list[str]] = {}
    for name, action in parsed.actions.items():
        for where, node in walk(action.flow, f"actions.{name}.flow"):
            if node["kind"] != "call":
                continue
            if node["flow"] not in parsed.actions:
                yield faults.Problem("V-004", f"there is no action {node['flow']!r} to call", where)
            else:
                called.setdefault(name, []).append(node["flow"])
    for name in parsed.actions:
        # Each member of a circle is named, because any of them may be the mistake.
        if name in _reached(called, name):
            yield faults.Problem("V-005", f"{name!r} calls itself, directly or through others", f"actions.{name}.flow")


def _reached(called: Mapping[str, list[str]], start: str) -> dict[str, None]:
    """Return the actions that an action calls, directly or through others."""
    found: dict[str, None] = {}
    todo = list(called.get(start, ()))
    # Seen once is enough, so a circle of calls ends.
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = None
            todo += called.get(name, ())
    return found
