"""What is valid in a document but probably a mistake: effects without a guard or behind one that never holds, computed
values read too early, containers that are compared.

unguarded    A flow is run again from its beginning after every effect. An effect must stand behind a condition that its
             answer makes false: one that reads a field which the effect answers into, or which the flow writes. The
             condition may be around it, or end the flow before it. `available` is no guard: it is asked once.
never        An effect that is asked for while a field is null, and the field begins with a value and no action writes
             it: the effect is never asked for.
stale        Computed values stay as they were until the flow ends. One that is read after a field it depends on was
             patched in the same flow has its old value.
containers   `eq` and `neq` compare objects and arrays by place: two with the same contents are not equal.

A document with none of these may still be wrong, and one with them be right: they are findings, not problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from worldline.flow_core import document_schema, fields, flow_nodes, value_paths
from worldline.flow_core.analysis import reads
from worldline.flow_core.compiled_document import Compiled
from worldline.flow_core.expressions import shapes

UNGUARDED: Final = "unguarded"
NEVER: Final = "never"
STALE: Final = "stale"
CONTAINERS: Final = "containers"
_GUARD: Final = "put it into an `if` that reads a field its answer fills, as flow.perform and flow.once do"
_BEGIN: Final = "let the field begin with null"
_READ: Final = "compute it from the fields here, or read it before the patch"
_COMPARE: Final = "compare their members, their len, or with null"

# Kinds whose value is an object or an array.
_MAKES: Final = (
    "object",
    "map",
    "filter",
    "append",
    "keys",
    "values",
    "entries",
    "merge",
    "pick",
    "omit",
    "fromEntries",
    "split",
    "slice",
    "reverse",
    "unique",
    "flat",
)


class DocumentFinding(msgspec.Struct, frozen=True):
    """One likely mistake: which rule, where, what, and what to write instead."""

    rule: str
    path: str
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; {self.instead}"


def lint(domain: Compiled) -> list[DocumentFinding]:
    """All findings, in the order of the document."""
    parsed = domain.schema
    found = [
        finding
        for key, field in parsed.computed.fields.items()
        for finding in _compared(field.expr, parsed, None, f"computed.fields.{key}.expr")
    ]
    for name, action in parsed.actions.items():
        where = f"actions.{name}"
        if isinstance(action.available, dict):
            found += _compared(action.available, parsed, action, f"{where}.available")
        found += _Flow(parsed, action).findings(f"{where}.flow")
        found += never_asked(parsed, name)
    return found


def never_asked(parsed: document_schema.DomainSchema, name: str) -> Iterator[DocumentFinding]:
    """Yield the effects of an action that wait for a field to be null which never is."""
    begins = document_schema.defaults(parsed)
    written = [path for each in parsed.actions.values() for path in _patches(each)]
    for place, node in reads.walk(parsed.actions[name]):
        # Core evaluates these at once, so nothing is asked for.
        if node["kind"] != "if" or node["then"]["kind"] != "effect" or node["then"]["type"] in flow_nodes.INLINE:
            continue
        for path in _null_checks(node["cond"]):
            # A field that is null at first, or that some action writes, may be null by then.
            if begins.get(path) is not None and not any(_overlap(path, each) for each in written):
                what = f"the effect {node['then']['type']!r} is never asked for: {path} is never null"
                yield DocumentFinding(NEVER, f"actions.{name}.flow{place}", what, _BEGIN)


def _null_checks(condition: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths that must be null for a condition to hold."""
    if condition["kind"] == "isNull" and condition["arg"]["kind"] == "get":
        yield condition["arg"]["path"]
    elif condition["kind"] == "and":
        for each in condition["args"]:
            yield from _null_checks(each)


