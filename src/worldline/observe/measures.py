"""Metrics: what facts add up to, as counters, histograms and gauges in memory.

`metric_list.table` has the whole list. A meter only counts; `prometheus.py` offers the counts, and a user's metrics
sink gets each measurement as it is made. Levels (how many worlds are held now) are not counted but read when metrics
are scraped; the backlog is a gauge that keeps its value until it is measured again.

Everything is updated on the event loop; a reader in another thread may be one update behind, and sees no torn numbers.

These are not `prometheus_client`'s own types: a user's sink works without that extra, and its types take up to eight
times as long for each of the dozen updates that a commit makes on the loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from worldline.base import limits
from worldline.keys import keyspace_table
from worldline.model.journal import INPUTS, Kind
from worldline.model.work import WorkKind
from worldline.observe import metric_list
from worldline.runtime import facts
from worldline.runtime.metric_table import MetricKind, MetricTable
from worldline.store import kv

SERIES_MAX = 1_000  # of one metric; label values that come after that are counted as OTHER
OTHER = "other"
OPEN_MAX = 100_000  # effects whose opening is remembered, to time their answers


class Measure(msgspec.Struct, frozen=True, gc=False):
    """One measurement, for a metrics sink: how much to add, what was observed, or what a gauge is now."""

    name: str
    kind: MetricKind
    value: float
    labels: dict[str, str]


Series = tuple[str, tuple[str, ...]]  # a metric's name, and the values of its labels


class Histogram:
    """Observations by the first bound that is not below them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Meter:
    """Counts facts. `sink` gets every measurement besides; the caller of `tell` catches what it raises. `table`: the
    metrics that there are.
    """

    def __init__(self, sink: Callable[[Measure], None] | None = None, *, table: MetricTable = metric_list.CORE) -> None:
        self._sink = sink
        self.table = table
        self.opened: dict[bytes, tuple[str, int]] = {}  # effects by intent: name, and when they were asked for
        self._known: dict[str, int] = {}  # series of each metric
        self.counters: dict[Series, float] = {}
        self.histograms: dict[Series, Histogram] = {}
        self.gauges: dict[Series, float] = {}
        self.levels: Callable[[], Mapping[str, float]] = dict
        self.failures: Callable[[], Mapping[str, int]] = dict  # of sinks

    def levels_from(self, levels: Callable[[], Mapping[str, float]]) -> None:
        """What is asked for the levels of the process."""
        self.levels = levels

    def failures_from(self, failures: Callable[[], Mapping[str, int]]) -> None:
        """What is asked how often each sink has failed."""
        self.failures = failures

    def tell(self, fact: facts.Fact) -> None:
        _MEASURES[type(fact)](self, fact)

    def add(self, name: str, by: float, *labels: str) -> None:
        if not by:  # nothing to add is no measurement for a sink
            return
        series = self._series(name, labels, self.counters)
        self.counters[series] = self.counters.get(series, 0) + by
        if self._sink is not None:
            self._sink(self._measure(series, by))

    def observe(self, name: str, value: float, *labels: str) -> None:
        series = self._series(name, labels, self.histograms)
        found = self.histograms.get(series)
        if found is None:
            found = self.histograms[series] = Histogram(self.table.metrics[name].bounds)
        found.observe(value)
        if self._sink is not None:
            self._sink(self._measure(series, value))

    def set(self, name: str, value: float, *labels: str) -> None:
        series = self._series(name, labels, self.gauges)
        self.gauges[series] = value
        if self._sink is not None:
            self._sink(self._measure(series, value))

    def value(self, name: str, *labels: str) -> float:
        """The value of a counter or a gauge, or how often a histogram was given one."""
        kind = self.table.metrics[name].kind
        if kind == "gauge":
            return self.gauges.get((name, labels), 0)
        if kind == "histogram":
            found = self.histograms.get((name, labels))
            return 0 if found is None else found.count
        return self.counters.get((name, labels), 0)

    def _measure(self, series: Series, value: float) -> Measure:
        name, labels = series
        metric = self.table.metrics[name]
        return Measure(name, metric.kind, value, dict(zip(metric.labels, labels, strict=True)))

    def _series(self, name: str, labels: tuple[str, ...], known: Mapping[Series, Any]) -> Series:
        """A metric with its labels; with others in their place if there are too many already."""
        series = (name, labels)
        # A known series stays itself above the bound: only new label values are counted together.
        if not labels or series in known:
            return series
        count = self._known.get(name, 0)
        if count >= SERIES_MAX:
            # User code chooses some label values, such as names of effects: they must not fill the memory.
            return (name, (OTHER,) * len(labels))
        self._known[name] = count + 1
        return series


