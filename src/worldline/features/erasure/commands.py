"""Erasing personal values and whole worlds, and overwriting what was erased."""

from __future__ import annotations

from typing import Any

import click

from worldline.base import errors, grammar
from worldline.features.erasure import calls as erasing
from worldline.features.erasure import key_destruction, scrub_job
from worldline.inspect import entry_text
from worldline.store import kv
from worldline.terminal import command_session, output
from worldline.terminal.command_session import CommandSession


@command_session.command("erase", asks=True)
@click.argument("world")
@click.option("--key", metavar="KEY", help="All values of this subject: wl.Personal(..., of=KEY).")
@click.option("--payload", "height", type=int, metavar="HEIGHT", help="The values in the payload at this height.")
@click.option("--all", "whole", is_flag=True, help="All of the world, by destroying its key; for encrypted stores.")
@click.option("--dry-run", is_flag=True, help="Only say what would be erased.")
async def erase(
    desk: CommandSession, *, world: str, key: str | None, height: int | None, whole: bool, dry_run: bool
) -> None:
    """Erase personal values for good, with those of forks.

    What was declared as `wl.Personal` goes; the journal, its digests and proofs stay as they are, and every reader says
    `erased` where it stood. Each world says in its journal that it was done when it next runs. With `--all`, nothing of
    one world can be read any more but its name and labels.
    """
    if whole:
        if key is not None or height is not None or dry_run:
            raise errors.BadInput("--all erases the whole world; it goes with none of --key, --payload and --dry-run")
        await _erase_whole(desk, world)
        return
    scrubbed: kv.Scrubbed | None = None
    async with desk.open(programs=[]) as universe:
        found = await desk.world(universe, world)
        # The same search without writing, to say what would go before the question.
        plan = await erasing.erase(found, key=key, height=height, dry_run=True)
        if not dry_run:
            # Without values there is nothing to ask about, but worlds may still have to be told.
            if plan.values:
                desk.confirm(f"Erase {_text(plan)}, permanently?")
            plan = await erasing.erase(found, key=key, height=height, dry_run=False)
            scrubbed = await scrub_job.scrub(universe.store.engine, universe.store.env)
    said: dict[str, Any] = {"world": world, "dry_run": dry_run, **entry_text.plain(plan)}
    done = "would erase" if dry_run else "erased"
    lines = [f"{done} {_text(plan)}" if plan.values else "nothing is left to erase: it was erased before"]
    lines += [f"{name} takes no input now: its journal does not say so" for name in plan.untold]
    if scrubbed is not None:
        said["overwritten"] = scrubbed.complete
        lines += _left(scrubbed)
    desk.out.one(said, lines)


async def _erase_whole(desk: CommandSession, world: str) -> None:
    async with desk.open(programs=[]) as universe:
        at = await desk.address(universe, world)
        desk.confirm(f"Destroy the key of world {world!r}? Its data can never be read again.")
        done = await key_destruction.destroy_key(universe, at)
        scrubbed = await scrub_job.scrub(universe.store.engine, universe.store.env)
    said = f"the key of {world} is destroyed" if done else f"the key of {world} was destroyed before"
    shown = {"world": world, "all": True, "changed": done, "overwritten": scrubbed.complete}
    desk.out.one(shown, [said, *_left(scrubbed)])


@command_session.command("scrub")
async def scrub(desk: CommandSession) -> int:
    """Overwrite what was erased, in the store's files.

    `erase`, and `delete` with --wait, do it themselves; what other processes have erased, their janitor scrubs within
    some minutes. A folder: its free pages and gaps are overwritten. PostgreSQL: VACUUM, which leaves bytes in its pages
    and its log until they are used again.
    """
    async with desk.open_store() as store:
        found = await scrub_job.scrub(store.engine, store.env)
    desk.out.one(
        {"overwritten": found.complete, "held_by": list(found.held_by)},
        _left(found) or ["what was erased before is overwritten"],
    )
    return 0 if found.complete else output.NEGATIVE


def _left(scrubbed: kv.Scrubbed) -> list[str]:
    return [] if scrubbed.complete else [f"its bytes are not overwritten yet, {scrub_job.text(scrubbed)}"]


def _text(plan: erasing.Erasure) -> str:
    return f"{grammar.count(plan.values, 'personal value')} in {', '.join(plan.worlds)}"
