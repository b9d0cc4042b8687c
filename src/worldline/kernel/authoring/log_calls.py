"""`wl.log`: logging with fields, inside workflows and handlers and outside of them.

A line is written when it happens, and not again when a run is rebuilt or a world replayed: then the arguments are taken
and none of them is looked at. So a call must not raise either, because it could not raise in a replay. Text is made of
the message, its arguments and its fields at once and not in a logging handler; whatever they do meanwhile (raise, lie,
end the process) becomes part of the text.

Fields are the keywords besides logging's own. They are shown behind the message in the order in which they are given,
and are attributes of the log record: numbers, truth values and text as they are, all else as text. A name that a record
has already gets an underscore behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

import msgspec

from worldline.base.secret import KNOWN
from worldline.codec import printable
from worldline.kernel import context, user_errors

LINE_CHARACTERS_MAX: Final = 65_536
NAME_CHARACTERS_MAX: Final = 200
LOGGER: Final = printable.logger("worldline.user")
SHOWN: Final = "worldline_shown"  # the attribute of a record that names the fields which its message shows already

# `logging` raises for these names in `extra=`, and formats of this package use the last three themselves.
_TAKEN: Final = (*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "world", "step", SHOWN)
_INT_BITS: Final = 63  # a larger number is text: not every log format can hold it
_CALLS_BETWEEN: Final = 4  # functions of this file between the caller and `logging`


ExcInfo = (
    bool
    | BaseException
    | tuple[type[BaseException], BaseException, TracebackType | None]
    | tuple[None, None, None]
    | None
)
Extra = Mapping[str, object] | None


class LogLine(msgspec.Struct, frozen=True):
    """What a call was given. The last four are `logging`'s own."""

    level: int
    msg: object
    args: tuple[object, ...]
    fields: dict[str, object]
    exc_info: ExcInfo
    stack_info: bool
    stacklevel: int
    extra: Extra


class Log:
    """The methods are those of a `logging.Logger`. None of them raises."""

    __slots__ = ()

    def debug(
        self,
        msg: object,
        /,
        *args: object,
        exc_info: ExcInfo = None,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Extra = None,
        **fields: object,
    ) -> None:
        """Log a line, with these fields."""
        _log(LogLine(logging.DEBUG, msg, args, fields, exc_info, stack_info, stacklevel, extra))

    def info(
        self,
        msg: object,
        /,
        *args: object,
        exc_info: ExcInfo = None,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Extra = None,
        **fields: object,
    ) -> None:
        """Log a line, with these fields."""
        _log(LogLine(logging.INFO, msg, args, fields, exc_info, stack_info, stacklevel, extra))

    def warning(
        self,
        msg: object,
        /,
        *args: object,
        exc_info: ExcInfo = None,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Extra = None,
        **fields: object,
    ) -> None:
        """Log a line, with these fields."""
        _log(LogLine(logging.WARNING, msg, args, fields, exc_info, stack_info, stacklevel, extra))

    def error(
        self,
        msg: object,
        /,
        *args: object,
        exc_info: ExcInfo = None,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Extra = None,
        **fields: object,
    ) -> None:
        """Log a line, with these fields."""
        _log(LogLine(logging.ERROR, msg, args, fields, exc_info, stack_info, stacklevel, extra))

    def critical(
        self,
        msg: object,
        /,
        *args: object,
        exc_info: ExcInfo = None,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Extra = None,
        **fields: object,
    ) -> None:
        """Log a line, with these fields."""
        _log(LogLine(logging.CRITICAL, msg, args, fields, exc_info, stack_info, stacklevel, extra))

    def exception(
        self,
        msg: object,
        /,
        *args: object,
        exc_info: ExcInfo = True,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Extra = None,
        **fields: object,
    ) -> None:
        """Log a line with the exception that is being handled."""
        _log(LogLine(logging.ERROR, msg, args, fields, exc_info, stack_info, stacklevel, extra))

    def log(
        self,
        level: int,
        msg: object,
        /,
        *args: object,
        exc_info: ExcInfo = None,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Extra = None,
        **fields: object,
    ) -> None:
        """Log a line at a level, with these fields."""
        _log(LogLine(level, msg, args, fields, exc_info, stack_info, stacklevel, extra))

    def isEnabledFor(self, level: int, /) -> bool:  # noqa: N802 - the name logging gave it
        """Whether a line of this level would be written now. For what is costly to compute; never to decide by."""
        # `logging` itself raises for a level that is no `int`; a call of a log must not.
        return type(level) is int and not _is_silent(context.current.get()) and LOGGER.isEnabledFor(level)


