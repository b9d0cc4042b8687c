"""Erasing a world of an encrypted store by destroying its key.

What was sealed with the key is unreadable from then on for every process, and in every copy of the store that was made
since the key was last wrapped: journal, inbox, seen ids, dead letters, tracebacks, open work. What worlds share is not:
meta and labels, and large values, saved states and segments, which are blobs under the key of the universe. Those that
no other world needs go with the next garbage collection. Personal values of a lineage are in one place, under that
key, too: they are deleted, unless another world of the lineage is there.

The world is archived first, so that no process runs it or sends to it; its meta stays and says that it is there.
"""

from __future__ import annotations

from worldline.base import errors, limits
from worldline.client import world_changes
from worldline.client.connection import Connection
from worldline.features.encryption import batches as encryption_batches
from worldline.features.encryption import keyspace as keys
from worldline.features.encryption import master_key_rotation
from worldline.features.erasure import batches, calls
from worldline.features.erasure import ledger_file as ledgers
from worldline.features.erasure.records import ErasedKind
from worldline.layers import snapshots, worlds
from worldline.layers.history import history_line
from worldline.model import ids
from worldline.model.world_records import Status
from worldline.runtime.personal import outside_desk
from worldline.store import kv, transact


async def destroy_key(connection: Connection, at: ids.Address) -> bool:
    """Returns whether this call did it. `Closed` while forks need the world's history."""
    master_key_rotation.ring_of(connection.store)  # refuses a store that has none
    read = await connection.store.engine.read(worlds.get(at), snapshots.pins_range(at, count_max=limits.DATA_KEYS_PAGE))
    # Checked before the world is archived: a refusal must leave it as it was.
    await _check_pins(connection, at, read.page(1))
    if worlds.decode(at, read.value(0)).meta.status is not Status.ARCHIVED:
        await world_changes.change(connection, at, status=Status.ARCHIVED)
    root = await outside_desk.root_of(connection.store.engine, at)
    others = [other for other, _ in await calls.worlds_of(connection, root) if other != at]
    known = await connection.store.engine.read(*map(encryption_batches.get, others))
    is_last = all(encryption_batches.is_destroyed(known.value(index)) for index in range(len(others)))

    async def attempt() -> transact.NothingToWrite[bool] | transact.Write[bool]:
        read = await connection.store.engine.read(
            encryption_batches.get(at),
            snapshots.get_pin_count(at),
            snapshots.pins_range(at, count_max=limits.DATA_KEYS_PAGE),
            history_line.get(at),
            snapshots.get_baseline(at),
        )
        # Again, with what the batch expects: a fork may have been made since the first look.
        await _check_pins(connection, at, read.page(2))
        batch = kv.Batch()
        if not encryption_batches.destroy(batch, keys.world_key(at), read.value(0), time_us=read.time_us):
            return transact.NothingToWrite(False)
        batches.note(batch, ErasedKind.KEY, at, time_us=read.time_us)
        if is_last:
            batches.drop_lineage(batch, root)
        snapshots.expect_pins(batch, at, read.value(1))
        lineage = history_line.decode_lineage(read.value(3))
        if lineage is not None:  # it needs nothing of others any more; where it leaned is unknown afterwards
            snapshots.unpin(batch, at, lineage, height=snapshots.decode_baseline(read.value(4)).height)
        return transact.Write(batch, lambda _: True)

    done = await transact.run(connection.store.engine, connection.store.env, attempt)
    await ledgers.keep(connection.store)
    return done


async def _check_pins(connection: Connection, at: ids.Address, page: kv.Page) -> None:
    forks = [ids.Address(at.universe, fork) for fork, _ in snapshots.decode_pins(at, page)]
    if not forks:
        return
    read = await connection.store.engine.read(*map(worlds.get, forks))
    names = [worlds.decode(fork, read.value(n)).meta.name for n, fork in enumerate(forks)]
    raise errors.Closed(
        f"{', '.join(names)} were forked from it and need its history; erase or delete them first, or let each run "
        "until it has saved a state of its own"
    )