class _Flow:
    """One action, walked in the order it is run in: which fields may be patched by now."""

    def __init__(self, parsed: document_schema.DomainSchema, action: document_schema.ActionSpec) -> None:
        self._parsed = parsed
        self._action = action
        self._patched: dict[str, None] = {}
        self._found: list[DocumentFinding] = []
        self._written = _inline_writes(parsed, action)
        self._called: dict[str, tuple[list[str], dict[str, None]]] = {}  # what called flows read and patch
        self._states: dict[str, list[str]] = {}  # the fields that computed values depend on

    def findings(self, where: str) -> list[DocumentFinding]:
        self._node(self._action.flow, where, ())
        return self._found

    def _node(self, node: Mapping[str, Any], where: str, guards: tuple[str, ...]) -> None:
        """`guards`: the fields that the conditions around this node read."""
        for place, form, inner in document_schema.node_children(node):
            if form == "e":
                self._found += _compared(inner, self._parsed, self._action, f"{where}{place}")
                self._check_reads(shapes.paths(inner), f"{where}{place}")
        kind = node["kind"]
        if kind == "seq":
            self._steps(node["steps"], where, guards)
        elif kind == "if":
            self._branches(node, where, (*guards, *self._fields_of(shapes.paths(node["cond"]))))
        elif kind == "patch":
            self._patched[node["path"]] = None
        elif kind == "call":
            self._call(node["flow"], where)
        elif kind == "effect" and node["type"] in flow_nodes.INLINE:
            # Core has written its answer when the next step is run.
            self._patched |= dict.fromkeys(reads.targets(node))
        elif kind == "effect":
            self._effect(node, where, guards)

    def _steps(self, steps: list[Mapping[str, Any]], where: str, guards: tuple[str, ...]) -> None:
        for at, step in enumerate(steps):
            self._node(step, f"{where}.steps[{at}]", guards)
            # If one branch ends the flow, the condition guards all that comes behind.
            if step["kind"] == "if" and (_ends(step["then"]) or ("else" in step and _ends(step["else"]))):
                guards = (*guards, *self._fields_of(shapes.paths(step["cond"])))

    def _branches(self, node: Mapping[str, Any], where: str, guards: tuple[str, ...]) -> None:
        """Behind a branch, what was patched in either may be; one that ends the flow has no behind."""
        before = self._patched
        # Without `else`, a flow may also go past the `if`, with what was patched before.
        behind: dict[str, None] = {} if "else" in node else before
        for branch in ("then", "else"):
            if branch in node:
                self._patched = dict(before)
                self._node(node[branch], f"{where}.{branch}", guards)
                behind = behind if _ends(node[branch]) else {**behind, **self._patched}
        self._patched = dict(behind)

    def _effect(self, node: Mapping[str, Any], where: str, guards: tuple[str, ...]) -> None:
        answers = list(reads.targets(node))
        changed = [*answers, *self._written]
        # An effect without a target makes no condition false, so any condition counts.
        guarded = any(_overlap(guard, each) for guard in guards for each in changed) if answers else bool(guards)
        if not guarded:
            what = f"the effect {node['type']!r} is asked for again whenever the flow is run again"
            self._found.append(DocumentFinding(UNGUARDED, where, what, _GUARD))

    def _call(self, name: str, where: str) -> None:
        """What the called flow reads is looked at with what is patched here; its own patches come after."""
        # Kept, because an action may be called from many places.
        if name not in self._called:
            every = reads.called(self._parsed, name)
            read = dict.fromkeys(path for each in every for path in reads.of_flow(each))
            self._called[name] = (list(read), dict.fromkeys(path for each in every for path in _patches(each)))
        known, patched = self._called[name]
        self._check_reads(iter(known), where)
        self._patched |= patched

    def _check_reads(self, read: Iterator[str], where: str) -> None:
        for path in dict.fromkeys(read):
            if path not in self._parsed.computed.fields:
                continue
            if path not in self._states:
                self._states[path] = self._fields_of(iter((path,)))
            behind = self._states[path]
            stale = next((each for each in self._patched if any(_overlap(each, field) for field in behind)), None)
            if stale is not None:
                what = f"{path} is read after {stale} was patched, and has its old value"
                self._found.append(DocumentFinding(STALE, where, what, _READ))

    def _fields_of(self, read: Iterator[str]) -> list[str]:
        """Return the fields of the state that paths stand for; a computed value stands for those it depends on."""
        found: dict[str, None] = {}
        seen: dict[str, None] = {}
        todo = list(read)
        while todo:
            path = todo.pop(0)
            if path in seen:
                continue
            seen[path] = None
            if path in self._parsed.computed.fields:
                todo += self._parsed.computed.fields[path].deps
            elif value_paths.split(path)[0] in self._parsed.state.fields:
                found[path] = None
        return list(found)


