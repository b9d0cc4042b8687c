"""Open work: effects and timers that a world has asked for, and the one queue they are due in.

The `open` record is the authority over an intent, the `due` key only a pointer to it. Every change expects the
authority's exact bytes, and a claim writes a fresh token into them, so a claimant that was paused, expired and
succeeded by another can change nothing any more.

::

    open --> WAITING --claim--> CLAIMED --settle--> SETTLED --close--> gone
                ^                |  | renew (stays CLAIMED, later due)
                |   back_off     |  | due passes: claimable again by any effect worker, no reaper
                +----------------+  |
                ^                   +--park--> PARKED --retry--> WAITING
                +------------------------------------------------+
    by hand: WAITING --set_aside--> PARKED, WAITING --move_due--> WAITING
    in a dry fork: open --> PARKED
    against a rule of its universe: open --> SETTLED
    questions to another universe: CLAIMED --hand_on--> SENT --answer--> SETTLED
    timers:  open --> WAITING --fire--> SETTLED --close--> gone
    A world may close an intent in any state (cancel, or the answer was consumed).

Moves are rewrites of the due time: a claim is "due again at the end of my time", a back-off is "due later". Nothing
scans for expired claims. A pointer that does not match its authority is garbage, deleted by any reader. Timers
are never claimed: their due time is when they fire, and firing is one commit.

Everything here but `open_work` and `close` is done by effect workers and timer workers, who expect the world's meta
when they append to its inbox; `open_work` and `close` belong to the world's own step.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors, limits, probes
from worldline.codec import tuples
from worldline.keys import journal as journal_keys
from worldline.keys import work as keys
from worldline.model import ids, inbox, payload, work
from worldline.model.work import WorkKind, WorkState
from worldline.store import kv

_EFFECT, _MESSAGE = WorkKind.EFFECT, WorkKind.MESSAGE
_WAITING, _CLAIMED, _PARKED = WorkState.WAITING, WorkState.CLAIMED, WorkState.PARKED
SENT, SETTLED = WorkState.SENT, WorkState.SETTLED
CLAIMABLE = (WorkState.WAITING, WorkState.CLAIMED)
ERROR_CHARACTERS_MAX = 1024
DEATH_PAUSE_US, DEATH_PAUSE_MAX_US = 2_000_000, 60_000_000  # after the first death alone, four times as long each time


class Open(msgspec.Struct, frozen=True, gc=False):
    """An authority as it was read."""

    at: ids.Address
    intent: ids.IntentId
    work: work.Work
    raw: bytes


class DuePointer(msgspec.Struct, frozen=True):
    """A due pointer as it was read, before its authority is known."""

    key: bytes
    raw: bytes
    pointer: keys.Pointer


def open_work(batch: kv.Batch, at: ids.Address, intent: ids.IntentId, record: work.Work) -> None:
    """Ask for an effect or a timer, in the step that journals it. An effect may be parked from the beginning."""
    _check_new(record)
    batch.put(keys.open_key(at, intent), keys.WORK.pack(record))
    # Parked work has no pointer, so that no effect worker finds it.
    if record.state is _WAITING:
        _point(batch, at, intent, record)


def open_claimed(
    batch: kv.Batch,
    at: ids.Address,
    intent: ids.IntentId,
    record: work.Work,
    *,
    worker: ids.WorkerId,
    token: ids.Token,
    until_us: int,
) -> Open:
    """Ask for an effect and hand it to a co-located effect worker in the same commit."""
    _check_new(record)
    assert record.kind is _EFFECT, "a timer is not claimed"
    claimed = msgspec.structs.replace(
        record,
        state=_CLAIMED,
        attempt=1,
        token=ids.check_id(token, "a claim token"),
        worker=worker,
        due_us=until_us,
    )
    raw = keys.WORK.pack(claimed)
    batch.put(keys.open_key(at, intent), raw)
    _point(batch, at, intent, claimed)
    return Open(at, intent, claimed, raw)


def open_refused(batch: kv.Batch, at: ids.Address, intent: ids.IntentId, record: work.Work) -> None:
    """Note an effect that the policy of its universe refuses, in the step that asks for it: it is settled from the
    beginning, and no effect worker sees it. The caller appends the receipt in the same batch.
    """
    _check_new(record)
    batch.put(keys.open_key(at, intent), keys.WORK.pack(msgspec.structs.replace(record, state=SETTLED)))


def close(batch: kv.Batch, at: ids.Address, intent: ids.IntentId, *, opened: work.Work | None = None) -> None:
    """Forget an intent, in the world's own step: its answer was consumed, or the world cancelled it.

    Answered work has no pointer. Work that is cancelled may have one: `opened`, the work as it was asked for, says
    where it stands if it was not moved, so that the timers of timeouts that were never needed do not pile up until
    they are due. A pointer that was moved is left as garbage.
    """
    batch.delete(keys.open_key(at, intent))
    if opened is not None:
        batch.delete(keys.due_key(at, intent, queue=opened.queue, due_us=opened.due_us))


def due_range(universe: ids.UniverseId, *, queue: str, now_us: int, count_max: int) -> kv.Range:
    """What is due in one queue, oldest first, ties by world and intent."""
    begin, end = keys.due_until(universe, queue=queue, until_us=now_us)
    return kv.Range(begin, end, count_max=count_max)


def next_range(universe: ids.UniverseId, *, queue: str, count_max: int = 1) -> kv.Range:
    """The very next pointers of a queue, due or not: how long its worker may sleep."""
    begin, end = keys.due_until(universe, queue=queue, until_us=2**62)
    return kv.Range(begin, end, count_max=count_max)


def effects_ranges(universe: ids.UniverseId, *, timers: str, count_max: int) -> list[kv.Range]:
    """The pointers of all queues but the timers': of effects that wait for an effect worker, or are with one."""
    begin, end = keys.due_all(universe)
    first, last = tuples.prefix_range(keys.queue_prefix(universe, timers))
    return [kv.Range(begin, first, count_max=count_max), kv.Range(last, end, count_max=count_max)]


