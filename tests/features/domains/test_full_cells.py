"""What a cell of a flow domain cannot hold: the intent that would put it there ends, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.features.domains.shop import Order, Shop
from tests.features.domains.shop_worlds import opened
from tests.flow_core.documents import document, effect, field, get, lit, op, put, seq, when
from tests.kits.fixtures import lmdb_kit
from tests.kits.kit import Kit
from worldline import flow, testing
from worldline.base import limits
from worldline.features.domains.pure import domain_cell
from worldline.flow_core import jobs
from worldline.flow_core.authoring import action_calls
from worldline.model import inbox, payload
from worldline.model.journal import Kind
from worldline.testing.tested_world import TestWorld

__all__ = ["lmdb_kit"]

LIMIT = 5_000


class Note(flow.Domain):
    text: str = ""
    fetched: str | None = None
    refused: flow.Error | None = None

    @flow.action
    def write(self, text: str) -> None:
        self.text = text

    @flow.action
    def fetch(self) -> None:
        flow.perform(flow.ask("charge", card="tok", cents=1), into=self.fetched, fail=self.refused)


@pytest.fixture(autouse=True)
def small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_CELL_BYTES_MAX", LIMIT)


@contextmanager
def noting(*answers: Any) -> Iterator[TestWorld]:
    shop = Shop()
    shop.app.domain(Note)
    with testing.world(shop.app, wl.Script().on(shop.charge, *answers)) as world:
        yield world
        world.prove()


def cell(world: TestWorld) -> domain_cell.DomainCell:
    return domain_cell.decode(world.machine.cells["Note", ""].data)[0]


def ends(world: TestWorld) -> dict[str, str]:
    return {each.id: each.status for each in cell(world).done}


def filled(world: TestWorld) -> None:
    """A cell that has no room for an error more."""
    for size in range(LIMIT, 0, -10):
        with contextlib.suppress(wl.BadInput):
            world.patch(Note, [flow.set("text", "x" * size)])
            assert LIMIT - 20 < len(world.machine.cells["Note", ""].data) <= LIMIT
            return


@pytest.mark.probe("domains.cell-unstorable")
def test_what_a_cell_cannot_hold_ends_the_intent_that_would_put_it_there() -> None:
    shop = Shop()
    with opened(shop, "r" * LIMIT) as world:
        done = world.act(shop.todos.action("add")(title="x" * LIMIT))
        assert (done.status, done.error and done.error.code, done.state["list"]) == ("error", "INTERNAL_ERROR", [])
        assert world.act(shop.todos.action("add")(title="x")).state["list"] == ["x"]
        world.act(Order.fill(5), key="o")
        paid = world.act(Order.pay("tok"), key="o")
        assert (paid.status, paid.state.receipt) == ("error", None)
        assert world.snapshot(Order, "o").system.pending_requirements == ()
    with opened(shop, wl.Script.never()) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        with pytest.raises(wl.BadInput, match="cell of a flow domain"):
            world.act(Order.pay("t" * LIMIT), key="o")


def test_of_queued_intents_only_the_one_that_does_not_fit_ends_with_an_error() -> None:
    with noting(wl.Script.later(1, "n" * 1_000)) as world:
        world.submit(Note.fetch(), id="first")
        for number, size in enumerate((10, 20, 2_300)):
            world.submit(Note.write("x" * size), id=f"w{number}")
        world.advance(5)
        assert ends(world) == {"first": "complete", "w0": "complete", "w1": "complete", "w2": "error"}
        assert len(world.snapshot(Note).data["text"]) == 20
        assert cell(world).queue == []


def test_behind_an_intent_that_does_not_fit_the_next_begins_in_the_same_step() -> None:
    """Its state is too large for an answer as well: the step was closed for a caller that never reads it."""
    with noting(wl.Script.later(1, "n" * LIMIT)) as world:
        world.submit(Note.fetch(), id="first")
        world.submit(Note.write("x"), id="next")
        world.advance(5)
        assert ends(world) == {"first": "error", "next": "complete"}
        told = [each.step for each in world.journal() if each.kind is Kind.ANSWERED]
        assert told == [told[0]] * 2


def test_what_is_nested_too_deep_to_be_stored_ends_its_intent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    nest = put("tree", {"kind": "object", "fields": {"child": get("tree")}})
    app = wl.Program("nested")
    nested = app.domain(
        document({"nest": nest, "clear": put("tree", lit(None))}, {"tree": field("object")}), name="Nested"
    )
    with testing.world(app) as world:
        done = [world.act(nested.action("nest")()) for _ in range(limits.CBOR_DEPTH_MAX + 5)]
        ended = [each.status for each in done]
        assert ended == sorted(ended), "once it is too deep, every further one ends with an error"
        assert (ended[0], ended[-1]) == ("complete", "error")
        assert "nested deeper" in str(done[-1].error)
        assert world.act(nested.action("clear")()).state["tree"] is None
        world.prove()


def test_a_full_cell_still_says_how_its_intents_end() -> None:
    with noting("n") as world:
        world.act(Note.write("x"), id="early")
        filled(world)
        for number in range(3):
            done = world.act(Note.write("y" * LIMIT), id=f"w{number}")
            assert (done.status, done.error and done.error.code) == ("error", "INTERNAL_ERROR")
        assert len(world.machine.cells["Note", ""].data) > LIMIT
        assert world.act(Note.write("x"), id="early").status == "complete"
        assert world.act(Note.write("short"), id="less").state.text == "short"
        assert len(world.machine.cells["Note", ""].data) < LIMIT


def test_an_intent_of_a_full_cell_can_be_abandoned() -> None:
    with noting(wl.Script.never()) as world:
        world.submit(Note.fetch(), id="stuck")
        world.submit(Note.write("y"), id="waits")
        filled(world)
        world.abandon(Note, "waits")
        world.abandon(Note, "stuck")
        assert ends(world) == {"waits": "error", "stuck": "error"}
        assert len(world.machine.cells["Note", ""].data) > LIMIT
        assert world.act(Note.write("short")).state.text == "short"


def test_those_who_wait_for_one_intent_are_bounded() -> None:
    with noting(wl.Script.later(5, "n")) as world:
        for _ in range(limits.FLOW_WAITERS_MAX):
            world.submit(Note.fetch(), id="once")
        with pytest.raises(wl.errors.Closed, match="16 callers wait for intent 'once' already"):
            world.act(Note.fetch(), id="once")
        world.advance(10)
        assert (ends(world), cell(world).owed) == ({"once": "complete"}, {})
        told = [each for each in world.journal() if each.kind is Kind.ANSWERED and b"complete" in each.payload]
        assert len(told) == limits.FLOW_WAITERS_MAX


def test_those_who_wait_for_intents_of_one_cell_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_CELL_WAITERS_MAX", 3)
    with noting(wl.Script.later(5, "n")) as world:
        for number in range(3):
            world.submit(Note.fetch(), id=f"f{number}")
        with pytest.raises(wl.errors.Closed, match="3 callers wait for intents of Note already"):
            world.act(Note.write("x"))
        world.advance(10)
        assert world.act(Note.write("x")).state.text == "x"


def test_one_who_waits_for_an_intent_of_a_full_cell_is_refused() -> None:
    with noting(wl.Script.later(5, "n")) as world:
        world.submit(Note.fetch(), id="once")
        filled(world)
        with pytest.raises(wl.BadInput, match="cell of a flow domain"):
            world.act(Note.fetch(), id="once")
        world.advance(10)
        assert (ends(world), cell(world).fatal) == ({"once": "complete"}, "")


def test_patches_that_a_cell_cannot_hold_are_refused() -> None:
    with noting("n") as world:
        world.act(Note.write("x"))
        before = world.snapshot(Note)
        with pytest.raises(wl.BadInput, match="not applied: the cell of a flow domain is"):
            world.patch(Note, [flow.set("text", "y" * LIMIT)])
        assert world.snapshot(Note) == before


@pytest.mark.probe("domains.cell-full")
def test_a_cell_without_room_for_an_end_is_fatal_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_CELL_RESERVE_BYTES", 0)
    with noting("r-1") as world:
        world.act(Note.write("x"))
        filled(world)
        assert world.act(Note.write("y" * LIMIT), id="over").status == "error"
        with pytest.raises(wl.Error, match="no room for the end of an intent") as refused:
            world.act(Note.write("y"), id="more")
        assert refused.value.code == "key_fatal"
        assert "takes nothing any more" in str(world.explain(Note.write))
        assert [each.kind for each in world.journal()].count(Kind.HANDLER_FAILED) == 1
        world.act(Order.fill(5), key="o")
        assert world.act(Order.pay("tok"), key="o").state.receipt == "r-1"


def test_jobs_that_do_not_end_make_their_cell_fatal_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of the host, as one would be that enqueues a job again and again: the step ends all the same."""
    run = jobs.run

    def again(job: jobs.Job, *given: Any) -> jobs.JobOutcome:
        outcome = run(job, *given)
        endless = isinstance(job, jobs.FulfillEffect) and job.intent_id == "endless"
        return msgspec.structs.replace(outcome, jobs=(*outcome.jobs, job)) if endless else outcome

    monkeypatch.setattr(jobs, "run", again)
    with noting(wl.Script.later(1, "n")) as world:
        world.submit(Note.fetch(), id="endless")
        world.advance(5)
        assert cell(world).fatal == "the jobs of its intent do not end"
        world.act(Order.fill(5), key="o")
        assert world.act(Order.pay("tok"), key="o").state.receipt == "n"


