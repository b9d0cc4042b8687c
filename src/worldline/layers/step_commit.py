"""One world's step, or several in a row, as one batch.

This is the only place that appends to a journal. Everything that the steps consumed, journaled, asked for, answered and
sent is in the same batch, fenced by the lease's epoch and guarded by the head: all of it is applied or nothing is,
at any point where a process may die. So there is no window between append, cursor and publish to recover from.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import errors, limits
from worldline.keys import traces as trace_keys
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import leases, messages, ready, work, worlds
from worldline.model import ids, inbox
from worldline.model import traces as trace
from worldline.model import work as work_model
from worldline.store import kv

RECEIPT_BEHIND = 1  # the receipt of a message that was posted has the next stamp of the same commit


class Buried(msgspec.Struct, frozen=True):
    """An item that became a dead letter, and the step that said so."""

    unread: inboxes.UnreadItem
    reason: str
    step: int
    time_us: int


class SeenInput(msgspec.Struct, frozen=True):
    """The client id of an input that its step took without the inbox, and the stamp made for that input."""

    item: inbox.Item
    client_id: bytes | str
    stamp: kv.Stamp
    time_us: int


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Hand the intent to an effect worker in this process in the same commit."""

    worker: ids.WorkerId
    token: ids.Token
    until_us: int


class OpenedWork(msgspec.Struct, frozen=True, gc=False):
    intent: ids.IntentId
    work: work_model.Work
    claim: Claim | None = None
    refused: inbox.EffectReceipt | None = None  # no effect worker gets it: this is its answer


class CancelledWork(msgspec.Struct, frozen=True):
    """Work the world no longer wants, as it was asked for."""

    intent: ids.IntentId
    work: work_model.Work


class AddressedMessage(msgspec.Struct, frozen=True):
    """An outgoing message: `destination` is the world it goes to, as it was read.

    None: it cannot be delivered, and `receipt` tells the sender why. A delivered message has a receipt too, unless its
    answer will be a message. Receipts go into the sender's own inbox.
    """

    message: inbox.Message
    destination: worlds.WorldRecord | None
    receipt: inbox.EffectReceipt | None = None


class Steps(msgspec.Struct, frozen=True):
    """Everything that consecutive steps of one world did.

    `head_raw`, which the sealed steps follow, the consumed and the buried items come from one read, so that an item
    which an earlier step of this holder has consumed cannot be consumed again. `closed` is work whose answer was
    consumed; `settled`, a part of it, is work that was answered without the inbox, as its claimant or timer worker last
    saw it. `hints` are the world's own ready hints whose items these steps took. `unfinished` is put into the world's
    own inbox behind everything else: the rest of what these steps began is done by the next step, of this holder or
    another. `traces` are no part of the history: where user code failed, for people.
    """

    head_raw: bytes
    sealed: journals.SealedSteps
    consumed: list[bytes] = []
    brought: list[inbox.Message] = []  # of what was consumed or buried, what other universes had brought
    buried: list[Buried] = []
    seen: list[SeenInput] = []
    opened: list[OpenedWork] = []
    closed: list[ids.IntentId] = []
    settled: list[work.Open] = []
    cancelled: list[CancelledWork] = []
    sent: list[AddressedMessage] = []
    hints: Sequence[ready.Hint] = ()
    unfinished: inbox.Control | None = None
    traces: Sequence[trace.StepTraces] = ()


def add(batch: kv.Batch, held: leases.Lease, done: Steps) -> tuple[list[work.Open], bytes]:
    """Put the steps into the batch. Returns the work that is claimed by this very commit, and the new head's bytes."""
    at = held.at
    # The head alone would not do: behind a new holder that has not stepped yet, it is still the same.
    leases.fence(batch, held)
    head_raw = journals.append(batch, at, done.sealed, before_raw=done.head_raw)
    if done.consumed:
        inboxes.consume(batch, at, done.consumed)
    if done.brought:
        messages.take_brought(batch, at, done.brought)
    for buried in done.buried:
        inboxes.bury(batch, at, buried.unread, reason=buried.reason, step=buried.step, time_us=buried.time_us)
    claimed = _change_work(batch, at, done) if done.opened or done.closed or done.cancelled else []
    if done.settled:
        _settle(batch, done)
    for seen in done.seen:
        inboxes.record_seen(batch, at, seen.item, client_id=seen.client_id, stamp=seen.stamp, time_us=seen.time_us)
    if done.sent:
        _send(batch, at, done.sent)
    # With the step and not before: if it is not committed, the hints must still lead to the world.
    if done.hints:
        ready.remove(batch, done.hints)
    # Appended last: stamps follow the order of appends, and the rest of a step is to be done behind its receipts.
    if done.unfinished is not None:
        inboxes.enqueue_once(batch, at, done.unfinished)
    if done.traces:
        keep_traces(batch, at, done.traces)
    return claimed, head_raw


