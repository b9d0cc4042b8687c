"""Saving a world's state: when, and as what.

A snapshot is recorded beside the journal and made the baseline, from which the next restore begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import probes
from worldline.kernel import state_rows as kernel_snapshots
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import leases, snapshots, universes
from worldline.layers.history import saved_state
from worldline.layers.history.saved_state import Compute
from worldline.model import ids, row_keys
from worldline.model import snapshots as snapshot_model
from worldline.model.settings import WorkerSettings
from worldline.model.trie.unsaved import SMALL_BYTES, Unsaved
from worldline.model.trie.update import Update
from worldline.runtime.holder_job import HolderJob, SupersededSnapshots
from worldline.store import kv, transact
from worldline.worker.held_world import HeldWorld

SAVES_MAX = 3  # of one state, if collections begin meanwhile
UNSAVED_SHARE = 4  # of the memory for cells, a quarter may be changes that are not saved


def wants_saving(held: HeldWorld, settings: WorkerSettings, now_us: int) -> bool:
    """Snapshots by policy: after so many entries or bytes, after so much time, and when a world with live runs falls
    quiet. A fork is saved at once, so that it needs its parent no longer.
    """
    if not held.entries_since or now_us < held.save_again_us:
        return False
    if held.entries_since >= settings.snapshot_entries or held.leans or held.unsaved.bytes > bytes_max(settings):
        return True
    if now_us - held.saved_us >= settings.snapshot_ms * 1000:
        return True
    quiet = not held.busy and now_us - held.active_us >= settings.snapshot_idle_ms * 1000
    return quiet and any(held.machine.live.values())


def bytes_max(settings: WorkerSettings) -> int:
    """How many bytes may have changed in a state before it is saved: they are kept in memory until then, by the side of
    cells.
    """
    return max(settings.cells_memory_max // UNSAVED_SHARE, SMALL_BYTES)


def due_us(held: HeldWorld, settings: WorkerSettings) -> int:
    """When a world wants to be saved or released, if nothing happens to it until then."""
    release_us = held.active_us + settings.idle_release_ms * 1000
    if not held.entries_since:
        return release_us
    save_us = held.saved_us + settings.snapshot_ms * 1000
    if held.entries_since >= settings.snapshot_entries or held.leans or held.unsaved.bytes > bytes_max(settings):
        save_us = held.save_again_us
    elif held.busy or any(held.machine.live.values()):  # a busy one cannot be asked now
        save_us = min(save_us, held.active_us + settings.snapshot_idle_ms * 1000)
    return min(release_us, max(held.save_again_us, save_us))


async def save(
    engine: kv.Engine, env: envs.Env, held: HeldWorld, compute: Compute, jobs: Sequence[HolderJob]
) -> transact.Certain:
    """Put the state away, record it as a snapshot and make it the baseline. `compute` calls a function in the kernel's
    thread. Snapshots that nothing needs any more, as one of the `jobs` says, go in the same batch, so that a world that
    is saved often and does little does not gather them.

    Nodes that are shared with the last baseline are not put again: that baseline is expected to be there still.
    """
    tries = 0
    dropping = True
    age_us = 0
    while True:
        tries += 1
        # Before anything is put: the commit expects it, so no blob of this state was collected meanwhile.
        generation = await held.blobs.generation()
        state, keys = await _save_state(held, compute)
        taken = snapshots.at_head(held.head, root=state.root, size=state.header.size, program_hash=held.program.hash)
        going = SupersededSnapshots(age_us=age_us)
        if dropping and not universes.is_marking(generation.raw):  # a mark must find what it began with
            going = await _superseded(jobs, held.at, taken)
            age_us = going.age_us
        taken = msgspec.structs.replace(taken, age_us=age_us)
        batch = kv.Batch()
        leases.fence(batch, held.lease)
        raw = new_baseline(batch, held, taken)
        generation.expect(batch)
        if going.snapshots:
            snapshots.expect_pins(batch, held.at, going.pins_raw)
            snapshots.drop(batch, held.at, going.snapshots)
        [outcome] = await transact.commit(engine, env, batch)
        if isinstance(outcome, kv.Ok):
            held.rebased(taken, raw, state.header, keys)
            return outcome
        if tries == SAVES_MAX:
            return outcome
        if going.snapshots:  # a fork was made meanwhile, perhaps: saving must not wait for a moment without any
            probes.hit("snapshot.not-dropped")
            dropping = False
        elif universes.is_collected(outcome, held.at.universe):
            probes.hit("snapshot.collected-meanwhile")
        else:
            return outcome


async def _superseded(
    jobs: Sequence[HolderJob], at: ids.Address, taken: snapshot_model.StateSnapshot
) -> SupersededSnapshots:
    """Ask which snapshots go with this one. The first job that answers decides; without an answer, all of them stay."""
    for job in jobs:
        found = await job.superseded(at, taken)
        if found is not None:
            return found
    return SupersededSnapshots()


async def _save_state(held: HeldWorld, compute: Compute) -> tuple[saved_state.SavedState, list[bytes] | None]:
    """Save the state at the head, as far as it is not; or, if that is not known, all of it. Then the keys of its rows
    are told, too.
    """
    unsaved = held.unsaved
    if not unsaved.tracked:
        state, keys = await compute(_whole, held)
        return await saved_state.save(held.blobs, state), keys
    if unsaved.lacking:
        base = await saved_state.load(held.blobs, held.baseline.root)
        unsaved.find([key for key, _ in await compute(base.rows) if key.startswith(row_keys.CELL)])
    updating = await compute(_update, unsaved)
    state = held.machine.state
    return await saved_state.save_changed(held.blobs, updating, compute, state=state, size_before=unsaved.size), None


def _whole(held: HeldWorld) -> tuple[saved_state.StateBlobs, list[bytes]]:
    rows = kernel_snapshots.rows_of(held.machine)
    return saved_state.whole(held.machine.state, rows), [key for key, _ in rows]


def _update(unsaved: Unsaved) -> Update:
    return Update(unsaved.root, unsaved.changed())


def new_baseline(batch: kv.Batch, held: HeldWorld, taken: snapshot_model.StateSnapshot) -> bytes:
    """Record a snapshot and make it the baseline, in a batch that fences. Returns the baseline's bytes."""
    saved = snapshots.save(batch, held.at, taken)
    snapshots.promote(batch, held.at, before_raw=held.baseline_raw, to=saved)
    # Its own state is the baseline from here on: the parent's snapshot need not stay for it.
    if held.leans and held.lineage is not None:
        snapshots.unpin(batch, held.at, held.lineage, height=held.baseline.height)
    return snapshot_keys.BASELINE.pack(taken)
