"""What a trial of other code found, for people: one block for each kind of difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from worldline.base import grammar
from worldline.features.shadow.pure.shadow_report import (
    AskedOtherwise,
    BlockedRun,
    CellOtherwise,
    FieldOtherwise,
    InputOtherwise,
    RunEnd,
    RunOtherwise,
    ShadowReport,
)
from worldline.inspect import entry_text
from worldline.kernel.execution import divergence_report

CODE_CHARACTERS = 12
VALUE_CHARACTERS_MAX = 200

TITLES = {
    "blocked": "runs that would block",
    "effects": "effects that would be asked otherwise",
    "timers": "timers that would be set otherwise",
    "messages": "messages that would be sent otherwise",
    "cells": "cells that would end different",
    "runs": "runs that would end otherwise",
    "inputs": "inputs that would be taken otherwise",
}
NO_ANSWER = "no recorded answer, so its run waits"


def data(world: str, report: ShadowReport) -> dict[str, Any]:
    """The same for programs."""
    return {"world": world, "differs": report.differs, "counts": report.counts, **entry_text.plain(report)}


def lines(world: str, report: ShadowReport) -> list[str]:
    over = (
        "no steps" if not report.steps else "its last step" if report.steps == 1 else f"its last {report.steps} steps"
    )
    comes = "comes out" if report.steps == 1 else "come out"
    under = f"under code {report.new_code[:CODE_CHARACTERS]}"
    if report.stopped:
        return [f"{world}: {over} could not be tried to the end {under}: {report.stopped}"]
    if not report.differs:
        return [f"{world}: nothing would differ: {over} {comes} the same {under}"]
    said = [f"{world}: {over}, tried {under}, {comes} otherwise"]
    for kind, title in TITLES.items():
        found = getattr(report, kind)
        if found:
            said.append(f"  {title}: {report.counts[kind]}")
            said += [f"    {line}" for each in found for line in _block(world, each)]
            more = report.unlisted.get(kind, 0)
            said += [f"    ... and {more} more"] if more else []
    if report.skipped:
        said.append(f"  skipped recorded answers and timers, which the code had not asked for: {report.skipped}")
    return said


def _block(world: str, each: object) -> Iterator[str]:
    match each:
        case BlockedRun():
            yield from _blocked(world, each)
        case AskedOtherwise():
            yield from _asked(each)
        case CellOtherwise():
            yield from _cell(each)
        case RunOtherwise():
            yield f"run {each.run!r} ({each.workflow})"
            yield f"  journal: {_end(each.old)}"
            yield f"  code:    {_end(each.new)}{f', waits for {each.waits}' if each.waits else ''}"
        case InputOtherwise():
            yield f"{each.input} (step {each.step}, height {each.height})"
            yield f"  journal: {each.old}"
            yield f"  code:    {each.new}"


def _blocked(world: str, each: BlockedRun) -> Iterator[str]:
    where = "if the world went on under it now" if each.at_head else f"at step {each.step}, height {each.height}"
    yield f"run {each.run!r} ({each.workflow}), {where}"
    yield from (f"  {line}" for line in divergence_report.addressed(each.report, world).splitlines())


def _asked(each: AskedOtherwise) -> Iterator[str]:
    side = each.old or each.new
    assert side is not None
    whose = f"run {each.run!r}, operation {side.operation}, " if each.run else ""
    yield f"{whose}step {side.step}, height {side.height}"
    yield f"  journal: {'nothing' if each.old is None else each.old.text}"
    # A timer needs no recorded answer: it fires by itself.
    unanswered = each.new is not None and each.new.what != "timer" and each.run and not each.answered
    yield f"  code:    {'nothing' if each.new is None else each.new.text}{f' ({NO_ANSWER})' if unanswered else ''}"
    if each.further:
        yield f"  and {each.further} more behind it"


def _cell(each: CellOtherwise) -> Iterator[str]:
    yield each.reducer + (f"[{each.key!r}]" if each.key else "")
    if each.unfit:
        yield f"  {each.unfit}"
    yield from (
        f"  {field.field or 'the cell'}: {_side(field, 'old')} -> {_side(field, 'new')}" for field in each.fields
    )
    if each.further:
        yield f"  and {grammar.count(each.further, 'more field')}"


def _side(field: FieldOtherwise, side: str) -> str:
    absent = {"old": "added", "new": "removed"}[side]
    return "nothing" if field.change == absent else _value(getattr(field, side))


def _end(end: RunEnd) -> str:
    if end.status in ("failed", "cancelled") and isinstance(end.value, dict):
        return f"{end.status}: {end.value.get('message')}"
    return end.status if end.value is None else f"{end.status} {_value(end.value)}"


def _value(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= VALUE_CHARACTERS_MAX else f"{said[:VALUE_CHARACTERS_MAX]}..."
