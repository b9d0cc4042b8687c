"""Schema documents: their shape, checked by msgspec. The raw document is kept beside it, for it is what is hashed.

A document is data: it can be journaled, sent and shown. `read` refuses what has the wrong shape; what a document means
is checked in `validation.py`, and it is made ready to run in `compiled_document.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from worldline.base import limits
from worldline.flow_core import faults, hashing
from worldline.flow_core.expressions import shapes

Primitive = Literal["string", "number", "boolean", "null", "object", "array"]

_ID: Final = re.compile(
    r"[a-zA-Z][a-zA-Z0-9+.-]*:.*"
    r"|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-5][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}",
    re.DOTALL,
)
_VERSION: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


class Enum(msgspec.Struct, frozen=True):
    """One of some values."""

    enum: list[Any]


class FieldSpec(msgspec.Struct, frozen=True):
    """What a field may hold. `fields` are those of an object, `items` of an array."""

    type: Primitive | Enum
    required: bool
    default: Any = UNSET
    description: str | UnsetType = UNSET
    fields: dict[str, FieldSpec] | UnsetType = UNSET
    items: FieldSpec | UnsetType = UNSET


class StateSpec(msgspec.Struct, frozen=True):
    fields: dict[str, FieldSpec]


class ComputedField(msgspec.Struct, frozen=True):
    deps: list[str]
    expr: dict[str, Any]
    description: str | UnsetType = UNSET


class ComputedSpec(msgspec.Struct, frozen=True):
    fields: dict[str, ComputedField]


class ActionSpec(msgspec.Struct, frozen=True):
    flow: dict[str, Any]
    input: FieldSpec | UnsetType = UNSET
    available: dict[str, Any] | UnsetType = UNSET
    description: str | UnsetType = UNSET


class DomainSchema(msgspec.Struct, frozen=True):
    """A whole document. `types` is never interpreted."""

    id: str
    version: str
    hash: str
    types: dict[str, dict[str, Any]]
    state: StateSpec
    computed: ComputedSpec
    actions: dict[str, ActionSpec]
    meta: dict[str, Any] | UnsetType = UNSET


# The children of each kind of node: `e` an expression, `n` a node, `*` nodes, `{}` expressions by name, `s` a text;
# with `?` it may be left out.
NODES: Final[dict[str, dict[str, str]]] = {
    "seq": {"steps": "*"},
    "if": {"cond": "e", "then": "n", "else": "n?"},
    "patch": {"op": "s", "path": "s", "value": "e?"},
    "effect": {"type": "s", "params": "{}"},
    "call": {"flow": "s"},
    "halt": {"reason": "s?"},
    "fail": {"code": "s", "message": "e?"},
}
OPS: Final = ("set", "unset", "merge")


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with its hash."""
    return {**document, "hash": hashing.schema_hash(document)}


def read(document: object) -> tuple[DomainSchema | None, list[faults.Problem]]:
    """Return the document as a record, and all that is wrong with its shape: then there is no record."""
    # Before msgspec reads it, which is recursive.
    if too_large := _too_large(document):
        return None, [faults.Problem("SCHEMA_ERROR", too_large)]
    try:
        parts = Parts.of(msgspec.convert(document, DomainSchema))
    except msgspec.ValidationError as refused:
        if not isinstance(document, Mapping):
            return None, [faults.Problem("SCHEMA_ERROR", str(refused))]
        # Part by part, because msgspec stops at the first thing that is wrong.
        parts = _parts(document)
        if not parts.problems:  # what only the whole shows, as a key that is no text
            return None, [faults.Problem("SCHEMA_ERROR", str(refused))]
    problems = [*parts.problems, *_frame_problems(parts)]
    for name, spec in parts.state.items():
        problems += _field_problems(spec, f"state.fields.{name}", top=True)
    for name, computed in parts.computed.items():
        problems += _expression_problems(computed.expr, f"computed.fields.{name}.expr")
    for name, action in parts.actions.items():
        problems += _action_problems(action, f"actions.{name}")
    return (parts.whole, []) if not problems else (None, problems)


