from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from examples import counter


async def test_it_counts_and_goes_on_counting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await counter.main(str(tmp_path))
    assert capsys.readouterr().out.splitlines() == [
        "the basket holds 0 apples",
        "  put in 3: journaled at height 1",
        "  put in 4: journaled at height 2",
        "  put in 5: journaled at height 3",
        "  take 7: 5 are left",
        "  take 100: refused, there are only 5",
        "now 5 apples; at height 3 there were 12",
    ]
    await counter.main(str(tmp_path))
    again = capsys.readouterr().out.splitlines()
    assert (again[0], again[-1].split(";")[0]) == ("the basket holds 5 apples", "now 10 apples")


async def test_a_client_sees_the_same_state(tmp_path: Path) -> None:
    async with wl.open(str(tmp_path), host=counter.app) as universe:
        world = await universe.ensure("basket", counter.app)
        await world.send(counter.Added(2), id="once")
        await world.send(counter.Added(2), id="once")
        with pytest.raises(wl.errors.IdReused):
            await world.send(counter.Added(3), id="once")
    async with wl.open(str(tmp_path)) as universe:
        world = await universe.ensure("basket", counter.app)
        assert await world.state(counter.Basket) == counter.Basket(apples=2, visits=1)
