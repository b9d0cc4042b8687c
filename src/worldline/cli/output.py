"""How answers and errors are written: tables for people, JSON for programs.

With `--json`, a get is one object, a list and a stream are one object a line, and an error is one object on stderr:
`{"error": {"code", "message", "hint"}}`. Without, an error is one line that says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TextIO

import click
import msgspec
from rich import box, console, progress, table, text

from worldline.base import errors, failures
from worldline.inspect import render

WIDE = 10_000  # where no terminal bounds it, nothing is cut
CELL_CHARACTERS_MAX = 200

NEGATIVE, USAGE, NOT_FOUND, REFUSED, STORE, NOT_HOSTED, INTERRUPTED = 1, 2, 3, 4, 5, 6, 130

_CODES: list[tuple[tuple[type[BaseException], ...], int]] = [
    ((errors.IdReused,), REFUSED),
    ((errors.BadInput,), USAGE),
    ((errors.NotFound,), NOT_FOUND),
    ((errors.Lost, failures.Refused, errors.Overloaded), REFUSED),
    ((errors.StoreError, errors.Corrupt), STORE),
    ((failures.Failed, failures.Diverged), NEGATIVE),
    ((TimeoutError, errors.NotHosted), NOT_HOSTED),
]

_HINTS: list[tuple[type[BaseException], str]] = [
    (errors.StoreMissing, "create one with `worldline dev FILE` or `worldline init`, or name another with --store"),
    (errors.StoreVersion, "use the release that wrote it"),
    (errors.StoreUnavailable, "check that it is reachable, and try again"),
    (errors.Corrupt, "`worldline doctor` says what is damaged"),
    (errors.Conflicted, "try again"),
]


class Declined(errors.Error):
    """A person was asked and said no, or could not be asked."""

    code = "declined"


def exit_code(error: BaseException) -> int:
    if isinstance(error, Declined):
        return REFUSED
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return NEGATIVE


def complain(error: BaseException, *, as_json: bool, hint: str = "") -> int:
    """Write an error, and say how the process should end."""
    code = str(getattr(error, "code", "")) or ("timeout" if isinstance(error, TimeoutError) else "error")
    message = str(error) or ("it took too long" if isinstance(error, TimeoutError) else type(error).__name__)
    found = (
        hint or str(getattr(error, "hint", "")) or next((each for kind, each in _HINTS if isinstance(error, kind)), "")
    )
    write_error(code, message, found, as_json=as_json)
    return exit_code(error)


def write_error(code: str, message: str, hint: str, *, as_json: bool) -> None:
    if as_json:
        said = {"error": {"code": code, "message": message, "hint": hint}}
        click.echo(msgspec.json.encode(said).decode(), err=True)
        return
    line = " ".join(f"{message}; {hint}".split() if hint else message.split())
    click.echo(f"error: {line}", err=True)


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
                self.line(str(getattr(record, key)))
        elif not records:
            self.note(none)
        else:
            made = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
            for title in columns:
                made.add_column(title, overflow="fold")
            for record in records:
                made.add_row(*(text.Text(cell(getattr(record, field))) for field in columns.values()))
            screen().print(made)

    def json(self, record: Any) -> None:
        click.echo(msgspec.json.encode(render.plain(record)).decode())

    def line(self, line: str) -> None:
        click.echo(line)

    def note(self, line: str) -> None:
        """Something for people only, and not part of the answer."""
        if not self.as_json and not self.quiet:
            click.echo(line, err=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """A bar on stderr, where somebody can see it."""
        shown = screen(err=True)
        if self.as_json or self.quiet or not shown.is_terminal:
            yield Progress(None, None)
            return
        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=shown, transient=True) as bar:
            yield Progress(bar, bar.add_task(title, total=None))


class Progress:
    """How far something long has come."""

    def __init__(self, bar: progress.Progress | None, task: progress.TaskID | None) -> None:
        self._bar = bar
        self._task = task

    def __call__(self, done: int, total: int, what: str = "") -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
            if what:
                self._bar.update(self._task, description=what)


def screen(*, err: bool = False, file: TextIO | None = None) -> console.Console:
    """A console that takes text as it is: what users write is never markup."""
    made = console.Console(stderr=err, file=file, markup=False, highlight=False, emoji=False)
    return made if made.is_terminal else console.Console(
        stderr=err, file=file, markup=False, highlight=False, emoji=False, width=WIDE
    )  # fmt: skip


def cell(value: Any) -> str:
    """A value in a table."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return local(value)
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return " ".join(f"{key}={each}" if each else key for key, each in value.items()) or "-"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value) or "-"
    shown = value if isinstance(value, str) else render.canonical_text(value)
    return shown if len(shown) <= CELL_CHARACTERS_MAX else shown[: CELL_CHARACTERS_MAX - 3] + "..."


def local(time: datetime) -> str:
    """A time as the person at the terminal tells it."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def pairs(said: Mapping[str, Any]) -> list[str]:
    """Names and values under each other."""
    width = max((len(name) for name in said), default=0)
    return [f"{name.ljust(width)}  {cell(value)}" for name, value in said.items()]
