"""Text, as closures. Positions and lengths are in UTF-16 units; what is made is bounded."""

from __future__ import annotations

import re
from typing import Any

from worldline.flow_core import js_values
from worldline.flow_core.expressions.scope import EvalScope, Run
from worldline.flow_core.js_values import Number, bounded, fused, num, text, units

_PATTERN = re.compile(r"\$([$&`'])")


def concat(args: list[Run]) -> Run:
    """Texts are joined. If any is an array, all become one array: arrays element by element, without nulls."""

    def run(scope: EvalScope) -> Any:
        found = [each(scope) for each in args]
        if not any(type(each) is list for each in found):
            return fused(bounded("".join([text(each) for each in found])))
        made: list[Any] = []
        for each in found:
            if type(each) is list:
                scope.meter.spend(len(each))
                made += each
            # Nulls beside arrays are left out, so that a missing array adds nothing.
            elif each is not None and each is not js_values.MISSING:
                made.append(each)
        return made

    return run


def whole(number: Number, most: int) -> int:
    """A position in something that is `most` long, cut to what is there. Fractions are dropped."""
    # Written so that NaN counts as 0.
    return 0 if not number > 0 else most if number >= most else int(number)


def substring(string: Run, start: Run, end: Run | None) -> Run:
    def run(scope: EvalScope) -> str:
        found = units(text(string(scope)))
        first = whole(num(start(scope)), len(found))
        last = len(found) if end is None else whole(num(end(scope)), len(found))
        return fused(found[min(first, last) : max(first, last)])

    return run


def trim(string: Run) -> Run:
    return lambda scope: text(string(scope)).strip(js_values.SPACES)


def lower(string: Run) -> Run:
    return lambda scope: text(string(scope)).lower()


def upper(string: Run) -> Run:
    return lambda scope: bounded(text(string(scope)).upper())


def length(string: Run) -> Run:
    return lambda scope: len(units(text(string(scope))))


def starts_with(string: Run, prefix: Run) -> Run:
    return lambda scope: units(text(string(scope))).startswith(units(text(prefix(scope))))


def ends_with(string: Run, suffix: Run) -> Run:
    return lambda scope: units(text(string(scope))).endswith(units(text(suffix(scope))))


def contains(string: Run, search: Run) -> Run:
    return lambda scope: units(text(search(scope))) in units(text(string(scope)))


def index_of(string: Run, search: Run) -> Run:
    return lambda scope: units(text(string(scope))).find(units(text(search(scope))))


def replace(string: Run, search: Run, replacement: Run) -> Run:
    """The first occurrence. `$$`, `$&`, `` $` `` and `$'` in the replacement mean what they mean in JavaScript."""

    def run(scope: EvalScope) -> str:
        within, sought = units(text(string(scope))), units(text(search(scope)))
        new, at = units(text(replacement(scope))), within.find(sought)
        if at < 0:
            return fused(within)
        before, after = within[:at], within[at + len(sought) :]
        parts = {"$": "$", "&": sought, "`": before, "'": after}
        made, last, size = [before], 0, len(before) + len(after)
        for found in _PATTERN.finditer(new):
            made += [new[last : found.start()], parts[found[1]]]
            size += len(made[-1]) + len(made[-2])
            # Before it is joined: each `$` may repeat the whole text.
            js_values.short_enough(size)
            last = found.end()
        return fused(bounded("".join([*made, new[last:], after])))

    return run


def split(string: Run, delimiter: Run) -> Run:
    """At least one part, also of an empty text; an empty delimiter splits into UTF-16 units."""

    def run(scope: EvalScope) -> list[str]:
        found, between = units(text(string(scope))), units(text(delimiter(scope)))
        scope.meter.spend(len(found))
        if between:
            return [fused(each) for each in found.split(between)]
        return list(found) or [""]

    return run


def to_text(arg: Run) -> Run:
    return lambda scope: bounded(text(arg(scope)))
