"""Settings of the roles: frozen data with defaults, handed in by constructors."""

from __future__ import annotations

import msgspec


class WorkerSettings(msgspec.Struct, frozen=True):
    """How a world worker behaves. None of these changes an outcome; they decide when and how much at a time."""

    lease_ttl_ms: int = 10_000
    heartbeat_ms: int = 2_500
    scan_ms: int = 10_000  # how long a lost hint can go unnoticed
    max_inbox_batch: int = 256
    max_tick_steps_per_cycle: int = 1_024  # of one world
    max_effects_per_cycle: int = 1_024  # asked for by one world
    max_cycle_wall_ms: int = 250
    max_worlds_per_cycle: int = 256
    max_worlds_warm: int = 4_096
    idle_release_ms: int = 60_000
    snapshot_entries: int = 5_000
    snapshot_ms: int = 300_000
    snapshot_idle_ms: int = 2_000  # a world with live runs is saved when it falls quiet, so that new code can be judged
    run_outcomes_warn: int = 10_000
    labels: dict[str, str] = {}  # said with every life sign; what pins and needs of worlds are compared with


class AdapterSettings(msgspec.Struct, frozen=True):
    claim_ttl_ms: int = 15_000
    renew_ms: int = 5_000
    scan_ms: int = 5_000
    concurrency: int = 256
    claim_batch: int = 64
    shards: int = 1


class TimerSettings(msgspec.Struct, frozen=True):
    scan_ms: int = 5_000
    batch: int = 512
    shards: int = 1


class OrchestratorSettings(msgspec.Struct, frozen=True):
    turn_ms: int = 1_000
    moves_max: int = 32  # worlds moved for balance in one turn


class JanitorSettings(msgspec.Struct, frozen=True):
    turn_ms: int = 1_000  # between turns of a round
    round_ms: int = 600_000  # between rounds through everything
    worlds_max: int = 256  # looked at in one turn


class PressureSettings(msgspec.Struct, frozen=True):
    """When inputs from outside are refused (`Overloaded`). All are estimates; 0 means without bound.

    What worlds send each other, receipts, timers and control are never refused.
    """

    inbox_items_max: int = 10_000  # unread, of one world
    inbox_bytes_max: int = 8 * 1024 * 1024
    open_effects_max: int = 50_000  # of a universe: waiting for an adapter, or with one
    waiting_world_max: int = 10_000  # handed over to one world of a process and not yet journaled
    waiting_max: int = 50_000  # to all worlds of a process
    sample_ms: int = 1_000  # how old an estimate may be


class Settings(msgspec.Struct, frozen=True):
    worker: WorkerSettings = WorkerSettings()
    adapter: AdapterSettings = AdapterSettings()
    timer: TimerSettings = TimerSettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    janitor: JanitorSettings = JanitorSettings()
    pressure: PressureSettings = PressureSettings()
    hang_ms: int = 30_000  # how long a cycle may take before somebody is told
    dedupe_window_ms: int = 24 * 3_600_000
    host_wait_ms: int = 30_000  # how long a caller waits while no process runs the world (`NotHosted`); 0: for ever


assert WorkerSettings().heartbeat_ms * 3 < WorkerSettings().lease_ttl_ms
assert AdapterSettings().renew_ms * 2 < AdapterSettings().claim_ttl_ms
