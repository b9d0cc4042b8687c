from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from examples import what_if
from worldline import testing

FACTS = "a teapot for 42.00, lost on its way"


async def test_three_branches_of_one_decision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await what_if.main(str(tmp_path))
    shown = [
        "what happened",
        "    look up A7",
        f"    the model reads: {FACTS}",
        "  -> said sorry",
        "what if the model had said",
        "  apologise -> said sorry; 10000 cents are left, the customer is angry",
        "  refund    -> refund: a payment not made; 5800 cents are left, the customer is happy",
        "  voucher   -> voucher: a payment not made; 9000 cents are left, the customer is happy",
        "where the refund and the voucher differ",
        f"  decide{{'facts': '{FACTS}'}} = 'refund' | decide{{'facts': '{FACTS}'}} = 'voucher'",
        (
            "  pay{'cents': 4200, 'order': 'A7'} = 'a payment not made' | "
            "pay{'cents': 1000, 'order': 'A7'} = 'a payment not made'"
        ),
        "  Budget.cents: 5800 | 9000",
        "the desk itself still has 10000 cents",
    ]
    assert capsys.readouterr().out.splitlines() == shown
    await what_if.main(str(tmp_path))  # nothing is looked up, decided or forked again
    assert capsys.readouterr().out.splitlines() == [line for line in shown if not line.startswith("    ")]


async def test_the_branch_that_says_the_same_is_the_same(tmp_path: Path) -> None:
    await what_if.main(str(tmp_path))
    async with wl.open(str(tmp_path)) as universe:
        desk, branch = universe.world("desk"), universe.world("what-if-apologise")
        assert (await desk.diff(branch)).same
        assert not (await desk.diff(universe.world("what-if-refund"))).same


@pytest.mark.parametrize(
    ("decision", "cents", "result"),
    [("apologise", 10_000, "said sorry"), ("refund", 5_800, "refund: p"), ("voucher", 9_000, "voucher: p")],
)
def test_the_same_in_a_unit_test(decision: str, cents: int, result: str) -> None:
    script = wl.Script().on(what_if.look_up, FACTS).on(what_if.decide, "apologise")
    with testing.world(what_if.app, script) as world:
        assert world.run(what_if.complaint("A7"), id="A7") == "said sorry"
        other = wl.Script().on(what_if.decide, decision).on(what_if.pay, "p")
        branch = world.fork(before="effect decide", effects="share", script=other)
        assert branch.attach("A7").result() == result
        assert branch.state(what_if.Budget).cents == cents
        assert world.state(what_if.Budget).cents == 10_000


def test_it_can_be_forked_anywhere() -> None:
    script = wl.Script().on(what_if.look_up, FACTS).on(what_if.decide, "refund").on(what_if.pay, "p")
    scenario = lambda world: world.run(what_if.complaint("A7"))  # noqa: E731
    assert testing.everywhere.fork(scenario, what_if.app, script) > 10
