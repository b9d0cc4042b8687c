"""The janitor of a universe, as a process has it: with the jobs of all features."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from worldline.client.connection import Connection
from worldline.cluster.janitor import Janitor, ProcessLocks
from worldline.model import ids
from worldline.model.settings import JanitorSettings
from worldline.observe import measures
from worldline.runtime import facts
from worldline.runtime.janitor_job import JanitorContext, JanitorJob

WINDOW_MS = 60_000


def context_of(
    connection: Connection,
    settings: JanitorSettings,
    *,
    meter: measures.Meter | None = None,
    is_dead: Callable[[ids.WorkerId], bool] = lambda _: False,
) -> JanitorContext:
    return JanitorContext(
        engine=connection.store.engine,
        env=connection.store.env,
        universe=connection.id,
        blobs=connection.blobs,
        settings=settings,
        is_dead=is_dead,
        worker=None,
        telemetry=facts.NOTHING if meter is None else facts.Telling([("meter", meter.tell)]),
    )


def jobs_of(context: JanitorContext, connection: Connection) -> list[JanitorJob]:
    return [make(context) for each in connection.store.features for make in each.janitor_jobs]


def janitor_of(
    connection: Connection,
    settings: JanitorSettings,
    *,
    meter: measures.Meter | None = None,
    dedupe_window_ms: int = WINDOW_MS,
    is_dead: Callable[[ids.WorkerId], bool] = lambda _: False,
    locks: ProcessLocks | None = None,
    sweep_uploads: Callable[[int, int], Awaitable[int]] | None = None,
) -> Janitor:
    context = context_of(connection, settings, meter=meter, is_dead=is_dead)
    return Janitor(
        context,
        jobs_of(context, connection),
        dedupe_window_ms=dedupe_window_ms,
        locks=locks,
        sweep_uploads=sweep_uploads,
    )
