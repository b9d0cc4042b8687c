"""How processes that host end: in order after one signal, at once after two, whatever user code does meanwhile."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import cli_kit, role_kit
from tests.cli.cli_kit import run

APP = """
import asyncio
import threading
import time
from pathlib import Path

import worldline as wl

app = wl.Program("slow")
HOUR = 3600


def began() -> None:
    Path("began").touch()


@app.effect
def in_thread() -> None:
    began()
    threading.Event().wait(HOUR)


@app.effect
async def handed_to_a_thread() -> None:
    began()
    await asyncio.to_thread(time.sleep, HOUR)


@app.effect
async def blocks_the_loop() -> None:
    began()
    time.sleep(HOUR)


@app.effect
async def ignores_cancellation() -> None:
    began()
    while True:
        try:
            await asyncio.sleep(HOUR)
        except asyncio.CancelledError:
            Path("cancelled").touch()


@app.workflow
async def call(name: str) -> None:
    await app.effects[name]()
"""


@contextlib.contextmanager
def hosting(folder: Path, effect: str) -> Iterator[cli_kit.Dev]:
    """A `dev` in the middle of an effect."""
    (folder / "app.py").write_text(APP)
    with cli_kit.dev("app.py", "--store", "s", "--world", "w", cwd=folder) as host:
        words = ["run", "w", "call", f"name={effect}", "--detach", "--id", "r"]
        assert run(*words, "--app", folder / "app.py", "--store", folder / "s").code == 0
        cli_kit.until((folder / "began").exists, "the effect")
        yield host


@pytest.mark.parametrize("effect", ["in_thread", "handed_to_a_thread"])
def test_an_effect_in_a_thread_does_not_keep_the_process_alive(tmp_path: Path, effect: str) -> None:
    with hosting(tmp_path, effect) as host:
        assert host.end() == 130
    assert "[stopping] " in host.seen
    assert "[waiting] " not in host.seen, "the event loop was free"
    assert "[stopped] worlds are saved, leases are free; 1 thread is not waited for: " in host.seen
    assert "app.py:" in host.seen or effect == "handed_to_a_thread", "which line it is in"
    [row] = run("effect", "list", "--store", tmp_path / "s", "--json").lines
    assert row["state"] == "waiting", "its claim was given back"
    assert run("show", "w", "--store", tmp_path / "s", "--json").json["holder"] is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_roles_end_too(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "app.py").write_text(APP)
    common = ["--store", tmp_path / "s", "--app", tmp_path / "app.py"]
    with role_kit.running(["up", "app.py", "--store", "s"], cwd=tmp_path) as [process]:
        assert run("create", "w", *common).code == 0
        assert run("run", "w", "call", "name=in_thread", "--detach", *common).code == 0
        cli_kit.until((tmp_path / "began").exists, "the effect")
        assert process.end(number) == 0
        assert '"stopped":"up"' in process.seen


def test_a_second_ctrl_c_ends_a_process_whose_loop_is_blocked(tmp_path: Path) -> None:
    with hosting(tmp_path, "blocks_the_loop") as host:
        host.send(signal.SIGINT)
        host.wait_for("[waiting] for blocks_the_loop (app.py:")
        host.wait_for("which blocks the event loop; Ctrl-C again ends at once")
        assert host.end() == 130


def test_what_the_end_waits_for_is_named(tmp_path: Path) -> None:
    with hosting(tmp_path, "ignores_cancellation") as host:
        host.send(signal.SIGINT)
        cli_kit.until((tmp_path / "cancelled").exists, "the cancellation")
        host.wait_for("[waiting] for effect ignores_cancellation; Ctrl-C again ends at once")
        assert host.end() == 130


def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    with hosting(tmp_path, "ignores_cancellation") as host:
        host.send(signal.SIGTERM)
        cli_kit.until((tmp_path / "cancelled").exists, "the cancellation")
        assert host.end(signal.SIGTERM) == 128 + signal.SIGTERM
