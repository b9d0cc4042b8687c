"""Terms: what a traced class works with instead of values. Each is an expression of the document that is being made.

To a type checker a field is what it is annotated with; while a class is traced it is a `Term`, and operators on it make
expressions. What Python decides by itself (`if`, `and`, `not`, `in`, a loop) would be decided once, while the class is
traced: so it raises, and says what to write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from worldline.base import errors, limits
from worldline.flow_core import faults, js_values
from worldline.flow_core.expressions import shapes

Doc = dict[str, Any]


class BadDomain(errors.BadInput):
    """A class that cannot be made a document, and what to write instead."""

    code = "bad_domain"


class Term:
    """An expression. `loops`: the loops whose element it reads, by number."""

    __slots__ = ("doc", "loops")

    def __init__(self, doc: Doc, loops: tuple[int, ...] = ()) -> None:
        self.doc = doc
        self.loops = loops

    def __repr__(self) -> str:
        return f"Term({self.doc!r})"

    # --- What Python would decide once, while the class is traced ------------------------------------

    def __bool__(self) -> NoReturn:
        raise BadDomain(
            "an expression has no truth value while it is traced: instead of `if` write `with flow.when(...)` or "
            "`x.if_(...)`, instead of `and`, `or`, `not` write `x.and_`, `x.or_`, `x.not_` (or `&`, `|`)"
        )

    def __iter__(self) -> Iterator[Any]:
        raise BadDomain("an expression cannot be looped over: use x.map_, x.filter_, x.find, x.every or x.some")

    def __contains__(self, item: object) -> NoReturn:
        raise BadDomain(
            "instead of `in` write x.includes(array, item), x.has_key(object, key) or x.str_includes(text, part)"
        )

    def __len__(self) -> NoReturn:
        raise BadDomain("instead of len(...) write x.len_(...)")

    # Comparing makes an expression, which is no answer to whether two keys are equal.
    def __hash__(self) -> int:
        raise BadDomain("an expression is no key of a dict: use x.object_ or x.from_entries")

    def __str__(self) -> NoReturn:
        raise BadDomain("an expression has no text while it is traced: instead of an f-string write x.concat(...)")

    def __format__(self, spec: str) -> NoReturn:
        raise BadDomain("an expression has no text while it is traced: instead of an f-string write x.concat(...)")

    def __int__(self) -> NoReturn:
        raise BadDomain("instead of int(...) or float(...) write x.to_number(...)")

    __float__ = __int__
    __index__ = __int__

    # --- Operators --------------------------------------------------------------------------------------

    def __add__(self, other: object) -> Term:
        return term("add", left=self, right=other)

    def __radd__(self, other: object) -> Term:
        return term("add", left=other, right=self)

    def __sub__(self, other: object) -> Term:
        return term("sub", left=self, right=other)

    def __rsub__(self, other: object) -> Term:
        return term("sub", left=other, right=self)

    def __mul__(self, other: object) -> Term:
        return term("mul", left=self, right=other)

    def __rmul__(self, other: object) -> Term:
        return term("mul", left=other, right=self)

    def __truediv__(self, other: object) -> Term:
        return term("div", left=self, right=other)

    def __rtruediv__(self, other: object) -> Term:
        return term("div", left=other, right=self)

    def __mod__(self, other: object) -> Term:
        return term("mod", left=self, right=other)

    def __neg__(self) -> Term:
        return term("neg", arg=self)

    def __abs__(self) -> Term:
        return term("abs", arg=self)

    def __eq__(self, other: object) -> Any:
        return term("eq", left=self, right=other)

    def __ne__(self, other: object) -> Any:
        return term("neq", left=self, right=other)

    def __gt__(self, other: object) -> Term:
        return term("gt", left=self, right=other)

    def __ge__(self, other: object) -> Term:
        return term("gte", left=self, right=other)

    def __lt__(self, other: object) -> Term:
        return term("lt", left=self, right=other)

    def __le__(self, other: object) -> Term:
        return term("lte", left=self, right=other)

    def __and__(self, other: object) -> Term:
        return term("and", args=[self, other])

    def __or__(self, other: object) -> Term:
        return term("or", args=[self, other])

    __rand__ = __and__
    __ror__ = __or__

    def __getitem__(self, index: object) -> Term:
        if isinstance(index, slice):
            if index.step is not None:
                raise BadDomain("a slice of an expression has no step")
            start = 0 if index.start is None else index.start
            end = {} if index.stop is None else {"end": index.stop}
            return term("slice", array=self, start=start, **end)
        return term("at", array=self, index=index)

    def __getattr__(self, name: str) -> Term:
        # Names that Python's protocols ask for: a term has none of them.
        if name.startswith("__"):
            raise AttributeError(name)
        # A path gets one more segment; what any other expression gives has no path.
        if self.doc["kind"] == "get":
            return Term({"kind": "get", "path": f"{self.doc['path']}.{name}"}, self.loops)
        return term("field", object=self, property=name)


def term(kind: str, **arguments: Any) -> Term:
    """Return an expression of a kind over terms and plain values."""
    doc: Doc = {"kind": kind}
    loops: dict[int, None] = {}
    for name, form in shapes.KINDS[kind].items():
        if name not in arguments:
            continue
        given = arguments[name]
        if form in ("s", "v"):
            doc[name] = given
        elif form == "*":
            doc[name] = [_used(each, loops) for each in given]
        elif form == "{}":
            doc[name] = {key: _used(each, loops) for key, each in given.items()}
        else:
            doc[name] = _used(given, loops)
    return Term(doc, tuple(loops))


def _used(value: object, loops: dict[int, None]) -> Doc:
    found = lifted(value)
    loops.update(dict.fromkeys(found.loops))
    return found.doc


def lifted(value: object) -> Term:
    """A value as a term. Containers with terms in them become expressions too."""
    if isinstance(value, Term):
        return value
    value = _members(value)
    if isinstance(value, dict) and _has_terms(value):
        # A literal cannot have expressions in it.
        return term("object", fields=value)
    if isinstance(value, list | tuple) and _has_terms(value):
        # No kind of expression makes an array of its items but this one.
        return term("append", array=[], items=list(value))
    try:
        return Term({"kind": "lit", "value": js_values.from_outside(value, "a literal")})
    except faults.NotJson as refused:
        raise BadDomain(f"{refused}; an expression is made of JSON values, fields and x functions") from None


def _members(value: object) -> object:
    """A dataclass or a struct as an object; anything else as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value


