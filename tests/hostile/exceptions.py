"""Behaviours that raise: exceptions that lie, that are huge, that Python itself uses, and that fail when looked at."""

from __future__ import annotations

import asyncio
from typing import Any, Never

import worldline as wl
from tests.hostile.behaviours import Kind, Registry
from worldline.base import errors
from worldline.kernel import driver, runs

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


class DivergedLike(wl.Diverged):
    pass


class CancelledOdd(wl.Cancelled):
    def __init__(self) -> None:
        super().__init__("odd")
        self.reason = object()  # type: ignore[assignment]


class TimeoutBroken(TimeoutError):
    def __str__(self) -> str:
        raise ValueError("no text")


@raises
def value_error() -> Never:
    raise ValueError("plain")


@raises
def broken() -> Never:
    raise Broken


@raises
def broken_base() -> Never:
    raise BrokenBase


@raises
def text_is_a_number() -> Never:
    raise StrIsInt


@raises
def text_with_surrogates() -> Never:
    raise ValueError("\ud800 \udfff")


@raises
def huge_text() -> Never:
    raise ValueError("x" * 3_000_000)


@raises
def huge_name() -> Never:
    raise type("N" * 100_000, (Exception,), {})


@raises
def surrogate_name() -> Never:
    raise type("N\ud800", (Exception,), {})


@raises
def nameless() -> Never:
    raise Nameless


@raises
def code_raises() -> Never:
    raise CodeRaises


@raises
def code_interrupts() -> Never:
    raise CodeExits


@raises
def code_is_a_number() -> Never:
    raise Coded(7)


@raises
def code_is_huge() -> Never:
    raise Coded("c" * 3_000_000)


@raises
def code_has_surrogates() -> Never:
    raise Coded("\udc80")


@raises
def code_lies() -> Never:
    raise Coded(LyingText("code"))


@raises
def code_of_ours() -> Never:
    raise Coded("refused")


@raises
def code_of_a_lost_id() -> Never:
    raise Coded("id_reused")


@raises
def disguised() -> Never:
    raise Disguised


@raises
def class_raises() -> Never:
    raise ClassRaises


@raises
def no_attributes() -> Never:
    raise NoAttributes


@raises
def refused() -> Never:
    raise wl.Refused("no")


@raises
def refused_broken() -> Never:
    raise RefusedBroken("no")


@raises
def fatal_broken() -> Never:
    raise FatalBroken("no")


@raises
def fatal_with_odd_code() -> Never:
    raise wl.Fatal("no", code=LyingText("c"))


@raises
def fatal_with_a_number_for_code() -> Never:
    raise wl.Fatal("no", code=7)  # type: ignore[arg-type]


@raises
def try_again_never() -> Never:
    raise wl.TryAgain("no", after=float("nan"))


@raises
def try_again_with_text() -> Never:
    raise wl.TryAgain("no", after="soon")  # type: ignore[arg-type]


@raises
def diverged() -> Never:
    raise DivergedLike("a divergence of my own")


@raises
def diverged_without_report() -> Never:
    error = wl.Diverged("x")
    del error.report
    raise error


@raises
def cancelled() -> Never:
    raise wl.Cancelled("by myself")


@raises
def cancelled_with_an_odd_reason() -> Never:
    raise CancelledOdd


@raises
def asyncio_cancelled() -> Never:
    raise asyncio.CancelledError


@raises
def timeout_broken() -> Never:
    raise TimeoutBroken


@raises
def keyboard_interrupt() -> Never:
    raise KeyboardInterrupt


@raises
def system_exit() -> Never:
    raise SystemExit(1)


@raises
def generator_exit() -> Never:
    raise GeneratorExit


@raises
def stop_iteration() -> Never:
    raise StopIteration("value")


@raises
def stop_async_iteration() -> Never:
    raise StopAsyncIteration


@raises
def group() -> Never:
    raise ExceptionGroup("several", [ValueError("a"), ExceptionGroup("inner", [Broken()])])


@raises
def base_group() -> Never:
    raise BaseExceptionGroup("several", [KeyboardInterrupt(), SystemExit(2)])


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


@raises
def assertion() -> Never:
    raise AssertionError("only while a step runs")


@raises
def encode_error() -> Never:
    raise errors.EncodeError("mine")


@raises
def decode_error() -> Never:
    raise errors.DecodeError("mine")


@raises
def store_error() -> Never:
    raise wl.StoreError("mine")


@raises
def continue_as_nothing() -> Never:
    raise driver.ContinueAsNew(None)


@raises
def strayed() -> Never:
    raise runs.Strayed("mine")


@raises
def dropped() -> Never:
    raise runs.Dropped("mine")


@raises
def not_an_exception() -> Never:
    raise 7  # type: ignore[misc]  # noqa: B016 - hostile on purpose


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
