"""Taking a world back to what it was at an earlier step, in its own journal: the head never goes back.

What had already left the world between then and now (effects, messages) has happened; it is listed. Often a fork is the
better way: `worldline fork`, then the name moved to it with `worldline ref set`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from worldline.base import errors, failures
from worldline.client.world_handle import Handle
from worldline.features.forks.pure import revert_step
from worldline.kernel import part_inputs, user_values
from worldline.layers.history.row_overlay import Overlay
from worldline.model import journal
from worldline.model.journal import Kind
from worldline.model.world_records import ForkPolicy
from worldline.runtime import world_reader, world_restore

ATTEMPTS_MAX = 20
POLICIES = {"drop": ForkPolicy.DROP, "reissue": ForkPolicy.REISSUE}


class RevertLeftover(msgspec.Struct, frozen=True):
    """Something that had left the world before it went back: an effect that was asked for, or a message."""

    height: int
    kind: str
    name: str
    run: str = ""


class Reverted(msgspec.Struct, frozen=True):
    """A world that went back: to the end of this step. `at`: the height where its history says so."""

    step: int
    height: int
    at: int
    left: list[RevertLeftover]


async def left_since(world: Handle, height: int) -> list[RevertLeftover]:
    """What has left the world above a height: it happened, whatever the state is."""
    engine, at = world.connection.store.engine, await world.address()
    top = await world_reader.head(engine, at)
    found = await world_restore.read_entries(engine, world.connection.blobs, at, above=height, up_to=top.height)
    loaded = await world_restore.load_referenced(
        world.connection.blobs, [each for each in found if each.kind in _LEAVING]
    )
    return [_left(world_restore.filled(each, loaded)) for each in found if each.kind in _LEAVING]


async def revert_to(world: Handle, to: object, effects: object) -> Reverted:
    """Take the world back. A world that makes step after step is tried again a few times."""
    policy = POLICIES.get(effects) if isinstance(effects, str) else None
    if policy is None:
        raise errors.BadInput(f"effects must be one of {', '.join(POLICIES)}; not {effects!r}")
    if not isinstance(to, int) or isinstance(to, bool) or to < 0:
        raise errors.BadInput(f"a world is taken back to a height, which is a number from 0 on; not {to!r}")
    for _ in range(ATTEMPTS_MAX):
        # Compared again with each attempt: the rows must be those of the last step.
        wanted = await _compare(world, to, policy)
        left = await left_since(world, wanted.height)
        try:
            _, height = await world.command(part_inputs.REVERT, wanted)
        except failures.RunFailed as error:
            # The refusal comes back as data from the journal, so it is known by its code.
            if error.code != revert_step.Moved.code:
                raise
            continue
        return Reverted(wanted.step, wanted.height, height, left)
    raise errors.Overloaded(
        f"world {world.name!r} makes steps all the time, and could not be taken back in {ATTEMPTS_MAX} attempts; fork "
        f"it instead, and move its name: worldline fork {world.name} NAME --at {to} --live",
        retry_after=1.0,
    )


async def _compare(world: Handle, to: int, policy: ForkPolicy) -> part_inputs.Revert:
    """The rows that differ between the world's head and the last step end at or below a height."""
    then = await world.past(to)
    now = await world.past((await world.head()).height)
    keys = await then.fetch_unlike(now)
    changed = await then.run(different, keys, then.rows, now.rows)
    return part_inputs.Revert(now.head.step, then.head.step, then.head.height, policy, changed)


def different(keys: Sequence[bytes], then: Overlay, now: Overlay) -> list[list[bytes]]:
    """Of these rows, those that differ, as they were then; and behind them the keys of those that were not there."""
    found: list[list[bytes]] = []
    gone: list[list[bytes]] = []
    for key in keys:
        before, after = then.get(key), now.get(key)
        if before is None:
            gone += [[key]] if after is not None else []
        elif before != after:
            found.append([key, before.meaning, before.placement])
    return found + gone


def _left(entry: journal.JournalEntry) -> RevertLeftover:
    said = user_values.load(list[Any], entry.payload)
    if entry.kind is Kind.EFFECT_REQUESTED:
        return RevertLeftover(entry.height, "effect", str(said[1]), str(said[2]))
    to = said[1].hex() if isinstance(said[1], bytes) else str(said[1])
    return RevertLeftover(entry.height, "message", f"{said[2]} to {to}")


_LEAVING = (Kind.EFFECT_REQUESTED, Kind.MESSAGE_SENT)
