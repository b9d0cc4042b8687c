"""Receipts and timers that nobody waits for: journaled as ignored, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import worldline as wl
from tests.kernel import shop
from worldline import testing
from worldline.codec import structs
from worldline.kernel import runs, state_rows, user_values
from worldline.kernel.event_dispatch import REPLY, Answer
from worldline.model import ids, inbox, payload
from worldline.model.inbox import MessageMode, ReceiptStatus
from worldline.model.journal import Kind

app = wl.Program("receipts")


@app.effect
async def ask_outside(text: str) -> str:
    return text


@app.workflow
async def waits(text: str) -> str:
    answer = await ask_outside(text)
    await wl.sleep(60)
    return answer


def receipt(intent: bytes, answer: object = "forged", status: ReceiptStatus = ReceiptStatus.OK) -> inbox.EffectReceipt:
    return inbox.EffectReceipt(intent, status, payload.inline(user_values.dump(answer)), 1)


def of_kind(world: testing.TestWorld, name: str) -> ids.IntentId:
    machine = world.machine
    return next(intent for intent, pending in machine.work.open.items() if pending.name == name)


def answered(world: testing.TestWorld) -> tuple[inbox.Item, bytes]:
    """A second answer to an effect that has been answered."""
    intent = of_kind(world, "ask_outside")
    world.advance(1)
    return receipt(intent), user_values.dump("forged")


def unknown(world: testing.TestWorld) -> tuple[inbox.Item, bytes]:
    world.advance(1)
    return receipt(b"?" * 16), user_values.dump("forged")


def for_a_timer(world: testing.TestWorld) -> tuple[inbox.Item, bytes]:
    """A receipt with the intent of a timer."""
    world.advance(1)
    return receipt(of_kind(world, "sleep")), user_values.dump("forged")


def fired_effect(world: testing.TestWorld) -> tuple[inbox.Item, bytes]:
    """A firing with the intent of an effect."""
    return inbox.TimerFired(of_kind(world, "ask_outside"), 2**62), b""


def fired_early(world: testing.TestWorld) -> tuple[inbox.Item, bytes]:
    world.advance(1)
    due_us = next(each.due_us for each in world.machine.work.open.values() if each.name == "sleep")
    return inbox.TimerFired(of_kind(world, "sleep"), due_us - 1), b""


def fired_twice(world: testing.TestWorld) -> tuple[inbox.Item, bytes]:
    world.advance(1)
    intent = of_kind(world, "sleep")
    world.advance(60)
    return inbox.TimerFired(intent, 2**62), b""


def reply_to_an_effect(world: testing.TestWorld) -> tuple[inbox.Item, bytes]:
    """Another world answers what only an adapter may."""
    data = structs.encode(Answer(True, user_values.dump("forged")))
    intent = of_kind(world, "ask_outside")
    message = inbox.Message(
        b"m" * 16, b"u" * 16, b"w" * 16, 1, MessageMode.TYPED, REPLY, payload.inline(data), {}, intent.hex()
    )
    return message, data


@pytest.mark.parametrize(
    "forge", [answered, unknown, for_a_timer, fired_effect, fired_early, fired_twice, reply_to_an_effect]
)
def test_late_double_and_forged_ones_are_ignored(forge: Callable[..., tuple[inbox.Item, bytes]]) -> None:
    with testing.world(app, wl.Script().on(ask_outside, wl.Script.later(1, "right"))) as world:
        run = world.start(waits("x"), id="x")
        item, data = forge(world)
        before, saved = world.head.state, state_rows.save(world.machine)
        stepped = world.step(item, data)
        assert [draft.kind for draft in stepped.drafts][1:] == [Kind.LATE_ANSWER]
        assert (stepped.dead, stepped.closed, stepped.cancelled, stepped.wanted) == ("", [], [], [])
        assert world.head.state == before
        assert state_rows.save(world.machine) == saved
        assert run.result() == "right"
        world.prove()


def test_a_receipt_for_what_was_cancelled_comes_too_late() -> None:
    with testing.world(app, wl.Script().on(ask_outside, wl.Script.never())) as world:
        run = world.start(waits("x"), id="x")
        intent = of_kind(world, "ask_outside")
        run.cancel("enough")
        before = world.head.state
        world.step(receipt(intent), user_values.dump("forged"))
        assert world.head.state == before
        assert run.done


@pytest.mark.parametrize(
    ("status", "data", "raised"),
    [
        (ReceiptStatus.ERROR, runs.failure("declined", "no", attempts=3), "EffectFailed declined 3"),
        (ReceiptStatus.TIMEOUT, runs.failure("timeout", "slow", attempts=2), "EffectTimeout timeout 2"),
        (ReceiptStatus.CANCELLED, runs.failure("cancelled", "by hand"), "EffectFailed cancelled 0"),
        (ReceiptStatus.ERROR, user_values.dump("no failure record"), "EffectFailed error 0"),
        (ReceiptStatus.ERROR, b"\xff", "EffectFailed error 0"),
    ],
)
def test_how_a_receipt_is_raised(status: ReceiptStatus, data: bytes, raised: str) -> None:
    odd = wl.Program("odd")
    odd.effects["ask_outside"] = ask_outside

    @odd.workflow
    async def tells() -> str:
        try:
            return await ask_outside("x")
        except wl.Error as error:
            attempts = f" {error.attempts}" if isinstance(error, wl.EffectFailed) else ""
            return f"{type(error).__name__} {error.code}{attempts}"

    with testing.world(odd, wl.Script().on(ask_outside, wl.Script.never())) as world:
        run = world.start(tells())
        (intent,) = world.machine.work.open
        world.step(inbox.EffectReceipt(intent, status, payload.inline(data), 1), data)
        assert run.result() == raised
        world.prove()


@pytest.mark.parametrize("data", [user_values.dump(5), b"\xff"])
def test_an_answer_that_cannot_be_decoded_is_kept_and_blocks_its_run(data: bytes) -> None:
    with testing.world(app, wl.Script().on(ask_outside, wl.Script.never())) as world:
        run = world.start(waits("x"), id="x")
        world.step(inbox.EffectReceipt(of_kind(world, "ask_outside"), ReceiptStatus.OK, payload.inline(data), 1), data)
        assert run.status is wl.RunStatus.BLOCKED
        outcome = world.machine.runs["x"].record.ops[0].outcome
        assert outcome is not None
        assert outcome.data == data
        world.prove()
        run.answer(1, "by hand")
        assert run.result() == "by hand"
        world.prove()


@pytest.mark.parametrize(("correlation", "data"), [("zz", b"\x82\xf5@"), ("00" * 16, b"\xff"), ("", b"\xf6")])
def test_what_is_no_reply_is_rejected(correlation: str, data: bytes) -> None:
    with testing.world(shop.app) as world:
        message = inbox.Message(
            b"m" * 16, b"u" * 16, b"w" * 16, 1, MessageMode.TYPED, REPLY, payload.inline(data), {}, correlation
        )
        stepped = world.step(message, data)
        assert [draft.kind for draft in stepped.drafts] == [Kind.MESSAGE, Kind.UNDECODABLE_INPUT]
