"""Metrics: what facts add up to, as counters and histograms in memory.

`METRICS` is the whole list, `docs/metrics.md` explains each. A meter only counts; `metrics.py` offers the counts to
Prometheus, and a user's metrics sink gets each measurement as it is made. Durations are in seconds, as is the custom
there. Levels (how many worlds are held now) are not counted but read when metrics are scraped.

Everything is updated on the event loop; a reader in another thread may be one update behind, and sees no torn numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from worldline.model.journal import INPUTS, Kind
from worldline.model.work import WorkKind
from worldline.roles import telemetry

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
BYTES = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)
SERIES_MAX = 1_000  # of one metric; label values that come after that are counted as OTHER
OTHER = "other"
OPEN_MAX = 100_000  # effects whose opening is remembered, to time their answers

MetricKind = Literal["counter", "histogram", "gauge"]


class Metric(msgspec.Struct, frozen=True):
    """A metric as it is declared."""

    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = SECONDS


class Measure(msgspec.Struct, frozen=True, gc=False):
    """One measurement, for a metrics sink: how much to add, or what was observed."""

    name: str
    kind: MetricKind
    value: float
    labels: dict[str, str]


def _counter(help: str, *labels: str) -> Metric:
    return Metric("counter", help, labels)


def _histogram(help: str, *labels: str, bounds: tuple[float, ...] = SECONDS) -> Metric:
    return Metric("histogram", help, labels, bounds)


def _gauge(help: str) -> Metric:
    return Metric("gauge", help)


METRICS: dict[str, Metric] = {
    # Inputs from outside, where they are given.
    "worldline_inputs_entered_total": _counter("Inputs from outside that became durable.", "via"),
    "worldline_input_entry_seconds": _histogram("From giving an input until it is durable.", "via"),
    "worldline_inputs_refused_total": _counter("Inputs from outside refused as overload.", "why"),
    # Worlds.
    "worldline_inputs_total": _counter("Inputs journaled.", "kind"),
    "worldline_inputs_taken_total": _counter("Inputs journaled, by the way they came.", "via"),
    "worldline_inputs_bad_total": _counter("Inputs that a world could not take.", "why"),
    "worldline_dead_letters_total": _counter("Inputs that became dead letters."),
    "worldline_input_wait_seconds": _histogram("From when the holder knew of an input until it was journaled."),
    "worldline_steps_total": _counter("Steps journaled."),
    "worldline_entries_total": _counter("Entries journaled."),
    "worldline_commits_total": _counter("Commits of worlds: several steps of one world are one."),
    "worldline_commit_steps": _histogram("Steps of one commit.", bounds=COUNTS),
    "worldline_cycles_total": _counter("Cycles of the world worker."),
    "worldline_cycle_seconds": _histogram("Length of a cycle: read, step, commit, act."),
    "worldline_cycle_worlds": _histogram("Worlds of one cycle.", bounds=COUNTS),
    "worldline_messages_sent_total": _counter("Messages to other worlds."),
    "worldline_worlds_dropped_total": _counter(
        "Worlds dropped from memory: their commit or their lease was lost.", "why"
    ),
    "worldline_worlds_refused_total": _counter("Times a world could not be run here and was left alone.", "why"),
    "worldline_step_deaths_total": _counter("Steps that did not end in order, held against their inputs.", "how"),
    "worldline_restore_deaths_total": _counter("Processes that died while they restored a world."),
    "worldline_quarantines_total": _counter("Worlds paused because processes died while they restored them."),
    "worldline_worlds_held": _gauge("Worlds in memory."),
    "worldline_cells_in_memory": _gauge("Cells in memory, of all worlds."),
    "worldline_cold_misses_total": _counter("Cells that were not in memory and that a step had to wait for."),
    "worldline_inputs_waiting": _gauge("Inputs from outside that wait for their step in this process."),
    # Leases, restores, snapshots.
    "worldline_leases_acquired_total": _counter("Leases acquired."),
    "worldline_leases_released_total": _counter("Leases released in order."),
    "worldline_self_fences_total": _counter("Times a worker released all worlds because its heartbeat was late."),
    "worldline_heartbeat_seconds": _histogram("Writing the heartbeat."),
    "worldline_restore_seconds": _histogram("From asking for a lease until its world can run."),
    "worldline_snapshots_total": _counter("Snapshots saved."),
    "worldline_snapshots_failed_total": _counter("Snapshots that could not be made of a world's state."),
    "worldline_snapshot_seconds": _histogram("Saving one snapshot."),
    "worldline_snapshot_bytes": _histogram("Size of a snapshot.", bounds=BYTES),
    "worldline_segments_total": _counter("Segments written: old entries of a world, compacted."),
    "worldline_segment_bytes_total": _counter("Bytes of segments written."),
    "worldline_frames_deleted_total": _counter("Frames whose entries are in segments now."),
    "worldline_snapshots_dropped_total": _counter("Snapshots that nothing needed any more."),
    "worldline_compactions_failed_total": _counter("Compactions that could not be done."),
    # Proofs in the background.
    "worldline_proved_steps_total": _counter("Steps that were run again and came out the same."),
    "worldline_proof_seconds": _histogram("One slice of a proof: how long its thread was at work."),
    "worldline_proofs_diverged_total": _counter("Worlds whose code did not do again what the journal says."),
    "worldline_worlds_diverged": _gauge("Worlds whose code this process has found not to do the same again."),
    # Effects and timers.
    "worldline_effects_opened_total": _counter("Effects asked for.", "effect"),
    "worldline_effects_cancelled_total": _counter("Effects that their world no longer wanted.", "effect"),
    "worldline_effects_claimed_total": _counter("Claims: `commit`, with the step that asked, or `queue`.", "via"),
    "worldline_effect_attempts_total": _counter("Attempts that ended.", "effect", "outcome"),
    "worldline_effect_attempt_seconds": _histogram("Length of an attempt, external calls included.", "effect"),
    "worldline_effects_answered_total": _counter("Results of effects sent to their worlds.", "effect", "status"),
    "worldline_effect_seconds": _histogram("From the step that asked until the result was journaled.", "effect"),
    "worldline_effects_running": _gauge("Attempts that are running."),
    "worldline_timers_set_total": _counter("Timers set."),
    "worldline_timers_fired_total": _counter("Timers fired."),
    "worldline_timer_late_seconds": _histogram("How late a timer fired."),
    # The store and the process.
    "worldline_store_commit_seconds": _histogram("One commit call to the store."),
    "worldline_store_batches_total": _counter("Batches given to the store.", "outcome"),
    "worldline_cache_hits": _gauge("Objects of S3 found in the cache on disk, since the process began."),
    "worldline_cache_misses": _gauge("Objects of S3 not found in the cache on disk, since the process began."),
    "worldline_loop_lag_seconds": _histogram("How late the event loop was with something that was due."),
    "worldline_hangs_total": _counter("Cycles that took longer than the hang limit."),
    "worldline_role_errors_total": _counter("Turns of a role that failed.", "role", "bug"),
    "worldline_sink_errors_total": _counter("Times a sink raised.", "sink"),
}

_BAD = (Kind.UNDECODABLE_INPUT, Kind.HANDLER_FAILED, Kind.LATE_ANSWER)

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
    """Counts facts. `sink` gets every measurement besides; the caller of `tell` catches what it raises."""

    def __init__(self, sink: Callable[[Measure], None] | None = None) -> None:
        self._sink = sink
        self.opened: dict[bytes, tuple[str, int]] = {}  # effects by intent: name, and when they were asked for
        self._known: dict[str, int] = {}  # series of each metric
        self.counters: dict[Series, float] = {}
        self.histograms: dict[Series, Histogram] = {}
        self.levels: Callable[[], Mapping[str, float]] = dict
        self.failures: Callable[[], Mapping[str, int]] = dict  # of sinks

    def levels_from(self, levels: Callable[[], Mapping[str, float]]) -> None:
        """What is asked for the levels of the process."""
        self.levels = levels

    def failures_from(self, failures: Callable[[], Mapping[str, int]]) -> None:
        """What is asked how often each sink has failed."""
        self.failures = failures

    def tell(self, fact: telemetry.Fact) -> None:
        _MEASURES[type(fact)](self, fact)

    def add(self, name: str, by: float, *labels: str) -> None:
        if not by:
            return
        series = self._series(name, labels, self.counters)
        self.counters[series] = self.counters.get(series, 0) + by
        if self._sink is not None:
            self._sink(_measure(series, by))

    def observe(self, name: str, value: float, *labels: str) -> None:
        series = self._series(name, labels, self.histograms)
        found = self.histograms.get(series)
        if found is None:
            found = self.histograms[series] = Histogram(METRICS[name].bounds)
        found.observe(value)
        if self._sink is not None:
            self._sink(_measure(series, value))

    def value(self, name: str, *labels: str) -> float:
        """A counter's value, or how often a histogram was given one."""
        if METRICS[name].kind == "histogram":
            found = self.histograms.get((name, labels))
            return 0 if found is None else found.count
        return self.counters.get((name, labels), 0)

    def _series(self, name: str, labels: tuple[str, ...], known: Mapping[Series, Any]) -> Series:
        """A metric with its labels; with others in their place if there are too many already."""
        series = (name, labels)
        if not labels or series in known:
            return series
        count = self._known.get(name, 0)
        if count >= SERIES_MAX:
            return (name, (OTHER,) * len(labels))
        self._known[name] = count + 1
        return series