class Parts(msgspec.Struct):
    """What can be read of a document: all of it (`whole`), or what is right beside what is wrong. `texts`: its id, its
    version and its hash; `read`: which of the others have a shape at all.
    """

    whole: DomainSchema | None = None
    problems: list[faults.Problem] = []
    texts: dict[str, str] = {}
    read: dict[str, None] = {}
    state: dict[str, FieldSpec] = {}
    computed: dict[str, ComputedField] = {}
    actions: dict[str, ActionSpec] = {}

    @classmethod
    def of(cls, schema: DomainSchema) -> Parts:
        return cls(
            whole=schema,
            texts={"id": schema.id, "version": schema.version, "hash": schema.hash},
            read=dict.fromkeys(("state", "computed", "actions")),
            state=schema.state.fields,
            computed=schema.computed.fields,
            actions=schema.actions,
        )


def _parts(document: Mapping[str, Any]) -> Parts:
    """A document whose shape is wrong somewhere, part by part: one wrong part hides no other."""
    found = Parts()
    for name in ("id", "version", "hash"):
        text = _part(document, name, str, name, found.problems)
        if text is not None:
            found.texts[name] = text
    _part(document, "types", dict[str, dict[str, Any]], "types", found.problems)
    for name, kind, into in (("state", FieldSpec, found.state), ("computed", ComputedField, found.computed)):
        # The names are checked before what they hold, so that each entry can be wrong by itself.
        holder = _part(document, name, dict[str, Any], name, found.problems)
        inner = None if holder is None else _part(holder, "fields", dict[str, Any], f"{name}.fields", found.problems)
        _entries(inner, kind, into, found, part=name, where=f"{name}.fields")
    inner = _part(document, "actions", dict[str, Any], "actions", found.problems)
    _entries(inner, ActionSpec, found.actions, found, part="actions", where="actions")
    if "meta" in document:
        _part(document, "meta", dict[str, Any], "meta", found.problems)
    return found


def _part(holder: Mapping[str, Any], name: str, kind: Any, where: str, problems: list[faults.Problem]) -> Any:
    """One member, None if it is missing or has another type."""
    if name not in holder:
        problems.append(faults.Problem("SCHEMA_ERROR", f"the document needs {where!r}", where))
        return None
    try:
        return msgspec.convert(holder[name], kind)
    except msgspec.ValidationError as refused:
        problems.append(faults.Problem("SCHEMA_ERROR", str(refused), where))
        return None


def _entries(
    inner: Mapping[str, Any] | None, kind: Any, into: dict[str, Any], parts: Parts, *, part: str, where: str
) -> None:
    """The members of a part, each by itself."""
    if inner is None:
        return
    parts.read[part] = None
    for name in inner:
        entry = _part(inner, name, kind, f"{where}.{name}", parts.problems)
        if entry is not None:
            into[name] = entry
        else:
            parts.read.pop(part, None)  # it is not empty, whatever is left of it


