"""`worldline abandon` and `worldline patch`: ways out for intents and cells of flow domains. No program is needed."""

from __future__ import annotations

import click

from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.features.domains.commands import KEY, json_or_text, state_lines
from worldline.features.domains.pure import domain_cell, part
from worldline.flow_core import flow_records, jobs, patches
from worldline.terminal import command_session, output
from worldline.terminal.command_session import CommandSession


@command_session.command("abandon", asks=True)
@click.argument("world")
@click.argument("domain")
@click.argument("intent")
@KEY
@command_session.TIMEOUT
async def abandon(
    desk: CommandSession, *, world: str, domain: str, intent: str, key: str, timeout: float | None
) -> None:
    """End an intent of a flow domain, with an error.

    Its effects are given up: what they answer later changes nothing. Intents that waited for it go on.
    """
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        desk.confirm(f"Abandon intent {intent!r} of {domain} in world {world!r}? Its effects are given up.")
        wanted = part.AbandonIntent(domain, key, intent)
        await desk.answer(found, found.command(part.ABANDON, wanted), timeout)
    said = {"world": world, "domain": domain, "key": key, "intent": intent, "abandoned": True}
    desk.out.one(said, [f"intent {intent} is abandoned"])


@command_session.command("patch")
@click.argument("world")
@click.argument("domain")
@click.argument("fields", nargs=-1, metavar="[PATH=VALUE]...")
@click.option("--unset", "gone", multiple=True, metavar="PATH", help="Take a value away; may be repeated.")
@KEY
@command_session.TIMEOUT
async def patch(
    desk: CommandSession,
    *,
    world: str,
    domain: str,
    fields: tuple[str, ...],
    gone: tuple[str, ...],
    key: str,
    timeout: float | None,
) -> int:
    """Change the data of a flow domain from outside.

    VALUE is JSON, or else a text. Shows the data then; what does not fit the document is refused by it: exit code 1.
    """
    # Checked before a store is opened: what is no patch needs no world to say so.
    given = jobs.from_handler([*(_set(each) for each in fields), *(patches.unset(each) for each in gone)])
    if not given:
        raise errors.BadInput("name what is to be changed: PATH=VALUE, or --unset PATH")
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        before = await _snapshot(found, domain, key, None)
        wanted = part.PatchCell(domain, key, flow_records.plain_list(given), "patch by hand")
        _, height = await desk.answer(found, found.command(part.PATCH, wanted), timeout)
        after = await _snapshot(found, domain, key, await found.step_end(height))
    assert after is not None, "a patch that was taken has made the cell"
    # Errors that were there before are no fault of this patch.
    wrong = [] if before is None else list(before.system.errors)
    new = [each for each in after.system.errors if each not in wrong]
    state = {name: value for name, value in after.data.items() if name != flow_records.HOST}
    said = {"world": world, "domain": domain, "key": key, "state": state, "errors": flow_records.plain_list(new)}
    desk.out.one(said, [*(f"{each.code}: {each.message}" for each in new), *state_lines(state)])
    return output.NEGATIVE if new else 0


def _set(text: str) -> patches.Patch:
    path, equals, value = text.partition("=")
    if not path or not equals:
        raise errors.BadInput(f"{text!r}: say what a path becomes, as in cents=5")
    return patches.set_(path, json_or_text(value))


async def _snapshot(world: Handle, domain: str, key: str, at: int | None) -> flow_records.Snapshot | None:
    data = await world.cell(domain, key, at=at)
    return None if data is None else domain_cell.decode(data)[1]
