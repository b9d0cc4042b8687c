"""Calls as data: what a program's effects and workflows return when they are called.

`greet("Alice")` runs nothing. It is a typed, inert description that a workflow can await (it is journaled), that
`World.run` can start from outside, and that a test can script. What awaiting means depends on where it happens, so the
kernel installs itself through `context.current`.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Generator
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import msgspec

from worldline.base import call_signatures, errors, failures
from worldline.codec import canonical
from worldline.flow_core import flow_records
from worldline.kernel import context, user_errors, user_values
from worldline.kernel.authoring import resources, stored_types
from worldline.kernel.code import source

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Seconds = float | timedelta

SNAPSHOT = "snapshot"  # the parameter of an effect that is given one
_ARGUMENTS = dict[str, Any]
_ALL_ARGUMENTS = "dict"  # the name of what they are packed as
_EXACT = (int, str, bytes, bool, float)  # a value of just this type fits, whatever it is


def to_us(seconds: Seconds, what: str) -> int:
    """A duration in microseconds. Negative ones and those beyond a thousand years are refused."""
    try:
        value = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
    except (TypeError, ValueError):
        value = -1.0
    # Written so that NaN, which fails every comparison, is refused too.
    if not 0 <= value < 32_000_000_000:
        shown = user_errors.repr_of(seconds)
        raise errors.BadInput(f"{what} must be a timedelta or a number of seconds of at least 0, not {shown}")
    return round(value * 1_000_000)


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How an effect is tried again.

    The pause after the first attempt is `initial_delay`; each one after it is twice as long, up to `max_delay`.
    `attempts=None`: no limit. `on_exhausted="park"`: out of attempts, the effect waits for a person instead of failing.
    Exceptions of the types in `fatal` end the retries at once. `jitter=0.2` shortens each pause by up to a fifth; by
    how much is drawn from the id of the call, so it is the same wherever and whenever it is computed.
    """

    attempts: int | None = 5
    initial_delay: Seconds = 1
    max_delay: Seconds = 60
    on_exhausted: Literal["fail", "park"] = "fail"
    fatal: tuple[type[Exception], ...] = ()
    jitter: float = 0

    def __post_init__(self) -> None:
        # Exact type, because True is an `int` to `isinstance`.
        if self.attempts is not None and (type(self.attempts) is not int or self.attempts < 1):
            raise errors.BadInput(f"Retry(attempts=) must be None or a number of at least 1, not {self.attempts!r}")
        if self.initial_delay_us > self.max_delay_us:
            raise errors.BadInput(
                f"Retry(max_delay={self.max_delay!r}) is shorter than initial_delay={self.initial_delay!r}; "
                f"give max_delay= too"
            )
        if self.on_exhausted not in ("fail", "park"):
            raise errors.BadInput(f"Retry(on_exhausted=) must be 'fail' or 'park', not {self.on_exhausted!r}")
        if type(self.fatal) is not tuple or not all(_is_exception(each) for each in self.fatal):
            raise errors.BadInput(
                f"Retry(fatal=) must be a tuple of exception types, such as (ValueError,), not {self.fatal!r}"
            )
        if type(self.jitter) not in (int, float) or not 0 <= self.jitter <= 1:
            raise errors.BadInput(f"Retry(jitter=) must be a number from 0 to 1, not {self.jitter!r}")

    @property
    def initial_delay_us(self) -> int:
        """The first delay in microseconds."""
        return to_us(self.initial_delay, "Retry(initial_delay=)")

    @property
    def max_delay_us(self) -> int:
        """The longest delay in microseconds."""
        return to_us(self.max_delay, "Retry(max_delay=)")

    @property
    def jitter_ppm(self) -> int:
        """The jitter in millionths."""
        return round(self.jitter * 1_000_000)


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