def _inline_writes(parsed: document_schema.DomainSchema, action: document_schema.ActionSpec) -> list[str]:
    """What a run of the flow itself writes, in the actions that it calls too."""
    called = dict.fromkeys(node["flow"] for _, node in reads.walk(action) if node["kind"] == "call")
    every = [action, *(each for name in called for each in reads.called(parsed, name))]
    return list(dict.fromkeys(path for each in every for path in _patches(each)))


def _patches(action: document_schema.ActionSpec) -> Iterator[str]:
    for _, node in reads.walk(action):
        if node["kind"] == "patch":
            yield node["path"]
        elif node["kind"] == "effect" and node["type"] in flow_nodes.INLINE:
            yield from reads.targets(node)


def _ends(node: Mapping[str, Any]) -> bool:
    """Return whether nothing behind a node is run."""
    if node["kind"] == "seq":
        return any(_ends(each) for each in node["steps"])
    if node["kind"] == "if":
        return "else" in node and _ends(node["then"]) and _ends(node["else"])
    return node["kind"] in ("halt", "fail")


def _overlap(one: str, other: str) -> bool:
    """Return whether writing one path may change what the other reads."""
    shorter, longer = sorted((value_paths.split(one), value_paths.split(other)), key=len)
    # A write above or below the path changes what is read there.
    return longer[: len(shorter)] == shorter


def _compared(
    expression: Mapping[str, Any],
    parsed: document_schema.DomainSchema,
    action: document_schema.ActionSpec | None,
    where: str,
) -> Iterator[DocumentFinding]:
    if expression["kind"] in ("eq", "neq"):
        sides = (expression["left"], expression["right"])
        # Comparing with null is what `eq` of a container is good for.
        if any(_is_container(each, parsed, action) for each in sides) and not any(_is_null(each) for each in sides):
            what = f"{expression['kind']} of an object or array compares places, not what is in them"
            yield DocumentFinding(CONTAINERS, where, what, _COMPARE)
    for place, each in shapes.children(expression):
        yield from _compared(each, parsed, action, f"{where}.{place}")


def _is_null(expression: Mapping[str, Any]) -> bool:
    return expression["kind"] == "lit" and expression["value"] is None


def _is_container(
    expression: Mapping[str, Any], parsed: document_schema.DomainSchema, action: document_schema.ActionSpec | None
) -> bool:
    """Return whether the value is an object or array, as far as the document says."""
    kind = expression["kind"]
    if kind == "lit":
        return isinstance(expression["value"], list | dict)
    if kind != "get":
        return kind in _MAKES
    path = expression["path"]
    if path in parsed.computed.fields:
        made = parsed.computed.fields[path].expr
        # Behind one that only gets another, nothing is looked up: such a chain may be a circle.
        return made["kind"] != "get" and _is_container(made, parsed, None)
    segments = value_paths.split(path)
    spec = fields.lookup(parsed.state.fields, segments)
    # Only the action knows what its input may be.
    if segments[0] == "input" and action is not None and isinstance(action.input, document_schema.FieldSpec):
        spec = action.input if len(segments) == 1 else fields.lookup({"input": action.input}, segments)
    return spec is not None and (spec.type == "array" or (spec.type == "object" and isinstance(spec.fields, dict)))
