"""Nothing waits in silence: for each way in which something waits for a person, one line with the command to type is
in the host's log, in the log or the exception of the caller, and in what `why`, `dev` and `runs list` show.

The caller is a client of its own, as in another process. `dev` shows what the host logs: it is its own handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.cli import cli_kit
from tests.kits import kit as kits
from tests.worker import test_containment as containment
from worldline.base import errors
from worldline.cli.dev import dev_output
from worldline.client import halted_runs, no_host, world_answers
from worldline.layers import trial
from worldline.model.leases import CrashTrial, HolderActivity
from worldline.runtime import world_reader
from worldline.store import kv
from worldline.terminal import output

SETTINGS = msgspec.structs.replace(kits.SETTINGS, host_wait_ms=400, blocked_wait_ms=200)
LATER = 60.0


@dataclass(frozen=True)
class Go:
    pass


@dataclass(frozen=True)
class Bad:
    pass


@dataclass(frozen=True)
class Unknown:
    pass


def program(*, edited: bool = False) -> wl.Program:
    app = containment.program()  # with a handler of `Poison`

    @app.effect
    async def echo(text: str) -> str:
        return text

    @app.effect
    async def shout(text: str) -> str:
        return text.upper()

    @app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
    async def prints() -> None:
        raise ValueError("the printer is on fire")

    @app.effect(retry=wl.Retry(initial_delay=LATER))
    async def calls() -> None:
        raise ConnectionError("nobody answers")

    @app.workflow
    async def talks() -> str:
        said = await (shout if edited else echo)("hello")
        await wl.wait(Go)
        return said

    @app.workflow
    async def parks() -> None:
        await prints()

    @app.workflow
    async def retries() -> None:
        await calls()

    @app.reducer()
    @dataclass
    class Strict:
        count: int = 0

        @wl.on
        def bad(self, event: Bad) -> None:
            raise ValueError("this is bad")

    return app


@dataclass
class Scene:
    """A store in a folder, a host that is open or not, and a caller elsewhere."""

    folder: Path
    client: wl.Universe
    app: wl.Program
    said: list[tuple[str, str]] = field(default_factory=list)  # the logger, and the line

    @property
    def world(self) -> wl.World:
        return self.client.world("w")

    async def run(self, workflow: str) -> None:
        await self.world.run(self.app.workflows[workflow](), id="r", timeout=LATER)

    async def send(self, event: object) -> None:
        await (await self.world.send(event)).applied(timeout=LATER)

    def has(self, place: str, command: str) -> bool:
        return re.search(command, self.log(place)) is not None

    def log(self, place: str) -> str:
        return "\n".join(line for logger, line in self.said if (logger == "worldline") == (place == "caller"))


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Way:
    """How it comes about. `before`: without a host; `act`: what the caller does, and waits for."""

    act: Act
    command: str
    before: Act | None = None
    edited: bool = False
    hosted: bool = True


async def begin_to_talk(scene: Scene) -> None:
    """A run that waits behind its first effect, under code that is edited then."""
    async with wl.open(str(scene.folder), host=scene.app, settings=SETTINGS) as first:
        world = first.world("w")
        _ = await world.start(scene.app.workflows["talks"](), id="r")

        async def echoed() -> bool:
            return any(entry.kind is wl.Kind.EFFECT_RESULT for entry in await world.journal())

        await aio.until(echoed)


async def go_and_wait(scene: Scene) -> None:
    _ = await scene.world.send(Go())
    await (await scene.world.attach("r")).result()


async def run_until_told(scene: Scene) -> None:
    """It would go on by itself, in a minute."""
    running = asyncio.create_task(scene.run("retries"))

    async def told() -> bool:
        return scene.has("caller", "worldline effect retry")

    await aio.until(told)
    running.cancel()


async def count_deaths(scene: Scene) -> None:
    """Many processes have died restoring it."""
    store, at = scene.client._connection.store, await scene.world._handle.address()
    batch = kv.Batch()
    batch.absent(trial.get(at).key)
    trial.keep(batch, at, CrashTrial(epoch=1, step=0, running=HolderActivity.NOTHING, restore_deaths=99))
    [outcome] = await store.engine.commit(batch)
    assert isinstance(outcome, kv.Ok), outcome


WAYS = {
    "blocked": Way(go_and_wait, r"worldline runs retry w r", before=begin_to_talk, edited=True),
    "parked": Way(lambda scene: scene.run("parks"), r"worldline effect retry \w{12}"),
    "retried": Way(run_until_told, r"worldline effect retry \w{12}"),
    "dead letter": Way(lambda scene: scene.send(Bad()), r"worldline dead retry w \w{24}"),
    "unhandled": Way(lambda scene: scene.send(Unknown()), r"worldline dead retry w \w{24}"),
    "refused": Way(lambda scene: scene.send(containment.Poison()), r"worldline (why w|pause w)"),
    "quarantined": Way(lambda scene: scene.send(Go()), r"worldline resume w", before=count_deaths),
    "not hosted": Way(lambda scene: scene.send(Go()), r"worldline dev FILE", hosted=False),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_host, "WARN_SECONDS", 0.2)
    monkeypatch.setattr(world_answers, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(world_reader, "WAIT_MS", 50)
    monkeypatch.setattr(halted_runs, "RETRIES_SECONDS", 0.1)
    containment.broken_step(monkeypatch, lambda: AssertionError("this cannot be"))


class Lines(logging.Handler):
    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._scene = scene

    def emit(self, record: logging.LogRecord) -> None:
        self._scene.said.append((record.name, " ".join(record.getMessage().split())))


@asynccontextmanager
async def staged(folder: Path, way: Way) -> AsyncIterator[Scene]:
    app = program()
    async with wl.open(str(folder), host=app, settings=SETTINGS) as made:
        await made.ensure("w", app)
    async with wl.open(str(folder), settings=SETTINGS) as client:
        scene = Scene(folder, client, app)
        if way.before is not None:
            await way.before(scene)
        log, lines = logging.getLogger("worldline"), Lines(scene)
        log.addHandler(lines)
        try:
            if not way.hosted:
                yield scene
                return
            hosted = program(edited=way.edited)
            async with wl.open(str(folder), host=hosted, settings=SETTINGS):
                yield scene
        finally:
            log.removeHandler(lines)


@pytest.mark.parametrize("name", WAYS)
async def test_it_is_said_where_people_look(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    way, typed = WAYS[name], []
    shown = dev_output.Show(output.Out(as_json=False), rows=False)
    with shown.logging():
        async with staged(tmp_path / "store", way) as scene:
            raised = ""
            try:
                await way.act(scene)
            except (errors.Error, TimeoutError) as error:
                raised = str(error)
            if way.hosted:  # what is durable is read by a caller at once, and logged a moment later
                with contextlib.suppress(TimeoutError):
                    await aio.until(functools.partial(said_by_host, scene, way), seconds=5)
            for words in (("why", "w"), ("runs", "list", "w")):
                said = await asyncio.to_thread(cli_kit.run, *words, "--store", scene.folder)
                typed.append(f"{said.out}\n{said.err}")
    places = {"caller": f"{raised}\n{scene.log('caller')}", "why": typed[0], "runs list": typed[1]}
    if way.hosted:
        places |= {"host": scene.log("host"), "dev": capsys.readouterr().out}
    missing = {place: text for place, text in places.items() if not re.search(way.command, text)}
    assert missing == {}


async def said_by_host(scene: Scene, way: Way) -> bool:
    return scene.has("host", way.command)
