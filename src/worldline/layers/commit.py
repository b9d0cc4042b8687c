"""One world's step, or several in a row, as one batch.

This is the only place that appends to a journal. Whatever the steps consumed, journaled, asked for and sent is in the
same batch, fenced by the lease's epoch and guarded by the head: either all of it happened or none, whoever dies when.
So there is no window between append, cursor and publish to recover from.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.layers import inbox as inboxes
from worldline.layers import journal as journals
from worldline.layers import leases, messages, ready, work, worlds
from worldline.model import ids, inbox
from worldline.model import work as work_model
from worldline.store import kv


class Sent(msgspec.Struct, frozen=True):
    """A message to a world of this store, and that world as it was read.

    `hint_priority`: leave a ready hint of this priority for the destination. None: one was seen there, or none is
    wanted.
    """

    destination: worlds.World
    message: inbox.Message
    hint_priority: int | None = None


class Buried(msgspec.Struct, frozen=True):
    """An item that became a dead letter, and the step that said so."""

    unread: inboxes.Unread
    reason: str
    step: int
    time_us: int


class Claim(msgspec.Struct, frozen=True):
    """Hand the intent to an adapter in this process in the same commit."""

    worker: ids.WorkerId
    token: ids.Token
    until_us: int


class Opened(msgspec.Struct, frozen=True):
    intent: ids.IntentId
    work: work_model.Work
    claim: Claim | None = None


class Cancelled(msgspec.Struct, frozen=True):
    """Work the world no longer wants, as it was asked for."""

    intent: ids.IntentId
    work: work_model.Work


class Steps(msgspec.Struct, frozen=True):
    """Everything that consecutive steps of one world did.

    `head_raw`, which the sealed steps follow, the consumed and the buried items come from one read, so that an item
    which an earlier step of this holder has consumed cannot be consumed again. `closed` is work whose answer was
    consumed.
    """

    head_raw: bytes
    sealed: journals.Sealed
    consumed: list[bytes] = []
    buried: list[Buried] = []
    opened: list[Opened] = []
    closed: list[ids.IntentId] = []
    sent: list[Sent] = []
    cancelled: list[Cancelled] = []


def add(batch: kv.Batch, held: leases.Lease, done: Steps) -> list[work.Open]:
    """Put the steps into the batch. Returns the work that is claimed by this very commit."""
    at = held.at
    leases.fence(batch, held)
    journals.append(batch, at, done.sealed, before_raw=done.head_raw)
    inboxes.consume(batch, at, done.consumed)
    for buried in done.buried:
        inboxes.bury(batch, at, buried.unread, reason=buried.reason, step=buried.step, time_us=buried.time_us)
    claimed = _change_work(batch, at, done) if done.opened or done.closed or done.cancelled else []
    for sent in done.sent:
        messages.post(batch, sent.destination, sent.message)
        if sent.hint_priority is not None:
            ready.leave(batch, sent.destination.at, priority=sent.hint_priority)
    return claimed


def _change_work(batch: kv.Batch, at: ids.Address, done: Steps) -> list[work.Open]:
    claimed = [_open(batch, at, opened) for opened in done.opened]
    opened_here = [opened.intent for opened in done.opened]
    for intent in [*done.closed, *(cancelled.intent for cancelled in done.cancelled)]:
        assert intent not in opened_here, "work opened and closed by the same commit is never opened at all"
    for intent in done.closed:
        work.close(batch, at, intent)
    for cancelled in done.cancelled:
        work.close(batch, at, cancelled.intent, opened=cancelled.work)
    return [each for each in claimed if each is not None]


def lost(conflict: kv.Conflict, held: leases.Lease) -> errors.Lost:
    """What a conflict means to the holder: fenced, or something it had read has changed."""
    if leases.fenced(conflict, held):
        return errors.Fenced(f"world {held.at.world.hex()} has moved on from epoch {held.epoch}")
    changed = ", ".join(key.hex() for key, _ in conflict.found)
    return errors.Conflicted(f"world {held.at.world.hex()}: changed since it was read: {changed}")


def _open(batch: kv.Batch, at: ids.Address, opened: Opened) -> work.Open | None:
    if opened.claim is None:
        work.open_work(batch, at, opened.intent, opened.work)
        return None
    claim = opened.claim
    return work.open_claimed(
        batch, at, opened.intent, opened.work, worker=claim.worker, token=claim.token, until_us=claim.until_us
    )
