"""Behaviours that raise: exceptions that lie, that are huge, that Python itself uses, and that fail when looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Never

import worldline as wl
from tests.hostile.behaviours import Kind, Registry
from worldline.base import errors
from worldline.kernel import context, run_operations

plain = Registry()
raises = plain.add(Kind.RAISES)


class Broken(Exception):
    """Every look at it fails."""

    def __str__(self) -> str:
        raise ValueError("no text")

    def __repr__(self) -> str:
        raise ValueError("no text")

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    def __hash__(self) -> int:
        raise ValueError("no hash")

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


class BrokenBase(BaseException):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class StrIsInt(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - hostile on purpose


class LyingText(str):
    """Text that is something else whenever it is used."""

    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("no text")

    def __len__(self) -> int:
        return -1  # noqa: PLE0303 - hostile on purpose

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    def __hash__(self) -> int:
        raise ValueError("no hash")

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")

    def __getitem__(self, key: object) -> str:
        raise ValueError("no part")

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        raise ValueError("no bytes")


class Coded(Exception):
    def __init__(self, code: object) -> None:
        super().__init__("coded")
        self.code = code


class CodeRaises(Exception):
    @property
    def code(self) -> str:
        raise ValueError("no code")


class CodeExits(Exception):
    @property
    def code(self) -> str:
        raise KeyboardInterrupt


class Disguised(Exception):
    """Says that it is something else."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return wl.Cancelled


class ClassRaises(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise ValueError("no class")


class NoAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise ValueError(f"no {name}")


class BadName(type):
    """A class whose name cannot be read."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


class Nameless(Exception, metaclass=BadName):
    pass


class RefusedBroken(wl.Refused):
    def __str__(self) -> str:
        raise ValueError("no text")


class FatalBroken(wl.Fatal):
    def __str__(self) -> str:
        raise ValueError("no text")


class DivergedLike(wl.errors.Diverged):
    pass


class CancelledOdd(wl.Cancelled):
    def __init__(self) -> None:
        super().__init__("odd")
        self.reason = object()  # type: ignore[assignment]


class TimeoutBroken(TimeoutError):
    def __str__(self) -> str:
        raise ValueError("no text")


def raising(make: Callable[[], Any]) -> Callable[[], Never]:
    def do() -> Never:
        raise make()

    return do


RAISED: dict[str, Callable[[], Any]] = {
    "value_error": lambda: ValueError("plain"),
    "broken": lambda: Broken,
    "broken_base": lambda: BrokenBase,
    "text_is_a_number": lambda: StrIsInt,
    "text_with_surrogates": lambda: ValueError("\ud800 \udfff"),
    "huge_text": lambda: ValueError("x" * 3_000_000),
    "huge_name": lambda: type("N" * 100_000, (Exception,), {}),
    "surrogate_name": lambda: type("N\ud800", (Exception,), {}),
    "nameless": lambda: Nameless,
    "code_raises": lambda: CodeRaises,
    "code_interrupts": lambda: CodeExits,
    "code_is_a_number": lambda: Coded(7),
    "code_is_huge": lambda: Coded("c" * 3_000_000),
    "code_has_surrogates": lambda: Coded("\udc80"),
    "code_lies": lambda: Coded(LyingText("code")),
    "code_of_ours": lambda: Coded("refused"),
    "code_of_a_lost_id": lambda: Coded("id_reused"),
    "disguised": lambda: Disguised,
    "class_raises": lambda: ClassRaises,
    "no_attributes": lambda: NoAttributes,
    "refused": lambda: wl.Refused("no"),
    "refused_broken": lambda: RefusedBroken("no"),
    "fatal_broken": lambda: FatalBroken("no"),
    "fatal_with_odd_code": lambda: wl.Fatal("no", code=LyingText("c")),
    "fatal_with_a_number_for_code": lambda: wl.Fatal("no", code=7),  # type: ignore[arg-type]
    "try_again_never": lambda: wl.TryAgain("no", after=float("nan")),
    "try_again_with_text": lambda: wl.TryAgain("no", after="soon"),  # type: ignore[arg-type]
    "diverged": lambda: DivergedLike("a divergence of my own"),
    "cancelled": lambda: wl.Cancelled("by myself"),
    "cancelled_with_an_odd_reason": lambda: CancelledOdd,
    "asyncio_cancelled": lambda: asyncio.CancelledError,
    "timeout_broken": lambda: TimeoutBroken,
    "keyboard_interrupt": lambda: KeyboardInterrupt,
    "system_exit": lambda: SystemExit(1),
    "generator_exit": lambda: GeneratorExit,
    "stop_iteration": lambda: StopIteration("value"),
    "stop_async_iteration": lambda: StopAsyncIteration,
    "group": lambda: ExceptionGroup("several", [ValueError("a"), ExceptionGroup("inner", [Broken()])]),
    "base_group": lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), SystemExit(2)]),
    "assertion": lambda: AssertionError("only while a step runs"),
    "encode_error": lambda: errors.EncodeError("mine"),
    "decode_error": lambda: errors.DecodeError("mine"),
    "store_error": lambda: wl.errors.StoreError("mine"),
    "continue_as_nothing": lambda: run_operations.ContinueAsNew,
    "strayed": lambda: context.Strayed("mine"),
    "dropped": lambda: context.Dropped("mine"),
    "not_an_exception": lambda: 7,
}
plain.table(Kind.RAISES, {name: raising(make) for name, make in RAISED.items()})


@raises
def diverged_without_report() -> Never:
    error = wl.errors.Diverged("x")
    del error.report
    raise error


@raises
def own_cause() -> Never:
    error = ValueError("its own cause")
    error.__cause__ = error
    raise error


@raises
def long_chain() -> Never:
    error = ValueError("0")
    for number in range(1, 2_000):
        following = ValueError(str(number))
        following.__cause__ = error
        error = following
    raise error


@raises
def no_traceback() -> Never:
    try:
        raise ValueError("without a trace")
    except ValueError as error:
        raise error.with_traceback(None) from None


@plain.add(Kind.SICK)
def full_stack() -> int:
    return full_stack() + 1


@plain.add(Kind.SICK)
def full_stack_in_text() -> Never:
    class Deep(Exception):
        def __str__(self) -> str:
            return str(self)

    raise Deep


@plain.add(Kind.SICK)
def recursion_error() -> Never:
    raise RecursionError("by hand")


@plain.add(Kind.SICK)
def memory_error() -> Never:
    raise MemoryError
