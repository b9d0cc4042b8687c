"""why, of flow domains: cells that do not go on, intents that wait, and commands that are there."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from typing import Any

import click
import pytest

import worldline as wl
from tests import aio
from tests.features.domains.shop import Order, Shop, break_clearing, without_charge
from tests.kits.kit import Kit
from worldline import cli, flow
from worldline.features.domains import checks
from worldline.inspect import why
from worldline.model.work import WorkState
from worldline.runtime.feature_reasons import Reason


def check_command(text: str) -> None:
    """Refuse a command that is not there, or that does not take these words."""
    _, *words = shlex.split(text.replace("HEIGHT", "1"))
    command: click.Command = cli.group
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(click.Context(command), words)
        assert found is not None
        command = found
    command.make_context(command.name, words)


async def reasons(world: wl.World, kind: str) -> list[Reason]:
    found = [each for each in (await why.why(world._handle)).reasons if each.kind == kind]
    for each in found:
        for command in filter(None, (each.command, *each.ways)):
            check_command(command)
    return found


async def submitted(world: wl.World, act: flow.Act[Any], id: str, key: str = "o 7") -> asyncio.Task[Any]:
    """An intent that the cell has."""
    task = asyncio.create_task(world.act(act, key=key, id=id))

    async def known() -> bool:
        cell = (await world.state())["Order"][key]
        slots = cell["snapshot"]["data"].get("$host", {}).get("intentSlots", {})
        return id in slots or any(each[0] == id for each in cell.get("queue", []))

    await aio.until(known)
    return task


async def test_an_intent_says_which_effect_it_waits_for_and_how_it_is_ended(memory_kit: Kit) -> None:
    shop = without_charge()
    async with memory_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        await world.act(Order.fill(5), key="o 7")
        tasks = [await submitted(world, Order.pay("tok"), "try 1")]
        [effect] = await world.effects()
        short = effect.id[:12]
        [reason] = await reasons(world, "effect")
        abandon = "worldline abandon w Order 'try 1' --key 'o 7'"
        assert (reason.what, reason.stuck, reason.command) == (
            f"Order['o 7']: intent try 1 (Order.pay) waits for effect charge {short}, not tried yet",
            False,
            abandon,
        )
        assert (reason.cell, reason.intent, reason.since is not None) == ("Order['o 7']", "try 1", True)
        await effect.park()
        [parked] = await reasons(world, "parked")
        assert (parked.stuck, parked.command) == (True, f"worldline effect retry {short}")
        assert parked.ways == [
            f"worldline effect retry {short}",
            f"worldline effect answer {short} VALUE",
            abandon,
        ]
        tasks += [await submitted(world, Order.fill(number), f"f{number}") for number in range(7)]
        [queued] = await reasons(world, "queued")
        named = ", ".join(f"f{number} (fill)" for number in range(checks.QUEUED_SHOWN_MAX))
        assert queued.what == f"Order['o 7']: 7 intents wait for the end of try 1: {named}, ..."
        assert (queued.stuck, queued.command) == (False, abandon)
        await world.abandon(Order, "try 1", key="o 7")
        ends = await asyncio.gather(*tasks)
        assert [each.status for each in ends] == ["error", *["complete"] * 7]
        assert [each for each in (await why.why(world._handle)).reasons if each.cell] == []


async def test_a_failing_effect_says_its_attempts_and_when_the_next_is(memory_kit: Kit) -> None:
    app = wl.Program("shop")

    @app.effect(retry=wl.Retry(initial_delay=600, max_delay=600))
    async def charge(card: str, cents: int) -> str:
        raise OSError("no route")

    app.domain(keyed=True, name="Order")(Order)
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await world.act(Order.fill(5), key="o 7")
        task = await submitted(world, Order.pay("tok"), "try")

        async def failed() -> bool:
            return bool(await reasons(world, "retrying"))

        await aio.until(failed)
        [reason] = await reasons(world, "retrying")
        assert reason.what.startswith("Order['o 7']: intent try (Order.pay) waits for effect charge ")
        assert (reason.what.endswith("attempt 1 failed"), reason.until is not None) == (True, True)
        assert "no route" in reason.error
        task.cancel()


async def test_a_blocked_cell_says_where_its_data_does_not_fit(memory_kit: Kit) -> None:
    shop, other = Shop(), Shop(3)
    async with memory_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        await world.act(Order.fill(5), key="o 7")
    async with memory_kit.hosting(other.app) as universe:
        world = universe.world("w")
        task = await submitted(world, flow.Act(other.order, "fill", {"cents": "6"}), "later")
        [reason] = await reasons(world, "unfit")
        assert (reason.stuck, reason.error) == (True, "cents must be string, not number")
        assert reason.what == (
            "Order['o 7'] is blocked: its data does not fit the document of now; patch it, or host one that fits; "
            "1 intent waits"
        )
        assert reason.ways == [
            "worldline dev FILE",
            "worldline patch w Order PATH=VALUE --key 'o 7'",
            "worldline abandon w Order later --key 'o 7'",
        ]
        task.cancel()
    less = wl.Program("shop")
    less.domain(shop.todos.document(), name="Todos")
    async with memory_kit.hosting(less) as universe:
        await universe.world("w").act(shop.todos.action("add")(title="x"))
        [reason] = await reasons(universe.world("w"), "unfit")
        assert reason.stuck


async def test_intents_of_a_domain_that_is_not_declared_any_more(memory_kit: Kit) -> None:
    shop, less = without_charge(), wl.Program("shop")
    todos = less.domain(shop.todos.document(), name="Todos")
    async with memory_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        await world.act(Order.fill(5), key="o 7")
        tasks = [await submitted(world, Order.pay("tok"), "a"), await submitted(world, Order.fill(6), "b")]
        for task in tasks:
            task.cancel()
    async with memory_kit.hosting(less) as universe:
        world = universe.world("w")
        await world.act(todos.action("add")(title="x"))
        [reason] = await reasons(world, "undeclared")
        assert (reason.stuck, reason.what) == (
            True,
            "Order['o 7']: the program declares no Order now; 1 intent waits: b (fill)",
        )


async def test_a_fatal_cell_is_said_first(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CELLS_SHOWN_MAX", 1)
    break_clearing(monkeypatch, cents=13)
    shop = without_charge()
    async with memory_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        for key, cents in (("a", 5), ("bad", 13)):
            await world.act(Order.fill(cents), key=key)
        tasks = [await submitted(world, Order.pay("tok"), "x", key) for key in ("a", "bad")]
        tasks.append(await submitted(world, Order.fill(1), "y", "a"))
        for each in await world.effects():
            if each.args["cents"] == 13:
                await each.park()
        [parked] = await world.effects(state=WorkState.PARKED)
        await parked.answer("r")
        with pytest.raises(wl.Error, match="cannot be cleared"):
            await tasks[1]
        [fatal] = await reasons(world, "fatal")
        assert (fatal.stuck, fatal.cell, fatal.error.endswith("cannot be cleared: disk full")) == (
            True,
            "Order['bad']",
            True,
        )
        assert fatal.ways == ["worldline trace w --domain Order --key bad", "worldline revert w --to HEIGHT"]
        [more] = await reasons(world, "cells")
        assert (more.what, more.stuck) == ("1 more cell of flow domains", False)
        for task in (tasks[0], tasks[2]):
            task.cancel()


async def test_a_reducers_cell_that_looks_like_one_is_left_alone(memory_kit: Kit) -> None:
    shop = Shop()

    @dataclass(frozen=True)
    class Put:
        fatal: str

    @shop.app.reducer
    @dataclass
    class Box:
        fatal: str = ""

        @wl.on
        def put(self, event: Put) -> None:
            self.fatal = event.fatal

    async with memory_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        await (await world.send(Put("x"))).applied(20)
        await world.act(Order.fill(5), key="o 7")
        assert [each for each in (await why.why(world._handle)).reasons if each.cell] == []


async def test_a_run_says_which_action_it_waits_for(memory_kit: Kit) -> None:
    shop = without_charge()

    @shop.app.workflow
    async def sell() -> str | None:
        await wl.act(Order.fill(5), key="o 7")
        return (await wl.act(Order.pay("tok"), key="o 7")).state.receipt

    async with memory_kit.hosting(shop.app) as universe:
        world = await universe.ensure("w", shop.app)
        _ = await world.start(sell(), id="s")
        await aio.until(lambda: _has_effect(world))
        [reason] = await reasons(world, "act")
        assert (reason.what, reason.stuck, reason.run, reason.command) == (
            "run s (sell) waits for the end of action Order.pay",
            False,
            "s",
            "worldline trace w --domain Order",
        )
        assert "Order.pay) waits for effect charge" in (await reasons(world, "effect"))[0].what


async def _has_effect(world: wl.World) -> bool:
    return bool(await world.effects())
