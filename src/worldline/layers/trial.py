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
(`worldline.worker.crash_trials`). `innocent` is what one that survives leaves.
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
from worldline.model.leases import Blamed, CrashTrial, HolderActivity, Raised
from worldline.store import kv

BLAMED_MAX = 16  # kept by name; of more deaths than that, the earliest cannot be taken off any more


class TrialAndHead(msgspec.Struct, frozen=True):
    """A world's trial and head, as they were read."""

    at: ids.Address
    trial: CrashTrial | None
    raw: bytes | None
    head: journal.Head
    head_raw: bytes


def reads(at: ids.Address) -> tuple[kv.Get, kv.Get]:
    """What `decode` wants, in order."""
    return kv.Get(keys.trial_key(at)), kv.Get(journal_keys.head_key(at))


def get(at: ids.Address) -> kv.Get:
    return kv.Get(keys.trial_key(at))


def decode_trial(raw: bytes | None) -> CrashTrial | None:
    return keys.TRIAL.get(raw)


def decode(at: ids.Address, raw: bytes | None, head_raw: bytes | None) -> TrialAndHead:
    if head_raw is None:  # a world has a head from its creation until it is deleted
        raise errors.NotFound(f"world {at.world.hex()} is deleted")
    return TrialAndHead(at, keys.TRIAL.get(raw), raw, journal_keys.HEAD.unpack(head_raw), head_raw)


# --- Who is blamed -------------------------------------------------------------------------------------------------


def workers_of(trial: CrashTrial | None) -> list[ids.WorkerId]:
    """The workers whose heartbeats tell whether the holders live that are blamed, or would be now."""
    if trial is None:
        return []
    named = [trial.worker, *(each.worker for each in trial.blamed)]
    return [ids.WorkerId(worker) for worker in dict.fromkeys(named) if worker]


def after(
    known: TrialAndHead,
    state: leases.LeaseState,
    me: leases.HeartbeatRecord,
    *,
    living: Collection[bytes] = (),
    beside: bool = False,
) -> CrashTrial | None:
    """The trial that a world is on once `me` has acquired its lease. None: its last holder released it.

    A holder that has lost its memory of a world, and not its life, has not died: `me`, and the incarnations in
    `living`. `beside`: see `CrashTrial`.
    """
    before, epoch, incarnation = known.trial, state.epoch.number + 1, me.sign.incarnation
    ours = state.holder is not None and state.holder.incarnation == incarnation
    if before is None:
        released = state.holder is None or ours
        if released:
            return None
        return CrashTrial(
            epoch, known.head.step, HolderActivity.RESTORE, worker=me.worker, incarnation=incarnation, beside=beside
        )
    alive = (*living, incarnation)
    # Deaths over a step say nothing any more when the world has got past it.
    same_head = before.step == known.head.step
    kept = acquitted_by(before, alive)
    if not same_head:
        kept = _forgotten(kept, HolderActivity.STEP)
    # Each of the three means that this world did not end a process, as far as can be known.
    if not (ours or before.beside or before.incarnation in alive):
        kept = _counted(kept, before.running)
    return msgspec.structs.replace(
        kept,
        epoch=epoch,
        step=known.head.step,
        running=HolderActivity.RESTORE,
        worker=me.worker,
        incarnation=incarnation,
        beside=beside,
        until_us=0,
        # With nothing counted over it, the input says nothing: the next mark names its own.
        input=before.input if kept.step_deaths or kept.acquitted else b"",
    )


def acquitted_by(trial: CrashTrial, living: Collection[bytes]) -> CrashTrial:
    """Without the deaths of holders that live."""
    kept = [each for each in trial.blamed if each.incarnation not in living]
    if len(kept) == len(trial.blamed):
        return trial
    # A count may be lower than the names that are kept (`end_quarantine` sets it), hence `max` below.
    gone = [each.running for each in trial.blamed if each.incarnation in living]
    return msgspec.structs.replace(
        trial,
        blamed=kept,
        step_deaths=max(0, trial.step_deaths - gone.count(HolderActivity.STEP)),
        restore_deaths=max(0, trial.restore_deaths - gone.count(HolderActivity.RESTORE)),
    )