class Options(msgspec.Struct, frozen=True, array_like=True):
    """What one call overrides of its effect's declaration. It is journaled with the call's arguments."""

    key: str | None = None
    timeout_us: int | None = None
    attempts: int | None = None  # 0: no limit
    initial_delay_us: int | None = None
    factor: float | None = None  # no choice any more; written because parameters of calls are compared as bytes
    max_delay_us: int | None = None
    park: bool | None = None
    fatal: tuple[str, ...] | None = None  # names of exception classes: a class itself cannot be journaled
    jitter_ppm: int | None = None

    def pack(self) -> bytes:
        """Canonical bytes. The fields after `park` are left out where they say nothing, as before they existed."""
        said: list[Any] = msgspec.to_builtins(self)
        while len(said) > _OPTIONS_MIN and said[-1] is None:
            said.pop()
        return canonical.encode(said)

    @staticmethod
    def of(*, key: str | None, timeout: Seconds | None, retry: Retry | None) -> Options:
        timeout_us = None if timeout is None else to_us(timeout, "timeout")
        if retry is None:
            return Options(key, timeout_us)
        return Options(
            key,
            timeout_us,
            retry.attempts or 0,
            retry.initial_delay_us,
            GROWTH,
            retry.max_delay_us,
            retry.on_exhausted == "park",
            fatal=tuple(user_errors.name_of(each) for each in retry.fatal) or None,
            jitter_ppm=retry.jitter_ppm or None,
        )


PLAIN = Options()
GROWTH = 2.0  # each pause is so many times as long as the one before
_OPTIONS_MIN = 7  # up to `park`: these were always written, and parameters are compared as bytes


