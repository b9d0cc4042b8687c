"""Ten thousand worlds in one store and one process; two thousand of them in the daily run, under the same bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests import options
from tests.kits.child import ROOT
from worldline.base import limits
from worldline.model.settings import WorkerSettings

ALL = 10_000
MEMORY_BYTES_MAX = 2 * 1024 * limits.MIB
IDLE_SECONDS = 4.0


def test_many_worlds_are_cheap_and_idle_ones_cost_nothing(tmp_path: Path) -> None:
    """Created and touched once each within the memory that ten thousand may have. Then, with nothing to do: no write
    but the worker's heartbeat, and next to no processor time.
    """
    count = options.number("many_worlds")
    command = [sys.executable, "-m", "tests.kits.crowd", str(tmp_path / "store"), str(count), str(IDLE_SECONDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["bytes_per_world"] < MEMORY_BYTES_MAX / ALL
    assert found["peak_bytes"] < MEMORY_BYTES_MAX
    heartbeats = found["idle_s"] * 1000 / WorkerSettings().heartbeat_ms
    assert found["idle_commits"] <= heartbeats + 1
    assert found["idle_cpu_s"] < IDLE_SECONDS * 0.1
