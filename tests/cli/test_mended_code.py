"""A worker in a process of its own that has mended code takes worlds with blocked runs at once, without any input."""

from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.cli import cli_kit, role_kit
from tests.servers import postgres
from tests.store import postgres_kit
from worldline.kernel.rows.row_records import RunStatus
from worldline.terminal import program_files

CODE = """
from dataclasses import dataclass

import worldline as wl

app = wl.Program("mended")


@dataclass(frozen=True)
class Go:
    pass


@app.effect
async def echo(text: str) -> str:
    return text


@app.effect
async def shout(text: str) -> str:
    return text.upper()


@app.workflow
async def talk() -> str:
    said = await ECHO("hello")
    await wl.wait(Go)
    return said
"""


def written(folder: Path, effect: str) -> Path:
    """The program, with this effect where its journal has `echo`."""
    file = folder / "talker.py"
    file.write_text(CODE.replace("ECHO", effect))
    return file


async def block(url: str, folder: Path) -> None:
    """A run that is blocked under edited code, and no process that hosts it."""
    [app] = program_files.load(str(written(folder, "echo"))).programs
    async with wl.open(url, host=app) as universe:
        world = await universe.ensure("w", app)
        _ = await world.start(app.workflows["talk"](), id="r")

        async def echoed() -> bool:
            return any(entry.kind is wl.Kind.EFFECT_RESULT for entry in await world.journal())

        await aio.until(echoed)
    [edited] = program_files.load(str(written(folder, "shout"))).programs
    async with wl.open(url, host=edited) as universe:
        run = await universe.world("w").attach("r")
        await universe.world("w")._handle.send("Go", b"\xa0")
        with pytest.raises(wl.errors.RunBlocked):
            await run.result(on_blocked="raise")


@pytest.mark.parametrize("engine", ["lmdb", "postgres"])
def test_a_worker_process_wakes_it(engine: str, tmp_path: Path) -> None:
    place = tmp_path / "store"
    url = str(place) if engine == "lmdb" else postgres.shared().url(schema=postgres_kit.fresh_schema())
    aio.run(block(url, tmp_path))
    assert "blocked" in cli_kit.run("runs", "list", "w", "--store", url).out

    async def finished() -> None:
        """As a person sees it who only looks: nothing is sent, and no other process runs the world."""
        async with wl.open(url) as client:

            async def ended() -> bool:
                return await (await client.world("w").attach("r")).status() is RunStatus.FINISHED

            await aio.until(ended)

    file = written(tmp_path, "echo")
    with role_kit.running(["worker", file, "--store", url], cwd=tmp_path):
        aio.run(finished())
