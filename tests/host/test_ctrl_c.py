"""Ctrl-C in a plain script: the first ends it in order, also while a synchronous effect runs, the second at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, sys, time
from dataclasses import dataclass
from pathlib import Path
import worldline as wl

app = wl.Program("slow")

@dataclass(frozen=True)
class Hang:
    pass

@app.reducer()
@dataclass
class State:
    @wl.on
    def hang(self, event: Hang) -> None:
        print("began", flush=True)
        time.sleep(3600)

@app.effect
def in_thread() -> None:
    print("began", flush=True)
    time.sleep(3600)

@app.effect
async def ignores_cancellation() -> None:
    print("began", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

@app.effect
async def blocks_the_loop() -> None:
    print("began", flush=True)
    time.sleep(3600)

@app.workflow
async def call(name: str) -> None:
    await app.effects[name]()

async def main() -> None:
    async with wl.open(sys.argv[1], host=app) as universe:
        world = await universe.ensure("w", app)
        if sys.argv[2] == "handler":
            await world.send(Hang())
        else:
            await world.run(call(sys.argv[2]), id="r")

asyncio.run(main())
"""


def _again_if_it_was_lost(child: subprocess.Popen[str]) -> None:
    """Python looks at signals between two instructions: if the first one came just before the call that blocks, it is
    seen together with the second, as one. Whoever sits at the keyboard presses it once more."""
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("what", "signals"), [("in_thread", 1), ("handler", 2), ("ignores_cancellation", 2), ("blocks_the_loop", 2)]
)
def test_two_end_a_script_whatever_it_does(tmp_path: Path, what: str, signals: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(tmp_path / "store"), what]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "began\n"
            child.send_signal(signal.SIGINT)
            if signals > 1:
                with pytest.raises(subprocess.TimeoutExpired):
                    child.wait(0.7)
                child.send_signal(signal.SIGINT)
                _again_if_it_was_lost(child)
            _, said = child.communicate(timeout=20)
        finally:
            child.kill()
    # A script that was cancelled ends by the KeyboardInterrupt that `asyncio.run` makes of it.
    assert child.returncode == (130 if signals > 1 else -signal.SIGINT), said
    assert ("ended at once by the second Ctrl-C" in said) == (signals > 1)


def test_a_handler_of_the_scripts_own_is_left_alone(tmp_path: Path) -> None:
    script = """
import asyncio, signal, sys
import worldline as wl
app = wl.Program("p")
mine = lambda *_: None
async def main():
    async with wl.open(sys.argv[1], host=app):
        assert signal.getsignal(signal.SIGINT) is mine
signal.signal(signal.SIGINT, mine)
asyncio.run(main())
assert signal.getsignal(signal.SIGINT) is mine
"""
    (tmp_path / "script.py").write_text(script)
    ran = subprocess.run([sys.executable, "script.py", "store"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
