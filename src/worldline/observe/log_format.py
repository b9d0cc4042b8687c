"""Logs on stderr: one line of text for people, or one JSON object a line for machines.

The roles, the store and a user's own `wl.log` write through `logging`; this only formats it. A record may carry fields
(`extra={"world": ..., "step": ...}`); the JSON form has them as members, the text form behind the message, unless the
message shows them itself, as those of `wl.log` do. A traceback is a member of its own, or follows on lines of its own.
In either form, values of secrets are replaced by their names.

::

    {"time": "2026-11-16T10:05:36.123456Z", "level": "warning", "logger": "worldline.worker", "message": "...",
     "worker": "9c41d2aa", "world": "019a...", "step": 12}
    2026-11-16 10:05:36.123 WARNING worker: ...  [world=019a... step=12]
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

from worldline.base.secret import KNOWN
from worldline.codec import printable
from worldline.kernel.authoring import log_calls
from worldline.store import urls

Form = Literal["json", "text"]
FORMS: tuple[Form, ...] = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_OURS = ("time", "level", "logger", "message", "error")
_STANDARD = (*vars(logging.makeLogRecord({})), "message", "asctime", "taskName")


def fields(record: logging.LogRecord) -> dict[str, str | int | float | bool]:
    """Return what a record carries besides what every record has."""
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD and isinstance(value, str | int | float | bool)
    }


class Json(logging.Formatter):
    """One object a line."""

    def __init__(self, always: Mapping[str, str]) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        said: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": urls.hidden(record.getMessage()),
        }
        carried = {**self._always, **fields(record)}
        # A user's field must not replace the time or the message of the line.
        said |= {name if name not in _OURS else f"field_{name}": value for name, value in carried.items()}
        if record.exc_info is not None and record.exc_info[0] is not None:
            said["error"] = urls.hidden(self.formatException(record.exc_info))
        return printable.json(said)


class Text(logging.Formatter):
    """One line, and a traceback's lines if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        millis = int(record.created * 1000) % 1000
        line = " ".join(record.getMessage().split())  # one record is one line, whatever a message holds
        said = f"{when}.{millis:03} {record.levelname} {record.name.removeprefix('worldline.')}: {line}"
        shown = getattr(record, log_calls.SHOWN, ())
        carried = " ".join(f"{name}={value}" for name, value in fields(record).items() if name not in shown)
        if carried:
            said += f"  [{' '.join(carried.split())}]"  # a value of a user's begins no line of the log
        if record.exc_info is not None and record.exc_info[0] is not None:
            said += "\n" + self.formatException(record.exc_info)
        return printable.shown(urls.hidden(said))


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        # After formatting: a secret may stand in the message, a field or the traceback, and all are text only here.
        self._write(KNOWN.text(self.format(record)))


@contextmanager
def written(
    form: Form,
    write: Callable[[str], None],
    *,
    level: str = "warning",
    users: bool = True,
    always: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """Write what is logged, line by line, as long as the block lasts. `always`: fields of every JSON line, also those
    that come to be known later.

    What a user's `wl.log` says is written from `info` on, at any level of the rest; or like the rest, without `users`.
    """
    all_of_us, user = logging.getLogger("worldline"), log_calls.LOGGER
    handler = _Handler(write)
    handler.setFormatter(Json(always) if form == "json" else Text())
    before = all_of_us.propagate, all_of_us.level, user.level
    all_of_us.addHandler(handler)
    # Else a handler that the user's program has installed at the root writes each line again.
    all_of_us.propagate = False
    all_of_us.setLevel(level.upper())
    if users:
        # What a user logs is wanted at `info`, when of ours only warnings are.
        user.setLevel(min(logging.INFO, all_of_us.level))
    try:
        yield
    finally:
        # All of it is put back: the loggers belong to the process, and a test or a program may open several stores in
        # turn.
        all_of_us.removeHandler(handler)
        all_of_us.propagate = before[0]
        all_of_us.setLevel(before[1])
        user.setLevel(before[2])
