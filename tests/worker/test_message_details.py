"""What goes with a message: who sent it, headers and correlation, inbox names, and what its receipt says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

import worldline as wl
from tests import aio
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline import testing
from worldline.kernel.authoring import message_calls
from worldline.model.journal import Kind


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Who(wl.Request[str]):
    pass


@dataclass(frozen=True)
class Order:
    sku: str
    count: int


desk = wl.Program("desk")
clerk = wl.Program("clerk")


@desk.reducer()
@dataclass
class Seen:
    notes: list[str] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @wl.on
    def note(self, event: Note) -> None:
        self.notes.append(f"{event.text} {said(wl.sender())}")
        if event.text == "first":
            wl.emit(Note("raised"))

    @wl.on
    def who(self, event: Who) -> str:
        return said(wl.sender())

    @wl.on(inbox="orders")
    def order(self, event: Order) -> None:
        self.orders.append(f"{event.sku} x{event.count} {said(wl.sender())}")

    @wl.on(inbox="orders")
    def order_raw(self, event: wl.Envelope) -> None:
        self.raw.append(f"{event.inbox} {event.headers}")

    @wl.on
    def rest(self, event: wl.Envelope) -> None:
        self.other.append(event.inbox)


def said(who: wl.Sender | None) -> str:
    if who is None:
        return "nobody"
    return f"{who.universe}/{who.world} {who.step > 0} {who.headers} {who.correlation}"


@clerk.workflow
async def tell() -> list[list[str]]:
    first = await wl.send("desk", Note("first"), headers={"trace": "t1"}, correlation="c1")
    second = await wl.send("desk", Note("second"), correlation="c2")
    return [[each.id, each.stamp, str(each.already_enqueued)] for each in (first, second)]


@clerk.workflow
async def question() -> str:
    return await wl.ask("desk", Who(), headers={"a": "b"}, correlation="c3")


@clerk.workflow
async def order(box: str) -> str:
    return (await wl.send("desk", Order("pen", 2), inbox=box, headers={"h": "1"})).stamp


async def test_a_handler_knows_who_sent_and_a_sender_where_it_stands(kit: Kit) -> None:
    async with kit.hosting(desk, clerk) as universe:
        there = await universe.ensure("desk", desk)
        here = await universe.ensure("clerk", clerk)
        receipts = await here.run(tell())
        await here.run(question())
        notes = (await there.state(Seen)).notes
        assert notes[0] == "first default/clerk True {'trace': 't1'} c1"
        assert notes[1] == "raised nobody"
        assert notes[2] == "second default/clerk True {} c2"
        entries = [each for each in await there.journal() if each.kind is Kind.MESSAGE]
        assert [each.stamp.hex() for each in entries][:2] == [stamp for _, stamp, _ in receipts]
        assert len({each for each, _, _ in receipts}) == 2
        assert all(already == "False" for _, _, already in receipts)
        assert await here.run(question()) == "default/clerk True {'a': 'b'} c3"
        await kits.prove(there, desk)
        await kits.prove(here, clerk)


async def test_inbox_names_choose_the_handlers(kit: Kit) -> None:
    async with kit.hosting(desk, clerk) as universe:
        there = await universe.ensure("desk", desk)
        here = await universe.ensure("clerk", clerk)
        assert await here.run(order("orders"))
        assert await here.run(order("elsewhere"))
        await (await there.send(Order("ink", 1), inbox="orders", headers={"x": "y"})).applied()
        await (await there.send("anything", inbox="post")).applied()
        seen = await there.state(Seen)
        assert [each.split(" ")[0] for each in seen.orders] == ["pen", "ink"]
        assert seen.orders[1].endswith("nobody")
        assert seen.raw == ["orders {'h': '1'}", "orders {'x': 'y'}"]
        assert seen.other == ["elsewhere", "post"]
        await kits.prove(there, desk)


async def test_what_does_not_fit_an_inbox_is_a_dead_letter(kit: Kit) -> None:
    async with kit.hosting(desk) as universe:
        there = await universe.ensure("desk", desk)
        await aio.journaled(await there.send("no order", inbox="orders"))
        [letter] = [each async for each in universe.dead()]
        assert "str" in letter.reason or "Order" in letter.reason
        assert (await there.state(Seen)).raw == []


async def test_a_sent_event_says_its_id_and_place(kit: Kit) -> None:
    async with kit.hosting(desk) as universe:
        there = await universe.ensure("desk", desk)
        first = await there.send(Note("a"), id="one")
        again = await there.send(Note("a"), id="one")
        other = await there.send(Note("b"))
        assert (first.id, first.already_enqueued) == ("one", False)
        assert (again.id, again.stamp, again.already_enqueued) == ("one", first.stamp, True)
        assert other.id
        assert other.stamp != first.stamp
        height = await first.applied()
        [entry] = await there.journal(above=height - 1, limit=1)
        assert entry.stamp.hex() == first.stamp


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("vault", message_calls.Destination("vault")),
        ("/orders/17", message_calls.Destination("orders/17")),
        ("shop/vault", message_calls.Destination("vault", "shop")),
        ("shop/orders/17", message_calls.Destination("orders/17", "shop")),
        ("billing:shop/vault", message_calls.Destination("vault", "shop", "billing")),
        (":od:d/vault", message_calls.Destination("vault", "od:d")),
    ],
)
def test_destinations(text: str, found: message_calls.Destination) -> None:
    assert message_calls.destination(text) == found
    assert found.is_near == (not found.universe)


@pytest.mark.parametrize("text", ["", "/", "a/", "//a", ":/a", "a b:/w", "p p:u/w", " a", "peer:/w", "x" * 200])
def test_what_is_no_destination(text: str) -> None:
    with pytest.raises(wl.BadInput):
        message_calls.destination(text)


@pytest.mark.parametrize(
    "headers",
    [{f"h{each}": "" for each in range(33)}, {"h": "x" * 9_000}, {"": "x"}, {"a": 1}, {"a": "\ud800"}, "text"],
)
def test_headers_are_few_short_texts(headers: dict[str, str]) -> None:
    with pytest.raises(wl.BadInput):
        message_calls.check_headers(headers)


def test_declarations_that_make_no_sense() -> None:
    with pytest.raises(wl.BadInput, match="hosts have effects named so"):

        @wl.Program("odd").effect(name="worldline.reply")
        async def forged() -> None: ...

    with pytest.raises(wl.BadInput, match="an inbox's name"):
        wl.on(inbox="")

    app = wl.Program("odd")
    with pytest.raises(wl.BadInput, match="which have no answer"):

        @app.reducer()
        @dataclass
        class Odd:
            @wl.on(inbox="x")
            def ask(self, event: Who) -> str:
                return ""


def test_a_workflow_has_no_sender() -> None:
    app = wl.Program("odd")

    @app.workflow
    async def flow() -> str:
        try:
            wl.sender()
        except wl.errors.OutsideWorkflow as error:
            return str(error)
        return "?"

    with testing.world(app) as world:
        assert "only in a reducer's handler" in world.run(flow())


def test_another_inbox_is_another_program() -> None:
    def made(box: str) -> wl.Program:
        app = wl.Program("p")

        @app.reducer()
        @dataclass
        class Cell:
            @wl.on(inbox=box)
            def take(self, event: Note) -> None: ...

        return app

    assert made("a").hash != made("b").hash
    assert made("a").hash == made("a").hash
