"""One cell of a flow domain in one step: jobs are run over its snapshot until none is left, then all that follows
from them is done at once. A world is a host of the contract without runners: the inbox and the cell's queue are the
mailbox, the step is the job's frame.

The cell is written before anything is asked for or answered. An intent that would leave more than the cell can hold
ends with an error, over the snapshot as it was.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from worldline.base import errors, limits, probes
from worldline.features.domains.pure import cell_documents, intent_ends, requirements
from worldline.features.domains.pure import domain_cell as cells_of
from worldline.features.domains.pure.cell_results import Derived
from worldline.features.domains.pure.domain_cell import DomainCell, EndedIntent, IntentWaiter, WaitingIntent
from worldline.features.domains.pure.intent_ends import EndAnswers
from worldline.features.domains.pure.snapshot_packing import CellPacker
from worldline.flow_core import core as cores
from worldline.flow_core import flow_records, jobs, patches, slots
from worldline.flow_core.compiled_document import Compiled
from worldline.kernel import runs
from worldline.kernel.event_dispatch import Answer
from worldline.kernel.execution import stack
from worldline.kernel.machine import Machine
from worldline.kernel.rows import cells
from worldline.kernel.rows.row_records import UNREAD, DeferredOperation
from worldline.model import row_keys

FATAL = "key_fatal"
UNFIT = "cell_unfit"
FATAL_CHARACTERS_MAX = 300  # of why a cell takes nothing any more


_Progress = tuple[DomainCell, flow_records.Snapshot, Derived]


class CellTurn:
    """The work on one cell. `finish` ends it."""

    def __init__(self, machine: Machine, domain: str, key: str) -> None:
        self.machine = machine
        self.domain = domain
        self.key = key
        self._cell = machine.find_cell((domain, key))
        if self._cell is None:
            self._kept, self.head = DomainCell(), cell_documents.created(machine, domain, self._context("initial"))
            self._packer = CellPacker()
        elif self._cell.value is UNREAD:
            self._kept, self.head = cells_of.decode(self._cell.data)
            self._packer = CellPacker(len(self._cell.data))
        else:
            self._kept, self.head, self._packer = self._cell.value
        self._derived = Derived()
        # Steps themselves record nothing; only a journal that is run again has a listener.
        self._emit = jobs.unheard if cell_documents.recorder.get() is None else self._tell
        self._unapplied: Exception | None = None
        self._jobs_run = 0  # of the intent on its way

    # --- What is to be done ---

    @property
    def kept(self) -> DomainCell:
        return self._kept

    @property
    def name(self) -> str:
        return row_keys.cell_name(self.domain, self.key)

    def submit(self, wanted: WaitingIntent, owed: IntentWaiter) -> None:
        """An intent comes: it is queued, behind the one on its way; a repeat gets the same end."""
        if self._kept.fatal:
            raise CellFatal(f"{self.name} takes nothing any more: {self._kept.fatal}")
        before = cells_of.body_in(self._kept, self.head, wanted.id)
        if before is not None and before != cells_of.body_of(wanted.action, wanted.input):
            raise errors.IdReused(wanted.id)
        kept = self._kept
        if owed.waits:
            kept = cells_of.told_of(kept, wanted.id, owed, (self.domain, self.key))
        done = next((each for each in kept.done if each.id == wanted.id), None) if kept.done else None
        if done is None and before is None:
            kept = cells_of.queued(kept, wanted, (self.domain, self.key))
        if done is None and (before is not None or len(kept.queue) > 1 or kept.blocked or jobs.is_busy(self.head)):
            # It waits in the cell: what the cell cannot hold is refused now.
            cells_of.encode(kept, self.head, limits.FLOW_CELL_BYTES_MAX, self._packer)
        self._kept = kept
        # A repeat of an intent that has ended: the same end is told again, and nothing runs.
        if done is not None:
            self._add_end(wanted.id, done.status, done.error)

    def enqueue(self, job: jobs.Job) -> None:
        self._derived.jobs.append(job)

    def patch(self, given: patches.Concrete, source: str) -> None:
        """Patches from outside. An idle cell whose document has changed continues under that of now, if its data fits
        it with them: so a blocked cell can be repaired. `BadInput` if it does not.
        """
        current = self.machine.domains.current[self.domain]
        if jobs.is_busy(self.head) or current.hash == self.head.meta.schema_hash:
            self.enqueue(jobs.ApplyPatches(given, source))
            return
        document = cell_documents.compiled(self.machine.domains.documents[current.hash].raw)
        data = cell_documents.mended(document, self.head.data, given)
        self._move(document, current.hash, data, source=source, patched=len(given))

    def abandon(self, intent_id: str) -> None:
        """End an intent by hand. Its effects are given up."""
        intent = slots.intent(self.head, intent_id)
        if intent is None:
            waiting = next((each for each in self._kept.queue if each.id == intent_id), None)
            if waiting is None:
                raise errors.NotFound(f"no intent {intent_id!r} is on its way in {self.name}")
            self._kept = replace(self._kept, queue=[each for each in self._kept.queue if each is not waiting])
            self._emit("intent:abandon", intentId=intent_id, code=ABANDONED)
            self._end(jobs.IntentOutcome(intent_id, "error", _abandoned(waiting.action, self._now)))
            return
        head = cores.Core().abandon(
            self.head,
            intent,
            self._context(intent_id),
            code=ABANDONED,
            message="it was abandoned by hand",
            closing=slots.closing(intent_id),
        )
        self.head = head
        self._emit("intent:abandon", intentId=intent_id, code=ABANDONED)
        self._end(jobs.IntentOutcome(intent_id, "error", head.system.last_error))
        self._derived.cut_off.append(intent_id)

    # --- Running it ---

    def finish(self) -> None:
        """Run the jobs, write the cell, and then do what follows: effects, answers."""
        start = self._progress()
        # All jobs, and then one encoding: only a cell that does not fit is run again job by job.
        try:
            stack.call(self._run_jobs)
            leaving = self._leaving()
            data = self._closed(limits.FLOW_CELL_BYTES_MAX)
        except (errors.TooLarge, errors.EncodeError):
            probes.hit("domains.cell-unstorable")
            self._go_back(start)
            data = stack.call(self._run_one_by_one)
            leaving = self._leaving()
        self._write(data)
        self._derived.carry_out(self.machine, self.domain, self.key, leaving, emit=self._emit)

    def _run_jobs(self) -> None:
        while (job := self._next()) is not None:
            self._settle(self._outcome(job))

    def _leaving(self) -> list[DeferredOperation]:
        return requirements.leaving(self.machine, self.domain, self.key, self._derived.asked)

    def check_applied(self) -> None:
        """Refuse patches from outside that could not be applied: no intent says so."""
        if self._unapplied is not None:
            raise errors.BadInput(f"the patches are not applied: {self._unapplied}") from self._unapplied

    def _run_one_by_one(self) -> bytes:
        """Run the jobs again, and end the intent of each one that leaves more than the cell can hold."""
        while (job := self._next()) is not None:
            before = self._progress()
            try:
                self._settle(self._outcome(job))
                cells_of.encode(self._kept, self.head, limits.FLOW_CELL_BYTES_MAX, self._packer)
                self._leaving()  # what it asks for must fit, too
            except (errors.TooLarge, errors.EncodeError) as error:
                self._go_back(before)
                self._settle(self._failed(job, error))
        try:
            # The reserve is for ends of intents: an error must fit into a cell that is full.
            return self._closed(limits.FLOW_CELL_BYTES_MAX + limits.FLOW_CELL_RESERVE_BYTES)
        except (errors.TooLarge, errors.EncodeError) as error:
            probes.hit("domains.cell-full")
            self._stop(f"it has no room for the end of an intent: {error}")
            return self._closed(None)

    def _outcome(self, job: jobs.Job) -> jobs.JobOutcome:
        context = self._context(jobs.seed(job, self.head))
        try:
            found = jobs.run(job, self.head, self._document(), context, self._emit)
        # No fault of the job, but of this process now: the journal must not say that the intent has failed.
        except (MemoryError, errors.CannotStep):
            raise
        except Exception as error:  # noqa: BLE001 - section 13.2: it ends its intent, and the next job is taken
            return self._failed(job, error)
        if found.trace is not None:
            self._emit("core:graph", intentId=job.intent_id, graph=found.trace)
        return found

    def _failed(self, job: jobs.Job, error: Exception) -> jobs.JobOutcome:
        if job.intent_id:
            self._derived.cut_off.append(job.intent_id)
        else:
            self._unapplied = error
        context = self._context(jobs.seed(job, self.head))
        return jobs.failed(job, error, self.head, self._document(), context=context, emit=self._emit)

    def _progress(self) -> _Progress:
        return self._kept, self.head, self._derived.copy()  # the others are never changed in place

    def _go_back(self, to: _Progress) -> None:
        self._kept, self.head, self._derived = to

    def _closed(self, limit: int | None) -> bytes:
        """The cell as bytes. Callers that wait for an ended intent are in it no more."""
        told = {intent_id: self._kept.owed.get(intent_id, []) for intent_id, _ in self._derived.ends}
        owed = {each: waiting for each, waiting in self._kept.owed.items() if each not in told}
        closed = replace(self._kept, owed=owed)
        data = cells_of.encode(closed, self.head, limit, self._packer)
        self._kept = closed
        self._derived.tell_to(told)
        return data

    def _next(self) -> jobs.Job | None:
        if self._kept.fatal:
            return None
        if not self._derived.jobs:
            self._jobs_run = 0
            return self._start_next()
        self._jobs_run += 1
        # Jobs that make further jobs for ever would keep the step from ending.
        if self._jobs_run > limits.FLOW_JOBS_MAX:
            self._stop("the jobs of its intent do not end")
            return None
        return self._derived.jobs.popleft()

    def _start_next(self) -> jobs.Job | None:
        """The first intent that waits, if none is on its way, its document fits and the step has room. Where a caller
        reads the state that its intent has ended with, there is no room for another.
        """
        if not self._kept.queue or jobs.is_busy(self.head) or not self._fits():
            return None
        if self._derived.is_read or self.machine.now.is_full_with(self._derived.told_bytes):
            self._derived.continue_later()
            return None
        first, *others = self._kept.queue
        self._kept = replace(self._kept, queue=others)
        return jobs.StartIntent(first.intent())

    def _settle(self, outcome: jobs.JobOutcome) -> None:
        self.head = outcome.head
        if outcome.fatal:
            self._stop(outcome.fatal)
            return
        if outcome.dropped:
            self._derived.stale.append(outcome.dropped)
        self._derived.jobs.extend(outcome.jobs)
        self._derived.asked.extend([(each, outcome.head) for each in outcome.effects])
        if outcome.ended is not None:
            self._end(outcome.ended)

    def _end(self, ended: jobs.IntentOutcome) -> None:
        status = "error" if ended.status == "error" else "complete"
        error = None if ended.error is None or status != "error" else flow_records.plain(ended.error)
        self._add_end(ended.intent_id, status, error)
        if ended.intent_id in self._kept.named:
            body = self._kept.named[ended.intent_id]
            named = {id: each for id, each in self._kept.named.items() if id != ended.intent_id}
            done = [*self._kept.done, EndedIntent(ended.intent_id, body, status, error)]
            # Repeats of older ones are not known any more: the cell must stay small.
            self._kept = replace(self._kept, named=named, done=done[-limits.FLOW_DONE_KEPT_MAX :])

    def _add_end(self, intent_id: str, status: str, error: dict[str, Any] | None) -> None:
        end = intent_ends.end_of(status, error, self._packer.pack(self.head))
        self._derived.add_end(intent_id, end, self._kept.owed.get(intent_id, []))

    def _stop(self, why: str) -> None:
        """The cell takes nothing any more; others go on."""
        probes.hit("domains.cell-fatal")
        why = why[:FATAL_CHARACTERS_MAX]
        said = runs.failure(FATAL, f"{self.name}: {why}")
        self._derived.said.append(said)
        self._derived.cut_off.extend(slots.every(self.head))
        self._kept = replace(self._kept, fatal=runs.storable(why), queue=[])
        ended = [intent_id for intent_id, _ in self._derived.ends]
        end = EndAnswers(Answer(False, said))
        self._derived.ends.extend((each, end) for each in self._kept.owed if each not in ended)
        self._derived.jobs.clear()

    # --- Its document ---

    def _document(self) -> jobs.DomainRuntime:
        return cell_documents.run_with(self.machine, self.domain, self.head)

    def _fits(self) -> bool:
        """Go on under the domain's document of now, if it is another one. Data that does not fit blocks the cell."""
        current = self.machine.domains.current.get(self.domain)
        if current is None:
            return False
        if current.hash == self.head.meta.schema_hash:
            self._unblock()
            return True
        document = cell_documents.compiled(self.machine.domains.documents[current.hash].raw)
        data = cell_documents.completed(document, self.head.data)
        wrong = cell_documents.misfit(document, data)
        if wrong:
            probes.hit("domains.cell-unfit")
            # Said once, and not with every intent that comes.
            if wrong != self._kept.blocked:
                why = f"{self.name} is blocked: its data does not fit the document of now: {wrong}"
                self._derived.said.append(runs.failure(UNFIT, why))
            self._emit("cell:block", where=wrong)
            self._kept = replace(self._kept, blocked=wrong)
            self.machine.domains.block(self.domain, self.key)
            return False
        self._move(document, current.hash, data, source="document")
        return True

    def _move(self, document: Compiled, hash: str, data: dict[str, Any], *, source: str, patched: int = 0) -> None:
        """Put the cell under another document, with this data, which fits it."""
        meta = replace(self.head.meta, schema_hash=hash)
        moved = replace(self.head, data=data, meta=meta)
        self.head = cores.Core().apply(document, moved, [], self._context(self.head.meta.random_seed))
        self._emit("core:apply", source=source, patchCount=patched)
        self._unblock()

    def _unblock(self) -> None:
        if self._kept.blocked:
            self._kept = replace(self._kept, blocked="")
            self.machine.domains.unblock(self.domain, self.key)

    @property
    def _now(self) -> int:
        return self.machine.now.context.time_us // 1_000

    def _context(self, seed: str) -> flow_records.JobContext:
        return flow_records.JobContext(self._now, seed, self.machine.domains.env)

    def _tell(self, type: str, /, **said: Any) -> None:
        told = cell_documents.recorder.get()
        assert told is not None, "what is not recorded is not told"
        told(self.domain, self.key, type, jobs.told(said))

    def _write(self, data: bytes) -> None:
        machine, name = self.machine, (self.domain, self.key)
        self._packer.rest()
        value = (self._kept, self.head, self._packer)
        before = None if self._cell is None else (self._cell.folds, self._cell.data, self._cell.kind)
        # The same bytes: the state has not changed, and no row is written.
        if before is not None and before[1] == data:
            return
        cell = self._cell or machine.cells.new(name, value, data)
        cell.keep(value, data, machine.domains.cell_kind)
        cell.folded()
        cells.mark(machine.ledger, cell, before)
        machine.now.count_bytes(len(data))


class CellFatal(errors.Error):
    """The cell takes nothing any more: one of its requirements could not be cleared."""

    code = FATAL


ABANDONED = "ABANDONED"


def _abandoned(action: str, now: int) -> flow_records.ErrorValue:
    return flow_records.ErrorValue(ABANDONED, "it was abandoned by hand", flow_records.ErrorSource(action, ""), now)
