"""Saving a world's state: when, and as what.

A snapshot is recorded beside the journal and made the baseline, from which the next restore begins.
"""

from __future__ import annotations

from worldline.base import env as envs
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import leases, snapshots
from worldline.model import snapshot as snapshot_model
from worldline.model.settings import WorkerSettings
from worldline.roles import restore
from worldline.roles.world.held_world import HeldWorld
from worldline.store import kv, transact


def wants_saving(held: HeldWorld, settings: WorkerSettings, now_us: int) -> bool:
    """Snapshots by policy: after so many entries, after so much time, and when a world with live runs falls quiet."""
    if not held.entries_since or now_us < held.save_again_us:
        return False
    if held.entries_since >= settings.snapshot_entries:
        return True
    if now_us - held.saved_us >= settings.snapshot_ms * 1000:
        return True
    quiet = not held.busy and now_us - held.active_us >= settings.snapshot_idle_ms * 1000
    return quiet and any(held.machine.live.values())


def due_us(held: HeldWorld, settings: WorkerSettings) -> int:
    """When a world wants to be saved or let go, if nothing happens to it until then."""
    release_us = held.active_us + settings.idle_release_ms * 1000
    if not held.entries_since:
        return release_us
    save_us = held.saved_us + settings.snapshot_ms * 1000
    if held.entries_since >= settings.snapshot_entries:
        save_us = held.save_again_us
    elif held.busy or any(held.machine.live.values()):  # a busy one cannot be asked now
        save_us = min(save_us, held.active_us + settings.snapshot_idle_ms * 1000)
    return min(release_us, max(held.save_again_us, save_us))


async def save(engine: kv.Engine, env: envs.Env, held: HeldWorld, parts: list[bytes]) -> transact.Certain:
    """Put a snapshot's parts away, record it and make it the baseline."""
    root, size = await restore.save_parts(held.blobs, parts)
    taken = snapshots.at_head(held.head, root=root, size=size, program_hash=held.program.hash)
    batch = kv.Batch()
    leases.fence(batch, held.lease)
    raw = new_baseline(batch, held, taken)
    [outcome] = await transact.commit(engine, env, batch)
    if isinstance(outcome, kv.Ok):
        held.rebased(taken, raw)
    return outcome


def new_baseline(batch: kv.Batch, held: HeldWorld, taken: snapshot_model.Snapshot) -> bytes:
    """Record a snapshot and make it the baseline, in a batch that fences. Returns the baseline's bytes."""
    saved = snapshots.save(batch, held.at, taken)
    snapshots.promote(batch, held.at, before_raw=held.baseline_raw, to=saved)
    return snapshot_keys.BASELINE.pack(taken)
