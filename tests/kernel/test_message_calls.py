"""Messages between worlds: sending, asking, and when there is nobody to answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.model import inbox, payload
from worldline.model.inbox import MessageMode

app = wl.Program("sender")


@app.workflow
async def pays(cents: int) -> str:
    try:
        return f"left {await wl.ask('bank', shop.Withdraw('a', cents), timeout=5)}"
    except wl.Refused as error:
        return f"refused: {error}"
    except TimeoutError as error:
        return str(error)
    except wl.EffectFailed as error:
        return f"{error.code}: {error}"


@app.workflow
async def tells(world: str, order: str) -> str:
    try:
        await wl.send(world, shop.Approved(order), to=order)
    except wl.EffectFailed as error:
        return error.code
    return "delivered"


@app.workflow
async def asks_nonsense() -> str:
    try:
        await wl.ask("bank", Unknown(1))
    except wl.EffectFailed as error:
        return str(error)
    return "answered"


@dataclass(frozen=True)
class Unknown(wl.Request[int]):
    number: int


def test_worlds_ask_and_answer_each_other() -> None:
    with testing.world(app, name="shop") as world:
        bank = world.also("bank", shop.app)
        bank.send(shop.Deposited("a", 10))
        assert world.run(pays(4)) == "left 6"
        assert world.run(pays(7)) == "refused: insufficient funds"
        assert bank.state(shop.Account, "a").cents == 6
        assert "nothing here takes an Unknown" in world.run(asks_nonsense())
        assert not world.machine.work.open
        world.prove()
        bank.prove()


def test_nobody_answers_or_the_answer_is_late() -> None:
    with testing.world(app) as world:
        assert world.run(pays(4)).startswith("undeliverable: bank: message to 'bank'")
        world.prove()


def test_a_message_finds_a_run_of_the_other_world() -> None:
    with testing.world(app) as world:
        other = world.also("orders", shop.app)
        run = other.start(shop.approval("o1"), id="o1")
        assert world.run(tells("orders", "o1")) == "delivered"
        assert run.result() == "o1 by Ada"
        assert world.run(tells("orders", "o1")) == "delivered"
        assert other.dead == ["no run 'o1' is there to take it"]
        assert world.run(tells("nowhere", "o1")) == "undeliverable"


def test_asking_survives_crashes_everywhere() -> None:
    def scenario(world: testing.TestWorld) -> object:
        bank = world.also("bank", shop.app)
        bank.send(shop.Deposited("a", 10))
        said = world.run(pays(4)), world.run(pays(7)), world.run(asks_nonsense())
        return said, bank.head.chain

    assert testing.crash_everywhere(scenario, app) > 10


@app.workflow
async def pays_away(cents: int) -> str:
    try:
        return f"left {await wl.ask('shop/bank', shop.Withdraw('a', cents), timeout=5)}"
    except wl.Refused as error:
        return f"refused: {error}"
    except TimeoutError:
        return "late"
    except wl.EffectFailed as error:
        return f"{error.code}"


@app.workflow
async def tells_away(order: str) -> str:
    try:
        await wl.send("shop/bank", shop.Approved(order), to=order)
    except wl.Undeliverable as error:
        return f"{error.code}: {error}"
    return "delivered"


def test_worlds_of_other_universes_are_asked_the_same_way() -> None:
    with testing.world(app, name="shop") as world:
        assert world.run(tells_away("o1")).startswith("undeliverable: ")
        bank = world.also("shop/bank", shop.app)
        bank.send(shop.Deposited("a", 10))
        assert world.run(pays_away(4)) == "left 6"
        assert world.run(pays_away(7)) == "refused: insufficient funds"
        run = bank.start(shop.approval("o1"), id="o1")
        assert world.run(tells_away("o1")) == "delivered"
        assert run.result() == "o1 by Ada"
        assert not world.machine.work.open
        assert not bank.machine.work.open
        world.prove()
        bank.prove()


def test_asking_another_universe_survives_crashes_everywhere() -> None:
    def scenario(world: testing.TestWorld) -> object:
        bank = world.also("shop/bank", shop.app)
        bank.send(shop.Deposited("a", 10))
        return world.run(pays_away(4)), world.run(pays_away(7)), bank.head.chain

    assert testing.crash_everywhere(scenario, app) > 10


def test_a_dry_fork_sends_nothing_to_another_universe() -> None:
    with testing.world(app, name="shop") as world:
        bank = world.also("shop/bank", shop.app)
        bank.send(shop.Deposited("a", 10))
        fork = world.fork("fork")
        before = bank.head
        assert fork.run(tells_away("o1")) == "delivered"  # it goes nowhere
        run = fork.start(pays_away(2), id="r")
        assert run.status is wl.RunStatus.RUNNING
        assert bank.head == before
        assert fork.answer("shop/bank", 5) == 1
        assert run.result() == "left 5"
        assert bank.head == before
        fork.prove()


def test_a_message_in_inbox_mode_comes_as_an_envelope() -> None:
    mail = wl.Program("mail")

    @mail.reducer()
    @dataclass
    class Letters:
        seen: list[str] = field(default_factory=list)

        @wl.on
        def letter(self, event: wl.Envelope) -> None:
            self.seen.append(f"{event.inbox} {event.payload!r} {event.headers} {event.from_step}")

    with testing.world(mail) as world:
        data = b"\x01\x02 anything"
        message = inbox.Message(
            b"m" * 16, b"u" * 16, b"w" * 16, 7, MessageMode.INBOX, "post", payload.inline(data), {"x": "y"}
        )
        world.step(message, data)
        assert world.state(Letters).seen == [f"post {data!r} {{'x': 'y'}} 7"]


def test_handlers_cannot_wait_for_other_worlds() -> None:
    hasty = wl.Program("hasty")

    @hasty.reducer()
    @dataclass
    class Hasty:
        @wl.on
        def approved(self, event: shop.Approved) -> None:
            sending = wl.send("bank", event)
            try:
                sending.send(None)
            finally:
                sending.close()

    with testing.world(hasty) as world, pytest.raises(testing.NotTaken, match="only inside a workflow"):
        world.send(shop.Approved("o1"))