def keep_traces(batch: kv.Batch, at: ids.Address, steps: Sequence[trace.StepTraces]) -> None:
    """Keep where user code failed in these steps, beside the journal."""
    for key, kept in {trace_keys.trace_key(at, each.step): each for each in steps}.items():
        assert 0 < len(kept.traces) <= limits.STEP_TRACES_MAX
        batch.put(key, trace_keys.KEPT.pack(kept))


def _change_work(batch: kv.Batch, at: ids.Address, done: Steps) -> list[work.Open]:
    claimed: list[work.Open] = []
    opened_here: dict[ids.IntentId, None] = {}
    for opened in done.opened:
        opened_here[opened.intent] = None
        taken = _open(batch, at, opened)
        if taken is not None:
            claimed.append(taken)
    for intent in done.closed:
        assert intent not in opened_here, "work opened and closed by the same commit is never opened at all"
        work.close(batch, at, intent)
    for cancelled in done.cancelled:
        assert cancelled.intent not in opened_here, "work opened and given up by the same commit is never opened at all"
        work.close(batch, at, cancelled.intent, opened=cancelled.work)
    return claimed


def _settle(batch: kv.Batch, done: Steps) -> None:
    # Most steps close one intent, and a list of one needs no dict to be searched.
    closed = done.closed if len(done.closed) == 1 else dict.fromkeys(done.closed)
    for held in done.settled:
        assert held.intent in closed, "work that a step settles is closed by it"
        work.settle_in_step(batch, held)


def _send(batch: kv.Batch, at: ids.Address, sent: list[AddressedMessage]) -> None:
    """Messages into their destinations' inboxes, and receipts into the sender's own, in the order of sending.

    Each other world gets one ready hint, behind its messages. The sender needs none: its holder reads its inbox next.
    """
    # A dict, not a set: hints are appended in the order of sending, the same in every run.
    hinted: dict[ids.Address, None] = {}
    for each in sent:
        index = 0
        if each.destination is not None:
            index = messages.post(batch, each.destination, each.message)
            if each.destination.at != at:
                hinted[each.destination.at] = None
        if each.receipt is not None:
            behind = inboxes.enqueue_once(batch, at, each.receipt) - index
            assert each.destination is None or behind == RECEIPT_BEHIND, "a receipt says where its message stands"
    # Behind all messages: a worker that has seen the hint finds every one of them.
    for destination in hinted:
        ready.leave(batch, destination, priority=ready.NORMAL)


def lost(conflict: kv.Conflict, held: leases.Lease) -> errors.Lost:
    """What a conflict means to the holder: fenced, or something it had read has changed."""
    # Asked first: under a new epoch anything else may have changed too, and says nothing.
    if leases.fenced(conflict, held):
        return errors.Fenced(f"world {held.at.world.hex()} has moved on from epoch {held.epoch}")
    changed = ", ".join(key.hex() for key, _ in conflict.found)
    return errors.Conflicted(f"world {held.at.world.hex()}: changed since it was read: {changed}")


def _open(batch: kv.Batch, at: ids.Address, opened: OpenedWork) -> work.Open | None:
    if opened.refused is not None:
        # Record and answer in one batch: a run must never wait for an intent that no effect worker will see.
        work.open_refused(batch, at, opened.intent, opened.work)
        inboxes.enqueue_once(batch, at, opened.refused)
        return None
    if opened.claim is None:
        work.open_work(batch, at, opened.intent, opened.work)
        return None
    claim = opened.claim
    return work.open_claimed(
        batch, at, opened.intent, opened.work, worker=claim.worker, token=claim.token, until_us=claim.until_us
    )
