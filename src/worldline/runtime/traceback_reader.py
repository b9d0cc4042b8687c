"""Reading tracebacks that steps left beside the journal: of one step, of a run, of a whole world.

A value that cannot be read is as good as none: traces are for people, and nothing else may fail because of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from worldline.base import errors, limits
from worldline.codec import printable
from worldline.keys import traces as keys
from worldline.model import ids
from worldline.model.traces import StepTraces, TracedFailure, TraceSource
from worldline.store import kv, paging

E = TypeVar("E", bound=BaseException)


async def of_step(engine: kv.Engine, at: ids.Address, step: int) -> list[TracedFailure]:
    """What failed in a step; nothing if nothing did, or if it is too long ago."""
    return decode((await engine.read(kv.Get(keys.trace_key(at, step)))).value(0), step)


async def of_world(engine: kv.Engine, at: ids.Address) -> list[StepTraces]:
    """All that are kept, the newest first."""
    asked = kv.Range(*keys.traces(at), count_max=limits.TRACE_SLOTS)
    return decode_all([item async for item in paging.RangeItems(engine, asked)])


async def of_run(engine: kv.Engine, at: ids.Address, run: str, *, step: int | None = None) -> str:
    """Where a run failed. `step`: the step in which it ended, if that is known; else all that are kept are read."""
    if step is not None:
        return find(await of_step(engine, at, step), TraceSource.RUN, run)
    return find_run(await of_world(engine, at), run)


def decode(raw: bytes | None, step: int) -> list[TracedFailure]:
    """The traces of a step; none if another step's are in their place."""
    # Places are used again: by now the traces of a later step may stand here.
    kept = _decode(raw)
    return kept.traces if kept is not None and kept.step == step else []


def decode_all(items: Iterable[tuple[bytes, bytes]]) -> list[StepTraces]:
    """The traces of a world by step, the newest first."""
    found = [kept for kept in (_decode(raw) for _, raw in items) if kept is not None]
    return sorted(found, key=lambda each: each.step, reverse=True)


def find(traces: Sequence[TracedFailure], source: TraceSource, subject: str = "") -> str:
    """The text of the last of these that is of a kind, and about something if that is given."""
    return next((each.text for each in reversed(traces) if each.source is source and subject in ("", each.subject)), "")


def find_run(kept: list[StepTraces], run: str) -> str:
    """Where a run failed, if that is among these, the newest first."""
    return next((text for text in (find(each.traces, TraceSource.RUN, run) for each in kept) if text), "")


def note(error: E, text: str) -> E:
    """Add a traceback to an exception that is raised elsewhere than where it happened."""
    if text:
        error.add_note(f"traceback in the world:\n{printable.shown(text.rstrip())}")
    return error


def _decode(raw: bytes | None) -> StepTraces | None:
    try:
        return keys.KEPT.get(raw)
    except errors.Corrupt:
        return None
