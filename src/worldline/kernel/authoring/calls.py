"""Calls as data: what a program's effects and workflows return when they are called.

`greet("Alice")` runs nothing. It is a typed, inert description that a workflow can await (it is journaled), that
`World.run` can start from outside, and that a test can script. What awaiting means depends on where it happens, so the
kernel installs itself through `context.current`.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import msgspec

from worldline.base import errors, failures
from worldline.kernel import context, user_errors, values

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Seconds = float | timedelta

_ARGUMENTS = dict[str, Any]


def to_us(seconds: Seconds, what: str) -> int:
    """A duration in microseconds. Negative ones and those beyond a thousand years are refused."""
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
    if not 0 <= value < 32_000_000_000:
        raise errors.BadInput(f"{what} must be a number of seconds of at least 0, not {seconds!r}")
    return round(value * 1_000_000)


class Retry(msgspec.Struct, frozen=True):
    """How an effect is tried again. `attempts=None`: for ever. `then="park"`: set aside for a person, not failed."""

    attempts: int | None = 5
    first: Seconds = 1
    factor: float = 2
    most: Seconds = 60
    then: Literal["fail", "park"] = "fail"

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise errors.BadInput("Retry(attempts=) must be at least 1, or None")
        if self.factor < 1:
            raise errors.BadInput("Retry(factor=) must be at least 1")
        assert self.first_us >= 0
        assert self.most_us >= 0

    @property
    def first_us(self) -> int:
        return to_us(self.first, "Retry(first=)")

    @property
    def most_us(self) -> int:
        return to_us(self.most, "Retry(most=)")


class Options(msgspec.Struct, frozen=True, array_like=True):
    """What one call overrides of its effect's declaration."""

    key: str | None = None
    timeout_us: int | None = None
    attempts: int | None = None
    first_us: int | None = None
    factor: float | None = None
    most_us: int | None = None
    park: bool | None = None


PLAIN = Options()


class Request(Generic[R_co]):
    """An event that wants a typed answer: `class Withdraw(wl.Request[int])`."""


