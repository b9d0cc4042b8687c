"""What is looked at of deleted worlds: whether they are removed, whether a destroyed key was put back; and what is said
of one that a command names.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from worldline.base import env as envs
from worldline.base import errors, grammar
from worldline.features.deletion import batches
from worldline.features.deletion import job as deletions
from worldline.features.deletion import keyspace as deletion_keys
from worldline.features.encryption import batches as encryption_batches
from worldline.features.erasure import ledger_entries
from worldline.features.erasure.records import ErasedKind
from worldline.layers import worlds
from worldline.model import ids
from worldline.runtime.feature_checks import UniverseCheck, UniverseExam
from worldline.runtime.feature_reasons import FeatureReasons
from worldline.store import kv, paging, transact


class UnfinishedDeletions(UniverseCheck):
    """What is still to be removed, also of worlds that an earlier release has deleted."""

    what = "deletions"

    async def look(self, exam: UniverseExam) -> None:
        engine, universe = exam.engine, exam.universe
        left = [each async for each in _forgotten(engine, universe)]
        if exam.repair:
            for at in left:
                await _queue(engine, exam.env, at)
        queued = await _count(engine, universe)
        exam.count_deletions(queued if exam.repair else queued + len(left))
        if exam.repair and exam.deletions:
            removal = deletions.WorldRemoval(engine, exam.env, universe)
            await removal.run()
            exam.count_finished(removal.finished)


class ErasedKeys(UniverseCheck):
    """Worlds whose key was destroyed and put back."""

    what = "erased keys"

    async def look(self, exam: UniverseExam) -> None:
        with contextlib.suppress(errors.Corrupt):  # a damaged ledger is named with the records of the store
            for name in await _names_with_key_put_back(exam.engine, exam.universe):
                what = "its key was destroyed, and is there again: it was put back, and the world can be read"
                exam.find(name, "key_put_back", what, advice=f"worldline erase {name} --all")


class DeletionReasons(FeatureReasons):
    async def of_missing(self, engine: kv.Engine, at: ids.Address) -> str:
        return await describe(engine, at) or ""


async def describe(engine: kv.Engine, at: ids.Address) -> str | None:
    """What is to be said of a world that is deleted; None if it is not."""
    read = await engine.read(worlds.get(at), batches.get(at))
    if not worlds.is_deleted(read.value(0)):
        return None
    left = batches.decode(at, read.value(1))
    if left is None:
        return f"world {at.world.hex()} is deleted, and nothing of it is left"
    removed = grammar.count(left.record.removed, "key")
    return (
        f"world {at.world.hex()} is deleted, {removed} of it removed so far; the janitor of "
        f"any process that hosts worlds removes the rest, or `worldline delete {at.world.hex()} --wait`"
    )


async def _forgotten(engine: kv.Engine, universe: ids.UniverseId) -> AsyncIterator[ids.Address]:
    """Deleted worlds that have something left and are not queued: an earlier release has deleted them."""
    at: ids.Address | None = None
    while True:
        after = None if at is None else at.world
        at = batches.decode_next(universe, (await engine.read(batches.next_world(universe, after=after))).page(0))
        if at is None:
            return
        read = await engine.read(worlds.get(at), batches.get(at), *batches.reads(at))
        with contextlib.suppress(errors.Corrupt):  # that was found with the world itself
            is_queued = read.value(1) is not None
            if worlds.is_deleted(read.value(0)) and not is_queued and (read.page(2).items or read.page(3).items):
                yield at


async def _queue(engine: kv.Engine, env: envs.Env, at: ids.Address) -> None:
    """Have such a world removed."""

    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        read = await engine.read(worlds.get(at), batches.get(at))
        if read.value(1) is not None:  # another process has queued it
            return transact.NothingToWrite(None)
        batch = kv.Batch()
        batches.queue(batch, at, meta_raw=read.value(0) or b"", time_us=read.time_us)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


async def _count(engine: kv.Engine, universe: ids.UniverseId) -> int:
    """How many deletions are not finished."""
    pages = paging.RangePages(engine, kv.Range(*deletion_keys.deletions(universe)))
    return sum([len(page.items) async for page in pages])


async def _names_with_key_put_back(engine: kv.Engine, universe: ids.UniverseId) -> list[str]:
    """Return the names of worlds whose key was destroyed, as the ledger says, and is there again."""
    found: list[str] = []
    for each in await ledger_entries.read_all(engine):
        if each.kind is not ErasedKind.KEY or each.universe != universe:
            continue
        at = ids.Address(universe, ids.WorldId(each.world))
        read = await engine.read(encryption_batches.get(at), worlds.get(at))
        raw, world = read.value(0), worlds.find(at, read.value(1))
        # The record of a data key is bound to its place alone: an old copy of it is accepted there without any key.
        if raw is not None and world is not None and not encryption_batches.is_destroyed(raw):
            found.append(world.meta.name)
    return found
