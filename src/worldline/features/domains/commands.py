"""`worldline act` and `worldline explain`: the actions of a world's flow domains. No program is needed, once a process
has run the world: then it has the documents.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.features.domains import calls, previews
from worldline.flow_core import flow_records
from worldline.flow_core.authoring.document_domain import Document
from worldline.flow_core.authoring.domain_class import Act
from worldline.terminal import command_session, output, payload_words
from worldline.terminal.command_session import CommandSession

_DATA = click.option("--data", metavar="JSON|@FILE|-", help="The input as JSON: here, from a file, or from stdin.")
KEY = click.option("--key", default="", metavar="KEY", help="The cell, if the domain has one for each key.")


class ActOutcome(msgspec.Struct, frozen=True):
    """What came of an action, or would."""

    world: str
    action: str
    status: str
    state: dict[str, Any]
    error: Any = None
    asks: list[Any] = []


@command_session.command("act", app=True)
@click.argument("world")
@click.argument("action", metavar="DOMAIN.ACTION")
@click.argument("fields", nargs=-1)
@_DATA
@KEY
@click.option("--id", "intent", metavar="ID", help="The same id again is the same intent.")
@click.option("--preview", is_flag=True, help="Only say what it would do now, up to its first effect.")
@command_session.TIMEOUT
async def act(
    desk: CommandSession,
    *,
    world: str,
    action: str,
    fields: tuple[str, ...],
    data: str | None,
    key: str,
    intent: str | None,
    preview: bool,
    timeout: float | None,
) -> int:
    """Do an action of a flow domain, and show how it ends.

    `worldline act shop Order.pay card=tok --key o-7`
    """
    async with desk.open() as universe:
        handle = await desk.world(universe, world)
        domain, name = await _named(handle, action, unseen=not preview)
        called: Act[dict[str, Any]] = Act(domain, name, _fields(payload_words.given(fields, data)))
        found = calls.Acts(handle)
        if preview:
            would = await found.preview(called, key=key)
            shown = ActOutcome(
                world, action, would.status, would.state, _plain(would.error), [list(a) for a in would.asks]
            )
        else:
            done = await desk.answer(handle, found.act(called, key=key, id=intent), timeout)
            shown = ActOutcome(world, action, done.status, done.state, _plain(done.error))
    desk.out.one(shown, _lines(shown))
    return output.NEGATIVE if shown.status == "error" else 0


@command_session.command("explain", app=True)
@click.argument("world")
@click.argument("action", metavar="DOMAIN.ACTION")
@KEY
async def explain(desk: CommandSession, *, world: str, action: str, key: str) -> int:
    """Say whether an action may be done now, and if not, why.

    `worldline explain shop Order.pay --key o-7`
    """
    async with desk.open() as universe:
        handle: Handle = await desk.world(universe, world)
        domain, name = await _named(handle, action)
        found = previews.unavailable(await handle.machine(), domain, name, key, now_us=universe.store.env.wall_us())
    said = {
        "world": world,
        "action": action,
        "available": found.available,
        "code": found.code,
        "message": found.message,
        "reasons": list(found.reasons),
    }
    desk.out.one(said, [str(found)])
    return 0 if found.available else output.NEGATIVE


async def _named(world: Handle, action: str, *, unseen: bool = False) -> tuple[Document, str]:
    """A domain, and one of its actions: as the world has it, else as its program does.

    `unseen`: an action of a world that was never run, of a program that is not known here, is taken as it is named. The
    process that runs the world knows whether there is one.
    """
    domains = (await world.machine()).domains
    known = {name: domains.documents[each.hash].raw for name, each in domains.current.items()}
    # A world that was never run has no documents yet: its program says which actions there are.
    if not domains.had:
        program = world.connection.programs.get((await world.describe()).meta.program)
        known = {} if program is None else {name: each.raw for name, each in program.domains.items()}
        if program is None and unseen:
            return _unseen(action)
    domain, _, name = action.partition(".")
    document = msgspec.json.decode(known[domain]) if domain in known else {"actions": {}}
    if name not in document["actions"]:
        raise errors.NotFound(f"no action {action!r}; {_known(known)}")
    return Document(domain, document), name


def _unseen(action: str) -> tuple[Document, str]:
    domain, _, name = action.partition(".")
    if not domain or not name:
        raise errors.BadInput(f"an action is named DOMAIN.ACTION, as in Order.pay, not {action!r}")
    return Document(domain, {"actions": {name: {}}}), name


def _known(documents: dict[str, bytes]) -> str:
    if not documents:
        return "the world has no flow domains, or was never run: then name its program's file with --app"
    found = (f"{name}.{each}" for name, raw in documents.items() for each in msgspec.json.decode(raw)["actions"])
    return f"there are {', '.join(sorted(found))}"


def _fields(given: payload_words.Given) -> Any:
    if given.words:
        raise errors.BadInput(f"{given.words[0]!r}: give fields by name, as in card=tok, or --data")
    return given.data if given.data is not None else {field: json_or_text(text) for field, text in given.named.items()}


def json_or_text(text: str) -> Any:
    """JSON, or else a text."""
    return payload_words.loose(text)


def _plain(error: flow_records.ErrorValue | None) -> Any:
    return None if error is None else flow_records.plain(error)


def _lines(shown: ActOutcome) -> list[str]:
    said = [shown.status]
    if shown.error is not None:
        said[0] += f": {shown.error['code']}: {shown.error['message']}"
    said += [f"asks for {name} {msgspec.json.encode(given).decode()}" for name, given in shown.asks]
    return said + state_lines(shown.state)


def state_lines(state: dict[str, Any]) -> list[str]:
    """The data of a cell, a line for each field."""
    return [f"  {name} = {msgspec.json.encode(value).decode()}" for name, value in sorted(state.items())]
