"""What a compute did, node by node: children before parents, so the root has the highest number."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from worldline.flow_core import flow_records, js_values


class TraceNode(msgspec.Struct, frozen=True, rename="camel"):
    """One node that was run."""

    id: str
    kind: str  # flow, branch, patch, effect, call, halt, error; of `explain`: computed, expr
    source_path: str
    inputs: dict[str, Any]
    output: Any
    children: tuple[str, ...]
    timestamp: int


class TraceGraph(msgspec.Struct, frozen=True, rename="camel"):
    """All nodes of a compute, and how it ended."""

    root: str
    nodes: dict[str, TraceNode]
    intent: dict[str, Any]
    base_version: int
    result_version: int
    duration: int
    terminated_by: str  # complete, effect, halt, error


def copied(graph: TraceGraph) -> TraceGraph:
    """A copy that shares no container with the graph: its nodes show values that are in the snapshot."""
    nodes = {
        name: replace(each, inputs=js_values.duplicate(each.inputs), output=js_values.duplicate(each.output))
        for name, each in graph.nodes.items()
    }
    return replace(graph, nodes=nodes, intent=js_values.duplicate(graph.intent))


def refused(name: str, error: flow_records.ErrorValue) -> TraceNode:
    """Return the one node of a compute that an early step refused: nothing of its flow was run."""
    return TraceNode(
        id=name,
        kind="error",
        source_path=error.source.node_path,
        inputs={"code": error.code, "message": error.message},
        output=None,
        children=(),
        timestamp=error.timestamp,
    )


class NodeRecorder:
    """Collects the nodes of one compute."""

    def __init__(self, timestamp: int) -> None:
        self._timestamp = timestamp
        # For each open node the ones that have ended in it; the first list is for the root.
        self._open: list[list[str]] = [[]]
        self.nodes: dict[str, TraceNode] = {}
        self.root = ""

    def begin(self) -> None:
        self._open.append([])

    def end(self, kind: str, path: str, inputs: dict[str, Any], output: Any) -> None:
        children = tuple(self._open.pop())
        # The last node to end is the root, so it is set again each time.
        self.root = f"trace-{len(self.nodes)}"
        self._open[-1].append(self.root)
        self.nodes[self.root] = TraceNode(
            id=self.root,
            kind=kind,
            source_path=path,
            inputs=inputs,
            output=output,
            children=children,
            timestamp=self._timestamp,
        )
