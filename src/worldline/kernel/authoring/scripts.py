"""Scripts: answers to effects, given beforehand. Public as `worldline.Script`.

The same object serves tests and dry runs: it says what each effect answers, without touching the outside. A script is
only a description; a `ScriptProgress` keeps how far a world is in it, so one script can serve many worlds.

The answers of an effect are used up one per attempt, and the last one stays: `on(charge, ConnectionError, "ch_1")`
fails once and then always says "ch_1". An answer is a value, an exception (raised by that attempt, so retries are
played too), a function of the call's arguments, the effect itself (its own function is run, with the resources that
replace its own), or `Script.later(...)` and `Script.never()` around one of these.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Self, TypeVar

import msgspec

from worldline.base import errors, failures
from worldline.flow_core.flow_records import Snapshot
from worldline.kernel import failure_data, user_errors, user_values
from worldline.kernel.authoring import resources
from worldline.kernel.authoring.calls import Effect, Seconds, to_us

P = ParamSpec("P")
R = TypeVar("R")
Judge = Callable[[BaseException], failure_data.Verdict]
Drive = Callable[[Coroutine[Any, Any, Any]], Any]


class Unscripted(errors.BadInput):
    """An effect was called that the script has no answer for."""

    code = "unscripted"


class Later(msgspec.Struct, frozen=True):
    """An answer that takes a while, or never comes (`after_us` is None)."""

    after_us: int | None
    answer: Any = None


class Scripted(msgspec.Struct, frozen=True):
    """What one attempt comes to: data if ok, else a failure. `final`: no other attempt will help."""

    ok: bool
    data: bytes = b""
    code: str = ""
    message: str = ""
    final: bool = False
    timed_out: bool = False
    after_us: int | None = 0  # how long the attempt takes; None: it never ends
    retry_us: int = 0  # the next attempt makes no sense sooner
    failed_with: dict[str, Any] = {}  # fields of the exception
    mistake: bool = False  # in the code: until that is edited, no other attempt will help


class Script:
    """What effects answer: `wl.Script().on(charge, "ch_1").on(ship, ConnectionError("down"), "parcel 7")`."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.effects: dict[str, Effect[..., Any]] = {}

    def on(
        self, effect: Effect[P, R], /, *answers: R | Exception | type[Exception] | Callable[P, R] | Effect[P, R] | Later
    ) -> Self:
        """Answer this effect so. Values are checked against the effect's return type. The last `on` counts."""
        if not isinstance(effect, Effect):
            raise errors.BadInput(f"script an effect, not {effect!r}: wl.Script().on(charge, 'ch_1')")
        if not answers:
            raise errors.BadInput(f"a script of {effect.name}() needs at least one answer")
        for answer in answers:
            _check_answer(effect, answer)
        self.effects[effect.name] = effect
        self.answers[effect.name] = list(answers)
        return self

    @staticmethod
    def later(seconds: Seconds, answer: Any = None, /) -> Later:
        """Answer after a while. Longer than the effect's timeout is an attempt that timed out."""
        return Later(to_us(seconds, "Script.later()"), answer)

    @staticmethod
    def never() -> Later:
        """Never answer: only a timeout or a cancellation ends the waiting."""
        return Later(None)

    def parted(self) -> tuple[Self, Self]:
        """Part it into two scripts: of the effects whose answers are data and can be stored, and of the others."""
        data, rest = type(self)(), type(self)()
        for name, answers in self.answers.items():
            part = data if all(_is_data(each) for each in answers) else rest
            part.answers[name], part.effects[name] = answers, self.effects[name]
        return data, rest

    def __repr__(self) -> str:
        return f"Script({', '.join(f'{name}: {answers!r}' for name, answers in self.answers.items())})"


