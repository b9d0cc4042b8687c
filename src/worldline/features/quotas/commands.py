"""`worldline universe quota`: what a universe has and may have. Each change is kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click
import msgspec

from worldline.base import errors
from worldline.features.quotas import calls
from worldline.features.quotas.quota_use import QuotaUse
from worldline.inspect.entry_text import rfc3339, when
from worldline.terminal import command_session
from worldline.terminal.command_session import CommandSession

Function = Callable[..., Any]


def _quotas(function: Function) -> Function:
    for name, what in (
        ("pins", "Forks that pin a snapshot of the world they come from."),
        ("effects", "Open effects."),
        ("bytes", "Bytes stored; K, M, G and T are powers of 1024."),
        ("worlds", "Worlds."),
    ):
        function = click.option(f"--{name}", metavar="N|none", help=what)(function)
    return function


@command_session.command("quota")
@_quotas
@click.option("--count", is_flag=True, help="Count the bytes now: reads all of the universe.")
@click.option("--log", "shows_changes", is_flag=True, help="What the quota was from when on, the newest first.")
async def quota(desk: CommandSession, *, count: bool, shows_changes: bool, **given: str | None) -> None:
    """Show what the universe has and may have, or change what it may have.

    Beyond its quota, what comes from outside and asks for more is refused; what runs already goes on.
    """
    wanted = {name: _amount(value) for name, value in given.items() if value is not None}
    async with desk.open(programs=[]) as universe:
        if shows_changes:
            _show_changes(desk, await calls.changes(universe))
            return
        changed = await calls.change(universe, **wanted) if wanted else False
        found = await calls.use(universe.store, universe.id, count=count)
    lines = [f"{name:8} {_used_of(found, name)}" for name in errors.QUOTA_NAMES]
    if found.counted_us is not None:
        lines.append(f"bytes were counted at {rfc3339(when(found.counted_us))}")
    lines += [f"over its quota of {name}: what asks for more is refused" for name in found.exceeded]
    desk.out.one({"universe": universe.name, **shown(found), "changed": changed}, lines)


def _show_changes(desk: CommandSession, changes: list[calls.QuotaChange]) -> None:
    rows = [
        {"change": each.change, "time": rfc3339(when(each.time_us)), **msgspec.structs.asdict(each.quota)}
        for each in changes
    ]
    columns = {"CHANGE": "change", "TIME": "time", **{name.upper(): name for name in errors.QUOTA_NAMES}}
    desk.out.many(rows, columns, none="this universe never had a quota", key="change")


def shown(use: QuotaUse) -> dict[str, Any]:
    """What a universe has, as `--json` shows it."""
    return {
        **{name: getattr(use, name) for name in errors.QUOTA_NAMES},
        "quota": msgspec.structs.asdict(use.quota),
        "counted": None if use.counted_us is None else rfc3339(when(use.counted_us)),
        "exceeded": use.exceeded,
    }


def uses(use: QuotaUse) -> str:
    """How much is used of each quota that there is, in a cell of a table."""
    bounded = [name for name in errors.QUOTA_NAMES if getattr(use.quota, name) is not None]
    return ", ".join(f"{name} {_used_of(use, name)}" for name in bounded) or "-"


def _used_of(use: QuotaUse, name: str) -> str:
    used, limit = getattr(use, name), getattr(use.quota, name)
    return f"{'not counted' if used is None else used} of {'any number' if limit is None else limit}"


def _amount(text: str) -> int | None:
    """A number, with K, M, G or T behind it for powers of 1024; or `none`."""
    found = _AMOUNT.fullmatch(text.strip().lower())
    if found is None:
        raise errors.BadInput(f"{text!r} is no quota; use a number like 500 or 20G, or none")
    if found["none"]:
        return None
    scale: int = 1024 ** " kmgt".index(found["unit"] or " ")  # powers of 1024, as disks and memory are counted
    return int(found["number"]) * scale


# Bounded: `int` refuses a number of thousands of digits with an error of its own.
_AMOUNT = re.compile(r"(?P<none>none)|(?P<number>[0-9]{1,30})(?P<unit>[kmgt]?)b?")
