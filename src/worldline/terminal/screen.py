"""Tables, colours and progress bars.

Apart from `output`, because loading `rich` takes a third of a command's start, and most commands need none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich import box, console, progress, table, text

from worldline.codec import printable

WIDE = 10_000  # where no terminal bounds it, nothing is cut


def screen(*, err: bool = False) -> console.Console:
    """A console that takes text as it is: what users write is never markup."""
    # Without markup and emoji: `[red]` or `:x:` in a user's text is what the user wrote.
    made = console.Console(stderr=err, markup=False, highlight=False, emoji=False)
    return (
        made
        if made.is_terminal
        else console.Console(stderr=err, markup=False, highlight=False, emoji=False, width=WIDE)
    )


def styled(line: str, style: str = "") -> text.Text:
    """Text of whatever origin, in one style."""
    return text.Text(printable.shown(line), style=style)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    made = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in titles:
        made.add_column(styled(title), overflow="fold")  # folded, not cut: an id that lacks its end cannot be pasted
    for row in rows:
        made.add_row(*(styled(cell) for cell in row))
    screen().print(made)


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Lines, each with its style."""
    out = screen()
    for line, style in lines:
        # The terminal wraps it, so that a copied line has no breaks in it.
        out.print(styled(line, style), soft_wrap=True)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr. Yields what is called with how much is done, of how much, and perhaps another title."""
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=screen(err=True), transient=True) as bar:
        task = bar.add_task(printable.shown(title), total=None)

        def update(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total)
            if what:
                bar.update(task, description=printable.shown(what))

        yield update
