"""Talking to worlds: create, send, ask, run. What is sent is durable, whether or not a caller waits for the answer."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from worldline.api.universe_api import Universe
from worldline.base import errors
from worldline.client import client_desk, send_door, world_answers
from worldline.client import run_handle as runs
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.codec import structs
from worldline.inspect import entry_text
from worldline.kernel import control_commands
from worldline.kernel import runs as kernel_runs
from worldline.kernel.authoring.program import Program
from worldline.layers import worlds
from worldline.model import ids, inbox
from worldline.terminal import command_session, output, payload_words, suggest
from worldline.terminal.command_session import CommandSession

CORRELATION = click.option(
    "--correlation", metavar="TEXT", help="What it belongs to: kept with receipts, messages and traces."
)
DATA = click.option("--data", metavar="JSON|@FILE|-", help="All fields as JSON: here, from a file, or from stdin.")


class RunStatusRow(msgspec.Struct, frozen=True):
    """How a run stands, as it is shown."""

    world: str
    run: str
    workflow: str
    status: str
    result: Any = None


@command_session.command("create", app=True)
@click.argument("world")
@click.option("--program", "name", metavar="NAME", help="Which program, if the file declares several.")
@click.option("--label", "labels", multiple=True, metavar="NAME[=VALUE]", help="Label it; may be repeated.")
@click.option("--seed", metavar="WORLD[@HEIGHT]", help="Begin with the state of this world.")
async def create(desk: CommandSession, world: str, name: str | None, labels: tuple[str, ...], seed: str | None) -> None:
    """Make a new world."""
    async with desk.open(create=True) as universe:
        program = _chosen(universe, name)
        # None: a seeded world keeps the labels of the world that it begins with.
        given = payload_words.labels_of(labels) if labels or seed is None else None
        await Universe(universe).create(world, program, labels=given, seed=seed)
        at = await Handle(universe, world).address()
    said = {"name": world, "id": at.world.hex(), "program": program.name}
    desk.out.one(said, [f"world {world} of program {program.name}"])


@command_session.command("send", app=True)
@click.argument("world")
@click.argument("event")
@click.argument("fields", nargs=-1)
@DATA
@click.option("--to", metavar="RUN", help="Send it to this run alone.")
@click.option("--id", "client_id", metavar="ID", help="The same id again is the same event.")
@CORRELATION
@click.option("--wait", "waits", is_flag=True, help="Wait until the world has taken it, or not.")
@command_session.TIMEOUT
async def send(
    desk: CommandSession,
    *,
    world: str,
    event: str,
    fields: tuple[str, ...],
    data: str | None,
    to: str | None,
    client_id: str | None,
    correlation: str | None,
    waits: bool,
    timeout: float | None,
) -> int:
    """Send an event to a world.

    `worldline send alice Deposited account=bob cents=5`
    """
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        program = await _program(universe, found)
        # Before it is sent: a slip is answered here, and not by a dead letter.
        body = payload_words.event(program, event, payload_words.given(fields, data))
        sent = await found.send(event, body, to=to, id=client_id, correlation_id=ids.check_correlation(correlation))
        said: dict[str, Any] = {"world": world, "event": event, "sent": True}
        if not waits:  # durable is what `send` promises; whether the world takes it may take long
            desk.out.one(said, [f"sent {event} to {world}"])
            return 0
        taken = await desk.answer(found, world_answers.taken(universe, sent), timeout)
    said |= {"height": taken.height, "taken": not taken.dead, "reason": taken.dead or None}
    again = f"; it is a dead letter: `worldline dead retry {world} {taken.letter}{desk.option}`"
    how = f"not processed: {taken.dead}{again}" if taken.dead else f"processed at height {taken.height}"
    desk.out.one(said, [f"sent {event} to {world}, {how}"])
    return output.NEGATIVE if taken.dead else 0


@command_session.command("ask", app=True)
@click.argument("world")
@click.argument("request")
@click.argument("fields", nargs=-1)
@DATA
@click.option("--id", "client_id", metavar="ID", help="The same id again is the same question.")
@CORRELATION
@command_session.TIMEOUT
async def ask(
    desk: CommandSession,
    *,
    world: str,
    request: str,
    fields: tuple[str, ...],
    data: str | None,
    client_id: str | None,
    correlation: str | None,
    timeout: float | None,
) -> None:
    """Ask a world and show its answer.

    `worldline ask alice Withdraw account=bob cents=5`
    """
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        program = await _program(universe, found)
        payload_words.check_request(program, request)
        body = payload_words.event(program, request, payload_words.given(fields, data))
        asked = found.ask(request, body, id=client_id, correlation_id=ids.check_correlation(correlation))
        answer = entry_text.plain(await client_desk.plain(found, await desk.answer(found, asked, timeout)))
    said = {"world": world, "request": request, "answer": answer}
    desk.out.one(said, [_shown(answer)])


@command_session.command("run", app=True)
@click.argument("world")
@click.argument("workflow")
@click.argument("arguments", nargs=-1)
@DATA
@click.option("--id", "run_id", metavar="ID", help="The same id attaches to the same run.")
@CORRELATION
@click.option("--detach", is_flag=True, help="Do not wait for its result.")
@command_session.TIMEOUT
async def run(
    desk: CommandSession,
    *,
    world: str,
    workflow: str,
    arguments: tuple[str, ...],
    data: str | None,
    run_id: str | None,
    correlation: str | None,
    detach: bool,
    timeout: float | None,
) -> None:
    """Run a workflow and show its result.

    It waits until the run has ended, also while no process hosts the world; the run goes on without it.

    `worldline run alice greet name=Alice`
    """
    async with desk.open(patient=True) as universe:
        found = await desk.world(universe, world)
        program = await _program(universe, found)
        packed = payload_words.arguments(program, workflow, payload_words.given(arguments, data))
        wanted = _start(universe, workflow, packed, run_id, correlation)
        if detach:
            await _enqueue(found, wanted)  # without a host: the run starts when one comes
            answered = RunStatusRow(world, wanted.run, workflow, "started")
            desk.out.one(answered, [wanted.run])
            return
        waiting = (
            f"run {wanted.run} of world {world} goes on, with or without this command; to wait for it again, type the "
            f"same with --id {wanted.run}"
        )
        result = await desk.answer(found, _result(found, wanted), timeout, waiting=waiting)
    desk.out.one(RunStatusRow(world, wanted.run, workflow, "finished", result), [_shown(result)])


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else entry_text.canonical_text(value)


def _chosen(connection: Connection, name: str | None) -> Program:
    if name is not None and name in connection.programs:
        return connection.programs[name]
    if name is not None or len(connection.programs) > 1:  # with one program there is nothing to choose
        known = ", ".join(connection.programs) or "none"
        if name is None:
            raise errors.BadInput(f"choose one of the programs with --program NAME; there are {known}")
        raise errors.BadInput(f"no program {name!r}; there are {known}{suggest.near(name, connection.programs)}")
    if not connection.programs:
        raise errors.BadInput(
            'a world needs its program: name its file with --app FILE, or app = "FILE" in worldline.toml'
        )
    return next(iter(connection.programs.values()))


async def _program(connection: Connection, world: Handle) -> Program | None:
    """The world's program, if it is loaded: then what is sent is checked here."""
    # None is allowed: then the world alone judges what is sent.
    return connection.programs.get((await world.describe()).meta.program)


