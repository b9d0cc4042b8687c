"""Arrays and objects, as closures.

Loops bind `$item`, `$index` and `$array`; an inner loop hides the outer one's. A loop is charged for all it will do
before it begins: its elements times the nodes of its body. The members of an object have no order of their own: `keys`,
`values` and `entries` give keys that look like integers first, then the others by UTF-16 units, so a snapshot that was
stored and read back gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from worldline.flow_core import hashing, js_values
from worldline.flow_core.expressions import texts
from worldline.flow_core.expressions.scope import EvalScope, Run
from worldline.flow_core.js_values import MISSING, num, same_value, truth


def length(arg: Run) -> Run:
    def run(scope: EvalScope) -> int:
        found = arg(scope)
        kind = type(found)
        if kind is list or kind is dict:
            return len(found)
        return len(js_values.units(found)) if kind is str else 0

    return run


def at(array: Run, index: Run) -> Run:
    def run(scope: EvalScope) -> Any:
        found, where = array(scope), index(scope)
        if type(found) is list:
            place = num(where)
            if not 0 <= place < len(found):
                # A whole number is an `int` in Core, so anything else is between two places.
                return None
            return found[place] if type(place) is int else MISSING
        # The index of an object is a key.
        return found.get(where) if type(found) is dict and type(where) is str else None

    return run


def first(array: Run) -> Run:
    def run(scope: EvalScope) -> Any:
        found = array(scope)
        return found[0] if type(found) is list and found else None

    return run


def last(array: Run) -> Run:
    def run(scope: EvalScope) -> Any:
        found = array(scope)
        return found[-1] if type(found) is list and found else None

    return run


def cut(array: Run, start: Run, end: Run | None) -> Run:
    """JavaScript's slice: negative positions count from the end."""

    def run(scope: EvalScope) -> list[Any]:
        found, begin = array(scope), num(start(scope))
        stop = None if end is None else num(end(scope))
        if type(found) is not list:
            return []
        many = len(found)
        made = found[_position(begin, many) : many if stop is None else _position(stop, many)]
        scope.meter.spend(len(made))
        return made

    return run


def _position(number: js_values.Number, many: int) -> int:
    if number < 0:
        return max(0, many - texts.whole(-number, many))
    return texts.whole(number, many)


def includes(array: Run, item: Run) -> Run:
    def run(scope: EvalScope) -> bool:
        found, sought = array(scope), item(scope)
        if type(found) is not list:
            return False
        scope.meter.spend(len(found))
        return any(same_value(each, sought) for each in found)

    return run


def _entered(scope: EvalScope, array: list[Any], weight: int) -> Iterator[Any]:
    """Yield the elements of a loop, each bound while it is looked at."""
    scope.meter.spend(len(array) * weight)
    before = scope.item, scope.index, scope.array
    for place, each in enumerate(array):
        scope.enter(each, place, array)
        yield each
    scope.enter(*before)


def mapped(array: Run, mapper: Run, weight: int) -> Run:
    def run(scope: EvalScope) -> list[Any]:
        found = array(scope)
        if type(found) is not list:
            return []
        return [mapper(scope) for _ in _entered(scope, found, weight)]

    return run


def filtered(array: Run, predicate: Run, weight: int) -> Run:
    def run(scope: EvalScope) -> list[Any]:
        found = array(scope)
        if type(found) is not list:
            return []
        return [each for each in _entered(scope, found, weight) if truth(predicate(scope))]

    return run


def _sought(scope: EvalScope, elements: object, predicate: Run, weight: int, *, holds: bool) -> tuple[bool, Any]:
    """Return whether the predicate is so of an element, and the first such element."""
    if type(elements) is list:
        before = scope.item, scope.index, scope.array
        for each in _entered(scope, elements, weight):
            if truth(predicate(scope)) is holds:
                # Leaving early skips the end of `_entered`, which would have bound these again.
                scope.enter(*before)
                return True, each
    return False, None


def find(array: Run, predicate: Run, weight: int) -> Run:
    return lambda scope: _sought(scope, array(scope), predicate, weight, holds=True)[1]


def every(array: Run, predicate: Run, weight: int) -> Run:
    return lambda scope: not _sought(scope, array(scope), predicate, weight, holds=False)[0]


def some(array: Run, predicate: Run, weight: int) -> Run:
    return lambda scope: _sought(scope, array(scope), predicate, weight, holds=True)[0]


