"""Options by which a process that runs until it is stopped is watched: `--metrics`, `--log`, `--log-level`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from worldline.observe import log_format
from worldline.terminal import output

Function = Callable[..., Any]


class WatchOptions(msgspec.Struct, frozen=True):
    """How a process wants to be watched."""

    metrics: str | None = None
    form: log_format.Form = "text"
    level: str = "warning"

    @contextmanager
    def logging(self) -> Iterator[dict[str, str]]:
        """Write logs to stderr as long as the block lasts. Yields the fields of every line, to be filled in."""
        always: dict[str, str] = {}  # filled in later: the worker's id is known when the host has started
        # Through `output`, which lets nothing through that a terminal would act on, whatever user code logs.
        with log_format.written(self.form, lambda line: output.write(line, err=True), level=self.level, always=always):
            yield always


def options(function: Function) -> Function:
    """Give a command these options; it finds them as its desk's `watch`."""

    @functools.wraps(function)
    def run(desk: Any, *, metrics: str | None, log: log_format.Form, log_level: str, **given: Any) -> Any:
        desk.watch_as(WatchOptions(metrics, log, log_level))
        return function(desk, **given)

    run = click.option(
        "--log-level",
        type=click.Choice(log_format.LEVELS),
        default="warning",
        show_default=True,
        help="Log from here on.",
    )(run)
    run = click.option(
        "--log", type=click.Choice(log_format.FORMS), default="text", show_default=True, help="How logs are written."
    )(run)
    return click.option("--metrics", metavar="HOST:PORT", help="Offer metrics to Prometheus here.")(run)
