"""Nothing waits in silence in a `worldline dev` that is a process of its own: for each way in which something waits for
a person it writes one line with the command to type, and that command works.

`tests/client/test_silence.py` has all ways, with the part of `dev` that writes log lines in the test's own process.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import cli_kit
from tests.cli.cli_kit import Dev, run

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

    def edit(self, before: str, after: str) -> None:
        (self._folder / "app.py").write_text(APP.replace(before, after))


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
    cli_kit.until(lambda: '"count":1' in place.run("state", "w", "--json").out, "the event, taken")
    assert place.run("dead", "list", "w", "--json").lines == []


def test_a_run_that_edited_code_does_not_fit(place: Place) -> None:
    place.start("talks")
    place.host.wait_for('echo(text="hello") = "hello"')
    place.edit('await echo("hello")', 'await shout("hello")')
    place.host.wait_for("1 does not fit and is blocked when it next continues: w/r")
    assert place.run("send", "w", "Go").code == 0
    typed = place.told("runs retry w r")
    assert place.run(*typed).code == 0, "it is tried, and stays blocked"
    place.edit("", "")
    place.host.wait_for('finished "hello"')