class Signature:
    """A function's parameters and types: how its calls become bytes. Types are resolved when first needed."""

    def __init__(self, function: Callable[..., Any], namespace: dict[str, Any]) -> None:
        self._function = function
        self._namespace = namespace
        self.parameters = inspect.signature(function)
        self._hints: dict[str, Any] | None = None
        plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
        everything = self.parameters.parameters.values()
        self._names = [each.name for each in everything] if all(each.kind is plain for each in everything) else None
        self._required = [each.name for each in everything if each.default is each.empty]

    @property
    def hints(self) -> dict[str, Any]:
        if self._hints is None:
            self._hints = type_hints(self._function, self._namespace)
        return self._hints

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments by name, so that adding a parameter with a default changes nothing already recorded."""
        names = self._names
        if names is not None and not kwargs and len(self._required) <= len(args) <= len(names):
            return values.dump(dict(zip(names, args, strict=False)))  # the usual case, and worth the difference
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise errors.BadInput(f"{self._function.__name__}(): {error}") from error
        return values.dump(dict(bound.arguments))

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = values.load(_ARGUMENTS, data)
        if self._names is not None and all(name in given for name in self._names) and len(given) == len(self._names):
            return tuple(values.rebuild(self.hints.get(name, Any), given[name]) for name in self._names), {}
        bound = self.parameters.bind_partial()
        for name, parameter in self.parameters.parameters.items():
            if name in given:
                bound.arguments[name] = self._typed(name, parameter, given.pop(name))
        if given:
            raise errors.DecodeError(f"{self._function.__name__}() takes no {', '.join(sorted(given))}")
        args, kwargs = bound.args, bound.kwargs
        try:
            self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise errors.DecodeError(f"{self._function.__name__}(): {error}") from error
        return args, kwargs

    def result(self, data: bytes) -> Any:
        return values.load(self.hints.get("return", Any), data)

    def _typed(self, name: str, parameter: inspect.Parameter, value: Any) -> Any:
        kind = self.hints.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(values.rebuild(kind, each) for each in value)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return {key: values.rebuild(kind, each) for key, each in value.items()}
        return values.rebuild(kind, value)


class Call(Generic[R_co]):
    """A call of an effect or a workflow, as data."""

    __slots__ = ("args", "awaited", "kwargs", "options", "target")

    def __init__(
        self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options | None = None
    ) -> None:
        self.target = target
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.awaited = False

    def pack(self) -> bytes:
        """The arguments, canonical."""
        return self.target.signature.pack(self.args, self.kwargs)

    def use(self) -> None:
        """It is awaited, started or scheduled. In strict mode, a call that is made and never used is refused."""
        self.awaited = True

    def __await__(self) -> Generator[Any, Any, R_co]:
        running = context.current.get()
        if running is not None:
            return running.await_call(self)
        if isinstance(sys.exception(), GeneratorExit):
            raise GeneratorExit(f"{self!r} in a coroutine that is being dropped: nothing of it happens any more")
        return self.target.await_outside(self).__await__()

    def __repr__(self) -> str:
        given = [user_errors.repr_of(arg) for arg in self.args]
        given += [f"{name}={user_errors.repr_of(value)}" for name, value in self.kwargs.items()]
        return user_errors.plain_text(f"{self.target.name}({', '.join(given)})")


class Target:
    """What a call is a call of: an effect or a workflow of a program."""

    kind: Literal["effect", "workflow"]

    def __init__(self, function: Callable[..., Any], name: str, namespace: dict[str, Any]) -> None:
        self.function = function
        self.name = name
        self.signature = Signature(function, namespace)
        self.__doc__ = function.__doc__
        self.__name__ = name

    async def await_outside(self, call: Call[Any]) -> Any:
        raise failures.OutsideWorkflow(
            f"{call!r} is a workflow call: use world.run({call!r}) or await it in a workflow"
        )


class Workflow(Target, Generic[P, R]):
    """A durable function: inside, every await is journaled."""

    kind = "workflow"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        return _made(Call(self, args, kwargs))


class Effect(Target, Generic[P, R]):
    """A function that touches the outside: run at least once, its answer journaled exactly once."""

    kind = "effect"

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        namespace: dict[str, Any],
        *,
        timeout: Seconds | None = None,
        total_timeout: Seconds | None = None,
        retry: Retry | None = None,
        concurrency: int | None = None,
        rate: float | None = None,
        queue: str = "default",
        options: Options | None = None,
    ) -> None:
        super().__init__(function, name, namespace)
        self.is_async = inspect.iscoroutinefunction(function)
        self.timeout_us = None if timeout is None else to_us(timeout, "timeout")
        self.total_timeout_us = None if total_timeout is None else to_us(total_timeout, "total_timeout")
        self.retry = retry or Retry()
        self.concurrency = concurrency
        self.rate = rate
        self.queue = queue
        self._options = options
        if concurrency is not None and concurrency < 1:
            raise errors.BadInput("concurrency must be at least 1")
        if rate is not None and rate <= 0:
            raise errors.BadInput("rate must be above 0 per second")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        return _made(Call(self, args, kwargs, self._options))

    def options(
        self, *, key: str | None = None, timeout: Seconds | None = None, retry: Retry | None = None
    ) -> Effect[P, R]:
        """The same effect with another idempotency key, timeout per attempt or retry policy for this call."""
        options = Options(
            key=key,
            timeout_us=None if timeout is None else to_us(timeout, "timeout"),
            attempts=None if retry is None else (retry.attempts or 0),
            first_us=None if retry is None else to_us(retry.first, "first"),
            factor=None if retry is None else float(retry.factor),
            most_us=None if retry is None else to_us(retry.most, "most"),
            park=None if retry is None else retry.then == "park",
        )
        copy: Effect[P, R] = Effect.__new__(Effect)
        copy.__dict__.update(self.__dict__)
        copy._options = options
        return copy

    def performed_by(self, function: Callable[..., Any]) -> Effect[P, R]:
        """The same declaration with another function behind it: how hosts bring built-in effects to life."""
        copy: Effect[P, R] = Effect.__new__(Effect)
        copy.__dict__.update(self.__dict__)
        copy.function = function
        copy.is_async = inspect.iscoroutinefunction(function)
        return copy

    async def await_outside(self, call: Call[Any]) -> Any:
        """Outside a workflow an effect is just its function."""
        answer = self.function(*call.args, **call.kwargs)
        return await answer if inspect.isawaitable(answer) else answer


def _made(call: Call[R]) -> Call[R]:
    running = context.current.get()
    if running is not None:
        running.made_call(call)
    return call


def type_hints(function: Callable[..., Any], namespace: dict[str, Any]) -> dict[str, Any]:
    """A function's annotations, resolved; what cannot be is treated as unannotated and named in the error later."""
    names = {**getattr(function, "__globals__", {}), **namespace}
    try:
        return typing.get_type_hints(function, globalns=names, localns=namespace)
    except NameError as error:
        raise errors.BadInput(f"{function.__name__}(): the annotation {error.name!r} names nothing known") from error
    except Exception as error:  # an annotation is an expression of the user's
        why = user_errors.message_of(error)
        raise errors.BadInput(f"{function.__name__}(): its annotations cannot be resolved: {why}") from error