def append(array: Run, items: list[Run]) -> Run:
    def run(scope: EvalScope) -> list[Any]:
        found = array(scope)
        made = found if type(found) is list else []
        scope.meter.spend(len(made))
        return [*made, *(each(scope) for each in items)]

    return run


def backwards(array: Run) -> Run:
    def run(scope: EvalScope) -> list[Any]:
        found = array(scope)
        if type(found) is not list:
            return []
        scope.meter.spend(len(found))
        return found[::-1]

    return run


def unique(array: Run) -> Run:
    """By strict equality, keeping the first."""

    def run(scope: EvalScope) -> list[Any]:
        found = array(scope)
        if type(found) is not list:
            return []
        scope.meter.spend(len(found))
        seen: dict[Any, None] = {}
        containers: list[Any] = []
        made = []
        for each in found:
            kind = type(each)
            if kind is list or kind is dict:
                # It is compared with each container before it, and that is what it costs.
                scope.meter.spend(len(containers))
                # Containers are equal only if they are the same one.
                if any(each is other for other in containers):
                    continue
                containers.append(each)
            else:
                mark = (js_values.kind_of(each), each)
                # NaN equals nothing, not even itself, so each of them is kept.
                if mark in seen and each == each:  # noqa: PLR0124
                    continue
                seen[mark] = None
            made.append(each)
        return made

    return run


def flat(array: Run) -> Run:
    """Exactly one level."""

    def run(scope: EvalScope) -> list[Any]:
        found = array(scope)
        made: list[Any] = []
        for each in found if type(found) is list else ():
            scope.meter.spend(len(each) if type(each) is list else 1)
            made += each if type(each) is list else [each]
        return made

    return run


def made_of(fields: list[tuple[str, Run]]) -> Run:
    return lambda scope: {name: each(scope) for name, each in fields}


def field(of: Run, name: str) -> Run:
    def run(scope: EvalScope) -> Any:
        found = of(scope)
        return found.get(name) if type(found) is dict else None

    return run


def _members(container: object, scope: EvalScope) -> list[tuple[str, Any]]:
    """Return the members of an object in their order, the elements of an array by index, nothing of anything else."""
    if type(container) is list:
        scope.meter.spend(len(container))
        return [(str(place), each) for place, each in enumerate(container)]
    if type(container) is not dict:
        return []
    scope.meter.spend(len(container))
    return [(name, container[name]) for name in sorted(container, key=hashing.integers_first)]


def keys(obj: Run) -> Run:
    return lambda scope: [name for name, _ in _members(obj(scope), scope)]


def member_values(obj: Run) -> Run:
    return lambda scope: [each for _, each in _members(obj(scope), scope)]


def entries(obj: Run) -> Run:
    return lambda scope: [[name, each] for name, each in _members(obj(scope), scope)]


def merge(objects: list[Run]) -> Run:
    """Shallow, the last wins; what is no object is left out."""

    def run(scope: EvalScope) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for each in objects:
            found = each(scope)
            if type(found) is dict:
                scope.meter.spend(len(found))
                made |= found
        return made

    return run


def has_key(obj: Run, key: Run) -> Run:
    def run(scope: EvalScope) -> bool:
        found, name = obj(scope), key(scope)
        return type(found) is dict and type(name) is str and name in found

    return run


def pick(obj: Run, names: Run) -> Run:
    def run(scope: EvalScope) -> dict[str, Any]:
        found, wanted = obj(scope), names(scope)
        if type(found) is not dict or type(wanted) is not list:
            return {}
        scope.meter.spend(len(wanted))
        return {name: found[name] for name in wanted if type(name) is str and name in found}

    return run


def omit(obj: Run, names: Run) -> Run:
    def run(scope: EvalScope) -> dict[str, Any]:
        found, dropped = obj(scope), names(scope)
        if type(found) is not dict:
            return {}
        scope.meter.spend(len(found))
        without = {name: None for name in dropped if type(name) is str} if type(dropped) is list else {}
        return {name: each for name, each in found.items() if name not in without}

    return run


def from_entries(pairs: Run) -> Run:
    def run(scope: EvalScope) -> dict[str, Any]:
        found = pairs(scope)
        if type(found) is not list:
            return {}
        scope.meter.spend(len(found))
        return {each[0]: each[1] for each in found if type(each) is list and len(each) == 2 and type(each[0]) is str}

    return run
