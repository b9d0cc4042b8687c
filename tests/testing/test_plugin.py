"""The pytest plugin: its fixture, and the journal beside a failure. Run as users run it: in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import worldline as wl
from worldline import testing

app = wl.Program("shop")

@app.effect
async def shout(text: str) -> str:
    return text.upper()

@app.workflow
async def greet(name: str) -> str:
    await wl.sleep(5)
    return await shout(f"hello {name}")

made = []

def test_passes(worldline_world):
    world = worldline_world(app, wl.Script().on(shout, lambda text: text.upper()), seed=7)
    assert world.run(greet("Ada")) == "HELLO ADA"
    made.append(world)

def test_is_closed_afterwards():
    assert all(run.coroutine is None for run in made[0].machine.runs.values())

def test_fails_with_the_fixture(worldline_world):
    world = worldline_world(app, wl.Script().on(shout, "quiet"), name="alice")
    assert world.run(greet("Ada")) == "HELLO ADA"

def test_fails_without_it():
    with testing.world(app, name="bob") as world:
        world.run(greet("Bob"))
"""


def test_failures_show_the_journals_of_their_worlds(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "worldline.testing.plugin", "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
    )
    out = done.stdout
    assert "2 failed, 2 passed" in out, out + done.stderr
    assert out.count("journal of world 'alice' (8 entries)") == 1
    assert out.count("journal of world 'bob' (6 entries)") == 1
    assert "run_finished      run-1 finished 'quiet'" in out
    assert "effect shout('hello Bob') was called and the script has no answer for it" in out


def test_the_plugin_is_installed_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"worldline": "worldline.testing.plugin"}
