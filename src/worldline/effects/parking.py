"""Setting effects aside for a person, and trying them again, so that the journal says so.

The `open` record is changed and the world is told by one commit: a control item in its inbox. The journal thereby has
everything that the record says, and a record that is lost can be written again as it was. Both go through the inbox,
never around it, so a world gets them in the order in which they happened.
"""

from __future__ import annotations

from worldline.base import errors
from worldline.codec import structs
from worldline.kernel import control_commands, part_inputs
from worldline.layers import inbox as inboxes
from worldline.layers import ready, worlds
from worldline.layers import work as works
from worldline.model import inbox, payload
from worldline.store import kv


def parked(opened: works.Open) -> inbox.Control:
    """What a world is told when one of its effects has been parked: `opened` is the record as it stands then."""
    said = control_commands.ParkEffect(opened.intent, opened.work.attempt, opened.work.error)
    return inbox.Control(control_commands.PARK, payload.inline(structs.encode(said)))


def retried(opened: works.Open) -> inbox.Control:
    """What a world is told when a parked effect is tried again."""
    return inbox.Control(
        control_commands.RETRY, payload.inline(structs.encode(control_commands.RetryEffect(opened.intent)))
    )


def tell(batch: kv.Batch, world: worlds.WorldRecord, item: inbox.Item) -> None:
    """Put an item into a world's inbox. The batch has a guard of its own."""
    worlds.expect_open(batch, world)
    inboxes.enqueue_once(batch, world.at, item)
    ready.leave(batch, world.at, priority=ready.NORMAL)


def set_aside(batch: kv.Batch, world: worlds.WorldRecord, opened: works.Open, *, now_us: int) -> None:
    """Park an effect by hand, before it is tried again."""
    tell(batch, world, parked(works.set_aside(batch, opened, now_us=now_us, error="parked by hand")))


def retry(batch: kv.Batch, world: worlds.WorldRecord, opened: works.Open, *, now_us: int) -> None:
    """Try a parked effect again, now. Nothing leaves a dry fork: there it can only be answered."""
    if world.meta.dry and opened.work.name != part_inputs.SHARE:
        raise errors.Closed(
            f"world {world.meta.name!r} is a dry fork, and nothing leaves it: answer the effect, with "
            f"`worldline effect answer {opened.intent.hex()[:12]} VALUE`, or fork with live=True"
        )
    tell(batch, world, retried(works.retry(batch, opened, due_us=now_us)))