def _counted(trial: CrashTrial, running: HolderActivity) -> CrashTrial:
    """With the death of the holder that said this."""
    if running is HolderActivity.NOTHING or (running is HolderActivity.STEP and not trial.input):
        return trial
    blamed = trial.blamed
    if trial.incarnation:  # else it was written by a release that did not say who it was
        blamed = [*blamed, Blamed(trial.worker, trial.incarnation, running)][-BLAMED_MAX:]
    return msgspec.structs.replace(
        trial,
        blamed=blamed,
        step_deaths=trial.step_deaths + (running is HolderActivity.STEP),
        restore_deaths=trial.restore_deaths + (running is HolderActivity.RESTORE),
    )


def _forgotten(trial: CrashTrial, running: HolderActivity) -> CrashTrial:
    """Without the deaths of one kind: what they were about is past."""
    blamed = [each for each in trial.blamed if each.running is not running]
    if running is HolderActivity.RESTORE:
        return msgspec.structs.replace(trial, blamed=blamed, restore_deaths=0, quarantines=0, verdict="")
    return msgspec.structs.replace(
        trial, blamed=blamed, step_deaths=0, input=b"", acquitted=0, running=_not_step(trial.running)
    )


def _not_step(running: HolderActivity) -> HolderActivity:
    return HolderActivity.NOTHING if running is HolderActivity.STEP else running


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


def is_suspect(trial: CrashTrial | None) -> bool:
    """Whether a process may have died of restoring this world. It may have died of something else it did meanwhile."""
    return trial is not None and (trial.running is HolderActivity.RESTORE or trial.restore_deaths > 0)


# --- What a holder says ----------------------------------------------------------------------------------------------


def begin(batch: kv.Batch, known: TrialAndHead, trial: CrashTrial) -> None:
    """Part of an acquire. Expects trial and head as they were read: the holder before may still be alive."""
    expect(batch, known)
    keep(batch, known.at, trial)


def expect(batch: kv.Batch, known: TrialAndHead) -> None:
    """Nothing has changed since this was read."""
    _expect(batch, known.at, known.raw)
    batch.expect(journal_keys.head_key(known.at), known.head_raw)


def expect_silent(batch: kv.Batch, heartbeat: leases.HeartbeatRecord) -> None:
    """Part of an acquire that counts a worker as dead: its heartbeat has expired, and is as it was read."""
    batch.expect(lease_keys.worker_key(heartbeat.worker), heartbeat.raw)


def left_behind(batch: kv.Batch, known: TrialAndHead, *, epoch: int) -> None:
    """Part of a release on behalf of a dead holder: the next one must see that it did not release the world."""
    _expect(batch, known.at, known.raw)
    # A trial that is there already says as much, and more.
    if known.raw is None:
        batch.put(keys.trial_key(known.at), keys.TRIAL.pack(CrashTrial(epoch, known.head.step, HolderActivity.NOTHING)))


def restored(batch: kv.Batch, held: leases.Lease, trial: CrashTrial) -> CrashTrial:
    """The world is back in memory. Guard: the trial as this holder wrote it."""
    done = _forgotten(trial, HolderActivity.RESTORE)
    return _change(batch, held, trial, msgspec.structs.replace(done, running=HolderActivity.NOTHING))


def mark(
    batch: kv.Batch,
    held: leases.Lease,
    trial: CrashTrial | None,
    *,
    step: int,
    input_digest: bytes,
    beside: bool = False,
) -> CrashTrial:
    """Code runs from now on, in the step over this input. Guard: the trial as this holder wrote it."""
    about = _about(held, trial, step=step, input_digest=input_digest)
    return _change(batch, held, trial, msgspec.structs.replace(about, running=HolderActivity.STEP, beside=beside))


def returned(batch: kv.Batch, held: leases.Lease, trial: CrashTrial) -> CrashTrial:
    """The code that was marked has returned. Guard: as for `mark`."""
    return _change(batch, held, trial, msgspec.structs.replace(trial, running=HolderActivity.NOTHING))


def hold_against(
    batch: kv.Batch, held: leases.Lease, trial: CrashTrial | None, *, step: int, input_digest: bytes
) -> CrashTrial:
    """A step over this input did not end cleanly, though its process lives. Guard: as for `mark`."""
    about = _about(held, trial, step=step, input_digest=input_digest)
    return _change(
        batch,
        held,
        trial,
        msgspec.structs.replace(about, running=HolderActivity.NOTHING, step_deaths=about.step_deaths + 1),
    )