def queues_prefix(universe: ids.UniverseId, beginning: str) -> bytes:
    """What the pointers of all queues begin with whose names begin so: for waiting on them."""
    return keys.queues_prefix(universe, beginning)


def decode_due(universe: ids.UniverseId, page: kv.Page) -> list[DuePointer]:
    return [DuePointer(key, raw, keys.pointer(universe, key)) for key, raw in page.items]


def get(at: ids.Address, intent: ids.IntentId) -> kv.Get:
    return kv.Get(keys.open_key(at, intent))


def decode(at: ids.Address, intent: ids.IntentId, raw: bytes | None) -> Open | None:
    return None if raw is None else Open(at, intent, keys.WORK.unpack(raw), raw)


def open_range(at: ids.Address, *, count_max: int) -> kv.Range:
    """What a world has open, by intent."""
    return kv.Range(*keys.open_work(at), count_max=count_max)


def decode_open(at: ids.Address, page: kv.Page) -> list[Open]:
    return [Open(at, keys.open_intent(at, key), keys.WORK.unpack(raw), raw) for key, raw in page.items]


def matches(pointer: DuePointer, authority: Open | None) -> bool:
    """Whether a pointer still says what its authority says. If not, `discard` it."""
    if authority is not None:
        assert (authority.at, authority.intent) == (pointer.pointer.at, pointer.pointer.intent), (
            "another intent's authority"
        )
    return authority is not None and authority.work.state in CLAIMABLE and _due_key(authority) == pointer.key


def discard(batch: kv.Batch, pointer: DuePointer, authority: Open | None) -> None:
    """Delete a pointer that does not match. Guards: it is still there, and its authority still says otherwise."""
    assert not matches(pointer, authority)
    batch.expect(pointer.key, pointer.raw)
    batch.delete(pointer.key)
    # Without an authority none is expected: one that is restored has another due time (`_unused_due_us`).
    if authority is not None:
        batch.expect(keys.open_key(authority.at, authority.intent), authority.raw)


def has_died_again(opened: Open) -> bool:
    """Whether a claim has run out whose effect had a death before: it is put back first, with a pause
    (`count_death`). One that is claimed alone has had one.
    """
    return opened.work.state is _CLAIMED and opened.work.died > 0


def count_death(batch: kv.Batch, held: Open, *, now_us: int) -> Open:
    """The process of a claim has died, or said nothing until it ran out. Guard: the claim as it was read.

    Only a death alone is evidence. After each but the first there is a pause, which grows: what makes processes end for
    some seconds, whatever it is, must not use up what is allowed; and if it is this effect, then what else its
    processes have to do continues in the pauses, also if none of the deaths can be held against it.
    """
    _check_claimed(held)
    blamed = [*held.work.blamed, held.work.worker] if held.work.alone else held.work.blamed
    pause_us = pause_after(held.work.died) if held.work.died else 0
    tried = tried_with(held.work, "died", now_us=now_us)
    return _move(
        batch, held, _unclaimed(held.work, now_us + pause_us, died=held.work.died + 1, blamed=blamed, tried=tried)
    )


