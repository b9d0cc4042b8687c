"""Flow domains in worlds of every engine: processes come and go, forks, reverts, proofs without the program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.features.domains.shop import Order, Order2, Shop, without_charge
from tests.kits import kit as kits
from tests.kits.fixtures import kit, lmdb_kit
from tests.kits.kit import Kit
from worldline import flow
from worldline.base import limits
from worldline.features.proofs import calls as proof_calls
from worldline.model.journal import Kind
from worldline.model.work import WorkState

__all__ = ["kit", "lmdb_kit"]


async def proved(kit: Kit, name: str, *programs: wl.Program) -> proof_calls.Proof:
    """A proof by a process that knows these programs, or none: all steps are run again."""
    async with kit.hosting() as client:
        proof = await proof_calls.prove(client.world(name)._handle, programs=programs)
    assert (proof.unverifiable, proof.proved) == ([], proof.steps)
    return proof


@asynccontextmanager
async def filled(kit: Kit, shop: Shop) -> AsyncIterator[wl.World]:
    """A world with an order "o" of 5 cents, in a process that has this shop; in the end it is proved by one without."""
    async with kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        await world.act(Order.fill(5), key="o")
        yield world
    assert (await proved(kit, "w")).holds


async def test_an_order_is_paid_and_a_proof_needs_no_program(kit: Kit) -> None:
    shop = Shop()
    async with kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        assert str(await world.explain(Order.pay, key="o")) == "no: cents > 0 is false (cents = 0)"
        assert (await world.act(Order.fill(5), key="o")).state.cents == 5
        asked = await world.preview(Order.pay("tok"), key="o")
        assert (asked.status, asked.asks[0][0]) == ("pending", "charge")
        done = await world.act(Order.pay("tok"), key="o")
        assert (done.status, done.state.receipt, done.state.paid) == ("complete", "5 from tok", True)
        added = await world.act(shop.todos.action("add")(title="milk"))
        assert added.state["list"] == ["milk"]
        assert await world.state(shop.todos) == {"count": 0, "list": ["milk"], "computed.doubled": 0}
        with pytest.raises(wl.BadInput, match="by a class or a flow domain, not by 'Todos'"):
            await world.state("Todos")  # type: ignore[call-overload]
        tools = await world.tools(shop.todos, shape="mcp")
        assert [each.name for each in tools.available] == ["add", "clear"]
        assert (await world.state(Order, "o")).receipt == "5 from tok"
        assert (await world.state(Order, "o", at=3)).receipt is None
        assert (await world.state())["Order"]["o"]["snapshot"]["data"]["cents"] == 5
        head = (await world.head()).height
    for programs in ((), (shop.app,)):
        proof = await proved(kit, "w", *programs)
        assert (proof.holds, proof.unverifiable, proof.entries) == (True, [], head)


async def test_the_same_id_is_one_intent_for_every_process(kit: Kit) -> None:
    shop = Shop()
    first = await kit.process(shop.app)
    world = await first.universe.ensure("w", shop.app)
    await world.act(Order.fill(5), key="o")
    both = await asyncio.gather(*(world.act(Order.pay("tok"), key="o", id="try") for _ in range(2)))
    assert [each.state.receipt for each in both] == ["5 from tok"] * 2
    await first.kill()
    async with kit.hosting(shop.app) as universe:
        world = universe.world("w")
        assert (await world.act(Order.pay("tok"), key="o", id="try", timeout=30)).state.receipt == "5 from tok"
        with pytest.raises(wl.errors.IdReused, match="'try'"):
            await world.act(Order.pay("other"), key="o", id="try")
        assert (await world.act(Order.fill(6), key="other", id="try")).state.cents == 6
        asked = [each for each in await kits.entries(world) if each.kind is Kind.EFFECT_REQUESTED]
        assert len(asked) == 1
    assert (await proved(kit, "w")).holds


async def test_it_goes_on_in_another_process_and_under_its_own_document(kit: Kit) -> None:
    """The first process does not perform the effect; the second has another program."""
    waits, shop = without_charge(), Shop()
    first = await kit.process(waits.app)
    world = await first.universe.ensure("w", waits.app)
    await world.act(Order.fill(5), key="o")
    paying = asyncio.create_task(world.act(Order.pay("tok"), key="o", id="try"))
    await aio.until(lambda: _asked(world))
    await world.patch(Order, [flow.set("cents", 7)], key="o")
    await world.env({"REGION": "north"})
    paying.cancel()
    await first.kill()
    second = Shop(2)
    async with kit.hosting(second.app) as universe:
        world = universe.world("w")
        done = await world.act(Order.pay("tok"), key="o", id="try", timeout=30)
        assert (done.state.receipt, done.state.cents) == ("5 from tok", 7)
        assert "note" not in (await world.state())["Order"]["o"]["snapshot"]["data"]
        again = await world.act(Order2.pay("tok"), key="o")
        assert again.state.note == "paid by the second version"
    assert shop.app.hash != waits.app.hash
    assert (await proved(kit, "w")).holds


async def _asked(world: wl.World) -> bool:
    return bool(await world.effects())


@pytest.mark.parametrize("policy", ["drop", "reissue", "share", "script"])
async def test_a_fork_shares_no_key_outside(kit: Kit, policy: Any) -> None:
    shop = Shop()
    released = asyncio.Event()
    called: list[str] = []

    async def charge(card: str, cents: int) -> str:
        called.append(wl.attempt().key)
        await released.wait()
        return f"{cents} from {card}"

    app = wl.Program("shop")
    effect = app.effect(charge)
    app.domain(keyed=True, name="Order")(Order)
    app.domain(shop.todos.document(), name="Todos")
    async with kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.act(Order.fill(5), key="o")
        paying = asyncio.create_task(world.act(Order.pay("tok"), key="o"))
        await aio.until(lambda: _asked(world))
        script = wl.Script().on(effect, "scripted") if policy == "script" else None
        fork = await world.fork("f", effects=policy, live=policy == "reissue", script=script)
        inside = [each.id for each in await world.effects()]
        released.set()
        assert (await paying).state.receipt == "5 from tok"
        expected = {"drop": None, "script": "scripted"}.get(policy, "5 from tok")
        await aio.until(lambda: _settled(fork))
        assert (await fork.state(Order, "o")).receipt == expected
        assert not [each for each in await fork.effects() if each.id in inside]
        assert len(called) == len(dict.fromkeys(called)) == (2 if policy == "reissue" else 1)
        assert (await fork.act(Order.fill(6), key="o")).state.cents == 6
    assert (await proved(kit, "f")).holds


async def _settled(world: wl.World) -> bool:
    await world.act(flow.Act(Order, "fill", {"cents": 1}), key="other")  # so that it begins
    found = (await world.state())["Order"]["o"]["snapshot"]
    return not found["system"]["pendingRequirements"]


async def test_a_large_state_is_the_callers_own(lmdb_kit: Kit) -> None:
    """It is taken from the memory of the process that runs the world, or read at the height of the answer."""
    shop = Shop()
    title = "x" * limits.FLOW_STATE_BYTES_MAX
    async with lmdb_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        done = await world.act(shop.todos.action("add")(title=title))
        done.state["list"].append("mine")
        assert (await world.state())["Todos"][""]["snapshot"]["data"]["list"] == [title]
        both = await asyncio.gather(*(world.act(shop.todos.action("add")(title=each)) for each in ("a", "b")))
        assert sorted(len(each.state["list"]) for each in both) == [2, 3]
        async with lmdb_kit.hosting() as client:
            elsewhere = await client.world("w").act(shop.todos.action("add")(title="c"))
        assert elsewhere.state["list"] == [title, *both[-1].state["list"][1:], "c"]
    assert (await proved(lmdb_kit, "w")).holds


async def test_callers_in_line_each_get_the_large_state_that_they_ended_with(lmdb_kit: Kit) -> None:
    """It is read as it was behind the step of the answer: the next intent begins in another step. All saw the last."""
    async with filled(lmdb_kit, without_charge()) as world:
        paying = [asyncio.create_task(world.act(Order.pay("tok"), key="o", id=each)) for each in ("same", "same")]
        await aio.until(lambda: _asked(world))
        filling = [asyncio.create_task(world.act(Order.fill(cents), key="o")) for cents in (6, 7, 8)]
        await aio.until(lambda: _in_line(world, 3))
        await _answer(world, "x" * limits.FLOW_STATE_BYTES_MAX)
        ends = [(await each).state for each in (*paying, *filling)]
        assert [(each.cents, each.paid) for each in ends] == [(5, True), (5, True), (6, True), (7, True), (8, True)]


async def test_a_full_queue_refuses_an_id_for_good(lmdb_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOW_QUEUE_MAX", 1)
    async with filled(lmdb_kit, without_charge()) as world:
        paying = asyncio.create_task(world.act(Order.pay("tok"), key="o"))
        await aio.until(lambda: _asked(world))
        queued = asyncio.create_task(world.act(Order.fill(6), key="o"))
        await aio.until(lambda: _in_line(world, 1))
        with pytest.raises(wl.errors.Closed, match=r"1 intents wait in Order.*; send it later, under a new id"):
            await world.act(Order.fill(7), key="o", id="x")
        await _answer(world, "by hand")
        assert ((await paying).state.cents, (await queued).state.cents) == (5, 6)
        with pytest.raises(wl.errors.Closed, match="send it later, under a new id"):
            await world.act(Order.fill(7), key="o", id="x")
        assert (await world.act(Order.fill(7), key="o", id="y")).state.cents == 7


async def _answer(world: wl.World, value: str) -> None:
    """By hand."""
    [effect] = await world.effects()
    await effect.park()
    [parked] = await world.effects(state=WorkState.PARKED)
    await parked.answer(value)


async def _in_line(world: wl.World, count: int) -> bool:
    return len((await world.state())["Order"]["o"].get("queue", [])) == count


async def test_parked_and_answered_by_hand(lmdb_kit: Kit) -> None:
    async with filled(lmdb_kit, without_charge()) as world:
        paying = asyncio.create_task(world.act(Order.pay("tok"), key="o"))
        await aio.until(lambda: _asked(world))
        await _answer(world, "by hand")
        assert (await paying).state.receipt == "by hand"
        with pytest.raises(wl.NotFound):
            await world.abandon(Order, "none", key="o")


async def test_a_revert_takes_data_back_and_keeps_documents(lmdb_kit: Kit) -> None:
    async with filled(lmdb_kit, Shop()) as world:
        before = (await world.head()).height
        await world.env({"REGION": "north"})
        await world.act(Order.pay("tok"), key="o")
        await world.revert(before)
        assert (await world.state(Order, "o")).receipt is None
        assert (await world._handle.machine()).domains.env == {"REGION": "north"}
        assert (await world.act(Order.pay("tok"), key="o")).state.receipt == "5 from tok"


async def test_an_intent_that_a_revert_takes_away_is_told_so(lmdb_kit: Kit) -> None:
    """Its caller waited for ever, and so did the next one with the same id."""
    async with filled(lmdb_kit, without_charge()) as world:
        before = (await world.head()).height
        kept = asyncio.create_task(world.act(Order.pay("tok"), key="o", id="kept"))
        await aio.until(lambda: _asked(world))
        middle = (await world.head()).height
        gone = asyncio.create_task(world.act(Order.fill(7), key="o", id="gone"))
        other = asyncio.create_task(world.act(Order.fill(8), key="other", id="other"))
        await other
        await world.revert(middle, effects="reissue")
        for attempt in (gone, world.act(Order.fill(7), key="o", id="gone")):
            with pytest.raises(wl.RunFailed, match=r"reverted to height .* no such intent") as refused:
                await asyncio.wait_for(attempt, 30)
            assert refused.value.code == "reverted"
        assert not kept.done()
        await world.revert(before)
        with pytest.raises(wl.RunFailed, match="no such intent"):
            await asyncio.wait_for(kept, 30)
        assert (await world.act(Order.fill(9), key="o")).state.cents == 9


async def test_what_waited_in_a_cell_goes_on_when_its_world_goes_back_there(lmdb_kit: Kit) -> None:
    """Documents do not go back: what was blocked then may fit now, and nothing tried it."""
    shop, strict = Shop(), Shop(3)
    async with lmdb_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        await world.act(Order.fill(5), key="o")
    async with lmdb_kit.hosting(strict.app) as universe:
        world = universe.world("w")
        waiting = asyncio.create_task(world.act(Order.fill(7), key="o", id="waits"))
        await aio.until(lambda: _is_blocked(world))
        blocked = (await world.head()).height
        waiting.cancel()
    async with lmdb_kit.hosting(shop.app) as universe:
        world = universe.world("w")
        assert (await world.act(Order.fill(7), key="o", id="waits", timeout=30)).state.cents == 7
        await world.revert(blocked)
        assert ((await world.state(Order, "o")).cents, await _is_blocked(world)) == (7, False)
    assert (await proved(lmdb_kit, "w")).holds


async def _is_blocked(world: wl.World) -> bool:
    return "blocked" in (await world.state()).get("Order", {}).get("o", {})


async def test_a_world_with_other_code_needs_its_program_for_a_proof(lmdb_kit: Kit) -> None:
    shop = Shop()

    @shop.app.workflow
    async def nothing() -> None: ...

    async with lmdb_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        await world.act(Order.fill(5), key="o")
    with pytest.raises(wl.BadInput, match="is not loaded"):
        await proved(lmdb_kit, "w")
    assert (await proved(lmdb_kit, "w", shop.app)).holds


async def test_worlds_that_begin_otherwise_are_proved_without_their_program(lmdb_kit: Kit) -> None:
    """Found by the simulator: forks of worlds that had done nothing, and worlds whose program changed before their
    first step. What came before the documents could not be run again.
    """
    first, second = Shop(), Shop(2)
    async with lmdb_kit.hosting() as universe:
        await universe.create("w", first.app)
        await universe.create("changed", first.app)
    async with lmdb_kit.hosting(second.app) as universe:
        assert (await universe.world("changed").act(Order2.fill(5), key="o")).state.cents == 5
        fork = await universe.world("w").fork("fork")
        assert (await fork.act(Order2.fill(6), key="o")).state.cents == 6
        again = await universe.world("fork").fork("again", at=1)
        assert (await again.act(Order2.fill(7), key="o")).state.cents == 7
    for name in ("changed", "fork", "again"):
        assert (await proved(lmdb_kit, name)).holds
