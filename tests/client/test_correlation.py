"""What a caller calls what its input belongs to is kept: in the journal, runs, receipts, messages and effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.kernel import entry_fields, replay
from worldline.model import inbox
from worldline.model.journal import Kind


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Count(wl.Request[int]):
    pass


def programs(seen: list[str]) -> tuple[wl.Program, wl.Program]:
    shop, keeper = wl.Program("shop"), wl.Program("keeper")

    @keeper.reducer()
    @dataclass
    class Notes:
        texts: list[str] = field(default_factory=list)

        @wl.on
        def note(self, event: Note) -> None:
            sender = wl.sender()
            self.texts.append(f"{event.text} {'' if sender is None else sender.correlation}")

        @wl.on
        def count(self, event: Count) -> int:
            return len(self.texts)

    @shop.effect
    async def charge(cents: int) -> int:
        seen.append(wl.attempt().correlation)
        return cents

    @shop.workflow
    async def inner(cents: int) -> int:
        return await charge(cents)

    @shop.workflow
    async def order(cents: int) -> int:
        await wl.send("keeper", Note("began"))
        await wl.send("keeper", Note("said"), correlation="mine")
        await inner(cents)
        await wl.wait(Note)
        return await charge(cents + 1)

    return shop, keeper


def items(entries: Sequence[wl.Entry], *kinds: Kind) -> list[Any]:
    return [replay.item_of(each) for each in entries if each.kind in kinds]


async def test_a_correlation_goes_on_to_receipts_messages_and_child_runs(kit: Kit) -> None:
    seen: list[str] = []
    shop, keeper = programs(seen)
    async with kit.hosting(shop, keeper) as universe:
        world = await universe.ensure("w", shop)
        other = await universe.ensure("keeper", keeper)
        run = await world.start(shop.workflows["order"](5), id="o", correlation="order-7")
        plain = await world.start(shop.workflows["order"](8), id="p")
        await aio.until(lambda: _two(world), seconds=20)
        await world.send(Note("go"), correlation="another")  # what a run is told changes nothing of it
        assert (await run.result(20), await plain.result(20)) == (6, 9)
        assert sorted(seen) == ["", "", "order-7", "order-7"]
        entries = await world.journal()
        receipts = [each for each in items(entries, Kind.EFFECT_RESULT) if each.correlation]
        assert [inbox.correlation_id_of(each) for each in receipts if each.correlation.startswith("o")] == [
            "order-7",
            "order-7",
        ]
        assert all(type(each) is inbox.EffectReceipt for each in receipts if each.correlation.startswith("p"))
        [event] = items(entries, Kind.EVENT)
        assert (event.correlation_id, event.correlation) == ("another", "")
        shown = [entry_fields.item(each) for each in items(entries, Kind.CONTROL)]
        assert [each.get("correlation") for each in shown if each.get("workflow")] == ["order-7", None]
        texts = (await other.state())["Notes"][""]["texts"]
        assert next(text for text in texts if not text.startswith("said")) == "began order-7"
        assert texts.count("said mine") == 2
        await kits.prove(world, shop)
        await kits.prove(other, keeper)


async def _two(world: wl.World) -> bool:
    waiting = [run async for run in _waiting(world)]
    return len(waiting) == 2


async def _waiting(world: wl.World) -> Any:
    machine = await world._handle.machine()
    for run_id in ("o", "p"):
        run = machine.runs.get(run_id)
        if run is not None and any(op.name == "Note" and op.outcome is None for op in run.record.ops):
            yield run_id


@dataclass(frozen=True)
class Placed:
    cents: int


@dataclass(frozen=True)
class Packed:
    cents: int


async def test_runs_that_a_handler_starts_belong_to_what_its_event_belongs_to(memory_kit: Kit) -> None:
    """To receipts and messages: a handler itself has neither. What a run raises belongs to what the run belongs to."""
    seen: dict[str, str] = {}
    app = wl.Program("desk")

    @app.effect
    async def charge(cents: int) -> int:
        seen[f"charge {cents}"] = wl.attempt().correlation
        return cents

    @app.workflow
    async def pay(cents: int) -> None:
        await charge(cents)
        wl.emit(Packed(cents))
        await wl.send("w", Note(f"paid {cents}"))

    @app.workflow
    async def ship(cents: int) -> None:
        await charge(cents + 1)

    @app.workflow
    async def announce() -> None:
        await charge(100)

    @app.reducer()
    @dataclass
    class Desk:
        count: int = 0

        @wl.on
        def placed(self, event: Placed) -> None:
            wl.start(pay(event.cents), id=f"pay-{event.cents}")

        @wl.on
        def packed(self, event: Packed) -> None:
            wl.start(ship(event.cents), id=f"ship-{event.cents}")

        @wl.on
        def note(self, event: Note) -> None:
            sender = wl.sender()
            seen[event.text] = "" if sender is None else sender.correlation
            if event.text == "paid 5":
                wl.start(announce(), id="announced")

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        for cents, correlation in ((5, "order-7"), (8, None)):
            await (await world.send(Placed(cents), correlation=correlation)).applied(20)
            for run in (f"pay-{cents}", f"ship-{cents}"):
                await (await world.attach(run)).result(20)
        await (await world.attach("announced")).result(20)
        receipts = {each.correlation: each for each in items(await world.journal(), Kind.EFFECT_RESULT)}
        assert {run: inbox.correlation_id_of(receipts[run]) for run in ("pay-5", "ship-5", "pay-8", "ship-8")} == {
            "pay-5": "order-7",
            "ship-5": "order-7",
            "pay-8": "",
            "ship-8": "",
        }
        assert len(seen.pop("paid 8")) == 32, "a message without one has its own id for it"
        assert seen == {
            "charge 5": "order-7",
            "charge 6": "order-7",
            "charge 8": "",
            "charge 9": "",
            "paid 5": "order-7",
            "charge 100": "",  # a message's ends with its handlers: ADR 23
        }
        await kits.prove(world, app)


async def test_the_same_id_with_another_correlation_is_another_input(memory_kit: Kit) -> None:
    shop, keeper = programs([])
    async with memory_kit.hosting(keeper) as universe:
        world = await universe.ensure("keeper", keeper)
        first = await world.send(Note("a"), id="x", correlation="c")
        assert (await world.send(Note("a"), id="x", correlation="c")).already_enqueued
        await first.applied(20)
        with pytest.raises(wl.errors.IdReused):
            await world.send(Note("a"), id="x", correlation="d")
        assert await world.ask(Count(), correlation="c") == 1
        [asked] = [each for each in items(await world.journal(), Kind.EVENT) if each.schema == "Count"]
        assert asked.correlation_id == "c"
        for wrong in ("", "x" * 2_000, 7):
            with pytest.raises(wl.BadInput, match="a correlation"):
                await world.send(Note("b"), correlation=wrong)  # type: ignore[arg-type]
        await kits.prove(world, keeper)
    del shop


async def test_a_run_keeps_its_correlation_in_its_row(memory_kit: Kit) -> None:
    """A restore, in another process, knows it: what is asked for later has it too."""
    seen: list[str] = []
    shop, keeper = programs(seen)
    process = await memory_kit.process(shop, keeper)
    await process.universe.ensure("keeper", keeper)
    world = await process.universe.ensure("w", shop)
    _ = await world.start(shop.workflows["order"](5), id="o", correlation="order-7")

    async def charged() -> bool:
        return len(seen) == 1 and not await world.effects()

    await aio.until(charged, seconds=20)
    await process.close()
    async with memory_kit.hosting(shop, keeper) as universe:
        world = universe.world("w")
        await world.send(Note("go"))
        assert await (await world.attach("o")).result(20) == 6
        assert seen == ["order-7", "order-7"]
        await kits.prove(world, shop)
