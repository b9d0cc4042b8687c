"""Trying other code on a stored world: nothing is written, nothing outside is called, and code that hangs is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import worldline as wl
from tests.kits.kit import Kit
from worldline.base import errors
from worldline.features.shadow import calls as shadow_calls
from worldline.features.shadow import step_window
from worldline.host.feature_list import PARTS
from worldline.keys import snapshots as snapshot_keys
from worldline.store import kv


@dataclass(frozen=True)
class Add:
    number: int
    note: str = ""


class Called(Exception):
    """An effect was called."""


Reaction = Callable[[int], int]


def program(reaction: Reaction, *, ask: int = 0, hosted: bool = False) -> wl.Program:
    """Adds up, by way of a reaction, and runs an effect for some numbers. Only the hosted one may be called."""
    app = wl.Program("sums")

    @app.effect
    async def outside(number: int) -> int:
        if not hosted:
            raise Called
        return number * 10

    @app.workflow
    async def work(number: int) -> int:
        return await outside(number + ask)

    @app.reducer()
    @dataclass
    class Sum:
        total: int = 0

        @wl.on
        def add(self, event: Add) -> None:
            self.total += reaction(event.number)
            if event.number % 5 == 0:
                _ = wl.start(work(event.number), id=f"w{event.number}")

    return app


def same(number: int) -> int:
    return number


def double(number: int) -> int:
    return number * 2


def hang(number: int) -> int:
    while number:
        pass
    return number


def sleep(number: int) -> int:
    time.sleep(3)
    return number


def leave(number: int) -> int:
    sys.exit(number)


async def lived(universe: wl.Universe, app: wl.Program, count: int = 12) -> wl.World:
    world = await universe.ensure("w", app)
    for number in range(1, count + 1):
        await (await world.send(Add(number))).applied()
        if number % 5 == 0:
            run: wl.Run[Any] = await world.attach(f"w{number}")
            assert await run.result(20) == number * 10
    return world


async def everything(engine: kv.Engine) -> list[tuple[bytes, bytes]]:
    """Every key of a store and its value."""
    found: list[tuple[bytes, bytes]] = []
    begin = b"\x00"
    while True:
        page = (await engine.read(kv.Range(begin, b"\xff"))).page(0)
        found += page.items
        if not page.more:
            return found
        begin = page.items[-1][0] + b"\x00"


class Unwritten:
    """An engine that is read alone."""

    def __init__(self, engine: kv.Engine) -> None:
        self._engine = engine

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        return await self._engine.read(*requests)

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        raise AssertionError(f"{len(batches)} batches were written")


async def test_nothing_is_written_and_nothing_is_called(kit: Kit) -> None:
    async with kit.hosting(program(same, hosted=True)) as universe:
        await lived(universe, program(same, hosted=True))
    client = await kit.process()
    world = client.universe.world("w")
    engine = await kit.engine()
    before = await everything(engine)
    unchanged = await world.shadow(program(same))
    changed = await world.shadow(program(double, ask=1))
    assert await everything(engine) == before
    assert len(before) > 10
    described = await world._handle.describe()
    blobs = client.universe._connection.blobs
    unwritten: Any = Unwritten(engine)
    await shadow_calls.try_out(unwritten, blobs, kit.env, described, program(double), parts=PARTS)
    assert (unchanged.differs, unchanged.stopped) == (False, "")
    assert (unchanged.steps, unchanged.last_step) == ((await world.head()).step,) * 2
    assert {kind for kind, count in changed.counts.items() if count} == {"effects", "cells", "runs"}
    assert changed.cells[0].fields[0].new == 2 * changed.cells[0].fields[0].old
    assert [each.new and each.new.arguments for each in changed.effects] == [{"number": 6}, {"number": 11}]
    await kit.aclose()


async def test_a_world_that_is_running_here_is_tried_and_goes_on(memory_kit: Kit) -> None:
    app = program(same, hosted=True)
    async with memory_kit.hosting(app) as universe:
        world = await lived(universe, app)
        found = await world.shadow(program(double), last=3)
        assert (found.steps, found.first_step) == (3, (await world.head()).step - 2)
        assert [(each.field, each.old, each.new) for each in found.cells[0].fields] == [("total", 78, 78 + 11 + 12)]
        await (await world.send(Add(1))).applied()
        assert await world.state() == {"Sum": {"": {"total": 79}}}


async def test_a_world_that_has_changed_its_program_meanwhile(memory_kit: Kit) -> None:
    """The steps are tried whichever code has made them."""
    async with memory_kit.hosting(program(same, hosted=True)) as universe:
        await lived(universe, program(same, hosted=True), 4)
    second = program(double, hosted=True)
    async with memory_kit.hosting(second) as universe:
        world = universe.world("w")
        await (await world.send(Add(6))).applied()
        assert await world.state() == {"Sum": {"": {"total": 10 + 12}}}
        assert not (await world.shadow(second, last=1)).differs
        assert not (await world.shadow(second, last=2)).differs, "the change itself is one of them"
        found = await world.shadow(second)
        assert [(each.field, each.old, each.new) for each in found.cells[0].fields] == [("total", 22, 32)]
        back = await world.shadow(program(same), last=1)
        assert [(each.field, each.old, each.new) for each in back.cells[0].fields] == [("total", 22, 16)]
        assert (back.old_code, found.old_code) == (second.hash.hex(), second.hash.hex())


async def test_steps_that_are_not_kept_are_refused_with_what_is(memory_kit: Kit) -> None:
    app = program(same, hosted=True)
    async with memory_kit.hosting(app) as universe:
        world = await lived(universe, app, 4)
        await world.snapshot()
        for number in (6, 7, 8):
            await (await world.send(Add(number))).applied()
        head = await world.head()
        assert (await world.shadow(app, last=head.step)).steps == head.step, "from its birth on"
        at = await world._handle.address()
        engine = await memory_kit.engine()
        first = snapshot_keys.snapshot_key(at, 0)
        raw = (await engine.read(kv.Get(first))).value(0)
        assert raw is not None
        batch = kv.Batch()
        batch.expect(first, raw)
        batch.delete(first)
        assert isinstance((await engine.commit(batch))[0], kv.Ok)
        with pytest.raises(wl.BadInput, match=r"the last 3 steps can be tried, not 4: its state is kept from step 4"):
            await world.shadow(app, last=4)
        assert (await world.shadow(app, last=3)).steps == 3
        found = await world.shadow(app)
        assert (found.steps, found.differs) == (3, False)


async def test_the_number_of_steps_is_bounded(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_window, "LAST_DEFAULT", 3)
    monkeypatch.setattr(step_window, "LAST_MAX", 5)
    app = program(same, hosted=True)
    async with memory_kit.hosting(app) as universe:
        world = await lived(universe, app)
        assert (await world.shadow(app)).steps == 3
        assert (await world.shadow(app, last=5)).steps == 5
        with pytest.raises(wl.BadInput, match="the last 5 steps can be tried, not 6: one trial takes at most 5"):
            await world.shadow(app, last=6)
        for wrong in (0, -1, True, "3"):
            with pytest.raises(wl.BadInput, match="a number of steps from 1 on"):
                await world.shadow(app, last=wrong)  # type: ignore[arg-type]


async def test_what_cannot_be_tried_is_refused(memory_kit: Kit) -> None:
    app = program(same, hosted=True)
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        found = await world.shadow(program(double))
        assert (found.steps, found.differs) == (0, False), "nothing has happened yet"
        with pytest.raises(wl.BadInput, match=r"world 'w' is of program 'sums', not of 'other'"):
            await world.shadow(wl.Program("other"))
        with pytest.raises(wl.BadInput, match="a program is needed"):
            await world.shadow("sums")  # type: ignore[arg-type]
        with pytest.raises(wl.NotFound):
            await universe.world("nobody").shadow(app)


async def test_large_payloads_are_read_where_they_are(memory_kit: Kit) -> None:
    app = program(same, hosted=True)
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        await (await world.send(Add(1, "x" * 100_000))).applied()
        found = await world.shadow(program(double))
        assert found.counts["cells"] == 1


@pytest.mark.parametrize(("reaction", "place"), [(hang, "hang"), (sleep, "sleep")])
async def test_code_that_hangs_is_said_and_left(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, reaction: Reaction, place: str
) -> None:
    app = program(same, hosted=True)
    async with memory_kit.hosting(app) as universe:
        world = await lived(universe, app, 3)
        described = await world._handle.describe()
        connection = universe._connection
        found = await shadow_calls.try_out(
            connection.store.engine,
            connection.blobs,
            memory_kit.env,
            described,
            program(reaction),
            parts=PARTS,
            step_us=300_000,
        )
        assert f"it was in {place} (test_stored_shadow.py" in found.stopped
        assert found.differs
        assert found.counts == dict.fromkeys(found.counts, 0)
        assert not (await world.shadow(program(same))).differs, "other trials are not held up"


async def test_code_that_ends_the_process_does_not(memory_kit: Kit) -> None:
    """`sys.exit` in a handler is an exception of the code's, as where the world is hosted."""
    app = program(same, hosted=True)
    async with memory_kit.hosting(app) as universe:
        world = await lived(universe, app, 3)
        found = await world.shadow(program(leave))
        assert found.counts["inputs"] == 3
        assert "SystemExit" in found.inputs[0].new


async def test_a_store_that_fails_is_no_difference(memory_kit: Kit) -> None:
    app = program(same, hosted=True)
    process = await memory_kit.process(app)
    world = await lived(process.universe, app, 3)
    process._cut.off = True
    with pytest.raises(errors.StoreError):
        await world.shadow(app)
