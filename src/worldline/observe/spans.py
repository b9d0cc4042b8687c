r"""Spans for OpenTelemetry, across inbox, step, effect and receipt. Needs the extra `worldline[tracing]`.

Nothing of a trace is stored. Its id, and the id of each span that others may hang under, are digests of what the
journal has anyway, so processes that never spoke to each other make spans that fit together::

    trace of a run        (world, run): everything that a run asks for and is told
    trace of a message    (message id): from the sender's step to the receiver's
    trace of an input     (world, stamp): any other input

    enqueue --> step --> effect, one attempt --> step that takes the receipt --> ...
                     \-> timer               --> step that takes the firing
    message --> step of the destination

A step that goes on with a run, though its input belongs to another trace, has a span in each, linked. Whether anything
is recorded is up to the SDK that the user has set up; without one, nothing here is called at all. A sampler must decide
by the trace id alone (`TraceIdRatioBased`), so that every process decides alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from opentelemetry import context as otel_context
from opentelemetry import trace

from worldline.base import errors
from worldline.codec import digest, structs
from worldline.kernel import control_commands
from worldline.kernel import replay as replays
from worldline.layers import work as works
from worldline.model import ids, inbox, journal
from worldline.model.journal import Kind
from worldline.runtime import facts
from worldline.worker import waiting_input

SCOPE = "worldline"
TRACES_MAX = 16  # of one step
_RUN_KINDS = (Kind.RUN_STARTED, Kind.RUN_FINISHED)


class SpanPlace(msgspec.Struct, frozen=True):
    """Where a span is: its trace and its own id."""

    trace: int
    span: int


# --- Names that every process derives alike ---------------------------------------------------------------------------


def run_trace(at: ids.Address, run: str) -> int:
    return _number(16, b"run", at.universe, at.world, run.encode())


def input_trace(at: ids.Address, stamp: bytes) -> int:
    return _number(16, b"input", at.universe, at.world, stamp)


def message_trace(message: bytes) -> int:
    return _number(16, b"message", message)


def enqueued(of: int) -> SpanPlace:
    """The span that gave the input which a trace begins with."""
    return SpanPlace(of, _number(8, b"enqueue", of.to_bytes(16, "big")))


def stepped(of: int, at: ids.Address, step: int) -> SpanPlace:
    return SpanPlace(of, _number(8, b"step", of.to_bytes(16, "big"), at.world, step.to_bytes(8, "big")))


def attempted(of: int, intent: bytes, attempt: int) -> SpanPlace:
    return SpanPlace(of, _number(8, b"attempt", intent, attempt.to_bytes(8, "big")))


def fired(of: int, intent: bytes) -> SpanPlace:
    return SpanPlace(of, _number(8, b"timer", intent))


def trace_of_work(opened: works.Open) -> int:
    """Work of a run is in the run's trace; what a schedule or a reducer asked for is in one of its own."""
    run = opened.work.correlation
    return run_trace(opened.at, run) if run else input_trace(opened.at, opened.intent)


def trace_of_input(at: ids.Address, item: inbox.Item | None, data: bytes, stamp: bytes) -> tuple[int, SpanPlace | None]:
    """The trace that an input belongs to, and the span it comes from."""
    match item:
        case inbox.EffectReceipt():
            of = run_trace(at, item.correlation) if item.correlation else input_trace(at, item.intent)
            return of, attempted(of, item.intent, item.attempt)
        case inbox.TimerFired():
            of = run_trace(at, item.correlation) if item.correlation else input_trace(at, item.intent)
            return of, fired(of, item.intent)
        case inbox.Message():
            of = message_trace(item.message)
            return of, enqueued(of)
        case inbox.Control(command=control_commands.RUN):
            try:
                of = run_trace(at, structs.decode(control_commands.CorrelatedRun, data).run)
            except errors.DecodeError:
                of = input_trace(at, stamp)  # the step will journal it as undecodable: it has a trace of its own
            return of, enqueued(of)
        case _:
            of = input_trace(at, stamp)
            return of, enqueued(of)


def _context(place: SpanPlace) -> trace.SpanContext:
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    return trace.SpanContext(place.trace, place.span, is_remote=True, trace_flags=flags)


def _number(size: int, *parts: bytes) -> int:
    return int.from_bytes(digest.hash_parts(b"trace", *parts)[:size], "big") or 1  # zero is no valid id


