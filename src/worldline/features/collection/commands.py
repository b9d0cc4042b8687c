"""Garbage collection by hand: `gc`."""

from __future__ import annotations

import click
import msgspec

from worldline.base import grammar
from worldline.features.collection import calls
from worldline.features.collection.calls import Collected, Garbage
from worldline.terminal import command_session
from worldline.terminal.command_session import CommandSession

_WHY = {
    "unreferenced": "nothing refers to them",
    "waiting": "condemned, their grace has not passed",
    "deleted": "condemned before, their grace has passed",
    "orphans": "objects of uploads that were never finished",
}


@command_session.command("gc")
@click.option("--dry-run", is_flag=True, help="Say what would go, and why. Nothing is written.")
@click.option("--now", is_flag=True, help="Without a grace: delete at once what nothing refers to.")
@click.option("--grace", type=float, metavar="SECONDS", help="How long what nothing refers to stays (3600).")
async def gc(desk: CommandSession, dry_run: bool, now: bool, grace: float | None) -> None:
    """Delete blobs and objects that nothing refers to any more.

    Hosts collect by themselves, every hour. What nothing refers to is condemned, and deleted by a later collection,
    when a grace has passed. --now deletes it at once: a reader of an older state may have to begin again.
    """
    if now and grace is not None:
        raise click.UsageError("give either --now or --grace")
    seconds = 0 if now else calls.GRACE if grace is None else grace
    async with desk.open(programs=[]) as universe:
        found = await calls.collect(universe, dry_run=dry_run, grace=seconds)
    desk.out.one(msgspec.to_builtins(found), _lines(found, at_once=seconds == 0))


def _lines(collected: Collected, *, at_once: bool) -> list[str]:
    verb = "would go" if collected.dry_run else "deleted"
    blobs, worlds = grammar.count(collected.blobs, "blob"), grammar.count(collected.worlds, "world")
    lines = [f"{blobs} of {collected.bytes} bytes in {worlds}; referred to: {collected.referenced}"]
    gone = {"deleted": collected.deleted, "orphans": collected.orphans}
    later = {"waiting": collected.waiting}
    if collected.dry_run:
        # With a grace, what is unreferenced now is condemned and waits; a dry run says which of the two it would be.
        (gone if at_once else later)["unreferenced"] = collected.unreferenced
    for name, each in gone.items():
        lines += _line(each, verb, _WHY[name])
    for name, each in later.items():
        lines += _line(each, "would be condemned" if name == "unreferenced" else "wait", _WHY[name])
    if not collected.dry_run and collected.unreferenced.count:
        lines.append(f"{collected.unreferenced.count} condemned: {_WHY['unreferenced']}")
    if collected.held:
        lines.append(f"nothing is deleted while a hold stands: {collected.held}")
    if collected.partial:
        lines.append("there are so many that a part was judged; run it again for the rest")
    return lines


def _line(garbage: Garbage, verb: str, why: str) -> list[str]:
    if not garbage.count:
        return []
    return [f"{garbage.count} of {garbage.bytes} bytes {verb}: {why}", *(f"  {each}" for each in garbage.examples)]
