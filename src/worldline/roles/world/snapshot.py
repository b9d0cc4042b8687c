"""Saving a world's state: when, and as what.

A snapshot is recorded beside the journal and made the baseline, from which the next restore begins.
"""

from __future__ import annotations

from worldline.base import env as envs
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import leases, snapshots
from worldline.model import snapshot as snapshot_model
from worldline.model.settings import WorkerSettings
from worldline.roles.world import restore
from worldline.roles.world.held_world import Hosted
from worldline.store import kv, transact


def wants_saving(hosted: Hosted, settings: WorkerSettings, now_us: int) -> bool:
    """Snapshots by policy: after so many entries, after so much time, and when a world with live runs falls quiet."""
    if not hosted.entries_since or now_us < hosted.save_again_us:
        return False
    if hosted.entries_since >= settings.snapshot_entries:
        return True
    if now_us - hosted.saved_us >= settings.snapshot_ms * 1000:
        return True
    quiet = not hosted.busy and now_us - hosted.active_us >= settings.snapshot_idle_ms * 1000
    return quiet and any(hosted.machine.live.values())


def due_us(hosted: Hosted, settings: WorkerSettings) -> int:
    """When a world wants to be saved or let go, if nothing happens to it until then."""
    release_us = hosted.active_us + settings.idle_release_ms * 1000
    if not hosted.entries_since:
        return release_us
    save_us = hosted.saved_us + settings.snapshot_ms * 1000
    if hosted.entries_since >= settings.snapshot_entries:
        save_us = hosted.save_again_us
    elif hosted.busy or any(hosted.machine.live.values()):  # a busy one cannot be asked now
        save_us = min(save_us, hosted.active_us + settings.snapshot_idle_ms * 1000)
    return min(release_us, max(hosted.save_again_us, save_us))


async def save(engine: kv.Engine, env: envs.Env, hosted: Hosted, parts: list[bytes]) -> transact.Certain:
    """Put a snapshot's parts away, record it and make it the baseline."""
    root, size = await restore.save_parts(hosted.blobs, parts)
    taken = snapshots.at_head(hosted.head, root=root, size=size, program_hash=hosted.program.hash)
    batch = kv.Batch()
    leases.fence(batch, hosted.lease)
    raw = new_baseline(batch, hosted, taken)
    [outcome] = await transact.commit(engine, env, batch)
    if isinstance(outcome, kv.Ok):
        hosted.baseline, hosted.baseline_raw, hosted.entries_since = taken, raw, 0
    return outcome


def new_baseline(batch: kv.Batch, hosted: Hosted, taken: snapshot_model.Snapshot) -> bytes:
    """Record a snapshot and make it the baseline, in a batch that fences. Returns the baseline's bytes."""
    saved = snapshots.save(batch, hosted.at, taken)
    snapshots.promote(batch, hosted.at, before_raw=hosted.baseline_raw, to=saved)
    return snapshot_keys.BASELINE.pack(taken)
