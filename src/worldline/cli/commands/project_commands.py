"""`worldline init`: a project that runs at once, with `worldline dev` and with `pytest`."""

from __future__ import annotations

from pathlib import Path

import click

from worldline.base import errors
from worldline.terminal import command_session
from worldline.terminal.command_session import CommandSession

APP = '''"""A greeter: the smallest world that does something, waits, and survives anything in between."""

from dataclasses import dataclass

import worldline as wl

app = wl.Program("greeter")


@app.effect
async def shout(text: str) -> str:
    """Outside: tried at least once, answered exactly once. Files, networks and clocks belong here."""
    return text.upper()


@dataclass(frozen=True)
class Greeted:
    name: str


@app.reducer
@dataclass
class Guests:
    """Memory: folded from events, the same on every replay."""

    count: int = 0
    last: str = ""

    @wl.on
    def greeted(self, event: Greeted) -> None:
        self.count += 1
        self.last = event.name


@app.workflow
async def greet(name: str, seconds: float = 5) -> str:
    """Inside: durable. Kill the process while it sleeps, start it again, and it goes on."""
    await wl.sleep(seconds)
    text = await shout(f"hello {name}")
    wl.emit(Greeted(name))
    return text
'''

TEST = '''"""Tests run in virtual time, without a store; each step is done twice and must come out the same."""

from app import Guests, app, greet, shout
from worldline import testing


def test_greets_after_a_while() -> None:
    script = testing.Script().on(shout, lambda text: text.upper())
    with testing.world(app, script) as world:
        assert world.run(greet("Alice", seconds=3600)) == "HELLO ALICE"
        assert world.state(Guests).last == "Alice"
        world.prove()
'''

README = """# PROJECT

A Worldline project. In one terminal, run its worlds:

    worldline dev --world alice

In another, talk to them:

    worldline run alice greet name=Alice
    worldline state alice
    worldline journal alice
    worldline why alice

Edit `app.py` while `worldline dev` runs: the change is adopted, or you are told what it does not fit. Stop it, or kill
it, in the middle of a greeting, and start it again: the greeting goes on.

    worldline replay alice --prove     # run the journal again and compare every digest
    worldline check app.py             # find what would not replay
    pytest                             # the tests, in virtual time

`app.py` is the program, `test_app.py` tests it, `worldline.toml` says where the store is.
"""

TOML = """# Found from anywhere below this folder. Paths are relative to it.
store = ".worldline"
app = "app.py"
"""

IGNORE = ".worldline/\n__pycache__/\n"

FILES = {
    "app.py": APP,
    "test_app.py": TEST,
    "README.md": README,
    "worldline.toml": TOML,
    ".gitignore": IGNORE,
}


@command_session.command("init")
@click.argument("folder", default=".", type=click.Path(path_type=Path), metavar="[DIR]")
def init(desk: CommandSession, *, folder: Path) -> None:
    """Write a project that runs: a program, its test, a README."""
    # All are looked for before one is written: a half-made project is worse than none.
    there = [name for name in FILES if (folder / name).exists() and name != ".gitignore"]
    if there:
        raise errors.Exists(f"{folder / there[0]} is there already; choose an empty folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            if not (folder / name).exists():  # a `.gitignore` that is there is the user's own
                (folder / name).write_text(text.replace("PROJECT", folder.resolve().name))
    except OSError as error:
        raise errors.BadInput(f"{folder} cannot be written: {error.strerror}") from error
    go = "" if folder == Path() else f"cd {folder} && "
    desk.out.one({"folder": str(folder), "files": list(FILES)}, [f"next: {go}worldline dev --world alice"])


COMMANDS: list[click.Command] = [init]