# --- What each fact adds ----------------------------------------------------------------------------------------


def _entered(meter: Meter, fact: telemetry.Entered) -> None:
    via = "handover" if fact.handed else "inbox"
    meter.add("worldline_inputs_entered_total", 1, via)
    meter.observe("worldline_input_entry_seconds", _seconds(fact.ended_wall_us - fact.began_wall_us), via)


def _refused(meter: Meter, fact: telemetry.Refused) -> None:
    meter.add("worldline_inputs_refused_total", 1, fact.why)


def _committed(meter: Meter, fact: telemetry.Committed) -> None:
    kinds: dict[Kind, int] = {}
    for entry in fact.entries:
        kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
    for kind, count in kinds.items():
        if kind in INPUTS:
            meter.add("worldline_inputs_total", count, kind.name.lower())
        elif kind in _BAD:
            meter.add("worldline_inputs_bad_total", count, kind.name.lower())
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


def _work(meter: Meter, fact: telemetry.Committed) -> None:
    for wanted in fact.wanted:
        if wanted.kind is WorkKind.TIMER:
            meter.add("worldline_timers_set_total", 1)
        else:
            meter.add("worldline_effects_opened_total", 1, wanted.name)
            meter.opened[wanted.intent] = (wanted.name, wanted.opened_us)
            if len(meter.opened) > OPEN_MAX:
                del meter.opened[next(iter(meter.opened))]
    for intent in fact.closed:
        found = meter.opened.pop(intent, None)
        if found is not None:
            meter.observe("worldline_effect_seconds", _seconds(fact.store_us - found[1]), found[0])
    for cancelled in fact.cancelled:
        if cancelled.kind is WorkKind.EFFECT:
            meter.opened.pop(cancelled.intent, None)
            meter.add("worldline_effects_cancelled_total", 1, cancelled.name)


