"""Resources: what effects need open while they run, as its author declares it. A database pool, a client, a model.

`@app.resource` is an async generator function that yields once, or a function that returns an async context manager.
`wl.use(pool)` as a parameter's default says that an effect, or another resource, is to be called with it. Such a
parameter is no part of a call: it is neither journaled nor given by the caller.

Here is only the declaration, and `override`, which replaces a resource for a test. Hosts open and close resources
(`effects/open_resources.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Generic, TypeVar, cast

from worldline.base import call_signatures, errors, failures
from worldline.kernel import user_errors

T = TypeVar("T")

OPEN_SECONDS = 60.0


class Resource(Generic[T]):
    """Something that is opened once in a process, before the first effect that uses it, and closed with its host."""

    def __init__(self, function: Callable[..., Any], name: str, program: str, *, timeout_us: int) -> None:
        self.name = name
        self.program = program
        self.timeout_us = timeout_us  # for opening it
        self.__doc__ = function.__doc__
        parameters, self.uses = split(function)
        needed = next((each.name for each in parameters.parameters.values() if each.default is each.empty), None)
        if needed is not None:
            raise errors.BadInput(
                f"resource {name}: nothing passes {needed!r}; a resource takes other resources only: "
                f"{needed}=wl.use(...)"
            )
        check_program(f"resource {name}", program, self.uses)
        self._open: Callable[..., Any] = (
            asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function
        )
        self._overrides: list[T] = []

    def opening(self, used: Mapping[str, Any]) -> AbstractAsyncContextManager[T]:
        """Make a new context manager of it. `used`: the resources that it uses itself."""
        made = self._open(**used)
        # Only its call shows what a function returns, so it is checked where it is opened.
        if not hasattr(made, "__aenter__"):
            kind = user_errors.name_of(type(made))
            raise errors.BadInput(
                f"resource {self.name} gives {kind}, not an async context manager; yield once from an async def"
            )
        return cast("AbstractAsyncContextManager[T]", made)

    @contextmanager
    def override(self, value: T) -> Iterator[T]:
        """Let effects get this value within the block; the resource itself is not opened."""
        # A stack, because the blocks may nest.
        self._overrides.append(value)
        try:
            yield value
        finally:
            self._overrides.pop()

    @property
    def is_overridden(self) -> bool:
        """Whether a test has put something in its place."""
        return bool(self._overrides)

    @property
    def overriding(self) -> T:
        """What replaces it now."""
        return self._overrides[-1]

    def __repr__(self) -> str:
        return f"Resource({self.name!r})"


class ResourceDefault:
    """The default of a parameter that a resource is passed to."""

    def __init__(self, resource: Resource[Any]) -> None:
        self.resource = resource

    def __repr__(self) -> str:
        return f"wl.use({self.resource.name})"


def use(resource: Resource[T], /) -> T:
    """Make the default of an effect's parameter that gets a resource: `async def find(key: str, db: Pool =
    wl.use(pool))`.

    To type checkers it is the resource itself, because that is what the effect gets.
    """
    given: object = resource
    if not isinstance(given, Resource):
        shown = user_errors.repr_of(resource)
        raise errors.BadInput(f"wl.use() takes what @app.resource has made, not {shown}")
    return cast("T", ResourceDefault(resource))


def split(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Resource[Any]]]:
    """A function's parameters without those that resources are passed to, and these."""
    whole = call_signatures.of(function)
    uses = {
        each.name: each.default.resource
        for each in whole.parameters.values()
        if isinstance(each.default, ResourceDefault)
    }
    if not uses:
        return whole, {}
    kept: list[inspect.Parameter] = []
    positional: str | None = None
    for each in whole.parameters.values():
        if each.name not in uses:
            # A caller leaves the resource out, so an argument meant for the parameter behind it would land on the
            # resource.
            if positional is not None and each.kind is not each.KEYWORD_ONLY and each.kind is not each.VAR_KEYWORD:
                raise errors.BadInput(
                    f"{function.__name__}(): put {positional!r}, which is a resource, behind {each.name!r}, or behind *"
                )
            kept.append(each)
        elif each.kind is each.POSITIONAL_ONLY:
            raise errors.BadInput(f"{function.__name__}(): {each.name!r} is a resource and must be passed by name")
        elif each.kind is each.POSITIONAL_OR_KEYWORD:
            positional = each.name
    return whole.replace(parameters=kept), uses


def check_program(what: str, program: str, uses: Mapping[str, Resource[Any]]) -> None:
    """Refuse resources of another program: each program opens its own."""
    for label, resource in uses.items():
        if resource.program != program:
            raise errors.BadInput(
                f"{what}: {label!r} is a resource of program {resource.program!r}, not of {program!r}; "
                f"declare one in each"
            )


def overridden(effect: str, uses: Mapping[str, Resource[Any]]) -> dict[str, Any]:
    """The values that replace resources now, where no host opens them. `OutsideWorkflow` if one is not replaced."""
    for resource in uses.values():
        if not resource.is_overridden:
            raise failures.OutsideWorkflow(
                f"{effect}() uses resource {resource.name}, which only a host opens; "
                f"replace it: with {resource.name}.override(...):"
            )
    return {label: resource.overriding for label, resource in uses.items()}
