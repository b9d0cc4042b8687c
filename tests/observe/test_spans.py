"""Spans of one effect call, made by processes that know nothing of each other, are one trace."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit, Process
from worldline.host import process as hosts
from worldline.model.roles import Role
from worldline.observe import sinks
from worldline.observe import spans as tracing
from worldline.runtime import facts
from worldline.runtime.universes.served_universes import Universes

# Quick to notice what others did; and nothing runs out on a machine that is slow for a moment.
SETTINGS = kits.settings(
    worker={"lease_ttl_ms": 10_000, "heartbeat_ms": 2_500}, adapter={"claim_ttl_ms": 15_000, "renew_ms": 5_000}
)


@dataclass(frozen=True)
class Nudge:
    number: int


def program() -> wl.Program:
    app = wl.Program("p")

    @app.effect(retry=wl.Retry(attempts=2, initial_delay=0.01))
    async def fetch() -> int:
        if wl.attempt().number == 1:
            raise ConnectionError("not yet")
        return 7

    @app.workflow
    async def go() -> int:
        return await fetch()

    @app.workflow
    async def sleepy() -> str:
        await wl.sleep(0.01)
        return "awake"

    @app.workflow
    async def nudged() -> int:
        event = await wl.wait(Nudge)
        return event.number + await fetch()

    @app.workflow
    async def tell(to: str) -> None:
        await wl.send(to, Nudge(1))

    return app


class Traced:
    """A process with an SDK of its own."""

    def __init__(self, sampler: sampling.Sampler = sampling.ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        made = tracing.Tracing(provider.get_tracer(tracing.SCOPE))
        self.observed = sinks.Observed(facts.Telling([("spans", made.tell)]))
        self.foreign = provider.get_tracer("somebody else")

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


class Cluster:
    """A client, a worker that only runs worlds, an adapter, a timer worker: each a process with an SDK of its own."""

    def __init__(self, kit: Kit, app: wl.Program) -> None:
        self._kit = kit
        self._app = app
        self._stack = AsyncExitStack()
        self.client, self.worker, self.adapter, self.timer = Traced(), Traced(), Traced(), Traced()

    async def __aenter__(self) -> wl.Universe:
        roles = {Role.WORLDS: self.worker, Role.ADAPTER: self.adapter, Role.TIMERS: self.timer}
        for role, traced in roles.items():
            await self._run(role, traced)
        return (await self._process(self.client)).universe

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _process(self, traced: Traced) -> Process:
        process = await self._kit.process(observed=traced.observed)
        self._stack.push_async_callback(process.close)
        return process

    async def _run(self, role: Role, traced: Traced) -> None:
        universe = (await self._process(traced)).universe
        host = hosts.ProcessHost(
            universe._connection.store,
            Universes.only(universe._connection.id),
            [self._app],
            blobs=lambda _: universe._connection.blobs,
            settings=SETTINGS,
            roles=[role],
            telemetry=universe._connection.telemetry,
        )
        host.start()
        self._stack.push_async_callback(host.close)


def one(spans: Sequence[ReadableSpan]) -> ReadableSpan:
    assert len(spans) == 1, [span.name for span in spans]
    return spans[0]


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def place(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def on(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {})[f"worldline.{name}"]


async def test_enqueue_step_effect_and_receipt_are_one_trace_across_processes(kit: Kit) -> None:
    app = program()
    cluster = Cluster(kit, app)
    async with cluster as universe:
        world = await universe.ensure("w", app)
        assert await world.run(app.workflows["go"](), timeout=60) == 7

        async def told() -> bool:
            return len(cluster.adapter.named("effect fetch")) == 2 and len(cluster.worker.named("step")) == 2

        await aio.until(told, seconds=60)
    enqueue = one(cluster.client.spans)
    began, received = cluster.worker.named("step")
    first, second = cluster.adapter.named("effect fetch")
    assert enqueue.name == "enqueue"
    assert len({span.context.trace_id for span in (enqueue, began, first, second, received)}) == 1
    assert parent(enqueue) is None
    assert parent(began) == place(enqueue)
    assert parent(first) == parent(second) == place(began)
    assert parent(received) == place(second)
    assert len({place(span) for span in (enqueue, began, first, second, received)}) == 5
    assert [on(span, "outcome") for span in (first, second)] == ["retried", "ok"]
    assert [span.status.status_code for span in (first, second)] == [trace.StatusCode.ERROR, trace.StatusCode.UNSET]
    assert on(began, "input") == "control run"
    assert on(received, "input") == "effect_result"
    for span in (enqueue, began, first, second, received):
        assert span.start_time is not None
        assert span.end_time is not None
        assert 0 < span.start_time <= span.end_time


async def test_a_timer_joins_the_trace_of_its_run(memory_kit: Kit) -> None:
    app = program()
    cluster = Cluster(memory_kit, app)
    async with cluster as universe:
        world = await universe.ensure("w", app)
        assert await world.run(app.workflows["sleepy"](), timeout=60) == "awake"
    began, woken = cluster.worker.named("step")
    timer = one(cluster.timer.spans)
    assert parent(timer) == place(began)
    assert parent(woken) == place(timer)
    assert began.context.trace_id == woken.context.trace_id == one(cluster.client.spans).context.trace_id


async def test_an_event_that_wakes_a_run_is_seen_in_both_traces(memory_kit: Kit) -> None:
    app = program()
    cluster = Cluster(memory_kit, app)
    async with cluster as universe:
        world = await universe.ensure("w", app)
        run = await world.start(app.workflows["nudged"](), id="r")
        await world.send(Nudge(3))
        assert await run.result(60) == 10
    asked, sent = cluster.client.spans
    steps = cluster.worker.named("step")
    [woken] = [span for span in steps if parent(span) == place(sent)]
    [also] = [span for span in steps if span.links]
    assert asked.context.trace_id != sent.context.trace_id
    assert also.context.trace_id == asked.context.trace_id, "the run's trace goes on"
    assert [(link.context.trace_id, link.context.span_id) for link in also.links] == [place(woken)]
    effects = cluster.adapter.named("effect fetch")
    assert {parent(span) for span in effects} == {place(also)}


async def test_a_message_joins_two_worlds(memory_kit: Kit) -> None:
    app = program()
    cluster = Cluster(memory_kit, app)
    async with cluster as universe:
        world = await universe.ensure("w", app)
        other = await universe.ensure("other", app)
        await world.run(app.workflows["tell"]("other"), timeout=60)

        async def taken() -> bool:
            return (await other.head()).step == 1

        await aio.until(taken)
        at = await other._handle.address()

        async def told() -> bool:
            return any(on(span, "world") == at.world.hex() for span in cluster.worker.named("step"))

        await aio.until(told)
    message = one(cluster.worker.named("message"))
    [taken_by] = [span for span in cluster.worker.named("step") if on(span, "world") == at.world.hex()]
    [sender] = [span for span in cluster.worker.named("step") if place(span) in _links(message)]
    assert parent(taken_by) == place(message)
    assert on(sender, "world") == on(message, "world") != at.world.hex()


def _links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


async def test_every_process_samples_alike(memory_kit: Kit) -> None:
    """A sampler that decides by the trace id alone keeps a trace whole or drops it whole."""
    app = program()
    traced = Traced(sampling.TraceIdRatioBased(0.5))
    process = await memory_kit.process(app, settings=SETTINGS, observed=traced.observed)
    world = await process.universe.ensure("w", app)
    for number in range(40):
        await world.run(app.workflows["sleepy"](), id=f"r{number}", timeout=30)
    await process.close()
    by_trace: dict[int, int] = {}
    for span in traced.spans:
        by_trace[span.context.trace_id] = by_trace.get(span.context.trace_id, 0) + 1
    assert 0 < len(by_trace) < 40
    assert set(by_trace.values()) == {4}, "enqueue, step, timer, step"


def test_spans_of_others_keep_their_own_ids() -> None:
    traced = Traced()
    with traced.foreign.start_as_current_span("theirs"):
        pass
    first = one(traced.spans)
    with traced.foreign.start_as_current_span("theirs"):
        pass
    assert len({place(span) for span in traced.spans}) == 2
    assert first.context.is_valid


def test_without_an_sdk_nothing_is_traced() -> None:
    assert tracing.active() is None


async def test_spans_have_the_correlation_of_what_was_sent(memory_kit: Kit) -> None:
    app = program()
    cluster = Cluster(memory_kit, app)
    async with cluster as universe:
        world = await universe.ensure("w", app)
        other = await universe.ensure("other", app)
        assert await world.run(app.workflows["go"](), timeout=60, correlation="order-7") == 7
        await world.run(app.workflows["tell"]("other"), timeout=60, correlation="order-8")
        with pytest.raises(wl.errors.Unhandled):  # no run waits for it there
            await (await other.send(Nudge(3), correlation="order-9")).applied(20)
    assert {on(span, "correlation_id") for span in cluster.adapter.named("effect fetch")} == {"order-7"}
    sent = [span for span in cluster.client.named("enqueue") if "worldline.correlation_id" in (span.attributes or {})]
    assert [on(span, "correlation_id") for span in sent] == ["order-7", "order-8", "order-9"]
    assert on(one(cluster.worker.named("message")), "correlation_id") == "order-8"
    stepped = [span.attributes or {} for span in cluster.worker.named("step")]
    assert {each["worldline.correlation_id"] for each in stepped if "worldline.correlation_id" in each} == {
        "order-7",
        "order-8",
        "order-9",
    }
