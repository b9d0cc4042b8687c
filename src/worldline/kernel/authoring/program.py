"""Programs: the code of a world, as its author declares it.

A `Program` collects effects, workflows, reducers and flow domains under names, checks what can be checked at
declaration, and knows its own hash. It holds no state and touches nothing; the same object serves hosts, clients, tests
and simulation.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, TypeVar, overload

from worldline.base import errors, grammar
from worldline.flow_core.authoring.document_domain import Document
from worldline.flow_core.authoring.domain_class import Domain
from worldline.flow_core.core import Effects
from worldline.kernel import user_values
from worldline.kernel.authoring import domain_declaration, http_call, reducers, resources, stored_types
from worldline.kernel.authoring.calls import Effect, Retry, Seconds, Workflow, check_function, to_us
from worldline.kernel.authoring.resources import Resource
from worldline.kernel.code import fingerprint, interests, source
from worldline.model import ids

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=type[Domain])


RESERVED = "worldline."  # what the names of effects begin with that every host performs by itself


class Program:
    """A named set of workflows, effects, reducers, resources and flow domains: what a world runs.

    Declare with `@app.workflow`, `@app.effect`, `@app.reducer`, `@app.resource` and `@app.domain`.
    """

    def __init__(self, name: str) -> None:
        self.name = ids.check_name(name, "a program's name")
        self.effects: dict[str, Effect[..., Any]] = {}
        self.workflows: dict[str, Workflow[..., Any]] = {}
        self.reducers: dict[str, reducers.Reducer] = {}
        self.resources: dict[str, Resource[Any]] = {}
        self.domains: dict[str, domain_declaration.DeclaredDomain] = {}
        # What named types that were not defined yet, by where it stands.
        self._unchecked: list[tuple[Callable[..., Any], Callable[[], None]]] = []
        self._hash: bytes | None = None
        self._routes: reducers.Routes | None = None
        self._interests: dict[str, list[str] | None] = {}

    @staticmethod
    def without_code(program_hash: bytes) -> Program:
        """Make what stands for a program that is not here, and of which nothing but its hash is needed."""
        made = Program("without-code")
        made._hash = program_hash
        return made

    @overload
    def effect(self, fn: Callable[P, Awaitable[R]], /) -> Effect[P, R]: ...
    @overload
    def effect(self, fn: Callable[P, R], /) -> Effect[P, R]: ...
    @overload
    def effect(
        self,
        *,
        name: str = "",
        timeout: Seconds | None = None,
        total_timeout: Seconds | None = None,
        retry: Retry | None = None,
        concurrency: int | None = None,
        rate: float | None = None,
        queue: str = "default",
    ) -> EffectDecorator: ...
    def effect(  # type: ignore[misc]
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str = "",
        timeout: Seconds | None = None,
        total_timeout: Seconds | None = None,
        retry: Retry | None = None,
        concurrency: int | None = None,
        rate: float | None = None,
        queue: str = "default",
    ) -> Any:
        """Declare an effect: a plain or async function that touches the outside.

        `name` is what it is known by in journals and queues; without one, the function's name. `timeout` is for one
        attempt, `total_timeout` for all of them; `concurrency` and `rate` (per second) bound this kind in each process;
        `queue` names the due queue, so that special workers can take it.
        """
        namespace = _caller_names()  # here and not in a helper: it counts frames
        declared = {
            "name": name,
            "timeout": timeout,
            "total_timeout": total_timeout,
            "retry": retry,
            "concurrency": concurrency,
            "rate": rate,
            "queue": queue,
        }
        if fn is None:
            return EffectDecorator(self, namespace, declared)
        return self.add_effect(fn, namespace, declared)

    @overload
    def workflow(self, fn: Callable[P, Awaitable[R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, *, name: str = "") -> WorkflowDecorator: ...
    def workflow(self, fn: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:  # type: ignore[misc]
        """Declare a workflow: an `async def` that is deterministic, durable and survives anything.

        `name` is what it is known by in journals; without one, the function's name. Under the same name, the function
        may be renamed while runs of it are under way.
        """
        namespace = _caller_names()  # here, as in `effect`
        if fn is None:
            return WorkflowDecorator(self, namespace, name)
        return self.add_workflow(fn, namespace, name)

    @overload
    def reducer(self, cls: C, /) -> C: ...
    @overload
    def reducer(self, *, key: str | None = None, name: str = "") -> Callable[[C], C]: ...
    def reducer(  # type: ignore[misc]
        self, cls: Any = None, /, *, key: str | None = None, name: str = ""
    ) -> Any:
        """Declare a reducer: a class with defaults whose `@wl.on` methods fold events into it. `key`: one cell per
        value of that field of the event.
        """
        namespace = _caller_names()

        def declare(cls: C) -> C:
            begun = made = reducers.declare(cls, key=key, name=name or cls.__name__)
            try:
                made = reducers.complete(begun, namespace)
            except stored_types.NotDefinedYet:
                # A type may be defined below this class: then the check waits until the program is used.
                self._unchecked.append((reducers.first_handler(cls), lambda: self._complete(begun, namespace)))
            self._take(self.reducers, made.name, made)
            return cls

        return declare if cls is None else declare(cls)

    @overload
    def domain(self, cls: F, /) -> F: ...
    @overload
    def domain(
        self, document: Mapping[str, Any], /, *, keyed: bool = False, name: str = "", effects: Effects = "serial"
    ) -> Document: ...
    @overload
    def domain(self, *, keyed: bool = False, name: str = "", effects: Effects = "serial") -> Callable[[F], F]: ...
    def domain(  # type: ignore[misc]
        self, what: Any = None, /, *, keyed: bool = False, name: str = "", effects: Effects = "serial"
    ) -> Any:
        """Declare a flow domain: a class of `flow.Domain`, or a document. `keyed`: one cell for each key, else one.

        `effects="parallel"`: what a flow asks for side by side is performed at once. `flow.SchemaRefused` if there is
        something wrong with the document, `flow.BadDomain` with the class.
        """

        def declare(what: Any) -> Any:
            made, handle = domain_declaration.declare(what, keyed=keyed, name=name, parallel=effects == "parallel")
            self._take(self.domains, made.name, made)
            return handle

        return declare if what is None else declare(what)

    @overload
    def resource(self, fn: Callable[..., AsyncIterator[T]], /) -> Resource[T]: ...
    @overload
    def resource(self, fn: Callable[..., AbstractAsyncContextManager[T]], /) -> Resource[T]: ...
    @overload
    def resource(self, *, timeout: Seconds = resources.OPEN_SECONDS) -> ResourceDecorator: ...
    def resource(  # type: ignore[misc]
        self, fn: Any = None, /, *, timeout: Seconds = resources.OPEN_SECONDS
    ) -> Any:
        """Declare a resource: an async generator function that yields once, or a function that returns an async context
        manager. Effects get it by `wl.use(...)`. `timeout`: how long opening it may take.
        """
        timeout_us = to_us(timeout, "timeout")
        return ResourceDecorator(self, timeout_us) if fn is None else self.add_resource(fn, timeout_us)

    def find_effect(self, name: str) -> Effect[..., Any] | None:
        """Find an effect by name: one of the program's own, or one that every program has."""
        return self.effects.get(name) or http_call.BUILTIN.get(name)

    @property
    def hash(self) -> bytes:
        """A digest of the code and types of all handlers: formatting, comments and docstrings do not count."""
        if self._hash is None:
            self.check()
            self._hash = fingerprint.program_hash(self)
        return self._hash

    @property
    def routes(self) -> reducers.Routes:
        """Which reducers and workflows take which events."""
        if self._routes is None:
            self.check()
            waits = {name: interests.of(flow) for name, flow in self.workflows.items()}
            for name, kinds in waits.items():
                for kind in kinds or ():
                    stored_types.check(kind, f"{name}() waits for {user_values.name_of(kind)}")
            routes = reducers.routes(self.reducers.values(), waits)
            domain_declaration.check(self.name, self.domains, self.reducers, routes)
            self._routes = routes
        return self._routes

    def interests(self, workflow: str) -> list[str] | None:
        """Return the schemas of the events that a workflow waits for; None if that is unknown."""
        found = self._interests.get(workflow)
        # None is a result as well, so whether one is kept is told by the key.
        if found is None and workflow not in self._interests:
            routes = self.routes
            if workflow in self.workflows and workflow not in routes.any_flows:
                found = sorted(schema for schema, flows in routes.flows.items() if workflow in flows)
            self._interests[workflow] = found
        return found

    def takes(self, schema: str, *, inbox: str | None = None) -> bool:
        """Return whether a handler takes events of this schema, or a workflow may wait for them. `inbox`: whether
        anything takes what is sent to the inbox of this name.
        """
        routes = self.routes
        if inbox is not None and inbox in routes.inboxes:
            return True
        return schema in routes.handlers or schema in routes.flows or bool(routes.any_flows)

    def check(self) -> None:
        """Refuse types that cannot be stored, also those that were not defined yet where they were named."""
        for function, check in self._unchecked:
            try:
                check()
            except errors.BadInput as error:  # also `NotYet`: no more names are to come
                place = source.place_of(function)
                raise errors.BadInput(f"{place}: {error}" if place else str(error)) from error
        self._unchecked = []

    def add_effect(self, fn: Callable[..., Any], namespace: dict[str, Any], declared: dict[str, Any]) -> Any:
        """Declare an effect: what `@app.effect` does."""
        name = _name(fn, declared.pop("name"), "an effect's name")
        if name.startswith(RESERVED):
            raise errors.BadInput(f"an effect's name must not begin with {RESERVED!r}: hosts have effects named so")
        check_function(fn, f"effect {name}", is_async=None)
        made: Effect[..., Any] = Effect(fn, name, namespace, self.name, **declared)
        resources.check_program(f"effect {name}", self.name, made.signature.uses)
        self._check(fn, made.signature.check)
        return self._take(self.effects, name, made)

    def add_workflow(self, fn: Callable[..., Any], namespace: dict[str, Any], name: str) -> Any:
        """Declare a workflow: what `@app.workflow` does."""
        name = _name(fn, name, "a workflow's name")
        check_function(fn, f"workflow {name}", is_async=True)
        made: Workflow[..., Any] = Workflow(fn, name, namespace, self.name)
        if made.signature.uses:
            label, resource = next(iter(made.signature.uses.items()))
            raise errors.BadInput(f"workflow {name}: {label!r} is resource {resource.name}; only effects use resources")
        self._check(fn, made.signature.check)
        return self._take(self.workflows, name, made)

    def add_resource(self, fn: Callable[..., Any], timeout_us: int) -> Any:
        """Declare a resource: what `@app.resource` does."""
        made: Resource[Any] = Resource(fn, fn.__name__, self.name, timeout_us=timeout_us)
        return self._take(self.resources, made.name, made)

    def _check(self, function: Callable[..., Any], check: Callable[[], None]) -> None:
        try:
            check()
        except stored_types.NotDefinedYet:
            self._unchecked.append((function, check))

    def _complete(self, begun: reducers.Reducer, namespace: dict[str, Any]) -> None:
        self.reducers[begun.name] = reducers.complete(begun, namespace)

    def _take(self, table: dict[str, Any], name: str, made: Any) -> Any:
        if name in table:
            kind = "flow domain" if table is self.domains else type(made).__name__.lower()
            raise errors.BadInput(f"program {self.name!r} already has {grammar.an(kind)} named {name!r}")
        # With one more declaration, what was derived from the others is stale.
        self._hash = self._routes = None
        self._interests = {}
        table[name] = made
        return made

    def __repr__(self) -> str:
        return f"Program({self.name!r})"


