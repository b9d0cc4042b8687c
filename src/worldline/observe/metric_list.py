"""Every metric of the core: its kind, what it counts, its labels. `docs/metrics.md` explains each, and the features'.

Durations are in seconds and sizes in bytes, as is the custom in Prometheus. A gauge without labels is reported as 0 by
a process that knows no value, unless it is `optional`; one with labels only by a process that has measured it. Labels
take few values: no world, run or worker is ever one. `VALUES` has those of labels whose values are known beforehand: a
counter that has only such labels is there from the beginning, with 0, so that a rise from nothing is seen as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from worldline.cluster import backlog_count
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import INPUTS, Kind
from worldline.runtime import facts, metric_table, placement
from worldline.runtime.feature import Feature
from worldline.runtime.metric_table import SECONDS, Metric, MetricTable, counter, gauge, histogram

FINE_SECONDS = (0.0001, 0.00025, 0.0005, *SECONDS)  # of what may take less than a millisecond
LONG_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
BYTES = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)

METRICS: dict[str, Metric] = {
    # Inputs from outside, where they are given.
    "worldline_inputs_entered_total": counter("Inputs from outside that became durable.", "via"),
    "worldline_input_entry_seconds": histogram("From giving an input until it is durable.", "via"),
    "worldline_inputs_refused_total": counter("Inputs from outside refused as overload.", "why"),
    # Worlds.
    "worldline_inputs_total": counter("Inputs journaled.", "kind"),
    "worldline_inputs_taken_total": counter("Inputs journaled, by the way they came.", "via"),
    "worldline_inputs_bad_total": counter("Inputs that a world could not take.", "why"),
    "worldline_dead_letters_total": counter("Inputs that became dead letters."),
    "worldline_input_wait_seconds": histogram("From when the holder knew of an input until it was journaled."),
    "worldline_steps_total": counter("Steps journaled."),
    "worldline_entries_total": counter("Entries journaled."),
    "worldline_commits_total": counter("Commits of worlds: several steps of one world are one."),
    "worldline_commit_steps": histogram("Steps of one commit.", bounds=COUNTS),
    "worldline_cycles_total": counter("Cycles of the world worker."),
    "worldline_cycle_seconds": histogram("Length of a cycle: read, step, commit, act."),
    "worldline_cycle_worlds": histogram("Worlds of one cycle.", bounds=COUNTS),
    "worldline_messages_sent_total": counter("Messages to other worlds."),
    "worldline_worlds_dropped_total": counter(
        "Worlds dropped from memory: their commit or their lease was lost.", "why"
    ),
    "worldline_worlds_refused_total": counter("Times a world could not be run here and was left alone.", "why"),
    "worldline_step_deaths_total": counter("Steps that did not end in order, held against their inputs.", "how"),
    "worldline_restore_deaths_total": counter("Processes that died while they restored a world."),
    "worldline_last_attempts_total": counter("Steps and restores tried in a child process, by how it ended.", "end"),
    "worldline_runs_blocked_total": counter("Times a run was blocked, because its code does not fit its record."),
    "worldline_quarantines_total": counter("Worlds paused because processes died while they restored them."),
    "worldline_worlds_held": gauge("Worlds in memory."),
    "worldline_cells_in_memory": gauge("Cells in memory, of all worlds."),
    "worldline_cold_misses_total": counter("Cells that were not in memory and that a step had to wait for."),
    "worldline_inputs_waiting": gauge("Inputs from outside that wait for their step in this process."),
    # Leases, restores, snapshots.
    "worldline_leases_acquired_total": counter("Leases acquired."),
    "worldline_failovers_total": counter("Leases acquired of worlds whose holder before did not release them."),
    "worldline_leases_released_total": counter("Leases released in order."),
    "worldline_self_fences_total": counter("Times a worker released all worlds because its heartbeat was late."),
    "worldline_heartbeat_seconds": histogram("Writing the heartbeat."),
    "worldline_restore_seconds": histogram("From asking for a lease until its world can run."),
    "worldline_snapshots_total": counter("Snapshots saved."),
    "worldline_snapshots_failed_total": counter("Snapshots that could not be made of a world's state."),
    "worldline_snapshot_seconds": histogram("Saving one snapshot."),
    "worldline_snapshot_bytes": histogram("Size of a snapshot.", bounds=BYTES),
    "worldline_segments_total": counter("Segments written: old entries of a world, compacted."),
    "worldline_segment_bytes_total": counter("Bytes of segments written."),
    "worldline_frames_deleted_total": counter("Frames whose entries are in segments now."),
    "worldline_snapshots_dropped_total": counter("Snapshots that nothing needed any more."),
    "worldline_entries_dropped_total": counter("Entries that are not kept any more."),
    "worldline_compactions_failed_total": counter("Compactions that could not be done."),
    # Proofs in the background.
    "worldline_proved_steps_total": counter("Steps that were run again and came out the same."),
    "worldline_proof_seconds": histogram("One slice of a proof: how long its thread was at work."),
    "worldline_proofs_diverged_total": counter("Worlds whose code did not do again what the journal says."),
    "worldline_worlds_diverged": gauge("Worlds whose code this process has found not to do the same again."),
    # Effects and timers.
    "worldline_effects_opened_total": counter("Effects asked for.", "effect"),
    "worldline_effects_cancelled_total": counter("Effects that their world no longer wanted.", "effect"),
    "worldline_effects_claimed_total": counter("Claims: `commit`, with the step that asked, or `queue`.", "via"),
    "worldline_effect_attempts_total": counter("Attempts that ended.", "effect", "outcome"),
    "worldline_effect_attempt_seconds": histogram("Length of an attempt, external calls included.", "effect"),
    "worldline_effects_answered_total": counter("Results of effects sent to their worlds.", "effect", "status"),
    "worldline_effect_seconds": histogram("From the step that asked until the result was journaled.", "effect"),
    "worldline_effects_running": gauge("Attempts that are running."),
    "worldline_timers_set_total": counter("Timers set."),
    "worldline_timers_fired_total": counter("Timers fired."),
    "worldline_timer_late_seconds": histogram("How late a timer fired."),
    # The orchestrator and the janitor.
    "worldline_orchestrator_turn_seconds": histogram("One turn of the orchestrator: look, choose, write."),
    "worldline_placements_total": counter("Assignments of worlds that were written.", "why"),
    "worldline_moves_total": counter("Those for which the worker that holds the world is to let go.", "why"),
    "worldline_reaped_workers_total": counter("Dead workers whose records this process has removed."),
    "worldline_reaped_leases_total": counter("Leases that this process has ended for dead workers."),
    "worldline_janitor_round_seconds": histogram("One round of the janitor, its pauses included.", bounds=LONG_SECONDS),
    "worldline_janitor_cleared_total": counter("What the janitor has removed.", "what"),
    "worldline_collections_total": counter("Garbage collections that have ended."),
    "worldline_collections_failed_total": counter("Garbage collections that were given up.", "why"),
    "worldline_collection_seconds": histogram("One garbage collection, its pauses included.", bounds=LONG_SECONDS),
    "worldline_collection_blobs_total": counter("What became of blobs in garbage collections.", "what"),
    "worldline_collection_deleted_bytes_total": counter("Bytes that garbage collections have deleted.", "what"),
    # The backlog of a universe.
    "worldline_backlog_worlds": gauge("Worlds.", "universe", "status"),
    "worldline_backlog_unread": gauge("Unread inbox items, at least.", "universe", "status"),
    "worldline_backlog_unread_worlds": gauge("Worlds with something unread.", "universe", "status"),
    "worldline_backlog_unread_age_seconds": gauge("Age of the oldest unread item, at least.", "universe", "status"),
    "worldline_backlog_unhosted_worlds": gauge("Worlds with something unread that no live worker holds.", "universe"),
    "worldline_backlog_dead_letters": gauge("Dead letters, at least.", "universe"),
    "worldline_backlog_dead_letter_age_seconds": gauge("How long the oldest dead letter has been one.", "universe"),
    "worldline_backlog_open": gauge("Open effects and timers.", "universe", "kind", "state"),
    "worldline_backlog_overdue": gauge("Effects and timers that are due and not done.", "universe", "kind"),
    "worldline_backlog_overdue_age_seconds": gauge("How long the oldest of those is due.", "universe", "kind"),
    "worldline_backlog_workers": gauge("Workers with a heartbeat.", "universe", "state"),
    "worldline_backlog_measured_timestamp_seconds": gauge("When this part was last measured.", "universe", "part"),
    # The store and the process.
    "worldline_store_read_seconds": histogram("One read call to the store.", "engine", bounds=FINE_SECONDS),
    "worldline_store_commit_seconds": histogram("One commit call to the store.", "engine"),
    "worldline_store_batches_total": counter("Batches given to the store.", "outcome"),
    "worldline_store_written_bytes_total": counter("Bytes of keys and values written, by what they are for.", "kind"),
    "worldline_store_errors_total": counter("Calls to the store that failed.", "engine", "call", "code"),
    "worldline_object_seconds": histogram("One call to the object store.", "engine", "call"),
    "worldline_object_bytes_total": counter("Bytes put into the object store or got from it.", "engine", "call"),
    "worldline_object_errors_total": counter("Calls to the object store that failed.", "engine", "call", "code"),
    "worldline_disk_free_bytes": gauge("Free bytes of the disk with the store's folder.", optional=True),
    "worldline_disk_bytes": gauge("Size of the disk with the store's folder.", optional=True),
    "worldline_process_start_timestamp_seconds": gauge("When the process opened its store.", optional=True),
    "worldline_cache_hits": gauge("Objects of S3 found in the cache on disk, since the process began."),
    "worldline_cache_misses": gauge("Objects of S3 not found in the cache on disk, since the process began."),
    "worldline_loop_lag_seconds": histogram("How late the event loop was with something that was due."),
    "worldline_hangs_total": counter("Cycles that took longer than the hang limit."),
    "worldline_role_errors_total": counter("Turns of a role that failed.", "role", "bug"),
    "worldline_sink_errors_total": counter("Times a sink raised.", "sink"),
}

BAD_INPUTS = (Kind.UNDECODABLE_INPUT, Kind.HANDLER_FAILED, Kind.LATE_ANSWER)

_VIA = ("inbox", "handover")

VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("worldline_inputs_entered_total", "via"): _VIA,
    ("worldline_input_entry_seconds", "via"): _VIA,
    ("worldline_inputs_refused_total", "why"): get_args(facts.Why),
    ("worldline_inputs_total", "kind"): tuple(each.name.lower() for each in INPUTS),
    ("worldline_inputs_taken_total", "via"): _VIA,
    ("worldline_inputs_bad_total", "why"): tuple(each.name.lower() for each in BAD_INPUTS),
    ("worldline_worlds_dropped_total", "why"): get_args(facts.DropReason),
    ("worldline_worlds_refused_total", "why"): get_args(facts.RefusalKind),
    ("worldline_step_deaths_total", "how"): get_args(facts.Death),
    ("worldline_last_attempts_total", "end"): get_args(facts.TriedEnd),
    ("worldline_effects_claimed_total", "via"): ("commit", "queue"),
    ("worldline_effect_attempts_total", "outcome"): get_args(facts.Outcome),
    ("worldline_effects_answered_total", "status"): tuple(each.name.lower() for each in ReceiptStatus),
    ("worldline_placements_total", "why"): tuple(each.replace(" ", "_") for each in get_args(placement.Reason)),
    ("worldline_moves_total", "why"): tuple(each for each in get_args(facts.Move) if each),
    ("worldline_janitor_cleared_total", "what"): get_args(facts.Clearable),
    ("worldline_collections_failed_total", "why"): get_args(facts.CollectTrouble),
    ("worldline_collection_blobs_total", "what"): ("condemned", "spared", "deleted", "orphans"),
    ("worldline_collection_deleted_bytes_total", "what"): ("blobs", "orphans"),
    ("worldline_backlog_worlds", "status"): backlog_count.STATUSES,
    ("worldline_backlog_unread", "status"): backlog_count.STATUSES,
    ("worldline_backlog_unread_worlds", "status"): backlog_count.STATUSES,
    ("worldline_backlog_unread_age_seconds", "status"): backlog_count.STATUSES,
    ("worldline_backlog_open", "kind"): backlog_count.KINDS,
    ("worldline_backlog_open", "state"): backlog_count.STATES,
    ("worldline_backlog_overdue", "kind"): backlog_count.KINDS,
    ("worldline_backlog_overdue_age_seconds", "kind"): backlog_count.KINDS,
    ("worldline_backlog_workers", "state"): ("alive", "draining", "dead"),
    ("worldline_backlog_measured_timestamp_seconds", "part"): ("worlds", "open", "due"),
    ("worldline_store_batches_total", "outcome"): ("ok", "conflict", "unknown"),
    ("worldline_store_errors_total", "call"): get_args(facts.StoreCall),
    ("worldline_object_seconds", "call"): get_args(facts.ObjectCall),
    ("worldline_object_bytes_total", "call"): get_args(facts.ObjectCall),
    ("worldline_object_errors_total", "call"): get_args(facts.ObjectCall),
    ("worldline_role_errors_total", "bug"): ("yes", "no"),
}


CORE = MetricTable(METRICS, VALUES)


def table(features: Sequence[Feature]) -> MetricTable:
    """All metrics of a process with these features."""
    return metric_table.joined([CORE, *(each.measures for each in features)])
