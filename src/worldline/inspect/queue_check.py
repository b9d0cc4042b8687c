"""Check that the derived queues of a world say what its state says, and write them again where they do not.

The journal and the snapshot decide what a world has open; `open`, `due` and `ready` keys are derived from that and can
all be written again. A receipt or a fired timer that waits in the inbox counts as an answer. Attempts of work that is
restored are counted anew; effects that were parked are parked again.

Looking needs no program and no lease: whatever a step of the world may have changed meanwhile is looked at again.
Repairing takes the lease, so that the world stands still, and every batch expects the head it was derived from. An
effect whose record is lost can be written anew only with its program: the queue that it goes to is declared in the
code.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from worldline.base import errors
from worldline.client.connection import Connection
from worldline.codec import structs
from worldline.inspect import store_queries
from worldline.kernel import control_commands
from worldline.kernel.authoring.program import Program
from worldline.kernel.machine import Machine
from worldline.kernel.rows.row_records import Parked
from worldline.keys import journal as journal_keys
from worldline.keys import work as work_keys
from worldline.layers import cas, leases, universes, worlds
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import work as works
from worldline.layers.history import history_line
from worldline.model import ids, inbox, step_records
from worldline.model.work import Work, WorkKind, WorkState
from worldline.model.world_records import Status
from worldline.runtime import death_witness, hint_scan, world_holders
from worldline.runtime import lease_calls as world_lease
from worldline.runtime.universes.served_universes import Universes
from worldline.store import kv, paging, transact
from worldline.worker import step_contents

LOOKS_MAX = 20
BATCHES_MAX = 64
COLLECTED_MAX = 5  # attempts at one repair, if collections begin meanwhile
CHANGED = "the store changed while it was repaired; run it again"


class QueueFault(enum.Enum):
    """What can be wrong with a key of a world's queues."""

    MISSING_OPEN = "no open key for work that the world waits for"
    MISSING_DUE = "no due key for open work"
    MISSING_READY = "no ready key for a world with unread inputs"
    UNANSWERED = "open work is settled, but its receipt is nowhere"
    UNREADABLE = "an open key that cannot be read"
    GARBAGE_OPEN = "an open key for nothing that the world waits for"


class WrongQueueKey(msgspec.Struct, frozen=True):
    """One fault. `raw`: the bytes of the open key as they were found."""

    fault: QueueFault
    intent: ids.IntentId = ids.IntentId(b"")
    wanted: step_records.WorkRequest | None = None
    parked: Parked | None = None
    authority: works.Open | None = None
    raw: bytes | None = None

    @property
    def is_large(self) -> bool:
        """Whether its parameters are a blob."""
        return self.wanted is not None and not cas.is_small(self.wanted.params)

    def __str__(self) -> str:
        name = f" {self.wanted.name}" if self.wanted is not None else ""
        return f"{self.fault.value}{name} {self.intent.hex()}".rstrip()


class QueueView(msgspec.Struct, frozen=True):
    """A world's queues, looked at while its head stood still."""

    head_raw: bytes
    opened: dict[ids.IntentId, works.Open]
    unreadable: dict[ids.IntentId, bytes]
    answered: dict[ids.IntentId, None]
    moved: dict[ids.IntentId, Parked | None]  # what unread items say of effects: parked so, or tried again
    unread: bytes  # the stamp of the first unread item; empty: there is none
    held: bool
    unborn: bool  # a fork that has made no step of its own: what is open in its state is its parent's


async def faults(
    connection: Connection, at: ids.Address, program: str, hints: hint_scan.HintScan
) -> list[WrongQueueKey] | None:
    """What is wrong with a world's queues. None: it is too busy to be looked at. `program`: the name of its program.
    `hints`: those of its universe, which may have been read before.
    """
    for _ in range(LOOKS_MAX):
        before = (await connection.store.engine.read(journals.get_head(at))).value(0)
        machine, head = await connection.reader(at, program).latest()
        if journals.pack_head(head) != before:  # a step came between: machine and head would not be of one moment
            continue
        seen = await _look(connection, at)
        # A fork without steps of its own has open in its state what is its parent's, so only its inbox can be judged.
        if seen.head_raw == before and seen.unborn:
            return await _ready_fault(connection, at, seen, hints)
        if seen.head_raw == before:
            found = _open_faults(seen, machine, at) + await _due_faults(connection, at, seen, machine)
            return found + await _ready_fault(connection, at, seen, hints)
    return None


