"""What forks must have become at the end of a run of the campaign: W1 to W3, and what their clients were told.

What forks and parents have become is read through the records of each. Nothing here uses what the roles know.
"""

from __future__ import annotations

from typing import Any

from tests.campaign.load import forks
from worldline.api.world_api import World
from worldline.base import errors
from worldline.client.connection import Connection
from worldline.codec import structs
from worldline.kernel import part_inputs, user_values
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Pending, RunStatus
from worldline.kernel.run_operations import OpKind
from worldline.model import ids, inbox, journal
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.rows import Rows
from worldline.model.world_records import ForkPolicy
from worldline.runtime import world_reader, world_restore
from worldline.sim.check.fork_checks import Born, Forks
from worldline.sim.hosts import remaining
from worldline.sim.load.history import Broken, ClientOp

_WAITS_FOR_WORK = (OpKind.EFFECT, OpKind.SEND, OpKind.ASK, OpKind.TIMER)


class ForkEnds:
    """`born`: the forks of the run."""

    def __init__(self, broken: Broken, born: Forks) -> None:
        self._broken = broken
        self._forks = born

    async def at_end(self, connection: Connection) -> None:
        for born in self._forks.born.values():
            if not self._forks.is_deleted(born.at):
                await self._same_past(connection, born)
                machine = await self._forks.restored(connection, born)
                await self._nothing_waits(connection, born, machine)
                machine.close()
                await self._shared(connection, born)
                await self._scripted(connection, born)

    async def _same_past(self, connection: Connection, born: Born) -> None:
        """W1: entry for entry, and row for row. What stood in worlds that are deleted has gone with them."""
        engine, height = connection.store.engine, born.lineage.height
        if self._forks.is_deleted(born.parent) or (await world_reader.kept(engine, born.at)).above:
            return
        mine = await world_restore.read_entries(engine, connection.blobs, born.at, above=0, up_to=height)
        theirs = await world_restore.read_entries(engine, connection.blobs, born.parent, above=0, up_to=height)
        if [structs.encode(each) for each in mine] != [structs.encode(each) for each in theirs]:
            self._broken("W1", f"{born.meta.name} does not have its parent's entries up to height {height}")
        try:
            (head, rows), (other, others) = [await _stood(connection, at, height) for at in (born.at, born.parent)]
        except errors.NotRetained:
            return  # both have states of their own since, and what led there was compacted
        if dict(rows.items()) != dict(others.items()) or (head.chain, head.state) != (other.chain, other.state):
            self._broken("W1", f"{born.meta.name} does not have its parent's state at height {height}")
        if height and (born.head.chain, born.head.state) != (other.chain, other.state):
            self._broken("W1", f"{born.meta.name} begins with other digests than its parent has at height {height}")

    async def _nothing_waits(self, connection: Connection, born: Born, machine: Machine) -> None:
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
                    if pending is None or not (
                        pending.parked or await self._is_parked_there(connection, born, pending)
                    ):
                        self._broken("W3", f"{where} waits for what no worker has")
                elif op.kind is OpKind.CHILD and not _is_live(machine, run, number):
                    self._broken("W3", f"{where} waits for a run that has ended")

    async def _is_parked_there(self, connection: Connection, born: Born, pending: Pending) -> bool:
        """Whether what is shared is parked in the world that it is shared with."""
        if pending.name != part_inputs.SHARE:
            return False
        wanted = remaining.shared(pending.params)
        owner = self._forks.born.get(ids.Address(born.at.universe, ids.WorldId(wanted["world"])))
        if owner is None or self._forks.is_deleted(owner.at):
            return False
        machine = await self._forks.restored(connection, owner)
        theirs = machine.work.find_open(ids.IntentId(wanted["intent"]))
        machine.close()
        return theirs is not None and theirs.parked is not None

    async def _shared(self, connection: Connection, born: Born) -> None:
        """W2: what a fork shares it gets once, and it is what its parent got."""
        own = await _entries(connection, born.at, above=born.lineage.height)
        wanted: dict[bytes, dict[str, Any]] = {}
        for entry in own:
            if entry.kind is Kind.EFFECT_REQUESTED:
                ordinal, name, _, _, params, _ = user_values.load(tuple[int, str, str, int, bytes, int], entry.payload)
                if name == part_inputs.SHARE:
                    intent = ids.intent_id(born.at, step=entry.step, ordinal=ordinal, kind=name, params=params)
                    wanted[intent] = remaining.shared(params)
        asked = [each["intent"] for each in wanted.values()]
        if not _was_reverted(own) and len(asked) != len(dict.fromkeys(asked)):
            self._broken("W2", f"{born.meta.name} shares an answer twice")
        if wanted and born.lineage.policy is not ForkPolicy.SHARE:
            self._broken("W2", f"{born.meta.name} shares its parent's answers, and nothing said so")
        for entry in own:
            receipt = _receipt_of(entry)
            if receipt is not None and receipt.intent in wanted:
                await self._is_parents(connection, born, wanted[receipt.intent], receipt)

    async def _is_parents(
        self, connection: Connection, born: Born, wanted: dict[str, Any], receipt: inbox.EffectReceipt
    ) -> None:
        if receipt.status is not ReceiptStatus.OK:
            return
        status, data = user_values.load(tuple[int, bytes], await connection.blobs.load(receipt.payload))
        if status == ReceiptStatus.CANCELLED:
            return
        owner = ids.Address(born.at.universe, ids.WorldId(wanted["world"]))
        if self._forks.is_deleted(owner):
            return
        for entry in await _entries(connection, owner, above=wanted["above"]):
            theirs = _receipt_of(entry)
            if theirs is not None and theirs.intent == wanted["intent"]:
                if (int(theirs.status), await connection.blobs.load(theirs.payload)) != (status, data):
                    self._broken("W2", f"{born.meta.name} was given another answer than its parent")
                return

    async def _scripted(self, connection: Connection, born: Born) -> None:
        """A rule that answers so many times is used up after them, whichever worker has the fork."""
        said: list[object] = []
        own = await _entries(connection, born.at, above=born.lineage.height)
        if _was_reverted(own):
            return  # its script has gone back, too
        for entry in own:
            if entry.kind is Kind.SCRIPTED:
                *of, status, data = user_values.load(list[Any], entry.payload)
                if status == ReceiptStatus.OK and forks.fetch.name in of:
                    said.append(user_values.load(str, data))
        if said != [forks.FIRST if number < forks.FIRST_TIMES else forks.REST for number in range(len(said))]:
            self._broken("FORK", f"{born.meta.name}: its script has said {said}")

    async def promised(self, connection: Connection, ops: list[ClientOp], answered: dict[str, object]) -> None:
        """What clients were told is so."""
        made = {each.meta.name: each.at for each in self._forks.born.values()}
        reverted = [op.world for op in ops if op.kind == "revert"]
        for op in ops:
            answer = answered.get(op.id)
            if op.kind in ("fork", "seed") and answer == op.to and op.to not in made:
                self._broken("FORK", f"{op.to} was never made")
            if op.kind == "errand" and isinstance(answer, list) and not forks.is_whole(op.id, answer):
                self._broken("PROGRAM", f"{op.world}: the errand {op.id} has ended as {answer}")
            counts = op.kind == "mark" and answer == "sent" and op.world not in reverted
            if counts and not self._forks.is_deleted(made[op.world]):
                trail = await World(connection, op.world).state(forks.Trail)
                if trail.ids.get(op.id) != 1:
                    self._broken("J1", f"{op.world}: {op.id} counted {trail.ids.get(op.id, 0)} times")