# --- Making spans ----------------------------------------------------------------------------------------------------


class IdGenerator(Protocol):
    def generate_span_id(self) -> int: ...

    def generate_trace_id(self) -> int: ...


@runtime_checkable
class HasIds(Protocol):
    """A tracer of the SDK: it asks its generator for the ids of each span."""

    id_generator: Any


# Per thread: users may make spans of their own in other threads at the same time.
class _Wanted(threading.local):
    """The place of the span that this thread begins next."""

    place: SpanPlace | None = None

    def set(self, place: SpanPlace | None) -> None:
        self.place = place


class SpanIds:
    """Gives a span the ids that were derived for it. Spans of other scopes never come here."""

    def __init__(self, replaced: IdGenerator) -> None:
        self._before = replaced
        self._wanted = _Wanted()

    def want(self, place: SpanPlace | None) -> None:
        self._wanted.set(place)

    def generate_span_id(self) -> int:
        place = self._wanted.place
        return self._before.generate_span_id() if place is None else place.span

    def generate_trace_id(self) -> int:
        place = self._wanted.place
        return self._before.generate_trace_id() if place is None else place.trace

    def is_trace_id_random(self) -> bool:
        return False


class Tracing:
    """Turns facts into spans."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._ids: SpanIds | None = None
        if isinstance(tracer, HasIds):
            given = tracer.id_generator
            # A second connection of this process: wrapped once is enough.
            self._ids = given if isinstance(given, SpanIds) else SpanIds(given)
            tracer.id_generator = self._ids

    def tell(self, fact: facts.Fact) -> None:
        told = _SPANS.get(type(fact))
        if told is not None:
            told(self, fact)

    def span(
        self,
        name: str,
        place: SpanPlace,
        parent: SpanPlace | None,
        wall_us: tuple[int, int],
        *,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        links: Sequence[SpanPlace] = (),
        failed: str | None = None,
        correlation_id: str = "",
        **attributes: str | int,
    ) -> None:
        """A span that is over: facts are told when they are true."""
        if correlation_id:
            attributes["correlation_id"] = correlation_id
        # An empty context: a span that is current in the caller's code must not become the parent.
        context = otel_context.Context()
        if parent is not None:
            context = trace.set_span_in_context(trace.NonRecordingSpan(_context(parent)), context)
        if self._ids is not None:
            self._ids.want(place)
        try:
            span = self._tracer.start_span(
                name,
                context,
                kind,
                {f"worldline.{key}": value for key, value in attributes.items()},
                [trace.Link(_context(each)) for each in links],
                wall_us[0] * 1000,
            )
        finally:
            if self._ids is not None:
                self._ids.want(None)  # also after a failure, or a user's next span gets these ids
        if failed is not None:
            span.set_status(trace.Status(trace.StatusCode.ERROR, failed))
        span.end(max(wall_us) * 1000)  # a wall clock that was set back must not end a span before its start


def active() -> Tracing | None:
    """Spans for the SDK that this process has set up; None if it has none."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Tracing(provider.get_tracer(SCOPE))


# --- What each fact shows --------------------------------------------------------------------------------------------


def _entered(tracing: Tracing, fact: facts.Entered) -> None:
    of, _ = trace_of_input(fact.at, fact.item, fact.data, fact.stamp)
    tracing.span(
        "enqueue",
        enqueued(of),
        None,
        (fact.began_wall_us, fact.ended_wall_us),
        kind=trace.SpanKind.PRODUCER,
        world=fact.at.world.hex(),
        input=_title(fact.item),
        handed=fact.handed,
        correlation_id=_correlation_of(fact.item, fact.data),
    )


def _committed(tracing: Tracing, fact: facts.StepsCommitted) -> None:
    runs: dict[int, dict[int, None]] = {}  # traces of runs that each step went on with
    for wanted in fact.wanted:
        if wanted.correlation:
            runs.setdefault(wanted.step, {})[run_trace(fact.at, wanted.correlation)] = None
    here: dict[int, SpanPlace] = {}
    for entries in replays.steps(fact.entries):
        touched = runs.get(entries[0].step, {})
        for entry in entries:
            if entry.kind in _RUN_KINDS:
                touched[run_trace(fact.at, entry.correlation)] = None
        here[entries[0].step] = _stepped(tracing, fact, entries, list(touched))
    for outgoing in fact.outgoing:
        sender = outgoing.message.from_step
        tracing.span(
            "message",
            enqueued(message_trace(outgoing.message.message)),
            None,
            (fact.began_wall_us, fact.ended_wall_us),
            kind=trace.SpanKind.PRODUCER,
            links=[here[sender]],
            world=fact.at.world.hex(),
            step=sender,
            message=outgoing.message.name,
            correlation_id=inbox.correlation_id_of(outgoing.message),
        )


