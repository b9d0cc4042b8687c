"""Exceptions of user code: told apart from those of the process, and described as text without trusting them.

An exception is an object of the user's: its `__str__`, its `code`, its class and the text they give may raise, be
wrong, be of any size or have no bytes. The functions here always return plain text that can be journaled: an exact
`str`, bounded and well-formed. Addresses of objects are removed from it, because a replay must produce the same text.

An `Interrupted` comes from the host, which drops the step whatever user code makes of it.

A `MemoryError` is no part of a world's history: it says that the process had no memory. It passes every guard, and
`step.step` turns it into `errors.CannotStep`. Code that catches it itself cannot be distinguished from code that met
none. A `KeyboardInterrupt` passes only where a signal can arrive, which is a test's own thread
(`context.interruptible`): worlds are hosted in threads that get none, so there it was raised by the code itself, and is
a failure like any other.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from worldline.base import errors, failures, limits, secret
from worldline.codec import printable
from worldline.kernel import context

TEXT_CHARACTERS_MAX: Final = 4_096
CODE_CHARACTERS_MAX: Final = 200
HINT: Final = (
    "a workflow can await only what Worldline records: effects, workflows, wl.sleep, wl.wait, wl.gather and the like; "
    "put asyncio and other I/O into an @effect"
)

_OWN: Final = (f"{__file__.rpartition('/kernel/')[0]}/", f"{logging.__file__.rpartition('/logging/')[0]}/", "<")
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_log: Final = printable.logger("worldline.failures")

_ADDRESS: Final = re.compile(r"(?<= at )0x[0-9a-fA-F]{6,16}\b")
_THREAD: Final = re.compile(r" in thread '[^']*'")  # asyncio names it, and a replay runs in another
_LOOP_ERRORS: Final = (
    "no running event loop",
    "no current event loop",
    "loop argument must",
    "be used inside a task",
)
_ASYNC_LIBRARIES: Final = ("asyncio", "anyio", "sniffio", "trio", "curio")
_type_name: Final[Any] = type.__dict__["__name__"].__get__
_traceback: Final[Any] = BaseException.__dict__["__traceback__"].__get__


def let_pass(error: BaseException) -> bool:
    """Whether the process raised it and not the user's code, as far as is known. Then the step will be dropped, also if
    user code further out catches it.
    """
    kind = type(error)
    if issubclass(kind, context.Interrupted):
        return True
    if issubclass(kind, KeyboardInterrupt):
        return context.interruptible.get()
    if not issubclass(kind, MemoryError):
        return False
    running = context.current.get()
    if running is not None:
        # Noted as well: user code further out may catch it.
        running.drop_step(errors.CannotStep("the process has no memory left for this step", lasting=False))
    return True


def code_of(error: BaseException) -> str:
    """Return the `code` that an exception carries, or the name of its class."""
    return text_at(error, "code") or name_of(type(error))


def text_at(error: BaseException, attribute: str) -> str:
    """A short text that an exception has as an attribute. Empty if it has none, or if reading it fails."""
    # The attribute may be a property of the user's, which can do anything.
    try:
        return plain_text(getattr(error, attribute, ""), characters_max=CODE_CHARACTERS_MAX)
    except BaseException as raised:
        if let_pass(raised):
            raise
        return ""


def pause_us(error: failures.TryAgain) -> int:
    """Say how long a `TryAgain` asks to wait: 0 if that is not a number, and at most the limit."""
    try:
        return int(max(0.0, min(float(error.after), limits.RETRY_AFTER_SECONDS_MAX)) * 1_000_000)
    except BaseException as raised:
        if let_pass(raised):
            raise
        return 0


def message_of(error: BaseException) -> str:
    """Return the class and the text of an exception."""
    name = name_of(type(error))
    if issubclass(type(error), RecursionError):
        return f"{name}: maximum recursion depth exceeded"  # Python adds where, which depends on its version
    text = text_of(error)
    return f"{name}: {text}" if text else name


def message_in_step(error: BaseException) -> str:
    """The same of an exception of a workflow or handler, with a hint where it was raised for want of an event loop."""
    message = message_of(error)
    library = _async_library(error, message)
    if not library:
        return message
    message = _THREAD.sub("", message)
    return message if HINT in message else f"{message}: {library} cannot be used inside a workflow; {HINT}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception: empty if it has none, or if reading it fails."""
    # `__str__` may be the user's own.
    try:
        text = plain_text(str(error))
    except BaseException as raised:
        if let_pass(raised):
            raise
        text = ""
    if _log.isEnabledFor(logging.DEBUG):
        said = secret.KNOWN.text(text)  # of the line alone: a step's own text depends on nothing that its process knows
        _log.debug("%s: %s", name_of(type(error)), said, extra={"text": said, "place": place_of(error)})
    return text


def place_of(error: BaseException) -> str:
    """Return the file and line of the innermost user code that an exception passed through; empty if there is none.

    It is for people at a terminal and in no journal: the same program may stand in another file.
    """
    found = ""
    trace = _traceback(error)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_user_code(file):
            found = f"{file.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def is_raised_by_user(error: BaseException) -> bool:
    """Return whether the innermost code that an exception passed through is the user's own."""
    trace, file = _traceback(error), ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return bool(file) and is_user_code(file)


def own_place_of(error: BaseException) -> str:
    """Return the file, line and function of the innermost code of this package that an exception passed through."""
    found = "an unknown place"
    trace = _traceback(error)
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(_OWN):
            file = code.co_filename.rpartition("worldline")[2][1:]  # below the package
            found = f"{file}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return found


def is_user_code(file: str) -> bool:
    """Whether code of this file is the user's own: neither this package's, nor Python's, nor an installed library's."""
    return not file.startswith(_OWN) and not any(each in file for each in _INSTALLED)


def repr_of(value: object) -> str:
    """A value as its own `repr` shows it, or only its type. Of a set, whose order differs by process, only its type."""
    if type(value) is set or type(value) is frozenset:
        return f"<{name_of(type(value))}>"
    try:
        return plain_text(repr(value)) or f"<{name_of(type(value))}>"
    except BaseException as raised:
        if let_pass(raised):
            raise
        return f"<{name_of(type(value))}>"


def name_of(kind: type) -> str:
    """A class's name, read without calling its metaclass."""
    return plain_text(_type_name(kind), characters_max=CODE_CHARACTERS_MAX)


def plain_text(text: object, *, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Text for the journal: an exact `str`, bounded and well-formed. Empty if it is no text."""
    if not issubclass(type(text), str):
        return ""
    # A slice by the base class's own method: a subclass may return anything, and this makes a plain `str`.
    cut = str.__getitem__(text, slice(characters_max))  # type: ignore[index]
    # A lone surrogate has no bytes, so it is written out.
    return _ADDRESS.sub("0x...", cut).encode("utf-8", "backslashreplace").decode()


def _async_library(error: BaseException, text: str) -> str:
    """The library whose code raised it, or asyncio if it says that there is no event loop: libraries do not always say
    what is missing. Empty if it is about something else.
    """
    trace = _traceback(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    library = plain_text(module).partition(".")[0]
    if library in _ASYNC_LIBRARIES:
        return library
    is_loop_error = issubclass(type(error), RuntimeError) and any(each in text for each in _LOOP_ERRORS)
    return "asyncio" if is_loop_error else ""