# --- What each fact adds ----------------------------------------------------------------------------------------


def _entered(meter: Meter, fact: facts.Entered) -> None:
    via = "handover" if fact.handed else "inbox"
    meter.add("worldline_inputs_entered_total", 1, via)
    meter.observe("worldline_input_entry_seconds", _seconds(fact.ended_wall_us - fact.began_wall_us), via)


def _refused(meter: Meter, fact: facts.InputRefused) -> None:
    meter.add("worldline_inputs_refused_total", 1, fact.why)


def _committed(meter: Meter, fact: facts.StepsCommitted) -> None:
    kinds: dict[Kind, int] = {}
    for entry in fact.entries:
        kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
    for kind, count in kinds.items():
        if kind in INPUTS:
            meter.add("worldline_inputs_total", count, kind.name.lower())
        elif kind in metric_list.BAD_INPUTS:
            meter.add("worldline_inputs_bad_total", count, kind.name.lower())
        elif kind is Kind.RUN_BLOCKED:
            meter.add("worldline_runs_blocked_total", count)
    meter.add("worldline_inputs_taken_total", fact.read, "inbox")
    meter.add("worldline_inputs_taken_total", fact.handed, "handover")
    meter.add("worldline_dead_letters_total", len(fact.buried))
    meter.add("worldline_steps_total", fact.steps)
    meter.add("worldline_entries_total", len(fact.entries))
    meter.add("worldline_commits_total", 1)
    meter.observe("worldline_commit_steps", fact.steps)
    meter.add("worldline_messages_sent_total", len(fact.outgoing))
    meter.add("worldline_effects_claimed_total", fact.claimed, "commit")
    for waited_us in fact.waited_us:
        meter.observe("worldline_input_wait_seconds", _seconds(waited_us))
    _work(meter, fact)


def _work(meter: Meter, fact: facts.StepsCommitted) -> None:
    for wanted in fact.wanted:
        if wanted.kind is WorkKind.TIMER:
            meter.add("worldline_timers_set_total", 1)
        else:
            meter.add("worldline_effects_opened_total", 1, wanted.name)
            meter.opened[wanted.intent] = (wanted.name, wanted.opened_us)
            # The oldest goes: an effect that was opened so long ago only has no duration when it ends.
            if len(meter.opened) > OPEN_MAX:
                del meter.opened[next(iter(meter.opened))]
    for intent in fact.closed:
        # Missing if another process has opened it: then its duration is not known here.
        found = meter.opened.pop(intent, None)
        if found is not None:
            meter.observe("worldline_effect_seconds", _seconds(fact.store_us - found[1]), found[0])
    for cancelled in fact.cancelled:
        if cancelled.kind is WorkKind.EFFECT:
            meter.opened.pop(cancelled.intent, None)  # it is not timed: no answer comes
            meter.add("worldline_effects_cancelled_total", 1, cancelled.name)


def _cycled(meter: Meter, fact: facts.Cycled) -> None:
    meter.add("worldline_cycles_total", 1)
    meter.observe("worldline_cycle_seconds", _seconds(fact.us))
    meter.observe("worldline_cycle_worlds", fact.worlds)
    meter.add("worldline_cold_misses_total", fact.misses)


