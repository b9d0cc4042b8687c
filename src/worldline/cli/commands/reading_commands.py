"""Looking at worlds: list, show, why, state, journal, follow, snapshots. Nothing here changes anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec

from worldline.base import errors, grammar
from worldline.client import client_desk, snapshot_calls
from worldline.client.connection import Connection
from worldline.client.snapshot_calls import SnapshotRecord
from worldline.client.world_handle import Handle
from worldline.inspect import entry_text, journal_export, store_queries
from worldline.inspect import why as reasons
from worldline.model.journal import JournalEntry
from worldline.model.world_records import Status
from worldline.runtime import world_reader as readers
from worldline.runtime.live_hub import Chunk
from worldline.runtime.personal import value_check
from worldline.terminal import command_session, output, suggest
from worldline.terminal.command_session import CommandSession
from worldline.terminal.entry_lines import Names

STATUSES = [status.name.lower() for status in Status if status is not Status.DELETED]


class CellRow(msgspec.Struct, frozen=True):
    """One cell of a world's state."""

    reducer: str
    key: str
    value: Any


@command_session.command("list", many=True)
@click.option("--label", metavar="NAME[=VALUE]", help="Only worlds with this label.")
@click.option("--status", type=click.Choice(STATUSES), help="Only worlds of this status.")
@click.option("--program", metavar="NAME", help="Only worlds of this program.")
async def list_(
    desk: CommandSession, *, label: str | None, status: str | None, program: str | None, limit: int
) -> None:
    """List worlds, newest first."""
    async with desk.open(programs=[]) as universe:
        found = await store_queries.list_worlds(
            universe, label=label, status=status, program=program, limit=limit, option=desk.option
        )
        none = "no worlds here; make one with `worldline create NAME`"
        if not found and (label or status or program):
            none = f"no worlds match{await _programs_like(universe, program)}"
    columns = {
        "NAME": "name",
        "PROGRAM": "program",
        "STATUS": "status",
        "HOSTED": "hosted",
        "HEIGHT": "height",
        "CHANGED": "changed",
        "LABELS": "labels",
    }
    shown = found
    if not desk.out.as_json:
        # A table says what a person must know; programs get the stored status.
        shown = [msgspec.structs.replace(each, status=_status(each)) for each in found]
    desk.out.many(shown, columns, none=none, key="name")
    for each in found:
        if each.resume:
            desk.out.note(f"{each.name} is {_quarantined(each)}; it goes on at once with `{each.resume}`")


def _status(row: store_queries.WorldRow) -> str:
    return "quarantined" if row.resume else row.status


def _quarantined(row: store_queries.WorldRow | store_queries.Whole) -> str:
    """That a world is paused because processes die while they restore it, and until when."""
    until = row.quarantined_until
    lasting = "until it is resumed" if until is None else f"until {output.local(until)}"
    return f"quarantined {lasting}: {grammar.count(row.quarantined, 'process')} in a row died while they restored it"


async def _programs_like(connection: Connection, program: str | None) -> str:
    if program is None:
        return ""
    newest = await store_queries.list_worlds(
        connection, label=None, status=None, program=None, limit=suggest.NAMES_NEAR_MAX
    )
    known = {each.program: None for each in newest}
    # The program is right, so another filter has left nothing.
    return "" if program in known else suggest.near(program, known)


@command_session.command("show")
@click.argument("world")
async def show(desk: CommandSession, world: str) -> None:
    """Show a world: its program, head, lease and open work."""
    async with desk.open(programs=[]) as universe:
        found = await store_queries.show_world(universe, await desk.address(universe, world), option=desk.option)
    said = entry_text.plain(found)
    said["holder"] = _holder(found.holder)
    said["baseline"] = f"step {found.baseline.step}, height {found.baseline.height}, {found.baseline.bytes} bytes"
    del said["segments"], said["states_above"], said["entries_above"], said["quarantined_until"]
    if found.resume:  # only a quarantined world has a command that ends it
        said["quarantined"] = _quarantined(found)
    else:
        del said["quarantined"], said["resume"]
    said["compacted"] = (
        f"up to height {found.compacted}, states are kept above {found.states_above}, entries {found.entries_above}"
    )
    if not found.segments:
        del said["compacted"]
    if not found.assigned:
        del said["assigned"]
    desk.out.one(found, output.pairs({**said, "created": found.created, "changed": found.changed}))


