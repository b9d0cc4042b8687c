"""A machine's state as bytes, and back: rows, and the nodes of a trie that holds them.

A machine is made of its rows (`model/row_keys.py`) without calling any user code: no cell is decoded into its class,
and a coroutine is rebuilt when its run next continues. A snapshot is a header, which has the state digest, and a trie
of all rows (`model/trie`). It carries no world identity, so equal states have equal bytes, and nothing that is only a
cache. Here a snapshot is whole, as a list of parts: the header, the nodes, and the rows that are blobs of their own. A
store has each of them under its address, and shares what states have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from worldline.base import errors
from worldline.base.failures import CancelKind
from worldline.codec import canonical, digest, structs
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.schedule_spec import Spec
from worldline.kernel.machine import Machine
from worldline.kernel.rows import row_ledger
from worldline.kernel.rows.branch_rows import Branch, Owner, rule_of
from worldline.kernel.rows.cells import Fetch
from worldline.kernel.rows.domain_rows import DomainRow
from worldline.kernel.rows.row_records import (
    OWN_WORK,
    UNREAD,
    Buffered,
    Cell,
    DeferredOperation,
    Follower,
    GivenUp,
    Op,
    Outcome,
    Parked,
    Pending,
    PendingCancel,
    Record,
    Resume,
    RunId,
    RunStatus,
    Schedule,
)
from worldline.kernel.run_operations import OpKind
from worldline.model import cell_rows, ids
from worldline.model import row_keys as keys
from worldline.model.change import Row
from worldline.model.inbox import ReceiptStatus
from worldline.model.row_keys import Parsed
from worldline.model.trie import nodes, walk
from worldline.model.trie.update import build
from worldline.model.work import WorkKind
from worldline.model.world_records import ForkPolicy


def save(machine: Machine) -> list[bytes]:
    """Return the parts of a snapshot. Only between steps."""
    assert machine.cells.are_all, "cells that are not in memory would be missing"
    return parts_of(machine.state, rows_of(machine))


def rows_of(machine: Machine) -> list[tuple[bytes, Row]]:
    """Return every row of a machine, in the order of their keys; of cells, those that are in memory."""
    return [(key, row_ledger.row_of(write())) for key, write in sorted(machine.rows(), key=lambda each: each[0])]


def parts_of(state: bytes, rows: Iterable[tuple[bytes, Row]]) -> list[bytes]:
    """Rows as the parts of a snapshot. The header is the first."""
    made = build(rows)
    header = nodes.encode_header(nodes.Header(state, made.root, made.grown))
    return [header, *reversed(made.new.values()), *made.blobs.values()]


def read(parts: Sequence[bytes]) -> tuple[bytes, list[tuple[bytes, Row]]]:
    """Return the state digest and the rows that a snapshot holds, in the order of their keys."""
    header = nodes.decode_header(parts[0])
    # Known by their digests, so that a damaged part is one that is missing.
    kept = {digest.sha256(part): part for part in parts[1:]}
    walking = walk.TrieWalk(header.root)
    try:
        nodes.answer(walking, kept.__getitem__)
    except KeyError as error:
        raise errors.DecodeError("a part of the snapshot is missing or damaged") from error
    return header.state, sorted(walking.rows())


def load(program: Program, parts: Sequence[bytes], address: ids.Address, *, strict: bool = False) -> Machine:
    """Return the machine that a snapshot holds, with the given address."""
    state, rows = read(parts)
    return machine_of(program, state, rows, address, strict=strict)


def copy_of(machine: Machine, address: ids.Address) -> Machine:
    """Another machine of the same state, with the same cells in memory. Only between steps."""
    rows, fetch = rows_of(machine), machine.cells.fetch
    made = machine_of(machine.program, machine.state, rows, address, strict=machine.strict, fetch=fetch)
    # The vault is no part of the state, so it does not come with the rows.
    made.keep_in(machine.vault)
    return made


def machine_of(
    program: Program,
    state: bytes,
    rows: Iterable[tuple[bytes, Row]],
    address: ids.Address,
    *,
    strict: bool = False,
    exact: bool = False,
    fetch: Fetch | None = None,
) -> Machine:
    """The machine of these rows, in the order of their keys. No user code runs. With `fetch`, cells may be missing."""
    machine = Machine(program, strict=strict, exact=exact, fetch=fetch)
    loading = _Loading(machine, address)
    for key, row in rows:
        try:
            parsed = keys.parse(key)
            _LOADERS[parsed.kind + parsed.part](
                loading, parsed, canonical.decode(row.meaning), canonical.decode(row.placement) if row.placement else []
            )
        # Rows may come from a file or a damaged store: any of these is one error, which names the row.
        except (errors.DecodeError, ValueError, TypeError, KeyError, IndexError) as error:
            raise errors.DecodeError(f"{keys.describe(key)}: {error}") from error
    loading.finish()
    machine.restored(state)
    return machine


class _Loading:
    """A machine while its rows are loaded."""

    def __init__(self, machine: Machine, address: ids.Address) -> None:
        self.machine = machine
        self.address = address
        self.records: dict[str, Record] = {}
        self.pending: list[Pending] = []
        self.parked: list[tuple[Record, int, Parked]] = []
        self.outcomes: list[tuple[Record, int, Outcome]] = []

    def finish(self) -> None:
        machine = self.machine
        # Behind all rows, because the row of an outcome comes before that of its operation.
        for record, number, outcome in self.outcomes:
            if number >= len(record.ops):
                raise errors.DecodeError(f"run {record.id!r}: an outcome without its operation {number}")
            record.ops[number].answer(outcome)
        for record, number, parked in self.parked:
            asked = record.ops[number].asked if number < len(record.ops) else None
            if asked is None:
                raise errors.DecodeError(f"run {record.id!r}: operation {number} is parked, and no effect")
            asked.park(parked)
        self._reopen()
        # The maps of a machine are in the order of start.
        for record in sorted(self.records.values(), key=lambda each: each.number):
            machine.load_run(record)

    def _reopen(self) -> None:
        """Add the work that is open, in the order in which it was asked for."""
        pending = self.pending
        for record in self.records.values():
            for op in record.ops:
                if op.asked is not None and op.outcome is None:
                    pending.append(op.asked)
                    # The secret is in no row of the work: the step that has asked tells which one it was.
                    if op.kind is OpKind.ASK and op.asked.kind is WorkKind.MESSAGE:
                        op.asked.keep_secret(self.machine.work.questions.of(op.asked.step))
        for each in sorted(pending, key=lambda each: (each.step, each.ordinal)):
            self.machine.work.reopen(each, self.address)

    # --- Rows of the world ------------------------------------------------------------------------------

    def run_count(self, _: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self.machine.counted(*meaning)

    def work_count(self, _: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self.machine.work.counted(*meaning)

    def questions(self, _: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self.machine.work.questions.load(*placement)

    def program(self, _: Parsed, meaning: Any, placement: Any) -> None:
        program_hash, seed, *salts = meaning
        self.machine.origin.load(program_hash, seed, salts, since_step=placement[0] if placement else 0)

    def branch(self, _: Parsed, meaning: Any, placement: Any) -> None:
        dry, prefix, policy, name, owners, unsettled = meaning
        self.machine.branched(
            Branch(
                self.machine.ledger,
                dry=dry,
                prefix=prefix,
                policy=ForkPolicy(policy),
                name=name,
                unsettled=unsettled,
                owners=[Owner(step, *each) for step, each in zip(placement, owners, strict=True)],
            )
        )

    def rule(self, _: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        if self.machine.branch is None:
            raise errors.DecodeError("a script without a fork")
        self.machine.branch.load(rule_of(meaning))

    def cell(self, key: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        folds, data, kind = cell_rows.read(meaning)
        reducer, name = key.texts
        self.machine.cells.add((reducer, name), Cell(keys.cell(reducer, name), UNREAD, data, folds, kind))

    def work(self, key: Parsed, meaning: Any, placement: Any) -> None:
        self.pending.append(_pending(key.number, meaning, placement))

    def held(self, key: Parsed, meaning: Any, placement: Any) -> None:
        run, op, kind, name, params, run_id, seed, *attached = meaning
        self.machine.work.unsent.load(
            key.number, DeferredOperation(run, op, OpKind(kind), name, params, placement[0], run_id, seed, *attached)
        )

    def closing(self, key: Parsed, meaning: Any, placement: Any) -> None:
        *fields, number = meaning
        self.machine.work.closing.load(key.number, GivenUp(_pending(number, fields, placement)))

    def later(self, key: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self.machine.later.load(key.number, RunId(*meaning))

    def forgettable(self, key: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self.machine.forgettable.load(key.number, RunId(*meaning))

    def schedule(self, key: Parsed, meaning: Any, placement: Any) -> None:
        spec, fired, work = meaning
        name = key.texts[0]
        since_us, due_us = placement
        self.machine.schedules[name] = Schedule(name, structs.decode(Spec, spec), since_us, due_us, fired, work)

    def domains(self, _: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        # What was added later is left out where it says nothing, so rows from before read the same.
        alone, deadlines, env, blocked, *rest = meaning
        self.machine.domains.load(
            alone=alone,
            deadlines=deadlines,
            env=env,
            blocked=blocked,
            snapshots=rest[0] if rest else (),
            kinds=len(rest) > 1 and rest[1],
        )

    def domain(self, key: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self.machine.domains.load_domain(key.texts[0], DomainRow(*meaning))

    def document(self, key: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self.machine.domains.load_document(key.texts[0], *meaning)

    # --- Rows of runs: the record is made by the row that comes first ----------------------------------------

    def _record(self, key: Parsed) -> Record:
        run = key.texts[0]
        record = self.records.get(run)
        if record is None:
            record = self.records[run] = Record(run, "", b"", b"", named=False, started_us=0, ops=[], log=[])
        return record

    def start(self, key: Parsed, meaning: Any, placement: Any) -> None:
        self._record(key).started_with(meaning, placement[0])

    def status(self, key: Parsed, meaning: Any, placement: Any) -> None:
        status, data, blocked = meaning
        self._record(key).stand(RunStatus(status), data, blocked=blocked, ended_us=placement[0])

    def op(self, key: Parsed, meaning: Any, placement: Any) -> None:
        kind, name, params, fed, again, work, *asked_for = meaning
        record = self._record(key)
        number = len(record.ops)
        if key.number != number:
            raise errors.DecodeError(f"operation {number} is missing")
        step, *asked_at = placement
        op = Op(OpKind(kind), name, params, fed, again, step, work)
        if work == OWN_WORK:
            # Written only where a fork asks for something else than the operation says.
            asked_for = asked_for or [_WORK_KINDS[op.kind], name, params]
            op.opened(_pending(0, [*asked_for, record.id, number, ""], asked_at))
        record.ops.append(op)

    def outcome(self, key: Parsed, meaning: Any, placement: Any) -> None:
        status, data = meaning if not placement else (*meaning, *placement)
        found = Outcome(ReceiptStatus(status), data, placed=bool(placement))
        self.outcomes.append((self._record(key), key.number, found))

    def park(self, key: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self.parked.append((self._record(key), key.number, Parked(*meaning)))

    def feeding(self, key: Parsed, meaning: Any, placement: Any) -> None:
        log = self._record(key).log
        if key.number != len(log):
            raise errors.DecodeError(f"feeding {len(log)} is missing")
        failed, scope, reason, kind, *rest = meaning
        log.append(Resume(placement[0], failed, scope, reason, CancelKind(kind), *rest))

    def interrupt(self, key: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        scope, reason, kind = meaning
        self._record(key).interrupts.load(key.number, PendingCancel(scope, reason, CancelKind(kind)))

    def buffered(self, key: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self._record(key).buffer.load(key.number, Buffered(*meaning))

    def follower(self, key: Parsed, meaning: Any, placement: Any) -> None:  # noqa: ARG002
        self._record(key).followers.load(key.number, Follower(*meaning))


_LOADERS: dict[bytes, Callable[[_Loading, Parsed, Any, Any], None]] = {
    keys.RUN_COUNT: _Loading.run_count,
    keys.WORK_COUNT: _Loading.work_count,
    keys.PROGRAM: _Loading.program,
    keys.QUESTIONS: _Loading.questions,
    keys.BRANCH: _Loading.branch,
    keys.SCRIPT: _Loading.rule,
    keys.CELL: _Loading.cell,
    keys.WORK: _Loading.work,
    keys.HELD: _Loading.held,
    keys.CLOSING: _Loading.closing,
    keys.LATER: _Loading.later,
    keys.FORGETTABLE: _Loading.forgettable,
    keys.SCHEDULE: _Loading.schedule,
    keys.DOMAINS: _Loading.domains,
    keys.DOMAIN: _Loading.domain,
    keys.DOCUMENT: _Loading.document,
    keys.RUN + keys.START: _Loading.start,
    keys.RUN + keys.STATUS: _Loading.status,
    keys.PROGRESS + keys.OP: _Loading.op,
    keys.PROGRESS + keys.OUTCOME: _Loading.outcome,
    keys.PROGRESS + keys.PARKED: _Loading.park,
    keys.PROGRESS + keys.FEEDING: _Loading.feeding,
    keys.PROGRESS + keys.INTERRUPT: _Loading.interrupt,
    keys.ARRIVED + keys.BUFFERED: _Loading.buffered,
    keys.ARRIVED + keys.FOLLOWER: _Loading.follower,
}


# What an operation asks for, of the kinds whose work ends with the run.
_WORK_KINDS = {
    OpKind.EFFECT: WorkKind.EFFECT,
    OpKind.TIMER: WorkKind.TIMER,
    OpKind.SEND: WorkKind.MESSAGE,
    OpKind.ASK: WorkKind.MESSAGE,
}


def _pending(number: int, meaning: Any, placement: Any) -> Pending:
    kind, name, params, run, op, event, *more = meaning
    step, ordinal, opened_us, due_us, deadline_us = placement
    attached = more.pop() if len(more) % 2 else b""  # that it is parked takes two fields
    return Pending(
        number,
        WorkKind(kind),
        name,
        params,
        step,
        ordinal,
        opened_us,
        due_us,
        deadline_us,
        run,
        op,
        event,
        Parked(*more) if more else None,
        attached,
    )