class ScriptProgress:
    """How far one world is in a script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._used: dict[str, int] = {}

    def answers(self, name: str) -> bool:
        """Return whether the script says anything of an effect."""
        return name in self._script.answers

    def also(self, script: Script) -> ScriptProgress:
        """Make a progress that is as far as this one, in which the answers of `script` come first."""
        both = Script()
        both.answers, both.effects = {**self._script.answers, **script.answers}, self._script.effects | script.effects
        made = ScriptProgress(both)
        # Effects that the new script names begin with their first answer.
        made._used = {name: used for name, used in self._used.items() if name not in script.answers}
        return made

    def attempt(
        self,
        effect: Effect[..., Any],
        arguments: bytes,
        judge: Judge = failure_data.judge,
        *,
        snapshot: Snapshot | None = None,
        drive: Drive | None = None,
    ) -> Scripted:
        """Return how this attempt at the effect ends. `judge`: what an exception means, by the call's `Retry`.
        `snapshot`: of the flow domain that has asked for it; functions that answer get it as the effect does. `drive`
        runs an effect's own coroutine; without it, one that waits for something is refused.
        """
        # Unpacked as for the effect itself, so functions that answer see the same types.
        args, kwargs = effect.signature.unpack(arguments)
        kwargs |= effect.signature.given(snapshot)
        given = self._next(effect, args, kwargs)
        after_us: int | None = 0
        if isinstance(given, Later):
            after_us, given = given.after_us, given.answer
            if after_us is None:
                return Scripted(False, after_us=None)
        return _play(effect, lambda: _answer(effect, given, args, kwargs, drive), judge, after_us)

    def _next(self, effect: Effect[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answers = self._script.answers.get(effect.name)
        if answers is None:
            call = effect(*args, **kwargs)  # made for its text alone
            raise Unscripted(
                f"effect {call!r} was called and the script has no answer for it; "
                f"write wl.Script().on({effect.name}, <answer, exception or function>)"
            )
        used = self._used.get(effect.name, 0)
        self._used[effect.name] = used + 1
        return answers[min(used, len(answers) - 1)]


def _play(effect: Effect[..., Any], play: Callable[[], Any], judge: Judge, after_us: int | None) -> Scripted:
    try:
        answer = play()
    except (failures.OutsideWorkflow, failures.OutsideEffect, Unscripted):
        raise  # a mistake of the test's: it runs an effect that cannot be run here
    except Exception as error:  # noqa: BLE001 - whatever a script raises is that attempt's failure
        said = judge(error)
        return Scripted(
            False,
            code=said.code,
            message=said.message,
            final=said.final,
            timed_out=said.timed_out,
            after_us=after_us,
            retry_us=said.after_us,
            failed_with=said.data,
            mistake=said.mistake,
        )
    # How long an attempt takes is read before the function is called.
    if isinstance(answer, Later):
        raise errors.BadInput(f"script of {effect.name}(): put Script.later() outside, around the function")
    return Scripted(True, data=_checked(effect, answer), after_us=after_us)


def _answer(
    effect: Effect[..., Any], given: Any, args: tuple[Any, ...], kwargs: dict[str, Any], drive: Drive | None
) -> Any:
    if isinstance(given, type) and issubclass(given, Exception):
        raise given(f"scripted for {effect.name}()")
    if isinstance(given, Exception):
        raise given
    if isinstance(given, Effect):
        return _perform(given, args, kwargs, drive or functools.partial(_without_loop, given.name))
    return given(*args, **kwargs) if callable(given) else given


def _perform(effect: Effect[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], drive: Drive) -> Any:
    """What the effect's own function answers, its resources replaced by `override`."""
    answer = effect.function(*args, **kwargs, **resources.overridden(effect.name, effect.signature.uses))
    return drive(answer) if inspect.iscoroutine(answer) else answer


def _without_loop(name: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise Unscripted(
        f"script of {name}(): its function waits for something, and there is no event loop to run it in; "
        f"answer with a value or a plain function"
    )


def _is_data(answer: Any) -> bool:
    if isinstance(answer, type) and issubclass(answer, Exception):
        return True
    return not isinstance(answer, Later) and not callable(answer)


def _check_answer(effect: Effect[..., Any], answer: Any) -> None:
    while isinstance(answer, Later):
        if answer.after_us is None:
            return
        answer = answer.answer
    if inspect.iscoroutinefunction(answer):
        raise errors.BadInput(f"script of {effect.name}(): use a plain function; there is no event loop to run it in")
    if isinstance(answer, Effect):
        if answer.name != effect.name:
            raise errors.BadInput(f"script of {effect.name}(): {answer.name} is another effect")
    # What exceptions and functions give shows only when they are played.
    elif not isinstance(answer, Exception) and not callable(answer):
        _checked(effect, answer)


def _checked(effect: Effect[..., Any], answer: Any) -> bytes:
    """Return the answer's bytes; refused if they are not of the type that the effect returns."""
    kind = effect.signature.hints.get("return", Any)
    try:
        # Written and read back: only both show that the effect's type takes it.
        data = user_values.dump(answer)
        user_values.load(kind, data)
    except (errors.EncodeError, errors.DecodeError) as error:
        what, wanted = user_errors.repr_of(answer), user_values.name_of(kind)
        raise errors.BadInput(f"script of {effect.name}(): {what} is not its answer, {wanted}: {error}") from error
    return data