def pause_after(deaths: int) -> int:
    """How long an effect is left alone after so many deaths and the first one, in microseconds."""
    # The shift is bounded: a count that is read from the store must not make a number without bounds.
    return min(DEATH_PAUSE_MAX_US, DEATH_PAUSE_US << (2 * min(deaths - 1, 8)))


def acquit(batch: kv.Batch, opened: Open, worker: ids.WorkerId) -> bool:
    """Take a worker off that was counted as dead, and lives. Guard: the authority as it was read. False if it is not
    counted, or that is not possible now: the worker that has claimed the work must find it unchanged.
    """
    if worker not in opened.work.blamed or opened.work.state is not _WAITING:
        return False
    kept = [each for each in opened.work.blamed if each != worker]
    _move(batch, opened, msgspec.structs.replace(opened.work, blamed=kept))
    return True


def receipt(claim: Open, status: inbox.ReceiptStatus, carried: payload.Payload) -> inbox.EffectReceipt:
    """The answer to claimed work, with the correlation id of what it was asked for in the course of."""
    found = claim.work
    if not found.correlation_id:
        return inbox.EffectReceipt(claim.intent, status, carried, found.attempt, found.correlation)
    return inbox.CorrelatedReceipt(
        claim.intent, status, carried, found.attempt, found.correlation, found.correlation_id
    )


def tried_with(held: work.Work, ended: str, *, now_us: int, error: str = "") -> list[work.EffectAttempt]:
    """The attempts that are kept of claimed work, with the one that has ended now."""
    # A clock that was set back must not let an attempt end before it began (`max` below).
    began_us = held.claimed_us or held.opened_us
    said = _storable(error[: limits.ATTEMPT_ERROR_CHARACTERS_MAX])[: limits.ATTEMPT_ERROR_CHARACTERS_MAX]
    last = work.EffectAttempt(held.attempt, began_us, max(began_us, now_us), held.worker, ended, said)
    return [*held.tried[1 - limits.ATTEMPTS_KEPT :], last]


def history(opened: Open) -> work.EffectHistory:
    """The attempts at an effect that has no answer yet, the one that is under way not among them."""
    return work.EffectHistory(opened.work.name, opened.intent.hex(), opened.work.tried, open=True)


def _unclaimed(
    held: work.Work, due_us: int, *, died: int, blamed: list[bytes], tried: list[work.EffectAttempt]
) -> work.Work:
    return msgspec.structs.replace(
        held, state=_WAITING, token=b"", worker=b"", due_us=due_us, died=died, alone=False, blamed=blamed, tried=tried
    )


def _ran_out(opened: work.Work, *, now_us: int) -> list[work.EffectAttempt]:
    """The attempts at work that is due again: if it was claimed, its claim has run out."""
    return tried_with(opened, "died", now_us=now_us) if opened.state is _CLAIMED else opened.tried


def is_suspect(opened: Open) -> bool:
    """Whether a process may have died of it: an attempt's process died, or said nothing until its claim ran out."""
    return opened.work.died > 0 or opened.work.state is _CLAIMED


def claim(
    batch: kv.Batch,
    opened: Open,
    *,
    worker: ids.WorkerId,
    token: ids.Token,
    now_us: int,
    until_us: int,
    alone: bool = False,
) -> Open:
    """Take a due effect for a while. Guard: the authority as it was read; the token makes the result unique."""
    assert opened.work.kind is _EFFECT, "a timer is not claimed"
    if opened.work.state not in CLAIMABLE:
        raise errors.Closed(f"intent {opened.intent.hex()} is {opened.work.state.name.lower()}, not claimable")
    if opened.work.due_us > now_us:
        raise errors.Exists(f"intent {opened.intent.hex()} is not due yet")
    assert not has_died_again(opened), "its death is counted first"
    assert until_us > now_us
    claimed = msgspec.structs.replace(
        opened.work,
        state=_CLAIMED,
        attempt=opened.work.attempt + 1,
        token=ids.check_id(token, "a claim token"),
        worker=worker,
        due_us=until_us,
        died=opened.work.died + (opened.work.state is WorkState.CLAIMED),  # a claim that ran out
        alone=alone,
        claimed_us=now_us,
        tried=_ran_out(opened.work, now_us=now_us),
    )
    return _move(batch, opened, claimed)


