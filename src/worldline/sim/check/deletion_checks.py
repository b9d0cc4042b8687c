"""What must hold of deletions: GONE. From the batch on that deletes a world, nothing of it is written; at the end
nothing is left but its tombstone and its epoch.

Which world a key is about is read from the key, or from the value of a name or a hint; nothing here uses the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from worldline.client.connection import Connection
from worldline.codec import tuples
from worldline.features.deletion import job as removal
from worldline.keys import keyspace_table
from worldline.keys import ready as hint_keys
from worldline.keys import worlds as world_keys
from worldline.model import ids
from worldline.model.world_records import Status, WorldMeta
from worldline.sim.load.history import Broken
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import AppliedBatch

# The tombstone and the epoch.
_STAYS = tuple(
    keyspace_table.row(each).metric
    for each in keyspace_table.in_world(lambda each: each.deletion is keyspace_table.OnDelete.STAYS)
)


class Deletions:
    """`contents`: what the store holds now."""

    def __init__(self, broken: Broken, contents: Callable[[], Mapping[bytes, bytes]]) -> None:
        self._broken = broken
        self._contents = contents
        self.gone: dict[ids.WorldId, None] = {}

    # --- Each commit -----------------------------------------------------------------------------------------

    def look(self, applied: AppliedBatch) -> None:
        batch = applied.batch
        if self.gone:
            for key, value in _written(applied):
                what = keyspaces.place(key).what
                # The queue of removals names deleted worlds, and has to be written.
                if what != "deletion" and _about(key, value) in self.gone:
                    self._broken("GONE", f"{applied.host.label} wrote {what} of a world that is deleted")
            for key in batch.counts:
                if _about(key, b"") in self.gone:
                    self._broken("GONE", f"{applied.host.label} counted in a world that is deleted")
        for at in deleted_by(applied):  # last: the deleting batch itself may write
            self.gone[at.world] = None
            self._is_scrubbed(world_keys.META.unpack(batch.puts[world_keys.meta_key(at)].value))
            self._is_unneeded(at)

    def _is_scrubbed(self, meta: WorldMeta) -> None:
        if meta.name or meta.program or meta.labels:
            self._broken("GONE", "a tombstone says more than that a world is deleted")

    def _is_unneeded(self, at: ids.Address) -> None:
        """No fork has a pin there."""
        for key in self._contents():
            where = keyspaces.place(key)
            if where.what == "retain" and where.at == at and len(where.rest) > 1:
                self._broken("GONE", "a world was deleted that a fork needs")

    # --- At the end ------------------------------------------------------------------------------------------

    async def at_end(self, connection: Connection) -> None:
        """Check that nothing is left of these worlds once any process has finished what was cut off."""
        store = connection.store
        # Run here to its end: seeds end while removals are under way, and only what a finished one leaves is wrong.
        await removal.WorldRemoval(store.engine, store.env, connection.id).run()
        for key, value in sorted(self._contents().items()):
            what = keyspaces.place(key).what
            if what not in _STAYS and _about(key, value) in self.gone:
                self._broken("GONE", f"{what} is left of a world that is deleted")


def deleted_by(applied: AppliedBatch) -> Iterator[ids.Address]:
    """The worlds that a batch deletes."""
    for key, put in applied.batch.puts.items():
        where = keyspaces.place(key)
        if where.what != "world_meta" or where.at is None:
            continue
        if world_keys.META.unpack(put.value).status is Status.DELETED:
            yield where.at


def _written(applied: AppliedBatch) -> Iterator[tuple[bytes, bytes]]:
    for key, put in applied.batch.puts.items():
        yield key, put.value
    for append, stamp in zip(applied.batch.appends, applied.stamps, strict=True):
        yield append.prefix + stamp, append.value


def _about(key: bytes, value: bytes) -> ids.WorldId | None:
    """The world that a key is about."""
    where = keyspaces.place(key)
    match where.what, where.rest:
        case "name", _:
            return ids.WorldId(world_keys.NAME.unpack(value).world)
        case "hint", _:
            return hint_keys.hint_world(value)
        case (("index" | "deletion"), (tuples.Uuid(world),)):
            return ids.WorldId(world)
        case "due", (_, _, _, tuples.Uuid(world), _):
            return ids.WorldId(world)
        case "held", (tuples.Uuid(), tuples.Uuid(world)):
            return ids.WorldId(world)
        case _:
            return None if where.at is None else where.at.world