def _cycled(meter: Meter, fact: telemetry.Cycled) -> None:
    meter.add("worldline_cycles_total", 1)
    meter.observe("worldline_cycle_seconds", _seconds(fact.us))
    meter.observe("worldline_cycle_worlds", fact.worlds)
    meter.add("worldline_cold_misses_total", fact.misses)


def _dropped(meter: Meter, fact: telemetry.Dropped) -> None:
    meter.add("worldline_worlds_dropped_total", 1, fact.why)


def _world_refused(meter: Meter, fact: telemetry.WorldRefused) -> None:
    meter.add("worldline_worlds_refused_total", 1, fact.kind)


def _step_died(meter: Meter, fact: telemetry.StepDied) -> None:
    meter.add("worldline_step_deaths_total", 1, fact.how)


def _restore_died(meter: Meter, fact: telemetry.RestoreDied) -> None:
    meter.add("worldline_restore_deaths_total", 1)
    meter.add("worldline_quarantines_total", int(fact.quarantined))


def _taken(meter: Meter, fact: telemetry.Taken) -> None:
    meter.add("worldline_leases_acquired_total", 1)
    meter.observe("worldline_restore_seconds", _seconds(fact.us))


def _released(meter: Meter, fact: telemetry.Released) -> None:
    del fact
    meter.add("worldline_leases_released_total", 1)


def _saved(meter: Meter, fact: telemetry.Saved) -> None:
    meter.add("worldline_snapshots_total", 1)
    meter.observe("worldline_snapshot_seconds", _seconds(fact.us))
    meter.observe("worldline_snapshot_bytes", fact.size)


def _save_failed(meter: Meter, fact: telemetry.SaveFailed) -> None:
    del fact
    meter.add("worldline_snapshots_failed_total", 1)


