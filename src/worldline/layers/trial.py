"""The crash budget: which input, or which restore, processes die of.

Ordinary steps write nothing here. A world whose holder did not release it is on trial: its next holder says in the
store what it is about to do, so that the holder after it knows what this one died of.

::

    (released) --acquire--> no trial

    (not released) --acquire--> RESTORE --restored--> NOTHING --mark--> STEP --the step's commit--> (deleted)
                                 |  ^                                     |
                                 |  +------ acquired again ---------------+
                                 |
                    a death in RESTORE is a restore death, one in STEP, at the same head, a step death over that input

A step death also counts where the process survives: the step was interrupted because it did not return, or memory ran
out in it (`hold_against`). Deaths over one input count as long as the next step is over the same input at the same
head. Restore deaths count in a row: a restore that succeeds ends the row. A release deletes the trial.
"""

from __future__ import annotations

import msgspec

from worldline.base import errors
from worldline.keys import journal as journal_keys
from worldline.keys import trial as keys
from worldline.layers import leases
from worldline.model import ids, journal
from worldline.model.lease import Running, Trial
from worldline.store import kv


class Known(msgspec.Struct, frozen=True):
    """A world's trial and head, as they were read."""

    at: ids.Address
    trial: Trial | None
    raw: bytes | None
    head: journal.Head
    head_raw: bytes


def reads(at: ids.Address) -> tuple[kv.Get, kv.Get]:
    """What `decode` wants, in order."""
    return kv.Get(keys.trial_key(at)), kv.Get(journal_keys.head_key(at))


def get(at: ids.Address) -> kv.Get:
    return kv.Get(keys.trial_key(at))


def decode_trial(raw: bytes | None) -> Trial | None:
    return keys.TRIAL.get(raw)


def decode(at: ids.Address, raw: bytes | None, head_raw: bytes | None) -> Known:
    if head_raw is None:  # a world has a head from its creation until it is deleted
        raise errors.NotFound(f"world {at.world.hex()} is deleted")
    return Known(at, keys.TRIAL.get(raw), raw, journal_keys.HEAD.unpack(head_raw), head_raw)


def after(known: Known, state: leases.State, incarnation: bytes) -> Trial | None:
    """The trial that a world is on once this incarnation has acquired its lease. None: its last holder released it.

    A holder that has lost its memory of a world, and not its life, has not died.
    """
    before, epoch = known.trial, state.epoch.number + 1
    ours = state.holder is not None and state.holder.incarnation == incarnation
    if before is None:
        released = state.holder is None or ours
        return None if released else Trial(epoch, known.head.step, Running.RESTORE)
    same_head = before.step == known.head.step
    step_deaths = before.step_deaths if same_head else 0
    restore_deaths = before.restore_deaths
    if not ours and before.running is Running.RESTORE:
        restore_deaths += 1
    if not ours and before.running is Running.STEP and same_head:
        step_deaths += 1
    given = before.input if step_deaths else b""
    return Trial(epoch, known.head.step, Running.RESTORE, given, step_deaths, restore_deaths)


def is_suspect(trial: Trial | None) -> bool:
    """Whether a process may have died of restoring this world. It may have died of something else it did meanwhile."""
    return trial is not None and (trial.running is Running.RESTORE or trial.restore_deaths > 0)


def begin(batch: kv.Batch, known: Known, trial: Trial) -> None:
    """Part of an acquire. Expects trial and head as they were read: the holder before may still be alive."""
    _expect(batch, known.at, known.raw)
    batch.expect(journal_keys.head_key(known.at), known.head_raw)
    batch.put(keys.trial_key(known.at), keys.TRIAL.pack(trial))


def left_behind(batch: kv.Batch, known: Known, *, epoch: int) -> None:
    """Part of a release on behalf of a dead holder: the next one must see that it did not release the world."""
    _expect(batch, known.at, known.raw)
    if known.raw is None:
        batch.put(keys.trial_key(known.at), keys.TRIAL.pack(Trial(epoch, known.head.step, Running.NOTHING)))


def restored(batch: kv.Batch, held: leases.Lease, trial: Trial) -> Trial:
    """The world is back in memory. Guard: the trial as this holder wrote it."""
    return _change(batch, held, trial, msgspec.structs.replace(trial, running=Running.NOTHING, restore_deaths=0))


def mark(batch: kv.Batch, held: leases.Lease, trial: Trial | None, *, step: int, given: bytes) -> Trial:
    """The next step is over this input. Guard: the trial as this holder wrote it."""
    deaths = trial.step_deaths if trial is not None and (trial.step, trial.input) == (step, given) else 0
    return _change(batch, held, trial, Trial(held.epoch, step, Running.STEP, given, deaths))


def hold_against(batch: kv.Batch, held: leases.Lease, trial: Trial | None, *, step: int, given: bytes) -> Trial:
    """A step over this input did not end in order, though its process lives. Guard: as for `mark`."""
    same = trial is not None and (trial.step, trial.input) == (step, given)
    deaths = 1 + (trial.step_deaths if trial is not None and same else 0)
    return _change(batch, held, trial, Trial(held.epoch, step, Running.NOTHING, given, deaths))


def clear(batch: kv.Batch, at: ids.Address) -> None:
    """Part of a step, of a release, or of a person's `resume`."""
    batch.delete(keys.trial_key(at))


def pause(batch: kv.Batch, at: ids.Address, trial: Trial) -> None:
    """Part of a release by a holder that could not run the world: what was counted stays."""
    batch.put(keys.trial_key(at), keys.TRIAL.pack(msgspec.structs.replace(trial, running=Running.NOTHING)))


def _change(batch: kv.Batch, held: leases.Lease, before: Trial | None, after: Trial) -> Trial:
    leases.fence(batch, held)
    _expect(batch, held.at, None if before is None else keys.TRIAL.pack(before))
    batch.put(keys.trial_key(held.at), keys.TRIAL.pack(after))
    return after


def _expect(batch: kv.Batch, at: ids.Address, raw: bytes | None) -> None:
    if raw is None:
        batch.absent(keys.trial_key(at))
    else:
        batch.expect(keys.trial_key(at), raw)
