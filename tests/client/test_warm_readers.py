"""States of worlds that a process reads and does not run: the last ones are kept, and none beside a world held here."""

from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from tests.kits.sums import Add, program
from worldline.client import connection as connections


async def test_no_second_state_is_kept_of_a_world_that_is_held_here(tmp_path: Path) -> None:
    """A caller that waits for a run reads the state while the world is elsewhere, and it may come back."""
    app = program()
    async with wl.open(str(tmp_path), host=app) as universe:
        await universe.ensure("sums", app)
    async with wl.open(str(tmp_path), host=app) as universe:
        world, connection = universe.world("sums"), universe._connection
        reader = connection.reader(await world._handle.address(), app.name)
        await reader.latest()
        assert len(connection._warm) == 1
        await (await world.send(Add(1))).applied()
        assert connection._warm == {}


async def test_the_states_that_are_kept_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WARM_MAX", 3)
    app = program()
    names = [f"sums-{number}" for number in range(5)]
    async with wl.open(str(tmp_path), host=app) as universe:
        for name in names:
            await (await (await universe.ensure(name, app)).send(Add(7))).applied()
    async with wl.open(str(tmp_path)) as universe:
        worlds = [universe.world(name) for name in names]
        for world in [*worlds, worlds[2]]:  # the last one was the oldest kept, and is the newest now
            assert (await world._handle.machine()).cells
        addresses = [await world._handle.address() for world in worlds]
        assert [*universe._connection._warm] == [addresses[3], addresses[4], addresses[2]]
