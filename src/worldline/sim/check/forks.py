"""What must hold of forks: W1 to W4, and FORK.

Births are seen as they are committed; what forks and parents have become is read at the end, each through its own
records. Nothing here uses what the roles know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.client.world import World
from worldline.codec import structs
from worldline.kernel import values
from worldline.kernel.branches import fork
from worldline.kernel.operations import OpKind
from worldline.kernel.rows.records import Pending, RunStatus
from worldline.kernel.state import Machine
from worldline.keys import journal as journal_keys
from worldline.keys import lineage as lineage_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.keys import worlds as world_keys
from worldline.model import ids, inbox, journal
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.rows import Rows
from worldline.model.world import Lineage, Policy, Status, WorldMeta
from worldline.roles import reader, restore
from worldline.sim.hosts import remaining
from worldline.sim.load import forks
from worldline.sim.load.history import Broken, Op
from worldline.sim.load.programs import Called
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import Applied

_WAITS_FOR_WORK = (OpKind.EFFECT, OpKind.SEND, OpKind.ASK, OpKind.TIMER)


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

    def look(self, applied: Applied) -> None:
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

    def _is_born(self, applied: Applied, at: ids.Address) -> None:
        puts = applied.batch.puts
        lineage = lineage_keys.LINEAGE.unpack(puts[lineage_keys.lineage_key(at)].value)
        meta = world_keys.META.unpack(puts[world_keys.meta_key(at)].value)
        head = journal_keys.HEAD.unpack(puts[journal_keys.head_key(at)].value)
        self.born[at] = Born(at, meta, lineage, head)
        if (head.step, head.height) != (lineage.step, lineage.height):
            self._broken("W1", f"{meta.name} begins at height {head.height} instead of {lineage.height}")
        if applied.before[world_keys.name_key(at.universe, meta.name)] is not None:
            self._broken("FORK", f"two worlds are named {meta.name}")
        known = self._requests.setdefault(lineage.request, at)
        if known != at and not self.is_deleted(known):
            self._broken("FORK", f"one request has made two worlds: {meta.name}")
        self._only_pins(applied, at, meta.name)
        self._is_pinned(applied, at, lineage, meta.name)

    def _only_pins(self, applied: Applied, at: ids.Address, name: str) -> None:
        batch = applied.batch
        for key in (*batch.puts, *batch.deletes, *batch.counts, *(begin for begin, _ in batch.ranges)):
            where = keyspaces.place(key)
            if where.at not in (None, at) and where.what != "retain":
                self._broken("W4", f"the fork {name} has written {where.what} of another world")

    def _is_pinned(self, applied: Applied, at: ids.Address, lineage: Lineage, name: str) -> None:
        """Every world is pinned that has a part of what a restore of the fork reads."""
        batch = applied.batch
        baseline = snapshot_keys.BASELINE.unpack(batch.puts[snapshot_keys.baseline_key(at)].value)
        for section in lineage.sections:
            owner = ids.Address(at.universe, ids.WorldId(section.world))
            if section.height < baseline.height:
                continue
            if lineage_keys.pin_key(owner, at.world) not in batch.puts:
                self._broken("FORK", f"{name} needs a snapshot and has no pin")
            self._is_counted(applied, owner, name)

    def _unpinned(self, applied: Applied, owner: ids.Address, world: ids.WorldId) -> None:
        at = ids.Address(owner.universe, world)
        born = self.born[at]
        self._is_counted(applied, owner, born.meta.name)
        if self.is_deleted(at):
            return
        baseline = snapshot_keys.BASELINE.unpack(self._contents()[snapshot_keys.baseline_key(at)])
        if baseline.height <= born.lineage.height:
            self._broken("FORK", f"the pin of {born.meta.name} is gone, and it has no state of its own")

    def _is_counted(self, applied: Applied, owner: ids.Address, name: str) -> None:
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

    async def unsettled(self, universe: Connection) -> list[str]:
        """The forks that have not settled what they have inherited: that stands in no queue, and a worker that has such
        a fork may be dead. One that cannot be read is for the end.
        """
        found = []
        for born in self.born.values():
            if not self.is_deleted(born.at):
                with contextlib.suppress(errors.Error):
                    machine = await self._restored(universe, born)
                    if machine.branch is None or machine.branch.unsettled:
                        found.append(f"the beginning of {born.at.world.hex()[-8:]}")
                    machine.close()
        return found

    async def at_end(self, universe: Connection) -> None:
        for born in self.born.values():
            if not self.is_deleted(born.at):
                await self._same_past(universe, born)
                machine = await self._restored(universe, born)
                await self._nothing_waits(universe, born, machine)
                machine.close()
                await self._shared(universe, born)
                await self._scripted(universe, born)

    async def _same_past(self, universe: Connection, born: Born) -> None:
        """W1: entry for entry, and row for row. What stood in worlds that are deleted has gone with them."""
        engine, height = universe.store.engine, born.lineage.height
        if self.is_deleted(born.parent) or (await reader.kept(engine, born.at)).above:
            return
        mine = await restore.read_entries(engine, universe.blobs, born.at, above=0, up_to=height)
        theirs = await restore.read_entries(engine, universe.blobs, born.parent, above=0, up_to=height)
        if [structs.encode(each) for each in mine] != [structs.encode(each) for each in theirs]:
            self._broken("W1", f"{born.meta.name} does not have its parent's entries up to height {height}")
        try:
            (head, rows), (other, others) = [await _stood(universe, at, height) for at in (born.at, born.parent)]
        except errors.NotRetained:
            return  # both have states of their own since, and what led there was compacted
        if dict(rows.items()) != dict(others.items()) or (head.chain, head.state) != (other.chain, other.state):
            self._broken("W1", f"{born.meta.name} does not have its parent's state at height {height}")
        if height and (born.head.chain, born.head.state) != (other.chain, other.state):
            self._broken("W1", f"{born.meta.name} begins with other digests than its parent has at height {height}")

    async def _restored(self, universe: Connection, born: Born) -> Machine:
        material = await restore.gather(universe.store.engine, universe.blobs, born.at)
        return restore.build(material, universe.programs[born.meta.program]).machine

    async def _nothing_waits(self, universe: Connection, born: Born, machine: Machine) -> None:
        """W3: whatever a run waits for at rest is parked, here or in the world that it is shared with, or is another
        run, or an event.
        """
        name = born.meta.name
        if machine.branch is None or machine.branch.unsettled:
            self._broken("W3", f"{name} has not settled what it has inherited")
        for run in machine.live_runs():
            if run.record.status is RunStatus.BLOCKED:
                self._broken("W3", f"{name}: run {run.record.id} is blocked: {run.record.blocked}")
            for number, op in enumerate(run.record.ops):
                where = f"{name}: operation {number} ({op.name}) of run {run.record.id}"
                if op.outcome is not None:
                    continue
                if op.kind in _WAITS_FOR_WORK:
                    pending = op.asked
                    if pending is None or not (pending.parked or await self._is_parked_there(universe, born, pending)):
                        self._broken("W3", f"{where} waits for what no worker has")
                elif op.kind is OpKind.CHILD and not _is_live(machine, run, number):
                    self._broken("W3", f"{where} waits for a run that has ended")

    async def _is_parked_there(self, universe: Connection, born: Born, pending: Pending) -> bool:
        """Whether what is shared is parked in the world that it is shared with."""
        if pending.name != fork.SHARE:
            return False
        wanted = remaining.shared(pending.params)
        owner = self.born.get(ids.Address(born.at.universe, ids.WorldId(wanted["world"])))
        if owner is None or self.is_deleted(owner.at):
            return False
        machine = await self._restored(universe, owner)
        theirs = machine.work.find_open(ids.IntentId(wanted["intent"]))
        machine.close()
        return theirs is not None and theirs.parked is not None

    async def _shared(self, universe: Connection, born: Born) -> None:
        """W2: what a fork shares it gets once, and it is what its parent got."""
        own = await _entries(universe, born.at, above=born.lineage.height)
        wanted: dict[bytes, dict[str, Any]] = {}
        for entry in own:
            if entry.kind is Kind.EFFECT_REQUESTED:
                ordinal, name, _, _, params, _ = values.load(tuple[int, str, str, int, bytes, int], entry.payload)
                if name == fork.SHARE:
                    intent = ids.intent_id(born.at, step=entry.step, ordinal=ordinal, kind=name, params=params)
                    wanted[intent] = remaining.shared(params)
        asked = [each["intent"] for each in wanted.values()]
        if not _was_reverted(own) and len(asked) != len(dict.fromkeys(asked)):
            self._broken("W2", f"{born.meta.name} shares an answer twice")
        if wanted and born.lineage.policy is not Policy.SHARE:
            self._broken("W2", f"{born.meta.name} shares its parent's answers, and nothing said so")
        for entry in own:
            receipt = _receipt_of(entry)
            if receipt is not None and receipt.intent in wanted:
                await self._is_parents(universe, born, wanted[receipt.intent], receipt)

    async def _is_parents(
        self, universe: Connection, born: Born, wanted: dict[str, Any], receipt: inbox.Receipt
    ) -> None:
        if receipt.status is not ReceiptStatus.OK:
            return
        status, data = values.load(tuple[int, bytes], await universe.blobs.load(receipt.payload))
        if status == ReceiptStatus.CANCELLED:
            return
        owner = ids.Address(born.at.universe, ids.WorldId(wanted["world"]))
        if self.is_deleted(owner):
            return
        for entry in await _entries(universe, owner, above=wanted["above"]):
            theirs = _receipt_of(entry)
            if theirs is not None and theirs.intent == wanted["intent"]:
                if (int(theirs.status), await universe.blobs.load(theirs.payload)) != (status, data):
                    self._broken("W2", f"{born.meta.name} was given another answer than its parent")
                return

    async def _scripted(self, universe: Connection, born: Born) -> None:
        """A rule that answers so many times is used up after them, whichever worker has the fork."""
        said: list[object] = []
        own = await _entries(universe, born.at, above=born.lineage.height)
        if _was_reverted(own):
            return  # its script has gone back, too
        for entry in own:
            if entry.kind is Kind.SCRIPTED:
                *of, status, data = values.load(list[Any], entry.payload)
                if status == ReceiptStatus.OK and forks.fetch.name in of:
                    said.append(values.load(str, data))
        if said != [forks.FIRST if number < forks.FIRST_TIMES else forks.REST for number in range(len(said))]:
            self._broken("FORK", f"{born.meta.name}: its script has said {said}")

    async def promised(self, universe: Connection, ops: list[Op], answered: dict[str, object]) -> None:
        """What clients were told is so."""
        made = {each.meta.name: each.at for each in self.born.values()}
        reverted = [op.world for op in ops if op.kind == "revert"]
        for op in ops:
            answer = answered.get(op.id)
            if op.kind in ("fork", "seed") and answer == op.to and op.to not in made:
                self._broken("FORK", f"{op.to} was never made")
            if op.kind == "errand" and isinstance(answer, list) and not forks.is_whole(op.id, answer):
                self._broken("PROGRAM", f"{op.world}: the errand {op.id} has ended as {answer}")
            counts = op.kind == "mark" and answer == "sent" and op.world not in reverted
            if counts and not self.is_deleted(made[op.world]):
                trail = await World(universe, op.world).state(forks.Trail)
                if trail.ids.get(op.id) != 1:
                    self._broken("J1", f"{op.world}: {op.id} counted {trail.ids.get(op.id, 0)} times")


async def _stood(universe: Connection, at: ids.Address, height: int) -> tuple[journal.Head, Rows]:
    """A world's rows at a height, and the head that it had there."""
    engine = universe.store.engine
    saved = await reader.saved_below(engine, await reader.line_of(engine, at), height)
    material = await restore.gather(engine, universe.blobs, at, baseline=saved, up_to=height)
    return restore.fold(material)


async def _entries(universe: Connection, at: ids.Address, *, above: int) -> list[journal.Entry]:
    engine = universe.store.engine
    found = await restore.read_entries(
        engine, universe.blobs, at, above=above, up_to=(await reader.head(engine, at)).height
    )
    loaded = await restore.load_referenced(universe.blobs, found)
    return [restore.filled(each, loaded) for each in found]


def _was_reverted(entries: list[journal.Entry]) -> bool:
    return any(entry.kind is Kind.REVERTED for entry in entries)


def _receipt_of(entry: journal.Entry) -> inbox.Receipt | None:
    if entry.kind is not Kind.EFFECT_RESULT:
        return None
    item: inbox.Item = structs.decode(inbox.Item, entry.payload)  # type: ignore[arg-type]
    assert isinstance(item, inbox.Receipt)
    return item


def _is_live(machine: Machine, run: Any, number: int) -> bool:
    child = machine.child_of(run, number)
    return child is not None and child.live