def _compacted(meter: Meter, fact: telemetry.Compacted) -> None:
    meter.add("worldline_segments_total", fact.segments)
    meter.add("worldline_segment_bytes_total", fact.bytes)
    meter.add("worldline_frames_deleted_total", fact.frames)
    meter.add("worldline_snapshots_dropped_total", fact.snapshots)


def _compact_failed(meter: Meter, fact: telemetry.CompactFailed) -> None:
    del fact
    meter.add("worldline_compactions_failed_total", 1)


def _proved(meter: Meter, fact: telemetry.Proved) -> None:
    meter.add("worldline_proved_steps_total", fact.steps)
    meter.observe("worldline_proof_seconds", _seconds(fact.us))


def _unproved(meter: Meter, fact: telemetry.Unproved) -> None:
    del fact
    meter.add("worldline_proofs_diverged_total", 1)


def _beat(meter: Meter, fact: telemetry.Beat) -> None:
    meter.observe("worldline_heartbeat_seconds", _seconds(fact.us))


def _self_fenced(meter: Meter, fact: telemetry.SelfFenced) -> None:
    del fact
    meter.add("worldline_self_fences_total", 1)


def _claimed(meter: Meter, fact: telemetry.Claimed) -> None:
    meter.add("worldline_effects_claimed_total", fact.count, "queue")


def _attempted(meter: Meter, fact: telemetry.Attempted) -> None:
    name = fact.claim.work.name
    meter.add("worldline_effect_attempts_total", 1, name, fact.outcome)
    meter.observe("worldline_effect_attempt_seconds", _seconds(fact.ended_wall_us - fact.began_wall_us), name)


def _answered(meter: Meter, fact: telemetry.Answered) -> None:
    meter.add("worldline_effects_answered_total", 1, fact.claim.work.name, fact.status.name.lower())


def _fired(meter: Meter, fact: telemetry.Fired) -> None:
    meter.add("worldline_timers_fired_total", 1)
    meter.observe("worldline_timer_late_seconds", _seconds(fact.late_us))


def _stored(meter: Meter, fact: telemetry.Stored) -> None:
    meter.observe("worldline_store_commit_seconds", _seconds(fact.us))
    meter.add("worldline_store_batches_total", fact.batches - fact.conflicts - fact.unknown, "ok")
    meter.add("worldline_store_batches_total", fact.conflicts, "conflict")
    meter.add("worldline_store_batches_total", fact.unknown, "unknown")


def _hung(meter: Meter, fact: telemetry.Hung) -> None:
    del fact
    meter.add("worldline_hangs_total", 1)


def _lagged(meter: Meter, fact: telemetry.Lagged) -> None:
    meter.observe("worldline_loop_lag_seconds", _seconds(fact.us))


def _troubled(meter: Meter, fact: telemetry.Troubled) -> None:
    meter.add("worldline_role_errors_total", 1, fact.role, "yes" if fact.bug else "no")


_MEASURES: dict[type[telemetry.Fact], Callable[[Meter, Any], None]] = {
    telemetry.Entered: _entered,
    telemetry.Refused: _refused,
    telemetry.Committed: _committed,
    telemetry.Cycled: _cycled,
    telemetry.Dropped: _dropped,
    telemetry.WorldRefused: _world_refused,
    telemetry.StepDied: _step_died,
    telemetry.RestoreDied: _restore_died,
    telemetry.Taken: _taken,
    telemetry.Released: _released,
    telemetry.Saved: _saved,
    telemetry.SaveFailed: _save_failed,
    telemetry.Compacted: _compacted,
    telemetry.CompactFailed: _compact_failed,
    telemetry.Proved: _proved,
    telemetry.Unproved: _unproved,
    telemetry.Beat: _beat,
    telemetry.SelfFenced: _self_fenced,
    telemetry.Claimed: _claimed,
    telemetry.Attempted: _attempted,
    telemetry.Answered: _answered,
    telemetry.Fired: _fired,
    telemetry.Stored: _stored,
    telemetry.Hung: _hung,
    telemetry.Lagged: _lagged,
    telemetry.Troubled: _troubled,
}


def _measure(series: Series, value: float) -> Measure:
    name, labels = series
    metric = METRICS[name]
    return Measure(name, metric.kind, value, dict(zip(metric.labels, labels, strict=True)))


def _seconds(us: int) -> float:
    """Durations are never negative, also when a clock was set back."""
    return max(0, us) / 1_000_000