class Request(Generic[R_co]):
    """An event that wants a typed answer: `class Withdraw(wl.Request[int])`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        with contextlib.suppress(stored_types.NotDefinedYet):  # where it is handled, it is checked again
            stored_types.check(answer_type(cls), f"the answer to {cls.__name__}")


def answer_type(event: type) -> Any:
    """Return the type that a request is answered with."""
    for base in getattr(event, "__orig_bases__", ()):
        if typing.get_origin(base) is Request:
            return typing.get_args(base)[0]
    return Any


class Signature:
    """A function's parameters and types: how its calls become bytes. Types are resolved when first needed.

    `uses`: the resources that parameters with a `wl.use(...)` default are filled with where the function runs.
    `snapshot`: an effect's parameter for the snapshot of the flow domain that asks for it. Both are no part of a call.
    """

    def __init__(self, function: Callable[..., Any], namespace: dict[str, Any], *, of_effect: bool = False) -> None:
        self._function = function
        self._namespace = namespace
        self.parameters, self.uses = resources.split(function)
        self.snapshot: inspect.Parameter | None = None
        if of_effect and SNAPSHOT in self.parameters.parameters:
            self.parameters, self.snapshot = _without_snapshot(function, self.parameters, namespace)
        self._hints: dict[str, Any] | None = None
        self._kinds: list[Any] | None = None  # the hints of positional parameters, in order
        plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
        everything = self.parameters.parameters.values()
        # None sends every call through `bind`, which knows the other kinds of parameters.
        self._names = [each.name for each in everything] if all(each.kind is plain for each in everything) else None
        self._required = [each.name for each in everything if each.default is each.empty]

    @property
    def needs_snapshot(self) -> bool:
        """Whether the function cannot be called without a snapshot."""
        found = self.snapshot
        return found is not None and (found.default is found.empty or found.default is flow_records.GIVEN)

    def given(self, snapshot: flow_records.Snapshot | None) -> dict[str, Any]:
        """What the function is called with besides the arguments of a call. `BadInput` if it needs a snapshot, and
        there is none.
        """
        if self.snapshot is None or (snapshot is None and not self.needs_snapshot):
            return {}
        if snapshot is None:
            name = self._function.__name__
            raise errors.BadInput(f"{name}() takes the snapshot of a flow domain, and was asked for without one")
        return {SNAPSHOT: snapshot}

    @property
    def hints(self) -> dict[str, Any]:
        # Resolved when first needed: a declaration may stand above the types that it names.
        if self._hints is None:
            self._hints = type_hints(self._function, self._namespace, without=self.uses)
        return self._hints

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the arguments by name, so that adding a parameter with a default changes nothing already recorded."""
        names = self._names
        if names is not None and not kwargs and len(self._required) <= len(args) <= len(names):
            return self._dump(dict(zip(names, args, strict=False)))  # the usual case, and worth the difference
        filled = next((name for name in kwargs if name in self.uses), None)
        if filled is not None:
            raise errors.BadInput(
                f"{self._function.__name__}(): {filled!r} is a resource, which the host passes; the call leaves it out"
            )
        if self.snapshot is not None and SNAPSHOT in kwargs:
            raise errors.BadInput(
                f"{self._function.__name__}(): {SNAPSHOT!r} is passed by the host; the call leaves it out"
            )
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise errors.BadInput(f"{self._function.__name__}(): {error}") from error
        return self._dump(dict(bound.arguments))

    def _dump(self, arguments: dict[str, Any]) -> bytes:
        try:
            return user_values.dump(arguments)
        except user_values.Unstorable as error:
            kind = errors.ValueTooLarge if isinstance(error, errors.ValueTooLarge) else errors.EncodeError
            which = f"argument {error.where}" if error.where != _ALL_ARGUMENTS else "its arguments"
            raise kind(f"{self._function.__name__}(): {which} cannot be stored: {error.why}") from error

    def check_fit(self, args: tuple[Any, ...], kwargs: dict[str, Any], data: bytes) -> None:
        """Refuse arguments of other types than are declared, which the function would not be called with. `data`: the
        same, packed.
        """
        kinds = self._kinds
        if kinds is None:
            kinds = self._kinds = [self.hints.get(each, Any) for each in self._names or ()]
        if not kwargs and len(args) <= len(kinds):
            for value, kind in zip(args, kinds, strict=False):
                if kind is not Any and (type(value) is not kind or kind not in _EXACT):
                    break
            else:
                return  # the usual case, and worth the difference
        given: Any = canonical.decode(data)
        for label, parameter in self.parameters.parameters.items():
            if label in given:
                self._check_argument(label, parameter, given[label])

    def _check_argument(self, label: str, parameter: inspect.Parameter, value: Any) -> None:
        try:
            self._typed(label, parameter, value)
        except errors.DecodeError as error:
            kind, why = user_values.name_of(self.hints.get(label, Any)), str(error).partition(": ")[2]
            raise errors.BadInput(
                f"{self._function.__name__}(): argument {label} is not of its declared type, {kind}: {why}"
            ) from error

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given: Any = canonical.decode(data)
        if type(given) is not dict:  # the keys of a map are text
            given = user_values.rebuild(_ARGUMENTS, given)
        # As in `pack`, the usual case goes around binding.
        if self._names is not None and all(name in given for name in self._names) and len(given) == len(self._names):
            return tuple(user_values.rebuild(self.hints.get(name, Any), given[name]) for name in self._names), {}
        bound = self.parameters.bind_partial()
        for name, parameter in self.parameters.parameters.items():
            if name in given:
                bound.arguments[name] = self._typed(name, parameter, given.pop(name))
        # What was not popped is an argument that the function does not have.
        if given:
            raise errors.DecodeError(f"{self._function.__name__}() takes no {', '.join(sorted(given))}")
        args, kwargs = bound.args, bound.kwargs
        # Once more in full: `bind_partial` does not notice that a required argument is missing.
        try:
            self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise errors.DecodeError(f"{self._function.__name__}(): {error}") from error
        return args, kwargs

    def result(self, data: bytes) -> Any:
        return user_values.load(self.hints.get("return", Any), data)

    def check(self) -> None:
        """Refuse parameters and results of types that cannot be stored. `NotYet` while an annotation names nothing."""
        name = self._function.__name__
        for label in self.parameters.parameters:
            stored_types.check(self.hints.get(label, Any), f"{name}(): argument {label!r}")
        stored_types.check(self.hints.get("return", Any), f"{name}(): its result")

    def _typed(self, name: str, parameter: inspect.Parameter, value: Any) -> Any:
        kind = self.hints.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(user_values.rebuild(kind, each) for each in value)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return {key: user_values.rebuild(kind, each) for key, each in value.items()}
        return user_values.rebuild(kind, value)


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
        """Encode the arguments as canonical bytes."""
        return self.target.signature.pack(self.args, self.kwargs)

    def pack_checked(self) -> bytes:
        """Encode the arguments as canonical bytes. `BadInput` if one is not of the type that is declared for it."""
        data = self.pack()
        self.target.signature.check_fit(self.args, self.kwargs, data)
        return data

    def use(self) -> None:
        """Note that it is awaited, started or scheduled. In strict mode, a call that is never used is refused."""
        self.awaited = True

    def __await__(self) -> Generator[Any, Any, R_co]:
        running = context.current.get()
        if running is not None:
            return running.await_call(self)
        # Closing a coroutine raises GeneratorExit in it: an await in its `finally` must not call the function for real.
        if isinstance(sys.exception(), GeneratorExit):
            raise GeneratorExit(f"{self!r} in a coroutine that is being dropped: nothing of it happens any more")
        return self.target.await_outside(self).__await__()

    def _no_value(self) -> str:
        """Say why it cannot be stored: it is no value."""
        return f"it is a call; write `await {self!r}`"

    def __repr__(self) -> str:
        given = [user_errors.repr_of(arg) for arg in self.args]
        given += [f"{name}={user_errors.repr_of(value)}" for name, value in self.kwargs.items()]
        return user_errors.plain_text(f"{self.target.name}({', '.join(given)})")


