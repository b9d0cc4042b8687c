"""What the watching thread does about code that cannot be interrupted: it says so, or ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, logging, re, sys, time
from dataclasses import dataclass
import worldline as wl
from worldline.model.settings import Settings, WorkerSettings

app = wl.Program("slow")
said = []

class Handler(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        if "interrupted" in record.getMessage() or "event loop" in record.getMessage():
            said.append(record)

logging.getLogger("worldline").addHandler(Handler())

@dataclass(frozen=True)
class Hang:
    pass

@app.reducer()
@dataclass
class State:
    @wl.on
    def hang(self, event: Hang) -> None:
        if sys.argv[2] == "lock":
            re.match("(a+)+$", "a" * 60 + "b")
        time.sleep(3600)

@app.effect
async def blocks_the_loop() -> None:
    while sys.argv[3] == "exit" or not said:
        time.sleep(0.05)

@app.workflow
async def call() -> None:
    await blocks_the_loop()

async def main() -> None:
    settings = Settings(worker=WorkerSettings(step_timeout_ms=100), hang_ms=300, on_hang=sys.argv[3])
    async with wl.open(sys.argv[1], host=app, settings=settings) as universe:
        world = await universe.ensure("w", app)
        if sys.argv[2] != "loop":
            await world.send(Hang())
            while not said:
                await asyncio.sleep(0.05)
        else:
            await world.run(call(), id="r")

asyncio.run(main())
"""


@pytest.mark.parametrize("on_hang", ["report", "exit"])
@pytest.mark.parametrize(
    ("what", "said"),
    [("handler", "cannot be interrupted: hang (script.py:"), ("loop", "blocks_the_loop (script.py:")],
)
def test_code_that_cannot_be_interrupted(tmp_path: Path, what: str, said: str, on_hang: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(tmp_path / "store"), what, on_hang]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert said in ran.stderr
    assert ran.returncode == (75 if on_hang == "exit" else 0), ran.stderr
    assert ('on_hang is "exit": this process ends (75)' in ran.stderr) == (on_hang == "exit")


def test_code_that_keeps_pythons_lock_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(tmp_path / "store"), "lock", "exit"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert "Timeout (0:00:02" in ran.stderr
    assert 'script.py", line' in ran.stderr
    assert ran.returncode == 1
