"""What the jobs of flow domains did, as events of the Host contract. Steps record nothing: a journal is run again with
a `TraceRecorder`, and tells it. So a trace costs nothing until it is asked for, and goes back as far as states are
kept.

A recorder keeps whole steps, in their order, and no more than its bounds: `more` says that it stopped. It never changes
what a step does, reads no store, and does not say whether the steps came out as they were journaled; its caller does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from worldline.base import limits
from worldline.codec import canonical, structs
from worldline.features.domains.pure import cell_documents
from worldline.model import inbox, journal
from worldline.model.journal import Kind

DROP = "effect:fulfill:drop"
CANCEL = "effect:cancel"  # an effect of an intent that was abandoned
GRAPH = "core:graph"  # Core's TraceGraph of the compute before


class TraceEvent(msgspec.Struct, frozen=True):
    """One event. `height`: where its step ends; `intent`: of the job that it belongs to, if that has one."""

    step: int
    height: int
    domain: str
    key: str
    type: str
    intent: str
    fields: dict[str, Any]


class Gap(msgspec.Struct, frozen=True):
    """Heights of steps that were not run again, and why."""

    first: int
    last: int
    why: str


class Trace(msgspec.Struct, frozen=True):
    """The events of the steps above a height. `height`: the end of the last step that was run; `more`: there are steps
    behind it that the bounds had no room for; `cut`: the last step has more events than one trace may have.
    """

    events: list[TraceEvent]
    above: int
    height: int
    more: bool = False
    cut: bool = False
    gaps: list[Gap] = []


class TraceFilter(msgspec.Struct, frozen=True):
    """Which events: of a domain, of a cell of it, of an intent; all, without one. `graphs`: with Core's own traces."""

    domain: str = ""
    key: str | None = None
    intent: str = ""
    graphs: bool = False


class TraceRecorder:
    """Told of what jobs do, step by step: `begin`, the step, `end`."""

    def __init__(self, wanted: TraceFilter, *, above: int, events_max: int = 0, bytes_max: int = 0) -> None:
        self.graphs = wanted.graphs
        self._wanted = wanted
        self._events_max = events_max or limits.FLOW_TRACE_EVENTS_MAX
        self._bytes_max = bytes_max or limits.FLOW_TRACE_BYTES_MAX
        self._above = self._height = above
        self._events: list[TraceEvent] = []
        self._bytes = 0
        self._is_full = self._is_cut = False
        self._step: list[TraceEvent] = []  # of the current step
        self._number = self._ends = 0
        self._intent = ""  # of the current job
        self._receipt = b""  # the effect that the step's input answers
        self._answered: dict[bytes, tuple[str, str, str, str]] = {}  # effects, by their names outside: whose they were

    @property
    def is_full(self) -> bool:
        """Whether no further step is wanted."""
        return self._is_full

    def begin(self, entries: Sequence[journal.JournalEntry]) -> None:
        """A step is run, which the journal has so."""
        self._step, self._intent, self._receipt = [], "", b""
        self._number, self._ends = entries[0].step, entries[-1].height
        if entries[0].kind is Kind.EFFECT_RESULT:
            self._receipt = structs.decode(inbox.EffectReceipt, entries[0].payload).intent

    def __call__(self, domain: str, key: str, type: str, fields: dict[str, Any]) -> None:
        if type == "job:start":
            self._intent = fields["intentId"]
            if fields["jobType"] == "FulfillEffect" and self._receipt:
                requirement: str = fields["job"]["requirementId"]
                self._know(self._receipt, (domain, key, self._intent, requirement))
        elif type == CANCEL:
            self._know(bytes.fromhex(fields["work"]), (domain, key, fields["intentId"], fields["requirementId"]))
        self._add(domain, key, type, fields.get("intentId") or self._intent, fields)
        if type == "job:end":
            self._intent = ""

    def _know(self, effect: bytes, whose: tuple[str, str, str, str]) -> None:
        # Bounded as the events are: beyond that, a late answer gets no event.
        if len(self._answered) < self._events_max:
            self._answered[effect] = whose

    def skip(self) -> None:
        """The step could not be run, or not to its end."""
        self._step, self._height = [], self._ends

    def end(self, entries: Sequence[journal.JournalEntry]) -> None:
        """The step was run: keep its events, if there is room for all of them."""
        for effect in _late(entries):
            if effect in self._answered:
                domain, key, intent, requirement = self._answered[effect]
                self._add(domain, key, DROP, intent, {"requirementId": requirement, "reason": "dropped:stale"})
        fits = not self._is_full
        if fits or not self._events:  # a step that does not fit into any trace is cut, so that one can go on behind it
            self._is_cut = not fits
            self._events += self._step
            self._height = self._ends
        self._step = []

    def _add(self, domain: str, key: str, type: str, intent: str, fields: dict[str, Any]) -> None:
        wanted = self._wanted
        if (wanted.domain and wanted.domain != domain) or (wanted.key is not None and wanted.key != key):
            return
        if wanted.intent and wanted.intent != intent:
            return
        if self._is_full:
            return
        data = msgspec.json.encode(fields)
        self._bytes += len(data)
        count = len(self._events) + len(self._step)
        # The first event is kept whatever its size: else no trace could get past it.
        if count >= self._events_max or (count and self._bytes > self._bytes_max):
            self._is_full = True
            return
        # Decoded from its bytes: the event has a copy, and nothing that belongs to the job.
        plain: dict[str, Any] = msgspec.json.decode(data)
        self._step.append(TraceEvent(self._number, self._ends, domain, key, type, intent, plain))

    def trace(self, gaps: Sequence[Gap] = ()) -> Trace:
        """What was recorded."""
        return Trace(self._events, self._above, self._height, self._is_full, self._is_cut, list(gaps))


def _late(entries: Sequence[journal.JournalEntry]) -> Iterator[bytes]:
    """The answers that no work was open for any more."""
    for entry in entries:
        if entry.kind is Kind.LATE_ANSWER:
            match canonical.decode(entry.payload):
                case ["receipt", bytes(effect), str()]:
                    yield effect


@contextmanager
def told(recorder: cell_documents.JobListener) -> Iterator[None]:
    """Within the block, steps tell it what jobs do. It is set for the thread alone."""
    token = cell_documents.recorder.set(recorder)
    try:
        yield
    finally:
        cell_documents.recorder.reset(token)
