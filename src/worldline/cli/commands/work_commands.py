"""Open work of worlds: runs, effects, timers, dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
import msgspec

from worldline.base import errors, grammar
from worldline.base.failures import CancelKind
from worldline.cli.commands import process_commands, repair_commands
from worldline.client import attempt_reads, dead_letters
from worldline.client import open_effects as effects
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.codec import structs
from worldline.inspect import entry_text, store_queries, why
from worldline.inspect import repair_advice as inspect_ways
from worldline.kernel import control_commands
from worldline.kernel.rows.row_records import RunStatus
from worldline.layers import inbox as inboxes
from worldline.layers import worlds
from worldline.model import ids
from worldline.model.work import WorkKind, WorkState
from worldline.runtime.personal import value_check
from worldline.store import kv, paging
from worldline.terminal import command_session, output, suggest
from worldline.terminal.command_session import CommandSession

WORK_STATES = [state.name.lower() for state in WorkState]
CANCELS = [kind.name.lower() for kind in control_commands.CANCELS]
RUN_STATES = ["running", "blocked", "finished", "failed", "cancelled"]

# --- Runs ------------------------------------------------------------------------------------------------------------


class RunShown(msgspec.Struct, frozen=True):
    id: str
    workflow: str
    status: str
    started: datetime
    ended: datetime | None
    parent: str
    waits: list[str]
    args: Any
    result: Any
    error: Any
    blocked: str
    pending_cancel: str
    operations: list[inspect_ways.Operation]
    ways: list[str]
    trace: str
    note: str
    attempts: list[EffectTried] = []
    correlation: str = ""


class EffectTried(msgspec.Struct, frozen=True):
    """The last attempts at an effect of a run, the oldest first."""

    effect: str
    id: str
    open: bool
    attempts: list[store_queries.AttemptRow]


@command_session.command("list", many=True)
@click.argument("world")
@click.option("--status", type=click.Choice(RUN_STATES), help="Only runs of this status.")
async def list_runs(desk: CommandSession, *, world: str, status: str | None, limit: int) -> None:
    """List a world's runs, newest first."""
    async with desk.open(programs=[]) as universe:
        there = await desk.world(universe, world)
        found = [await _marked(there, each) for each in await why.list_runs(there)]
        # Said below every list: what waits for a person must not wait in silence.
        waiting = why.for_a_person(await why.why(there, option=desk.option))
    shown = [_shown_run(run) for run in found if status in (None, run.status)][:limit]
    columns = {"ID": "id", "WORKFLOW": "workflow", "STATUS": "status", "STARTED": "started", "WAITS FOR": "waits"}
    desk.out.many(shown, columns, none="no runs here")
    for line in waiting:
        desk.out.note(line)


@command_session.command("show", app=True)
@click.argument("world")
@click.argument("run")
async def show_run(desk: CommandSession, *, world: str, run: str) -> None:
    """Show a run: its arguments, its operations, what it waits for, its result.

    With --app FILE, also where the code passes other arguments now.
    """
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        shown = _shown_run(await _marked(found, await _find_run(found, run)))
        histories = await attempt_reads.of_run(found, run)
    tried = [
        EffectTried(each.effect, each.id, each.open, [store_queries.AttemptRow.of(one) for one in each.attempts])
        for each in histories
    ]
    shown = msgspec.structs.replace(shown, attempts=tried)
    desk.out.one(shown, _lines(shown))


def _operation_lines(operations: list[inspect_ways.Operation]) -> list[str]:
    lines = [f"  {each.number:>4}  {each.what}: {each.state}" for each in operations]
    # From the end, so that lines that are inserted move none of those before.
    for index, each in reversed(list(enumerate(operations))):
        if each.differs:
            lines.insert(index + 1, f"        the code passes now: {each.differs}")
    return ["operations:", *lines] if lines else []


@command_session.command("cancel", asks=True)
@click.argument("world")
@click.argument("run")
@click.option("--reason", default="cancelled by hand", show_default=True, help="What the run is told.")
@click.option(
    "--kind", type=click.Choice(CANCELS), default="user", show_default=True, help="What it is told cancels it."
)
@command_session.TIMEOUT
async def cancel_run(
    desk: CommandSession, *, world: str, run: str, reason: str, kind: str, timeout: float | None
) -> None:
    """Cancel a run where it waits. It may still clean up."""
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        await found.address()  # before asking: a person must not confirm something about a world that is not there
        desk.confirm(f"Cancel run {run!r} of world {world!r}?")
        asked = found.command(
            control_commands.CANCEL, control_commands.CancelRun(run, reason, CancelKind[kind.upper()])
        )
        answer, _ = await desk.answer(found, asked, timeout)
    # A blocked run takes the cancellation when it resumes, which may be never: that is said, with the way to end it
    # now.
    blocked = structs.decode(control_commands.RunStanding, answer).status is RunStatus.BLOCKED
    what = f"run {run} is being cancelled"
    if blocked:
        what = f"run {run} is blocked: it is cancelled when it goes on; `worldline runs terminate` ends it at once"
    desk.out.one({"world": world, "run": run, "cancelled": True, "pending": blocked}, [what])