def innocent(batch: kv.Batch, held: leases.Lease, trial: CrashTrial, running: HolderActivity) -> CrashTrial:
    """A last attempt in a child process has survived a step or a restore: what was counted was not its fault. Guard: as
    for `mark`.
    """
    if running is HolderActivity.RESTORE:
        after = _forgotten(trial, HolderActivity.RESTORE)
    else:
        blamed = [each for each in trial.blamed if each.running is not HolderActivity.STEP]
        after = msgspec.structs.replace(trial, step_deaths=0, blamed=blamed, acquitted=trial.acquitted + 1)
    return _change(batch, held, trial, after)


def take_off(batch: kv.Batch, held: leases.Lease, trial: CrashTrial, living: Collection[bytes]) -> CrashTrial:
    """Holders that were counted as dead live. Guard: as for `mark`."""
    return _change(batch, held, trial, acquitted_by(trial, living))


def raised_over(trial: CrashTrial | None, *, step: int, input_digest: bytes) -> Raised | None:
    """How often, and what, the kernel raised in the step over this input at this head."""
    raised = None if trial is None else trial.raised
    return raised if raised is not None and (raised.step, raised.input) == (step, input_digest) else None


def count_raised(
    batch: kv.Batch, held: leases.Lease, trial: CrashTrial | None, *, step: int, input_digest: bytes, said: str
) -> CrashTrial:
    """The kernel raised in the step over this input. Guard: as for `mark`."""
    known = raised_over(trial, step=step, input_digest=input_digest)
    raised = Raised(step, input_digest, 1 if known is None else known.times + 1, said)
    # What was counted of deaths stays: that the kernel raises is another matter.
    before = _about(held, None, step=step, input_digest=input_digest) if trial is None else trial
    return _change(batch, held, trial, msgspec.structs.replace(before, running=HolderActivity.NOTHING, raised=raised))


def clear(batch: kv.Batch, at: ids.Address) -> None:
    """Part of a step, of a release, or of a person's `resume`."""
    batch.delete(keys.trial_key(at))


def pause(batch: kv.Batch, at: ids.Address, trial: CrashTrial) -> None:
    """Part of a release by a holder that could not run the world: what was counted stays."""
    batch.put(keys.trial_key(at), keys.TRIAL.pack(msgspec.structs.replace(trial, running=HolderActivity.NOTHING)))


def keep(batch: kv.Batch, at: ids.Address, trial: CrashTrial) -> None:
    """Part of a batch that expects what this is made of."""
    batch.put(keys.trial_key(at), keys.TRIAL.pack(trial))


# --- Quarantine ------------------------------------------------------------------------------------------------------


def quarantined(trial: CrashTrial, *, until_us: int, verdict: str) -> CrashTrial:
    """What is kept while a world is paused because processes die restoring it."""
    return msgspec.structs.replace(
        trial, running=HolderActivity.NOTHING, until_us=until_us, quarantines=trial.quarantines + 1, verdict=verdict
    )


def is_over(trial: CrashTrial | None, *, now_us: int, longest_us: int) -> bool:
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


def _about(held: leases.Lease, trial: CrashTrial | None, *, step: int, input_digest: bytes) -> CrashTrial:
    """The trial of this holder over this input: deaths over another one, or at another head, do not count."""
    if trial is None:
        return CrashTrial(
            held.epoch, step, HolderActivity.NOTHING, input_digest, worker=held.worker, incarnation=held.incarnation
        )
    same = (trial.step, trial.input) == (step, input_digest)
    about = trial if same else _forgotten(trial, HolderActivity.STEP)
    return msgspec.structs.replace(
        about,
        epoch=held.epoch,
        step=step,
        input=input_digest,
        worker=held.worker,
        incarnation=held.incarnation,
        beside=False,
    )


def _change(batch: kv.Batch, held: leases.Lease, old_trial: CrashTrial | None, after: CrashTrial) -> CrashTrial:
    leases.fence(batch, held)
    # This holder wrote the trial itself, and packing is canonical: these are the stored bytes.
    _expect(batch, held.at, None if old_trial is None else keys.TRIAL.pack(old_trial))
    batch.put(keys.trial_key(held.at), keys.TRIAL.pack(after))
    return after


def _expect(batch: kv.Batch, at: ids.Address, raw: bytes | None) -> None:
    if raw is None:
        batch.absent(keys.trial_key(at))
    else:
        batch.expect(keys.trial_key(at), raw)