@command_session.command("why")
@click.argument("world")
async def why(desk: CommandSession, world: str) -> None:
    """Say what a world waits for, and what to type.

    Each reason says since when, what went wrong, when the next attempt is, and the command that helps.
    """
    async with desk.open(programs=[]) as universe:
        found = await reasons.why(await desk.world(universe, world), option=desk.option)
    desk.out.one(found, _why_lines(found))


@command_session.command("state")
@click.argument("world")
@click.argument("reducer", required=False)
@click.argument("key", required=False)
@click.option("--at", type=click.IntRange(min=0), metavar="HEIGHT", help="As it was at this height.")
async def state(desk: CommandSession, *, world: str, reducer: str | None, key: str | None, at: int | None) -> None:
    """Show a world's state.

    All cells, those of REDUCER, or the one cell KEY of it, as plain data: no program is needed.
    """
    async with desk.open(programs=[]) as universe:
        cells = await _cells(await desk.world(universe, world), reducer, key, at)
    if reducer is not None and key is not None:
        desk.out.one(cells[0].value, [entry_text.canonical_text(cells[0].value)])
        return
    columns = {"REDUCER": "reducer", "KEY": "key", "VALUE": "value"}
    desk.out.many(cells, columns, none="no cells yet", key="key")


@command_session.command("journal", many=True)
@click.argument("world")
@click.option("--above", type=click.IntRange(min=0), metavar="HEIGHT", help="Entries above a height, oldest first.")
@click.option("--export", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write it all to a file.")
async def journal(desk: CommandSession, *, world: str, above: int | None, file: Path | None, limit: int) -> None:
    """Show a world's journal, newest entries first.

    With --above, the entries above a height, oldest first. `log` is the same command.
    """
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        if file is not None:
            await _export(desk, found, above or 0, file)
            return
        head = await found.head()
        # The newest: what a person looks for is mostly what happened last.
        start = max(0, head.height - limit) if above is None else above
        if above is None:
            kept = await readers.kept(universe.store.engine, await found.address())
            start = max(start, kept.above)
        entries = await found.journal(above=start, limit=limit)
        names = Names(await found.address())
        # Before any line is made: an answer names the effect that an earlier entry asked for.
        await names.learn(universe, entries)
        entries = [await _marked(found, entry) for entry in entries]
    if above is None:  # read oldest first, as the store has them; a person wants the newest on top
        entries.reverse()
    if desk.out.as_json:
        for entry in entries:
            desk.out.json(entry_text.entry(entry))
    elif desk.out.quiet:
        for entry in entries:
            desk.out.line(str(entry.height))
    else:
        for entry in entries:
            desk.out.line(names.line(entry))
        if not entries:
            desk.out.note("nothing has happened to it yet" if above is None else f"nothing above height {above}")


@command_session.command("follow")
@click.argument("world")
@click.option("--above", type=click.IntRange(min=0), metavar="HEIGHT", help="Begin above this height, not now.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many entries.")
@click.option("--timeout", type=float, metavar="SECONDS", help="End, with exit code 6, after so long.")
@click.option("--snapshots", "with_saved", is_flag=True, help="Also each state that is saved.")
async def follow(
    desk: CommandSession, *, world: str, above: int | None, count: int | None, timeout: float | None, with_saved: bool
) -> None:
    """Show entries as they are journaled, until interrupted."""
    async with desk.open(programs=[]) as universe, asyncio.timeout(timeout):
        seen = 0
        found = await desk.world(universe, world)
        names = Names(await found.address())
        followed = snapshot_calls.follow(found, above) if with_saved else found.follow(above=above)
        async for entry in followed:
            if isinstance(entry, Chunk):  # it is in no journal, and a line for it would have no height
                continue
            if isinstance(entry, SnapshotRecord):
                said = f"{entry.height:>8}  snapshot, baseline  {entry.hash}"
                desk.out.one({"kind": "snapshot", **msgspec.structs.asdict(entry)}, [said])
                continue
            await names.learn(universe, [entry])
            shown = await _marked(found, entry)
            desk.out.one(entry_text.entry(shown) if desk.out.as_json else None, [names.line(shown)])
            seen += 1
            if seen == count:
                return


@command_session.command("snapshots", many=True)
@click.argument("world")
async def list_snapshots(desk: CommandSession, *, world: str, limit: int) -> None:
    """List a world's saved states, newest first.

    Of a fork, those of the world that it comes from, too.
    """
    async with desk.open(programs=[]) as universe:
        found = await snapshot_calls.records(await desk.world(universe, world))
    columns = {"HASH": "hash", "HEIGHT": "height", "STEP": "step", "BASELINE": "baseline", "BYTES": "size"}
    desk.out.many(found[::-1][:limit], columns, none="no snapshots are kept", key="hash")


async def _cells(world: Handle, reducer: str | None, key: str | None, at: int | None) -> list[CellRow]:
    if reducer is not None and key is not None:
        data = await world.cell(reducer, key, at=at)
        if data is not None:
            return [CellRow(reducer, key, entry_text.plain(await client_desk.plain(world, data)))]
    # Only now, when the one cell is missing: all cells are read for a suggestion.
    cells = await world.cells(at=at)
    chosen = {name: data for name, data in cells.items() if reducer in (None, name[0])}
    found = [CellRow(*name, entry_text.plain(await client_desk.plain(world, data))) for name, data in chosen.items()]
    if reducer is not None and not found:
        known = dict.fromkeys(name for name, _ in cells)
        said = f"it has {', '.join(known)}" if known else "it has no cells yet"
        raise errors.NotFound(f"world {world.name!r} has no cell of {reducer!r}; {said}{suggest.near(reducer, known)}")
    if key is not None:
        raise errors.NotFound(f"{reducer} has no cell {key!r}{suggest.near(key, (each.key for each in found))}")
    return found


async def _marked(world: Handle, entry: JournalEntry) -> JournalEntry:
    """An entry that says which of its personal values were erased."""
    shown = await value_check.marked(world.connection.store.engine, await world.address(), entry.payload)
    return msgspec.structs.replace(entry, payload=shown) if shown is not entry.payload else entry


def _holder(holder: store_queries.HolderRow | None) -> str:
    if holder is None:
        return "none"
    sign = "" if holder.last_sign is None else f", last heartbeat {output.aged(holder.last_sign)}"
    worker = f"{holder.name} ({holder.worker})" if holder.name else holder.worker
    return f"worker {worker} at epoch {holder.epoch}{sign}{'' if holder.alive else ', dead'}"


def _why_lines(why: reasons.Why) -> list[str]:
    lines = [f"{why.world} is {why.status} at height {why.height}"]
    if not why.reasons:
        lines.append("it waits for no event, timer or effect: send it an event, or run a workflow")
    for reason in why.reasons:
        lines.append(f"{'!' if reason.stuck else '-'} {reason.what}")
        details = {
            "since": reason.since and output.aged(reason.since),
            "next": reason.until and output.aged(reason.until),
            "error": reason.error,
            "trace": reason.trace,
            "type": reason.command,
        }
        lines += [f"    {name:<6} {_indented(value)}" for name, value in details.items() if value]
        lines += [f"    {'or':<6} {way}" for way in reason.ways if way != reason.command]
    for failed in why.failed:
        lines.append(f"- run {failed.run} has failed {output.aged(failed.time)}")
        lines += [f"    trace  {_indented(failed.trace)}", f"    type   {failed.command}"]
    return [*lines, f"({why.note})"] if why.note else lines


def _indented(value: str) -> str:
    return value.strip().replace("\n", "\n           ")


async def _export(desk: CommandSession, world: Handle, above: int, file: Path) -> None:
    """All of a world's journal in one file, for `worldline.testing.journal_replay`."""
    with desk.out.progress(f"exporting {world.name}") as progress:
        exported = await journal_export.collect(world, above=above, progress=progress)
        journal_export.write(exported, file)
    said = {"world": world.name, "file": str(file), "above": exported.start.height, "entries": len(exported.entries)}
    desk.out.one(said, [f"{grammar.count(len(exported.entries), 'entry')} written to {file}"])


COMMANDS: list[click.Command] = [list_, show, why, state, journal, follow, list_snapshots]