def crates(effects: Any = "parallel") -> tuple[wl.Program, Any, Any]:
    """A program whose domain asks for two effects at once, each into a field of its own."""
    app = wl.Program("crates")

    @app.effect
    async def part(number: int) -> str:
        raise AssertionError(number)

    asks = [
        when(op("isNull", get(name)), effect("part", number=lit(number), into=lit(name)))
        for number, name in enumerate("ab")
    ]
    actions = {
        "pack": seq(*asks),
        "fill": {
            "flow": put("text", op("concat", get("input.text"), get("input.text"))),
            "input": {"type": "object", "required": True, "fields": {"text": {"type": "string", "required": True}}},
        },
    }
    fields = {name: field("string") for name in ("a", "b", "text")}
    return app, app.domain(document(actions, fields), name="Crate", effects=effects), part


def test_effects_of_an_intent_that_a_cell_cannot_hold_are_given_up_and_the_next_begins() -> None:
    """Found by the simulator: they were performed all the same, and whatever waited behind it waited for ever."""
    app, crate, part = crates()
    script = wl.Script().on(part, wl.Script.later(1, "x" * LIMIT), wl.Script.later(9, "late"))
    with testing.world(app, script) as world:
        world.submit(crate.action("pack")(), id="first")
        waits = world.submit(crate.action("fill")(text="next"), id="next")
        world.advance(2)
        assert world.machine.work.open == {}
        assert (world.snapshot(crate).data["a"], world.snapshot(crate).data["text"]) == (None, "nextnext")
        assert [each.kind for each in world.journal() if each.correlation == waits] == [Kind.EVENT, Kind.ANSWERED]
        assert world.act(crate.action("pack")(), id="first").error is not None
        world.prove()