def _lines(shown: RunShown | store_queries.WorkRow) -> list[str]:
    """Return what is known of a run or an effect, and below it where in its code it failed."""
    apart = ("trace", "operations", "ways", "attempts")
    said = {name: getattr(shown, name) for name in shown.__struct_fields__ if name not in apart}
    lines = output.pairs({name: value for name, value in said.items() if value not in (None, "", [])})
    if isinstance(shown, RunShown):
        lines += _operation_lines(shown.operations)
        for each in shown.attempts:
            lines += [f"attempts at {each.effect} {each.id[:12]}:", *(f"  {one}" for one in each.attempts)]
        lines += [f"type: {way}" for way in shown.ways]
    elif shown.attempts:
        lines += ["attempts:", *(f"  {one}" for one in shown.attempts)]
    return [*lines, "", *shown.trace.rstrip().splitlines()] if shown.trace else lines


async def _find_run(world: Handle, run: str) -> why.WaitingRun:
    try:
        return await why.find_run(world, run)
    except errors.NotFound as error:
        known = [each.id for each in await why.list_runs(world)]
        raise errors.NotFound(f"{error}{suggest.near(run, known)}") from error


async def _marked(world: Handle, run: why.WaitingRun) -> why.WaitingRun:
    """A run that says which of its personal values were erased."""
    engine, at = world.connection.store.engine, await world.address()
    args, data = [await value_check.marked(engine, at, each) for each in (run.args, run.data)]
    return msgspec.structs.replace(run, args=args, data=data)


def _shown_run(run: why.WaitingRun) -> RunShown:
    ok = run.status == "finished"
    failed = run.status in ("failed", "cancelled") and run.data
    return RunShown(
        run.id,
        run.workflow,
        run.status,
        run.started,
        run.ended,
        run.parent,
        run.waits,
        entry_text.decoded(run.args),
        entry_text.decoded(run.data) if ok else None,
        entry_text.failure(run.data) if failed else None,
        run.blocked,
        run.pending_cancel,
        run.operations,
        run.ways,
        run.trace,
        run.note,
        correlation=run.correlation,
    )


# --- Effects ---------------------------------------------------------------------------------------------------------


@command_session.command("list", many=True)
@click.argument("world", required=False)
@click.option("--state", type=click.Choice(WORK_STATES), help="Only effects in this state.")
async def list_effects(desk: CommandSession, *, world: str | None, state: str | None, limit: int) -> None:
    """List open effects, of one world or of all, newest first."""
    async with desk.open(programs=[]) as universe:
        at = None if world is None else await desk.address(universe, world)
        found = await store_queries.list_work(universe, at, kind=WorkKind.EFFECT, limit=limit, state=state)
    columns = {
        "ID": "id",
        "WORLD": "world",
        "EFFECT": "name",
        "STATE": "state",
        "ATTEMPT": "attempt",
        "DUE": "due",
        "RUN": "run",
        "LAST ERROR": "error",
    }
    desk.out.many(found, columns, none="no effects are open")


@command_session.command("show")
@click.argument("effect")
async def show_effect(desk: CommandSession, *, effect: str) -> None:
    """Show an open effect, by its id or the beginning of it."""
    async with desk.open(programs=[]) as universe:
        opened = await desk.find_work(universe, effect, WorkKind.EFFECT)
        [shown] = await store_queries.work_rows(universe, [opened])
    desk.out.one(shown, _lines(shown))


@command_session.command("retry")
@click.argument("effect")
async def retry_effect(desk: CommandSession, *, effect: str) -> None:
    """Try a parked effect again, or one that waits for its next attempt now."""
    async with desk.open(programs=[]) as universe:
        opened = await desk.find_work(universe, effect, WorkKind.EFFECT)
        await effects.retry(universe, opened)
    desk.out.one({"id": opened.intent.hex(), "state": "waiting"}, [f"effect {opened.intent.hex()} is tried again"])


@command_session.command("park")
@click.argument("effect")
async def park_effect(desk: CommandSession, *, effect: str) -> None:
    """Park an effect before its next attempt. `effect retry` tries it again."""
    async with desk.open(programs=[]) as universe:
        opened = await desk.find_work(universe, effect, WorkKind.EFFECT)
        await effects.park(universe, opened)
    desk.out.one({"id": opened.intent.hex(), "state": "parked"}, [f"effect {opened.intent.hex()} is parked"])


# --- Timers ----------------------------------------------------------------------------------------------------------


@command_session.command("list", many=True)
@click.argument("world", required=False)
async def list_timers(desk: CommandSession, *, world: str | None, limit: int) -> None:
    """List timers, of one world or of all; the next to fire first."""
    async with desk.open(programs=[]) as universe:
        at = None if world is None else await desk.address(universe, world)
        found = await store_queries.list_work(universe, at, kind=WorkKind.TIMER, limit=limit)
    columns = {"ID": "id", "WORLD": "world", "TIMER": "name", "DUE": "due", "RUN": "run"}
    desk.out.many(found, columns, none="no timers are set")


