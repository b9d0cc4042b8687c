"""`get`: where a path leads, decided when it is compiled.

In this order: the loop's `$item`, `$index`, `$array`; `$system.uuid` and `$system.timestamp`; `meta.*`; `input`;
`computed.*`, by the whole text; `system.*`; else the data. Bare `system`, `computed` and `meta` are data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from worldline.flow_core import hashing, value_paths
from worldline.flow_core.expressions import dates
from worldline.flow_core.expressions.scope import EvalScope, Run
from worldline.flow_core.js_values import MISSING


def compiled(path: str) -> Run:
    segments = value_paths.split(path)
    root, rest = segments[0], segments[1:]
    if path == "$item" or path.startswith("$item."):
        return _item(rest)
    if path == "$index":
        return lambda scope: scope.index
    if path == "$array":
        return lambda scope: scope.array
    if path.startswith("$system."):
        # A name of the runtime's that is not known is missing: it is never looked up in the data.
        return _SYSTEM_VALUES.get(path, lambda _: MISSING)
    if path.startswith("meta."):
        return _META.get(path, lambda _: MISSING)
    if path == "input" or path.startswith("input."):
        return lambda scope: value_paths.walk(scope.input, rest)
    if path.startswith("computed."):
        return lambda scope: scope.computed.get(path, MISSING)
    if path.startswith("system."):
        return lambda scope: value_paths.walk(scope.system_data(), rest)
    # Most paths name a field at the top, which needs no walk.
    if len(segments) == 1:
        return lambda scope: scope.data.get(root, MISSING)
    return lambda scope: value_paths.walk(scope.data, segments)


def fields_of(read: Iterable[str]) -> tuple[str, ...] | None:
    """The fields of the data that these paths lead into; None if one of them leads elsewhere. Loops and computed values
    have nothing but what they are made of.
    """
    found: dict[str, None] = {}
    for path in read:
        if path in ("$item", "$index", "$array") or path.startswith(("$item.", "computed.")):
            continue
        # These change without the data, so values that read them cannot be kept.
        if path == "input" or path.startswith(("$system.", "meta.", "input.", "system.")):
            return None
        found[value_paths.split(path)[0]] = None
    return tuple(found)


def _item(rest: value_paths.Segments) -> Run:
    if not rest:
        return lambda scope: scope.item
    if len(rest) > 1:
        return lambda scope: value_paths.walk(scope.item, rest)
    name = rest[0]

    def run(scope: EvalScope) -> Any:
        found = scope.item
        return found.get(name, MISSING) if type(found) is dict else value_paths.walk(found, rest)

    return run


_SYSTEM_VALUES: dict[str, Run] = {
    "$system.uuid": lambda scope: hashing.uuid_of(scope.intent_id, scope.next_uuid()),
    "$system.timestamp": lambda scope: dates.iso(scope.meta.timestamp),
}
_META: dict[str, Run] = {
    "meta.intentId": lambda scope: scope.intent_id or MISSING,
    "meta.actionName": lambda scope: scope.action or MISSING,
    "meta.version": lambda scope: scope.meta.version,
    "meta.timestamp": lambda scope: scope.meta.timestamp,
    "meta.randomSeed": lambda scope: scope.meta.random_seed,
    "meta.schemaHash": lambda scope: scope.meta.schema_hash,
}