async def _look(connection: Connection, at: ids.Address) -> QueueView:
    """Open keys first, then the inbox, then the head: an answer is never missed, and a step shows at the end."""
    opened: dict[ids.IntentId, works.Open] = {}
    unreadable: dict[ids.IntentId, bytes] = {}
    async for key, raw in paging.RangeItems(connection.store.engine, works.open_range(at, count_max=1_000)):
        intent = work_keys.open_intent(at, key)
        try:
            opened[intent] = works.Open(at, intent, work_keys.WORK.unpack(raw), raw)
        except errors.DecodeError:
            unreadable[intent] = raw  # the raw bytes are kept: the repair deletes it only as it was found
    answered: dict[ids.IntentId, None] = {}
    moved: dict[ids.IntentId, Parked | None] = {}
    first = b""
    async for item in paging.RangeItems(connection.store.engine, inboxes.read_range(at, count_max=1_000)):
        unread = inboxes.decode([item])[0]
        first = first or unread.stamp  # the first shows whether the inbox moved since
        if isinstance(unread.item, inbox.EffectReceipt | inbox.TimerFired):
            answered[ids.IntentId(unread.item.intent)] = None
        elif isinstance(unread.item, inbox.Control):
            moved |= _moved(unread.item)
    holder = await store_queries.holder(connection, at)
    read = await connection.store.engine.read(journals.get_head(at), history_line.get(at))
    head_raw, lineage = read.value(0), history_line.decode_lineage(read.value(1))
    assert head_raw is not None
    unborn = lineage is not None and lineage.height == journals.decode_head(head_raw).height
    held = holder is not None and holder.alive
    return QueueView(head_raw, opened, unreadable, answered, moved, first, held, unborn)


def _moved(item: inbox.Control) -> dict[ids.IntentId, Parked | None]:
    """Return what an unread command says of an effect, if it is one that does."""
    data = item.payload.inline or b""
    try:
        if item.command == control_commands.PARK:
            park = structs.decode(control_commands.ParkEffect, data)
            return {ids.IntentId(park.intent): Parked(park.attempts, park.error)}
        if item.command == control_commands.RETRY:
            return {ids.IntentId(structs.decode(control_commands.RetryEffect, data).intent): None}
    except errors.DecodeError:
        pass  # the world will say so
    return {}


def _open_faults(seen: QueueView, machine: Machine, at: ids.Address) -> list[WrongQueueKey]:
    wanted = wanted_of(machine, at)
    # Unread commands are later than the state: an effect may be parked or retried, and the world not told yet.
    parked = parked_of(machine) | seen.moved
    found = [
        WrongQueueKey(QueueFault.UNREADABLE, intent, wanted.get(intent), parked.get(intent), raw=raw)
        for intent, raw in seen.unreadable.items()
    ]
    for intent, each in wanted.items():
        authority = seen.opened.get(intent)
        if authority is None and intent not in seen.unreadable and intent not in seen.answered:
            found.append(WrongQueueKey(QueueFault.MISSING_OPEN, intent, each, parked.get(intent)))
        elif authority is not None and authority.work.state is WorkState.SETTLED and intent not in seen.answered:
            found.append(
                WrongQueueKey(QueueFault.UNANSWERED, intent, each, parked.get(intent), authority, authority.raw)
            )
    # What the next steps give up is not wanted any more, and its open keys are still rightly there.
    closing = {machine.work.wanted_again(each.pending, at).intent: None for each in machine.work.closing}
    for intent, authority in seen.opened.items():
        if intent not in wanted and intent not in closing:
            found.append(WrongQueueKey(QueueFault.GARBAGE_OPEN, intent, None, None, authority, authority.raw))
    return found


