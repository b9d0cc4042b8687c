"""Clients look: states, runs and schedules without hosting, typed with the program and as plain data without it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add, program
from worldline.kernel import state_rows
from worldline.testing import tested_world as test_worlds


@dataclass(frozen=True)
class Paid:
    account: str
    cents: int


def bank() -> wl.Program:
    app = wl.Program("bank")

    @app.reducer(key="account")
    @dataclass
    class Account:
        cents: int = 0
        ids: bytes = b""

        @wl.on
        def paid(self, event: Paid) -> None:
            self.cents += event.cents
            self.ids += b"\x01"

    return app


def changed_bank() -> wl.Program:
    """The same names, with a field of another type."""
    app = wl.Program("bank")

    @app.reducer(key="account")
    @dataclass
    class Account:
        cents: str = ""

        @wl.on
        def paid(self, event: Paid) -> None:
            self.cents += str(event.cents)

    return app


def account(app: wl.Program) -> type[Any]:
    cls: type[Any] = app.reducers["Account"].cls
    return cls


async def stock(kit: Kit, app: wl.Program) -> None:
    """A world `w` that another process hosted: two accounts, at heights 1 to 3."""
    host = await kit.process(app)
    world = await host.universe.ensure("w", app)
    for each in (Paid("a", 1), Paid("b", 2), Paid("a", 4)):
        await (await world.send(each)).applied(20)
    await world.schedule("s", Paid("c", 1), every=3_600)
    await host.close()


async def test_plain_data_without_any_program(kit: Kit) -> None:
    """Before, `NotFound`: the program is not known here."""
    await stock(kit, bank())
    client = await kit.process()
    world = client.universe.world("w")
    assert await world.state() == {
        "Account": {"a": {"cents": 5, "ids": b"\x01\x01"}, "b": {"cents": 2, "ids": b"\x01"}}
    }
    assert await world.state(at=1) == {"Account": {"a": {"cents": 1, "ids": b"\x01"}}}
    assert await world.state(at=0) == {}
    assert [each.id for each in await world.schedules()] == ["s"]
    assert await world.runs() == []


async def test_typed_state_without_hosting(tmp_path: Path) -> None:
    app = bank()
    async with wl.open(str(tmp_path / "store"), host=app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Paid("a", 1))).applied(20)
        assert await world.state() == {"Account": {"a": {"cents": 1, "ids": b"\x01"}}}, "of a world that is held here"
    for given in (app, [app, program()]):
        async with wl.open(str(tmp_path / "store"), programs=given) as universe:
            assert universe._connection.host is None
            world = universe.world("w")
            assert (await world.state(account(app), "a")).cents == 1
            assert (await world.state(account(app), "a", at=0)).cents == 0
            assert (await world.state(account(app), "nobody")).cents == 0


async def test_a_class_without_its_program_is_one_clear_error(memory_kit: Kit) -> None:
    app = bank()
    await stock(memory_kit, app)
    client = await memory_kit.process()
    with pytest.raises(wl.NotFound, match="program 'bank' is not known here: open the universe with programs="):
        await client.universe.world("w").state(account(app), "a")
    client.universe._connection.knows(app)
    with pytest.raises(wl.BadInput, match="Sum is not a reducer of program 'bank'"):
        await client.universe.world("w").state(program().reducers["Sum"].cls)


async def test_a_class_that_does_not_fit_names_the_cell(memory_kit: Kit) -> None:
    """Before, a `DecodeError`, as if stored bytes were damaged, without the cell's name."""
    await stock(memory_kit, bank())
    changed = changed_bank()
    client = await memory_kit.process()
    client.universe._connection.knows(changed)
    world = client.universe.world("w")
    with pytest.raises(
        wl.errors.CellUnfit, match=r"the cell Account\['a'\] does not fit its class .*Account"
    ) as raised:
        await world.state(account(changed), "a")
    assert "`state()` without a class gives it as plain data" in str(raised.value)
    assert (await world.state())["Account"]["a"]["cents"] == 5


async def test_a_cell_is_read_from_its_row_and_costs_what_changed(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the whole state was made into a machine, again for each change."""
    app = bank()
    host = await memory_kit.process(app)
    there = await host.universe.ensure("w", app)
    await (await there.send(Paid("a", 1))).applied(20)
    client = await memory_kit.process()
    client.universe._connection.knows(app)
    world = client.universe.world("w")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no machine is needed for a cell")

    monkeypatch.setattr(state_rows, "machine_of", refuse)
    for cents in (1, 2, 3):
        assert (await world.state(account(app), "a")).cents == cents
        assert list(await world.state()) == ["Account"]
        await (await there.send(Paid("a", 1))).applied(20)


async def test_runs_are_listed_without_a_program(memory_kit: Kit) -> None:
    app = program()

    @app.workflow
    async def hold() -> int:
        return (await wl.wait(Add)).number

    host = await memory_kit.process(app)
    there = await host.universe.ensure("w", app)
    for name in ("first", "second"):
        await kits.begin(there, hold(), id=name)
    await there.send(Add(3), to="first")
    assert await (await there.attach("first")).result(20) == 3
    client = await memory_kit.process()
    runs = await client.universe.world("w").runs()
    assert [(each.id, each.workflow, await each.status()) for each in runs] == [
        ("second", "hold", wl.RunStatus.RUNNING),
        ("first", "hold", wl.RunStatus.FINISHED),
    ]
    assert await runs[1].result() == 3


@pytest.mark.parametrize("option", ["host", "programs"])
async def test_what_is_no_program_is_refused(tmp_path: Path, option: str) -> None:
    given: Any = {option: ["app.py"], "create": True}
    with pytest.raises(wl.BadInput, match=f"{option}= takes a Program or a list of them, not 'app.py'"):
        async with wl.open(str(tmp_path / "store"), **given):
            pass


def test_a_test_world_shows_plain_data_too() -> None:
    app = bank()
    with test_worlds.world(app) as world:
        world.send(Paid("a", 1))
        assert world.state() == {"Account": {"a": {"cents": 1, "ids": b"\x01"}}}
        assert world.state(at=0) == {}
