from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import worldline as wl
from tests import aio
from worldline.model.journal import Kind

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "greeter.py"


async def start(folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def kinds(folder: Path) -> list[Kind]:
    """The world's journal, read by a client. Empty while there is no world yet."""
    try:
        async with wl.open(str(folder / "worlds")) as universe:
            return [entry.kind for entry in await universe.world("alice").journal()]
    except (wl.NotFound, wl.errors.StoreError):
        return []


async def test_it_greets_after_it_was_killed_and_remembers_that_it_did(tmp_path: Path) -> None:
    process = await start(tmp_path)

    async def sleeping() -> bool:
        assert process.returncode is None, await process.communicate()
        return Kind.TIMER_SET in await kinds(tmp_path)

    await aio.until(sleeping)
    process.send_signal(signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    for _ in range(2):
        process = await start(tmp_path)
        assert await process.communicate() == (b"HELLO ALICE\n", b"")
        assert process.returncode == 0
    found = await kinds(tmp_path)
    assert [
        found.count(kind) for kind in (Kind.RUN_STARTED, Kind.TIMER_SET, Kind.EFFECT_REQUESTED, Kind.RUN_FINISHED)
    ] == [1] * 4
