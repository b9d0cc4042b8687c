"""Ways out for what does not go on: `runs retry|reset|terminate|answer`, `effect answer`."""

from __future__ import annotations

from typing import Any

import click

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.inspect import entry_text, store_queries
from worldline.kernel import run_repair, user_values
from worldline.kernel.execution import divergence_report
from worldline.kernel.rows.row_records import Record, RunStatus
from worldline.kernel.run_operations import OpKind
from worldline.model.work import WorkKind
from worldline.terminal import command_session, payload_words
from worldline.terminal.command_session import CommandSession

START = "start"
TWICE_SHOWN_MAX = 20


@command_session.command("retry", app=True)
@click.argument("world")
@click.argument("run")
@command_session.TIMEOUT
async def retry_run(desk: CommandSession, *, world: str, run: str, timeout: float | None) -> None:
    """Try a blocked run again, under the code that is hosted now."""
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        await desk.answer(found, found.command(run_repair.RETRY, run_repair.RetryRun(run)), timeout)
        _say(desk, world, run, await _record(found, run), "is tried again")


@command_session.command("reset", app=True, asks=True)
@click.argument("world")
@click.argument("run")
@click.option("--to", default=START, metavar="start|OP", show_default=True, help="The first operation to drop.")
@command_session.TIMEOUT
async def reset_run(desk: CommandSession, *, world: str, run: str, to: str, timeout: float | None) -> None:
    """Drop operations of a run, and let it go on from there.

    OP is the number of an operation, as reports and `runs show` have it. What the run asks for again may happen twice:
    that is listed before it asks.
    """
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        # Bounded before `int`: longer texts are no number of an operation.
        wanted = run_repair.reset_run(run, int(to) if to.isdecimal() and len(to) <= 20 else to)
        record = await _record(found, run)
        # What is confirmed is this record: if the run was reset since, the number differs and the command is refused.
        again = -1 if record is None else record.again
        twice = [] if record is None else run_repair.twice(record, wanted.to)
        # What may happen twice is listed first: that is what the person decides about.
        desk.confirm(_question(world, run, to, twice, known=record is not None))
        await desk.answer(found, found.command(run_repair.RESET, run_repair.ResetRun(run, wanted.to, again)), timeout)
        said = [{"op": each.op, "what": each.what, "done": each.done} for each in twice]
        _say(desk, world, run, await _record(found, run), f"was reset to {to}", twice=said)


@command_session.command("terminate", app=True, asks=True)
@click.argument("world")
@click.argument("run")
@click.option("--reason", default="terminated by hand", show_default=True, help="What is journaled as its failure.")
@command_session.TIMEOUT
async def terminate_run(desk: CommandSession, *, world: str, run: str, reason: str, timeout: float | None) -> None:
    """End a run at once, with the runs it waits for. None of its code runs: it cannot clean up."""
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        desk.confirm(f"Terminate run {run!r} of world {world!r}? None of its code runs any more.")
        await desk.answer(found, found.command(run_repair.TERMINATE, run_repair.TerminateRun(run, reason)), timeout)
    desk.out.one({"world": world, "run": run, "status": "cancelled"}, [f"run {run} is terminated"])


@command_session.command("answer", app=True)
@click.argument("world")
@click.argument("run")
@click.argument("op", type=click.IntRange(min=1))
@click.argument("value", required=False)
@click.option("--error", metavar="TEXT", help="Answer with an error instead.")
@command_session.TIMEOUT
async def answer_run(
    desk: CommandSession, *, world: str, run: str, op: int, value: str | None, error: str | None, timeout: float | None
) -> None:
    """Answer an open operation of a run by hand, with VALUE as JSON (or text), or with --error.

    Whatever is open for the operation is closed. Where the program is known, the value is checked against its types.
    """
    _check_answer(value, error)
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        record = await _record(found, run)
        # What is not there is refused by the world, in its own words.
        kind = Any if record is None or not op <= len(record.ops) else await _type(found, *_asked(record, op))
        wanted = run_repair.AnswerRun(run, op, _data(kind, value, error), error)
        await desk.answer(found, found.command(run_repair.ANSWER, wanted), timeout)
        _say(desk, world, run, await _record(found, run), f"has an answer to operation {op}")


