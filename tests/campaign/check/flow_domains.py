"""What must hold of flow domains: H1 to H6.

With every step of a world that has them, its rows are made of what the journal says it changed, as a restore would do
it, and compared with a model that is fed with the same journal (`flow_model.py`). What clients were told is compared at
the end. Nothing here uses what the roles know.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tests.campaign.check.flow_model import Cell, End, Model, Name, Step, Unknown
from tests.campaign.load import abandons, clerks, flow_domains, workloads
from worldline.base import errors
from worldline.base.failures import Diverged
from worldline.client.connection import Connection
from worldline.client.world_handle import Handle
from worldline.codec import structs
from worldline.features.domains.pure import domain_cell
from worldline.features.domains.pure.requirements import AnsweredRequirement
from worldline.features.proofs import calls as proof_calls
from worldline.flow_core import flow_records, slots
from worldline.kernel import user_values
from worldline.keys import lineage as lineage_keys
from worldline.keys import worlds as world_keys
from worldline.layers.history import step_reader
from worldline.layers.history.history_line import HistoryLine
from worldline.model import cell_rows, ids, inbox, row_keys
from worldline.model.cell_rows import CellKind
from worldline.model.change import Change, Row
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.rows import Rows
from worldline.model.world_records import WorldMeta
from worldline.sim.load.history import Broken, ClientOp
from worldline.sim.runtime import keyspaces
from worldline.sim.runtime.truth import AppliedBatch

_PARALLEL = ("Crate",)  # domains whose effects are performed at once


class Life:
    """A world with flow domains, as its journal has made it. `past`: its rows at the end of every step; `failed`: its
    requirements that have failed, by target, and at which height. Not `is_known`: parts of its steps are blobs.
    """

    def __init__(self, at: ids.Address, meta: WorldMeta, height: int, parent: Life | None) -> None:
        self.at = at
        self.name = meta.name
        self.program = meta.program
        before = [] if parent is None else [each for each in parent.model.steps if each.height <= height]
        past = {} if parent is None else parent.past
        failed = {} if parent is None else parent.failed
        self.model: Model = Model.of(before)
        self.past: dict[int, dict[bytes, Row]] = {each: rows for each, rows in past.items() if each <= height}
        self.rows = Rows(self.past[max(self.past)].items() if self.past else ())
        self.past.setdefault(height, dict(self.rows.items()))
        self.failed: dict[str, int] = {each: at for each, at in failed.items() if at <= height}
        self.is_known: bool = parent is None or parent.is_known
        self._reader = step_reader.StepReader(HistoryLine(at), above=height)

    def take(self, frames: list[tuple[bytes, bytes]]) -> list[step_reader.StoredStep]:
        return self._reader.take(frames)

    def open(self) -> dict[str, bytes]:
        """What of flow domains is open, by target, with its name outside; what is held back has none yet."""
        found: dict[str, bytes] = {}
        for _, row in self.rows.under(row_keys.WORK):
            _, name, params, run, _, target, *_ = _fields(row.meaning)
            if target and not run:
                step, ordinal, *_ = _fields(row.placement)
                found[target] = ids.intent_id(self.at, step=step, ordinal=ordinal, kind=name, params=params)
        for _, row in self.rows.under(row_keys.HELD):
            run, _, _, _, _, target, _ = _fields(row.meaning)
            if target and not run:
                found[target] = b""
        return found

    def went_back(self, height: int) -> None:
        """What has failed since then may be asked for again."""
        self.failed = {each: at for each, at in self.failed.items() if at <= height}


class FlowDomains:
    """`broken`: told of what does not hold."""

    def __init__(self, broken: Broken) -> None:
        self._broken = broken
        self.lives: dict[ids.Address, Life] = {}

    # --- Each commit -------------------------------------------------------------------------------------------------

    def look(self, applied: AppliedBatch) -> None:
        frames: dict[ids.Address, list[tuple[bytes, bytes]]] = {}
        for key, put in sorted(applied.batch.puts.items()):
            where = keyspaces.place(key)
            if where.at is None:
                continue
            if where.what == "world_meta" and where.at not in self.lives and applied.before[key] is None:
                self._is_born(applied, where.at, put.value)
            elif where.what == "journal" and where.at in self.lives:
                frames.setdefault(where.at, []).append((key, put.value))
        for at, its in frames.items():
            life = self.lives[at]
            if life.is_known:
                for stored in life.take(its):
                    self._stepped(life, stored)

    def _is_born(self, applied: AppliedBatch, at: ids.Address, raw: bytes) -> None:
        meta = world_keys.META.unpack(raw)
        if meta.program not in (flow_domains.NAME, clerks.NAME):
            return
        lineage = applied.batch.puts.get(lineage_keys.lineage_key(at))
        if lineage is None:
            self.lives[at] = Life(at, meta, 0, None)
        else:
            forked = lineage_keys.LINEAGE.unpack(lineage.value)
            parent = self.lives[ids.Address(at.universe, ids.WorldId(forked.parent))]
            self.lives[at] = Life(at, meta, forked.height, parent)

    def _stepped(self, life: Life, stored: step_reader.StoredStep) -> None:
        step = Step(life.at, stored.entries())
        before = life.open()
        try:
            changed = step_reader.resolve(stored, life.rows, {})
            life.rows.apply(changed)
            life.past[stored.height] = dict(life.rows.items())
            life.model.feed(step)
        except (errors.DecodeError, Unknown):  # parts of it are blobs
            life.is_known = False
            return
        self._never_again(life, step, before)
        for invariant, wrong in life.model.wrong:
            self._broken(invariant, f"{life.name}, step {stored.step}: {wrong}")
        life.model.wrong.clear()
        cells = self._cells(life)
        self._like_model(life, stored.step, cells)
        self._open_is_pending(life, stored.step, cells)
        self._stale_changes_nothing(life, step, changed)

    def _cells(self, life: Life) -> dict[Name, tuple[domain_cell.DomainCell, flow_records.Snapshot]]:
        found = {}
        for key, row in life.rows.under(row_keys.CELL):
            domain, name = row_keys.parse(key).texts
            found[domain, name] = _decoded(row.meaning)
        return found

    def _like_model(
        self, life: Life, step: int, cells: dict[Name, tuple[domain_cell.DomainCell, flow_records.Snapshot]]
    ) -> None:
        """H3. A cell that the model has and that is not there yet has done nothing."""
        for name, (own, head) in cells.items():
            modelled = life.model.cells.get(name) or Cell(name[0], flow_domains.FIRST)
            where = f"{life.name}, step {step}: {name[0]}[{name[1]}]"
            data = {field: value for field, value in head.data.items() if field != flow_records.HOST}
            if data != modelled.data:
                wrong = [each for each in {**data, **modelled.data} if data.get(each) != modelled.data.get(each)]
                said = [(each, data.get(each), modelled.data.get(each)) for each in wrong]
                self._broken("H3", f"{where} differs from the model: {said}"[:400])
            under_way = list(slots.every(head))
            if under_way != ([modelled.current.id] if modelled.current else []):
                self._broken("H3", f"{where}: {under_way} are on their way, in the model {modelled.current}")
            if [each.id for each in own.queue] != [each.id for each in modelled.queue]:
                self._broken("H3", f"{where}: other intents wait than in the model")

    def _open_is_pending(
        self, life: Life, step: int, cells: dict[Name, tuple[domain_cell.DomainCell, flow_records.Snapshot]]
    ) -> None:
        """H1."""
        wanted: dict[str, None] = {}
        for (domain, key), (own, head) in cells.items():
            if own.fatal:
                continue
            for id in slots.every(head):
                pending = [each for each in head.system.pending_requirements if each.intent_id == id]
                waiting = [each for each in pending if slots.early(head, id, each.id) is None]
                due = waiting if domain in _PARALLEL else waiting[:1]
                wanted |= {AnsweredRequirement(domain, key, id, each.id).text(): None for each in due}
        found = life.open()
        for each in {**wanted, **found}:
            if each not in found:
                self._broken("H1", f"{life.name}, step {step}: {each} is pending, and nothing is open for it")
            elif each not in wanted:
                self._broken("H1", f"{life.name}, step {step}: {each} is open, and not pending")

    def _never_again(self, life: Life, step: Step, before: dict[str, bytes]) -> None:
        """H4."""
        number, height = step.entries[0].step, step.height
        for entry in step.entries:
            if entry.kind is Kind.REVERTED:
                life.went_back(user_values.load(list[int], entry.payload)[1])
        failed = _failed_by(step)
        life.failed |= {target: height for target, work in before.items() if work and work == failed}
        for each in life.open():
            if each in life.failed:
                self._broken("H4", f"{life.name}, step {number}: {each} has failed and is asked for again")

    def _stale_changes_nothing(self, life: Life, step: Step, changed: Sequence[Change]) -> None:
        """H5."""
        kinds = [each.kind for each in step.entries]
        is_late = kinds[0] is Kind.EFFECT_RESULT and Kind.LATE_ANSWER in kinds
        touched = [each.key for each in changed if each.key.startswith(row_keys.CELL)]
        if is_late and touched and Kind.SCRIPTED not in kinds:
            self._broken("H5", f"{life.name}, step {step.entries[0].step}: a late answer has changed {touched}")

    # --- At the end --------------------------------------------------------------------------------------------------

    async def at_end(self, connection: Connection, ops: Sequence[ClientOp], answered: dict[str, object]) -> None:
        """H2, H6: what clients were told, and proofs by a process that does not have the program."""
        named = {life.name: life for life in self.lives.values()}
        for op in ops:
            if op.kind in workloads.FLOWS and op.world in named and op.id in answered:
                self._promised(op, named[op.world], ops, answered)
        for life in named.values():
            if life.is_known and life.name in (*flow_domains.WORLDS, clerks.WORLD):
                self._all_ended(life)
        for life in self.lives.values():
            if life.program != clerks.NAME:  # it has workflows: R4 proves it
                await self._proved(connection, life.name)

    def _all_ended(self, life: Life) -> None:
        """Also those intents that nothing waits for, because a run was cancelled or has left them."""
        for (domain, key), cell in life.model.cells.items():
            if cell.current is not None or cell.queue:
                self._broken("H2", f"{life.name}: {domain}[{key}] has intents that have not ended")

    def _commissioned(self, ops: Sequence[ClientOp]) -> list[str]:
        """The ids that messages of other worlds have used: these may have come first."""
        return [op.to.partition(" ")[2] for op in ops if op.kind == "commission"]

    def _promised(self, op: ClientOp, life: Life, ops: Sequence[ClientOp], answered: dict[str, object]) -> None:
        if not life.is_known:
            return
        answer = answered[op.id]
        if op.kind in flow_domains.ACTS and (answer != flow_domains.REUSED or op.id not in self._commissioned(ops)):
            self._ended(life, op, op.kind, answer)
        elif op.kind == "submit" and answer == "submitted" and life.name in flow_domains.WORLDS:
            self._ended(life, op, flow_domains.submitted_as(op), None)
        elif op.kind == "drop":
            self._ended(life, op, abandons.dropped_as(op), answer)
        elif op.kind == "assist":
            self._run_told(op, life, answer)
        elif op.kind in ("again", "other"):
            kind, _, id = op.to.partition(" ")
            first, again = (flow_domains.act_of(kind, each) for each in (op.amount, flow_domains.repeated(op)))
            wanted = answered.get(id) if first[0].input == again[0].input else flow_domains.REUSED
            if answer != wanted and flow_domains.NOT_KEPT not in (answer, wanted):
                self._broken("H2", f"{op.world}: the intent {id} was repeated and ended as {answer}, not {wanted}")

    def _run_told(self, op: ClientOp, life: Life, answer: object) -> None:
        """What a run was told of its intents, its client was told. All of them have ended, also those that it has not
        waited for.
        """
        if not isinstance(answer, list):
            return
        if op.to == clerks.TWICE:
            kind = clerks.action_of(op)
            same = clerks.again(kind, op.amount).input == flow_domains.act_of(kind, op.amount)[0].input
            first, second = answer
            if second != (first if same else [op.id, clerks.REFUSED, errors.IdReused.code]):
                self._broken("H2", f"{op.world}: the run {op.id} has used an id again and was told {second}")
        ends = {id: list(end) for cell in life.model.cells.values() for id, end in cell.ends.items()}
        for id, *told in answer:
            if told[0] != clerks.REFUSED and ends.get(id) != told and (told[0] != clerks.LATE or id not in ends):
                self._broken("H2", f"{op.world}: the run {op.id} was told {told} of {id}, which is {ends.get(id)}")

    def _ended(self, life: Life, op: ClientOp, kind: str, answer: object) -> None:
        act, key = flow_domains.act_of(kind, op.amount)
        cell = life.model.cells.get((flow_domains.name_of(act), key))
        end: End | None = None if cell is None else cell.ends.get(op.id)
        if end is None:
            self._broken("H2", f"{op.world}: the intent {op.id} ({kind}) has not ended")
        elif answer not in (None, flow_domains.NOT_KEPT, list(end)):
            self._broken("H2", f"{op.world}: {op.id} ({kind}) ended as {end}, and its client was told {answer}")

    async def _proved(self, connection: Connection, name: str) -> None:
        world = Handle(connection, name)
        try:
            if not (await world.head()).height:
                return
            proof = await proof_calls.prove(world)
        except errors.NotFound:
            return  # it is deleted
        except (errors.Error, Diverged) as error:
            self._broken("H6", f"{name}: {error}")
            return
        if proof.difference is not None or proof.unverifiable:
            self._broken("H6", f"{name}: {proof.difference or proof.unverifiable}")


@functools.lru_cache(maxsize=256)
def _decoded(meaning: bytes) -> tuple[domain_cell.DomainCell, flow_records.Snapshot]:
    row = cell_rows.decode(meaning)
    assert row.kind is CellKind.DOMAIN, "worlds of a campaign were given their domains by this release"
    return domain_cell.decode(row.data)


def _fields(written: bytes) -> list[Any]:
    """What a row says."""
    return user_values.load(list[Any], written)  # type: ignore[no-any-return]


def _failed_by(step: Step) -> bytes:
    """The name outside of the effect whose failure is the input of this step; nothing if it is another input."""
    first = step.entries[0]
    if first.kind is not Kind.EFFECT_RESULT:
        return b""
    item: inbox.Item = structs.decode(inbox.Item, first.payload)  # type: ignore[arg-type]
    assert isinstance(item, inbox.EffectReceipt)
    return b"" if item.status is ReceiptStatus.OK else item.intent
