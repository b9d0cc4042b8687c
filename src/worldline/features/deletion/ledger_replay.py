"""The ledger of erasures, applied to a store that has again what was erased.

A store that is made of a backup has all that was there when the backup was made. Every entry of a ledger that the
backup's own ledger does not have is of an erasure that came later, and is done again: by comparing entries, not times,
so that no clock decides. Values go as they went; a world is deleted, also one whose key was destroyed: its data stands
under another key in the copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from worldline.base import env as envs
from worldline.base import errors
from worldline.features.deletion import job as deletions
from worldline.features.erasure import batches as erasure_batches
from worldline.features.erasure import ledger_entries, ledger_file, scrub_job
from worldline.features.erasure.records import ErasedKind, LedgerEntry
from worldline.layers import personal_records, universes
from worldline.model import ids
from worldline.runtime import store_opening
from worldline.store import kv, transact


class ErasuresApplied(msgspec.Struct, frozen=True):
    """`done`: entries about things that are not there now. `left`: what stays for a person to do, in words."""

    done: int
    left: list[str]


async def apply_file(store: store_opening.Store, path: Path) -> ErasuresApplied:
    """Do again what a ledger says, in a store that was made of an older backup: entries that it does not know."""
    known = {msgspec.msgpack.encode(each): None for each in await ledger_entries.read_all(store.engine)}
    entries = ledger_file.read(path)
    new = [each for each in entries if msgspec.msgpack.encode(each) not in known]
    applied = await apply(store.engine, store.env, new)
    if not applied.left:  # else they are looked at again the next time
        await ledger_entries.add(store.engine, store.env, new)
    await scrub_job.scrub(store.engine, store.env)
    return applied


async def apply(engine: kv.Engine, env: envs.Env, entries: Iterable[LedgerEntry]) -> ErasuresApplied:
    """Do these erasures again, where there is anything to erase. It may be cut off, and be done again."""
    done, left = 0, list[str]()
    for entry in entries:
        why = await _apply(engine, env, entry)
        if why:
            left.append(why)
        else:
            done += 1
    return ErasuresApplied(done, left)


async def _apply(engine: kv.Engine, env: envs.Env, entry: LedgerEntry) -> str:
    """Returns why it cannot be done now, or nothing."""
    universe = ids.UniverseId(entry.universe)
    if entry.kind is ErasedKind.UNIVERSE:
        read = await engine.read(universes.get_meta(universe))
        if read.value(0) is None or universes.is_closed(read.value(0)):
            return ""
        return f"universe {entry.universe.hex()} was deleted: `worldline universe delete NAME --with-worlds`"
    at = ids.Address(universe, ids.WorldId(entry.world))
    if entry.kind in (ErasedKind.SUBJECT, ErasedKind.VALUES):
        await _erase(engine, env, at, entry)
        return ""
    try:
        await deletions.begin(engine, env, at)
    except errors.NotFound:
        return ""  # this copy has no such world, so nothing to erase
    except errors.InUse as error:
        return f"world {entry.world.hex()} was erased: {error}; then type `worldline ledger apply` again"
    await deletions.WorldRemoval(engine, env, universe, only=at).run()
    return ""


async def _erase(engine: kv.Engine, env: envs.Env, root: ids.Address, entry: LedgerEntry) -> None:
    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        values = [personal_records.get(root, entry.subject, each) for each in entry.values]
        read = await engine.read(
            personal_records.get_subject(root, entry.subject),
            personal_records.subject_range(root, entry.subject, count_max=1),
            *values,
        )
        was = personal_records.SubjectRecord(entry.subject, read.value(0))
        named = any(read.value(2 + index) is not None for index in range(len(values)))
        # Applied before, or never there: nothing is written, and the count of erasures stays.
        if was.raw is None or not (named if values else read.page(1).items):
            return transact.NothingToWrite(None)
        batch = kv.Batch()
        if values:
            erasure_batches.erase_values(batch, root, was, entry.values, time_us=read.time_us)
        else:
            erasure_batches.erase_subject(batch, root, was, time_us=read.time_us)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)
