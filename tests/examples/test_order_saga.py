from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from examples import order_saga
from worldline import testing

SHOWN = """\
an order to Lisbon
    charge visa: 42.00 (key charge-A1)
    ship A1 to Lisbon (attempt 1)
  -> parcel A1 is on its way
an order to the Moon
    charge visa: 99.00 (key charge-A2)
    ship A2 to the Moon (attempt 1)
    ship A2 to the Moon (attempt 2)
    ship A2 to the Moon (attempt 3)
    refund payment of visa: not shipped after 3 attempts
  -> refunded
an order paid with a stolen card
    charge stolen: 1.00 (key charge-A3)
  -> not paid (declined)
an order that is cancelled while it is packed
    charge visa: 15.00 (key charge-A4)
    refund payment of visa: the customer has changed her mind
  -> run 'A4': the customer has changed her mind
"""


async def test_what_is_paid_is_shipped_or_paid_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_saga, "PACKING_SECONDS", 0.2)
    await order_saga.main(str(tmp_path))
    assert capsys.readouterr().out == SHOWN
    await order_saga.main(str(tmp_path))  # the same ids: everything is recorded, nothing happens again
    quiet = [line for line in SHOWN.splitlines() if not line.startswith("    ")]
    assert capsys.readouterr().out.splitlines() == quiet


async def test_many_orders_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_saga, "PACKING_SECONDS", 0.01)
    async with wl.open(str(tmp_path), host=order_saga.app) as universe:
        world = await universe.ensure("shop", order_saga.app)
        wanted = [(f"N{number}", "the Moon" if number % 3 == 0 else "Faro") for number in range(12)]
        runs = [await world.start(order_saga.fulfil(order, to, "visa", 100), id=order) for order, to in wanted]
        results = [await run.result(timeout=20) for run in runs]
    assert results == ["refunded" if to == "the Moon" else f"parcel {order} is on its way" for order, to in wanted]


def test_every_way_an_order_can_go_in_virtual_time() -> None:
    def played(script: wl.Script, *, cancel: bool = False) -> str:
        with testing.world(order_saga.app, script) as world:
            run = world.start(order_saga.fulfil("A1", "Faro", "visa", 100), id="A1")
            if cancel:
                run.cancel("never mind")
            try:
                return run.result()
            except wl.RunCancelled as cancelled:
                return str(cancelled)
            finally:
                world.prove()

    paid = wl.Script().on(order_saga.charge, "payment").on(order_saga.refund, None)
    assert played(paid.on(order_saga.ship, ConnectionError("down"), "parcel 7")) == "parcel 7 is on its way"
    assert played(paid.on(order_saga.ship, ConnectionError("down"))) == "refunded"
    assert played(paid.on(order_saga.ship, "parcel 8"), cancel=True) == "run 'A1': never mind"
    assert played(wl.Script().on(order_saga.charge, wl.Fatal("no", code="declined"))) == "not paid (declined)"


def test_a_crash_anywhere_changes_nothing() -> None:
    script = wl.Script().on(order_saga.charge, "payment").on(order_saga.ship, OSError()).on(order_saga.refund, None)

    def scenario(world: testing.TestWorld) -> str:
        return world.run(order_saga.fulfil("A1", "Faro", "visa", 100), id="A1")

    assert testing.crash_everywhere(scenario, order_saga.app, script) > 10