class Target:
    """What a call is a call of: an effect or a workflow of a program."""

    kind: Literal["effect", "workflow"]

    def __init__(self, function: Callable[..., Any], name: str, namespace: dict[str, Any], program: str = "") -> None:
        self.function = function
        self.name = name
        self.program = program  # the name of the one that declares it; of what all programs have, nothing
        self.signature = Signature(function, namespace, of_effect=self.kind == "effect")
        self.__doc__ = function.__doc__
        self.__name__ = name

    def _no_value(self) -> str:
        """Say why it cannot be stored: it is no value."""
        return f"it is the {self.kind} {self.name}; write {self.name}(...), with its arguments"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def await_outside(self, call: Call[Any]) -> Any:
        """Refuse: outside of a world there is no workflow to await."""
        raise failures.OutsideWorkflow(
            f"{call!r} is a workflow call: use world.run({call!r}) or await it in a workflow"
        )


class Workflow(Target, Generic[P, R]):
    """A durable function: inside, every await is journaled."""

    kind = "workflow"

    def __init__(self, function: Callable[..., Any], name: str, namespace: dict[str, Any], program: str = "") -> None:
        super().__init__(function, name, namespace, program)
        # Draws count under the declared name, so `declared` has to recognise the names of this code.
        plain = source.unwrapped(function)
        self._qualname = name if plain is None else plain.__code__.co_qualname

    def declared(self, qualname: str) -> str:
        """Return the name of a piece of its code, with the declared name in the place of its function's own."""
        own = self._qualname
        is_own = qualname == own or qualname.startswith(f"{own}.")
        return f"{self.name}{qualname[len(own) :]}" if is_own else qualname

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
        program: str = "",
        *,
        timeout: Seconds | None = None,
        total_timeout: Seconds | None = None,
        retry: Retry | None = None,
        concurrency: int | None = None,
        rate: float | None = None,
        queue: str = "default",
        options: Options | None = None,
    ) -> None:
        super().__init__(function, name, namespace, program)
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
        """Return the same effect with another idempotency key, timeout per attempt or retry policy for this call."""
        options = Options.of(key=key, timeout=timeout, retry=retry)
        # Not through `__init__`: what was declared is checked already, and a copy shares its signature.
        copy: Effect[P, R] = Effect.__new__(Effect)
        copy.__dict__.update(self.__dict__)
        copy._options = options
        return copy

    def performed_by(self, function: Callable[..., Any]) -> Effect[P, R]:
        """Return the same declaration with another function behind it: how hosts bring built-in effects to life."""
        copy: Effect[P, R] = Effect.__new__(Effect)
        copy.__dict__.update(self.__dict__)
        copy.function = function
        copy.is_async = inspect.iscoroutinefunction(function)
        return copy

    async def await_outside(self, call: Call[Any]) -> Any:
        """Call the function: outside a workflow, an effect is just that. The resources it uses must be overridden
        there.
        """
        if self.signature.needs_snapshot and SNAPSHOT not in call.kwargs:
            raise failures.OutsideWorkflow(
                f"{self.name}() takes the snapshot of a flow domain; outside of one, pass {SNAPSHOT}="
            )
        answer = self.function(*call.args, **call.kwargs, **resources.overridden(self.name, self.signature.uses))
        return await answer if inspect.isawaitable(answer) else answer  # plain functions are effects, too