def renew(batch: kv.Batch, held: Open, *, until_us: int, alone: bool = False) -> Open:
    """Keep a claim until a time. Guard: the claim as its holder last wrote it. `alone`: whether it still is.

    A store's clock that was set back makes that earlier than before; it is never the same, so that the bytes change.
    """
    _check_claimed(held)
    due_us = until_us + 1 if until_us == held.work.due_us else until_us
    return _move(batch, held, msgspec.structs.replace(held.work, due_us=due_us, alone=alone))


def back_off(batch: kv.Batch, held: Open, *, due_us: int, now_us: int, error: str, trace: str = "") -> Open:
    """Give a claim back, to be tried again later. Guard: the claim as its holder last wrote it."""
    _check_claimed(held)
    waiting = msgspec.structs.replace(
        held.work,
        state=WorkState.WAITING,
        token=b"",
        worker=b"",
        due_us=due_us,
        error=_storable(error),
        trace=trace,
        died=0,  # the process outlived the attempt, so nothing is held against the effect
        alone=False,
        blamed=[],
        tried=tried_with(held.work, "retried", now_us=now_us, error=error),
    )
    return _move(batch, held, waiting)


def park(batch: kv.Batch, held: Open, *, now_us: int, error: str, trace: str = "") -> Open:
    """Set aside until an operator retries it. Guard: the claim as its holder last wrote it."""
    _check_claimed(held)
    parked = msgspec.structs.replace(
        held.work,
        state=WorkState.PARKED,
        token=b"",
        worker=b"",
        error=_storable(error),
        trace=trace,
        alone=False,
        tried=tried_with(held.work, "parked", now_us=now_us, error=error),
    )
    return _move(batch, held, parked)


def retry(batch: kv.Batch, parked: Open, *, due_us: int) -> Open:
    """Put parked work back into the queue, its attempts counted from 0. Guard: the authority as it was read."""
    if parked.work.state is not WorkState.PARKED:
        raise errors.Closed(f"intent {parked.intent.hex()} is {parked.work.state.name.lower()}, not parked")
    waiting = msgspec.structs.replace(parked.work, state=WorkState.WAITING, attempt=0, due_us=due_us, died=0, blamed=[])
    return _move(batch, parked, waiting)


def set_aside(batch: kv.Batch, opened: Open, *, now_us: int, error: str) -> Open:
    """Park an effect by hand, before it is tried again. Guard: the authority as it was read.

    One that an effect worker is working on is refused: parking it would not stop the attempt.
    """
    assert opened.work.kind is WorkKind.EFFECT, "a timer is not parked"
    if _is_at_work(opened, now_us) or opened.work.state not in CLAIMABLE:
        raise errors.Closed(f"intent {opened.intent.hex()} is {opened.work.state.name.lower()}, not waiting")
    parked = msgspec.structs.replace(
        opened.work,
        state=WorkState.PARKED,
        token=b"",
        worker=b"",
        error=opened.work.error or _storable(error),
        alone=False,
        tried=_ran_out(opened.work, now_us=now_us),
    )
    return _move(batch, opened, parked)


def move_due(batch: kv.Batch, opened: Open, *, now_us: int, due_us: int) -> Open:
    """Make work that is not claimed due at another time. Guard: the authority as it was read."""
    if _is_at_work(opened, now_us) or opened.work.state not in CLAIMABLE:
        raise errors.Closed(f"intent {opened.intent.hex()} is {opened.work.state.name.lower()}, not waiting")
    if opened.work.due_us == due_us:
        raise errors.Exists(f"intent {opened.intent.hex()} is due at that time already")
    tried = _ran_out(opened.work, now_us=now_us)
    waiting = _unclaimed(opened.work, due_us, died=opened.work.died, blamed=opened.work.blamed, tried=tried)
    return _move(batch, opened, waiting)


