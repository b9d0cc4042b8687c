"""The crash budget: which input, or which restore, processes die of.

Ordinary steps write nothing here. A world whose holder did not release it is on trial: its next holder says in the
store what it is about to do, so that the holder after it knows what this one died of.

::

    (released) --acquire--> no trial

    (not released) --acquire--> RESTORE --restored--> NOTHING --mark--> STEP --returned--> NOTHING --the commit--> gone
                                 |  ^                                     |
                                 |  +------ acquired again ---------------+
                                 |
                    a death in RESTORE is a restore death, one in STEP, at the same head, a step death over that input

STEP says that code runs, and nothing else: it is taken back when the code returns, before the step's commit. So a
holder that cannot commit, because of the network, a full disk or a slow store, blames nothing.

A holder is counted as dead when another acquires the world from it. That is a guess where only its heartbeat tells, so
the holders that were counted are kept (`blamed`): one whose heartbeat is seen again, or that finds itself fenced and
alive, is taken off (`acquitted_by`, `acquit`). A mark made while its process performs an effect that processes may have
died of (`beside`) is no evidence, and its death is not counted.

A step death also counts where the process survives: the step was interrupted because it did not return, or memory ran
out in it (`hold_against`). Deaths over one input count as long as the next step is over the same input at the same
head. Restore deaths count in a row: a restore that succeeds ends the row. A release deletes the trial.

A step that the kernel's own code raised in is counted apart (`count_raised`), likewise over one input at one head: it
will raise again wherever it is made, and no process is suspected of anything.

Nothing is settled by these counts alone: before that, one last attempt in a child process decides
(`worldline.roles.world.trials`). `innocent` is what one that survives leaves.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from worldline.base import errors
from worldline.keys import journal as journal_keys
from worldline.keys import leases as lease_keys
from worldline.keys import trial as keys
from worldline.layers import leases
from worldline.model import ids, journal
from worldline.model.lease import Blamed, Raised, Running, Trial
from worldline.store import kv

BLAMED_MAX = 16  # kept by name; of more deaths than that, the earliest cannot be taken off any more


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


# --- Who is blamed -------------------------------------------------------------------------------------------------


def workers_of(trial: Trial | None) -> list[ids.WorkerId]:
    """The workers whose heartbeats tell whether the holders live that are blamed, or would be now."""
    if trial is None:
        return []
    named = [trial.worker, *(each.worker for each in trial.blamed)]
    return [ids.WorkerId(worker) for worker in dict.fromkeys(named) if worker]


def after(
    known: Known, state: leases.State, me: leases.Heartbeat, *, living: Collection[bytes] = (), beside: bool = False
) -> Trial | None:
    """The trial that a world is on once `me` has acquired its lease. None: its last holder released it.

    A holder that has lost its memory of a world, and not its life, has not died: `me`, and the incarnations in
    `living`. `beside`: see `Trial`.
    """
    before, epoch, incarnation = known.trial, state.epoch.number + 1, me.sign.incarnation
    ours = state.holder is not None and state.holder.incarnation == incarnation
    if before is None:
        released = state.holder is None or ours
        if released:
            return None
        return Trial(epoch, known.head.step, Running.RESTORE, worker=me.worker, incarnation=incarnation, beside=beside)
    alive = (*living, incarnation)
    same_head = before.step == known.head.step
    kept = acquitted_by(before, alive)
    if not same_head:
        kept = _forgotten(kept, Running.STEP)
    if not (ours or before.beside or before.incarnation in alive):
        kept = _counted(kept, before.running)
    return msgspec.structs.replace(
        kept,
        epoch=epoch,
        step=known.head.step,
        running=Running.RESTORE,
        worker=me.worker,
        incarnation=incarnation,
        beside=beside,
        until_us=0,
        input=before.input if kept.step_deaths or kept.acquitted else b"",
    )


def acquitted_by(trial: Trial, living: Collection[bytes]) -> Trial:
    """Without the deaths of holders that live."""
    kept = [each for each in trial.blamed if each.incarnation not in living]
    if len(kept) == len(trial.blamed):
        return trial
    gone = [each.running for each in trial.blamed if each.incarnation in living]
    return msgspec.structs.replace(
        trial,
        blamed=kept,
        step_deaths=max(0, trial.step_deaths - gone.count(Running.STEP)),
        restore_deaths=max(0, trial.restore_deaths - gone.count(Running.RESTORE)),
    )


def _counted(trial: Trial, running: Running) -> Trial:
    """With the death of the holder that said this."""
    if running is Running.NOTHING or (running is Running.STEP and not trial.input):
        return trial
    blamed = trial.blamed
    if trial.incarnation:  # else it was written by a release that did not say who it was
        blamed = [*blamed, Blamed(trial.worker, trial.incarnation, running)][-BLAMED_MAX:]
    return msgspec.structs.replace(
        trial,
        blamed=blamed,
        step_deaths=trial.step_deaths + (running is Running.STEP),
        restore_deaths=trial.restore_deaths + (running is Running.RESTORE),
    )


def _forgotten(trial: Trial, running: Running) -> Trial:
    """Without the deaths of one kind: what they were about is past."""
    blamed = [each for each in trial.blamed if each.running is not running]
    if running is Running.RESTORE:
        return msgspec.structs.replace(trial, blamed=blamed, restore_deaths=0, quarantines=0, verdict="")
    return msgspec.structs.replace(
        trial, blamed=blamed, step_deaths=0, input=b"", acquitted=0, running=_not_step(trial.running)
    )


def _not_step(running: Running) -> Running:
    return Running.NOTHING if running is Running.STEP else running


def acquit(batch: kv.Batch, at: ids.Address, raw: bytes | None, incarnation: bytes) -> bool:
    """Take a holder off that is blamed and lives: it says so itself. False if it is not blamed.

    Guard: the trial as it was read. The holder that the world has now finds it changed, and reads it again.
    """
    trial = keys.TRIAL.get(raw)
    after = None if trial is None else acquitted_by(trial, (incarnation,))
    if trial is None or after is None or after == trial:
        return False
    _expect(batch, at, raw)
    batch.put(keys.trial_key(at), keys.TRIAL.pack(after))
    return True


def is_suspect(trial: Trial | None) -> bool:
    """Whether a process may have died of restoring this world. It may have died of something else it did meanwhile."""
    return trial is not None and (trial.running is Running.RESTORE or trial.restore_deaths > 0)


# --- What a holder says ----------------------------------------------------------------------------------------------


def begin(batch: kv.Batch, known: Known, trial: Trial) -> None:
    """Part of an acquire. Expects trial and head as they were read: the holder before may still be alive."""
    expect(batch, known)
    keep(batch, known.at, trial)


def expect(batch: kv.Batch, known: Known) -> None:
    """Nothing has changed since this was read."""
    _expect(batch, known.at, known.raw)
    batch.expect(journal_keys.head_key(known.at), known.head_raw)


def expect_silent(batch: kv.Batch, heartbeat: leases.Heartbeat) -> None:
    """Part of an acquire that counts a worker as dead: its heartbeat has expired, and is as it was read."""
    batch.expect(lease_keys.worker_key(heartbeat.worker), heartbeat.raw)


def left_behind(batch: kv.Batch, known: Known, *, epoch: int) -> None:
    """Part of a release on behalf of a dead holder: the next one must see that it did not release the world."""
    _expect(batch, known.at, known.raw)
    if known.raw is None:
        batch.put(keys.trial_key(known.at), keys.TRIAL.pack(Trial(epoch, known.head.step, Running.NOTHING)))


def restored(batch: kv.Batch, held: leases.Lease, trial: Trial) -> Trial:
    """The world is back in memory. Guard: the trial as this holder wrote it."""
    done = _forgotten(trial, Running.RESTORE)
    return _change(batch, held, trial, msgspec.structs.replace(done, running=Running.NOTHING))


def mark(
    batch: kv.Batch, held: leases.Lease, trial: Trial | None, *, step: int, given: bytes, beside: bool = False
) -> Trial:
    """Code runs from now on, in the step over this input. Guard: the trial as this holder wrote it."""
    about = _about(held, trial, step=step, given=given)
    return _change(batch, held, trial, msgspec.structs.replace(about, running=Running.STEP, beside=beside))


def returned(batch: kv.Batch, held: leases.Lease, trial: Trial) -> Trial:
    """The code that was marked has returned. Guard: as for `mark`."""
    return _change(batch, held, trial, msgspec.structs.replace(trial, running=Running.NOTHING))


def hold_against(batch: kv.Batch, held: leases.Lease, trial: Trial | None, *, step: int, given: bytes) -> Trial:
    """A step over this input did not end in order, though its process lives. Guard: as for `mark`."""
    about = _about(held, trial, step=step, given=given)
    return _change(
        batch, held, trial, msgspec.structs.replace(about, running=Running.NOTHING, step_deaths=about.step_deaths + 1)
    )


def innocent(batch: kv.Batch, held: leases.Lease, trial: Trial, running: Running) -> Trial:
    """A last attempt in a child process has survived a step or a restore: what was counted was not its fault. Guard: as
    for `mark`.
    """
    if running is Running.RESTORE:
        after = _forgotten(trial, Running.RESTORE)
    else:
        blamed = [each for each in trial.blamed if each.running is not Running.STEP]
        after = msgspec.structs.replace(trial, step_deaths=0, blamed=blamed, acquitted=trial.acquitted + 1)
    return _change(batch, held, trial, after)


def take_off(batch: kv.Batch, held: leases.Lease, trial: Trial, living: Collection[bytes]) -> Trial:
    """Holders that were counted as dead live. Guard: as for `mark`."""
    return _change(batch, held, trial, acquitted_by(trial, living))


def raised_over(trial: Trial | None, *, step: int, given: bytes) -> Raised | None:
    """How often, and what, the kernel raised in the step over this input at this head."""
    raised = None if trial is None else trial.raised
    return raised if raised is not None and (raised.step, raised.input) == (step, given) else None


def count_raised(
    batch: kv.Batch, held: leases.Lease, trial: Trial | None, *, step: int, given: bytes, said: str
) -> Trial:
    """The kernel raised in the step over this input. Guard: as for `mark`."""
    known = raised_over(trial, step=step, given=given)
    raised = Raised(step, given, 1 if known is None else known.times + 1, said)
    before = _about(held, None, step=step, given=given) if trial is None else trial
    return _change(batch, held, trial, msgspec.structs.replace(before, running=Running.NOTHING, raised=raised))


def clear(batch: kv.Batch, at: ids.Address) -> None:
    """Part of a step, of a release, or of a person's `resume`."""
    batch.delete(keys.trial_key(at))


