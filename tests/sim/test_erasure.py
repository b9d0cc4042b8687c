"""Personal values on a cluster that breaks: what is erased stays so, whatever fails meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator

import worldline as wl
from tests.kits import people
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


def test_a_script_gets_and_gives_personal_values() -> None:
    app, names = people.program()

    def deliver(to: wl.Personal[str], text: str) -> wl.Personal[str]:
        return wl.Personal(f"{text} to {to.value}", of="ada")

    async def scenario(universe: wl.Universe) -> None:
        world = await universe.ensure("w", app)
        run = await world.start(names["greet"]("ada", wl.Personal(people.SECRET, of="ada")), id="r")
        await world.send(people.Go(), to="r", id="go")
        assert (await run.result()).value == f"hello ada to {people.SECRET}!"

    testing.simulate(scenario, program=app, seeds=3, script=wl.Script().on(names["deliver"], deliver))
