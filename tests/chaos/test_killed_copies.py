"""Exports, imports, backups and restores as real processes, killed by SIGKILL: nothing is broken, and the same command
again finishes. The option `copy_kills` is the dose: how often each of the four is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import worldline as wl
from tests import options
from worldline.features.copies import backup_calls
from worldline.features.copies import calls as copy_calls

KILLS = options.number("copy_kills")
app = wl.Program("kept")


@dataclass(frozen=True)
class Kept:
    data: bytes


@app.reducer
@dataclass
class Count:
    kept: int = 0

    @wl.on
    def keep(self, event: Kept) -> None:
        self.kept += 1


async def fill(store: str, *, events: int) -> str:
    async with wl.open(store, host=app) as universe:
        world = await universe.create("big", app)
        sent = [await world.send(Kept(os.urandom(100_000))) for _ in range(events)]
        await sent[-1].applied()
        await world.snapshot()
        return (await world.head()).chain.hex()


def killed(rng: random.Random, *words: str) -> None:
    """Run a command and kill it, so many times at drawn moments; then run it to its end."""
    command = [sys.executable, "-m", "worldline.cli", *words]
    began = time.monotonic()
    for _ in range(KILLS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.2, 1.5))
        process.kill()
        process.wait()
    assert time.monotonic() - began < 60 + 2 * KILLS
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in (0, 4), done.stderr
    assert done.returncode == 0 or "already" in done.stderr or "not empty" in done.stderr, done.stderr


@pytest.mark.skipif(not KILLS, reason="a long one: the option copy_kills says how often")
def test_copies_that_are_killed_are_made_again(tmp_path: Path) -> None:
    rng = random.Random(5)
    here, there, restored = (str(tmp_path / name) for name in ("here", "there", "restored"))
    file, folder = tmp_path / "big.world", str(tmp_path / "backups")
    chain = asyncio.run(fill(here, events=200))
    killed(rng, "export", "big", str(file), "--store", here)
    assert asyncio.run(copy_calls.verify(file)).chain == chain
    killed(rng, "import", str(file), "--store", there)
    killed(rng, "backup", here, folder)
    assert asyncio.run(backup_calls.verify(folder))
    killed(rng, "restore", folder, restored)
    for store in (there, restored):
        found = subprocess.run(
            [sys.executable, "-m", "worldline.cli", "verify", "--all", "--json", "--store", store],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert found.returncode == 0, found.stderr
        assert chain in found.stdout
