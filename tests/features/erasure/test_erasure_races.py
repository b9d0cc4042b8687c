"""Values that are erased while something is made of them: steps, messages, effects; an erasure that is cut off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import worldline as wl
from tests.features.erasure.test_erasing import SECRETS, applied, told
from tests.kits import kit as kits
from tests.kits import people, secrets
from tests.kits.crashing import DEATHS, Crashing, Fate
from tests.kits.kit import Kit
from tests.kits.people import LOUD, SECRET, Renamed, Shouted
from worldline.base import errors
from worldline.codec import sealed_token
from worldline.keys import personal_records as sealed_keys
from worldline.layers import personal_records as sealed_layer
from worldline.model import ids
from worldline.model.personal_records import New, PersonalRecord
from worldline.store import kv


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("fate", list(Fate))
async def test_an_erasure_that_is_cut_off_is_finished_by_the_next(memory_kit: Kit, fate: Fate, at: int) -> None:
    """At every commit that it makes: of the values, and of what the world and its fork are told."""
    app, _ = people.program()
    hosting = await memory_kit.process(app)
    world = await hosting.universe.ensure("w", app)
    await applied(world, people.ada())
    await world.fork("fork")
    await hosting.close()
    made: list[Crashing] = []

    def wrap(engine: kv.Engine) -> Crashing:
        made.append(Crashing(engine, at, fate))
        return made[0]

    cut = (await memory_kit.process(wrap=wrap)).universe.world("w")
    with contextlib.suppress(errors.StoreError):
        await cut.erase(key="ada")
        assert fate not in DEATHS
    assert made[0].met
    await (await memory_kit.process()).universe.world("w").erase(key="ada")
    assert await secrets.places(memory_kit, *SECRETS) == []
    universe = (await memory_kit.process(app)).universe
    for each in ("w", "fork"):
        assert len(await told(universe.world(each))) == 1


async def test_a_step_that_read_a_value_does_not_keep_it_behind_its_erasure(memory_kit: Kit) -> None:
    """Between the read of a value and the commit of what was made of it, the value is erased."""
    app, names = people.program()
    client = (await memory_kit.process()).universe
    between = Between()
    world = await (await memory_kit.process(app, wrap=between.around)).universe.ensure("w", app)
    await applied(world, people.ada())
    between.erases(client.world("w"))
    await applied(world, Shouted("ada"))
    assert between.done
    assert await secrets.places(memory_kit, *SECRETS) == []
    person: Any = await world.state(names["Person"], "ada")
    assert (person.erased, person.loud) == (1, [])


async def test_a_message_does_not_take_along_what_was_erased(memory_kit: Kit) -> None:
    """Between the read of a value and the commit of the message that has it, it is erased, and arrives as that."""
    app, names = people.program()
    client = (await memory_kit.process()).universe
    between = Between()
    universe = (await memory_kit.process(app, wrap=between.around)).universe
    near, far = await universe.ensure("near", app), await universe.ensure("far", app)
    between.erases(client.world("near"), behind=1)  # the first one is the client's, of the argument
    await near.run(names["pass_on"]("far", "ada", wl.Personal(SECRET, of="ada")), timeout=30)
    assert between.done
    await applied(far, Renamed("ada", "Ada"))
    assert (await far.state())["Person"]["ada"]["mail"] == "erased"
    assert await secrets.places(memory_kit, *SECRETS) == []


async def test_what_is_written_at_the_same_time_is_erased_too(memory_kit: Kit) -> None:
    """A delete of a range may miss a key that is committed meanwhile."""
    app, _ = people.program()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await applied(world, people.ada())
    root = await world._handle.address()
    client = (await memory_kit.process(wrap=lambda engine: Surviving(engine, root))).universe
    await client.world("w").erase(key="ada")
    assert await secrets.places(memory_kit, *SECRETS) == []


class Surviving(kits.Around):
    """The first commit that erases a subject misses a value."""

    def __init__(self, engine: kv.Engine, root: ids.Address) -> None:
        super().__init__(engine)
        self._root: ids.Address | None = root

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        outcomes = await super().commit(*batches)
        root = self._root
        if root is not None and any(batch.ranges for batch in batches):
            self._root = None
            missed = kv.Batch()
            new = New(sealed_token.subject_of("ada"), bytes(16), PersonalRecord(bytes(32), LOUD.encode()))
            sealed_layer.keep(missed, root, [new])
            assert isinstance((await super().commit(missed))[0], kv.Ok)
        return outcomes


class Between(kits.Around):
    """Has a world's values erased right before a commit that keeps some: the next, or that `behind` so many others."""

    def __init__(self) -> None:
        self._world: wl.World | None = None
        self._behind = 0
        self.done = False

    def around(self, engine: kv.Engine) -> Between:
        super().__init__(engine)
        return self

    def erases(self, world: wl.World, *, behind: int = 0) -> None:
        self._world, self._behind = world, behind

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        world = self._world
        if world is not None and any(_keeps(batch) for batch in batches):
            self._behind -= 1
            if self._behind < 0:
                self._world, self.done = None, True
                await world.erase(key="ada")
        return await super().commit(*batches)


def _keeps(batch: kv.Batch) -> bool:
    kind = sealed_keys.KEPT.pack
    return any(put.value[1] == kind(_KEPT)[1] for put in batch.puts.values())


_KEPT = PersonalRecord(bytes(sealed_token.SALT_BYTES), b"")


@pytest.mark.probe("effects.answer-erased")
async def test_an_effect_does_not_keep_what_was_erased_while_it_ran(memory_kit: Kit) -> None:
    """Its answer was made of a value that is gone by then: the run gets a failure, and nothing is kept."""
    app = wl.Program("p")
    called, may_end = asyncio.Event(), asyncio.Event()

    @app.effect
    async def shout(text: wl.Personal[str]) -> wl.Personal[str]:
        loud = text.value.upper()
        called.set()
        await may_end.wait()
        return wl.Personal(loud, of="ada")

    @app.workflow
    async def go(text: wl.Personal[str]) -> str:
        try:
            return (await shout(text)).value
        except wl.EffectFailed as error:
            return error.code

    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    run = await world.start(go(wl.Personal(SECRET, of="ada")), id="r")
    await asyncio.wait_for(called.wait(), 30)
    await world.erase(key="ada")
    may_end.set()
    assert await run.result(30) == "erased"
    assert await secrets.places(memory_kit, *SECRETS) == []