def _dropped(meter: Meter, fact: facts.WorldDropped) -> None:
    meter.add("worldline_worlds_dropped_total", 1, fact.why)


def _world_refused(meter: Meter, fact: facts.WorldRefused) -> None:
    meter.add("worldline_worlds_refused_total", 1, fact.kind)


def _step_died(meter: Meter, fact: facts.StepDied) -> None:
    meter.add("worldline_step_deaths_total", 1, fact.how)


def _last_attempt(meter: Meter, fact: facts.LastAttempt) -> None:
    meter.add("worldline_last_attempts_total", 1, fact.ended)


def _taken(meter: Meter, fact: facts.WorldTaken) -> None:
    meter.add("worldline_leases_acquired_total", 1)
    meter.add("worldline_failovers_total", int(fact.failover))
    meter.observe("worldline_restore_seconds", _seconds(fact.us))


def _saved(meter: Meter, fact: facts.BaselineSaved) -> None:
    meter.add("worldline_snapshots_total", 1)
    meter.observe("worldline_snapshot_seconds", _seconds(fact.us))
    meter.observe("worldline_snapshot_bytes", fact.size)


def _compacted(meter: Meter, fact: facts.WorldCompacted) -> None:
    meter.add("worldline_segments_total", fact.segments)
    meter.add("worldline_segment_bytes_total", fact.bytes)
    meter.add("worldline_frames_deleted_total", fact.frames)
    meter.add("worldline_snapshots_dropped_total", fact.snapshots)
    meter.add("worldline_entries_dropped_total", fact.expired)


def _proved(meter: Meter, fact: facts.Proved) -> None:
    meter.add("worldline_proved_steps_total", fact.steps)
    meter.observe("worldline_proof_seconds", _seconds(fact.us))


def _claimed(meter: Meter, fact: facts.ClaimsMade) -> None:
    meter.add("worldline_effects_claimed_total", fact.count, "queue")


def _attempted(meter: Meter, fact: facts.AttemptEnded) -> None:
    name = fact.claim.work.name
    meter.add("worldline_effect_attempts_total", 1, name, fact.outcome)
    meter.observe("worldline_effect_attempt_seconds", _seconds(fact.ended_wall_us - fact.began_wall_us), name)


def _answered(meter: Meter, fact: facts.EffectAnswered) -> None:
    meter.add("worldline_effects_answered_total", 1, fact.claim.work.name, fact.status.name.lower())


def _fired(meter: Meter, fact: facts.Fired) -> None:
    meter.add("worldline_timers_fired_total", 1)
    meter.observe("worldline_timer_late_seconds", _seconds(fact.late_us))


# --- The cluster, and its backlog -------------------------------------------------------------------------------


def _placed(meter: Meter, fact: facts.WorldPlaced) -> None:
    meter.add("worldline_placements_total", 1, fact.why.replace(" ", "_"))
    if fact.moves:
        meter.add("worldline_moves_total", 1, fact.moves)


def _reaped(meter: Meter, fact: facts.Reaped) -> None:
    meter.add("worldline_reaped_workers_total", int(fact.gone))
    meter.add("worldline_reaped_leases_total", fact.worlds)


def _cleared(meter: Meter, fact: facts.Cleared) -> None:
    meter.add("worldline_janitor_cleared_total", fact.count, fact.what)


def _collected(meter: Meter, fact: facts.GarbageCollected) -> None:
    meter.add("worldline_collections_total", 1)
    meter.observe("worldline_collection_seconds", _seconds(fact.us))
    for what in ("condemned", "spared", "deleted", "orphans"):
        meter.add("worldline_collection_blobs_total", getattr(fact, what), what)
    meter.add("worldline_collection_deleted_bytes_total", fact.deleted_bytes, "blobs")
    meter.add("worldline_collection_deleted_bytes_total", fact.orphans_bytes, "orphans")