@command_session.command("answer", app=True)
@click.argument("effect")
@click.argument("value", required=False)
@click.option("--error", metavar="TEXT", help="Answer with an error instead.")
@click.option("--running", is_flag=True, help="Also if it is not parked. An attempt is stopped, and not undone.")
@command_session.TIMEOUT
async def answer_effect(
    desk: CommandSession, *, effect: str, value: str | None, error: str | None, running: bool, timeout: float | None
) -> None:
    """Answer a parked effect by hand, with VALUE as JSON (or text), or with --error."""
    _check_answer(value, error)
    async with desk.open() as universe:
        opened = await desk.find_work(universe, effect, WorkKind.EFFECT)
        name = (await store_queries.world_names(universe, [opened.at]))[opened.at]
        found = await desk.world(universe, name)
        kind = await _type(found, OpKind.EFFECT, opened.work.name)
        wanted = run_repair.AnswerEffect(opened.intent, _data(kind, value, error), error, running=running)
        await desk.answer(found, found.command(run_repair.ANSWER_EFFECT, wanted), timeout)
    said = {"id": opened.intent.hex(), "world": name, "ok": error is None}
    desk.out.one(said, [f"effect {opened.work.name} of {name} is answered"])


# --- Their parts -----------------------------------------------------------------------------------------------------


async def _record(world: Handle, run: str) -> Record | None:
    """The run as the world has it. None if the program is not known here: then the world alone checks what is asked."""
    try:
        machine = await world.machine()
    except errors.NotFound:
        return None
    found = machine.runs.get(run)
    if found is None:
        raise errors.NotFound(f"world {world.name!r} has no run {run!r}")
    return found.record


def _question(world: str, run: str, to: str, twice: list[run_repair.Twice], *, known: bool) -> str:
    lines = [f"Reset run {run!r} of world {world!r} to {'its start' if to == START else f'operation {to}'}?"]
    if not known:
        lines.append("Its operations cannot be listed here: name its program with --app FILE.")
    if twice:
        lines.append("This may happen twice:")
        lines += [f"  {each.op:>4}  {each.what}{'' if each.done else ' (open)'}" for each in twice[:TWICE_SHOWN_MAX]]
        if len(twice) > TWICE_SHOWN_MAX:
            lines.append(f"  ... and {len(twice) - TWICE_SHOWN_MAX} more")
    return "\n".join(lines)


def _check_answer(value: str | None, error: str | None) -> None:
    if value is not None and error is not None:
        raise errors.BadInput("give a value, or --error, and not both")


def _asked(record: Record, op: int) -> tuple[OpKind, str]:
    asked = record.ops[op - 1]
    return asked.kind, asked.name


async def _type(world: Handle, kind: OpKind, name: str) -> Any:
    """The type of an operation's answer, if the program is known here."""
    universe: Connection = world.connection
    program = universe.programs.get((await world.describe()).meta.program)
    if program is None:
        return Any
    if kind is OpKind.WAIT:
        return program.routes.types.get(name, Any)
    target: Any = program.find_effect(name) if kind is OpKind.EFFECT else program.workflows.get(name)
    return Any if target is None or kind in (OpKind.TIMER, OpKind.SEND) else target.signature.hints.get("return", Any)


def _data(kind: Any, value: str | None, error: str | None) -> bytes:
    if error is not None:
        return b""
    if value is None:  # an effect that returns nothing is answered with nothing
        return user_values.NONE
    try:
        return user_values.dump(payload_words.typed(kind, value))
    except errors.DecodeError as wrong:
        raise errors.BadInput(f"the answer: {wrong}") from wrong


def _say(desk: CommandSession, world: str, run: str, record: Record | None, what: str, **more: Any) -> None:
    """What was done, and how the run stands then."""
    status = "" if record is None else record.status.name.lower()
    said = {"world": world, "run": run, "status": status or None, **more}
    lines = [f"run {run} {what}{f'; it is {status}' if status else ''}"]
    if record is not None and record.status is RunStatus.BLOCKED:
        said["blocked"] = divergence_report.addressed(record.blocked, world)
        lines.append(entry_text.plain(said["blocked"]))
    desk.out.one(said, lines)


RUNS: list[click.Command] = [retry_run, reset_run, terminate_run, answer_run]