def _log(line: LogLine) -> None:
    running = context.current.get()
    if _is_silent(running):
        return
    try:
        if LOGGER.isEnabledFor(line.level):
            _outside(running, line)
    # Whatever happens is kept from the caller: in a replay nothing is written, so nothing could raise.
    except BaseException as error:
        if user_errors.let_pass(error):
            raise
        _lost(error)


def _is_silent(running: context.Running | None) -> bool:
    """Return whether this has happened before, or happens in a coroutine that is only dropped."""
    return running is not None and (isinstance(running, context.ClosingRun) or running.is_silent)


def _outside(running: context.Running | None, line: LogLine) -> None:
    """Write a line where no function of a workflow works: a replay makes no text, so making it must change nothing."""
    before = context.current.set(None)
    try:
        _write(running, line)
    finally:
        context.current.reset(before)


def _write(running: context.Running | None, line: LogLine) -> None:
    shown = [(_name(name), _value(given), given) for name, given in line.fields.items()]
    words = (f"{name}={_word(value, given)}" for name, value, given in shown)
    text = " ".join([_text(line.msg, line.args), *words])
    if running is not None and running.run_id:
        text = f"[{running.run_id}] {text}"
    where = None if running is None else running.where
    carried: dict[str, object] = {}
    if where is not None:
        carried = {"world": where.address.world.hex(), "step": where.step}
    if isinstance(line.extra, Mapping):
        carried |= {_name(name) if name in carried else _free(name): each for name, each in line.extra.items()}
    carried |= {_free(name): value for name, value, _ in shown}
    carried[SHOWN] = tuple(_free(name) for name, _, _ in shown)
    if KNOWN:  # for handlers of the user's own: an effect may have read a secret
        text, carried = KNOWN.text(text), KNOWN.plain(carried)
    stacklevel = line.stacklevel if type(line.stacklevel) is int else 1
    LOGGER.log(
        line.level,
        text,
        exc_info=line.exc_info,
        stack_info=line.stack_info,
        stacklevel=stacklevel + _CALLS_BETWEEN,
        extra=carried,
    )


def _text(msg: object, args: tuple[object, ...]) -> str:
    """Return the message with its arguments. One that does not fit them is shown beside them."""
    form = _str(msg)
    if not args:
        return form
    try:
        given: Any = args
        if len(args) == 1 and issubclass(type(args[0]), Mapping) and args[0]:
            given = args[0]  # as `logging` has it
        return user_errors.plain_text(form % given, characters_max=LINE_CHARACTERS_MAX)
    except BaseException as error:
        if user_errors.let_pass(error):
            raise
        return f"{form} {' '.join(user_errors.repr_of(each) for each in args)}"


def _str(msg: object) -> str:
    try:
        given = msg if type(msg) is str else str(msg)
    except BaseException as error:
        if user_errors.let_pass(error):
            raise
        return f"<{user_errors.name_of(type(msg))}>"
    return user_errors.plain_text(given, characters_max=LINE_CHARACTERS_MAX)


def _value(value: object) -> object:
    """A field as a record carries it: a plain number, truth value or text. Nothing that can change or do anything."""
    kind = type(value)
    # Exact types: an object of a subclass could do anything when a handler formats it.
    if kind is bool or kind is float or value is None or (kind is int and value.bit_length() <= _INT_BITS):  # type: ignore[attr-defined]
        return value
    return user_errors.plain_text(value) if issubclass(kind, str) else user_errors.repr_of(value)


def _word(value: object, given: object) -> str:
    """A field's value in a line: text in quotes if it would not be seen where it ends."""
    text = value if type(value) is str else repr(value)
    if text and text.isprintable() and (" " not in text or not issubclass(type(given), str)):
        return text
    return repr(text)


def _name(name: object) -> str:
    return user_errors.plain_text(name, characters_max=NAME_CHARACTERS_MAX)


def _free(name: object) -> str:
    """A name that no record has yet."""
    wanted = _name(name)
    return f"{wanted}_" if wanted in _TAKEN else wanted


def _lost(error: BaseException) -> None:
    """A line was not written, because of a handler or filter of the user's, or a level that is none."""
    # The same logger, whose handler may be what failed: the second failure is dropped.
    try:
        LOGGER.warning("a line cannot be logged: %s", user_errors.message_of(error))
    except BaseException as again:
        if user_errors.let_pass(again):
            raise


log: Final = Log()