def _stepped(
    tracing: Tracing, fact: facts.StepsCommitted, entries: Sequence[journal.JournalEntry], touched: Sequence[int]
) -> SpanPlace:
    """A span in each trace that the step belongs to. Returns the one in the trace of its input."""
    first = entries[0]
    # A large payload is not loaded for a span.
    item = replays.item_of(first) if first.kind in journal.INPUTS and not first.blob else None
    carried = getattr(item, "payload", None)
    data = b"" if carried is None or carried.inline is None else carried.inline
    # Not every input has a stamp in the journal; one that has none is named by its step.
    stamp = first.stamp or waiting_input.handed_stamp(waiting_input.JournalPlace(first.height, first.step))
    main, parent = trace_of_input(fact.at, item, data, stamp)
    bad = next((each for each in entries if each.kind in (Kind.HANDLER_FAILED, Kind.UNDECODABLE_INPUT)), None)
    here = stepped(main, fact.at, first.step)
    # Bounded: a step may go on with any number of runs, and each span here is one more for the collector.
    for of in [main, *(each for each in touched if each != main)][:TRACES_MAX]:
        tracing.span(
            "step",
            stepped(of, fact.at, first.step),
            parent if of == main else None,
            (fact.began_wall_us, fact.ended_wall_us),
            kind=trace.SpanKind.CONSUMER,
            links=[] if of == main else [here],
            failed=None if bad is None else bad.kind.name.lower(),
            world=fact.at.world.hex(),
            world_name=fact.name,
            step=first.step,
            height=first.height,
            input=first.kind.name.lower() if item is None else _title(item),
            correlation_id=_correlation_of(item, data),
        )
    return here


def _attempted(tracing: Tracing, fact: facts.AttemptEnded) -> None:
    work = fact.claim.work
    of = trace_of_work(fact.claim)
    tracing.span(
        f"effect {work.name}",
        attempted(of, fact.claim.intent, work.attempt),
        stepped(of, fact.claim.at, work.step),
        (fact.began_wall_us, fact.ended_wall_us),
        kind=trace.SpanKind.CLIENT,
        failed=None if fact.outcome == "ok" else fact.message or fact.outcome,
        world=fact.claim.at.world.hex(),
        step=work.step,
        effect=work.name,
        intent=fact.claim.intent.hex(),
        attempt=work.attempt,
        outcome=fact.outcome,
        correlation_id=work.correlation_id,
    )


def _fired(tracing: Tracing, fact: facts.Fired) -> None:
    work = fact.timer.work
    of = trace_of_work(fact.timer)
    tracing.span(
        "timer",
        fired(of, fact.timer.intent),
        stepped(of, fact.timer.at, work.step),
        (fact.wall_us, fact.wall_us),
        world=fact.timer.at.world.hex(),
        step=work.step,
        timer=work.name,
        late_ms=fact.late_us // 1000,
    )


def _correlation_of(item: inbox.Item | None, data: bytes) -> str:
    """The correlation id of an input, if it has one."""
    if isinstance(item, inbox.Control) and item.command == control_commands.RUN:
        try:
            return structs.decode(control_commands.CorrelatedRun, data).correlation_id
        except errors.DecodeError:
            return ""
    return inbox.correlation_id_of(item)


def _title(item: inbox.Item) -> str:
    match item:
        case inbox.InboxEvent():
            return f"event {item.schema}"
        case inbox.Control():
            return f"control {item.command}"
        case inbox.Message():
            return f"message {item.name}"
        case inbox.EffectReceipt():
            return "effect_result"
        case inbox.TimerFired():
            return "timer_fired"


_SPANS: dict[type[facts.Fact], Callable[[Tracing, Any], None]] = {
    facts.Entered: _entered,
    facts.StepsCommitted: _committed,
    facts.AttemptEnded: _attempted,
    facts.Fired: _fired,
}
