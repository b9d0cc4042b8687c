"""Random batches, reads and re-openings of every engine, against the dict of `model`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from tests import options
from tests.conformance import batches, model
from tests.conformance.kits import Kit
from worldline.base import errors, limits
from worldline.store import kv

T = TypeVar("T")

# The soak asks for many times more.
FACTOR = options.number("model_factor")
EXAMPLES = {"memory": 100 * FACTOR, "lmdb": 80 * FACTOR, "postgres": 20 * FACTOR}
STEPS = 25

PLAIN = [b"a", b"a\x00", b"a\x00\xff", b"a\xff", b"b", b"b/", b"b/\x01", b"\x00", b"\xff\xff"]
COUNTERS = [b"c/1", b"c/2"]
PREFIXES = [b"log/", b"b/", b"a\xff"]
ENDS = [*PLAIN, *COUNTERS, b"c", b"d", b"log0", b"z", b"\xff\xff\xff"]
WHOLE = kv.Range(b"\x00", b"\xff\xff\xff", 100_000, 1 << 30)
WIPES = b"\xff\xff\xff\xff"  # outside of what the model knows

# A key of the table, or by its place among those which are there, which is how appended keys are met again.
Name = bytes | int
names: st.SearchStrategy[Name] = st.one_of(st.sampled_from(PLAIN + COUNTERS), st.integers(0, 30))
plain = st.sampled_from(PLAIN)
ends = st.sampled_from(ENDS)
values = st.sampled_from([b"", b"1", b"2", b"\x00", b"x" * 300])
deltas = st.sampled_from([0, 1, -1, 7, 2**62, -(2**63), 2**63 - 1])

# The first word says what a step adds to its batch; `_Machine._add` carries it out.
Step = tuple[Any, ...]
guards: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.sampled_from(["create or replace", "create or replace stamped"]), plain, values),
    st.tuples(st.sampled_from(["consume", "sweep"]), names),
)
steps: st.SearchStrategy[Step] = st.one_of(
    guards,
    st.tuples(st.just("expect"), names),
    st.tuples(st.just("expect wrong"), names, values),
    st.tuples(st.just("absent"), plain),
    st.tuples(st.just("put"), plain, values),
    st.tuples(st.just("put counter"), st.sampled_from(COUNTERS), deltas),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("range"), ends, ends),
    st.tuples(st.just("add"), st.sampled_from(COUNTERS), deltas),
    st.tuples(st.just("append"), st.sampled_from(PREFIXES), values),
)
# How much of a random plan is let into its batch: all of it, what breaks no rule, or what also holds at the time.
cares = st.sampled_from(["holds", "holds", "holds", "holds", "holds", "rules", "none"])
Plan = tuple[str, list[Step]]
plans: st.SearchStrategy[Plan] = st.tuples(
    cares, st.tuples(st.one_of(guards, guards, steps), st.lists(steps, max_size=6)).map(lambda two: [two[0], *two[1]])
)
requests = st.one_of(names, st.builds(kv.Range, ends, ends, st.integers(1, 5), st.integers(1, 400), st.booleans()))


class _Store:
    """Two engines on one store, used by one example after the other; opening anew would be most of the time."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.runner = asyncio.Runner()
        self.engines = [self.do(kit.open()), self.do(kit.open())]
        self.wipes = 0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def wipe(self) -> None:
        batch = batches.create(WIPES + batches.number(self.wipes), b"")
        batch.delete_range(WHOLE.begin, WHOLE.end)
        self.do(batches.ok(self.engines[0], batch))
        self.wipes += 1

    def close(self) -> None:
        self.do(self.kit.aclose())
        self.runner.close()


