"""Nothing waits in silence in a `worldline dev` that is a process of its own: for each way in which something waits for
a person it writes one line with the command to type, and that command works. Of a world that nobody hosts, its caller
does.

`tests/client/test_silence.py` has all ways, with the part of `dev` that writes log lines in the test's own process.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import worldline as wl
from tests.cli import cli_kit
from tests.cli.cli_kit import Dev, run
from worldline.layers import trial
from worldline.model.leases import CrashTrial, HolderActivity
from worldline.store import kv

APP = """
from dataclasses import dataclass
from pathlib import Path

import worldline as wl

app = wl.Program("p")
MENDED = Path(__file__).with_name("mended")


@dataclass(frozen=True)
class Go:
    pass


@dataclass(frozen=True)
class Bad:
    pass


@dataclass(frozen=True)
class Heavy:
    pass


def work() -> str:
    if not MENDED.exists():
        raise OSError("the printer is on fire")
    return "printed"


@app.effect(retry=wl.Retry(attempts=1, on_exhausted="park"))
def prints() -> str:
    return work()


@app.effect(retry=wl.Retry(initial_delay=3600, max_delay=3600))
def calls() -> str:
    return work()


@app.workflow
async def parks() -> str:
    return await prints()


@app.workflow
async def retries() -> str:
    return await calls()


@app.workflow
async def talks() -> str:
    said = await echo("hello")
    await wl.wait(Go)
    return said


@app.effect
def echo(text: str) -> str:
    return text


@app.effect
def shout(text: str) -> str:
    return text.upper()


@app.reducer
@dataclass
class Strict:
    count: int = 0

    @wl.on
    def bad(self, event: Bad) -> None:
        work()
        self.count += 1

    @wl.on
    def heavy(self, event: Heavy) -> None:
        if not MENDED.exists():
            raise MemoryError
        self.count += 1
"""
TAKES_NEW = """

@dataclass(frozen=True)
class New:
    pass


@app.reducer
@dataclass
class Newer:
    count: int = 0

    @wl.on
    def new(self, event: New) -> None:
        self.count += 1
"""


class Place:
    """A store and a program, and the `dev` that hosts it."""

    def __init__(self, folder: Path, host: Dev) -> None:
        self._folder = folder
        self.host = host

    def run(self, *words: str) -> cli_kit.Said:
        return run(*words, "--store", self._folder / "s")

    def start(self, workflow: str) -> None:
        started = self.run("run", "w", workflow, "--id", "r", "--detach")
        assert started.code == 0, started.err

    def told(self, command: str) -> list[str]:
        """The words of a command, as a line of what `dev` writes has it."""
        found: list[str] = []

        def is_told() -> bool:
            found[:] = re.findall(rf"^\[(?:warning|error)\] .*`worldline ({command})`", self.host.read(), re.MULTILINE)
            return bool(found)

        cli_kit.until(is_told, command)
        return shlex.split(found[0])

    def mend(self) -> None:
        (self._folder / "mended").touch()

    def takes(self, count: int) -> None:
        """Until the reducer has taken so many events, and none is left."""
        cli_kit.until(lambda: f'"count":{count}' in self.run("state", "w", "--json").out, "the event, taken")
        assert self.run("dead", "list", "w", "--json").lines == []

    def edit(self, before: str, after: str, *, more: str = "") -> None:
        self.write("app.py", APP.replace(before, after) + more)

    def write(self, name: str, text: str) -> Path:
        (self._folder / name).write_text(text)
        return self._folder / name


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "app.py").write_text(APP)
    with cli_kit.dev("app.py", "--store", "s", "--world", "w", cwd=tmp_path) as host:
        yield Place(tmp_path, host)


@pytest.mark.parametrize("way", ["parks", "retries"])
def test_an_effect_that_is_parked_or_tried_again(place: Place, way: str) -> None:
    place.start(way)
    typed = place.told(r"effect retry \w{12}")
    place.mend()
    retried = place.run(*typed)
    assert retried.code == 0, retried.err
    place.host.wait_for('finished "printed"')


def test_an_input_that_its_handler_did_not_take(place: Place) -> None:
    assert place.run("send", "w", "Bad").code == 0
    typed = place.told(r"dead retry w \w{24}")
    place.mend()
    retried = place.run(*typed)
    assert retried.code == 0, retried.err
    place.takes(1)


def test_an_event_that_nothing_takes(place: Place) -> None:
    assert place.run("send", "w", "New").code == 0
    typed = place.told(r"dead retry w \w{24}")
    place.edit("", "", more=TAKES_NEW)
    place.host.wait_for("[reloaded]")
    retried = place.run(*typed)
    assert retried.code == 0, retried.err
    place.takes(1)


def test_a_world_that_this_process_cannot_run(place: Place) -> None:
    assert place.run("send", "w", "Heavy").code == 0
    typed = " ".join(place.told(r"pause w && worldline resume w"))
    place.mend()
    for words in typed.split(" && worldline "):
        said = place.run(*words.split())
        assert said.code == 0, said.err
    place.takes(1)


def test_a_world_that_is_quarantined(tmp_path: Path) -> None:
    """Many processes have died restoring it, before this one begins."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "mended").touch()
    words = ("app.py", "--store", "s", "--world", "w")
    with cli_kit.dev(*words, cwd=tmp_path) as first:
        assert Place(tmp_path, first).run("send", "w", "Bad", "--wait").code == 0
        first.end()
    cli_kit.with_universe(tmp_path / "s", count_deaths)
    with cli_kit.dev(*words, cwd=tmp_path) as host:
        place = Place(tmp_path, host)
        assert place.run("send", "w", "Bad").code == 0
        resumed = place.run(*place.told("resume w"))
        assert resumed.code == 0, resumed.err
        place.takes(2)


async def count_deaths(universe: wl.Universe) -> None:
    store, at = universe._connection.store, await universe.world("w")._handle.address()
    batch = kv.Batch()
    key = trial.get(at).key
    found = (await store.engine.read(kv.Get(key))).value(0)
    if found is None:
        batch.absent(key)
    else:
        batch.expect(key, found)
    trial.keep(batch, at, CrashTrial(epoch=1, step=0, running=HolderActivity.NOTHING, restore_deaths=99))
    assert isinstance((await store.engine.commit(batch))[0], kv.Ok)


def test_a_world_of_a_program_that_no_process_hosts(place: Place, tmp_path: Path) -> None:
    """`dev` hosts other worlds meanwhile. Only who waits can know of it, so the line is the caller's."""
    other = place.write("other.py", APP.replace('wl.Program("p")', 'wl.Program("other")'))
    made = place.run("create", "x", "--app", str(other))
    assert made.code == 0, made.err
    place.mend()
    words = ("run", "x", "parks", "--id", "r", "--store", "s")  # it waits for a host for as long as it takes
    written = tmp_path / "caller.txt"
    with written.open("wb") as file:
        caller = subprocess.Popen(
            [*cli_kit.COMMAND, *words],
            cwd=tmp_path,
            env=cli_kit.environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        cli_kit.wait_for(written, b"`worldline dev FILE --store s`")
        assert "no process hosts world 'x' (program 'other')" in written.read_text()
        with cli_kit.dev("other.py", "--store", "s", cwd=tmp_path):
            assert caller.wait(cli_kit.SECONDS) == 0, written.read_text()
    finally:
        caller.kill()
        caller.wait()
    assert "printed" in written.read_text()
