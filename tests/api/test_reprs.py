"""What users see of the SDK's objects at a prompt, in a log or in a failed assertion; and entries as data."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

import worldline as wl
from worldline import testing

app = wl.Program("app")


@dataclass
class Deposited:
    cents: int
    key: bytes = b"\x01"


@app.effect
def charge(cents: int) -> str:
    return f"ch_{cents}"


@app.workflow
async def pay(cents: int) -> str:
    return await charge(cents)


@app.workflow
async def fails() -> None:
    raise ValueError("no")


@app.reducer
@dataclass
class Account:
    cents: int = 0

    @wl.on
    def deposited(self, event: Deposited) -> None:
        self.cents += event.cents


async def test_objects_say_what_they_are() -> None:
    async with wl.open("memory://", host=app) as universe:
        assert repr(universe) == "Universe('default', store='memory://')"
        world = await universe.ensure("w", app)
        assert repr(world) == "World('w', universe='default')"
        sent = await world.send(Deposited(5), id="d1")
        assert repr(sent) == f"Sent({sent.id!r})"
        run = await world.start(pay(5), id="p1")
        assert repr(run) == "Run('p1', workflow='pay', world='w', status='running')"
        await run.result(20)
        assert repr(run) == "Run('p1', workflow='pay', world='w', status='finished')"


async def test_passwords_of_stores_are_not_shown() -> None:
    async with wl.open("memory://", create=True) as universe:
        link = universe._connection
        link.store = msgspec.structs.replace(link.store, url="postgresql://ada:secret@db/worlds")
        assert repr(universe) == "Universe('default', store='postgresql://ada:***@db/worlds')"


async def test_entries_are_decoded() -> None:
    async with wl.open("memory://", host=app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Deposited(5))).applied(20)
        await world.run(pay(7), id="p1", timeout=20)
        await (await world.start(fails(), id="f1")).status()
        found = await world.journal()
        said = {each.kind: each.data for each in found}
        assert said[wl.Kind.EVENT] == {"event": "Deposited", "data": {"cents": 5, "key": "01"}, "to": ""}
        requested = {"effect": "charge", "args": {"cents": 7}, "run": "p1", "ordinal": 0}
        assert said[wl.Kind.EFFECT_REQUESTED] == requested
        assert said[wl.Kind.EFFECT_RESULT].items() >= {"status": "ok", "data": "ch_7", "attempt": 1}.items()
        failed = {"code": "ValueError", "message": "ValueError: no"}
        assert said[wl.Kind.RUN_FINISHED] == {"run": "f1", "status": "failed", "error": failed}
        data = {"event": "Deposited", "data": {"key": "01", "cents": 5}}
        assert repr(found[0]) == f"Entry(height=1, step=1, kind=EVENT, data={data})"
        async for followed in world.follow(above=0):
            assert isinstance(followed, wl.Entry)
            assert followed == found[0]
            break


def test_entries_of_the_kit_are_the_same() -> None:
    with testing.world(app, wl.Script().on(charge, "ch_7")) as world:
        world.run(pay(7), id="p1")
        finished = [each.data for each in world.journal() if each.kind is wl.Kind.RUN_FINISHED]
        assert finished == [{"run": "p1", "status": "finished", "result": "ch_7"}]
