"""Programs: the code of a world, as its author declares it.

A `Program` collects effects, workflows and reducers under names, checks what can be checked at declaration, and knows
its own hash. It holds no state and touches nothing; the same object serves hosts, clients, tests and simulation.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload

from worldline.base import errors
from worldline.kernel.authoring import http_call, reducers
from worldline.kernel.authoring.calls import Effect, Retry, Seconds, Workflow
from worldline.kernel.code import fingerprint, interests
from worldline.model import ids

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type[Any])


class Program:
    def __init__(self, name: str) -> None:
        self.name = ids.check_name(name, "a program's name")
        self.effects: dict[str, Effect[..., Any]] = {}
        self.workflows: dict[str, Workflow[..., Any]] = {}
        self.reducers: dict[str, reducers.Reducer] = {}
        self._hash: bytes | None = None
        self._routes: reducers.Routes | None = None

    @overload
    def effect(self, fn: Callable[P, Awaitable[R]], /) -> Effect[P, R]: ...
    @overload
    def effect(self, fn: Callable[P, R], /) -> Effect[P, R]: ...
    @overload
    def effect(
        self,
        *,
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
        timeout: Seconds | None = None,
        total_timeout: Seconds | None = None,
        retry: Retry | None = None,
        concurrency: int | None = None,
        rate: float | None = None,
        queue: str = "default",
    ) -> Any:
        """Declare an effect: a plain or async function that touches the outside.

        `timeout` is for one attempt, `total_timeout` for all of them; `concurrency` and `rate` (per second) bound this
        kind in each process; `queue` names the due queue, so that special workers can take it.
        """
        namespace = _caller_names()
        declared = {
            "timeout": timeout, "total_timeout": total_timeout, "retry": retry,
            "concurrency": concurrency, "rate": rate, "queue": queue,
        }  # fmt: skip
        if fn is None:
            return EffectDecorator(self, namespace, declared)
        return self.add_effect(fn, namespace, declared)

    @overload
    def workflow(self, fn: Callable[P, Awaitable[R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, *, name: str) -> WorkflowDecorator: ...
    def workflow(self, fn: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:  # type: ignore[misc]
        """Declare a workflow: an `async def` that is deterministic, durable and survives anything."""
        namespace = _caller_names()
        if fn is None:
            return WorkflowDecorator(self, namespace, name)
        return self.add_workflow(fn, namespace, name)

    def reducer(self, *, key: str | None = None, name: str = "") -> Callable[[C], C]:
        """Declare a reducer: a class with defaults whose `@wl.on` methods fold events into it. `key`: one cell per
        value of that field of the event.
        """
        namespace = _caller_names()

        def declare(cls: C) -> C:
            made = reducers.declare(cls, key=key, name=name or cls.__name__, namespace=namespace)
            self._take(self.reducers, made.name, made)
            return cls

        return declare

    def find_effect(self, name: str) -> Effect[..., Any] | None:
        """An effect by name: one of the program's own, or one that every program has."""
        return self.effects.get(name) or http_call.BUILTIN.get(name)

    @property
    def hash(self) -> bytes:
        """A digest of the code and types of all handlers: formatting, comments and docstrings do not count."""
        if self._hash is None:
            self._hash = fingerprint.program_hash(self)
        return self._hash

    @property
    def routes(self) -> reducers.Routes:
        """Which reducers and workflows take which events."""
        if self._routes is None:
            waits = {name: interests.of(flow) for name, flow in self.workflows.items()}
            self._routes = reducers.routes(self.reducers.values(), waits)
        return self._routes

    def add_effect(self, fn: Callable[..., Any], namespace: dict[str, Any], declared: dict[str, Any]) -> Any:
        return self._take(self.effects, fn.__name__, Effect(fn, fn.__name__, namespace, **declared))

    def add_workflow(self, fn: Callable[..., Any], namespace: dict[str, Any], name: str) -> Any:
        if not inspect.iscoroutinefunction(fn):
            raise errors.BadInput(f"workflow {fn.__name__} must be an async def")
        made: Workflow[..., Any] = Workflow(fn, name or fn.__name__, namespace)
        return self._take(self.workflows, made.name, made)

    def _take(self, table: dict[str, Any], name: str, made: Any) -> Any:
        if name in table:
            raise errors.BadInput(f"program {self.name!r} already has a {type(made).__name__.lower()} named {name!r}")
        self._hash = self._routes = None
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


def _caller_names() -> dict[str, Any]:
    """What the declaring code can see besides its globals, so that types local to a function resolve too."""
    frame = sys._getframe(2)  # noqa: SLF001 - there is no other way to a caller's names
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
