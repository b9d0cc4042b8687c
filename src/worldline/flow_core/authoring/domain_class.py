"""`flow.Domain`: a class that is traced once into a document.

Fields are the annotations of the class. `@flow.computed` methods are called once with terms for fields; what they
return is their expression. `@flow.action` methods are called once too: setting a field is a patch, `flow.perform` an
effect, `flow.when` a branch. The class is never run afterwards; its instances hold the values of a snapshot.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, overload

import msgspec

from worldline.base import call_signatures
from worldline.flow_core import document_schema, flow_records, js_values, validation, value_paths
from worldline.flow_core.authoring import ops, specs, terms
from worldline.flow_core.expressions import shapes

D = TypeVar("D", bound="Domain")
T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)
P = ParamSpec("P")


class EffectError(msgspec.Struct, frozen=True):
    """What `fail=` of an effect writes."""

    code: str
    message: str


class Act(msgspec.Struct, Generic[S_co], frozen=True):
    """A call of an action as data: which domain (its class, or a document), which action, its input."""

    domain: Any
    action: str
    input: dict[str, Any]


class EffectTerm(Generic[T]):
    """A call of an effect by its name."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        self.name = name
        self.arguments = dict(arguments)

    def __await__(self) -> Generator[Any, Any, T]:
        raise terms.BadDomain(f"the effect {self.name!r} is performed by a host: give it to flow.perform")


class computed(Generic[T]):  # noqa: N801 - a decorator
    """A value that is derived from fields."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.name = function.__name__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> computed[T]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> T: ...
    def __get__(self, instance: object | None, owner: type[Any]) -> computed[T] | T:
        if instance is None:
            return self
        found: T = instance.__dict__[self.name]
        return found


class Action(Generic[D, P]):
    """What may be done. Called on the class, it gives the call as data: `Order.pay("tok")`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.name = function.__name__
        self.owner: type[Any] = object
        self._signature = call_signatures.of(function)
        plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
        given = list(self._signature.parameters.values())[1:]
        self._names = [each.name for each in given] if all(each.kind is plain for each in given) else None

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.owner = owner
        self.name = name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Act[D]:
        names = self._names
        if names is not None and not kwargs and len(args) == len(names):
            given = dict(zip(names, args, strict=True))  # as mostly, and worth the difference
        else:
            bound = self._signature.bind(None, *args, **kwargs)
            given = dict(list(bound.arguments.items())[1:])
        return Act(self.owner, self.name, js_values.from_outside(given, f"input of {self.name}"))


def action(function: Callable[Concatenate[D, P], None]) -> Action[D, P]:
    """Mark a method that says what an action does."""
    return Action(function)


class Domain:
    """Derive from it, annotate fields, write `@flow.computed` and `@flow.action` methods."""

    __flow__: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, *, id: str = "", version: str = "1.0.0", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__flow__ = {"id": id or f"worldline:{cls.__name__}", "version": version}

    @classmethod
    def document(cls) -> dict[str, Any]:
        """Return the document of the class, traced when first asked for. Raises `BadDomain` or `SchemaRefused`."""
        # Traced when first asked for: types that the class names may stand below it.
        if "document" not in cls.__flow__:
            cls.__flow__["document"] = _traced(cls)
        found: dict[str, Any] = cls.__flow__["document"]
        return found

    @classmethod
    def read(cls: type[D], snapshot: flow_records.Snapshot) -> D:
        """Return the values of a snapshot, fields and computed ones, as an instance. Where an annotation names a
        dataclass or a struct, they are of it; data that does not fit it stays as it is.
        """
        fields, derived, records = _read_of(cls)
        made = object.__new__(cls)
        found = made.__dict__
        for name in fields:
            found[name] = snapshot.data.get(name)
        for name, key in derived.items():
            found[name] = snapshot.computed.get(key)
        for name, annotation in records.items():
            # Data that does not fit an annotation stays as it is: a snapshot may be older than the class.
            with contextlib.suppress(msgspec.ValidationError):
                found[name] = msgspec.convert(found[name], annotation)
        return made


# --- Tracing ---------------------------------------------------------------