def check_function(function: object, what: str, *, is_async: bool | None) -> None:
    """Refuse what is no function, generators, and functions that are or are not `async` where the other is needed."""
    if not callable(function) or not isinstance(getattr(function, "__name__", None), str):
        raise errors.BadInput(f"{what} must be a function, not {user_errors.name_of(type(function))}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        kind = (
            "a function that returns its answer" if is_async is None else "an async def" if is_async else "a plain def"
        )
        raise errors.BadInput(f"{what} is a generator: what it yields would be lost; make it {kind}, without yield")
    if is_async and not inspect.iscoroutinefunction(function):
        raise errors.BadInput(f"{what} must be an async def")
    if is_async is False and inspect.iscoroutinefunction(function):
        raise errors.BadInput(
            f"{what} is an async def, and a handler cannot await; make it a plain def, and start a workflow for the "
            f"rest: wl.start(...)"
        )


def _made(call: Call[R]) -> Call[R]:
    running = context.current.get()
    # In strict mode the runtime reports calls that are made and never used.
    if running is not None:
        running.made_call(call)
    return call


def type_hints(
    function: Callable[..., Any], namespace: dict[str, Any], *, without: Collection[str] = ()
) -> dict[str, Any]:
    """A function's annotations, resolved, but for the parameters `without`: the types of resources need not be there
    at run time. `NotYet` if one names nothing.
    """
    # What the declaring function sees comes last, so that types local to it win over globals of the same name.
    names = {**getattr(function, "__globals__", {}), **namespace}
    try:
        if without:
            function = _annotated(function, without)
        return typing.get_type_hints(function, globalns=names, localns=namespace)
    except NameError as error:
        raise stored_types.NotDefinedYet(
            f"{function.__name__}(): the annotation {error.name!r} names nothing known; define or import it at the top "
            f"level of its file, and not only for type checkers"
        ) from error
    except Exception as error:  # an annotation is an expression of the user's
        why = user_errors.message_of(error)
        raise errors.BadInput(f"{function.__name__}(): its annotations cannot be resolved: {why}") from error


def _without_snapshot(
    function: Callable[..., Any], parameters: inspect.Signature, namespace: dict[str, Any]
) -> tuple[inspect.Signature, inspect.Parameter | None]:
    """Return an effect's parameters without the one that it is given a snapshot by, and that one, if it has one."""
    found = parameters.parameters[SNAPSHOT]
    # The default `GIVEN` says it alone; then the annotation is not resolved, whose names may not be defined yet.
    if found.default is not flow_records.GIVEN and not _is_snapshot(function, namespace):
        return parameters, None
    others = [each for each in parameters.parameters.values() if each is not found]
    # The host passes it by name, so no parameter that takes positions may stand behind it.
    if found.kind is not found.KEYWORD_ONLY:
        names = list(parameters.parameters)
        behind = [each for each in others if names.index(each.name) > names.index(SNAPSHOT)]
        wrong = next(
            (each.name for each in behind if each.kind in (each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)), ""
        )
        if wrong or found.kind is not found.POSITIONAL_OR_KEYWORD:
            where = f"behind {wrong!r}, or behind *" if wrong else "behind *"
            raise errors.BadInput(f"{function.__name__}(): {SNAPSHOT!r} is passed by name; put it {where}")
    return parameters.replace(parameters=others), found


def _is_snapshot(function: Callable[..., Any], namespace: dict[str, Any]) -> bool:
    """Return whether the parameter is annotated as a snapshot. Other annotations may name what is not defined yet."""
    annotated = call_signatures.annotations_of(function)
    if SNAPSHOT not in annotated:
        return False
    try:
        found = type_hints(function, namespace, without=[each for each in annotated if each != SNAPSHOT])[SNAPSHOT]
    except errors.BadInput:
        return False  # it is said when the types are checked
    return flow_records.Snapshot in (found, *typing.get_args(found))


def _annotated(function: Callable[..., Any], without: Collection[str]) -> Any:
    """Something of the same name with some of a function's annotations."""
    kept = {name: kind for name, kind in call_signatures.annotations_of(function).items() if name not in without}
    return types.SimpleNamespace(__name__=function.__name__, __annotations__=kept)