def pause(batch: kv.Batch, at: ids.Address, trial: Trial) -> None:
    """Part of a release by a holder that could not run the world: what was counted stays."""
    batch.put(keys.trial_key(at), keys.TRIAL.pack(msgspec.structs.replace(trial, running=Running.NOTHING)))


def keep(batch: kv.Batch, at: ids.Address, trial: Trial) -> None:
    """Part of a batch that expects what this is made of."""
    batch.put(keys.trial_key(at), keys.TRIAL.pack(trial))


# --- Quarantine ------------------------------------------------------------------------------------------------------


def quarantined(trial: Trial, *, until_us: int, verdict: str) -> Trial:
    """What is kept while a world is paused because processes die restoring it."""
    return msgspec.structs.replace(
        trial, running=Running.NOTHING, until_us=until_us, quarantines=trial.quarantines + 1, verdict=verdict
    )


def is_quarantined(trial: Trial | None) -> bool:
    return trial is not None and trial.until_us > 0


def is_over(trial: Trial | None, *, now_us: int, longest_us: int) -> bool:
    """Whether the time of a quarantine is over. One that would last longer than any does was written by a clock that
    was ahead.
    """
    return trial is not None and trial.until_us > 0 and not 0 < trial.until_us - now_us <= longest_us


def end_quarantine(batch: kv.Batch, at: ids.Address, raw: bytes, *, restore_deaths: int) -> None:
    """Its time is over: the world may be taken again. Guard: the trial as it was read. `restore_deaths`: what counts
    from now on.
    """
    trial = msgspec.structs.replace(keys.TRIAL.unpack(raw), until_us=0, restore_deaths=restore_deaths)
    batch.expect(keys.trial_key(at), raw)
    batch.put(keys.trial_key(at), keys.TRIAL.pack(trial))


def _about(held: leases.Lease, trial: Trial | None, *, step: int, given: bytes) -> Trial:
    """The trial of this holder over this input: deaths over another one, or at another head, do not count."""
    if trial is None:
        return Trial(held.epoch, step, Running.NOTHING, given, worker=held.worker, incarnation=held.incarnation)
    same = (trial.step, trial.input) == (step, given)
    about = trial if same else _forgotten(trial, Running.STEP)
    return msgspec.structs.replace(
        about, epoch=held.epoch, step=step, input=given, worker=held.worker, incarnation=held.incarnation, beside=False
    )


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
