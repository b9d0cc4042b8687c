"""Garbage collection as a user asks for it."""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from worldline.client.connection import Connection
from worldline.features.collection import collector
from worldline.features.collection.sweep_phase import SweepTally
from worldline.features.erasure import scrub_job
from worldline.kernel.authoring.calls import Seconds, to_us
from worldline.runtime import world_holders
from worldline.store import kv

GRACE: Final = collector.GRACE_MS // 1000  # in seconds


class Garbage(msgspec.Struct, frozen=True):
    """Blobs or objects of one kind: how many, their bytes, and the addresses or names of some."""

    count: int
    bytes: int
    examples: list[str]


class Collected(msgspec.Struct, frozen=True):
    """What a garbage collection has found and done, or would do.

    `blobs` are all that were judged, `referenced` are in use. `unreferenced`: nothing refers to them, condemned now;
    `waiting`: condemned, until their grace has passed; `deleted`: gone; `spared`: condemned once, and used again since;
    `orphans`: objects of uploads that were never finished, gone. `held`: nothing was deleted, because something copies
    the store. `partial`: there are so many that only a part was judged; the next collection goes on there.
    """

    dry_run: bool
    worlds: int
    blobs: int
    bytes: int
    referenced: int
    unreferenced: Garbage
    waiting: Garbage
    deleted: Garbage
    spared: Garbage
    orphans: Garbage
    held: str
    partial: bool


async def collect(connection: Connection, *, dry_run: bool = False, grace: Seconds = GRACE) -> Collected:
    store = connection.store
    grace_ms = to_us(grace, "Universe.collect(grace=)") // 1000
    report = await collector.collect(
        store.engine,
        store.env,
        connection.blobs,
        connection.id,
        grace_ms=grace_ms,
        write=not dry_run,
        # The mark of a process that is proven dead is not waited for.
        is_dead=functools.partial(world_holders.is_gone, store),
    )
    swept = report.swept
    # Deleted blobs may be of what was erased; a collection that deleted nothing owes no scrub.
    if swept.deleted.count and kv.can_scrub(store.engine):
        await scrub_job.owe(store.engine, store.env)
    return Collected(
        dry_run,
        report.worlds,
        swept.blobs.count,
        swept.blobs.bytes,
        report.marked,
        _garbage(swept.unreferenced),
        _garbage(swept.waiting),
        _garbage(swept.deleted),
        _garbage(swept.spared),
        _garbage(swept.orphans),
        swept.held,
        report.partial,
    )


def _garbage(tally: SweepTally) -> Garbage:
    return Garbage(tally.count, tally.bytes, list(tally.examples))
