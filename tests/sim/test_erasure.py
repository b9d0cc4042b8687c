"""Personal values on a cluster that breaks: what is erased stays so, whatever fails meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator

import worldline as wl
from tests.roles import people
from worldline import testing

SEEDS = 12


def test_an_erasure_among_faults() -> None:
    app, names = people.program()

    async def scenario(universe: wl.Universe) -> AsyncIterator[None]:
        world, far = await universe.ensure("w", app), await universe.ensure("far", app)
        await world.send(people.ada())
        await world.send(people.Shouted("ada"))
        await world.run(names["tell"]("far", "ada", wl.Personal(people.SECRET, of="ada")))
        await world.erase(key="ada")
        yield
        person = (await world.state())["Person"]["ada"]
        assert (person["mail"], person["loud"] + ["erased"] * person["erased"]) == ("erased", ["erased"])
        assert (await far.state())["Person"]["ada"]["mail"] == people.SECRET

    testing.simulate(scenario, program=app, seeds=SEEDS)
