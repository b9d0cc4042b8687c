"""Schedules in a hosted world: made from outside, kept while nobody hosts it, ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.cli import cli_kit
from tests.cli.cli_kit import run


@dataclass(frozen=True)
class Beat:
    name: str


def program() -> wl.Program:
    app = wl.Program("drum")

    @app.reducer()
    @dataclass
    class Drum:
        beats: list[str] = field(default_factory=list)

        @wl.on
        def beat(self, event: Beat) -> None:
            self.beats.append(event.name)

    @app.workflow
    async def solo(name: str) -> str:
        wl.emit(Beat(f"solo {name}"))
        return name

    return app


async def beats(world: wl.World) -> list[str]:
    drum = world._universe.programs["drum"].reducers["Drum"].cls
    found: list[str] = (await world.state(drum)).beats
    return found


async def test_a_schedule_from_outside(tmp_path: Path) -> None:
    app = program()
    async with wl.open(str(tmp_path), host=app) as universe:
        world = await universe.ensure("w", app)
        assert await world.schedule("b", Beat("b"), every=0.05)
        assert not await world.schedule("b", Beat("b"), every=0.05)
        assert await world.schedule("s", app.workflows["solo"]("s"), cron="* * * * * *")
        assert await world.schedule("new-year", Beat("!"), cron="0 0 1 1 *", tz="Pacific/Auckland")

        async def heard() -> bool:
            found = await beats(world)
            return found.count("b") >= 3 and "solo s" in found

        await aio.until(heard)
        listed = await world.schedules()
        assert [(each.id, each.what, each.tz) for each in listed] == [
            ("b", "Beat", "UTC"),
            ("new-year", "Beat", "Pacific/Auckland"),
            ("s", "solo", "UTC"),
        ]
        assert listed[0].fired >= 3
        assert listed[0].every == timedelta(seconds=0.05)
        assert listed[1].next.astimezone(UTC).strftime("%m-%d %H:%M") == "12-31 11:00"
        assert await world.trigger("new-year") is None
        started = await world.trigger("s")
        assert started is not None
        assert await (await world.attach(started)).result() == "s"
        assert (await world.schedules())[1].next == listed[1].next
        with pytest.raises(wl.NotFound, match="no schedule 'x'"):
            await world.trigger("x")
        assert await world.unschedule("b")
        assert await world.unschedule("s")
        assert not await world.unschedule("b")
        assert [each.id for each in await world.schedules()] == ["new-year"]
        with pytest.raises(wl.BadInput, match="bad hour"):
            await world.schedule("x", Beat("x"), cron="0 99 * * *")


async def test_it_is_kept_while_nobody_hosts_the_world(tmp_path: Path) -> None:
    app = program()
    async with wl.open(str(tmp_path), host=app) as universe:
        world = await universe.ensure("w", app)
        await world.schedule("b", Beat("b"), every=0.25)
        [before] = await world.schedules()
    await asyncio.sleep(0.8)  # three firings are missed meanwhile
    async with wl.open(str(tmp_path), host=app) as universe:
        world = universe.world("w")

        async def heard() -> bool:
            return len(await beats(world)) >= 2

        await aio.until(heard)
        [after] = await world.schedules()
        periods, off = divmod(after.next - before.next, timedelta(seconds=0.25))
        assert not off, "it keeps its phase"
        assert 2 <= after.fired <= before.fired + periods - 2, "what was missed happened once"


CODE = """
from dataclasses import dataclass, field
import worldline as wl

app = wl.Program("drum")

@dataclass(frozen=True)
class Beat:
    name: str

@app.reducer
@dataclass
class Drum:
    beats: list[str] = field(default_factory=list)

    @wl.on
    def beat(self, event: Beat) -> None:
        self.beats.append(event.name)

@app.workflow
async def solo(name: str) -> str:
    wl.schedule("b", Beat("b"), every=3600)
    wl.schedule("s", solo("again"), cron="0 0 1 1 *", tz="Pacific/Auckland")
    return name
"""


def test_they_are_listed_triggered_and_cancelled(tmp_path: Path) -> None:
    store, file = tmp_path / "store", tmp_path / "drum.py"
    file.write_text(CODE)
    with cli_kit.dev(file, "--store", store, cwd=tmp_path):
        assert run("create", "w", "--store", store, "--app", file).code == 0
        assert run("run", "w", "solo", "name=x", "--store", store, "--app", file).out == "x\n"
        both = run("schedule", "list", "--json", "--store", store).lines
        assert [(each["id"], each["world"], each["what"], each["when"], each["fired"]) for each in both] == [
            ("b", "w", "Beat", "every 1 h", 0),
            ("s", "w", "solo", "0 0 1 1 * (Pacific/Auckland)", 0),
        ]
        raised = run("schedule", "trigger", "w", "b", "--store", store)
        assert (raised.code, raised.out) == (0, "schedule b of w: its event was raised\n")
        [cell] = run("state", "w", "--json", "--store", store).lines
        assert cell["value"] == {"beats": ["b"]}
        assert run("schedule", "trigger", "w", "s", "--json", "--store", store).json["run"] == "s@1"
        assert run("runs", "show", "w", "s@1", "--json", "--store", store).json["result"] == "again"
        after = run("schedule", "list", "w", "--json", "--store", store).lines
        assert [(each["id"], each["next"]) for each in after] == [(each["id"], each["next"]) for each in both]
        assert [each["fired"] for each in after] == [1, 1]
        assert "command=trigger schedule=b" in run("journal", "w", "--store", store).out
        assert run("schedule", "cancel", "w", "b", "--store", store).code == 2, "it asks"
        assert run("schedule", "cancel", "w", "b", "--yes", "--store", store).out == "schedule b of w is cancelled\n"
        assert run("schedule", "list", "-q", "--store", store).out == "s\n"
        missing = run("schedule", "trigger", "w", "S", "--store", store)
        assert (missing.code, missing.err) == (3, "error: world 'w' has no schedule 'S'; did you mean 's'?\n")