class _Tracer:
    """One action that is being traced: the steps of the block that is open, and its condition."""

    def __init__(self) -> None:
        self.blocks: list[list[dict[str, Any]]] = [[]]
        self.available: list[dict[str, Any]] = []

    def step(self, node: dict[str, Any]) -> None:
        self.blocks[-1].append(node)

    @contextlib.contextmanager
    def block(self) -> Iterator[list[dict[str, Any]]]:
        self.blocks.append([])
        try:
            yield self.blocks[-1]
        finally:
            self.blocks.pop()

    def last(self) -> dict[str, Any] | None:
        return self.blocks[-1][-1] if self.blocks[-1] else None


_tracing: list[_Tracer] = []  # the last is the one that is being traced


def _tracer(what: str) -> _Tracer:
    if not _tracing:
        raise terms.BadDomain(f"{what} belongs into a @flow.action method, which is called once to be traced")
    return _tracing[-1]


def _hints(of: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(of)
    except NameError as unknown:
        raise terms.BadDomain(f"{of.__qualname__}: {unknown}; its types must be names of the module") from None


def _fields(cls: type[Any]) -> dict[str, Any]:
    hints = _hints(cls)
    return {name: each for name, each in hints.items() if not name.startswith("_")}


def _read_of(cls: type[Domain]) -> tuple[tuple[str, ...], dict[str, str], dict[str, Any]]:
    """What `read` makes of a snapshot: fields, keys of computed values, and annotations that name records."""
    known = cls.__flow__.get("read")
    if known is None:
        fields, derived = _fields(cls), _members(cls, computed)
        annotated = fields | {name: _hints(each.function).get("return", Any) for name, each in derived.items()}
        records = {name: each for name, each in annotated.items() if specs.names_record(each)}
        known = tuple(fields), {name: f"computed.{name}" for name in derived}, records
        cls.__flow__["read"] = known
    found: tuple[tuple[str, ...], dict[str, str], dict[str, Any]] = known
    return found


def _members(cls: type[Any], kind: type[T]) -> dict[str, T]:
    found: dict[str, T] = {}
    # Base classes first, so that a class can override what they declare.
    for each in reversed(cls.__mro__):
        found |= {name: member for name, member in vars(each).items() if isinstance(member, kind)}
    return found


def _proxy(cls: type[D]) -> D:
    """Return an instance whose fields are terms, and on which setting a field is a patch."""
    known = dict.fromkeys(_fields(cls))
    derived = _members(cls, computed)

    def read(self: Any, name: str) -> Any:
        # Only what the document has becomes a term; methods and the rest stay Python's.
        if name in known:
            return terms.Term({"kind": "get", "path": name})
        if name in derived:
            return terms.Term({"kind": "get", "path": f"computed.{name}"})
        return object.__getattribute__(self, name)

    def write(_self: Any, name: str, value: object) -> None:
        if name not in known:
            raise terms.BadDomain(f"{cls.__name__} has no field {name!r}; its fields are {', '.join(known)}")
        _tracer(f"setting {name}").step({"kind": "patch", "op": "set", "path": name, "value": terms.lifted(value).doc})

    made: D = object.__new__(type(f"{cls.__name__}Traced", (cls,), {"__getattribute__": read, "__setattr__": write}))
    return made


def _traced(cls: type[Domain]) -> dict[str, Any]:
    fields, derived, actions = _fields(cls), _members(cls, computed), _members(cls, Action)
    proxy = _proxy(cls)
    if not fields or not actions:
        raise terms.BadDomain(f"{cls.__name__} needs at least one annotated field and one @flow.action")
    state = {
        name: specs.spec(each, f"{cls.__name__}.{name}", default=getattr(cls, name, js_values.MISSING))
        for name, each in fields.items()
    }
    made: dict[str, Any] = {
        "id": cls.__flow__["id"],
        "version": cls.__flow__["version"],
        "types": {},
        "state": {"fields": state},
        "computed": {"fields": {f"computed.{name}": _derived(each, proxy) for name, each in derived.items()}},
        "actions": {name: _acted(each, proxy) for name, each in actions.items()},
    }
    if not derived:
        # A document must have at least one computed value.
        made["computed"]["fields"] = {"computed.domain": {"deps": [], "expr": {"kind": "lit", "value": cls.__name__}}}
    if cls.__doc__:
        made["meta"] = {"name": cls.__name__, "description": inspect.cleandoc(cls.__doc__)}
    sealed = document_schema.sealed(made)
    # Checked at once, so that a mistake shows where the class is declared.
    validation.load(sealed)
    return sealed


def _derived(each: computed[Any], proxy: Domain) -> dict[str, Any]:
    found = terms.lifted(each.function(proxy)).doc
    # What begins with `$` is of a loop or of the runtime, and is no dependency.
    read = dict.fromkeys(path for path in shapes.paths(found) if not path.startswith("$"))
    made: dict[str, Any] = {"deps": list(read), "expr": found}
    return made | ({"description": inspect.cleandoc(each.function.__doc__)} if each.function.__doc__ else {})


def _acted(each: Action[Any, ...], proxy: Domain) -> dict[str, Any]:
    parameters = list(call_signatures.of(each.function).parameters.values())[1:]
    hints = _hints(each.function)
    tracer = _Tracer()
    _tracing.append(tracer)
    try:
        given = {name: terms.Term({"kind": "get", "path": f"input.{name}"}) for name in (p.name for p in parameters)}
        # Called once: what it does to the proxy becomes steps of the tracer.
        each.function(proxy, **given)
    finally:
        _tracing.pop()
    made: dict[str, Any] = {"flow": _one(tracer.blocks[0])}
    if parameters:
        fields = {
            p.name: specs.spec(hints.get(p.name, Any), f"{each.name}({p.name})", default=_default(p))
            for p in parameters
        }
        made["input"] = {"type": "object", "required": True, "fields": fields}
    if tracer.available:
        conditions = tracer.available
        made["available"] = conditions[0] if len(conditions) == 1 else {"kind": "and", "args": conditions}
    if each.function.__doc__:
        made["description"] = inspect.cleandoc(each.function.__doc__)
    return made


def _default(parameter: inspect.Parameter) -> Any:
    return js_values.MISSING if parameter.default is inspect.Parameter.empty else parameter.default


def _one(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return steps[0] if len(steps) == 1 else {"kind": "seq", "steps": steps}


# --- What actions say ---------------------------------------------------------------


def available(condition: object) -> None:
    """Let the action be run only while this holds. It is the first thing an action says."""
    tracer = _tracer("flow.available")
    # One empty block: no step was made yet, and none is open around this.
    if tracer.blocks != [[]]:
        raise terms.BadDomain("flow.available comes first in an action, before any step")
    found = terms.lifted(condition).doc
    boolean = found["kind"] in _BOOLEAN or (found["kind"] == "lit" and isinstance(found["value"], bool))
    tracer.available.append(found if boolean else {"kind": "toBoolean", "arg": found})


_BOOLEAN = (
    "eq",
    "neq",
    "gt",
    "gte",
    "lt",
    "lte",
    "and",
    "or",
    "not",
    "startsWith",
    "endsWith",
    "strIncludes",
    "includes",
    "every",
    "some",
    "hasKey",
    "isNull",
    "toBoolean",
)


@contextlib.contextmanager
def when(condition: object) -> Iterator[None]:
    """Run the steps inside if the condition holds. 0 and "" do not."""
    tracer = _tracer("flow.when")
    with tracer.block() as steps:
        yield
    # Made a boolean, because an `if` node by itself counts 0 and "" as set.
    cond = terms.term("toBoolean", arg=condition).doc
    tracer.step({"kind": "if", "cond": cond, "then": _one(steps)})


@contextlib.contextmanager
def otherwise() -> Iterator[None]:
    """Run the steps inside if the condition of the `flow.when` just before does not hold."""
    tracer = _tracer("flow.otherwise")
    before = tracer.last()
    # Any other step in between would be run on both ways.
    if before is None or before["kind"] != "if" or "else" in before:
        raise terms.BadDomain("flow.otherwise comes right behind a flow.when")
    with tracer.block() as steps:
        yield
    before["else"] = _one(steps)


@contextlib.contextmanager
def once(marker: str | None) -> Iterator[None]:
    """Run the steps inside once for each intent; `marker` is a text field that remembers it."""
    tracer = _tracer("flow.once")
    path = _path(marker, "flow.once")
    with tracer.block() as steps:
        yield
    # Remembered first, because the steps inside may wait for an effect, and the flow is run again then.
    remember = {"kind": "patch", "op": "set", "path": path, "value": terms.lifted(ops.intent_id()).doc}
    cond = terms.lifted(ops.neq(marker, ops.intent_id())).doc
    tracer.step({"kind": "if", "cond": cond, "then": {"kind": "seq", "steps": [remember, *steps]}})


def ask(name: str, /, **params: Any) -> EffectTerm[Any]:
    """Make a call of an effect by its name, for `flow.perform`."""
    return EffectTerm(name, params)


def perform(call: Awaitable[T], *, into: T | None, fail: EffectError | None = None) -> None:
    """Ask for an effect. It guards itself: it is asked for while neither its target nor its failure is there."""
    tracer = _tracer("flow.perform")
    name, arguments = _called(call)
    targets = {"into": _path(into, "into="), **({} if fail is None else {"fail": _path(fail, "fail=")})}
    # Both would be the same parameter of the effect, and one would be lost.
    taken = [each for each in targets if each in arguments]
    if taken:
        raise terms.BadDomain(f"the effect {name!r} has a parameter {taken[0]!r}, which names a target here")
    # What the effect answers, or fails with, makes this false, so it is asked for once.
    empty = [terms.lifted(ops.is_null(each)).doc for each in ([into] if fail is None else [into, fail])]
    params = {each: terms.lifted(value).doc for each, value in {**arguments, **targets}.items()}
    cond = empty[0] if len(empty) == 1 else {"kind": "and", "args": empty}
    tracer.step({"kind": "if", "cond": cond, "then": {"kind": "effect", "type": name, "params": params}})


def _called(call: object) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a call: of `flow.ask`, or of an effect of a program."""
    if isinstance(call, EffectTerm):
        return call.name, call.arguments
    target: Any = getattr(call, "target", None)
    if getattr(target, "kind", "") != "effect":
        raise terms.BadDomain("flow.perform takes a call of an effect, as flow.ask('name', ...) or effect(...) give it")
    made: Any = call
    made.use()  # given to `perform`, so not forgotten
    bound = call_signatures.of(target.function).bind_partial(*made.args, **made.kwargs)
    given = target.signature.snapshot
    if given is not None and given.name in bound.arguments:
        raise terms.BadDomain(f"the effect {target.name!r} is given its {given.name} by the host: leave it out")
    return target.name, dict(bound.arguments)


def _path(value: object, what: str) -> str:
    """Return the path of a field that is a target."""
    if (
        not isinstance(value, terms.Term)
        or value.doc["kind"] != "get"
        or value_paths.split(value.doc["path"])[0] == "input"
    ):
        raise terms.BadDomain(f"{what} names a field of the domain, such as self.receipt")
    path: str = value.doc["path"]
    return path


def clear(field: object) -> None:
    """Take a field away."""
    _tracer("flow.clear").step({"kind": "patch", "op": "unset", "path": _path(field, "flow.clear")})


def update(field: object, members: Mapping[str, Any]) -> None:
    """Set some members of an object field."""
    value = terms.lifted(dict(members)).doc
    _tracer("flow.update").step({"kind": "patch", "op": "merge", "path": _path(field, "flow.update"), "value": value})


def call(action: Action[Any, ...]) -> None:
    """Run the steps of another action here. Its condition and input are not looked at."""
    _tracer("flow.call").step({"kind": "call", "flow": action.name})


def halt(reason: str = "") -> None:
    """End the intent here; it is no error."""
    _tracer("flow.halt").step({"kind": "halt"} | ({"reason": reason} if reason else {}))


def fail(code: str, message: object = None) -> None:
    """End the intent with an error."""
    said = {} if message is None else {"message": terms.lifted(message).doc}
    _tracer("flow.fail").step({"kind": "fail", "code": code, **said})