def settle(batch: kv.Batch, held: Open, *, trace: str = "", tried: list[work.EffectAttempt] | None = None) -> Open:
    """Mark claimed work as answered. The caller appends the one receipt in the same batch.

    Guard: the claim as its holder last wrote it. The record stays, token and all, until the world consumes the answer,
    and with it `trace`, the traceback of a failure, and `tried`, all attempts: the receipt, which is journaled, has
    neither.
    """
    _check_claimed(held)
    kept = held.work.tried if tried is None else tried
    return _move(batch, held, msgspec.structs.replace(held.work, state=WorkState.SETTLED, trace=trace, tried=kept))


def hand_on(batch: kv.Batch, held: Open, to: ids.Address) -> Open:
    """A question is in the inbox of a world of another universe, which will answer it. Guard: the claim as its holder
    last wrote it.
    """
    _check_claimed(held)
    sent = msgspec.structs.replace(
        held.work, state=WorkState.SENT, token=b"", worker=b"", error="", trace="", asked=to.universe + to.world
    )
    return _move(batch, held, sent)


def was_put_to(opened: Open, world: ids.Address) -> bool:
    """Whether this is a question that was sent to a world, which has not been answered."""
    return opened.work.state is WorkState.SENT and opened.work.asked == world.universe + world.world


def answer(batch: kv.Batch, question: Open) -> Open:
    """Mark a question as answered by the world that it was sent to. The caller appends the one receipt in the same
    batch. Guard: the authority as it was read.
    """
    if question.work.state is not WorkState.SENT:
        raise errors.Closed(f"intent {question.intent.hex()} is {question.work.state.name.lower()}, not sent")
    return _move(batch, question, msgspec.structs.replace(question.work, state=WorkState.SETTLED))


def fire(batch: kv.Batch, timer: Open, *, token: ids.Token, worker: ids.WorkerId, now_us: int) -> inbox.TimerFired:
    """Settle a due timer. The caller appends what is returned in the same batch. Guard: the authority as read."""
    assert timer.work.kind is WorkKind.TIMER
    if timer.work.state is not WorkState.WAITING:
        raise errors.Closed(f"timer {timer.intent.hex()} is {timer.work.state.name.lower()}")
    if timer.work.due_us > now_us:
        raise errors.Exists(f"timer {timer.intent.hex()} is not due yet")
    settled = msgspec.structs.replace(
        timer.work,
        state=WorkState.SETTLED,
        attempt=timer.work.attempt + 1,
        token=ids.check_id(token, "a timer worker's token"),  # of two workers, each writes other bytes
        worker=worker,
    )
    _move(batch, timer, settled)
    return inbox.TimerFired(timer.intent, timer.work.due_us, timer.work.correlation)


def settle_in_step(batch: kv.Batch, held: Open) -> None:
    """Answer work in the step that takes the answer: the world has closed it, and no other claimant had it meanwhile.

    Expects the claim, or the timer, as its holder last saw it; the step's own `close` deletes the authority.
    """
    batch.expect(keys.open_key(held.at, held.intent), held.raw)
    batch.delete(_due_key(held))


def take_back(batch: kv.Batch, held: Open, *, now_us: int, died: bool) -> Open:
    """Put claimed work back into the queue, due now. Guard: the claim as it was read. `died`: its claimant is known to
    be dead; else that gives it back itself.
    """
    if died:
        return count_death(batch, held, now_us=now_us)
    _check_claimed(held)
    tried = tried_with(held.work, "given back", now_us=now_us)
    return _move(batch, held, _unclaimed(held.work, now_us, died=held.work.died, blamed=held.work.blamed, tried=tried))


def put_copy(batch: kv.Batch, opened: Open, *, now_us: int) -> None:
    """Open work in a copy of its store, which makes its pointer again. One that was claimed waits again: whatever had
    claimed it is not here. The batch has a guard of its own.
    """
    wanted = opened.work
    if wanted.state is _CLAIMED:
        wanted = _unclaimed(wanted, now_us, died=wanted.died, blamed=wanted.blamed, tried=wanted.tried)
    batch.put(keys.open_key(opened.at, opened.intent), keys.WORK.pack(wanted))
    if wanted.state in CLAIMABLE:
        _point(batch, opened.at, opened.intent, wanted)


def close_gone(batch: kv.Batch, opened: Open) -> None:
    """Forget work of a world that is gone. Guard: the authority as it was read."""
    batch.expect(keys.open_key(opened.at, opened.intent), opened.raw)
    batch.delete(keys.open_key(opened.at, opened.intent))
    batch.delete(_due_key(opened))


