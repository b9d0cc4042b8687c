"""A domain as a Mermaid flowchart: what its computed values depend on, what its actions need, write and ask for."""

from __future__ import annotations

from typing import Final

from worldline.flow_core import document_schema, value_paths
from worldline.flow_core.analysis import reads

_SHAPES: Final = {"field": "[{}]", "computed": "([{}])", "action": "[[{}]]", "effect": "{{{{{}}}}}"}


def mermaid(parsed: document_schema.DomainSchema) -> str:
    """Draw the flowchart as text. Equal documents give equal text."""
    chart = _Chart()
    for name in parsed.state.fields:
        chart.node("field", name)
    for key, field in parsed.computed.fields.items():
        for dep in field.deps:
            chart.edge(_read(chart, parsed, dep), "-->", chart.node("computed", key))
        # One without dependencies has no edge that names it.
        chart.node("computed", key)
    for name, action in parsed.actions.items():
        _action(chart, parsed, name, action)
    return chart.text()


def _action(chart: _Chart, parsed: document_schema.DomainSchema, name: str, action: document_schema.ActionSpec) -> None:
    at = chart.node("action", name)
    for path in reads.of_condition(action):
        # The input and the runtime's own values are no part of the domain.
        if path in parsed.computed.fields or value_paths.split(path)[0] in parsed.state.fields:
            chart.edge(_read(chart, parsed, path), "-. available .->", at)
    for _, node in reads.walk(action):
        if node["kind"] == "patch" and value_paths.split(node["path"])[0] in parsed.state.fields:
            chart.edge(at, "-->", chart.node("field", value_paths.split(node["path"])[0]))
        elif node["kind"] == "call":
            chart.edge(at, "-- call -->", chart.node("action", node["flow"]))
    for effect in reads.effects(action):
        chart.edge(at, "-- effect -->", chart.node("effect", effect))
    for effect, target in reads.answers(action):
        if value_paths.split(target)[0] in parsed.state.fields:
            chart.edge(chart.node("effect", effect), "-->", chart.node("field", value_paths.split(target)[0]))


def _read(chart: _Chart, parsed: document_schema.DomainSchema, path: str) -> str:
    if path in parsed.computed.fields:
        return chart.node("computed", path)
    return chart.node("field", value_paths.split(path)[0])


class _Chart:
    """Nodes and edges, each once, in the order they were met."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], str] = {}
        self._edges: dict[str, None] = {}

    def node(self, kind: str, name: str) -> str:
        """Return the id of a node. Names of a document are text that the chart must not read: ids are numbers."""
        # By kind and name: a field and an action may have the same name.
        return self._ids.setdefault((kind, name), f"{kind[0]}{len(self._ids)}")

    def edge(self, start: str, arrow: str, end: str) -> None:
        self._edges[f"    {start} {arrow} {end}"] = None

    def text(self) -> str:
        nodes = [f"    {id}{_SHAPES[kind].format(_quoted(name))}" for (kind, name), id in self._ids.items()]
        return "\n".join(["flowchart LR", *nodes, *self._edges, ""])


def _quoted(name: str) -> str:
    """A label; characters that end one, or begin markup, are written as entities."""
    said = "".join(each if each not in '"#&<>`' and each.isprintable() else f"#{ord(each)};" for each in name)
    return f'"{said}"'