def _start(
    connection: Connection, workflow: str, packed: bytes, run_id: str | None, correlation: str | None
) -> control_commands.StartRun:
    env = connection.store.env
    return control_commands.start_run(
        run_id or env.random_bytes(8).hex(),
        workflow,
        packed,
        env.random_bytes(16),
        named=run_id is not None,
        correlation_id=ids.check_correlation(correlation),
    )


async def _enqueue(world: Handle, start: control_commands.StartRun) -> None:
    connection, data = world.connection, structs.encode(start)
    item = inbox.Control(control_commands.RUN, await world.carry(data))
    at = await world.address()
    worlds.decode(at, (await connection.store.engine.read(worlds.get(at))).value(0))
    # Into the inbox, and without waiting for an answer: this process hosts nothing, and the run is to start without it.
    await send_door.enqueue(connection, at, item, data=data)


async def _result(world: Handle, start: control_commands.StartRun) -> Any:
    data, since = await world.command(control_commands.RUN, start)
    standing = structs.decode(control_commands.RunStanding, data)
    # After a revert there may be a run of the same id that was started with something else.
    origin = kernel_runs.origin(start.workflow, start.args)
    result: Any = await runs.result_of(world, await runs.ended(world, standing, since=since, origin=origin), None)
    return entry_text.plain(result)


COMMANDS: list[click.Command] = [create, send, ask, run]
