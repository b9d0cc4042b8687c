from __future__ import annotations

import re
from pathlib import Path

import pytest

import worldline as wl
from examples import order_domain
from examples.order_domain import Order
from worldline import flow, testing
from worldline.flow_core.analysis import document_lint
from worldline.model.journal import Kind

SHOWN = """\
o-1: can it be paid? no: cents > 0 is false (cents = 0)
o-1: filled, 42.00
o-1: paying would ask for ['charge'], and is pending until then
    charge visa: 42.00 (attempt 1, key K1)
o-1: that was another process, which was killed while it charged the card
    charge visa: 42.00 (attempt 2, key K1)
o-1: pay-1 is complete, receipt visa-4200
o-1: pay-1 is complete, receipt visa-4200
o-1: sent, a parcel to Lisbon
    charge stolen: 1.00 (attempt 1, key K2)
o-2: pay-2 is complete, refused: the card is blocked
o-2: can it be sent? no: computed.paid is false (computed.paid = false)
"""


def named(said: str) -> str:
    """What was said, with the keys by number."""
    for number, key in enumerate(dict.fromkeys(re.findall(r"key (\w+)", said)), start=1):
        said = said.replace(key, f"K{number}")
    return said


async def test_it_goes_on_after_it_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await order_domain.main(str(tmp_path))
    assert named(capsys.readouterr().out) == SHOWN
    async with wl.open(str(tmp_path)) as universe:
        kinds = [each.kind for each in await universe.world("shop").journal()]
    assert kinds.count(Kind.EFFECT_REQUESTED) == kinds.count(Kind.EFFECT_RESULT) == 3
    await order_domain.main(str(tmp_path))  # the same ids: everything is recorded, nothing happens again
    assert "charge" not in capsys.readouterr().out.replace("['charge']", "")
    async with wl.open(str(tmp_path)) as universe:
        assert [each.kind for each in await universe.world("shop").journal()] == kinds


def test_every_way_an_order_can_go_in_virtual_time() -> None:
    script = wl.Script().on(order_domain.charge, OSError("down"), "r-1").on(order_domain.ship, "parcel 7")
    with testing.world(order_domain.app, script) as world:
        assert world.act(Order.pay("visa"), key="o").status == "error"
        world.act(Order.fill(5), key="o")
        assert world.act(Order.pay("visa"), key="o").state.receipt == "r-1"
        assert str(world.explain(Order.fill, key="o")) != "yes"
        assert world.act(Order.send("Faro"), key="o").state.parcel == "parcel 7"
        world.prove()


def test_the_order_is_clean_and_nothing_of_it_is_dead() -> None:
    assert document_lint.lint(flow.load(Order.document())) == []
    found = flow.explore(Order, inputs={"fill": [{"cents": 5}]}, answers={"charge": ["r"], "ship": ["p"]}, depth_max=4)
    assert (found.dead, found.failing) == ((), ())