async def _due_faults(
    connection: Connection, at: ids.Address, seen: QueueView, machine: Machine
) -> list[WrongQueueKey]:
    """Claimable work without its pointer. Effect workers move both at once, so what seems missing is read again."""
    wanted = wanted_of(machine, at)
    found: list[WrongQueueKey] = []
    # Parked, sent and settled work has no pointer.
    candidates = [each for each in seen.opened.values() if each.work.state in works.CLAIMABLE]
    for start in range(0, len(candidates), store_queries.PAGE):
        part = candidates[start : start + store_queries.PAGE]
        read = await connection.store.engine.read(*(kv.Get(_due_key(each)) for each in part))
        for index, each in enumerate(part):
            if read.value(index) is None and each.intent in wanted:
                again = await connection.store.engine.read(works.get(at, each.intent), kv.Get(_due_key(each)))
                if again.value(0) == each.raw and again.value(1) is None:
                    found.append(
                        WrongQueueKey(
                            QueueFault.MISSING_DUE, each.intent, wanted.get(each.intent), None, each, each.raw
                        )
                    )
    return found


async def _ready_fault(
    connection: Connection, at: ids.Address, seen: QueueView, hints: hint_scan.HintScan
) -> list[WrongQueueKey]:
    # A holder reads its inbox without a hint, and hints read before are enough as long as they name the world.
    if not seen.unread or seen.held or hints.has(at):
        return []
    await hints.read()  # the hint may be younger than the last scan
    if hints.has(at):
        return []
    page = (await connection.store.engine.read(inboxes.read_range(at, count_max=1))).page(0)
    if [unread.stamp for unread in inboxes.decode(page.items)] != [seen.unread]:
        return []  # taken meanwhile, and its hint with it
    meta = worlds.decode(at, (await connection.store.engine.read(worlds.get(at))).value(0)).meta
    if meta.status is not Status.ACTIVE:
        return []  # it gets a hint when it is resumed
    return [WrongQueueKey(QueueFault.MISSING_READY)]


def wanted_of(machine: Machine, at: ids.Address) -> dict[ids.IntentId, step_records.WorkRequest]:
    """All effects and timers that a machine has open, as they were asked for; without what a fork has inherited and not
    settled yet, because that is its parent's.
    """
    branch = machine.branch
    pending = [
        each
        for each in machine.work.open.values()
        if each.kind is not WorkKind.MESSAGE and not (branch is not None and branch.is_inherited(each))
    ]
    wanted = [machine.work.wanted_again(each, at) for each in pending]
    return {each.intent: each for each in wanted}


def parked_of(machine: Machine) -> dict[ids.IntentId, Parked | None]:
    """The effects that a machine knows to be parked."""
    return {intent: pending.parked for intent, pending in machine.work.open.items()}


def _due_key(opened: works.Open) -> bytes:
    work = opened.work
    return work_keys.due_key(opened.at, opened.intent, queue=work.queue, due_us=work.due_us)


# --- Repairing -------------------------------------------------------------------------------------------------


async def repair(
    connection: Connection, at: ids.Address, program: str, pointers: dict[ids.IntentId, list[works.DuePointer]]
) -> tuple[list[WrongQueueKey], list[WrongQueueKey]]:
    """Make a world's queues say what its state says. Returns what was wrong and is repaired, and what stays so because
    its program is not known here. `Exists` if a living worker has the world.
    """
    code = connection.programs.get(program)
    engine, env = connection.store.engine, connection.store.env
    others = death_witness.DeathWitness(env, lambda other: world_holders.is_gone(connection.store, other))
    async with world_lease.held_for_repair(engine, env, at, others) as lease:
        found = await faults(connection, at, program, hint_scan.HintScan(engine, env, Universes.only(connection.id)))
        assert found is not None, "no other process steps a world whose lease we hold"
        left = [each for each in found if code is None and _needs_code(each)]
        mended = [each for each in found if each not in left]
        await _write(connection, lease, code or Program(program), mended, pointers)
    return mended, left


def _needs_code(wrong: WrongQueueKey) -> bool:
    """Whether the program must be known to write this again: it is an effect, and which queue it was in is lost."""
    lost = wrong.fault in (QueueFault.MISSING_OPEN, QueueFault.UNREADABLE)
    return lost and wrong.wanted is not None and wrong.wanted.kind is WorkKind.EFFECT