def _collect_failed(meter: Meter, fact: facts.CollectFailed) -> None:
    meter.add("worldline_collections_failed_total", 1, fact.why)


def _worlds_counted(meter: Meter, fact: facts.WorldsCounted) -> None:
    of = fact.universe
    for status, count in fact.worlds.items():
        meter.set("worldline_backlog_worlds", count, of, status)
    for status, count in fact.unread.items():
        meter.set("worldline_backlog_unread", count, of, status)
        meter.set("worldline_backlog_unread_worlds", fact.unread_worlds[status], of, status)
        meter.set("worldline_backlog_unread_age_seconds", _seconds(fact.unread_age_us[status]), of, status)
    meter.set("worldline_backlog_unhosted_worlds", fact.unhosted, of)
    meter.set("worldline_backlog_dead_letters", fact.dead, of)
    meter.set("worldline_backlog_dead_letter_age_seconds", _seconds(fact.dead_age_us), of)
    for state, count in fact.workers.items():
        meter.set("worldline_backlog_workers", count, of, state)
    meter.set("worldline_backlog_measured_timestamp_seconds", _seconds(fact.wall_us), of, "worlds")


def _open_counted(meter: Meter, fact: facts.OpenCounted) -> None:
    for (kind, state), count in fact.work.items():
        meter.set("worldline_backlog_open", count, fact.universe, kind, state)
    meter.set("worldline_backlog_measured_timestamp_seconds", _seconds(fact.wall_us), fact.universe, "open")


def _due_counted(meter: Meter, fact: facts.DueCounted) -> None:
    for kind, count in fact.overdue.items():
        meter.set("worldline_backlog_overdue", count, fact.universe, kind)
        meter.set("worldline_backlog_overdue_age_seconds", _seconds(fact.overdue_age_us[kind]), fact.universe, kind)
    meter.set("worldline_backlog_measured_timestamp_seconds", _seconds(fact.wall_us), fact.universe, "due")


def _levels_measured(meter: Meter, fact: facts.LevelsMeasured) -> None:
    for each in fact.levels:
        meter.set(each.metric, each.value, *each.labels)


# --- The store and the process ----------------------------------------------------------------------------------


def _store_read(meter: Meter, fact: facts.StoreRead) -> None:
    meter.observe("worldline_store_read_seconds", _seconds(fact.us), fact.engine)


def _stored(meter: Meter, fact: facts.CommitAnswered) -> None:
    meter.observe("worldline_store_commit_seconds", _seconds(fact.us), fact.engine)
    outcomes = {"ok": 0, "conflict": 0, "unknown": 0}
    written: dict[str, int] = {}
    for batch, outcome in zip(fact.batches, fact.outcomes, strict=True):
        if isinstance(outcome, kv.Ok):
            outcomes["ok"] += 1
            _add_written(written, batch)  # only what is certainly stored: a conflict wrote nothing
        else:
            outcomes["conflict" if isinstance(outcome, kv.Conflict) else "unknown"] += 1
    for name, count in outcomes.items():
        meter.add("worldline_store_batches_total", count, name)
    for kind, size in written.items():
        meter.add("worldline_store_written_bytes_total", size, kind)


def _add_written(written: dict[str, int], batch: kv.Batch) -> None:
    """What a batch wrote, as it gave it to the engine: the engine's own overhead is not in it."""
    for key, put in batch.puts.items():
        kind = keyspace_table.metric_of(key)
        stamp = 0 if put.stamp is None else limits.STAMP_BYTES  # the store writes it behind the value
        written[kind] = written.get(kind, 0) + len(key) + len(put.value) + stamp
    for append in batch.appends:
        kind = keyspace_table.metric_of(append.prefix)
        written[kind] = written.get(kind, 0) + len(append.prefix) + limits.STAMP_BYTES + len(append.value)
    for key in batch.counts:
        kind = keyspace_table.metric_of(key)
        written[kind] = written.get(kind, 0) + len(key) + limits.COUNTER_BYTES


