"""What an action reads, writes and asks for, as its document says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from worldline.flow_core import document_schema, flow_nodes, validation
from worldline.flow_core.expressions import shapes


def walk(spec: document_schema.ActionSpec) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return every node of an action's flow, with its place in it."""
    return validation.walk(spec.flow, "")


def called(parsed: document_schema.DomainSchema, name: str) -> list[document_schema.ActionSpec]:
    """Return an action and those that it calls, directly or through others, each once."""
    found: dict[str, None] = {}
    todo = [name]
    while todo:
        each = todo.pop(0)
        # A document that was never validated may have actions that call each other in a circle.
        if each not in found and each in parsed.actions:
            found[each] = None
            todo += [node["flow"] for _, node in walk(parsed.actions[each]) if node["kind"] == "call"]
    return [parsed.actions[each] for each in found]


def of_action(spec: document_schema.ActionSpec) -> list[str]:
    """Return every path that an action gets, in its condition and its flow, each once."""
    return list(dict.fromkeys([*of_condition(spec), *of_flow(spec)]))


def of_flow(spec: document_schema.ActionSpec) -> list[str]:
    """Return every path that the flow of an action gets, each once."""
    found: list[str] = []
    for _, node in walk(spec):
        for _, form, inner in document_schema.node_children(node):
            if form == "e":
                found += shapes.paths(inner)
    return list(dict.fromkeys(found))


def of_condition(spec: document_schema.ActionSpec) -> list[str]:
    """Return every path that the condition of an action gets, each once."""
    return list(dict.fromkeys(shapes.paths(spec.available))) if isinstance(spec.available, dict) else []


def written(spec: document_schema.ActionSpec) -> list[str]:
    """Return the paths that an action patches, and those that its effects are to answer into, each once."""
    found: dict[str, None] = {}
    for _, node in walk(spec):
        if node["kind"] == "patch":
            found[node["path"]] = None
        elif node["kind"] == "effect":
            found |= dict.fromkeys(targets(node))
    return list(found)


def answers(spec: document_schema.ActionSpec) -> list[tuple[str, str]]:
    """Return the effects that an action asks for, each with a field that it is to answer into."""
    return list(dict.fromkeys((node["type"], target) for node in _asked(spec) for target in targets(node)))


def effects(spec: document_schema.ActionSpec) -> list[str]:
    """Return the types of the effects that an action asks for, each once; what Core does itself is none."""
    return list(dict.fromkeys(node["type"] for node in _asked(spec)))


def targets(effect: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields that an effect node names for its answer: by convention literals, `into` and `fail`."""
    for name in ("into", "fail"):
        given = effect["params"].get(name, {})
        # A target that is computed shows only when the flow is run.
        if given.get("kind") == "lit" and isinstance(given["value"], str):
            yield given["value"]


def _asked(spec: document_schema.ActionSpec) -> Iterator[Mapping[str, Any]]:
    for _, node in walk(spec):
        if node["kind"] == "effect" and node["type"] not in flow_nodes.INLINE:
            yield node