@command_session.command("cancel", asks=True)
@click.argument("timer")
@click.option("--reason", default="cancelled by hand", show_default=True, help="What a run that sleeps is told.")
@command_session.TIMEOUT
async def cancel_timer(desk: CommandSession, *, timer: str, reason: str, timeout: float | None) -> None:
    """Cancel a timer. A run that sleeps gets an error, a limit is lifted, a schedule ends."""
    async with desk.open(programs=[]) as universe:
        opened = await desk.find_work(universe, timer, WorkKind.TIMER)
        name = (await store_queries.world_names(universe, [opened.at]))[opened.at]
        desk.confirm(f"Cancel timer {opened.work.name!r} of world {name!r}?")
        found = await desk.world(universe, name)
        asked = found.command(control_commands.GIVE_UP, control_commands.GiveUp(opened.intent, reason))
        await desk.answer(found, asked, timeout)
    said = {"id": opened.intent.hex(), "world": name, "cancelled": True}
    desk.out.one(said, [f"timer {opened.work.name} of {name} is cancelled"])


# --- Dead letters ----------------------------------------------------------------------------------------------------


@command_session.command("list", many=True)
@click.argument("world", required=False)
async def list_dead(desk: CommandSession, *, world: str | None, limit: int) -> None:
    """List dead letters, of one world or of all, newest first."""
    async with desk.open(programs=[]) as universe:
        found = await store_queries.list_dead(universe, await _addresses(desk, universe, world), limit=limit)
    columns = {"ID": "id", "WORLD": "world", "TIME": "time", "REASON": "reason", "ITEM": "item"}
    desk.out.many(found, columns, none="no dead letters")


@command_session.command("retry")
@click.argument("world")
@click.argument("letter", required=False)
@click.option("--all", "every", is_flag=True, help="All of them.")
async def retry_dead(desk: CommandSession, *, world: str, letter: str | None, every: bool) -> None:
    """Put a dead letter back into the world's inbox, as a new input."""
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        chosen = await _letters(universe, at, letter, every=every)
        for each in reversed(chosen):  # oldest first, in the order in which they came
            await dead_letters.retry(universe, at, each)
    _say_letters(desk, world, chosen, "put back")


@command_session.command("drop", asks=True)
@click.argument("world")
@click.argument("letter", required=False)
@click.option("--all", "every", is_flag=True, help="All of them.")
async def drop_dead(desk: CommandSession, *, world: str, letter: str | None, every: bool) -> None:
    """Delete a dead letter."""
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        chosen = await _letters(universe, at, letter, every=every)
        if chosen:  # nothing to delete is nothing to ask about
            desk.confirm(f"Delete {grammar.count(len(chosen), 'dead letter')} of world {world!r}?")
        for each in chosen:
            await dead_letters.drop(universe, at, each)
    _say_letters(desk, world, chosen, "dropped")


def _say_letters(desk: CommandSession, world: str, chosen: list[inboxes.DeadLetterRecord], what: str) -> None:
    letters = [each.stamp.hex() for each in chosen]
    said = f"{grammar.count(len(letters), 'dead letter')} {what}"
    desk.out.one({"world": world, "letters": letters, "done": what}, [said])


async def _letters(
    connection: Connection, at: ids.Address, text: str | None, *, every: bool
) -> list[inboxes.DeadLetterRecord]:
    if every == (text is not None):  # both, or neither: which letters are meant is not clear
        raise errors.BadInput("name a dead letter by its id, or all with --all")
    found = [each async for each in dead_letters.letters(connection, at)]
    if text is None:
        return found
    chosen = [each for each in found if each.stamp.hex().startswith(text.lower())]
    if not chosen:
        raise errors.NotFound(f"no dead letter has an id that begins with {text!r}{suggest.letters(text, found)}")
    if len(chosen) > 1:
        raise errors.BadInput(f"{len(chosen)} dead letters have ids that begin with {text!r}; give more of it")
    return chosen


async def _addresses(desk: CommandSession, connection: Connection, world: str | None) -> list[ids.Address]:
    if world is not None:
        return [await desk.address(connection, world)]
    found: list[ids.Address] = []
    request = worlds.newest_range(connection.id, count_max=store_queries.PAGE)
    async for item in paging.RangeItems(connection.store.engine, request):
        found += [at for at, _ in worlds.listed(connection.id, kv.Page([item], more=False, stable=kv.ZERO_STAMP))]
    return found


COMMANDS: list[click.Command] = [
    click.Group(
        "runs",
        commands=[list_runs, show_run, cancel_run, *repair_commands.RUNS],
        help="List, show, cancel and repair a world's runs.",
    ),
    click.Group(
        "effect",
        commands=[list_effects, show_effect, retry_effect, park_effect, repair_commands.answer_effect],
        help="List, show, retry, park and answer open effects.",
    ),
    process_commands.RoleGroup(
        "timer",
        commands=[process_commands.timer, list_timers, cancel_timer],
        help="List and cancel timers; fire them. `worldline timer` fires them: see `worldline timer start --help`.",
    ),
    click.Group(
        "dead",
        commands=[list_dead, retry_dead, drop_dead],
        help="List, retry and drop dead letters. A dead letter is an input that a world could not take.",
    ),
]
