"""Runs as blocks of lines, for `worldline dev`: a heading for each run, and under it its operations as they end.

::

    2026-11-17 09:30:05  alice/hello greet(name="Alice")
        sleep 5 s  5.00 s
        shout(text="hello Alice") = "HELLO ALICE"  12 ms
        finished "HELLO ALICE"  in 5.02 s

Lines come out in the order in which things happened, and never change what was written before, so a pipe shows the same
as a terminal. A line whose block is not the last one shown repeats its heading. What lasts is said once while it lasts
(`idle`). Events, messages and commands are blocks of their own. Nothing here reads the store or writes to the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from worldline.base import errors, grammar
from worldline.base.bounded_map import BoundedMap
from worldline.codec import structs
from worldline.inspect import entry_text
from worldline.kernel import control_commands, user_values
from worldline.kernel.execution import divergence_report
from worldline.kernel.machine import Blocked
from worldline.model import ids, journal
from worldline.model.journal import Kind
from worldline.observe import sinks
from worldline.runtime import live_hub
from worldline.terminal import output

KEPT_MAX = 10_000  # runs and operations that are remembered: the oldest are shown without their names then
CHUNK_CHARACTERS = 100

_BAD, _GOOD, _QUIET, _CHANGE = "red", "green", "dim", "magenta"

K = TypeVar("K")
V = TypeVar("V")


class BlockLine(msgspec.Struct, frozen=True):
    """A line of a block. `fresh`: the heading is shown in any case. No text: the heading alone."""

    block: str
    time_us: int
    text: str = ""
    style: str = ""
    fresh: bool = False


class RunBlock(msgspec.Struct, frozen=True):
    block: str
    started_us: int


class WorkBlock(msgspec.Struct):
    """An effect or a timer that is open."""

    at: ids.Address
    step: int
    ordinal: int
    run: str
    name: str
    said: str
    started_us: int
    block: str
    announced: bool = False
    chunks: str = ""


class Blocks:
    """What is needed to tell of one step: the runs and operations of the steps before. `place_of`: where user code
    raised what a failure says, if that is known.
    """

    def __init__(self, place_of: Callable[[str], str] = lambda _: "") -> None:
        self._place_of = place_of
        self._runs: BoundedMap[tuple[ids.Address, str], RunBlock] = BoundedMap(KEPT_MAX)
        self._work: BoundedMap[ids.IntentId, WorkBlock] = BoundedMap(KEPT_MAX)

    # --- What is shown -----------------------------------------------------------------------------------------

    def step(self, at: ids.Address, world: str, entries: Sequence[journal.JournalEntry]) -> list[BlockLine]:
        """Return what one step did."""
        first, *derived = entries
        lines, block = self._input(at, world, first)
        for entry in derived:
            if entry.kind is Kind.RUN_STARTED:
                started = self._started(at, world, entry)
                lines.append(started)
                block = started.block
            else:
                lines += self._derived(at, world, entry, block, first)
        return lines

    def notice(self, said: sinks.Notice, time_us: int) -> list[BlockLine]:
        """An attempt that failed and will be repeated; the journal tells only how the last one ended."""
        # All other ends of an attempt are entries of the journal, and shown from there.
        if said.kind != "effect_retried":
            return []
        name, _, message = said.message.partition(": ")
        # By world, step and name: a notice has no intent. Two calls of one effect in one step may be confused, in a
        # hint.
        for work in self._work.values():
            if (work.at.world.hex(), work.step, work.name) == (said.world, said.step, name):
                text = f"{work.said} attempt {said.detail} failed: {self._failure(message)}; it is tried again"
                return [BlockLine(work.block, time_us, text, _BAD)]
        return []

    def chunk(self, chunk: live_hub.Chunk, time_us: int) -> list[BlockLine]:
        """A piece of what an effect streams. Text is put together to lines."""
        work = self._work.get(chunk.intent)
        if work is None:  # it was asked for before this process began
            return []
        if not isinstance(chunk.value, str):
            return [
                *self._rest(work, time_us),
                BlockLine(work.block, time_us, f"{work.name} streams {_short(chunk.value)}"),
            ]
        work.chunks += chunk.value
        whole, newline, rest = work.chunks.rpartition("\n")
        # A text without line breaks would otherwise show when it has ended.
        if not newline and len(rest) >= CHUNK_CHARACTERS:
            whole, rest = rest, ""
        work.chunks = rest
        return [
            BlockLine(work.block, time_us, f"{work.name} streams {_short(each)}") for each in whole.splitlines() if each
        ]

    def idle(self, time_us: int) -> list[BlockLine]:
        """Return what lasts: the rest of what is streamed, and operations that have not ended."""
        lines: list[BlockLine] = []
        for work in self._work.values():
            if not work.announced:  # once: lines that were written are never changed, so there is no clock that runs
                work.announced = True
                lines.append(BlockLine(work.block, time_us, f"{work.said} ...", _QUIET))
            lines += self._rest(work, time_us)
        return lines

    # --- Inputs ------------------------------------------------------------------------------------------------

    def _input(self, at: ids.Address, world: str, entry: journal.JournalEntry) -> tuple[list[BlockLine], str]:
        """Return what an input is shown as, and the block of what it brings about."""
        said = entry_text.fields(entry)
        match entry.kind:
            case Kind.EFFECT_RESULT | Kind.TIMER_FIRED:
                return self._ended(at, world, entry, said)
            case Kind.EVENT:
                to = f" to {said['to']}" if said.get("to") else ""
                block = f"{world} {said.get('event', 'event')} {_short(said.get('data'))}{to}"
            case Kind.MESSAGE:
                sender = str(said.get("from_world", ""))[:8]
                block = f"{world} {said.get('message', 'message')} {_short(said.get('data'))} from {sender}"
            case Kind.CONTROL:
                return self._command(at, world, entry, said)
            case _:
                text = f"undecodable input: {said.get('reason', '')}"
                return [BlockLine(world, entry.time_us, text, _BAD, fresh=True)], world
        return [BlockLine(block, entry.time_us, fresh=True)], block

    def _command(
        self, at: ids.Address, world: str, entry: journal.JournalEntry, said: dict[str, Any]
    ) -> tuple[list[BlockLine], str]:
        if said.get("command") in (control_commands.RUN, control_commands.PROGRAM, control_commands.CONTINUE):
            return [], world  # what follows says it better
        if "intent" in said:
            work = self._work.get(ids.IntentId(bytes.fromhex(said["intent"])))
            if work is not None and said["command"] == control_commands.PARK:
                why = self._failure(str(said.get("error", "")))
                text = f"{work.said} is parked after {grammar.count(int(said.get('attempts', 0)), 'attempt')}: {why}"
                return [BlockLine(work.block, entry.time_us, text, _BAD)], work.block
            if work is not None:
                return [BlockLine(work.block, entry.time_us, f"{said['command']} {work.said}")], work.block
        run = str(said.get("run", ""))
        block = self._block(at, world, run) if run else f"{world} {said.get('command', 'command')}"
        reason = f": {said['reason']}" if said.get("reason") else ""
        text = f"{said.get('command')}{reason}" if run else ""
        return [BlockLine(block, entry.time_us, text, fresh=not run)], block

    def _ended(
        self, at: ids.Address, world: str, entry: journal.JournalEntry, said: dict[str, Any]
    ) -> tuple[list[BlockLine], str]:
        """The end of an effect or timer."""
        intent = ids.IntentId(bytes.fromhex(said["intent"])) if "intent" in said else None
        work = None if intent is None else self._work.pop(intent, None)
        if work is None:  # asked for before this process began
            what = "effect" if entry.kind is Kind.EFFECT_RESULT else "timer"
            work = WorkBlock(at, 0, 0, "", what, what, entry.time_us, self._block(at, world, entry.correlation))
        lines = self._rest(work, entry.time_us)  # what it has streamed comes before how it ended
        # The start is known only of what began here.
        lasted = duration(entry.time_us - work.started_us) if work.step else ""
        text, style = work.said, ""
        if entry.kind is Kind.EFFECT_RESULT:
            text, style = self._outcome(work.said, said)
        if entry.kind is Kind.EFFECT_RESULT or work.run:  # a schedule's timer brings its own block about
            lines.append(BlockLine(work.block, entry.time_us, f"{text}  {lasted}".rstrip(), style))
        return lines, work.block

    def _outcome(self, what: str, said: dict[str, Any]) -> tuple[str, str]:
        tries = f" (attempt {said['attempt']})" if said.get("attempt", 1) > 1 else ""
        if "error" in said:
            return f"{what} failed{tries}: {self._failure(str(said['error'].get('message')))}", _BAD
        return f"{what} = {_short(said.get('data'))}{tries}", ""

    # --- What a step derives -----------------------------------------------------------------------------------

    def _started(self, at: ids.Address, world: str, entry: journal.JournalEntry) -> BlockLine:
        said = entry_text.fields(entry)
        run = str(said.get("run", entry.correlation))
        block = f"{world}/{run} {_call(str(said.get('workflow', 'workflow')), said.get('args'))}"
        self._runs[at, run] = RunBlock(block, entry.time_us)
        return BlockLine(block, entry.time_us, fresh=True)

    def _derived(
        self, at: ids.Address, world: str, entry: journal.JournalEntry, block: str, first: journal.JournalEntry
    ) -> list[BlockLine]:
        said = entry_text.fields(entry)
        text, style = "", ""
        match entry.kind:
            case Kind.EFFECT_REQUESTED | Kind.TIMER_SET:
                self._asked(at, world, entry, said, block)  # no line yet: it is shown when it ends, or when it lasts
            case Kind.EFFECT_CANCELLED | Kind.TIMER_CANCELLED:
                return self._cancelled(at, entry, said)
            case Kind.RUN_FINISHED:
                return [self._finished(at, world, entry, said)]
            case Kind.EVENT_RAISED:
                text = f"emit {said.get('event')} {_short(said.get('data'))}"
            case Kind.MESSAGE_SENT:
                text = f"send {said.get('event')} {_short(said.get('data'))} to {said.get('to')}"
            case Kind.HANDLER_FAILED:
                text, style = f"handler failed: {self._failure(str(said.get('message')))}", _BAD
            case Kind.UNDECODABLE_INPUT:
                text, style = f"not processed: {said.get('reason')}", _BAD
            case Kind.LATE_ANSWER:
                text, style = f"late {said.get('what')}: {said.get('reason')}", _QUIET
            case Kind.PROGRAM_CHANGED:
                text, style = "program changed", _CHANGE
            case Kind.RUN_BLOCKED:
                text, style = f"blocked: {_report(entry, world)}", _BAD
            case Kind.ANSWERED if first.kind is Kind.EVENT:
                bad = said.get("error")
                text = f"refused: {bad.get('message')}" if bad else f"answered {_short(said.get('answer'))}"
        return [BlockLine(block, entry.time_us, text, style)] if text else []

    def _asked(
        self, at: ids.Address, world: str, entry: journal.JournalEntry, said: dict[str, Any], block: str
    ) -> None:
        """Remember an effect or timer until it ends."""
        try:
            ordinal, name, run, _, params, _ = user_values.load(tuple[int, str, str, int, bytes, int], entry.payload)
        except (errors.DecodeError, ValueError):
            return  # its parameters are stored apart
        intent = ids.intent_id(at, step=entry.step, ordinal=ordinal, kind=name, params=params)
        shown = (
            _call(name, said.get("args")) if "effect" in said else f"{name} {output.lasting(said.get('seconds', 0))}"
        )
        block = self._block(at, world, run) if run else block
        self._work[intent] = WorkBlock(at, entry.step, ordinal, run, name, shown, entry.time_us, block)

    def _cancelled(self, at: ids.Address, entry: journal.JournalEntry, said: dict[str, Any]) -> list[BlockLine]:
        where = (at, said.get("of_step"), said.get("ordinal"))
        for intent, work in list(self._work.items()):  # by step and ordinal: a cancellation names no intent
            if (work.at, work.step, work.ordinal) == where:
                del self._work[intent]  # else it would be named as something that lasts
                if entry.kind is Kind.EFFECT_CANCELLED:  # a limit that was not reached is not worth a line
                    return [BlockLine(work.block, entry.time_us, f"{work.said} is cancelled", _QUIET)]
        return []

    def _finished(self, at: ids.Address, world: str, entry: journal.JournalEntry, said: dict[str, Any]) -> BlockLine:
        run = str(said.get("run", entry.correlation))
        known = self._runs.pop((at, run), None)  # it has ended: nothing of it comes any more
        lasted = "" if known is None else f"  in {duration(entry.time_us - known.started_us)}"
        status, bad = str(said.get("status", "finished")), said.get("error")
        end = self._failure(str(bad.get("message"))) if bad else _short(said.get("result"))
        style = _BAD if status == "failed" else _GOOD if status == "finished" else _QUIET
        return BlockLine(known.block if known else f"{world}/{run}", entry.time_us, f"{status} {end}{lasted}", style)

    # --- Helpers -----------------------------------------------------------------------------------------------

    def _block(self, at: ids.Address, world: str, run: str) -> str:
        known = self._runs.get((at, run))
        return known.block if known is not None else f"{world}/{run}" if run else world

    def _failure(self, message: str) -> str:
        place = self._place_of(message)
        shown = _cut(" ".join(message.split()))
        return f"{shown} ({place})" if place else shown

    def _rest(self, work: WorkBlock, time_us: int) -> list[BlockLine]:
        """Return what an effect has streamed since the last whole line."""
        rest, work.chunks = work.chunks, ""
        return [BlockLine(work.block, time_us, f"{work.name} streams {_short(rest)}")] if rest.strip() else []


def duration(us: int) -> str:
    """Return how long something took, for people."""
    if us < 1_000_000:
        return f"{us / 1_000:.0f} ms"
    return output.lasting(us / 1_000_000) if us >= 60_000_000 else f"{us / 1_000_000:.2f} s"


def _call(name: str, args: Any) -> str:
    if isinstance(args, dict):
        return f"{name}({', '.join(f'{key}={_short(value)}' for key, value in args.items())})"
    return f"{name}({'' if args is None else _short(args)})"


def _report(entry: journal.JournalEntry, world: str) -> str:
    """Return why a run was blocked, with the commands to type."""
    try:
        return divergence_report.addressed(structs.decode(Blocked, entry.payload).report, world)
    except errors.DecodeError:
        return "its report cannot be read"


def _short(value: Any) -> str:
    return _cut(" ".join(entry_text.canonical_text(value).split()))


def _cut(text: str) -> str:
    most = entry_text.TEXT_CHARACTERS_MAX
    return text if len(text) <= most else text[: most - 3] + "..."