def test_what_is_held_back_of_an_abandoned_intent_never_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step has no room for is asked for by the next, which may be the one that abandons it."""
    monkeypatch.setattr(limits, "STEP_EFFECTS_MAX", 1)
    app, crate, part = crates()
    with testing.world(app, wl.Script().on(part, wl.Script.never())) as world:
        schema, data = action_calls.event_of(crate.action("pack")(), key="", id="first", named=True)
        world._stage.step(world._actor, inbox.InboxEvent(schema, payload.inline(data)), data)
        assert (len(world.machine.work.open), len(world.machine.work.unsent.items)) == (1, 1)
        world.abandon(crate, "first")
        assert (world.machine.work.open, list(world.machine.work.unsent.items)) == ({}, [])
        asked = [each for each in world.journal() if each.kind is Kind.EFFECT_REQUESTED]
        assert len(asked) == 1
        world.prove()


class Long(flow.Domain):
    text: str | None = None
    count: int = 0

    @flow.action
    def fetch(self) -> None:
        flow.perform(flow.ask("fetch"), into=self.text)

    @flow.action
    def add(self) -> None:
        self.count = self.count + 1


async def waiting(world: wl.World, count: int) -> bool:
    return len((await world.state())["Long"][""].get("queue", [])) == count


@pytest.mark.probe("domains.queue-goes-on")
async def test_the_ends_of_a_long_queue_are_told_over_several_steps(
    lmdb_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks from another world, and gets a state of 12 KB: together more than a step can hold."""
    monkeypatch.undo()
    gate, begun = asyncio.Event(), asyncio.Event()
    app, asking = wl.Program("long"), wl.Program("asking")
    app.domain(Long)

    @app.effect
    async def fetch() -> str:
        begun.set()
        await gate.wait()
        return "w" * 12_000

    @asking.workflow
    async def add() -> int:
        return (await wl.act(Long.add(), world="far")).state.count

    count = limits.STEP_BYTES_MAX // 12_000 + 10
    async with lmdb_kit.hosting(app, asking) as universe:
        far, near = await universe.ensure("far", app), await universe.ensure("near", asking)
        async with asyncio.TaskGroup() as group:
            group.create_task(far.act(Long.fetch()))
            await begun.wait()
            found = [group.create_task(near.run(add())) for _ in range(count)]
            await aio.until(lambda: waiting(far, count))
            gate.set()
        assert sorted(each.result() for each in found) == list(range(1, count + 1))