async def _write(
    connection: Connection,
    lease: leases.Lease,
    program: Program,
    faults: Sequence[WrongQueueKey],
    pointers: dict[ids.IntentId, list[works.DuePointer]],
) -> None:
    """First what must go, then what must come."""
    read = await connection.store.engine.read(journals.get_head(lease.at))
    head_raw = read.value(0)
    assert head_raw is not None
    gone = [_delete(lease, each, head_raw) for each in faults if each.fault in _DELETED]
    await _commit(connection, gone)
    restoring = Restoring(lease, program, head_raw, read.time_us, pointers)
    small: list[kv.Batch] = []
    for each in faults:
        batch = restoring.batch(each) if each.fault in _RESTORED else None
        if batch is not None and each.is_large:
            await _commit_large(connection, restoring, each)
        elif batch is not None:
            small.append(batch)
    await _commit(connection, small)


async def _commit_large(connection: Connection, restoring: Restoring, wrong: WrongQueueKey) -> None:
    """What restored work refers to is put again: nothing else may have kept it."""
    assert wrong.wanted is not None
    for _ in range(COLLECTED_MAX):
        generation = await connection.blobs.generation()
        await connection.blobs.put(wrong.wanted.params)
        batch = restoring.batch(wrong)
        assert batch is not None
        generation.expect(batch)
        [outcome] = await transact.commit(connection.store.engine, connection.store.env, batch)
        if isinstance(outcome, kv.Ok):
            return
        # Only a collection is worth another attempt; anything else means that the world has changed.
        if not universes.is_collected(outcome, connection.id):
            break
    raise errors.Conflicted(CHANGED)


_DELETED = (QueueFault.GARBAGE_OPEN, QueueFault.UNREADABLE, QueueFault.UNANSWERED)
_RESTORED = (QueueFault.MISSING_OPEN, QueueFault.MISSING_DUE, QueueFault.UNREADABLE, QueueFault.UNANSWERED)


def _delete(lease: leases.Lease, wrong: WrongQueueKey, head_raw: bytes) -> kv.Batch:
    assert wrong.raw is not None
    batch = kv.Batch()
    # Lease, head and bytes: a repair that is too late must not delete what a newer holder or step has written.
    leases.fence(batch, lease)
    batch.expect(journal_keys.head_key(lease.at), head_raw)
    batch.expect(work_keys.open_key(lease.at, wrong.intent), wrong.raw)
    batch.delete(work_keys.open_key(lease.at, wrong.intent))
    if wrong.authority is not None:
        batch.delete(_due_key(wrong.authority))
    return batch


class Restoring(msgspec.Struct, frozen=True):
    """What every restored key is derived from."""

    lease: leases.Lease
    program: Program
    head_raw: bytes
    now_us: int
    pointers: dict[ids.IntentId, list[works.DuePointer]]

    def batch(self, wrong: WrongQueueKey) -> kv.Batch | None:
        """None for an unreadable key of work that no run waits for."""
        authority = wrong.authority if wrong.fault is QueueFault.MISSING_DUE else None
        if authority is not None:
            work = authority.work
        elif wrong.wanted is None:
            return None
        else:
            work = _as_parked(step_contents.work_of(self.program, wrong.wanted), wrong.parked)
            if wrong.authority is not None:
                # The stored record still says which queue it was in, so this needs no declaration in the code.
                work = msgspec.structs.replace(work, queue=wrong.authority.work.queue)
        batch = kv.Batch()
        # Derived from this head, under this lease: else the key may be out of date already.
        leases.fence(batch, self.lease)
        done = works.repair(
            batch,
            self.lease.at,
            wrong.intent,
            work,
            head_raw=self.head_raw,
            now_us=self.now_us,
            authority=authority,
            pointers=self.pointers.get(wrong.intent, []),
        )
        return batch if done else None


def _as_parked(work: Work, parked: Parked | None) -> Work:
    if parked is None:
        return work
    return msgspec.structs.replace(work, state=WorkState.PARKED, attempt=parked.attempts, error=parked.error)


async def _commit(connection: Connection, batches: Sequence[kv.Batch]) -> None:
    # A world may have any number of wrong keys, and a commit takes so many batches.
    for start in range(0, len(batches), BATCHES_MAX):
        part = batches[start : start + BATCHES_MAX]
        for outcome in await transact.commit(connection.store.engine, connection.store.env, *part):
            if isinstance(outcome, kv.Conflict):
                raise errors.Conflicted(CHANGED)
