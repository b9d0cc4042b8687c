"""Tracebacks beside the journal: those of the last steps, never more than there are places, and none after deletion."""

from __future__ import annotations

from tests.layers.test_step_commit import AT, PEER, a_step, a_store, adding, hold
from worldline.base import limits
from worldline.keys import journal as journal_keys
from worldline.keys import traces as keys
from worldline.layers import step_commit
from worldline.model.traces import StepTraces, TracedFailure, TraceSource
from worldline.runtime import traceback_reader
from worldline.store import kv


def kept(step: int, *texts: str, time_us: int = 5) -> StepTraces:
    return StepTraces(step, time_us, [TracedFailure(TraceSource.RUN, f"r{step}", text) for text in texts])


def test_a_step_writes_them_with_everything_else() -> None:
    store = a_store()
    held = hold(store, 1)
    store.ok(adding(held, a_step(store, traces=[kept(1, "first", "second")])))
    raw = store.value(keys.trace_key(AT, 1))
    found = traceback_reader.decode(raw, 1)
    assert [each.text for each in found] == ["first", "second"]
    assert traceback_reader.find(found, TraceSource.RUN) == "second"
    assert traceback_reader.find(found, TraceSource.RUN, "r1") == "second"
    assert traceback_reader.find(found, TraceSource.RUN, "r2") == ""
    assert traceback_reader.find(found, TraceSource.HANDLER) == ""
    assert traceback_reader.decode(None, 1) == []


def test_a_step_whose_place_was_taken_has_none() -> None:
    batch = kv.Batch()
    step_commit.keep_traces(batch, AT, [kept(3, "old")])
    later = 3 + limits.TRACE_SLOTS
    step_commit.keep_traces(other := kv.Batch(), AT, [kept(3, "old"), kept(later, "new")])
    [(key, value)] = [(key, put.value) for key, put in other.puts.items()]
    assert list(batch.puts) == [key]
    assert traceback_reader.decode(value, 3) == []
    assert [each.text for each in traceback_reader.decode(value, later)] == ["new"]


def test_there_are_never_more_than_places() -> None:
    batch = kv.Batch()
    step_commit.keep_traces(batch, AT, [kept(step, "x") for step in range(1, 3 * limits.TRACE_SLOTS)])
    assert len(batch.puts) == limits.TRACE_SLOTS
    found = traceback_reader.decode_all((key, put.value) for key, put in batch.puts.items())
    assert [each.step for each in found] == list(range(3 * limits.TRACE_SLOTS - 1, 2 * limits.TRACE_SLOTS - 1, -1))


def test_the_largest_fit_into_a_value() -> None:
    largest = TracedFailure(TraceSource.HANDLER, "s" * limits.CHOSEN_ID_BYTES_MAX, "t" * limits.TRACE_BYTES_MAX)
    batch = kv.Batch()
    step_commit.keep_traces(batch, AT, [StepTraces(2**60, 2**60, [largest] * limits.STEP_TRACES_MAX)])
    [put] = batch.puts.values()
    assert len(put.value) <= limits.VALUE_BYTES_MAX


def test_bytes_that_cannot_be_read_are_none() -> None:
    assert traceback_reader.decode(b"\xb1\x28garbage", 1) == []
    assert traceback_reader.decode_all([(b"", b"garbage"), (b"", keys.KEPT.pack(kept(4, "x")))]) == [kept(4, "x")]


def test_they_are_a_range_of_their_own() -> None:
    begin, end = keys.traces(AT)
    assert begin <= keys.trace_key(AT, 1) < end
    assert not begin <= keys.trace_key(PEER, 1) < end
    assert not begin <= journal_keys.head_key(AT) < end