def _too_large(document: object) -> str:
    """Bounds that hold before any recursion into the document."""
    # Layer by layer, because the depth is what is not known yet.
    layer, depth, nodes = [document], 0, 0
    while layer:
        depth += 1
        nodes += len(layer)
        if depth > 3 * limits.FLOW_DEPTH_MAX:
            return f"nested deeper than {3 * limits.FLOW_DEPTH_MAX}"
        if nodes > 8 * limits.FLOW_NODES_MAX:
            return f"more than {8 * limits.FLOW_NODES_MAX} values"
        layer = [
            inner
            for each in layer
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return ""


def _frame_problems(parts: Parts) -> list[faults.Problem]:
    problems = []
    texts = parts.texts
    if "id" in texts and not _ID.fullmatch(texts["id"]):
        problems.append(faults.Problem("SCHEMA_ERROR", f"{texts['id']!r} is neither a URI nor a UUID", "id"))
    if "version" in texts and not _VERSION.fullmatch(texts["version"]):
        problems.append(faults.Problem("SCHEMA_ERROR", f"{texts['version']!r} is no semantic version", "version"))
    if texts.get("hash") == "":
        problems.append(faults.Problem("SCHEMA_ERROR", "the document has no hash", "hash"))
    needed = {
        "state": ("state.fields", parts.state),
        "computed": ("computed.fields", parts.computed),
        "actions": ("actions", parts.actions),
    }
    for name, (where, entries) in needed.items():
        # A part that could not be read has been said already.
        if name in parts.read and not entries:
            problems.append(faults.Problem("SCHEMA_ERROR", "at least one is needed", where))
    return problems


def _field_problems(spec: FieldSpec, where: str, *, top: bool = False) -> list[faults.Problem]:
    problems = []
    if top and not spec.required and spec.default is UNSET:
        problems.append(faults.Problem("SCHEMA_ERROR", "an optional field needs a default", where))
    if isinstance(spec.type, Enum) and not spec.type.enum:
        problems.append(faults.Problem("SCHEMA_ERROR", "an enum without values", where))
    for name, inner in ({} if spec.fields is UNSET else spec.fields or {}).items():
        problems += _field_problems(inner, f"{where}.{name}")
    if isinstance(spec.items, FieldSpec):
        problems += _field_problems(spec.items, f"{where}[]")
    return problems


def _action_problems(action: ActionSpec, where: str) -> list[faults.Problem]:
    problems = _node_problems(action.flow, f"{where}.flow", 0)
    if action.available is not UNSET:
        problems += _expression_problems(action.available, f"{where}.available")
    return problems


def _expression_problems(expression: Any, where: str, depth: int = 0) -> list[faults.Problem]:
    wrong = shapes.problem(expression)
    if not wrong and depth > limits.FLOW_DEPTH_MAX:
        wrong = f"nested deeper than {limits.FLOW_DEPTH_MAX}"
    if wrong:
        return [faults.Problem("SCHEMA_ERROR", wrong, where)]
    problems = []
    for place, inner in shapes.children(expression):
        problems += _expression_problems(inner, f"{where}.{place}", depth + 1)
    return problems


def node_problem(node: object) -> str:
    """What is wrong with the shape of one node, its children aside; empty if nothing is."""
    if not isinstance(node, dict) or not isinstance(node.get("kind"), str) or node["kind"] not in NODES:
        return f"no node has the kind {node.get('kind')!r}" if isinstance(node, dict) else "a node is an object"
    kind = node["kind"]
    for name, form in NODES[kind].items():
        if name not in node:
            if not form.endswith("?"):
                return f"{kind} needs {name!r}"
            continue
        expected = {"s": str, "*": list}.get(form[0], dict)
        if not isinstance(node[name], expected):
            return f"{name!r} of {kind} has the wrong type"
    if kind == "patch" and node["op"] not in OPS:
        return f"no patch has the op {node['op']!r}"
    # The table of nodes cannot say that this depends on the op.
    if kind == "patch" and node["op"] != "unset" and "value" not in node:
        return f"{node['op']} needs 'value'"
    return ""


def _node_problems(node: Any, where: str, depth: int) -> list[faults.Problem]:
    wrong = node_problem(node)
    if not wrong and depth > limits.FLOW_DEPTH_MAX:
        wrong = f"nested deeper than {limits.FLOW_DEPTH_MAX}"
    if wrong:
        return [faults.Problem("SCHEMA_ERROR", wrong, where)]
    problems = []
    for place, form, inner in node_children(node):
        if form == "n":
            problems += _node_problems(inner, f"{where}{place}", depth + 1)
        else:
            problems += _expression_problems(inner, f"{where}{place}")
    return problems


def node_children(node: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """What is inside a node whose shape is right: its place, `n` or `e`, and itself."""
    found: list[tuple[str, str, Any]] = []
    for name, form in NODES[node["kind"]].items():
        if name not in node or form[0] == "s":
            continue
        if form == "*":
            found += [(f".{name}[{at}]", "n", each) for at, each in enumerate(node[name])]
        elif form == "{}":
            found += [(f".{name}.{key}", "e", each) for key, each in node[name].items()]
        else:
            found.append((f".{name}", form[0], node[name]))
    return found


def defaults(schema: DomainSchema) -> dict[str, Any]:
    """Return the defaults of the fields at the top, which a first snapshot is made with."""
    return {name: spec.default for name, spec in schema.state.fields.items() if spec.default is not UNSET}