class _Machine(stateful.RuleBasedStateMachine):
    def __init__(self, store: _Store) -> None:
        super().__init__()
        self.model = model.Model()
        self.store = store
        self.engines = store.engines
        self.do = store.do
        self.last_stamp = bytes(limits.STAMP_BYTES)
        self.stable = bytes(limits.STAMP_BYTES)
        self.time_us = 0
        store.wipe()

    @stateful.rule(which=st.integers(0, 1), plans=st.lists(plans, min_size=1, max_size=3))
    def commit(self, which: int, plans: list[Plan]) -> None:
        built = [self._build(*plan) for plan in plans]
        refused = any(list(model.broken_rules(batch)) for batch in built)
        try:
            outcomes = self.do(self.engines[which].commit(*built))
        except errors.BatchRefused:
            assert refused, built
            return
        assert not refused, built
        assert len(outcomes) == len(built)
        newest = self.last_stamp
        for batch, outcome in zip(built, outcomes, strict=True):
            failed = self.model.failed(batch)
            if failed:
                assert outcome == kv.Conflict(failed), batch
                continue
            assert isinstance(outcome, kv.Ok), (batch, outcome)
            assert len(outcome.stamps) == len(batch.appends)
            assert list(outcome.stamps) == sorted(set(outcome.stamps))
            assert all(stamp > self.last_stamp and stamp >= self.stable for stamp in outcome.stamps)
            newest = max([newest, *outcome.stamps])
            self.model.apply(batch, outcome.stamps)
        self.last_stamp = newest

    @stateful.rule(which=st.integers(0, 1), wanted=st.lists(requests, max_size=6))
    def read(self, which: int, wanted: list[Name | kv.Range]) -> None:
        asked = [request if isinstance(request, kv.Range) else kv.Get(self._key(request)) for request in wanted]
        snapshot = self.do(self.engines[which].read(*asked))
        assert len(snapshot.answers) == len(asked)
        for index, request in enumerate(asked):
            if isinstance(request, kv.Get):
                assert snapshot.value(index) == self.model.values.get(request.key)
            else:
                page = snapshot.page(index)
                assert (page.items, page.more) == self.model.page(request)
                self.stable = max(self.stable, page.stable)
        assert snapshot.time_us >= self.time_us
        self.time_us = snapshot.time_us

    @stateful.rule(which=st.sampled_from([None, None, None, 0, 1]))
    def reopen(self, which: int | None) -> None:
        if which is not None:
            self.do(self.engines[which].close())
            self.engines[which] = self.do(self.store.kit.open())

    @stateful.invariant()
    def holds_what_the_model_holds(self) -> None:
        for engine in self.engines:
            page = self.do(engine.read(WHOLE)).page(0)
            assert page.items == sorted(self.model.values.items())

    def _key(self, name: Name) -> bytes:
        if isinstance(name, bytes):
            return name
        there = sorted(self.model.values)
        return there[name % len(there)] if there else PLAIN[0]

    def _build(self, care: str, plan: list[Step]) -> kv.Batch:
        taken: list[Step] = []
        # Behind the plan, so that a batch with care has a guard whatever the plan was.
        spare: list[Step] = [] if care == "none" else [("create or replace", key, b"guard") for key in PLAIN]
        for step in [*plan, *spare]:
            if step in spare and model.has_guard(self._batch(taken)):
                break
            batch = self._batch([*taken, step])
            broken = set(model.broken_rules(batch)) - {"no guard"}
            if care == "none" or not (broken or (care == "holds" and self.model.failed(batch))):
                taken.append(step)
        return self._batch(taken)

    def _batch(self, plan: list[Step]) -> kv.Batch:
        batch = kv.Batch()
        for step in plan:
            # Two writes to a key, or two different expectations, are refused while building; the step is then left out.
            with contextlib.suppress(errors.BatchRefused):
                self._add(batch, step[0], step[1:])
        return batch

    def _add(self, batch: kv.Batch, word: str, arguments: tuple[Any, ...]) -> None:
        key = arguments[0] if word in ("range", "append") else self._key(arguments[0])
        now = self.model.values.get(key)
        match word:
            case "create or replace" | "create or replace stamped" if now is not None:
                batch.expect(key, now)
            case "create or replace" | "create or replace stamped" | "absent":
                batch.absent(key)
            case "consume" | "sweep" | "expect":
                batch.expect(key, b"" if now is None else now)
            case "expect wrong":
                batch.expect(key, arguments[1])
        match word:
            case "create or replace" | "put":
                batch.put(key, arguments[1])
            case "create or replace stamped":
                batch.put(key, arguments[1], stamp=batch.append(b"log/", arguments[1]))
            case "put counter":
                batch.put(key, (arguments[1] % 2**64).to_bytes(8, "little"))
            case "consume" | "delete":
                batch.delete(key)
            case "sweep":
                batch.delete_range(key, key + b"\x00")
            case "range":
                batch.delete_range(key, arguments[1])
            case "add":
                batch.add(key, arguments[1])
            case "append":
                batch.append(key, arguments[1])


def test_an_engine_is_a_dict_with_rules(kit: Kit) -> None:
    class Machine(_Machine):
        def __init__(self) -> None:
            super().__init__(store)

    store = _Store(kit)
    try:
        examples = EXAMPLES[kit.name] // (4 if kit.is_sealed else 1)
        settings = hypothesis.settings(max_examples=examples, stateful_step_count=STEPS)
        stateful.run_state_machine_as_test(Machine, settings=settings)
    finally:
        store.close()
