"""Watching a process from inside: a user's own sinks, metrics for Prometheus, spans for OpenTelemetry.

Five plain functions may be given to `wl.open(..., sinks=wl.ops.Sinks(...))`::

    metrics(measure)    each measurement as it is made: a counter's step, a duration
    log(notice)         what an operator wants to know of: dead letters, failed effects, lost leases, trouble
    replay(journaled)   each step's entries, right after their commit: to capture a world's life and replay it elsewhere
    disposed(disposed)  what became of each attempt: of effects, timers, inputs that could not be taken, steps given up
    host(event)         the life of the process: started, draining, hung, fenced, a role that failed, closing, closed

They are called on the event loop, so they should return at once and not call Worldline. One that raises is caught,
counted (`worldline_sink_errors_total`) and logged once; no world notices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

import msgspec

from worldline.base import errors, grammar
from worldline.kernel import replay as replays
from worldline.model import ids, journal
from worldline.observe import measures, metric_list
from worldline.runtime import facts
from worldline.runtime.feature import Feature
from worldline.runtime.metric_table import MetricTable

T = TypeVar("T")

NoticeKind = Literal[
    "dead_letter",
    "effect_failed",
    "effect_retried",
    "effect_parked",
    "lease_acquired",
    "lease_released",
    "world_dropped",
    "world_refused",
    "world_diverged",
    "step_died",
    "restore_died",
    "self_fenced",
    "refused",
    "hang",
    "world_quarantined",
    "last_attempt",
    "role_error",
]


class Notice(msgspec.Struct, frozen=True):
    """Something an operator wants to know of. `world` and `step` are empty where it is about none."""

    kind: NoticeKind
    message: str
    world: str = ""  # the world's id
    step: int = 0
    code: str = ""
    detail: int = 0  # the attempt, the epoch, how many worlds: what the kind counts
    trace: str = ""  # of an effect's failed attempt: where in its code it failed


class Journaled(msgspec.Struct, frozen=True):
    """One step of a world, as it stands in its journal. Payloads over 16 KiB are named by their sha256."""

    address: ids.Address
    name: str
    entries: list[journal.JournalEntry]


DisposedKind = Literal["effect", "timer", "input", "step"]
HostEventKind = Literal["started", "draining", "hung", "fenced", "role_failed", "closing", "closed"]


class Disposed(msgspec.Struct, frozen=True):
    """What became of one attempt. `outcome`: of an effect "ok", "error", "timeout", "retried", "parked" or "lost"; of a
    timer "fired"; of an input that its world could not take "dead_letter"; of a step that was not stored why not, as
    `worldline_worlds_dropped_total` counts it, and "died" or "hung" if it did.
    """

    kind: DisposedKind
    outcome: str
    address: ids.Address
    step: int = 0  # that has asked for it, or has taken it
    name: str = ""  # the effect, or the timer
    id: str = ""  # of the effect or timer
    attempt: int = 0
    message: str = ""


class HostEvent(msgspec.Struct, frozen=True):
    """Something in the life of the process that runs worlds. `worlds`: how many it holds, or are concerned."""

    kind: HostEventKind
    worker: str = ""  # its id, if it is about all of the process
    worlds: int = 0
    message: str = ""


class Sinks(msgspec.Struct, frozen=True):
    """Functions that are told what a process does. Any of them may be left out."""

    metrics: Callable[[measures.Measure], None] | None = None
    log: Callable[[Notice], None] | None = None
    replay: Callable[[Journaled], None] | None = None
    disposed: Callable[[Disposed], None] | None = None
    host: Callable[[HostEvent], None] | None = None


class Observed:
    """What a process tells, and the meter that counts it, if there is one."""

    def __init__(self, telling: facts.Telling, meter: measures.Meter | None = None, *, port: int | None = None) -> None:
        self.telemetry = telling
        self.meter = meter
        self.port = port  # where metrics are offered

    def levels_from(self, levels: Callable[[], Mapping[str, float]]) -> None:
        """Where to read gauges from, at each scrape."""
        if self.meter is not None:
            self.meter.levels_from(levels)


@contextmanager
def observed(
    sinks: Sinks | None = None, *, metrics: str | None = None, features: Sequence[Feature]
) -> Iterator[Observed]:
    """Put together what listens. `metrics`: HOST:PORT where Prometheus finds them, as long as the block lasts."""
    wanted, table = sinks or Sinks(), metric_list.table(features)
    listeners = _sinks(wanted, table)
    tracing = _tracing()
    if tracing is not None:
        listeners.append(("spans", tracing))
    meter = None if metrics is None else measures.Meter(table=table)
    if meter is not None:
        listeners.append(("prometheus", meter.tell))
    # Facts about each store call cost on the hot path: they are told only if something counts them.
    telling = facts.Telling(listeners, counts=meter is not None or wanted.metrics is not None)
    if meter is None or metrics is None:
        yield Observed(telling)
        return
    meter.failures_from(lambda: telling.failures)  # a sink that fails cannot report itself
    with _serving(meter, metrics) as port:
        yield Observed(telling, meter, port=port)


def _sinks(sinks: Sinks, table: MetricTable) -> list[tuple[str, facts.Listener]]:
    listeners: list[tuple[str, facts.Listener]] = []
    if sinks.metrics is not None:
        # A meter of its own: a user's sink that raises must not keep Prometheus from its counts.
        listeners.append(("metrics", measures.Meter(sinks.metrics, table=table).tell))
    if sinks.log is not None:
        listeners.append(("log", _each(notices, sinks.log)))
    if sinks.replay is not None:
        listeners.append(("replay", _replaying(sinks.replay)))
    if sinks.disposed is not None:
        listeners.append(("disposed", _each(dispositions, sinks.disposed)))
    if sinks.host is not None:
        listeners.append(("host", _each(host_events, sinks.host)))
    return listeners


def _each(of: Callable[[facts.Fact], list[T]], sink: Callable[[T], None]) -> facts.Listener:
    """Give a sink everything that is made of a fact."""

    def tell(fact: facts.Fact) -> None:
        for each in of(fact):
            sink(each)

    return tell


def _replaying(sink: Callable[[Journaled], None]) -> facts.Listener:
    def tell(fact: facts.Fact) -> None:
        if isinstance(fact, facts.StepsCommitted):
            for entries in replays.steps(fact.entries):
                sink(Journaled(fact.at, fact.name, entries))

    return tell


def notices(fact: facts.Fact) -> list[Notice]:
    """What an operator wants to know of a fact; mostly nothing."""
    match fact:
        case facts.StepsCommitted():
            world = fact.at.world.hex()
            return [Notice("dead_letter", each.reason, world, each.step) for each in fact.buried]
        case facts.AttemptEnded():
            return _of_attempt(fact)
        case facts.WorldTaken():
            return [Notice("lease_acquired", fact.name, fact.at.world.hex(), detail=fact.epoch)]
        case facts.Released():
            return [Notice("lease_released", "", fact.at.world.hex())]
        case facts.WorldDropped():
            return [Notice("world_dropped", fact.message, fact.at.world.hex(), code=fact.why)]
        case facts.WorldRefused():
            return [Notice("world_refused", fact.message, fact.at.world.hex(), code=fact.kind, detail=fact.tries)]
        case facts.Unproved():
            return [Notice("world_diverged", fact.message, fact.at.world.hex(), detail=fact.height)]
        case facts.StepDied():
            said = f"a step did not end in order ({fact.how})"
            return [Notice("step_died", said, fact.at.world.hex(), code=fact.how, detail=fact.deaths)]
        case facts.RestoreDied():
            said = "a process died while it restored the world"
            return [Notice("restore_died", said, fact.at.world.hex(), detail=fact.deaths)]
        case facts.WorldQuarantined():
            return [Notice("world_quarantined", fact.message, fact.at.world.hex())]
        case facts.LastAttempt():
            ended = "cannot tell" if fact.ended == "undecided" else fact.ended
            said = f"{grammar.an(fact.what)} that processes died in was tried in a child process, which {ended}"
            return [Notice("last_attempt", said, fact.at.world.hex(), code=fact.ended)]
        case facts.SelfFenced():
            return [Notice("self_fenced", f"the heartbeat is {fact.late_us // 1000} ms old", detail=fact.worlds)]
        case facts.InputRefused():
            return [Notice("refused", "overloaded", fact.at.world.hex(), code=fact.why)]
        case facts.Hung():
            message = f"no step of {', '.join(fact.worlds[:5])} for {fact.us // 1_000_000} s"
            return [Notice("hang", message, detail=len(fact.worlds))]
        case facts.Troubled():
            return [Notice("role_error", f"{fact.role}: {fact.message}", code=fact.code)]
        case _:  # most facts are measured only
            return []


def dispositions(fact: facts.Fact) -> list[Disposed]:
    """What became of attempts, by a fact; mostly nothing."""
    match fact:
        case facts.AttemptEnded(claim=claim):
            work, intent = claim.work, claim.intent.hex()
            return [
                Disposed("effect", fact.outcome, claim.at, work.step, work.name, intent, work.attempt, fact.message)
            ]
        case facts.Fired(timer=timer):
            return [Disposed("timer", "fired", timer.at, timer.work.step, timer.work.name, timer.intent.hex())]
        case facts.StepsCommitted():
            return [Disposed("input", "dead_letter", fact.at, each.step, message=each.reason) for each in fact.buried]
        case facts.WorldDropped():
            return [Disposed("step", fact.why, fact.at, message=fact.message)]
        case facts.StepDied():
            return [Disposed("step", fact.how, fact.at, attempt=fact.deaths)]
        case _:
            return []


def host_events(fact: facts.Fact) -> list[HostEvent]:
    """What a fact says of the life of the process; mostly nothing."""
    match fact:
        case facts.HostChanged():
            return [HostEvent(fact.change, fact.worker.hex(), fact.worlds)]
        case facts.Hung():
            return [HostEvent("hung", worlds=len(fact.worlds), message=", ".join(fact.worlds[:5]))]
        case facts.SelfFenced():
            late = f"the heartbeat is {fact.late_us // 1000} ms old"
            return [HostEvent("fenced", worlds=fact.worlds, message=late)]
        case facts.Troubled(bug=True):
            return [HostEvent("role_failed", message=f"{fact.role}: {fact.message}")]
        case _:
            return []


def _of_attempt(fact: facts.AttemptEnded) -> list[Notice]:
    kinds: dict[facts.Outcome, NoticeKind] = {
        "retried": "effect_retried",
        "parked": "effect_parked",
        "error": "effect_failed",
        "timeout": "effect_failed",
    }
    kind = kinds.get(fact.outcome)
    if kind is None:
        return []
    work = fact.claim.work
    message = f"{work.name}: {fact.message}"
    return [Notice(kind, message, fact.claim.at.world.hex(), work.step, fact.outcome, work.attempt, fact.trace)]


def _tracing() -> facts.Listener | None:
    """Spans, if this process has set up an SDK, for which it must have loaded the API."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from worldline.observe import spans as tracing  # noqa: PLC0415 - an extra, loaded when it is there

    found = tracing.active()
    return None if found is None else found.tell


@contextmanager
def _serving(meter: measures.Meter, address: str) -> Iterator[int]:
    try:
        from worldline.observe import prometheus  # noqa: PLC0415 - an extra, loaded when asked for
    except ImportError as error:
        raise errors.BadInput("metrics need an extra: pip install 'worldline[metrics]'") from error
    server = prometheus.serve_metrics(meter, address)
    try:
        yield server.port
    finally:
        server.close()  # the port is free again when `open` returns, for the next one in this process
