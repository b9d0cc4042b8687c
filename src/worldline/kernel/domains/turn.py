"""One cell of a flow domain in one step: jobs are run over its snapshot until none is left, then all that follows
from them is done at once. A world is a host of the contract without runners: the inbox and the cell's queue are the
mailbox, the step is the job's frame.

The cell is written before anything is asked for or answered. What it cannot hold ends the intent that would have put
it there, over the snapshot as it was: then all jobs are run once more, and the cell is looked at behind each of them.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import msgspec
from msgspec.structs import replace

from worldline.base import errors, limits, probes
from worldline.codec import structs
from worldline.kernel import events, runs, values, work
from worldline.kernel.domains import kept as cells_of
from worldline.kernel.domains.kept import Done, Kept, Owed, Waiting
from worldline.kernel.events import Answer
from worldline.kernel.execution import stack
from worldline.kernel.flow import core as cores
from worldline.kernel.flow import fields, jobs, schema, slots, snapshots, validation
from worldline.kernel.flow import values as flow_values
from worldline.kernel.flow.compiled import Compiled
from worldline.kernel.operations import OpKind
from worldline.kernel.rows import cells
from worldline.kernel.rows.records import UNREAD, Held
from worldline.kernel.state import Machine
from worldline.model import row_keys
from worldline.model.journal import Kind
from worldline.model.work import WorkKind

FATAL = "key_fatal"
UNFIT = "cell_unfit"
TARGETS = ("into", "fail")  # parameters of an effect that stay inside: where its outcome goes

# Told of what jobs do, as the standalone host's trace sink is: (domain, key, type, fields). A journal that is replayed
# with one shows what happened; steps themselves record nothing.
recorder: ContextVar[Callable[[str, str, str, dict[str, Any]], None] | None] = ContextVar("recorder", default=None)


class Acted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The answer to an intent. `state`: the snapshot it ended with, if that is small."""

    status: str
    error: dict[str, Any] | None = None
    state: dict[str, Any] | None = None


class Target(msgspec.Struct, frozen=True, array_like=True):
    """Which requirement an effect answers."""

    domain: str
    key: str
    intent: str
    requirement: str

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def of(text: str) -> Target:
        return msgspec.json.decode(text, type=Target)


@functools.lru_cache(maxsize=256)
def compiled(raw: bytes) -> Compiled:
    """A document made ready to run. What is wrong with it was refused when it was declared."""
    return validation.load_unchecked(msgspec.json.decode(raw))