def _has_terms(value: object, depth: int = 0) -> bool:
    value = _members(value)
    if isinstance(value, Term):
        return True
    if depth > limits.FLOW_DEPTH_MAX:  # a list that has itself in it, say
        raise BadDomain(f"a value nested deeper than {limits.FLOW_DEPTH_MAX} stands in an expression")
    if isinstance(value, dict):
        return any(_has_terms(each, depth + 1) for each in value.values())
    return isinstance(value, list | tuple) and any(_has_terms(each, depth + 1) for each in value)


class Loops:
    """Numbers of loops, so that an inner one cannot use an outer one's element: it hides it."""

    # Counted over all loops, so that no two have the same number.
    def __init__(self) -> None:
        self._made = 0

    def body(self, function: Any) -> Term:
        """Return the body of a loop, called once with the element."""
        # The number tells whose element a term reads, because all of them are `$item` in the document.
        self._made += 1
        number = self._made
        found = lifted(function(Term({"kind": "get", "path": "$item"}, (number,))))
        if any(each != number for each in found.loops):
            raise BadDomain("an inner loop cannot use the element of an outer one: inside, $item is the inner element")
        return found


_loops = Loops()


def loop(kind: str, array: object, body: str, function: Any) -> Term:
    """A loop over an array; its own element is no matter outside it."""
    source = lifted(array)
    inner = _loops.body(function)
    return Term({"kind": kind, "array": source.doc, body: inner.doc}, source.loops)