async def _stood(connection: Connection, at: ids.Address, height: int) -> tuple[journal.Head, Rows]:
    """A world's rows at a height, and the head that it had there."""
    engine = connection.store.engine
    saved = await world_reader.saved_below(engine, await world_reader.line_of(engine, at), height)
    material = await world_restore.gather(engine, connection.blobs, at, baseline=saved, up_to=height)
    return world_restore.fold(material)


async def _entries(connection: Connection, at: ids.Address, *, above: int) -> list[journal.JournalEntry]:
    engine = connection.store.engine
    found = await world_restore.read_entries(
        engine, connection.blobs, at, above=above, up_to=(await world_reader.head(engine, at)).height
    )
    loaded = await world_restore.load_referenced(connection.blobs, found)
    return [world_restore.filled(each, loaded) for each in found]


def _was_reverted(entries: list[journal.JournalEntry]) -> bool:
    return any(entry.kind is Kind.REVERTED for entry in entries)


def _receipt_of(entry: journal.JournalEntry) -> inbox.EffectReceipt | None:
    if entry.kind is not Kind.EFFECT_RESULT:
        return None
    item: inbox.Item = structs.decode(inbox.Item, entry.payload)  # type: ignore[arg-type]
    assert isinstance(item, inbox.EffectReceipt)
    return item


def _is_live(machine: Machine, run: Any, number: int) -> bool:
    child = machine.child_of(run, number)
    return child is not None and child.live