class Turn:
    """The work on one cell. `finish` ends it."""

    def __init__(self, machine: Machine, domain: str, key: str) -> None:
        self.machine = machine
        self.domain = domain
        self.key = key
        self._cell = machine.find_cell((domain, key))
        if self._cell is None:
            self._kept, self.head = Kept(), _created(machine, domain, self._context("initial"))
        elif self._cell.value is UNREAD:
            self._kept, self.head = cells_of.decode(self._cell.data)
        else:
            self._kept, self.head = self._cell.value
        self._jobs: deque[jobs.Job] = deque()
        self._asked: list[snapshots.Requirement] = []
        self._ends: list[tuple[str, Answer]] = []
        self._stale: list[str] = []
        self._said: list[bytes] = []  # failures, to be journaled
        self._cut_off: list[str] = []  # intents that have ended with effects open, maybe
        self._owed: dict[str, list[Owed]] = {}
        self.refused: errors.Error | None = None  # why what no intent has asked for was not done

    # --- What is to be done ---

    @property
    def kept(self) -> Kept:
        return self._kept

    def _body(self, intent_id: str) -> bytes | None:
        """What an intent was submitted with, if the cell knows one of this id."""
        kept, slot = self._kept, slots.slot(self.head, intent_id)
        if slot is not None:
            return cells_of.body_of(slot["type"], [slot["input"]] if "input" in slot else [])
        found = [each.body for each in kept.done if each.id == intent_id]
        found += [cells_of.body_of(each.action, each.input) for each in kept.queue if each.id == intent_id]
        return next(iter(found), None)

    def submit(self, wanted: Waiting, owed: Owed) -> None:
        """An intent comes: it is queued, behind the one on its way; a repeat gets the same end."""
        if self._kept.fatal:
            raise KeyFatal(f"{row_keys.cell_name(self.domain, self.key)} takes nothing any more: {self._kept.fatal}")
        body, before = cells_of.body_of(wanted.action, wanted.input), self._body(wanted.id)
        if before not in (None, body):
            raise errors.IdReused(wanted.id)
        kept = self._kept
        if owed.waits:
            kept = replace(kept, owed={**kept.owed, wanted.id: [*kept.owed.get(wanted.id, []), owed]})
        if owed.message:
            kept = replace(kept, asked={**kept.asked, owed.message.hex(): self._here})
        done = next((each for each in kept.done if each.id == wanted.id), None)
        if done is not None:
            self._ends.append((wanted.id, self._answer(done.status, done.error)))
        elif before is None:
            kept = self._queued(kept, wanted)
            if wanted.named:
                kept = replace(kept, named={**kept.named, wanted.id: body})
        self._kept = kept

    def _queued(self, kept: Kept, wanted: Waiting) -> Kept:
        if len(kept.queue) >= limits.FLOW_QUEUE_MAX:
            name = row_keys.cell_name(self.domain, self.key)
            raise errors.Closed(f"{limits.FLOW_QUEUE_MAX} intents wait in {name} already; send it again later")
        kept = replace(kept, queue=[*kept.queue, wanted])
        if len(kept.queue) > 1 or kept.blocked or jobs.is_busy(self.head):
            cells_of.encode(kept, self.head)  # it waits there: what the cell cannot hold is refused now
        return kept

    def enqueue(self, job: jobs.Job) -> None:
        self._jobs.append(job)

    def abandon(self, intent_id: str) -> None:
        """End an intent by hand. Its effects are given up."""
        name = row_keys.cell_name(self.domain, self.key)
        intent = slots.intent(self.head, intent_id)
        if intent is None:
            waiting = next((each for each in self._kept.queue if each.id == intent_id), None)
            if waiting is None:
                raise errors.NotFound(f"no intent {intent_id!r} is on its way in {name}")
            self._kept = replace(self._kept, queue=[each for each in self._kept.queue if each is not waiting])
            self._end(jobs.Ended(intent_id, "error", _abandoned(waiting.action, self._now)))
            return
        head = cores.Core().abandon(
            self.head, intent, self._context(intent_id), code=ABANDONED, message="it was abandoned by hand",
            closing=slots.closing(intent_id),
        )  # fmt: skip
        self.head = head
        self._end(jobs.Ended(intent_id, "error", head.system.last_error))
        self._cut_off.append(intent_id)

    # --- Running it ---

    def finish(self) -> None:
        """Run the jobs, write the cell, and then do what follows: effects, answers."""
        start = self._state()
        try:
            self._run()
            data = self._closed()
        except (errors.TooLarge, errors.EncodeError):
            probes.hit("domains.cell-unstorable")
            self._restore(start)
            self._run(checked=True)
            data = self._closed(spare=True)
        self._write(data)
        for said in self._said:
            self.machine.draft(Kind.HANDLER_FAILED, said)
        for intent_id in self._cut_off:
            _give_up(self.machine, self.domain, self.key, intent_id)
        for requirement in self._asked:
            _ask(self.machine, self.domain, self.key, requirement)
        for requirement_id in self._stale:
            probes.hit("domains.outcome-stale")
            dropped = ["receipt", self.domain, self.key, requirement_id, "dropped:stale"]
            self.machine.draft(Kind.LATE_ANSWER, values.dump(dropped))
        for intent_id, answer in self._ends:
            for each in self._owed[intent_id]:
                tell(self.machine, each, answer)

    @property
    def _here(self) -> bytes:
        return self.machine.now.context.address.world

    def _run(self, *, checked: bool = False) -> None:
        """`checked`: what the cell cannot hold ends the intent whose job would put it there, and no other."""
        while (job := self._next()) is not None:
            before = self._state() if checked else None
            self._settle(self._outcome(job))
            if before is not None:
                try:
                    cells_of.encode(self._kept, self.head)
                except (errors.TooLarge, errors.EncodeError) as error:
                    self._restore(before)
                    self._settle(self._failed(job, error))

    def _outcome(self, job: jobs.Job) -> jobs.Outcome:
        context = self._context(jobs.seed(job, self.head))
        try:
            outcome: jobs.Outcome = stack.call(
                jobs.run, job, self.head, _domain_of(self.machine, self.domain, self.head), context, self._emit
            )
        except (MemoryError, errors.CannotStep):
            raise
        except Exception as error:  # noqa: BLE001 - section 13.2: it ends its intent, and the next job is taken
            return self._failed(job, error)
        return outcome

    def _failed(self, job: jobs.Job, error: Exception) -> jobs.Outcome:
        """A job could not be done. Its intent ends; without one, it has changed nothing."""
        if job.intent_id:
            self._cut_off.append(job.intent_id)
        elif isinstance(error, errors.Error):
            self.refused = error
        context = self._context(jobs.seed(job, self.head))
        return jobs.failed(
            job, error, self.head, _domain_of(self.machine, self.domain, self.head), context=context, emit=self._emit
        )

    def _state(self) -> tuple[Any, ...]:
        """All that a job changes."""
        lists = (self._jobs, self._asked, self._ends, self._stale, self._said, self._cut_off)
        return self._kept, self.head, [list(each) for each in lists]

    def _restore(self, state: tuple[Any, ...]) -> None:
        self._kept, self.head, (waiting, *lists) = state
        self._jobs = deque(waiting)
        self._asked, self._ends, self._stale, self._said, self._cut_off = (list(each) for each in lists)

    def _closed(self, *, spare: bool = False) -> bytes:
        """The cell as bytes. Who waits for an intent that has ended is in it no more. `spare`: with the errors of
        intents that it could not hold more of, which are bounded.
        """
        kept = self._kept
        told = {intent_id: kept.owed.get(intent_id, []) for intent_id, _ in self._ends}
        owed = {each: owed for each, owed in kept.owed.items() if each not in told}
        asked = kept.asked
        if asked:
            self._owed = {id: [each for each in its if self._was_asked(each)] for id, its in told.items()}
            answered = [each.message.hex() for its in told.values() for each in its]
            asked = {each: world for each, world in asked.items() if each not in answered}
        else:
            self._owed = told
        self._kept = replace(kept, owed=owed, asked=asked)
        return cells_of.encode(self._kept, self.head, spare=spare)

    def _was_asked(self, owed: Owed) -> bool:
        """Whether it is for this world to answer. A question that was put to the parent of a fork is for the parent."""
        is_ours = self._kept.asked.get(owed.message.hex(), self._here) == self._here
        if not is_ours:
            probes.hit("domains.asked-before-fork")
        return is_ours

    def _next(self) -> jobs.Job | None:
        if self._kept.fatal:
            return None
        return self._jobs.popleft() if self._jobs else self._start_next()

    def _start_next(self) -> jobs.Job | None:
        """The first intent that waits, if none is on its way and its document fits."""
        if not self._kept.queue or jobs.is_busy(self.head) or not self._fits():
            return None
        first, *others = self._kept.queue
        self._kept = replace(self._kept, queue=others)
        return jobs.StartIntent(first.intent())

    def _settle(self, outcome: jobs.Outcome) -> None:
        self.head = outcome.head
        if outcome.fatal:
            self._stop(outcome.fatal)
            return
        self._jobs.extend(outcome.jobs)
        self._asked += outcome.effects
        if outcome.ended is not None:
            self._end(outcome.ended)

    def _end(self, ended: jobs.Ended) -> None:
        status = "error" if ended.status == "error" else "complete"
        error = None if ended.error is None or status != "error" else snapshots.plain(ended.error)
        self._ends.append((ended.intent_id, self._answer(status, error)))
        if ended.intent_id in self._kept.named:
            body = self._kept.named[ended.intent_id]
            named = {id: each for id, each in self._kept.named.items() if id != ended.intent_id}
            done = [*self._kept.done, Done(ended.intent_id, body, status, error)]
            self._kept = replace(self._kept, named=named, done=done[-limits.FLOW_DONE_KEPT_MAX :])

    def _answer(self, status: str, error: dict[str, Any] | None) -> Answer:
        state = snapshots.plain(self.head)
        made = structs.encode(Acted(status, error, state))
        if len(made) > limits.FLOW_STATE_BYTES_MAX:
            made = structs.encode(Acted(status, error))
        return Answer(True, made)

    def _stop(self, why: str) -> None:
        """The cell takes nothing any more; others go on."""
        probes.hit("domains.cell-fatal")
        said = runs.failure(FATAL, f"{row_keys.cell_name(self.domain, self.key)}: {why}")
        self._said.append(said)
        self._cut_off += slots.every(self.head)
        self._kept = replace(self._kept, fatal=runs.storable(why), queue=[])
        self._ends += [(each, Answer(False, said)) for each in self._kept.owed]
        self._jobs.clear()

    # --- Its document ---

    def _fits(self) -> bool:
        """Go on under the domain's document of now, if it is another one. Data that does not fit blocks the cell."""
        current = self.machine.domains.current.get(self.domain)
        if current is None:
            return False
        if current.hash == self.head.meta.schema_hash:
            self._unblock()
            return True
        document = compiled(self.machine.domains.documents[current.hash].raw)
        data = {**schema.defaults(document.schema), **self.head.data}
        wrong = misfit(document, data)
        if wrong:
            probes.hit("domains.cell-unfit")
            if wrong != self._kept.blocked:
                name = row_keys.cell_name(self.domain, self.key)
                why = f"{name} is blocked: its data does not fit the document of now: {wrong}"
                self._said.append(runs.failure(UNFIT, why))
            self._kept = replace(self._kept, blocked=wrong)
            self.machine.domains.block(self.domain, self.key)
            return False
        meta = replace(self.head.meta, schema_hash=current.hash)
        moved = replace(self.head, data=data, meta=meta)
        self.head = cores.Core().apply(document, moved, [], self._context(self.head.meta.random_seed))
        self._unblock()
        return True

    def _unblock(self) -> None:
        if self._kept.blocked:
            self._kept = replace(self._kept, blocked="")
            self.machine.domains.unblock(self.domain, self.key)

    @property
    def _now(self) -> int:
        return self.machine.now.context.time_us // 1_000

    def _context(self, seed: str) -> snapshots.Context:
        return snapshots.Context(self._now, seed, self.machine.domains.env)

    def _emit(self, type: str, **said: Any) -> None:
        if type == "effect:fulfill:drop":
            self._stale.append(said["requirementId"])
        told = recorder.get()
        if told is not None:
            told(self.domain, self.key, type, said)

    def _write(self, data: bytes) -> None:
        machine, name = self.machine, (self.domain, self.key)
        value = (self._kept, self.head)
        before = None if self._cell is None else (self._cell.folds, self._cell.data)
        if before is not None and before[1] == data:
            return
        cell = self._cell or machine.cells.new(name, value, data)
        cell.keep(value, data)
        cell.folded()
        cells.mark(machine.ledger, cell, before)
        machine.now.count_bytes(len(data))


