"""Comparing: diff. Left is `-`, right is `+`, and `~` is what both sides have and is not the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import click

from worldline.base import grammar
from worldline.client import world_names
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.codec.differences import path_text
from worldline.features.diff import calls
from worldline.features.diff.records import (
    CellDiff,
    Diff,
    EffectDiff,
    EffectSide,
    Entries,
    Field,
    How,
    RunDiff,
    RunSide,
)
from worldline.inspect import entry_text
from worldline.terminal import command_session
from worldline.terminal.command_session import CommandSession

SECTION_LINES_MAX = 9  # of cells, of runs, of effects
FIELDS_MAX = 4  # of one of them
TEXT_CHARACTERS_MAX = 60

_MARKS: dict[How, str] = {"added": "+", "removed": "-", "changed": "~"}
_STYLES = {"+": "green", "-": "red", "~": "yellow"}
_PLACE = re.compile(r"(.+)@([0-9]{1,20})", re.ASCII | re.DOTALL)


class DiffLine(NamedTuple):
    text: str
    style: str = ""


@command_session.command("diff")
@click.argument("left", metavar="WORLD[@HEIGHT]")
@click.argument("right", metavar="WORLD[@HEIGHT]")
@click.option("--all", "every", is_flag=True, help="Everything that differs, values in full.")
async def diff(desk: CommandSession, *, left: str, right: str, every: bool) -> None:
    """Compare two worlds, or two heights of one.

    Cells and runs field by field, effects with arguments and answers, since the state that both have come from. A world
    without a height is compared as it is now.
    """
    async with desk.open(programs=[]) as universe:
        (ours, at), (theirs, to) = [await _place(desk, universe, each) for each in (left, right)]
        found = await calls.diff(ours, theirs, at=at, to=to)
    if desk.out.as_json:
        desk.out.json(found)
        return
    from worldline.terminal import screen  # noqa: PLC0415 - loads rich, which most commands do without

    screen.print_lines(lines(found, every=every))


async def _place(desk: CommandSession, connection: Connection, text: str) -> tuple[Handle, int | None]:
    """A world and a height in it. A world whose very name this is comes first."""
    match = _PLACE.fullmatch(text)
    if match is None or await world_names.named(connection, text) is not None:
        return await desk.world(connection, text), None
    return await desk.world(connection, match.group(1)), int(match.group(2))


def lines(comparison: Diff, *, every: bool) -> list[DiffLine]:
    """A comparison for people: at most about forty lines, unless `every` one is asked for."""
    said = [
        DiffLine(f"since {comparison.ancestor}@{comparison.height} (step {comparison.step})"),
        DiffLine(f"- {_entries(comparison.entries.left)}", _STYLES["-"]),
        DiffLine(f"+ {_entries(comparison.entries.right)}", _STYLES["+"]),
    ]
    cut = _Cut(every)
    said += cut.section("cells", [cut.cell(each) for each in comparison.cells], comparison.cells)
    said += cut.section("runs", [cut.run(each) for each in comparison.runs], comparison.runs)
    said += cut.section("effects", [cut.effect(each) for each in comparison.effects], comparison.effects)
    return [*said, DiffLine("no cell, run or effect differs")] if comparison.same else said


def _entries(side: Entries) -> str:
    name = f"{side.world}@{side.height}"
    if not side.count:
        return f"{name}: nothing since then"
    kinds = ", ".join(f"{count} {kind}" for kind, count in side.kinds.items())
    heights = f"height {side.height}" if side.count == 1 else f"heights {side.first} to {side.height}"
    return f"{name}: {side.count} {'entry' if side.count == 1 else 'entries'}, {heights}: {kinds}"


class _Cut:
    """How much is shown."""

    def __init__(self, every: bool) -> None:
        self._every = every

    def section(
        self, title: str, items: Sequence[list[DiffLine]], changes: Sequence[CellDiff | RunDiff | EffectDiff]
    ) -> list[DiffLine]:
        """Whole items, as long as there is room; the first one always."""
        if not items:
            return []
        counts = [(how, sum(each.change == how for each in changes)) for how in _MARKS]
        said = [DiffLine(f"{title}: {', '.join(f'{count} {how}' for how, count in counts if count)}")]
        for index, item in enumerate(items):
            if index and not self._every and len(said) + len(item) > SECTION_LINES_MAX + 1:
                return [*said, DiffLine(f"  ... and {len(items) - index} more {title}")]
            said += item
        return said

    def cell(self, cell: CellDiff) -> list[DiffLine]:
        name = f"{cell.reducer}[{cell.key!r}]" if cell.key else cell.reducer
        if cell.change == "changed":
            return self._item("~", name, self._fields(cell.fields))
        return self._item(
            _MARKS[cell.change], f"{name} {self._text(cell.right if cell.change == 'added' else cell.left)}"
        )

    def run(self, run: RunDiff) -> list[DiffLine]:
        side = run.right or run.left
        assert side is not None
        name = f"{run.id} ({side.workflow})"
        if run.change == "changed":
            return self._item("~", name, self._fields(run.fields))
        return self._item(_MARKS[run.change], f"{name} {self._run_side(side)}")

    def _run_side(self, side: RunSide) -> str:
        if side.status == "finished":
            return f"finished {self._text(side.result)}"
        if side.error is not None:
            return f"{side.status} {self._text(side.error)}"
        waits = f", waits for {', '.join(side.waits_for)}" if side.waits_for else ""
        return f"{side.status}, {side.done} of {grammar.count(side.operations or 0, 'operation')} done{waits}"

    def effect(self, effect: EffectDiff) -> list[DiffLine]:
        side = effect.right or effect.left
        assert side is not None
        name = f"{side.name} of run {effect.run}, operation {effect.operation}"
        if effect.left is None or effect.right is None:
            return self._item(_MARKS[effect.change], f"{name}: {self._effect_side(side)}")
        names = [
            f"{each.name} " if effect.left.name != effect.right.name else "" for each in (effect.left, effect.right)
        ]
        both = [
            DiffLine(f"    - {names[0]}{self._effect_side(effect.left)}", _STYLES["-"]),
            DiffLine(f"    + {names[1]}{self._effect_side(effect.right)}", _STYLES["+"]),
        ]
        return self._item("~", name, both)

    def _effect_side(self, side: EffectSide) -> str:
        answer = f" {self._text(side.answer)}" if side.status in ("ok", "error", "timeout") else ""
        return f"{self._text(side.args)} {side.status}{answer}"

    def _item(self, mark: str, text: str, below: Iterable[DiffLine] = ()) -> list[DiffLine]:
        return [DiffLine(f"  {mark} {text}", _STYLES[mark]), *below]

    def _fields(self, fields: Sequence[Field]) -> list[DiffLine]:
        # One field more takes no more room than the line that would count it.
        most = len(fields) if self._every or len(fields) == FIELDS_MAX + 1 else FIELDS_MAX
        said = [self._field(field) for field in fields[:most]]
        more = grammar.count(len(fields) - most, "more field")
        return said if most >= len(fields) else [*said, DiffLine(f"    ... and {more}")]

    def _field(self, field: Field) -> DiffLine:
        name = path_text(field.path) or "value"
        if field.change == "changed":
            return DiffLine(f"    {name}: {self._text(field.left)} -> {self._text(field.right)}")
        mark = _MARKS[field.change]
        return DiffLine(f"    {mark} {name}: {self._text(field.right if mark == '+' else field.left)}", _STYLES[mark])

    def _text(self, value: Any) -> str:
        text = entry_text.canonical_text(value)
        short = len(text) <= TEXT_CHARACTERS_MAX or self._every
        return text if short else f"{text[: TEXT_CHARACTERS_MAX - 3]}..."
