"""How answers and errors are written: tables for people, JSON for programs.

Everything that the command line writes goes through `write` or `terminal`, which let no character through that a
terminal would act on (`codec/printable.py`). Errors and notes are without passwords of URLs, wherever these were typed.

With `--json`, a get is one object, a list and a stream are one object a line, and an error is one object on stderr:
`{"error": {"code", "message", "hint"}}`, with `trace` if code of a world failed. Without, an error is one line that
says what to do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click

from worldline.base import env_os, errors, exit_codes, failures
from worldline.codec import printable
from worldline.inspect import entry_text
from worldline.store import urls

CELL_CHARACTERS_MAX = 200
ERROR_CHARACTERS_MAX = 4_000
SECONDS_OF_MINUTE = 60

# As commands name them, beside what they write.
NEGATIVE, USAGE, NOT_FOUND, REFUSED = exit_codes.NEGATIVE, exit_codes.USAGE, exit_codes.NOT_FOUND, exit_codes.REFUSED
STORE, TIMEOUT, INTERRUPTED = exit_codes.STORE, exit_codes.TIMEOUT, exit_codes.INTERRUPTED

_HINTS: list[tuple[type[BaseException], str]] = [
    (errors.StoreMissing, "create one with `worldline dev FILE` or `worldline init`, or name another with --store"),
    (errors.StoreVersion, "use the release that wrote it"),
    (errors.BadCopy, "use another copy, or make it again"),
    (errors.BadAnchor, "use the anchor as it was written, and the public key of who signed it"),
    (errors.KeyDestroyed, "`worldline delete` removes what is left of it"),
    (errors.Corrupt, "`worldline doctor` says what is damaged"),
    (errors.Conflicted, "try again"),
]


class Declined(errors.Error):
    """A person was asked and said no, or could not be asked."""

    code = "declined"
    exit_code = REFUSED


def exit_code(error: BaseException) -> int:
    """What the process ends with: as the error says, if it is one of ours."""
    if isinstance(error, errors.Error):
        return error.exit_code
    return TIMEOUT if isinstance(error, TimeoutError) else NEGATIVE


def complain(error: BaseException, *, as_json: bool, hint: str = "") -> int:
    """Write an error, and say how the process should end."""
    code = str(getattr(error, "code", "")) or ("timeout" if isinstance(error, TimeoutError) else "error")
    message = str(error) or ("it took too long" if isinstance(error, TimeoutError) else type(error).__name__)
    found = (
        hint or str(getattr(error, "hint", "")) or next((each for kind, each in _HINTS if isinstance(error, kind)), "")
    )
    trace = "\n".join(getattr(error, "__notes__", [])) if isinstance(error, failures.RunFailed) else ""
    write_error(code, message, found, as_json=as_json, trace=trace)
    return exit_code(error)


def write_error(code: str, message: str, hint: str, *, as_json: bool, trace: str = "") -> None:
    # Hidden before it is cut: a password whose URL lost its beginning would not be found any more.
    message, hint, trace = _cut(urls.hidden(message)), urls.hidden(hint), urls.hidden(trace)
    if as_json:
        said = {"code": code, "message": message, "hint": hint, **({"trace": trace} if trace else {})}
        write(printable.json({"error": said}), err=True)
        return
    join = " " if message.endswith("?") else "; "
    # One line: scripts read errors line by line.
    line = " ".join(f"{message}{join}{hint}".split() if hint else message.split())
    write(f"error: {line}", err=True)


def _cut(message: str) -> str:
    """A message without its middle, if that is long: it repeats what it was given. What to do stands at the end."""
    if len(message) <= ERROR_CHARACTERS_MAX:
        return message
    half = ERROR_CHARACTERS_MAX // 2
    return f"{message[:half]} ... {message[-half:]}"


def write(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Write text of whatever origin."""
    click.echo(printable.shown(text), err=err, nl=nl)


class Out:
    """Where a command's answer goes."""

    def __init__(self, *, as_json: bool, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    def one(self, record: Any, lines: Iterable[str] = ()) -> None:
        """One thing: an object, or lines for people."""
        if self.as_json:
            self.json(record)
            return
        for line in lines:
            self.line(line)

    def many(self, records: Sequence[Any], columns: Mapping[str, str], *, none: str, key: str = "id") -> None:
        """A list: objects, ids alone, or a table. `columns`: title -> field."""
        if self.as_json:
            for record in records:
                self.json(record)
        elif self.quiet:
            for record in records:
                self.line(str(_field(record, key)))
        elif not records:  # said on stderr, so that a pipe gets an empty list and not a sentence
            self.note(none)
        else:
            from worldline.terminal import screen  # noqa: PLC0415 - loads rich, which most commands do without

            rows = [[cell(_field(record, field)) for field in columns.values()] for record in records]
            screen.print_table(list(columns), rows)

    def json(self, record: Any) -> None:
        write(printable.json(entry_text.plain(record)))

    def line(self, line: str) -> None:
        write(line)

    def note(self, line: str) -> None:
        """Something for people only, and not part of the answer."""
        if not self.as_json and not self.quiet:
            write(urls.hidden(line), err=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """A bar on stderr, if that is a terminal."""
        if self.as_json or self.quiet or not sys.stderr.isatty():  # a bar in a file is a mess of control characters
            yield Progress()
            return
        from worldline.terminal import screen  # noqa: PLC0415 - loads rich, which most commands do without

        with screen.progress_bar(title) as update:
            yield Progress(update)


class Progress:
    """How far something long has come."""

    def __init__(self, update: Callable[[int, int, str], None] | None = None) -> None:
        self._update = update

    def __call__(self, done: int, total: int, what: str = "") -> None:
        if self._update is not None:
            self._update(done, total, what)


def _field(record: Any, name: str) -> Any:
    """A field of a record, or of one that was put together as a dict."""
    return record[name] if isinstance(record, dict) else getattr(record, name)


def cell(value: Any) -> str:
    """A value in a table."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):  # before numbers and JSON: `yes` is read faster than `true`
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return local(value)
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return " ".join(f"{key}={each}" if each else key for key, each in value.items()) or "-"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value) or "-"
    shown = value if isinstance(value, str) else entry_text.canonical_text(value)
    return shown if len(shown) <= CELL_CHARACTERS_MAX else shown[: CELL_CHARACTERS_MAX - 3] + "..."


def local(time: datetime) -> str:
    """A date and time in the time zone of the terminal."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def aged(time: datetime) -> str:
    """A date and time, and how far away that is: `2026-11-17 09:30:00 (5 min ago)`."""
    now = entry_text.when(env_os.OsEnv().wall_us())
    seconds = round((now - time).total_seconds())
    away = lasting(abs(seconds), units_max=1)
    return f"{local(time)} ({f'in {away}' if seconds < 0 else f'{away} ago'})"


def lasting(seconds: float, *, units_max: int = 4) -> str:
    """A length of time in at most so many units, the largest first."""
    if seconds < SECONDS_OF_MINUTE:
        return f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    named = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join([f"{count} {unit}" for count, unit in named if count][:units_max])


def pairs(said: Mapping[str, Any]) -> list[str]:
    """Names and values under each other."""
    width = max((len(name) for name in said), default=0)
    shown = {name: aged(value) if isinstance(value, datetime) else cell(value) for name, value in said.items()}
    return [f"{name.ljust(width)}  {value}" for name, value in shown.items()]
