"""A host whose janitor begins to collect garbage and comes to no end of its mark.

`python -m tests.chaos.marking_host URL` says so in one line, keeps its heartbeat and waits to be killed.
"""

from __future__ import annotations

import asyncio
import os
import sys

import worldline as wl
from tests.chaos import child, idle_app
from worldline.features.collection import mark_phase
from worldline.model.settings import JanitorSettings, Settings, WorkerSettings

SAYS = "marking"
SETTINGS = Settings(
    worker=WorkerSettings(lease_ttl_ms=800, heartbeat_ms=200, scan_ms=200),
    janitor=JanitorSettings(turn_ms=50, round_ms=50, collect_ms=1),
)


async def _endless(self: mark_phase.Marker) -> bool:
    print(SAYS, flush=True)
    await asyncio.Event().wait()
    return True


async def main(url: str) -> None:
    child.die_with(int(os.environ[child.PARENT]))
    mark_phase.Marker.turn = _endless  # type: ignore[method-assign]
    async with wl.open(url, host=idle_app.app, settings=SETTINGS):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