def _store_failed(meter: Meter, fact: facts.StoreCallFailed) -> None:
    meter.add("worldline_store_errors_total", 1, fact.engine, fact.call, fact.code)


def _object_done(meter: Meter, fact: facts.ObjectDone) -> None:
    meter.observe("worldline_object_seconds", _seconds(fact.us), fact.engine, fact.call)
    meter.add("worldline_object_bytes_total", fact.size, fact.engine, fact.call)


def _object_failed(meter: Meter, fact: facts.ObjectFailed) -> None:
    meter.add("worldline_object_errors_total", 1, fact.engine, fact.call, fact.code)


def _troubled(meter: Meter, fact: facts.Troubled) -> None:
    meter.add("worldline_role_errors_total", 1, fact.role, "yes" if fact.bug else "no")


def _once(name: str) -> Callable[[Meter, facts.Fact], None]:
    """Count a fact, whatever it says."""
    return lambda meter, _: meter.add(name, 1)


def _lasting(name: str) -> Callable[[Meter, Any], None]:
    """Observe how long it took, and nothing else."""
    return lambda meter, fact: meter.observe(name, _seconds(fact.us))


def _not_counted(meter: Meter, fact: facts.Fact) -> None:
    """It is told to sinks alone."""


_MEASURES: dict[type[facts.Fact], Callable[[Meter, Any], None]] = {
    facts.Entered: _entered,
    facts.InputRefused: _refused,
    facts.StepsCommitted: _committed,
    facts.Cycled: _cycled,
    facts.WorldDropped: _dropped,
    facts.WorldRefused: _world_refused,
    facts.StepDied: _step_died,
    facts.RestoreDied: _once("worldline_restore_deaths_total"),
    facts.WorldQuarantined: _once("worldline_quarantines_total"),
    facts.LastAttempt: _last_attempt,
    facts.WorldTaken: _taken,
    facts.Released: _once("worldline_leases_released_total"),
    facts.BaselineSaved: _saved,
    facts.SaveFailed: _once("worldline_snapshots_failed_total"),
    facts.WorldCompacted: _compacted,
    facts.CompactFailed: _once("worldline_compactions_failed_total"),
    facts.Proved: _proved,
    facts.Unproved: _once("worldline_proofs_diverged_total"),
    facts.Beat: _lasting("worldline_heartbeat_seconds"),
    facts.SelfFenced: _once("worldline_self_fences_total"),
    facts.ClaimsMade: _claimed,
    facts.AttemptEnded: _attempted,
    facts.EffectAnswered: _answered,
    facts.Fired: _fired,
    facts.WorldPlaced: _placed,
    facts.Orchestrated: _lasting("worldline_orchestrator_turn_seconds"),
    facts.Reaped: _reaped,
    facts.Cleared: _cleared,
    facts.JanitorRound: _lasting("worldline_janitor_round_seconds"),
    facts.GarbageCollected: _collected,
    facts.CollectFailed: _collect_failed,
    facts.WorldsCounted: _worlds_counted,
    facts.OpenCounted: _open_counted,
    facts.DueCounted: _due_counted,
    facts.LevelsMeasured: _levels_measured,
    facts.StoreRead: _store_read,
    facts.CommitAnswered: _stored,
    facts.StoreCallFailed: _store_failed,
    facts.ObjectDone: _object_done,
    facts.ObjectFailed: _object_failed,
    facts.Hung: _once("worldline_hangs_total"),
    facts.Lagged: _lasting("worldline_loop_lag_seconds"),
    facts.Troubled: _troubled,
    facts.HostChanged: _not_counted,
}


def _seconds(us: int) -> float:
    """Durations are never negative, also when a clock was set back."""
    return max(0, us) / 1_000_000
