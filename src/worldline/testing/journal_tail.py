"""A journal for people: one line for an entry. For failure reports of tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldline.base import errors, grammar
from worldline.codec import canonical, printable, structs
from worldline.kernel import control_commands, replay
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.machine import RunFinished
from worldline.kernel.rows.row_records import JournaledFailure
from worldline.model import inbox, journal
from worldline.model.journal import Kind

LINE_CHARACTERS_MAX = 160


def lines(entries: Sequence[journal.JournalEntry], *, start_us: int, count: int = 20) -> list[str]:
    """The last entries: height, step, seconds since the start, kind, what."""
    shown = [_line(entry, start_us) for entry in entries[-count:]]
    return [f"... {grammar.count(len(entries) - count, 'entry')} before", *shown] if len(entries) > count else shown


def _line(entry: journal.JournalEntry, start_us: int) -> str:
    seconds = (entry.time_us - start_us) / 1_000_000
    try:
        what = _what(entry)
    # A report of a failure must not fail itself: an entry that is wrong may be the reason for it.
    except (errors.DecodeError, ValueError, TypeError):
        what = replay.describe(entry.kind, entry.payload)
    text = printable.shown(f"{entry.height:5} {entry.step:4} {seconds:10.3f}s {entry.kind.name.lower():17} {what}")
    return text if len(text) <= LINE_CHARACTERS_MAX else text[: LINE_CHARACTERS_MAX - 3] + "..."


def _what(entry: journal.JournalEntry) -> str:
    if entry.kind in journal.INPUTS:
        return _input(replay.item_of(entry))
    if entry.kind is Kind.RUN_FINISHED:
        ended = structs.decode(RunFinished, entry.payload)
        return f"{ended.run} {ended.status.name.lower()} {_value(ended.data)}"
    if entry.kind is Kind.ANSWERED:
        answer = structs.decode(Answer, entry.payload)
        return f"{'ok' if answer.ok else 'no'} {_value(answer.data)}"
    if entry.kind is Kind.HANDLER_FAILED:
        failure = structs.decode(JournaledFailure, entry.payload)
        return f"{failure.code}: {failure.message}"
    return " ".join(_value(each) for each in _list(entry.payload))


def _input(item: inbox.Item) -> str:
    if isinstance(item, inbox.InboxEvent):
        return f"{item.schema} {_carried(item)}" + (f" to {item.to}" if item.to else "")
    if isinstance(item, inbox.EffectReceipt):
        return f"{item.status.name.lower()} {_carried(item)}" + (f" for {item.correlation}" if item.correlation else "")
    if isinstance(item, inbox.TimerFired):
        return f"for {item.correlation}" if item.correlation else "for the world"
    if isinstance(item, inbox.Message):
        return f"{item.name} {_carried(item)} from {item.from_world.hex()[-8:]}"
    # A run says which workflow, which its command alone does not.
    if item.command == control_commands.RUN and item.payload.inline is not None:
        wanted = structs.decode(control_commands.CorrelatedRun, item.payload.inline)
        return f"run {wanted.run}: {wanted.workflow} {_value(wanted.args)}"
    return f"{item.command} {_carried(item)}"


def _carried(item: inbox.InboxEvent | inbox.EffectReceipt | inbox.Message | inbox.Control) -> str:
    # Its body is apart: one line needs no more than how much it is.
    return f"<{item.payload.size} bytes>" if item.payload.inline is None else _value(item.payload.inline)


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return repr(canonical.decode(value))
        except errors.DecodeError:
            return value.hex()[:16]
    return str(value)


def _list(data: bytes) -> list[Any]:
    found = canonical.decode(data)
    return found if isinstance(found, list) else [found]