class EffectDecorator:
    def __init__(self, program: Program, namespace: dict[str, Any], declared: dict[str, Any]) -> None:
        self._program = program
        self._namespace = namespace
        self._declared = declared

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Effect[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Effect[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        return self._program.add_effect(fn, self._namespace, dict(self._declared))


class WorkflowDecorator:
    def __init__(self, program: Program, namespace: dict[str, Any], name: str) -> None:
        self._program = program
        self._namespace = namespace
        self._name = name

    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Workflow[P, R]:
        made: Workflow[P, R] = self._program.add_workflow(fn, self._namespace, self._name)
        return made


class ResourceDecorator:
    def __init__(self, program: Program, timeout_us: int) -> None:
        self._program = program
        self._timeout_us = timeout_us

    @overload
    def __call__(self, fn: Callable[..., AsyncIterator[T]], /) -> Resource[T]: ...
    @overload
    def __call__(self, fn: Callable[..., AbstractAsyncContextManager[T]], /) -> Resource[T]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        return self._program.add_resource(fn, self._timeout_us)


def _name(fn: Callable[..., Any], given: str, what: str) -> str:
    return ids.check_name(user_values.text(given, what), what) if given else getattr(fn, "__name__", "")


def _caller_names() -> dict[str, Any]:
    """What the declaring code can see besides its globals, so that types local to a function resolve too."""
    frame = sys._getframe(2)  # noqa: SLF001 - there is no other way to a caller's names
    # At the top of a module there is nothing besides globals, which are looked up anyway.
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