class KeyFatal(errors.Error):
    """The cell takes nothing any more: one of its requirements could not be cleared."""

    code = FATAL


ABANDONED = "ABANDONED"


def _abandoned(action: str, now: int) -> snapshots.ErrorValue:
    return snapshots.ErrorValue(ABANDONED, "it was abandoned by hand", snapshots.Source(action, ""), now)


def _created(machine: Machine, domain: str, context: snapshots.Context) -> snapshots.Snapshot:
    """The first snapshot of a cell."""
    found = machine.domains.current.get(domain)
    if found is None:
        raise errors.NotFound(f"the world has no flow domain {domain!r} now")
    return cores.created(compiled(machine.domains.documents[found.hash].raw), {}, context)


def _domain_of(machine: Machine, name: str, head: snapshots.Snapshot) -> jobs.Domain:
    """What jobs are run with: the document that the snapshot was made under."""
    domains = machine.domains
    document = compiled(domains.documents[head.meta.schema_hash].raw)
    current = domains.current.get(name)
    parallel = current is not None and current.parallel
    core = cores.Core(effects="parallel" if parallel else "serial", trace=recorder.get() is not None)
    return jobs.Domain(document, core, parallel=parallel)


def misfit(document: Compiled, data: dict[str, Any]) -> str:
    """Where data does not fit a document; empty if it does. A field that is declared no more does not count."""
    for name, spec in document.fields.items():
        wrong = fields.misfit(spec, data.get(name, flow_values.MISSING), name) if name in data or spec.required else ""
        if wrong:
            return wrong
    return ""


