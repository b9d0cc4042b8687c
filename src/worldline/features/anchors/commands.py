"""Anchors: `anchor` writes where worlds stand, `verify --since` and `prove --since` go on from there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from worldline.base import env_os, errors, grammar, private_files
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.features.anchors import anchor_check, anchor_signature, extension_proof
from worldline.features.anchors import records as anchors
from worldline.features.anchors.anchor_check import AnchorVerdict
from worldline.features.anchors.records import Anchor
from worldline.inspect import store_queries
from worldline.terminal import command_session, output
from worldline.terminal.command_session import CommandSession

_FILE = click.Path(path_type=Path, dir_okay=False)
SINCE = click.option(
    "--since", type=_FILE, metavar="FILE", help="Anchors: does the history go on from them? Of one world, the last one."
)
KEY = click.option("--key", default="", metavar="HEX", help="The public key that the anchors must be signed by.")


@command_session.command("anchor")
@click.argument("world", required=False)
@click.option("--all", "every", is_flag=True, help="All worlds.")
@click.option("--sign", type=_FILE, metavar="FILE", help="Sign with the key in this file.")
@click.option("--out", type=_FILE, metavar="FILE", help="Write them to a new file.")
@click.option("--new-key", type=_FILE, metavar="FILE", help="Make a key that signs, and say its public key.")
async def anchor(
    desk: CommandSession, *, world: str | None, every: bool, sign: Path | None, out: Path | None, new_key: Path | None
) -> None:
    """Write where worlds stand, to be kept elsewhere.

    A line of JSON for each: its ids, height and chain digest, and the time. `verify --since FILE` tells later whether
    the history still goes on from there, or was cut, rolled back or rewritten.
    """
    if new_key is not None:
        if world is not None or every or sign is not None:
            raise errors.BadInput("--new-key makes a key and no anchor: name nothing else")
        made = anchor_signature.new_key(env_os.OsEnv())
        made.write(new_key)
        lines = [f"public key {made.public}", f"{new_key} signs anchors: keep it away from the store"]
        desk.out.one({"file": str(new_key), "public": made.public}, lines)
        return
    if every == (world is not None):
        raise errors.BadInput("name a world, or all with --all")
    key = None if sign is None else anchor_signature.SigningKey.from_file(sign)
    async with desk.open(programs=[]) as universe:
        names = [world] if world is not None else [each.name for each in await _all(universe)]
        found = [await anchor_check.make(await desk.world(universe, name), key) for name in names]
    text = "".join(f"{each}\n" for each in found)
    if out is None:
        output.write(text, nl=False)
        return
    # Never over another file: older anchors must not be lost.
    private_files.write(out, text.encode(), replace=False)
    desk.out.one({"file": str(out), "anchors": len(found)}, [f"{grammar.count(len(found), 'anchor')} written to {out}"])


async def _all(connection: Connection) -> list[store_queries.WorldRow]:
    return await store_queries.list_worlds(connection, label=None, status=None, program=None, limit=2**62)


def read(file: Path) -> list[Anchor]:
    """The anchors of a file."""
    try:
        return anchors.read_all(file.read_bytes())
    except OSError as error:
        raise errors.BadInput(f"{file} cannot be read: {error.strerror}") from error


async def check(desk: CommandSession, world: Handle, anchors: Sequence[Anchor], key: str) -> int:
    """Say of each anchor of a world what became of its history. Those that are not kept any more do not count if a
    later one holds.
    """
    checks = [await anchor_check.check(world, each, key) for each in anchors]
    for each in checks:
        said = {"world": world.name, "verdict": each.verdict, "anchor": each.anchor.height, "height": each.height}
        signed = f", signed by {each.anchor.key}" if each.anchor.is_signed else ""
        line = f"{world.name}: {each.verdict.replace('_', ' ')} since height {each.anchor.height}{signed}: {each.why}"
        desk.out.one({**said, "why": each.why, "key": each.anchor.key}, [line])
    verdicts = [each.verdict for each in checks if each.verdict is not AnchorVerdict.NOT_KEPT]
    return 0 if verdicts and all(each is AnchorVerdict.HOLDS for each in verdicts) else output.NEGATIVE


async def check_all(
    desk: CommandSession, connection: Connection, worlds: Sequence[Handle], anchors: Sequence[Anchor], key: str
) -> int:
    """The same of many worlds. An anchor of a world that is not there is said, too."""
    code = 0
    known: dict[str, None] = {}
    for world in worlds:
        at = await world.address()
        known[at.world.hex()] = None
        own = anchor_check.of_world(anchors, at)
        # One world that does not hold decides the exit code.
        code = max(code, await check(desk, world, own, key)) if own else code
    for each in anchors:
        # Anchors of other universes may be in the file: of their worlds, nothing is known here.
        if each.universe == connection.id.hex() and each.world not in known:
            anchor_signature.check_signature(each, key)
            said = {"world": each.name, "verdict": "missing", "anchor": each.height, "id": each.world}
            why = f"the world {each.world} of an anchor is not there: deleted, or the store is older than it"
            desk.out.one(said, [f"{each.name}: missing: {why}"])
            code = output.NEGATIVE
    return code


async def prove(desk: CommandSession, world: str, since: Path, at: int | None) -> tuple[str, dict[str, Any], list[str]]:
    """The proof that a world's history goes on from the last of its anchors in a file: its text, and what to say."""
    async with desk.open(programs=[]) as universe:
        there = await desk.world(universe, world)
        own = of_world(read(since), await there.address(), world, since)
        found = await extension_proof.prove(there, own[-1], up_to=at)
    begin = own[-1].height
    said = {"world": world, "since": begin, "height": found.height, "chain": found.chain.hex()}
    line = (
        f"height {found.height} of {world} goes on from height {begin}: the digests of "
        f"{grammar.count(len(found.steps) + 1, 'step')}"
    )
    return found.text(), {**said, "step": found.step}, [line, f"chain {found.chain.hex()}"]


def of_world(anchors: Sequence[Anchor], at: Any, name: str, file: Path) -> list[Anchor]:
    """The anchors of a world among others. `BadInput` if there is none."""
    own = anchor_check.of_world(anchors, at)
    if not own:
        others = ", ".join(dict.fromkeys(msgspec.json.encode(each.name).decode() for each in anchors[:8])) or "nothing"
        raise errors.BadInput(f"{file} has no anchor of {name!r} with the id {at.world.hex()}, but of {others}")
    return own
