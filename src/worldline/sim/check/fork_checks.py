"""What must hold of forks as they are made, pinned and run: W1, W2, W4, FORK.

Births are seen as they are committed. Nothing here uses what the roles know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import msgspec

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.kernel.machine import Machine
from worldline.keys import journal as journal_keys
from worldline.keys import lineage as lineage_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.keys import worlds as world_keys
from worldline.model import ids, journal
from worldline.model.world_records import Lineage, Status, WorldMeta
from worldline.runtime import world_restore
from worldline.sim.load.history import Broken, Called
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import AppliedBatch


class Born(msgspec.Struct, frozen=True):
    """A fork, as the batch that made it said."""

    at: ids.Address
    meta: WorldMeta
    lineage: Lineage
    head: journal.Head

    @property
    def parent(self) -> ids.Address:
        return ids.Address(self.at.universe, ids.WorldId(self.lineage.parent))


class Forks:
    """`asked_by`: the world whose journal has an intent. `contents`: what the store holds now."""

    def __init__(
        self, broken: Broken, asked_by: Callable[[bytes], bytes | None], contents: Callable[[], Mapping[bytes, bytes]]
    ) -> None:
        self._broken = broken
        self._asked_by = asked_by
        self._contents = contents
        self.born: dict[ids.Address, Born] = {}
        self._requests: dict[bytes, ids.Address] = {}

    # --- Each commit -----------------------------------------------------------------------------------------

    def look(self, applied: AppliedBatch) -> None:
        for key in applied.batch.puts:
            where = keyspaces.place(key)
            if where.what == "lineage":
                assert where.at is not None
                self._is_born(applied, where.at)
        for key in applied.batch.deletes:
            where = keyspaces.place(key)
            if where.what == "retain" and len(where.rest) > 1 and applied.before[key] is not None:
                assert where.at is not None
                self._unpinned(applied, where.at, lineage_keys.pin_fork(where.at, key))

    def _is_born(self, applied: AppliedBatch, at: ids.Address) -> None:
        puts = applied.batch.puts
        lineage = lineage_keys.LINEAGE.unpack(puts[lineage_keys.lineage_key(at)].value)
        meta = world_keys.META.unpack(puts[world_keys.meta_key(at)].value)
        head = journal_keys.HEAD.unpack(puts[journal_keys.head_key(at)].value)
        self.born[at] = Born(at, meta, lineage, head)
        if (head.step, head.height) != (lineage.step, lineage.height):
            self._broken("W1", f"{meta.name} begins at height {head.height} instead of {lineage.height}")
        if applied.before[world_keys.name_key(at.universe, meta.name)] is not None:
            self._broken("FORK", f"two worlds are named {meta.name}")
        # A request that is repeated must find the world that it made.
        known = self._requests.setdefault(lineage.request, at)
        if known != at and not self.is_deleted(known):
            self._broken("FORK", f"one request has made two worlds: {meta.name}")
        self._only_pins(applied, at, meta.name)
        self._is_pinned(applied, at, lineage, meta.name)

    def _only_pins(self, applied: AppliedBatch, at: ids.Address, name: str) -> None:
        batch = applied.batch
        for key in (*batch.puts, *batch.deletes, *batch.counts, *(begin for begin, _ in batch.ranges)):
            where = keyspaces.place(key)
            # Making a fork writes its own world and pins; nothing else of another one.
            if where.at not in (None, at) and where.what != "retain":
                self._broken("W4", f"the fork {name} has written {where.what} of another world")

    def _is_pinned(self, applied: AppliedBatch, at: ids.Address, lineage: Lineage, name: str) -> None:
        """Every world is pinned that has a part of what a restore of the fork reads."""
        batch = applied.batch
        baseline = snapshot_keys.BASELINE.unpack(batch.puts[snapshot_keys.baseline_key(at)].value)
        for section in lineage.sections:
            owner = ids.Address(at.universe, ids.WorldId(section.world))
            if section.height < baseline.height:  # a restore begins at the baseline: it reads nothing below
                continue
            if lineage_keys.pin_key(owner, at.world) not in batch.puts:
                self._broken("FORK", f"{name} needs a snapshot and has no pin")
            self._is_counted(applied, owner, name)

    def _unpinned(self, applied: AppliedBatch, owner: ids.Address, world: ids.WorldId) -> None:
        at = ids.Address(owner.universe, world)
        born = self.born[at]
        self._is_counted(applied, owner, born.meta.name)
        if self.is_deleted(at):  # a deleted fork needs nothing any more, so its pins go
            return
        baseline = snapshot_keys.BASELINE.unpack(self._contents()[snapshot_keys.baseline_key(at)])
        if baseline.height <= born.lineage.height:
            self._broken("FORK", f"the pin of {born.meta.name} is gone, and it has no state of its own")

    def _is_counted(self, applied: AppliedBatch, owner: ids.Address, name: str) -> None:
        if not any(
            keyspaces.place(key).what == "retain" and keyspaces.place(key).at == owner for key in applied.batch.counts
        ):
            self._broken("FORK", f"a pin of {name} comes or goes, and what retention expects does not change")

    def is_deleted(self, at: ids.Address) -> bool:
        return world_keys.META.unpack(self._contents()[world_keys.meta_key(at)]).status is Status.DELETED

    def called(self, call: Called) -> None:
        """An effect has reached the outside."""
        world = self._asked_by(bytes.fromhex(call.key))
        for born in self.born.values():
            if born.at.world == world and born.meta.dry:
                self._broken("W2", f"{call.name} was called for the dry fork {born.meta.name}")

    # --- At the end ------------------------------------------------------------------------------------------

    def are_concerned(self, left: list[str]) -> bool:
        """Whether some of what is left to do is a fork's."""
        names = [at.world.hex()[-8:] for at in self.born]
        return any(each.endswith(name) for each in left for name in names)

    async def unsettled(self, connection: Connection) -> list[str]:
        """The forks that have not settled what they have inherited: that stands in no queue, and a worker that has such
        a fork may be dead. One that cannot be read is for the end.
        """
        found = []
        for born in self.born.values():
            if not self.is_deleted(born.at):
                with contextlib.suppress(errors.Error):
                    machine = await self.restored(connection, born)
                    if machine.branch is None or machine.branch.unsettled:
                        found.append(f"the beginning of {born.at.world.hex()[-8:]}")
                    machine.close()
        return found

    async def restored(self, connection: Connection, born: Born) -> Machine:
        """A fork as it is now."""
        material = await world_restore.gather(connection.store.engine, connection.blobs, born.at)
        return world_restore.build(material, connection.programs[born.meta.program]).machine
