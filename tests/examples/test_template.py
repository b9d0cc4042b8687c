from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from examples import template

COUNT = 50


async def test_one_world_seeds_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await template.main(str(tmp_path), COUNT)
    assert capsys.readouterr().out.splitlines() == [
        "    fetching the price list, which takes long",
        "the template has 2 prices",
        "50 shops have begun where the template was",
        "  shop-0 sells tea: 300 in its till",
        "  shop-49 sells cake: 450 in its till",
        "  they have drawn different numbers",
        "the till of the template: 0",
    ]
    await template.main(str(tmp_path), COUNT)
    again = capsys.readouterr().out.splitlines()
    assert again[2] == "  shop-0 sells tea: 600 in its till"
    assert not any("fetching" in line for line in again)


async def test_every_seeded_world_has_everything_and_is_its_own(tmp_path: Path) -> None:
    async with wl.open(str(tmp_path), host=template.app) as universe:
        first = await universe.ensure("template", template.app)
        await first.run(template.set_up(), id="set-up")
        shops = [await universe.create(f"s{number}", template.app, seed="template") for number in range(COUNT)]
        for number, shop in enumerate(shops):
            for _ in range(number % 3 + 1):
                await shop.ask(template.Sell("tea"))
        states = [await shop.state(template.Shop) for shop in shops]
        assert [each.till for each in states] == [300 * (number % 3 + 1) for number in range(COUNT)]
        assert len({each.lucky for each in states}) == COUNT
        assert await first.state(template.Shop) == template.Shop(prices={"tea": 300, "cake": 450})
