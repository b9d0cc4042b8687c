"""Flow domains in forks, and asked by other worlds, on the test world."""

from __future__ import annotations

from typing import Any

import pytest

import worldline as wl
from tests.features.domains.shop import Order, Shop
from tests.features.domains.shop_worlds import intents, opened
from worldline import testing
from worldline.codec import structs
from worldline.features.domains.pure import domain_cell
from worldline.flow_core import jobs
from worldline.flow_core.authoring import action_calls
from worldline.model import inbox, payload
from worldline.model import step_records as steps
from worldline.model.inbox import MessageMode, Reply
from worldline.model.journal import Kind
from worldline.testing.tested_world import TestWorld


@pytest.mark.parametrize(
    ("policy", "live", "receipt"),
    [("drop", False, None), ("reissue", True, "r-1"), ("share", False, "r-1"), ("script", False, "scripted")],
)
def test_a_fork_settles_what_is_pending_and_shares_no_key_outside(policy: Any, live: bool, receipt: str | None) -> None:
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        [outside] = intents(world)
        script = wl.Script().on(shop.charge, "scripted") if policy == "script" else None
        fork = world.fork("other", effects=policy, script=script, live=live)
        assert outside not in intents(fork)
        world.advance(20)
        assert world.state(Order, "o").receipt == "r-1"
        assert fork.state(Order, "o").receipt == receipt
        if policy == "drop":
            assert fork.snapshot(Order, "o").data["refused"]["code"] == jobs.EFFECT_CANCELLED
        assert fork.act(Order.fill(6), key="o").state.cents == 6
        fork.crash()
        fork.prove()


def test_what_a_dry_fork_requires_is_parked_and_answered_by_hand() -> None:
    shop = Shop()
    with opened(shop) as world:
        world.act(Order.fill(5), key="o")
        fork = world.fork("dry")
        fork.submit(Order.pay("tok"), key="o")
        [pending] = fork.machine.work.open.values()
        assert pending.parked is not None
        fork.crash()
        [pending] = fork.machine.work.open.values()
        assert pending.parked is not None
        assert fork.answer(shop.charge, "by hand") == 1
        assert fork.state(Order, "o").receipt == "by hand"
        scripted = world.fork("scripted", script=wl.Script().on(shop.charge, "said before"))
        assert scripted.act(Order.pay("tok"), key="o").state.receipt == "said before"
        fork.prove()
        scripted.prove()


@pytest.mark.probe("fork.shared-requirement")
def test_a_fork_of_a_fork_that_shares_asks_for_the_effect_itself() -> None:
    """Found by the simulator: it looked for the answer of its parent's parent, whatever its policy said."""
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        world.submit(Order.pay("tok"), key="o")
        sharing = world.fork("sharing", effects="share")
        script = wl.Script().on(shop.charge, "scripted")
        forks = {
            policy: sharing.fork(policy, effects=policy, script=script if policy == "script" else None)
            for policy in ("drop", "reissue", "share", "script")
        }
        asked = {policy: [each.name for each in fork.machine.work.open.values()] for policy, fork in forks.items()}
        assert asked == {"drop": [], "reissue": ["charge"], "share": ["worldline.share"], "script": []}
        assert forks["reissue"].answer(shop.charge, "by hand") == 1
        world.advance(20)
        receipts = {policy: fork.state(Order, "o").receipt for policy, fork in forks.items()}
        assert receipts == {"drop": None, "reissue": "by hand", "share": "r-1", "script": "scripted"}
        for fork in forks.values():
            fork.prove()


@pytest.mark.probe("domains.asked-before-fork")
def test_a_fork_does_not_answer_what_its_parent_was_asked() -> None:
    """Found by the simulator: both answered under one id, and whichever came first was taken."""
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        ask_to_pay(world, b"m")
        fork = world.fork("other", effects="reissue", live=True)
        ask_to_pay(fork, b"n")
        fork.crash()
        world.advance(10)
        assert [replies(each) for each in (world, fork)] == [[(b"m" * 16).hex()], [(b"n" * 16).hex()]]
        assert domain_cell.decode(fork.machine.cells["Order", "o"].data)[0].owed == {}
        fork.prove()


def ask_to_pay(world: TestWorld, id: bytes) -> steps.Stepped:
    """The step of a message by which another world asks this one to pay the order "o"."""
    data = structs.encode(action_calls.IntentEvent("o", "far", True, [{"card": "tok"}]))
    message = inbox.Message(
        id * 16,
        b"u" * 16,
        b"w" * 16,
        1,
        MessageMode.TYPED,
        "Order.pay",
        payload.inline(data),
        reply=Reply.MESSAGE,
    )
    return world.step(message, data)


def replies(world: TestWorld) -> list[str]:
    return [each.correlation for each in world.journal() if each.kind is Kind.MESSAGE_SENT]


def test_forks_behind_every_step_come_to_the_same() -> None:
    shop = Shop()

    def scenario(world: TestWorld) -> Any:
        world.act(Order.fill(5), key="o")
        world.act(shop.todos.action("add")(title="milk"))
        return world.act(Order.pay("tok"), key="o").state.receipt

    assert testing.everywhere.fork(scenario, shop.app, wl.Script().on(shop.charge, wl.Script.later(1, "r-1"))) > 10


def test_another_world_acts_and_gets_the_end_as_its_reply() -> None:
    shop = Shop()
    with opened(shop, wl.Script.later(5, "r-1")) as world:
        world.act(Order.fill(5), key="o")
        assert ask_to_pay(world, b"m").outgoing == []
        world.crash()
        world.advance(10)
        sent = [each for each in world.journal() if each.kind is Kind.MESSAGE_SENT]
        assert [each.correlation for each in sent] == [(b"m" * 16).hex()]
        assert b"r-1" in sent[0].payload