def lost(conflict: kv.Conflict, held: Open) -> bool:
    """Whether a conflict says that this claim is no longer ours."""
    return conflict.at(keys.open_key(held.at, held.intent))[0]


def repair(
    batch: kv.Batch,
    at: ids.Address,
    intent: ids.IntentId,
    record: work.Work,
    *,
    head_raw: bytes,
    now_us: int,
    authority: Open | None,
    pointers: Sequence[DuePointer] = (),
) -> bool:
    """Write what is missing of an intent that the journal says is open. Returns whether anything was.

    Work that was parked comes back so, without a pointer. `pointers`: the due keys found for this intent. Guard: the
    authority is absent, or its pointer is. `head_raw`, the head up to which the journal was read, is expected too: what
    the world has closed since must not come back.
    """
    if authority is None and record.state is WorkState.PARKED:
        batch.absent(keys.open_key(at, intent))
        batch.put(keys.open_key(at, intent), keys.WORK.pack(record))
        batch.expect(journal_keys.head_key(at), head_raw)
        return True
    if authority is None:
        restored = msgspec.structs.replace(record, due_us=_unused_due_us(at, intent, record, now_us, pointers))
        batch.absent(keys.open_key(at, intent))
        open_work(batch, at, intent, restored)
    elif authority.work.state not in CLAIMABLE or any(matches(found, authority) for found in pointers):
        return False
    else:
        restored = authority.work
        batch.expect(keys.open_key(at, intent), authority.raw)
        _point(batch, at, intent, restored)
    batch.absent(keys.due_key(at, intent, queue=restored.queue, due_us=restored.due_us))
    batch.expect(journal_keys.head_key(at), head_raw)
    return True


def _is_at_work(opened: Open, now_us: int) -> bool:
    """Whether an effect worker has a claim that has not expired."""
    return opened.work.state is _CLAIMED and opened.work.due_us > now_us


def _unused_due_us(
    at: ids.Address, intent: ids.IntentId, record: work.Work, now_us: int, pointers: Sequence[DuePointer]
) -> int:
    """A due time, not before the wanted one, that no earlier pointer of this intent has had.

    A reader that found a pointer without authority may be about to delete it. If the restored pointer had the same key,
    that delete would hit it, and no reader would find the work again.
    """
    due_us = max(record.due_us, now_us)
    taken = [found.key for found in pointers]
    while keys.due_key(at, intent, queue=record.queue, due_us=due_us) in taken:
        probes.hit("work.due-time-taken")
        due_us += 1
    return due_us


def _move(batch: kv.Batch, opened: Open, after: work.Work) -> Open:
    """Rewrite an authority and move its pointer along."""
    raw = keys.WORK.pack(after)
    assert raw != opened.raw, "a change must change the authority, or it is no guard"
    batch.expect(keys.open_key(opened.at, opened.intent), opened.raw)
    batch.put(keys.open_key(opened.at, opened.intent), raw)
    moved = Open(opened.at, opened.intent, after, raw)
    old, new = _due_key(opened), _due_key(moved)
    if after.state not in CLAIMABLE:
        batch.delete(old)
    elif old != new or opened.work.state not in CLAIMABLE:
        # A pointer's value never changes: with the same key there is nothing to rewrite.
        if opened.work.state in CLAIMABLE:
            batch.delete(old)
        _point(batch, opened.at, opened.intent, after)
    return moved


def _point(batch: kv.Batch, at: ids.Address, intent: ids.IntentId, to: work.Work) -> None:
    key = keys.due_key(at, intent, queue=to.queue, due_us=to.due_us)
    batch.put(key, keys.DUES[to.kind])


def _due_key(opened: Open) -> bytes:
    to = opened.work
    return keys.due_key(opened.at, opened.intent, queue=to.queue, due_us=to.due_us)


def _storable(error: str) -> str:
    """An error text cut to size. What has no UTF-8 (half a surrogate in a file name) is spelled out."""
    return error[:ERROR_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()


def _check_new(record: work.Work) -> None:
    assert record.kind is not _MESSAGE, "a message leaves with its step and is in no queue"
    assert record.state is _WAITING or (record.state is _PARKED and record.kind is _EFFECT)
    assert record.attempt == 0
    assert not record.token


def _check_claimed(held: Open) -> None:
    if held.work.state is not _CLAIMED or not held.work.token:
        raise errors.Closed(f"intent {held.intent.hex()} is {held.work.state.name.lower()}, not claimed")