def _give_up(machine: Machine, domain: str, key: str, intent_id: str) -> None:
    """An intent has ended while effects of it are open, or held back: nothing waits for them any more."""

    def is_its(run: str, target: str) -> bool:
        if not target or run:
            return False
        to = Target.of(target)
        return (to.domain, to.key, to.intent) == (domain, key, intent_id)

    effects = [each for each in machine.work.open.values() if each.kind is WorkKind.EFFECT]
    for pending in effects:
        if is_its(pending.run, pending.event):
            machine.work.give_up(pending)
    if machine.work.unsent:
        machine.work.unsent.keep(lambda held: None if is_its(held.run, held.id) else held)


def tell(machine: Machine, owed: Owed, answer: Answer) -> None:
    """Give who waits the end of an intent."""
    if owed.correlation:
        machine.draft(Kind.ANSWERED, structs.encode(answer), correlation=owed.correlation)
    elif owed.message:
        events.send_reply(machine, owed.question(), answer)


def _ask(machine: Machine, domain: str, key: str, requirement: snapshots.Requirement) -> None:
    """A requirement leaves as an effect of the world; the world's name for it is the key outside."""
    name, params = effect_of(requirement)
    target = Target(domain, key, requirement.intent_id, requirement.id).text()
    due_us = machine.now.context.store_us
    work.ask_for(machine, Held("", -1, OpKind.EFFECT, name, params, due_us, target))


def effect_of(requirement: snapshots.Requirement) -> tuple[str, bytes]:
    """The effect that a requirement becomes: its name, and its parameters without those that stay inside."""
    given = {name: each for name, each in requirement.params.items() if name not in TARGETS}
    return requirement.type, values.pack([values.dump(given), b""])
