"""The trace of flow domains in worlds: what a standalone host would have told, derived from the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests.features.compaction import compacting
from tests.features.domains.shop import Order, Shop, break_clearing
from tests.kits import kit as kits
from tests.kits.fixtures import kit, lmdb_kit
from tests.kits.kit import Kit
from worldline import flow, testing
from worldline.base import limits
from worldline.client import send_door
from worldline.codec import canonical
from worldline.features.domains import stored_trace
from worldline.features.domains.pure import cell_documents
from worldline.kernel import replay, user_values
from worldline.model import inbox, payload, row_keys
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.runtime.cold_cells import ColdCells
from worldline.testing.tested_world import TestWorld

__all__ = ["kit", "lmdb_kit"]

PAID = [
    "job:start",
    "context:frozen",
    "core:apply",
    "core:compute",
    "core:apply",
    "effect:dispatch",
    "job:end",
    "job:start",
    "context:frozen",
    "core:apply",
    "effect:fulfill:apply",
    "core:apply",
    "requirement:clear",
    "continue:enqueue",
    "job:end",
    "job:start",
    "context:frozen",
    "core:compute",
    "core:apply",
    "job:end",
]


@contextmanager
def opened(shop: Shop, *answers: Any) -> Iterator[TestWorld]:
    with testing.world(shop.app, wl.Script().on(shop.charge, *(answers or ("r-1",)))) as world:
        yield world


def types(trace: wl.ops.Trace) -> list[str]:
    return [each.type for each in trace.events]


def filled(world: TestWorld, *keys: str) -> None:
    for key in keys:
        world.act(Order.fill(5), key=key)


# --- What it says ------------------------------------------------------------------------------------------------


async def test_a_trace_is_what_a_standalone_host_tells() -> None:
    told: list[flow.Event] = []
    host = flow.Host(Order, trace=told.append)
    host.register("charge", flow.answering(lambda card, cents: "r-1"))
    await host.act(Order.fill(5), key="o", id="fill")
    await host.act(Order.pay("tok"), key="o", id="pay")
    with opened(Shop()) as world:
        world.act(Order.fill(5), key="o", id="fill")
        world.act(Order.pay("tok"), key="o", id="pay")
        trace = world.trace()
        assert types(world.trace(intent="pay")) == PAID
    alone = [each for each in told if not each.type.startswith("runner:")]
    assert [(each.key, each.type) for each in trace.events] == [(each.key, each.type) for each in alone]
    for mine, other in zip(trace.events, alone, strict=True):
        assert {**mine.fields, "now": 0} == {**other.fields, "now": 0}


def test_contexts_are_frozen_with_time_and_seed_and_events_say_where_they_belong() -> None:
    """INV-CTX-5: with the journal's times and the intent's id, jobs can be run again."""
    with opened(Shop(), wl.Script.later(5, "r-1")) as world:
        filled(world, "o")
        began = world.now
        world.act(Order.pay("tok"), key="o", id="pay")
        trace = world.trace(domain=Order, key="o", intent="pay")
        frozen = [each.fields for each in trace.events if each.type == "context:frozen"]
        assert [each["randomSeed"] for each in frozen] == ["pay"] * 3
        first = int(began.timestamp() * 1_000)
        assert [each["now"] - first for each in frozen] == [0, 5_000, 5_000]
        assert all((each.domain, each.key, each.intent) == ("Order", "o", "pay") for each in trace.events)
        places = list(dict.fromkeys((each.step, each.height) for each in trace.events))
        ends = {each.step: each.height for each in world.journal()}
        assert places == [(step, ends[step]) for step, _ in places]
        assert len(places) == 2
        head = world.snapshot(Order, "o", at=0)
        events = [flow.Event(each.key, each.type, each.fields) for each in world.trace(key="o").events]
        host = flow.Host(Order)
        again = flow.replay(host.domain, head, events, key="o")
        assert again.data == world.snapshot(Order, "o").data


def test_what_is_wanted() -> None:
    shop = Shop()
    with opened(shop) as world:
        filled(world, "a", "b")
        world.act(shop.todos.action("add")(title="milk"))
        world.act(Order.pay("tok"), key="a", id="pay")
        everything = world.trace()
        assert {(each.domain, each.key) for each in everything.events} == {
            ("Order", "a"),
            ("Order", "b"),
            ("Todos", ""),
        }
        for wanted in ({"domain": shop.todos}, {"domain": "Todos"}, {"key": ""}):
            assert {each.domain for each in world.trace(**wanted).events} == {"Todos"}
        assert world.trace(domain="Order", key="b").events == [each for each in everything.events if each.key == "b"]
        assert types(world.trace(intent="pay")) == PAID
        assert world.trace(intent="none").events == []
        above = world.head.height
        world.act(Order.fill(6), key="b")
        later = world.trace(above=above)
        assert (later.above, later.height, {each.key for each in later.events}) == (above, world.head.height, {"b"})
        assert world.trace(up_to=above).events == everything.events
        assert world.trace().events[: len(everything.events)] == everything.events


def test_graphs_are_there_if_they_are_wanted_and_steps_know_nothing_of_it() -> None:
    with opened(Shop()) as world:
        filled(world, "o")
        assert "core:graph" not in types(world.trace())
        [graph] = [each.fields["graph"] for each in world.trace(graphs=True).events if each.type == "core:graph"]
        assert graph["nodes"][graph["root"]]["inputs"] == {"op": "set", "path": "cents"}
        assert cell_documents.recorder.get() is None
        world.prove()


def test_an_abandoned_intent_and_what_comes_too_late() -> None:
    with opened(Shop(), wl.Script.never()) as world:
        filled(world, "o")
        world.submit(Order.pay("tok"), key="o", id="a")
        world.submit(Order.fill(6), key="o", id="b")
        [effect] = world.machine.work.open
        world.abandon(Order, "b", key="o")
        world.abandon(Order, "a", key="o")
        assert types(world.trace(intent="b")) == ["intent:abandon"]
        ended = world.trace(intent="a")
        assert types(ended)[-2:] == ["intent:abandon", "effect:cancel"]
        data = canonical.encode("late")
        world.step(inbox.EffectReceipt(effect, ReceiptStatus.OK, payload.inline(data), 1), data)
        assert world.trace(above=ended.height).events == []  # whose it was stands below
        late = world.trace(intent="a").events[-1]
        assert (late.type, late.fields["reason"], late.height) == (
            "effect:fulfill:drop",
            "dropped:stale",
            world.head.height,
        )


def test_a_fatal_cell_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    break_clearing(monkeypatch, cents=5)
    with opened(Shop()) as world:
        filled(world, "o")
        with pytest.raises(wl.Error, match="cannot be cleared"):
            world.act(Order.pay("tok"), key="o")
        assert types(world.trace())[-3:] == ["effect:fulfill:error", "fatal:escalate", "job:end"]


def test_a_cell_that_moves_to_another_document_says_so() -> None:
    with opened(Shop()) as world:
        filled(world, "o")
        world.adopt(Shop(2).app)
        with pytest.raises(wl.errors.NotRetained, match="steps can be run from"):
            world.trace(above=0)
        filled(world, "o")
        applied = [each.fields["source"] for each in world.trace().events if each.type == "core:apply"]
        assert applied[:2] == ["document", "host-intent-slot"]
        world.adopt(Shop(3).app)
        world.submit(flow.Act(Order, "fill", {"cents": "7"}), key="o")
        [blocked] = world.trace().events
        assert (blocked.type, blocked.fields) == ("cell:block", {"where": "cents must be string, not number"})


def test_an_intent_can_be_abandoned_beside_events_of_later() -> None:
    """What `wl.after` raises is open work, too, and no requirement."""
    shop = Shop()

    @dataclass(frozen=True)
    class Rang:
        number: int

    @shop.app.workflow
    async def clock() -> None:
        wl.after(3_600, Rang(1))

    with opened(shop, wl.Script.never()) as world:
        world.run(clock())
        filled(world, "o")
        world.submit(Order.pay("tok"), key="o", id="a")
        world.abandon(Order, "a", key="o")
        assert [each.kind.name for each in world.machine.work.open.values()] == ["TIMER"]


# --- Its bounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "most"), [("FLOW_TRACE_EVENTS_MAX", 25), ("FLOW_TRACE_BYTES_MAX", 2_000)])
def test_it_ends_behind_a_whole_step_and_goes_on_from_there(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(Shop()) as world:
        filled(world, "a", "b")
        world.act(Order.pay("tok"), key="a")
        world.act(Order.pay("tok"), key="b")
        whole = world.trace()
        monkeypatch.setattr(limits, name, most)
        found: list[wl.ops.TraceEvent] = []
        parts, above = 0, 0
        while True:
            part = world.trace(above=above)
            assert not part.cut
            assert len(part.events) <= limits.FLOW_TRACE_EVENTS_MAX
            assert part.height > above
            found, above, parts = found + part.events, part.height, parts + 1
            if not part.more:
                break
        assert (found, above) == (whole.events, whole.height)
        assert parts > 2


def test_a_step_that_is_too_large_for_any_trace_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_TRACE_EVENTS_MAX", 5)
    with opened(Shop()) as world:
        filled(world, "a", "b")
        first = world.trace()
        assert (len(first.events), first.more, first.cut) == (5, True, True)
        second = world.trace(above=first.height)
        assert {each.key for each in second.events} == {"b"}


# --- In a store --------------------------------------------------------------------------------------------------


async def lived(universe: wl.Universe, shop: Shop) -> wl.World:
    world = await universe.ensure("w", shop.app)
    await world.act(Order.fill(5), key="o", id="fill")
    await world.act(Order.pay("tok"), key="o", id="pay")
    await world.act(shop.todos.action("add")(title="milk"), id="add")
    return world


async def test_a_world_of_domains_alone_needs_no_program(kit: Kit) -> None:
    shop = Shop()
    async with kit.hosting(shop.app) as universe:
        hosted = await (await lived(universe, shop)).trace(graphs=True)
    async with kit.hosting() as client:
        world = client.world("w")
        assert await world.trace(graphs=True) == hosted
        assert types(await world.trace(intent="pay")) == PAID
        assert (hosted.above, hosted.height, hosted.more, hosted.gaps) == (0, (await world.head()).height, False, [])
        end = hosted.events[-1].height
        assert (await world.trace(above=end)).events == []
        for above, up_to in ((end + 10, None), (-1, None), (0, end + 10), (5, 4)):
            with pytest.raises(wl.BadInput, match="the journal's head is at height"):
                await world.trace(above=above, up_to=up_to)


async def test_without_a_height_it_is_of_the_last_entries(lmdb_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    async with lmdb_kit.hosting(shop.app) as universe:
        world = await lived(universe, shop)
        monkeypatch.setattr(limits, "FLOW_TRACE_ENTRIES", 2)
        last = await world.trace()
        assert (last.above, {each.intent for each in last.events}) == (last.height - 2, {"add"})


async def test_cells_of_a_large_world_stay_in_the_store(lmdb_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    async with lmdb_kit.hosting(shop.app) as universe:
        world = await lived(universe, shop)
        await world.snapshot()
        above = (await world.head()).height
        await world.act(Order.fill(6), key="new", id="more")
        whole = await world.trace(above=above)
        fetched: list[bytes] = []
        monkeypatch.setattr(stored_trace, "CELLS_BYTES_MAX", 0)
        monkeypatch.setattr(ColdCells, "__call__", _counting(fetched, ColdCells.__call__))
        assert (await world.trace(above=above), types(whole)[0]) == (whole, "job:start")
        assert fetched == [row_keys.cell("Order", "new")]


def _counting(fetched: list[bytes], call: Any) -> Any:
    def counted(self: ColdCells, key: bytes) -> Any:
        fetched.append(key)
        return call(self, key)

    return counted


async def test_a_fork_has_the_trace_of_its_parent(lmdb_kit: Kit) -> None:
    shop = Shop()
    async with lmdb_kit.hosting(shop.app) as universe:
        world = await lived(universe, shop)
        fork = await world.fork("f", live=True)
        await fork.act(Order.fill(7), key="o", id="more")
        before, after = await world.trace(), await fork.trace()
        assert after.events[: len(before.events)] == before.events
        assert {each.intent for each in after.events[len(before.events) :]} == {"more"}


def mixed() -> Shop:
    shop = Shop()

    @shop.app.workflow
    async def nothing() -> None: ...

    return shop


async def test_a_world_with_other_code_needs_it_or_says_so(lmdb_kit: Kit) -> None:
    shop = mixed()
    async with lmdb_kit.hosting(shop.app) as universe:
        world = await lived(universe, shop)
        await world.run(shop.app.workflows["nothing"]())
        hosted = await world.trace()
        assert types(await world.trace(intent="pay")) == PAID
    async with lmdb_kit.hosting() as client:
        with pytest.raises(
            wl.BadInput, match="'shop' of world 'w' is not loaded; the world has more than flow domains"
        ):
            await client.world("w").trace()
        client._connection.knows(mixed().app)
        assert await client.world("w").trace() == hosted


async def test_steps_of_code_that_is_not_there_are_gaps(lmdb_kit: Kit) -> None:
    async with lmdb_kit.hosting(mixed().app) as universe:
        await lived(universe, mixed())
    alone = Shop()
    async with lmdb_kit.hosting(alone.app) as universe:
        await universe.world("w").act(Order.fill(6), key="o", id="alone")
    async with lmdb_kit.hosting() as client:
        trace = await client.world("w").trace()
        assert {each.intent for each in trace.events} == {"alone"}
        assert (trace.above, trace.gaps[0].first, "is not loaded" in trace.gaps[0].why) == (0, 1, True)
        assert all(gap.last < trace.events[0].height for gap in trace.gaps)


async def test_code_that_does_something_else_gives_no_trace(lmdb_kit: Kit) -> None:
    def program(by: int) -> tuple[wl.Program, Any]:
        shop = Shop()

        @shop.app.effect
        async def say(n: int) -> int:
            return n

        @shop.app.workflow
        async def double() -> int:
            return await say(by)

        return shop.app, double

    app, double = program(2)
    async with lmdb_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.run(double())
    other, _ = program(3)
    async with lmdb_kit.hosting() as client:
        client._connection.knows(other)
        with pytest.raises(
            wl.errors.Diverged, match="no trace: run again, a step does not come out as it is journaled"
        ):
            await client.world("w").trace()


async def test_states_that_are_not_kept_are_said(lmdb_kit: Kit) -> None:
    shop = Shop()
    process = await lmdb_kit.process(shop.app, settings=compacting.by_hand())
    compacting.compactions(process.host).look = lambda _: None
    world = await process.universe.ensure("w", shop.app)
    for number in range(20):
        await world.act(Order.fill(number), key="o")
    await world.snapshot()
    kept = (await world.head()).height
    await compacting.compact(process, world)
    await world.act(Order.fill(99), key="o", id="last")
    with pytest.raises(wl.errors.NotRetained, match=f"states are kept from height {kept} on"):
        await world.trace(above=0)
    trace = await world.trace()
    assert (trace.above, {each.intent for each in trace.events}) == (kept, {"last"})


async def test_a_late_success_after_a_timeout_is_dropped_journaled_and_traced(lmdb_kit: Kit) -> None:
    """ORD-TIMEOUT-1, FULFILL-0: the timeout is the outcome. What comes later changes nothing."""
    app = wl.Program("shop")

    @app.effect(total_timeout=0.3, retry=wl.Retry(attempts=1))
    async def charge(card: str, cents: int) -> str:
        await asyncio.Event().wait()
        return f"{cents} from {card}"

    app.domain(keyed=True, name="Order")(Order)
    async with lmdb_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.act(Order.fill(5), key="o")
        done = await world.act(Order.pay("tok"), key="o", id="pay", timeout=30)
        assert done.state.refused is not None
        assert done.state.refused is not None
        assert done.state.refused.code == "EFFECT_TIMEOUT"
        [answered] = [each for each in await kits.entries(world) if each.kind is Kind.EFFECT_RESULT]
        item = replay.item_of(answered)
        assert isinstance(item, inbox.EffectReceipt)
        effect = item.intent
        before = await world._handle.cell("Order", "o"), (await world.head()).height
        answer = payload.inline(user_values.dump("5 from tok"))
        at = await world._handle.address()
        await send_door.enqueue(universe._connection, at, inbox.EffectReceipt(effect, ReceiptStatus.OK, answer, 1))
        await world.act(Order.fill(1), key="other")  # behind it in the inbox
        late = await world.journal(above=before[1])
        assert [each.kind for each in late[:2]] == [Kind.EFFECT_RESULT, Kind.LATE_ANSWER]
        assert canonical.decode(late[1].payload) == ["receipt", effect, "nothing waits for it"]
        assert await world._handle.cell("Order", "o") == before[0]
        dropped = (await world.trace(intent="pay")).events[-1]
        assert (dropped.type, dropped.fields["reason"], dropped.key) == ("effect:fulfill:drop", "dropped:stale", "o")
        assert dropped.height == late[1].height
        required = [each.fields for each in (await world.trace(intent="pay")).events if each.type == "effect:dispatch"]
        assert [dropped.fields["requirementId"]] == [each["requirementId"] for each in required]
